"""`python -m bench.faust`: a Faust application with its stock assignor, and with equipoise's.

MEMBERS workers with a table in RocksDB and one standby per task are restarted one after the other,
then another one joins, while every task receives records. Per action:

- *unavailable task-seconds*: how long records wait, as `bench.peers.waits` has it,
- *restored*: records read from changelogs for tasks that stand still until they are read, and for
  standbys and warm-ups,
- *rebalances*: of the whole group,
- *lost*: records that were never answered, of those after the start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench.__main__ import environment
from bench.peers.__main__ import one_broker
from bench.peers.actions import Run, run
from bench.peers.apps.faust_counted_app import FILE
from bench.peers.feed import Load
from bench.peers.systems import Faust, Instance, PythonInstance

KINDS = {"stock": "Faust, stock assignor", "led": "Faust, led by equipoise"}
ACTIONS = {"restart": "rolling restart", "join": "one joins"}
COLUMNS = (
    "system",
    "action",
    "task-s unavailable",
    "longest, s",
    "owners changed",
    "restored, standing",
    "restored, copies",
    "rebalances",
    "lost, of both actions",
)
_GENERATION = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\].*Successfully synced group \S+ with generation (\d+)")


class Counted(Faust):
    """`kind`: a key of KINDS."""

    kind = ""

    def start(self, instance: str) -> Instance:
        out, given = self.folder / f"{instance}.out", self.given(instance).pack()
        return PythonInstance(out, "bench.peers.apps.faust_counted_app", self.kind, given, "worker", "--loglevel", "info", "--without-web")

    def restored(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """Records restored between the two times: for tasks that stand still, for copies."""
        lines = [tuple(map(int, line.split())) for file in self.folder.glob(f"state/*/{FILE}") for line in file.read_text().splitlines()]
        within = [line for line in lines if begin_ms <= line[0] < end_ms]
        return sum(line[1] for line in within), sum(line[2] for line in within)

    def generations(self, begin_ms: int, end_ms: int) -> int:
        """Generations of the group that began between the two times."""
        found = set()
        for file in self.folder.glob("*.out"):
            for at, millis, generation in _GENERATION.findall(file.read_text(errors="replace")):
                at_ms = int(time.mktime(time.strptime(at, "%Y-%m-%d %H:%M:%S"))) * 1_000 + int(millis)
                if begin_ms <= at_ms < end_ms:
                    found.add(generation)
        return len(found)


def measured(bootstrap: str, kind: str, folder: Path, load: Load, standbys: int, **how: Any) -> list[list[str]]:
    """A row for each action. `how`: of `bench.peers.actions.run`."""
    name = f"faust-{kind}-{time.time_ns() // 1_000_000}"
    system = Counted(bootstrap, name, folder / name, load, standbys)
    system.kind, system.label = kind, KINDS[kind]
    done = asyncio.run(run(system, load, tuple(ACTIONS), report=lambda line: click.echo(line, err=True), **how))
    return [_row(system, done, action) for action in ACTIONS]


def _row(system: Counted, done: Run, action: str) -> list[str]:
    steps = [step for step in done.steps if step.action == action]
    begin_ms, end_ms = steps[0].begin_ms, min((step.begin_ms for step in done.steps if step.begin_ms > steps[-1].begin_ms), default=2**62)
    restored = system.restored(begin_ms, end_ms)
    costs = [step.cost for step in steps]
    over = "" if all(cost.settled for cost in costs) else "over "
    return [
        system.label,
        ACTIONS[action],
        f"{over}{sum(cost.unavailable_ms for cost in costs) / 1_000:.1f}",
        f"{max(cost.longest_still_ms for cost in costs) / 1_000:.1f}",
        str(sum(cost.moves for cost in costs)),
        f"{restored[0]:,}",
        f"{restored[1]:,}",
        str(system.generations(begin_ms, end_ms)),
        str(done.unanswered_later),
    ]


@click.command()
@click.option("--tasks", default=20, show_default=True, help="Partitions of the input.")
@click.option("--state-mb", default=20, show_default=True, help="State of all tasks, loaded before the first worker starts.")
@click.option("--per-second", default=10.0, show_default=True, help="Records per second for each task.")
@click.option("--members", default=4, show_default=True)
@click.option("--standbys", default=1, show_default=True, help="table_standby_replicas.")
@click.option("--kinds", default=",".join(KINDS), show_default=True)
@click.option("--rest-s", default=4.0, show_default=True, help="Time without changes after which an action is over.")
@click.option("--most-s", default=120.0, show_default=True, help="Time after which an unsettled action is cut off.")
@click.option("--warm-s", default=10.0, show_default=True, help="Time after the start, for standbys to be restored.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Folder for logs and states; default: they are removed.")
def main(
    tasks: int,
    state_mb: int,
    per_second: float,
    members: int,
    standbys: int,
    kinds: str,
    rest_s: float,
    most_s: float,
    warm_s: float,
    keep: Path | None,
) -> None:
    """Measures a Faust application with its stock assignor and with equipoise's."""
    logging.getLogger("aiokafka").setLevel(logging.ERROR)  # a new topic answers that it has no leader yet
    load = Load(tasks=tasks, state_mb=state_mb, per_s=per_second)
    folder = keep or Path(tempfile.mkdtemp(prefix="equipoise-faust-"))
    print(f"{environment()}; {members} workers, {tasks} tasks, {state_mb} MB of state, {per_second:g} records/s for each task, {standbys} standbys\n")
    rows = []
    with one_broker(os.environ.get("KAFKA_BOOTSTRAP")) as bootstrap:
        for kind in kinds.split(","):
            rows += measured(bootstrap, kind, folder, load, standbys, members=members, rest_s=rest_s, most_s=most_s, warm_s=warm_s)
    for row in (COLUMNS, ["---"] * len(COLUMNS), *rows):
        print(f"| {' | '.join(row)} |")
    if keep is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
