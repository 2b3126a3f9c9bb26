"""Ranges of a state cost as much as is read of them, however much was changed and deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import MemoryStore
from equipoise.events.tasks import TaskId
from equipoise.member.tasks.changes import Changes
from equipoise.member.tasks.context import State, TaskContext
from equipoise.member.tasks.gaps import FEW_KEYS, MOST_GAPS, Gaps

KEYS = st.binary(max_size=1)


class CountingStore(MemoryStore):
    """Counts the keys that it gives."""

    steps = 0

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for each in super().items(start, end):
            self.steps += 1
            yield each


class CountingChanges(Changes):
    """Counts the keys that all of them give."""

    steps = 0

    def between(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        for key in super().between(start, end):
            CountingChanges.steps += 1
            yield key


@pytest.mark.parametrize("rounds", [200, 2_000])
@pytest.mark.parametrize("commit_every", [None, 100, 700])
@pytest.mark.parametrize("from_begin", [True, False])
def test_expiry_from_the_front_passes_over_each_deleted_key_once(
    rounds: int, commit_every: int | None, from_begin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.member.tasks.context.Changes", CountingChanges)
    CountingChanges.steps = 0
    store = CountingStore()
    state = State(store)
    due = [b"t%08d" % number for number in range(rounds + 100)]
    store.apply(dict.fromkeys(due[:100], b"x"), offset=1)
    for number in range(rounds):
        state.put(due[number + 100], b"x")
        (first, _) = next(state.range(None if from_begin else b"t", due[number + 100]))
        assert first == due[number]
        state.delete(first)
        if commit_every and number % commit_every == commit_every - 1:
            store.apply(state.begin_commit(), offset=2)
    assert store.steps + CountingChanges.steps < 25 * rounds


def test_a_step_of_a_range_does_not_wait_for_the_rest() -> None:
    store = CountingStore()
    state = State(store)
    store.apply({b"s%05d" % number: b"x" for number in range(1_000)}, offset=1)
    for number in range(1_000):
        state.put(b"w%05d" % number, b"x")
    assert next(state.items()) == (b"s00000", b"x")
    assert store.steps <= 2


@given(steps=st.lists(st.tuples(st.sampled_from(["put", "found"]), KEYS, KEYS), max_size=30))
def test_gaps_never_hide_a_key(steps: list[tuple[str, bytes, bytes]]) -> None:
    gaps, there = Gaps(), {bytes([number]) for number in range(0, 256, 16)}
    for step, first, second in steps:
        if step == "put":
            there.add(first)
            gaps.put(first)
        else:
            first = gaps.behind(first)
            end = min((key for key in there if key >= first), default=second)
            gaps.found(first, end, FEW_KEYS)
        for key in there:
            assert gaps.behind(key) == key
        assert len(gaps.ends) <= MOST_GAPS


@given(before=st.lists(KEYS), within=st.lists(st.tuples(KEYS, st.none() | KEYS)))
def test_keys_of_a_range_are_those_of_its_first_step(before: list[bytes], within: list[tuple[bytes, bytes | None]]) -> None:
    changes = Changes()
    changes.update(dict.fromkeys(before, b"v"))
    found, rest = [], list(within)
    for key in changes.between(b"", None):
        found.append(key)
        if rest:
            changed, read = rest.pop()
            changes[changed] = b"w"
            if read is not None:
                assert list(changes.between(read, None)) == sorted(each for each in changes if each >= read)
            else:
                changes.drop(changed)
    assert found == sorted(set(before))
    assert list(changes.between(b"", None)) == sorted(changes)


def test_deleted_key_that_is_rolled_back_is_seen_again() -> None:
    state = State(MemoryStore())
    context = TaskContext(TaskId(0, 0), 1, {"log": state})
    for number in range(20):
        state.put(b"%02d" % number, b"x")
    context.savepoint()
    for number in range(19):
        state.delete(b"%02d" % number)
    assert [key for key, _ in state.items()] == [b"19"]
    assert state._gaps.ends
    context.rollback()
    assert len(list(state.items())) == 20
    assert list(state.range(b"05", b"07")) == [(b"05", b"x"), (b"06", b"x")]


def test_handler_may_delete_what_it_reads() -> None:
    state = State(MemoryStore())
    for number in range(50):
        state.put(b"%02d" % number, b"x")
    for key, value in state.items():
        assert value == b"x"
        state.delete(key)
        state.put(key + b"-done", b"x")
    assert [key for key, _ in state.items()] == [b"%02d-done" % number for number in range(50)]
