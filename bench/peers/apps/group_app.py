"""The application on a plain consumer group: counts in a dict for each partition, rebuilt from the
changelog when the partition is assigned.

What it still has from before an assignment it keeps: with the sticky assignor nobody else had it.
aiokafka goes on fetching while a listener runs, so nothing is processed from a revocation until
what was assigned is restored, and what is committed is what was processed. SIGTERM: it commits and
leaves the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError

from bench.peers.apps.given import Given, answer_to, counted, given

_LOG = logging.getLogger(__name__)
COMMIT_S = 1.0


class Counting(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """The counts of the partitions that are here."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._counts: dict[int, dict[bytes, bytes]] = {}
        self._next: dict[int, int] = {}
        """Partition -> offset of the record to process next."""
        self._commit_at_s = 0.0
        self._restored = asyncio.Event()
        self._at_work = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._producer = AIOKafkaProducer(bootstrap_servers=given.bootstrap, enable_idempotence=True)
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=given.bootstrap,
            group_id=given.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=given.session_timeout_ms,
            heartbeat_interval_ms=given.heartbeat_interval_ms,
            partition_assignment_strategy=(StickyPartitionAssignor,),
        )

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """Before each rebalance: what was processed is committed."""
        self._restored.clear()
        async with self._at_work:
            await self._commit()

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """After each rebalance: what is new here is read from the changelog, before anything is
        processed.
        """
        partitions = {tp.partition for tp in assigned}
        self._counts = {partition: counts for partition, counts in self._counts.items() if partition in partitions}
        new = sorted(partitions - self._counts.keys())
        if new:
            self._counts |= await self._restore(new)
        for partition in new:
            self._next[partition] = await self._consumer.committed(TopicPartition(self._given.input, partition)) or 0
        self._restored.set()
        _LOG.info("runs %s, of which %s are new", sorted(partitions), new)

    async def _restore(self, partitions: list[int]) -> dict[int, dict[bytes, bytes]]:
        changelog = AIOKafkaConsumer(bootstrap_servers=self._given.bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
        await changelog.start()
        try:
            tps = [TopicPartition(self._given.changelog, partition) for partition in partitions]
            ends = await changelog.end_offsets(tps)
            changelog.assign(tps)
            counts: dict[int, dict[bytes, bytes]] = {partition: {} for partition in partitions}
            left = {tp for tp in tps if ends[tp] > 0}
            while left:
                for tp, records in (await changelog.getmany(timeout_ms=500, max_records=10_000)).items():
                    counts[tp.partition].update((record.key, record.value) for record in records)
                left = {tp for tp in left if await changelog.position(tp) < ends[tp]}
            return counts
        finally:
            await changelog.stop()

    async def run(self) -> None:
        """Until SIGTERM."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        await self._producer.start()
        self._consumer.subscribe([self._given.input], listener=self)
        await self._consumer.start()
        try:
            while not self._stopping.is_set():
                batch = await self._consumer.getmany(timeout_ms=200, max_records=500)
                await self._restored.wait()
                async with self._at_work:
                    await self._count_all([record for records in batch.values() for record in records])
                    if time.monotonic() >= self._commit_at_s:
                        await self._commit()
            await self._commit()
        finally:
            await self._consumer.stop()
            await self._producer.stop()

    async def _count_all(self, records: Iterable[Any]) -> None:
        for record in records:
            if not self._restored.is_set():
                return
            if record.partition in self._counts and record.offset >= self._next[record.partition]:
                await self._count(record)
                self._next[record.partition] = record.offset + 1

    async def _count(self, record: Any) -> None:
        counts, given = self._counts[record.partition], self._given
        counts[record.key], number = counted(counts.get(record.key))
        await self._producer.send(given.changelog, counts[record.key], key=record.key, partition=record.partition)
        said = answer_to(record.partition, record.offset, given.instance, number)
        await self._producer.send(given.output, said, partition=record.partition)

    async def _commit(self) -> None:
        self._commit_at_s = time.monotonic() + COMMIT_S
        await self._producer.flush()
        processed = {TopicPartition(self._given.input, partition): self._next[partition] for partition in self._counts}
        with contextlib.suppress(CommitFailedError, IllegalStateError):  # a rebalance has begun: it is done again
            if processed:
                await self._consumer.commit(processed)


async def main() -> None:
    """Clients are made in the loop that they live in."""
    await Counting(given()).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
