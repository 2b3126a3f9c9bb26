"""The part that all simulated clients share: connections, and the brokers' metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from aiokafka import errors

from equipoise.kafka.client import CLOSE_S, TopicPartition
from equipoise.testing.simulated.kafka.broker_network import BrokerConnection, Handler, Reply
from equipoise.testing.simulated.kafka.simulated_kafka import Cluster

METADATA_MAX_AGE_US = 300_000_000
MAIN, COORDINATION = 0, 1
"""Requests to coordinators have connections of their own."""


class ConnectedClient:
    """A client of one process. Its futures and timers belong to the loop that starts it."""

    def __init__(self, cluster: Cluster, process: str, *, request_timeout_ms: int = 40_000, retry_backoff_ms: int = 100) -> None:
        self._cluster = cluster
        self._process = process
        self._timeout_s = request_timeout_ms / 1_000
        self._backoff_s = retry_backoff_ms / 1_000
        self._connections: dict[tuple[int, int], BrokerConnection] = {}
        self._tracked: dict[str, None] = {}
        """Topics whose metadata is kept."""
        self._leaders: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        """In which the leaders lead."""
        self._counts: dict[str, int] = {}
        self._coordinators: dict[str, int] = {}
        """Kind -> broker."""
        self._updated_us = 0
        self._updating: asyncio.Task[bool] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._is_closed = False

    # Beginning and end

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            self._close()
            raise

    async def _start(self) -> None:
        if not await self._update_metadata():
            raise errors.KafkaConnectionError(f"Unable to bootstrap from {len(self._cluster.brokers)} brokers")

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        self._close()

    def _close(self) -> None:
        self._is_closed = True
        own = asyncio.current_task()
        for task in list(self._tasks):
            if task is not own:
                task.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that ends with the client."""
        task = asyncio.ensure_future(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    # Requests

    def _call(self, broker: int, name: str, handler: Handler, done: Reply, group: int = MAIN) -> None:
        """Sends a request; `done` gets the response, or an exception."""
        connection = self._connections.get((broker, group))
        if connection is None or not connection.is_open:
            cluster = self._cluster
            connection = BrokerConnection(self._process, cluster.brokers[broker], cluster.network, cluster.scheduler, self._timeout_s)
            self._connections[broker, group] = connection
        connection.send(name, handler, done)

    async def _ask(self, broker: int, name: str, handler: Handler, group: int = MAIN) -> Any:
        """Sends a request. Raises RequestTimedOutError, NodeNotReadyError, KafkaConnectionError."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(answer: Any) -> None:
            if isinstance(answer, asyncio.CancelledError):
                future.cancel()
            elif not future.done():
                future.set_result(answer)

        self._call(broker, name, handler, done, group)
        answer = await future
        if isinstance(answer, errors.KafkaError):
            if name != "Metadata" and not self._is_closed:
                self._refresh()
            raise answer
        return answer

    def _any_broker(self) -> int:
        return self._cluster.random.randrange(len(self._cluster.brokers))

    async def _coordinator(self, kind: str, key: str) -> int:
        """The broker that coordinates `key`. Repeats until there is one."""
        while kind not in self._coordinators:
            try:
                answer = await self._ask(self._any_broker(), "FindCoordinator", partial(self._cluster.coordinators.find, kind, key))
            except errors.KafkaError:
                answer = None
            if isinstance(answer, int) and self._cluster.brokers[answer].is_up:  # it connects to it, to see that it is there
                self._coordinators[kind] = answer
            else:
                await self._refresh()
                await asyncio.sleep(self._backoff_s)
        return self._coordinators[kind]

    async def _coordinated(self, kind: str, key: str, name: str, handler: Handler) -> Any:
        """Asks the coordinator of `key`. Returns its answer, or the class of an error."""
        broker = await self._coordinator(kind, key)
        try:
            answer = await self._ask(broker, name, handler, COORDINATION)
        except errors.KafkaError as error:
            self._coordinators.pop(kind, None)
            return error.__class__
        if answer is errors.NotCoordinatorError or answer is errors.CoordinatorNotAvailableError:
            self._coordinators.pop(kind, None)
        return answer

    # Metadata

    def _refresh(self) -> asyncio.Future[bool]:
        """Requests metadata, unless that is under way."""
        if self._updating is None or self._updating.done():
            self._updating = self._spawn(self._update_metadata())
        return asyncio.shield(self._updating)

    async def _update_metadata(self) -> bool:
        brokers = list(range(len(self._cluster.brokers)))
        self._cluster.random.shuffle(brokers)
        for broker in brokers:
            try:
                answer = await self._ask(broker, "Metadata", partial(self._cluster.metadata, list(self._tracked)))
            except errors.KafkaError:
                continue
            self._updated_us = self._cluster.scheduler.now_us
            self._leaders, self._epochs, self._counts = {}, {}, {}
            for name, described in answer.items():
                if described is not None:
                    self._counts[name] = len(described.leaders)
                    self._leaders.update((TopicPartition(name, index), leader) for index, leader in enumerate(described.leaders))
                    self._epochs.update((TopicPartition(name, index), epoch) for index, epoch in enumerate(described.epochs))
            self._metadata_updated()
            return True
        return False

    def _metadata_updated(self) -> None:
        """Called with new metadata."""

    def _leader(self, place: TopicPartition) -> int | None:
        """The leader, as far as is known; -1: there is none; None: the partition is not known."""
        if self._cluster.scheduler.now_us - self._updated_us > METADATA_MAX_AGE_US and not self._is_closed:
            self._updated_us = self._cluster.scheduler.now_us
            self._refresh()
        return self._leaders.get(place)

    def _track(self, topics: Iterable[str]) -> None:
        """Keeps the topics' metadata from now on."""
        before = len(self._tracked)
        self._tracked.update(dict.fromkeys(topics))
        if len(self._tracked) > before:
            self._refresh()

    async def topic_ids(self, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
        """See `client.DataClient`."""
        leader = self._leader(leads)
        if leader is None or leader < 0:
            self._tracked[leads[0]] = None
            await self._refresh()
            leader = self._leader(leads)
            if leader is None or leader < 0:
                there = self._counts.get(leads[0])
                raise (errors.NodeNotReadyError if there else errors.UnknownTopicOrPartitionError)(f"{leads[0]}/{leads[1]} has no leader")
        answer = await self._ask(leader, "Metadata", partial(self._cluster.metadata, list(topics)))
        if any(answer[topic] is None for topic in topics):
            self._refresh()
            raise errors.UnknownTopicOrPartitionError(next(topic for topic in topics if answer[topic] is None))
        return tuple(answer[topic].topic_id for topic in topics)

    def leader(self, partition: TopicPartition) -> tuple[str, int] | None:
        """See `client.DataClient`. Simulated brokers have no addresses."""
        return None
