"""What is kept under a name, given to another definition: refused, or gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgpack import unpackb

from equipoise import ErrorPolicy, JsonSerde, MemoryStore, Record, State, StringSerde, TaskContext, TaskId, streams
from equipoise.member.tasks.context import KeptError
from equipoise.streams import StreamJoin, StreamTable, Timers, count, hopping, sessions, sliding, tumbling
from equipoise.testing import TaskDriver

DATA = Path(__file__).parents[3] / "data"
BASE = 1_700_000_040_000


def _context(store: MemoryStore) -> TaskContext:
    return TaskContext(TaskId(0, 0), 1, {"state": State(store, StringSerde(), JsonSerde())})


def _commit(context: TaskContext, store: MemoryStore) -> None:
    store.apply(context.state.begin_commit(), offset=store.offset + 1)


def _timers(name: str = "w") -> Timers:
    return Timers(name, lambda context, key, value, due_ms: None)


def _use(kept: Any, context: TaskContext, at_ms: int, key: str = "k") -> list[Any]:
    if isinstance(kept, StreamTable):
        kept.put(context, key, at_ms)
        return []
    if isinstance(kept, Timers):
        kept.set(context, at_ms + 5, key)
        return []
    found: list[Any] = kept.left(context, key, 1, at_ms) if isinstance(kept, StreamJoin) else kept.add(context, key, 1, at_ms)
    return found


KINDS: dict[str, Callable[[], Any]] = {
    "windows of a fixed size": lambda: tumbling("w", count(), size_ms=10_000),
    "session windows": lambda: sessions("w", count(), gap_ms=10_000),
    "sliding windows": lambda: sliding("w", count(), size_ms=10_000),
    "a join of streams": lambda: StreamJoin("w", before_ms=10_000),
    "a table": lambda: StreamTable("w"),
    "timers": _timers,
}


@pytest.mark.parametrize("is_of_former_build", [False, True])
@pytest.mark.parametrize("had", KINDS)
@pytest.mark.parametrize("has", KINDS)
def test_kept_of_another_kind_is_refused_and_of_the_same_goes_on(had: str, has: str, is_of_former_build: bool) -> None:
    store, first = MemoryStore(), KINDS[had]()
    context = _context(store)
    for at in range(3):
        _use(first, context, BASE + at * 1_000)
    _commit(context, store)
    if is_of_former_build:
        _as_a_former_build(store, first)
    context, second = _context(store), KINDS[has]()
    if had == has:
        _use(second, context, BASE + 4_000)
        return
    content = dict(store.items(b"", None))
    with pytest.raises(KeptError, match=f"was the name of {had} and is that of {has} now; give the new one another name"):
        _use(second, context, BASE + 4_000)
    context.rollback()
    assert dict(store.items(b"", None)) == content


def _as_a_former_build(store: MemoryStore, kept: Any) -> None:
    """What a build without descriptions has written: no marks in ms, joins without times in the
    index.
    """
    changes: dict[bytes, bytes | None] = {kept._description: None, kept._prefix + b"s": None}
    if isinstance(kept, StreamJoin):
        changes |= {key: b"1" for key, _ in store.items(kept._by_time, kept._by_time + b"\xff")}
    store.apply(changes, offset=store.offset + 1)


@pytest.mark.parametrize(
    ("made", "stored"),
    [
        (
            lambda: hopping("w", count(), size_ms=60_000, advance_ms=10_000),
            {"size_ms": 60_000, "every_ms": 10_000},
        ),
        (_timers, {"kind": "reminders"}),
    ],
)
def test_description_keeps_the_words_that_former_builds_read(made: Callable[[], Any], stored: dict[str, Any]) -> None:
    context, kept = _context(MemoryStore()), made()
    _use(kept, context, BASE)
    described = unpackb(context.state.get_own(kept._description) or b"")
    assert {key: described[key] for key in stored} == stored


REFUSED: dict[str, list[Callable[[], Any]]] = {
    "size_ms": [lambda: tumbling("w", count(), size_ms=10_000), lambda: tumbling("w", count(), size_ms=60_000)],
    "advance_ms": [
        lambda: hopping("w", count(), size_ms=60_000, advance_ms=10_000),
        lambda: hopping("w", count(), size_ms=60_000, advance_ms=30_000),
    ],
    "size_ms of sliding": [lambda: sliding("w", count(), size_ms=10_000), lambda: sliding("w", count(), size_ms=60_000)],
}


@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("what", REFUSED)
def test_kept_with_other_sizes_is_refused_with_the_ways_on(what: str, is_back: bool) -> None:
    store = MemoryStore()
    had, has = (made() for made in (reversed(REFUSED[what]) if is_back else REFUSED[what]))
    context = _context(store)
    _use(had, context, BASE)
    _commit(context, store)
    context = _context(store)
    with pytest.raises(KeptError, match=rf"'w' had {what.split(maxsplit=1)[0]}=\d+ and has .* another name, or"):
        _use(has, context, BASE + 1_000)
    _use(had, _context(store), BASE + 1_000)


@pytest.mark.parametrize("policy", [ErrorPolicy.stop(), ErrorPolicy.skip(), ErrorPolicy.dead_letter("letters")])
def test_task_with_a_changed_window_fails_whatever_the_policy(policy: ErrorPolicy) -> None:
    asyncio.run(_parked(policy))


async def _parked(policy: ErrorPolicy) -> None:
    windows = tumbling("w", count(), size_ms=60_000)

    def handle(record: Record, context: TaskContext) -> None:
        windows.add(context, record.key, 1, record.timestamp_ms)

    driver = TaskDriver(handle, key_serde=StringSerde(), value_serde=JsonSerde(), on_error=policy)
    store, former = driver.state.store, tumbling("w", count(), size_ms=10_000)
    context = TaskContext(TaskId(0, 0), 1, {"state": State(store, StringSerde(), JsonSerde())})
    former.add(context, "k", 1, BASE)
    store.apply(context.state.begin_commit(), offset=store.offset + 1)
    content = dict(store.items(b"", None))
    with pytest.raises(KeptError):
        await driver.send({}, key="k", timestamp_ms=BASE)
    assert driver.failed is not None
    assert "had size_ms=10000 and has size_ms=60000" in driver.failed.error
    assert dict(store.items(b"", None)) == content


def test_name_that_is_used_twice_is_refused_with_both_kinds() -> None:
    context = _context(MemoryStore())
    views, cents = tumbling("per-minute", count(), size_ms=60_000), tumbling("per-minute", streams.sum(int), size_ms=60_000)
    views.add(context, "k", 1, BASE)
    with pytest.raises(KeptError, match="'per-minute' is used twice"):
        cents.add(context, "k", 1, BASE)
    context.rollback()
    with pytest.raises(KeptError, match="by windows of a fixed size and by a table"):
        StreamTable[int]("per-minute").put(context, "k", 1)


def test_windows_that_are_made_for_each_record_go_on() -> None:
    context = _context(MemoryStore())
    assert [tumbling("w", count(), size_ms=60_000).add(context, "k", 1, BASE)[0].value for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("emit", ["update", "final"])
@pytest.mark.parametrize("is_of_former_build", [False, True])
def test_windows_that_did_not_change_go_on_exactly(emit: str, is_of_former_build: bool) -> None:
    def made() -> Any:
        return hopping("w", count(), size_ms=10_000, advance_ms=5_000, emit=emit, grace_ms=2_000)

    moved, plain = MemoryStore(), MemoryStore()
    windows, others = made(), made()
    context, whole = _context(moved), _context(plain)
    for second in range(120):
        if second == 60:
            _commit(context, moved)
            if is_of_former_build:
                _as_a_former_build(moved, windows)
            context, windows = _context(moved), made()
        assert _use(windows, context, BASE + second * 1_000) == _use(others, whole, BASE + second * 1_000)
    _commit(context, moved)
    _commit(whole, plain)
    for store in (moved, plain):
        store.apply({windows._description: None}, offset=store.offset + 1)
    assert dict(moved.items(windows._prefix, None)) == dict(plain.items(windows._prefix, None))


@pytest.mark.parametrize("emit", ["update", "final"])
@pytest.mark.parametrize(("had_ms", "has_ms"), [(10_000, 60_000), (60_000, 10_000)])
def test_former_windows_with_another_step_are_refused(had_ms: int, has_ms: int, emit: str) -> None:
    store, had = MemoryStore(), tumbling("w", count(), size_ms=had_ms, emit=emit)
    context = _context(store)
    for second in range(60):
        _use(had, context, BASE + second * 1_000)
    _commit(context, store)
    _as_a_former_build(store, had)
    with pytest.raises(KeptError, match="another advance_ms"):
        _use(tumbling("w", count(), size_ms=has_ms, emit=emit), _context(store), BASE + 60_000)


def test_windows_that_a_former_build_had_for_a_while_are_closed_once() -> None:
    store, seen, marks = MemoryStore(), [], None
    for second in range(60):
        windows = tumbling("w", count(), size_ms=5_000, emit="final", retention_ms=200_000)
        context = _context(store)
        seen += _use(windows, context, BASE + second * 1_000)
        _commit(context, store)
        if 20 <= second < 40:  # it knows no marks in ms: those from before are still there
            marks = marks or store.get(windows._mark)
            store.apply({windows._mark: marks}, offset=store.offset + 1)
    assert [each.start_ms - BASE for each in seen] == list(range(0, 55_000, 5_000))


OF_FORMER_BUILD = json.loads((DATA / "kept_without_descriptions.json").read_text())
"""Kind -> what the build before descriptions had kept after 30 records, and what it returned for
each of the next 30.
"""


@pytest.mark.parametrize("kind", OF_FORMER_BUILD)
def test_state_of_a_former_build_goes_on_as_there(kind: str) -> None:
    due: list[Any] = []
    kept: Any = {
        "windows of a fixed size": hopping("w", count(), size_ms=10_000, advance_ms=5_000, grace_ms=2_000, retention_ms=40_000, emit="final"),
        "session windows": sessions("w", count(), gap_ms=2_000, emit="final"),
        "sliding windows": sliding("w", count(), size_ms=3_000, emit="final"),
        "a join of streams": StreamJoin("w", before_ms=0, after_ms=3_000, kind="left"),
        "a table": StreamTable("w"),
        "timers": Timers("w", lambda context, key, value, due_ms: due.append([key, due_ms])),
    }[kind]
    store, former = MemoryStore(), OF_FORMER_BUILD[kind]
    store.apply({bytes.fromhex(key): bytes.fromhex(value) for key, value in former["kept"].items()}, offset=1)
    for other in set(KINDS) - {kind}:
        with pytest.raises(KeptError, match=f"was the name of {kind}"):
            _use(KINDS[other](), _context(store), BASE)
    context = _context(store)
    for second, expected in enumerate(former["then"], start=30):
        at_ms, key = BASE + second * 1_000, f"k{second // 5}"
        if isinstance(kept, StreamTable):
            assert kept.put(context, f"k{second % 7}", second) == expected[0]
        elif isinstance(kept, Timers):
            due.clear()
            kept.run(context, at_ms)
            kept.set(context, at_ms + 5_500, key)
            assert due == expected
        else:
            found = kept.left(context, key, second, at_ms) if isinstance(kept, StreamJoin) else kept.add(context, key, 1, at_ms)
            assert json.loads(json.dumps(found)) == expected
    _commit(context, store)
    assert store.get(kept._description) is not None


@pytest.mark.parametrize("emit", ["update", "final"])
def test_closed_window_is_not_opened_by_a_longer_grace(emit: str) -> None:
    store, had = MemoryStore(), tumbling("w", count(), size_ms=10_000, emit=emit)
    context = _context(store)
    for second in range(60):
        _use(had, context, BASE + second * 1_000)
    _commit(context, store)
    context, has = _context(store), tumbling("w", count(), size_ms=10_000, emit=emit, grace_ms=60_000)
    assert _use(has, context, BASE + 5_000) == []
    assert has.late_records(context) == 1
    results = _use(has, context, BASE + 200_000)
    closed = [(each.start_ms - BASE, each.value) for each in results if each.is_closed]
    assert closed == ([(50_000, 10)] if emit == "final" else [])
    has.close(context)
    assert len(list(context.state.range_own(has._by_time, has._by_time + b"\xff"))) == 1  # the newest


@pytest.mark.parametrize("emit", ["update", "final"])
def test_session_that_is_over_is_not_opened_by_a_longer_gap(emit: str) -> None:
    store, had = MemoryStore(), sessions("w", count(), gap_ms=1_000, emit=emit)
    context = _context(store)
    for second in (0, 1, 30):
        _use(had, context, BASE + second * 1_000)
    _commit(context, store)
    context, has = _context(store), sessions("w", count(), gap_ms=20_000, grace_ms=60_000, emit=emit)
    assert _use(has, context, BASE + 2_000) == []
    assert has.late_records(context) == 1
    closed = _use(has, context, BASE + 45_000) + _use(has, context, BASE + 200_000)
    assert [each.value for each in closed] == ([2] if emit == "final" else [2, 1])
    context.rollback()


def test_sliding_windows_with_a_longer_grace_are_whole() -> None:
    store, had = MemoryStore(), sliding("w", count(), size_ms=10_000)
    context = _context(store)
    for second in range(60):
        _use(had, context, BASE + second * 1_000)
    _commit(context, store)
    context, has = _context(store), sliding("w", count(), size_ms=10_000, grace_ms=30_000)
    assert _use(has, context, BASE + 40_000) == []  # the first of its window are gone
    assert [each.value for each in _use(has, context, BASE + 60_000)] == [11]
    assert has.late_records(context) == 1
    _use(has, context, BASE + 80_000)
    assert [each.value for each in _use(has, context, BASE + 62_000)] == [10]


def test_record_that_a_join_gave_up_gets_no_partner_by_a_longer_grace() -> None:
    store, had = MemoryStore(), StreamJoin[str, str]("w", before_ms=1_000, kind="outer")
    context = _context(store)
    had.left(context, "k", "left", BASE)
    assert [each.left for each in had.left(context, "k", "second", BASE + 60_000)] == ["left"]
    _commit(context, store)
    context, has = _context(store), StreamJoin[str, str]("w", before_ms=1_000, grace_ms=300_000, kind="outer")
    assert has.right(context, "k", "right", BASE) == []
    assert has.late_records(context) == 1
    assert [each.left for each in has.right(context, "k", "partner", BASE + 60_500)] == ["second"]


@pytest.mark.parametrize("is_of_former_build", [False, True])
@pytest.mark.parametrize(("had_ms", "has_ms"), [(60_000, 60_000), (60_000, 30_000), (30_000, 60_000)])
def test_join_with_other_times_forgets_no_waiting_record(had_ms: int, has_ms: int, is_of_former_build: bool) -> None:
    store = MemoryStore()
    had, has = (StreamJoin[int, int]("w", before_ms=0, after_ms=ms, kind="left") for ms in (had_ms, has_ms))
    context, alone = _context(store), []
    for number in range(100):
        alone += had.left(context, f"k{number}", number, BASE + number * 1_000)
    _commit(context, store)
    if is_of_former_build:
        _as_a_former_build(store, had)
    context = _context(store)
    for number in range(100, 200):
        alone += has.left(context, f"k{number}", number, BASE + number * 1_000)
    alone += has.left(context, "end", -1, BASE + 10_000_000)
    alone += has.close(context)
    assert {each.left for each in alone} == set(range(200))
    assert len(alone) == 200
    assert len(list(context.state.range_own(has._by_key, has._by_key + b"\xff"))) == 1


def test_record_that_waits_in_a_join_finds_partners_by_the_longer_time() -> None:
    store, had = MemoryStore(), StreamJoin[str, str]("w", before_ms=0, after_ms=10_000, kind="left")
    context = _context(store)
    had.left(context, "k", "left", BASE)
    _commit(context, store)
    context, has = _context(store), StreamJoin[str, str]("w", before_ms=0, after_ms=60_000, kind="left")
    assert has.left(context, "other", "o", BASE + 30_000) == []
    assert [(each.left, each.right) for each in has.right(context, "k", "right", BASE + 40_000)] == [("left", "right")]


@pytest.mark.parametrize(("had_ms", "has_ms"), [(10_000, 60_000), (60_000, 10_000)])
def test_sessions_with_another_gap_go_on(had_ms: int, has_ms: int) -> None:
    store = MemoryStore()
    had, has = (sessions("w", count(), gap_ms=ms, emit="final") for ms in (had_ms, has_ms))
    context, found = _context(store), []
    for second in range(400):
        if second == 200:
            _commit(context, store)
            context = _context(store)
        found += _use(had if second < 200 else has, context, BASE + second * 1_000, f"k{second // 5}")
    found += _use(has, context, BASE + 10_000_000)
    assert sum(each.value for each in found) == 400
    assert len(list(context.state.range_own(has._by_time, has._by_time + b"\xff"))) == 1


def test_failed_record_takes_its_description_back_and_the_next_one_writes_it() -> None:
    store, windows = MemoryStore(), tumbling("w", count(), size_ms=10_000)
    context = _context(store)
    _use(windows, context, BASE)
    context.rollback()
    _use(windows, context, BASE)
    _commit(context, store)
    assert store.get(windows._description) is not None
