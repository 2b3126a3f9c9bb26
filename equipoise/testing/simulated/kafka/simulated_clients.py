"""Makes the clients of one simulated process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from aiokafka.errors import KafkaConnectionError, NodeNotReadyError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

from equipoise.kafka.client import BrokerFailures, NewTopic, TopicPartition
from equipoise.testing.simulated.kafka.broker_network import Handler
from equipoise.testing.simulated.kafka.connected import ConnectedClient
from equipoise.testing.simulated.kafka.consumer import SimulatedConsumer
from equipoise.testing.simulated.kafka.coordinators import GROUP
from equipoise.testing.simulated.kafka.producer import SimulatedProducer
from equipoise.testing.simulated.kafka.simulated_kafka import Cluster

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

    def consumer(self, **options: Any) -> SimulatedConsumer:
        return SimulatedConsumer(self._cluster, self._process, **options)

    def producer(self, **options: Any) -> SimulatedProducer:
        return SimulatedProducer(self._cluster, self._process, **options)

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        return nullcontext()

    def admin(self) -> SimulatedAdmin:
        return SimulatedAdmin(self._cluster, self._process)
