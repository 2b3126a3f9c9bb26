"""The wire of a client to simulated brokers: connections, and the brokers' metadata."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from aiokafka import errors

from equipoise.kafka.bounded_waits import BoundedWaits
from equipoise.kafka.client import CLOSE_S, NO_EPOCH, TopicPartition
from equipoise.kafka.throttling import Throttling
from equipoise.testing.simulated.kafka import request_server
from equipoise.testing.simulated.kafka.broker_network import BrokerConnection, Handler
from equipoise.testing.simulated.kafka.cluster import Cluster

METADATA_MAX_AGE_US = 300_000_000
_METADATA = "Metadata"


class SimulatedWire:
    """Implements `broker_wire.Wire`, for a client of one process. Its futures and timers belong to
    the loop that starts it. Metadata has leader epochs if the cluster `tells_epochs`.
    """

    def __init__(self, cluster: Cluster, process: str, throttling: Throttling, *, request_timeout_ms: int = 40_000) -> None:
        self._cluster = cluster
        self._process = process
        self._throttling = throttling
        self._timeout_s = request_timeout_ms / 1_000
        self._connections: dict[tuple[int, bool], BrokerConnection] = {}
        self._tracked: dict[str, None] = {}
        """Topics whose metadata is kept."""
        self._leaders: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        """In which the leaders lead."""
        self._counts: dict[str, int] = {}
        self._controller: int | None = None
        self._listeners: list[Callable[[], None]] = []
        self._updated_us = 0
        self._updating: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[None] | None = None
        """What `_updating` answers. It stays open when the wire is closed, as aiokafka's does."""
        self._waits = BoundedWaits(self._timeout_s)
        self._is_closed = False

    # Beginning and end

    async def start(self, *, within_s: float | None = None) -> None:
        """Raises KafkaConnectionError."""
        is_known = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    is_known = await self._update_metadata()
            if not is_known:
                raise errors.KafkaConnectionError(f"none of {len(self._cluster.brokers)} brokers answers")
        except BaseException:
            self._close()
            raise

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        self._close()

    def _close(self) -> None:
        self._is_closed = True
        self._waits.end()
        if self._updating is not None:
            self._updating.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Requests

    async def send(self, node: int, request: Any, *, apart: bool = False) -> Any:
        self._waits.check()
        built = request.prepare(request_server.VERSIONS)
        answer = await self._ask(node, request_server.NAMES[request.API_KEY], request_server.handler(self._cluster, built), apart=apart)
        self._throttling.note(getattr(answer, "throttle_time_ms", 0), asyncio.get_running_loop().time())
        return answer

    async def _ask(self, broker: int, name: str, handler: Handler, *, apart: bool = False) -> Any:
        """Sends a request. Raises RequestTimedOutError, NodeNotReadyError, KafkaConnectionError."""
        connection = self._connections.get((broker, apart))
        if connection is None or not connection.is_open:
            cluster = self._cluster
            connection = BrokerConnection(self._process, cluster.brokers[broker], cluster.network, cluster.scheduler, self._timeout_s)
            self._connections[broker, apart] = connection
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(answer: Any) -> None:
            if isinstance(answer, asyncio.CancelledError):
                future.cancel()
            elif not future.done():
                future.set_result(answer)

        connection.send(name, handler, done)
        answer = await future
        if isinstance(answer, errors.KafkaError):
            if name != _METADATA and not self._is_closed:
                self.refresh()
            raise answer
        return answer

    async def ready(self, node: int, *, apart: bool = False) -> bool:
        return self._cluster.brokers[node].is_up

    def nodes(self) -> list[int]:
        brokers = list(range(len(self._cluster.brokers)))
        self._cluster.random.shuffle(brokers)
        return brokers

    def controller(self) -> int | None:
        """Brokers name any one of them, as with KRaft, which passes on what it is asked."""
        return self._controller

    def wall_ms(self) -> int:
        return self._cluster.now_ms() + self._cluster.clocks_ms.get(self._process.partition("#")[0], 0)

    # Metadata

    def read_topics(self, topics: Collection[str]) -> None:
        self._track(topics)

    async def know(self, topics: Collection[str]) -> None:
        self._track(topics)
        if self._updating is not None and not self._updating.done():
            await self._waits.until(self._asked)
        self._waits.check()

    def _track(self, topics: Collection[str]) -> None:
        before = len(self._tracked)
        self._tracked.update(dict.fromkeys(topics))
        if len(self._tracked) > before:
            self.refresh()

    def refresh(self) -> asyncio.Future[Any]:
        if not self._is_closed and (self._updating is None or self._updating.done()):
            self._asked = asyncio.get_running_loop().create_future()
            self._updating = asyncio.ensure_future(self._answer(self._asked))
        return self._waits.until(self._asked)

    async def _answer(self, asked: asyncio.Future[None]) -> None:
        await self._update_metadata()
        asked.set_result(None)

    async def _update_metadata(self) -> bool:
        for broker in self.nodes():
            try:
                answer = await self._ask(broker, _METADATA, partial(self._cluster.metadata, list(self._tracked)))
            except errors.KafkaError:
                continue
            self._updated_us = self._cluster.scheduler.now_us
            self._controller = broker
            self._leaders, self._epochs, self._counts = {}, {}, {}
            for name, described in answer.items():
                if described is not None:
                    self._counts[name] = len(described.leaders)
                    self._leaders.update((TopicPartition(name, index), leader) for index, leader in enumerate(described.leaders))
                    self._epochs.update((TopicPartition(name, index), epoch) for index, epoch in enumerate(described.epochs))
            for heard in self._listeners:
                heard()
            return True
        self._controller = None
        return False

    def watch(self, heard: Callable[[], None]) -> None:
        self._listeners.append(heard)

    def leader_of(self, place: TopicPartition) -> tuple[int, int] | None:
        if self._cluster.scheduler.now_us - self._updated_us > METADATA_MAX_AGE_US and not self._is_closed:
            self._updated_us = self._cluster.scheduler.now_us
            self.refresh()
        found = self._leaders.get(place, -1)
        return None if found < 0 else (found, self._epochs[place] if self._cluster.tells_epochs else NO_EPOCH)

    def is_hidden(self, topic: str) -> bool:
        """Every user sees every topic here."""
        return False

    def partitions(self, topic: str) -> set[int] | None:
        count = self._counts.get(topic)
        return None if count is None else set(range(count))

    def address(self, node: int) -> tuple[str, int] | None:
        """Simulated brokers have no addresses."""
        return None
