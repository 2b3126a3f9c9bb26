"""Drives one task of an application in a test, without Kafka: what is deployed calls its handler,
its timers and its serdes, and answers its errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import attrs

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import Record, Unsent
from equipoise.member.copies.stores import MemoryStore
from equipoise.member.options import MemberKeywords, MemberOptions, refuse_unknown
from equipoise.member.source import Sources
from equipoise.member.tasks.context import Callback, State, TaskContext
from equipoise.member.tasks.error_policy import FailedTask
from equipoise.member.tasks.failures import Failures
from equipoise.member.tasks.processing import MOST_AT_ONCE, BatchHandler, Handler, Processing, Processor
from equipoise.member.tasks.serdes import Serde
from equipoise.member.tasks.timers import IntervalTimers


@attrs.frozen
class SentRecord:
    """A record that the application sent. Key and value are deserialized by the driver's serdes, or
    bytes if these cannot. `timestamp_ms` None: the time of sending.
    """

    topic: str
    key: Any
    value: Any
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


class TaskDriver:
    """One task of an application. The arguments are those of `Member` that matter to a task.

    ::

        driver = TaskDriver(count, key_serde=StringSerde(), value_serde=JsonSerde())
        sent = await driver.send({"cents": 5}, key="c1")
        assert sent == [SentRecord("totals", "c1", 5, timestamp_ms=0)]
        assert driver.state.get("c1") == 5

    Time stands still but in `advance` and in waits to retry, which take no real time.
    """

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        sources: Sources = "source",
        state: str | Sequence[str] = "state",
        partition: int = 0,
        subtopology: int = 0,
        group: str = "test",
        on_assigned: Callback | None = None,
        **options: Unpack[MemberKeywords],
    ) -> None:
        processor = Processor(handler, batch_handler=batch_handler, sources=sources, state=state)
        refuse_unknown("TaskDriver", options, MemberOptions.__annotations__)
        given = MemberOptions(**options)
        self._most = min(given.most_uncommitted_records, MOST_AT_ONCE)
        self._keys, self._values = given.key_serde, given.value_serde
        self._now_s = 0.0
        self._timers = IntervalTimers(lambda: self._now_s)
        state_keys, state_values = given.state_key_serde or self._keys, given.state_serde or self._values
        self.states: Mapping[str, State] = {topic: State(MemoryStore(), state_keys, state_values, topic=topic) for topic in processor.state}
        """Changelog topic -> state."""
        self.context = TaskContext(TaskId(subtopology, partition), 1, self.states, self._timers, self._keys, self._values)
        self._sources = {each.topic: (each.key_serde or self._keys, each.value_serde or self._values) for each in processor.inputs}
        self._offsets = dict.fromkeys(processor.sources, 0)
        self._failures = Failures()
        self._processing = Processing(
            processor,
            self.context,
            self._timers,
            group=group,
            policy=given.on_error,
            key_serde=self._keys,
            value_serde=self._values,
            failures=self._failures,
        )
        self._on_assigned, self._has_begun = on_assigned, False
        self.last_sent: Sequence[tuple[str, int | None, Unsent]] = ()
        """Topic, partition and bytes of what the last call has sent."""

    @property
    def now_ms(self) -> int:
        """Returns the driver's time."""
        return round(self._now_s * 1_000)

    @property
    def state(self) -> State:
        """The state of a task with one changelog."""
        return self.context.state

    @property
    def dropped(self) -> Mapping[tuple[str, str], int]:
        """Returns how many records were dropped: by whom (the name of a window, join or table; of
        what `on_error` leaves out, the source topic), reason (a `DropReason`) -> number.
        """
        return {(by, reason): count for (_, by, reason), count in self._failures.drops.counts.items() if count}

    @property
    def failed(self) -> FailedTask | None:
        """Returns why the task has failed (`ErrorPolicy.stop`); None: it is not."""
        return self._processing.parked

    async def send(
        self,
        value: Any,
        *,
        key: Any = None,
        topic: str | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        timestamp_ms: int | None = None,
        value_serde: Serde | None = None,
    ) -> list[SentRecord]:
        """Gives the task one record of `topic` (None: its first source). Returns what it sent.
        `timestamp_ms` None: the driver's time, which begins at 0. `value_serde`: another one, for a
        record that the task cannot read.

        Raises what the handler raises with `ErrorPolicy.stop`; nothing it did for the record is
        left then. Raises SerdeUnavailableError when a serde cannot work: a member would try again.
        """
        return await self._handle([self._consumed(value, key, topic, headers, timestamp_ms, value_serde)])

    async def send_many(self, records: Iterable[tuple[Any, Any]], *, topic: str | None = None) -> list[SentRecord]:
        """Gives the task records of one source partition at once, (key, value) each; a batch
        handler gets them together. Otherwise as `send`.
        """
        return await self._handle([self._consumed(value, key, topic, (), None, None) for key, value in records])

    async def advance(self, seconds: float) -> list[SentRecord]:
        """Lets this time pass. Returns what timers sent, each when it was due. Raises what a timer
        raises with `ErrorPolicy.stop`.
        """
        await self._begin()
        end_s = self._now_s + seconds
        while (wait_s := self._timers.wait_s()) is not None and self._now_s + wait_s <= end_s and self.failed is None:
            self._now_s += wait_s
            await self._processing.run_timers()
        self._now_s = end_s
        return self._commit()

    def _consumed(
        self, value: Any, key: Any, topic: str | None, headers: Iterable[tuple[str, bytes]], timestamp_ms: int | None, value_serde: Serde | None
    ) -> Record:
        source = next(iter(self._sources)) if topic is None else topic
        if source not in self._sources:
            raise InputError(f"send: {source} is no source of this task; there are: {', '.join(self._sources)}")
        keys, values = self._sources[source]
        offset = self._next_offset(source)
        return Record(
            None if key is None else keys.serialize(key),
            None if value is None else (value_serde or values).serialize(value),
            source,
            self.context.task.partition,
            offset,
            self.now_ms if timestamp_ms is None else timestamp_ms,
            tuple(headers),
        )

    def _next_offset(self, source: str) -> int:
        offset = self._offsets[source]
        self._offsets[source] += 1
        return offset

    async def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self._processing.begin(self._on_assigned)

    async def _handle(self, records: Sequence[Record]) -> list[SentRecord]:
        await self._begin()
        done = 0
        while done < len(records) and self.failed is None:
            done += await self._processing.handle(records, done, min(len(records), done + self._most), lambda: 0, 1)
            self._now_s += self._processing.retry_in_s or 0.0
            if self._processing.not_now is not None:
                raise self._processing.not_now
        return self._commit()

    def _commit(self) -> list[SentRecord]:
        """Commits as a runner does: what was done before an error stays."""
        self.last_sent = self.context.outputs.take().unplaced  # it knows of no topic's partitions
        sent = [self._sent(*each) for each in self.last_sent]
        for state in self.states.values():
            state.store.apply(state.begin_commit(), offset=state.store.offset + 1)
        error, self._processing.error = self._processing.error, None
        if error is not None:
            raise error
        return sent

    def _sent(self, topic: str, partition: int | None, record: Unsent) -> SentRecord:
        key, value, headers, timestamp_ms = record
        return SentRecord(topic, deserialized(self._keys, key), deserialized(self._values, value), partition, tuple(headers), timestamp_ms)


def deserialized(serde: Serde, data: bytes | None) -> Any:
    """The key or value; the bytes themselves if the serde cannot read them."""
    if data is None:
        return None
    try:
        return serde.deserialize(data)
    except Exception:  # noqa: BLE001  # a serde may raise anything
        return data
