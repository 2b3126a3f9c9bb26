"""The requests of producers, as aiokafka builds them: brokers answer with aiokafka's responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.producer.errors import UnknownTopicIdError
from equipoise.kafka.producer.requests import PRODUCE_V13
from equipoise.kafka.producer.sending_orders import Coordinates
from equipoise.testing.simulated.kafka.cluster_state import Reply
from equipoise.testing.simulated.kafka.coordinators import GROUP, TRANSACTION, noted
from equipoise.testing.simulated.kafka.partition_log import Batch

if TYPE_CHECKING:
    from equipoise.testing.simulated.kafka.cluster import Cluster
    from equipoise.testing.simulated.kafka.cluster_state import SimulatedBroker

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION, TXN_OFFSET_COMMIT = 0, 10, 22, 24, 25, 26, 28


def _code(error: Any) -> int:
    return 0 if error is None else int(error.errno)


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
