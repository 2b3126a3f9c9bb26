"""What a consumer asks its brokers for, answer by answer, without a network and without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaConnectionError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.fetch import FetchResponse_v4, FetchResponse_v11

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.consumer.core import METADATA_AGAIN_MS, PREFETCH_MS
from equipoise.kafka.consumer.reading_orders import FetchOrder, FindPositions
from tests.fetching_brokers import Brokers, Reader

A, B, C = (TopicPartition("in", number) for number in range(3))
LOST = KafkaConnectionError()


def reader(leads: dict[TopicPartition, int] | None = None, **options: Any) -> Reader:
    """It reads A, B and C, which two brokers lead."""
    brokers = Brokers([A, B, C])
    brokers.leads = {place: (node, 0) for place, node in (leads or {A: 0, B: 0, C: 1}).items()}
    made = Reader(brokers, **options)
    made.begin([A, B, C])
    return made


def asked(reader: Reader) -> dict[int, tuple[dict[TopicPartition, int], set[TopicPartition]]]:
    """Broker -> what the requests that are due name, and what they drop."""
    fetches = [each for each in reader.send() if isinstance(each, FetchOrder)]
    return {each.node: ({place: offset for place, (offset, _) in each.named.items()}, set(each.dropped)) for each in fetches}


def answer(reader: Reader, node: int) -> None:
    [order] = [each for each in reader.under_way if isinstance(each, FetchOrder) and each.node == node]
    reader.deliver(order)


def answer_with(reader: Reader, node: int, *found: tuple[TopicPartition, int], error_code: int = 0, **fields: Any) -> None:
    """With an error code of each of these partitions, or of all."""
    [order] = [each for each in reader.under_way if isinstance(each, FetchOrder) and each.node == node]
    reader.under_way.remove(order)
    topics: Any = [(place.topic, [(place.partition, code, 0, 0, 0, [], fields.get("replica", -1), fields.get("data", b""))]) for place, code in found]
    reader.core.fetched(order, FetchResponse_v11(fields.get("throttle_ms", 0), error_code, 7, topics), reader.now_ms)


def write(reader: Reader, *places: TopicPartition) -> None:
    for place in places:
        reader.brokers.write(place, [b"1"])


def test_requests_name_what_has_changed() -> None:
    consumer = reader()
    assert asked(consumer) == {0: ({A: 0, B: 0}, set()), 1: ({C: 0}, set())}
    answer(consumer, 0)
    assert asked(consumer) == {0: ({}, set())}
    write(consumer, B)
    answer(consumer, 0)
    assert asked(consumer) == {}, "B is not taken"
    consumer.take([B], 10)
    assert asked(consumer) == {0: ({B: 1}, set())}
    answer(consumer, 1)
    assert asked(consumer) == {1: ({}, set())}


def test_paused_partition_is_dropped_and_named_again() -> None:
    consumer = reader()
    asked(consumer)
    answer(consumer, 0)
    consumer.core.pause(A)
    assert asked(consumer) == {0: ({}, {A})}
    answer(consumer, 0)
    consumer.core.resume(A)
    consumer.core.seek(B, 0)
    assert asked(consumer) == {0: ({A: 0}, set())}, "B is where it was"


def test_partition_that_moves_while_its_broker_is_asked_is_dropped_there() -> None:
    """That broker would find the same records again and again."""
    consumer = reader()
    asked(consumer)
    answer(consumer, 1)
    consumer.brokers.move(B, 1)
    consumer.hear()
    assert asked(consumer) == {1: ({B: 0}, set())}
    answer(consumer, 0)
    assert asked(consumer) == {0: ({}, {B})}


def test_records_of_the_former_leader_are_not_taken_twice() -> None:
    consumer = reader()
    write(consumer, B)
    [first, _] = consumer.send()
    assert isinstance(first, FetchOrder)
    old = consumer.brokers.answer(first, consumer.options)
    consumer.brokers.move(B, 1)
    consumer.hear()
    consumer.core.fetched(first, old, 0)
    consumer.read_all()
    assert consumer.taken[B] == [(0, b"1")]


def test_broker_whose_answer_was_lost_is_asked_for_everything_after_a_while() -> None:
    consumer = reader()
    asked(consumer)
    answer(consumer, 0)
    asked(consumer)
    [order] = [each for each in consumer.under_way if isinstance(each, FetchOrder) and each.node == 0]
    consumer.under_way.remove(order)
    consumer.core.failed(order, LOST, consumer.now_ms)
    assert asked(consumer) == {}
    assert consumer.core.due(0).again_ms == consumer.options.retry_ms
    consumer.now_ms = consumer.options.retry_ms
    assert asked(consumer) == {0: ({A: 0, B: 0}, set())}


@pytest.mark.parametrize(("code", "wait_ms"), [(70, 0.0), (71, 0.0), (-1, 100.0)])
def test_session_error_begins_a_new_session(code: int, wait_ms: float) -> None:
    consumer = reader()
    asked(consumer)
    answer(consumer, 0)
    asked(consumer)
    answer_with(consumer, 0, error_code=code)
    consumer.now_ms = wait_ms
    [order] = [each for each in consumer.send() if isinstance(each, FetchOrder)]
    assert order.session_epoch == 0
    assert set(order.named) == {A, B}


def test_session_epoch_counts_requests() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    epochs = []
    for _ in range(3):
        [order] = consumer.send()
        assert isinstance(order, FetchOrder)
        epochs.append((order.session_id, order.session_epoch))
        consumer.deliver(order)
    assert epochs == [(0, 0), (1, 1), (1, 2)]


def test_broker_without_sessions_is_asked_for_everything() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    for _ in range(2):
        [order] = consumer.send()
        assert isinstance(order, FetchOrder)
        assert (set(order.named), order.session_epoch) == ({A, B, C}, 0)
        consumer.under_way.remove(order)
        consumer.core.fetched(order, FetchResponse_v4(0, []), 0)


def test_end_of_a_partition_that_is_assigned_again_is_asked_for() -> None:
    """Its broker names an end only when it has changed."""
    consumer = reader({A: 0, B: 0, C: 0})
    asked(consumer)
    answer(consumer, 0)
    assert consumer.core.end(A) == 0
    consumer.core.assign([B, C])
    consumer.core.assign([A, B, C])
    consumer.core.seek(A, 0)
    assert consumer.core.end(A) is None
    assert asked(consumer) == {0: ({A: 0, B: 0, C: 0}, set())}
    answer(consumer, 0)
    assert consumer.core.end(A) == 0


def test_what_nobody_takes_holds_others_up_for_a_moment_only() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    write(consumer, A)
    asked(consumer)
    answer(consumer, 0)
    assert asked(consumer) == {}
    assert consumer.core.due(consumer.now_ms).again_ms == PREFETCH_MS
    consumer.now_ms += PREFETCH_MS
    assert asked(consumer) == {0: ({}, {A})}
    consumer.take([A], 10)
    answer(consumer, 0)
    assert asked(consumer) == {0: ({A: 1}, set())}


def test_others_with_a_backlog_are_fetched_ahead_once_and_wait_for_nothing() -> None:
    consumer = reader({A: 0, B: 0, C: 0}, answer_bytes=80, partition_bytes=80)
    write(consumer, A, A, B, B)
    asked(consumer)
    answer(consumer, 0)
    [order] = consumer.send()
    assert isinstance(order, FetchOrder)
    assert (order.wait_ms, order.dropped) == (0, [A])
    consumer.under_way.remove(order)
    consumer.core.fetched(order, FetchResponse_v11(0, 0, 1, []), 0)
    assert consumer.send() == [], "it has found nothing"
    consumer.take([A], 10)
    [order] = consumer.send()
    assert isinstance(order, FetchOrder)
    assert order.wait_ms == consumer.options.max_wait_ms


def test_too_much_that_is_not_taken_is_not_added_to() -> None:
    consumer = reader({A: 0, B: 0, C: 0}, answer_bytes=80, partition_bytes=80)
    consumer.brokers.write(A, [b"x" * 200])
    write(consumer, B)
    asked(consumer)
    answer(consumer, 0)
    assert consumer.core.end(B) == 1
    assert asked(consumer) == {}


def test_metadata_is_asked_for_again_and_again_while_a_leader_is_unknown() -> None:
    consumer = reader()
    consumer.core.heard({A: (0, 0)}.get, 0)
    due = consumer.core.due(0)
    assert (due.asks_metadata, due.again_ms) == (True, METADATA_AGAIN_MS)
    assert [each.node for each in due.orders] == [0]
    assert not consumer.core.due(METADATA_AGAIN_MS - 1).asks_metadata
    assert consumer.core.due(METADATA_AGAIN_MS).asks_metadata
    for place in (B, C):
        consumer.core.pause(place)
    due = consumer.core.due(1_000)
    assert (due.asks_metadata, due.again_ms) == (False, inf)


@pytest.mark.parametrize("code", [3, 5, 6, 9, 74, 75])
def test_error_of_one_partition_lets_it_rest_and_asks_who_leads_it(code: int) -> None:
    consumer = reader()
    asked(consumer)
    answer_with(consumer, 0, (A, code))
    due = consumer.core.due(0)
    assert due.asks_metadata
    [order] = due.orders
    assert isinstance(order, FetchOrder)
    assert set(order.dropped) == {A}
    assert due.again_ms == consumer.options.retry_ms
    consumer.core.fetched(order, FetchResponse_v11(0, 0, 7, []), 0)
    [order] = consumer.core.due(consumer.options.retry_ms).orders
    assert isinstance(order, FetchOrder)
    assert set(order.named) == {A}


def test_leader_epoch_is_sent_as_it_was_heard() -> None:
    consumer = reader()
    consumer.brokers.move(A, 0)
    consumer.hear()
    [order, _] = consumer.send()
    assert isinstance(order, FetchOrder)
    assert dict(order.named) == {A: (0, 1), B: (0, 0)}


def test_epoch_of_the_last_batch_is_known_until_a_seek() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    assert consumer.core.fetched_epoch(A) == -1
    write(consumer, A)
    consumer.brokers.move(A, 0)
    write(consumer, A)
    consumer.read_all()
    assert consumer.core.fetched_epoch(A) == 1
    consumer.core.seek(A, 0)
    assert consumer.core.fetched_epoch(A) == -1


def test_throttled_consumer_waits() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    consumer.send()
    answer_with(consumer, 0, throttle_ms=500)
    assert asked(consumer) == {}
    assert consumer.core.due(0).again_ms == 500
    consumer.now_ms = 500
    assert asked(consumer) == {0: ({}, set())}


def test_near_replica_is_read_as_long_as_it_answers() -> None:
    consumer = reader({A: 0, B: 0, C: 0}, rack="b")
    consumer.send()
    answer_with(consumer, 0, (A, 0), replica=1)
    assert asked(consumer) == {0: ({}, {A}), 1: ({A: 0}, set())}
    answer_with(consumer, 1, (A, 1))  # behind the leader
    assert consumer.core.ready() == set()
    answer_with(consumer, 0)
    assert asked(consumer) == {0: ({A: 0}, set())}
    answer_with(consumer, 0, (A, 0), replica=1)
    consumer.send()
    [order] = [each for each in consumer.under_way if isinstance(each, FetchOrder) and each.node == 1]
    consumer.core.failed(order, LOST, 0)
    answer_with(consumer, 0)
    assert asked(consumer) == {0: ({A: 0}, set())}


def test_error_comes_after_the_records_before_it_and_once() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    write(consumer, A)
    consumer.core.seek(B, 5)
    asked(consumer)
    answer(consumer, 0)
    assert list(consumer.core.take([A, B], 10)) == [A]
    with pytest.raises(OffsetOutOfRangeError) as raised:
        consumer.core.take([A, B], 10)
    assert raised.value.args == ({B: 5},)
    assert consumer.core.take([A, B], 10) == {}
    asked(consumer)
    consumer.core.seek(B, 0)
    answer(consumer, 0)
    assert B not in consumer.core.ready(), "what was asked for before the seek does not count"


def test_hidden_topic_is_said() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    consumer.send()
    answer_with(consumer, 0, (A, 29))
    with pytest.raises(TopicAuthorizationFailedError):
        consumer.core.take([A], 1)


def test_record_that_is_cut_off_is_said_and_not_skipped() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    consumer.send()
    answer_with(consumer, 0, (A, 0), data=b"x" * 20)
    with pytest.raises(RecordTooLargeError):
        consumer.core.take([A], 1)
    assert consumer.core.position(A) == 0


def test_take_returns_no_more_than_it_is_told() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    for place in (A, B):
        consumer.brokers.write(place, [b"1", b"2", b"3"])
    asked(consumer)
    answer(consumer, 0)
    assert consumer.core.take([A, B], 0) == {}
    consumer.take([A, B], 4)
    assert [len(consumer.taken[place]) for place in (A, B)] == [3, 1]
    assert (consumer.core.position(A), consumer.core.position(B)) == (3, 1)
    consumer.take([A, B], 4)
    assert consumer.taken[B] == [(0, b"1"), (1, b"2"), (2, b"3")]


def test_paused_records_are_dropped_and_fetched_again() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    write(consumer, A)
    asked(consumer)
    answer(consumer, 0)
    consumer.core.pause(A)
    assert consumer.core.take([A], 10) == {}
    consumer.core.resume(A)
    consumer.read_all()
    assert consumer.taken[A] == [(0, b"1")]


def orders_of(consumer: Reader) -> Sequence[FindPositions]:
    return [each for each in consumer.send() if isinstance(each, FindPositions)]


def test_position_is_what_the_group_has_committed_or_where_it_is_told_to_begin() -> None:
    consumer = reader({A: 0, B: 0, C: 0}, has_group=True, reset="earliest")
    consumer.core.assign([])
    consumer.core.assign([A, B, C])
    [order] = orders_of(consumer)
    assert (order.node, set(order.places)) == (None, {A, B, C})
    consumer.core.seek(C, 4)
    consumer.core.placed(order, {A: 2, B: None, C: 3}, 0)
    [listing] = orders_of(consumer)
    assert listing == FindPositions(0, [B])
    consumer.core.placed(listing, {B: 1}, 0)
    assert [consumer.core.position(place) for place in (A, B, C)] == [2, 1, 4]


def test_without_a_position_and_a_reset_there_is_an_error() -> None:
    consumer = reader({A: 0, B: 0, C: 0})
    consumer.core.assign([])
    consumer.core.assign([A])
    assert consumer.send() == []
    with pytest.raises(NoOffsetForPartitionError):
        consumer.core.take([A], 1)


def test_offset_out_of_range_is_reset_at_the_leader() -> None:
    consumer = reader({A: 0, B: 0, C: 0}, reset="latest")
    consumer.core.seek(A, 7)
    asked(consumer)
    answer(consumer, 0)
    [order] = orders_of(consumer)
    assert order == FindPositions(0, [A])
    consumer.core.placed(order, {}, 0)
    assert orders_of(consumer) == [], "it rests"
    consumer.now_ms = consumer.options.retry_ms
    [order] = orders_of(consumer)
    consumer.core.failed(order, LOST, consumer.now_ms)
    consumer.now_ms += consumer.options.retry_ms
    [order] = orders_of(consumer)
    consumer.core.placed(order, {A: 0}, 0)
    assert consumer.core.position(A) == 0


def test_group_that_may_not_be_read_is_said() -> None:
    consumer = reader({A: 0, B: 0, C: 0}, has_group=True)
    consumer.core.assign([])
    consumer.core.assign([A])
    [order] = orders_of(consumer)
    consumer.core.failed(order, GroupAuthorizationFailedError("g"), 0)
    with pytest.raises(GroupAuthorizationFailedError):
        consumer.core.take([A], 1)


def test_partition_that_is_not_assigned_and_a_negative_offset_are_refused() -> None:
    consumer = reader()
    consumer.core.assign([A])
    for refused in (consumer.core.pause, consumer.core.resume, consumer.core.last_stable_offset):
        with pytest.raises(IllegalStateError):
            refused(B)
    with pytest.raises(ValueError, match="offset: -1 is negative"):
        consumer.core.seek(A, -1)
    assert (consumer.core.position(B), consumer.core.end(B)) == (None, None)
