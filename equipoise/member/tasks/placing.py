"""Decides where a task that opens continues in its sources, and writes that down before its first
record (docs/protocol.md#m6): a task without state in the group's topic of positions, which also
fences its former owner; one with state in its changelogs, which that topic names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import NO_EPOCH, Producer, SentBatch, TopicPartition, Unsent, acknowledged, within
from equipoise.member.copies.fencing import SOURCE_TOPICS_KEY
from equipoise.member.copies.origin import Origin
from equipoise.member.options import MemberOptions
from equipoise.member.tasks.clients import TaskClients
from equipoise.member.tasks.context import State, pack_source_topics, read_source_topics, read_sources
from equipoise.member.tasks.positions import (
    ELSEWHERE,
    Position,
    Positions,
    StoredPosition,
    claim_positions,
    continued,
    pack_note,
    place_of,
    position_record,
    read_note,
)
from equipoise.member.tasks.runner_protocol import OvertakenError
from equipoise.member.tasks.transactions import TransactionPart
from equipoise.member.tasks.writer import TaskWriter, partitions_of

_LOG = logging.getLogger(__name__)
_MOST_TRIES = 20
"""To find positions to which no former owner adds meanwhile."""


class SourcePlacing:
    """Places one task under one grant. `processor`: its name. `is_shared`: other processors of the
    group read one of its sources. `topic_ids`: of its sources, as far as the brokers have ids. A
    position in another topic of that name does not count: all of the present one is read.
    """

    def __init__(
        self, group: str, task: TaskId, origin: Origin, options: MemberOptions, *, processor: str, is_shared: bool, topic_ids: Mapping[str, str]
    ) -> None:
        self._group, self._task, self._options, self._processor = group, task, options, processor
        self._topic_ids = topic_ids
        self._counts_committed = not processor or not is_shared
        """Whether the group's committed offsets may be those of this processor: a former build had
        no names.
        """
        self._place = place_of(group, task.partition)
        self._grant = origin
        self._origin = origin
        self.kept: dict[TopicPartition, int] = {}
        """Positions in the changelogs of sources that the task does not read now."""
        self.kept_epochs: dict[TopicPartition, int] = {}
        """Their leader epochs; NO_EPOCH: unknown."""
        self.epochs: dict[TopicPartition, int] = {}
        """Leader epochs in which sources had all before the positions that were found (KIP-320),
        where known.
        """
        self.source_topics: bytes | None = None
        """What the first commit has to write under SOURCE_TOPICS_KEY; None: that is in all
        changelogs.
        """
        self.is_incomplete = False
        """Whether one of several changelogs has no positions yet. It must have them before the
        first record: one without was made again, and does not count.
        """

    # A task without state

    async def take(self, clients: TaskClients, writer: TaskWriter) -> dict[TopicPartition, int]:
        """Makes the grant the owner of the task's positions, and returns them: what a former owner
        writes from now on does not count. Raises OvertakenError, InputError, KafkaError.
        """
        own = "" if clients.transactions is None else clients.transactions.id
        ended = {"", own}
        found: dict[TopicPartition, int] = {}
        """Those that are looked at again, since the former owner has written meanwhile."""
        for _ in range(_MOST_TRIES):
            stored, positions = await self._read(clients, ended)
            lost = sorted({topic for each in stored.values() if each is not None for topic in each.position.changelogs})
            if lost:
                raise InputError(
                    f"task {self._task}{self._named}: its source offsets are in changelog {', '.join(lost)}, which is no state of it any more; "
                    "name it as state, or give the processor another name, under which it reads its sources as a new one"
                )
            committed = await self._committed(clients)
            last = {source: self._last(source, each, positions, committed.get(source)) for source, each in stored.items()}
            for source, each in last.items():
                if source not in found:
                    if each is not None and self._is_of_another(source, each.position.topic_id):
                        found[source] = await self._begin(clients, source, each.position.topic_id)
                    elif each is not None and each.position.offset is not None:
                        found[source] = each.position.offset
                        self._note_epoch(source, each.position.epoch)
                    else:
                        found[source] = await self._first(clients, positions, source)
            adopted = await clients.adopted() if clients.adopts else {}
            for source, theirs in adopted.items():  # whoever has read last is ahead
                if stored[source] is None or theirs > found[source]:
                    found[source] = theirs
                    self._note_epoch(source, NO_EPOCH)
            self._origin = claim_positions([*stored.values(), *last.values()], self._grant)
            written = await self._write(clients, writer, found, own)
            after = await clients.read_positions(self._task.partition, written + 1)
            missed = {source: each for source in found if (each := self._missed(stored[source], after.find(self._processor, source))) is not None}
            if not missed:
                return found
            for source, each in missed.items():
                known = last[source]
                if known is not None and not each.is_after(known):
                    continue  # its transaction had lost its end, and ended with this one
                if each.position.offset is not None and not self._is_of_another(source, each.position.topic_id):
                    found[source] = each.position.offset
                    self._note_epoch(source, each.position.epoch)
        raise _not_settled(self._task)

    async def _committed(self, clients: TaskClients) -> dict[TopicPartition, StoredPosition]:
        """Returns the positions that owners have committed with the group's offsets, in the same
        transactions: those of exactly_once.
        """
        if clients.transactions is None:
            return {}
        noted = await clients.sources.reader.consumer.committed_notes(clients.sources.partitions)
        read = {source: read_note(self._processor, offset, note) for source, (offset, note) in noted.items()}
        return {source: each for source, each in read.items() if each is not None and each.origin.group == self._group}

    def _last(
        self, source: TopicPartition, stored: StoredPosition | None, positions: Positions, committed: StoredPosition | None
    ) -> StoredPosition | None:
        """Returns the last position that anybody knows: the topic may have lost what was written
        behind the one that is stored.
        """
        last, says = stored, ""
        for each, who in ((positions.find_known(self._processor, source), "this member"), (committed, "the group's committed offset")):
            if each is None or each.position.changelogs or self._is_of_another(source, each.position.topic_id):
                continue
            if last is None or self._is_of_another(source, last.position.topic_id) or each.is_after(last):
                last, says = each, who
        if last is not None and says and (stored is None or stored.position.offset != last.position.offset):
            _LOG.error(
                "task %s%s: topic %s has lost records: %s/%d is read on at offset %s, which %s knows; the topic says %s",
                self._task,
                self._named,
                self._place.topic,
                *source,
                last.position.offset,
                says,
                "nothing" if stored is None else stored.position.offset,
            )
        return last

    def _missed(self, known: StoredPosition | None, now: StoredPosition | None) -> StoredPosition | None:
        """Returns what a former owner has written between `known` and this grant; None: nothing."""
        if now is None or now.origin != self._origin:
            raise OvertakenError(f"{self._place.topic}/{self._place.partition} belongs to {None if now is None else now.origin}")
        if now.replaced is None or (known is not None and known.origin == self._origin):
            return None
        return None if known is not None and now.replaced.at == known.at else now.replaced

    async def _write(self, clients: TaskClients, writer: TaskWriter, positions: Mapping[TopicPartition, int], own: str) -> int:
        records = self.records(positions, self.epochs, own)
        if clients.transactions is None:
            await partitions_of(writer.producer, self._place.topic)
            sent: Sequence[SentBatch] = writer.producer.send_batches(self._place, records)
            await acknowledged(sent)
        else:
            queued: list[SentBatch] = []

            def queue(part: TransactionPart, producer: Producer) -> Sequence[SentBatch]:
                writer.use(producer)
                part.changes, part.notes = {}, self.notes(positions, self.epochs)
                queued.extend(writer.queue_outputs({self._place: records}, is_own=True))
                return queued

            part = TransactionPart(self._task, len(records), queue_changes=queue, changes={self._place.topic: {}}, offsets=positions)
            clients.transactions.add(part)
            async with within(f"the positions of task {self._task}"):
                await part.committed
            sent = queued
        last = sent[-1]
        return int(last.appended.result().offset) + last.records - 1

    @property
    def place(self) -> TopicPartition:
        """Where the positions of the task are."""
        return self._place

    def records(self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int], transactional_id: str) -> list[Unsent]:
        """Returns what stores these positions, with their leader epochs, under the grant."""
        return [
            position_record(self._processor, source, self._position(source, offset, epochs, transactional_id), self._origin)
            for source, offset in sorted(positions.items())
        ]

    def notes(self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """Returns what is committed beside these positions with the group's offsets."""
        return {source: pack_note(self._processor, self._position(source, offset, epochs), self._origin) for source, offset in positions.items()}

    def keep(self, clients: TaskClients, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> None:
        """These positions are committed: the member knows them, should the topic lose them."""
        committed = {source: StoredPosition(self._position(source, offset, epochs), self._origin, ELSEWHERE) for source, offset in positions.items()}
        clients.keep_positions(self._processor, committed)

    def _position(self, source: TopicPartition, offset: int, epochs: Mapping[TopicPartition, int], transactional_id: str = "") -> Position:
        return Position(offset, (), transactional_id, self._topic_ids.get(source.topic, ""), epochs.get(source, NO_EPOCH))

    # A task with state

    async def continue_in(self, clients: TaskClients, states: Mapping[str, State], stale: Collection[bytes] = ()) -> dict[TopicPartition, int]:
        """The positions of a task whose changelogs are fenced and restored. `stale`: keys that a
        late record of a former owner has overwritten in one of them. Raises InputError, KafkaError.
        """
        read = {topic: read_sources(state) for topic, state in states.items()}
        stored, epochs = {topic: each[0] for topic, each in read.items()}, {topic: each[1] for topic, each in read.items()}
        sources = clients.sources.partitions
        await self._look_at_topics(clients, states, stored, epochs, is_stale=SOURCE_TOPICS_KEY in stale)
        for topic, positions in stored.items():
            kept = positions.keys() - set(sources)
            self.kept |= {source: positions[source] for source in kept}
            self.kept_epochs |= {source: epochs[topic].get(source, NO_EPOCH) for source in kept}
        (first, *others) = stored.values()
        if not others and all(source in first for source in sources):
            positions = {source: first[source] for source in sources}
            (found,) = epochs.values()
            self.epochs = {source: found[source] for source in sources if source in found}
            clients.note_positions(self._task.partition, self._unlisted(dict.fromkeys(positions), states))
        else:
            positions = await self._agreed(clients, stored, epochs)
        if clients.adopts:  # whoever has read last is ahead
            for source, theirs in (await clients.adopted()).items():
                if theirs > positions[source] or not any(source in each for each in stored.values()):
                    positions[source] = theirs
                    self._note_epoch(source, NO_EPOCH)
        return positions

    async def _look_at_topics(
        self,
        clients: TaskClients,
        states: Mapping[str, State],
        stored: Mapping[str, dict[TopicPartition, int]],
        epochs: Mapping[str, dict[TopicPartition, int]],
        *,
        is_stale: bool,
    ) -> None:
        """Replaces positions in topics that were deleted meanwhile, and notes what the first commit
        has to write.
        """
        former = {topic: read_source_topics(state) for topic, state in states.items()}
        for source in clients.sources.partitions:
            other = next((ids[source.topic] for ids in former.values() if self._is_of_another(source, ids.get(source.topic, ""))), None)
            if other is not None:
                begin = await self._begin(clients, source, other)
                for topic, ids in former.items():
                    if source in stored[topic] and self._is_of_another(source, ids.get(source.topic, "")):
                        stored[topic][source] = begin
                        epochs[topic].pop(source, None)
        topics = {name: topic_id for ids in (*former.values(), self._topic_ids) for name, topic_id in ids.items()}
        self.source_topics = None if not is_stale and all(ids == topics for ids in former.values()) else pack_source_topics(topics)

    async def _agreed(
        self, clients: TaskClients, stored: Mapping[str, Mapping[TopicPartition, int]], epochs: Mapping[str, Mapping[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        """Also writes down where they are from now on."""
        known, all_known = await self._read(clients, {""})
        positions: dict[TopicPartition, int] = {}
        for source, each in known.items():
            listed = list(stored) if each is None else [topic for topic in each.position.changelogs if topic in stored]
            otherwise = None if each is None else each.position.offset
            if each is not None and self._is_of_another(source, each.position.topic_id):
                otherwise = await self._beginning(clients, source)
            if each is not None and each.position.changelogs and not listed:
                raise InputError(
                    f"task {self._task}{self._named}: its source offsets are in changelog {', '.join(each.position.changelogs)}, which is no state "
                    "of it any more; name it as state, too, or give the processor another name, under which it reads its sources as a new one"
                )
            offset = continued([stored[topic] for topic in listed], source, otherwise)
            lowest = [epochs[topic].get(source, NO_EPOCH) for topic in listed if source in stored[topic] and stored[topic][source] == offset]
            if each is not None and offset is not None and not lowest and otherwise == each.position.offset:
                lowest = [each.position.epoch]
            self._note_epoch(source, min(lowest, default=NO_EPOCH))
            self.is_incomplete |= len(stored) > 1 and any(source not in each for each in stored.values())
            if offset is None:
                offset = await (self._first(clients, all_known, source) if each is None else self._reset(clients, source))
            for topic in sorted(stored.keys() - set(listed)):
                if stored[topic].get(source, offset) != offset:
                    raise InputError(
                        f"task {self._task}{self._named}: changelog {topic} was written up to offset {stored[topic][source]} of {source.topic}, and "
                        f"its other positions are at {offset}: it is the state of something else, or was left out for a while; name an empty topic"
                    )
            positions[source] = offset
        await clients.write_positions(self._task.partition, self._unlisted(positions, stored, known))
        return positions

    def _unlisted(
        self,
        positions: Mapping[TopicPartition, int | None],
        states: Collection[str],
        known: Mapping[TopicPartition, StoredPosition | None] | None = None,
    ) -> dict[tuple[str, TopicPartition], tuple[Position, Origin]]:
        """Returns what says that the positions are in `states` from now on, where `known` does not."""
        changelogs = tuple(sorted(states))
        return {
            (self._processor, source): (
                Position(offset, changelogs, "", self._topic_ids.get(source.topic, ""), self.epochs.get(source, NO_EPOCH)),
                self._grant,
            )
            for source, offset in positions.items()
            if known is None
            or (each := known[source]) is None
            or each.position.changelogs != changelogs
            or self._is_of_another(source, each.position.topic_id)
        }

    # Both

    def _note_epoch(self, source: TopicPartition, epoch: int) -> None:
        if epoch == NO_EPOCH:
            self.epochs.pop(source, None)
        else:
            self.epochs[source] = epoch

    async def _read(self, clients: TaskClients, ended: set[str]) -> tuple[dict[TopicPartition, StoredPosition | None], Positions]:
        """Returns what is stored, when no former owner of it has a transaction open. `ended`:
        transactional ids of which that is known.
        """
        for _ in range(_MOST_TRIES):
            positions = await clients.read_positions(self._task.partition)
            stored = {source: positions.find(self._processor, source) for source in clients.sources.partitions}
            known = [each for each in stored.values() if each is not None]
            for each in known:
                if each.origin.same_writer(self._grant) and each.origin.token > self._grant.token:
                    raise OvertakenError(f"{self._place.topic}/{self._place.partition} belongs to token {each.origin.token}")
            left_open = sorted({each.position.transactional_id for each in known} - ended)
            if not left_open:
                return stored, positions
            for transactional_id in left_open:
                await clients.end_transactions(transactional_id)
            ended.update(left_open)
        raise _not_settled(self._task)

    async def _first(self, clients: TaskClients, positions: Positions, source: TopicPartition) -> int:
        """Where a task begins that has no position: at the group's committed offset, if it may be
        its own.
        """
        if self._counts_committed and not positions.of_source(source):
            committed = await clients.sources.reader.consumer.committed(source)
            if committed is not None:
                return committed
        return await self._reset(clients, source)

    def _is_of_another(self, source: TopicPartition, topic_id: str) -> bool:
        """Returns whether a position there is not one in the present topic of this name."""
        present = self._topic_ids.get(source.topic, "")
        return bool(present and topic_id and present != topic_id)

    async def _begin(self, clients: TaskClients, source: TopicPartition, former: str) -> int:
        begin = await self._beginning(clients, source)
        _LOG.error(
            "task %s%s: source topic %s was deleted and made again (its id was %s, and is %s). Reading all of it, from offset %d of partition %d on",
            self._task,
            self._named,
            source.topic,
            former,
            self._topic_ids[source.topic],
            begin,
            source.partition,
        )
        return begin

    async def _beginning(self, clients: TaskClients, source: TopicPartition) -> int:
        return await clients.sources.reset(source, "earliest")

    async def _reset(self, clients: TaskClients, source: TopicPartition) -> int:
        return await clients.sources.reset(source, self._options.auto_offset_reset)

    @property
    def _named(self) -> str:
        return f" of processor {self._processor}" if self._processor else ""


def _not_settled(task: TaskId) -> Exception:
    from aiokafka.errors import KafkaError

    error: Exception = KafkaError(f"former owners of task {task} have written its positions again and again meanwhile")
    return error
