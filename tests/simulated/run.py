"""One simulation: a deployment starts, faults happen, everything comes to rest and is judged."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any
from unittest import mock

import attrs

from equipoise.log.kafka.log_topics import Topics
from equipoise.member.session import link
from equipoise.member.tasks.runner import TaskRunner
from equipoise.testing.simulated.virtual_loops import S_US
from equipoise.worker import takeover_session
from tests.model.trace import Refused
from tests.simulated.deployment import MOST_UNCOMMITTED, TOPIC, Deployment
from tests.simulated.faults import Fault
from tests.simulated.judge import recount_all, repeated_faults, verify_log
from tests.simulated.stores import store_faults
from tests.simulated.traces import followed

START_S = 40.0
"""Within this time a new deployment runs all tasks."""
CALM_S = 90.0
"""Within this time after the last fault everything runs, and every order is counted."""
REST_S = 2.0
JUDGE_S = 60.0
LOOK_S = 0.5


@attrs.frozen(kw_only=True)
class Result:
    """How a simulation has gone. `problems`: empty if everything holds. `trace_hash`: of every
    record in the brokers and everything that was done.
    """

    seed: int
    guarantee: str
    faults: int
    steps: int
    virtual_s: float
    took_s: float
    orders: int
    repeated: int
    problems: Sequence[str]
    trace: Sequence[str]
    trace_hash: str

    def __str__(self) -> str:
        speed = self.virtual_s / self.took_s if self.took_s else 0.0
        verdict = "holds" if not self.problems else f"{len(self.problems)} PROBLEMS"
        return (
            f"seed {self.seed}, {self.guarantee}: {verdict}; {self.faults} faults, {self.orders} orders, {self.repeated} counted again, "
            f"{self.steps:,} steps, {self.virtual_s:.0f} s in {self.took_s:.1f} s ({speed:.0f} times real time), trace {self.trace_hash}"
        )


def simulate(seed: int, guarantee: str, faults: Sequence[Fault], *, storm_s: float = 30.0, every_s: float = 1.5) -> Result:
    """Runs one simulation."""
    with _quiet(seed):
        return _simulate(seed, guarantee, faults, storm_s, every_s)


def _simulate(seed: int, guarantee: str, faults: Sequence[Fault], storm_s: float, every_s: float) -> Result:
    began_s = time.perf_counter()
    deployment = Deployment(seed, guarantee)
    opens = TaskRunner._open

    async def opened(runner: TaskRunner) -> None:
        origin = runner._origin
        grant = f"{origin.log_id}/{origin.group}/{origin.task}/{origin.token}"
        deployment.watch.openings[grant] += 1
        if not runner._options.transactional:
            deployment.watch.at_least_once.add(grant)
        await opens(runner)

    try:
        run = _Run(deployment, faults, storm_s, every_s)
        with (
            mock.patch.object(TaskRunner, "_open", opened),
            mock.patch.object(takeover_session, "pack_decision", deployment.pack_decision),
            mock.patch.object(link, "pack_fact", deployment.pack_fact),
        ):
            run.go()
        return Result(
            seed=seed,
            guarantee=guarantee,
            faults=run.faults_done,
            steps=deployment.scheduler.steps,
            virtual_s=deployment.now_s,
            took_s=time.perf_counter() - began_s,
            orders=deployment.orders,
            repeated=run.repeated,
            problems=tuple(deployment.problems),
            trace=tuple(deployment.trace),
            trace_hash=_hash(deployment),
        )
    finally:
        logging.disable(logging.CRITICAL)
        deployment.close()


@contextlib.contextmanager
def _quiet(seed: int) -> Iterator[None]:
    """No garbage is collected meanwhile (a collected coroutine would run its ``finally``), and what
    asks for chance gets the seed's.
    """
    random = Random(f"unique {seed}")

    def unique() -> uuid.UUID:
        return uuid.UUID(int=random.getrandbits(128))

    level = logging.root.manager.disable
    if level < logging.WARNING and not logging.getLogger("equipoise").isEnabledFor(logging.DEBUG):
        logging.disable(logging.CRITICAL)
    gc.freeze()  # what is there already need not be looked at
    gc.disable()
    try:
        with mock.patch("uuid.uuid4", unique):
            yield
    finally:
        with mock.patch.object(sys, "unraisablehook"):  # of coroutines that are closed where they were
            gc.collect()
        gc.unfreeze()
        gc.enable()
        logging.disable(level)


def _hash(deployment: Deployment) -> str:
    digest = hashlib.sha256()
    for line in deployment.trace:
        digest.update(line.encode())
    for record in deployment.records():
        digest.update(repr((record.topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value)).encode())
    digest.update(str(deployment.scheduler.steps).encode())
    return digest.hexdigest()[:12]


class _Run:
    def __init__(self, deployment: Deployment, faults: Sequence[Fault], storm_s: float, every_s: float) -> None:
        self.deployment = deployment
        self.faults = faults
        self.storm_s = storm_s
        self.every_s = every_s
        self.random = Random(f"faults {deployment.seed}")
        self.faults_done = 0
        self.repeated = 0
        self._calm_from_s = 0.0

    def go(self) -> None:
        deployment = self.deployment
        deployment.start(orders_until_s=START_S + self.storm_s + 2)
        if not self._until_settled(START_S, 0.5):
            return
        deployment.say("everything runs")
        deployment.is_calm = False
        storm_until_s = deployment.now_s + self.storm_s
        deployment.stop_orders_at(storm_until_s + 2)
        self._calm_from_s = storm_until_s
        if self.faults:
            self._next_fault(storm_until_s)
        while deployment.now_s < self._calm_from_s:
            self._run_to(self._calm_from_s)
        deployment.calm()
        deployment.say("every fault has ended")
        if self._until_settled(CALM_S, REST_S):
            deployment.say("at rest")
        self._judge()

    def _next_fault(self, until_s: float) -> None:
        gap_s = self.random.uniform(0, 2 * self.every_s)
        if self.deployment.now_s + gap_s < until_s:
            self.deployment.later(gap_s, self._do_fault, until_s)

    def _do_fault(self, until_s: float) -> None:
        deployment = self.deployment
        fault = self.random.choice(self.faults)
        lasts_s = fault.apply(deployment, self.random)
        if lasts_s is not None:
            self.faults_done += 1
            deployment.say(f"fault {self.faults_done}: {fault.name}, {lasts_s:.2f} s")
            self._calm_from_s = max(self._calm_from_s, deployment.now_s + lasts_s)
        self._next_fault(until_s)

    def _run_to(self, until_s: float) -> None:
        self.deployment.scheduler.run(int(until_s * S_US) + 1)

    def _until_settled(self, most_s: float, rest_s: float) -> bool:
        """Whether everything was at rest for `rest_s` within `most_s`."""
        deployment = self.deployment
        end_s, since_s = deployment.now_s + most_s, None
        while deployment.now_s < end_s:
            self._run_to(deployment.now_s + LOOK_S)
            wrong = deployment.unsettled()
            if wrong:
                since_s = None
            elif since_s is None:
                since_s = deployment.now_s
            elif deployment.now_s - since_s >= rest_s:
                return True
        deployment.problem(f"not at rest after {most_s:.0f} s: {wrong or 'it moves on and on'}")
        return False

    def _judge(self) -> None:
        deployment = self.deployment
        judging = deployment.observer.app.create_task(self._look_at_everything())
        deployment.scheduler.run(deployment.scheduler.now_us + int(JUDGE_S * S_US), judging.done)
        if not judging.done():
            deployment.problem("the judge gets no answer from the brokers")
        elif judging.exception() is not None:
            deployment.problem(f"the judge failed: {judging.exception()!r}")
        for fault in (*deployment.watch.faults, *store_faults(deployment)[:10]):
            deployment.problem(fault)
        for error in deployment.scheduler.errors:
            deployment.problem(f"a loop reports: {error}")
        for prefix in sorted(deployment.prefixes):
            try:
                followed(deployment, Topics(prefix))
            except Refused as error:
                deployment.problem(f"the log {prefix} is no run of the model: {error}")

    async def _look_at_everything(self) -> None:
        deployment = self.deployment
        connection = deployment.connection(deployment.observer)
        exactly_once = deployment.guarantee == "exactly_once" or deployment.guarantee_changes > 0
        at_least_once = deployment.watch.at_least_once if exactly_once else ()
        found, faults = await recount_all(connection.clients, TOPIC, exactly_once=exactly_once, at_least_once=at_least_once)
        self.repeated = found.repeated
        repeated = repeated_faults(found, deployment.watch.openings, MOST_UNCOMMITTED)
        for fault in (*found.faults[:10], *faults[:10], *repeated):
            deployment.problem(fault)
        for prefix in sorted(deployment.prefixes):
            for fault in await verify_log(connection, Topics(prefix)):
                deployment.problem(f"log {prefix}: {fault}")


def describe(result: Result, lines: int = 60) -> Any:
    """What to print of a failed simulation."""
    return "\n".join([*result.trace[-lines:], *result.problems[:20], str(result)])
