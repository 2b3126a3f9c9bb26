"""Members that commit all their tasks in one transaction, in virtual time over the simulated Kafka:
hand-overs in order and by force, owners of a former build, and tasks whose commits fail.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from random import Random
from typing import Any

import pytest
from aiokafka.errors import UnknownError

from equipoise.events.tasks import TaskId
from equipoise.kafka.client import Producer, TopicPartition, acknowledged
from equipoise.member.copies.fencing import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    FENCE_KEY,
    GIVEN_BACK,
    RESERVED_PREFIX,
    SOURCES_KEY,
    FencedStore,
    Owners,
    TakeIf,
    fence_value,
)
from equipoise.member.copies.origin import Origin
from equipoise.member.copies.restorer import ChangelogRestorer
from equipoise.member.copies.stores import MemoryStore
from equipoise.member.copies.throttle import Throttle
from equipoise.member.options import MemberOptions
from equipoise.member.tasks import transactions
from equipoise.member.tasks.clients import TRANSACTION_TIMEOUT_MS, MemberClients, TaskClients
from equipoise.member.tasks.commit_schedule import MOST_OF_MEMBER, Uncommitted
from equipoise.member.tasks.context import TaskContext, pack_sources
from equipoise.member.tasks.error_policy import FailedTask
from equipoise.member.tasks.loop_turns import Turns, new_ticks
from equipoise.member.tasks.positions import PARTITIONS, positions_topic
from equipoise.member.tasks.processing import Processor
from equipoise.member.tasks.runner import TaskRunner
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.virtual_loops import MS_US, S_US, Scheduler, VirtualLoop

TASKS = 3
LONG_MS = 10**9
TAKES_OVER_S = 3.0
"""A new owner runs within this time."""


def count(record: Any, context: TaskContext) -> None:
    number = int(context.states["log"].get(record.key) or 0) + 1
    context.states["log"].put(record.key, b"%d" % number)
    context.send("out", b"%d" % number, key=record.key, partition=context.task.partition)


class Peer:
    """One incarnation of a member, and the permit of its runners. Nobody decides: the test grants
    tasks.
    """

    def __init__(self, cluster: Cluster, runtime: Any, name: str, guarantee: str = EXACTLY_ONCE) -> None:
        self.options = MemberOptions(guarantee=guarantee)
        self._runtime = runtime
        connection = SimulatedConnection(made=SimulatedClients(cluster, name))
        self.clients = MemberClients(connection, "group", self.options, lambda: f"{name}/1")
        self._ticks = new_ticks(runtime.monotonic_s, 0.1)
        self._uncommitted = Uncommitted(MOST_OF_MEMBER)
        self._turns = Turns()
        tasks = [TaskId(0, partition) for partition in range(TASKS)]
        self._restorer = ChangelogRestorer(
            connection,
            dict.fromkeys(tasks, ("log",)),
            MemoryStore,
            None,
            runtime=runtime,
            throttle=Throttle(None, None, runtime.monotonic_s),
            ends_every_s=1.0,
            progressed=lambda: None,
            failed=lambda error: None,
            now_ms=lambda: int(runtime.monotonic_s() * 1_000),
        )
        self.runners: dict[int, TaskRunner] = {}
        self.running: set[int] = set()
        self.fenced_tasks: list[int] = []
        self.errors: list[BaseException] = []
        self.granted: set[TaskId] = set()
        self._started = False

    async def run(self, *partitions: int, token: int, handler: Callable[[Any, TaskContext], None] = count) -> None:
        """Returns when it runs these tasks."""
        if not self._started:
            self._started = True
            await self._restorer.start()
        for partition in partitions:
            task = TaskId(0, partition)
            self.granted.add(task)
            permit: Any = self
            runner = self.runners[partition] = TaskRunner(
                permit,
                self._runtime,
                "log",
                "group",
                task,
                token,
                ticks=self._ticks,
                uncommitted=self._uncommitted,
                turns=self._turns,
                connected=None,
                stateful=True,
                options=self.options,
                new_clients=partial(TaskClients, self.clients, "group", task, self.options, sources=("in",), changelogs=("log",)),
                processor=Processor(handler, sources="in"),
                on_assigned=None,
                on_revoked=None,
            )
            runner.start()
        async with asyncio.timeout(TRANSACTION_TIMEOUT_MS / 1_000 * 2):
            while not self.running.issuperset(partitions):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def give_back(self, *partitions: int, abort: bool = False) -> None:
        for partition in partitions:
            self.granted.discard(TaskId(0, partition))
            self.runners[partition].stop(abort=abort)
        while self.runners.keys() & set(partitions):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    @property
    def producer(self) -> Any:
        transactions = self.clients._transactions
        assert transactions is not None
        assert transactions._session is not None
        return transactions._session.producer

    async def close(self) -> None:
        await self.give_back(*self.runners)
        await self.clients.close()
        if self._started:
            await self._restorer.stop()

    # The permit

    def permit(self, task: TaskId) -> tuple[str | None, int]:
        return None, LONG_MS

    async def restore(self, task: TaskId, take_if: TakeIf) -> tuple[Owners, Mapping[str, FencedStore] | None]:
        return await self._restorer.restore(task, take_if)

    async def take_stores(self, task: TaskId, goals: Mapping[str, int]) -> Mapping[str, FencedStore]:
        return await self._restorer.open(task, goals)

    async def put_stores_back(self, task: TaskId) -> None:
        self._restorer.put_back(task)

    def prepare(self, task: TaskId) -> None:
        pass

    async def still_granted(self, task: TaskId, token: int) -> bool:
        return task in self.granted

    def restored(self, task: TaskId) -> None:
        self.running.add(task.partition)

    def parked(self, token: int, parked: FailedTask) -> None:
        raise AssertionError(parked)

    def stopped(self, task: TaskId) -> None:
        self.running.discard(task.partition)

    def failed(self, task: TaskId, error: Exception) -> None:
        self.running.discard(task.partition)

    def fenced(self, task: TaskId) -> None:
        self.fenced_tasks.append(task.partition)
        self.running.discard(task.partition)

    def ended(self, task: TaskId, error: BaseException | None) -> None:
        self.runners.pop(task.partition, None)
        if error is not None:
            self.errors.append(error)


class Bench:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.cluster = Cluster(scheduler, Random(1))
        for topic in ("in", "out", "log"):
            self.cluster.create_topic(topic, TASKS)
        self.cluster.create_topic(positions_topic("group"), PARTITIONS)
        self.peers: list[Peer] = []
        self._sent: Counter[int] = Counter()

    def boot_ms(self) -> int:
        return self._scheduler.now_us // MS_US

    def monotonic_s(self) -> float:
        return self._scheduler.now_us / S_US

    def peer(self, name: str, guarantee: str = EXACTLY_ONCE) -> Peer:
        self.peers.append(Peer(self.cluster, self, name, guarantee))
        return self.peers[-1]

    def feed(self, *partitions: int, records: int = 5) -> None:
        for partition in partitions:
            log = self.cluster.topics["in"].partitions[partition]
            for _ in range(records):
                self.cluster.append(log, Batch(-1, -1, -1, False, [(b"k", b"", (), 0)], 100))
            self._sent[partition] += records

    def committed(self, topic: str, partition: int) -> list[bytes | None]:
        log = self.cluster.topics[topic].partitions[partition].log
        return [record.value for record in log.read(0, log.last_stable_offset, committed=True, max_bytes=2**30)[0] if record.key == b"k"]

    def is_counted(self, partition: int) -> bool:
        """Whether each record was counted, and no output is repeated."""
        wanted = [b"%d" % number for number in range(1, self._sent[partition] + 1)]
        found = self.committed("out", partition)
        assert found == wanted[: len(found)]
        return len(found) == len(wanted)

    async def counted(self, *partitions: int, within_s: float = TAKES_OVER_S) -> None:
        async with asyncio.timeout(within_s):
            while not all(self.is_counted(partition) for partition in partitions):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def simulate(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    scheduler = Scheduler(1)
    bench = Bench(scheduler)

    async def whole() -> None:
        await test(bench)
        for peer in bench.peers:
            await peer.close()
            assert peer.errors == []

    task = VirtualLoop(scheduler, "test").create_task(whole())
    try:
        scheduler.run(600 * S_US, task.done)
        assert task.done(), "it hangs"
        task.result()
        assert not scheduler.errors
    finally:
        scheduler.dispose()


def pause(of: Any, name: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Makes the next call of a method wait. Returns the events: it was called, it may go on."""
    step, called, go_on = getattr(of, name), asyncio.Event(), asyncio.Event()

    async def wait(*arguments: Any) -> Any:
        called.set()
        await go_on.wait()
        return await step(*arguments)

    setattr(of, name, wait)
    return called, go_on


def pause_when_all_is_queued(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """As `pause`, of the next transaction of any member, when it waits for its batches."""
    step, called, go_on = transactions._OpenTransaction.written, asyncio.Event(), asyncio.Event()

    async def wait(transaction: transactions._OpenTransaction) -> None:
        if not called.is_set():
            called.set()
            await go_on.wait()
        await step(transaction)

    monkeypatch.setattr(transactions._OpenTransaction, "written", wait)
    return called, go_on


def count_transactions(cluster: Cluster) -> list[None]:
    """A list that gets an item for each transaction that ends from now on."""
    ended: list[None] = []
    end: Any = cluster.coordinators.end_transaction

    def noted(*arguments: Any) -> Any:
        ended.append(None)
        return end(*arguments)

    vars(cluster.coordinators)["end_transaction"] = noted
    return ended


def test_tasks_that_commit_at_the_same_time_share_a_transaction() -> None:
    async def test(bench: Bench) -> None:
        member = bench.peer("m1")
        await member.run(0, 1, 2, token=1)
        ended = count_transactions(bench.cluster)
        bench.feed(0, 1, 2)
        await bench.counted(0, 1, 2)
        assert 1 <= len(ended) <= 2
        await asyncio.sleep(2)
        offsets = bench.cluster.coordinators.offsets["group"]
        assert [offsets[TopicPartition("in", partition)] for partition in range(TASKS)] == [5, 5, 5]

    simulate(test)


async def _long_open(bench: Bench, member: Peer) -> None:
    """Makes the next transaction stay open for 100 ms, because this one takes long to close."""
    called, go_on = pause(member.producer, "commit_transaction")
    bench.feed(1, records=1)
    await called.wait()
    await asyncio.sleep(0.2)
    del vars(member.producer)["commit_transaction"]
    go_on.set()
    await bench.counted(1)


def test_transaction_begins_with_the_outputs_of_the_last_two() -> None:
    """One request adds their partitions; changelogs are added when they are written."""
    outputs = {partition: TopicPartition("out", partition) for partition in range(TASKS)}

    async def test(bench: Bench) -> None:
        member = bench.peer("m1")
        await member.run(0, 1, token=1)
        added: list[set[TopicPartition]] = []
        add: Any = bench.cluster.coordinators.add_to_transaction

        def noted(transactional_id: str, producer_id: int, epoch: int, places: list[TopicPartition], *rest: Any) -> Any:
            added.append(set(places))
            return add(transactional_id, producer_id, epoch, places, *rest)

        vars(bench.cluster.coordinators)["add_to_transaction"] = noted
        first: list[set[TopicPartition]] = []
        for fed in ((0, 1), (0, 1), (0,), (0,), (0,), (1,)):
            added.clear()
            bench.feed(*fed, records=1)
            await bench.counted(*fed)
            await asyncio.sleep(1)
            first.append(added[0])
        assert first[3] == {outputs[0], outputs[1]}, "one of the last two has sent to both"
        assert first[4] == {outputs[0]}
        assert outputs[0] in first[5], "although it sends nothing there"
        assert set[TopicPartition]().union(*added) >= {outputs[1], TopicPartition("log", 1)}
        bench.feed(0, 1)
        await bench.counted(0, 1)
        assert member.fenced_tasks == []

    simulate(test)


def test_next_transaction_begins_before_the_tasks_hear_of_the_end_of_the_former_one() -> None:
    """If one of them has more: it takes as long as their stores to write."""

    async def test(bench: Bench) -> None:
        member = bench.peer("m1")
        await member.run(0, 1, token=1)
        called, go_on = pause(member.producer, "commit_transaction")
        bench.feed(0, 1, records=1)
        await called.wait()
        bench.feed(1, records=1)
        await asyncio.sleep(0.05)
        begin, commits = member.producer.begin_transaction, []

        def noted(*arguments: Any) -> Any:
            commits.append({partition: runner.commits for partition, runner in member.runners.items()})
            return begin(*arguments)

        before = {partition: runner.commits for partition, runner in member.runners.items()}
        member.producer.begin_transaction = noted
        go_on.set()
        await bench.counted(0, 1)
        assert commits == [before]

    simulate(test)


@pytest.mark.parametrize("closes", [False, True])
def test_transaction_that_nobody_comes_to_is_ended(closes: bool) -> None:
    async def test(bench: Bench) -> None:
        member = bench.peer("m1")
        await member.run(0, 1, token=1)
        await _long_open(bench, member)
        called, go_on = pause(member.producer, "commit_transaction")
        bench.feed(1, records=1)
        await called.wait()
        transactions = member.clients._transactions
        assert transactions is not None
        transactions.announce(TaskId(0, 2))
        await asyncio.sleep(0.2)
        go_on.set()
        await bench.counted(1)
        await asyncio.sleep(0.02)
        known = bench.cluster.coordinators._transactional[transactions.id]
        assert (known.state, *known.partitions) == ("ongoing", TopicPartition("out", 1)), "the outputs that it expects"
        if closes:
            await member.give_back(0, 1)
            async with asyncio.timeout(0.05):
                await member.clients.close()
        else:
            await asyncio.sleep(0.2)
        assert known.state == "complete"
        if not closes:
            bench.feed(0, 1)
            await bench.counted(0, 1)

    simulate(test)


def test_task_adds_to_its_commit_while_the_transaction_is_open() -> None:
    async def test(bench: Bench) -> None:
        member = bench.peer("m1")
        await member.run(0, 1, token=1)
        await _long_open(bench, member)
        ended = count_transactions(bench.cluster)

        def written(topic: str) -> list[bytes | None]:
            records = bench.cluster.topics[topic].partitions[0].log.read(0, 10**9, committed=False, max_bytes=2**30)[0]
            return [record.value for record in records if record.key == b"k"]

        for number in range(1, 4):
            bench.feed(0, records=1)
            await asyncio.sleep(0.02)
            assert len(written("out")) == number
            assert ended == written("log") == [], "changes are not read before the end"
        await asyncio.sleep(0.025)
        assert ended == []
        assert written("log") == [b"3"]
        bench.feed(0, records=1)
        await bench.counted(0)
        assert len(ended) == 1
        await asyncio.sleep(0.1)  # a coordinator answers before it has written its markers
        assert bench.committed("log", 0) == [b"3", b"4"]
        bench.feed(0)
        await bench.counted(0)
        assert member.fenced_tasks == [], "what follows in the changelog is its own"

    simulate(test)


@pytest.mark.parametrize("adds", [False, True])
def test_task_that_closes_does_not_wait_for_the_open_transaction(adds: bool) -> None:
    async def test(bench: Bench) -> None:
        member, heir = bench.peer("m1"), bench.peer("m2")
        await member.run(0, 1, token=1)
        await _long_open(bench, member)
        bench.feed(0, records=1)
        await asyncio.sleep(0.02)
        assert bench.committed("out", 0) == []
        if adds:
            bench.feed(0, records=1)
            await asyncio.sleep(0.007)
        async with asyncio.timeout(0.05):
            await member.give_back(0)
        await heir.run(0, token=2)
        bench.feed(0, 1)
        await bench.counted(0, 1)
        assert heir.fenced_tasks == member.fenced_tasks == []

    simulate(test)


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, EXACTLY_ONCE])
def test_task_that_is_closed_in_the_middle_of_its_records_handles_none_behind_them(guarantee: str) -> None:
    """Its grant has ended, and `stop` comes later."""

    async def test(bench: Bench) -> None:
        member, heir = bench.peer("m1", guarantee), bench.peer("m2", guarantee)
        refusal: str | None = None

        async def until_third(record: Any, context: TaskContext) -> None:
            nonlocal refusal
            await asyncio.sleep(0.002)
            count(record, context)
            if context.states["log"].get(b"k") == b"3":
                refusal = "closing"

        permit: Any = lambda task: (refusal, bench.boot_ms() + (1 if refusal is None else 100))  # noqa: E731
        member.permit = permit  # type: ignore[method-assign]
        handler: Any = until_third
        bench.feed(0)
        await member.run(0, token=1, handler=handler)
        bench.feed(0)
        await asyncio.sleep(1)
        assert bench.committed("log", 0)[-1] == b"3"
        assert not member.runners, "it has closed"
        await heir.run(0, token=2)
        await bench.counted(0)

    simulate(test)


def test_task_in_the_middle_of_a_record_holds_up_no_transaction() -> None:
    async def test(bench: Bench) -> None:
        go_on = asyncio.Event()

        async def slow(record: Any, context: TaskContext) -> None:
            count(record, context)
            if context.states["log"].get(b"k") == b"2":
                await go_on.wait()

        member = bench.peer("m1")
        await member.run(1, token=1)
        handler: Any = slow
        await member.run(0, token=1, handler=handler)
        await _long_open(bench, member)
        bench.feed(0, records=1)
        await asyncio.sleep(0.02)
        bench.feed(0, 1, records=1)
        await bench.counted(1)
        assert bench.committed("out", 0) == bench.committed("log", 0) == [b"1"]
        go_on.set()
        await bench.counted(0)

    simulate(test)


@pytest.mark.parametrize("step", ["restore", "take_stores"])
def test_task_that_is_still_being_restored_stops_at_once(step: str) -> None:
    """As when somebody's open transaction holds up the restore for a minute."""

    async def test(bench: Bench) -> None:
        member = bench.peer("m1")
        called, _ = pause(member, step)
        running = asyncio.ensure_future(member.run(0, token=1))
        await called.wait()
        async with asyncio.timeout(1):
            await member.give_back(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        bench.feed(0)
        heir = bench.peer("m2")
        await heir.run(0, token=2)
        await bench.counted(0)

    simulate(test)


@pytest.mark.parametrize("topic", ["log", "out"])
def test_transaction_without_its_marker_in_a_partition_is_ended_with_the_next(topic: str) -> None:
    """As after a broker was killed while it wrote the markers."""

    async def test(bench: Bench) -> None:
        coordinators = bench.cluster.coordinators
        lost: list[TopicPartition] = []
        mark: Any = coordinators._mark

        def lose(known: Any, place: TopicPartition) -> None:
            if place == TopicPartition(topic, 1) and not lost:
                lost.append(place)
                coordinators._marked(known, place, 0)
            else:
                mark(known, place)

        member = bench.peer("m1")
        await member.run(0, 1, 2, token=1)
        vars(coordinators)["_mark"] = lose
        bench.feed(0, 1, 2)
        await bench.counted(0, 2)
        while not lost:  # noqa: ASYNC110  # the third task may be in a later transaction
            await asyncio.sleep(0.01)
        bench.feed(0, 1, 2)
        await bench.counted(0, 1, 2)
        assert member.fenced_tasks == []

    simulate(test)


def test_hand_over_in_order_fences_nobody() -> None:
    async def test(bench: Bench) -> None:
        first, second = bench.peer("m1"), bench.peer("m2")
        await first.run(0, 1, token=1)
        bench.feed(0, 1)
        await bench.counted(0, 1)
        before = first.producer
        for giver, taker, token in ((first, second, 2), (second, first, 3)):
            await giver.give_back(0)
            await taker.run(0, token=token)
            bench.feed(0, 1)
            await bench.counted(0, 1)
        assert first.producer is before
        assert first.fenced_tasks == second.fenced_tasks == []

    simulate(test)


def fences(bench: Bench, partition: int) -> list[bytes | None]:
    log = bench.cluster.topics["log"].partitions[partition].log
    return [record.value for record in log.read(0, 10**9, committed=False, max_bytes=2**30)[0] if record.key == FENCE_KEY]


async def _run_and_give_back(bench: Bench, member: Peer) -> None:
    await member.run(0, token=1)
    bench.feed(0)
    await bench.counted(0)
    await member.give_back(0)


def test_task_that_was_given_back_is_fenced_by_the_first_commit() -> None:
    async def test(bench: Bench) -> None:
        first, second, third = bench.peer("m1"), bench.peer("m2"), bench.peer("m3")
        await _run_and_give_back(bench, first)
        await second.run(1, token=1)
        await second.run(0, token=2)
        assert fences(bench, 0) == [fence_value("group/m1/1"), GIVEN_BACK]
        await _long_open(bench, second)
        ended = count_transactions(bench.cluster)
        bench.feed(0, records=1)
        await asyncio.sleep(0.05)
        assert bench.is_counted(0), "what the next owner does not know of is over soon"
        assert len(ended) == 1
        assert fences(bench, 0)[2:] == [fence_value("group/m2/1")]
        called, go_on = pause(second.producer, "commit_transaction")
        bench.feed(0)
        await called.wait()
        second.granted.clear()
        began_s = bench.monotonic_s()
        await third.run(0, token=3)
        assert bench.monotonic_s() - began_s < TAKES_OVER_S, "its fence names the transaction to end"
        await bench.counted(0)
        go_on.set()

    simulate(test)


def test_task_that_was_given_back_is_given_back_again_without_a_record() -> None:
    async def test(bench: Bench) -> None:
        first, second = bench.peer("m1"), bench.peer("m2")
        await first.run(0, token=1)
        bench.feed(0)
        await bench.counted(0)
        for giver, taker, token in ((first, second, 2), (second, first, 3)):
            await giver.give_back(0)
            await taker.run(0, token=token)
        assert fences(bench, 0) == [fence_value("group/m1/1"), GIVEN_BACK, GIVEN_BACK]
        bench.feed(0)
        await bench.counted(0)
        assert first.fenced_tasks == second.fenced_tasks == []

    simulate(test)


@pytest.mark.parametrize("step", ["begin_transaction", "written"])
def test_first_commit_of_an_owner_that_the_next_one_does_not_know_is_refused(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """m1 has given the task back. m2 is paused before its first commit, and m3 is granted the task."""

    async def test(bench: Bench) -> None:
        first, zombie, heir = bench.peer("m1"), bench.peer("m2"), bench.peer("m3")
        await _run_and_give_back(bench, first)
        await zombie.run(0, token=2)
        if step == "written":
            called, go_on = pause_when_all_is_queued(monkeypatch)
        else:
            called, go_on = pause(zombie.producer, step)
        bench.feed(0)
        await called.wait()
        zombie.granted.clear()
        await heir.run(0, token=3)
        await asyncio.sleep(1)
        go_on.set()
        await bench.counted(0)
        await asyncio.sleep(1)
        bench.feed(0)
        await bench.counted(0)
        assert zombie.fenced_tasks == [0]

    simulate(test)


def test_owner_behind_a_first_commit_that_it_does_not_know_starts_again() -> None:
    """m2 is paused when its first commit is in the changelog; m3 has restored what is before it."""

    async def test(bench: Bench) -> None:
        first, zombie, heir = bench.peer("m1"), bench.peer("m2"), bench.peer("m3")
        await _run_and_give_back(bench, first)
        await zombie.run(0, token=2)
        await heir.run(0, token=3)
        called, go_on = pause(zombie.producer, "commit_transaction")
        _, heir_goes_on = pause(heir.producer, "begin_transaction")  # whichever is faster
        bench.feed(0)
        await called.wait()
        heir_goes_on.set()
        await asyncio.sleep(1)
        assert heir.fenced_tasks == [0]
        zombie.granted.clear()
        go_on.set()
        await bench.counted(0)
        bench.feed(0)
        await bench.counted(0)
        assert zombie.fenced_tasks == [0]

    simulate(test)


@pytest.mark.parametrize("step", ["begin_transaction", "written", "commit_transaction"])
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, "at_least_once"])
def test_owner_paused_in_a_transaction_loses_all_of_it_when_one_task_is_taken(step: str, guarantee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`guarantee`: of the next owner."""

    async def test(bench: Bench) -> None:
        zombie, heir = bench.peer("m1"), bench.peer("m2", guarantee)
        await zombie.run(0, 1, token=1)
        bench.feed(0, 1)
        await bench.counted(0, 1)
        if step == "written":
            called, go_on = pause_when_all_is_queued(monkeypatch)
        else:
            called, go_on = pause(zombie.producer, step)
        bench.feed(0, 1)
        await called.wait()
        await asyncio.sleep(1)
        began_s = bench.monotonic_s()
        zombie.granted.clear()
        await heir.run(0, token=2)
        assert bench.monotonic_s() - began_s < TAKES_OVER_S
        await bench.counted(0)
        bench.feed(0)
        await bench.counted(0)
        go_on.set()
        await asyncio.sleep(3)
        bench.feed(0)
        await bench.counted(0)
        assert 0 in zombie.fenced_tasks
        await heir.run(1, token=2)
        await bench.counted(1)

    simulate(test)


def test_commit_that_waits_for_a_transaction_is_not_made_after_the_task_was_taken() -> None:
    """The next transaction of the former owner has a producer that nobody has fenced."""

    async def test(bench: Bench) -> None:
        zombie, heir = bench.peer("m1"), bench.peer("m2")
        await zombie.run(0, 1, token=1)
        bench.feed(0, 1)
        await bench.counted(0, 1)
        called, go_on = pause(zombie.producer, "commit_transaction")
        bench.feed(1)
        await called.wait()
        bench.feed(0)
        await asyncio.sleep(1)
        zombie.granted.discard(TaskId(0, 0))
        await heir.run(0, token=2)
        await bench.counted(0)
        go_on.set()
        await bench.counted(0, 1, within_s=5)
        assert set(zombie.fenced_tasks) == {0, 1}
        assert zombie.running == {1}
        bench.feed(0, 1)
        await bench.counted(0, 1)

    simulate(test)


def test_owner_behind_the_transaction_of_a_former_one_is_fenced_too() -> None:
    """m2 was granted the task after m1, and is paused with a transaction of its own open."""

    async def test(bench: Bench) -> None:
        first, second, third = bench.peer("m1"), bench.peer("m2"), bench.peer("m3")
        await first.run(0, token=1)
        bench.feed(0)
        await bench.counted(0)
        called, first_may = pause(first.producer, "commit_transaction")
        bench.feed(0)
        await called.wait()
        await second.run(0, token=2)
        await bench.counted(0)
        called, second_may = pause(second.producer, "commit_transaction")
        bench.feed(0)
        await called.wait()
        for each in (first, second):
            each.granted.clear()
        began_s = bench.monotonic_s()
        await third.run(0, token=3)
        assert bench.monotonic_s() - began_s < TAKES_OVER_S
        await bench.counted(0)
        first_may.set()
        second_may.set()
        await asyncio.sleep(3)
        bench.feed(0)
        await bench.counted(0)
        assert first.fenced_tasks == second.fenced_tasks == [0]

    simulate(test)


@pytest.mark.slow
def test_owner_that_died_within_its_fence_holds_up_the_next_one_for_the_transaction_timeout() -> None:
    """m2 is granted a task of m1 and dies before its fence is committed: no changelog names it."""

    async def test(bench: Bench) -> None:
        first, second, third = bench.peer("m1"), bench.peer("m2"), bench.peer("m3")
        await first.run(0, token=1)
        bench.feed(0)
        await bench.counted(0)
        first_called, first_may = pause(first.producer, "commit_transaction")
        bench.feed(0)
        await first_called.wait()
        transactions = second.clients.transactions(None)
        called, _ = pause(await transactions.begin(), "commit_transaction")
        opening = asyncio.ensure_future(second.run(0, token=2))
        await called.wait()
        for each in (first, second):
            each.granted.clear()
        await third.run(0, token=3)
        first_may.set()
        opening.cancel()
        await bench.counted(0)
        await second.give_back(0, abort=True)
        bench.feed(0)
        await bench.counted(0)

    simulate(test)


def test_task_whose_commits_fail_does_not_stop_the_others() -> None:
    async def test(bench: Bench) -> None:
        def poisoned(record: Any, context: TaskContext) -> None:
            count(record, context)
            context.send("out", b"poison", partition=2)

        bench.cluster.refuses = lambda topic, batch: UnknownError if any(each[1] == b"poison" for each in batch.contents) else None
        alone: set[Any] = set()

        async def note_alone() -> None:
            while True:
                await asyncio.sleep(0.001)
                present = member.clients._transactions
                alone.update(() if present is None else present.schedule.alone_until_s)

        member = bench.peer("m1")
        noting = asyncio.ensure_future(note_alone())
        await member.run(0, 1, token=1)
        await member.run(2, token=1, handler=poisoned)
        bench.feed(0, 1, 2)
        await bench.counted(0, 1)
        for _ in range(20):
            bench.feed(0, 1)
            await bench.counted(0, 1)
        await asyncio.sleep(5)
        assert bench.committed("out", 2) == bench.committed("log", 2) == []
        assert alone == {TaskId(0, 2)}
        noting.cancel()
        await member.give_back(2)

    simulate(test)


# ----------------------------------------------------------------------------- owners of two builds


async def _former_build(bench: Bench, partition: int, token: int) -> tuple[Producer, Callable[[int, int], Coroutine[Any, Any, None]]]:
    """An owner of a build with a transactional id for each task: its producer, and a function that
    commits one output and change more, at an offset of the source.
    """
    grant = Origin(1, "log", "group", f"0_{partition}", token)
    headers = list(grant.headers)
    producer = SimulatedClients(bench.cluster, f"former{token}").producer(transactional_id=grant.transactional_id)
    await producer.start()
    for topic in ("log", "out"):
        await producer.partitions_for(topic)

    async def send(number: int, offset: int) -> None:
        sources = pack_sources({TopicPartition("in", partition): offset}, {})
        records: list[Any] = [(b"k", b"%d" % number, headers, None), (SOURCES_KEY, sources, headers, None)]
        sent = producer.send_batches(TopicPartition("log", partition), records)
        await acknowledged([*sent, *producer.send_batches(TopicPartition("out", partition), records[:1])])

    await producer.begin_transaction()
    await acknowledged(producer.send_batches(TopicPartition("log", partition), [(FENCE_KEY, EXACTLY_ONCE.encode(), headers, None)]))
    return producer, send


def test_owner_of_a_former_build_is_fenced_by_the_id_of_its_task() -> None:
    async def test(bench: Bench) -> None:
        from aiokafka.errors import ProducerFenced

        bench.feed(0, records=3)
        producer, send = await _former_build(bench, 0, token=1)
        await send(1, 1)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await send(2, 2)
        began_s = bench.monotonic_s()
        await bench.peer("m1").run(0, token=2)
        assert bench.monotonic_s() - began_s < TAKES_OVER_S
        await bench.counted(0)
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()
        await producer.stop()
        bench.feed(0)
        await bench.counted(0)

    simulate(test)


def test_owner_of_a_former_build_takes_over_and_the_late_commit_is_aborted() -> None:
    """It knows no transactional id of a member, and waits for the open transaction like any reader."""

    async def test(bench: Bench) -> None:
        zombie = bench.peer("m1")
        await zombie.run(0, token=1)
        bench.feed(0)
        await bench.counted(0)
        called, go_on = pause(zombie.producer, "begin_transaction")
        bench.feed(0, records=1)
        await called.wait()
        producer, send = await _former_build(bench, 0, token=2)
        await send(6, 6)
        await producer.commit_transaction()
        zombie.granted.clear()
        go_on.set()
        await asyncio.sleep(3)
        assert zombie.fenced_tasks == [0]
        await bench.counted(0)
        await producer.stop()
        await bench.peer("m3").run(0, token=3)
        bench.feed(0)
        await bench.counted(0)

    simulate(test)


# ------------------------------------------------------------------------- changelogs that refuse


@pytest.mark.parametrize("guarantee", ["at_least_once", EXACTLY_ONCE])
def test_changelog_that_refuses_a_batch_gets_no_later_part_of_the_commit(guarantee: str) -> None:
    """Otherwise it has the source offsets, and not all changes."""

    def put_widely(record: Any, context: TaskContext) -> None:
        context.states["log"].put(record.key, bytes(500 if record.offset % 500 else 9_000))

    async def test(bench: Bench) -> None:
        bench.cluster.topics["log"].configs["max.message.bytes"] = "8000"
        source = bench.cluster.topics["in"].partitions[0]
        bench.cluster.append(source, Batch(-1, -1, -1, False, [(b"%d" % number, b"", (), 0) for number in range(1, 900)], 100))
        member = bench.peer("m1", guarantee)
        await member.run(0, token=1)
        await asyncio.sleep(60)
        bench.cluster.topics["log"].configs["max.message.bytes"] = "1000000"
        await asyncio.sleep(20)
        log = bench.cluster.topics["log"].partitions[0].log
        written = {record.key: record.value for record in log.read(0, log.last_stable_offset, committed=True, max_bytes=2**30)[0]}
        assert len([key for key in written if key and not key.startswith(RESERVED_PREFIX)]) == 899

    simulate(test)
