"""Reads a log once for a prediction: the group at its end, and its habits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from equipoise.events.records import BaseState, DecisionRecord, Entry, FactRecord
from equipoise.replay.prediction.habits import Habits, HabitsReader
from equipoise.replay.prediction.present import PresentGroup, present_of
from equipoise.replay.replayer import Replayer
from equipoise.statemachine.state import GroupState


def read_present(
    entries: Iterable[Entry], *, group: str | None = None, restore_records_per_s: int | None = None, state: GroupState | None = None
) -> tuple[PresentGroup, Habits]:
    """Returns the group at the end of the log, and how it behaves. `restore_records_per_s`: a
    restore speed that is known otherwise; `state`: see `state_beside`. Raises as `present_of` does,
    and what reading the log raises.
    """
    reader = HabitsReader(group=group)
    state = state_beside(entries, [reader.take], group=group, state=state)
    return present_of(state), reader.habits(restore_records_per_s)


def state_beside(
    entries: Iterable[Entry], readers: Sequence[Callable[[Entry], None]], *, group: str | None = None, state: GroupState | None = None
) -> GroupState:
    """Gives each record to `readers`, and returns the group's state at the end of the log. `state`:
    that, where it is known otherwise, as from a worker's checkpoint: then nothing is folded.
    """
    given = tapped(entries, *readers)
    if state is not None:
        deque(given, maxlen=0)
        return state
    replayer = Replayer(group)
    deque(replayer.follow(given), maxlen=0)
    return replayer.machine.state


def tapped(entries: Iterable[Entry], *readers: Callable[[Entry], None]) -> Iterator[Entry]:
    """Yields the entries. Gives each to the readers before, but for those whose effect is in the
    state at which the log begins.
    """
    bases: dict[str, BaseState] = {}
    for entry in entries:
        if isinstance(entry, BaseState):
            bases[entry.group] = entry
        base = bases.get(entry.group) if bases else None
        if base is None or base is entry or not _has(base, entry):
            for take in readers:
                take(entry)
        yield entry


def _has(base: BaseState, entry: Entry) -> bool:
    """Returns whether the state at the base has the effect of the record."""
    if isinstance(entry, FactRecord):
        return entry.offset <= base.offset
    return isinstance(entry, DecisionRecord) and entry.number <= base.number
