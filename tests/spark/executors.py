"""A Spark cluster on this machine, with executors in processes of their own, some of which are
killed with kill -9 in the middle of a group's log.

`python -m tests.spark.executors ARCHIVE FOLDER` verifies an archive on it, and prints the rows and
how executors ended as one JSON document. It runs in a process of its own because a process has one
Spark only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from pyspark.find_spark_home import _find_spark_home

from equipoise.events.records import Entry
from equipoise.replay.spark.groups import Unit, over_groups, units_of
from equipoise.replay.spark.session import session
from equipoise.replay.spark.verify import schema, verify_group

MASTER = "local-cluster[2,1,1024]"
MORTAL = 2
"""Number of groups whose fold kills its executor."""


@attrs.frozen(kw_only=True)
class Mortal(Unit):
    """A group whose worker is killed in the middle of the group's log, as the kernel's
    out-of-memory killer does, the first time that it is folded; or the worker's executor: JVM,
    Python and all its other tasks.
    """

    executor: bool = False

    def entries(self) -> Iterator[Entry]:
        mark = Path(self.location.partition("?")[0]) / f"_died-{self.group}"
        for at, entry in enumerate(super().entries()):
            if at == self.records // 2 and not mark.exists():
                mark.touch()
                os.kill(parent_of(os.getppid()) if self.executor else os.getpid(), signal.SIGKILL)  # a worker's parent is a daemon, its the executor
            yield entry


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ends_of_tasks(log: Path) -> dict[str, int]:
    """Returns reason -> number of tasks that ended with it, as Spark recorded them."""
    counts: dict[str, int] = {}
    for path in log.rglob("*"):
        for line in path.read_text().splitlines() if path.is_file() else ():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                reason = event["Task End Reason"]["Reason"]
                counts[reason] = counts.get(reason, 0) + 1
    return counts


def main(archive: str, folder: Path) -> dict[str, Any]:
    log = folder / "log"
    log.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(log),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.executor.memory": "512m",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark, _ = session(MASTER, settings)
    units = units_of([archive])
    mortal = [Mortal(location=unit.location, group=unit.group, records=unit.records, executor=True) for unit in units[:MORTAL]] + units[MORTAL:]
    rows = [row.asDict(recursive=True) for row in over_groups(spark, mortal, verify_group, schema()).collect()]
    work = Path(_find_spark_home()) / "work" / spark.sparkContext.applicationId
    spark.stop()
    shutil.rmtree(work, ignore_errors=True)  # what executors said; some may be saying goodbye
    return {"rows": rows, "ends": ends_of_tasks(log)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
