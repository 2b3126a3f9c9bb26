"""How long a task pauses in a planned hand-over to a member with a warm copy: from the last record
of the old owner to the first record of the new one. Records arrive every few milliseconds.
Hand-overs are measured after half a minute: a broker that has just started compiles its code. What
the members have recorded is asked for when all of them are over.

The third of three members repeatedly joins, warms up, takes its share, leaves and returns it; each
task that moves is a hand-over. Members, worker and broker are separate processes. The last rows are
of members that are behind: their handlers compute, and they get half as much again as they can do.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time

from bench.live import Row, WorkerProcess, broker, quantile
from bench.live_members import Application, MemberProcess, Turn, pauses, until_running
from equipoise.kafka.connection import Connection
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured

TASKS = 12
PER_SECOND = 100.0 * TASKS
CYCLES = 4
"""How often the third member joins and leaves: each time 4 tasks move to it, and back."""
WARM_S = 30.0
GOAL_S, BEHIND_GOAL_S = 0.2, 1.0
WORK_S = 0.05
"""A handler of members that are behind computes for so long: the two do 40 records/s."""
BEHIND_PER_SECOND = 60.0
GUARANTEES = ("exactly_once", "at_least_once")


async def measured(bootstrap: str, guarantee: str, *, per_second: float = PER_SECOND, work_s: float = 0.0) -> list[float]:
    """Seconds of every hand-over."""
    connection = Connection(bootstrap=bootstrap)
    config = configured(initial_delay_ms=500, acceptable_recovery_lag=50, probing_interval_ms=1_000, max_warmups=4, max_warmups_per_member=4)
    name = f"handover-{guarantee}-{per_second:g}"
    application = Application(connection=connection, name=name, partitions=TASKS, config=config, work_s=work_s)
    await application.make_topics()
    feeding = asyncio.create_task(application.feed(per_second))
    options = {"guarantee": guarantee, "prefix": "handover", "heartbeat_interval_ms": 1_000}
    stayers = [MemberProcess(application, member_id, **options) for member_id in ("m1", "m2")]
    gone: list[Turn] = []
    try:
        await until_running(stayers, TASKS)
        await asyncio.sleep(WARM_S)
        from_s = time.monotonic()
        for _ in range(CYCLES):
            third = MemberProcess(application, "m3", **options)
            await until_running([*stayers, third], TASKS, TASKS // 3)
            await asyncio.sleep(1)
            gone += await asyncio.to_thread(third.leave)
            await until_running(stayers, TASKS)
            await asyncio.sleep(1)  # the last hand-over is over before the next process starts
        turns = [*gone, *(turn for member in stayers for turn in member.turns())]
        return pauses(turn for turn in turns if turn[2] >= from_s)[0]
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        for member in stayers:
            member.kill()


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    rows = []
    with broker() as bootstrap:
        settings = WorkerSettings(bootstrap=bootstrap, prefix="handover")
        with WorkerProcess(settings) as worker:
            worker.until_said("taken over")
            for guarantee, is_behind in itertools.product(GUARANTEES, (False, True)):
                load = {"per_second": BEHIND_PER_SECOND, "work_s": WORK_S} if is_behind else {}
                found, goal_s = asyncio.run(measured(bootstrap, guarantee, **load)), BEHIND_GOAL_S if is_behind else GOAL_S
                quantiles = ", ".join(
                    f"{name} {value * 1000:.0f}"
                    for name, value in (("p50", statistics.median(found)), ("p90", quantile(found, 0.9)), ("most", max(found)))
                )
                what = f"{guarantee}{', members behind' * is_behind}: longest pause of a warm task that is handed over / {goal_s:g} s"
                rows.append((what, max(found) / goal_s, f"{len(found)} hand-overs, ms: {quantiles}; goal: at most 1"))
    return rows
