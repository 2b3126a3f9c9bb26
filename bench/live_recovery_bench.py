"""How long a worker takes to take over a log of a million facts: folding them all, and from the
checkpoints that its predecessor left.

The facts are what a log is full of: reports of members that run their tasks, of 50 groups with 20
members each.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

from bench.live import Row, WorkerProcess, broker, group_name
from equipoise.events.facts import Fact, LagReported, MemberJoined
from equipoise.events.tasks import Lag, TaskId
from equipoise.kafka.started_clients import writer
from equipoise.log.kafka.envelope import group_key, pack_fact
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.swarm import topology

FACTS = 1_000_000
GROUPS, MEMBERS, TASKS = 50, 20, 40
SENT_AHEAD = 20_000


def joining(member: str, group: str) -> MemberJoined:
    """One that lives as long as the benchmark."""
    return MemberJoined(
        member_id=member, incarnation=1, session_timeout_ms=600_000, lease_margin_ms=3_000, topology_epoch=1, join_nonce=f"{group} {member}"
    )


def facts() -> Iterator[tuple[str, Fact]]:
    """Group and fact, FACTS in all; the first of each group make it."""
    groups = [group_name(number) for number in range(GROUPS)]
    members = [f"m{number:02d}" for number in range(MEMBERS)]
    sent = 0
    for group in groups:
        first: list[Fact] = [configured(initial_delay_ms=500), topology(TASKS, prefix=f"{group}-")]
        first += [joining(name, group) for name in members]
        for fact in first:
            sent += 1
            yield group, fact
    number = 0
    while True:
        number += 1
        for place, member in enumerate(members):
            lags: dict[TaskId, Lag] = dict(sorted((TaskId(0, (place + each) % TASKS), number + each) for each in range(2)))
            report = LagReported(member_id=member, incarnation=1, number=number, assignment_epoch=0, held=(), ready=(), lags=lags)
            for group in groups:
                if sent == FACTS:
                    return
                sent += 1
                yield group, report


async def write(settings: WorkerSettings) -> None:
    """The log, without a worker."""
    await ensure_topics(settings, settings.topics)
    await open_partitions(settings, settings.topics)
    async with writer(settings, max_batch_size=2**19) as producer:
        packed: dict[int, bytes] = {}
        last = None
        for number, (group, fact) in enumerate(facts()):
            value = packed.get(id(fact))
            if value is None:
                packed = {id(fact): pack_fact(fact)}
                value = packed[id(fact)]
            last = await producer.send(settings.topics.facts, value, key=group_key(group), partition=0)
            if number % SENT_AHEAD == 0:
                await last
        assert last is not None
        await last


def take_over(settings: WorkerSettings) -> tuple[float, float, int]:
    """Seconds from one worker's start of taking over to its leading, CPU seconds of the whole
    process until then, offset it leads from.
    """
    with WorkerProcess(settings) as worker:
        worker.until_said("taken over")
        cpu_s = worker.cpu_s
        found = re.search(r"taken over at offset (\d+):.* ([0-9.]+) s", worker.said)
        assert found is not None, worker.said
        worker.end()
    return float(found[2]), cpu_s, int(found[1])


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    with broker() as bootstrap:
        settings = WorkerSettings(bootstrap=bootstrap, prefix="recovery")
        asyncio.run(write(settings))
        folded_s, folded_cpu_s, end = take_over(settings)
        assert end > FACTS, f"the worker was to fold {FACTS} facts and led from offset {end}"
        loaded_s, loaded_cpu_s, _ = take_over(settings)
    whole = f"{folded_s:.1f} s; CPU {folded_cpu_s:.1f} s"
    short = f"{loaded_s:.2f} s; CPU {loaded_cpu_s:.1f} s, the start of the process included"
    return [
        (f"taking over {FACTS:,} facts without checkpoints, microseconds a fact", folded_s / FACTS * 1e6, whole),
        ("taking over the same from checkpoints / without", loaded_s / folded_s, short),
    ]
