"""The clients of `client`, over aiokafka, and among them the consumer.

Only `topic_ids`, `leader_epochs`, this file and the other `aiokafka_` files use aiokafka's
internals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any

import aiokafka
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.errors import ConsumerStoppedError, KafkaConnectionError, KafkaError

from equipoise.kafka.aiokafka_admin import DeployedAdmin
from equipoise.kafka.aiokafka_fetcher import FairFetcher
from equipoise.kafka.aiokafka_lifecycle import start_client, stop_client
from equipoise.kafka.aiokafka_log import hold_back_log
from equipoise.kafka.aiokafka_metadata import aiokafkas_place, forbid_topic_creation, leader_address
from equipoise.kafka.aiokafka_producer import DeployedProducer
from equipoise.kafka.aiokafka_sessions import sending
from equipoise.kafka.client import (
    CLOSE_S,
    NO_EPOCH,
    Admin,
    BrokerFailures,
    ConsumedRecord,
    Consumer,
    LeaderEnd,
    Producer,
    TopicPartition,
)
from equipoise.kafka.leader_epochs import epoch_ends, leader_ends
from equipoise.kafka.topic_ids import topic_ids


class DeployedClients:
    """Makes clients, in the event loop that runs them. `connection`: aiokafka's options for the
    connection. Each method takes aiokafka's further options, too.
    """

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._connection = connection

    def consumer(self, *, group: str | None = None, read_committed: bool = False, rack: str | None = None, **options: Any) -> Consumer:
        """See `client.Clients`."""
        made: Consumer = DeployedConsumer(
            **self._connection, **{"enable_auto_commit": False, "auto_offset_reset": "none", **options}, group_id=group, client_rack=rack,
            isolation_level="read_committed" if read_committed else "read_uncommitted",
        )  # fmt: skip
        return made

    def producer(self, *, transactional_id: str | None = None, transaction_timeout_ms: int = 60_000, **options: Any) -> Producer:
        """See `client.Clients`."""
        made: Producer = DeployedProducer(
            **self._connection, **{"enable_idempotence": True, **options},
            transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms,
        )  # fmt: skip
        return made

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        """See `client.Clients`."""
        return hold_back_log(failures)

    def admin(self) -> Admin:
        """See `client.Clients`."""
        made: Admin = DeployedAdmin(**self._connection)
        return made


def unwrapped(error: KafkaError, topic: str) -> KafkaError:
    """The error of `topic` that aiokafka has made a text of, in an error of no kind; else `error`.
    """
    kind = getattr(aiokafka.errors, str(error.args[0]).partition("(")[0], None) if type(error) is KafkaError and error.args else None
    return kind(topic) if isinstance(kind, type) and issubclass(kind, KafkaError) else error


class DeployedConsumer(aiokafka.AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka ships no types
    """`client.Consumer`. aiokafka insists on its own TopicPartition in some places."""

    def __init__(self, *topics: str, as_rows: bool = False, **options: Any) -> None:
        super().__init__(*topics, **options)
        self._as_rows = as_rows
        forbid_topic_creation(self._client)
        self._client.send = sending(self._client.send)

    def watch_metadata(self, heard: Callable[[], None]) -> None:
        self._client.cluster.add_listener(lambda cluster: heard())

    async def start(self) -> None:
        await start_client(self, super().start, self.stop)
        FairFetcher.replace(self._fetcher, as_rows=self._as_rows)

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        await stop_client(self, super().stop, within_s)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        # aiokafka's own `assign` drops what was fetched of all partitions, and their positions.
        wanted = list(map(aiokafkas_place, partitions))
        subscription = self._subscription.subscription
        if subscription is None:
            super().assign(wanted)
            return
        assignment = subscription.assignment
        for place in assignment.tps.symmetric_difference(wanted):
            # An answer for a partition that is gone finds a state without position, and is dropped.
            assignment._tp_state[place] = TopicPartitionState(assignment)
            if self._fetcher is not None:
                self._fetcher._records.pop(place, None)
                self._fetcher._records.epochs.pop(place, None)
        assignment._topic_partitions = frozenset(wanted)
        subscription._topics = frozenset(place.topic for place in wanted)
        self._client.set_topics(list(subscription._topics))
        if self._fetcher is not None:
            self._fetcher._notify(self._fetcher._wait_consume_future)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        super().seek(partition, offset)
        self._fetcher._records.epochs.pop(partition, None)

    def hold_fetches(self, wait_ms: int) -> None:
        self._fetcher._fetch_max_wait_ms = wait_ms

    async def fetched(self) -> None:
        """Raises KafkaConnectionError when the consumer fetches nothing any more."""
        waiter, fetching = self._fetcher._create_fetch_waiter(), self._fetcher._fetch_task
        try:
            await asyncio.wait((waiter, fetching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not waiter.done():
                waiter.cancel()
        if fetching.done():
            raise KafkaConnectionError("the consumer fetches nothing any more")
        waiter.result()

    def ready(self) -> Set[TopicPartition]:
        return self._fetcher._records.keys()  # type: ignore[no-any-return]

    def take(self, partitions: Sequence[TopicPartition], most: int) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """Raises ConsumerStoppedError."""
        if self._closed:
            raise ConsumerStoppedError
        self._coordinator.check_errors()
        taken: Mapping[TopicPartition, Sequence[ConsumedRecord]] = self._fetcher.take(partitions, most)
        return taken

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None) -> Any:
        return await super().getmany(*map(aiokafkas_place, partitions), timeout_ms=timeout_ms, max_records=max_records)

    def pause(self, *partitions: TopicPartition) -> None:
        super().pause(*map(aiokafkas_place, partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        super().resume(*map(aiokafkas_place, partitions))

    def next_offset(self, partition: TopicPartition) -> int | None:
        state = self._state(partition)
        return None if state is None else state._position

    def highwater(self, partition: TopicPartition) -> int | None:
        state = self._state(partition)
        return None if state is None else state.highwater

    def _state(self, partition: TopicPartition) -> Any:
        subscription = self._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        return None if assignment is None else assignment.state_value(partition)

    async def committed(self, partition: TopicPartition) -> Any:
        try:
            return await super().committed(partition)
        except KafkaError as error:
            raise unwrapped(error, partition.topic) from error

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await super().commit({aiokafkas_place(partition): offset for partition, offset in offsets.items()})

    async def leader_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        ends = await leader_ends(self._client, partitions, self._fetcher._isolation_level, self._request_timeout_ms / 1_000)
        if ends is None:
            ends = {place: LeaderEnd(offset, NO_EPOCH) for place, offset in (await self.end_offsets(partitions)).items()}
        return ends

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
        return await epoch_ends(self._client, epochs, self._request_timeout_ms / 1_000)

    def fetched_epoch(self, partition: TopicPartition) -> int:
        epochs: Mapping[tuple[str, int], int] = self._fetcher._records.epochs
        return epochs.get(partition, NO_EPOCH)

    async def topic_ids(self, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
        return await topic_ids(self._client, topics, leads)

    def leader(self, partition: TopicPartition) -> tuple[str, int] | None:
        return leader_address(self._client, partition)
