"""Costs of a run, per window, by the definitions with which the recorded Kafka Streams runs were
measured (``unavailability.json``).

A gap (`equipoise.replay.numbers.UNAVAILABLE`) belongs to the last window that had begun by then. It
may start EARLY_MS before its window and is then clipped to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from equipoise.events.decisions import AssignmentIssued, MemberAssigned
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.numbers import counted_ms, is_move
from equipoise.replay.simulation.world import CopyRestore, Ownership
from equipoise.statemachine.machine import GroupMachine

EARLY_MS = 1_500


@attrs.frozen(kw_only=True)
class ProcessingGap:
    """No member processed `task` for `lasts_ms` from `start_ms` on. `from_member` processed it
    before, `to_member` after; None: no member until the end.
    """

    task: TaskId
    start_ms: int
    lasts_ms: int
    from_member: str
    to_member: str | None


@attrs.frozen(kw_only=True)
class ActiveMove:
    """The member that processes `task` changed at `at_ms`."""

    at_ms: int
    task: TaskId
    from_member: str
    to_member: str


@attrs.frozen(kw_only=True)
class ProcessLifetime:
    """A process from start to end. `end_ms` None: it still runs."""

    member_id: str
    capacity: int
    start_ms: int
    end_ms: int | None


class Notes:
    """Collects rounds and copies of a run, by the append time of the fact that caused them."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, str]] = []
        """(time in ms, cause) of every AssignmentIssued; several parts count once."""
        self.copies: list[tuple[int, str]] = []
        """(time in ms, begun | promoted | dropped) of every copy."""
        self._kept: dict[str, tuple[int, frozenset[TaskId]]] = {}

    def __call__(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        for decision in whole(each.decision for each in decisions):
            if isinstance(decision, AssignmentIssued) and decision.part == 1:
                self.rounds.append((record.append_ms, decision.cause))
            elif isinstance(decision, MemberAssigned):
                self._assigned(record.append_ms, decision)

    def _assigned(self, at_ms: int, decision: MemberAssigned) -> None:
        incarnation, before = self._kept.get(decision.member_id, (decision.incarnation, frozenset()))
        if incarnation != decision.incarnation:
            before = frozenset()
        now = frozenset(decision.standby) | frozenset(decision.warmup)
        self._kept[decision.member_id] = (decision.incarnation, now)
        self.copies += [(at_ms, "begun")] * len(now - before)
        for task in sorted(before - now):
            self.copies.append((at_ms, "promoted" if task in decision.active else "dropped"))


def silences(history: Iterable[Ownership], end_ms: int) -> list[ProcessingGap]:
    """Returns every gap after a task's first processed record, by (task, start). `history` is the
    result of `SimulatedWorld.history`.
    """
    found: list[ProcessingGap] = []
    for task, group in itertools.groupby(history, key=lambda each: each.task):
        last: Ownership | None = None
        for each in group:
            if last is not None and counted_ms(each.start_ms - last.end_ms):
                gap_ms = each.start_ms - last.end_ms
                found.append(ProcessingGap(task=task, start_ms=last.end_ms, lasts_ms=gap_ms, from_member=last.member_id, to_member=each.member_id))
            if last is None or each.end_ms >= last.end_ms:
                last = each
        if last is not None and counted_ms(end_ms - last.end_ms):
            found.append(ProcessingGap(task=task, start_ms=last.end_ms, lasts_ms=end_ms - last.end_ms, from_member=last.member_id, to_member=None))
    return found


def active_moves(history: Iterable[Ownership]) -> list[ActiveMove]:
    """Returns every change of the member that processes a task, by (time, task)."""
    found: list[ActiveMove] = []
    for task, group in itertools.groupby(history, key=lambda each: each.task):
        for before, after in itertools.pairwise(group):
            if is_move(before.member_id, after.member_id):
                found.append(ActiveMove(at_ms=after.start_ms, task=task, from_member=before.member_id, to_member=after.member_id))
    return sorted(found, key=lambda move: (move.at_ms, move.task))


def owners_at(history: Iterable[Ownership], at_ms: int) -> dict[TaskId, str]:
    """Returns task -> member that processed it at `at_ms`, or last before."""
    return {each.task: each.member_id for each in history if each.start_ms <= at_ms}


def fewest_moves(owners: Mapping[TaskId, str], capacities: Mapping[str, int]) -> int:
    """Returns the smallest number of changes of owner that leaves every member between floor and
    ceiling of its share by capacity; 0 without members.
    """
    total = len(owners)
    weight = sum(capacities.values())
    if not weight:
        return 0
    held = dict.fromkeys(capacities, 0)
    for member_id in owners.values():
        if member_id in held:
            held[member_id] += 1
    floors = {member_id: total * capacity // weight for member_id, capacity in capacities.items()}
    kept = sum(min(held[member_id], floors[member_id]) for member_id in held)
    spare = total - sum(floors.values())
    above = sum(held[member_id] > floors[member_id] and total * capacities[member_id] % weight != 0 for member_id in held)
    return total - kept - min(spare, above)


@attrs.frozen(kw_only=True)
class WindowCost:
    """Costs of one window. `totals` has the keys of the recorded runs' totals; `causes`: rounds by
    cause.
    """

    label: str
    start_ms: int
    end_ms: int
    totals: dict[str, Any]
    causes: dict[str, int]
    unavailable_ms_per_task: dict[str, int]
    longest_silence_ms_per_task: dict[str, int]
    moves_per_task: dict[str, int]
    silences: tuple[ProcessingGap, ...]
    tasks_per_member: dict[str, int]
    """At the window's end."""


class Costs:
    """The measurements of one run."""

    def __init__(
        self,
        *,
        tasks: Mapping[TaskId, bool],
        history: Sequence[Ownership],
        restores: Sequence[CopyRestore],
        notes: Notes,
        lives: Sequence[ProcessLifetime],
        end_ms: int,
    ) -> None:
        self._tasks = tasks
        self._history = history
        self._restores = restores
        self._notes = notes
        self._lives = lives
        self.silences = silences(history, end_ms)
        self.moves = active_moves(history)

    def window(self, label: str, start_ms: int, end_ms: int) -> WindowCost:
        """Returns the cost of [start_ms, end_ms)."""
        theirs = [self._clip(each, start_ms) for each in self.silences if start_ms - EARLY_MS <= each.start_ms < end_ms - EARLY_MS]
        theirs = [each for each in theirs if counted_ms(each.lasts_ms)]
        moves = [move for move in self.moves if start_ms <= move.at_ms < end_ms]
        untouched = self._untouched(start_ms, end_ms)
        before, after = owners_at(self._history, start_ms - 1), owners_at(self._history, end_ms - 1)
        alive = {life.member_id: life.capacity for life in self._lives if life.start_ms < end_ms and (life.end_ms is None or life.end_ms >= end_ms)}
        rounds = [(at_ms, cause) for at_ms, cause in self._notes.rounds if start_ms <= at_ms < end_ms]
        copies = [what for at_ms, what in self._notes.copies if start_ms <= at_ms < end_ms]
        per_task = _summed(theirs)
        moved = [move.task for move in moves]
        stateful = {task: owner for task, owner in before.items() if self._tasks[task]}
        totals = {
            "unavailable_task_seconds": _seconds(sum(per_task.values())),
            "unavailable_stateful_task_seconds": _seconds(sum(lasts_ms for task, lasts_ms in per_task.items() if self._tasks[task])),
            "unavailable_task_seconds_of_tasks_on_untouched_instances": _seconds(
                sum(each.lasts_ms for each in theirs if each.from_member in untouched)
            ),
            "tasks_unavailable": len(per_task),
            "longest_silence_ms": max((each.lasts_ms for each in theirs), default=0),
            "generations": len(rounds),
            "probing_rebalances": sum(cause == "probing" for _, cause in rounds),
            "active_moves": len(moves),
            "stateful_active_moves": sum(self._tasks[task] for task in moved),
            "net_active_moves": sum(before.get(task) not in (None, owner) for task, owner in after.items()),
            "tasks_moved_more_than_once": len({task for task in moved if moved.count(task) > 1}),
            "stateful_moves_between_untouched_instances": sum(
                self._tasks[move.task] and move.from_member in untouched and move.to_member in untouched for move in moves
            ),
            "min_moves_for_balance": fewest_moves(before, alive),
            "min_stateful_moves_for_balance": fewest_moves(stateful, alive),
            "records_restored_before_running": sum(each.records for each in self._restores if each.to_run and start_ms <= each.at_ms < end_ms),
            "records_restored": sum(each.records for each in self._restores if start_ms <= each.at_ms < end_ms),
            "standby_copies_begun": copies.count("begun"),
            "standby_copies_promoted": copies.count("promoted"),
            "standby_copies_dropped": copies.count("dropped"),
            "seconds_to_last_generation": _seconds(max((at_ms for at_ms, _ in rounds), default=start_ms) - start_ms),
            "imbalance_task_seconds": _seconds(self.imbalance_ms(start_ms, end_ms)),
        }
        counts = dict.fromkeys(sorted(alive), 0)
        for owner in after.values():
            if owner in counts:
                counts[owner] += 1
        return WindowCost(
            label=label,
            start_ms=start_ms,
            end_ms=end_ms,
            totals=totals,
            causes={cause: [each for _, each in rounds].count(cause) for cause in sorted({cause for _, cause in rounds})},
            unavailable_ms_per_task={str(task): per_task[task] for task in sorted(per_task)},
            longest_silence_ms_per_task={str(task): max(each.lasts_ms for each in theirs if each.task == task) for task in sorted(per_task)},
            moves_per_task={str(task): moved.count(task) for task in sorted(set(moved))},
            silences=tuple(theirs),
            tasks_per_member=counts,
        )

    @staticmethod
    def _clip(silence: ProcessingGap, start_ms: int) -> ProcessingGap:
        late_ms = max(0, start_ms - silence.start_ms)
        return attrs.evolve(silence, start_ms=silence.start_ms + late_ms, lasts_ms=silence.lasts_ms - late_ms)

    def _untouched(self, start_ms: int, end_ms: int) -> set[str]:
        """Members that neither started nor stopped in the window."""
        touched = {
            life.member_id for life in self._lives for at_ms in (life.start_ms, life.end_ms) if at_ms is not None and start_ms <= at_ms < end_ms
        }
        return {life.member_id for life in self._lives} - touched

    def imbalance_ms(self, start_ms: int, end_ms: int) -> int:
        """Returns task-milliseconds above the upper share of their member or missing to the lower
        share.
        """
        changes: list[tuple[int, str, int, int]] = []
        """(time in ms, member, change of its tasks, change of its capacity)"""
        for each in self._history:
            if each.start_ms < end_ms and each.end_ms > start_ms:
                changes.append((max(each.start_ms, start_ms), each.member_id, 1, 0))
                changes.append((min(each.end_ms, end_ms), each.member_id, -1, 0))
        for life in self._lives:
            life_end_ms = end_ms if life.end_ms is None else min(life.end_ms, end_ms)
            if life.start_ms < end_ms and life_end_ms > start_ms:
                changes.append((max(life.start_ms, start_ms), life.member_id, 0, life.capacity))
                changes.append((life_end_ms, life.member_id, 0, -life.capacity))
        tasks: dict[str, int] = {}
        capacity: dict[str, int] = {}
        total_ms = 0
        last_ms = start_ms
        for at_ms, member_id, more_tasks, more_capacity in sorted(changes):
            if at_ms > last_ms:
                total_ms += (at_ms - last_ms) * _imbalance(tasks, capacity, len(self._tasks))
                last_ms = at_ms
            tasks[member_id] = tasks.get(member_id, 0) + more_tasks
            capacity[member_id] = capacity.get(member_id, 0) + more_capacity
        return total_ms


def _imbalance(tasks: Mapping[str, int], capacity: Mapping[str, int], total: int) -> int:
    weight = sum(capacity.values())
    if not weight:
        return 0
    over = 0
    for member_id, its in capacity.items():
        held = tasks.get(member_id, 0)
        over += max(0, held - -(-total * its // weight)) + max(0, total * its // weight - held)
    return over


def _summed(silences_of: Iterable[ProcessingGap]) -> dict[TaskId, int]:
    summed: dict[TaskId, int] = {}
    for each in silences_of:
        summed[each.task] = summed.get(each.task, 0) + each.lasts_ms
    return summed


def _seconds(duration_ms: int) -> float:
    return round(duration_ms / 1_000, 1)
