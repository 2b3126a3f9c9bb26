"""An outage of the broker, from outside: a worker, `tail --follow`, `status --watch` and `archive
--follow` wait for it and say so in a few lines, and `/ready` says so within 5 s. Settings are
reloaded on SIGHUP.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from equipoise.kafka.broker_watch import AGAIN_S
from equipoise.worker.settings import WorkerSettings
from tests.json_schemas import check
from tests.live.swarm import Swarm, topology
from tests.live.test_worker import CONFIG, MOST_S, until
from tools.brokers import Brokers

AWAY_S = 2.5 * AGAIN_S
READY_S = 5.0
ROOT = Path(__file__).resolve().parents[2]
LINE = r": (?:a broker does not answer: .+|a broker has not answered for \d+ s: .+|the brokers answer again, after \d+\.\d s)"


class Command:
    """`equipoise ...` as a process, and what it prints."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.out, self.err = folder / f"{arguments[0]}.out", folder / f"{arguments[0]}.err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen([sys.executable, "-m", "equipoise", *arguments], stdout=out, stderr=err, env=environment)

    def lines(self) -> list[str]:
        """Whole lines on stderr."""
        return self.err.read_text().rpartition("\n")[0].splitlines()


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for each in started:
        each.process.kill()
        each.process.wait()


def logged(worker: Command) -> list[dict[str, Any]]:
    documents = [json.loads(line) for line in worker.lines()]
    for document in documents:
        check("worker", document)
    return documents


def say_of(documents: list[dict[str, Any]], logger: str) -> list[str]:
    return [each["message"] for each in documents if each["logger"] == logger]


async def asked(http: aiohttp.ClientSession) -> str:
    """Why it is not ready; "": it is."""
    async with http.get("/ready") as answer:
        return (await answer.json())["problem"] or ""


@pytest.mark.slow
async def test_outage_is_a_few_lines_and_everybody_goes_on_after_it(tmp_path: Path, commands: list[Command]) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('[worker]\nlog_format = "json"\n')
    with Brokers() as brokers:
        settings = WorkerSettings(bootstrap=brokers.bootstrap)
        address = ["--bootstrap", brokers.bootstrap]
        worker = Command(tmp_path, "worker", *address, "--settings", str(file), "--http-port", "0")
        commands.append(worker)
        await until(lambda: "http://127.0.0.1:" in "".join(worker.lines()), "the worker leads")  # a new broker may be slow at first
        (port,) = re.findall(r"http://127.0.0.1:(\d+)", "".join(say_of(logged(worker), "equipoise.worker.app")))
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            async with Swarm(settings, settings.topics) as swarm:
                await swarm.configure("g", CONFIG, topology(4))
                swarm.add("g", ["m1"])
                swarm.start()
                await swarm.until_all_run("g", 4, ["m1"], timeout_s=MOST_S)
            tail = Command(tmp_path, "tail", f"kafka://{brokers.bootstrap}", "--group", "g", "--follow")
            status = Command(tmp_path, "status", *address, "--group", "g", "--watch")
            copied = tmp_path / "copied.jsonl"
            archive = Command(tmp_path, "archive", f"kafka://{brokers.bootstrap}", "--to", str(copied), "--follow")
            commands += [tail, status, archive]
            await until(lambda: ": round 1" in tail.out.read_text() and "m1" in status.out.read_text(), "both have shown the group")
            await until(lambda: copied.exists() and "m1" in copied.read_text(), "the archive has begun")
            assert await asked(http) == ""
            said = len(worker.lines())

            brokers.kill(0)
            killed_s = time.monotonic()
            while not await asked(http):  # noqa: ASYNC110  # it is another process
                await asyncio.sleep(0.1)
            assert time.monotonic() - killed_s < READY_S
            assert re.fullmatch(r"the brokers have not answered for \d+ s", await asked(http))
            await asyncio.sleep(AWAY_S)
            assert await asked(http)
            during = logged(worker)[said:]
            await asyncio.to_thread(brokers.start, 0)
            await until(lambda: all(any("answer again" in line for line in each.lines()) for each in commands), "all have noticed its return")
            while await asked(http):  # noqa: ASYNC110  # it is another process
                await asyncio.sleep(0.1)
            away_s = time.monotonic() - killed_s

            async with Swarm(settings, settings.topics) as swarm:
                swarm.add("g", ["m2"], session_timeout_ms=30_000)
                swarm.start()
                await swarm.until_all_run("g", 4, ["m2"], timeout_s=2 * MOST_S)
            await until(lambda: "m2 joined" in tail.out.read_text() and "m2" in status.out.read_text(), "both go on")
            await until(lambda: "m2" in copied.read_text(), "the archive goes on")
            assert [each.process.poll() for each in commands] == [None] * 4

            assert len(during) <= 2 + AWAY_S / AGAIN_S, during
            assert {each["logger"] for each in during} == {"equipoise.kafka.broker_watch"}
            for each in (tail, status, archive):
                assert [line for line in each.lines() if not re.fullmatch(rf"[^ ]+(?: g)?{LINE}", line)] == []
                assert 3 <= len(each.lines()) <= 3 + away_s / AGAIN_S, each.lines()
            told = say_of(logged(worker), "equipoise.decided")
            assert "group g: m1 joined, incarnation 1" in told
            assert "group g: m2 joined, incarnation 1" in told
            assert any(re.match(r"group g: m1 expired, incarnation 1: it was not heard of for \S+ s", line) for line in told)
            assert any(re.match(r"group g: round \d+: 0_\d.* \S+ -> m2 granted: ", line) for line in told), told

            archive.process.send_signal(signal.SIGINT)
            assert archive.process.wait(timeout=20) == 130
            assert archive.lines()[-1].startswith("equipoise: interrupted; ")  # and nothing of asyncio
            await reloaded(worker, file)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(timeout=20) == 0


def reload(worker: Command, file: Path, *lines: str) -> None:
    file.write_text("\n".join(["[worker]", *lines]))
    worker.process.send_signal(signal.SIGHUP)


async def reloaded(worker: Command, file: Path) -> None:
    reload(worker, file, 'log_format = "text"', 'log_level = "DEBUG"', "partitions = 3")
    values = "log_level=DEBUG, log_format=text, observe_interval_ms=10000, checkpoint_facts=40000, metrics_groups=1000"
    text = f"SIGHUP: {values}; partitions changed too, which a restart reads"
    await until(lambda: any(line.endswith(text) and " INFO " in line for line in worker.lines()), "the settings are reloaded")
    reload(worker, file, 'log_level = "LOUD"')
    await until(lambda: any("ERROR" in line and "the settings stay as they are" in line for line in worker.lines()), "wrong settings are refused")
