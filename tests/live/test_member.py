"""Members in one process on a real broker, led by the real machine: they restore, process, hand
over and leave, with both guarantees.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.assignors import registry
from equipoise.events.decisions import EventRejected, MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured, Subtopology, TaskParked, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.hosting.runtime import DeployedRuntime
from equipoise.kafka.connection import Connection
from equipoise.member import Member, SupersededError, TaskContext
from equipoise.member.copies.origin import read_origin
from tests.live.kafka import admin_client, reader
from tests.live.leader import Leader, leading
from tests.live.test_restorer import make_topic, producing, until
from tests.unit.equipoise.member.test_example import example

pytestmark = pytest.mark.usefixtures("no_error_unseen")
PARTITIONS = 3
COMPACTED = {"cleanup.policy": "compact"}
SHORT = {"session_timeout_ms": 12_000, "lease_margin_ms": 2_000, "heartbeat_interval_ms": 500}
BLOCKED = re.compile(r"the application's loop has not run for \d+ s: a handler or callback blocks it")
BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])


class Application:
    """An application that counts records per key, with topics of its own, and checks its counts."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self.source, self.changelog, self.counts = (f"{prefix}-{what}" for what in ("orders", "log", "counts"))
        part = Subtopology(subtopology=0, partitions=PARTITIONS, stateful=True, source_topics=(self.source,), changelog_topics=(self.changelog,))
        self.topology = TopologyDeclared(epoch=0, subtopologies=(part,))
        assignor = registry.latest("high_availability")
        self.config = GroupConfigured(
            assignor=assignor.name,
            behaviour_version=assignor.version,
            solver=assignor.solver,
            knobs=GroupSettings(acceptable_recovery_lag=50, initial_delay_ms=500, probing_interval_ms=1_000, max_warmups=4, max_warmups_per_member=4),
        )
        self.sent: collections.Counter[bytes] = collections.Counter()
        self.partitions = PARTITIONS
        """Partitions of each of its topics."""

    async def make_topics(self) -> None:
        for topic in (self.source, self.counts):
            await make_topic(self.bootstrap, topic, PARTITIONS)
        await make_topic(self.bootstrap, self.changelog, PARTITIONS, **COMPACTED)

    async def order(self, records: int) -> None:
        async with producing(self.bootstrap) as producer:
            for number in range(records):
                key = b"customer-%d" % (number % 20)
                await producer.send(self.source, b"%d" % number, key=key)
                self.sent[key] += 1

    async def count(self, record: Any, context: TaskContext) -> None:
        total = int(context.state.get(record.key) or b"0") + 1
        context.state.put(record.key, b"%d" % total)
        context.send(self.counts, b"%d" % total, key=record.key)

    def member(self, member_id: str, state: Path | None, guarantee: str, **options: Any) -> Member:
        given = {"prefix": self.prefix, "guarantee": guarantee, "state_directory": state, **SHORT, **options}
        handler, topology = given.pop("handler", self.count), given.pop("topology", self.topology)
        return Member(self.prefix, handler, _topology=topology, member_id=member_id, connection=Connection(bootstrap=self.bootstrap), **given)

    async def counted(self) -> dict[bytes, list[tuple[int, int]]]:
        """Key -> (count, fencing token) of each committed output, in order."""
        from aiokafka import TopicPartition

        found: dict[bytes, list[tuple[int, int]]] = collections.defaultdict(list)
        async with reader(Connection(bootstrap=self.bootstrap), read_committed=True) as consumer:
            partitions = [TopicPartition(self.counts, partition) for partition in range(self.partitions)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            for at, offset in (await consumer.beginning_offsets(partitions)).items():
                consumer.seek(at, offset)
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        origin = read_origin(record.headers)
                        assert origin is not None
                        found[record.key].append((int(record.value), origin.token))
        return found

    async def until_counted(self, *, exactly: bool) -> dict[bytes, list[tuple[int, int]]]:
        async with asyncio.timeout(120):
            while True:
                counted = await self.counted()
                last = {key: max(count for count, _ in each) for key, each in counted.items()}
                if all(last.get(key, 0) >= count for key, count in self.sent.items()):
                    break
                await asyncio.sleep(0.3)
        if exactly:
            assert {key: [count for count, _ in each] for key, each in counted.items()} == {key: [*range(1, n + 1)] for key, n in self.sent.items()}
        return counted


@BOTH
@pytest.mark.smoke
async def test_members_count_and_hand_over(bootstrap: str, prefix: str, tmp_path: Path, guarantee: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    calls: list[str] = []
    callbacks = {
        "on_assigned": lambda context: calls.append(f"assigned {context.task}"),
        "on_revoked": lambda context: calls.append(f"revoked {context.task}"),
        "on_standby": lambda task: calls.append(f"standby {task}"),
    }
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        await application.order(300)
        async with application.member("m1", tmp_path, guarantee, **callbacks) as first:
            await until(lambda: len(first.running) == PARTITIONS)
            await application.until_counted(exactly=True)
            assert sorted(calls) == ["assigned 0_0", "assigned 0_1", "assigned 0_2"]
            async with application.member("m2", tmp_path, guarantee, **callbacks) as second:
                await until(lambda: len(second.running) == 1)
                assert len(first.running) == PARTITIONS - 1
                (moved,) = second.running
                assert f"standby {moved}" in calls
                assert f"revoked {moved}" in calls
                await application.order(200)
                await application.until_counted(exactly=True)
                await first.leave()
                assert first.running == {}
                await until(lambda: len(second.running) == PARTITIONS)
                await application.order(100)
                await application.until_counted(exactly=True)
        await until(lambda: leader.machine.state.members == {})
        assert leader.decided(MemberExpired) == []
        async with asyncio.timeout(20):  # offsets of a transaction are told when its marker is written
            while sum((await _committed(application)).values()) != 600:  # noqa: ASYNC110  # of the brokers
                await asyncio.sleep(0.2)


async def test_member_that_joins_after_repeated_decisions_finds_the_highest_number(bootstrap: str, prefix: str) -> None:
    """A worker that was paused publishes again what another worker has published meanwhile, so the
    last decision does not have the highest number.
    """
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        async with application.member("m1", None, "at_least_once") as first:
            await until(lambda: len(first.running) == PARTITIONS)
            for late in leader.decisions[:-1]:
                await leader.publish(late)
            async with application.member("m2", None, "at_least_once") as second:
                await until(lambda: len(second.running) == 1)
        assert leader.decided(MemberExpired) == []


async def test_member_that_misses_a_decision_loses_its_lease_and_rejoins(bootstrap: str, prefix: str) -> None:
    """The next incarnation begins at the end of the decisions."""
    application = Application(bootstrap, prefix)
    await application.make_topics()
    short = {"session_timeout_ms": 6_000, "lease_margin_ms": 3_000}
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", None, "at_least_once", **short) as member,
    ):
        await until(lambda: len(member.running) == PARTITIONS)
        before = member.incarnation
        last = leader.decisions[-1]
        await leader.publish(attrs.evolve(last, number=last.number + 2))  # the decision before it is missing
        await until(lambda: member.incarnation > before and len(member.running) == PARTITIONS)


async def _committed(application: Application) -> dict[int, int]:
    """Partition -> committed offset under the application's group id, as a lag tool sees it."""
    async with admin_client(Connection(bootstrap=application.bootstrap)) as admin:
        offsets = await admin.committed_offsets(application.prefix, None)
    return {tp.partition: offset for tp, offset in offsets.items() if tp.topic == application.source}


async def test_handler_that_blocks_does_not_expire_its_member_which_says_so(bootstrap: str, prefix: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()

    async def block(record: Any, context: TaskContext) -> None:
        if record.value == b"7":
            time.sleep(SHORT["session_timeout_ms"] / 1_000 + 3)  # noqa: ASYNC251  # the blocking is the point
        await application.count(record, context)

    async with _leader_apart(application) as leader, application.member("m1", None, "at_least_once", handler=block) as member:
        incarnation = member.incarnation
        await application.order(30)
        await application.until_counted(exactly=True)
        assert member.incarnation == incarnation
        await until(lambda: [each.error for each in said_of(leader)][-PARTITIONS:] == [""] * PARTITIONS)
        blocked, again = said_of(leader)[:-PARTITIONS], said_of(leader)[-PARTITIONS:]
        assert {each.task for each in blocked} == {each.task for each in again} == set(member.running)
        assert all(BLOCKED.fullmatch(each.error) for each in blocked), blocked
        await until(lambda: leader.machine.state.parked == {})


def said_of(leader: Leader) -> list[TaskParked]:
    return [each.event for each in leader.facts if isinstance(each.event, TaskParked)]


@contextlib.asynccontextmanager
async def _leader_apart(application: Application) -> Any:
    """A leader on a thread of its own, which leads on while this loop is blocked."""
    from equipoise.hosting.runtime import LoopThread

    thread = LoopThread("leader")
    begun, end = asyncio.Event(), asyncio.Event()
    led: list[Leader] = []

    async def lead() -> None:
        async with leading(application.bootstrap, application.prefix, application.prefix, application.config, application.topology) as leader:
            led.append(leader)
            begun.set()
            await end.wait()

    running = thread.start(lead())
    try:
        await asyncio.wrap_future(thread.start(begun.wait()))
        yield led[0]
    finally:
        thread.loop.call_soon_threadsafe(end.set)
        await asyncio.wrap_future(running)
        await thread.stop()


async def test_error_of_a_callback_ends_the_member(bootstrap: str, prefix: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()

    def refuse(context: TaskContext) -> None:
        raise RuntimeError(f"cannot run {context.task}")

    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        with pytest.raises(RuntimeError, match="cannot run 0_"):
            async with application.member("m1", None, "exactly_once", on_assigned=refuse) as member:
                await member.wait()
        await until(lambda: not leader.machine.state.members)  # it has left
        assert leader.decided(MemberExpired) == []


async def test_record_that_cannot_be_handled_fails_its_task_and_no_other(bootstrap: str, prefix: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()

    async def count(record: Any, context: TaskContext) -> None:
        await application.count(record, context)  # dropped with the record
        if record.value == b"poison":
            raise RuntimeError(f"cannot read {record.value!r}")

    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        async with application.member("m1", None, "exactly_once", handler=count) as member:
            await until(lambda: len(member.running) == PARTITIONS)
            await application.order(60)
            await application.until_counted(exactly=True)
            async with producing(bootstrap) as producer:
                place = await producer.send_and_wait(application.source, b"poison", key=b"x", partition=1)
            await until(lambda: bool(member.failed_tasks))
            (parked,) = member.failed_tasks.values()
            assert (str(parked.task), parked.topic, parked.offset) == ("0_1", application.source, place.offset)
            assert "cannot read b'poison'" in parked.error
            await until(lambda: bool(leader.machine.state.parked))
            assert leader.machine.state.parked[parked.task].offset == place.offset
            assert len(member.running) == PARTITIONS
            async with application.member("m2", None, "exactly_once", handler=count) as other:
                await until(lambda: len(other.running) == 1)
                await member.leave()
                await until(lambda: len(other.running) == PARTITIONS and "0_1" in map(str, other.failed_tasks))
        assert leader.decided(MemberExpired) == []
        assert b"x" not in await application.counted()


async def test_second_process_with_the_same_id_supersedes_the_first(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        await application.order(50)
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(contextlib.aclosing(_entered(application.member("m1", tmp_path / "a", "exactly_once"))))
            member = await anext(first)
            await until(lambda: len(member.running) == PARTITIONS)
            with pytest.raises(InputError, match="a live process has"):
                async with application.member("m1", tmp_path / "a", "exactly_once"):
                    pass
            shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("tasks"))  # the copy's lock is free, and proves nothing
            async with application.member("m1", tmp_path / "b", "exactly_once") as second:
                with pytest.raises(SupersededError):
                    await member.wait()
                assert [each.cause for each in leader.decided(MemberExpired)] == ["superseded"]
                assert leader.decided(MemberExpired)[0].hold_ms == SHORT["session_timeout_ms"]
                await until(lambda: len(second.running) == PARTITIONS)
                await application.order(50)
                await application.until_counted(exactly=True)


class _SlowClock(DeployedRuntime):
    def wall_us(self) -> int:
        return super().wall_us() - 3_600_000_000


async def test_second_process_with_a_slow_clock_joins_above_the_first(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader, contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(contextlib.aclosing(_entered(application.member("m1", tmp_path / "a", "exactly_once"))))
        member = await anext(first)
        await until(lambda: len(member.running) == PARTITIONS)
        before = member.incarnation
        async with application.member("m1", tmp_path / "b", "exactly_once", _runtime=_SlowClock()) as second:
            with pytest.raises(SupersededError):
                await member.wait()
            await until(lambda: len(second.running) == PARTITIONS)
            assert "incarnation_too_low" in [each.code for each in leader.decided(EventRejected)]
            assert second.incarnation == before + 1


async def _entered(member: Member) -> Any:
    with contextlib.suppress(SupersededError):
        async with member:
            yield member


async def test_tasks_run_on_while_no_worker_leads(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with contextlib.AsyncExitStack() as stack:
        async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
            member = await stack.enter_async_context(application.member("m1", tmp_path, "exactly_once"))
            await until(lambda: len(member.running) == PARTITIONS)
            incarnation = member.incarnation
        await asyncio.sleep(SHORT["session_timeout_ms"] / 1_000 + 1)  # appending facts and reading decisions is enough to keep the lease
        await application.order(50)
        await application.until_counted(exactly=True)
        assert (member.incarnation, len(member.running)) == (incarnation, PARTITIONS)
        assert leader.failure is None


async def test_example_of_the_docstring_counts_orders(bootstrap: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program in the docstring of `equipoise.member`, with topics and group of this test."""
    application = Application(bootstrap, prefix)
    program = example()
    for name, here in (("orders-changelog", "log"), ("order-counts", "counts"), ("orders", "orders")):
        program = program.replace(f'"{name}"', f'"{prefix}-{here}"')
    program = program.replace("lead=True,", f'lead=True,\n    prefix="{prefix}",')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EQUIPOISE_BOOTSTRAP", bootstrap)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(program, "example", "exec"), names)  # noqa: S102  # the example itself
    await make_topic(bootstrap, application.source, PARTITIONS)  # the program makes the others
    await application.order(60)
    running = asyncio.ensure_future(names["member"].run())
    await application.until_counted(exactly=True)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
