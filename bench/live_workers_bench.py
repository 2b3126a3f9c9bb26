"""Four workers lead 32 partitions; one comes, and one is killed: which partitions are taken over,
and how long answers take, where a worker goes on leading and where it does not.

A fact to a group of each partition is answered with one decision and changes nothing. Ten are sent
each second to each partition, answered or not.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections import Counter

from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.live import Row, WorkerProcess, broker
from equipoise.events.decisions import EventRejected
from equipoise.events.facts import MemberLeft
from equipoise.log.kafka.envelope import decision_record, group_key, pack_fact, partition_of, stored_decision
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.rest import until

WORKERS, PARTITIONS = 4, 32
ASK_EVERY_S = 0.1
STEADY_S, AFTER_S = 10.0, 20.0
ANSWERED_WITHIN_S = 3.0


class Asker:
    """Asks a group of each partition all the time, and knows what is not answered yet."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        names = (f"group-{number}" for number in range(10_000))
        found = {partition_of(name, PARTITIONS): name for name in names}
        self.groups = [found[partition] for partition in range(PARTITIONS)]
        self._asked_s: dict[tuple[str, int], float] = {}
        self._number = 0
        self.longest_s: dict[int, float] = {}
        """Longest answer of each partition since `begin`; of one that is not answered, so far."""

    async def __aenter__(self) -> Asker:
        options = self._settings.options()
        self._producer = self._settings.clients.producer()
        self._consumer = AIOKafkaConsumer(**options, enable_auto_commit=False, auto_offset_reset="latest")
        await self._producer.start()
        await self._consumer.start()
        places = [TopicPartition(self._settings.topics.decisions, partition) for partition in range(PARTITIONS)]
        self._consumer.assign(places)
        await self._consumer.seek_to_end(*places)
        for partition, group in enumerate(self.groups):
            await self._producer.send_and_wait(self._settings.topics.facts, pack_fact(configured()), key=group_key(group), partition=partition)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._ask())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._consumer.stop()
        await self._producer.stop()

    async def _ask(self) -> None:
        while True:
            self._number += 1
            value = pack_fact(MemberLeft(member_id="nobody", incarnation=self._number))
            for partition, group in enumerate(self.groups):
                self._asked_s[group, self._number] = time.monotonic()
                await self._producer.send(self._settings.topics.facts, value, key=group_key(group), partition=partition)
            await asyncio.sleep(ASK_EVERY_S)

    async def _read(self) -> None:
        async for record in self._consumer:
            decided = decision_record(stored_decision(record.key, record.value, "decisions"))
            if isinstance(decided.decision, EventRejected) and decided.decision.incarnation is not None:
                asked_s = self._asked_s.pop((decided.group, decided.decision.incarnation), None)
                if asked_s is not None:
                    self._waited(record.partition, time.monotonic() - asked_s)

    def _waited(self, partition: int, seconds: float) -> None:
        self.longest_s[partition] = max(self.longest_s.get(partition, 0.0), seconds)

    async def longest_within(self, seconds: float) -> dict[int, float]:
        """The longest answer of each partition in this time."""
        self.longest_s = {}
        await asyncio.sleep(seconds)
        for (group, _), asked_s in self._asked_s.items():
            self._waited(partition_of(group, PARTITIONS), time.monotonic() - asked_s)
        return dict(self.longest_s)


def taken_over(worker: WorkerProcess) -> Counter[int]:
    return Counter(int(partition) for partition in re.findall(r"partition (\d+) taken over", worker.said))


async def measured(settings: WorkerSettings, workers: list[WorkerProcess]) -> list[Row]:
    rows: list[Row] = []
    everything = {*range(PARTITIONS)}
    await asyncio.to_thread(until, lambda: {partition for worker in workers for partition in taken_over(worker)} == everything, "all are led")
    await asyncio.sleep(STEADY_S)
    async with Asker(settings) as asker:
        await asyncio.sleep(STEADY_S / 2)  # the groups are made
        steady = await asker.longest_within(STEADY_S)
        assert len(steady) == PARTITIONS, steady
        rows.append(("nothing happens: longest answer, s", max(steady.values()), f"{PARTITIONS} partitions, {WORKERS} workers"))
        for what in ("one comes", "one is killed"):
            before = [taken_over(worker) for worker in workers]
            if what == "one comes":
                workers.append(WorkerProcess(settings))
                before.append(Counter())
                patience_s = 0.0
            else:
                killed = workers.pop(0)
                before.pop(0)
                patience_s = settings.worker_session_timeout_ms / 1_000
                killed.end(signal.SIGKILL)
            longest = await asker.longest_within(AFTER_S + patience_s)
            moved = Counter(partition for worker, had in zip(workers, before, strict=True) for partition in (taken_over(worker) - had).elements())
            stay = max(seconds for partition, seconds in longest.items() if partition not in moved)
            go = max(longest[partition] for partition in moved) - patience_s
            fair = f"goal: at most {PARTITIONS // WORKERS}"
            soon = f"goal: at most {ANSWERED_WITHIN_S:.0f}"
            session = f"after the {patience_s:.0f} s of its session; " if patience_s else ""
            rows += [
                (f"{what}: partitions taken over", float(sum(moved.values())), f"{sorted(moved)}; {fair}"),
                (f"{what}: longest answer where nothing moves, s", stay, soon),
                (f"{what}: longest answer where it moves, s", go, session + soon),
            ]
    return rows


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with broker() as bootstrap:
        settings = WorkerSettings(bootstrap=bootstrap, prefix="workers", partitions=PARTITIONS)
        workers: list[WorkerProcess] = []
        try:
            for _ in range(WORKERS):
                workers.append(WorkerProcess(settings, "--partitions", str(PARTITIONS)))
                workers[0].until_said("taken over")
            return asyncio.run(measured(settings, workers))
        finally:
            for worker in workers:
                worker.end(signal.SIGKILL)
