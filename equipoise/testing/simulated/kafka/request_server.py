"""The requests of clients, as aiokafka builds them: brokers answer with aiokafka's responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from aiokafka import errors
from aiokafka.protocol.admin import AlterConfigsResponse_v1, CreateTopicsResponse_v3, DeleteRecordsResponse_v2, DescribeConfigsResponse_v2
from aiokafka.protocol.commit import OffsetCommitResponse_v3, OffsetFetchResponse_v3
from aiokafka.protocol.coordination import FindCoordinatorResponse_v1
from aiokafka.protocol.produce import ProduceResponse_v7
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnResponse_v0,
    AddPartitionsToTxnResponse_v0,
    EndTxnResponse_v0,
    InitProducerIdResponse_v0,
    TxnOffsetCommitResponse_v0,
)
from aiokafka.record.memory_records import MemoryRecords

from equipoise.kafka.client import LeaderEnd, TopicPartition
from equipoise.kafka.consumer.requests import EPOCH_ENDS_V2, LIST_OFFSETS_V4
from equipoise.kafka.metadata_requests import METADATA_V11, NOT_TOLD
from equipoise.kafka.producer.errors import UnknownTopicIdError
from equipoise.kafka.producer.requests import PRODUCE_V13
from equipoise.kafka.producer.sending_orders import Coordinates
from equipoise.testing.simulated.kafka import group_server
from equipoise.testing.simulated.kafka.broker_network import Handler
from equipoise.testing.simulated.kafka.cluster_state import Reply, TopicDescription
from equipoise.testing.simulated.kafka.coordinators import GROUP, TRANSACTION, noted
from equipoise.testing.simulated.kafka.partition_log import Batch

if TYPE_CHECKING:
    from equipoise.testing.simulated.kafka.cluster import Cluster
    from equipoise.testing.simulated.kafka.cluster_state import SimulatedBroker


FETCH, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, EPOCH_ENDS = 1, 2, 8, 9, 23


def handler(cluster: Cluster, request: Any) -> Handler:
    """Returns what answers a request that was built in the last version of `VERSIONS`."""
    return partial(_handle, cluster, request)


def _handle(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def throttled(answer: Any) -> None:
        answer.throttle_time_ms = broker.throttle_ms
        reply(answer)

    _REQUESTS[request.API_KEY][3](cluster, request, broker, throttled)


def _code(error: Any) -> int:
    return 0 if error is None else int(error.errno)


def _fetch(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    begun = broker.fetch_sessions.begin(request)
    if not isinstance(begun, tuple):
        reply(begun)
        return
    wanted, made = begun
    cluster.fetch(
        wanted,
        bool(request.isolation_level),
        request.max_bytes,
        request.max_wait_time * 1_000,
        bool(request.rack_id),
        broker,
        lambda found: reply(made(found)),
    )


def _list_offsets(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    times = {TopicPartition(topic, number): time for topic, partitions in request.topics for number, _, time in partitions}

    def answer(found: Mapping[TopicPartition, Any]) -> None:
        topics: dict[str, list[tuple[int, ...]]] = {}
        for (topic, number), each in found.items():
            fields = (number, 0, -1, each.offset, each.epoch) if isinstance(each, LeaderEnd) else (number, _code(each), -1, -1, -1)
            topics.setdefault(topic, []).append(fields)
        reply(LIST_OFFSETS_V4.RESPONSE_TYPE(0, list(topics.items())))

    cluster.list_offsets(times, bool(request.isolation_level), broker, answer)


def _epoch_ends(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    epochs = {TopicPartition(topic, number): epoch for topic, partitions in request.topics for number, _, epoch in partitions}

    def answer(found: Mapping[TopicPartition, Any]) -> None:
        topics: dict[str, list[tuple[int, ...]]] = {}
        for place, end in found.items():
            fields = (0, place[1], epochs[place], end) if isinstance(end, int) else (_code(end), place[1], -1, -1)
            topics.setdefault(place[0], []).append(fields)
        reply(EPOCH_ENDS_V2.RESPONSE_TYPE(0, list(topics.items())))

    cluster.epoch_ends(epochs, broker, answer)


def _fetch_offsets(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def answer(found: Any) -> None:
        if isinstance(found, type):
            reply(OffsetFetchResponse_v3(0, [], _code(found)))
            return
        places = [(topic, [(number, found.get((topic, number), -1)) for number in numbers]) for topic, numbers in request.topics]
        topics = [(topic, [(number, at, getattr(at, "note", ""), 0) for number, at in each]) for topic, each in places]
        reply(OffsetFetchResponse_v3(0, topics, 0))

    cluster.coordinators.fetch_offsets(request.consumer_group, broker, answer)


def _commit_offsets(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    offsets = {TopicPartition(topic, number): noted(offset, note) for topic, partitions in request.topics for number, offset, note in partitions}

    def answer(found: Any) -> None:
        code = _code(found)
        reply(OffsetCommitResponse_v3(0, [(topic, [(each[0], code) for each in partitions]) for topic, partitions in request.topics]))

    cluster.coordinators.commit_offsets(request.consumer_group, offsets, broker, answer)


PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION, TXN_OFFSET_COMMIT = 0, 10, 22, 24, 25, 26, 28


def _decoded(data: bytes) -> Batch:
    """A batch as it was sent. Raises ValueError for one that is damaged."""
    batch: Any = MemoryRecords(data).next_batch()
    if not batch.validate_crc():
        raise ValueError("the checksum of a batch is another one")
    is_transactional, producer = batch.is_transactional, (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    contents = tuple((each.key, each.value, tuple(each.headers), each.timestamp) for each in batch)
    return Batch(*producer, is_transactional, contents, len(data))


def produce(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    if request.API_VERSION == PRODUCE_V13.API_VERSION:
        _produce_by_id(cluster, request, broker, reply)
        return
    batches = {TopicPartition(topic, number): _decoded(data) for topic, partitions in request.topics for number, data in partitions}

    def answer(found: Mapping[TopicPartition, Any]) -> None:
        topics: dict[str, list[tuple[int, ...]]] = {}
        for (topic, number), each in found.items():
            code, offset = (0, each) if isinstance(each, int) else (_code(each), -1)
            topics.setdefault(topic, []).append((number, code, offset, _append_ms(cluster, topic, broker), -1))
        reply(ProduceResponse_v7(list(topics.items()), 0))

    cluster.produce(batches, request.transactional_id, broker, answer)


def _produce_by_id(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    names = {bytes.fromhex(topic.topic_id): name for name, topic in cluster.topics.items()}
    known = {names[topic_id]: topic_id for topic_id, *_ in request.topics if topic_id in names}
    batches = {
        TopicPartition(names[topic_id], number): _decoded(data)
        for topic_id, partitions, _ in request.topics
        if topic_id in names
        for number, data, _ in partitions
    }
    gone = UnknownTopicIdError.errno
    topics: dict[bytes, list[Any]] = {
        topic_id: [(each[0], gone, -1, -1, -1, [], None, {}) for each in partitions] for topic_id, partitions, _ in request.topics
    }
    for topic_id in known.values():
        topics[topic_id] = []

    def answer(found: Mapping[TopicPartition, Any]) -> None:
        for (name, number), each in found.items():
            code, offset = (0, each) if isinstance(each, int) else (_code(each), -1)
            topics[known[name]].append((number, code, offset, _append_ms(cluster, name, broker), -1, [], None, {}))
        reply(PRODUCE_V13.RESPONSE_TYPE([(topic_id, partitions, {}) for topic_id, partitions in topics.items()], 0, {}))

    if batches:
        cluster.produce(batches, request.transactional_id, broker, answer)
    else:
        answer({})


def _append_ms(cluster: Cluster, topic: str, broker: SimulatedBroker) -> int:
    """Returns the time that an answer says; -1: the topic takes the times of records."""
    known = cluster.topics.get(topic)
    return cluster.now_ms(broker) if known is not None and known.configs["message.timestamp.type"] == "LogAppendTime" else -1


def find_coordinator(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    kind = GROUP if request.coordinator_type == Coordinates.GROUP else TRANSACTION

    def answer(found: Any) -> None:
        code, node = (0, found) if isinstance(found, int) else (_code(found), -1)
        reply(FindCoordinatorResponse_v1(0, code, None, node, "", 0))

    cluster.coordinators.find(kind, request.coordinator_key, broker, answer)


def init_producer_id(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def answer(found: Any) -> None:
        code, producer = (0, found) if isinstance(found, tuple) else (_code(found), (-1, -1))
        reply(InitProducerIdResponse_v0(0, code, *producer))

    cluster.coordinators.init_producer_id(request.transactional_id, request.transaction_timeout_ms, broker, answer)


def add_partitions(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    places = [TopicPartition(topic, number) for topic, numbers in request.topics for number in numbers]

    def answer(found: Any) -> None:
        codes: dict[tuple[str, int], int] = {place: _code(found[place] if isinstance(found, Mapping) else found) for place in places}
        reply(AddPartitionsToTxnResponse_v0(0, [(topic, [(each, codes[topic, each]) for each in numbers]) for topic, numbers in request.topics]))

    cluster.coordinators.add_to_transaction(*_of(request), places, None, broker, answer)


def add_offsets(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def answer(found: Any) -> None:
        reply(AddOffsetsToTxnResponse_v0(0, _code(found)))

    cluster.coordinators.add_to_transaction(*_of(request), [], request.group_id, broker, answer)


def commit_offsets(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    offsets = {TopicPartition(topic, number): noted(offset, note) for topic, partitions in request.topics for number, offset, note in partitions}

    def answer(found: Any) -> None:
        topics = [(topic, [(number, _code(found)) for number, *_ in partitions]) for topic, partitions in request.topics]
        reply(TxnOffsetCommitResponse_v0(0, topics))

    cluster.coordinators.commit_in_transaction(*_of(request), request.group_id, offsets, broker, answer)


def end_transaction(cluster: Cluster, request: Any, broker: SimulatedBroker, reply: Reply) -> None:
    def answer(found: Any) -> None:
        reply(EndTxnResponse_v0(0, _code(found)))

    cluster.coordinators.end_transaction(*_of(request), request.transaction_result, broker, answer)


def _of(request: Any) -> tuple[str, int, int]:
    return request.transactional_id, request.producer_id, request.producer_epoch


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


_REQUESTS: dict[int, tuple[str, int, int, Callable[..., None]]] = {
    FETCH: ("Fetch", 4, 11, _fetch),
    LIST_OFFSETS: ("ListOffsets", 1, 4, _list_offsets),
    OFFSET_COMMIT: ("OffsetCommit", 2, 3, _commit_offsets),
    OFFSET_FETCH: ("OffsetFetch", 1, 3, _fetch_offsets),
    EPOCH_ENDS: ("OffsetForLeaderEpoch", 2, 2, _epoch_ends),
    group_server.JOIN_GROUP: ("JoinGroup", 0, 5, group_server.join_group),
    group_server.HEARTBEAT: ("Heartbeat", 0, 1, group_server.heartbeat),
    group_server.LEAVE_GROUP: ("LeaveGroup", 0, 3, group_server.leave_group),
    group_server.SYNC_GROUP: ("SyncGroup", 0, 3, group_server.sync_group),
    group_server.DESCRIBE_GROUPS: ("DescribeGroups", 0, 4, group_server.describe_groups),
    PRODUCE: ("Produce", 3, 13, produce),
    FIND_COORDINATOR: ("FindCoordinator", 0, 1, find_coordinator),
    INIT_PRODUCER_ID: ("InitProducerId", 0, 0, init_producer_id),
    ADD_PARTITIONS: ("AddPartitionsToTxn", 0, 0, add_partitions),
    ADD_OFFSETS: ("AddOffsetsToTxn", 0, 0, add_offsets),
    END_TRANSACTION: ("EndTxn", 0, 0, end_transaction),
    TXN_OFFSET_COMMIT: ("TxnOffsetCommit", 0, 0, commit_offsets),
    METADATA: ("Metadata", 0, 11, metadata),
    CREATE_TOPICS: ("CreateTopics", 0, 3, create_topics),
    DELETE_RECORDS: ("DeleteRecords", 0, 2, delete_records),
    DESCRIBE_CONFIGS: ("DescribeConfigs", 0, 2, describe_configs),
    ALTER_CONFIGS: ("AlterConfigs", 0, 1, alter_configs),
}
"""API key -> name, first and last version that brokers know, and what answers the last one."""
NAMES = {key: name for key, (name, *_) in _REQUESTS.items()}
VERSIONS = {key: (first, last) for key, (_, first, last, _) in _REQUESTS.items()}
