"""A group of which each topic can be lost: a processor without state sends what it reads to one
that counts, and each fifth record to the dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from aiokafka.errors import PolicyViolationError

from equipoise.kafka.client import NewTopic, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import partition_count
from equipoise.member import ErrorPolicy, Member, Processor, Record, TaskContext
from equipoise.member.tasks.positions import PARTITIONS, SETTINGS, positions_topic
from equipoise.operations.follower import Follower
from equipoise.replay.trouble import wrong
from tests.live.kafka import admin_client, delete_topics, reader, topic_names, writer

_SETTINGS = {"s1": {"cleanup.policy": "compact"}, "positions": SETTINGS}
PATIENCE_S = 150.0
LATE_S = 1.5
"""What is processed twice shows within this time of the last result."""
TOPICS = ("source", "second", "s1", "positions", "out", "dead")
"""What can be lost: a source, one between two processors, a changelog, positions, outputs, and dead
letters.
"""


class Chain:
    """One group, named after the topic that it is to lose, with one partition of each topic."""

    def __init__(self, bootstrap: str, prefix: str, lost: str, guarantee: str, folder: Path) -> None:
        self.connection, self.lost, self._prefix, self._guarantee = Connection(bootstrap=bootstrap), lost, prefix, guarantee
        self.group = f"{prefix}-{lost}"
        self.folder = folder / lost
        self.names = {what: f"{self.group}-{what}" for what in TOPICS} | {"positions": positions_topic(self.group)}
        self.sent: list[bytes] = []
        self.counted: dict[bytes, int] = {}
        """Key -> how many records of it were counted, by the last call of the handler."""

    @property
    def topic(self) -> str:
        """Of Kafka, which is to be lost."""
        return self.names[self.lost]

    def _forward(self, record: Record, context: TaskContext) -> None:
        if record.value.startswith(b"bad"):
            raise ValueError("bad")
        context.send(self.names["second"], record.value, key=record.key)

    def _count(self, record: Record, context: TaskContext) -> None:
        self.counted[record.key] = int(context.state.get(record.key) or 0) + 1
        context.state.put(record.key, b"%d" % self.counted[record.key])
        context.send(self.names["out"], record.value, key=record.key)

    def member(self) -> Member:
        source, second, state, out, dead = (self.names[what] for what in ("source", "second", "s1", "out", "dead"))
        return Member(
            self.group,
            processors=[
                Processor(self._forward, sources=source, outputs=(second, dead), name="first"),
                Processor(self._count, sources=second, state=state, outputs=out, name="last"),
            ],
            member_id="m1",
            guarantee=self._guarantee,
            on_error=ErrorPolicy.dead_letter(dead),
            state_directory=self.folder,
            prefix=self._prefix,
            connection=self.connection,
            session_timeout_ms=40_000,
            lease_margin_ms=2_000,
            heartbeat_interval_ms=500,
            commit_interval_ms=50,
        )

    async def make(self, *which: str) -> None:
        """Makes these topics."""
        for what in which:
            await make(self.connection, self.names[what], _SETTINGS.get(what, {}), PARTITIONS if what == "positions" else 1)

    async def lose(self, fault: str) -> None:
        """Its topic is made again, loses its beginning, or is deleted."""
        if fault == "loses its beginning":
            await lose_beginning(self.connection, self.topic, _SETTINGS.get(self.lost, {}))
            return
        await delete(self.connection, self.topic)
        if fault == "is made again":
            await self.make(self.lost)

    async def write(self, records: int) -> None:
        """So many, each so late that it has a commit of its own."""
        async with writer(self.connection) as producer:
            for _ in range(records):
                number = len(self.sent)
                self.sent.append(b"%s%d" % (b"bad" if number % 5 == 4 else b"good", number))
                await producer.send_and_wait(self.names["source"], self.sent[-1], key=b"k%d" % (number % 2), partition=0)
                await asyncio.sleep(0.2)

    # Results

    def wanted(self, what: str) -> set[bytes]:
        """What is to be in the topic of outputs, or of dead letters."""
        bad = {each for each in self.sent if each.startswith(b"bad")}
        return bad if what == "dead" else {*self.sent} - bad

    async def results(self, what: str) -> Counter[bytes]:
        """What the topic has, of ended transactions."""
        place, found = TopicPartition(self.names[what], 0), Counter[bytes]()
        async with reader(self.connection, read_committed=True) as consumer:
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            consumer.seek(place, (await consumer.beginning_offsets([place]))[place])
            while await consumer.position(place) < end:
                found.update(each.value for records in (await consumer.getmany(timeout_ms=200)).values() for each in records)
        return found

    async def until_processed(self, lost: Iterable[bytes] = ()) -> dict[str, Counter[bytes]]:
        """Waits until the results of all records are there. `lost`: those that may be gone with
        their topic.
        """
        gone = {what: {*lost} if what == self.lost else set() for what in ("out", "dead")}
        found: dict[str, Counter[bytes]] = {}

        async def are_there() -> bool:
            found.update({what: await self.results(what) for what in gone})
            return all(found[what].keys() >= self.wanted(what) - gone[what] for what in gone)

        try:
            await until(are_there, lambda: {what: sorted(self.wanted(what) - gone[what] - found[what].keys()) for what in gone})
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {await self.troubles()}") from None
        return found

    async def judge(self, again: Iterable[bytes] = (), lost: Iterable[bytes] = ()) -> None:
        """Asserts that everything is processed, with exactly once no more often than promised.
        `again`: records that are counted again.
        """
        await self.until_processed(lost)
        await asyncio.sleep(LATE_S)
        found = await self.until_processed(lost)
        if self._guarantee == "exactly_once":
            twice = {each: times for results in found.values() for each, times in results.items() if times > 1 + (each in {*again})}
            assert twice == {}
        if self._guarantee == "exactly_once" or self.lost == "s1":
            numbers = [int(each.removeprefix(b"good")) for each in self.wanted("out")]
            assert self.counted == {b"k%d" % parity: sum(number % 2 == parity for number in numbers) for parity in (0, 1)}

    async def troubles(self) -> list[str]:
        """What `equipoise status` says of the group, the worst first."""
        follower = Follower(self.connection, Topics(self._prefix), self.group)
        await follower.catch_up()
        return [text for _, lead in follower.groups() for text in wrong(lead.machine.state, None if lead.halted is None else str(lead.halted))]


async def until(holds: Callable[[], Awaitable[bool]], says: Callable[[], object] = lambda: "") -> None:
    """Asks again and again. Raises AssertionError, with what `says` gives."""
    end_s = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < end_s, f"not after {PATIENCE_S:.0f} s: {says()}"
        await asyncio.sleep(0.3)


@contextlib.asynccontextmanager
async def deleting_allowed(connection: Connection, topic: str, settings: Mapping[str, str]) -> AsyncIterator[None]:
    """Brokers delete no records of a compacted topic: for the block it has another policy.
    `settings`: of the topic.
    """
    async with admin_client(connection) as admin:
        await admin.set_topic_configs(topic, {**settings, "cleanup.policy": "delete"})
        try:
            yield
        finally:
            await admin.set_topic_configs(topic, settings)


async def lose_beginning(connection: Connection, topic: str, settings: Mapping[str, str]) -> None:
    """All its records: nothing is in the partitions, and their next offsets are as before."""
    places = [TopicPartition(topic, number) for number in range(await partition_count(connection, topic))]
    async with deleting_allowed(connection, topic, settings), admin_client(connection) as admin:

        async def is_deleted() -> bool:
            try:
                await admin.delete_records(dict.fromkeys(places, -1))
            except PolicyViolationError:  # the broker does not know of the other policy yet
                return False
            return True

        await until(is_deleted)


async def delete(connection: Connection, topic: str) -> None:
    """Returns when the broker has."""
    async with admin_client(connection) as admin:
        await delete_topics(admin, [topic])
        while topic in await topic_names(admin):  # noqa: ASYNC110  # the broker deletes it
            await asyncio.sleep(0.05)


async def make(connection: Connection, topic: str, settings: Mapping[str, str], partitions: int = 1) -> None:
    async with admin_client(connection) as admin:
        while await admin.create_topics([NewTopic(topic, partitions, 1, dict(settings))]):  # noqa: ASYNC110  # it is still deleted
            await asyncio.sleep(0.05)
        while not await partition_count(connection, topic):  # noqa: ASYNC110  # nor does the broker know of it
            await asyncio.sleep(0.05)


class OfTopic(Protocol):
    """`lost`: which topic is lost."""

    lost: str


Lost = TypeVar("Lost", bound=OfTopic)


async def side_by_side(groups: Sequence[Lost], cell: Callable[[Lost], Awaitable[None]]) -> None:
    """Plays the cell of each topic at the same time. Raises ExceptionGroup that names those that
    failed.
    """
    errors = await asyncio.gather(*(cell(each) for each in groups), return_exceptions=True)
    failed = {each.lost: error for each, error in zip(groups, errors, strict=True) if error is not None}
    for error in failed.values():
        if not isinstance(error, Exception):
            raise error
    if failed:
        raise ExceptionGroup(f"lost: {', '.join(failed)}", [error for error in failed.values() if isinstance(error, Exception)])
