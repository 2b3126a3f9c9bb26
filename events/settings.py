"""The settings of a group, each with its unit, default and source. All are stored in
`GroupConfigured`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from equipoise.events import fields

Scalar = int | float | str | bool

_KAFKA_STRATEGIES = {"min_traffic": "min_cost", "balance_subtopology": "balanced_min_cost"}


def _strategy(name: Any) -> Any:
    """Our name of a strategy for Kafka's; anything else unchanged, for the validator."""
    return _KAFKA_STRATEGIES.get(name, name) if isinstance(name, str) else name


MOST_RACK_COST = 100_000
"""Highest cost. It is enough to make one cost outweigh any other, and keeps sums exact in the
solver.
"""
MOST_TAGS = 5
MOST_TAG_KEY_CHARS = 20
MOST_TAG_VALUE_CHARS = 30
"""Limits of client tags (KIP-708): their number, the length of a tag's name and of its value."""


LEAST_PROBING_INTERVAL_MS = 60_000
"""KIP-441: "Must be at least 1 minute"; Kafka refuses less. Logs that were written with less must
replay, and tests and benchmarks need less, so the constructor accepts it: `equipoise configure` and
`equipoise lead` refuse it, and a worker warns.
"""


@attrs.frozen(kw_only=True)
class GroupSettings:
    """What an operator may set for a group.

    Assignment settings are those of KIP-441 "Parameters"; `max_warmups` and its default are Apache
    Kafka's.
    """

    STORED_NAME: ClassVar[str] = "Knobs"

    acceptable_recovery_lag: int = attrs.field(default=10_000, validator=fields.integer())
    """Records a copy may be behind and still count as caught up. Kafka: acceptable.recovery.lag."""
    acceptable_recovery_ms: int = attrs.field(default=0, validator=fields.integer(0, 86_400_000))
    """A copy also counts as caught up if its member needs at most this time to restore it together
    with all copies that are no further behind: see `equipoise.assignors.common.ranking.lag_within`.
    0: only records count. This is a setting of the group and not an option of one assignor, because
    the machine itself detects when a copy is ready. Off by default: the operator decides how long a
    task may stop, and without measured speeds it has no effect.
    """
    balance_factor: int = attrs.field(default=1, validator=fields.integer(1))
    """Most tasks by which the fullest and the emptiest member may differ if their capacities are
    equal (docs/protocol.md#d4).
    """
    num_standbys: int = attrs.field(default=0, validator=fields.integer(0, 1_000))
    """Hot copies of each stateful task in addition to the active one. Kafka: num.standby.replicas.
    """
    max_warmups: int = attrs.field(default=2, validator=fields.integer(1))
    """Most additional copies that restore at the same time in the group. Kafka:
    max.warmup.replicas.
    """
    max_warmups_per_member: int = attrs.field(default=2, validator=fields.integer(1))
    """The same for one member, to limit the load on the disk of a new member."""
    probing_interval_ms: int = attrs.field(default=600_000, validator=fields.integer(1))
    """Group time between two balance evaluations without a natural change; see `warnings`. Kafka:
    probing.rebalance.interval.ms.
    """

    # Racks (KIP-925, KIP-708).
    rack_aware_strategy: str = attrs.field(default="none", converter=_strategy, validator=fields.one_of("none", "min_cost", "balanced_min_cost"))
    """min_cost: the least traffic between racks among equally balanced targets. balanced_min_cost:
    among those that also spread each sub-topology. Kafka: rack.aware.assignment.strategy; its names
    min_traffic and balance_subtopology are accepted and mean the same.
    """
    rack_traffic_cost: int = attrs.field(default=10, validator=fields.integer(0, MOST_RACK_COST))
    """Cost of a partition without a replica in the member's rack that a stateful task reads, or
    whose copy a standby keeps. Kafka: rack.aware.assignment.traffic_cost.
    """
    rack_non_overlap_cost: int = attrs.field(default=1, validator=fields.integer(0, MOST_RACK_COST))
    """Cost of a change of the owner of a stateful task, or of the holder of a standby. Kafka:
    rack.aware.assignment.non_overlap_cost.
    """
    rack_changelog_cost: int = attrs.field(default=0, validator=fields.integer(0, MOST_RACK_COST))
    """Cost of a changelog partition without a replica in the member's rack that a task writes. 0:
    not counted, as in Kafka.
    """
    rack_standby_strategy: str = attrs.field(default="balance", validator=fields.one_of("balance", "greedy"))
    """balance: the first `rack_standbys_apart` standbys of a task are in other racks than the task,
    the others where they cost least. greedy: the copies of a task are in as many racks as possible,
    then at the least cost (KIP-925, 4.C).
    """
    rack_standbys_apart: int = attrs.field(default=1, validator=fields.integer(0, 1_000))
    """Standbys of each task that must be in another rack than the task, as far as there are racks.
    Used when `rack_standby_strategy` is balance.
    """
    rack_aware_tags: tuple[str, ...] = attrs.field(
        default=(), validator=fields.tuple_of(fields.text(1, MOST_TAG_KEY_CHARS), most_items=MOST_TAGS, distinct=True)
    )
    """Client tags that locate a member. For standbys they replace its rack; a tag `rack` replaces
    its rack everywhere. Kafka: rack.aware.assignment.tags.
    """

    # Time, all in milliseconds of group time (docs/protocol.md#l2).
    max_step_ms: int = attrs.field(default=1_000, validator=fields.integer(1))
    """Most group time between two records: how much one broker failover can add."""
    initial_delay_ms: int = attrs.field(default=3_000, validator=fields.integer())
    """How long an empty group waits after its first member joined (docs/protocol.md#d2). Kafka:
    group.initial.rebalance.delay.ms.
    """
    join_delay_ms: int = attrs.field(default=0, validator=fields.integer(0, 3_600_000))
    """How long a new member waits for others that join too, so that one round decides for all of
    them (docs/protocol.md#d5). 0: each join is decided at once.
    """
    revocation_timeout_ms: int = attrs.field(default=60_000, validator=fields.integer(1))
    """How long a member may take to give up a task before it is expelled (docs/protocol.md#m7)."""
    warmup_stall_ms: int = attrs.field(default=300_000, validator=fields.integer(1))
    """A warm-up that makes no progress for this long loses its slot. The time doubles at each
    repeat (docs/protocol.md#m7).
    """
    drain_timeout_ms: int = attrs.field(default=600_000, validator=fields.integer())
    """How long a leaving member keeps tasks without a caught-up destination (docs/protocol.md#m7).
    """
    load_window_ms: int = attrs.field(default=60_000, validator=fields.integer(1))
    """Window over which reported loads are averaged (`equipoise.statemachine.loads`). A setting of
    the group and not an option of one assignor, because the machine measures for every assignor.
    """
    checkpoint_every_records: int = attrs.field(default=10_000, validator=fields.integer(0))
    """Facts between two `Checkpointed` decisions; 0: none."""

    options: dict[str, Scalar] = attrs.field(factory=dict, converter=fields.sorted_mapping, validator=fields.mapping_of(fields.text(), fields.scalar))
    """Options of the group's assignor, which documents and checks them."""

    def warnings(self) -> list[str]:
        """Returns a sentence for each allowed value that is rarely intended. No decision depends on
        them.
        """
        if self.probing_interval_ms >= LEAST_PROBING_INTERVAL_MS:
            return []
        least = f"{self.probing_interval_ms} is below {LEAST_PROBING_INTERVAL_MS}, the least of KIP-441"
        return [f"probing_interval_ms: {least}; what is ready does not wait for it, and each evaluation is a round"]
