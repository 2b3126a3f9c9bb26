"""Two builds that judge planned changes otherwise lead one group in turn, and it goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from equipoise.events.facts import ChangePlanned, ExpectedCost, GroupConfigured
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.replay.known_changes import KnownChange, known_changes
from equipoise.worker.settings import WorkerSettings
from tests.live.builds import THIS_BUILD, run_in, started
from tests.live.swarm import Swarm, topology
from tests.live.test_restorer import until
from tests.live.test_worker import CONFIG, settings

__all__ = ["settings"]

TUNED = {"OF_THIS_BUILD = OF_FORMER_BUILDS\n": "OF_THIS_BUILD = attrs.evolve(OF_FORMER_BUILDS, allowance=dict.fromkeys(JUDGED_METRICS, 10**9))\n"}
PACKAGES = ("assignors", "equipoise", "events", "replay", "statemachine")


def lenient_build(folder: Path) -> Path:
    """This build, but nothing costs too much."""
    for name in PACKAGES:
        shutil.copytree(THIS_BUILD / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "statemachine" / "watched_change.py"
    source = path.read_text()
    for before, after in TUNED.items():
        assert source.count(before) == 1
        source = source.replace(before, after)
    path.write_text(source)
    return folder


@asynccontextmanager
async def leading(settings: WorkerSettings, build: Path, out: Path, end: signal.Signals) -> AsyncIterator[None]:
    """A worker of the build, as a process that gets the signal at the end of the block."""
    said = out.read_text
    command = ["equipoise", "worker", "--bootstrap", settings.bootstrap, "--prefix", settings.prefix, "--http-port", "0"]
    process = started(command, out, build)
    try:
        await until(lambda: " taken over at offset " in said() or process.poll() is not None)
        assert process.poll() is None, said()
        yield
    finally:
        process.send_signal(end)
        await asyncio.to_thread(process.wait, 60)
    assert "halted" not in said()


async def change_in(settings: WorkerSettings) -> KnownChange:
    def read() -> KnownChange:
        with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
            (found,) = known_changes(log.read(), "g")
        return found

    return await asyncio.to_thread(read)


async def test_builds_that_judge_otherwise_lead_one_group_in_turn(settings: WorkerSettings, tmp_path: Path) -> None:
    lenient = lenient_build(tmp_path / "lenient")
    nothing = ExpectedCost(metric="unavailable_task_ms", median=0, low_50=0, high_50=0, low_95=0, high_95=0)
    plan = ChangePlanned(change_id="c1", kind="configure", what="a standby", expected=(nothing,), or_undo=True, made_from=0)
    changed = attrs.evolve(CONFIG, knobs=attrs.evolve(CONFIG.knobs, num_standbys=1), made_from=0, change_id="c1")
    await ensure_topics(settings, settings.topics)
    await open_partitions(settings, settings.topics)
    async with Swarm(settings, settings.topics) as swarm:
        async with leading(settings, lenient, tmp_path / "w1.out", signal.SIGKILL):
            await swarm.configure("g", CONFIG, topology(4))
            members = swarm.add("g", ["m1", "m2", "m3"])
            swarm.start()
            await swarm.until_all_run("g", 4, ["m1", "m2", "m3"])
            for fact in (plan, changed):
                await (await swarm.send("g", fact))
            members[0].killed = True
            await swarm.until_all_run("g", 4, ["m2", "m3"])
            assert (await change_in(settings)).judged is None, "this build lets it be"
        async with leading(settings, THIS_BUILD, tmp_path / "w2.out", signal.SIGKILL):
            async with asyncio.timeout(60):
                found = await change_in(settings)
                while found.judged is None:
                    await asyncio.sleep(0.5)
                    found = await change_in(settings)
        assert (found.judged.outcome, found.judged.above, found.judged.undone) == ("too_much", ("unavailable_task_ms",), True)
        assert found.judged.unavailable_task_ms > 1_000, "what was before it led counts"
        async with leading(settings, lenient, tmp_path / "w3.out", signal.SIGTERM):
            swarm.add("g", ["m4"])
            await swarm.until_all_run("g", 4, ["m2", "m3", "m4"])
    for build in (lenient, THIS_BUILD):
        done = await asyncio.to_thread(run_in, build, "-m", "equipoise", "verify", f"kafka://{settings.bootstrap}/{settings.prefix}", "--json")
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["verdict"] == "identical", document
    with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
        events = [each.event for each in log.read() if isinstance(each, FactRecord)]
    last = [event for event in events if isinstance(event, GroupConfigured)][-1]
    assert (last.content, last.by) == (CONFIG, "the leader"), "the settings of before are back"
