"""How up to date each member is on each task (KIP-441, "Ranking Algorithm").

Before: what members report, `m1: {0_0: 25000, 0_1: 300}`. After: `0_0: {25000: (m1,), <end offset>:
(m2,)}`, `0_1: {0: (m1,), <end offset>: (m2,)}`.

What a report is worth, of a member whose `readiness` is ``lag``:

====================================  ==========
================================================================================= report
caught up   records to restore ====================================  ==========
================================================================================= ``active``, and it
owns the task      yes         0 ``active``, and it does not own it    no          the whole
changelog: a zombie's copy has an unknown age a number <= acceptable                yes         the
number a number above                        no          the number, at most the whole changelog: a
copy is never worse than none ``unknown``, or no report             no          the whole changelog
====================================  ==========
=================================================================================

With ``word_or_lag`` a task that stands in `ready` is caught up too, whatever its lag: the number is
to be restored, if there is one, else nothing. With ``word_and_lag`` a number <= acceptable is
caught up only while the task stands in `ready`; until then at least one record is missing.

Acceptable is a limit of the member's own; where it has none, `acceptable_recovery_lag`, or what the
member restores within `acceptable_recovery_ms`, whichever is more (`lag_within`).

The whole changelog counts as at least one record. So a member without a copy is never caught up,
not even on a changelog that is empty or was not measured yet: its warm-up costs one report, while a
task handed to it unseen could stop for as long as an unmeasured changelog takes to restore.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

import attrs

from equipoise.assignors.common.problem import Member, Task
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId

MOST_RECORDS = 2**60  # longer than any log; sums of several changelogs' end offsets may lie beyond int64


@attrs.frozen
class Copy:
    """A member's copy of a task: does it count as caught up, and how many records are to be
    restored.
    """

    caught_up: bool
    records: int


_UP_TO_DATE = Copy(True, 0)
_NO_COPIES: Mapping[str, Copy] = MappingProxyType({})
"""One for all tasks of which nobody has a copy: in a new group these are all tasks."""


def whole(task: Task) -> int:
    """Records that a member without a copy has to restore; at least 1, at most MOST_RECORDS."""
    end_offset = task.end_offset
    return end_offset if 1 <= end_offset <= MOST_RECORDS else min(max(end_offset, 1), MOST_RECORDS)


def is_ready(lag: Lag | None, *, word: bool, readiness: str, acceptable: int) -> bool:
    """Whether a copy that its member does not run may become active at once. `word`: the member
    declared it ready.
    """
    within = lag.__class__ is int and lag <= acceptable
    if readiness == "word_or_lag":
        return word or within
    return within and (word or readiness == "lag")


def copy_of(task: Task, lag: Lag | None, *, owns: bool, ready: bool, acceptable: int, readiness: str = "word_or_lag") -> Copy:
    """What one report is worth, by the table above. `lag` None: no report. `acceptable`: records,
    as `acceptable_lag` has them.
    """
    if lag is LagSentinel.ACTIVE and owns:
        return _UP_TO_DATE
    caught_up = is_ready(lag, word=ready, readiness=readiness, acceptable=acceptable)
    if isinstance(lag, int):
        return Copy(caught_up, min(lag if caught_up else max(1, lag), whole(task)))
    return _UP_TO_DATE if caught_up else Copy(False, whole(task))


def lag_within(
    acceptable_ms: int, lags: Mapping[TaskId, Lag], owned: Collection[TaskId], written: Callable[[TaskId], int | None], records_per_s: int
) -> int:
    """How far behind a copy of one member may be, in records, so that the member can restore it
    within `acceptable_ms`; 0 when nothing is known.

    A copy shares its member's disk and network. So it counts together with all copies that are no
    further behind, as if they were all to be had at once, after what the member owns and still
    restores. Meanwhile their changelogs grow, but for those it owns: nobody writes there. With lags
    l (records), `written` rates w and the member's speed r (records/s), copies up to a lag of L are
    there within t (seconds) when

        sum of l over what it owns + sum of (l + w t) over copies with l <= L  <=  r t

    and the greatest such L that was reported is the answer. So of what counts as caught up by this
    alone, a member may be given all at once, and none of it stands still for longer than
    `acceptable_ms`, if the speeds hold. Integers throughout: thousandths of records.

    `written`: records/s written to a task's changelogs; None for what is no task with state, which
    is left out. `records_per_s`: 0 = not measured.
    """
    needed, most = 0, 0
    behind: list[tuple[int, int]] = []
    for task, lag in lags.items():
        rate = written(task)
        if rate is None or not isinstance(lag, int):
            continue
        if task in owned:
            needed += 1_000 * lag
        else:
            behind.append((lag, 1_000 * lag + rate * acceptable_ms))
    for lag, equals in itertools.groupby(sorted(behind), key=lambda copy: copy[0]):
        needed += sum(effort for _, effort in equals)
        if needed > records_per_s * acceptable_ms:
            break
        most = lag
    return most


def acceptable_lag(tasks: Mapping[TaskId, Task], member: Member, settings: GroupSettings) -> int:
    """How far behind a copy of the member may be and count as caught up, in records: by a limit of
    its own, else by acceptable_recovery_lag or by acceptable_recovery_ms."""
    if member.ready_lag_records is not None:
        return member.ready_lag_records
    if not settings.acceptable_recovery_ms or not member.restore_records_per_s:
        return settings.acceptable_recovery_lag

    def written(task: TaskId) -> int | None:
        return tasks[task].written_records_per_s if task in tasks and tasks[task].stateful else None

    within = lag_within(settings.acceptable_recovery_ms, member.lags, frozenset(member.active), written, member.restore_records_per_s)
    return max(settings.acceptable_recovery_lag, within)


def copies(tasks: Mapping[TaskId, Task], members: Iterable[Member], settings: GroupSettings) -> dict[TaskId, Mapping[str, Copy]]:
    """Task -> member -> its copy, for stateful tasks, and for members that report, keep or own one
    only; all others have none (rank = the whole changelog).

    Costs time in the number of reports, never tasks x members. Members stand in the order given.
    """
    held: dict[TaskId, dict[str, Copy]] = {}
    for member in members:
        owned = frozenset(member.active)
        acceptable = acceptable_lag(tasks, member, settings)
        for task_id in {**member.lags, **dict.fromkeys((*member.active, *member.standby, *member.warmup, *sorted(member.ready)))}:
            task = tasks.get(task_id)
            if task is not None and task.stateful:
                held.setdefault(task_id, {})[member.id] = copy_of(
                    task,
                    member.lags.get(task_id),
                    owns=task_id in owned,
                    ready=task_id in member.ready,
                    acceptable=acceptable,
                    readiness=member.readiness,
                )
    return {**dict.fromkeys([task.id for task in tasks.values() if task.stateful], _NO_COPIES), **held}


def rank(tasks: Iterable[Task], members: Iterable[Member], settings: GroupSettings) -> dict[TaskId, dict[int, tuple[str, ...]]]:
    """The KIP's `rank`: stateful task -> rank (lower is better) -> members of that rank, all in
    rising order.

    Rank 0 = caught up; otherwise the records to restore. This is the full table, tasks x members
    large: for reading and for tests.
    """
    sorted_members = sorted(members, key=lambda member: member.id)
    by_id = {task.id: task for task in sorted(tasks, key=lambda task: task.id)}
    held = copies(by_id, sorted_members, settings)
    ranked: dict[TaskId, dict[int, tuple[str, ...]]] = {}
    for task_id, reported in held.items():
        by_rank: dict[int, list[str]] = {}
        for member in sorted_members:
            copy = reported.get(member.id)
            value = whole(by_id[task_id]) if copy is None else 0 if copy.caught_up else copy.records
            by_rank.setdefault(value, []).append(member.id)
        ranked[task_id] = {value: tuple(by_rank[value]) for value in sorted(by_rank)}
    return ranked
