"""What ten open pages of the console cost a worker that leads a group of 1,000 tasks: facts folded
per second without pages, over those with ten.

The worker's own loop, without a broker: facts of ten members, folded a hundred at a time as
`equipoise.worker.takeover_session` does, with its HTTP server on the same event loop. A member
leaves or joins every CHANGE_EVERY facts, so pages have something to show. The pages are another
process: each follows the events and fetches the group and its timeline as the page's script does.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator

import aiohttp

from equipoise.console.recent import Recent
from equipoise.events.codec import make_record
from equipoise.events.facts import Fact, GroupConfigured, LagReported, LogOpened, MemberJoined, MemberLeft, MemberUnchanged, PartitionsObserved
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.hosting.runtime import DEPLOYED
from equipoise.replay.all_clear import Grounds, led_here
from equipoise.replay.sentences import TOLD_FACTS, tell
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.partition import PartitionLead
from equipoise.worker.asked_workers import AskedWorkers
from equipoise.worker.group_sizes import GroupSizes
from equipoise.worker.metrics import WorkerMetrics
from equipoise.worker.rounds_over_http import Rounds
from equipoise.worker.server import Server
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.swarm import topology

PAGES, MEMBERS, TASKS = 10, 10, 1_000
CHANGE_EVERY = 20_000
STRETCH_S = 6.0
STRETCHES = 4
"""Of each kind, in turn, because a machine's speed changes with time."""
GROUP = "orders"


class _Worker:
    """Folds facts as fast as it can, and serves its pages."""

    log_id = "bench"

    def __init__(self) -> None:
        self.settings = WorkerSettings()
        self.metrics = WorkerMetrics()
        self.rounds = Rounds(lambda group: None, self.settings, self.metrics, DEPLOYED)
        self.asked = AskedWorkers(GroupSizes(lambda group: None, DEPLOYED.monotonic_s), ())
        self.recent = Recent()
        self.lead = PartitionLead()
        self._append_ms = 1_000_000
        self._numbers: dict[str, int] = {}
        self.folded = 0
        self._fold(LogOpened(log_id="bench", partitions=1))
        for fact in self._beginning():
            self._fold(fact)
        for _ in range(3):
            self._report_all()

    def groups(self) -> Iterator[tuple[int, GroupLead]]:
        yield from ((0, lead) for lead in self.lead.groups.values())

    def unhealthy(self) -> str:
        return ""

    def unready(self) -> str:
        return ""

    def grounds(self, partition: int, lead: GroupLead) -> Grounds:
        return led_here(lead.machine.state)

    def _beginning(self) -> Iterator[Fact]:
        config: GroupConfigured = configured(initial_delay_ms=0, max_warmups=20, max_warmups_per_member=20)
        yield config
        yield topology(TASKS)
        yield PartitionsObserved(end_offsets={"log": dict.fromkeys(range(TASKS), 50_000)})
        for number in range(MEMBERS):
            yield self._joined(f"m{number}")

    def _joined(self, name: str, incarnation: int = 1) -> MemberJoined:
        self._numbers[name] = 0
        return MemberJoined(member_id=name, incarnation=incarnation, session_timeout_ms=10**9, topology_epoch=1, join_nonce=f"{name}-{incarnation}")

    def _fold(self, fact: Fact, group: str = GROUP) -> None:
        record = make_record("" if isinstance(fact, LogOpened) else group, self.lead.position, self._append_ms, fact)
        self._append_ms += 1
        decisions = self.lead.fold(record, self._append_ms)
        known = self.lead.groups.get(record.group)
        if known is not None:
            told = list(tell(record, decisions)) if decisions or fact.__class__ in TOLD_FACTS else []
            self.recent.note(0, record, decisions, known.machine, told)
        self.folded += 1

    def _report(self, name: str, *, whole: bool) -> None:
        member = self.lead.groups[GROUP].machine.state.members[name]
        held = tuple(sorted(member.active))
        if whole:
            number = self._numbers[name] = self._numbers[name] + 1
            lags: dict[TaskId, Lag] = {**dict.fromkeys(held, LagSentinel.ACTIVE), **dict.fromkeys(member.warmup, 0)}
            self._fold(LagReported(name, member.incarnation, number, member.issued_epoch, held=held, lags=dict(sorted(lags.items()))))
        else:
            self._fold(MemberUnchanged(member_id=name, incarnation=member.incarnation, report=self._numbers[name]))

    def _report_all(self) -> None:
        for name in list(self.lead.groups[GROUP].machine.state.members):
            self._report(name, whole=True)

    async def run(self, duration_s: float) -> float:
        """Facts folded per second."""
        began, folded = time.perf_counter(), self.folded
        while time.perf_counter() - began < duration_s:
            members = list(self.lead.groups[GROUP].machine.state.members)
            for number in range(100):
                self._report(members[number % len(members)], whole=False)
            if self.folded % CHANGE_EVERY < 100:
                self._change()
            await asyncio.sleep(0)
        return (self.folded - folded) / (time.perf_counter() - began)

    def _change(self) -> None:
        """The last member leaves, or is back."""
        state = self.lead.groups[GROUP].machine.state
        name = f"m{MEMBERS - 1}"
        if name in state.members:
            self._fold(MemberLeft(member_id=name, incarnation=state.members[name].incarnation))
        else:
            self._fold(self._joined(name, self.lead.position))
        for _ in range(3):
            self._report_all()


async def _page(address: str) -> None:
    """What an open page does."""
    async with aiohttp.ClientSession(address, timeout=aiohttp.ClientTimeout(total=None)) as http:
        due = asyncio.Event()

        async def follow() -> None:
            async with http.get(f"/console/events?group={GROUP}") as answer:
                async for line in answer.content:
                    if line.startswith(b"event: changed"):
                        due.set()

        following = asyncio.ensure_future(follow())
        while not following.done():
            for what in ("group", "timeline"):
                async with http.get(f"/console/api/{what}?group={GROUP}") as answer:
                    await answer.read()
                    least_s = int(answer.headers["X-Made-Every-Ms"]) / 1_000
            due.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(due.wait(), 2.0)
            await asyncio.sleep(least_s)


async def _pages(address: str) -> None:
    await asyncio.gather(*(_page(address) for _ in range(PAGES)))


async def _measured() -> tuple[list[float], list[float]]:
    worker = _Worker()
    server = Server(worker, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{await server.start()}"
    without, with_pages = [], []
    try:
        await worker.run(1.0)
        for _ in range(STRETCHES):
            without.append(await worker.run(STRETCH_S))
            pages = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.console_bench", address)
            try:
                await worker.run(3.0)  # they connect
                with_pages.append(await worker.run(STRETCH_S))
            finally:
                pages.kill()
                await pages.wait()
            await worker.run(0.5)
    finally:
        await server.stop()
    return without, with_pages


def run() -> list[tuple[str, float, str]]:
    without, with_pages = asyncio.run(_measured())
    alone, watched = statistics.median(without), statistics.median(with_pages)
    note = f"{watched:,.0f} facts/s with {PAGES} pages, {alone:,.0f} without; goal: at most 1.11"
    return [(f"fold speed of a group of {TASKS:,} tasks without pages, over that with {PAGES}", alone / watched, note)]


if __name__ == "__main__":
    asyncio.run(_pages(sys.argv[1]))
