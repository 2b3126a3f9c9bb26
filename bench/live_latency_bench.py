"""Time from sending a fact to reading its decision, relative to one produce-consume round trip on
the same broker in the same run.

The decision's way holds two such trips: the fact to the worker, the decision back. The clients are
the same ones for both: one producer, one consumer, in this process; a worker as it is deployed
leads in another, and the members of its groups live in a third. Asked by turns, one at a time:

- a record to a topic that nobody else uses, read back: the round trip;
- a fact that is answered with one decision and changes nothing (MemberLeft of somebody who is not
  there);
- a member that joins a group: the assignor decides, and the joined member reads what it is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.live import Groups, Row, WorkerProcess, broker, group_name, quantile, quantiles_text
from equipoise.events.decisions import EventRejected, MemberAssigned, MemberExpired
from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import Fact, MemberJoined, MemberLeft
from equipoise.kafka.client import NewTopic, acknowledged
from equipoise.kafka.started_clients import admin_client
from equipoise.log.kafka.envelope import decision_record, group_key, pack_fact, stored_decision
from equipoise.worker.settings import WorkerSettings

GROUPS, MEMBERS, TASKS = 200, 2, 8
TURNS = 1_000
WARM_TURNS = 100
PAUSE_S = 0.01
ANSWER_S = 30.0
GOAL = {0.5: 2.5, 0.99: 4.0}


class NoAnswerError(EquipoiseError):
    """No answer within ANSWER_S."""


class Prober:
    """Sends one record at a time and waits for the answer. Uses only partition 0."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._echo = f"{settings.prefix}.echo"  # a topic without other readers and writers
        self._arrived: asyncio.Future[float] | None = None
        self._wanted: Any = None

    async def __aenter__(self) -> Prober:
        options = self._settings.options()
        async with admin_client(self._settings) as admin:
            await admin.create_topics([NewTopic(self._echo, 1, 1)])
        self._producer = self._settings.clients.producer()
        self._consumer = AIOKafkaConsumer(**options, enable_auto_commit=False, auto_offset_reset="latest")
        await self._producer.start()
        await self._consumer.start()
        places = [TopicPartition(topic, 0) for topic in (self._echo, self._settings.topics.decisions)]
        self._consumer.assign(places)
        await self._consumer.seek_to_end(*places)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._consumer.stop()
        await self._producer.stop()

    async def _read(self) -> None:
        async for record in self._consumer:
            read_s = time.perf_counter()
            if self._arrived is not None and not self._arrived.done() and self._wanted(record):
                self._arrived.set_result(read_s)

    async def _ask(self, topic: str, key: bytes, value: bytes, wanted: Any) -> float:
        self._arrived, self._wanted = asyncio.get_running_loop().create_future(), wanted
        sent_s = time.perf_counter()
        sent = await self._producer.send(topic, value, key=key, partition=0)
        try:
            async with asyncio.timeout(ANSWER_S):
                read_s = await self._arrived
        except TimeoutError:
            raise NoAnswerError(f"what was sent to {topic} did not come back in {ANSWER_S:.0f} s") from None
        await sent
        return read_s - sent_s

    async def round_trip(self, number: int) -> float:
        """Seconds."""
        value = b"%0150d" % number
        return await self._ask(self._echo, b"", value, lambda record: record.topic == self._echo and record.value == value)

    async def decision(self, group: str, fact: MemberJoined | MemberLeft, kind: type[EventRejected] | type[MemberAssigned]) -> float:
        """Seconds until the first decision of this kind about the fact's member is read."""

        def answers(record: Any) -> bool:
            if record.topic == self._echo or record.key != group_key(group):
                return False
            decision = decision_record(stored_decision(record.key, record.value, "decisions")).decision
            return isinstance(decision, kind) and (decision.member_id, decision.incarnation) == (fact.member_id, fact.incarnation)

        return await self._ask(self._settings.topics.facts, group_key(group), pack_fact(fact), answers)

    async def expiry(self, group: str, member_id: str, within_s: float) -> float:
        """When the member's removal is read, by time.monotonic."""

        def tells(record: Any) -> bool:
            if record.topic == self._echo or record.key != group_key(group):
                return False
            decision = decision_record(stored_decision(record.key, record.value, "decisions")).decision
            return isinstance(decision, MemberExpired) and decision.member_id == member_id

        self._arrived, self._wanted = asyncio.get_running_loop().create_future(), tells
        async with asyncio.timeout(within_s):
            await self._arrived
        return time.monotonic()

    async def say(self, group: str, fact: Fact) -> None:
        """Sends a fact and ignores its answer; returns when it is appended."""
        await (await self.post(group, pack_fact(fact)))

    async def post(self, group: str, value: bytes) -> asyncio.Future[Any]:
        """Sends a packed fact; the future is done when it is appended."""
        posted: asyncio.Future[Any] = await self._producer.send(self._settings.topics.facts, value, key=group_key(group), partition=0)
        return posted

    async def post_all(self, group: str, values: Sequence[bytes]) -> None:
        """Sends packed facts, in as few batches as possible; returns when they are appended."""
        place, key = TopicPartition(self._settings.topics.facts, 0), group_key(group)
        await self._producer.partitions_for(place.topic)
        await acknowledged(self._producer.send_batches(place, [(key, value, [], None) for value in values]))


def joining(number: int) -> MemberJoined:
    """The join of a temporary member."""
    return MemberJoined(
        member_id="visitor", incarnation=number, session_timeout_ms=30_000, lease_margin_ms=3_000, topology_epoch=1, join_nonce=f"v{number}"
    )


async def measured(settings: WorkerSettings) -> dict[str, list[float]]:
    """Seconds of every turn, by measure."""
    found: dict[str, list[float]] = {"round trip": [], "answer": [], "join": []}
    async with Prober(settings) as prober:
        for turn in range(WARM_TURNS + TURNS):
            group = group_name(turn % GROUPS)
            took = {"round trip": await prober.round_trip(turn)}
            await asyncio.sleep(PAUSE_S)
            took["answer"] = await prober.decision(group, MemberLeft(member_id="nobody", incarnation=turn), EventRejected)
            await asyncio.sleep(PAUSE_S)
            if turn % 5 == 0:
                took["join"] = await prober.decision(group, joining(turn), MemberAssigned)
                await prober.say(group, MemberLeft(member_id="visitor", incarnation=turn))
                await asyncio.sleep(PAUSE_S)
            if turn >= WARM_TURNS:
                for what, seconds in took.items():
                    found[what].append(seconds)
    return found


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with broker() as bootstrap:
        settings = WorkerSettings(bootstrap=bootstrap, prefix="latency")
        with WorkerProcess(settings) as worker:
            worker.until_said("taken over")
            with Groups(settings, GROUPS, MEMBERS, TASKS):
                found = asyncio.run(measured(settings))
    trips = found["round trip"]
    rows = []
    for what, measure in (("answer", "an answer that changes nothing"), ("join", "a joiner's assignment")):
        for part, most in GOAL.items():
            ratio = quantile(found[what], part) / quantile(trips, part)
            note = f"{quantiles_text(found[what])} over {quantiles_text(trips)} (p50 / p99)"
            note += f"; goal: at most {most}" if what == "answer" else "; the assignor's time is in it"
            rows.append((f"{measure}, fact sent to decision read / round trip, p{round(part * 100)}", ratio, note))
    return rows
