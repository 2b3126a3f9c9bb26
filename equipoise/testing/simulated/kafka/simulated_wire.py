"""The wire of a client to simulated brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from aiokafka import errors

from equipoise.kafka.client import NO_EPOCH, TopicPartition
from equipoise.testing.simulated.kafka import request_server
from equipoise.testing.simulated.kafka.connected import ConnectedClient
from equipoise.testing.simulated.kafka.coordinators import GROUP


class SimulatedWire(ConnectedClient):
    """Implements `broker_wire.Wire`. Metadata has leader epochs if the cluster `tells_epochs`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._listeners: list[Callable[[], None]] = []

    async def send(self, node: int, request: Any) -> Any:
        built = request.prepare(request_server.VERSIONS)
        return await self._ask(node, request_server.NAMES[request.API_KEY], request_server.handler(self._cluster, built))

    async def ready(self, node: int) -> bool:
        return self._cluster.brokers[node].is_up

    def any_node(self) -> int | None:
        return self._any_broker()

    def wall_ms(self) -> int:
        return self._cluster.now_ms()

    async def send_to_group(self, group: str, request: Any) -> Any:
        built = request.prepare(request_server.VERSIONS)
        name = request_server.NAMES[request.API_KEY]
        answer = await self._coordinated(GROUP, group, name, request_server.handler(self._cluster, built))
        if isinstance(answer, type) and issubclass(answer, errors.KafkaError):
            raise answer(group)
        return answer

    def forget_group(self, group: str) -> None:
        self._coordinators.pop(GROUP, None)

    def read_topics(self, topics: Collection[str]) -> None:
        self._track(topics)

    async def know(self, topics: Collection[str]) -> None:
        self._track(topics)
        if self._updating is not None and not self._updating.done():
            await asyncio.shield(self._updating)

    def refresh(self) -> asyncio.Future[Any]:
        return self._refresh()

    def watch(self, heard: Callable[[], None]) -> None:
        self._listeners.append(heard)

    def _metadata_updated(self) -> None:
        for heard in self._listeners:
            heard()

    def leader_of(self, place: TopicPartition) -> tuple[int, int] | None:
        found = self._leader(place)
        return None if found is None or found < 0 else (found, self._epochs[place] if self._cluster.tells_epochs else NO_EPOCH)

    def is_hidden(self, topic: str) -> bool:
        """Every user sees every topic here."""
        return False

    def partitions(self, topic: str) -> set[int] | None:
        count = self._counts.get(topic)
        return None if count is None else set(range(count))

    def address(self, place: TopicPartition) -> tuple[str, int] | None:
        """Simulated brokers have no addresses."""
        return None
