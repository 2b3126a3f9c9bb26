"""The member's connection to its leader: sends facts, reads decisions, and proves how far it has
read. Runs on the member's own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import attrs

from equipoise.events.errors import DamagedError
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, MemberJoined, TopologyDeclared
from equipoise.events.records import DecisionRecord, UnreadDecision
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.broker_watch import AGAIN_S, BrokerWatch
from equipoise.kafka.client import (
    LOG_COMPRESSION,
    NO_EPOCH,
    ConsumedRecord,
    Consumer,
    LeaderEnd,
    Producer,
    TopicPartition,
    call_off,
    unless_abandoned,
)
from equipoise.kafka.connection import Connection
from equipoise.kafka.known_ends import batches_before, looks_back
from equipoise.kafka.started_clients import reaching
from equipoise.log.kafka.bases_reading import newest_base
from equipoise.log.kafka.envelope import group_key, group_of, member_decision, pack_fact, partition_of, stored_decision
from equipoise.log.kafka.log_opening import read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.member.options import MemberOptions
from equipoise.member.session.broker_clock import BrokerClock
from equipoise.member.tasks.error_policy import error_text
from equipoise.member.tasks.refusals import is_missing_right, name_topic
from equipoise.statemachine.member import Reception

_LOG = logging.getLogger(__name__)
_NOT_REPEATED = (GroupConfigured, TopologyDeclared, MemberJoined)
"""Facts of an incarnation's beginning, which no report repeats."""
RETRY_S = 0.3
REFUSED_RETRY_S = 2.0
"""Wait where a right is missing."""
REFUSED_AGAIN_S = 60.0
"""Time between two lines about the same missing right."""
SAME_FOR_S = 0.1
"""How long an answer that the topics are still the same is valid before a send."""
FETCH_WAIT_MS = 500
"""How long a broker holds a fetch of decisions that finds nothing. Other requests on that
connection wait for it.
"""
JOINING_FETCH_WAIT_MS = 100
"""The same until the member has an assignment: one that is refused places its reader again."""
FIRST_LOOK_BACK = 1_000
"""Number of last decisions that are searched first for the group's; each further search covers
eight times as many.
"""


@attrs.frozen
class ReaderPosition:
    """The reader's start: the end of the decisions of the log `log_id`.

    `last_number`: the highest number of the group's decisions before it; 0: there is none.
    `asked_ms`: when the end was requested (CLOCK_BOOTTIME).
    """

    log_id: str
    last_number: int
    asked_ms: int


class Link:
    """Connects a member to the log of `group`.

    Callbacks, with times in ms on CLOCK_BOOTTIME: `received(decision)` for each decision of the
    group, in order. `read_up_to_end(asked_ms)` when all decisions up to the end that was requested
    at `asked_ms` were received. `went_back(asked_ms)` when the partition ends before, or begins
    behind, what was read. `replaced()` when the topics belong to another log (docs/protocol.md#l9).
    `acknowledged(fact, queued_ms)` when the broker has appended a fact that was first sent at
    `queued_ms`. `waits()` when there is no log yet.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        options: MemberOptions,
        runtime: Runtime,
        *,
        received: Callable[[DecisionRecord | UnreadDecision], Reception],
        read_up_to_end: Callable[[int], None],
        went_back: Callable[[int], None],
        replaced: Callable[[], None],
        acknowledged: Callable[[Fact, int], None],
        brokers: BrokerWatch | None = None,
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        self._waits = waits
        self.broker_clock = BrokerClock(runtime.boot_ms, runtime.wall_us)
        self._brokers = brokers or BrokerWatch(f"group {group}", runtime.monotonic_s)
        self._connection = connection
        self._group = group
        self._options = options
        self._runtime = runtime
        self._topics = Topics(options.prefix)
        self._received = received
        self._read_up_to_end = read_up_to_end
        self._went_back = went_back
        self._replaced = replaced
        self._opening: LogOpened | None = None
        self._said_s: dict[tuple[str, str], float] = {}
        """Failure and error of a line -> when it was written (monotonic, s)."""
        self.refusal = ""
        """Which right of this member is missing on the log's topics; "": none."""
        self._topic_ids: tuple[str, ...] | None = ()
        """Ids of the topics of facts and decisions when the reader was placed; None: the brokers
        give topics no ids; (): not placed yet.
        """
        self._seen_same_s = 0.0
        """When the topics were last found to have these ids (monotonic, s)."""
        self._placements = 0
        """Rises when the reader is placed, so that answers to earlier requests are ignored: they do
        not belong to the present incarnation.
        """
        self._acknowledged = acknowledged
        self._partition = 0
        self.log_id = ""
        """Id of the log; "" before `open`."""
        self._consumer: Consumer
        self._producer: Producer
        self._decisions = TopicPartition(self._topics.decisions, 0)
        self._producer_failed = False
        self._outbox: asyncio.Queue[tuple[Fact, int]] = asyncio.Queue()
        self._read_to = 0
        self._epoch = NO_EPOCH
        """Leader epoch in which the decisions had all up to `_read_to` (KIP-320)."""
        self._read_on = asyncio.Event()
        self._placed = asyncio.Event()
        self._probe_now = asyncio.Event()
        self._fetch_wait_ms = JOINING_FETCH_WAIT_MS
        self._reader_lock = asyncio.Lock()
        """Held by the one coroutine that moves the reader."""
        self._next_number_position = 0
        self._brokers_ahead_ms: int | None = None

    async def open(self) -> None:
        """Connects, and reads the log's opening for the group's partition. Raises InputError when
        no broker answers, NotThereError when there is no log.
        """
        self._opening = await self._read_opening(timeout_s=self._options.start_timeout_ms / 1_000)
        with reaching(self._connection):
            self._consumer = self._connection.clients.consumer(request_timeout_ms=self._options.request_timeout_ms)
            await self._consumer.start()
            await self._new_producer()

    async def _read_opening(self, timeout_s: float = 0.0) -> LogOpened:
        opening = await read_opening(self._connection, self._topics, timeout_s=timeout_s, waits=self._waits)
        self._partition, self.log_id = partition_of(self._group, opening.partitions), opening.log_id
        self._decisions = TopicPartition(self._topics.decisions, self._partition)
        return opening

    @property
    def facts(self) -> TopicPartition:
        """Where the group's facts are."""
        return TopicPartition(self._topics.facts, self._partition)

    @property
    def leader_of_facts(self) -> tuple[str, int] | None:
        """Host and port of the broker that leads that partition, when the reader was placed; None:
        unknown.
        """
        return self._producer.leader(self.facts)

    def brokers_ms(self) -> int:
        """The time since 1970, which is not before that of the brokers when they appended the
        decisions that were read. Any thread may call this.
        """
        here_ms, ahead_ms = self._runtime.wall_us() // 1_000, self._brokers_ahead_ms
        return here_ms if ahead_ms is None else max(here_ms, self._runtime.boot_ms() + ahead_ms)

    @property
    def id_of_facts(self) -> str:
        """Id of the topic of facts when the reader was placed; "": unknown."""
        return self._topic_ids[0] if self._topic_ids else ""

    def failed(self, what: str, error: Exception, operation: str = "Read") -> float:
        """Writes a line, unless one has said the same just now, and returns how long to wait before
        the next try. A missing right is told with what to allow (`operation`), and waited for
        longer: somebody has to give it.
        """
        from aiokafka.errors import KafkaError

        now_s = self._runtime.monotonic_s()
        if self._brokers.noted(what, error):
            return RETRY_S
        is_refused = is_missing_right(error)
        if is_refused:
            name_topic(error, self._topics.facts if operation == "Write" else self._topics.decisions, operation)
            what, self.refusal = "the brokers refuse what this member does on its log", error_text(error)
        line = what, error_text(error) if is_refused else repr(error)
        if now_s - self._said_s.get(line, -AGAIN_S) >= (REFUSED_AGAIN_S if is_refused else AGAIN_S):
            self._said_s = {each: said_s for each, said_s in self._said_s.items() if now_s - said_s < REFUSED_AGAIN_S}
            self._said_s[line] = now_s
            level = logging.WARNING if isinstance(error, KafkaError) and not error.retriable else logging.INFO
            _LOG.log(logging.ERROR if is_refused else level, "group %s: %s, retrying: %s", self._group, *line)
        return REFUSED_RETRY_S if is_refused else RETRY_S

    async def close(self) -> None:
        """Closes the connections."""
        for client in (getattr(self, "_producer", None), getattr(self, "_consumer", None)):  # `open` may have failed before
            if client is not None:
                await client.stop()

    async def _new_producer(self) -> None:
        self._producer = self._connection.clients.producer(request_timeout_ms=self._options.request_timeout_ms, compression_type=LOG_COMPRESSION)
        await self._producer.start()

    async def leader_ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        """Asks leaders for ends over the connection for facts. Raises KafkaError."""
        return await self._producer.leader_ends(partitions)

    # The end of the decisions

    async def place(self) -> ReaderPosition:
        """Places the reader at the end of the decisions, where it waits for `begin_reading`. Reads
        the log's first record again unless the topics are known to be the same as before.

        Raises KafkaError, and InputError when there is no log. Raises StaleMetadata when the topics
        were created again meanwhile.
        """
        from aiokafka.errors import StaleMetadata

        self._placed.clear()
        async with self._reader_lock:
            self._placements += 1
            if self._opening is None or self._partition not in (self._consumer.partitions_for_topic(self._topics.decisions) or {self._partition}):
                self._opening = await self._read_opening()
            self._consumer.assign([self._decisions])
            self._consumer.pause(self._decisions)  # the requests below would wait for each fetch
            await self._consumer.end_offsets([self._decisions])  # finds the leader
            ids = await self._ask_topic_ids()
            if ids is None or (self._topic_ids and ids != self._topic_ids):
                self._opening, former = None, self._opening  # None: read again next time, should it not be there yet
                self._opening = await self._read_opening()
                self._producer_failed |= self._opening != former
                self._consumer.assign([self._decisions])
                self._consumer.pause(self._decisions)
            asked_ms = self._runtime.boot_ms()
            end, self._epoch = (await self._consumer.leader_ends([self._decisions]))[self._decisions]
            begin = (await self._consumer.beginning_offsets([self._decisions]))[self._decisions]
            if begin < end:
                self._consumer.resume(self._decisions)
            number = await self._highest_number(begin, end)
            if not number and begin > 0:
                number = await self._number_at_base()
            self._consumer.pause(self._decisions)
            await unless_abandoned(self._producer.partitions_for(self._topics.facts))
            if ids != await self._ask_topic_ids():
                raise StaleMetadata(f"the topics of {self._topics.prefix} were created again just now")
            self._topic_ids = ids
            self._go_to(end)
            self._next_number_position = end
            self._placements += 1
        return ReaderPosition(self._opening.log_id, number, asked_ms)

    async def _ask_topic_ids(self, over: Producer | None = None, leads: TopicPartition | None = None) -> tuple[str, ...] | None:
        """Present ids of the topics of facts and decisions; None: the brokers give topics no ids.
        `over`: asks over its connection, which no fetch holds; None: over that of the reader.
        `leads`: asks the leader of this partition; None: that of the decisions. Raises KafkaError.
        """
        asked_s = self._runtime.monotonic_s()
        client = self._consumer if over is None else over
        ids = await unless_abandoned(client.topic_ids((self._topics.facts, self._topics.decisions), leads or self._decisions))
        self._brokers.answered(asked_s)
        if ids == self._topic_ids:
            self._seen_same_s = asked_s
        return ids

    def begin_reading(self) -> None:
        """Passes decisions to `received`, from the reader's place on."""
        self._hold_fetches(JOINING_FETCH_WAIT_MS)
        self._consumer.resume(self._decisions)
        self._placed.set()

    def has_joined(self) -> None:
        """The member has an assignment."""
        if self._fetch_wait_ms != FETCH_WAIT_MS:
            self._hold_fetches(FETCH_WAIT_MS)

    def _hold_fetches(self, wait_ms: int) -> None:
        self._fetch_wait_ms = wait_ms
        self._consumer.hold_fetches(wait_ms)

    async def _highest_number(self, begin: int, end: int) -> int:
        """The highest number of the group's decisions. The last decision need not have it: a worker
        that was paused may publish its earlier decisions once more.
        """
        for start in looks_back(begin, end, FIRST_LOOK_BACK):
            self._consumer.seek(self._decisions, start)
            number = 0
            async for batch in batches_before(self._consumer, self._decisions, end):
                number = max(number, *(self._number_of(each) for each in batch if group_of(each.key) == self._group), 0)
            if number:
                return number
            end = start
        return 0

    async def _number_at_base(self) -> int:
        """The number of the group's last decision before the newest base; 0: none. A group that has
        halted may have no later one.
        """
        base = await newest_base(self._connection, self._topics, self.log_id, self._partition)
        return 0 if base is None or self._group not in base.groups else base.groups[self._group][1]

    def _go_to(self, position: int) -> None:
        self._consumer.seek(self._decisions, position)
        self._read_to = position
        self._read_on.set()

    def _decode(self, record: ConsumedRecord) -> DecisionRecord | UnreadDecision:
        """Raises DamagedError."""
        return member_decision(stored_decision(record.key, record.value, _place_of(record)))

    def _number_of(self, record: ConsumedRecord) -> int:
        """Needs no more than the envelope, so it is found whatever build has written the decision.
        0: there is no sound decision of this log here.
        """
        try:
            stored = stored_decision(record.key, record.value, _place_of(record))
        except DamagedError as error:
            _LOG.warning("group %s: ignoring an unreadable decision: %s", self._group, error)
            return 0
        return stored.row.number if self._opening is not None and stored.log_id == self._opening.log_id else 0

    # Decisions in

    async def read(self) -> None:
        """Reads decisions for ever. Raises DamagedError when a record holds no decision."""
        from aiokafka.errors import KafkaError, OffsetOutOfRangeError

        while True:
            await self._placed.wait()
            asked_ms, wait_s = self._runtime.boot_ms(), RETRY_S
            try:
                async with self._reader_lock:
                    whole = await self._read_some()
            except OffsetOutOfRangeError:
                whole = False
                if self._placed.is_set():
                    self._went_back(asked_ms)
                    self._probe_now.set()
            except KafkaError as error:
                wait_s, whole = self.failed("cannot read decisions", error), False
            if not whole:
                await asyncio.sleep(wait_s)

    async def _read_some(self) -> bool:
        """Reads one batch. False: a decision was missing and is read again (docs/protocol.md#l4).
        If it stays missing, the lease runs out.
        """
        from aiokafka.errors import OffsetOutOfRangeError

        batch = await self._consumer.getmany(self._decisions, timeout_ms=2 * self._fetch_wait_ms)
        if not self._placed.is_set():
            return True
        epoch = self._consumer.fetched_epoch(self._decisions)
        if await self._has_lost(epoch):
            self._go_to(self._read_to)
            raise OffsetOutOfRangeError({self._decisions: self._read_to})
        self._epoch = max(epoch, self._epoch)
        for record in batch.get(self._decisions, ()):
            self._brokers_ahead_ms = max(record.timestamp_ms - self._runtime.boot_ms(), self._brokers_ahead_ms or 0)
            if group_of(record.key) == self._group and self._received(self._decode(record)) is Reception.GAP:
                _LOG.debug("group %s: a decision is missing before %s/%d@%d, reading again", self._group, *self._decisions, record.offset)
                self._go_to(self._next_number_position)
                return False
            self._next_number_position = record.offset + 1
        self._read_to = await self._consumer.position(self._decisions)
        self._read_on.set()
        return True

    async def _has_lost(self, epoch: int) -> bool:
        """Returns whether decisions that were read are lost, now that there is this leader epoch:
        others may have their offsets. Raises KafkaError.
        """
        if not NO_EPOCH != self._epoch < epoch:
            return False
        ends = await self._consumer.epoch_ends({self._decisions: self._epoch})
        return ends is not None and ends[self._decisions] < self._read_to

    async def probe(self) -> None:
        """Repeats `probe_once` every heartbeat interval, for ever. The lease depends on it, and on
        heartbeats. See docs/protocol.md#m4.

        A probe is as good as a fetch that reached the end. It is dated by the time of the request,
        which is earlier than the broker's answer.
        """
        while True:
            self._probe_now.clear()
            await self.probe_once()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._probe_now.wait(), self._options.heartbeat_interval_ms / 1_000)

    async def probe_once(self) -> None:
        """Requests the end of the decisions, and calls `read_up_to_end` when everything up to it
        was received. Requests the topics' ids after the end, so the end is of the same log
        (docs/protocol.md#l9).
        """
        from aiokafka.errors import KafkaError, ProducerClosed

        while True:
            await self._placed.wait()
            placements, read_to, asked_ms = self._placements, self._read_to, self._runtime.boot_ms()
            try:
                end, epoch = (await self._consumer.leader_ends([self._decisions]))[self._decisions]
                has_lost = end < read_to or await self._has_lost(epoch)
                ids = await self._ask_topic_ids(self._producer)
            except ProducerClosed:
                await asyncio.sleep(RETRY_S)  # a send that has failed has closed it, and said why
                continue
            except KafkaError as error:
                await asyncio.sleep(self.failed("cannot read the end of the decisions", error))
                continue
            if placements != self._placements:
                continue
            if ids != self._topic_ids:
                self._replaced()
                return
            if has_lost:
                self._went_back(asked_ms)
                await asyncio.sleep(RETRY_S)
                continue
            while self._read_to < end and placements == self._placements:
                self._read_on.clear()
                await self._read_on.wait()
            if placements == self._placements:
                self._read_up_to_end(asked_ms)
                return

    # Facts out

    def queue(self, fact: Fact) -> None:
        """Queues `fact`. It is dated by the time of this call."""
        self._outbox.put_nowait((fact, self._runtime.boot_ms()))

    async def flushed(self, within_s: float) -> None:
        """Returns when every queued fact was appended or dropped, or after `within_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._outbox.join()

    async def send_queued(self) -> None:
        """Sends queued facts one after the other, for ever.

        A fact that cannot be sent in time is dropped; the next report repeats it
        (docs/protocol.md#m2). Those that no report repeats are sent again while the incarnation
        that queued them lasts: without its join, its reports are rejected. Nothing is sent to
        topics that were created again: the first record there must be LogOpened.
        """
        from aiokafka.errors import KafkaError

        while True:
            fact, queued_ms = await self._outbox.get()
            placements, is_sent = self._placements, False
            try:
                while not is_sent and placements == self._placements:
                    try:
                        await self._send(pack_fact(fact))
                        self._acknowledged(fact, queued_ms)
                        is_sent, self.refusal = True, ""
                    except KafkaError as error:
                        await asyncio.sleep(self.failed(f"sending {fact.__class__.__name__} failed", error, "Write"))
                        is_sent = not isinstance(fact, _NOT_REPEATED)
            finally:
                self._outbox.task_done()

    async def _send(self, value: bytes) -> None:
        """Returns when the broker has appended it. Raises KafkaError."""
        if self._producer_failed:  # an idempotent producer that gave up a batch may never send another
            await self._producer.abandon()
            await self._new_producer()
        producer = self._producer
        await self._check_same_log(producer)  # the reader's connection may be held by a fetch, for FETCH_WAIT_MS
        self._producer_failed, sent_ms = True, self._runtime.boot_ms()
        sending = asyncio.ensure_future(producer.send_and_wait(self._topics.facts, value, key=group_key(self._group), partition=self._partition))
        wait_s = SAME_FOR_S
        try:
            while not (await asyncio.wait((sending,), timeout=wait_s))[0]:  # the client retries the send, whatever topic exists by then
                await self._check_same_log()
                wait_s = min(1.0, 2 * wait_s)
        except BaseException:
            await producer.abandon()
            await call_off(sending)
            raise
        self.broker_clock.note(sending.result().append_ms, sent_ms)
        self._producer_failed = False

    async def _check_same_log(self, over: Producer | None = None) -> None:
        """Raises KafkaError when the topics are gone or belong to another log; not when no broker
        answers. `over`: as for `_ask_topic_ids`.
        """
        from aiokafka.errors import KafkaError, StaleMetadata, UnknownTopicOrPartitionError

        if self._runtime.monotonic_s() - self._seen_same_s < SAME_FOR_S:
            return
        placements = self._placements
        try:
            ids = await self._ask_topic_ids(over, None if over is None else self.facts)
        except UnknownTopicOrPartitionError:
            raise
        except KafkaError as error:
            if over is not None:
                await self._check_same_log()  # the reader may still reach a broker
            else:
                _LOG.debug("group %s: cannot read the topics' ids: %r", self._group, error)
            return
        if placements == self._placements and ids != self._topic_ids:
            self._replaced()
            raise StaleMetadata(f"the topics of {self._topics.prefix} were created again")

    def forget(self) -> None:
        """Drops the queued facts, which belong to an incarnation that has ended, and passes on no
        decision until the reader is placed for the next one.
        """
        self._placed.clear()
        while not self._outbox.empty():
            self._outbox.get_nowait()
            self._outbox.task_done()


def _place_of(record: ConsumedRecord) -> str:
    return f"{record.topic}/{record.partition}@{record.offset}"
