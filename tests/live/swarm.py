"""Many members over a real broker in one process: the real `MemberSession`s, which restore in no
time and process nothing.

For tests of the worker, where thousands of members matter and their data does not. What they check
is what every member must hold at every moment: no two of them may process one task.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable
from typing import Any

from aiokafka import TopicPartition

from equipoise.events.decisions import BalanceEvaluated
from equipoise.events.facts import Fact, GroupConfigured, LagReported, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import LOG_COMPRESSION
from equipoise.kafka.connection import Connection
from equipoise.kafka.producer.shell import AppendedAt
from equipoise.kafka.started_clients import reader
from equipoise.log.kafka.envelope import fact_row, group_key, member_decision, pack_fact, partition_of, published
from equipoise.log.kafka.log_opening import read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.statemachine.member import MemberSession, MemberSettings, Reception
from equipoise.statemachine.session_state import End

_NONCES = itertools.count(1)


def now_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def topology(partitions: int, prefix: str = "", epoch: int = 1) -> TopologyDeclared:
    """One stateful sub-topology."""
    part = Subtopology(subtopology=0, partitions=partitions, stateful=True, source_topics=(f"{prefix}in",), changelog_topics=(f"{prefix}log",))
    return TopologyDeclared(epoch=epoch, subtopologies=(part,))


async def everything(connection: Connection, topic: str, partition: int = 0) -> list[Any]:
    """All records of a topic's partition."""
    place = TopicPartition(topic, partition)
    found: list[Any] = []
    async with reader(connection) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        consumer.seek(place, (await consumer.beginning_offsets([place]))[place])
        while await consumer.position(place) < end:
            found += (await consumer.getmany(timeout_ms=500)).get(place, ())
    return found


class SwarmMember:
    """One member: incarnation after incarnation, until it is stopped."""

    def __init__(self, group: str, member_id: str, *, incarnations: int = 0, **settings: Any) -> None:
        self.group = group
        self.member_id = member_id
        self.settings = settings
        self.session: MemberSession | None = None
        self.incarnations = incarnations
        self.killed = False
        self.restarting = False
        """Its session is to end, and the next one has the copies of this one."""
        self.copies: set[TaskId] = set()
        self.calm_until_ms = 0
        """Before this it has nothing to do or say, unless a decision arrives."""

    def begin(self, log_id: str, last_number: int, sent_ms: int) -> Fact:
        self.incarnations += 1
        self.calm_until_ms = 0
        given = MemberSettings(
            member_id=self.member_id,
            incarnation=self.incarnations,
            topology_epoch=1,
            join_nonce=f"n{next(_NONCES)}",
            stateful_subtopologies=frozenset({0}),
            **{"heartbeat_interval_ms": 500, "session_timeout_ms": 20_000, "lease_margin_ms": 5_000, **self.settings},
        )
        self.session = MemberSession(given)
        if self.restarting:
            for task in self.copies:
                self.session.copy_progress(task, 0, now_ms())
        self.restarting, self.copies = False, set()
        self.session.reader_placed(log_id=log_id, last_number=last_number, sent_ms=sent_ms, answered_ms=now_ms())
        return self.session.join(now_ms())

    def work(self) -> list[Fact]:
        """Closes and restores tasks as assigned, and reports it."""
        session, now = self.session, now_ms()
        assert session is not None
        for task in sorted(session.closing):
            session.task_closed(task, now)
        kept = {*session.grants, *session.standby, *session.warmup}
        for task in sorted(kept):
            session.copy_progress(task, 0, now)
        self.copies |= kept
        facts = session.poll(now)
        self.calm_until_ms = session.next_poll_ms or 0
        return facts

    def restart(self) -> None:
        """Stops when the leader lets it, and is back at once, with its copies."""
        assert self.session is not None, "it has joined"
        self.restarting, self.calm_until_ms = True, 0
        self.session.intend_restart(now_ms())

    def running(self) -> list[TaskId]:
        if self.session is None or self.killed:
            return []
        return [task for task in list(self.session.grants) if self.session.may_process(task, now_ms())]  # a lease found lapsed takes them all


class Swarm:
    """Members of any number of groups. `tick` as often as there is time; `owners` says who runs
    what.
    """

    def __init__(self, connection: Connection, topics: Topics) -> None:
        self.connection, self.topics = connection, topics
        self.members: list[SwarmMember] = []
        self.last_number: dict[str, int] = {}
        self.sent = 0
        self.read = 0
        self.lost = 0
        """Incarnations that ended by themselves: expired, refused, or without a lease."""
        self.overlaps: list[str] = []
        self.verdicts: dict[str, str] = {}
        """Group -> the leader's last verdict on its balance."""
        self.decided_s: dict[str, float] = {}
        """Group -> when its last decision was read (monotonic, s)."""
        self._reached_end_ms = 0
        self._partitions, self._log_id = 0, ""
        self._sends_alone = False
        self._task: asyncio.Task[None] | None = None
        self._by_group: dict[str, list[SwarmMember]] = {}

    async def __aenter__(self) -> Swarm:
        opened = await read_opening(self.connection, self.topics, timeout_s=60)
        self._partitions, self._log_id = opened.partitions, opened.log_id
        self._producer = self.connection.clients.producer(compression_type=LOG_COMPRESSION)
        self._consumer = self.connection.clients.consumer(auto_offset_reset="earliest", fetch_max_wait_ms=50)
        await self._producer.start()
        await self._consumer.start()
        places = [TopicPartition(self.topics.decisions, partition) for partition in range(self._partitions)]
        self._consumer.assign(places)
        for place in places:
            self._consumer.seek(place, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._producer.stop()
        await self._consumer.stop()

    async def configure(self, group: str, config: GroupConfigured, *facts: Fact) -> None:
        for fact in (config, *facts):
            await (await self.send(group, fact))

    async def send(self, group: str, fact: Fact) -> asyncio.Future[Any]:
        self.sent += 1
        key, value, partition = group_key(group), pack_fact(fact), partition_of(group, self._partitions)
        if self._sends_alone:
            await self._producer.partitions_for(self.topics.facts)
            [batch] = self._producer.send_batches(TopicPartition(self.topics.facts, partition), [(key, value, [], None)])
            return batch.appended
        return await self._producer.send(self.topics.facts, value, key=key, partition=partition)

    async def end_of_facts(self, group: str) -> int:
        """Offset of the next fact in the group's partition."""
        place = TopicPartition(self.topics.facts, partition_of(group, self._partitions))
        ends: dict[TopicPartition, int] = await self._consumer.end_offsets([place])
        return ends[place]

    def add(self, group: str, names: Iterable[str], **settings: Any) -> list[SwarmMember]:
        added = [SwarmMember(group, name, **settings) for name in names]
        self.members += added
        self._by_group.setdefault(group, []).extend(added)
        return added

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send_alone(self) -> None:
        """From now on each fact is in a batch of its own, as when each member has a producer."""
        self._sends_alone = True

    def look(self) -> None:
        """Raises what has ended it."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def _run(self) -> None:
        while True:
            await self.tick()
            await asyncio.sleep(0.01)

    async def tick(self) -> None:
        """Read what was decided, and let every member say what it has to say."""
        sent_ms = now_ms()
        batches = await self._consumer.getmany(timeout_ms=0, max_records=5_000)
        for records in batches.values():
            for record in records:
                stored = published(record)
                if stored is not None:
                    self._receive(member_decision(stored))
        if not batches:
            self._reached_end_ms = sent_ms
        now = now_ms()
        for member in self.members:
            if member.killed or member.calm_until_ms > now:
                continue
            if now_ms() - sent_ms > 5_000:
                return  # reads on first: what it knows of the log grows old
            session = member.session
            if session is None or (session.ended is not None and not session.closing and (member.restarting or not session.stopping)):
                if session is not None:
                    self.lost += session.ended not in (End.RELEASED, End.LEFT)
                    for fact in session.poll(now):  # that it has left
                        await self._say(member, fact)
                await self._say(member, member.begin(self._log_id, self.last_number.get(member.group, 0), sent_ms))
                continue
            session.fetch_completed(sent_ms=self._reached_end_ms, reached_end=True, now_ms=now)
            for fact in member.work():
                await self._say(member, fact)

    def _receive(self, decision: Any) -> None:
        self.read += 1
        if decision.number <= self.last_number.get(decision.group, 0):
            return
        assert decision.number == self.last_number.get(decision.group, 0) + 1, "the topic holds every decision in order"
        self.last_number[decision.group] = decision.number
        self.decided_s[decision.group] = time.monotonic()
        if isinstance(decision, DecisionRecord) and isinstance(decision.decision, BalanceEvaluated):
            self.verdicts[decision.group] = decision.decision.verdict
        for member in self._by_group.get(decision.group, ()):
            if member.session is not None and not member.killed:
                assert member.session.receive(decision, now_ms()) is not Reception.GAP
                member.calm_until_ms = 0

    async def _say(self, member: SwarmMember, fact: Fact) -> None:
        sent_ms, session = now_ms(), member.session
        number = fact.number if isinstance(fact, LagReported) else None
        future = await self.send(member.group, fact)

        def acknowledged(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None and session is not None:
                session.heartbeat_acknowledged(sent_ms=sent_ms, now_ms=now_ms(), report_number=number)

        future.add_done_callback(acknowledged)

    def owners(self, group: str) -> dict[TaskId, str]:
        """Task -> who processes it now. Two on one task is what must never be."""
        owners: dict[TaskId, str] = {}
        for member in self._by_group.get(group, ()):
            for task in member.running():
                if task in owners:
                    self.overlaps.append(f"{group} {task}: {owners[task]} and {member.member_id}")
                owners[task] = member.member_id
        return owners

    async def until_all_run(self, group: str, tasks: int, members: Iterable[str], *, timeout_s: float = 90.0) -> dict[TaskId, str]:
        """Waits until `tasks` tasks are run by exactly these members."""
        wanted = set(members)
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            owners = self.owners(group)
            if len(owners) == tasks and set(owners.values()) == wanted:
                return owners
            await asyncio.sleep(0.05)
        raise AssertionError(f"{group}: {self.owners(group)} and not {tasks} tasks on {sorted(wanted)}")


def checksum_of(group: str, fact: Fact, at: AppendedAt) -> int:
    """The checksum of a fact that was appended there, as its decisions have it."""
    return fact_row(group_key(group), pack_fact(fact), at.offset, at.append_ms).checksum
