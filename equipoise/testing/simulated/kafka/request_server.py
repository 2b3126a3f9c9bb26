"""The requests of clients, as aiokafka builds them: brokers answer with aiokafka's responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from aiokafka.protocol.commit import OffsetCommitResponse_v3, OffsetFetchResponse_v3

from equipoise.kafka.client import LeaderEnd, TopicPartition
from equipoise.kafka.consumer.requests import EPOCH_ENDS_V2, LIST_OFFSETS_V4
from equipoise.testing.simulated.kafka import admin_server, producer_server
from equipoise.testing.simulated.kafka.broker_network import Handler
from equipoise.testing.simulated.kafka.cluster_state import Reply
from equipoise.testing.simulated.kafka.coordinators import noted

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
    return int(error.errno)


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
        code = 0 if found is None else _code(found)
        reply(OffsetCommitResponse_v3(0, [(topic, [(each[0], code) for each in partitions]) for topic, partitions in request.topics]))

    cluster.coordinators.commit_offsets(request.consumer_group, offsets, broker, answer)


_REQUESTS: dict[int, tuple[str, int, int, Callable[..., None]]] = {
    FETCH: ("Fetch", 4, 11, _fetch),
    LIST_OFFSETS: ("ListOffsets", 1, 4, _list_offsets),
    OFFSET_COMMIT: ("OffsetCommit", 2, 3, _commit_offsets),
    OFFSET_FETCH: ("OffsetFetch", 1, 3, _fetch_offsets),
    EPOCH_ENDS: ("OffsetForLeaderEpoch", 2, 2, _epoch_ends),
    producer_server.PRODUCE: ("Produce", 3, 13, producer_server.produce),
    producer_server.FIND_COORDINATOR: ("FindCoordinator", 0, 1, producer_server.find_coordinator),
    producer_server.INIT_PRODUCER_ID: ("InitProducerId", 0, 0, producer_server.init_producer_id),
    producer_server.ADD_PARTITIONS: ("AddPartitionsToTxn", 0, 0, producer_server.add_partitions),
    producer_server.ADD_OFFSETS: ("AddOffsetsToTxn", 0, 0, producer_server.add_offsets),
    producer_server.END_TRANSACTION: ("EndTxn", 0, 0, producer_server.end_transaction),
    producer_server.TXN_OFFSET_COMMIT: ("TxnOffsetCommit", 0, 0, producer_server.commit_offsets),
    admin_server.METADATA: ("Metadata", 0, 11, admin_server.metadata),
    admin_server.CREATE_TOPICS: ("CreateTopics", 0, 3, admin_server.create_topics),
    admin_server.DELETE_RECORDS: ("DeleteRecords", 0, 2, admin_server.delete_records),
    admin_server.DESCRIBE_CONFIGS: ("DescribeConfigs", 0, 2, admin_server.describe_configs),
    admin_server.ALTER_CONFIGS: ("AlterConfigs", 0, 1, admin_server.alter_configs),
}
"""API key -> name, first and last version that brokers know, and what answers the last one."""
NAMES = {key: name for key, (name, *_) in _REQUESTS.items()}
VERSIONS = {key: (first, last) for key, (_, first, last, _) in _REQUESTS.items()}
