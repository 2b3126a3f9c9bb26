"""Members that have lost a task but still write, and brokers that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import MemberJoined
from equipoise.events.tasks import TaskId
from equipoise.kafka.connection import Connection
from equipoise.log import open_log
from equipoise.member import TaskContext
from equipoise.member.copies.origin import Origin
from equipoise.replay.timelines import build_timeline
from tests.live.kafka import reader
from tests.live.leader import Leader, leading
from tests.live.test_member import PARTITIONS, SHORT, Application
from tests.live.test_restorer import producing, until
from tools.brokers import Brokers

pytestmark = pytest.mark.usefixtures("no_error_unseen")
AROUND_MS = 4_000


async def test_fenced_task_is_reopened_while_it_is_granted(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        async with application.member("m1", tmp_path, "exactly_once") as member:
            await until(lambda: len(member.running) == PARTITIONS)
            await application.order(60)
            await application.until_counted(exactly=True)
            async with producing(bootstrap, transactional_id=f"{prefix}/m1/{member.incarnation}"):  # without a grant
                pass
            await application.order(60)
            await application.until_counted(exactly=True)
            assert 1 <= member.fenced_writes <= PARTITIONS  # all tasks in one transaction
            assert len(member.running) == PARTITIONS
        assert leader.decided(MemberExpired) == []


async def test_writer_paused_between_permit_and_send_is_fenced(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """It got its permit; then its task is taken by force. Its later writes must not count."""
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with contextlib.AsyncExitStack() as stack:
        leader = await stack.enter_async_context(leading(bootstrap, prefix, prefix, application.config, application.topology))
        zombie = application.member("m1", tmp_path / "a", "exactly_once")
        await zombie.__aenter__()
        host = zombie._host
        assert host is not None
        await until(lambda: len(zombie.running) == PARTITIONS)
        asked, go_on = asyncio.Event(), asyncio.Event()
        runners = list(host.work._runners.values())
        writer: Any = runners[0]._writer
        _pause_before_its_transaction(writer.producer, asked, go_on)
        await application.order(60)
        await asked.wait()
        # The member's own thread and lease stop, as in a paused process.
        await host._thread.run(freeze(host))
        async with application.member("m2", tmp_path / "b", "exactly_once") as heir:
            await until(lambda: len(heir.running) == PARTITIONS)
            assert [each.cause for each in leader.decided(MemberExpired)] == ["session_timeout"]
            await application.until_counted(exactly=True)
            paused = {runner.task for runner in runners if runner.is_committing}
            go_on.set()
            await until(lambda: zombie.fenced_writes == len(paused))
            assert zombie.fenced_writes > 0
            await application.order(60)
            counted = await application.until_counted(exactly=True)
            assert all([token for _, token in each] == sorted(token for _, token in each) for each in counted.values())
        await host._thread.run(thaw(host))
        with contextlib.suppress(Exception):
            await zombie.__aexit__(None, None, None)


def _pause_before_its_transaction(producer: Any, asked: asyncio.Event, go_on: asyncio.Event) -> None:
    begin = producer.begin_transaction

    async def paused(*arguments: Any) -> None:
        asked.set()
        await go_on.wait()
        await begin(*arguments)

    producer.begin_transaction = paused


async def freeze(host: Any) -> None:
    """Stops sending facts and carrying out decisions."""
    host._frozen = (host._link.queue, host.work.reconcile)
    host._link.queue = lambda fact: None
    host.work.reconcile = lambda: 10**15


async def thaw(host: Any) -> None:
    host._link.queue, host.work.reconcile = host._frozen
    host.wake()


async def test_process_that_slept_through_its_lease_rejoins_with_present_lags(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """Another member has run its tasks. It must not report the lags it knew before it slept."""
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", tmp_path / "a", "at_least_once", heartbeat_interval_ms=5_000) as sleeper,
    ):
        await until(lambda: len(sleeper.running) == PARTITIONS)
        host: Any = sleeper._host
        await host._thread.run(freeze(host))
        put_back, wakes = host.work.permit.put_stores_back, asyncio.Event()

        async def late(task: TaskId) -> None:
            await wakes.wait()
            await put_back(task)

        host.work.permit.put_stores_back = late
        async with application.member("m2", tmp_path / "b", "at_least_once") as heir:
            await until(lambda: len(heir.running) == PARTITIONS)
            await application.order(600)
            await application.until_counted(exactly=True)
            asker = host._restorer._asker
            ask = asker.end_offsets

            async def slow(partitions: Any) -> Any:
                await asyncio.sleep(1.5)  # longer than its wait between two incarnations
                return await ask(partitions)

            async def nothing(*partitions: Any, **options: Any) -> dict[Any, Any]:
                await asyncio.sleep(0.05)
                return {}

            asker.end_offsets = slow
            host._restorer._consumer.getmany = nothing  # its copies are read before it joins, and would have caught up by then
            await host._thread.run(thaw(host))
            wakes.set()
            await until(lambda: len(joins(leader, "m1")) == 2)
            lags = joins(leader, "m1")[1].lags
            assert set(lags) == {TaskId(0, number) for number in range(PARTITIONS)}
            assert all(isinstance(lag, int) and lag > 0 for lag in lags.values()), lags


def joins(leader: Leader, member_id: str) -> list[MemberJoined]:
    return [each.event for each in leader.facts if isinstance(each.event, MemberJoined) and each.event.member_id == member_id]


@pytest.mark.smoke
async def test_records_of_another_writer_are_noticed_and_ignored(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    led = leading(bootstrap, prefix, prefix, application.config, application.topology)
    async with led, application.member("m1", tmp_path, "at_least_once") as member:
        await until(lambda: len(member.running) == PARTITIONS)
        await application.order(60)
        await application.until_counted(exactly=True)
        async with producing(bootstrap) as producer:
            for partition in range(PARTITIONS):
                stale = [*Origin(1, "", prefix, f"0_{partition}", 0).headers]
                for customer in range(20):
                    await producer.send_and_wait(application.changelog, b"1", key=b"customer-%d" % customer, partition=partition, headers=stale)
        await application.order(60)
        counted = await application.until_counted(exactly=False)
        assert {key: max(count for count, _ in each) for key, each in counted.items()} == dict(application.sent)
        await until(lambda: member.fenced_writes >= PARTITIONS and len(member.running) == PARTITIONS)
        assert member.fenced_writes == PARTITIONS  # once for each task; then they were restored without those records


@pytest.mark.slow
async def test_broker_outage_costs_only_the_lease(tmp_path: Path) -> None:
    with Brokers() as brokers:
        application = Application(brokers.bootstrap, "away")
        await application.make_topics()
        revoked: list[TaskId] = []

        def note(context: TaskContext) -> None:
            revoked.append(context.task)

        async with contextlib.AsyncExitStack() as stack:
            leader = await stack.enter_async_context(leading(brokers.bootstrap, "away", "away", application.config, application.topology))
            member = await stack.enter_async_context(application.member("m1", tmp_path, "exactly_once", on_revoked=note))
            await until(lambda: len(member.running) == PARTITIONS)
            await application.order(60)
            await application.until_counted(exactly=True)
            incarnation = member.incarnation
            brokers.kill(0)
            killed_ms = time.time() * 1_000
            await until(lambda: member.running == {})
            await until(lambda: len(revoked) == PARTITIONS)
            await asyncio.sleep((SHORT["session_timeout_ms"] - SHORT["lease_margin_ms"]) / 1_000)
            brokers.start(0)
            await until(lambda: len(member.running) == PARTITIONS)
            assert member.incarnation > incarnation
            await application.order(60)
            await application.until_counted(exactly=True)
            assert {each.cause for each in leader.decided(MemberExpired)} <= {"proven_dead", "session_timeout"}
        await check_silence(application, killed_ms)


async def check_silence(application: Application, killed_ms: float) -> None:
    """The unavailability of each task in the timeline is the gap between its outputs, to within two
    heartbeats and the time to process an order.
    """
    outputs: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for partition in outputs:
        async with reader(Connection(bootstrap=application.bootstrap), read_committed=True) as consumer:
            place = TopicPartition(application.counts, partition)
            consumer.assign([place])
            for at, offset in (await consumer.beginning_offsets([place])).items():
                consumer.seek(at, offset)
            end = (await consumer.end_offsets([place]))[place]
            while await consumer.position(place) < end:
                outputs[partition] += [each.timestamp_ms for each in (await consumer.getmany(timeout_ms=500)).get(place, ())]
    with open_log(f"kafka://{application.bootstrap}/{application.prefix}") as log:
        timeline = await asyncio.to_thread(lambda: build_timeline(log.read(group=application.prefix)))
    stopped = timeline.stopped(int(killed_ms) - 5_000, timeline.to_ms + 1)
    gaps = {partition: max(later - earlier for earlier, later in pairwise(sorted(times))) for partition, times in outputs.items()}
    assert {task.partition for task in stopped} == set(gaps)
    for task, stretches in stopped.items():
        told_ms = sum(to_ms - from_ms for from_ms, to_ms in stretches)
        assert told_ms == pytest.approx(gaps[task.partition], abs=AROUND_MS), (task, stretches, gaps)
        assert told_ms > SHORT["session_timeout_ms"]


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_commit_that_a_broker_outage_interrupts_is_repeated(tmp_path: Path, guarantee: str) -> None:
    """The broker is down for less than the lease: tasks stay where they are, and no record is lost
    or counted twice.
    """
    with Brokers() as brokers:
        application = Application(brokers.bootstrap, "blink")
        await application.make_topics()
        async with leading(brokers.bootstrap, "blink", "blink", application.config, application.topology) as leader:
            async with application.member("m1", tmp_path, guarantee, session_timeout_ms=60_000) as member:
                await until(lambda: len(member.running) == PARTITIONS)
                load = asyncio.ensure_future(application.order(3_000))
                incarnation = member.incarnation
                await asyncio.sleep(0.5)
                brokers.kill(0)
                brokers.start(0)
                await load
                await application.until_counted(exactly=guarantee == "exactly_once")
                assert member.incarnation == incarnation
            assert leader.decided(MemberExpired) == []
