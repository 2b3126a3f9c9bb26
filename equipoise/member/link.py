"""The member's line to its leader: facts out, decisions in, and proof of how far it has read. All
of it on the member's own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import attrs

from equipoise.events.errors import DamagedError
from equipoise.events.facts import Fact, LogOpened
from equipoise.events.log.kafka.clients import abandon_producer, call_off, start_client, stop_client
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.envelope import group_key, group_of, member_decision, pack_fact, partition_of, stored_decision
from equipoise.events.log.kafka.identity import topic_ids
from equipoise.events.log.kafka.opening import reaching, read_opening
from equipoise.events.log.kafka.topics import Topics
from equipoise.events.records import DecisionRecord, UnreadDecision
from equipoise.member.options import MemberOptions, boot_ms
from equipoise.statemachine.member import Reception

_LOG = logging.getLogger(__name__)
RETRY_S = 0.3
SAME_FOR_S = 0.1
"""How long topics may be taken for the same without being asked for their ids again, before
something is sent to them.
"""
FIRST_LOOK_BACK = 1_000
"""Decisions from the end in which the group's are looked for at first; eight times as many each
further time.
"""


@attrs.frozen
class ReaderPosition:
    """Where the reader was placed: the end of the decisions of the log `log_id`.

    `last_number`: the highest number of the group's decisions before it, 0 if there is none.
    `asked_ms`: when the end was asked for.
    """

    log_id: str
    last_number: int
    asked_ms: int


class Link:
    """Callbacks: `received` gets each decision of the group, in order; `read_up_to_end` when the
    end was asked for up to which all was handed in; `went_back` when it was asked for, if the
    partition ends below what was read or begins above it; `replaced` is called when the topics are
    another log's (docs/protocol.md#l9); `acknowledged` gets each fact that the broker has appended,
    with when it was first sent."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        options: MemberOptions,
        *,
        received: Callable[[DecisionRecord | UnreadDecision], Reception],
        read_up_to_end: Callable[[int], None],
        went_back: Callable[[int], None],
        replaced: Callable[[], None],
        acknowledged: Callable[[Fact, int], None],
    ) -> None:
        self._connection = connection
        self._group = group
        self._options = options
        self._topics = Topics(options.prefix)
        self._received = received
        self._read_up_to_end = read_up_to_end
        self._went_back = went_back
        self._replaced = replaced
        self._opening: LogOpened | None = None
        self._topic_ids: tuple[str, ...] | None = ()
        """Of facts and decisions, when the reader was placed; None: the brokers give topics no ids.
        (): it was not placed yet.
        """
        self._seen_same_s = 0.0
        """When the topics' ids were found to be these last."""
        self._moves = 0
        """Rises when the reader is placed: an answer to what was asked before says nothing about
        the present incarnation.
        """
        self._acknowledged = acknowledged
        self._partition = 0
        self.log_id = ""
        """Of the log, once it is open."""
        self._consumer: Any = None
        self._producer: Any = None
        self._decisions: Any = None
        self._producer_failed = False
        self._outbox: asyncio.Queue[tuple[Fact, int]] = asyncio.Queue()
        self._read_to = 0
        self._read_on = asyncio.Event()
        self._placed = asyncio.Event()
        self._probe_now = asyncio.Event()
        self._turn = asyncio.Lock()
        """One coroutine at a time moves the reader."""
        self._next_number_position = 0

    async def open(self) -> None:
        """Connects, and learns the group's partition from the log. Raises InputError,
        NotThereError.
        """
        self._opening = await self._read_opening(timeout_s=self._options.start_timeout_ms / 1_000)
        with reaching(self._connection):
            from aiokafka import AIOKafkaConsumer

            self._consumer = AIOKafkaConsumer(
                **self._connection.options(), enable_auto_commit=False, auto_offset_reset="none", request_timeout_ms=self._options.request_timeout_ms
            )
            await start_client(self._consumer)
            await self._new_producer()

    async def _read_opening(self, timeout_s: float = 0.0) -> LogOpened:
        from aiokafka import TopicPartition

        opening = await read_opening(self._connection, self._topics, timeout_s=timeout_s)
        self._partition, self.log_id = partition_of(self._group, opening.partitions), opening.log_id
        self._decisions = TopicPartition(self._topics.decisions, self._partition)
        return opening

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

    async def place(self) -> ReaderPosition:
        """Places the reader at the end of the decisions, where it stays until `begin_reading`.

        Raises KafkaError, and InputError when there is no log.

        The log's first record is read again unless its topics are known to be those of before.
        """
        from aiokafka.errors import StaleMetadata

        self._placed.clear()
        async with self._turn:
            self._moves += 1
            if self._opening is None or self._partition not in (self._consumer.partitions_for_topic(self._topics.decisions) or {self._partition}):
                self._opening = await self._read_opening()
            self._consumer.assign([self._decisions])
            await self._consumer.end_offsets([self._decisions])  # finds the leader
            ids = await self._ask_topic_ids()
            if ids is None or (self._topic_ids and ids != self._topic_ids):
                self._opening, former = None, self._opening  # should it not be there yet, the next time begins with it
                self._opening = await self._read_opening()
                self._producer_failed |= self._opening != former
                self._consumer.assign([self._decisions])
            asked_ms = boot_ms()
            end = (await self._consumer.end_offsets([self._decisions]))[self._decisions]
            begin = (await self._consumer.beginning_offsets([self._decisions]))[self._decisions]
            number = await self._highest_number(begin, end)
            if ids != await self._ask_topic_ids():
                raise StaleMetadata(f"the topics of {self._topics.prefix} were made again just now")
            self._topic_ids = ids
            self._go_to(end)
            self._next_number_position = end
            self._moves += 1
        return ReaderPosition(self._opening.log_id, number, asked_ms)

    async def _ask_topic_ids(self) -> tuple[str, ...] | None:
        """Of facts and decisions; None: the brokers give topics no ids. Raises KafkaError."""
        asked_s = time.monotonic()
        ids = await topic_ids(self._consumer, (self._topics.facts, self._topics.decisions), self._decisions)
        if ids == self._topic_ids:
            self._seen_same_s = asked_s
        return ids

    def begin_reading(self) -> None:
        """From the place on, decisions are handed in."""
        self._placed.set()

    async def _highest_number(self, begin: int, end: int) -> int:
        """Not the last one: a worker that was paused and has not heard yet that another one leads
        publishes what it had decided once more.
        """
        looked_from, back = end, FIRST_LOOK_BACK
        while looked_from > begin:
            upper, looked_from, back = looked_from, max(begin, looked_from - back), back * 8
            self._consumer.seek(self._decisions, looked_from)
            number, position = 0, looked_from
            while position < upper:
                batch = await self._consumer.getmany(self._decisions, timeout_ms=1_000)
                for record in batch.get(self._decisions, ()):
                    if record.offset < upper and group_of(record.key) == self._group:
                        number = max(number, self._number_of(record))
                position = await self._consumer.position(self._decisions)
            if number:
                return number
        return 0

    def _go_to(self, position: int) -> None:
        self._consumer.seek(self._decisions, position)
        self._read_to = position
        self._read_on.set()

    def _decode(self, record: Any) -> DecisionRecord | UnreadDecision:
        """Raises DamagedError."""
        return member_decision(stored_decision(record.key, record.value, _place_of(record)))

    def _number_of(self, record: Any) -> int:
        """Needs no more than the envelope, so it is found whatever build has written the decision.
        0: there is no sound decision of this log here.
        """
        try:
            stored = stored_decision(record.key, record.value, _place_of(record))
        except DamagedError as error:
            _LOG.warning("group %s: a decision is passed over: %s", self._group, error)
            return 0
        return stored.row.number if self._opening is not None and stored.log_id == self._opening.log_id else 0

    # Decisions in

    async def read(self) -> None:
        """Reads on from each place, for ever. Raises DamagedError for bytes that are no decision.
        """
        from aiokafka.errors import KafkaError, OffsetOutOfRangeError

        while True:
            await self._placed.wait()
            asked_ms = boot_ms()
            try:
                async with self._turn:
                    whole = await self._read_some()
            except OffsetOutOfRangeError:
                whole = False
                if self._placed.is_set():
                    self._went_back(asked_ms)
                    self._probe_now.set()
            except KafkaError as error:
                _LOG.info("group %s: decisions cannot be read now: %r", self._group, error)
                whole = False
            if not whole:
                await asyncio.sleep(RETRY_S)

    async def _read_some(self) -> bool:
        """False: a decision was missing, and is to be read again (PROTOCOL L4). Should it be
        missing for good, the lease ends of that.
        """
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
        """Asks where decisions end, and says when everything up to there was handed in, for ever:
        what the lease rests on beside heartbeats (M4).

        As good as a fetch that reached the end, and dated by us: what stood in the partition when
        the broker answered, later than the date, was read.
        """
        while True:
            self._probe_now.clear()
            await self.probe_once()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._probe_now.wait(), self._options.heartbeat_interval_ms / 1_000)

    async def probe_once(self) -> None:
        """The topics' ids are asked for after the end, so they are still those of the log when that
        is found (docs/protocol.md#l9).
        """
        from aiokafka.errors import KafkaError

        while True:
            await self._placed.wait()
            moves, read_to, asked_ms = self._moves, self._read_to, boot_ms()
            try:
                end = (await self._consumer.end_offsets([self._decisions]))[self._decisions]
                ids = await self._ask_topic_ids()
            except KafkaError as error:
                _LOG.info("group %s: the end of decisions is not known: %r", self._group, error)
                await asyncio.sleep(RETRY_S)
                continue
            if moves != self._moves:
                continue
            if ids != self._topic_ids:
                self._replaced()
                return
            if end < read_to:
                self._went_back(asked_ms)
                await asyncio.sleep(RETRY_S)
                continue
            while self._read_to < end and moves == self._moves:
                self._read_on.clear()
                await self._read_on.wait()
            if moves == self._moves:
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
        Nothing is sent to topics that were made again: there it could be the first record, and that
        is LogOpened's place.
        """
        from aiokafka.errors import KafkaError

        while True:
            fact, said_ms = await self._outbox.get()
            try:
                await self._send(pack_fact(fact))
                self._acknowledged(fact, said_ms)
            except KafkaError as error:
                _LOG.info("group %s: %s was not sent: %r", self._group, fact.__class__.__name__, error)
                await asyncio.sleep(RETRY_S)
            finally:
                self._outbox.task_done()

    async def _send(self, value: bytes) -> None:
        """Returns when the broker has appended it. Raises KafkaError."""
        await self._check_same_log()
        if self._producer_failed:  # an idempotent producer that has given up a batch may never be able to send another
            await self._new_producer()
        self._producer_failed = True
        producer = self._producer
        sending = asyncio.ensure_future(producer.send_and_wait(self._topics.facts, value, key=group_key(self._group), partition=self._partition))
        wait_s = SAME_FOR_S
        try:
            while not (await asyncio.wait((sending,), timeout=wait_s))[0]:  # the client sends it again and again, whatever topic is there by then
                await self._check_same_log()
                wait_s = min(1.0, 2 * wait_s)
        except BaseException:
            await abandon_producer(producer)
            await call_off(sending)
            raise
        sending.result()
        self._producer_failed = False

    async def _check_same_log(self) -> None:
        """Raises KafkaError when the topics are gone, and when they are another log's; not when no
        broker answers now.
        """
        from aiokafka.errors import KafkaError, StaleMetadata, UnknownTopicOrPartitionError

        if time.monotonic() - self._seen_same_s < SAME_FOR_S:
            return
        moves = self._moves
        try:
            ids = await self._ask_topic_ids()
        except UnknownTopicOrPartitionError:
            raise
        except KafkaError as error:
            _LOG.debug("group %s: the topics' ids are not known: %r", self._group, error)
            return
        if moves == self._moves and ids != self._topic_ids:
            self._replaced()
            raise StaleMetadata(f"the topics of {self._topics.prefix} were made again")

    def forget(self) -> None:
        """Drops what was said and has not gone out: it is of an incarnation that is over."""
        while not self._outbox.empty():
            self._outbox.get_nowait()
            self._outbox.task_done()


def _place_of(record: Any) -> str:
    return f"{record.topic}/{record.partition}@{record.offset}"
