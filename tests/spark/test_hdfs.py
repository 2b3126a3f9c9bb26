"""Archives and results in a real HDFS: a file is there when it is whole, and a writer that is
killed at any step leaves the former or the new.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hdfs_native import Client
from pyarrow import parquet

from equipoise.cli import main
from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened, ProbingTick
from equipoise.events.records import Entry
from equipoise.log import open_log
from equipoise.log.parquet.archive_stores import remote_store, store_at
from equipoise.log.parquet.files import all_parts
from equipoise.replay.spark.groups import units_of
from equipoise.replay.spark.verify import verify_group
from tests.spark.test_batch import collected
from tests.unit.equipoise import test_delta_tables
from tests.unit.equipoise.test_delta_tables import NAMES, ROWS, put
from tools.brokers import classes, jars

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
HDFS = Path(__file__).with_name("hdfs")
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def name_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    libraries = f"{jars(HDFS / 'pom.xml')}/*"
    command = ["java", "-cp", f"{classes(HDFS / 'MiniHdfs.java', libraries)}:{libraries}", "MiniHdfs", str(tmp_path_factory.mktemp("hdfs"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port.isdecimal(), port
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


@pytest.fixture
def folder(name_node: str) -> str:
    return f"{name_node}/{uuid.uuid4().hex}"


def read_all(location: str | Path) -> list[Entry]:
    with open_log(location) as log:
        return list(log.read())


def run(*args: str) -> str:
    done = CliRunner().invoke(main, list(args), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def every_file(location: str) -> list[str]:
    """Also the hidden ones."""
    name_node, _, path = location.removeprefix("hdfs://").partition("/")
    return [each.path for each in Client(f"hdfs://{name_node}").list_status(f"/{path}", True) if not each.isdir]


def values(location: str, name: str) -> set[int]:
    """The values of a table that `put` has written."""
    store = store_at(location)
    with store.open(f"{name}/rows.parquet") as file:
        rows = parquet.read_table(file).column("value").to_pylist()
    assert len(rows) == ROWS
    return set(rows)


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "group.db"
    with open_log(path, "w") as log, log.transaction():
        log.append_fact("", 1, LogOpened(log_id="a1"))
        for at in range(1, 400):
            log.append_fact(f"g{at % 7}", at, ProbingTick())
    return path


COPIER = """
import sys
from equipoise.log import copying
copying._ROWS_A_TRANSACTION = 80
from equipoise.__main__ import run
sys.argv = ["equipoise", "archive", sys.argv[1], "--to", sys.argv[2]]
run()
"""


def test_archive_killed_again_and_again_misses_and_repeats_nothing(folder: str, long_log: Path) -> None:
    expected, seeds, archive = read_all(long_log), random.Random(7), f"{folder}/archive"
    kills = seen = 0
    while True:
        process = subprocess.Popen([sys.executable, "-c", COPIER, str(long_log), f"{archive}/"], cwd=ROOT, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(store_at(archive).names()) < seen + 2:
            time.sleep(0.002)
        time.sleep(seeds.random() * 0.02)
        process.kill()
        ended = process.wait()
        seen = len(store_at(archive).names())
        read = read_all(archive)
        assert read == expected[: len(read)], "what is there is the log's beginning, at any moment"
        if ended == 0:
            break
        kills += 1
    assert kills >= 2
    assert read_all(archive) == expected
    assert sum(part.rows for part in all_parts(store_at(archive))) == len(expected), "no row is stored twice"
    said = run("archive", f"{archive}/", "--compact")
    assert said.endswith("-> 1: 400 records merged\n")
    assert len(all_parts(store_at(archive))) == 1
    assert read_all(archive) == expected


def test_verdicts_and_results_over_hdfs_are_those_of_the_folder(spark: Any, fleet: Path, folder: str) -> None:
    archive, verified = f"{folder}/fleet/", f"{folder}/verified"
    remote_store(archive).upload_files(fleet, store_at(fleet).names())
    assert json.loads(run("verify", archive, "--json"))["verdict"] == "identical"
    wanted = ["spark", "verify", archive, "--to", verified, "--states", f"{folder}/states", "--json"]
    run(*wanted, "--group", "g00[01]")
    assert [row.group for row in spark.read.parquet(verified).orderBy("group").collect()] == ["g000", "g001"], "by Hadoop's own client"
    assert [(each["group"], each["verdict"]) for each in json.loads(run(*wanted))["groups"]] == [(f"g{at:03}", "identical") for at in range(4)]
    rows = json.loads(json.dumps(collected(spark.read.parquet(verified))).replace(archive.rstrip("/"), str(fleet)))
    assert rows == [verify_group(unit) for unit in units_of([str(fleet)])]


DYING = """
import os, signal, sys
import hdfs_native, pyarrow.parquet
from equipoise.log.parquet import hdfs
from tests.spark.test_batch import collected
from tests.unit.equipoise.test_delta_tables import NAMES, put

def dying(method):
    def call(*args, **options):
        global left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return method(*args, **options)
    return call

for kind, names in ((hdfs_native.Client, ("create", "rename")), (hdfs_native.FileWriter, ("write",))):
    for name in names:
        setattr(kind, name, dying(getattr(kind, name)))
for line in sys.stdin:
    left, child = int(line), os.fork()
    if not child:
        put(sys.argv[1], 2, NAMES)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextlib.contextmanager
def writers(place: str) -> Iterator[Callable[[int], int]]:
    """Yields what runs a writer of tables of 2 that is killed, with kill -9, when it has made so
    many requests, and returns its exit code.
    """
    process = subprocess.Popen([sys.executable, "-c", DYING, place], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def run(requests: int) -> int:
        print(requests, file=process.stdin, flush=True)
        return int(process.stdout.readline())  # type: ignore[union-attr]

    try:
        yield run
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def test_results_are_the_former_or_the_new_ones_wherever_their_writer_is_killed(folder: str) -> None:
    """A writer makes nine requests: it creates, writes and renames the mark, creates and writes two
    tables, and renames both.
    """
    place = f"{folder}/costs"
    found = []
    put(place, 1, NAMES)
    with writers(place) as killed_after:
        for requests in range(10):
            assert killed_after(requests) == (0 if requests == 9 else -signal.SIGKILL)
            found.append([values(place, name) for name in sorted(NAMES)])
    assert found == [[{1}, {1}]] * 8 + [[{2}, {1}], [{2}, {2}]]


def test_what_a_killed_writer_has_left_is_removed_after_a_day(folder: str) -> None:
    place = f"{folder}/costs"
    put(place, 1, NAMES)
    with writers(place) as killed_after:
        assert [killed_after(requests) for requests in (1, 6)] == [-signal.SIGKILL] * 2
    left = [path for path in every_file(place) if "/.upload-" in path]
    assert len(left) == 3
    client = Client(place)
    for path in left[:2]:
        before_ms = client.get_file_info(path).modification_time - DAY_MS - 60_000
        client.set_times(path, before_ms, before_ms)
    put(place, 2, NAMES)
    assert [path for path in every_file(place) if "/.upload-" in path] == left[2:]
    assert {min(values(place, name)) for name in NAMES} == {2}


def test_tables_of_delta_lake_in_hdfs_have_a_version_for_each_run(folder: str) -> None:
    for version in range(2):
        put(f"delta:{folder}/one", version * 10)
        assert test_delta_tables.values(f"{folder}/one") == (version, {version * 10})


def test_what_is_something_else_stays(folder: str) -> None:
    store_at(f"{folder}/mine").write_text("letter.txt", "dear")
    with pytest.raises(InputError, match="mine: holds something else than tables of equipoise, and stays as it is"):
        put(f"{folder}/mine", 1, NAMES)
    with pytest.raises(InputError, match="something else in it"):
        open_log(f"{folder}/mine", "w")
    assert store_at(f"{folder}/mine").read_text("letter.txt") == "dear"


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("hdfs://127.0.0.1:1/archive/", "Connection refused"),
        ("hdfs:///archive/", "No fs.defaultFS setting found"),
        ("hdfs://127.0.0.1:1/", "names no folder; write hdfs://namenode:8020/archive/"),
        ("hdfs:/archive/", "hdfs: is not supported; write hdfs:///archive/"),
    ],
)
def test_wrong_location_says_what_is_wrong(location: str, problem: str) -> None:
    done = CliRunner().invoke(main, ["verify", location])
    assert (done.exit_code, problem in done.stderr) == (2, True), done.stderr


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    done = CliRunner().invoke(main, ["verify", "hdfs://somewhere/archive/"])
    assert (done.exit_code, "pip install 'equipoise[hdfs]'" in done.stderr) == (2, True), done.stderr
