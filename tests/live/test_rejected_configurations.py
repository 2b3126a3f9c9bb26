"""Configurations that a worker cannot carry out (docs/protocol.md#l6), on a real broker: the group
goes on, and every build reads the log alike.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.assignors import registry
from equipoise.events.decisions import BalanceEvaluated
from equipoise.events.errors import FieldError
from equipoise.events.facts import GroupConfigured
from equipoise.events.records import DecisionRecord
from equipoise.kafka.started_clients import writer
from equipoise.log import open_log
from equipoise.log.kafka.envelope import decision_record, group_key, pack_decision, stored_decision
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.operations.follower import Follower
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine.rejections import refused_fact
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.swarm import Swarm, everything, topology
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_worker import CONFIG, MOST_S, DeployedWorker, settings, until, verified, workers

__all__ = ["settings", "workers"]

TYPO = attrs.evolve(CONFIG, assignor="high_availabilty")
THEIRS = attrs.evolve(CONFIG, assignor="theirs")
MODULE = """
import attrs
from equipoise.assignors.high_availability import HighAvailability

class Theirs(HighAvailability):
    name = "theirs"
"""


async def refused(settings: WorkerSettings) -> list[int]:
    """Facts that are refused because of what their leader lacked."""
    records = [decision_record(stored_decision(each.key, each.value, "here")) for each in await everything(settings, settings.topics.decisions)]
    offsets = [refused_fact(each.decision, each.caused_by) for each in records]
    return sorted({each for each in offsets if each is not None})


async def in_force(settings: WorkerSettings) -> GroupConfigured | None:
    """The configuration that whoever asks finds in force."""
    follower = Follower(settings, settings.topics, "g")
    await follower.catch_up()
    ((_, group),) = follower.groups()
    return group.machine.state.config


async def until_refused(settings: WorkerSettings, times: int) -> list[int]:
    end = time.monotonic() + MOST_S
    while len(found := await refused(settings)) < times:
        assert time.monotonic() < end, f"refused: {found}"
        await asyncio.sleep(0.2)
    return found


async def test_typo_leaves_the_group_under_its_old_configuration_and_the_correction_is_read(
    settings: WorkerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(6))
        swarm.add("g", ["m1", "m2"])
        swarm.start()
        await swarm.until_all_run("g", 6, ["m1", "m2"])
        watching = Follower(settings, settings.topics, "g")
        await watching.catch_up()
        await swarm.configure("g", TYPO)
        await watching.catch_up()  # it may see the configuration before its answer
        await until_refused(settings, 1)
        for _ in range(2):  # the first may show the group halted; the second begins from what was answered
            await watching.catch_up()
        ((_, seen),) = watching.groups()
        assert (seen.halted, seen.machine.state.config) == (None, CONFIG)
        swarm.add("g", ["m3"])
        await swarm.until_all_run("g", 6, ["m1", "m2", "m3"])
        assert await in_force(settings) == CONFIG
        corrected = attrs.evolve(CONFIG, knobs=attrs.evolve(CONFIG.knobs, probing_interval_ms=9_000))
        await swarm.configure("g", corrected)
        swarm.add("g", ["m4"])
        await swarm.until_all_run("g", 6, ["m1", "m2", "m3", "m4"])
        assert await in_force(settings) == corrected
        assert "group g: probing_interval_ms: 9000 is below 60000" in caplog.text
        assert not swarm.overlaps
        assert swarm.lost == 0
    found = await asyncio.to_thread(verified, settings)
    assert found.verdict is Verdict.IDENTICAL, found.problems


async def test_worker_that_woke_late_does_not_refuse_what_its_successor_has_carried_out(settings: WorkerSettings) -> None:
    """What the successor published since the worker took over is read before the worker answers."""
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(6))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 6, ["m1"])
        ((_, group),) = worker.groups()
        state = group.machine.state
        verdict = BalanceEvaluated(verdict="balanced", available_movements=0, planned_movements=0, imbalance_before=0, imbalance_after=0)
        theirs = DecisionRecord(state.log_id, "g", state.number + 1, state.last_offset + 50, 0, 0, verdict)
        async with writer(settings) as producer:
            await producer.send_and_wait(settings.topics.decisions, pack_decision(theirs), key=group_key("g"), partition=0)
        await swarm.configure("g", THEIRS)
        await until(lambda: group.halted is not None, "it halts the group")
        assert group.halted is not None
        assert group.halted.code == "assignor_missing"
        assert await refused(settings) == []


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with an assignor that only those processes have which find this folder."""
    folder = tmp_path / "installed"
    metadata = folder / "theirs-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "theirs.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\ntheirs = theirs:Theirs\n")
    yield folder
    sys.modules.pop("theirs", None)
    registry.available.cache_clear()


def with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process, and workers that it starts, have the package."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    importlib.invalidate_caches()
    registry.available.cache_clear()


def verified_by(settings: WorkerSettings, load: Any) -> Any:
    with open_log(f"kafka://{settings.bootstrap}/{settings.prefix}") as log:
        return verify(log.read(), load=load)


@pytest.mark.slow
async def test_workers_with_and_without_an_assignor_follow_each_other(
    settings: WorkerSettings, tmp_path: Path, workers: list[DeployedWorker], theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = attrs.evolve(settings, partitions=1)
    await ensure_topics(settings, settings.topics, partitions=1)
    logs = tmp_path / "workers.log"
    workers.append(DeployedWorker(settings, logs))
    async with Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(6))
        swarm.add("g", ["m1", "m2"])
        swarm.start()
        await swarm.until_all_run("g", 6, ["m1", "m2"])
        await swarm.configure("g", THEIRS)
        first = await until_refused(settings, 1)
        assert "theirs" in logs.read_text(), "the worker names what it lacks"

        with_it(theirs, monkeypatch)  # its successor has it, and refuses the same fact
        workers[-1].end(signal.SIGKILL)
        workers.append(DeployedWorker(settings, logs))
        swarm.add("g", ["m3"])
        await swarm.until_all_run("g", 6, ["m1", "m2", "m3"], timeout_s=MOST_S)
        assert await refused(settings) == first
        assert await in_force(settings) == CONFIG
        await swarm.configure("g", THEIRS)  # asked for again, it is carried out
        swarm.add("g", ["m4"])
        await swarm.until_all_run("g", 6, ["m1", "m2", "m3", "m4"], timeout_s=MOST_S)
        assert await in_force(settings) == THEIRS
        assert await refused(settings) == first

        workers[-1].end(signal.SIGKILL)
        with monkeypatch.context() as without:
            without.setenv("PYTHONPATH", os.environ["PYTHONPATH"].partition(os.pathsep)[2])
            workers.append(DeployedWorker(settings, logs))
        await until(lambda: "group 'g' halted" in logs.read_text(), "a worker without it halts the group", MOST_S)
        workers[-1].end(signal.SIGKILL)
        workers.append(DeployedWorker(settings, logs))
        swarm.add("g", ["m5"])
        await swarm.until_all_run("g", 6, ["m1", "m2", "m3", "m4", "m5"], timeout_s=MOST_S)
        assert not swarm.overlaps
    assert workers[-1].end(signal.SIGTERM) < 5.0
    found = await asyncio.to_thread(verified_by, settings, registry.load)
    assert found.verdict is Verdict.IDENTICAL, (found.problems, [group.divergence for group in found.groups])
    monkeypatch.undo()
    registry.available.cache_clear()
    without_it = await asyncio.to_thread(verified_by, settings, registry.load)
    assert without_it.verdict is Verdict.CANNOT_VERIFY
    assert "theirs" in without_it.problems[0]


@pytest.mark.smoke
async def test_member_whose_configuration_is_rejected_ends_and_says_what_was_meant(settings: WorkerSettings) -> None:
    application = Application(settings.bootstrap, settings.prefix)
    await application.make_topics()
    async with Worker(settings):
        with pytest.raises(FieldError, match=r"group_config: group .* rejects it: .*did you mean 'high_availability'\?"):
            async with application.member("m1", None, "at_least_once", group_config=TYPO) as member:
                await asyncio.wait_for(member.wait(), MOST_S)
        async with application.member("m1", None, "at_least_once", group_config=application.config) as member:
            await until(lambda: len(member.running) == PARTITIONS, "the group reads the corrected configuration")
