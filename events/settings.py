"""The settings of a group, each with its unit, default and source. All of them travel in
`GroupConfigured`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from equipoise.events import fields

Scalar = int | float | str | bool

_KAFKA_STRATEGIES = {"min_traffic": "min_cost", "balance_subtopology": "balanced_min_cost"}


def _strategy(name: Any) -> Any:
    """Ours for Kafka's; anything else is left to the validator."""
    return _KAFKA_STRATEGIES.get(name, name) if isinstance(name, str) else name


MOST_RACK_COST = 100_000
"""Far more than anybody needs to say what outweighs what, and sums of it stay exact in the solver.
"""
MOST_TAGS = 5
MOST_TAG_KEY_CHARS = 20
MOST_TAG_VALUE_CHARS = 30
"""Limits of client tags (KIP-708): their number, the length of a tag's name and of its value."""


LEAST_PROBING_INTERVAL_MS = 60_000
"""KIP-441: "Must be at least 1 minute"; Kafka refuses less. Logs that were written with less must
replay, so equipoise only warns.
"""


@attrs.frozen(kw_only=True)
class GroupSettings:
    """What an operator may set for a group.

    Assignment (KIP-441 "Parameters"; `max_warmups` and its default as Apache Kafka has it):
    """

    STORED_NAME: ClassVar[str] = "Knobs"

    acceptable_recovery_lag: int = attrs.field(default=10_000, validator=fields.integer())
    """Records a copy may be behind and still count as caught up. Kafka: acceptable.recovery.lag."""
    acceptable_recovery_ms: int = attrs.field(default=0, validator=fields.integer(0, 86_400_000))
    """A copy also counts as caught up when its member needs no longer than this to restore it, with
    all that are no further behind: see `equipoise.assignors.common.ranking.lag_within`. 0: records alone
    decide. A setting and no option of one assignor, because the machine itself has to see when a copy
    is ready. Off unless asked for: how long a task may stand still is the operator's to say, and
    where speeds were not measured it says nothing.
    """
    balance_factor: int = attrs.field(default=1, validator=fields.integer(1))
    """The most that the fullest and the emptiest member are to differ by, in tasks, where their
    capacities are equal (docs/protocol.md#d4).
    """
    num_standbys: int = attrs.field(default=0, validator=fields.integer(0, 1_000))
    """Hot copies of each stateful task beside the active one. Kafka: num.standby.replicas."""
    max_warmups: int = attrs.field(default=2, validator=fields.integer(1))
    """Extra copies that may be restoring at once in the whole group. Kafka: max.warmup.replicas."""
    max_warmups_per_member: int = attrs.field(default=2, validator=fields.integer(1))
    """The same for one member, so that one joiner's disk is not asked for everything at once."""
    probing_interval_ms: int = attrs.field(default=600_000, validator=fields.integer(1))
    """Group time between two balance evaluations without a natural change; see `warnings`. Kafka:
    probing.rebalance.interval.ms.
    """

    # Racks (KIP-925, KIP-708).
    rack_aware_strategy: str = attrs.field(default="none", converter=_strategy, validator=fields.one_of("none", "min_cost", "balanced_min_cost"))
    """min_cost: the least traffic between racks of all targets as balanced. balanced_min_cost: of
    those that spread each sub-topology too. Kafka: rack.aware.assignment.strategy, whose names
    min_traffic and balance_subtopology are taken too and mean the same."""
    rack_traffic_cost: int = attrs.field(default=10, validator=fields.integer(0, MOST_RACK_COST))
    """Of a partition that a stateful task reads, or whose copy a standby keeps, with no replica in
    the member's rack. Kafka: rack.aware.assignment.traffic_cost."""
    rack_non_overlap_cost: int = attrs.field(default=1, validator=fields.integer(0, MOST_RACK_COST))
    """Of a change of owner of a stateful task, or of the holder of a standby. Kafka:
    rack.aware.assignment.non_overlap_cost.
    """
    rack_changelog_cost: int = attrs.field(default=0, validator=fields.integer(0, MOST_RACK_COST))
    """Of a changelog partition that a task writes, with no replica in its member's rack; 0: not
    counted, as in Kafka.
    """
    rack_standby_strategy: str = attrs.field(default="balance", validator=fields.one_of("balance", "greedy"))
    """balance: the first `rack_standbys_apart` standbys of a task in other racks than it, the rest
    where they cost least. greedy: all copies of a task in as many racks as there are, then the
    least cost (KIP-925, 4.C)."""
    rack_standbys_apart: int = attrs.field(default=1, validator=fields.integer(0, 1_000))
    """How many standbys of each task must be in another rack than the task, as far as there are
    any, when `rack_standby_strategy` is balance.
    """
    rack_aware_tags: tuple[str, ...] = attrs.field(
        default=(), validator=fields.tuple_of(fields.text(1, MOST_TAG_KEY_CHARS), most_items=MOST_TAGS, distinct=True)
    )
    """Client tags that say where a member is; they take the place of its rack for standbys, and a
    tag `rack` that of its rack altogether. Kafka: rack.aware.assignment.tags."""

    # Time, all in milliseconds of group time (docs/protocol.md#l2).
    max_step_ms: int = attrs.field(default=1_000, validator=fields.integer(1))
    """The most that group time moves from one record to the next: what one broker failover can add
    at most.
    """
    initial_delay_ms: int = attrs.field(default=3_000, validator=fields.integer())
    """How long an empty group waits after its first member (docs/protocol.md#d2). Kafka:
    group.initial.rebalance.delay.ms.
    """
    revocation_timeout_ms: int = attrs.field(default=60_000, validator=fields.integer(1))
    """A member that has not given up a task by then is expelled (docs/protocol.md#m7)."""
    warmup_stall_ms: int = attrs.field(default=300_000, validator=fields.integer(1))
    """A warm-up that got no nearer for this long loses its slot; doubled at each repeat (PROTOCOL
    M7).
    """
    drain_timeout_ms: int = attrs.field(default=600_000, validator=fields.integer())
    """A leaving member's tasks are moved by then, caught-up destination or not (docs/protocol.md#m7)."""
    load_window_ms: int = attrs.field(default=60_000, validator=fields.integer(1))
    """Reported loads are averaged over so much (`equipoise.statemachine.loads`). A setting and no
    option of one assignor: the machine measures whoever decides."""
    checkpoint_every_records: int = attrs.field(default=10_000, validator=fields.integer(0))
    """Facts between two `Checkpointed` decisions; 0: none."""

    options: dict[str, Scalar] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.text(), fields.scalar))
    """What the group's assignor wants to be told; it documents and checks them itself."""

    def warnings(self) -> list[str]:
        """Returns a sentence for each value that is allowed and rarely meant. No decision depends on
        them.
        """
        if self.probing_interval_ms >= LEAST_PROBING_INTERVAL_MS:
            return []
        least = f"{self.probing_interval_ms} is below {LEAST_PROBING_INTERVAL_MS}, the least of KIP-441"
        return [f"probing_interval_ms: {least}; what is ready does not wait for it, and each evaluation is a round"]
