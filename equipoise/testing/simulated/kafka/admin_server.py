"""The requests of admin clients, as aiokafka builds them: brokers answer with aiokafka's responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiokafka import errors
from aiokafka.protocol.admin import AlterConfigsResponse_v1, CreateTopicsResponse_v3, DeleteRecordsResponse_v2, DescribeConfigsResponse_v2

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.metadata_requests import METADATA_V11, NOT_TOLD
from equipoise.testing.simulated.kafka.cluster_state import Reply, TopicDescription

if TYPE_CHECKING:
    from equipoise.testing.simulated.kafka.cluster import Cluster
    from equipoise.testing.simulated.kafka.cluster_state import SimulatedBroker

METADATA, CREATE_TOPICS, DELETE_RECORDS, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 19, 21, 32, 33


def metadata(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def answer(found: Mapping[str, TopicDescription | None]) -> None:
        brokers: list[Any] = [(each.id, "", 0, each.rack, {}) for each in cluster.brokers if each.is_up]
        reply(METADATA_V11.RESPONSE_TYPE(0, brokers, "simulated", broker.id, [_described(*each) for each in found.items()], {}))

    cluster.metadata(None if request.topics is None else [name for _, name, _ in request.topics], broker, answer)


def _described(name: str, topic: TopicDescription | None) -> tuple[Any, ...]:
    if topic is None:
        return errors.UnknownTopicOrPartitionError.errno, name, bytes(16), False, [], NOT_TOLD, {}
    rows = enumerate(zip(topic.leaders, topic.epochs, topic.replicas, strict=True))
    partitions: list[Any] = [(0, index, leader, epoch, replicas, replicas, [], {}) for index, (leader, epoch, replicas) in rows]
    return 0, name, bytes.fromhex(topic.topic_id), False, partitions, NOT_TOLD, {}


def create_topics(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    asked = request.create_topic_requests
    if broker.view is not None:
        cluster.hold(broker, reply, CreateTopicsResponse_v3(0, [(each[0], errors.LeaderNotAvailableError.errno, None) for each in asked]))
        return
    made = []
    for name, partitions, replication, replicas, configs in asked:
        error = cluster.create_topic(name, partitions, replication, dict(configs), dict(replicas))
        made.append((name, _code(error), error and error.__name__))
    reply(CreateTopicsResponse_v3(0, made))


def describe_configs(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    found = []
    for kind, name, _ in request.resources:
        topic = cluster.topics.get(name)
        code = errors.UnknownTopicOrPartitionError.errno if topic is None else 0
        settings: list[Any] = [] if topic is None else [(key, value, False, 1, False, []) for key, value in topic.configs.items()]
        found.append((code, None, kind, name, settings))
    reply(DescribeConfigsResponse_v2(0, found))


def alter_configs(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    changed = [(_code(cluster.set_configs(name, dict(configs))), None, kind, name) for kind, name, configs in request.resources]
    reply(AlterConfigsResponse_v1(0, changed))


def delete_records(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    topics: list[Any] = []
    for topic, partitions, _ in request.topics:
        codes = [_code(cluster.answer_delete_records(TopicPartition(topic, number), offset, broker)) for number, offset, _ in partitions]
        topics.append((topic, [(number, offset, code, {}) for (number, offset, _), code in zip(partitions, codes, strict=True)], {}))
    reply(DeleteRecordsResponse_v2(0, topics, {}))


def _code(error: Any) -> int:
    return 0 if error is None else int(error.errno)
