"""`equipoise adopt` on a real broker: an application of aiokafka under load moves to
members and back. Each record is processed once, by one side.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewTopic
from aiokafka.errors import InconsistentGroupProtocolError

from equipoise import Member, Record, TaskContext
from equipoise.assignors import registry
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.kafka.connection import Connection
from equipoise.log import open_log
from equipoise.log.kafka.log_topics import Topics
from equipoise.operations.doctor.access import Acl, needs
from equipoise.operations.doctor.access import Application as Parts
from equipoise.replay.known_changes import known_changes
from tests.live.group_clients import ROOT, GroupClient, confluent_kafka_command
from tests.live.kafka import admin_client, reader, writer
from tests.live.leader import leading
from tests.live.secured import SecuredBroker, secured_broker
from tests.live.test_restorer import until

PARTITIONS = 4
PER_SECOND = 300
SHORT = {"session_timeout_ms": 8_000, "lease_margin_ms": 2_000, "heartbeat_interval_ms": 500, "commit_interval_ms": 50}
Place = tuple[int, int]
MEMBER, OPERATOR = "member", "operator"
"""Users of a broker with passwords."""


class Consumer:
    """The application before: it notes what it reads, and commits what it has read."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self._consumer = AIOKafkaConsumer(
            application.source,
            group_id=application.consumers,
            bootstrap_servers=application.bootstrap,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            session_timeout_ms=6_000,
        )
        self._stopped = False
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> Consumer:
        await self._consumer.start()
        self._reading = asyncio.ensure_future(self._go_on())
        return self

    async def _go_on(self) -> None:
        while not self._stopped:
            for records in (await self._consumer.getmany(timeout_ms=100)).values():
                self.application.read.update((record.partition, record.offset) for record in records)

    async def until_failed(self) -> None:
        """Starts, and raises why it cannot read."""
        await self.start()
        assert self._reading is not None
        await self._reading

    async def stop(self) -> None:
        """Reads what it has begun to read, commits and leaves."""
        self._stopped = True
        if self._reading is not None:
            await self._reading
        await self._consumer.stop()

    async def close(self) -> None:
        await self._consumer.stop()


class Command:
    """`equipoise adopt`, started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(line.decode().rstrip())

    def has_said(self, text: str) -> bool:
        return any(text in line for line in self.said)

    async def until_said(self, text: str) -> None:
        await until(lambda: self.has_said(text) or self.process.returncode is not None)
        assert self.has_said(text), self.said

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self._reading

    async def ended(self) -> None:
        async with asyncio.timeout(60):
            status = await self.process.wait()
            await self._reading
        print(*self.said, sep="\n")
        assert status == 0, self.said


class Application:
    """One source, read by consumers and by members, and what each has processed."""

    def __init__(self, bootstrap: str, prefix: str, guarantee: str, *, stateful: bool, secured: SecuredBroker | None = None) -> None:
        """`secured`: members and commands connect as users of their own."""
        self._secured = secured
        self.bootstrap, self.prefix, self.guarantee = bootstrap, prefix, guarantee
        self.source, self.counted, self.changelog = f"{prefix}-source", f"{prefix}-counted", f"{prefix}-log"
        self.group, self.consumers = f"{prefix}-members", f"{prefix}-consumers"
        self.read: Counter[Place] = Counter()
        self.sent: Counter[Place] = Counter()
        self.changelogs = (self.changelog,) if stateful else ()
        part = Subtopology(subtopology=0, partitions=PARTITIONS, stateful=stateful, source_topics=(self.source,), changelog_topics=self.changelogs)
        self.topology = TopologyDeclared(epoch=0, subtopologies=(part,))
        assignor = registry.latest("high_availability")
        self.config = GroupConfigured(
            assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=GroupSettings(initial_delay_ms=500)
        )
        self._done = asyncio.Event()
        self.commands: list[Command] = []

    async def make_topics(self) -> None:
        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin:
            plain = [NewTopic(name, PARTITIONS, 1) for name in (self.source, self.counted)]
            await admin.create_topics([*plain, NewTopic(self.changelog, PARTITIONS, 1, topic_configs={"cleanup.policy": "compact"})])

    async def load(self) -> None:
        async with writer(Connection(bootstrap=self.bootstrap)) as producer:
            while not self._done.is_set():
                sending = [await producer.send(self.source, b"x", partition=partition) for partition in range(PARTITIONS)]
                self.sent.update((each.partition, each.offset) for each in await asyncio.gather(*sending))
                await asyncio.sleep(PARTITIONS / PER_SECOND)

    def stop_load(self) -> None:
        self._done.set()

    def handle(self, record: Record, context: TaskContext) -> None:
        for state in context.states.values():
            state.put(b"last", b"%d" % record.offset)
        context.send(self.counted, b"%d %d" % (record.partition, record.offset))

    def member(self, name: str) -> Member:
        return Member(
            self.group,
            self.handle,
            sources=self.source,
            state=self.changelogs,
            outputs=self.counted,
            member_id=name,
            adopts=self.consumers,
            prefix=self.prefix,
            guarantee=self.guarantee,
            connection=Connection(**self._connection(MEMBER)),
            **SHORT,  # type: ignore[arg-type]
        )

    def _connection(self, user: str) -> dict[str, Any]:
        return {"bootstrap": self.bootstrap} if self._secured is None else self._secured.settings(user)

    async def command(self, *words: str) -> Command:
        said = {f"EQUIPOISE_{name.upper()}": value for name, value in self._connection(OPERATOR).items()}
        environment = {**os.environ, **said, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        options = ("--prefix", self.prefix, "--group", self.group)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "equipoise",
            words[0],
            *options,
            *words[1:],
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.commands.append(Command(process))
        return self.commands[-1]

    async def adopt(self) -> Command:
        return await self.command("migrate", "--to", "members", "--consumers", self.consumers)

    async def release(self) -> Command:
        return await self.command("migrate", "--to", "members", "--back", "--consumers", self.consumers)

    async def processed_by_members(self) -> Counter[Place]:
        from aiokafka import TopicPartition

        found: Counter[Place] = Counter()
        async with reader(Connection(bootstrap=self.bootstrap), read_committed=True) as consumer:
            places = [TopicPartition(self.counted, partition) for partition in range(PARTITIONS)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            for at, offset in (await consumer.beginning_offsets(places)).items():
                consumer.seek(at, offset)
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        partition, offset = map(int, record.value.split())
                        found[partition, offset] += 1
        return found

    async def until_progress(self, *, of_members: bool) -> None:
        """Until that side has processed half a second's load more."""
        if not of_members:
            before = len(self.read)
            await until(lambda: len(self.read) > before + PER_SECOND // 2)
            return
        before = len(await self.processed_by_members())
        async with asyncio.timeout(30):
            while len(await self.processed_by_members()) <= before + PER_SECOND // 2:  # noqa: ASYNC110  # of the brokers
                await asyncio.sleep(0.1)

    async def check_each_once(self) -> None:
        async with asyncio.timeout(30):
            while len(self.read) + len(theirs := await self.processed_by_members()) < len(self.sent):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        both = self.read + theirs
        assert both == self.sent, f"lost {list((self.sent - both).items())[:5]}, doubled {list((both - self.sent).items())[:5]}"
        assert theirs
        assert self.read


@pytest.fixture
async def application(bootstrap: str, prefix: str, request: pytest.FixtureRequest) -> AsyncIterator[Application]:
    guarantee, stateful = request.param
    made = Application(bootstrap, prefix, guarantee, stateful=stateful)
    await made.make_topics()
    yield made
    for each in made.commands:
        if each.process.returncode is None:
            await each.kill()


async def closed(*members: Member) -> None:
    async with asyncio.timeout(30):
        await asyncio.gather(*(member.wait() for member in members))


async def refused(consumer: Consumer) -> None:
    """Brokers let no consumer in."""
    with pytest.raises(InconsistentGroupProtocolError):
        await asyncio.wait_for(consumer.until_failed(), 30)
    await consumer.close()


@pytest.mark.parametrize("application", [pytest.param(("exactly_once", True), id="exactly_once", marks=pytest.mark.smoke)], indirect=True)
async def test_application_moves_to_members_and_back_and_each_record_counts_once(application: Application) -> None:
    loading = asyncio.ensure_future(application.load())
    consumers: list[Any] = [await Consumer(application).start() for _ in range(2)]
    async with leading(application.bootstrap, application.prefix, application.group, application.config, application.topology):
        try:
            await application.until_progress(of_members=False)
            for _ in range(2):  # and once more: what the consumers read meanwhile is not read again
                async with application.member("m1") as first, application.member("m2") as second:
                    adopting = await application.adopt()
                    await adopting.until_said("stop the application")
                    before = await application.processed_by_members()
                    await application.until_progress(of_members=False)
                    assert await application.processed_by_members() == before, "members wait while consumers are there"
                    await asyncio.gather(*(each.stop() for each in consumers))
                    await adopting.ended()
                    assert adopting.has_said("nobody read for")
                    await application.until_progress(of_members=True)
                    await refused(Consumer(application))
                    releasing = await application.release()
                    await closed(first, second)
                await releasing.until_said("start the application")
                consumers = [await Consumer(application).start() for _ in range(2)]
                await releasing.ended()
                assert releasing.has_said("nobody read for")
                await application.until_progress(of_members=False)
            application.stop_load()
            await loading
            await application.check_each_once()
            with open_log(f"kafka://{application.bootstrap}/{application.prefix}") as log:
                found = known_changes(log.read())
            assert [(each.kind, each.judged.moves if each.judged else None) for each in found] == 4 * [("adopt", PARTITIONS)]
            assert all(each.judged.unavailable_task_ms > 0 for each in found if each.judged), "nobody read for a while"
            assert all(each.planned is not None and each.planned.made_from is not None for each in found)
        finally:
            application.stop_load()
            await asyncio.gather(loading, *(each.stop() for each in consumers))


@pytest.mark.slow
@pytest.mark.parametrize("application", [pytest.param(("at_least_once", False), id="at_least_once-without-state")], indirect=True)
async def test_one_side_reads_when_the_commands_are_killed_and_they_go_on_when_run_again(application: Application) -> None:
    loading = asyncio.ensure_future(application.load())
    consumers: list[Any] = [await Consumer(application).start() for _ in range(2)]
    async with leading(application.bootstrap, application.prefix, application.group, application.config, application.topology):
        try:
            await application.until_progress(of_members=False)
            async with application.member("m1") as first, application.member("m2") as second:
                adopting = await application.adopt()
                await adopting.until_said("stop the application")
                await adopting.kill()
                await application.until_progress(of_members=False)
                assert not await application.processed_by_members()
                await asyncio.gather(*(each.stop() for each in consumers))
                await application.until_progress(of_members=True)  # with no command at all
                again = await application.adopt()
                await again.ended()
                assert again.has_said("is held by 2 members")
                releasing = await application.release()
                await closed(first, second)  # they have seen it
                await releasing.kill()
            async with application.member("m3") as third:  # as something that restarts members does
                await application.until_progress(of_members=True)  # they read on, when the command's session has ended
                again = await application.release()
                await closed(third)
            await again.until_said("start the application")
            consumers = [await Consumer(application).start() for _ in range(2)]
            await again.ended()
            await application.until_progress(of_members=False)
            once_more = await application.release()
            await once_more.ended()
            assert once_more.has_said("has consumers of its own")
            application.stop_load()
            await loading
            await application.check_each_once()
        finally:
            application.stop_load()
            await asyncio.gather(loading, *(each.stop() for each in consumers))


@pytest.mark.slow
@pytest.mark.parametrize("application", [pytest.param(("exactly_once", True), id="exactly_once")], indirect=True)
async def test_consumers_that_the_broker_leads_move_to_members_and_back(application: Application) -> None:
    """KIP-848. They commit as they leave what confluent-kafka gave them."""

    def started() -> GroupClient:
        return GroupClient(
            confluent_kafka_command(),
            application.source,
            bootstrap_servers=application.bootstrap,
            group_id=application.consumers,
            group_protocol="consumer",
            auto_offset_reset="earliest",
            auto_commit_interval_ms="100",
        )

    def stop(client: GroupClient) -> None:
        client.signal(signal.SIGTERM)
        client.ended()
        client.close()
        application.read.update(client.records)

    loading = asyncio.ensure_future(application.load())
    client = started()
    async with leading(application.bootstrap, application.prefix, application.group, application.config, application.topology):
        try:
            await until(lambda: len(client.records) > PER_SECOND // 2)
            async with application.member("m1") as member:
                adopting = await application.adopt()
                await adopting.until_said("1 consumer still there")
                await asyncio.to_thread(stop, client)
                await adopting.ended()
                assert adopting.has_said("1 consumer, offsets of 4 partitions")
                await application.until_progress(of_members=True)
                releasing = await application.release()
                await closed(member)
            await releasing.until_said("start the application")
            client = started()
            await releasing.ended()
            assert releasing.has_said("nobody read for")
            await until(lambda: len(client.records) > PER_SECOND // 2)
            application.stop_load()
            await loading
            theirs = await application.processed_by_members()
            await until(lambda: len(application.read) + len(client.records) + len(theirs) >= len(application.sent))
            await asyncio.to_thread(stop, client)
            await application.check_each_once()
        finally:
            application.stop_load()
            await asyncio.gather(loading, return_exceptions=True)
            client.close()


RIGHTS = [("Group", "consumers", "Read"), ("Group", "members", "Describe"), ("Topic", "source", "Read"), ("Topic", "log", "Read")]
"""Of the operator, beside those of a reader of the log."""


@pytest.mark.slow
async def test_application_moves_on_a_broker_with_passwords_and_the_rights_of_the_page(tmp_path: Path, prefix: str) -> None:
    with secured_broker(tmp_path, MEMBER, OPERATOR) as secured:
        application = Application(secured.inside, prefix, "exactly_once", stateful=True, secured=secured)
        names = {"consumers": application.consumers, "members": application.group, "source": application.source, "log": application.changelog}
        parts = Parts(group=application.group, sources=(application.source,), changelogs=application.changelogs, outputs=(application.counted,))
        secured.allow(MEMBER, [*(need.acl for need in needs("member", Topics(prefix), parts)), Acl("Group", application.consumers, "Read")])
        rights = [Acl(resource, names[name], operation) for resource, name, operation in RIGHTS]
        secured.allow(OPERATOR, [*(need.acl for need in needs("reader", Topics(prefix), parts)), *rights])
        await application.make_topics()
        loading = asyncio.ensure_future(application.load())
        consumer = await Consumer(application).start()
        async with leading(secured.inside, prefix, application.group, application.config, application.topology):
            try:
                await application.until_progress(of_members=False)
                async with application.member("m1") as member:
                    with secured.without(OPERATOR, rights[0]):
                        refused_command = await application.adopt()
                        assert await asyncio.wait_for(refused_command.process.wait(), 60) == 2
                        assert any(application.consumers in line and "READ" in line for line in refused_command.said), refused_command.said
                    adopting = await application.adopt()
                    await adopting.until_said("stop the application")
                    await consumer.stop()
                    await adopting.ended()
                    await application.until_progress(of_members=True)
                    releasing = await application.release()
                    await closed(member)
                await releasing.until_said("start the application")
                consumer = await Consumer(application).start()
                await releasing.ended()
                await application.until_progress(of_members=False)
                application.stop_load()
                await loading
                await application.check_each_once()
            finally:
                application.stop_load()
                await asyncio.gather(loading, consumer.stop())
