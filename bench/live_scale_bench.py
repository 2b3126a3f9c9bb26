"""The capacity of one worker: 200 groups of 20 members with a heartbeat every 3 s, for minutes; and
the heartbeats per second at which it falls behind.

The members of the 200 groups are real sessions over the real broker (`tests/live/swarm.py`). A
probe asks all the while, four times a second, how long a fact takes to be answered: a worker that
falls behind answers later and later. Then more and more heartbeats are added, of groups that only
report, until it does.
"""

from __future__ import annotations

import asyncio
import time

import attrs

from bench.live import Groups, Row, WorkerProcess, broker, group_name, quantile
from bench.live_latency_bench import ANSWER_S, NoAnswerError, Prober
from bench.live_recovery_bench import joining
from equipoise.events.decisions import EventRejected
from equipoise.events.facts import LagReported, MemberLeft
from equipoise.events.log.kafka.envelope import pack_fact
from equipoise.events.tasks import TaskId
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.swarm import topology

GROUPS, MEMBERS, TASKS = 200, 20, 40
STEADY_S = 120.0
PROBE_EVERY_S = 0.25
MORE_PER_S = (2_000, 4_000, 8_000, 16_000, 24_000, 32_000, 48_000)
"""Additional heartbeats per second."""
STEP_S = 15.0
BEHIND_S = 1.0
"""An answer time above this at the end of a step means that the worker has fallen behind."""
REPORTERS = "reporters"
STEPS_A_SECOND = 50


@attrs.frozen
class Measurement:
    """The measurement of one load."""

    facts_per_s: float
    worker_cores: float
    answers_s: list[float]

    @property
    def last_s(self) -> float:
        """Median answer time in the last quarter."""
        return quantile(self.answers_s[-max(1, len(self.answers_s) // 4) :], 0.5)

    def note(self) -> str:
        """The text of the row's note."""
        at_the_end = f"{quantile(self.answers_s, 0.5) * 1000:.1f} ms at the median, {self.last_s * 1000:.1f} ms in the last quarter"
        return f"{self.facts_per_s:,.0f} facts/s, {self.worker_cores:.2f} cores of the worker's; an answer took {at_the_end}"


class Reporters:
    """A group whose members only send reports, so that they cost this process little."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self._number = 0
        self.sent = 0

    async def join(self) -> None:
        """Creates the group and its members."""
        await self._prober.say(REPORTERS, configured(initial_delay_ms=500))
        await self._prober.say(REPORTERS, topology(TASKS, prefix=REPORTERS))
        for number in range(MEMBERS):
            await self._prober.say(REPORTERS, joining(f"m{number}", REPORTERS))

    async def report(self, per_second: int) -> None:
        """Sends reports until cancelled."""
        begun_s, sent = time.monotonic(), 0
        while True:
            for _ in range(per_second // STEPS_A_SECOND):
                self._number += 1
                report = LagReported(
                    member_id=f"m{self._number % MEMBERS}", incarnation=1, number=self._number, assignment_epoch=0, held=(), ready=(),
                    lags={TaskId(0, self._number % TASKS): self._number},
                )  # fmt: skip
                await self._prober.post(REPORTERS, pack_fact(report))
                sent += 1
            self.sent += per_second // STEPS_A_SECOND
            await asyncio.sleep(max(0.0, sent / per_second - (time.monotonic() - begun_s)))


async def measure(prober: Prober, groups: Groups, worker: WorkerProcess, reporters: Reporters, seconds: float, probes: list[int]) -> Measurement:
    """Measures the next `seconds`."""
    begun_s, cpu_s, sent = time.monotonic(), worker.cpu_s, groups.counted()["sent"] + reporters.sent
    answers: list[float] = []
    while time.monotonic() - begun_s < seconds:
        probes[0] += 1
        try:
            nobody = MemberLeft(member_id="nobody", incarnation=probes[0])
            answers.append(await prober.decision(group_name(probes[0] % GROUPS), nobody, EventRejected))
        except NoAnswerError:
            answers.append(ANSWER_S)
        await asyncio.sleep(PROBE_EVERY_S)
    took_s = time.monotonic() - begun_s
    facts = groups.counted()["sent"] + reporters.sent - sent + len(answers)
    return Measurement(facts / took_s, (worker.cpu_s - cpu_s) / took_s, answers)


async def measured(settings: WorkerSettings, groups: Groups, worker: WorkerProcess) -> tuple[Measurement, dict[str, int], list[Measurement]]:
    """Returns the steady measurement, the groups' counts in it, and the measurements of the steps,
    up to the first at which the worker falls behind.
    """
    probes = [0]
    async with Prober(settings) as prober:
        reporters = Reporters(prober)
        steady = await measure(prober, groups, worker, reporters, STEADY_S, probes)
        counted = groups.counted()
        await reporters.join()
        steps: list[Measurement] = []
        for more in MORE_PER_S:
            reporting = asyncio.create_task(reporters.report(more))
            try:
                steps.append(await measure(prober, groups, worker, reporters, STEP_S, probes))
            finally:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
            if steps[-1].last_s > BEHIND_S:
                break
    return steady, counted, steps


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with broker() as bootstrap:
        settings = WorkerSettings(bootstrap=bootstrap, prefix="scale")
        with WorkerProcess(settings) as worker:
            worker.until_said("taken over")
            with Groups(settings, GROUPS, MEMBERS, TASKS) as groups:
                steady, counted, steps = asyncio.run(measured(settings, groups, worker))
    nominal = GROUPS * MEMBERS / 3
    lost = f"{counted['lost']} members lost, {counted['overlaps']} tasks run twice"
    rows = [
        (f"{GROUPS} groups of {MEMBERS}, {STEADY_S:.0f} s: facts led / facts due", steady.facts_per_s / nominal, f"{steady.note()}; {lost}"),
        ("the same: answers in the last quarter / all, median", steady.last_s / quantile(steady.answers_s, 0.5), "about 1: it does not fall behind"),
    ]
    return rows + [("with more heartbeats: 1 if it keeps up", float(step.last_s <= BEHIND_S), step.note()) for step in steps]
