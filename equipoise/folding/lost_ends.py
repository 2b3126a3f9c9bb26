"""Looks whether the brokers have lost the end of a partition's facts or decisions, on which states
and published decisions rest (docs/protocol.md#l7). Brokers lose records from the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

from equipoise.folding.checkpoints import FoundCheckpoints
from equipoise.kafka.client import ConsumedRecord, Consumer, TopicPartition
from equipoise.kafka.known_ends import batches_before
from equipoise.log.kafka.envelope import StoredDecision, fact_row, group_of
from equipoise.log.kafka.log_topics import NEW_LOG
from equipoise.statemachine.partition import PartitionLead

_LOOKS, _LOOK_S = 5, 0.5
"""How often the end is read when it is too low: a new leader may take a moment to learn it."""


class PublishedNumbers:
    """The published decisions of a partition that were read."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self.decided: dict[str, tuple[int, int]] = {}
        """Group -> offset and checksum of the last fact that something was decided on."""

    def note(self, stored: StoredDecision) -> None:
        """One more was read."""
        row = stored.row
        self._last[row.group] = max(row.number, self._last.get(row.group, 0))
        if row.caused_by >= self.decided.get(row.group, (-1, 0))[0]:
            self.decided[row.group] = row.caused_by, stored.fact_checksum

    def lost(self, found: FoundCheckpoints, end: int) -> str:
        """Returns which decisions these states were stored after and the topic, which ends at
        `end`, has no more; "": none. A state is stored when its decisions are acknowledged.
        """
        start = found.index.decisions_offset
        if end < start:
            return f"the brokers have lost decisions from offset {end} on"
        for name, checkpoint in sorted(found.checkpoints.items()):
            last = self._last.get(name, 0 if start == 0 else checkpoint.number)
            if last < checkpoint.number:
                return f"the brokers have lost decisions {last + 1} to {checkpoint.number} of group {name}"
        return ""


Reader = Callable[[], AbstractAsyncContextManager[Consumer]]


async def end_of(reader: Reader, place: TopicPartition, known: Iterable[int]) -> int:
    """The end of a partition. `known`: offsets of some records that were there. Raises KafkaError."""
    last, end = max(known, default=-1), 0
    async with reader() as consumer:
        for look in range(_LOOKS):
            if look:
                await asyncio.sleep(_LOOK_S)
            end = (await consumer.end_offsets([place]))[place]
            if last < end:
                break
    return end


class FactsLook:
    """Looks at the facts of one partition. `begin`: their first offset."""

    def __init__(self, reader: Reader, place: TopicPartition, begin: int) -> None:
        self._reader, self._place, self._begin = reader, place, begin

    async def lost(self, lead: PartitionLead) -> str:
        """Returns which facts that the states of `lead` were made of are gone; "": none. Raises
        KafkaError.
        """
        states = {name: group.machine.state for name, group in lead.groups.items() if group.halted is None}
        end = await end_of(self._reader, self._place, [lead.position - 1, *(state.last_offset for state in states.values())])
        if end < lead.position:
            return f"the brokers have lost facts from offset {end} on"
        name = max(states, key=lambda each: states[each].last_offset, default="")
        if not name or states[name].last_offset < max(1, self._begin):
            return ""
        last = states[name].last_offset
        fact = await self._at(last, end)
        if fact is not None and (group_of(fact.key), fact.timestamp_ms) == (name, states[name].last_append_ms):
            return ""
        return f"the brokers have lost the fact at offset {last}, of group {name}"

    async def halt(self, lead: PartitionLead, numbers: PublishedNumbers) -> None:
        """Halts the groups of which facts are lost that something was decided on. Raises
        KafkaError.
        """
        if not numbers.decided:
            return
        end = await end_of(self._reader, self._place, (offset for offset, _ in numbers.decided.values()))
        last = max(numbers.decided, key=lambda each: numbers.decided[each])
        for name, (offset, checksum) in sorted(numbers.decided.items()):
            if offset < end and (name != last or offset < self._begin):
                continue  # what was lost before it shows when it is folded
            fact = await self._at(offset, end)
            if fact is None or fact_row(fact.key, fact.value, fact.offset, fact.timestamp_ms).checksum != checksum:
                lead.halt_lost(name, offset, f"the brokers have lost that fact, on which decisions were published; {NEW_LOG}")

    async def _at(self, offset: int, end: int) -> ConsumedRecord | None:
        """The fact at `offset`; None: it is not there. Raises KafkaError."""
        if offset >= end:
            return None
        async with self._reader() as consumer:
            consumer.assign([self._place])
            consumer.seek(self._place, offset)
            async for batch in batches_before(consumer, self._place, offset + 1, wait_ms=200):
                return batch[0] if batch else None
        return None
