"""A storm from its start to its judgement."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import attrs

from examples.orders.recount import NOT_COUNTED, Recount, recount
from tests.live.orders import PATIENCE_S
from tests.live.storm import checks, evidence
from tests.live.storm.checks import Changelog, Check
from tests.live.storm.deployment import LOG_PARTITIONS, Deployment
from tests.live.storm.faults import Fault, Kind, draw
from tests.live.storm.stands import Stands
from tests.live.storm.watch import Watch

TASKS = 8
PER_SECOND = 150.0
ORDERS_AT_ONCE = 1_500
QUIET_S = 8.0
START_S = 90.0
REST_S = 180.0
AGAIN_S = 1.0
MOST_PAUSES_BETWEEN_COMMITS = 3
"""Commits are short while no record waits. Of more pauses beyond a lease than these, one meets a
commit.
"""


@attrs.frozen(kw_only=True)
class Storm:
    """What the command line says."""

    seed: int
    faults: int
    guarantee: str
    every_s: float
    folder: Path
    """For what processes print, and the members' disks."""
    kinds: tuple[Kind, ...] = tuple(Kind)
    tasks: int = TASKS

    @property
    def plan(self) -> list[Fault]:
        """Its faults."""
        return draw(self.seed, self.faults, self.every_s, self.kinds)

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.faults} faults, {self.guarantee}, {self.tasks} tasks"


async def run_storm(storm: Storm) -> list[Check]:
    """Every check, in the order to be read in."""
    began_s = time.monotonic()
    _say(began_s, "three brokers, two workers and five members start")
    with await asyncio.to_thread(Deployment, storm.folder, storm.guarantee, storm.tasks) as deployment:
        orders = deployment.orders
        watch = Watch(orders.connection, deployment.topics, orders.group)
        stands = Stands(orders.connection, orders.topic, storm.folder)
        deployment.owned, deployment.has_members, deployment.config = watch.owned, watch.has_members, watch.config
        try:
            await deployment.start()
            watch.start()
            wrong = await watch.until_settled(deployment.present, deployment.tasks, quiet_s=2.0, most_s=START_S)
            if wrong:
                return [Check("the deployment starts", False, wrong)]
            _say(began_s, f"all runs: {watch}; the storm begins")
            stands.start()
            async with _load(deployment):
                await _faults(storm.plan, deployment, watch)
                calm_s = time.monotonic()
                _say(began_s, "every fault has ended; until the group is at rest")
                wrong = await watch.until_settled(deployment.present, deployment.tasks, quiet_s=QUIET_S, most_s=REST_S)
            await stands.stop()
            settled = checks.settled(wrong, time.monotonic() - calm_s - (0 if wrong else QUIET_S), watch)
            _say(began_s, f"{wrong or watch}; until everything is counted")
            counted, changelog = await _counted(deployment)
            _say(began_s, "judging")
            found = [*await _judge(storm, deployment, counted, changelog, settled, watch), checks.stood(stands.found(), len(stands.looks))]
            if not all(check.holds for check in found):
                _say(began_s, "something does not hold; keeping the log and the topics")
                topics = [orders.topic, f"{orders.topic}-state", f"{orders.topic}-counts"]
                await evidence.keep(orders.connection, deployment.topics, LOG_PARTITIONS, topics, storm.folder)
            return found
        finally:
            await watch.stop()
            await stands.stop()
            await deployment.end()


async def _counted(deployment: Deployment) -> tuple[Recount, Changelog]:
    """When every order was counted, or PATIENCE_S later. The guarantee was changed now and then:
    each grant is judged by its own.
    """
    orders, end_s = deployment.orders, time.monotonic() + PATIENCE_S
    while True:
        changelog = await checks.read_changelog(orders.connection, f"{orders.topic}-state")
        found = await recount(orders.connection.options(), orders.topic, exactly_once=True, at_least_once=changelog.at_least_once)
        if not any(NOT_COUNTED in fault for fault in found.faults) or time.monotonic() > end_s:
            return found, changelog
        await asyncio.sleep(AGAIN_S)


async def _judge(storm: Storm, deployment: Deployment, counted: Recount, changelog: Changelog, settled: Check, watch: Watch) -> list[Check]:
    orders = deployment.orders
    exactly_once = storm.guarantee == "exactly_once"
    outputs = sorted(storm.folder.glob("m*.out"))
    refused = checks.refused(outputs)
    found = [checks.counts(counted, storm.guarantee)]
    if exactly_once:
        cut_off = await checks.cut_off(orders.connection, f"{orders.topic}-counts")
        found += [checks.tokens_never_fall(counted, changelog)]
        pauses = sum(fault.kind is Kind.PAUSE_BEYOND for fault in storm.plan)
        must = pauses > MOST_PAUSES_BETWEEN_COMMITS
        found.append(checks.fenced(refused, cut_off, checks.grants(outputs), deployment.killed, must=must))
    found.append(checks.overlap(counted, changelog, refused))
    found += [settled, Check("no group is halted", not watch.halted, watch.halted or "none")]
    found.append(await asyncio.to_thread(checks.verifies, deployment.brokers.bootstrap, deployment.topics.prefix))
    found.append(await checks.rejected_records(orders.connection, deployment.topics))
    found.append(await checks.rejections(orders.connection, deployment.topics))
    found.append(checks.nothing_else(deployment.incidents))
    return found


async def _faults(plan: list[Fault], deployment: Deployment, watch: Watch) -> None:
    """Each at its time, whatever has come of the others; returns when all have ended."""
    began_s = time.monotonic()
    under_way: list[asyncio.Task[None]] = []
    for number, fault in enumerate(plan, 1):
        await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
        _say(began_s, f"{number:3}/{len(plan)} {fault!s:75} {watch}")
        under_way.append(asyncio.ensure_future(deployment.do(fault)))
    for each in under_way:
        await each


@contextlib.asynccontextmanager
async def _load(deployment: Deployment) -> AsyncIterator[None]:
    """Orders come in, all the time."""
    from aiokafka.errors import KafkaError

    async def load() -> None:
        while True:
            try:
                await deployment.orders.produce(ORDERS_AT_ONCE, per_second=PER_SECOND, customers=deployment.customers)
            except KafkaError as error:  # what was not acknowledged may be there or not: the recount looks
                print(f"           the input waits: {error!r}", flush=True)
                await asyncio.sleep(AGAIN_S)

    loading = asyncio.ensure_future(load())
    try:
        yield
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


def _say(began_s: float, text: str) -> None:
    minutes, seconds = divmod(round(time.monotonic() - began_s), 60)
    print(f"{minutes:3}:{seconds:02} {text}", flush=True)


def summary(plan: list[Fault]) -> str:
    """How many faults of each kind."""
    counted = {kind: sum(fault.kind is kind for fault in plan) for kind in Kind}
    return ", ".join(f"{count} {kind.name.lower()}" for kind, count in counted.items() if count)
