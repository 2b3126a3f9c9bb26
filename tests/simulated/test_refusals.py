"""Whatever brokers refuse for good, a task that writes it is not opened again and again: the error
policy decides about the record, or the task fails, or the member ends with the fix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from aiokafka import errors

from equipoise import ErrorPolicy, Record, TaskContext
from equipoise.kafka.consumer.shell import WireConsumer
from equipoise.kafka.producer.errors import InvalidRecordError
from equipoise.member.http.server import MemberServer
from equipoise.member.options import MemberOptions
from equipoise.member.tasks.refusals import PATIENCE_S
from equipoise.testing.simulated.kafka.partition_log import Batch, StoredRecord
from tests.simulated.test_start import NewGroup, group
from tests.simulated.test_task_runner import BOTH, Bench, simulate

__all__ = ["group"]

RECORDS = 300
POISON = (7, 8, 150)
REST = [b"%d" % number for number in range(RECORDS) if number not in POISON]
Poisoned = Callable[[Record, TaskContext], None]


def is_poison(record: Record) -> bool:
    return record.offset in POISON


def too_large(record: Record, context: TaskContext) -> None:
    context.send("out", bytes(2**20) if is_poison(record) else record.value, key=b"k", partition=0)


def too_large_for_the_topic(record: Record, context: TaskContext) -> None:
    context.send("out", bytes(50_000) if is_poison(record) else record.value, key=b"k", partition=0)


def too_old(record: Record, context: TaskContext) -> None:
    context.send("out", record.value, key=b"k", partition=0, timestamp_ms=1 if is_poison(record) else None)


def to_no_partition(record: Record, context: TaskContext) -> None:
    context.send("out", record.value, key=b"k", partition=99 if is_poison(record) else 0)


def without_key(record: Record, context: TaskContext) -> None:
    context.send("out", record.value, key=None if is_poison(record) else b"k", partition=0)


def refuse_old(topic: str, batch: Batch) -> type[Exception] | None:
    return errors.InvalidTimestampError if any(each[3] == 1 for each in batch.contents) else None


EACH = pytest.mark.parametrize(
    "handler", [too_large, too_large_for_the_topic, too_old, pytest.param(to_no_partition, marks=pytest.mark.slow), without_key]
)


def prepare(bench: Bench) -> None:
    bench.cluster.topics["out"].configs["max.message.bytes"] = "20000"
    bench.cluster.topics["out"].configs["cleanup.policy"] = "compact"
    bench.cluster.refuses = refuse_old


async def settle(bench: Bench) -> None:
    prepare(bench)
    bench.send(0, RECORDS)


def committed(bench: Bench, topic: str = "out") -> list[StoredRecord]:
    """Records without those of aborted transactions."""
    open_by: dict[int, list[StoredRecord]] = {}
    found: list[StoredRecord] = []
    for each in bench.cluster.topics[topic].partitions[0].log.records:
        if each.batch.marker is not None:
            found += open_by.pop(each.batch.producer_id, []) if each.batch.marker else []
            open_by.pop(each.batch.producer_id, None)
        elif each.batch.transactional:
            open_by.setdefault(each.batch.producer_id, []).append(each)
        else:
            found.append(each)
    return found


def distinct(bench: Bench) -> list[Any]:
    return list(dict.fromkeys(each.value for each in committed(bench)))


@BOTH
@EACH
def test_policy_leaves_out_records_whose_outputs_are_refused_and_no_other(guarantee: str, handler: Poisoned) -> None:
    async def test(bench: Bench) -> None:
        await settle(bench)
        runner = bench.start(0, handler)
        await asyncio.sleep(60)
        assert runner.parked is None
        assert distinct(bench) == REST
        assert guarantee == "at_least_once" or len(committed(bench)) == len(REST)

    simulate(test, guarantee=guarantee, on_error=ErrorPolicy.skip())


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.slow)])
@EACH
def test_task_fails_at_the_first_record_whose_output_is_refused(guarantee: str, handler: Poisoned) -> None:
    async def test(bench: Bench) -> None:
        await settle(bench)
        runner = bench.start(0, handler)
        await asyncio.sleep(30)
        assert runner.parked is not None
        assert (runner.parked.topic, runner.parked.offset) == ("in", POISON[0])
        assert "out" in runner.parked.error
        assert distinct(bench) == REST[: POISON[0]]
        assert len(bench.parked_tasks) == 1

    simulate(test, guarantee=guarantee)


@EACH
def test_dead_letters_have_the_records_whose_outputs_are_refused(handler: Poisoned) -> None:
    async def test(bench: Bench) -> None:
        bench.cluster.create_topic("dead", 1)
        await settle(bench)
        bench.start(0, handler)
        await asyncio.sleep(60)
        letters = [dict(each.headers)["equipoise.error.offset"] for each in committed(bench, "dead")]
        assert letters == [b"%d" % number for number in POISON]
        assert distinct(bench) == REST

    simulate(test, guarantee="exactly_once", on_error=ErrorPolicy.retry(1, backoff_s=0.1, then=ErrorPolicy.dead_letter("dead")))


@BOTH
def test_task_whose_dead_letters_are_refused_fails(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        bench.cluster.create_topic("dead", 1)
        bench.cluster.refuses = lambda topic, batch: InvalidRecordError if topic == "dead" else None

        def handle(record: Record, context: TaskContext) -> None:
            raise ValueError("poison")

        bench.send(0, 3)
        runner = bench.start(0, handle)
        await asyncio.sleep(30)
        assert runner.parked is not None
        assert (runner.parked.offset, "dead" in runner.parked.error) == (0, True)

    simulate(test, guarantee=guarantee, on_error=ErrorPolicy.dead_letter("dead"))


@BOTH
@pytest.mark.parametrize("batch", [False, True])
def test_retry_gives_the_record_again_and_it_may_succeed(guarantee: str, batch: bool) -> None:
    tries: list[int] = []

    async def test(bench: Bench) -> None:
        bench.cluster.refuses = refuse_old

        def handle(record: Record, context: TaskContext) -> None:
            if record.offset == 7:
                tries.append(record.offset)
            context.send("out", record.value, partition=0, timestamp_ms=1 if record.offset == 7 and len(tries) < 8 else None)

        def handle_all(records: list[Record], context: TaskContext) -> None:
            for each in records:
                handle(each, context)

        bench.send(0, 20)
        runner = bench.start(0, **({"batch_handler": handle_all} if batch else {"handler": handle}))
        await asyncio.sleep(60)
        assert runner.parked is None
        assert distinct(bench) == [b"%d" % number for number in range(20)]

    simulate(test, guarantee=guarantee, on_error=ErrorPolicy.retry(6, backoff_s=0.1, then=ErrorPolicy.skip()))


@BOTH
def test_timer_whose_output_is_refused_fails_its_task(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        bench.cluster.refuses = refuse_old
        bench.send(0, 5)

        def send_old(context: TaskContext) -> None:
            context.send("out", b"t", partition=0, timestamp_ms=1)

        runner = bench.start(0, lambda record, context: None, on_assigned=lambda context: context.every(3.0, send_old))
        await asyncio.sleep(60)
        assert runner.parked is not None
        assert runner.parked.place == "a timer"
        assert "InvalidTimestampError" in runner.parked.error

    simulate(test, guarantee=guarantee, on_error=ErrorPolicy.skip())


@BOTH
@pytest.mark.parametrize("error", [errors.TopicAuthorizationFailedError, pytest.param(errors.PolicyViolationError, marks=pytest.mark.slow)])
def test_task_that_may_not_write_fails_and_the_others_go_on(guarantee: str, error: type[Exception]) -> None:
    async def test(bench: Bench) -> None:
        bench.cluster.create_topic("forbidden", 1)
        bench.cluster.refuses = lambda topic, batch: error if topic == "forbidden" else None

        def handle(record: Record, context: TaskContext) -> None:
            context.send("forbidden" if record.partition == 0 else "out", record.value, partition=0)

        for partition in range(2):
            bench.send(partition, 50)
            bench.start(partition, handle)
        await asyncio.sleep(PATIENCE_S + 20)
        parked = bench.runners[0].parked
        assert parked is not None
        assert "forbidden" in parked.error
        assert error.__name__ in parked.error
        assert (bench.runners[1].parked, len(distinct(bench)), len(bench.parked_tasks)) == (None, 50, 1)

    simulate(test, guarantee=guarantee, on_error=ErrorPolicy.skip())


@BOTH
def test_output_topic_that_does_not_exist_fails_the_task_unless_it_is_made_in_time(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        bench.send(0, 5)
        bench.send(1, 5)
        bench.start(0, lambda record, context: context.send("made later", record.value, partition=0))
        await asyncio.sleep(5)
        bench.cluster.create_topic("made later", 1)
        bench.start(1, lambda record, context: context.send("never made", record.value, partition=0))
        await asyncio.sleep(120)
        assert bench.runners[0].parked is None
        assert len(bench.cluster.topics["made later"].partitions[0].log.records) >= 5
        (parked,) = bench.parked_tasks
        assert parked.error == "UnknownTopicOrPartitionError: topic never made does not exist: create it"
        bench.runners[1].stop(abort=False)
        await asyncio.sleep(5)
        assert bench.over == [None]

    simulate(test, guarantee=guarantee, on_error=ErrorPolicy.skip())


def test_task_that_cannot_be_opened_fails_and_closes_when_it_is_asked(group: NewGroup) -> None:
    group.cluster.refuses = lambda topic, batch: errors.TopicAuthorizationFailedError if topic == "log" else None
    member = group.start("m1")
    group.settle(PATIENCE_S + 40)
    assert {"log" in each.error for each in member.failed_tasks.values()} == {True}
    assert len(member.failed_tasks) == 6
    assert "m1" not in group.ended
    ((_, lead),) = group.worker.groups()
    assert len(lead.machine.state.parked) == 6
    member.close()
    group.settle(20)
    assert group.ended == {"m1": None}


def test_member_that_brokers_refuse_as_a_whole_ends_with_the_fix(group: NewGroup) -> None:
    group.cluster.coordinators.init_producer_id = (  # type: ignore[method-assign]
        lambda transactional_id, timeout_ms, broker, reply: reply(errors.InvalidTransactionTimeout if transactional_id else (9, 0))
    )
    group.start("m1", guarantee="exactly_once")
    group.settle(PATIENCE_S + 40)
    assert "raise their transaction.max.timeout.ms, or use at_least_once" in str(group.ended["m1"])


def test_state_that_is_too_large_for_the_changelog_is_an_error_of_its_record(group: NewGroup) -> None:
    handled: list[int] = []

    def handle(record: Record, context: TaskContext) -> None:
        context.state.put(b"k", bytes(50_000 if record.offset == 3 else 10))
        handled.append(record.offset)

    group.cluster.topics["log"].configs["max.message.bytes"] = "20000"
    member = group.start("m1", handler=handle, on_error=ErrorPolicy.skip())
    group.settle(5)
    for _ in range(6):
        group.send(0)
    group.settle(30)
    assert handled[-1] == 5
    assert handled.count(3) <= 2
    assert not member.failed_tasks


@BOTH
def test_positions_too_large_for_the_changelog_are_no_records_fault(group: NewGroup, guarantee: str, caplog: pytest.LogCaptureFixture) -> None:
    """A batch of a fence has 148 bytes at most, one with the sources' ids 201, and one of the
    handler's change 99.
    """
    group.cluster.topics["log"].configs["max.message.bytes"] = "150"
    member = group.start("m1", handler=lambda record, context: context.state.put(b"k", b"v"), on_error=ErrorPolicy.skip(), guarantee=guarantee)
    with caplog.at_level("INFO", logger="equipoise"):
        for _ in range(30):
            group.settle(4)
            group.send(0)
    (parked,) = member.failed_tasks.values()
    assert "topic log takes no record as large as one that the member keeps its offsets in: raise its max.message.bytes" in parked.error
    said = [each.getMessage() for each in caplog.records if "skipped" in each.getMessage() or "other tasks go on" in each.getMessage()]
    assert said == [f"task 0_0 has failed, other tasks go on: {parked.error}. Then restart the member"]


MISSING = errors.TopicAuthorizationFailedError


def test_member_that_may_not_write_to_its_log_says_what_to_allow_and_goes_on_when_it_may(group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    member = group.start("m1")
    group.settle(8)
    server = MemberServer("g", "m1", MemberOptions(), member._runtime, lambda: member._host)
    assert server.unready() == ""
    group.cluster.refuses = lambda topic, batch: MISSING if topic.endswith(".facts") else None
    before = len(group.assigned)
    with caplog.at_level("INFO", logger="equipoise"):
        group.settle(120)
    said = "TopicAuthorizationFailedError: this member may not use topic equipoise.facts: allow its user Write on topic equipoise.facts"
    assert said in server.unready()
    assert server.unhealthy() == ""
    lines = [each.getMessage() for each in caplog.records if "refuse" in each.getMessage()]
    assert 1 <= len(lines) <= 4, lines
    assert all(said in each for each in lines)
    assert not [each for each in caplog.records if "does not answer" in each.getMessage()]
    worker = [each.getMessage() for each in caplog.records if "takeover session" in each.getMessage()]
    assert len(worker) < 30
    assert all("the worker's user may not do that; `equipoise doctor` names the ACL that is missing" in each for each in worker)
    group.cluster.refuses = lambda topic, batch: None
    group.settle(60)
    assert server.unready() == ""
    assert len(group.assigned) >= before + 6


def test_task_whose_changelog_may_not_be_read_fails_with_what_to_allow(group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[float] = []
    ask = WireConsumer.end_offsets

    async def refuse(self: WireConsumer, partitions: Any) -> Any:
        if any(each[0] == "log" for each in partitions):
            asked.append(group.scheduler.now_us)
            raise MISSING("log")
        return await ask(self, partitions)

    with mock.patch.object(WireConsumer, "end_offsets", refuse), caplog.at_level("INFO", logger="equipoise"):
        member = group.start("m1")
        group.settle(60)
        assert len(member.failed_tasks) == 6
        assert {each.error for each in member.failed_tasks.values()} == {
            "TopicAuthorizationFailedError: this member may not use topic log: allow its user Read on topic log (`equipoise doctor` names all ACLs)"
        }
        ((_, lead),) = group.worker.groups()
        assert len(lead.machine.state.parked) == 6
        assert member._host is not None
        figures = member._host.work.figures()
        assert figures.parked == 6
        assert figures.failures["in", "parked"] == 6
        asked.clear()
        caplog.clear()
        group.settle(60)
        assert len(asked) < 150, "it is not asked in a hot loop"
        assert len([each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]) < 10
        member.close()
        group.settle(20)
    assert group.ended == {"m1": None}


def test_changelog_whose_end_may_be_seen_but_not_its_records_is_said_once(group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    """With Describe and without Read: the end is known, and each fetch is refused."""
    group.cluster.may_read = lambda topic: topic != "log"
    for partition in range(6):
        place = group.cluster.topics["log"].partitions[partition]
        group.cluster.append(place, Batch(-1, -1, -1, False, [(b"k", b"v", (), 0)], 100))
    with caplog.at_level("INFO", logger="equipoise"):
        member = group.start("m1")
        group.settle(90)
        assert len(member.failed_tasks) == 6
        lines = [each.getMessage() for each in caplog.records if "read again" in each.getMessage() or "cannot be read:" in each.getMessage()]
        assert len(lines) == len(set(lines)) <= 6, lines
