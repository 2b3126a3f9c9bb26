"""Logs that begin at a base, on a real broker (docs/protocol.md#l10): what every reader answers
when records are deleted, by the worker or by hand, and who goes on.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.log import open_log
from equipoise.events.log.kafka.client import TopicPartition
from equipoise.events.log.kafka.log import KafkaLog
from equipoise.events.log.kafka.opening import admin_client
from equipoise.replay.bases import read_as_one, stored_bases
from equipoise.replay.verification import Verdict, verify
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.swarm import Swarm, topology
from tests.live.test_worker import CONFIG, until

GROUPS = ("a", "b", "idle")


def settings_of(bootstrap: str, prefix: str, **more: Any) -> WorkerSettings:
    kept = {"retention_ms": 2_000, "base_interval_ms": 1_000, "worker_session_timeout_ms": 6_000, "observe_interval_ms": 1_000, **more}
    return WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, **kept)


@pytest.fixture
def settings(bootstrap: str, prefix: str) -> WorkerSettings:
    return settings_of(bootstrap, prefix)


def location(settings: WorkerSettings) -> str:
    return f"kafka://{settings.bootstrap}/{settings.prefix}"


def begins(settings: WorkerSettings) -> int:
    with KafkaLog(location(settings)) as log:
        return log.begins(0)


async def until_deleted(settings: WorkerSettings, beyond: int = 0) -> int:
    for _ in range(100):
        begin = await asyncio.to_thread(begins, settings)
        if begin > beyond:
            return begin
        await asyncio.sleep(0.2)
    raise AssertionError("nothing was deleted")


def ran(*arguments: str) -> Any:
    return CliRunner().invoke(main, [*arguments])


async def said(*arguments: str) -> Any:
    return await asyncio.to_thread(ran, *arguments)


def verified(settings: WorkerSettings, archive: str | None = None) -> Any:
    with open_log(location(settings)) as log:
        return verify(log.read() if archive is None else read_as_one(archive, log), bases=stored_bases(log))


async def test_worker_deletes_behind_bases_and_every_reader_begins_there(settings: WorkerSettings, tmp_path: Path) -> None:
    where, archive = location(settings), str(tmp_path / "archive.db")
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        for group in GROUPS:
            await swarm.configure(group, CONFIG, topology(4))
        for group in GROUPS[:2]:
            swarm.add(group, ["m1", "m2"], heartbeat_interval_ms=100)
        swarm.start()
        for group in GROUPS[:2]:
            await swarm.until_all_run(group, 4, ["m1", "m2"])
        assert (await said("archive", where, "--to", archive)).exit_code == 0
        first = await until_deleted(settings)
        assert (await said("archive", where, "--to", archive)).exit_code in (0, 2)
        await until_deleted(settings, first)
        assert not worker.unready()
        found = await asyncio.to_thread(verified, settings)
        assert (found.verdict, found.problem) == (Verdict.IDENTICAL, "")
        assert found.begins is not None
        assert {each.group for each in found.groups} == set(GROUPS)
        assert all(each.bases for each in found.groups)
        shown = await said("status", "--bootstrap", settings.bootstrap, "--prefix", settings.prefix, "--group", "a", "--json")
        assert shown.exit_code == 0, shown.output
        for command in (("explain", where, "--group", "a", "--task", "0_1"), ("timeline", where, "--group", "a"), ("show", where, "--group", "idle")):
            answer = await said(*command)
            assert answer.exit_code == 0, answer.output
            assert "read from the base at offset" in answer.stderr
        document = json.loads((await said("timeline", "--json", where, "--group", "a")).stdout)
        assert {each["member_id"] for each in document["members"]} == {"m1", "m2"}
        assert len(document["intervals"]) >= 4
        assert (swarm.overlaps, swarm.lost) == ([], 0)
    async with Worker(settings) as worker:  # the next one needs no record before the base
        await until(lambda: not worker.unready(), "the next worker leads")
        assert {lead.name for _, lead in worker.groups() if lead.halted is None} == set(GROUPS)


async def delete(settings: WorkerSettings, topic: str, before: int) -> None:
    async with admin_client(settings) as admin:
        await admin.delete_records({TopicPartition(topic, 0): before})


async def led(settings: WorkerSettings, swarm: Swarm, groups: tuple[str, ...] = ("a",)) -> None:
    """Groups with two members each that all run."""
    for group in groups:
        await swarm.configure(group, CONFIG, topology(4))
        swarm.add(group, ["m1", "m2"], heartbeat_interval_ms=100)
    swarm.start()
    for group in groups:
        await swarm.until_all_run(group, 4, ["m1", "m2"])


async def test_declared_archive_is_waited_for_and_archive_and_log_verify_as_one(settings: WorkerSettings, tmp_path: Path) -> None:
    where, archive = location(settings), str(tmp_path / "archive.db")
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        await led(settings, swarm)
        copied = json.loads((await said("archive", "--json", where, "--to", archive, "--declare", "nightly")).stdout)
        await until(lambda: worker.metrics.retention_held.labels("0")._value.get() == 1.0, "the archive holds records")
        await asyncio.sleep(1.0)
        assert await asyncio.to_thread(begins, settings) <= copied["next_offset"]  # the archive does not run
        again = json.loads((await said("archive", "--json", where, "--to", archive, "--declare", "nightly")).stdout)
        assert await until_deleted(settings) <= again["next_offset"]
        whole = await asyncio.to_thread(verified, settings, archive)
        assert (whole.verdict, whole.begins, whole.problems) == (Verdict.IDENTICAL, None, [])
        assert all(each.bases >= 2 for each in whole.groups)
        answer = await said("verify", where, "--archive", archive)
        assert answer.exit_code == 0, answer.output
        assert "in bases equal the recomputed ones" in answer.stdout
        withdrawn = await said("archive", where, "--withdraw", "nightly")
        assert withdrawn.exit_code == 0, withdrawn.output
        assert await until_deleted(settings, again["next_offset"]) > again["next_offset"]
        for target in ("late.db", "late.jsonl", "late/"):  # a copy of what is left begins at the base, in every form
            late = str(tmp_path / target) + ("/" if target.endswith("/") else "")
            assert (await said("archive", where, "--to", late)).exit_code == 0
            copy = await said("verify", "--json", late)
            assert copy.exit_code == 0, copy.output
            assert json.loads(copy.stdout)["begins"]["offset"] > 0
        behind = await said("verify", where, "--archive", archive)
        assert behind.exit_code == 2
        assert "the archive ends here, and the log begins at" in behind.stderr
