"""Reads a log in Kafka and folds its groups. `equipoise status` and other commands need
no worker to answer them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Iterator, Mapping

import attrs

from equipoise.events import codec
from equipoise.events.decisions import EventRejected
from equipoise.events.errors import DamagedError, EquipoiseError
from equipoise.events.facts import GroupConfigured, LogOpened
from equipoise.folding.log_reading import PartitionReading, next_fact
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import reaching
from equipoise.log.kafka.envelope import partition_of, published
from equipoise.log.kafka.log_opening import read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.operations.worker_builds import ask_workers
from equipoise.replay.all_clear import AskedNow, Grounds, Undecided, grounds_of
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import Folded, PartitionLead

_EVENT_REJECTED = codec.kind_of(EventRejected)
WRITTEN_S = 2.0
"""A worker that leads has written its decisions by then."""
_AGAIN_S = 0.3


@attrs.frozen
class KnownGroup:
    """A group as far as it is decided on, and what a statement about it rests on. `partition`: of
    the log.
    """

    partition: int
    lead: GroupLead
    grounds: Grounds


class Follower:
    """Folds the groups of a log and never writes. Its state is the leader's state, as far as the
    log was read. A group whose published decisions differ from the recomputed ones is halted here.

    `group`: reads only the partition of this group; None: all partitions. `folded`: called for each
    fact after it was folded, again for the same fact when the follower restarts from checkpoints.
    `before`: partition -> offset at which it ends to read; others are read to their ends.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        group: str | None = None,
        *,
        folded: Folded = lambda record, decisions, machine: None,
        before: Mapping[int, int] | None = None,
    ) -> None:
        self._folded = folded
        self._before = before or {}
        self._unwritten: dict[tuple[PartitionReading, str], deque[tuple[int, int, int, int]]] = {}
        """Facts of a group whose decisions were not written when they were folded: the number of
        the last one, how many, the fact's offset, and when it was appended.
        """
        self._connection, self._topics, self._group = connection, topics, group
        self._leads: dict[PartitionReading, PartitionLead] = {}
        self._unanswered: set[PartitionReading] = set()
        """Partitions where a configuration was read, perhaps before its answer was published. The
        next `catch_up` restarts them from the checkpoints.
        """
        self._opened: LogOpened | None = None
        self.published_to: dict[PartitionReading, int] = {}
        """Offset up to which the decisions of a partition had been read when it was (re)started."""

    async def _start(self, reading: PartitionReading) -> None:
        self._unwritten = {key: facts for key, facts in self._unwritten.items() if key[0] != reading}
        begun = await reading.begin(answers=False, folded=self._folded)
        self._leads[reading], self.published_to[reading] = begun.lead, begun.published_to

    async def catch_up(self) -> None:
        """Reads every partition to its present end. Raises InputError when there is no log,
        DamagedError when records are missing.
        """
        if self._opened is None:
            self._opened = opened = await read_opening(self._connection, self._topics)
            partitions = range(opened.partitions) if self._group is None else [partition_of(self._group, opened.partitions)]
            for partition in partitions:
                await self._start(PartitionReading(self._connection, self._topics, opened, partition))
        for reading in self._unanswered:
            await self._start(reading)
        self._unanswered.clear()
        clock = asyncio.get_running_loop().time
        for reading, lead in list(self._leads.items()):
            async with reading.facts() as facts:
                try:
                    await facts.place(lead.position)
                except DamagedError:  # it was slow, and what it has not read is deleted: begin again at the last checkpoints
                    await self._start(reading)
                    lead = self._leads[reading]
                    await facts.place(lead.position)
                end = await facts.end()
                end = min(end, self._before.get(reading.partition, end))
                async for record in facts.until(end):
                    if record.offset >= end:  # one fetch brings what is behind it, too
                        break
                    fact = next_fact(lead, record)
                    if fact is None:
                        continue
                    missing = lead.fold(fact, int(clock() * 1_000))
                    if missing:
                        row = (missing[-1].number, len(missing), fact.offset, fact.append_ms)
                        self._unwritten.setdefault((reading, fact.group), deque()).append(row)
                    group = lead.groups.get(fact.group)
                    if group is None or not isinstance(fact.event, GroupConfigured) or fact.offset <= group.checkpoint_offset:
                        continue
                    if group.last_published <= group.machine.state.number:
                        self._unanswered.add(reading)

    async def undecided(self, within_s: float = WRITTEN_S) -> dict[str, Undecided]:
        """Group -> facts that were read here and are not decided on after `within_s`; groups without
        such facts are left out. Reads the published decisions again as long as some are missing.
        Raises DamagedError, KafkaError.
        """
        clock = asyncio.get_running_loop().time
        by_s = clock() + within_s
        while self._unwritten:
            for reading in {key[0] for key in self._unwritten}:
                begun = await reading.begin(answers=False)
                for name, lead in begun.lead.groups.items():
                    facts = self._unwritten.get((reading, name), deque())
                    while facts and facts[0][0] <= lead.last_published:
                        facts.popleft()
            self._unwritten = {key: facts for key, facts in self._unwritten.items() if facts}
            if clock() > by_s:
                break
            await asyncio.sleep(_AGAIN_S if self._unwritten else 0)
        return {name: Undecided(facts[0][2], facts[0][3], sum(each[1] for each in facts)) for (_, name), facts in self._unwritten.items()}

    async def decided(self) -> Follower:
        """A follower that has read what is decided on, by what `undecided` has found."""
        before: dict[int, int] = {}
        for (reading, _), facts in self._unwritten.items():
            before[reading.partition] = min(facts[0][2], before.get(reading.partition, facts[0][2]))
        if not before:
            return self
        follower = Follower(self._connection, self._topics, self._group, before=before)
        await follower.catch_up()
        return follower

    async def known(self, asked: AskedNow, within_s: float = WRITTEN_S, *, least_age_ms: int = 0) -> list[KnownGroup]:
        """The groups by name, each as far as it is decided on after `within_s`. `asked`: which
        workers run. `least_age_ms`: facts that are younger are not called undecided. Raises what
        `undecided` and `catch_up` raise.
        """
        unwritten = await self.undecided(within_s)
        latest_ms = (asked.now_ms or 0) - least_age_ms if least_age_ms else math.inf
        undecided = {name: each for name, each in unwritten.items() if each.append_ms <= latest_ms}
        read = {lead.name: (partition, lead) for partition, lead in self.groups()}
        shown = {lead.name: lead for _, lead in (await self.decided()).groups()}
        found = []
        for name, (partition, last) in read.items():
            lead = shown.get(name) or _nothing_decided(name)
            state, end = lead.machine.state, last.machine.state
            found.append(KnownGroup(partition, lead, grounds_of(state, read=end, asked=asked, undecided=undecided.get(name))))
        return found

    async def partitions(self) -> int:
        """Number of partitions that groups are spread over. See docs/protocol.md#l1.
        Raises what `catch_up` raises.
        """
        await self.catch_up()
        assert self._opened is not None, "read by catch_up"
        return self._opened.partitions

    async def is_published(self, number: int | None = None) -> bool:
        """Returns whether every decision computed here is in the log, published by a worker.
        `number`: asks for the followed group's decisions up to this one. Reads the published
        decisions again.
        """
        computed = {(reading, lead.name): lead.machine.state.number for reading, leads in self._leads.items() for lead in leads.groups.values()}
        published: dict[tuple[PartitionReading, str], int] = {}
        for reading in self._leads:
            begun = await reading.begin(answers=False)
            published.update({(reading, name): lead.last_published for name, lead in begun.lead.groups.items()})
        return all(published.get(key, 0) >= (last if number is None else number) for key, last in computed.items() if self._group in (None, key[1]))

    async def published_rejection(self, group: str, offset: int, start: Mapping[PartitionReading, int]) -> EventRejected | None:
        """The published rejection of the group's fact at `offset`; None: it was not rejected.
        `start`: an earlier `published_to`. Raises DamagedError, KafkaError.
        """
        for reading, position in start.items():
            async with contextlib.aclosing(reading.records(self._topics.decisions, position)) as records:
                async for record in records:
                    stored = published(record)
                    if stored is None or (stored.row.group, stored.row.caused_by) != (group, offset) or stored.row.kind != _EVENT_REJECTED:
                        continue
                    decision = codec.decode_decision(stored.row.kind, stored.row.version, stored.row.payload)
                    if isinstance(decision, EventRejected):
                        return decision
        return None

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        """Partition and lead of every group, sorted by group name."""
        found = [(reading.partition, lead) for reading, leads in self._leads.items() for lead in leads.groups.values()]
        for partition, lead in sorted(found, key=lambda pair: pair[1].name):
            if self._group in (None, lead.name):
                yield partition, lead


def _nothing_decided(group: str) -> GroupLead:
    """A group on whose first fact nobody has decided."""
    lead = GroupLead(group, GroupMachine())
    lead.machine.state.group = group
    return lead


async def known_group(connection: Connection, topics: Topics, group: str) -> KnownGroup | None:
    """Returns what is known of the group at the end of a log in Kafka, from a worker's checkpoint
    and what follows it; None: there is no such group. Raises what `Follower.catch_up` raises.
    """
    follower = Follower(connection, topics, group)
    await follower.catch_up()
    return next(iter(await follower.known(await ask_workers(connection, topics))), None)


def known_at_end(connection: Connection, topics: Topics, group: str) -> KnownGroup | None:
    """`known_group`, of commands that have no event loop. None also where this user cannot read
    what it needs: whoever reads the whole log finds out what it is.
    """
    try:
        with reaching(connection):
            return asyncio.run(known_group(connection, topics, group))
    except EquipoiseError:
        return None
