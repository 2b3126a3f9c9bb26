"""A task that was opened: what it reads, keeps and writes, and how one commit is written.

With exactly_once a commit is part of a transaction. With at_least_once its outputs may have been
sent before; the changelogs follow when they are acknowledged. Only acknowledged changes go to the
store, so it is never ahead of its changelog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from equipoise.events.log.kafka.client import Producer, SentBatch, TopicPartition, Unsent, acknowledged
from equipoise.events.tasks import TaskId
from equipoise.member.clients import TaskClients
from equipoise.member.context import TaskContext, pack_sources
from equipoise.member.fencing import FENCE_KEY, GIVEN_BACK, SOURCES_KEY, FencedStore
from equipoise.member.permit import OvertakenError
from equipoise.member.processing import Processing
from equipoise.member.sources import TaskSources
from equipoise.member.transactions import TransactionPart
from equipoise.member.writer import TaskWriter, WrittenChanges


@attrs.frozen
class Commit:
    """What a commit writes. `outputs`: those of its transaction. With at_least_once they are `sent`
    already. `changes`: changelog topic -> its changes, then the source positions.
    """

    outputs: Mapping[TopicPartition, Sequence[Unsent]]
    sent: Sequence[SentBatch]
    changes: Mapping[str, Mapping[bytes, bytes | None]]
    positions: Mapping[TopicPartition, int]

    @property
    def records(self) -> int:
        """How many its transaction writes."""
        return sum(map(len, self.outputs.values())) + sum(map(len, self.changes.values()))


class OpenTask:
    """A task that was opened. `stores`: changelog topic -> store. `positions`: source partition ->
    offset of the next record to process.
    """

    def __init__(
        self,
        task: TaskId,
        *,
        transactional: bool,
        clients: TaskClients,
        writer: TaskWriter,
        stores: Mapping[str, FencedStore],
        context: TaskContext,
        processing: Processing,
        positions: dict[TopicPartition, int],
    ) -> None:
        self.writer = writer
        self.reading: TaskSources = clients.sources
        self.context = context
        self.processing = processing
        self.positions = positions
        self._task = task
        self._transactional = transactional
        self._clients = clients
        self._stores = stores
        self._next_offsets: dict[str, tuple[int, ...]] = {topic: (each.position,) for topic, each in stores.items()}
        """Changelog topic -> offsets that the next record may have, unless another process writes.
        """

    @property
    def behind(self) -> int | None:
        """Source records still to be processed, by ends that are some seconds old at most; None:
        unknown. Any thread may read it.
        """
        positions = dict(self.positions)
        ends = [self.reading.end(tp) for tp in positions]
        if not ends or None in ends:
            return None
        return sum(max(0, end - position) for end, position in zip(ends, positions.values(), strict=True) if end is not None)

    def write_stale_again(self) -> int:
        """Adds to the next commit what a former owner has overwritten in the changelogs too late.
        Returns the number of keys.
        """
        stale = {topic: each.stale_changes() for topic, each in self._stores.items()}
        for topic, changes in stale.items():
            self.context.states[topic].write_again(changes)
        return sum(map(len, stale.values()))

    def begin_commit(self, outputs: Mapping[TopicPartition, Sequence[Unsent]], sent: Sequence[SentBatch], *, gives_back: bool) -> Commit:
        """A commit of everything since the former one, which is over. `gives_back`: it is the last
        one.
        """
        sources = pack_sources({(tp.topic, tp.partition): offset for tp, offset in self.positions.items()})
        changes = {topic: state.begin_commit({SOURCES_KEY: sources}) for topic, state in self.context.states.items()}
        if gives_back:
            changes = {topic: {FENCE_KEY: GIVEN_BACK, **each} for topic, each in changes.items()}
        return Commit(outputs, sent, changes, dict(self.positions))

    async def write(self, commit: Commit) -> None:
        """Returns when the commit is acknowledged and in the stores. Raises KafkaError, InputError,
        OvertakenError.
        """
        await (self._commit_transaction if self._transactional else self._commit_plainly)(commit)

    async def flush_offsets(self) -> None:
        """Returns when the sources' offsets of the commits were committed for the group too."""
        await self._clients.flush_offsets()

    async def _commit_transaction(self, commit: Commit) -> None:
        transactions = self._clients.transactions
        assert transactions is not None, "a task with exactly_once was opened"
        written: Mapping[str, WrittenChanges] = {}

        async def write(producer: Producer) -> None:
            nonlocal written
            self.writer.producer = producer
            sent = await self.writer.send_outputs(commit.outputs)
            written = await self.writer.append_changes(commit.changes)
            self._check_followed(written)
            await acknowledged(sent)

        offsets = {} if commit.changes else commit.positions
        await transactions.commit(TransactionPart(self._task, commit.records, write, offsets))
        self._to_stores(written)
        if written:
            self._clients.report_offsets(commit.positions, self.writer.producer)

    async def _commit_plainly(self, commit: Commit) -> None:
        # Outputs first: once the changelog has the source positions, no record is processed again.
        await acknowledged(commit.sent)
        written = await self.writer.append_changes(commit.changes)
        self._check_followed(written)
        self._to_stores(written)
        if written:
            self._clients.report_offsets(commit.positions, self.writer.producer)  # the next owner reads them in the changelogs
        else:
            await self.reading.reader.commit(commit.positions)

    def _check_followed(self, written: Mapping[str, WrittenChanges]) -> None:
        """Raises OvertakenError when another process has written to a changelog behind what is in
        the store.
        """
        for topic, each in written.items():
            known = self._next_offsets[topic]
            if each.first not in known or each.end != each.first + len(each.changes):
                place = f"{topic}/{self._task.partition} at {known[0]}"
                raise OvertakenError(f"{place}: wrote {len(each.changes)} records to {each.first}..{each.end - 1}")

    def _to_stores(self, written: Mapping[str, WrittenChanges]) -> None:
        for topic, each in written.items():
            self._stores[topic].apply_written(each.changes, each.headers, position=each.end)
            # Kafka 4.3 leaves a marker out where a partition has no leader (KAFKA-20734): the
            # next one ends both transactions.
            self._next_offsets[topic] = each.behind(transactional=self._transactional), each.end
