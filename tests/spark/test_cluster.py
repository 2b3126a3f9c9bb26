"""On a cluster of Spark whose executors share no folder with the driver but the archive: a
standalone master, and a worker in a mount namespace in which the driver's folder is another one, as
on a second machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.find_spark_home import _find_spark_home

from equipoise.replay.spark.timeline import TABLES

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow]

STARTS_S = 60.0
ENDS_S = 240.0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Cluster:
    """A master and its workers. `hidden`: a folder that workers do not see as others do."""

    def __init__(self, folder: Path, hidden: Path) -> None:
        self._folder, self._hidden = folder, hidden
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://127.0.0.1:{free_port()}"

    def start(self, workers: int = 1) -> None:
        host, port = self._address
        self._begin("master", ["org.apache.spark.deploy.master.Master", "--host", host, "--port", port, "--webui-port", "0"])
        for _ in range(workers):
            self._begin_worker()
        for number in range(workers):
            self.wait_for(number, "Successfully registered with master")

    @property
    def _address(self) -> list[str]:
        return self.url.removeprefix("spark://").split(":")

    def _begin_worker(self) -> int:
        number = len(self._workers)
        work = self._folder / f"work{number}"
        options = ["--host", self._address[0], "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url]
        self._begin(f"worker{number}", ["org.apache.spark.deploy.worker.Worker", *options], hides=True)
        return number

    def add_worker(self) -> int:
        """Returns its number, when it has registered."""
        number = self._begin_worker()
        self.wait_for(number, "Successfully registered with master")
        return number

    def wait_for(self, worker: int, words: str) -> None:
        """Until the worker has said so."""
        until_s = time.monotonic() + STARTS_S
        while words not in self._said(f"worker{worker}"):
            assert time.monotonic() < until_s, self._said(f"worker{worker}")
            time.sleep(0.1)

    def _begin(self, name: str, command: list[str], *, hides: bool = False) -> None:
        command = [f"{_find_spark_home()}/bin/spark-class", *command]
        if hides:
            own = ["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"]
            command = ["unshare", *own, "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(self._hidden), *command]
        environment = {**os.environ, "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
        with open(self._folder / f"{name}.log", "wb") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True))

    def _said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def kill_executor(self) -> None:
        """With kill -9, a moment after one has begun to work."""
        until_s = time.monotonic() + STARTS_S
        while not (executors := self._executors()):
            assert time.monotonic() < until_s, "no executor"
            time.sleep(0.1)
        time.sleep(4)
        os.kill(executors[0], signal.SIGKILL)

    def _executors(self) -> list[int]:
        """Processes that the workers have begun."""
        sessions, found = {process.pid for process in self._workers}, []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                is_one = b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes()
                if is_one and int((folder / "stat").read_text().rpartition(")")[2].split()[3]) in sessions:
                    found.append(int(folder.name))
        return found

    def kill_worker(self, number: int) -> None:
        """With its executors."""
        process = self._workers[number]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def _workers(self) -> list[subprocess.Popen[bytes]]:
        return self._processes[1:]

    def stop(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder of the driver's machine."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def cluster(tmp_path: Path, here: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, here)
    try:
        made.start(workers=2)
        yield made
    finally:
        made.stop()


def begun(cluster: Cluster | None, here: Path, *args: str) -> subprocess.Popen[str]:
    """A command in a process of its own, on the cluster, or on this machine."""
    where = () if cluster is None else ("--master", cluster.url, "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m")
    command = [sys.executable, "-m", "equipoise", "spark", *args, *where, "--json"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here, env=environment, start_new_session=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """Its exit code and its JSON."""
    said, errors = process.communicate(timeout=ENDS_S)
    assert said, errors
    return process.returncode, json.loads(said)


def run(cluster: Cluster | None, here: Path, *args: str) -> tuple[int, dict[str, Any]]:
    return ended(begun(cluster, here, *args))


def rows_in(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(sorted(map(str, folder.glob("*.parquet")))).to_table().to_pylist()
    return rows


def files_in(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_results_of_executors_elsewhere_arrive_whole(cluster: Cluster, fleet: Path, here: Path) -> None:
    for args, folders in ((("verify",), [""]), (("what-if", "--sweep", "max_warmups=1,2", "--seeds", "1"), ["costs", "ranking"])):
        command, *options = args
        answers = [run(where, here, command, str(fleet), *options, "--to", name) for where, name in ((None, "local"), (cluster, "cluster"))]
        assert answers[0] == answers[1]
        for each in folders:
            assert rows_in(here / "cluster" / each) == rows_in(here / "local" / each) != []
        assert files_in(here / "cluster") == sorted(["_equipoise.json", *(str(Path(each, "rows.parquet")) for each in folders)])
        for name in ("local", "cluster"):
            shutil.rmtree(here / name)
    assert [run(where, here, "timeline", str(fleet), "--to", name)[0] for where, name in ((None, "local"), (cluster, "cluster"))] == [0, 0]
    for table in ("groups", *TABLES):
        assert rows_in(here / "cluster" / table) == rows_in(here / "local" / table), table
    assert len(rows_in(here / "cluster" / "moves")) > 0


def test_job_outlives_an_executor_and_a_worker_and_a_killed_one_replaces_nothing(cluster: Cluster, fleet: Path, here: Path) -> None:
    work = "what-if", str(fleet), "--sweep", "max_warmups=1,2,3", "--seeds", "3"
    expected = run(None, here, *work, "--to", "local")
    job = begun(cluster, here, *work, "--to", "cluster")
    cluster.kill_executor()
    time.sleep(3)
    assert job.poll() is None, "it is at work"
    cluster.kill_worker(1)
    assert ended(job) == expected
    rows = rows_in(here / "cluster" / "costs")
    assert rows == rows_in(here / "local" / "costs") != []
    killed = begun(cluster, here, *work, "--to", "cluster")
    cluster.kill_executor()
    os.killpg(killed.pid, signal.SIGKILL)  # the driver
    killed.communicate()
    assert rows_in(here / "cluster" / "costs") == rows
    assert run(cluster, here, *work, "--to", "cluster") == expected


DYNAMIC = {
    "dynamicAllocation.enabled": "true",
    "dynamicAllocation.shuffleTracking.enabled": "true",
    "dynamicAllocation.minExecutors": "0",
    "dynamicAllocation.schedulerBacklogTimeout": "1s",
    "dynamicAllocation.executorIdleTimeout": "2s",
    "dynamicAllocation.shuffleTracking.timeout": "5s",
    "eventLog.enabled": "true",
    "eventLog.rolling.enabled": "false",
    "eventLog.compress": "false",
}
"""An executor without kept rows ends soon when it has nothing to do, with what it has shuffled."""


def wait_for_executors(log: Path, number: int) -> None:
    """Until so many have registered with the driver, by its log of events."""
    until_s = time.monotonic() + STARTS_S
    while sum(each.read_text().count("SparkListenerExecutorAdded") for each in log.iterdir()) < number:
        assert time.monotonic() < until_s, [each.read_text()[-2_000:] for each in log.iterdir()]
        time.sleep(0.1)


def test_executors_that_come_and_go_change_no_result(cluster: Cluster, fleet: Path, here: Path) -> None:
    """With dynamic allocation. A machine is lost meanwhile, and another one is added."""
    work = "what-if", str(fleet), "--sweep", "max_warmups=1,2", "--seeds", "1"
    expected = run(None, here, *work, "--to", "local")
    (here / "log").mkdir()
    settings = [word for name, value in {**DYNAMIC, "eventLog.dir": str(here / "log")}.items() for word in ("--conf", f"spark.{name}={value}")]
    job = begun(cluster, here, *work, "--to", "cluster", *settings)
    wait_for_executors(here / "log", 2)
    added = cluster.add_worker()
    cluster.kill_worker(1)
    cluster.wait_for(added, "Asked to launch executor")
    wait_for_executors(here / "log", 3)
    assert ended(job) == expected
    for table in ("costs", "ranking"):
        assert rows_in(here / "cluster" / table) == rows_in(here / "local" / table) != []
    (log,) = (here / "log").iterdir()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    counts = Counter(event["Event"].removeprefix("SparkListener") for event in events)
    assert counts["ExecutorAdded"] >= 3
    assert counts["ExecutorRemoved"] >= 1
