"""The wire of a client to real brokers: aiokafka's connections and metadata."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError, RequestTimedOutError

from equipoise.kafka.aiokafka_lifecycle import CountingClient, start_client, stop_client
from equipoise.kafka.aiokafka_log import FailedConnections, hold_back_log
from equipoise.kafka.aiokafka_metadata import restrain
from equipoise.kafka.bounded_waits import BoundedWaits
from equipoise.kafka.client import CLOSE_S, NO_EPOCH, BrokerFailures, TopicPartition, call_off
from equipoise.kafka.throttling import Throttling
from equipoise.kafka.wire_clients import WireClients


class AiokafkaWire:
    """Implements `broker_wire.Wire`. `options`: those of AIOKafkaClient. `throttling`: measures how
    long quotas hold back the requests. aiokafka asks for metadata in a version without leader
    epochs, and leaves its waits for metadata open when it is closed.
    """

    def __init__(self, options: Mapping[str, Any], throttling: Throttling) -> None:
        self.client = CountingClient(**options)
        restrain(self.client)
        self._throttling = throttling
        self._within_s = options.get("request_timeout_ms", 40_000) / 1_000
        self._waits = BoundedWaits(self._within_s)
        self._asked: asyncio.Future[Any] | None = None
        self._unawaited: set[asyncio.Future[Any]] = set()
        """Requests that nobody waits for any more."""

    async def start(self, *, within_s: float | None = None) -> None:
        """Raises KafkaConnectionError with the reasons of all brokers."""
        failed = FailedConnections()
        with hold_back_log(failed):
            try:
                await start_client(self.client, self.stop, self._within_s, within_s)
            except KafkaConnectionError:
                raise KafkaConnectionError(failed.text() or "no reason is known") from None

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        self._waits.end()
        await stop_client(self.client, within_s)
        await call_off(*self._unawaited)

    async def send(self, node: int, request: Any, *, apart: bool = False) -> Any:
        """A request that is called off goes on until its own timeout: only that closes a connection
        that hangs, and whoever has less patience would ask over it again and again. One that is being
        made is given up: no other is made meanwhile. Raises
        KafkaConnectionError, of its kinds WireStopped, and what aiokafka does: RequestTimedOutError
        and NodeNotReadyError name the broker.
        """
        self._waits.check()
        if not await self.ready(node, apart=apart):
            raise NodeNotReadyError(f"{self._named(node)} is not reached")
        sending = asyncio.ensure_future(self.client.send(node, request, group=_group(apart)))
        try:
            answer = await asyncio.shield(sending)
            self._throttling.note(getattr(answer, "throttle_time_ms", 0), asyncio.get_running_loop().time())
            return answer
        except asyncio.CancelledError:
            if not sending.done():
                self._unawaited.add(sending)
                sending.add_done_callback(self._ended)
            raise
        except RequestTimedOutError as error:
            raise RequestTimedOutError(f"{self._named(node)} has not answered {type(request).__name__} within {self._within_s:.0f} s") from error
        except NodeNotReadyError as error:
            raise NodeNotReadyError(f"{self._named(node)} is not reached") from error
        except (OSError, KeyError) as error:  # KeyError: aiokafka has replaced the connection meanwhile
            raise KafkaConnectionError(f"{self._named(node)}: {error!r}") from error

    def _named(self, node: int) -> str:
        address = self.address(node)
        return f"broker {node}" if address is None else f"broker {node} at {address[0]}:{address[1]}"

    def _ended(self, sending: asyncio.Future[Any]) -> None:
        self._unawaited.discard(sending)
        if not sending.cancelled():
            sending.exception()  # retrieved, so that asyncio does not report it

    async def ready(self, node: int, *, apart: bool = False) -> bool:
        found: bool = await self.client.ready(node, group=_group(apart))
        return found

    def nodes(self) -> list[int]:
        found = [each.nodeId for each in self.client.cluster.brokers()]
        return random.sample(found, len(found))

    def controller(self) -> int | None:
        found = self.client.cluster.controller
        return None if found is None else found.nodeId

    def wall_ms(self) -> int:
        return int(time.time() * 1_000)

    def read_topics(self, topics: Collection[str]) -> None:
        self._asked = self.client.set_topics(list(topics))

    async def know(self, topics: Collection[str]) -> None:
        for topic in topics:
            asked = self.client.add_topic(topic)
            if not asked.done():
                self._asked = asked
        if self._asked is not None:
            await self._waits.until(self._asked)
        self._waits.check()

    def refresh(self) -> asyncio.Future[Any]:
        self._asked = self.client.force_metadata_update()
        return self._waits.until(self._asked)

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

    def address(self, node: int) -> tuple[str, int] | None:
        broker = self.client.cluster.broker_metadata(node)
        return None if broker is None else (broker.host, broker.port)


def _group(apart: bool) -> Any:
    return ConnectionGroup.COORDINATION if apart else ConnectionGroup.DEFAULT


_THROTTLING = Throttling()
"""Of this process."""


class DeployedClients(WireClients):
    """Makes clients, in the event loop that runs them. `connection`: aiokafka's options for the
    connection.
    """

    def __init__(self, connection: Mapping[str, Any]) -> None:
        super().__init__(lambda **options: AiokafkaWire({**connection, **options}, _THROTTLING), _THROTTLING)

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        """See `client.Clients`."""
        return hold_back_log(failures)
