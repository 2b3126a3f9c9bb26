"""How up to date each member is on each task (KIP-441, "Ranking Algorithm").

Before: members report `m1: {0_0: 25000, 0_1: 300}`. After: `0_0: {25000: (m1,), <end offset>:
(m2,)}`, `0_1: {0: (m1,), <end offset>: (m2,)}`.

A report of a member whose `readiness` is ``lag`` counts as follows::

    report                               caught up   records to restore
    ``active``, and it owns the task     yes         0
    ``active``, and it does not own it   no          the whole changelog: a zombie's copy may be old
    a number <= acceptable               yes         the number
    a larger number                      no          the number, at most the whole changelog
    ``unknown``, or no report            no          the whole changelog

With ``word_or_lag`` a task in `ready` is caught up too, whatever its lag. With ``word_and_lag`` a
number <= acceptable is caught up only while the task is in `ready`; until then at least one record
is missing.

Acceptable is the member's own limit; without one, the larger of `acceptable_recovery_lag` and what
the member restores within `acceptable_recovery_ms` (`lag_within`).

The whole changelog counts as at least one record. So a member without a copy is never caught up,
not even on a changelog that is empty or not measured yet: the warm-up costs one report, while a
task granted unseen could stop for as long as an unmeasured changelog takes to restore.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

import attrs

from equipoise.assignors.common.problem import MemberSpec, Task
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId

MOST_RECORDS = 2**60  # longer than any log; sums of several changelogs' end offsets may lie beyond int64


@attrs.frozen
class Copy:
    """A member's copy of a task: whether it counts as caught up, and the records it still has to
    restore.
    """

    caught_up: bool
    records: int


_UP_TO_DATE = Copy(True, 0)
_NO_COPIES: Mapping[str, Copy] = MappingProxyType({})
"""Shared by all tasks without copies: in a new group these are all tasks."""


def whole(task: Task) -> int:
    """Records that a member without a copy has to restore; at least 1, at most MOST_RECORDS."""
    end_offset = task.end_offset
    return end_offset if 1 <= end_offset <= MOST_RECORDS else min(max(end_offset, 1), MOST_RECORDS)


def is_ready(lag: Lag | None, *, word: bool, readiness: str, acceptable: int) -> bool:
    """Returns whether a copy may become active at once. `word`: the member declared it ready."""
    within = lag.__class__ is int and lag <= acceptable
    if readiness == "word_or_lag":
        return word or within
    return within and (word or readiness == "lag")


def copy_of(task: Task, lag: Lag | None, *, owns: bool, ready: bool, acceptable: int, readiness: str = "word_or_lag") -> Copy:
    """The copy that one report describes, by the table of this module. `lag` None: no report.
    `acceptable`: records, from `acceptable_lag`.
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
    """The largest reported lag (records) that the member restores within `acceptable_ms`; 0: none,
    or nothing is known.

    A copy shares its member's disk and network. So it counts together with all copies of at most
    its lag, restored at the same time, after the tasks that the member owns and still restores.
    Meanwhile changelogs grow, except those of owned tasks. With lags l (records), `written` rates w
    and the member's rate r (records/s), copies up to a lag of L are restored within t (seconds)
    when

        sum of l over owned tasks + sum of (l + w t) over copies with l <= L  <=  r t

    So a member may be granted all copies that count as caught up by this limit at once, and none of
    them stops for longer than `acceptable_ms` if the rates hold. Integers throughout: thousandths
    of records.

    `written`: records/s written to a task's changelogs; None: no stateful task, left out.
    `records_per_s`: the member's rate; 0: not measured.
    """
    needed, most = 0, 0
    behind: list[tuple[int, int]] = []
    for task, lag in lags.items():
        rate = written(task) if isinstance(lag, int) else None
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


def acceptable_lag(tasks: Mapping[TaskId, Task], member: MemberSpec, settings: GroupSettings) -> int:
    """The lag (records) up to which a copy of the member counts as caught up: its own limit, else
    acceptable_recovery_lag or acceptable_recovery_ms, whichever allows more.
    """
    if member.ready_lag_records is not None:
        return member.ready_lag_records
    if not settings.acceptable_recovery_ms or not member.restore_records_per_s:
        return settings.acceptable_recovery_lag

    def written(task: TaskId) -> int | None:
        return tasks[task].written_records_per_s if task in tasks and tasks[task].stateful else None

    within = lag_within(settings.acceptable_recovery_ms, member.lags, frozenset(member.active), written, member.restore_records_per_s)
    return max(settings.acceptable_recovery_lag, within)


def copies(tasks: Mapping[TaskId, Task], members: Iterable[MemberSpec], settings: GroupSettings) -> dict[TaskId, Mapping[str, Copy]]:
    """Stateful task -> member -> its copy, for members that report, keep or own one. All other
    members have none: their rank is the whole changelog.

    Takes time in the number of reports, not in tasks x members. Members are in the order given.
    """
    held: dict[TaskId, dict[str, Copy]] = {}
    for member in members:
        runs = {member.id: _UP_TO_DATE}  # one object for all tasks that it runs and of which no other member has a copy
        if member.only_runs and held.keys().isdisjoint(member.active):
            held.update(dict.fromkeys(member.active, runs))
            continue
        owned = frozenset(member.active)
        lags, ready = member.lags, member.ready
        acceptable = acceptable_lag(tasks, member, settings)
        by_lag = member.readiness != "word_and_lag"
        reports_all = owned <= lags.keys() and not (member.standby or member.warmup or ready)
        for task_id in lags if reports_all else {**lags, **dict.fromkeys((*member.active, *member.standby, *member.warmup, *sorted(ready)))}:
            task = tasks.get(task_id)
            if task is None or not task.stateful:
                continue
            lag = lags.get(task_id)
            copy = _UP_TO_DATE
            if lag == 0 and (by_lag or task_id in ready):
                pass  # as `copy_of` would find; in a large group at rest nearly all standbys
            elif lag is not LagSentinel.ACTIVE or task_id not in owned:
                copy = copy_of(task, lag, owns=task_id in owned, ready=task_id in ready, acceptable=acceptable, readiness=member.readiness)
            others = held.get(task_id)
            if others is None:
                held[task_id] = runs if copy is _UP_TO_DATE else {member.id: copy}
            elif len(others) == 1:
                held[task_id] = {**others, member.id: copy}
            else:
                others[member.id] = copy
    stateful = [name for name, task in tasks.items() if task.stateful]
    return dict(zip(stateful, map(held.get, stateful, itertools.repeat(_NO_COPIES)), strict=True))


def rank(tasks: Iterable[Task], members: Iterable[MemberSpec], settings: GroupSettings) -> dict[TaskId, dict[int, tuple[str, ...]]]:
    """KIP-441, `rank`: stateful task -> rank (lower is better) -> members of that rank, all in
    rising order.

    Rank 0: caught up; otherwise the records to restore. This is the full table, tasks x members
    large: for display and tests.
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
