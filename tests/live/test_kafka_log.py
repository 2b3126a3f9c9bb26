"""A log in Kafka is a log: every reader prints the same for it and its archive, and the archive has
every record once.
"""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened, MemberLeft, Undecodable
from equipoise.events.records import FactRecord
from equipoise.kafka.started_clients import writer
from equipoise.log import open_log
from equipoise.log.kafka.envelope import fact_row, pack_fact, pack_payload, partition_of
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.json_schemas import NOT_MET, Coverage
from tests.live.swarm import Swarm, everything, topology


def equipoise(*args: str) -> Result:
    """In a thread of its own: a test's event loop runs in this one, and commands have their own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(CliRunner().invoke, main, list(args), catch_exceptions=False).result()


def document(*args: str) -> dict:
    result = equipoise(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def live_for_a_while(settings: WorkerSettings, group: str) -> list[str]:
    """Two members, a third, rubbish in between; returns why records belong to no group."""
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure(group, configured(initial_delay_ms=200, acceptable_recovery_lag=100, checkpoint_every_records=5), topology(6))
        swarm.add(group, ["m1", "m2"])
        swarm.start()
        await swarm.until_all_run(group, 6, ["m1", "m2"])
        async with writer(settings) as producer:
            partition = partition_of(group, settings.partitions)
            facts = settings.topics.facts
            await producer.send_and_wait(facts, b"no fact at all", partition=partition)
            await producer.send_and_wait(facts, b"no fact at all", key=group.encode(), partition=partition)
            await producer.send_and_wait(facts, pack_payload(11, 1, b"\x91\xa1m"), key=group.encode(), partition=partition)
            await producer.send_and_wait(facts, pack_fact(LogOpened(log_id="another")), key=b"", partition=partition)
        swarm.add(group, ["m3"])
        await swarm.until_all_run(group, 6, ["m1", "m2", "m3"])
        assert not swarm.overlaps
    found = await everything(settings, settings.topics.facts, partition)
    rows = [fact_row(each.key, each.value, each.offset, each.timestamp_ms).record() for each in found]
    return [each.event.code for each in rows if not each.group and isinstance(each.event, Undecodable)]


@pytest.mark.smoke
async def test_readers_print_the_same_for_a_kafka_log_and_its_archive(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, partitions=2, http_port=0)
    group = f"{prefix}g"
    assert await live_for_a_while(settings, group) == ["no_group", "opened_again"]
    location = f"kafka://{bootstrap}/{prefix}"
    verified = document("verify", location)
    (of_group,) = verified["groups"]
    assert (verified["verdict"], of_group["group"]) == ("identical", group)
    assert of_group["checkpoints_identical"] > 0
    assert of_group["not_yet_written"] == 0

    partition = partition_of(group, 2)
    with pytest.raises(InputError, match="name one with"):
        open_log(location).position()
    archived = tmp_path / "archive.db"
    copied = document("archive", f"{location}?partition={partition}", "--to", str(archived))
    assert copied["facts"] > 10
    assert document("archive", f"{location}?partition={partition}", "--to", str(archived))["facts"] == 0
    assert document("verify", str(archived))["verdict"] == "identical"
    with open_log(location) as live, open_log(archived) as copy:
        ours = list(copy.read())
        theirs = [entry for entry in live.read(group=group) if not isinstance(entry, FactRecord) or entry.offset < copied["next_offset"]]
    assert ours == theirs[: len(ours)]
    dataset = f"{tmp_path / 'archive'}/"
    all_copied = document("archive", location, "--to", dataset)
    assert [each["partition"] for each in all_copied["next_offsets"]] == [0, 1]
    assert document("archive", location, "--to", dataset)["facts"] == 0
    assert document("verify", dataset)["groups"] == document("verify", str(archived))["groups"]
    with open_log(dataset) as copy:
        assert list(copy.read(group=group)) == ours
    codes = [entry.event.code for entry in ours if isinstance(entry, FactRecord) and isinstance(entry.event, Undecodable)]
    assert codes == ["no_envelope", "misshapen"]
    at = str(copied["next_offset"] - 1)
    for command in (("status",), ("explain", "--task", "0_3")):
        assert document(*command, location, "--at", at, "--group", group) == document(*command, str(archived), "--at", at, "--group", group)
    assert document("timeline", location, "--group", group)
    assert [row["group"] for row in document("status", "--bootstrap", bootstrap, "--prefix", prefix)["groups"]] == [group]
    status = document("status", "--bootstrap", bootstrap, "--prefix", prefix, "--group", group)
    assert status["state"]["verdict"] == "balanced"
    told = [json.loads(line) for line in equipoise("tail", location, "-n", "3", "--json").stdout.splitlines()]
    assert [line["number"] for line in told] == [of_group["decisions_identical"] - 2 + i for i in range(3)]
    with_facts = [json.loads(line) for line in equipoise("tail", location, "-n", "500", "--facts", "--json").stdout.splitlines()]
    assert len(with_facts) == 1 + of_group["facts"] + of_group["decisions_identical"]  # the log's opening
    listed = document("status", "--bootstrap", bootstrap, "--prefix", prefix)
    shown = {"status": [status, listed], "archive": [copied], "tail": with_facts}
    for name, documents in shown.items():
        coverage = Coverage(name)
        for each in documents:
            coverage.check(each)
        quiet = {("status#group", "trouble"), ("status#one", "trouble")}
        shown_here = {"status#one", "status#list", "status#group", "archive#copied", "tail"}
        assert {key for key in coverage.never_met() if key[0] in shown_here} <= quiet | set(NOT_MET.get(name, set()))


async def test_interrupted_archive_continues_where_it_stopped(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    from equipoise.log.kafka import log_archive as archiving

    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0)
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", configured(initial_delay_ms=0), topology(4))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1"])
        for number in range(20):
            await (await swarm.send("g", MemberLeft(member_id="nobody", incarnation=number)))
        swarm.add("g", ["m2"])
        await swarm.until_all_run("g", 4, ["m1", "m2"])
    location, path = f"kafka://{bootstrap}/{prefix}", tmp_path / "archive.db"

    class KilledError(Exception):
        pass

    left = 3

    def advance(records: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    with open_log(location) as source:
        with open_log(path, "a") as target, pytest.raises(KilledError):
            archiving.archive(source, target, facts_a_transaction=4, advance=advance)  # type: ignore[arg-type]
        with open_log(path, "a") as target:
            assert target.position() == 12
            done = archiving.archive(source, target)  # type: ignore[arg-type]
        with open_log(tmp_path / "at_once.db", "a") as target:
            archiving.archive(source, target)  # type: ignore[arg-type]
    with open_log(path) as one, open_log(tmp_path / "at_once.db") as other:
        assert list(one.read()) == list(other.read())
        assert one.position() == done.position > 20
    assert document("verify", str(path))["verdict"] == "identical"
    with open_log(tmp_path / "other.db", "w") as other:
        other.append_fact("", 0, LogOpened(log_id="another"))
    refused = equipoise("archive", location, "--to", str(tmp_path / "other.db"))
    assert refused.exit_code == 2
    assert "holds log 'another'" in refused.stderr


async def test_kafka_log_is_read_only_and_must_exist(bootstrap: str, prefix: str) -> None:
    with pytest.raises(InputError, match="written by its worker"):
        open_log(f"kafka://{bootstrap}/{prefix}", "a")
    with pytest.raises(InputError, match="there is no log; start a worker"):
        open_log(f"kafka://{bootstrap}/{prefix}")
    for wrong in (
        "kafka://",
        f"kafka://u:p@{bootstrap}",
        f"kafka://{bootstrap}/x?part=1",
        f"kafka://{bootstrap}/x?partition=one",
        f"kafka://{bootstrap}/a/b",
    ):
        with pytest.raises(InputError):
            open_log(wrong)


async def test_follower_of_a_log_gets_each_decision_once(bootstrap: str, prefix: str) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0)
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", configured(initial_delay_ms=200), topology(4))
        arguments = ["tail", f"kafka://{bootstrap}/{prefix}", "--follow", "--json", "--group", "g", "-n", "1000"]
        tail = await asyncio.create_subprocess_exec(sys.executable, "-m", "equipoise", *arguments, stdout=asyncio.subprocess.PIPE)
        try:
            assert tail.stdout is not None
            swarm.add("g", ["m1"])
            swarm.start()
            await swarm.until_all_run("g", 4, ["m1"])
            swarm.add("g", ["m2"])
            await swarm.until_all_run("g", 4, ["m1", "m2"])
            last = swarm.last_number["g"]
            numbers: list[int] = []
            while not numbers or numbers[-1] < last:
                numbers.append(json.loads(await asyncio.wait_for(tail.stdout.readline(), 60))["number"])
        finally:
            tail.kill()
            await tail.wait()
    assert numbers == list(range(1, last + 1))
