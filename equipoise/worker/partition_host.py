"""Leads one partition of the log on a real Kafka. `equipoise.statemachine.partition.PartitionLead`
decides; this module does the reading and writing.

A *takeover session* takes the partition over (checkpoints, published decisions, facts to the end),
then leads it until something fails. After any failure the next session starts from the log. One
consumer and one idempotent producer belong to each session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from equipoise.broker_watch import BrokerWatch
from equipoise.console.recent import Recent
from equipoise.events.decisions import EventRejected
from equipoise.events.errors import DamagedError, EquipoiseError
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, RoundAsked
from equipoise.events.log.kafka.client import LOG_COMPRESSION, ConsumedRecord, Producer, size_bytes
from equipoise.events.log.kafka.envelope import NoRecord, group_key, pack_decision, pack_fact, rejected_record
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.wording import names_text
from equipoise.runtime import DEPLOYED, Runtime
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import PartitionLead
from equipoise.worker.base_storing import BaseKeeper, Written
from equipoise.worker.checkpoints import Index, checkpoint_records, index_records
from equipoise.worker.decided_news import DecidedNews
from equipoise.worker.decision_marks import DecisionMarks
from equipoise.worker.log_reading import FactReader, PartitionReading, next_fact
from equipoise.worker.tracing import Tracing
from equipoise.worker.worker_metrics import WorkerMetrics
from equipoise.worker.worker_settings import WorkerSettings

_LOG = logging.getLogger(__name__)
"""What is decided and why: the story of the groups, whoever leads them."""
_RETRY_WAITS_S = (0.2, 1.0, 3.0, 10.0)
"""Waits before the next takeover session, after one, two, ... failed sessions in a row."""
_TICK_S = 0.02
_LOOK_AFTER_S = 2.5
"""After this time without a fact, the worker asks the brokers whether there is one to read. What
was there is to be read by the next look.
"""
_ANSWER_S = 10.0
"""Longest wait for the brokers' answer. Then a send is repeated on another connection; for anything
else the session fails, and the next one makes new connections.
"""
_MOST_PASS_S = 1.0
"""Waits count at most this long for each time the event loop runs: while a very large decision is
made, answers arrive and are not seen.
"""
SAME_FOR_S = 1.0
"""How long an answer that the topics are still those of the log is valid."""
_FACTS_A_TURN = 100
"""Facts folded before other coroutines run."""
_CHECKPOINTS_A_TURN = 20
"""Checkpoints that are stored before facts are folded again: some milliseconds."""
_FACTS_A_CHECKPOINT = 20
"""With many groups a round of checkpoints begins after so many facts for each of them."""
_RECORD_BYTES = 12
"""About what Kafka adds to a record of a batch."""


T = TypeVar("T")


async def answered(request: Coroutine[Any, Any, T], within_s: float = _ANSWER_S) -> T:
    """Returns what `request` returns. Raises TimeoutError after `within_s`, without the time in
    which something else held the event loop.
    """
    asked = asyncio.ensure_future(request)
    try:
        for _ in range(round(within_s / _MOST_PASS_S)):
            if (await asyncio.wait((asked,), timeout=_MOST_PASS_S))[0]:
                return asked.result()
        raise TimeoutError(f"the brokers do not answer within {within_s:.0f} s")
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


class SendFailedError(Exception):
    """A send failed for good; later ones must not be sent. See docs/protocol.md#l4."""


class ReaderStalledError(Exception):
    """The reader returns no facts although the partition has some."""


class LogReplacedError(Exception):
    """The log's topics were deleted and created again, so the folded state belongs to another log.
    See docs/protocol.md#l9.
    """


def _problem_of(error: Exception) -> str:
    """Returns what has ended a session, and how to mend a missing right, which the error does not
    say.
    """
    text = f"{error.__class__.__name__}: {error}"
    if "AuthorizationFailed" not in text:
        return text
    return f"{text}: the worker's user may not do that; `equipoise doctor` names the ACL that is missing"


class PartitionHost:
    """Leads one partition from `start` to `stop`, or until the log is replaced; then it calls
    `replaced`.

    `topic_ids`: ids of the topics of the log that `opened` names
    (`Topics.ids`); None: the brokers give topics no ids.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        opened: LogOpened,
        partition: int,
        metrics: WorkerMetrics,
        *,
        topic_ids: tuple[str, ...] | None = None,
        replaced: Callable[[], None] = lambda: None,
        runtime: Runtime = DEPLOYED,
        brokers: BrokerWatch | None = None,
        recent: Recent | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.partition = partition
        self._brokers = brokers
        self.lead = PartitionLead()
        """The lead of the current takeover session."""
        self.leading = False
        """Whether the partition is taken over: every decision up to the end found then is
        published.
        """
        self.problem = ""
        """Why the last session failed; "" once the next one has taken over."""
        self._topic_ids = topic_ids
        self._replaced = replaced
        self._monotonic_s = runtime.monotonic_s
        self._same_s = 0.0
        """When the topics were last found to be those of the log (monotonic, s)."""
        self._settings = settings
        self._topics = settings.topics
        self._reading = PartitionReading(settings, settings.topics, opened, partition)
        self._opened = opened
        self._metrics = metrics
        self._news = DecidedNews(partition, metrics, tracing, Recent() if recent is None else recent)
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._producer: Producer
        self._failed: asyncio.Future[None] | None = None
        self._slots: dict[str, int] = {}
        self._marks = DecisionMarks()
        self._logged_halted: set[str] = set()
        self._rejected_from = 0
        self._published_to = 0
        """Offset up to which the published decisions were read."""
        self._checkpointed_at = 0
        """Where the last round of checkpoints began."""
        self._to_checkpoint: deque[str] = deque()
        """Groups that wait for theirs in this round."""
        self._written = Written()
        self._bases: BaseKeeper | None = None
        """Stores bases; None: this worker deletes nothing."""
        self._asked: dict[tuple[str, str], asyncio.Future[list[DecisionRecord]]] = {}
        """(group, id of a round that somebody waits for) -> its decisions, once they are published.
        """
        self._read_s = 0.0
        """When a fact was last read, or none was found to read (monotonic, s)."""

    def reload(self, settings: WorkerSettings) -> None:
        """Goes on with other settings: those of `RELOADED`."""
        self._settings = settings

    def silent_s(self) -> float:
        """Seconds since the last request about the log that the brokers have answered; 0: it does
        not lead, or the brokers give topics no ids.
        """
        return self._monotonic_s() - self._same_s if self.leading and self._topic_ids is not None else 0.0

    def start(self) -> None:
        """Begins to lead, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run_sessions(), name=f"partition {self.partition}")

    async def stop(self, *, checkpoint: bool = False) -> None:
        """Stops leading. `checkpoint`: stores a checkpoint of every group first, so that the next
        worker reads little.
        """
        if checkpoint and self.leading:
            with contextlib.suppress(Exception):
                await self._store_last_checkpoints()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.leading = False
        self._metrics.forget_partition(self.partition)

    def begin_checkpoints(self) -> None:
        """Begins to store a checkpoint of every group, in turn."""
        if self.leading and not self._to_checkpoint:
            self._begin_round()

    async def _store_last_checkpoints(self) -> None:
        try:
            async with self._lock:
                await self._producer.flush()
                self._begin_round()
                await self._checkpoint()
                await self._write_index()
                await self._producer.flush()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Otherwise the session has failed, and closing its producer has cancelled this send.

    async def ask(self, group: str, facts: Iterable[Fact], round_id: str) -> list[DecisionRecord]:
        """Appends the facts of a round, the last of which is RoundAsked, and returns the decisions
        on that, once they are published. Raises SendFailedError.
        """
        answered: asyncio.Future[list[DecisionRecord]] = asyncio.get_running_loop().create_future()
        self._asked[group, round_id] = answered
        try:
            for fact in facts:
                await self.append(group, fact)
            return await answered
        finally:
            del self._asked[group, round_id]

    async def append(self, group: str, fact: Fact) -> None:
        """Appends a fact of this worker: a tick or an observation. Raises SendFailedError."""
        await self._send(self._topics.facts, group_key(group), pack_fact(fact))

    # Takeover sessions

    async def _run_sessions(self) -> None:
        failures = 0
        while True:
            began_s = self._monotonic_s()
            try:
                await self._run_session()
            except asyncio.CancelledError:
                raise
            except LogReplacedError as error:
                self.problem = str(error)
                _LOG.error("giving up partition %d: %s", self.partition, error)
                self._replaced()
                return
            except Exception as error:  # noqa: BLE001 whatever ended the session, the next one starts from the log
                self.problem = _problem_of(error)
                known = isinstance(error, SendFailedError | ReaderStalledError | EquipoiseError)
                if self._brokers is None or not self._brokers.noted(f"takeover session of partition {self.partition}", error):
                    trace = None if known else error
                    _LOG.warning("takeover session of partition %d failed, retrying: %s", self.partition, self.problem, exc_info=trace)
                self._metrics.takeovers_failed.inc()
            finally:
                self.leading = False
            failures = failures + 1 if self._monotonic_s() - began_s < 60 else 1
            await asyncio.sleep(_RETRY_WAITS_S[min(failures, len(_RETRY_WAITS_S)) - 1])

    async def _run_session(self) -> None:
        from aiokafka.errors import UnknownTopicOrPartitionError

        self._failed = asyncio.get_running_loop().create_future()
        self._failed.add_done_callback(lambda future: future.exception())  # retrieved here, so that asyncio does not warn
        self._producer = self._settings.clients.producer(request_timeout_ms=int(_ANSWER_S * 1_000), compression_type=LOG_COMPRESSION)
        try:
            await self._producer.start()
            async with self._reading.facts() as facts:
                self._same_s = 0.0
                async with self._lock:
                    await self._check_same_log(facts)
                    await self._run_jobs(self._failed, self._take_over(facts), self._watch_log(facts))
                jobs = [self._read_facts(facts), self._run_periodic_jobs(facts), self._watch_log(facts)]
                if self._bases is not None:
                    jobs.append(self._bases.run())
                recalling = asyncio.ensure_future(self._news.recall(self._reading, self.lead))
                try:
                    await self._run_jobs(self._failed, *jobs)
                finally:
                    recalling.cancel()
        except (LogReplacedError, UnknownTopicOrPartitionError):
            await self._producer.abandon()  # unsent records must not reach new topics of the same names
            raise
        finally:
            self.leading = False
            self._news.forget(self.lead.groups)
            await self._producer.stop(within_s=3.0)

    async def _check_same_log(self, facts: FactReader) -> None:
        """Compares the topics' ids, unless that was done less than SAME_FOR_S ago. Raises
        LogReplacedError when they differ, UnknownTopicOrPartitionError when the topics are gone,
        TimeoutError when the brokers do not answer.
        """
        from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

        if self._topic_ids is None or self._monotonic_s() - self._same_s < SAME_FOR_S:
            return

        async def ask() -> tuple[float, Any]:
            while True:
                asked_s = self._monotonic_s()
                try:
                    return asked_s, await facts.topic_ids(self._topics)
                except UnknownTopicOrPartitionError:
                    raise
                except KafkaError:  # a broker is down
                    await asyncio.sleep(_RETRY_WAITS_S[0])

        asked_s, found = await answered(ask())
        if found != self._topic_ids:
            raise LogReplacedError(f"the topics of log {self._opened.log_id} were deleted and created again")
        self._same_s = asked_s

    def _fail(self, error: BaseException) -> None:
        self.leading = False
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    # Taking over

    async def _take_over(self, facts: FactReader) -> None:
        """Reads the last checkpoints, the published decisions and the facts to the end, and
        publishes the decisions that are missing. See docs/protocol.md#l5.
        """
        began_s = self._monotonic_s()
        self._marks = DecisionMarks()
        self._logged_halted.clear()
        begun = await self._reading.begin(answers=True, folded=self._count, mark=self._marks.published)
        self.lead = lead = begun.lead
        self._to_checkpoint.clear()
        self._checkpointed_at = lead.position  # a long way to the end is checkpointed on the way
        self._slots = dict(begun.found.slots)
        self._rejected_from = begun.found.index.position
        self._published_to = begun.published_to
        self._written = Written(decisions_offset=begun.published_to, since=lead.position)
        self._bases = self._base_keeper(lead) if self._settings.has_retention else None
        self._news.begin(lead)
        await self._note_halted()
        await facts.place(lead.position)
        end = await facts.end()
        if end < lead.position:
            raise DamagedError(end, f"facts end here, before the last checkpoint, which is of {lead.position - 1}: the brokers have lost facts")
        async for record in facts.until(end):
            await self._check_same_log(facts)
            await self._fold(record)
            if record.offset % _FACTS_A_TURN == 0:
                await asyncio.sleep(0)
        for group in lead.groups.values():
            await self._store(lead, group.name, group.last_published)
        lead.plan_ticks(self._now_ms())
        self._log_halted()
        self._read_s = self._monotonic_s()
        self.problem = ""
        self.leading = True
        confirmed = sum(group.confirmed for group in lead.groups.values())
        self._metrics.takeover_seconds.observe(self._monotonic_s() - began_s)
        values = (self.partition, lead.position, names_text(lead.groups), confirmed, self._monotonic_s() - began_s)
        _LOG.info("partition %d taken over at offset %d: leads %s, %d published decisions verified, %.2f s", *values)

    def _base_keeper(self, lead: PartitionLead) -> BaseKeeper:
        async def store_index() -> None:
            async with self._lock:
                await self._write_index()

        return BaseKeeper(
            self._settings, self._opened, self.partition, lead, self._written, self._metrics,
            append=self.append, send=self._send, mark=self._mark_now, store_index=store_index, monotonic_s=self._monotonic_s,
        )  # fmt: skip

    # Leading

    async def _run_jobs(self, failed: asyncio.Future[None], *coroutines: Coroutine[Any, Any, None]) -> None:
        """Runs them until one has ended, or something fails."""
        jobs = [asyncio.ensure_future(job) for job in coroutines]
        try:
            await asyncio.wait((*jobs, failed), return_when=asyncio.FIRST_COMPLETED)
            for each in (*jobs, failed):
                if each.done():
                    each.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _watch_log(self, facts: FactReader) -> None:
        """Checks the log while the other jobs wait for brokers. A send to a topic that is gone
        waits until there is one of that name again, and must not reach that one.
        """
        while True:
            await asyncio.sleep(SAME_FOR_S / 2)
            await self._check_same_log(facts)

    async def _read_facts(self, facts: FactReader) -> None:
        while True:
            records = await facts.batch()
            for start in range(0, len(records), _FACTS_A_TURN):
                async with self._lock:
                    for record in records[start : start + _FACTS_A_TURN]:
                        self._read_s = now_s = self._monotonic_s()
                        if now_s - self._same_s >= SAME_FOR_S:
                            await self._check_same_log(facts)
                        await self._fold(record)
                self._read_s = self._monotonic_s()
                await asyncio.sleep(0)

    async def _run_periodic_jobs(self, facts: FactReader) -> None:
        seen_end = 0
        while True:
            await self._check_same_log(facts)
            due = self.lead.ticks_due(self._now_ms())
            for group in due:
                await self.append(group, self.lead.tick(group))
                self._metrics.ticks.inc()
            if not self._to_checkpoint and self._is_round_due():
                self._begin_round()
            if self._to_checkpoint:
                async with self._lock:
                    await self._checkpoint(_CHECKPOINTS_A_TURN)
                    if not self._to_checkpoint:
                        await self._write_index()
                await self._note_halted()
                self._read_s = self._monotonic_s()  # it could not fold meanwhile
            if self._monotonic_s() - self._read_s > _LOOK_AFTER_S:
                position = max(self.lead.position, await facts.position())
                if seen_end > position:
                    raise ReaderStalledError(f"facts end at {seen_end}, and none from {position} on was read for {_LOOK_AFTER_S} s")
                seen_end = await answered(facts.end())
                self._read_s = self._monotonic_s()
            slept_s = self._monotonic_s()
            await asyncio.sleep(_TICK_S)
            self._read_s += max(0.0, self._monotonic_s() - slept_s - _MOST_PASS_S)

    async def _fold(self, fact: ConsumedRecord | NoRecord) -> None:
        """Folds the next fact and publishes its decisions."""
        lead = self.lead
        self._written.append_ms = fact.timestamp_ms
        if not isinstance(fact, NoRecord):
            self._written.bytes_ += size_bytes(fact.key, fact.value) + _RECORD_BYTES
        record = next_fact(lead, fact)
        if record is None:
            await self._note_halted()
            return
        if not record.group and record.offset >= max(1, self._rejected_from) and not isinstance(fact, NoRecord):
            await self._reject(fact.key, fact.value, record)
        kind = record.event.__class__
        if kind is GroupConfigured and lead.must_read_published(record):
            self._published_to = await answered(self._reading.read_published(lead, self._published_to))
        began_s = self._monotonic_s()
        decisions = lead.fold(record, int(began_s * 1_000))
        self._metrics.fold_seconds.observe(self._monotonic_s() - began_s)
        published = [await self._publish(decision) for decision in decisions]
        if kind is RoundAsked:
            self._answer(record, decisions, published)
        group = lead.groups.get(record.group)
        if record.event.__class__ is GroupConfigured and not any(isinstance(each.decision, EventRejected) for each in decisions):
            for warning in record.event.knobs.warnings():
                _LOG.warning("partition %d: group %s: %s", self.partition, record.group, warning)
        if group is not None:
            if group.halted is not None:
                await self._note_halted()
            if group.waiting and group.waiting[0].number <= group.last_published:  # no acknowledgement is under way that would store it
                await self._store(lead, group.name, group.last_published)

    async def _note_halted(self) -> None:
        """Says for archives where groups have halted, before anything else is decided."""
        for name, group in self.lead.groups.items():
            if group.halted is not None and name not in self._logged_halted and self._bases is not None:
                await self._bases.note_halted(name, group.halted.offset)
        self._log_halted()

    def _log_halted(self) -> None:
        """Logs each halted group once."""
        for name, group in self.lead.groups.items():
            if group.halted is not None and name not in self._logged_halted:
                self._logged_halted.add(name)
                _LOG.error("partition %d: %s", self.partition, group.halted, exc_info=group.halted.__cause__)

    def _count(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        is_new = self.leading or record.offset > self._marks.answered_to
        self._news.folded(record, decisions, machine, live=self.leading, is_new=is_new)

    async def _reject(self, key: bytes | None, value: bytes | None, record: FactRecord) -> None:
        """Copies a record that belongs to no group to the rejected topic, with reason and place."""
        code: str = record.event.code  # type: ignore[union-attr]  # a record without a group is Undecodable
        key, value, why = rejected_record(key, value, code, self._topics.facts, self.partition, record.offset)
        self._metrics.rejected.inc()
        await self._send(self._topics.rejected, key, value, partition=0, headers=[("equipoise", why)])

    # Publishing

    def _answer(self, record: FactRecord, decisions: list[DecisionRecord], published: list[asyncio.Future[Any]]) -> None:
        """Tells whoever waits for this round what was decided, once the log has it."""
        waiting = self._asked.get((record.group, record.event.round_id))  # type: ignore[union-attr]  # a RoundAsked
        if waiting is None:
            return

        def tell(done: asyncio.Future[Any]) -> None:
            if waiting.done() or not all(each.done() for each in published):
                return
            if all(not each.cancelled() and each.exception() is None for each in published):
                waiting.set_result(decisions)
            else:
                waiting.set_exception(SendFailedError("the decisions of the round could not be published"))

        for each in published:
            each.add_done_callback(tell)
        if not published and not waiting.done():
            waiting.set_result(decisions)  # the group is halted

    async def _publish(self, decision: DecisionRecord) -> asyncio.Future[Any]:
        key, value = group_key(decision.group), pack_decision(decision)
        self._written.bytes_ += len(key) + len(value) + _RECORD_BYTES
        future = await self._send(self._topics.decisions, key, value)
        lead = self.lead
        future.add_done_callback(lambda done: self._published(lead, decision, done))
        return future

    def _published(self, lead: PartitionLead, decision: DecisionRecord, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None or lead is not self.lead:
            return  # `_send` reports the failure
        self._marks.published(decision.caused_by, done.result().offset)
        self._written.decisions_offset = max(self._written.decisions_offset, done.result().offset + 1)
        group = lead.groups[decision.group]
        if group.waiting and group.waiting[0].number <= decision.number:
            task = asyncio.ensure_future(self._store(lead, decision.group, decision.number))
            task.add_done_callback(lambda stored: None if stored.cancelled() or stored.exception() is None else self._fail(stored.exception()))  # type: ignore[arg-type]
        else:
            lead.acknowledged(decision.group, decision.number)  # no checkpoint waits for it

    async def _send(
        self, topic: str, key: bytes | None, value: bytes | None, *, partition: int | None = None, headers: Any = None
    ) -> asyncio.Future[Any]:
        """Sends in order. The first failure ends the session. Raises SendFailedError."""
        place = self.partition if partition is None else partition
        failed = self._failed
        if failed is not None and failed.done():
            raise SendFailedError(f"to {topic}: not sent, because an earlier send failed")
        try:
            future: asyncio.Future[Any] = await self._producer.send(topic, value, key=key, partition=place, headers=headers)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise SendFailedError(f"to {topic}: {error.__class__.__name__} {error}") from error

        def look(done: asyncio.Future[Any]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is not None and failed is self._failed:
                self._fail(SendFailedError(f"to {topic}: {error.__class__.__name__} {error}"))

        future.add_done_callback(look)
        return future

    # Checkpoints

    async def _store(self, lead: PartitionLead, group: str, number: int) -> None:
        """Stores checkpoints: every decision of the group up to `number` is published."""
        if lead is not self.lead:
            return  # of an earlier session
        for checkpoint in lead.acknowledged(group, number):
            if checkpoint.is_base and self._bases is not None:
                await self._bases.store_state(checkpoint)
            self._slots[group] = 1 - self._slots.get(group, 1)
            for key, value in checkpoint_records(self._opened.log_id, checkpoint, self._slots[group]):
                await self._send(self._topics.checkpoints, key, value)
            lead.stored(checkpoint)  # sent before any index that names it
            self._metrics.checkpoints.inc()

    def _is_round_due(self) -> bool:
        facts = max(self._settings.checkpoint_facts, _FACTS_A_CHECKPOINT * len(self.lead.groups))
        return self.lead.position - self._checkpointed_at >= facts

    def _begin_round(self) -> None:
        """From now on every group that has new facts since its last checkpoint waits for one."""
        self._checkpointed_at = self.lead.position
        self._to_checkpoint = deque(sorted(name for name, group in self.lead.groups.items() if group.halted is None and not group.is_stored))

    async def _checkpoint(self, most: int | None = None) -> None:
        """Stores checkpoints of those that have waited longest; all, or at most so many."""
        lead = self.lead
        for _ in range(len(self._to_checkpoint) if most is None else min(most, len(self._to_checkpoint))):
            name = self._to_checkpoint.popleft()
            group = lead.groups[name]
            if group.halted is None and not group.is_stored:  # its own hash may have brought one meanwhile
                lead.take_checkpoint(name)
                await self._store(lead, name, group.last_published)

    def _mark_now(self) -> None:
        """What the facts from here on cause is published behind what is published."""
        self._marks.reached(self.lead.position, self._written.decisions_offset)

    async def _write_index(self) -> None:
        self._mark_now()
        recovery = self.lead.recovery_offset
        decisions = self._marks.start_for(recovery)
        rests_on = {name: group.checkpoint_offset for name, group in self.lead.groups.items() if group.checkpoint_offset >= 0}
        index = Index(position=self.lead.position, recovery_offset=recovery, decisions_offset=decisions, checkpoints=rests_on)
        for key, value in index_records(self._opened.log_id, index):
            await self._send(self._topics.checkpoints, key, value)

    def _now_ms(self) -> int:
        return int(self._monotonic_s() * 1_000)
