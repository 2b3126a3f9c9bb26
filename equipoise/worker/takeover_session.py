"""Leads a partition from its last checkpoints until something fails: reads facts, folds them, and
has their decisions published. `equipoise.statemachine.partition.PartitionLead` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import attrs

from equipoise.events.decisions import EventRejected
from equipoise.events.errors import DamagedError
from equipoise.events.facts import GroupConfigured, LogOpened, RoundAsked
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.folding.log_reading import FactReader, PartitionReading, StartedLead, next_fact
from equipoise.kafka.client import ConsumedRecord, size_bytes
from equipoise.log.kafka.envelope import NoRecord, group_key, pack_decision
from equipoise.statemachine.partition import PartitionLead
from equipoise.worker.asked_rounds import AskedRounds
from equipoise.worker.base_storing import RECORD_BYTES, BaseKeeper, Written
from equipoise.worker.broker_answers import answered
from equipoise.worker.checkpoint_storing import CheckpointKeeper
from equipoise.worker.decision_marks import DecisionMarks
from equipoise.worker.log_identity import LogIdentity
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.reader_watch import ReaderWatch
from equipoise.worker.session_sender import SendFailedError, SessionSender
from equipoise.worker.settings import WorkerSettings

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.02
REJECTED_AGAIN_S = 60.0
"""Time between two lines about records that belong to no group."""
_FACTS_A_TURN = 100
"""Facts folded before other coroutines run."""
_CHECKPOINTS_A_TURN = 20
"""Checkpoints that are stored before facts are folded again: some milliseconds."""


@attrs.frozen(eq=False)
class FactBatch:
    """The facts that one fetch has brought, for the session that wanted them."""

    session: TakeoverSession
    records: Sequence[ConsumedRecord | NoRecord]
    reader: FactReader

    async def fold(self) -> None:
        """Steps the machines of the groups with these facts, and publishes what they decide."""
        await self.session.fold(self)


Deliver = Callable[[Callable[[], Awaitable[FactBatch]]], Coroutine[Any, Any, None]]
"""Brings what a function returns to `TakeoverSession.fold`, time after time."""


class TakeoverSession:
    """Leads the partition of `reading` from `begun` on: first `catch_up`, then `run`. Both raise
    what ends the session. `marks`: what `reading` found of the published decisions.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        opened: LogOpened,
        reading: PartitionReading,
        begun: StartedLead,
        sender: SessionSender,
        marks: DecisionMarks,
        identity: LogIdentity,
        asked: AskedRounds,
        metrics: WorkerMetrics,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.lead = begun.lead
        self._partition = reading.partition
        self._reading, self._sender, self._identity, self._asked = reading, sender, identity, asked
        self._metrics, self._monotonic_s = metrics, monotonic_s
        self._lock = asyncio.Lock()
        """Held while facts are folded or checkpoints are stored."""
        self._ticked = asyncio.Event()
        self._is_over = False
        self._has_caught_up = False
        self._written = Written(decisions_offset=begun.published_to, since=self.lead.position)
        self._watch = ReaderWatch(monotonic_s)
        self._logged_halted: set[str] = set()
        self._rejected_from = begun.found.index.position
        self._facts_topic = settings.topics.facts
        self._says_rejected_at_s = 0.0
        self._published_to = begun.published_to
        """Offset up to which the published decisions were read."""
        self.checkpoints = CheckpointKeeper(settings, opened, self.lead, sender, marks, self._written, metrics, begun.found.slots)
        self._publisher = DecisionPublisher(settings.topics.decisions, self.lead, sender, marks, self._written, self.checkpoints, identity)
        self.bases: BaseKeeper | None = None
        """Stores bases; None: this worker deletes nothing."""
        if settings.has_retention:
            self.bases = BaseKeeper(
                settings,
                opened,
                self._partition,
                self.lead,
                self._written,
                metrics,
                append=sender.append,
                send=sender.send,
                mark=self.checkpoints.mark,
                store_index=self._store_index,
                monotonic_s=monotonic_s,
            )
            self.checkpoints.store_state = self.bases.store_state

    @property
    def leading(self) -> bool:
        """Returns whether every decision up to the end found by `catch_up` is published, and
        nothing has failed.
        """
        return self._has_caught_up and not self._is_over and not self._sender.has_failed

    def end(self) -> None:
        """Ends the lead, whatever still runs."""
        self._is_over = True

    async def catch_up(self, facts: FactReader) -> None:
        """Reads the facts to the end, and publishes the decisions that are missing. See
        docs/protocol.md#l5. Raises DamagedError when the brokers have lost facts.
        """
        lead = self.lead
        await self._note_halted()
        await facts.place(lead.position)
        end = await facts.end()
        if end < lead.position:
            raise DamagedError(end, f"facts end here, before the last checkpoint, which is of {lead.position - 1}: the brokers have lost facts")
        async for record in facts.until(end):
            await self._identity.check(facts)
            await self._fold(record)
            if record.offset % _FACTS_A_TURN == 0:
                await asyncio.sleep(0)
        for group in lead.groups.values():
            await self.checkpoints.store(group.name, group.last_published)
        lead.plan_ticks(self._now_ms())
        self._log_halted()
        self._watch.note()
        self._has_caught_up = True

    async def run(self, facts: FactReader, deliver: Deliver) -> None:
        """Leads until something fails. `deliver`: brings each batch of facts to `fold`."""

        async def batch() -> FactBatch:
            return FactBatch(self, await facts.batch(), facts)

        jobs = [deliver(batch), self._append_ticks(), self._run_periodic_jobs(facts), self._identity.watch(facts)]
        if self.bases is not None:
            jobs.append(self.bases.run())
        await self._sender.run_until_failed(*jobs)

    async def store_last_checkpoints(self) -> None:
        """Stores a checkpoint of every group, and an index. Raises SendFailedError."""
        try:
            async with self._lock:
                await self._sender.producer.flush()
                self.checkpoints.begin_round()
                await self.checkpoints.go_on()
                await self.checkpoints.write_index()
                await self._sender.producer.flush()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Otherwise the session has failed, and closing its producer has cancelled this send.

    async def _store_index(self) -> None:
        async with self._lock:
            await self.checkpoints.write_index()

    async def fold(self, batch: FactBatch) -> None:
        """Folds the next facts, and has their decisions published. An error ends the session, and
        what is still under way for one that has ended is left for the next one.
        """
        records = batch.records
        try:
            for start in range(0, len(records), _FACTS_A_TURN):
                async with self._lock:
                    for record in records[start : start + _FACTS_A_TURN]:
                        if not self.leading:
                            return
                        self._watch.read_s = now_s = self._monotonic_s()
                        if self._identity.is_stale(now_s):
                            await self._identity.check(batch.reader)
                        await self._fold(record)
                self._watch.note()
                await asyncio.sleep(0)
            self._watch.note()
        except asyncio.CancelledError:
            self._sender.fail(SendFailedError("the agent was cancelled while it folded facts"))
            raise
        except Exception as error:  # noqa: BLE001 whatever it is, the next session starts from the log
            self._sender.fail(error)

    def tick(self) -> None:
        """Has probing ticks appended, where some are due."""
        self._ticked.set()

    async def _append_ticks(self) -> None:
        while True:
            await self._ticked.wait()
            self._ticked.clear()
            for group in self.lead.ticks_due(self._now_ms()):
                await self._sender.append(group, self.lead.tick(group))
                self._metrics.ticks.inc()

    async def _run_periodic_jobs(self, facts: FactReader) -> None:
        checkpoints = self.checkpoints
        while True:
            await self._identity.check(facts)
            if not checkpoints.is_in_round and checkpoints.is_round_due:
                checkpoints.begin_round()
            if checkpoints.is_in_round:
                async with self._lock:
                    await checkpoints.go_on(_CHECKPOINTS_A_TURN)
                    if not checkpoints.is_in_round:
                        await checkpoints.write_index()
                await self._note_halted()
                self._watch.note()  # it could not fold meanwhile
            await self._watch.look(facts, self.lead.position)
            await self._watch.sleep(_LOOK_S)

    async def _fold(self, fact: ConsumedRecord | NoRecord) -> None:
        """Folds the next fact and publishes its decisions."""
        lead = self.lead
        self._written.append_ms = fact.timestamp_ms
        if not isinstance(fact, NoRecord):
            self._written.bytes_ += size_bytes(fact.key, fact.value) + RECORD_BYTES
        record = next_fact(lead, fact)
        if record is None:
            await self._note_halted()
            return
        if not record.group and record.offset >= max(1, self._rejected_from) and not isinstance(fact, NoRecord):
            self._note_rejected(record)
        kind = record.event.__class__
        if kind is GroupConfigured and lead.must_read_published(record):
            self._published_to = await answered(self._reading.read_published(lead, self._published_to))
        began_s = self._monotonic_s()
        decisions = lead.fold(record, int(began_s * 1_000))
        self._metrics.fold_seconds.observe(self._monotonic_s() - began_s)
        published = [await self._publisher.publish(decision) for decision in decisions]
        if kind is RoundAsked:
            self._asked.answer(record, decisions, published)
        group = lead.groups.get(record.group)
        if record.event.__class__ is GroupConfigured and not any(isinstance(each.decision, EventRejected) for each in decisions):
            for warning in record.event.knobs.warnings():
                _LOG.warning("partition %d: group %s: %s", self._partition, record.group, warning)
        if group is not None:
            failure = group.observer.take_failure()
            if failure is not None:
                _LOG.error("group %s: a defect of equipoise keeps its change from being judged; it is led on", group.name, exc_info=failure)
            if group.halted is not None:
                await self._note_halted()
            if group.waiting and group.waiting[0].number <= group.last_published:  # no acknowledgement is under way that would store it
                await self.checkpoints.store(group.name, group.last_published)

    def _note_rejected(self, record: FactRecord) -> None:
        """Counts a record that belongs to no group. One in a minute is logged, with its place."""
        self._metrics.rejected.inc()
        if self._monotonic_s() >= self._says_rejected_at_s:
            self._says_rejected_at_s = self._monotonic_s() + REJECTED_AGAIN_S
            code: str = record.event.code  # type: ignore[union-attr]  # a record without a group is Undecodable
            text = "partition %d: the record at offset %d of %s belongs to no group: %s; limit the right to write there"
            _LOG.warning(text, self._partition, record.offset, self._facts_topic, code)

    async def _note_halted(self) -> None:
        """Says for archives where groups have halted, before anything else is decided."""
        for name, group in self.lead.groups.items():
            if group.halted is not None and name not in self._logged_halted and self.bases is not None:
                await self.bases.note_halted(name, group.halted.offset)
        self._log_halted()

    def _log_halted(self) -> None:
        """Logs each halted group once."""
        for name, group in self.lead.groups.items():
            if group.halted is not None and name not in self._logged_halted:
                self._logged_halted.add(name)
                _LOG.error("partition %d: %s", self._partition, group.halted, exc_info=group.halted.__cause__)

    def _now_ms(self) -> int:
        return int(self._monotonic_s() * 1_000)


class DecisionPublisher:
    """Publishes what `lead` decides to `topic`, and tells it what the brokers have acknowledged."""

    def __init__(
        self,
        topic: str,
        lead: PartitionLead,
        sender: SessionSender,
        marks: DecisionMarks,
        written: Written,
        checkpoints: CheckpointKeeper,
        identity: LogIdentity,
    ) -> None:
        self._identity = identity
        self._topic, self._lead, self._sender = topic, lead, sender
        self._marks, self._written, self._checkpoints = marks, written, checkpoints

    async def publish(self, decision: DecisionRecord) -> asyncio.Future[Any]:
        """Sends a decision. Returns a future that ends when the brokers have it. Raises
        SendFailedError.
        """
        key, value = group_key(decision.group), pack_decision(decision)
        self._written.bytes_ += len(key) + len(value) + RECORD_BYTES
        future = await self._sender.send(self._topic, key, value)
        future.add_done_callback(lambda done: self._published(decision, done))
        return future

    def _published(self, decision: DecisionRecord, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the sender reports the failure
        offset = done.result().offset
        if offset < self._written.decisions_offset:
            self._sender.fail(DamagedError(decision.caused_by, f"its decision is at {offset}, before others: the brokers have lost decisions"))
            return
        self._marks.published(decision.caused_by, offset)
        self._written.decisions_offset = self._identity.decisions_end = offset + 1
        group = self._lead.groups[decision.group]
        if group.waiting and group.waiting[0].number <= decision.number:
            task = asyncio.ensure_future(self._checkpoints.store(decision.group, decision.number))
            task.add_done_callback(self._stored)
        else:
            self._lead.acknowledged(decision.group, decision.number)  # no checkpoint waits for it

    def _stored(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._sender.fail(error)
