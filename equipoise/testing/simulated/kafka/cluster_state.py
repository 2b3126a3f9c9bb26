"""The parts of a simulated cluster: brokers, topics and partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import attrs

from equipoise.kafka.client import TopicPartition
from equipoise.testing.simulated.kafka.fetch_sessions import FetchSessions
from equipoise.testing.simulated.kafka.partition_log import LeaderEpochs, PartitionLog

ErrorClass = type[Exception]
Reply = Callable[[Any], None]


class ClientConnection(Protocol):
    """The connection of a client, as its broker sees it (`broker_network`)."""

    def broken(self) -> None: ...
    def resumed(self) -> None: ...


@attrs.define(eq=False)
class BrokerPartition:
    """`leader` -1: there is none. `isr`: ids of the in-sync replicas."""

    place: TopicPartition
    replicas: list[int]
    log: PartitionLog
    leader: int
    isr: list[int]
    epoch: int = 0
    is_settling: bool = False
    """The new leader does not know the high watermark yet."""
    fetches: list[Callable[[], None]] = attrs.field(factory=list)
    """Fetches that wait for records: each replies if there is something by now."""
    near: tuple[int, int] = (0, 0)
    """High watermark and last stable offset, as the other replicas know them."""
    unacknowledged: list[tuple[int, Reply, int]] = attrs.field(factory=list)
    """Produce requests that wait for the replicas: end of the batch, reply, first offset."""


@attrs.define(eq=False)
class SimulatedTopic:
    name: str
    topic_id: str
    configs: dict[str, str]
    partitions: list[BrokerPartition]


class FrozenView(NamedTuple):
    """The cluster as a broker knew it when it lost contact with the others."""

    topics: dict[str, SimulatedTopic]
    leaders: dict[TopicPartition, int]
    ends: dict[TopicPartition, tuple[int, int]]
    """High watermark and last stable offset, where it was the leader."""
    epochs: dict[TopicPartition, tuple[int, LeaderEpochs]]
    """In which epoch it led, and those before it, where it was the leader."""
    offsets: dict[str, dict[TopicPartition, int]]
    """Committed offsets of groups."""


@attrs.define(eq=False)
class SimulatedBroker:
    """`view`: not None while it is cut from the other brokers. `clock_ms`: how far its clock is
    ahead. `throttle_ms`: of each answer (`throttle_time_ms`). `session_us`: how long a connection
    is authenticated (connections.max.reauth.ms); None: for ever.
    """

    id: int
    rack: str
    is_up: bool = True
    is_paused: bool = False
    view: FrozenView | None = None
    clock_ms: int = 0
    throttle_ms: int = 0
    session_us: int | None = None
    connections: dict[int, ClientConnection] = attrs.field(factory=dict)
    fetch_sessions: FetchSessions = attrs.field(factory=FetchSessions)
    held: list[Reply] = attrs.field(factory=list)
    """Requests that it cannot answer without the other brokers."""

    @property
    def is_well(self) -> bool:
        return self.is_up and not self.is_paused and self.view is None


class TopicDescription(NamedTuple):
    """`leaders`, `replicas` and `epochs`: by partition."""

    topic_id: str
    leaders: list[int]
    replicas: list[list[int]]
    epochs: list[int]
