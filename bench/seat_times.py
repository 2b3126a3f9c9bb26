"""`python -m bench.seat_times`: how soon a plan of `equipoise lead` is in effect, and what a group
that plans all the time costs others.

*In effect*: a fourth client joins a group of three (KIP-848, heartbeats of 1 s) and leaves, TIMES
times. From the decision, as the seat says it, to the first record of the last partition that the
new owner reads. Every partition gets a record each EVERY_MS.

*Beside*: a group commits an offset each COMMIT_EVERY_MS while another one, on the same partition of
the coordinator, has MEMBERS members and SHARED partitions: at rest; assigned by the brokers' own
assignor as often as they do it, each time after a subscription that changes; and by equipoise's, to
which a member hands plans as often that move a tenth of the partitions. In turns, TURNS times.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import click
from aiokafka.errors import KafkaError

from bench.removals import fed
from bench.seat import BROKERS, PARTITIONS, Run, print_row, until
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import repeated
from equipoise.lead.broker_seat.broker_plan import MARK, BrokerPlan, PlanEntry, entries_of, in_order, made_for, write_plan
from equipoise.lead.broker_seat.extra_member import OWN_TOPICS, ExtraMember
from tests.live.broker_assignor import assignor_jar_classes
from tests.live.kafka import admin_client
from tools.brokers import FAST_JAVA, Brokers

TIMES, EVERY_MS, SETTLE_S, START_S = 10, 20, 3.0, 60.0
MEMBERS, SHARED, TURNS, TURN_S, COMMIT_EVERY_MS, PLAN_EVERY_S = 50, 1_000, 3, 20.0, 10, 0.25
COORDINATORS = 5
"""Partitions of the topic of offsets (`tools.brokers`)."""
_DECIDED = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) .* assigned in (\d+) ms: ([1-9]\d*) of \d+ partitions move", re.MULTILINE)


def decided_s(said: str) -> float:
    """When the last plan that moves something was decided, in seconds since 1970."""
    written, took_ms, _ = _DECIDED.findall(said)[-1]
    return datetime.strptime(written, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() - int(took_ms) / 1_000


def in_effect(bootstrap: str, folder: Path) -> list[float]:
    """Seconds, for each join."""
    run, found = Run(bootstrap, "confluent-kafka, KIP-848", "led", folder), list[float]()
    try:
        for name in ("c1", "c2", "c3"):
            run.start(name)
        with fed(bootstrap, run.topic, partitions=PARTITIONS, every_ms=EVERY_MS):
            until(run.is_shared)
            run.seat(0)
            said = run.logs[0].with_suffix(".err")
            for _ in range(TIMES):
                time.sleep(SETTLE_S + random.Random(len(found)).random())
                plans = len(_DECIDED.findall(said.read_text()))
                run.start("c4")
                until(lambda plans=plans: len(_DECIDED.findall(said.read_text())) > plans)  # type: ignore[misc]
                time.sleep(SETTLE_S)
                until(run.is_shared)
                joined = run.clients["c4"]
                first_s = {partition: at_s for at_s, partition in reversed(list(joined.reads))}
                found.append(max(first_s.values()) - time.monotonic() + time.time() - decided_s(said.read_text()))
                joined.signal(signal.SIGTERM)
                joined.ended()
                run.ended.append(("c4", run.clients.pop("c4")))
                until(run.is_shared)
    finally:
        run.close()
    return found


def coordinator_of(group: str) -> int:
    """The partition of the topic of offsets that a group is in, as brokers compute it."""
    hashed = 0
    for each in group:
        hashed = (31 * hashed + ord(each)) & 0xFFFFFFFF
    return (hashed & 0x7FFFFFFF) % COORDINATORS


class Busy:
    """A group of MEMBERS members that read nothing, and one that has it assigned again."""

    def __init__(self, bootstrap: str, assignor: str) -> None:
        connection = Connection(bootstrap=bootstrap)
        self.group = f"busy-{assignor}"
        self.members = [ExtraMember(connection, self.group, f"m{number:03d}", assignor=assignor) for number in range(MEMBERS)]
        self._carrier = ExtraMember(connection, self.group, "z", assignor=assignor)
        self._plans = assignor == "equipoise"
        self._number = 1
        self._is_bumping = False

    async def _stay(self) -> None:
        while True:
            await asyncio.gather(*(self._beat(each) for each in (*self.members, *(() if self._is_bumping else (self._carrier,)))))
            await asyncio.sleep(0.9)

    async def _beat(self, member: ExtraMember) -> None:
        """A member gives nothing back, and is fenced for that now and then: it joins again."""
        with contextlib.suppress(KafkaError):
            await member.beat(None if member.epoch else f"{MARK}{self._number}" if member is self._carrier else "r1")

    async def _bump(self) -> None:
        ids = (await self._carrier.topics({OWN_TOPICS[0]})).ids
        names, chance = in_order(each.member_id for each in self.members), random.Random(1)
        while True:
            self._number += 1
            moved: dict[int, list[int]] = {}
            for partition in chance.sample(range(SHARED), SHARED // 10):
                moved.setdefault(chance.randrange(MEMBERS), []).append(partition)
            entries: list[PlanEntry] = [entry for to, numbers in sorted(moved.items()) for entry in entries_of("move", to, 0, numbers)]
            plan = BrokerPlan(number=self._number, made_for=made_for(names, sorted(ids.values())), entries=tuple(entries))
            with contextlib.suppress(KafkaError):
                await self._carrier.beat(write_plan(plan) if self._plans else f"{MARK}{self._number}", begins=True)
            await asyncio.sleep(PLAN_EVERY_S)

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Within the block the members are in the group."""
        async with contextlib.AsyncExitStack() as stack:
            for each in (*self.members, self._carrier):
                await stack.enter_async_context(each)
            for each in self.members:
                await repeated(partial(each.beat, "r1"), START_S)
            await self._carrier.beat(f"{MARK}{self._number}")
            staying = asyncio.create_task(self._stay())
            try:
                yield
            finally:
                staying.cancel()
                await asyncio.gather(staying, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def bumping(self) -> AsyncIterator[None]:
        """Within the block the group is assigned again and again."""
        self._is_bumping = True
        bumping = asyncio.create_task(self._bump())
        try:
            yield
            if bumping.done():
                bumping.result()
        finally:
            bumping.cancel()
            await asyncio.gather(bumping, return_exceptions=True)
            self._is_bumping = False


def committed_ms(bootstrap: str, group: str) -> list[float]:
    """How long commits take, for TURN_S."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.assign([TopicPartition(OWN_TOPICS[0], 0)])
    found: list[float] = []
    end_s = time.monotonic() + TURN_S
    while time.monotonic() < end_s:
        began_s = time.perf_counter()
        consumer.commit(offsets=[TopicPartition(OWN_TOPICS[0], 0, len(found) + 1)], asynchronous=False)
        found.append((time.perf_counter() - began_s) * 1_000)
        time.sleep(COMMIT_EVERY_MS / 1_000)
    consumer.close()
    return found


async def beside(bootstrap: str) -> dict[str, list[float]]:
    """What happens beside -> ms of commits, of all turns."""
    from aiokafka.admin import NewTopic

    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(OWN_TOPICS[0], SHARED, 1)])
    stock, led = Busy(bootstrap, "uniform"), Busy(bootstrap, "equipoise")
    kinds: dict[str, Busy | None] = {"at rest": None, "assigned by the brokers' own": stock, "planned by equipoise": led}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        async with stock.joined(), led.joined():
            for _ in range(TURNS):
                for kind, busy in kinds.items():
                    beside = coordinator_of((busy or led).group)
                    group = next(name for number in itertools.count() if coordinator_of(name := f"commits-{number}") == beside)
                    async with busy.bumping() if busy is not None else contextlib.AsyncExitStack():
                        found[kind] += await loop.run_in_executor(pool, committed_ms, bootstrap, group)
    return found


@click.command()
def main() -> None:
    """Measures both."""
    folder = Path(tempfile.mkdtemp(prefix="equipoise-times-"))
    try:
        with Brokers(java=FAST_JAVA, classpath=str(assignor_jar_classes()), **BROKERS) as brokers:
            effect_s = in_effect(brokers.bootstrap, folder)
            print_row((f"in effect, s: median of {len(effect_s)}", f"{statistics.median(effect_s):.2f}", "most", f"{max(effect_s):.2f}"))
        with Brokers(java=FAST_JAVA, classpath=str(assignor_jar_classes()), **BROKERS) as brokers:
            for kind, found in asyncio.run(beside(brokers.bootstrap)).items():
                p50, p99 = statistics.median(found), statistics.quantiles(found, n=100)[98]
                print_row(("commits beside a group", kind, f"{len(found)}", f"p50 {p50:.2f} ms", f"p99 {p99:.2f} ms", f"most {max(found):.1f} ms"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
