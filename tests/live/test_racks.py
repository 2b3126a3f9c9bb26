"""Racks save traffic: what three brokers in three racks send to members in other racks than their
own, by the brokers' own counts.

Every partition is led in rack-2, where no member is, and has its other replica in rack-0 or rack-1,
where the members are. So all is read across racks but what a member reads from the replica beside
it, which takes both: an assignor that puts the task there, and a member that says where it is to
the brokers, too. Each topic has one partition, so one reader: a broker counts what it sends by
topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.aiokafka import LagAwareAssignor
from equipoise.assignors import registry
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client
from equipoise.member import Member, TaskContext
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.test_restorer import producing, until
from tools import brokers as kafka
from tools.brokers import Brokers

pytestmark = pytest.mark.xdist_group("racks")  # one cluster serves all
RACK_AWARE = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
NEAR = (1, 1, 0, 0, 1, 0)
"""Topic -> the broker of its follower; brokers are numbered as their racks."""
LEADER = 2
RECORDS, VALUE = 200, b"v" * 1_000
JAVA = Path(__file__).parent / "java" / "BytesOut.java"


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with Brokers(3, **RACK_AWARE) as running:
        yield running


class Application:
    """Six tasks with state: each reads a topic of its own and writes what it read to a changelog of
    its own.
    """

    def __init__(self, brokers: Brokers, name: str, strategy: str) -> None:
        self.brokers, self.name = brokers, name
        self.sources = [f"{name}-in-{number}" for number in range(len(NEAR))]
        self.changelogs = [f"{name}-log-{number}" for number in range(len(NEAR))]
        parts = [
            Subtopology(subtopology=number, partitions=1, stateful=True, source_topics=(source,), changelog_topics=(changelog,))
            for number, (source, changelog) in enumerate(zip(self.sources, self.changelogs, strict=True))
        ]
        self.topology = TopologyDeclared(epoch=0, subtopologies=tuple(parts))
        assignor = registry.latest("high_availability")
        settings = GroupSettings(rack_aware_strategy=strategy, acceptable_recovery_lag=0, probing_interval_ms=1_000, initial_delay_ms=5_000)
        self.config = GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=settings)
        self.settings = WorkerSettings(bootstrap=brokers.bootstrap, prefix=name, http_port=0, observe_interval_ms=500)
        self.members: dict[str, tuple[Member, str | None]] = {}
        self.processed = 0

    async def make_topics(self) -> None:
        from aiokafka.admin import NewTopic

        async with admin_client(Connection(bootstrap=self.brokers.bootstrap)) as admin:
            near = [*NEAR, *NEAR]
            topics = [*self.sources, *self.changelogs]
            configs = {"min.insync.replicas": "1", "cleanup.policy": "compact"}
            placed = {topic: {0: [LEADER, at]} for topic, at in zip(topics, near, strict=True)}
            made = [NewTopic(topic, -1, -1, replica_assignments=places, topic_configs=configs) for topic, places in placed.items()]
            assert await admin.create_topics(made) == {}

    async def produce(self) -> None:
        """RECORDS to each topic."""
        async with producing(self.brokers.bootstrap) as producer:
            for source in self.sources:
                for number in range(RECORDS):
                    await producer.send(source, VALUE, key=b"%d" % number)

    async def keep(self, record: Any, context: TaskContext) -> None:
        context.state.put(record.key, record.value)
        self.processed += 1

    @contextlib.asynccontextmanager
    async def member(self, name: str, rack: str | None) -> AsyncIterator[Member]:
        """It keeps its state in memory, so whoever is started again restores."""
        member = Member(
            self.name,
            self.keep,
            _topology=self.topology,
            member_id=name,
            connection=Connection(bootstrap=self.brokers.bootstrap),
            prefix=self.name,
            rack=rack,
            group_config=self.config,
            session_timeout_ms=12_000,
            lease_margin_ms=2_000,
            heartbeat_interval_ms=300,
        )
        async with member:
            self.members[name] = member, rack
            yield member
        del self.members[name]

    @contextlib.asynccontextmanager
    async def running(self, **racks: str | None) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            await asyncio.gather(*(stack.enter_async_context(self.member(name, rack)) for name, rack in racks.items()))
            yield

    async def all_run(self, where: Callable[[dict[int, str | None]], bool] = lambda _: True) -> dict[int, str | None]:
        """Once both members run all, equally many each, `where` is wanted: topic -> rack of its
        reader.
        """

        def readers() -> dict[int, str | None]:
            return {task.subtopology: rack for member, rack in self.members.values() for task in member.running}

        def shares() -> list[int]:
            return [len(member.running) for member, _ in self.members.values()]

        await until(lambda: shares() == [len(NEAR) // 2] * 2 and where(readers()))
        return readers()

    async def all_processed(self, records: int) -> None:
        await until(lambda: self.processed >= records * len(NEAR))

    async def bytes_out(self, topics: list[str]) -> list[list[int]]:
        """For each topic what each broker has sent to clients so far."""
        pids = {str(self.brokers.pid(number)): number for number in range(self.brokers.count)}
        command = ["java", "-cp", str(kafka.classes(JAVA, "")), "BytesOut", *pids]
        said = (await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)).stdout
        counts = {(topic, pids[pid]): int(count) for pid, topic, count in (line.split() for line in said.splitlines())}
        return [[counts.get((topic, broker), 0) for broker in range(self.brokers.count)] for topic in topics]


def across(sent: list[list[int]], readers: dict[int, str | None]) -> tuple[int, int]:
    """Bytes that went to another rack than the broker's, and bytes in all."""
    crossing = sum(count for topic, counts in enumerate(sent) for broker, count in enumerate(counts) if readers[topic] != f"rack-{broker}")
    return crossing, sum(map(sum, sent))


def near(readers: dict[int, str | None]) -> set[int]:
    """Topics that have a replica beside their reader."""
    return {topic for topic, rack in readers.items() if rack == f"rack-{NEAR[topic]}"}


def minus(after: list[list[int]], before: list[list[int]]) -> list[list[int]]:
    return [[new - old for new, old in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)]


WHOLE = RECORDS * len(VALUE)
"""At least so many bytes are in each topic."""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["none", "min_cost", "balanced_min_cost"])
async def test_reads_across_racks_fall_with_rack_aware_strategies(brokers: Brokers, strategy: str) -> None:
    application = Application(brokers, f"racks-{strategy.replace('_', '-')}", strategy)
    await application.make_topics()

    async def check(topics: list[str], before: list[list[int]], readers: dict[int, str | None]) -> None:
        crossing, total = across(minus(await application.bytes_out(topics), before), readers)
        far = len(NEAR) - len(near(readers))
        said = f"{crossing:,} of {total:,} bytes of {topics[0][:-2]} crossed; {far} of {len(NEAR)} tasks have no replica beside them"
        assert total > WHOLE * len(NEAR), said
        assert far * WHOLE <= crossing <= far * WHOLE * 1.3 + 0.02 * total, said
        assert (far > 0) == (strategy == "none")

    async with Worker(application.settings):
        async with application.running(m0="rack-0", m1="rack-1"):
            readers = await application.all_run(lambda readers: strategy == "none" or len(near(readers)) == len(NEAR))  # once racks are observed
            before = await application.bytes_out(application.sources)
            await application.produce()
            await application.all_processed(RECORDS)
            await check(application.sources, before, readers)
        before = await application.bytes_out(application.changelogs)  # whoever has left was drained: its state was copied to the one that stayed
        async with application.running(m0="rack-0", m1="rack-1"):  # all is restored
            await check(application.changelogs, before, await application.all_run())


@pytest.mark.slow
async def test_racks_are_introduced_one_member_at_a_time(brokers: Brokers) -> None:
    """Members without a rack read from leaders, as ever; each that comes back with one reads beside
    it.
    """
    application = Application(brokers, "rolling", "min_cost")
    await application.make_topics()
    async with Worker(application.settings), contextlib.AsyncExitStack() as second, contextlib.AsyncExitStack() as first:
        await first.enter_async_context(application.member("m0", None))
        await second.enter_async_context(application.member("m1", None))
        await application.all_run()
        before = await application.bytes_out(application.sources)
        await application.produce()
        await application.all_processed(RECORDS)
        sent = minus(await application.bytes_out(application.sources), before)
        assert [counts[:LEADER] for counts in sent] == [[0, 0]] * len(NEAR), "no member has a rack: all reads are from the leaders"

        for step, (stack, name, rack) in enumerate([(first, "m0", "rack-0"), (second, "m1", "rack-1")], 1):
            await stack.aclose()
            await stack.enter_async_context(application.member(name, rack))
            readers = await application.all_run()
            before = await application.bytes_out(application.sources)
            await application.produce()
            await application.all_processed((step + 1) * RECORDS)
            sent = minus(await application.bytes_out(application.sources), before)
            for topic, counts in enumerate(sent):
                if readers[topic] is None:
                    assert counts[:LEADER] == [0, 0], "a member without a rack reads from the leader"
                elif topic in near(readers):
                    assert counts[LEADER] < 0.02 * counts[NEAR[topic]], "a member with a rack reads beside it"
        assert len(near(readers)) == len(NEAR)
        crossing, total = across(sent, readers)
        assert crossing < 0.02 * total


@pytest.mark.smoke
async def test_ordinary_consumer_group_is_balanced_by_lag_and_reads_from_its_rack(brokers: Brokers) -> None:
    """`LagAwareAssignor`: of equal lag, partitions go where the consumer says it is; what a real
    broker says of racks is what it deals by.
    """
    from aiokafka import AIOKafkaConsumer
    from aiokafka.admin import NewTopic

    topic, near = "ordinary", {0: 1, 1: 0, 2: 1, 3: 0}
    async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
        made = NewTopic(topic, -1, -1, replica_assignments={partition: [LEADER, at] for partition, at in near.items()})
        assert await admin.create_topics([made]) == {}

    def consumer(rack: str) -> AIOKafkaConsumer:
        strategy = LagAwareAssignor(group_id=topic, connection=brokers.bootstrap, auto_offset_reset="earliest", rack=rack, timeout_s=10.0)
        return AIOKafkaConsumer(
            topic,
            group_id=topic,
            bootstrap_servers=brokers.bootstrap,
            auto_offset_reset="earliest",
            client_rack=rack,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[strategy],
            metadata_max_age_ms=2_000,  # the first broker that is asked may not know the new topic yet
        )

    both = [consumer(f"rack-{number}") for number in range(2)]
    try:
        for each in both:
            await each.start()
        wanted = [{partition for partition, at in near.items() if at == number} for number in range(2)]
        await until(lambda: [{place.partition for place in each.assignment()} for each in both] == wanted)
    finally:
        for each in both:
            await each.stop()
