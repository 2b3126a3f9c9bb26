"""What tasks ask of their hosts, told apart from what members report of a whole host.

A member reports how busy its host is (`equipoise.events.facts.Load`); an operating system knows
processes and no tasks. So a host's load is divided among the tasks it runs: processor time in
proportion to how long it is busy with the records of each, memory and disk to the records in their
changelogs, which are the state it keeps of them. What is not known is made up for by the records a
second that it processes of each; if it reports none, by those that are written to their changelogs;
and equally where that is not known either. A task that its member leaves out while it names others
gets no part, and counts as not measured.

The parts of a host's tasks add up to what it reported. So whether members are even is what was
measured, whatever the division; only what a move will change is an estimate, and is measured again
once it was made.

A share of a host of capacity c counts c-fold, in threads: hosts are taken to be as large as the
threads they were given. Parts are averaged over `load_window_ms` of group time, with whole numbers,
and stay with the task when it moves. A member that restores anything is not looked at meanwhile:
what that costs is no task's.
"""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.events.facts import Load
from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.state import GroupState, MeasuredLoad, MemberState

MILLIONTHS = 1_000_000
MOST_OF_A_HOST = 1_000
"""A share of a host is 0..1; what is far above is a mistake of its reporter's and taken for this.
"""


def measured_loads(state: GroupState, member: MemberState, load: Load) -> dict[TaskId, MeasuredLoad]:
    """The load of each task that the member holds, from what it reports of its host; empty when the
    report says nothing of it, or the member restores. Costs time in the number of these tasks.
    """
    held = [task for task in member.held if state.has_task(task) and (task in load.tasks or not load.tasks)]
    if not held or not (load.cpu or load.memory or load.disk or load.records_per_s or load.tasks) or _restores(member):
        return {}
    processed = {task: load.tasks.get(task, 0) for task in held}
    share = processed if any(processed.values()) else _written(state, held)
    busy = {task: load.busy.get(task, 0) for task in held}
    kept = _kept(state, held)
    by_busy, by_kept = (each if any(each.values()) else share for each in (busy, kept))
    throughput = sum(processed.values()) or min(int(load.records_per_s), INT64_MAX)
    host = [
        (_millionths(load.cpu) * member.capacity, by_busy, sum(by_busy.values())),
        (_millionths(load.memory) * member.capacity, by_kept, sum(by_kept.values())),
        (_millionths(load.disk) * member.capacity, by_kept, sum(by_kept.values())),
        (throughput, share, sum(share.values())),
    ]
    now_ms, window_ms = state.now_ms, state.settings.load_window_ms
    return {task: _averaged(state.loads.get(task), [amount * of[task] // total for amount, of, total in host], now_ms, window_ms) for task in held}


def _restores(member: MemberState) -> bool:
    """Something else than its tasks keeps its host busy. (Standbys do too, a little and all the
    time: that is divided among its tasks.)
    """
    return bool(member.warmup) or any(member.lags.get(task, 0) not in (0, LagSentinel.ACTIVE) for task in member.held)


def _written(state: GroupState, held: list[TaskId]) -> Mapping[TaskId, int]:
    """Records/s written to their changelogs; 1 for each when nothing is known, and for one without
    state what the others have on average.
    """
    topology = state.topology
    parts = {} if topology is None else {part.subtopology: part for part in topology.subtopologies}
    written = {task: state.written_records_per_s(task, parts[task.subtopology]) for task in held if parts[task.subtopology].stateful}
    total = sum(written.values())
    if not total:
        return dict.fromkeys(held, 1)
    return {task: written.get(task, max(1, total // len(written))) for task in held}


def _kept(state: GroupState, held: list[TaskId]) -> Mapping[TaskId, int]:
    """Records in their changelogs; 0 for one without state, or whose changelog nobody has looked
    at.
    """
    topology = state.topology
    parts = {} if topology is None else {part.subtopology: part for part in topology.subtopologies}
    return {task: state.end_offset(task, parts[task.subtopology]) for task in held}


def _millionths(share: float) -> int:
    return int(min(share, MOST_OF_A_HOST) * MILLIONTHS)


def _averaged(before: MeasuredLoad | None, parts: list[int], now_ms: int, window_ms: int) -> MeasuredLoad:
    """What was measured moves towards `parts` by as much of the window as has passed since; all the
    way when that is all of it.
    """
    if before is not None:
        passed_ms = min(now_ms - before.measured_ms, window_ms)
        known = (before.cpu, before.memory, before.disk, before.records_per_s)
        parts = [was + _step(part - was, passed_ms, window_ms) for was, part in zip(known, parts, strict=True)]
    return MeasuredLoad(now_ms, *parts)


def _step(difference: int, passed_ms: int, window_ms: int) -> int:
    """Its part of the window, rounded away from 0: of a few records a second most reports are worth
    less than one, and would never count.
    """
    step = -(-abs(difference) * passed_ms // window_ms)
    return step if difference > 0 else -step
