"""A worker that is killed, and then a member: what commands say, and what they do not say; and what
the next worker counts.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from equipoise.worker.settings import WorkerSettings
from tests.json_schemas import check
from tests.live.swarm import Swarm, topology
from tests.live.test_outage import Command
from tests.live.test_worker import CONFIG, MOST_S, until

TASKS = 4
REPORTED_S = 5.0
"""Within this time reports show that tasks run."""


async def answered(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What a command says to people, and to programs."""
    texts = []
    for more in ((), ("--json",)):
        command = Command(folder, *arguments, *more)
        assert await asyncio.to_thread(command.process.wait) == 0, command.err.read_text()
        texts.append(command.out.read_text())
    document = json.loads(texts[1])
    check(arguments[0], document)
    return texts[0], document


async def test_decision_that_nobody_has_written_is_not_shown(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix)
    address = ("--bootstrap", bootstrap, "--prefix", prefix)
    log = f"kafka://{bootstrap}/{prefix}"
    worker = Command(tmp_path, "worker", *address, "--http-port", "0")
    try:
        await until(lambda: "http://127.0.0.1:" in "".join(worker.lines()), "the worker leads")
        async with Swarm(settings, settings.topics) as swarm:
            await swarm.configure("g", CONFIG, topology(TASKS))
            swarm.add("g", ["m1"])
            (second,) = swarm.add("g", ["m2"])
            swarm.start()
            await swarm.until_all_run("g", TASKS, ["m1", "m2"], timeout_s=MOST_S)
            text, document = await answered(tmp_path, "status", *address, "--group", "g")
            assert (document["grounds"]["workers"], document["grounds"]["missing"]) == (1, [])
            assert re.search(r"every task runs, and nothing moves; as of \S+ UTC, with 1 worker and 2 members in their sessions\n", text)

            worker.process.kill()
            worker.process.wait()
            owners = {task["task"]: task["owner"] for task in document["state"]["tasks"]}
            second.killed = True
            async with asyncio.timeout(MOST_S):
                while True:
                    text, document = await answered(tmp_path, "status", *address, "--group", "g")
                    grounds = document["grounds"]
                    if grounds["undecided"] is not None and "no worker runs" in text:  # the text is older than the document
                        break
                    assert grounds["workers"] is None or document["trouble"] or grounds["workers"] == 1
            assert re.match(r"nobody has decided since \S+: \d+ decisions? (?:is|are) not written; no worker runs", text.splitlines()[1])
            assert {task["task"]: task["owner"] for task in document["state"]["tasks"]} == owners
            assert document["trouble"][0].startswith("nobody has decided since")

            lost = next(task for task, owner in owners.items() if owner == "m2")
            text, document = await answered(tmp_path, "explain", log, "--task", lost, "--group", "g")
            assert re.match(
                r"nobody has decided since \S+: \d+ decisions? (?:is|are) not written; no worker runs; what follows is the state before",
                text.splitlines()[1],
            )
            assert document["state"]["owner"] == "m2"
            assert document["grounds"]["undecided"]["decisions"] > 0
    finally:
        worker.process.kill()
        worker.process.wait()


def stretches(timeline: dict[str, Any], from_ms: int) -> list[int]:
    """How long each stretch without a running owner was that ended after `from_ms`, in ms."""
    found = [stretch for task in timeline["not_running"] for stretch in task["stretches"]]
    return [each["to_ms"] - each["from_ms"] for each in found if each["to_ms"] > from_ms]


async def test_next_worker_counts_the_time_in_which_none_lived(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """Its counter and the timeline have one value for the outage."""
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix)
    address = ("--bootstrap", bootstrap, "--prefix", prefix, "--http-port", "0", "--worker-session-timeout-ms", "6000")
    worker = Command(tmp_path, "worker", *address)
    try:
        await until(lambda: "http://127.0.0.1:" in "".join(worker.lines()), "the worker leads")
        async with Swarm(settings, settings.topics) as swarm:
            await swarm.configure("g", CONFIG, topology(TASKS))
            swarm.add("g", ["m1"])
            (second,) = swarm.add("g", ["m2"])
            swarm.start()
            owners = await swarm.until_all_run("g", TASKS, ["m1", "m2"], timeout_s=MOST_S)
            await asyncio.sleep(REPORTED_S)
            worker.process.kill()
            worker.process.wait()
            killed_ms = time.time_ns() // 1_000_000
            second.killed = True
            await asyncio.sleep(20)
            worker = Command(tmp_path, "worker", *address)
            await swarm.until_all_run("g", TASKS, ["m1"], timeout_s=MOST_S)
            found = re.search(r"http://127\.0\.0\.1:\d+", "\n".join(worker.lines()))
            assert found
            await asyncio.sleep(REPORTED_S)
            async with aiohttp.ClientSession(found[0]) as http:
                page = await (await http.get("/metrics")).text()
            _, timeline = await answered(tmp_path, "timeline", f"kafka://{bootstrap}/{prefix}", "--group", "g")
    finally:
        worker.process.kill()
        worker.process.wait()
    outage = stretches(timeline, killed_ms)
    assert len(outage) == sum(owner == "m2" for owner in owners.values())
    assert min(outage) > 20_000
    counted = re.search(r'^equipoise_unavailable_task_seconds_total\{group="g"\} (\S+)$', page, re.MULTILINE)
    assert counted
    assert float(counted[1]) == pytest.approx(sum(outage) / 1_000, abs=0.01)
