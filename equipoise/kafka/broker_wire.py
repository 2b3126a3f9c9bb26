"""What the shells of clients need of the brokers: requests to one of them, and their metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from equipoise.kafka.client import CLOSE_S, TopicPartition


class Wire(Protocol):
    """Connections to brokers, in the event loop that starts it. Errors are those of
    `aiokafka.errors`.
    """

    async def start(self) -> None:
        """Connects. Raises KafkaConnectionError when no broker answers; then it is closed."""
        ...

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        """Disconnects: cleanly within this time, else at once."""
        ...

    async def send(self, node: int, request: Any) -> Any:
        """Returns the answer to a request of aiokafka. Raises KafkaError."""
        ...

    async def ready(self, node: int) -> bool:
        """Connects to a broker, unless it is. Returns whether that holds."""
        ...

    def any_node(self) -> int | None:
        """Returns a broker that requests can go to that every broker answers; None: none is known.
        """
        ...

    def wall_ms(self) -> int:
        """Returns the time, in ms since 1970."""
        ...

    async def send_to_group(self, group: str, request: Any) -> Any:
        """Returns the answer of the group's coordinator, over a connection of its own. Finds the
        coordinator first, as long as that takes. Raises KafkaError.
        """
        ...

    def forget_group(self, group: str) -> None:
        """Its coordinator is another one by now."""
        ...

    def read_topics(self, topics: Collection[str]) -> None:
        """Hears of these topics from now on, and of no others."""
        ...

    async def know(self, topics: Collection[str]) -> None:
        """Hears of these topics, too. Returns when metadata that is asked for is there."""
        ...

    def refresh(self) -> asyncio.Future[Any]:
        """Asks for metadata, unless that is under way. Done when it is there, or was not given."""
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

    def address(self, place: TopicPartition) -> tuple[str, int] | None:
        """Returns host and port of the leader; None: unknown."""
        ...

    async def topic_ids(self, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
        """See `client.DataClient`."""
        ...
