"""A task's runner by itself, in virtual time over the simulated Kafka: permits, commits, and tasks
beside each other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import pytest
from aiokafka.errors import KafkaError, UnknownError

from equipoise import ErrorPolicy, Record
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition
from equipoise.member.options import MemberOptions
from equipoise.member.tasks.clients import MemberClients, TaskClients
from equipoise.member.tasks.commit_schedule import MOST_OF_MEMBER, CommitTicks, Uncommitted
from equipoise.member.tasks.context import TaskContext
from equipoise.member.tasks.error_policy import FailedTask
from equipoise.member.tasks.loop_turns import Turns, new_ticks
from equipoise.member.tasks.offsets import EVERY_S
from equipoise.member.tasks.open_task import LONGEST_WAIT_S, Commit, OpenTask
from equipoise.member.tasks.positions import PARTITIONS, positions_topic
from equipoise.member.tasks.processing import MOST_AT_ONCE, Processor
from equipoise.member.tasks.runner import TaskRunner
from equipoise.member.tasks.runner_permit import PERMIT_MS
from equipoise.member.tasks.sizes import BATCH_BYTES
from equipoise.member.tasks.sources import TaskSources
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.partition_log import Batch, StoredRecord
from equipoise.testing.simulated.virtual_loops import MS_US, S_US, Scheduler, VirtualLoop
from tests.support.cluster_faults import pause_broker, resume_broker

TASKS = 2
LONG_MS = 10**9
BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
Handler = Callable[[Any, TaskContext], Awaitable[None] | None]


class Bench:
    """Runs tasks of a sub-topology without state, "in" to "out". It is their permit, too."""

    def __init__(self, scheduler: Scheduler, **options: Any) -> None:
        self.scheduler = scheduler
        self.cluster = Cluster(scheduler, Random(1))
        for topic in ("in", "out"):
            self.cluster.create_topic(topic, TASKS)
        self.cluster.create_topic(positions_topic("group"), PARTITIONS)
        self.options = MemberOptions(**options)
        connection = SimulatedConnection(made=SimulatedClients(self.cluster, "member"))
        self.clients = MemberClients(connection, "group", self.options, lambda: "m1/1")
        self.ticks = new_ticks(self.monotonic_s, 0.0)
        self.uncommitted = Uncommitted(MOST_OF_MEMBER)
        self.turns = Turns()
        self.runners: list[TaskRunner] = []
        self.lease_ends_ms = LONG_MS
        self.permit_ms = PERMIT_MS
        self.stopped_ms: list[int] = []
        """When tasks had stopped."""
        self.over: list[BaseException | None] = []
        self.parked_tasks: list[FailedTask] = []

    def boot_ms(self) -> int:
        return self.scheduler.now_us // MS_US

    def monotonic_s(self) -> float:
        return self.scheduler.now_us / S_US

    def new_ticks(self) -> CommitTicks:
        return new_ticks(self.monotonic_s, self.options.commit_interval_s) if self.options.transactional else self.ticks

    def send(self, partition: int, records: int) -> None:
        log = self.cluster.topics["in"].partitions[partition]
        for number in range(records):
            self.cluster.append(log, Batch(-1, -1, -1, False, [(b"k", b"%d" % number, (), 0)], 100))

    def slow_down(self, slow: str, each_way_ms: int) -> None:
        """Requests of this name, and their responses, take so much longer."""
        network: Any = self.cluster.network
        trip_us = network.trip_us

        def slower_us(process: str, broker: int, request: str, *, back: bool) -> int:
            usual_us: int = trip_us(process, broker, request, back=back)
            return usual_us + each_way_ms * MS_US * (request == slow)

        vars(network)["trip_us"] = slower_us

    def outputs(self, partition: int = 0) -> list[StoredRecord]:
        return [each for each in self.cluster.topics["out"].partitions[partition].log.records if each.batch.marker is None]

    def start(self, partition: int, handler: Handler | None = None, *, on_assigned: Any = None, **processor: Any) -> TaskRunner:
        task = TaskId(0, partition)
        new_clients = partial(TaskClients, self.clients, "group", task, self.options, sources=("in",), changelogs=())
        runtime: Any = self
        runner = TaskRunner(
            runtime,
            runtime,
            "log",
            "group",
            task,
            1,
            ticks=self.new_ticks(),
            uncommitted=self.uncommitted,
            turns=self.turns,
            new_clients=new_clients,
            connected=None,
            stateful=False,
            options=self.options,
            processor=Processor(handler, sources="in", **processor),
            on_assigned=on_assigned,
            on_revoked=None,
        )
        self.runners.append(runner)
        runner.start()
        return runner

    # The permit

    def permit(self, task: TaskId) -> tuple[str | None, int]:
        return (None if self.boot_ms() < self.lease_ends_ms else "ended"), min(self.boot_ms() + self.permit_ms, self.lease_ends_ms)

    async def prepare(self, task: TaskId) -> None:
        pass

    async def still_granted(self, task: TaskId, token: int) -> bool:
        return True

    def restored(self, task: TaskId) -> None:
        pass

    def parked(self, token: int, parked: FailedTask) -> None:
        self.parked_tasks.append(parked)

    def stopped(self, task: TaskId) -> None:
        self.stopped_ms.append(self.boot_ms())

    def failed(self, task: TaskId, error: Exception) -> None:
        pass

    def fenced(self, task: TaskId) -> None:
        pass

    def ended(self, task: TaskId, error: BaseException | None) -> None:
        self.over.append(error)


def simulate(test: Callable[[Bench], Coroutine[Any, Any, None]], **options: Any) -> None:
    scheduler = Scheduler(1)
    bench = Bench(scheduler, **options)

    async def whole() -> None:
        await test(bench)
        for runner in bench.runners:
            runner.stop(abort=False)
        while len(bench.over) < len(bench.runners):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await bench.clients.close()

    task = VirtualLoop(scheduler, "test").create_task(whole())
    try:
        scheduler.run(600 * S_US, task.done)
        assert task.done(), "it hangs"
        task.result()
        assert not scheduler.errors
        assert bench.over == [None] * len(bench.runners)
    finally:
        scheduler.dispose()


def answer(record: Any, context: TaskContext) -> None:
    context.send("out", record.value, partition=context.task.partition)


async def slowly(record: Any, context: TaskContext) -> None:
    answer(record, context)
    await asyncio.sleep(0.05)


@BOTH
def test_runner_never_handles_a_record_beyond_the_lease(guarantee: str) -> None:
    times_ms: list[int] = []

    async def test(bench: Bench) -> None:
        async def handler(record: Any, context: TaskContext) -> None:
            times_ms.append(bench.boot_ms())
            await slowly(record, context)

        bench.lease_ends_ms, bench.permit_ms = 2_000, LONG_MS
        bench.send(0, 100)
        bench.start(0, handler)
        await asyncio.sleep(5)
        committed = len(bench.outputs())
        assert bench.over == [None]
        assert 10 < len(times_ms) < 50
        assert max(times_ms) < 2_000
        await asyncio.sleep(5)
        assert len(bench.outputs()) == committed < len(times_ms)

    simulate(test, guarantee=guarantee)


@BOTH
def test_handler_that_does_not_return_is_told_with_its_record_until_it_does(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        goes_on = asyncio.Event()

        async def handler(record: Any, context: TaskContext) -> None:
            if record.offset == 2:
                await goes_on.wait()

        bench.send(0, 5)
        runner = bench.start(0, handler)
        await asyncio.sleep(50)
        assert runner.trouble(bench.monotonic_s()) == ""
        await asyncio.sleep(20)
        place = "task 0_0 waits for its handler for over 60 s, with in/0 at offset 2; give the handler a timeout of its own"
        assert runner.trouble(bench.monotonic_s()) == place
        goes_on.set()
        await asyncio.sleep(1)
        assert runner.trouble(bench.monotonic_s()) == ""

    simulate(test, guarantee=guarantee)


@BOTH
def test_runner_commits_a_lone_record_at_once(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        bench.start(0, answer)
        await asyncio.sleep(2)
        for number in range(1, 4):
            bench.send(0, 1)
            await asyncio.sleep(0.2)
            assert len(bench.outputs()) == number

    simulate(test, guarantee=guarantee, commit_interval_ms=60_000)


@BOTH
def test_runner_commits_by_number_while_records_wait(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        bench.send(0, 1_000)
        bench.start(0, answer)
        await asyncio.sleep(5)
        assert [each.value for each in bench.outputs()] == [b"%d" % number for number in range(1_000)]
        assert len({id(each.batch) for each in bench.outputs()}) == 5

    simulate(test, guarantee=guarantee, most_uncommitted_records=200)


def test_tasks_of_a_member_share_what_may_be_uncommitted() -> None:
    async def test(bench: Bench) -> None:
        bench.uncommitted = Uncommitted(TASKS)
        for partition in range(TASKS):
            bench.send(partition, 3 * MOST_AT_ONCE)
            bench.start(partition, answer)
        await asyncio.sleep(5)
        for partition in range(TASKS):
            assert len({id(each.batch) for each in bench.outputs(partition)}) == 3
        assert all(runner.commits >= 3 for runner in bench.runners)

    simulate(test, commit_interval_ms=60_000)


@BOTH
def test_tasks_of_a_member_process_no_more_while_commits_hang(guarantee: str) -> None:
    most = 4 * MOST_AT_ONCE

    async def test(bench: Bench) -> None:
        bench.uncommitted = Uncommitted(most)
        for partition in range(TASKS):
            bench.send(partition, 3 * most)
            bench.start(partition, answer)
        while not any(runner.is_committing for runner in bench.runners):  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        pause_broker(bench.cluster, 0)
        await asyncio.sleep(1)
        processed = sum(runner.processed for runner in bench.runners)
        assert most <= processed <= most + TASKS * MOST_AT_ONCE, "each alone might process three times as many"
        await asyncio.sleep(2 * LONGEST_WAIT_S)
        assert processed < sum(runner.processed for runner in bench.runners) <= processed + 3 * TASKS * MOST_AT_ONCE, "it holds up no other for good"
        resume_broker(bench.cluster, 0)
        await asyncio.sleep(10)
        assert [len(bench.outputs(partition)) for partition in range(TASKS)] == [3 * most] * TASKS

    simulate(test, guarantee=guarantee, commit_interval_ms=60_000)


@BOTH
def test_runner_processes_one_commit_more_while_one_is_under_way(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        bench.send(0, 1_000)
        runner = bench.start(0, answer)
        while not runner.is_committing:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        pause_broker(bench.cluster, 0)
        await asyncio.sleep(1)
        assert runner.processed == 200
        resume_broker(bench.cluster, 0)
        await asyncio.sleep(5)
        assert [each.value for each in bench.outputs()] == [b"%d" % number for number in range(1_000)]

    simulate(test, guarantee=guarantee, most_uncommitted_records=100)


def test_outputs_wait_for_those_on_their_way_and_are_sent_together() -> None:
    async def test(bench: Bench) -> None:
        runner = bench.start(0, answer)
        await asyncio.sleep(1)
        bench.slow_down("Produce", 100)
        vars(bench.ticks)["want"] = lambda turn, is_due: None
        for _ in range(100):
            bench.send(0, 1)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert (len(bench.outputs()), runner.commits) == (100, 0)
        assert 4 <= len({id(each.batch) for each in bench.outputs()}) <= 7, "there and back takes 200 ms"
        del vars(bench.ticks)["want"]

    simulate(test, commit_interval_ms=60_000)


class Waiting:
    """A task with an output on its way for a second, and one that waits for it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.to_partition = 0

    def handle(self, record: Any, context: TaskContext) -> None:
        context.send("out", record.value, partition=self.to_partition)

    async def reach(self) -> TaskRunner:
        runner = self.bench.start(0, self.handle)
        await asyncio.sleep(1)
        self.bench.send(0, 1)
        await asyncio.sleep(1)
        self.bench.slow_down("Produce", 500)
        for _ in range(2):
            self.bench.send(0, 1)
            await asyncio.sleep(0.1)
        assert (runner.processed, len(self.bench.outputs())) == (3, 1)
        return runner


def test_output_that_waited_is_sent_without_waking_its_task() -> None:
    usual, woken = TaskSources.wake, []

    def wake(sources: TaskSources) -> None:
        woken.append(sources)
        usual(sources)

    async def test(bench: Bench) -> None:
        bench.ticks = new_ticks(bench.monotonic_s, 100.0, parts=2)
        await Waiting(bench).reach()
        with mock.patch.object(TaskSources, "wake", wake):
            await asyncio.sleep(3)
        assert len(bench.outputs()) == 3
        assert woken == []

    simulate(test, commit_interval_ms=100_000)


def test_output_that_waited_is_not_sent_beyond_the_lease() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = new_ticks(bench.monotonic_s, 100.0, parts=2)
        await Waiting(bench).reach()
        bench.lease_ends_ms = bench.boot_ms() + 10
        await asyncio.sleep(5)
        assert len(bench.outputs()) == 2
        assert bench.over == [None]

    simulate(test, commit_interval_ms=100_000)


def test_output_that_waited_and_is_refused_is_an_error_of_its_task() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = new_ticks(bench.monotonic_s, 100.0, parts=2)
        waiting = Waiting(bench)
        await waiting.reach()
        waiting.to_partition = 7
        bench.send(0, 1)
        await asyncio.sleep(5)
        assert [each.offset for each in bench.parked_tasks] == [1], "given again, they all go there"

    simulate(test, commit_interval_ms=100_000)


def test_outputs_of_a_closed_producer_are_sent_by_another_after_they_waited() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = new_ticks(bench.monotonic_s, 100.0, parts=2)
        runner = await Waiting(bench).reach()
        writer = runner._open_task[0].writer
        refusals: list[str] = []

        def refuse(*_: Any) -> list[Any]:
            refusals.append("")
            raise KafkaError("the producer is closed")

        with mock.patch.object(writer.producer, "send_batches", refuse):
            await asyncio.sleep(3)
        assert refusals
        await asyncio.sleep(5)
        assert {each.value for each in bench.outputs()} == {b"0"}
        assert len(bench.outputs()) >= 3

    simulate(test, commit_interval_ms=100_000)


def test_tick_commits_without_waking_a_task_that_waits() -> None:
    woken: list[TaskSources] = []
    usual = TaskSources.wake

    def wake(sources: TaskSources) -> None:
        woken.append(sources)
        usual(sources)

    async def test(bench: Bench) -> None:
        runner = bench.start(0, answer)
        await asyncio.sleep(1)
        with mock.patch.object(TaskSources, "wake", wake):
            for number in range(1, 4):
                bench.send(0, 1)
                await asyncio.sleep(1)
                assert (runner.commits, len(woken), len(bench.outputs())) == (number, number, number)

    simulate(test)


def test_task_that_waits_does_not_commit_in_a_tick_beyond_the_lease() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = new_ticks(bench.monotonic_s, 20.0, parts=2)
        bench.lease_ends_ms = 5_000
        runner = bench.start(0, answer)
        for _ in range(2):
            await asyncio.sleep(1)
            bench.send(0, 1)
        await asyncio.sleep(2)
        assert (runner.commits, runner.processed, bench.over) == (1, 2, [])
        await asyncio.sleep(10)
        assert (runner.commits, runner.processed, bench.over) == (1, 2, [None])

    simulate(test)


def test_tick_commits_no_record_whose_output_waits() -> None:
    """After a crash in between, the output would be missing."""
    begin, waiting = OpenTask.begin_commit, []

    def begin_commit(opened: OpenTask, *given: Any, **options: Any) -> Commit:
        waiting.append(len(opened.context.outputs))
        return begin(opened, *given, **options)

    async def test(bench: Bench) -> None:
        bench.ticks = new_ticks(bench.monotonic_s, 1.0, parts=2)
        bench.start(0, answer)
        await asyncio.sleep(1)
        bench.send(0, 1)
        await asyncio.sleep(0.2)
        bench.slow_down("Produce", 1_000)
        for _ in range(2):
            bench.send(0, 1)
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
        assert len(bench.outputs()) == 3

    with mock.patch.object(OpenTask, "begin_commit", begin_commit):
        simulate(test)
    assert len(waiting) >= 2
    assert not any(waiting)


def test_aborted_runner_does_not_go_on_with_its_commit() -> None:
    steps: list[str] = []

    async def test(bench: Bench) -> None:
        runner = bench.start(0, answer)

        async def write(opened: OpenTask, commit: Any, ended: Any) -> None:
            steps.append("outputs")
            await asyncio.sleep(1)
            steps.append("changelog")

        with mock.patch.object(OpenTask, "_commit_plainly", write):
            bench.send(0, 1)
            while not steps:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            runner.stop(abort=True)
            await asyncio.sleep(5)
        assert steps == ["outputs"]

    simulate(test)


@BOTH
def test_slow_task_holds_up_no_other(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        for partition in range(TASKS):
            bench.send(partition, 100)
        bench.start(0, slowly)
        bench.start(1, answer)
        await asyncio.sleep(2)
        assert len(bench.outputs(1)) == 100
        bench.send(1, 10)
        await asyncio.sleep(0.3)
        assert len(bench.outputs(1)) == 110
        assert len(bench.outputs(0)) < 60

    simulate(test, guarantee=guarantee)


def test_slow_tasks_run_beside_each_other_at_full_speed() -> None:
    async def test(bench: Bench) -> None:
        for partition in range(TASKS):
            bench.send(partition, 100)
            bench.start(partition, slowly)
        await asyncio.sleep(6.5)
        assert [len(bench.outputs(partition)) for partition in range(TASKS)] == [100, 100]

    simulate(test)


async def reading(bench: Bench) -> list[TaskSources]:
    """The sources of two tasks, read from their beginning on."""
    sources = [bench.clients.sources([TopicPartition("in", partition)]) for partition in range(TASKS)]
    await sources[0].reader.start()
    for each in sources:
        each.place(dict.fromkeys(each.partitions, 0), {}, {})
    return sources


def test_task_that_takes_no_records_delays_no_fetches() -> None:
    async def test(bench: Bench) -> None:
        first, second = await reading(bench)
        assert not first.take(10)
        await asyncio.sleep(1)
        for number in range(10):
            for partition in range(TASKS):
                bench.send(partition, 1)
            sent_s = bench.monotonic_s()
            assert not second.take(1)
            await second.wait(1)
            assert len(second.take(1)[second.partitions[0]]) == 1
            assert bench.monotonic_s() - sent_s < 0.02, number
        found = [record.offset for records in first.take(10).values() for record in records]
        assert found == list(range(10))

    simulate(test)


def test_task_gets_all_records_in_order_whatever_was_set_aside() -> None:
    async def test(bench: Bench) -> None:
        first, _ = await reading(bench)
        (place,) = first.partitions
        found: list[int] = []
        for sent, taken in ((30, 7), (500, 50), (1, 1), (90, 0), (90, 300), (0, 1_000), (0, 1_000), (0, 1_000)):
            bench.send(0, sent)
            await asyncio.sleep(1)
            if taken:
                records = first.take(taken).get(place, ())
                assert len(records) <= taken
                found += [record.offset for record in records]
        assert found == list(range(711))
        first.place({place: 700}, {}, {})
        await asyncio.sleep(1)
        assert [record.offset for record in first.take(1_000)[place]] == list(range(700, 711))

    simulate(test)


def test_offsets_that_may_wait_are_committed_within_a_second_or_at_the_end() -> None:
    async def test(bench: Bench) -> None:
        sources = await reading(bench)
        consumer, places = sources[0].reader.consumer, [each.partitions[0] for each in sources]
        producer = await bench.clients.producer()
        for offset in (3, 4):
            bench.clients.offsets.report(dict.fromkeys(places, offset), producer)
        await bench.clients.offsets.flush(places[:1])
        assert [await consumer.committed(place) for place in places] == [4, None]
        await asyncio.sleep(EVERY_S + 0.1)
        assert [await consumer.committed(place) for place in places] == [4, 4]
        await bench.clients.release(producer, failed=False)

    simulate(test)


def test_task_that_closes_says_so_before_its_offsets_are_committed() -> None:
    async def test(bench: Bench) -> None:
        runner = bench.start(0, answer)
        await asyncio.sleep(1)
        place = TopicPartition("in", 0)
        bench.clients.offsets.report({place: 4}, await bench.clients.producer())
        bench.slow_down("OffsetCommit", 200)
        runner.stop(abort=False)
        asked_ms = bench.boot_ms()
        while not bench.over:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert bench.stopped_ms[0] - asked_ms < 50
        assert bench.boot_ms() - asked_ms >= 400
        assert bench.cluster.coordinators.offsets["group"][place] == 4

    simulate(test, guarantee="exactly_once")


def test_tasks_reopen_when_their_producer_is_abandoned() -> None:
    async def test(bench: Bench) -> None:
        runners = [bench.start(partition, answer) for partition in range(TASKS)]
        await asyncio.sleep(1)
        want: Any = bench.ticks.want
        vars(bench.ticks)["want"] = lambda turn, is_due: None
        for runner in runners:
            vars(runner._commits)["_send_at_once"] = lambda: True
        for partition in range(TASKS):
            bench.send(partition, 3)
        while not all(runner._open_task[1].schedule.records for runner in runners):  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        pause_broker(bench.cluster, 0)
        vars(bench.ticks)["want"] = want
        for runner in runners:
            del vars(runner._commits)["_send_at_once"]
            runner._open_task[1].wake()
        await asyncio.sleep(1)
        await bench.clients.abandon_producers()
        resume_broker(bench.cluster, 0)
        await asyncio.sleep(5)
        assert [{each.value for each in bench.outputs(partition)} for partition in range(TASKS)] == [{b"0", b"1", b"2"}] * TASKS
        producers = {id(runner._writer.producer) for runner in runners if runner._writer is not None}
        assert len(producers) == 1

    simulate(test)


def test_task_that_fails_to_send_goes_on_with_another_producer() -> None:
    async def test(bench: Bench) -> None:
        runners = [bench.start(partition, answer) for partition in range(TASKS)]
        await asyncio.sleep(1)
        first, second = (runner._writer and runner._writer.producer for runner in runners)
        assert first is second is not None
        bench.cluster.refuses = lambda topic, batch: UnknownError
        bench.send(0, 1)
        await asyncio.sleep(0.2)
        bench.cluster.refuses = lambda topic, batch: None
        await asyncio.sleep(2)
        assert len(bench.outputs(0)) == 1
        bench.send(1, 1)
        await asyncio.sleep(0.5)
        assert len(bench.outputs(1)) == 1
        assert runners[1]._writer is not None
        assert runners[1]._writer.producer is second
        assert runners[0]._writer is not None
        assert runners[0]._writer.producer is not first

    simulate(test)


@BOTH
def test_task_writes_smaller_batches_where_a_topic_refuses_them(guarantee: str) -> None:
    def widely(record: Any, context: TaskContext) -> None:
        context.send("out", b"%s %s" % (record.value, bytes(1_000)), partition=context.task.partition)

    async def test(bench: Bench) -> None:
        bench.cluster.topics["out"].configs["max.message.bytes"] = "20000"
        for partition in range(TASKS):
            bench.send(partition, 1_000)
        for partition in range(TASKS):
            bench.start(partition, widely)
        await asyncio.sleep(30)
        for partition in range(TASKS):
            values = [int(each.value.split()[0]) for each in bench.outputs(partition) if each.value is not None]
            assert list(dict.fromkeys(values)) == list(range(1_000))
            assert len(values) == 1_000 or guarantee == "at_least_once"
        assert bench.clients.sizes.of("out") == 16 * 1024
        assert bench.clients.sizes.of("in") == BATCH_BYTES

    simulate(test, guarantee=guarantee)


@BOTH
def test_runner_gives_batches_and_commits_by_number(guarantee: str) -> None:
    sizes: list[int] = []

    async def test(bench: Bench) -> None:
        async def handle(records: Sequence[Record], context: TaskContext) -> None:
            sizes.append(len(records))
            for record in records:
                answer(record, context)

        bench.send(0, 1_000)
        bench.start(0, batch_handler=handle)
        await asyncio.sleep(5)
        assert [each.value for each in bench.outputs()] == [b"%d" % number for number in range(1_000)]
        assert len({id(each.batch) for each in bench.outputs()}) == 5
        assert max(sizes) == 200

    simulate(test, guarantee=guarantee, most_uncommitted_records=200)


def test_batch_that_fails_is_repeated_within_the_lease() -> None:
    times_ms: list[int] = []

    async def test(bench: Bench) -> None:
        async def handle(records: Sequence[Record], context: TaskContext) -> None:
            times_ms.append(bench.boot_ms())
            if len(records) > 1:
                raise RuntimeError("too many")
            await asyncio.sleep(0.05)

        bench.lease_ends_ms, bench.permit_ms = 2_000, LONG_MS
        bench.send(0, 100)
        bench.start(0, batch_handler=handle)
        await asyncio.sleep(10)
        assert bench.over == [None]
        assert 10 < len(times_ms) < 80  # 40 that take their time, and those that fail at once
        assert max(times_ms) < 2_000

    simulate(test)


@BOTH
def test_failed_task_has_committed_what_came_before_and_others_run_on(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        def handle(record: Record, context: TaskContext) -> None:
            answer(record, context)
            if record.value == b"7" and record.partition == 0:
                raise RuntimeError("poison")

        bench.send(0, 20)
        bench.send(1, 20)
        first, second = (bench.start(partition, handle) for partition in range(TASKS))
        await asyncio.sleep(5)
        assert first.parked is not None
        assert (first.parked.topic, first.parked.offset, second.parked) == ("in", 7, None)
        assert [each.value for each in bench.outputs()] == [b"%d" % number for number in range(7)]
        assert len(bench.outputs(1)) == 20
        sources = bench.clients.sources([TopicPartition("in", 0)])
        await sources.reader.start()
        assert await sources.reader.consumer.committed(TopicPartition("in", 0)) == 7
        assert bench.over == []  # it is still granted
        assert bench.parked_tasks == [first.parked]

    simulate(test, guarantee=guarantee)


@BOTH
def test_task_whose_commit_is_refused_fails_at_the_record_at_fault(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        def handle(record: Record, context: TaskContext) -> None:
            if record.value == b"7" and record.partition == 0:
                context.send("out", b"nowhere", partition=TASKS)
            answer(record, context)

        first, second = (bench.start(partition, handle) for partition in range(TASKS))
        for partition in range(TASKS):
            bench.send(partition, 5)
        await asyncio.sleep(5)
        for partition in range(TASKS):
            bench.send(partition, 15)
        await asyncio.sleep(15)
        assert first.parked is not None
        assert first.parked.error == f"InputError: send to out: it has no partition {TASKS}, only 0 to {TASKS - 1}"
        assert (first.parked.topic, first.parked.offset, second.parked, bench.parked_tasks) == ("in", 12, None, [first.parked])
        before = [b"%d" % number for number in (*range(5), *range(7))]
        done = len(before)
        assert [each.value for each in bench.outputs()] == before
        sources = bench.clients.sources([TopicPartition("in", 0)])
        await sources.reader.start()
        assert await sources.reader.consumer.committed(TopicPartition("in", 0)) == done
        assert len(bench.outputs(1)) == 20
        assert bench.over == []

    simulate(test, guarantee=guarantee)


@BOTH
def test_retried_record_waits_and_what_came_before_does_not(guarantee: str) -> None:
    tried_s: list[float] = []

    async def test(bench: Bench) -> None:
        def handle(record: Record, context: TaskContext) -> None:
            answer(record, context)
            if record.value == b"2":
                tried_s.append(bench.monotonic_s())
                if len(tried_s) < 3:
                    raise RuntimeError("not yet")

        bench.send(0, 5)
        bench.start(0, handle)
        await asyncio.sleep(2)
        assert len(bench.outputs()) == 2
        await asyncio.sleep(20)
        assert [each.value for each in bench.outputs()] == [b"%d" % number for number in range(5)]
        assert [round(later - sooner) for sooner, later in itertools.pairwise(tried_s)] == [3, 6]

    simulate(test, guarantee=guarantee, on_error=ErrorPolicy.retry(2, backoff_s=3.0))


def test_task_that_waits_to_retry_stops_at_once() -> None:
    async def test(bench: Bench) -> None:
        def handle(record: Record, context: TaskContext) -> None:
            raise RuntimeError("never")

        bench.send(0, 1)
        runner = bench.start(0, handle)
        await asyncio.sleep(2)
        runner.stop(abort=False)
        await asyncio.sleep(1)
        assert bench.over == [None]
        assert runner.parked is None

    simulate(test, on_error=ErrorPolicy.retry(5, backoff_s=60.0))


@BOTH
def test_timer_sends_without_a_record(guarantee: str) -> None:
    async def test(bench: Bench) -> None:
        def tick(context: TaskContext) -> None:
            context.send("out", b"tick", partition=0)

        def assigned(context: TaskContext) -> None:
            context.every(2.0, tick)

        bench.start(0, answer, on_assigned=assigned)
        await asyncio.sleep(9)
        assert 3 <= len(bench.outputs()) <= 4
        pause_broker(bench.cluster, 0)  # the task opens again, and keeps its timers
        await asyncio.sleep(60)
        resume_broker(bench.cluster, 0)
        before = len(bench.outputs())
        await asyncio.sleep(30)
        assert len(bench.outputs()) >= before + 5

    simulate(test, guarantee=guarantee)


def test_timer_runs_while_records_wait() -> None:
    ticks_s: list[float] = []

    async def test(bench: Bench) -> None:
        bench.send(0, 200)
        bench.start(0, slowly, on_assigned=lambda context: context.every(1.0, lambda _: ticks_s.append(bench.monotonic_s())))
        await asyncio.sleep(8)
        assert len(bench.outputs()) < 200
        assert len(ticks_s) >= 6

    simulate(test)


def test_sent_record_has_its_time_and_headers() -> None:
    async def test(bench: Bench) -> None:
        def handle(record: Record, context: TaskContext) -> None:
            context.send("out", b"x", partition=0, headers=[("h", b"1")], timestamp_ms=record.timestamp_ms + 17)

        bench.send(0, 1)
        bench.start(0, handle)
        await asyncio.sleep(2)
        (sent,) = bench.outputs()
        assert sent.timestamp_ms == bench.cluster.topics["in"].partitions[0].log.records[0].timestamp_ms + 17
        assert ("h", b"1") in sent.headers

    simulate(test)


@BOTH
@pytest.mark.parametrize("aborts", [False, True])
def test_markers_of_transactions_are_no_records_to_read(guarantee: str, aborts: bool) -> None:
    async def test(bench: Bench) -> None:
        new_producer = partial(SimulatedClients(bench.cluster, "other").producer, transactional_id="t")
        producer = new_producer()
        await producer.start()

        async def write(records: int) -> None:
            nonlocal producer
            await producer.begin_transaction()
            for number in range(records):
                await producer.send("in", b"%d" % number, partition=0)
            await producer.flush()
            if aborts:
                await producer.abandon()
                producer = new_producer()
                await producer.start()  # ends the transaction of the former one
            else:
                await producer.commit_transaction()

        slow, stuck = asyncio.Event(), asyncio.Event()

        async def handler(record: Any, context: TaskContext) -> None:
            if stuck.is_set():
                await slow.wait()

        runner = bench.start(0, handler)
        for records in (3, 1, 700, 0):
            await write(records)
            await asyncio.sleep(10)
            assert runner.behind == 0, "at rest"
        bench.start(1, handler)
        await asyncio.sleep(10)
        assert bench.runners[1].behind == 0, "nothing was ever written"
        bench.send(0, 5)
        stuck.set()
        bench.send(0, 5)
        await asyncio.sleep(10)
        behind = runner.behind
        assert behind is not None
        assert behind >= 5, "a handler that waits is behind"
        slow.set()
        await asyncio.sleep(5)
        assert runner.behind == 0
        await producer.stop()

    simulate(test, guarantee=guarantee)


@BOTH
def test_task_opens_and_closes_while_the_handlers_of_another_compute(guarantee: str) -> None:
    """Nobody runs a task meanwhile: no answer that it gets waits for a handler of the other."""

    async def test(bench: Bench) -> None:
        handled_ms: dict[int, list[int]] = {0: [], 1: []}

        def compute(record: Any, context: TaskContext) -> None:
            bench.scheduler.now_us += 50 * MS_US
            handled_ms[context.task.partition].append(bench.boot_ms())
            answer(record, context)

        for partition in handled_ms:
            bench.send(partition, 1_000)
        bench.start(0, compute)
        await asyncio.sleep(10)
        began_ms = bench.boot_ms()
        late = bench.start(1, compute)
        while not handled_ms[1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert handled_ms[1][0] - began_ms < 300
        await asyncio.sleep(5)
        asked_ms = bench.boot_ms()
        late.stop(abort=False)
        while not bench.stopped_ms:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert bench.stopped_ms[0] - asked_ms < 300
        meanwhile = len(handled_ms[0])
        await asyncio.sleep(5)
        assert len(handled_ms[0]) > meanwhile + 80, "the other one goes on"

    simulate(test, guarantee=guarantee)
