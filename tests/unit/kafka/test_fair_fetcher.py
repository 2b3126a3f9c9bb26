"""What a consumer asks its brokers for, answer by answer, without a broker."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import FetchResult
from aiokafka.consumer.subscription_state import Assignment
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11

from equipoise.kafka.aiokafka_client import unwrapped
from equipoise.kafka.aiokafka_fetcher import METADATA_AGAIN_S, FairFetcher, FetchedPartitions
from equipoise.kafka.aiokafka_sessions import FetchSession

A, B, C = (TopicPartition("in", partition) for partition in range(3))
END = 20
"""Of each partition."""


class Consumer:
    """A fetcher of three partitions, and what brokers answer. `leads`: partition -> its leader."""

    def __init__(self, leads: Mapping[TopicPartition, int]) -> None:
        self.leads = dict(leads)
        self.assignment = Assignment([A, B, C])
        for state in self.assignment._tp_state.values():
            state.seek(0)
        fetcher: Any = FairFetcher.__new__(FairFetcher)
        self.fetcher = fetcher
        fetcher._records, fetcher._sessions, fetcher._in_flight = FetchedPartitions(), defaultdict(FetchSession), set()
        fetcher._preferred_read_replica, fetcher._client_rack, fetcher._isolation_level = {}, None, 0
        fetcher._prefetch_backoff, fetcher._fetcher_timeout, fetcher._max_partition_fetch_bytes = 3_600, 0.2, 1_000
        fetcher._fetch_max_wait_ms, fetcher._fetch_min_bytes, fetcher._fetch_max_bytes = 500, 1, 4_000
        self.cluster = SimpleNamespace(_partitions=object(), leader_for_partition=lambda place: self.leads[place])
        fetcher._client = SimpleNamespace(cluster=self.cluster)

    def ask(self) -> dict[int, tuple[dict[TopicPartition, int], list[TopicPartition]]]:
        """Broker -> what the next request to it names, and what it drops."""
        requests, *_ = self.fetcher._get_actions_per_node(self.assignment)
        asked = {}
        for node_id, request in requests:
            self.fetcher._in_flight.add(node_id)
            built = request.build(FetchRequest_v11)
            named = {TopicPartition(topic, each[0]): each[2] for topic, partitions in built.topics for each in partitions}
            dropped = [TopicPartition(topic, partition) for topic, partitions in built.forgotten_topics_data for partition in partitions]
            asked[node_id] = (named, dropped)
        return asked

    def answer(self, node_id: int, *found: TopicPartition, error_code: int = 0) -> None:
        """The broker has answered, and found something in these partitions."""
        answer = FetchResponse_v11(0, 0, 7, [(place.topic, [(place.partition, error_code, END, END, 0, [], -1, b"")]) for place in found])
        self.fetcher._sessions[node_id].answered(answer)
        self.fetcher._in_flight.discard(node_id)
        for state in self.assignment._tp_state.values():
            state.highwater = state.highwater or 0
        if not error_code:
            for place in found:
                result: Any = FetchResult(place, assignment=self.assignment, partition_records=None, backoff=3_600)
                OrderedDict.__setitem__(self.fetcher._records, place, result)
                self.fetcher._records.fetches += 1

    def take(self, place: TopicPartition, position: int) -> None:
        del self.fetcher._records[place]
        self.assignment.state_value(place).consumed_to(position)

    def move(self, place: TopicPartition, leader: int) -> None:
        self.leads[place] = leader
        self.cluster._partitions = object()


async def test_requests_name_the_partitions_that_were_taken() -> None:
    consumer = Consumer({A: 1, B: 1, C: 2})
    assert consumer.ask() == {1: ({A: 0, B: 0}, []), 2: ({C: 0}, [])}
    consumer.answer(1, B)
    assert consumer.ask() == {}
    consumer.take(B, 5)
    assert consumer.ask() == {1: ({B: 5}, [])}
    consumer.answer(2)
    assert consumer.ask() == {2: ({}, [])}
    consumer.answer(1, A, B)
    consumer.take(B, 6)
    assert consumer.ask() == {}, "A is not taken"
    consumer.take(A, 3)
    consumer.answer(2, C)
    assert consumer.ask() == {1: ({A: 3, B: 6}, [])}
    consumer.take(C, 1)
    assert consumer.ask() == {2: ({C: 1}, [])}


async def test_partition_that_moves_while_its_broker_is_asked_is_dropped_there() -> None:
    """That broker would find the same records again and again."""
    consumer = Consumer({A: 1, B: 1, C: 2})
    consumer.ask()
    consumer.answer(2)
    consumer.move(B, 2)
    assert consumer.ask() == {2: ({B: 0}, [])}
    consumer.answer(1)
    assert consumer.ask() == {1: ({}, [B])}
    consumer.answer(1)
    assert consumer.ask() == {1: ({}, [])}
    consumer.answer(2, B)
    consumer.take(B, 4)
    assert consumer.ask() == {2: ({B: 4, C: 0}, [])}, "C was being asked for when all was looked at"
    consumer.answer(2)
    assert consumer.ask() == {2: ({}, [])}


async def test_broker_that_was_asked_meanwhile_is_asked_for_changes_again() -> None:
    consumer = Consumer({A: 1, B: 1, C: 2})
    consumer.ask()
    consumer.answer(2)
    consumer.move(C, 2)
    consumer.ask()
    consumer.answer(1, A)
    consumer.take(A, 2)
    assert consumer.ask() == {1: ({A: 2, B: 0}, [])}, "B once more"
    consumer.answer(1)
    assert consumer.ask() == {1: ({}, [])}


async def test_pause_seek_and_error_are_not_missed() -> None:
    consumer = Consumer({A: 1, B: 1, C: 1})
    consumer.ask()
    consumer.answer(1)
    consumer.assignment.state_value(A).pause()
    assert consumer.ask() == {1: ({}, [A])}
    consumer.answer(1)
    consumer.assignment.state_value(B).seek(9)
    assert consumer.ask() == {1: ({B: 9}, [])}
    consumer.assignment.state_value(A).resume()
    requests, _, _, _, resumed = consumer.fetcher._get_actions_per_node(consumer.assignment)
    assert (requests, resumed) == ([], []), "nothing that is done already is waited for"
    consumer.answer(1)
    assert consumer.ask() == {1: ({A: 0, B: 9, C: 0}, [])}
    consumer.answer(1, C, error_code=6)
    consumer.move(C, 2)
    assert consumer.ask() == {1: ({}, [C]), 2: ({C: 0}, [])}


async def test_broker_whose_answer_was_lost_is_asked_for_everything() -> None:
    consumer = Consumer({A: 1, B: 1, C: 1})
    consumer.ask()
    consumer.answer(1, A)
    consumer.take(A, 2)
    consumer.ask()
    consumer.fetcher._sessions[1].lost()
    consumer.fetcher._in_flight.clear()
    assert consumer.ask() == {1: ({A: 2, B: 0, C: 0}, [])}


async def test_metadata_of_a_topic_without_leader_is_not_asked_for_in_a_hot_loop() -> None:
    """It answers at once, and aiokafka looks again."""
    consumer = Consumer({A: 1, B: -1, C: 2})
    _, _, _, asks, _ = consumer.fetcher._get_actions_per_node(consumer.assignment)
    assert asks
    _, _, wait_s, asks, _ = consumer.fetcher._get_actions_per_node(consumer.assignment)
    assert not asks
    assert 0 < wait_s <= METADATA_AGAIN_S
    await asyncio.sleep(wait_s + 0.01)
    _, _, _, asks, _ = consumer.fetcher._get_actions_per_node(consumer.assignment)
    assert asks


async def test_topic_that_may_not_be_seen_is_said_at_once() -> None:
    """aiokafka asks for its leader until the time is over."""
    consumer, asked = Consumer({}), []

    async def known() -> None:
        asked.append("known")

    consumer.cluster.unauthorized_topics = {"in"}
    vars(consumer.fetcher._client).update(add_topic=asked.append, force_metadata_update=lambda: asked.append("again"), _maybe_wait_metadata=known)
    with pytest.raises(TopicAuthorizationFailedError):
        await consumer.fetcher._proc_offset_requests({A: -1})
    assert asked == ["in", "known", "again"]


@pytest.mark.parametrize("kind", [TopicAuthorizationFailedError, GroupAuthorizationFailedError, KafkaError])
def test_error_of_which_aiokafka_has_made_a_text_keeps_its_kind(kind: type[Exception]) -> None:
    """As an error of no kind, a missing right was tried again for ever."""
    found = unwrapped(KafkaError(repr(kind())), "in")
    assert type(found) is kind
    other = TimeoutError("x") if kind is KafkaError else kind("x")
    assert unwrapped(other, "in") is other
