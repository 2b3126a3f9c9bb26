"""A live log in a real Kafka, verified and archived by real streaming queries that are stopped and
started again.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from equipoise.cli import main
from equipoise.cli.spark.stream import _metrics
from equipoise.log import open_log
from equipoise.log.kafka.envelope import partition_of
from equipoise.replay.spark.groups import units_of
from equipoise.replay.spark.timeline import spark_timeline
from equipoise.replay.spark.verify import spark_verify
from equipoise.replay.verification import verify
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.json_schemas import check
from tests.live.swarm import Swarm
from tests.live.test_bases import led, settings_of, until_deleted
from tests.spark.leading import GROUPS, PARTITIONS, Leader, alerts_in, facts_of
from tools.brokers import free_ports

pytestmark = pytest.mark.xdist_group("spark")


def run(*args: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["spark", *args, "--once", "--json"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.slow
def test_restarted_queries_verify_and_archive_a_live_log(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    prefix = "streamed"
    location = f"kafka://{bootstrap}/{prefix}"
    leader = Leader(bootstrap, prefix)
    leader.publish(facts_of(0, 100))
    alerts, archive = tmp_path / "alerts", tmp_path / "archive"
    verifying = ("stream", location, "--alerts", str(alerts), "--checkpoint", str(tmp_path / "stream"))
    archiving = ("stream", location, "--to", str(archive), "--checkpoint", str(tmp_path / "archiving"))

    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        first = run(*verifying)
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7", "the user's setting stays"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    settings = json.loads((tmp_path / "stream" / "offsets" / "0").read_text().splitlines()[1])["conf"]
    assert settings["spark.sql.shuffle.partitions"] == str(PARTITIONS), "the checkpoint keeps state in as many parts as the log has partitions"
    assert (first["facts"], first["alerts"]) == (PARTITIONS + 400, 0)
    assert first["decisions"] > 10
    assert alerts_in(alerts) == []
    run(*archiving)

    leader.wrong = "bills"
    leader.publish(facts_of(100, 150))
    second = run(*verifying, "--most-records", "200", code=1)
    assert (second["facts"], second["alerts"]) == (200, 1)
    check("spark-stream", second)
    (alert,) = alerts_in(alerts)
    assert (alert["group"], alert["partition"], alert["verdict"]) == ("bills", partition_of("bills", PARTITIONS), "divergence")
    with open_log(location) as log:
        (expected,) = verify(log.read(group="bills")).groups
    assert expected.divergence is not None
    assert (alert["offset"], alert["problem"]) == (expected.offset, expected.divergence.problem)
    assert json.loads(alert["document"])["divergence"]["stored"] == expected.document()["divergence"]["stored"]

    leader.publish(facts_of(150, 160))
    third = run(*verifying)
    assert (third["facts"], third["alerts"]) == (40, 0)
    assert len(alerts_in(alerts)) == 1

    written = run(*archiving)
    assert run(*archiving) == written
    check("spark-stream", written)
    with open_log(location) as log, open_log(archive) as copy:
        for group in GROUPS:
            ours, theirs = list(copy.read(group=group)), list(log.read(group=group))
            assert len(ours) > 50
            assert ours == theirs[: len(ours)]
        assert copy.count() == written["records"]


async def bounded(settings: WorkerSettings) -> None:
    """A log whose worker has deleted its first records."""
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await led(settings, swarm, ("a", "b"))
        await until_deleted(settings)


@pytest.mark.slow
def test_queries_of_a_log_that_begins_at_a_base_begin_there(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    settings = settings_of(bootstrap, "bounded")
    asyncio.run(bounded(settings))
    location, alerts, archive = f"kafka://{bootstrap}/bounded", tmp_path / "alerts", tmp_path / "archive"
    streamed = run("stream", location, "--alerts", str(alerts), "--checkpoint", str(tmp_path / "stream"))
    with open_log(location) as log:
        expected = verify(log.read())
    assert expected.begins is not None
    compared = sum(each.compared for each in expected.groups)
    assert (streamed["facts"], streamed["alerts"]) == (expected.records - 1 - len(expected.groups) - compared, 0)
    run("stream", location, "--to", str(archive), "--checkpoint", str(tmp_path / "archiving"))
    with open_log(archive) as copy:
        assert verify(copy.read()).begins == expected.begins
    rows = {row["group"]: row for row in spark_verify(spark, units_of([str(archive)])).collect()}
    assert {name: row["verdict"] for name, row in rows.items()} == {"a": "identical", "b": "identical"}
    assert all(json.loads(row["document"])["begins"] is not None for row in rows.values())
    tables = spark_timeline(spark, units_of([str(archive)]))
    assert {row["member_id"] for row in tables["members"].collect()} == {"m1", "m2"}


def test_stream_location_that_is_no_live_log_is_refused_first(spark: Any, tmp_path: Path) -> None:
    for location, says in (("group.db", "not a log in Kafka"), ("kafka://127.0.0.1:1/x?partition=1", "leave out ?partition")):
        result = CliRunner().invoke(main, ["spark", "stream", location, "--alerts", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c")])
        assert result.exit_code == 2
        assert says in result.stderr


@pytest.mark.smoke
def test_counts_are_served_to_prometheus() -> None:
    (port,) = free_ports(1)
    totals = {"facts": 3, "alerts": 0}
    with _metrics(port, totals):
        totals["alerts"] += 2
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            page = answer.read().decode()
    assert "equipoise_stream_facts 3.0" in page
    assert "equipoise_stream_alerts 2.0" in page


@pytest.mark.parametrize(
    ("hidden", "says"),
    [
        ("sys.modules['pyspark.sql'] = None", "Spark needs the extra: pip install 'equipoise[spark]'"),
        ("os.environ['PATH'] = ''; os.environ.pop('JAVA_HOME', None)", "Spark needs Java 17 or later: install one"),
    ],
)
def test_spark_missing_dependency_names_the_fix(hidden: str, says: str) -> None:
    code = (
        f"import os, sys\nfrom equipoise.events.errors import InputError\nfrom equipoise.replay.spark.session import session\n{hidden}\n"
        "try:\n    session()\nexcept InputError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(says)
