"""What the expiry of windows costs a task whose state is in RocksDB: the longest commit, and the
longest call for one record, while stream time passes a store of BENCH_WINDOWS entries (1,000,000)
at once; and a `range` from the first key behind keys that were deleted.

The store is filled as a restore fills it. Then a handler adds records, and the store gets their
changes as from a member: after COMMIT_S, or MOST_UNCOMMITTED records. There are no brokers.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import msgpack

from bench.__main__ import Row
from equipoise import BytesSerde, RocksStore, State, TaskContext, TaskId
from equipoise.hosting.runtime import collect_seldom
from equipoise.streams import count, sessions, stream_time, tumbling
from equipoise.streams.windows import AnyWindows

ENTRIES = int(os.environ.get("BENCH_WINDOWS", "1_000_000"))
COMMIT_S, MOST_UNCOMMITTED = 0.5, 10_000
AT_ONCE = 50_000
"""Entries that are filled in at once."""
AT_ONE_TIME = 10_000
"""Windows that begin, or sessions that end, at one moment."""
NOW_MS = 10**9
GOAL_MS = 200
DELETED = 1_000_000
RANGES = 1_000
Entries = Iterator[tuple[bytes, bytes]]


def _key(number: int) -> bytes:
    return b"user-%012d" % number


def _windows_of(windows: AnyWindows[object, int, int]) -> Entries:
    for number in range(ENTRIES):
        yield windows._by_time + stream_time.packed(number // AT_ONE_TIME * 1_000) + _key(number), b"\1"


def _sessions_of(windows: AnyWindows[object, int, int]) -> Entries:
    """Two entries each."""
    for number in range(ENTRIES // 2):
        end_ms = number // AT_ONE_TIME * 1_000
        yield windows._by_time + stream_time.packed(end_ms) + _key(number), b"1"
        yield windows._by_key + _key(number), msgpack.packb([(end_ms, end_ms, 1)])
    yield windows._mark, stream_time.packed(0)


def _filled(store: RocksStore, entries: Entries) -> None:
    while batch := dict(itertools.islice(entries, AT_ONCE)):
        store.apply(batch, offset=store.offset + 1, bulk=True)
    store.apply({}, offset=store.offset + 1)


@attrs.define
class _Longest:
    """The longest of many, in ms: `wall_ms` of one, and `cpu_ms`: most CPU of the thread. What is
    between them, the thread has waited for the disk, or for others that have the cores.
    """

    wall_ms: float = 0.0
    cpu_ms: float = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        yield
        self.wall_ms = max(self.wall_ms, (time.perf_counter() - wall_s) * 1_000)
        self.cpu_ms = max(self.cpu_ms, (time.thread_time() - cpu_s) * 1_000)


def _expiry(windows: AnyWindows[object, int, int], entries: Entries) -> tuple[_Longest, _Longest, float]:
    """Longest commit and longest call, and records a second, until nothing has passed."""
    with tempfile.TemporaryDirectory() as folder:
        store = RocksStore(Path(folder) / "store")
        _filled(store, entries)
        state = State(store, BytesSerde(), BytesSerde())
        context = TaskContext(TaskId(0, 0), 1, {"state": state})
        commits, calls, number, began_s = _Longest(), _Longest(), 0, time.perf_counter()
        left = True
        while left:
            until_s = time.perf_counter() + COMMIT_S
            for _ in range(MOST_UNCOMMITTED):
                if time.perf_counter() > until_s:
                    break
                with calls.timed():
                    context.savepoint()
                    windows.add(context, b"new-%012d" % number, None, NOW_MS)
                number += 1
            with commits.timed():
                changes = state.begin_commit()
                store.apply(changes, offset=store.offset + 1)
            left = None in changes.values()
        per_s = number / (time.perf_counter() - began_s)
        kept = sum(value is not None for _, value in state.raw_items(windows._by_time, windows._by_time + stream_time.packed(NOW_MS - 100_000)))
        store.close()
    assert not kept, f"{kept} entries have not expired"
    return commits, calls, per_s


def _range_us(state: State, call: Callable[[State], object]) -> float:
    at_s = time.perf_counter()
    for _ in range(RANGES):
        call(state)
    return (time.perf_counter() - at_s) / RANGES * 1e6


def _behind_deleted() -> tuple[float, float]:
    """Us of a `range` from the first key, before DELETED keys were deleted and after that."""

    def first(state: State) -> object:
        return next(state.range(), None)

    with tempfile.TemporaryDirectory() as folder:
        store = RocksStore(Path(folder) / "store")
        _filled(store, ((_key(number), b"1") for number in range(DELETED + 1)))
        state = State(store, BytesSerde(), BytesSerde())
        before_us = _range_us(state, first)
        for number in range(DELETED):
            key, _ = next(state.range())
            assert key == _key(number)
            state.delete(key)
            if number % MOST_UNCOMMITTED == MOST_UNCOMMITTED - 1:
                store.apply(state.begin_commit(), offset=store.offset + 1)
        store.apply(state.begin_commit(), offset=store.offset + 1)
        after_us = _range_us(state, first)
        store.close()
    return before_us, after_us


def run() -> list[Row]:
    """The longest commits and calls, and what a range costs."""
    rows: list[Row] = []
    collect_seldom()  # as a member
    changing, closing = tumbling("w", count(), size_ms=1_000), sessions("s", count(), gap_ms=1_000, emit="final")
    for name, windows, entries in (
        ("tumbling windows", changing, _windows_of(changing)),
        ("sessions, sent when they close", closing, _sessions_of(closing)),
    ):
        commits, calls, per_s = _expiry(windows, entries)
        rows.append((f"{name}: longest commit, ms", commits.wall_ms, f"{ENTRIES:,} entries expire; goal: at most {GOAL_MS}"))
        rows.append((f"{name}: most CPU of a commit, ms", commits.cpu_ms, "the rest of the longest one waits"))
        note = f"{per_s:,.0f} records/s meanwhile; most CPU {calls.cpu_ms:.1f} ms"
        rows.append((f"{name}: longest call for one record, ms", calls.wall_ms, note))
    before_us, after_us = _behind_deleted()
    rows.append((f"a range behind {DELETED:,} deleted keys, us", after_us, f"{before_us:.1f} behind none; goal: at most 50"))
    return rows
