"""How a Kafka Streams group goes about a rebalance: what it costs that nothing of it is decided by
the assignor.
"""

from __future__ import annotations

import attrs

from equipoise.events import fields


@attrs.frozen(kw_only=True)
class KafkaProtocol:
    """Times in milliseconds. Defaults are Kafka's own, or as measured on the recorded groups where
    Kafka documents none.

    A round begins when a member joins, leaves, is expired or re-joins; it is over when every member
    has joined. A member that has nothing to ask for hears of it with its next heartbeat,
    `heartbeat_interval_ms` after the last round at the earliest: the ~3 s of each hand-over (Kafka:
    ``ConsumerCoordinator``, ``HeartbeatThread``; ``heartbeat.interval.ms``).
    """

    heartbeat_interval_ms: int = attrs.field(default=3_000, validator=fields.integer(1))
    """``heartbeat.interval.ms``. A group's log does not tell; Kafka's default."""
    heartbeat_drift_ms: int = attrs.field(default=2, validator=fields.integer())
    """Each heartbeat comes up to this much later than the interval: the heartbeat thread's own
    loop.
    """
    commit_interval_ms: int = attrs.field(default=30_000, validator=fields.integer(1))
    """``commit.interval.ms``: a commit keeps a session alive as a heartbeat does
    (``GroupCoordinator``, OffsetCommit), so who dies was heard of within this time or the last
    heartbeat's, whichever is shorter. Streams' default at least once."""
    initial_delay_ms: int = attrs.field(default=3_000, validator=fields.integer())
    """``group.initial.rebalance.delay.ms``: of the first round of an empty group, once more for who
    joins meanwhile (``InitialDelayedJoin``).
    """
    probing_slack_ms: int = attrs.field(default=15, validator=fields.integer())
    """Past the probing time until its thread asks for the round."""
    rejoin_ms: int = attrs.field(default=100, validator=fields.integer(1))
    """A thread that is to re-join does so within this time: Streams looks between two polls
    (``poll.ms``, 100 ms).
    """
    leader_ms: int = attrs.field(default=12, validator=fields.integer())
    """From the last join to the assignment's arrival: two requests and the assignor. Measured: 7 to
    40 ms.
    """
    position_ms: int = attrs.field(default=20, validator=fields.integer())
    """Until a thread that is given a task processes its first record: the position is fetched
    (``updateFetchPositions``), then records.
    """
    close_ms: int = attrs.field(default=2_000, validator=fields.integer(1))
    """How long a close that leaves the group takes where nobody wrote it down (measured: 1.9 s);
    its threads leave one by one, evenly over it.
    """
    cleanup_delay_ms: int = attrs.field(default=600_000, validator=fields.integer(1))
    """``state.cleanup.delay.ms``: a copy that its instance no longer keeps is on disk, and
    reported, for so long.
    """
