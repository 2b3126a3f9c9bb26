"""How up to date each member is on each task (KIP-441, "Ranking Algorithm").

Before: what members report, `m1: {0_0: 25000, 0_1: 300}`. After: `0_0: {25000: (m1,), <end offset>: (m2,)}`, `0_1: {0: (m1,), <end offset>: (m2,)}`.

What a report is worth:

====================================  ==========  =================================================================================
report                                caught up   records to restore
====================================  ==========  =================================================================================
the task stands in `ready`            yes         the lag, if a number; else 0
``active``, and it owns the task      yes         0
``active``, and it does not own it    no          the whole changelog: a zombie's copy has an unknown age
a number <= acceptable                yes         the number
a number above                        no          the number, at most the whole changelog: a copy is never worse than none
``unknown``, or no report             no          the whole changelog
====================================  ==========  =================================================================================

The whole changelog counts as at least one record. So a member without a copy is never caught up, not even on a changelog that is empty or was not
measured yet: its warm-up costs one report, while a task handed to it unseen could stop for as long as an unmeasured changelog takes to restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from assignors.problem import Member, Task
from events.tasks import Lag, LagSentinel, TaskId

MOST_RECORDS = 2**60  # longer than any log; sums of several changelogs' end offsets may lie beyond int64


@attrs.frozen
class Copy:
    """A member's copy of a task: does it count as caught up, and how many records are to be restored."""

    caught_up: bool
    records: int


def whole(task: Task) -> int:
    """Records that a member without a copy has to restore; at least 1, at most MOST_RECORDS."""
    return min(max(task.end_offset, 1), MOST_RECORDS)


def copy_of(task: Task, lag: Lag | None, *, owns: bool, ready: bool, acceptable_recovery_lag: int) -> Copy:
    """What one report is worth, by the table above. `lag` None: no report."""
    if lag is LagSentinel.ACTIVE and owns:
        return Copy(True, 0)
    if isinstance(lag, int):
        return Copy(ready or lag <= acceptable_recovery_lag, min(lag, whole(task)))
    return Copy(True, 0) if ready else Copy(False, whole(task))


def copies(tasks: Mapping[TaskId, Task], members: Iterable[Member], acceptable_recovery_lag: int) -> dict[TaskId, dict[str, Copy]]:
    """Task -> member -> its copy, for stateful tasks, and for members that report, keep or own one only; all others have none (rank = the whole
    changelog).

    Costs time in the number of reports, never tasks x members. Members stand in the order given.
    """
    held: dict[TaskId, dict[str, Copy]] = {task.id: {} for task in tasks.values() if task.stateful}
    for member in members:
        owned = frozenset(member.active)
        for task_id in {**member.lags, **dict.fromkeys((*member.active, *member.standby, *member.warmup, *sorted(member.ready)))}:
            if task_id in held:
                held[task_id][member.id] = copy_of(
                    tasks[task_id],
                    member.lags.get(task_id),
                    owns=task_id in owned,
                    ready=task_id in member.ready,
                    acceptable_recovery_lag=acceptable_recovery_lag,
                )
    return held


def rank(tasks: Iterable[Task], members: Iterable[Member], acceptable_recovery_lag: int) -> dict[TaskId, dict[int, tuple[str, ...]]]:
    """The KIP's `rank`: stateful task -> rank (lower is better) -> members of that rank, all in rising order.

    Rank 0 = caught up; otherwise the records to restore. This is the full table, tasks x members large: for reading and for tests.
    """
    sorted_members = sorted(members, key=lambda member: member.id)
    by_id = {task.id: task for task in sorted(tasks, key=lambda task: task.id)}
    held = copies(by_id, sorted_members, acceptable_recovery_lag)
    ranked: dict[TaskId, dict[int, tuple[str, ...]]] = {}
    for task_id, reported in held.items():
        by_rank: dict[int, list[str]] = {}
        for member in sorted_members:
            copy = reported.get(member.id)
            value = whole(by_id[task_id]) if copy is None else 0 if copy.caught_up else copy.records
            by_rank.setdefault(value, []).append(member.id)
        ranked[task_id] = {value: tuple(by_rank[value]) for value in sorted(by_rank)}
    return ranked
