"""How close `what-if` comes to a live group with settings far from the defaults.

A group of two members is joined by a third, which has everything to restore, and later loses its
first to a kill. It does so under each of SETTINGS; then `what_if` simulates each group under the
configuration that it had. Restores are throttled, so that they take longer than reports.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bench.live import Row, WorkerProcess, broker
from bench.live_members import Application, MemberProcess, until_running
from equipoise.events.records import Entry
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import writer
from equipoise.log import open_log
from equipoise.replay.whatif.evaluate import Deviation, WhatIf, what_if
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured

SETTINGS = {f"lag {limit:,}, {standbys} standby": (limit, standbys) for limit, standbys in itertools.product((100, 10**6), (0, 1))}
"""Name -> acceptable_recovery_lag and num_standbys."""
TASKS = 12
RECORDS = 60_000
"""In each task's changelog before anything runs."""
RESTORE_RECORDS_PER_S = 20_000
PER_SECOND = 20.0 * TASKS
SESSION_MS = 8_000
JOIN_S, KILL_S, END_S = 10.0, 40.0, 40.0
"""Seconds before the third member joins, from then to the kill, from then to the end."""
SEEDS = range(5)
GOALS = {"unavailable_task_seconds": 0.2, "records_restored": 0.2, "moves": 0.2, "rebalances": 0.4}
"""Most that a simulated figure may be off, as a part of what was recorded. Whether two copies that
are ready at about the same time share a round is chance, so the number of rounds is known less
well."""
FLOORS = {"unavailable_task_seconds": 10.0, "records_restored": 100_000.0, "moves": 5.0, "rebalances": 5.0}
"""The least that an error is related to: where little was recorded, one step more or less is no
fifth of anything.
"""


async def fill(application: Application) -> None:
    """Writes the tasks' state, as after a long run."""
    async with writer(application.connection, max_batch_size=2**19) as producer:
        for number, partition in itertools.product(range(RECORDS), range(TASKS)):
            sent = await producer.send(f"{application.name}-state", bytes(20), key=b"s%d" % number, partition=partition)
        await sent


async def live(bootstrap: str, prefix: str, name: str, limit: int, standbys: int, folder: Path) -> list[Entry]:
    """Runs one group and returns its log, read while the remaining members still run."""
    config = configured(initial_delay_ms=3_000, acceptable_recovery_lag=limit, num_standbys=standbys, probing_interval_ms=2_000)
    application = Application(connection=Connection(bootstrap=bootstrap), name=name, partitions=TASKS, config=config)
    await application.make_topics()
    await fill(application)
    options: dict[str, Any] = {
        "prefix": prefix,
        "state_directory": folder,
        "restore_records_per_s": RESTORE_RECORDS_PER_S,
        "session_timeout_ms": SESSION_MS,
        "lease_margin_ms": SESSION_MS // 4,
    }
    members = [MemberProcess(application, f"m{number}", **options) for number in range(2)]
    feeding = None
    try:
        await until_running(members, TASKS)
        feeding = asyncio.create_task(application.feed(PER_SECOND))
        await asyncio.sleep(JOIN_S)
        members.append(MemberProcess(application, "m2", **options))
        await asyncio.sleep(KILL_S)
        members.pop(0).kill()
        await asyncio.sleep(END_S)
        return await asyncio.to_thread(entries, f"kafka://{bootstrap}/{prefix}", name)
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        for member in members:
            member.kill()


def entries(location: str, group: str) -> list[Entry]:
    with open_log(location) as log:
        return list(log.read(group=group))


def error_of(deviation: Deviation) -> float:
    """Relative error of the simulated figure, over the recorded figure or its floor, divided by the
    goal.
    """
    recorded, simulated = deviation.recorded or 0.0, deviation.simulated or 0.0
    return abs(simulated - recorded) / max(recorded, FLOORS[deviation.metric]) / GOALS[deviation.metric]


def fidelity_text(found: WhatIf) -> str:
    """``unavailable_task_seconds 81.0 -> 79.2, ...``"""
    return ", ".join(f"{each.metric} {each.recorded:,.1f} -> {each.simulated:,.1f}" for each in found.fidelity if each.metric in GOALS)


def run() -> list[Row]:
    """Rows for `python -m bench`."""
    rows = []
    folder = Path(tempfile.mkdtemp(prefix="equipoise-what-if-"))
    try:
        with broker() as bootstrap, WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix="whatif")) as worker:
            worker.until_said("taken over")
            for number, (name, (limit, standbys)) in enumerate(SETTINGS.items()):
                group = f"g{number}"
                lived = asyncio.run(live(bootstrap, "whatif", group, limit, standbys, folder / group))
                found = what_if(lived, group=group, seeds=tuple(SEEDS))
                worst = max(error_of(each) for each in found.fidelity if each.metric in GOALS)
                note = f"recorded -> simulated: {fidelity_text(found)}; {found.restore_records_per_s:,} records/s fitted; goal: at most 1"
                rows.append((f"what-if of a live group, {name}: largest error / its goal", worst, note))
    finally:
        shutil.rmtree(folder)
    return rows
