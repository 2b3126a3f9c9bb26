"""Makes the clients of one simulated process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from aiokafka.errors import KafkaConnectionError, NodeNotReadyError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

from equipoise.kafka.client import BrokerFailures, NewTopic, TopicPartition
from equipoise.kafka.consumer.reading_orders import FetchOptions, Reset
from equipoise.kafka.consumer.shell import WireConsumer
from equipoise.kafka.producer.producer_shell import WireProducer
from equipoise.kafka.producer.sending_orders import ProducerOptions
from equipoise.testing.simulated.kafka.broker_network import Handler
from equipoise.testing.simulated.kafka.connected import ConnectedClient
from equipoise.testing.simulated.kafka.coordinators import GROUP
from equipoise.testing.simulated.kafka.simulated_kafka import Cluster
from equipoise.testing.simulated.kafka.simulated_wire import SimulatedWire

_UNKNOWN_TOPIC = 3


class SimulatedAdmin(ConnectedClient):
    """Implements `equipoise.kafka.client.Admin`."""

    async def _ask_any(self, name: str, handler: Handler) -> Any:
        gone: Exception = KafkaConnectionError("no broker is known")
        for broker in range(len(self._cluster.brokers)):
            try:
                return await self._ask(broker, name, handler)
            except (KafkaConnectionError, NodeNotReadyError) as error:
                gone = error
        raise gone

    async def describe_cluster(self) -> dict[str, Any]:
        await self._ask_any("DescribeCluster", partial(self._cluster.metadata, []))
        return {"brokers": [{"node_id": each.id, "rack": each.rack} for each in self._cluster.brokers if each.is_up]}

    async def describe_topics(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        described = await self._ask_any("Metadata", partial(self._cluster.metadata, list(topics)))
        found: list[dict[str, Any]] = []
        for name in topics:
            topic = described[name]
            partitions = () if topic is None else enumerate(zip(topic.leaders, topic.replicas, strict=True))
            found.append({
                "topic": name, "error_code": _UNKNOWN_TOPIC if topic is None else 0,
                "partitions": [{"partition": index, "leader": leader, "replicas": replicas} for index, (leader, replicas) in partitions],
            })  # fmt: skip
        return found

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, str]:
        answer = await self._ask_any("CreateTopics", partial(self._cluster.create, list(topics)))
        for name, error in answer.items():
            if error is not None and error.retriable:  # as aiokafka_admin's
                raise error(f"topic {name} cannot be made now")
        return {name: error.__name__ for name, error in answer.items() if error is not None and error is not TopicAlreadyExistsError}

    async def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Raises as aiokafka's does."""
        answer = await self._ask_any("DescribeConfigs", partial(self._cluster.configs, list(topics)))
        for name, configs in answer.items():
            if configs is None:
                raise UnknownTopicOrPartitionError(name)
        return dict(answer)

    async def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        answer = await self._ask_any("AlterConfigs", partial(self._cluster.set_configs, topic, configs))
        if answer is not None:
            raise answer(topic)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        answer = await self._ask_any("DeleteRecords", partial(self._cluster.answer_delete_records, dict(before)))
        for place, error in answer.items():
            if error is not None:
                raise error(place)

    async def committed_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        coordinators = self._cluster.coordinators
        broker = await self._ask_any("FindCoordinator", partial(coordinators.find, GROUP, group))
        if not isinstance(broker, int):
            raise broker(group)
        answer = await self._ask(broker, "OffsetFetch", partial(coordinators.fetch_offsets, group))
        if isinstance(answer, type):
            raise answer(group)
        return {place: answer.get(place) for place in partitions}


class SimulatedClients:
    """Implements `equipoise.kafka.client.Clients` for the process named `process`."""

    def __init__(self, cluster: Cluster, process: str) -> None:
        self._cluster = cluster
        self._process = process

    def of_process(self, name: str) -> SimulatedClients:
        """The same for another process."""
        return SimulatedClients(self._cluster, name)

    def consumer(
        self,
        *,
        group: str | None = None,
        read_committed: bool = False,
        auto_offset_reset: Reset = "none",
        request_timeout_ms: int = 40_000,
        rack: str | None = None,
        max_poll_records: int | None = None,
        fetch_max_wait_ms: int = 500,
        max_partition_fetch_bytes: int = 2**20,
        fetch_max_bytes: int = 50 * 2**20,
        connections_max_idle_ms: int = 540_000,
        as_rows: bool = False,
    ) -> WireConsumer:
        """With a `rack` it reads what another replica than the leader knows by then; the leader
        stands in for that replica.
        """
        self._cluster.has_near_readers = self._cluster.has_near_readers or rack is not None
        wire = SimulatedWire(self._cluster, self._process, request_timeout_ms=request_timeout_ms)
        options = FetchOptions(
            max_wait_ms=fetch_max_wait_ms, partition_bytes=max_partition_fetch_bytes, answer_bytes=fetch_max_bytes, read_committed=read_committed,
            reset=auto_offset_reset, has_group=group is not None, rack=rack or "", as_rows=as_rows,
        )  # fmt: skip
        return WireConsumer(wire, options, group=group, most_records=max_poll_records, request_timeout_s=request_timeout_ms / 1_000)

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        request_timeout_ms: int = 40_000,
        retry_backoff_ms: int = 100,
        max_batch_size: int = 16_384,
        compression_type: str | None = None,
    ) -> WireProducer:
        wire = SimulatedWire(self._cluster, self._process, request_timeout_ms=request_timeout_ms, retry_backoff_ms=retry_backoff_ms)
        options = ProducerOptions(
            transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms, timeout_ms=request_timeout_ms,
            retry_ms=retry_backoff_ms, batch_bytes=max_batch_size, compression=compression_type,
        )  # fmt: skip
        return WireProducer(wire, options)

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        return nullcontext()

    def admin(self) -> SimulatedAdmin:
        return SimulatedAdmin(self._cluster, self._process)
