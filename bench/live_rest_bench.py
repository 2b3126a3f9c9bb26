"""One worker and 10,000 groups of two members at rest: what it costs, how long answers take, what
a scrape carries, and how long a member that dies is not noticed (docs/protocol.md#l11).

The members say that they live as often as deployed ones do, and nothing else. Everything is in one
partition, as by default.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from itertools import cycle

import attrs

from bench.live import KEEPALIVE_MS, PATIENCE_S, Row, WorkerProcess, broker, quantile
from bench.live_latency_bench import Prober
from bench.live_recovery_bench import joining
from equipoise.events.decisions import EventRejected
from equipoise.events.facts import Fact, LagReported, MemberLeft, MemberUnchanged
from equipoise.log.kafka.envelope import pack_fact
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured, topology

GROUPS, TASKS = 10_000, 4
MEMBERS = ("m1", "m2")
SESSION_S = 45.0
SETTLES_S = 120.0
"""A group rests after a minute."""
MEASURED_S = 60.0
PROBE_EVERY_S = 0.25
ASKED = 20
"""Groups that are asked, which wakes them: the others rest."""
SCRAPES = 5
GROUPS_AT_ONCE = 200
SPEAKS_EVERY_S = 0.1


def name_of(number: int) -> str:
    return f"group-{number:05d}"


@attrs.define
class Members:
    """All members of all groups, in one task."""

    prober: Prober
    silent: set[tuple[str, str]] = attrs.field(factory=set)
    heard_s: dict[tuple[str, str], float] = attrs.field(factory=dict)

    async def join(self) -> None:
        """Creates the groups and their members, each with one report."""
        for first in range(0, GROUPS, GROUPS_AT_ONCE):
            posted = []
            for name in map(name_of, range(first, first + GROUPS_AT_ONCE)):
                facts: list[Fact] = [configured(initial_delay_ms=500), topology(stateless=TASKS)]
                facts += [attrs.evolve(joining(member_id, name), session_timeout_ms=int(SESSION_S * 1_000)) for member_id in MEMBERS]
                facts += [LagReported(member_id, 1, 0, 0, (), (), {}) for member_id in MEMBERS]
                posted += [await self.prober.post(name, pack_fact(fact)) for fact in facts]
            await asyncio.gather(*posted)

    async def speak(self) -> None:
        """Says that they live, one after the other, until cancelled."""
        who = [(name_of(number), member_id) for member_id in MEMBERS for number in range(GROUPS)]
        values = {member_id: pack_fact(MemberUnchanged(member_id=member_id, incarnation=1, report=0)) for member_id in MEMBERS}
        turns = cycle(who)
        begun_s, said = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - begun_s) * len(who) / (KEEPALIVE_MS / 1_000))
            posted = []
            while said < due:
                said += 1
                speaks = next(turns)
                if speaks not in self.silent:
                    posted.append(await self.prober.post(speaks[0], values[speaks[1]]))
                    self.heard_s[speaks] = time.monotonic()
            await asyncio.gather(*posted)
            await asyncio.sleep(SPEAKS_EVERY_S)


async def answered_s(prober: Prober, seconds: float) -> list[float]:
    """How long answers take meanwhile."""
    answers: list[float] = []
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < seconds:
        nobody = MemberLeft(member_id="nobody", incarnation=len(answers))
        answers.append(await prober.decision(name_of(len(answers) % ASKED), nobody, EventRejected))
        await asyncio.sleep(PROBE_EVERY_S)
    return answers


def scrape(address: str) -> tuple[str, float]:
    """The metrics as text, and the seconds until they were read."""
    begun_s = time.monotonic()
    with urllib.request.urlopen(f"{address}/metrics", timeout=PATIENCE_S) as answer:
        return answer.read().decode(), time.monotonic() - begun_s


def ticks_in(text: str) -> float:
    found = re.search(r"^equipoise_ticks_total (\S+)$", text, re.MULTILINE)
    assert found is not None, text[:2_000]
    return float(found[1])


async def measured(settings: WorkerSettings, worker: WorkerProcess, address: str) -> list[Row]:
    async with Prober(settings) as prober:
        members = Members(prober)
        await members.join()
        await prober.decision(name_of(GROUPS - 1), MemberLeft(member_id="nobody", incarnation=10**6), EventRejected)
        speaking = asyncio.create_task(members.speak())
        await asyncio.sleep(SETTLES_S)
        ticks, _ = await asyncio.to_thread(scrape, address)
        begun_s, cpu_s = time.monotonic(), worker.cpu_s
        answers = await answered_s(prober, MEASURED_S)
        took_s = time.monotonic() - begun_s
        cores = (worker.cpu_s - cpu_s) / took_s
        scrapes = [await asyncio.to_thread(scrape, address) for _ in range(SCRAPES)]
        text, _ = scrapes[-1]
        ticks_a_second = (ticks_in(text) - ticks_in(ticks)) / (time.monotonic() - begun_s)
        died = name_of(GROUPS // 2), MEMBERS[1]
        members.silent.add(died)
        found_s = await prober.expiry(*died, PATIENCE_S) - members.heard_s[died]
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
    who = f"{GROUPS:,} groups of {len(MEMBERS)} at rest"
    scraped_s = [seconds for _, seconds in scrapes]
    return [
        (f"{who}: cores of the worker", cores, f"{len(answers)} answers meanwhile; goal: at most 0.25"),
        ("the same: ticks a second", ticks_a_second, f"of {GROUPS:,} that each would take; goal: at most 100"),
        ("the same: answers p99 / 100 ms", quantile(answers, 0.99) / 0.1, f"median {quantile(answers, 0.5) * 1000:.1f} ms; goal: at most 1"),
        ("the same: answers at worst / 500 ms", max(answers) / 0.5, f"{max(answers) * 1000:.0f} ms; goal: at most 1"),
        ("the same: megabytes of /metrics", len(text) / 1e6, "goal: at most 2"),
        ("the same: time of /metrics / 200 ms", max(scraped_s) / 0.2, f"{', '.join(f'{each * 1000:.0f}' for each in scraped_s)} ms; goal: at most 1"),
        ("a member dies: silence until it is removed / session", found_s / SESSION_S, f"{found_s:.1f} s; goal: 1 to 1.15"),
    ]


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with broker() as bootstrap:
        settings = WorkerSettings(bootstrap=bootstrap, prefix="rest")
        with WorkerProcess(settings) as worker:
            worker.until_said("taken over")
            found = re.search(r"http://\S+?:\d+", worker.said)
            assert found is not None, worker.said
            return asyncio.run(measured(settings, worker, found[0]))
