"""Errors of brokers and of the Kafka client: each is sorted, and a record at fault is found."""

from __future__ import annotations

import inspect
from typing import Any

import aiokafka.errors
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition, batch_bytes
from equipoise.kafka.producer.errors import InvalidRecordError
from equipoise.member.copies.stores import MemoryStore
from equipoise.member.tasks.context import State, TaskContext
from equipoise.member.tasks.refusals import PATIENCE_S, SORTED, ForGood, TaskRefusals, blame_record, name_topic, refused_by, sentence
from equipoise.member.tasks.sizes import OversizedError

PLACE = TopicPartition("in", 0)
KAFKA: set[Any] = {each for each in vars(aiokafka.errors).values() if inspect.isclass(each) and issubclass(each, Exception)}


def test_every_error_of_the_client_is_sorted() -> None:
    assert {each.__name__ for each in KAFKA} | {"InvalidRecordError"} == set(SORTED)


@pytest.mark.parametrize("kind", sorted(KAFKA, key=str))
def test_what_the_client_retries_is_refused_for_a_task_at_most(kind: type[Exception]) -> None:
    if getattr(kind, "retriable", False):
        assert refused_by(kind()) in (ForGood.NOTHING, ForGood.TASK), "a topic that does not exist is a task's"
    assert sentence(kind("a") if kind is not aiokafka.errors.BrokerResponseError else ValueError("a"))


def test_error_of_a_newer_client_counts_as_its_base_class_does() -> None:
    class NewError(aiokafka.errors.TopicAuthorizationFailedError):  # type: ignore[misc]
        pass

    class UnheardOf(aiokafka.errors.BrokerResponseError):  # type: ignore[misc]
        pass

    assert refused_by(NewError()) is ForGood.TASK
    assert refused_by(UnheardOf()) is ForGood.NOTHING
    assert refused_by(ValueError()) is ForGood.NOTHING
    assert refused_by(InputError("send to out: it has no partition 7")) is ForGood.RECORD


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (aiokafka.errors.UnknownTopicOrPartitionError(), "UnknownTopicOrPartitionError: topic out does not exist: create it"),
        (aiokafka.errors.MessageSizeTooLargeError(), "a record for out is larger than the topic takes (max.message.bytes)"),
        (aiokafka.errors.TopicAuthorizationFailedError(), "this member may not use topic out: allow its user Read or Write on topic out"),
        (InvalidRecordError(), "a compacted topic needs a key in each record"),
        (aiokafka.errors.PolicyViolationError("no"), "PolicyViolationError: [Error 44] PolicyViolationError: no (topic out)"),
    ],
)
def test_sentence_names_the_topic_and_the_fix(error: Exception, said: str) -> None:
    name_topic(error, "out")
    name_topic(error, "another")
    assert said in sentence(error)


def test_application_error_with_the_name_of_a_kafka_error_is_its_own() -> None:
    class InvalidRecordError(Exception): ...

    assert sentence(InvalidRecordError("mine")) == "InvalidRecordError: mine"


@pytest.mark.parametrize("records", [1, 2, 3, 100, 9_999])
@pytest.mark.parametrize("seed", range(5))
def test_record_at_fault_is_found_in_few_attempts(records: int, seed: int) -> None:
    bad, refusals, committed, attempts = (seed * 7_919) % records, TaskRefusals(lambda: 0.0), 0, 0
    while not refusals.records:
        attempts += 1
        refusals.reopened(0)
        while committed < records and not refusals.records:
            size = min(records - committed, refusals.most or records)
            refusals.handled(PLACE, committed + size - 1, size)
            if committed <= bad < committed + size:
                error = aiokafka.errors.InvalidTimestampError()
                blame_record(error)
                assert refusals.judge(error, None) is ForGood.RECORD
                break
            committed += size
            refusals.committed(size, {PLACE: committed})
    assert refusals.records[PLACE].offset == bad
    assert attempts <= records.bit_length() + 1
    while refusals.most is not None:  # what comes next is committed one by one, then more and more
        refusals.handled(PLACE, bad + 1, refusals.most)
        refusals.committed(refusals.most, {PLACE: records})
        refusals.back_to_usual(10_000)
        attempts += 1
    assert attempts <= records.bit_length() + 1 + 15
    assert not refusals.records


def test_task_is_refused_for_a_while_before_it_fails() -> None:
    now_s = [0.0]
    refusals, missing = TaskRefusals(lambda: now_s[0]), aiokafka.errors.UnknownTopicOrPartitionError()
    assert refusals.judge(missing, None) is ForGood.NOTHING
    now_s[0] += PATIENCE_S
    refusals.committed(1, {})
    assert refusals.judge(missing, None) is ForGood.NOTHING
    now_s[0] += PATIENCE_S
    assert refusals.judge(aiokafka.errors.NotLeaderForPartitionError(), None) is ForGood.NOTHING
    assert refusals.judge(missing, None) is ForGood.TASK
    assert refusals.judge(aiokafka.errors.InvalidTransactionTimeout(), None) is ForGood.MEMBER


@pytest.mark.parametrize("headers", [[], [("equipoise", b"x" * 150), ("h", b"")]])
@pytest.mark.parametrize(("key", "value"), [(None, b"v"), (b"k", None), (b"k" * 70, b"v" * 300), (b"", b"v" * 9_000), (b"k" * 20_000, b"v" * 2**21)])
def test_size_of_a_record_is_what_the_client_sends(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    batch = DefaultRecordBatchBuilder(2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=0, batch_size=10)
    batch.append(0, 1_700_000_000_000, key, value, headers)
    assert batch_bytes(key, value, headers) == len(batch.build())


@pytest.mark.parametrize(
    "put",
    [
        lambda context: context.send("out", bytes(2**20)),
        lambda context: context.send("out", b"v", key=bytes(2**20)),
        lambda context: context.send("out", b"v", headers=[("h", bytes(2**20))]),
        lambda context: context.send_many("out", [(b"k", b"v"), (b"k", bytes(2**20))]),
        lambda context: context.state.put(b"k", bytes(2**20)),
        lambda context: context.state.put(bytes(2**19), bytes(2**19)),
        lambda context: context.state.put_many({b"j": b"v", b"k": bytes(2**20)}),
        lambda context: context.state.delete(bytes(2**20)),
    ],
)
def test_what_is_too_large_raises_where_it_is_put_or_sent(put: Any) -> None:
    context = TaskContext(TaskId(0, 0), 1, {"log": State(MemoryStore(), topic="log")})
    with pytest.raises(OversizedError, match=r"a record for (out|log) has 1,0\d\d,\d\d\d bytes, and 1,048,576 is the most: make it smaller"):
        put(context)
    assert not context.has_changes


def test_what_is_as_large_as_it_may_be_is_put_and_sent() -> None:
    context = TaskContext(TaskId(0, 0), 1, {"log": State(MemoryStore(), topic="log")})
    context.send("out", bytes(2**20 - 200), key=b"k")
    context.state.put(b"k", bytes(2**20 - 200))
    assert context.has_changes
