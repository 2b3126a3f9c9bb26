"""The wire of a client to real brokers: aiokafka's connections and metadata."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError, KafkaError

from equipoise.kafka.aiokafka_lifecycle import start_client, stop_client
from equipoise.kafka.aiokafka_metadata import forbid_topic_creation, leader_address
from equipoise.kafka.client import CLOSE_S, NO_EPOCH, TopicPartition, call_off
from equipoise.kafka.topic_ids import topic_ids

_AGAIN_S = 0.1
_LOG = logging.getLogger(__name__)


class AiokafkaWire:
    """Implements `broker_wire.Wire`. `options`: those of AIOKafkaClient. aiokafka asks for
    metadata in a version without leader epochs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.client = AIOKafkaClient(**options)
        forbid_topic_creation(self.client)
        self._coordinators: dict[str, int] = {}
        self._asked: asyncio.Future[Any] | None = None
        self._unawaited: set[asyncio.Future[Any]] = set()
        """Requests that nobody waits for any more."""

    async def start(self) -> None:
        await start_client(self, self._connect, self.stop)

    async def _connect(self) -> None:
        await self.client.bootstrap()

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        await stop_client(self, self.client.close, within_s)
        await call_off(*self._unawaited)

    async def send(self, node: int, request: Any) -> Any:
        return await self._send(node, request, ConnectionGroup.DEFAULT)

    async def _send(self, node: int, request: Any, group: ConnectionGroup) -> Any:
        """A request that is called off goes on until its own timeout: only that closes a connection
        that hangs, and whoever has less patience would ask over it again and again.
        """
        sending = asyncio.ensure_future(self.client.send(node, request, group=group))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            if not sending.done():
                self._unawaited.add(sending)
                sending.add_done_callback(self._ended)
            raise
        except (OSError, KeyError) as error:  # KeyError: aiokafka has replaced the connection meanwhile
            raise KafkaConnectionError(f"broker {node}: {error!r}") from error

    def _ended(self, sending: asyncio.Future[Any]) -> None:
        self._unawaited.discard(sending)
        if not sending.cancelled():
            sending.exception()  # retrieved, so that asyncio does not report it

    async def ready(self, node: int) -> bool:
        found: bool = await self.client.ready(node)
        return found

    def any_node(self) -> int | None:
        found: int | None = self.client.get_random_node()
        return found

    def wall_ms(self) -> int:
        return int(time.time() * 1_000)

    async def send_to_group(self, group: str, request: Any) -> Any:
        node = await self._coordinator(group)
        try:
            return await self._send(node, request, ConnectionGroup.COORDINATION)
        except KafkaError as error:
            _LOG.error("Error sending %s to node %s [%s] -- marking coordinator dead", request.__class__.__name__, node, error)
            self.forget_group(group)
            raise

    async def _coordinator(self, group: str) -> int:
        while group not in self._coordinators:
            try:
                found: int = await self.client.coordinator_lookup(CoordinationType.GROUP, group)
            except GroupAuthorizationFailedError as error:
                raise GroupAuthorizationFailedError(group) from error
            except KafkaError as error:
                _LOG.error("Group Coordinator Request failed: %s", error)
                if not error.retriable:
                    raise
                await self.refresh()
            else:
                if await self.client.ready(found, group=ConnectionGroup.COORDINATION):
                    self._coordinators[group] = found
                    break
            await asyncio.sleep(_AGAIN_S)
        return self._coordinators[group]

    def forget_group(self, group: str) -> None:
        self._coordinators.pop(group, None)

    def read_topics(self, topics: Collection[str]) -> None:
        self._asked = self.client.set_topics(list(topics))

    async def know(self, topics: Collection[str]) -> None:
        for topic in topics:
            asked = self.client.add_topic(topic)
            if not asked.done():
                self._asked = asked
        if self._asked is not None:
            await asyncio.wait((self._asked,))

    def refresh(self) -> asyncio.Future[Any]:
        self._asked = self.client.force_metadata_update()
        return self._asked

    def watch(self, heard: Callable[[], None]) -> None:
        self.client.cluster.add_listener(lambda cluster: heard())

    def leader_of(self, place: TopicPartition) -> tuple[int, int] | None:
        found = self.client.cluster.leader_for_partition(place)
        return None if found in (None, -1) else (found, NO_EPOCH)

    def is_hidden(self, topic: str) -> bool:
        return topic in self.client.cluster.unauthorized_topics

    def partitions(self, topic: str) -> set[int] | None:
        found: set[int] | None = self.client.cluster.partitions_for_topic(topic)
        return found

    def address(self, place: TopicPartition) -> tuple[str, int] | None:
        return leader_address(self.client, place)

    async def topic_ids(self, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
        return await topic_ids(self.client, topics, leads, self.send)
