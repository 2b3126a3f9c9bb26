"""Large groups on a real broker: 1,000 tasks on 100 members, and 10,000 on 500. Each starts, rests,
gets one member more, loses one by its silence, and restarts ten one after the other.

The members are real sessions (`tests/live/swarm.py`) in this process; they restore at once, and
each of their facts is in a batch of its own, as of a process for each member. The worker is a
process of its own. Times are the broker's: the latency of a round is the time from the append of
the fact that caused it to the append of the last decision that it caused.

`GROUPS_MEASURED` in the environment measures others: "1000/100/0 1000/100/1" are the tasks, members
and standbys of two groups. KAFKA_BOOTSTRAP is not used, because the files must be seen.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from bench.live import AS_DEPLOYED, KEEPALIVE_MS, Row, WorkerProcess, quantile
from equipoise.events.decisions import AssignmentIssued
from equipoise.events.facts import PartitionsObserved
from equipoise.events.records import DecisionRecord
from equipoise.log.kafka.envelope import member_decision, published
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.swarm import Swarm, everything, topology
from tools.brokers import FAST_JAVA, Brokers

DEFAULT_GROUPS = "1000/100/0 1000/100/1 10000/500/0 10000/500/1"
"""Tasks, members and standbys of each group."""
STATE_RECORDS = 50_000
"""End offset of each task: a copy restores that much before it can take over."""
SETTINGS: dict[str, Any] = {"initial_delay_ms": 30_000, "join_delay_ms": 1_000, "max_warmups": 50, "max_warmups_per_member": 20}
RESTARTS = 10
REST_S = 2 * KEEPALIVE_MS / 1_000
QUIET_S = 3.0
"""A change is over when every task runs, the leader finds the group balanced, and it has decided
nothing for so long.
"""
PATIENCE_S = 240.0
GROUP = "large"
MB = 1_000_000


@attrs.frozen
class Before:
    """The counts when a phase begins."""

    facts: int
    bytes_written: dict[str, int]
    cpu_s: float
    monotonic_s: float


@attrs.define
class Phase:
    """What one change cost. Decisions are filled in when the topics are read at the end."""

    name: str
    first_fact: int
    took_s: float
    bytes_written: dict[str, int]
    cpu_s: float
    rss_mb: float
    rounds: int = 0
    """Generations."""
    handovers: int = 0
    """Those of them in which a task arrives: a round before them began it."""
    decisions: int = 0
    latencies_s: list[float] = attrs.field(factory=list)

    def note(self) -> str:
        """The text of the row's note."""
        latency = "no round"
        if self.latencies_s:
            latency = f"{quantile(self.latencies_s, 0.5) * 1000:.0f} ms at the median, {max(self.latencies_s) * 1000:.0f} at most"
        written = ", ".join(f"{name} {amount / MB:.3f} MB" for name, amount in self.bytes_written.items())
        worker = f"worker {self.cpu_s:.2f} s of CPU, {self.rss_mb:.0f} MB"
        return f"{self.took_s:.1f} s; {self.handovers} of them hand-overs, {self.decisions} decisions; {latency}; {written}; {worker}"


def rss_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1_024 / MB


class Large:
    """One group on its own broker and worker, change after change."""

    def __init__(self, brokers: Brokers, settings: WorkerSettings, worker: WorkerProcess, swarm: Swarm, tasks: int, members: int) -> None:
        self._brokers, self._settings, self._worker, self._swarm, self._tasks = brokers, settings, worker, swarm, tasks
        self._members = swarm.add(GROUP, [f"m{each:04}" for each in range(members)], incarnations=time.time_ns() // 1_000, **AS_DEPLOYED)
        self.phases: list[Phase] = []

    async def start(self, standbys: int) -> None:
        """The group begins, with all members at once."""
        ends = dict.fromkeys(range(self._tasks), STATE_RECORDS)
        before = await self._before()
        await self._swarm.configure(
            GROUP, configured(num_standbys=standbys, **SETTINGS), topology(self._tasks), PartitionsObserved(end_offsets={"log": ends})
        )
        self._swarm.start()
        await self._measure("start", before, self._is_at_rest)

    async def rest(self) -> None:
        """Nothing happens for two keepalive intervals; in the first one the members come to rest."""
        await asyncio.sleep(KEEPALIVE_MS / 1_000)
        before = await self._before()
        await self._measure(f"{REST_S:.0f} s at rest", before, lambda: time.monotonic() >= before.monotonic_s + REST_S)

    async def join(self) -> None:
        """One member more."""
        before = await self._before()
        self._members += self._swarm.add(GROUP, ["n0000"], incarnations=time.time_ns() // 1_000, **AS_DEPLOYED)
        await self._measure("one joins", before, self._is_at_rest)

    async def kill(self) -> None:
        """One member falls silent."""
        before = await self._before()
        self._members.pop(0).killed = True
        await self._measure("one is killed", before, self._is_at_rest)

    async def restart(self) -> None:
        """Some members restart, one after the other."""
        before = await self._before()
        for member in self._members[:RESTARTS]:
            former = member.incarnations
            member.restart()
            await self._until(lambda member=member, former=former: member.incarnations > former and self._all_run())  # type: ignore[misc]
        await self._measure(f"{RESTARTS} restart one by one", before, self._is_at_rest)

    def _all_run(self) -> bool:
        owners = self._swarm.owners(GROUP)
        return len(owners) == self._tasks and set(owners.values()) == {member.member_id for member in self._members}

    def _is_at_rest(self) -> bool:
        quiet_s = time.monotonic() - self._swarm.decided_s.get(GROUP, time.monotonic())
        return quiet_s >= QUIET_S and self._swarm.verdicts.get(GROUP) == "balanced" and self._all_run()

    async def _until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            self._swarm.look()
            assert self._worker.process.poll() is None, self._worker.said[-3_000:]
            if time.monotonic() > end:
                owners = self._swarm.owners(GROUP)
                idle = sorted({member.member_id for member in self._members} - set(owners.values()))
                raise AssertionError(
                    f"not done after {PATIENCE_S:.0f} s: {len(owners)} of {self._tasks} tasks run, none on {idle[:10]}, "
                    f"{self._swarm.verdicts.get(GROUP)}, {self._swarm.lost} lost\n{self._worker.said[-3_000:]}"
                )
            await asyncio.sleep(0.25)

    async def _before(self) -> Before:
        facts = await self._swarm.end_of_facts(GROUP)
        return Before(facts, self._written(), self._worker.cpu_s, time.monotonic())

    def _written(self) -> dict[str, int]:
        topics = self._settings.topics
        return {name: self._brokers.written_bytes(topics.name_of(name)) for name in ("facts", "decisions", "checkpoints")}

    async def _measure(self, name: str, before: Before, done: Callable[[], bool]) -> None:
        await self._until(done)
        took_s, cpu_s = time.monotonic() - before.monotonic_s, self._worker.cpu_s - before.cpu_s
        written = {what: amount - before.bytes_written[what] for what, amount in self._written().items()}
        phase = Phase(name, before.facts, took_s, written, cpu_s, rss_mb(self._worker.process.pid))
        print(f"{name}: {phase.note()}", file=sys.stderr)
        self.phases.append(phase)

    async def count_decisions(self) -> None:
        """Reads both topics, and adds to each phase what was decided in it."""
        topics = self._settings.topics
        appended_ms = {record.offset: record.timestamp_ms for record in await everything(self._settings, topics.facts)}
        decided_ms: dict[int, int] = {}
        issued: set[int] = set()
        for record in await everything(self._settings, topics.decisions):
            stored = published(record)
            if stored is None:
                continue
            decision = member_decision(stored)
            assert isinstance(decision, DecisionRecord), "of this build"
            phase = next(phase for phase in reversed(self.phases) if phase.first_fact <= decision.caused_by)
            phase.decisions += 1
            decided_ms[decision.caused_by] = record.timestamp_ms
            if isinstance(decision.decision, AssignmentIssued) and decision.decision.part == 1:
                issued.add(decision.caused_by)
                phase.rounds += 1
                phase.handovers += decision.decision.cause in ("handover", "hold_over")
        for fact in sorted(issued):
            phase = next(phase for phase in reversed(self.phases) if phase.first_fact <= fact)
            phase.latencies_s.append((decided_ms[fact] - appended_ms[fact]) / 1_000)


async def measure(brokers: Brokers, settings: WorkerSettings, worker: WorkerProcess, tasks: int, members: int, standbys: int) -> list[Row]:
    """The rows of one group."""
    async with Swarm(settings, settings.topics) as swarm:
        swarm.send_alone()
        large = Large(brokers, settings, worker, swarm, tasks, members)
        await large.start(standbys)
        await large.rest()
        await large.join()
        await large.kill()
        await large.restart()
        await large.count_decisions()
    what = f"{tasks:,} tasks, {members} members, {standbys} standbys"
    rows = [(f"{what}: {phase.name}: rounds", float(phase.rounds), phase.note()) for phase in large.phases]
    return [
        *rows,
        (f"{what}: members that lost their lease", float(swarm.lost), "goal: at most 0"),
        (f"{what}: tasks run twice", float(len(swarm.overlaps)), "goal: at most 0"),
    ]


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    rows: list[Row] = []
    for number, group in enumerate(os.environ.get("GROUPS_MEASURED", DEFAULT_GROUPS).split()):
        tasks, members, standbys = map(int, group.split("/"))
        with Brokers(java=FAST_JAVA) as brokers:
            settings = WorkerSettings(bootstrap=brokers.bootstrap, prefix=f"large{number}")
            with WorkerProcess(settings) as worker:
                worker.until_said("taken over")
                rows += asyncio.run(measure(brokers, settings, worker, tasks, members, standbys))
    return rows
