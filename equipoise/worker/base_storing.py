"""Stores the bases of a partition, and deletes records behind them (docs/protocol.md#l10): a part
of a takeover session.

A *round* asks every group for the hash of its state, stores each state when that decision is
acknowledged, and then the base. A round that a failure ends is forgotten; the next session begins
another.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import attrs

from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import BaseRequested, Fact, LogOpened
from equipoise.kafka.client import TopicPartition, within
from equipoise.kafka.started_clients import admin_client, reader
from equipoise.log.kafka.bases_reading import read_bases
from equipoise.log.kafka.bases_topic import Base, Bases, Place, halted_record, state_records
from equipoise.log.kafka.log_opening import open_bases
from equipoise.replay.wording import counted
from equipoise.statemachine.group_lead import StoredCheckpoint
from equipoise.statemachine.partition import PartitionLead
from equipoise.statemachine.snapshots import FORM
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.retention import Deletion, Retention, deletion
from equipoise.worker.settings import WorkerSettings

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.1
_ASK_S = 0.02
_DELETE_EVERY_S = 60.0
"""Longest time between two looks whether records can be deleted."""
_RETRY_S = 5.0
_MOST_ASKED = 20
"""Groups that are asked at a time, so that their states do not hold up what is decided meanwhile.
"""
RECORD_BYTES = 12
"""About what Kafka adds to a record of a batch."""

Send = Callable[[str, bytes, "bytes | None"], Awaitable["asyncio.Future[Any]"]]
"""Sends key and value to a topic, in the order of the calls."""


@attrs.define
class Written:
    """Counts what the session has seen of the partition. `append_ms`: time of the last fact.
    `decisions_offset`: behind the last published decision that is acknowledged or was read.
    `bytes_`: of facts and decisions, since the last base or the begin of the session.
    """

    append_ms: int = 0
    decisions_offset: int = 0
    bytes_: int = 0
    since: int = 0
    """First fact of which the bytes are counted."""

    def bytes_since(self, position: int, now: int) -> int:
        """About the bytes of facts [position, now) and their decisions."""
        return self.bytes_ * (now - position) // max(1, now - self.since)


@attrs.define
class _BaseRound:
    waiting: list[str]
    """Groups that are not asked yet, the next one last."""
    asked: set[str]
    """Groups that were asked and have not answered."""
    begin: int
    """Offset of the next fact when the first group was asked."""
    decisions_offset: int


class BaseKeeper:
    """Keeps the bases of the partition that `lead` leads. `append`: appends a fact of a group.
    `mark`: remembers where decisions end now. `store_index`: stores an index of the checkpoints, so
    that the next worker begins there.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        opened: LogOpened,
        partition: int,
        lead: PartitionLead,
        written: Written,
        metrics: WorkerMetrics,
        *,
        append: Callable[[str, Fact], Awaitable[None]],
        send: Send,
        mark: Callable[[], None],
        store_index: Callable[[], Awaitable[None]],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._retention = Retention(
            retention_ms=settings.retention_ms, retention_bytes=settings.retention_bytes, interval_ms=settings.time_between_bases_ms
        )
        self._topics = settings.topics
        self._opened = opened
        self._partition = partition
        self._lead = lead
        self._written = written
        self._metrics = metrics
        self._append, self._send, self._mark, self._store_index = append, send, mark, store_index
        self._monotonic_s = monotonic_s
        self._bases = Bases(opened.log_id, keep_states=False)
        self._read_to = 0
        self._places: dict[str, Place] = {}
        """Group -> place of its last stored state."""
        self._halted: set[str] = set()
        """Groups that have halted here."""
        self._round: _BaseRound | None = None
        self._said_held = self._said_failed = ""

    async def store_state(self, checkpoint: StoredCheckpoint) -> None:
        """Stores a state that was asked for. Its decisions are acknowledged."""
        for key, value in state_records(self._opened.log_id, checkpoint.group, checkpoint.offset, FORM, checkpoint.state):
            await self._send(self._topics.bases, key, value)
        self._places[checkpoint.group] = checkpoint.offset, checkpoint.number, FORM, hashlib.sha256(checkpoint.state).hexdigest()

    async def note_halted(self, group: str, offset: int) -> None:
        """Says where a group has halted, and returns when the brokers have that. No decision of a
        later fact may be published before, so that no archive goes on.
        """
        if group not in self._halted:
            self._halted.add(group)
            sent = await self._send(self._topics.bases, *halted_record(self._opened.log_id, group, offset))
            async with within(f"the record that group {group} has halted"):
                await sent

    async def _note_led(self) -> None:
        """Takes that back for groups that are led again, once their decisions are acknowledged."""
        for name in sorted(self._bases.halted.keys() - self._halted):
            group = self._lead.groups.get(name)
            if group is not None and group.halted is None and group.last_published >= group.machine.state.number:
                await self._send(self._topics.bases, *halted_record(self._opened.log_id, name, None))
                del self._bases.halted[name]

    async def _write_all(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Returns when the brokers have them. Raises KafkaTimeoutError, and what `send` raises."""
        sent = [await self._send(self._topics.bases, key, value) for key, value in records]
        async with within(f"the acknowledgement of {counted(len(sent), 'record')} of bases"):
            for each in sent:
                await each

    async def run(self) -> None:
        """Stores bases and deletes records, for ever. Raises what `append` and `send` raise."""
        await self._until_done(self._open)
        began_s, tried_s = self._monotonic_s(), 0.0
        while True:
            await self._note_led()
            if self._round is None and self._is_due(began_s):
                self._round = self._begin_round()
            if self._round is not None:
                await self._go_on(self._round)
                if not self._round.asked:
                    await self._store_base(self._round)
                    self._round, began_s, tried_s = None, self._monotonic_s(), 0.0
            if self._monotonic_s() - tried_s > min(_DELETE_EVERY_S, self._retention.interval_ms / 1_000):
                await self._done(self._delete)
                tried_s = self._monotonic_s()
            await asyncio.sleep(_LOOK_S if self._round is None else _ASK_S)

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        while not await self._done(work):  # noqa: ASYNC110  # which logs why not
            await asyncio.sleep(_RETRY_S)

    async def _done(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Returns whether the brokers have done `work`; it is tried again later."""
        from aiokafka.errors import KafkaError

        try:
            await work()
        except (KafkaError, EquipoiseError, TimeoutError) as error:
            if str(error) != self._said_failed:
                self._said_failed = str(error)
                _LOG.warning("partition %d: cannot store bases or delete records, retrying: %r", self._partition, error)
            return False
        self._said_failed = ""
        return True

    # Bases

    async def _read(self) -> None:
        self._read_to = await read_bases(self._settings, self._topics, self._partition, self._bases, self._read_to)

    async def _open(self) -> None:
        """Reads the topic, and writes its first record when there is none."""
        await self._read()
        if self._bases.opened is None:
            await open_bases(self._settings, self._topics, self._partition)
            await self._read()
        opened = None if self._bases.opened is None else self._bases.opened.record().event
        if opened != self._opened:
            raise EquipoiseError(f"topic {self._topics.bases}/{self._partition} is of another log: delete it, and start the worker again")
        stored = self._bases.stored
        if stored:
            self._places = {**stored[-1].groups, **self._places}

    @property
    def _newest(self) -> Base | None:
        stored = self._bases.stored
        return stored[-1] if stored else None

    def _is_due(self, began_s: float) -> bool:
        """Returns whether a base is due, by the log's clock or the worker's, and something has
        happened.
        """
        newest, interval_ms = self._newest, self._retention.interval_ms
        if not self._lead.groups or (newest is not None and self._lead.position <= newest.position):
            return False
        if newest is None or self._written.append_ms - newest.append_ms >= interval_ms:
            return True
        return (self._monotonic_s() - began_s) * 1_000 >= interval_ms

    def _begin_round(self) -> _BaseRound:
        lead = self._lead
        self._mark()
        wanted = sorted((name for name, group in lead.groups.items() if group.halted is None), reverse=True)
        return _BaseRound(wanted, set(), lead.position, self._written.decisions_offset)

    async def _go_on(self, begun: _BaseRound) -> None:
        """Asks the next groups, as others have answered or halted."""
        groups = self._lead.groups
        begun.asked -= {
            name for name in begun.asked if groups[name].halted is not None or (name in self._places and self._places[name][0] >= begun.begin)
        }
        while begun.waiting and len(begun.asked) < _MOST_ASKED:
            name = begun.waiting.pop()
            if groups[name].halted is None:
                begun.asked.add(name)
                await self._append(name, BaseRequested())

    async def _store_base(self, begun: _BaseRound) -> None:
        """Stores the base of a complete round, and an index of the checkpoints of the same states."""
        lead, newest = self._lead, self._newest
        groups = {name: self._places[name] for name in sorted(lead.groups) if name in self._places}
        firsts = [groups[name][0] + 1 if name in groups else group.from_offset for name, group in lead.groups.items()]
        facts_offset = min(firsts, default=lead.position)
        # Of a group that has halted the state is an older one, and so are the decisions behind it.
        older = 0 if newest is None else newest.decisions_offset
        base = Base(
            log_id=self._opened.log_id,
            position=lead.position,
            append_ms=self._written.append_ms,
            facts_offset=facts_offset,
            decisions_offset=begun.decisions_offset if facts_offset >= begun.begin else older,
            interval_bytes=self._written.bytes_since(0 if newest is None else newest.position, lead.position),
            previous="" if newest is None else newest.sha256,
            groups=groups,
        )
        await self._write_all(base.records())
        self._written.bytes_, self._written.since = 0, lead.position
        await self._store_index()
        await self._until_done(self._read)
        self._metrics.bases.inc()
        values = (self._partition, base.position, counted(len(groups), "group"), facts_offset)
        _LOG.info("partition %d: stored a base at offset %d: %s, facts from %d on", *values)

    # Deletion

    async def _delete(self) -> None:
        await self._read()
        bases = [base for base in self._bases.stored if not self._bases.damage(base)]
        newest = bases[-1] if bases else None
        running = 0 if newest is None else self._written.bytes_since(newest.position, self._lead.position)
        archives = {name: position for name, (position, _) in self._bases.archives.items()}
        halted = {name: group.halted.offset for name, group in self._lead.groups.items() if group.halted is not None}
        found = deletion(bases, self._written.append_ms, running, self._retention, archives, halted)
        self._say(found)
        facts, decisions = TopicPartition(self._topics.facts, self._partition), TopicPartition(self._topics.decisions, self._partition)
        begins = await self._begins(facts, decisions)
        behind = found.behind
        if behind is not None and (behind.facts_offset > begins[facts] or behind.decisions_offset > begins[decisions]):
            async with admin_client(self._settings) as admin:
                await admin.delete_records({facts: behind.facts_offset, decisions: behind.decisions_offset})
            values = (self._partition, behind.facts_offset, behind.decisions_offset, behind.position)
            _LOG.info("partition %d: deleted facts before %d and decisions before %d, behind the base at %d", *values)
            begins = await self._begins(facts, decisions)
        self._metrics.first_offset.labels(str(self._partition)).set(begins[facts])
        await self._forget(begins[facts], begins[decisions])

    async def _begins(self, *places: TopicPartition) -> Mapping[TopicPartition, int]:
        async with reader(self._settings) as consumer:
            return await consumer.beginning_offsets(places)

    def _say(self, found: Deletion) -> None:
        self._metrics.retention_held.labels(str(self._partition)).set(bool(found.held_by))
        if found.held_by and found.held_by != self._said_held:
            _LOG.warning("partition %d: keeping records that are due to be deleted: %s", self._partition, found.held_by)
        self._said_held = found.held_by

    async def _forget(self, facts_begin: int, decisions_begin: int) -> None:
        """Deletes the bases that the log has passed, and the states that only they name."""
        usable = next((base for base in self._bases.stored if base.facts_offset >= facts_begin and base.decisions_offset >= decisions_begin), None)
        if usable is None:
            return
        passed = [base for base in self._bases.stored if base.position < usable.position]
        keys = [key for base in passed for key in self._bases.keys_of(base)] + self._bases.states_before(usable)
        await self._write_all((key, None) for key in keys)
        if keys:
            await self._read()
