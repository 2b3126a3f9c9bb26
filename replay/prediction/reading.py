"""Reads a log once for a prediction: the group at its end, and its habits."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.events.records import Entry
from equipoise.replay.prediction.habits import Habits, HabitsReader
from equipoise.replay.prediction.present import PresentGroup, present_of
from equipoise.replay.replayer import Replayer


def read_present(entries: Iterable[Entry], *, group: str | None = None, restore_records_per_s: int | None = None) -> tuple[PresentGroup, Habits]:
    """Returns the group at the end of the log, and how it behaves. `restore_records_per_s`: a
    restore speed that is known otherwise. Raises as `present_of` does, and what reading the log
    raises.
    """
    reader = HabitsReader(group=group)
    replayer = Replayer(group)
    for _ in replayer.follow(reader.tap(entries)):
        pass
    return present_of(replayer.machine.state), reader.habits(restore_records_per_s)
