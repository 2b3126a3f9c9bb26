"""Follows the group's log for `Member.owner`: folds it, as its leader does.

A member's session reads decisions alone and begins at their end, so it knows what itself runs. Who
runs the rest, and how far copies are, follows from the facts, too.
"""

from __future__ import annotations

import asyncio
import logging
import math

import attrs

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import GroupConfigured
from equipoise.events.tasks import TaskId
from equipoise.folding.log_reading import FactReader, PartitionReading, next_fact
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.envelope import partition_of
from equipoise.log.kafka.log_opening import read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.member.session.location import KeyLocation, location_of
from equipoise.statemachine.group_lead import GroupLead

_LOG = logging.getLogger(__name__)
RETRY_S = 1.0
SAME_FOR_S = 1.0
"""Time between two looks whether the topics are still the same."""
FOUND_S = 60.0
"""Whoever asks waits so long at most for the log to be read."""
ANSWER_S = 10.0
"""After this time a worker has answered a configuration."""


class GroupLocations:
    """Follows the log of `group` on a thread of its own, from the first question on."""

    def __init__(self, connection: Connection, prefix: str, group: str, runtime: Runtime) -> None:
        self._connection = connection
        self._topics = Topics(prefix)
        self._group = group
        self._monotonic_s = runtime.monotonic_s
        self._thread = runtime.thread("equipoise-locations")
        self._lead: GroupLead | None = None
        self._is_known = asyncio.Event()
        """Set once the log was read to its end."""
        self._following: asyncio.Task[None] | None = None
        self._configured_at = -1
        """Offset of the last configuration whose answer need not be waited for."""

    async def stop(self) -> None:
        """Ends the thread."""
        await self._thread.stop()

    async def find(self, task: TaskId) -> KeyLocation:
        """Where `task` runs. The first call reads the log, and waits until there is one, for
        FOUND_S. Raises GroupHalted when this build cannot follow the group, InputError when the
        member has ended or the log was not read.
        """
        finding = asyncio.wrap_future(self._thread.start(self._find(task)))
        await asyncio.wait((finding,))
        if finding.cancelled():
            raise InputError("owner: the member has ended")
        return finding.result()

    async def _find(self, task: TaskId) -> KeyLocation:
        if self._following is None:
            self._following = asyncio.ensure_future(self._follow())
        known = asyncio.ensure_future(self._is_known.wait())
        try:
            await asyncio.wait((known, self._following), timeout=FOUND_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            known.cancel()
        if self._following.done():
            self._following.result()
        if not self._is_known.is_set():
            raise InputError(f"owner: the log of group {self._group} was not read within {FOUND_S:.0f} s; see this member's log, and ask again")
        assert self._lead is not None, "the log was read"
        if self._lead.halted is not None:
            raise self._lead.halted
        return location_of(task, self._lead.machine.state)

    async def _follow(self) -> None:
        from aiokafka.errors import KafkaError

        while True:
            try:
                opened = await read_opening(self._connection, self._topics)
                reading = PartitionReading(self._connection, self._topics, opened, partition_of(self._group, opened.partitions))
                async with reading.facts() as facts:
                    await self._fold(reading, facts)
            except (KafkaError, EquipoiseError, OSError) as error:
                _LOG.info("group %s: cannot read where tasks run, retrying: %r", self._group, error)
                await asyncio.sleep(RETRY_S)

    async def _fold(self, reading: PartitionReading, facts: FactReader) -> None:
        """Folds the group's facts. Returns when it has to begin again: a worker may have refused a
        configuration, and its answer was not read yet (docs/protocol.md#l6), or the topics hold
        another log (docs/protocol.md#l9).
        """
        ids = await facts.topic_ids(self._topics)
        lead = (await reading.begin(answers=False)).lead
        await facts.place(lead.position)
        end, again_s, looked_s = await facts.end(), math.inf, self._monotonic_s()
        while self._monotonic_s() < again_s:
            records = await facts.batch()
            if self._monotonic_s() - looked_s > SAME_FOR_S:
                looked_s = self._monotonic_s()
                if await facts.topic_ids(self._topics) != ids:
                    self._configured_at = -1
                    return
            for found in records:
                fact = next_fact(lead, found)
                if fact is None:
                    continue
                mine = fact.group == self._group
                lead.fold(fact if mine else attrs.evolve(fact, group=""), 0)  # of another group: only its place counts
                group = lead.group(self._group)
                if mine and isinstance(fact.event, GroupConfigured) and fact.offset > self._configured_at:
                    self._configured_at = fact.offset
                    if group.last_published <= group.machine.state.number:
                        again_s = self._monotonic_s() + ANSWER_S
                group.waiting.clear()  # checkpoints, which only a leader stores
                await asyncio.sleep(0)
            if await facts.position() >= end:
                self._lead = lead.group(self._group)
                self._is_known.set()
