"""Divides the load of a host among the tasks that it runs.

A member reports how busy its host is (`equipoise.events.facts.Load`), because an operating system
knows processes and not tasks. The host's load is divided among the tasks that the member holds:
processor time in proportion to the time spent on the records of each task, memory and disk in
proportion to the records in its changelogs. Where these are unknown, the division follows the
records/s that each task processes; else the records/s written to its changelogs; else all tasks get
equal parts. A task that the member leaves out while it names others gets no part and counts as not
measured.

The parts of a host's tasks add up to what it reported. So whether members are balanced is measured,
however the load is divided. Only the effect of a future move is an estimate, and it is measured
after the move.

A share of a host of capacity c counts c-fold, in threads: a host is assumed to be as large as its
threads. Parts are averaged over `load_window_ms` of group time, in whole numbers, and stay with the
task when it moves. A member that restores is not measured, because the cost of restoring belongs to
no task.
"""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.events.facts import Load
from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.state import GroupState, MeasuredLoad, MemberState

MILLIONTHS = 1_000_000
MOST_OF_A_HOST = 1_000
"""A share of a host is 0..1. Larger values are capped here; they are an error of the reporter."""


def measured_loads(state: GroupState, member: MemberState, load: Load) -> dict[TaskId, MeasuredLoad]:
    """The load of each task that the member holds. Empty when the report says nothing about it, or
    while the member restores. Costs time in the number of tasks held.
    """
    known = state.tasks()
    held = [task for task in member.held if task in known and (task in load.tasks or not load.tasks)]
    if not held or not (load.cpu or load.memory or load.disk or load.records_per_s or load.tasks) or _restores(member):
        return {}
    processed = {task: load.tasks.get(task, 0) for task in held}
    share = processed if any(processed.values()) else _written(state, held)
    busy = {task: load.busy.get(task, 0) for task in held}
    kept = _kept(state, held) if load.memory or load.disk else {}
    by_busy, by_kept = (each if any(each.values()) else share for each in (busy, kept))
    throughput = sum(processed.values()) or min(int(load.records_per_s), INT64_MAX)
    host = [
        (_millionths(load.cpu) * member.capacity, by_busy, sum(by_busy.values())),
        (_millionths(load.memory) * member.capacity, by_kept, sum(by_kept.values())),
        (_millionths(load.disk) * member.capacity, by_kept, sum(by_kept.values())),
        (throughput, share, sum(share.values())),
    ]
    now_ms, window_ms = state.now_ms, state.settings.load_window_ms
    return {
        task: _averaged(state.loads.get(task), [amount and amount * of[task] // total for amount, of, total in host], now_ms, window_ms)
        for task in held
    }


def _restores(member: MemberState) -> bool:
    """Returns whether restoring keeps the host busy. Standbys do so a little all the time, and
    their cost is divided among the tasks.
    """
    return bool(member.warmup) or any(member.lags.get(task, 0) not in (0, LagSentinel.ACTIVE) for task in member.held)


def _written(state: GroupState, held: list[TaskId]) -> Mapping[TaskId, int]:
    """Records/s written to each task's changelogs. A task without state gets the average of the
    others; all get 1 when nothing is known.
    """
    topology = state.topology
    parts = {} if topology is None else {part.subtopology: part for part in topology.subtopologies}
    written = {task: state.written_records_per_s(task, parts[task.subtopology]) for task in held if parts[task.subtopology].stateful}
    total = sum(written.values())
    if not total:
        return dict.fromkeys(held, 1)
    return {task: written.get(task, max(1, total // len(written))) for task in held}


def _kept(state: GroupState, held: list[TaskId]) -> Mapping[TaskId, int]:
    """Records in each task's changelogs; 0 for a task without state, or when its changelogs were
    not observed.
    """
    topology = state.topology
    parts = {} if topology is None else {part.subtopology: part for part in topology.subtopologies}
    return {task: state.end_offset(task, parts[task.subtopology]) for task in held}


def _millionths(share: float) -> int:
    return int(min(share, MOST_OF_A_HOST) * MILLIONTHS)


def _averaged(before: MeasuredLoad | None, parts: list[int], now_ms: int, window_ms: int) -> MeasuredLoad:
    """The average moved towards `parts` by the part of the window that has passed since the last
    measurement, and by all of it after a whole window.
    """
    if before is None:
        return MeasuredLoad(now_ms, *parts)
    passed_ms = min(now_ms - before.measured_ms, window_ms)
    cpu, memory, disk, records_per_s = parts
    return MeasuredLoad(
        now_ms,
        before.cpu + _step(cpu - before.cpu, passed_ms, window_ms),
        before.memory + _step(memory - before.memory, passed_ms, window_ms),
        before.disk + _step(disk - before.disk, passed_ms, window_ms),
        before.records_per_s + _step(records_per_s - before.records_per_s, passed_ms, window_ms),
    )


def _step(difference: int, passed_ms: int, window_ms: int) -> int:
    """The part of the difference that falls into the passed time, rounded away from 0. Rounded
    down, a change of less than one record/s per report would never count.
    """
    if not difference:
        return 0
    step = -(-abs(difference) * passed_ms // window_ms)
    return step if difference > 0 else -step
