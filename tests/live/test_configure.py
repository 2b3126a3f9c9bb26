"""`equipoise configure` on a real broker: what it shows and changes, and its message when
no worker answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiokafka import AIOKafkaConsumer

from equipoise.events.errors import InputError
from equipoise.events.settings import GroupSettings
from equipoise.operations.live_group import AnsweredFact
from equipoise.operations.worker_builds import check_workers_read
from equipoise.worker.app import Worker
from equipoise.worker.faust_group import group_name
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.json_schemas import check
from tests.live.console import SlowMember, add
from tests.live.leader import leading
from tests.live.swarm import Swarm, topology
from tests.live.test_member import Application
from tests.live.test_restorer import until
from tests.live.test_worker import CONFIG, settings

__all__ = ["settings"]


async def configure(settings: WorkerSettings, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document."""
    command = [sys.executable, "-m", "equipoise", "configure", "--group", "g", "--json"]
    command += ["--bootstrap", settings.bootstrap, "--prefix", settings.prefix]
    done = await asyncio.to_thread(subprocess.run, [*command, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    check("configure", document)
    return done.returncode, document


@pytest.mark.smoke
async def test_settings_are_shown_tried_changed_and_changed_back(settings: WorkerSettings) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(4))
        swarm.add("g", ["m1", "m2"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1", "m2"])

        code, shown = await configure(settings)
        assert (code, shown["outcome"], shown["settings"]["num_standbys"]) == (0, "shown", 0)

        code, tried = await configure(settings, "--set", "num_standbys=1", "--dry-run")
        assert (code, tried["outcome"], tried["offset"]) == (0, "dry run", None)
        assert tried["changes"] == [{"name": "num_standbys", "before": 0, "after": 1}]
        assert tried["predicted"] is not None
        assert (await configure(settings))[1]["settings"]["num_standbys"] == 0, "nothing was changed"

        code, changed = await configure(settings, "--set", "num_standbys=1", "--set", "max_warmups=7")
        assert (code, changed["outcome"], changed["settings"]["num_standbys"], changed["rejection"]) == (0, "in force", 1, None)

        code, rejected = await configure(settings, "--set", "max_step_ms=40000")
        assert (code, rejected["outcome"], rejected["settings"]["max_step_ms"]) == (1, "rejected", 1_000)
        assert "max_step_ms 40000 is over 5000" in rejected["rejection"]

        back = shlex.split(changed["way_back"])
        assert back[:4] == ["equipoise", "configure", "--group", "g"]
        code, before = await configure(settings, *back[4:])
        assert (code, before["settings"]) == (0, shown["settings"])
        assert (await configure(settings, *back[4:]))[1]["outcome"] == "unchanged"


async def test_what_if_and_timeline_have_the_same_numbers(settings: WorkerSettings) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(4))
        swarm.add("g", ["m1", "m2"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1", "m2"])
        await asyncio.sleep(2)
    (asked,) = (await ask(settings, "what-if", "--set", "num_standbys=1", "--seeds", "1"))["groups"]
    timeline = await ask(settings, "timeline")
    assert (timeline["facts"], timeline["totals"]["moves"], timeline["totals"]["rounds"]) == (
        asked["facts"],
        asked["recorded"]["moves"],
        asked["recorded"]["rebalances"],
    )


async def ask(settings: WorkerSettings, command: str, *words: str) -> dict[str, Any]:
    """What the command answers on the log."""
    location = f"kafka://{settings.bootstrap}/{settings.prefix}"
    call = [sys.executable, "-m", "equipoise", command, location, "--group", "g", "--json", *words]
    done = await asyncio.to_thread(subprocess.run, call, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_member_reports_that_its_group_config_is_not_used(
    bootstrap: str, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "equipoise.member")
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology):
        for number, config in enumerate((None, attrs.evolve(application.config, knobs=GroupSettings(num_standbys=3)))):
            async with application.member(f"m{number}", tmp_path, "at_least_once", group_config=config) as member:
                await until(lambda member=member: bool(member.running))
            told = [record.getMessage() for record in caplog.records if "group_config of member" in record.getMessage()]
            assert len(told) == number
    assert "`equipoise configure" in told[0]


async def test_change_is_judged_by_the_worker_and_one_that_costs_too_much_is_undone(settings: WorkerSettings) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(4))
        members = swarm.add("g", ["m1", "m2", "m3"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1", "m2", "m3"])
        _, shown = await configure(settings)

        code, planned = await configure(settings, "--plan", "join=1", "--why", "a test", "--runs", "2")
        assert (code, planned["outcome"], planned["change_id"][:5]) == (0, "planned", "join-")

        code, changed = await configure(settings, "--set", "num_standbys=1", "--or-undo", "--at-most", "0.5", "--runs", "0")
        assert (code, changed["outcome"], changed["settings"]["num_standbys"]) == (0, "in force", 1)
        members[0].killed = True

        async def until_undone() -> dict[str, Any]:
            while True:
                (_, change) = (await ask(settings, "timeline", "--changes"))["changes"]
                if change["verdict"] != "under way" and (await configure(settings))[1]["settings"] == shown["settings"]:
                    return change
                await asyncio.sleep(0.5)

        change = await asyncio.wait_for(until_undone(), 120)
        assert (change["verdict"], change["judged"]["above"], change["judged"]["undone"]) == ("too_much", ["limit"], True)
        assert change["judged"]["unavailable_task_ms"] > 500
        assert [each["verdict"] for each in (await ask(settings, "timeline", "--changes"))["changes"]] == ["replaced", "too_much"]
    assert (await ask(settings, "verify"))["verdict"] == "identical"


async def test_change_without_effect_is_answered_in_a_group_that_never_ticks(settings: WorkerSettings) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", attrs.evolve(CONFIG, knobs=attrs.evolve(CONFIG.knobs, checkpoint_every_records=0)), topology(4))
        for name in ("m1", "m2"):
            add(swarm, SlowMember("g", name))  # with heartbeats of 250 ms
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1", "m2"])
        code, found = await configure(settings, "--set", "max_warmups=5", "--timeout", "10")
        assert (code, found["outcome"], found["settings"]["max_warmups"]) == (0, "in force", 5)


async def test_judged_change_is_refused_while_a_worker_cannot_read_it(settings: WorkerSettings) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(4))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1"])
        assert await check_workers_read(settings) == ""
    older = AIOKafkaConsumer(
        settings.topics.checkpoints,
        bootstrap_servers=settings.bootstrap,
        group_id=group_name(settings),
        client_id="faust-0.15.0",
    )
    await older.start()
    try:
        with pytest.raises(InputError, match=r"a worker at \S+ does not know every fact of this build and would halt the group"):
            await check_workers_read(settings)
        command = [sys.executable, "-m", "equipoise", "configure", "--group", "g", "--bootstrap", settings.bootstrap, "--prefix", settings.prefix]
        call = [*command, "--set", "max_warmups=5", "--judge", "--runs", "0"]
        done = await asyncio.to_thread(subprocess.run, call, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, "does not know every fact" in done.stderr) == (2, True), done.stderr
    finally:
        await older.stop()


@pytest.mark.slow
async def test_change_without_an_answer_stays_in_the_log(settings: WorkerSettings) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", CONFIG, topology(4))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1"])
    code, found = await configure(settings, "--set", "max_warmups=5", "--timeout", "2")
    assert (code, found["outcome"]) == (1, "no answer")
    async with Worker(settings):
        code, shown = await configure(settings)
        assert (code, shown["settings"]["max_warmups"]) == (0, 5)


@pytest.mark.parametrize(("changed", "problem"), [({"max_warmups": 7}, None), ({"max_step_ms": 40_000}, "max_step_ms 40000 is over 5000")])
async def test_answer_before_a_checkpoint_is_found(settings: WorkerSettings, changed: dict[str, Any], problem: str | None) -> None:
    """The follower restarts from the checkpoint, so it does not fold the change itself."""
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm, AnsweredFact(settings, "g") as live:
        await swarm.configure("g", configured(initial_delay_ms=200, checkpoint_every_records=0), topology(4))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1"])
        before = await live.configuration()
        await live.say(attrs.evolve(before, knobs=attrs.evolve(before.knobs, max_warmups=3)))
        before = await live.configuration()
        await live.say(attrs.evolve(before, knobs=attrs.evolve(before.knobs, **changed)))
        await until(lambda: all(lead.machine.state.last_offset >= (live.offset or 0) for _, lead in worker.groups()))
        await worker.stop()
        assert await live.is_answered_within(30)
        rejection = live.rejection()
        assert rejection is None if problem is None else problem in (rejection or "")
        assert ((await live.configuration()).knobs == before.knobs) == (problem is not None)
