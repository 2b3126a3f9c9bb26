"""The restorer by itself, in virtual time over the simulated Kafka."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from equipoise.events.tasks import TaskId
from equipoise.member.copies.fencing import ChangelogRecord
from equipoise.member.copies.restorer import ChangelogRestorer
from equipoise.member.copies.stores import MemoryStore
from equipoise.member.copies.throttle import Throttle
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler, VirtualLoop

TASKS = [TaskId(0, partition) for partition in range(30)]
MOST_ASKS = 5
"""Requests for offsets while all tasks open together."""


def test_restorer_without_copies_fetches_nothing_and_goes_on_where_it_was() -> None:
    scheduler = Scheduler(1)
    cluster = Cluster(scheduler, Random(1))
    cluster.create_topic("log", len(TASKS))
    fetches = 0
    fetch: Any = cluster.fetch

    def counted(*arguments: Any) -> Any:
        nonlocal fetches
        fetches += 1
        return fetch(*arguments)

    asks = 0
    list_offsets: Any = cluster.list_offsets

    def asked(*arguments: Any) -> Any:
        nonlocal asks
        asks += 1
        return list_offsets(*arguments)

    vars(cluster).update(fetch=counted, list_offsets=asked)

    def append(task: TaskId, value: bytes) -> None:
        cluster.append(cluster.topics["log"].partitions[task.partition], Batch(-1, -1, -1, False, [(b"k", value, (), 0)], 100))

    async def test() -> None:
        def clock() -> float:
            return scheduler.now_us / S_US

        runtime: Any = type("Clock", (), {"monotonic_s": staticmethod(clock)})
        restorer = ChangelogRestorer(
            SimulatedConnection(made=SimulatedClients(cluster, "member")),
            dict.fromkeys(TASKS, ("log",)),
            MemoryStore,
            None,
            runtime=runtime,
            throttle=Throttle(None, None, clock),
            ends_every_s=1.0,
            progressed=lambda: None,
            failed=lambda error: None,
            now_ms=lambda: scheduler.now_us // 1_000,
        )
        await restorer.start()
        for value in (b"1", b"2"):
            for task in TASKS:
                append(task, value)
            asked_before = asks
            await asyncio.gather(*map(restorer.restore, TASKS))
            assert asks - asked_before <= MOST_ASKS
            stores = [(await restorer.open(task, {}))["log"] for task in TASKS]
            assert [store.store.get(b"k") for store in stores] == [value] * len(TASKS)
            await asyncio.sleep(1)
            before = fetches
            await asyncio.sleep(2)
            for task, store in zip(TASKS, stores, strict=True):
                append(task, b"written here")
                store.apply([ChangelogRecord(b"k", b"written here")], offset=store.offset + 1)
            await asyncio.sleep(2)
            assert fetches == before
            for task in TASKS:
                restorer.put_back(task)
        await restorer.stop()

    task = VirtualLoop(scheduler, "test").create_task(test())
    try:
        scheduler.run(600 * S_US, task.done)
        assert task.done(), "it hangs"
        task.result()
    finally:
        scheduler.dispose()
