"""The member's line to its leader: facts out, decisions in, and proof of how far it has read. All of it on the member's own thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from equipoise.member.options import MemberOptions, boot_ms
from events.facts import Fact
from events.log.kafka.clients import abandon_producer, start_client, stop_client
from events.log.kafka.connection import Connection
from events.log.kafka.envelope import decision_record, group_key, group_of, pack_fact, partition_of, stored_decision
from events.log.kafka.opening import reaching, read_opening
from events.log.kafka.topics import Topics
from events.records import DecisionRecord
from statemachine.member import Reception

_LOG = logging.getLogger(__name__)
RETRY_S = 0.3
FIRST_LOOK_BACK = 1_000
"""Decisions from the end in which the group's are looked for at first; eight times as many each further time."""


class Link:
    """`received` gets each decision of the group, in order; `acknowledged` each fact that the broker has appended, with when it was first sent."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        options: MemberOptions,
        *,
        received: Callable[[DecisionRecord], Reception],
        read_up_to_end: Callable[[int], None],
        acknowledged: Callable[[Fact, int], None],
    ) -> None:
        self._connection = connection
        self._group = group
        self._options = options
        self._topics = Topics(options.prefix)
        self._received = received
        self._read_up_to_end = read_up_to_end
        self._acknowledged = acknowledged
        self._partition = 0
        self._consumer: Any = None
        self._producer: Any = None
        self._decisions: Any = None
        self._outbox: asyncio.Queue[tuple[Fact, int]] = asyncio.Queue()
        self._read_to = 0
        self._read_on = asyncio.Event()
        self._placed = asyncio.Event()
        self._turn = asyncio.Lock()
        """One coroutine at a time moves the reader."""
        self._next_number_position = 0

    async def open(self) -> None:
        """Connects, and learns the group's partition from the log. Raises InputError, NotThereError."""
        opening = await read_opening(self._connection, self._topics, timeout_s=self._options.start_timeout_ms / 1_000)
        with reaching(self._connection):
            from aiokafka import AIOKafkaConsumer, TopicPartition

            self._partition = partition_of(self._group, opening.partitions)
            self._decisions = TopicPartition(self._topics.decisions, self._partition)
            self._consumer = AIOKafkaConsumer(
                **self._connection.options(), enable_auto_commit=False, auto_offset_reset="none", request_timeout_ms=self._options.request_timeout_ms
            )
            await start_client(self._consumer)
            await self._new_producer()

    async def close(self) -> None:
        if self._producer is not None:
            await stop_client(self._producer)
        if self._consumer is not None:
            await stop_client(self._consumer)

    async def _new_producer(self) -> None:
        from aiokafka import AIOKafkaProducer

        if self._producer is not None:
            await abandon_producer(self._producer)
        timeout_ms = self._options.request_timeout_ms
        self._producer = AIOKafkaProducer(**self._connection.options(), enable_idempotence=True, request_timeout_ms=timeout_ms)
        await start_client(self._producer)

    # Where decisions end

    async def place(self) -> tuple[int, int]:
        """Places the reader at the end, where it stays until `begin_reading`. Gives the highest number of the group's decisions before it, 0 if
        there is none, and when the end was asked for."""
        self._placed.clear()
        async with self._turn:
            asked_ms = boot_ms()
            end = (await self._consumer.end_offsets([self._decisions]))[self._decisions]
            begin = (await self._consumer.beginning_offsets([self._decisions]))[self._decisions]
            self._consumer.assign([self._decisions])
            number = await self._highest_number(begin, end)
            self._go_to(end)
            self._next_number_position = end
        return number, asked_ms

    def begin_reading(self) -> None:
        """From the place on, decisions are handed in."""
        self._placed.set()

    async def _highest_number(self, begin: int, end: int) -> int:
        """Not the last one: a worker that was paused and has not heard yet that another one leads publishes what it had decided once more."""
        looked_from, back = end, FIRST_LOOK_BACK
        while looked_from > begin:
            upper, looked_from, back = looked_from, max(begin, looked_from - back), back * 8
            self._consumer.seek(self._decisions, looked_from)
            number, position = 0, looked_from
            while position < upper:
                batch = await self._consumer.getmany(self._decisions, timeout_ms=1_000)
                for record in batch.get(self._decisions, ()):
                    if record.offset < upper and group_of(record.key) == self._group:
                        number = max(number, self._decode(record).number)
                position = await self._consumer.position(self._decisions)
            if number:
                return number
        return 0

    def _go_to(self, position: int) -> None:
        self._consumer.seek(self._decisions, position)
        self._read_to = position
        self._read_on.set()

    def _decode(self, record: Any) -> DecisionRecord:
        return decision_record(stored_decision(record.key, record.value, f"{record.topic}/{record.partition}@{record.offset}"))

    # Decisions in

    async def read(self) -> None:
        """Reads on from each place, for ever. Raises LogError for what this build cannot read."""
        from aiokafka.errors import KafkaError

        while True:
            await self._placed.wait()
            try:
                async with self._turn:
                    whole = await self._read_some()
            except KafkaError as error:
                _LOG.info("group %s: decisions cannot be read now: %r", self._group, error)
                whole = False
            if not whole:
                await asyncio.sleep(RETRY_S)

    async def _read_some(self) -> bool:
        """False: a decision was missing, and is to be read again (PROTOCOL L4). Should it be missing for good, the lease ends of that."""
        batch = await self._consumer.getmany(self._decisions, timeout_ms=1_000)
        if not self._placed.is_set():
            return True
        for record in batch.get(self._decisions, ()):
            if group_of(record.key) == self._group and self._received(self._decode(record)) is Reception.GAP:
                _LOG.info("group %s: a decision is missing before %s/%d@%d, which is read again", self._group, *self._decisions, record.offset)
                self._go_to(self._next_number_position)
                return False
            self._next_number_position = record.offset + 1
        self._read_to = await self._consumer.position(self._decisions)
        self._read_on.set()
        return True

    async def probe(self) -> None:
        """Asks where decisions end, and says when everything up to there was handed in, for ever: what the lease rests on beside heartbeats (M4).

        As good as a fetch that reached the end, and dated by us: what stood in the partition when the broker answered, later than the date, was read.
        """
        while True:
            await self.probe_once()
            await asyncio.sleep(self._options.heartbeat_interval_ms / 1_000)

    async def probe_once(self) -> None:
        from aiokafka.errors import KafkaError

        while True:
            asked_ms = boot_ms()
            try:
                end = (await self._consumer.end_offsets([self._decisions]))[self._decisions]
            except KafkaError as error:
                _LOG.info("group %s: the end of decisions is not known: %r", self._group, error)
                await asyncio.sleep(RETRY_S)
                continue
            while self._read_to < end:
                self._read_on.clear()
                await self._read_on.wait()
            self._read_up_to_end(asked_ms)
            return

    # Facts out

    def say(self, fact: Fact) -> None:
        """`fact` counts as sent now; it goes out in its turn."""
        self._outbox.put_nowait((fact, boot_ms()))

    async def said(self) -> None:
        """Returns when everything said was appended, or given up."""
        await self._outbox.join()

    async def speak(self) -> None:
        """Sends what was said, one after the other, for ever.

        What cannot be sent in time is given up: the next report says it again (PROTOCOL M2).
        """
        from aiokafka.errors import KafkaError

        broken = False
        while True:
            fact, said_ms = await self._outbox.get()
            try:
                if broken:  # an idempotent producer that has given up a batch may never be able to send another
                    await self._new_producer()
                    broken = False
                await self._producer.send_and_wait(self._topics.facts, pack_fact(fact), key=group_key(self._group), partition=self._partition)
                self._acknowledged(fact, said_ms)
            except KafkaError as error:
                _LOG.info("group %s: %s was not sent: %r", self._group, fact.__class__.__name__, error)
                broken = True
                await asyncio.sleep(RETRY_S)
            finally:
                self._outbox.task_done()

    def forget(self) -> None:
        """Drops what was said and has not gone out: it is of an incarnation that is over."""
        while not self._outbox.empty():
            self._outbox.get_nowait()
            self._outbox.task_done()
