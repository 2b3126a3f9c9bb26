"""How long running tasks pause while a fourth member joins three, restores 500 MB of state and
takes its tasks over.

Each task gets a record every 20 ms; a pause is the time between two of its processed records,
by any member. The measurement starts before the fourth member joins and ends after it runs its
share.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tempfile
import time
from pathlib import Path

from bench.live import Row, WorkerProcess, broker
from bench.live_members import Application, MemberProcess, pauses, until_running
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import writer
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured

TASKS = 8
STATE_BYTES = 250 * 10**6
"""State of each task; the fourth member takes two tasks."""
VALUE_BYTES = 10_000
PER_SECOND = 50.0 * TASKS
SETTLE_S = 3.0
GOAL_S = 1.0


async def fill(application: Application) -> None:
    """Writes the tasks' state, as after a long run."""
    noise = random.Random(1).randbytes(2 * 10**6)  # incompressible
    async with writer(application.connection, max_batch_size=2**19) as producer:
        for number, partition in itertools.product(range(STATE_BYTES // VALUE_BYTES), range(TASKS)):
            start = (number * 7_919 + partition * 104_729) % (len(noise) - VALUE_BYTES)
            sent = await producer.send(f"{application.name}-state", noise[start : start + VALUE_BYTES], key=b"s%d" % number, partition=partition)
        await sent


async def measured(bootstrap: str, folder: Path) -> tuple[list[float], dict[int, float], float]:
    """Seconds of each hand-over, the longest pause of each task, and seconds from the fourth
    member's start until it ran its share.
    """
    connection = Connection(bootstrap=bootstrap)
    config = configured(initial_delay_ms=3_000, acceptable_recovery_lag=1_000, probing_interval_ms=1_000)
    application = Application(connection=connection, name="downtime", partitions=TASKS, config=config)
    await application.make_topics()
    await fill(application)
    options = {"prefix": "downtime", "state_directory": folder, "guarantee": "exactly_once"}
    members = [MemberProcess(application, f"m{number}", **options) for number in range(3)]
    feeding = None
    try:
        await until_running(members, TASKS, TASKS // 4)
        feeding = asyncio.create_task(application.feed(PER_SECOND))
        await asyncio.sleep(SETTLE_S)
        from_s = time.monotonic()
        members.append(MemberProcess(application, "m3", **options))
        await until_running(members, TASKS, TASKS // 4)
        took_s = time.monotonic() - from_s
        await asyncio.sleep(SETTLE_S)
        turns = [turn for member in members for turn in member.turns() if turn[2] >= from_s]
        return *pauses(turns), took_s
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        for member in members:
            member.kill()


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    folder = Path(tempfile.mkdtemp(prefix="equipoise-downtime-"))
    try:
        with broker() as bootstrap, WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix="downtime")) as worker:
            worker.until_said("taken over")
            handed_over, longest, took_s = asyncio.run(measured(bootstrap, folder))
    finally:
        shutil.rmtree(folder)
    assert len(longest) == TASKS, f"not every task ran: {sorted(longest)}"
    assert handed_over, "no task was handed over"
    warmed_mb = len(handed_over) * STATE_BYTES / 10**6
    longest_ms = ", ".join(f"{seconds * 1000:.0f}" for _, seconds in sorted(longest.items()))
    done = f"{warmed_mb:.0f} MB warmed up, {len(handed_over)} tasks handed over in {took_s:.0f} s"
    note = f"{done}; longest pause of each task, ms: {longest_ms}; goal: at most 1"
    return [("a fourth member joins: longest pause of any task / 1 s", max(longest.values()) / GOAL_S, note)]
