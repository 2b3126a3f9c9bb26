"""Logs that begin at a base, on a real broker (docs/protocol.md#l10): what every reader answers
when records are deleted, by the worker or by hand, and who goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.events.errors import UnknownKindError
from equipoise.events.facts import ProbingTick
from equipoise.events.records import FactRecord
from equipoise.folding import log_reading as worker_reading
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.started_clients import admin_client, writer
from equipoise.log import open_log
from equipoise.log.kafka.bases_topic import Bases, state_records
from equipoise.log.kafka.envelope import StoredDecision, fact_row, pack_fact, pack_payload, read_fact
from equipoise.log.kafka.log import KafkaLog
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.log.rows import FactRow
from equipoise.member.session.link import Link
from equipoise.operations.follower import Follower
from equipoise.replay.bases import read_as_one, stored_bases
from equipoise.replay.verification import Verdict, verify
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.other_form import other_form
from tests.live.swarm import Swarm, everything, topology
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_worker import CONFIG, until

LATE = "2100-01-01"
GROUPS = ("a", "b", "idle")


def settings_of(bootstrap: str, prefix: str, **more: Any) -> WorkerSettings:
    kept = {"retention_ms": 2_000, "base_interval_ms": 1_000, "worker_session_timeout_ms": 6_000, "observe_interval_ms": 1_000, **more}
    return WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, **kept)


@pytest.fixture
def settings(bootstrap: str, prefix: str) -> WorkerSettings:
    return settings_of(bootstrap, prefix)


def rises(value: Callable[[], float], before: float) -> bool:
    return value() > before


def location(settings: WorkerSettings) -> str:
    return f"kafka://{settings.bootstrap}/{settings.prefix}"


def begins(settings: WorkerSettings) -> int:
    with KafkaLog(location(settings)) as log:
        return log.begins(0)


async def until_deleted(settings: WorkerSettings, beyond: int = 0) -> int:
    for _ in range(300):  # a worker that was killed is missed after its session, and starts again
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
        late = ("status", where, "--group", "idle", "--at", LATE)
        predicted = ("what-if", where, "--group", "a", "--change", "leave=m2", "--runs", "8", "--restore-speed", "1000")
        for command in (("explain", where, "--group", "a", "--task", "0_1"), ("timeline", where, "--group", "a"), late, predicted):
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
        follower = KafkaLog(where)
        assert len(await asyncio.to_thread(lambda: list(follower.rows(0)))) > 0
        await until(lambda: worker.metrics.retention_held.labels("0")._value.get() == 1.0, "the archive holds records")
        await asyncio.sleep(1.0)
        assert await asyncio.to_thread(begins, settings) <= copied["next_offset"]  # the archive does not run
        again = json.loads((await said("archive", "--json", where, "--to", archive, "--declare", "nightly")).stdout)
        assert await until_deleted(settings) <= again["next_offset"]
        with follower:  # it has read what is deleted now, and goes on behind it
            later = await asyncio.to_thread(lambda: list(follower.rows(0, again["next_offset"])))
        assert {type(row) for row in later} == {FactRow, StoredDecision}
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


async def sent_to(settings: WorkerSettings, topic: str, *records: tuple[bytes, bytes | None]) -> None:
    async with writer(settings) as producer:
        for key, value in records:
            await producer.send_and_wait(topic, value, key=key, partition=0)


async def without_checkpoints(settings: WorkerSettings) -> None:
    """Checkpoints are a cache: an operator deletes them."""
    keys = {record.key for record in await everything(settings, settings.topics.checkpoints)}
    await sent_to(settings, settings.topics.checkpoints, *((key, None) for key in keys))


def of_log(settings: WorkerSettings) -> Bases:
    with KafkaLog(location(settings)) as log:
        return log.bases(0)


@pytest.mark.slow
async def test_records_deleted_by_hand_are_missed_by_every_reader_and_none_goes_on_wrongly(settings: WorkerSettings, tmp_path: Path) -> None:
    where, facts = location(settings), settings.topics.facts
    kept = settings_of(settings.bootstrap, settings.prefix, retention_ms=3_600_000)
    async with Worker(kept) as worker, Swarm(settings, settings.topics) as swarm:
        await led(settings, swarm)
        await until(lambda: worker.metrics.bases._value.get() >= 4, "four bases")
    first, second, *_, last = (await asyncio.to_thread(of_log, settings)).stored

    await delete(settings, facts, first.facts_offset + 1)  # in the middle of the first base: the second one is whole
    found = await asyncio.to_thread(verified, settings)
    assert found.verdict is Verdict.IDENTICAL
    assert found.begins == (second.facts_offset, second.append_ms)
    await delete(settings, settings.topics.decisions, second.decisions_offset + 1)  # decisions alone
    found = await asyncio.to_thread(verified, settings)
    assert found.begins is not None
    assert (found.verdict, found.begins[0] > second.facts_offset) == (Verdict.IDENTICAL, True)

    key = next(key for key, _ in state_records(of_opened(settings), "a", last.groups["a"][0], last.groups["a"][2], b"x"))
    await sent_to(settings, settings.topics.bases, (key, None))  # a state, by hand
    found = await asyncio.to_thread(verified, settings)
    assert found.verdict is Verdict.IDENTICAL  # an earlier base is whole

    await delete(settings, facts, last.facts_offset)  # behind every whole base
    gone = "records behind every base were deleted"
    of_a = ("--group", "a")
    late = ("status", where, *of_a, "--at", LATE)
    commands = [("verify", where), ("explain", where, *of_a, "--task", "0_1"), ("timeline", where, *of_a), late, ("tail", where)]
    for command in (*commands, ("archive", where, "--to", str(tmp_path / "late.db"))):
        answer = await said(*command)
        assert answer.exit_code == 2, (command, answer.output)
        assert gone in answer.stderr, (command, answer.stderr)
    status = ("status", "--bootstrap", settings.bootstrap, "--prefix", settings.prefix, "--group", "a")
    assert (await said(*status)).exit_code == 0  # checkpoints are newer than what was deleted
    await without_checkpoints(settings)
    lost = await said(*status)
    assert lost.exit_code == 2
    assert gone in lost.stderr
    async with Worker(kept) as worker:
        await until(lambda: gone in worker.unready(), "the worker says what is gone")
        assert not list(worker.groups())


def of_opened(settings: WorkerSettings) -> str:
    with KafkaLog(location(settings)) as log:
        return log.opened.log_id


async def test_builds_with_two_forms_of_the_state_take_turns_without_the_old_records(settings: WorkerSettings) -> None:
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await led(settings, swarm)
        begin = await until_deleted(settings)
    for turn in range(4):  # an upgrade, a rollback, and both once more without checkpoints
        if turn >= 2:
            await without_checkpoints(settings)
        with other_form() if turn % 2 == 0 else contextlib.nullcontext():
            async with Worker(settings) as worker:
                await until(lambda: not worker.unready(), "it leads")
                (lead,) = (lead for _, lead in worker.groups())
                assert lead.halted is None
                stored = worker.metrics.bases._value.get
                await worker._partitions.hosts[0].append("a", CONFIG)
                await until(functools.partial(rises, stored, stored()), "a base in its form")
                assert lead.halted is None
                assert lead.last_published == lead.machine.state.number
    assert begin > 0
    async with Worker(settings) as worker:
        await until(lambda: not worker.unready(), "it leads")
        for _ in range(50):  # until the log begins at a base in this build's form
            found = await asyncio.to_thread(verified, settings)
            if found.verdict is Verdict.IDENTICAL:
                break
            assert "use the build that wrote it" in str(found.problems)
            await worker._partitions.hosts[0].append("a", CONFIG)
            await asyncio.sleep(0.5)
        assert found.verdict is Verdict.IDENTICAL, found.problems


async def test_group_that_has_halted_keeps_its_facts_until_a_build_can_read_them(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = ("archive", location(settings), "--to", str(tmp_path / "archive.db"), "--declare", "all")

    def newer(key: bytes | None, value: bytes | None, offset: int, append_ms: int) -> FactRecord:
        try:
            return read_fact(key, value, offset, append_ms)
        except UnknownKindError:
            row = fact_row(key, value, offset, append_ms)
            return FactRecord(row.group, offset, append_ms, ProbingTick(), row.checksum)

    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm:
        await led(settings, swarm, ("a", "b"))
        assert (await said(*archive)).exit_code == 0
        await until_deleted(settings)
        assert (await said(*archive)).exit_code == 0
        await sent_to(settings, settings.topics.facts, (b"b", pack_payload(60, 1, b"\x90")))
        await until(lambda: any(lead.halted is not None for _, lead in worker.groups()), "b halts")
        (at,) = (lead.halted.offset for _, lead in worker.groups() if lead.halted is not None)
        await until(lambda: worker.metrics.retention_held.labels("0")._value.get() == 1.0, "b holds records")
        stored = worker.metrics.bases._value.get()
        await until(lambda: worker.metrics.bases._value.get() > stored + 3, "the others go on")
        held = await said(*archive)
        assert (held.exit_code, "is copied up to where group b has halted" in held.stdout) == (0, True), held.output
        assert f"up to offset {at}" in held.stdout
        assert await asyncio.to_thread(begins, settings) <= at
        await without_checkpoints(settings)  # before the next one stores new ones
    await without_checkpoints(settings)
    with monkeypatch.context() as patch:
        patch.setattr(worker_reading, "read_fact", newer)
        async with Worker(settings) as worker:
            await until(lambda: not worker.unready(), "the newer build leads")
            assert {lead.name: lead.halted for _, lead in worker.groups()} == {"a": None, "b": None}
            await worker._partitions.hosts[0].append("b", CONFIG)
            session = worker._partitions.hosts[0]._session
            assert session is not None
            keeper = session.bases
            assert keeper is not None
            await until(lambda: not keeper._bases.halted, "it says that b is led")
            for _ in range(40):  # while things happen, and the archive follows
                await worker._partitions.hosts[0].append("a", CONFIG)
                copied = await said(*archive)
                assert "has halted" not in copied.stdout
                if await asyncio.to_thread(begins, settings) > at:
                    break
                await asyncio.sleep(0.3)
            else:
                raise AssertionError("nothing was deleted")
            whole = await asyncio.to_thread(verified, settings, archive[3])
            a, b = whole.groups
            assert (a.verdict, a.problem) == (Verdict.IDENTICAL, "")
            assert b.offset == at


async def gone_back(link: Link) -> None:
    link._go_to(0)


async def test_member_and_follower_whose_place_is_gone_begin_again(bootstrap: str, prefix: str) -> None:
    settings = settings_of(bootstrap, prefix)
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with Worker(settings) as worker:
        await until(lambda: not worker.unready(), "it leads")
        await sent_to(settings, settings.topics.facts, (prefix.encode(), pack_fact(application.config)))
        async with application.member("m1", None, "at_least_once") as member:
            await until(lambda: len(member.running) == PARTITIONS, "m1 runs everything")
            follower = Follower(settings, settings.topics)
            await follower.catch_up()
            (lead,) = (lead for _, lead in follower.groups())
            begin = await until_deleted(settings, lead.machine.state.last_offset)
            await follower.catch_up()
            (lead,) = (lead for _, lead in follower.groups())
            assert lead.machine.state.last_offset > begin
            incarnation = member.incarnation
            assert member._host is not None
            member._host._thread.start(gone_back(member._host._link))  # it was that slow
            await until(lambda: member.incarnation > incarnation and len(member.running) == PARTITIONS, "m1 joins again")
        async with application.member("m2", None, "at_least_once") as member:  # the log no longer has the group's first decisions
            await until(lambda: len(member.running) == PARTITIONS, "m2 runs everything")
            await application.order(40)
            await application.until_counted(exactly=True)


@pytest.mark.slow
async def test_worker_archive_and_members_killed_while_records_are_deleted_lose_nothing(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    settings, archive = settings_of(bootstrap, prefix), str(tmp_path / "archive.db")
    python, logs = [sys.executable, "-m", "equipoise"], (tmp_path / "processes.log").open("ab")
    where = ["--bootstrap", bootstrap, "--prefix", prefix, "--http-port", "0", "--worker-session-timeout-ms", "6000"]
    commands = (
        [*python, "worker", *where, "--retention-ms", "2000", "--base-interval-ms", "500"],
        [*python, "archive", location(settings), "--to", archive, "--follow", "--declare", "all"],
    )
    await ensure_topics(settings, settings.topics)
    await open_partitions(settings, settings.topics)
    running = [subprocess.Popen(command, stderr=logs, stdout=logs) for command in commands]  # noqa: ASYNC220
    try:
        async with Swarm(settings, settings.topics) as swarm:
            await led(settings, swarm, ("a", "b"))
            begin = await until_deleted(settings)
            for turn in range(4):
                swarm.add("a", [f"n{turn}"], heartbeat_interval_ms=100, session_timeout_ms=6_000, lease_margin_ms=2_000)
                await asyncio.sleep(0.3 + 0.4 * turn)
                for place in (0, 1) if turn % 2 else (turn // 2,):
                    running[place].kill()
                    running[place].wait()
                    running[place] = subprocess.Popen(commands[place], stderr=logs, stdout=logs)  # noqa: ASYNC220
                swarm.members[-1].killed = turn < 3
                begin = await until_deleted(settings, begin)
                assert running[1].poll() is None, "the archive goes on while records behind it are deleted"
            await swarm.until_all_run("a", 4, ["m1", "m2", "n3"], timeout_s=60)
            assert swarm.overlaps == []
        running[1].send_signal(signal.SIGINT)
        running[1].wait()
        assert (await said("archive", location(settings), "--to", archive, "--declare", "all")).exit_code == 0
        whole = await asyncio.to_thread(verified, settings, archive)
        assert (whole.verdict, whole.begins, whole.problems) == (Verdict.IDENTICAL, None, [])
        assert sum(group.bases for group in whole.groups) >= 4
    finally:
        for process in running:
            process.kill()
            process.wait()
        logs.close()
