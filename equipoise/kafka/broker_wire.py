"""What the shells of clients need of the brokers: requests to one of them, and their metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Protocol

from equipoise.kafka.client import CLOSE_S, TopicPartition


class Wire(Protocol):
    """Connections to brokers, in the event loop that starts it. Errors are those of
    `aiokafka.errors`.
    """

    async def start(self, *, within_s: float | None = None) -> None:
        """Connects. Raises KafkaConnectionError, which says why no broker answers; then it is closed.
        `within_s`: see `client.Client`.
        """
        ...

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        """Disconnects: cleanly within this time, else at once."""
        ...

    async def send(self, node: int, request: Any, *, apart: bool = False) -> Any:
        """Returns the answer to a request of aiokafka. `apart`: over a connection of its own, which
        requests that wait do not hold up. Raises KafkaError, of its kinds WireStopped.
        """
        ...

    async def ready(self, node: int, *, apart: bool = False) -> bool:
        """Connects to a broker, unless it is. Returns whether that holds."""
        ...

    def nodes(self) -> list[int]:
        """Returns all brokers that are known, drawn by lot: what every broker answers is asked of
        the first, and of another one if that is away.
        """
        ...

    def controller(self) -> int | None:
        """Returns the broker that takes what changes topics; None: the brokers name none."""
        ...

    def wall_ms(self) -> int:
        """Returns the time, in ms since 1970."""
        ...

    def read_topics(self, topics: Collection[str]) -> None:
        """Hears of these topics from now on, and of no others."""
        ...

    async def know(self, topics: Collection[str]) -> None:
        """Hears of these topics, too. Returns when metadata that is asked for is there, after the
        request timeout. Raises WireStopped, at once when the wire stops.
        """
        ...

    def refresh(self) -> asyncio.Future[Any]:
        """Asks for metadata, unless that is under way. Done when it is there or was not given,
        after the request timeout, or when the wire stops.
        """
        ...

    def watch(self, heard: Callable[[], None]) -> None:
        """Calls `heard` each time metadata was heard."""
        ...

    def leader_of(self, place: TopicPartition) -> tuple[int, int] | None:
        """Returns broker and epoch (NO_EPOCH: unknown) that lead a partition, by the last metadata;
        None: none is known.
        """
        ...

    def is_hidden(self, topic: str) -> bool:
        """Returns whether the last metadata says that the user may not see the topic."""
        ...

    def partitions(self, topic: str) -> set[int] | None:
        """Returns the topic's partitions, by the last metadata; None: unknown."""
        ...

    def address(self, node: int) -> tuple[str, int] | None:
        """Returns host and port of a broker; None: unknown."""
        ...


def leader_address(wire: Wire, place: TopicPartition) -> tuple[str, int] | None:
    """Returns host and port of the leader of a partition; None: unknown."""
    leader = wire.leader_of(place)
    return None if leader is None else wire.address(leader[0])
