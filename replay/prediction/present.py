"""The group as it is now, as the start of a simulation: its members with what is on their disks.

The simulated group begins at time START_MS: all members join with the copies that they have now,
and get the tasks and standbys that they have now. A change is made after that has come to rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import attrs

from equipoise.assignors.common.problem import Memory, Revocations
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation.world import ChangelogGrowth, PartitionKey
from equipoise.statemachine.rejoining import SESSION_MS
from equipoise.statemachine.state import GroupState, known_lag

START_MS = 10_000_000
"""Past every limit of a first look back."""
SETTLES_WITHIN_MS = 6_000
"""From the end of the first deal's delay until all members have reported once, about."""
LONGEST_MS = 8 * 3_600_000
"""For so long changelogs go on growing."""


@attrs.frozen(kw_only=True)
class MemberNow:
    """A member as it is now. `copies`: task -> records that its copy lacks; its own tasks lack
    none. `standbys`: those that it has to keep. `knows_speed`: its restore speed was measured.
    """

    member_id: str
    capacity: int
    rack: str | None
    tags: Mapping[str, str]
    eager: bool
    session_timeout_ms: int
    lease_margin_ms: int
    ready_lag_records: int | None
    copies: Mapping[TaskId, int]
    standbys: frozenset[TaskId] = frozenset()
    knows_speed: bool = False


@attrs.frozen(kw_only=True)
class PresentGroup:
    """The group as it is now. `ends`, `records_per_s`: of changelog partitions. `owners`: who runs
    each task now.
    """

    group: str
    config: GroupConfigured
    topology: TopologyDeclared
    members: tuple[MemberNow, ...]
    ends: Mapping[PartitionKey, int]
    records_per_s: Mapping[PartitionKey, int]
    owners: Mapping[TaskId, str]
    restore_records_per_s: int | None
    """Median of what its members measured last; None: none has."""
    revocations: Revocations = attrs.field(factory=Revocations)
    memory: Memory = attrs.field(factory=dict)
    """What the assignor's last plan wants to be given back."""

    @property
    def settled_ms(self) -> int:
        """Time of the simulation at which its members are about at rest: the changelogs are then as
        long as now.
        """
        return START_MS + self.config.knobs.initial_delay_ms + SETTLES_WITHIN_MS

    def growth(self, factor: float) -> dict[PartitionKey, ChangelogGrowth]:
        """Returns how the changelogs will grow when `factor` times as much is written as now."""
        found, now_ms = {}, self.settled_ms
        for key, end in self.ends.items():
            rate = round(self.records_per_s.get(key, 0) * factor)
            before = min(end, rate * now_ms // 1_000)
            found[key] = ChangelogGrowth(((0, end - before), (now_ms, end), (now_ms + LONGEST_MS, end + rate * LONGEST_MS // 1_000)))
        return found


def present_of(state: GroupState) -> PresentGroup:
    """Returns the group of `state`. Raises InputError when its members are not equipoise's, it has
    no topology or no members, or when members are leaving or restarting.
    """
    config, topology = state.config, state.topology
    if config is None or topology is None:
        raise InputError(f"group {state.group!r}: it has no {'configuration' if config is None else 'topology'} yet; nothing can be predicted")
    consumers = any(member.session_timeout_ms == SESSION_MS for member in state.members.values())
    if config.led_by != "equipoise" or consumers:
        problem = "its members are not equipoise's, and their rebalances are not predicted"
        raise InputError(f"group {state.group!r}: {problem}; `equipoise what-if` without --change says what equipoise would have cost")
    alive = [member for _, member in sorted(state.members.items())]
    if not alive:
        raise InputError(f"group {state.group!r}: it has no members; nothing can be predicted")
    moving = sorted({*(name for name, member in state.members.items() if member.leaving), *state.restarts})
    if moving:
        raise InputError(f"group {state.group!r}: {', '.join(moving)} is about to leave or to restart; ask again when that is over")
    rates = [rate for member in alive if (rate := member.measured_records_per_s or member.restore_records_per_s)]
    topics = {topic for part in topology.subtopologies for topic in part.changelog_topics}
    return PresentGroup(
        group=state.group,
        config=config,
        topology=topology,
        members=tuple(
            MemberNow(
                member_id=member.member_id,
                capacity=member.capacity,
                rack=member.rack,
                tags=dict(member.tags),
                eager=member.eager,
                session_timeout_ms=member.session_timeout_ms,
                lease_margin_ms=member.lease_margin_ms,
                ready_lag_records=member.ready_lag_records,
                copies={
                    **{task: lag for task, told in sorted(member.lags.items()) if (lag := known_lag(told)) is not None},
                    **dict.fromkeys(sorted({*member.active, *member.revoking}), 0),
                },
                standbys=frozenset(member.standby),
                knows_speed=member.measured_records_per_s > 0,
            )
            for member in alive
        ),
        ends={
            (topic, partition): end + _grown(state, topic, partition)
            for topic in sorted(topics)
            for partition, end in sorted(state.end_offsets.get(topic, {}).items())
        },
        records_per_s={
            (topic, partition): grown.records_per_s for topic in sorted(topics) for partition, grown in sorted(state.growth.get(topic, {}).items())
        },
        owners=dict(sorted(state.owner.items())),
        restore_records_per_s=round(statistics.median(rates)) if rates else None,
        revocations=state.revocations,
        memory=state.memory,
    )


def _grown(state: GroupState, topic: str, partition: int) -> int:
    """Returns what was written since the partition's end was observed last, at its rate then."""
    grown = state.growth.get(topic, {}).get(partition)
    return 0 if grown is None else grown.records_per_s * max(0, state.now_ms - grown.observed_ms) // 1_000
