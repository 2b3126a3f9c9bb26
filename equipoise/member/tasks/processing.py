"""The application's side of a task: gives records to its handler, calls its timers, and does as the
error policy says when one raises. Without Kafka, so that tests of applications run it too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from equipoise.events import fields
from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import ConsumedRecord, Record, TopicPartition, check_topic
from equipoise.member.copies.stores import StoreError
from equipoise.member.options import refuse_unknown
from equipoise.member.source import Source, Sources, sources_of
from equipoise.member.tasks.callbacks import awaitable, call, check_callback
from equipoise.member.tasks.context import Callback, KeptError, TaskContext
from equipoise.member.tasks.declared import misfit
from equipoise.member.tasks.drops import COUNTED, DropReason
from equipoise.member.tasks.error_policy import ErrorPolicy, FailedTask, dead_letter, error_text, place_of
from equipoise.member.tasks.failures import Failures
from equipoise.member.tasks.fatal_errors import is_cancelled, settled
from equipoise.member.tasks.open_iterators import end_all
from equipoise.member.tasks.refusals import ForGood, RefusedRecord, is_own_refused, refused_by
from equipoise.member.tasks.serdes import BytesSerde, Serde, SerdeAsksError, SerdeUnavailableError, looks_up
from equipoise.member.tasks.sizes import OversizedError, is_too_large
from equipoise.member.tasks.timers import IntervalTimers

_LOG = logging.getLogger(__name__)
NOT_NOW_S = 1.0
"""When to try again what a serde cannot read at present."""
MOST_AT_ONCE = 500
"""Records that a task takes. Then other tasks have their turn, and what was fetched is read."""


class Handler(Protocol):
    """Called with each record of a task, in order within a source partition. A function or a
    coroutine function.
    """

    def __call__(self, record: Record, context: TaskContext, /) -> Awaitable[None] | None: ...


class BatchHandler(Protocol):
    """Called with the next records of one source partition of a task, in order: those that are
    there, at most 500. A function or a coroutine function.
    """

    def __call__(self, records: Sequence[Record], context: TaskContext, /) -> Awaitable[None] | None: ...


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """One topic, or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def _as_given(given: Sources) -> Any:
    return sources_of(given)


@attrs.frozen
class Processor:
    """A handler with the topics it works with: one sub-topology of a group. `Member` makes one of
    its own arguments, or takes several.

    There is one task for each partition of `sources`, names or `Source`, which all have equally
    many. Of several the record with the lowest timestamp comes first. `state`:
    changelog topics of its state. `outputs`: topics it sends to. Exactly one of `handler` and
    `batch_handler` is given.

    `name`: under which the offsets of its tasks are stored. Two processors that read the same
    source have different names. A processor with another name reads its sources as a new one.
    """

    handler: Handler | None = None
    batch_handler: BatchHandler | None = attrs.field(default=None, kw_only=True)
    sources: tuple[str, ...] = attrs.field(kw_only=True, converter=_as_given)
    """Their topics, once it is made."""
    inputs: tuple[Source, ...] = attrs.field(init=False)
    state: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=names)
    outputs: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=names)
    name: str = attrs.field(default="", kw_only=True)

    if not TYPE_CHECKING:

        def __new__(cls, *given, **named):
            refuse_unknown("Processor", named, cls.__annotations__.keys() - {"inputs"})
            return object.__new__(cls)

    def __attrs_post_init__(self) -> None:
        inputs: Any = self.sources
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "sources", tuple(each.topic for each in inputs))
        if (self.handler is None) == (self.batch_handler is None):
            raise InputError("Processor: give it a handler or a batch_handler")
        check_callback("handler", self.handler, "record, context")
        check_callback("batch_handler", self.batch_handler, "records, context")
        if self.name:
            fields.check_name("Processor.name", self.name)
        if not self.sources:
            raise InputError("Processor.sources: name the topics it reads")
        for field in ("sources", "state", "outputs"):
            for topic in getattr(self, field):
                check_topic(f"Processor.{field}", topic)

    def label(self, subtopology: int) -> str:
        """Its name in metrics: `name`, or the number with which its tasks begin."""
        return self.name or str(subtopology)


_TIME_OF = attrgetter("timestamp_ms")


def _handed_on(context: TaskContext, times_ms: Iterable[int]) -> int | None:
    """The latest time of records that is not too far ahead; None: none has one."""
    latest_ms = max((each for each in times_ms if not context.is_ahead(each, is_next=True)), default=-1)
    return latest_ms if latest_ms >= 0 else None


class Processing:
    """Runs a processor for one grant of a task. `refused`: see `TaskRefusals.records`."""

    def __init__(
        self,
        processor: Processor,
        context: TaskContext,
        timers: IntervalTimers,
        *,
        group: str,
        policy: ErrorPolicy,
        key_serde: Serde,
        value_serde: Serde,
        refused: Mapping[TopicPartition, RefusedRecord] | None = None,
        failures: Failures | None = None,
    ) -> None:
        self._failures = failures or Failures()
        self._refused = {} if refused is None else refused
        self._handler, self._batch_handler = processor.handler, processor.batch_handler
        self._label = processor.label(context.task.subtopology)
        self._context, self._timers, self._group, self._policy = context, timers, group, policy
        for state in context.states.values():
            state.may_drop = partial(self._failures.drops.begin, self._label)
        serdes = {each.topic: (each.key_serde or key_serde, each.value_serde or value_serde) for each in processor.inputs}
        self._reads = {topic: (keys.deserialize, values.deserialize) for topic, (keys, values) in serdes.items()}
        """Source topic -> what reads its keys, and its values."""
        self._reads_bytes = all(type(keys) is BytesSerde and type(values) is BytesSerde for keys, values in serdes.values())
        self._suspects = 0
        """The next records, one of which fails: they are halved until it is given alone."""
        self._most = MOST_AT_ONCE
        """Of the next batch, when none of them is known to fail."""
        self._attempts = 0
        """Of the record at hand, all failed."""
        self.retry_in_s: float | None = None
        """When to call `handle` again with what it has not done; None: it was not refused."""
        self.parked: FailedTask | None = None
        """Why nothing more is handled; None: it is."""
        self.error: BaseException | None = None
        """What was raised when the task was parked."""
        self.not_now: SerdeUnavailableError | None = None
        """What was raised when the record at hand had to wait."""
        self.awaits: tuple[float, ConsumedRecord] | None = None
        """Since when (monotonic, s) an `async` handler has been running, and its first record; None:
        none runs.
        """
        self._is_unreadable = False
        """Whether a serde, and not the handler, has raised last."""

    async def begin(self, on_assigned: Callback | None) -> None:
        """Calls `on_assigned`, if there is one, before the first record. Parks the task when what
        the handler uses does not fit what is kept in the state.
        """
        try:
            if on_assigned is not None:
                await call(on_assigned, self._context)
            found = misfit(self._handler or self._batch_handler, self._context)
        except KeptError as error:
            self._context.rollback()
            found = error
        if found is not None:
            self.park("", -1, -1, found)

    async def handle(self, records: Sequence[ConsumedRecord], begin: int, end: int, clock_ms: Callable[[], int], until_ms: float) -> int:
        """Gives `records[begin:end]` to the handler, as long as `clock_ms()` is below `until_ms`.
        Returns how many are done with. If it is not all of them, the task fails, `retry_in_s`
        says when to call this again with the rest, or the time is over.
        """
        asked: list[SerdeAsksError] = []
        looks_up.set(asked)
        try:
            return await self._handle(records, begin, end, clock_ms, until_ms, asked)
        finally:
            looks_up.set(None)
            self._context.record_ms = None

    async def _handle(
        self, records: Sequence[ConsumedRecord], begin: int, end: int, clock_ms: Callable[[], int], until_ms: float, asked: list[SerdeAsksError]
    ) -> int:
        context, handler, batch_handler, record_of = self._context, self._handler, self._batch_handler, self._record
        savepoint, job, readings = context.savepoint, asyncio.current_task(), context.readings
        self.retry_in_s = self.not_now = None
        monotonic_s = self._failures.monotonic_s
        began_s: float | None = monotonic_s()  # only the first call is measured: those that take long are, each of them, the first
        as_is = self._reads_bytes and type(records[begin]) is Record
        done = begin
        while done < end and clock_ms() < until_ms:
            given = 1 if handler is not None else min(end - done, (self._suspects + 1) // 2 or self._most)
            savepoint()
            if self._refused and (refused := self._refused.get(TopicPartition(records[done].topic, records[done].partition))) is not None:
                if refused.offset == records[done].offset and not refused.is_given_again:
                    given = self._leave_out(records[done], refused)
                    if not given:
                        break
                    done += 1
                    continue
                given = max(1, sum(each.offset < refused.offset for each in records[done : done + given]))
            try:
                if handler is not None:
                    at_ms = records[done].timestamp_ms
                    context.record_ms = at_ms if 0 <= at_ms <= context.latest_ms else _handed_on(context, (at_ms,))
                    result = handler(records[done] if as_is else record_of(records[done]), context)  # type: ignore[arg-type]  # it is a Record
                else:
                    batch = records[done : done + given]
                    at_ms = max(map(_TIME_OF, batch))
                    context.record_ms = at_ms if 0 <= at_ms <= context.latest_ms else _handed_on(context, map(_TIME_OF, batch))
                    result = batch_handler(batch if as_is else list(map(record_of, batch)), context)  # type: ignore[misc, arg-type]  # it has one
                if result.__class__ is CoroutineType or (result is not None and awaitable(result) is not None):
                    self.awaits = monotonic_s(), records[done]
                    try:
                        await result
                    finally:
                        self.awaits = None
                if job is not None and job.cancelling() and (pending := await settled()) is not None:
                    raise pending
                if asked:
                    raise asked[0]  # whatever the handler made of it
            except (Exception, asyncio.CancelledError) as error:  # the application's code may raise anything; the rest ends the member
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                await settled()
                if isinstance(error, StoreError):
                    raise
                if context.store_failure is not None:
                    raise context.store_failure from error  # no error of the record, whatever the handler made of it
                context.rollback()
                if asked:
                    failed = await self._look_up(asked)
                    if failed is None:
                        began_s = None
                        continue
                    error = failed
                given = self._failed(records[done : done + given], error)
                if not given:
                    break
            else:
                if handler is None:
                    self._passed(given)
                self._attempts = 0
                if context.dropped:
                    self._note_dropped(records[done : done + given])
                if began_s is not None:
                    self._failures.handled_in(monotonic_s() - began_s)
            finally:
                if readings:
                    end_all(readings)
            began_s = None
            done += given
        if context.store_failure is not None:  # the handler has gone on all the same
            raise context.store_failure
        return done - begin

    async def _look_up(self, asked: list[SerdeAsksError]) -> Exception | None:
        """Asks what a serde has to know, in another thread. Returns what is wrong with the record;
        None: it can be tried again.
        """
        is_unreadable, self._is_unreadable = self._is_unreadable, False
        look_up = asked[0].look_up
        asked.clear()
        try:
            await asyncio.get_running_loop().run_in_executor(None, look_up)
        except Exception as error:  # noqa: BLE001  # a serde may raise anything
            self._is_unreadable = is_unreadable
            return error
        return None

    def _record(self, raw: ConsumedRecord) -> Record:
        key, value = raw.key, raw.value
        read_key, read_value = self._reads[raw.topic]
        try:
            read = None if key is None else read_key(key), None if value is None else read_value(value)
        except BaseException:
            self._is_unreadable = True
            raise
        return Record(*read, raw.topic, raw.partition, raw.offset, raw.timestamp_ms, raw.headers, raw.timestamp_type)

    def _leave_out(self, record: ConsumedRecord, refused: RefusedRecord) -> int:
        """Does with a record as the policy says, because what was put and sent for it is refused.
        Returns as `_failed`.
        """
        self._attempts = refused.attempts
        given = self._failed([record], refused.error)
        refused.attempts = self._attempts
        refused.is_given_again, refused.is_left_out = self.retry_in_s is not None, bool(given)
        return given

    def _passed(self, given: int) -> None:
        """After records have not failed. If those before them did, and none alone, smaller batches
        follow, which grow again.
        """
        if not self._suspects:
            self._most = min(MOST_AT_ONCE, 2 * self._most)
            return
        self._suspects = max(0, self._suspects - given)
        if not self._suspects and not self._attempts:
            self._most = 1

    def _failed(self, records: Sequence[ConsumedRecord], error: BaseException) -> int:
        task, policy, record = self._context.task, self._policy, records[0]
        place = place_of(record.topic, record.partition, record.offset)
        if isinstance(error, SerdeUnavailableError):
            self.retry_in_s, self.not_now, self._is_unreadable = NOT_NOW_S, error, False
            self._failures.note(record.topic, "retried")
            if self._failures.traceback_of(error) is not None:
                _LOG.warning("task %s: %s waits: %s", task, place, error_text(error))
            return 0
        if len(records) > 1:
            self._suspects = len(records)
            self.retry_in_s = 0.0
            self._is_unreadable = False
            _LOG.info("task %s: a batch of %d records from %s failed (%s); looking for the record", task, len(records), place, error_text(error))
            return 0
        is_unreadable, self._is_unreadable = self._is_unreadable, False
        text = f"it cannot be read: {error_text(error)}" if is_unreadable else error_text(error)
        if isinstance(error, KeptError):  # each record would be left out
            self.park(record.topic, record.partition, record.offset, error)
            return 0
        self._attempts, self._suspects = self._attempts + 1, 1
        if self._attempts <= policy.retries:
            self.retry_in_s = policy.backoff_of(self._attempts)
            self._failures.note(record.topic, "retried")
            _LOG.warning(
                "task %s: attempt %d of %d failed for %s: %s; the next in %.1f s",
                task,
                self._attempts,
                policy.retries + 1,
                place,
                text,
                self.retry_in_s,
                exc_info=self._failures.traceback_of(error),
            )
            return 0
        if policy.action == "stop":
            self.park(record.topic, record.partition, record.offset, error, is_unreadable=is_unreadable)
            return 0
        if policy.action == "dead_letter":
            letter = dead_letter(record, self._group, task, error, self._context.headers)
            try:
                self._context.sizes.check(policy.topic, letter[0], letter[1], letter[2])
            except OversizedError as oversized:
                self.park(record.topic, record.partition, record.offset, oversized)
                return 0
            self._context.outputs.add(policy.topic, None, letter)
        what = f"sent to {policy.topic}" if policy.action == "dead_letter" else "skipped"
        reason = DropReason.DEAD_LETTERED if policy.action == "dead_letter" else DropReason.SKIPPED
        is_first, traced = self._failures.drops.note(self._label, record.topic, reason), self._failures.traceback_of(error)
        _LOG.log(
            logging.WARNING if is_first or traced is not None else logging.DEBUG,
            "task %s: %s was %s: %s (%s counts the others)",
            task,
            place,
            what,
            text,
            COUNTED,
            exc_info=traced,
        )
        self._attempts = self._suspects = 0
        return 1

    def _note_dropped(self, records: Sequence[ConsumedRecord]) -> None:
        """After a call that has not failed: counts what windows, joins and tables dropped in it.
        `records`: what it was given; none: it was a timer's.
        """
        place = place_of(records[0].topic, records[0].partition, records[0].offset) if records else "in a timer"
        for by, what, reason, key, at_ms in self._context.dropped:
            if self._failures.drops.note(self._label, by, reason):
                key = records[0].key if key is None and len(records) == 1 else key
                _LOG.warning(
                    "task %s: %s left out a record as %s: %s%s, key %.60r, time %s ms. This is logged once, %s counts the others",
                    self._context.task,
                    what,
                    reason,
                    "batch from " if len(records) > 1 else "",
                    place,
                    key,
                    at_ms,
                    COUNTED,
                )
        self._context.dropped.clear()

    def park(self, topic: str, partition: int, offset: int, error: BaseException, *, is_unreadable: bool = False) -> None:
        """Handles nothing more, unless it is parked already. `is_unreadable`: a serde has raised."""
        if self.parked is not None:
            return
        self.error = error
        self.parked = parked(self._context.task, topic, partition, offset, error, self._failures, is_unreadable=is_unreadable)
        self._failures.note(topic, "parked")

    async def run_timers(self) -> bool:
        """Calls the timers that are due. Returns whether they have put or sent something."""
        context, has_changed = self._context, False
        if self.parked is not None:
            return False
        asked: list[SerdeAsksError] = []
        callbacks = list(self._timers.take_due())
        while callbacks:
            callback = callbacks.pop(0)
            context.savepoint()
            looks_up.set(asked)
            try:
                await call(callback, context)
                if asked:
                    raise asked[0]
                has_changed = has_changed or context.has_changes
                self._note_dropped(())
            except Exception as error:  # the application's code may raise anything
                if isinstance(error, StoreError):
                    raise
                if context.store_failure is not None:
                    raise context.store_failure from error
                context.rollback()
                failed = await self._look_up(asked) if asked else error
                if failed is None:
                    callbacks.insert(0, callback)
                    continue
                if isinstance(failed, KeptError) or (self._policy.action == "stop" and not isinstance(failed, SerdeUnavailableError)):
                    self.park("", -1, -1, failed)
                    break
                self._failures.note("", "skipped")
                _LOG.error("task %s: a timer failed: %s", context.task, error_text(failed), exc_info=self._failures.traceback_of(failed))
            finally:
                looks_up.set(None)
                context.end_call()
        return has_changed


def parked(
    task: TaskId, topic: str, partition: int, offset: int, error: BaseException, failures: Failures, *, is_unreadable: bool = False
) -> FailedTask:
    """Returns why `task` is parked. Also says it in the log, with a traceback if it is the first of
    its kind.
    """
    said = f"the record cannot be read: {error_text(error)}" if is_unreadable else error_text(error)
    made = FailedTask(task=task, topic=topic, partition=partition, offset=offset, error=said)
    scope = refused_by(error)
    if isinstance(error, KeptError) or is_own_refused(error) or (scope not in (ForGood.RECORD, ForGood.NOTHING) and not is_unreadable):
        _LOG.error("task %s has failed, other tasks go on: %s. Then restart the member", task, made.error)
        return made
    if is_unreadable:
        what = f"its serde cannot read {made.place}: {error_text(error)}. Restart the member with a serde that can"
    elif isinstance(error, OversizedError) or is_too_large(error):
        what = f"what was put or sent for {made.place} is too large: {made.error}. Restart the member with a handler that puts and sends less"
    else:
        by_brokers = scope is ForGood.RECORD and not isinstance(error, InputError)
        says = "brokers refuse what was put or sent for" if by_brokers else "its handler failed for"
        what = f"{says} {made.place}: {made.error}. Mend the handler, and restart the member"
    _LOG.error(
        "task %s has failed, other tasks go on: %s, or give Member on_error=ErrorPolicy.skip() or dead_letter(topic)",
        task,
        what,
        exc_info=failures.traceback_of(error),
    )
    return made
