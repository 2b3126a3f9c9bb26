"""Leads one partition of the log on a real Kafka, in one takeover session after the other.

A *takeover session* takes the partition over (checkpoints, published decisions, facts to the end),
then leads it until something fails. After any failure the next session starts from the log. One
consumer and one idempotent producer belong to each session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable

from equipoise.console.recent import Recent
from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import Fact, LogOpened
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.folding.log_reading import FactReader, PartitionReading
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.kafka.client import ENDS_S, LOG_COMPRESSION, Producer, call_off, within
from equipoise.log.kafka.log_opening import open_again
from equipoise.log.kafka.log_topics import MADE_AGAIN
from equipoise.replay.wording import names_text
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import PartitionLead
from equipoise.worker.asked_rounds import AskedRounds
from equipoise.worker.broker_answers import ANSWER_S
from equipoise.worker.decided_news import DecidedNews
from equipoise.worker.decision_marks import DecisionMarks
from equipoise.worker.log_identity import LogIdentity, LogReplacedError
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.reader_watch import ReaderStalledError
from equipoise.worker.session_sender import SendFailedError, SessionSender
from equipoise.worker.settings import WorkerSettings
from equipoise.worker.takeover_session import Deliver, TakeoverSession
from equipoise.worker.tracing import Tracing

_LOG = logging.getLogger(__name__)
_RETRY_WAITS_S = (0.2, 1.0, 3.0, 10.0)
"""Waits before the next takeover session, after one, two, ... failed sessions in a row."""


def _is_gone(error: Exception, facts: str) -> bool:
    """Returns whether another topic of the log than `facts` was deleted."""
    return error.__class__.__name__ == "UnknownTopicOrPartitionError" and facts not in str(error)


def _problem_of(error: Exception, facts: str) -> str:
    """Returns what has ended a session, and how to mend it where the error does not say it.
    `facts`: topic of the facts.
    """
    text = f"{error.__class__.__name__}: {error}"
    if _is_gone(error, facts):
        return f"{text} is gone: {MADE_AGAIN}"
    if "AuthorizationFailed" not in text:
        return text
    return f"{text}: the worker's user may not do that; `equipoise doctor` names the ACL that is missing"


class PartitionHost:
    """Leads one partition from `start` to `stop`, or until the log is replaced; then it calls
    `replaced`.

    `deliver`: brings facts to where they are folded. `make_producer`: makes the producer of a
    session. `topic_ids`: ids of the topics of the log that `opened` names (`Topics.ids`); None: the
    brokers give topics no ids. `folded` is called with the partition, each fact that was folded, and
    its decisions.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        opened: LogOpened,
        partition: int,
        metrics: WorkerMetrics,
        deliver: Deliver,
        make_producer: Callable[..., Producer],
        *,
        topic_ids: tuple[str, ...] | None = None,
        replaced: Callable[[], None] = lambda: None,
        runtime: Runtime = DEPLOYED,
        brokers: BrokerWatch | None = None,
        recent: Recent | None = None,
        tracing: Tracing | None = None,
        folded: Callable[[int, FactRecord, list[DecisionRecord]], None] = lambda partition, record, decisions: None,
    ) -> None:
        self.partition = partition
        self.problem = ""
        """Why the last session failed; "" once the next one has taken over."""
        self._settings, self._opened, self._metrics, self._brokers, self._replaced = settings, opened, metrics, brokers, replaced
        self._deliver, self._make_producer = deliver, make_producer
        self._monotonic_s = runtime.monotonic_s
        self._reading = PartitionReading(settings, settings.topics, opened, partition)
        self._identity = LogIdentity(settings.topics, opened, topic_ids, runtime.monotonic_s)
        self._news = DecidedNews(partition, metrics, tracing, Recent() if recent is None else recent)
        self._folded = folded
        self._asked = AskedRounds()
        self._task: asyncio.Task[None] | None = None
        self._sender: SessionSender | None = None
        """Sends for the last session that has begun."""
        self._session: TakeoverSession | None = None
        """The last session that has read its checkpoints."""
        self._no_lead = PartitionLead()

    @property
    def lead(self) -> PartitionLead:
        """The lead of the last session that has read its checkpoints; an empty one before."""
        return self._no_lead if self._session is None else self._session.lead

    @property
    def leading(self) -> bool:
        """Returns whether the partition is taken over: every decision up to the end found then is
        published.
        """
        return self._session is not None and self._session.leading

    def reload(self, settings: WorkerSettings) -> None:
        """Goes on with other settings: those of `RELOADED`."""
        self._settings = settings
        if self._session is not None:
            self._session.checkpoints.reload(settings)

    def silent_s(self) -> float:
        """Seconds since the last request about the log that the brokers have answered; 0: it does
        not lead, or the brokers give topics no ids.
        """
        return self._identity.silent_s() if self.leading else 0.0

    def start(self) -> None:
        """Begins to lead, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run_sessions(), name=f"partition {self.partition}")

    async def stop(self, *, checkpoint: bool = False) -> None:
        """Stops leading. `checkpoint`: stores a checkpoint of every group first, so that the next
        worker reads little.
        """
        if checkpoint and self._session is not None and self._session.leading:
            with contextlib.suppress(Exception):
                await self._session.store_last_checkpoints()
        if self._task is not None:
            await call_off(self._task, again_s=ENDS_S)
        self._end_session()
        self._metrics.forget_partition(self.partition)

    def begin_checkpoints(self) -> None:
        """Begins to store a checkpoint of every group, in turn."""
        if self._session is not None and self._session.leading and not self._session.checkpoints.is_in_round:
            self._session.checkpoints.begin_round()

    async def ask(self, group: str, facts: Iterable[Fact], round_id: str) -> list[DecisionRecord]:
        """Appends the facts of a round, the last of which is RoundAsked, and returns the decisions
        on that, once they are published. Raises SendFailedError.
        """
        with self._asked.waiting(group, round_id) as answer:
            for fact in facts:
                await self.append(group, fact)
            async with within(f"the decisions of round {round_id}"):
                return await answer

    def former(self, start: int, end: int) -> AsyncGenerator[tuple[FactRecord, list[DecisionRecord]], None]:
        """Returns the former facts, as `PartitionReading.former` does."""
        return self._reading.former(start, end)

    async def append(self, group: str, fact: Fact) -> None:
        """Appends a fact of this worker: a tick or an observation. Raises SendFailedError."""
        if self._sender is None:
            raise SendFailedError(f"partition {self.partition} is not led yet")
        await self._sender.append(group, fact)

    def tick(self) -> None:
        """Has probing ticks appended, where some are due."""
        if self._session is not None and self._session.leading:
            self._session.tick()

    # Takeover sessions

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.end()

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
                facts, former = self._settings.topics.facts, self.problem
                self.problem = _problem_of(error, facts)
                is_gone = _is_gone(error, facts)
                known = is_gone or isinstance(error, SendFailedError | ReaderStalledError | EquipoiseError)
                is_noted = self._brokers is not None and self._brokers.noted(f"takeover session of partition {self.partition}", error)
                if not is_noted and not (is_gone and self.problem == former):
                    trace = None if known else error
                    _LOG.warning("takeover session of partition %d failed, retrying: %s", self.partition, self.problem, exc_info=trace)
                self._metrics.takeovers_failed.inc()
            finally:
                self._end_session()
            failures = failures + 1 if self._monotonic_s() - began_s < 60 else 1
            await asyncio.sleep(_RETRY_WAITS_S[min(failures, len(_RETRY_WAITS_S)) - 1])

    async def _run_session(self) -> None:
        from aiokafka.errors import UnknownTopicOrPartitionError

        producer = self._make_producer(request_timeout_ms=int(ANSWER_S * 1_000), compression_type=LOG_COMPRESSION, topic_ids=self._identity.topic_ids)
        self._sender = sender = SessionSender(producer, self.partition, self._settings.topics.facts)
        try:
            await producer.start()
            async with self._reading.facts() as facts:
                self._identity.forget()
                await self._identity.check(facts)
                await sender.run_until_failed(self._take_over(facts, sender), self._identity.watch(facts))
                assert self._session is not None, "it was taken over above"
                recalling = asyncio.ensure_future(self._news.recall(self._reading, self.lead))
                try:
                    await self._session.run(facts, self._deliver)
                finally:
                    recalling.cancel()
        except (LogReplacedError, UnknownTopicOrPartitionError):
            await producer.abandon()  # unsent records must not reach new topics of the same names
            raise
        finally:
            self._end_session()
            self._news.forget(self.lead.groups)
            await producer.stop(within_s=3.0)

    async def _take_over(self, facts: FactReader, sender: SessionSender) -> None:
        """Reads the last checkpoints and the published decisions, and catches up."""
        began_s = self._monotonic_s()
        marks = DecisionMarks()

        def count(record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
            is_new = self.leading or record.offset > marks.answered_to
            self._news.folded(record, decisions, machine, live=self.leading, is_new=is_new)
            self._folded(self.partition, record, decisions)

        begun = await self._reading.begin(answers=True, folded=count, mark=marks.published)
        if begun.lead.position <= 1:  # it begins with the first record: perhaps that is lost, too
            await open_again(self._settings, self._settings.topics, self.partition, self._opened)
        self._session = session = TakeoverSession(
            self._settings, self._opened, self._reading, begun, sender, marks, self._identity, self._asked, self._metrics, self._monotonic_s
        )
        lead = session.lead
        self._news.begin(lead)
        await session.catch_up(facts)
        self.problem = ""
        confirmed = sum(group.confirmed for group in lead.groups.values())
        self._metrics.takeover_seconds.observe(self._monotonic_s() - began_s)
        values = (self.partition, lead.position, names_text(lead.groups), confirmed, self._monotonic_s() - began_s)
        _LOG.info("partition %d taken over at offset %d: leads %s, %d published decisions verified, %.2f s", *values)
