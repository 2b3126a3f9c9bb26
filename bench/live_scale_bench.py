"""The capacity of one worker: 200 groups of 20 members at rest, for minutes; and the heartbeats per
second at which it falls behind.

The members of the 200 groups are real sessions over the real broker (`tests/live/swarm.py`). A
probe asks all the while, four times a second, how long a fact takes to be answered: a worker that
falls behind answers later and later. Then more and more heartbeats are added that change nothing,
of members that say only that, until it does.
"""

from __future__ import annotations

import asyncio
import time

import attrs

from bench.live import KEEPALIVE_MS, Groups, Row, WorkerProcess, broker, group_name, quantile
from bench.live_latency_bench import ANSWER_S, NoAnswerError, Prober
from bench.live_recovery_bench import joining
from equipoise.events.decisions import EventRejected
from equipoise.events.facts import LagReported, MemberLeft, MemberUnchanged
from equipoise.events.tasks import TaskId
from equipoise.log.kafka.envelope import pack_fact
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.swarm import topology

GROUPS, MEMBERS, TASKS = 200, 20, 40
STEADY_S = 120.0
PROBE_EVERY_S = 0.25
MORE_PER_S = (8_000, 16_000, 32_000, 48_000, 64_000, 80_000, 100_000, 120_000)
"""Additional heartbeats per second."""
STEP_S = 15.0
BEHIND_S = 1.0
"""An answer time above this at the end of a step means that the worker has fallen behind."""
RESTING = "resting"
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


class Resting:
    """A group whose members only say that nothing has changed, so that they cost this process
    little.
    """

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self.sent = 0

    async def join(self) -> None:
        """Creates the group and its members, each with one report."""
        await self._prober.say(RESTING, configured(initial_delay_ms=500))
        await self._prober.say(RESTING, topology(TASKS, prefix=RESTING))
        for number in range(MEMBERS):
            await self._prober.say(RESTING, joining(f"m{number}", RESTING))
            await self._prober.say(RESTING, LagReported(f"m{number}", 1, 0, 0, (), (), {TaskId(0, number): 0}))

    async def speak(self, per_second: int) -> None:
        """Sends facts until cancelled."""
        a_step = per_second // STEPS_A_SECOND
        facts = [pack_fact(MemberUnchanged(member_id=f"m{number % MEMBERS}", incarnation=1, report=0)) for number in range(a_step)]
        begun_s, sent = time.monotonic(), 0
        while True:
            await self._prober.post_all(RESTING, facts)
            sent += a_step
            self.sent += a_step
            await asyncio.sleep(max(0.0, sent / per_second - (time.monotonic() - begun_s)))


async def measure(prober: Prober, groups: Groups, worker: WorkerProcess, resting: Resting, seconds: float, probes: list[int]) -> Measurement:
    """Measures the next `seconds`."""
    begun_s, cpu_s, sent = time.monotonic(), worker.cpu_s, groups.counted()["sent"] + resting.sent
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
    facts = groups.counted()["sent"] + resting.sent - sent + len(answers)
    return Measurement(facts / took_s, (worker.cpu_s - cpu_s) / took_s, answers)


async def measured(settings: WorkerSettings, groups: Groups, worker: WorkerProcess) -> tuple[Measurement, dict[str, int], list[Measurement]]:
    """Returns the steady measurement, the groups' counts in it, and the measurements of the steps,
    up to the first at which the worker falls behind.
    """
    probes = [0]
    async with Prober(settings) as prober:
        resting = Resting(prober)
        steady = await measure(prober, groups, worker, resting, STEADY_S, probes)
        counted = groups.counted()
        await resting.join()
        steps: list[Measurement] = []
        for more in MORE_PER_S:
            speaking = asyncio.create_task(resting.speak(more))
            try:
                steps.append(await measure(prober, groups, worker, resting, STEP_S, probes))
            finally:
                speaking.cancel()
                await asyncio.gather(speaking, return_exceptions=True)
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
    nominal = GROUPS * MEMBERS / (KEEPALIVE_MS / 1_000)
    lost = f"{counted['lost']} members lost, {counted['overlaps']} tasks run twice"
    rows = [
        (f"{GROUPS} groups of {MEMBERS}, {STEADY_S:.0f} s: facts led / facts due", steady.facts_per_s / nominal, f"{steady.note()}; {lost}"),
        ("the same: answers in the last quarter / all, median", steady.last_s / quantile(steady.answers_s, 0.5), "about 1: it does not fall behind"),
    ]
    return rows + [("with more heartbeats: 1 if it keeps up", float(step.last_s <= BEHIND_S), step.note()) for step in steps]
