"""Tasks with state that were given to a member and committed nothing for long: their state was
restored, or the restore does not end.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from equipoise.replay.incident.coordinator_history import GroupHistory
from equipoise.replay.incident.rebalances import name_of
from equipoise.replay.incident.unavailable import Gap

LEAST_MS = 10_000
"""What takes less is not told apart from a rebalance."""
STUCK_MS = 300_000
"""A restore that has taken so long and is not over may never be."""


@attrs.frozen(kw_only=True)
class Restore:
    """`from_ms`: when `member` was given the task. `until_ms`: the first commit after it, or the
    last moment that was recorded.
    """

    task: str
    member: str
    from_ms: int
    until_ms: int
    is_over: bool

    @property
    def took_ms(self) -> int:
        return self.until_ms - self.from_ms

    @property
    def is_stuck(self) -> bool:
        return not self.is_over and self.took_ms >= STUCK_MS


def restores(history: GroupHistory, gaps: Iterable[Gap]) -> list[Restore]:
    """Returns what was restored in these gaps, in order of time. Of Kafka Streams alone: what other
    members keep is in no record.
    """
    stateful = history.stateful
    found: dict[tuple[str, str, int], Restore] = {}
    for gap in gaps:
        group = history.state_at(gap.until_ms)
        task = None if group is None else next((work for work in group.owners if gap.partition in group.partitions_of(work)), None)
        if group is None or task is None or task.rpartition("_")[0] not in stateful:
            continue
        member = group.members[group.owners[task][-1]]
        from_ms = _given_ms(history, task, member.member_id, gap.until_ms)
        if from_ms > gap.from_ms and gap.until_ms - from_ms >= LEAST_MS:
            is_over = (last := history.last_commit(gap.partition, gap.until_ms)) is not None and last[0] == gap.until_ms
            found[task, member.member_id, from_ms] = Restore(
                task=task, member=name_of(member), from_ms=from_ms, until_ms=gap.until_ms, is_over=is_over
            )
    return sorted(found.values(), key=lambda each: (each.from_ms, each.task))


def _given_ms(history: GroupHistory, task: str, member_id: str, by_ms: int) -> int:
    """Since when the member has had the task without a break."""
    since_ms = by_ms
    for state in reversed(history.states):
        if state.at_ms > by_ms:
            continue
        member = state.group.members.get(member_id)
        if member is None or task not in member.active:
            break
        since_ms = state.at_ms
    return since_ms
