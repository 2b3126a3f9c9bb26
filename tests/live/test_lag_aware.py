"""`lag_aware` in a led group, on a real broker: the worker reads the lags, the first round waits
for them, an operator asks for a new deal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import repeat
from typing import Any

import pytest

from equipoise.assignors import registry
from equipoise.events.facts import DealRequested, GroupConfigured, LagReported, PartitionsObserved, Subtopology, TopologyDeclared
from equipoise.events.records import FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition, acknowledged
from equipoise.kafka.connection import Connection
from equipoise.log import open_log
from equipoise.member import Member, TaskContext
from equipoise.operations.live_group import AnsweredFact
from equipoise.replay.explanation import explain
from equipoise.replay.verification import Verdict, verify
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.json_schemas import check
from tests.live.test_restorer import make_topic, producing, until


class Group:
    """A topic, and members that read it so slowly that its lags stay what they are."""

    def __init__(self, bootstrap: str, prefix: str, *, records: list[int], **settings: Any) -> None:
        self.bootstrap, self.prefix, self.records = bootstrap, prefix, records
        self.topic = f"{prefix}-t0"
        assignor = registry.latest("lag_aware")
        knobs = GroupSettings(**settings)
        self.config = GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=knobs)
        part = Subtopology(subtopology=0, partitions=len(records), stateful=False, source_topics=(self.topic,))
        self.topology = TopologyDeclared(epoch=0, subtopologies=(part,))
        self.settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, worker_session_timeout_ms=6_000)
        self.members: dict[str, Member] = {}

    async def fill(self, records: list[int] | None = None) -> None:
        async with producing(self.bootstrap) as producer:
            await producer.partitions_for(self.topic)
            for partition, count in enumerate(records or self.records):
                await acknowledged(producer.send_batches(TopicPartition(self.topic, partition), repeat((None, b"", [], None), count)))

    async def commit(self, offsets: list[int]) -> None:
        """As the group's members would have, before any is there."""
        from aiokafka import TopicPartition

        consumer = Connection(bootstrap=self.bootstrap).clients.consumer(group=self.prefix)
        await consumer.start()
        consumer.assign([TopicPartition(self.topic, partition) for partition in range(len(offsets))])
        await consumer.commit({TopicPartition(self.topic, partition): offset for partition, offset in enumerate(offsets)})
        await consumer.stop()

    @contextlib.asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[None]:
        async def slowly(record: Any, context: TaskContext) -> None:
            await asyncio.sleep(0.5)

        async with contextlib.AsyncExitStack() as stack:
            for name in names:
                member = Member(
                    self.prefix,
                    slowly,
                    _topology=self.topology,
                    member_id=name,
                    connection=Connection(bootstrap=self.bootstrap),
                    prefix=self.prefix,
                    group_config=self.config,
                    session_timeout_ms=12_000,
                    lease_margin_ms=2_000,
                    heartbeat_interval_ms=500,
                )
                self.members[name] = await stack.enter_async_context(member)
            yield

    def shares(self) -> dict[str, list[int]]:
        """Member -> its partitions."""
        return {name: sorted(task.partition for task in member.running) for name, member in self.members.items()}

    async def are_shared(self, counts: list[int]) -> dict[str, list[int]]:
        await until(lambda: sorted(map(len, self.shares().values())) == counts)
        return self.shares()

    def facts(self) -> list[FactRecord]:
        with open_log(f"kafka://{self.bootstrap}/{self.prefix}") as log:
            found = list(log.read())
        assert verify(found).verdict is Verdict.IDENTICAL
        return [entry for entry in found if isinstance(entry, FactRecord) and entry.group == self.prefix]

    def said_lags(self) -> list[dict[int, int]]:
        events = [record.event for record in self.facts()]
        return [event.source_lags[self.topic] for event in events if isinstance(event, PartitionsObserved) and event.source_lags]

    def reported_lags(self) -> dict[int, int]:
        """Partition -> what its owner last reported of it."""
        loads = [record.event.load for record in self.facts() if isinstance(record.event, LagReported)]
        return {task.partition: lag for load in loads if load is not None for task, lag in load.behind.items()}

    async def deal(self, *words: str) -> tuple[int, dict[str, Any]]:
        where = ["--group", self.prefix, "--json", "--bootstrap", self.bootstrap, "--prefix", self.prefix]
        command = [sys.executable, "-m", "equipoise", "configure", "--deal", *where]
        done = await asyncio.to_thread(subprocess.run, [*command, *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, 1), done.stderr
        document = json.loads(done.stdout)
        check("configure#dealt", document)
        return done.returncode, document


@pytest.mark.smoke
async def test_kip_169_example_is_balanced_in_the_first_generation(bootstrap: str, prefix: str) -> None:
    group = Group(bootstrap, prefix, records=[100_000, 60_000, 50_000])
    await make_topic(bootstrap, group.topic, 3)
    await group.fill()
    async with Worker(group.settings), group.running("C0", "C1"):
        shares = await group.are_shared([1, 2])
        assert sorted(shares.values()) == [[0], [1, 2]], "100,000 and 110,000 records"
    assert group.said_lags()[0] == {0: 100_000, 1: 60_000, 2: 50_000}


async def test_cold_start_uses_lags_of_190000_and_15_records(bootstrap: str, prefix: str) -> None:
    """Committed records do not count, whatever the size of the topic."""
    group = Group(bootstrap, prefix, records=[40_015, 190_000, 15, 15])
    await make_topic(bootstrap, group.topic, 4)
    await group.fill()
    await group.commit([40_000, 0, 0, 0])
    async with Worker(group.settings), group.running("m1", "m2", "m3"):
        shares = await group.are_shared([1, 1, 2])
        assert [1] in shares.values(), "whoever has 190,000 has nothing else"
    assert group.said_lags()[0] == {0: 15, 1: 190_000, 2: 15, 3: 15}


async def test_lag_without_commits_follows_auto_offset_reset(bootstrap: str, prefix: str) -> None:
    group = Group(bootstrap, prefix, records=[500, 40], options={"auto_offset_reset": "latest"})
    await make_topic(bootstrap, group.topic, 2)
    await group.fill()
    await group.commit([450])
    async with Worker(group.settings), group.running("m1"):
        await group.are_shared([2])
    assert group.said_lags()[0] == {0: 50, 1: 0}


@pytest.mark.slow
async def test_deal_command_shows_and_then_makes_the_moves(bootstrap: str, prefix: str) -> None:
    group = Group(bootstrap, prefix, records=[0, 0, 0])
    group.settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, worker_session_timeout_ms=6_000, observe_interval_ms=500)
    await make_topic(bootstrap, group.topic, 3)
    async with Worker(group.settings), group.running("C0", "C1"):
        shares = await group.are_shared([1, 2])
        pair = next(partitions for partitions in shares.values() if len(partitions) == 2)
        most, less = pair
        rest = ({0, 1, 2} - set(pair)).pop()
        amounts = {most: 100_000, less: 60_000, rest: 50_000}
        await group.fill([amounts[partition] for partition in range(3)])
        await until(lambda: all(any(lags.get(each, 0) > amount - 1_000 for lags in group.said_lags()) for each, amount in amounts.items()))
        await until(lambda: all(group.reported_lags().get(each, 0) > amount - 1_000 for each, amount in amounts.items()))
        assert group.shares() == shares, "what is even by count stays, whatever its lags"

        async with asyncio.timeout(60):
            now: list[int] = []
            while now != [50_000, 160_000]:  # what a member said of its tasks while they were filled comes before what the worker observed
                code, shown = await group.deal("--dry-run")
                assert (code, shown["outcome"]) == (0, "dry run")
                now = sorted(round(each["now"], -4) for each in shown["members"])
        assert len(shown["moves"]) == 1
        assert sorted(round(each["after"], -4) for each in shown["members"]) == [100_000, 110_000]
        assert group.shares() == shares, "nothing was asked"

        async with asyncio.timeout(60):
            dealt = shown
            while dealt["outcome"] != "dealt":  # until the last report, reports of members and of the worker alternate
                code, dealt = await group.deal()
                assert (code, dealt["outcome"] in ("dealt", "unchanged")) == (0, True)
        assert len(dealt["moves"]) == 1
        assert dealt["change_id"][:5] == "deal-"
        await until(lambda: sorted(group.shares().values()) == sorted([[most], sorted([less, rest])]))
        async with asyncio.timeout(60):
            again = dealt
            while again["outcome"] != "unchanged":  # a new owner reports the lag of what it has just read
                code, again = await group.deal()
        assert (code, again["moves"]) == (0, [])
        async with AnsweredFact(group.settings, prefix) as live:
            await live.machine()
            await live.say(DealRequested())
            async with asyncio.timeout(30):
                assert await live.is_answered_within(20)  # without a decision, and long before the next tick
            assert live.rejection() is None


async def test_group_deals_by_itself_when_lags_are_uneven(bootstrap: str, prefix: str) -> None:
    options = {"deal_after_ms": 4_000, "deal_gain_records": 5_000}
    group = Group(bootstrap, prefix, records=[0, 0, 0, 0], options=options, probing_interval_ms=1_000)
    await make_topic(bootstrap, group.topic, 4)
    async with Worker(group.settings), group.running("C0", "C1"):
        shares = await group.are_shared([2, 2])
        hot = shares["C0"]
        await group.fill([20_000 if partition in hot else 1 for partition in range(4)])
        await until(lambda: all(len({*hot} & {*partitions}) == 1 for partitions in group.shares().values()))
        dealt = await group.are_shared([2, 2])
        await asyncio.sleep(6)
        assert group.shares() == dealt, "nothing pays any more"
    with open_log(f"kafka://{bootstrap}/{prefix}") as log:
        told = explain(log.read(), next(TaskId(0, partition) for partition in hot if partition in dealt["C1"]), group=prefix)
    moved = [move.uneven for move in told.moves if move.uneven is not None]
    assert [uneven.uneven_ms >= options["deal_after_ms"] and uneven.behind["C0"] > 30_000 for uneven in moved] == [True]
