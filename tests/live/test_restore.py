"""A log is backed up to an object store and restored into new topics, and a worker goes on leading
from it: on a real broker and a real S3 API.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened
from equipoise.kafka.client import NewTopic, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client, reader, writer
from equipoise.log.kafka.envelope import StoredDecision, pack_fact, pack_payload, partition_of
from equipoise.log.kafka.log import KafkaLog
from equipoise.log.kafka.log_restore import stored_rows
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import ensure_topics, partition_count
from equipoise.log.parquet.log import ArchiveLog, next_offsets
from equipoise.log.rows import BaseRow, FactRow
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.json_schemas import check
from tests.live.swarm import Swarm, topology
from tests.live.test_kafka_log import document, equipoise
from tests.object_store import BUCKET, serving
from tests.spark.leading import Leader, facts_of

ROOT = Path(__file__).parents[2]
SOON = {"session_timeout_ms": 6_000, "lease_margin_ms": 1_000}
Rows = list[FactRow | StoredDecision | BaseRow]


def rows_in(location: str) -> dict[int, Rows]:
    def read() -> dict[int, Rows]:
        if location.startswith("kafka://"):
            with KafkaLog(location) as log:
                return {partition: list(log.rows(partition)) for partition in log.partitions()}
        with ArchiveLog(location, "r") as archive:
            return {partition: list(stored_rows(archive.part(partition))) for partition in archive.partitions()}

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(read).result()


async def lived(settings: WorkerSettings, group: str) -> None:
    """Two members, rubbish in between, and a third."""
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure(group, configured(initial_delay_ms=200, acceptable_recovery_lag=100, checkpoint_every_records=5), topology(6))
        swarm.add(group, ["m1", "m2"], **SOON)
        swarm.start()
        await swarm.until_all_run(group, 6, ["m1", "m2"])
        async with writer(settings) as producer:
            facts, partition = settings.topics.facts, partition_of(group, settings.partitions)
            await producer.send_and_wait(facts, b"no fact at all", partition=partition)
            await producer.send_and_wait(facts, b"no fact at all", key=group.encode(), partition=partition)
            await producer.send_and_wait(facts, pack_payload(11, 1, b"\x91\xa1m"), key=group.encode(), partition=partition)
            await producer.send_and_wait(facts, pack_fact(LogOpened(log_id="another")), key=b"", partition=partition)
        swarm.add(group, ["m3"], **SOON)
        await swarm.until_all_run(group, 6, ["m1", "m2", "m3"])


def settings_of(bootstrap: str, prefix: str) -> WorkerSettings:
    return WorkerSettings(bootstrap=bootstrap, prefix=prefix, partitions=2, http_port=0)


@pytest.mark.smoke
async def test_restored_log_is_led_on_to_the_byte(bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group, place = f"{prefix}g", f"kafka://{bootstrap}/{prefix}-2"
    await lived(settings_of(bootstrap, prefix), group)
    with serving() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        backup, source = f"s3://{BUCKET}/{prefix}/", f"kafka://{bootstrap}/{prefix}"
        running = document("archive", source, "--to", backup)
        assert running["waiting"] > 0
        assert next_offsets(backup) == {each["partition"]: each["offset"] for each in running["next_offsets"] if each["offset"]}
        document("archive", source, "--to", backup, "--final")
        position = next_offsets(backup)
        done = document("archive", backup, "--to", place)
        again = equipoise("archive", backup, "--to", place)
    check("archive", done)
    assert (again.exit_code, "exists and may be led" in again.stderr) == (2, True)
    partition = partition_of(group, 2)
    former = rows_in(source)
    assert rows_in(place) == former, "every fact and every decision, with offsets and times, to the byte"
    rows = [isinstance(row, FactRow) for each in former.values() for row in each]
    assert (done["facts"], done["decisions"], done["written"]) == (rows.count(True), rows.count(False), len(rows))
    codes = [row.record().event.code for row in former[partition] if isinstance(row, FactRow) and row.belongs_to_no_group]  # type: ignore[union-attr]
    assert codes == ["no_group", "opened_again"]

    settings = settings_of(bootstrap, f"{prefix}-2")
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        swarm.add(group, ["m4", "m5"], **SOON)
        swarm.start()
        await swarm.until_all_run(group, 6, ["m4", "m5"])
        assert not swarm.overlaps
    assert document("verify", place)["verdict"] == "identical"
    led = rows_in(place)[partition]
    assert led[: len(former[partition])] == former[partition]
    times_ms = [row.append_ms for row in led if isinstance(row, FactRow)]
    assert len(times_ms) > position[partition]
    assert max(times_ms[: position[partition]]) < times_ms[position[partition]]


RESTORER = """
import sys
from equipoise.log.kafka import log_restore
log_restore._ROWS_A_BATCH = 3
from equipoise.__main__ import run
sys.argv = ["equipoise", "archive", sys.argv[1], "--to", sys.argv[2]]
run()
"""


async def test_log_of_one_partition_is_restored_from_a_file(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """Kafka's side works in a thread of its own, which reads the file's rows."""
    place, file = f"kafka://{bootstrap}/{prefix}", str(tmp_path / "backup.db")
    Leader(bootstrap, prefix, partitions=1).publish(facts_of(0, 40))
    document("archive", place, "--to", file, "--final")
    restored = document("archive", file, "--to", f"{place}-2")
    assert restored["written"] == restored["facts"] + restored["decisions"] > 5
    assert rows_in(place) == rows_in(f"{place}-2")


@pytest.mark.slow
async def test_killed_restore_is_not_led_and_resumes(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    Leader(bootstrap, prefix).publish(facts_of(0, 80))
    backup, place = f"{tmp_path / 'backup'}/", f"kafka://{bootstrap}/{prefix}-2"
    document("archive", f"kafka://{bootstrap}/{prefix}", "--to", backup)
    archived, topics = rows_in(backup), Topics(f"{prefix}-2")
    connection = Connection(bootstrap=bootstrap)
    kills = 0
    while True:
        process = subprocess.Popen([sys.executable, "-c", RESTORER, backup, place], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
        at = await written(connection, topics)
        while process.poll() is None and kills < 3 and await written(connection, topics) <= at:
            pass
        if kills < 3:
            process.kill()
        if process.wait() == 0:
            break
        kills += 1
        if kills < 3:
            with pytest.raises(InputError, match=r"message.timestamp.type=CreateTime and needs LogAppendTime"):
                await ensure_topics(connection, topics, partitions=2)
    assert kills, "it was never killed"  # a fast machine may finish before the third time
    assert rows_in(place) == archived
    await ensure_topics(connection, topics, partitions=2)
    assert document("verify", place)["verdict"] == "identical"


async def written(connection: Connection, topics: Topics) -> int:
    """Number of records in the topic of facts; 0: it is not there yet."""
    if not await partition_count(connection, topics.facts):
        return 0
    places = [TopicPartition(topics.facts, partition) for partition in (0, 1)]
    async with reader(connection) as consumer:
        return sum((await consumer.end_offsets(places)).values())


async def test_restore_over_another_log_is_refused(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    Leader(bootstrap, prefix).publish(facts_of(0, 40))
    document("archive", f"kafka://{bootstrap}/{prefix}", "--to", f"{tmp_path / 'backup'}/")
    refused = equipoise("archive", f"{tmp_path / 'backup'}/", "--to", f"kafka://{bootstrap}/{prefix}")
    assert (refused.exit_code, refused.stderr) == (
        2,
        f"equipoise: topic {prefix}.facts exists and may be led; restore to another prefix, or delete all topics of this one\n",
    )
    for options in (["--final"], ["--follow"], ["--declare", "nightly"]):
        assert equipoise("archive", f"{tmp_path / 'backup'}/", "--to", f"kafka://{bootstrap}/{prefix}-2", *options).exit_code == 2
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(f"{prefix}-2.bases", 1, 1)])
    left_behind = equipoise("archive", f"{tmp_path / 'backup'}/", "--to", f"kafka://{bootstrap}/{prefix}-2")
    assert left_behind.exit_code == 2
    assert f"topic {prefix}-2.bases exists, and {prefix}-2.facts does not; delete it" in left_behind.stderr
