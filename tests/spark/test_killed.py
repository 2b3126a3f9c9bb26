"""kill -9 on streaming queries in the middle of a trigger, started again on the same checkpoint,
and on executors in the middle of a group.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from equipoise.log import open_log
from equipoise.replay.spark.groups import units_of
from equipoise.replay.spark.verify import verify_group
from tests.spark.conftest import settings
from tests.spark.leading import GROUPS, PARTITIONS, Leader, alerts_in, facts_of
from tests.spark.test_stream import run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

RECORDS_A_TRIGGER = "100"
MOST_S = 240


@pytest.fixture(scope="module")
def location(bootstrap: str) -> str:
    """A log of four groups, of which three reach a wrong decision, one after the other."""
    prefix = "killed"
    leader = Leader(bootstrap, prefix)
    for at, wrong in enumerate(("", "bills", "clicks", "carts")):
        leader.wrong = wrong
        leader.publish(facts_of(at * 20, at * 20 + 20))
        assert not leader.wrong, "it was spoilt"
    return f"kafka://{bootstrap}/{prefix}"


def killed(args: list[str], checkpoint: Path, folder: Path, is_time: Callable[[int], bool]) -> int:
    """Runs the query in a process of its own, and kills it with its children as soon as a trigger
    is under way and `is_time(trigger)`.

    Returns that trigger's number.
    """
    conf = [word for name, value in settings(folder / "warehouse").items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "equipoise", "spark", *args, "--checkpoint", str(checkpoint), "--once", "--most-records", RECORDS_A_TRIGGER]
    with open(folder / "killed.txt", "wb") as output:
        process = subprocess.Popen([*command, "--master", "local[2]", *conf], stdout=output, stderr=output, start_new_session=True)
    try:
        deadline_s = time.monotonic() + MOST_S
        while True:
            trigger = under_way(checkpoint)
            if trigger is not None and is_time(trigger):
                os.killpg(process.pid, signal.SIGSTOP)  # it may have gone on since that look
                trigger = under_way(checkpoint)
                if trigger is not None:
                    break
                os.killpg(process.pid, signal.SIGCONT)
            assert process.poll() is None, (folder / "killed.txt").read_text()
            assert time.monotonic() < deadline_s, (folder / "killed.txt").read_text()
            time.sleep(0.001)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return trigger


def under_way(checkpoint: Path) -> int | None:
    """Returns the trigger that has begun and not ended."""
    begun, ended = ({int(path.name) for path in (checkpoint / name).glob("[0-9]*")} for name in ("offsets", "commits"))
    return max(begun - ended, default=None)


def test_killed_verify_query_reports_everything_once(spark: Any, location: str, tmp_path: Path) -> None:
    """Killed when a trigger's rows are written and the trigger is not over, and again when a
    trigger has just begun.
    """
    alerts, checkpoint = tmp_path / "alerts", tmp_path / "checkpoint"
    args = ["stream", location, "--alerts", str(alerts)]
    first = killed(args, checkpoint, tmp_path, lambda trigger: len(alerts_in(alerts)) == 1)
    assert under_way(checkpoint) == first, "it was killed within a trigger"
    second = killed(args, checkpoint, tmp_path, lambda trigger: trigger > first)
    assert under_way(checkpoint) == second
    run(*args, "--checkpoint", str(checkpoint), code=1)

    never = tmp_path / "never"
    calm = run("stream", location, "--alerts", str(never), "--checkpoint", str(tmp_path / "calm"), code=1)
    assert calm["alerts"] == 3
    assert alerts_in(alerts) == alerts_in(never)
    assert {row["group"] for row in alerts_in(alerts)} == {"bills", "clicks", "carts"}


def test_killed_executors_change_no_result(fleet: Path, tmp_path: Path) -> None:
    """Two executors with their JVMs, on a cluster of processes: Spark loses their tasks and repeats
    them elsewhere.
    """
    archive = tmp_path / "archive"
    shutil.copytree(fleet, archive)
    command = [sys.executable, "-m", "tests.spark.executors", str(archive), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["ends"]["ExecutorLostFailure"] == len(list(archive.glob("_died-*"))) == 2
    assert sorted(output["rows"], key=itemgetter("group")) == [verify_group(unit) for unit in units_of([str(archive)])]


def test_killed_archive_query_archives_everything_once(spark: Any, location: str, tmp_path: Path) -> None:
    """Killed when a trigger has appended part of its records."""
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    args = ["stream", location, "--to", str(archive)]
    seen: dict[int, int] = {}

    def appended(trigger: int) -> bool:
        files = len(list(archive.glob("date=*/p*.parquet")))
        return trigger > 0 and files > seen.setdefault(trigger, files)

    trigger = killed(args, checkpoint, tmp_path, appended)
    assert under_way(checkpoint) == trigger
    written = run(*args, "--checkpoint", str(checkpoint))
    calm = run("stream", location, "--to", str(tmp_path / "never"), "--checkpoint", str(tmp_path / "calm"))
    assert {**written, "archive": ""} == {**calm, "archive": ""}
    assert written["records"] > PARTITIONS + len(GROUPS) * 80
    with open_log(archive) as ours, open_log(tmp_path / "never") as theirs:
        for group in GROUPS:
            assert list(ours.read(group=group)) == list(theirs.read(group=group))
