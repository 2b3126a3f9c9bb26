"""Timing of a Kafka Streams rebalance, which costs time whatever the assignor decides."""

from __future__ import annotations

import attrs

from equipoise.events import fields


@attrs.frozen(kw_only=True)
class KafkaProtocol:
    """Times in milliseconds. Defaults are Kafka's own, or as measured on the recorded groups where
    Kafka documents none.

    A rebalance begins when a member joins, leaves, expires or re-joins, and is over when every
    member has joined. Other members learn of it with their next heartbeat, `heartbeat_interval_ms`
    after the last one: about 3 s of each hand-over (Kafka: ``ConsumerCoordinator``,
    ``HeartbeatThread``; ``heartbeat.interval.ms``).
    """

    heartbeat_interval_ms: int = attrs.field(default=3_000, validator=fields.integer(1))
    """``heartbeat.interval.ms``. A group's log does not hold it; Kafka's default."""
    heartbeat_drift_ms: int = attrs.field(default=2, validator=fields.integer())
    """Each heartbeat comes up to this much after the interval, because of the heartbeat thread's
    loop.
    """
    commit_interval_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    """``commit.interval.ms``. A commit keeps a session alive as a heartbeat does
    (``GroupCoordinator``, OffsetCommit), so a member that dies was last heard within this time or
    the heartbeat interval, whichever is shorter. Streams' default at least once.
    """
    initial_delay_ms: int = attrs.field(default=3_000, validator=fields.integer())
    """``group.initial.rebalance.delay.ms``: delays the first rebalance of an empty group, and once
    more when members join meanwhile (``InitialDelayedJoin``).
    """
    probing_slack_ms: int = attrs.field(default=15, validator=fields.integer())
    """From the probing time to the thread's request for a rebalance."""
    rejoin_ms: int = attrs.field(default=100, validator=fields.integer(1))
    """Longest time until a thread re-joins: Streams looks between two polls (``poll.ms``, 100 ms).
    """
    leader_ms: int = attrs.field(default=12, validator=fields.integer())
    """From the last join to the assignment's arrival: two requests and the assignor. Measured: 7 to
    40 ms.
    """
    position_ms: int = attrs.field(default=20, validator=fields.integer())
    """Until a thread processes the first record of a new task: it fetches the position
    (``updateFetchPositions``), then records.
    """
    close_ms: int = attrs.field(default=2_000, validator=fields.integer(1))
    """Duration of a close that leaves the group, where it was not recorded (measured: 1.9 s);
    threads leave evenly over it.
    """
    cleanup_delay_ms: int = attrs.field(default=600_000, validator=fields.integer(1))
    """``state.cleanup.delay.ms``: a copy that the instance no longer keeps stays on disk, and is
    reported, for this long.
    """
