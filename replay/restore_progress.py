"""What a group restores now, how far each copy is, and when it is expected to be ready, by the
rates that members measured.
"""

from __future__ import annotations

import attrs

from equipoise.assignors.common.restore_rate import RestoreRates
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.state import GroupState, MemberState, known_lag


@attrs.frozen(kw_only=True)
class RestoreRow:
    """A copy that `member_id` restores. `source`: the owner that the task is to move from; None:
    nobody runs it. `stands_still`: the task waits for this restore. `lag_records`: records left;
    None: not reported. `end_offset`: records of the whole state. `records_per_s`: what the member
    measured, or else how fast its warm-ups were so far; None: unknown. `expected_ms`: time until it
    is ready, as the group is now, beside all that this member restores; None: unknown.
    """

    task: TaskId
    member_id: str
    source: str | None
    stands_still: bool
    lag_records: int | None
    end_offset: int
    records_per_s: int | None
    expected_ms: int | None

    @property
    def done(self) -> float:
        """Returns how much of the state is restored, from 0 to 1; 0 while nothing is reported."""
        if self.lag_records is None:
            return 0.0
        return 1.0 if not self.end_offset else max(0.0, 1.0 - self.lag_records / self.end_offset)


def restores(state: GroupState) -> list[RestoreRow]:
    """Returns what is restored in order to run: tasks that stand still first, then those that are
    ready soonest. Copies that are caught up, and standbys, are left out.
    """
    found: list[tuple[MemberState, TaskId, bool]] = []
    for member in state.members.values():
        if state.is_away(member.member_id):
            continue
        acceptable = state.acceptable_lag(member)
        found += [(member, task, False) for task in member.warmup if not member.is_caught_up(task, acceptable)]
        found += [(member, task, True) for task in member.active if _restores(state, member, task)]
    work: dict[str, int] = {}
    for member, task, _ in found:
        work[member.member_id] = work.get(member.member_id, 0) + _missing(state, member, task)
    speeds = {name: member.restore_records_per_s or _observed_records_per_s(state, member) for name, member in state.members.items()}
    rates = RestoreRates(speeds)
    rows = [
        RestoreRow(
            task=task,
            member_id=member.member_id,
            source=None if stands_still else state.owner.get(task),
            stands_still=stands_still,
            lag_records=known_lag(member.lags.get(task)),
            end_offset=state.records(task),
            records_per_s=speeds[member.member_id] or None,
            expected_ms=rates.longest_ms({member.member_id: work[member.member_id]}),
        )
        for member, task, stands_still in found
    ]
    return sorted(rows, key=lambda row: (not row.stands_still, row.expected_ms is None, row.expected_ms or 0, row.task, row.member_id))


def _observed_records_per_s(state: GroupState, member: MemberState) -> int:
    """Returns how fast the lags of its warm-ups fell since they were first reported; 0: unknown."""
    looks = [(warmup, known_lag(member.lags.get(task))) for task, warmup in member.warmup.items()]
    known = [(warmup.looked_lag, lag, warmup.looked_ms) for warmup, lag in looks if warmup.looked_lag is not None and lag is not None]
    took_ms = max((state.now_ms - looked_ms for _, _, looked_ms in known), default=0)
    return max(0, sum(before - lag for before, lag, _ in known)) * 1_000 // took_ms if took_ms > 0 else 0


def _restores(state: GroupState, member: MemberState, task: TaskId) -> bool:
    """Returns whether the owner has the task's state still to restore."""
    if member.lags.get(task) is LagSentinel.ACTIVE:
        return False
    tasks = state.tasks()
    return task in tasks and tasks[task].stateful and _missing(state, member, task) > 0


def _missing(state: GroupState, member: MemberState, task: TaskId) -> int:
    lag = known_lag(member.lags.get(task))
    return state.records(task) if lag is None else lag
