"""Runs every Spark job over a simulated fleet: simulates and archives it, damages one group, runs
verify, timeline and what-if on Spark, and compares with the plain functions, one group at a time.
Both answers must be identical, and the damaged group must have one error row.

::

    python -m bench.fleet    # 200 groups, 5,000,000 records: an hour of two cores
    python -m bench.fleet --folder out/small --groups 10 --records 250000

Each stage leaves its answer in the folder. An interrupted run continues where it ended: with the
remaining groups to simulate, the unanswered Spark job, the remaining groups of the plain functions.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import attrs
import click
import pyarrow as pa
import pyarrow.dataset as ds

from bench.__main__ import environment
from equipoise.cli.command import command
from equipoise.cli.screen import Screen, Table
from equipoise.events.errors import InputError
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.archive_writing import Writer
from equipoise.log.parquet.files import batches, make_archive, part_of
from equipoise.log.parquet.files import schema as archive_schema
from equipoise.log.parquet.snapshot import commit, look_at
from equipoise.replay.spark.groups import Unit, units_of
from equipoise.replay.spark.result_tables import write_tables
from equipoise.replay.spark.session import session
from equipoise.replay.spark.timeline import TABLES, plain_tables, spark_timeline
from equipoise.replay.spark.verify import spark_verify, verify_group
from equipoise.replay.spark.what_if import what_if_group, what_if_rows
from equipoise.replay.whatif.evaluate import Configuration
from examples.fleet.many_groups import Fleet, make_group

CORES = os.cpu_count() or 1
SEEDS = (0,)
ASKED = (Configuration(name="one slot", settings={"max_warmups": 1}), Configuration(name="a standby", settings={"num_standbys": 1}))
REPORT_EVERY_S = 15
Answers = dict[str, Any]
"""Group -> a job's answer, as JSON."""


# ----------------------------------------------------------------------------------------- the jobs


def _verify_plain(unit: Unit) -> Any:
    return verify_group(unit)


def _verify_spark(spark: Any, units: Sequence[Unit], folder: Path) -> Answers:
    return {row["group"]: row.asDict() for row in spark_verify(spark, units).collect()}


def _timeline_plain(unit: Unit) -> Any:
    return plain_tables([unit])


def _timeline_spark(spark: Any, units: Sequence[Unit], folder: Path) -> Answers:
    tables = spark_timeline(spark, units)
    write_tables(tables, folder / "history")
    tables.close()
    found: Answers = {unit.group: {name: [] for name in ("groups", *TABLES)} for unit in units}
    for name in ("groups", *TABLES):
        for batch in ds.dataset(folder / "history" / name).to_batches():
            for row in batch.to_pylist():
                found[row["group"]][name].append(row)
    return found


def _what_if_plain(unit: Unit) -> Any:
    return what_if_group(unit, ASKED, SEEDS)


def _what_if_spark(spark: Any, units: Sequence[Unit], folder: Path) -> Answers:
    return {row["group"]: row.asDict(recursive=True) for row in what_if_rows(spark, units, ASKED, SEEDS).collect()}


@attrs.frozen
class Job:
    """`problem`: why there is no answer, in an answer; None: there is one."""

    name: str
    plain: Callable[[Unit], Any]
    spark: Callable[[Any, Sequence[Unit], Path], Answers]
    problem: Callable[[Any], str | None]


JOBS = (
    Job("verify", _verify_plain, _verify_spark, lambda answer: None if answer["verdict"] == "identical" else answer["problem"]),
    Job("timeline", _timeline_plain, _timeline_spark, lambda answer: answer["groups"][0]["problem"]),
    Job("what-if", _what_if_plain, _what_if_spark, lambda answer: answer["problem"]),
)


def first_difference(ours: Any, theirs: Any, place: str = "") -> str | None:
    """The first difference of two answers as text, or None."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs = [(f"{place}.{name}", ours.get(name), theirs.get(name)) for name in sorted({*ours, *theirs})]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(f"{place}[{at}]", one, other) for at, (one, other) in enumerate(zip(ours, theirs, strict=True))]
    else:
        return None if ours == theirs and type(ours) is type(theirs) else f"{place}: {ours!r:.80} and {theirs!r:.80}"
    return next((found for each, one, other in pairs if (found := first_difference(one, other, each)) is not None), None)


# ------------------------------------------------------------------------------------------- stages


@attrs.define
class Stage:
    """The record of one stage over all runs."""

    seconds: float = 0.0
    done: list[str] = attrs.Factory(list)
    """Finished groups of a stage that works group by group."""
    over: bool = False


class Run:
    """One fleet in one folder."""

    def __init__(self, fleet: Fleet, folder: Path, beside_every: int, report: Callable[[str], None]) -> None:
        self.fleet, self.folder, self.beside_every, self.report = fleet, folder, beside_every, report
        self.archive = folder / "archive"
        self._notes = folder / "stages.json"
        folder.mkdir(parents=True, exist_ok=True)
        noted = json.loads(self._notes.read_text()) if self._notes.exists() else {"fleet_is": attrs.asdict(fleet), "stages": {}}
        if noted["fleet_is"] != attrs.asdict(fleet):
            raise InputError(f"--folder {folder}: holds a fleet of other sizes or another seed; name another folder")
        self.stages = {name: Stage(**each) for name, each in noted["stages"].items()}

    def _stage(self, name: str) -> Stage:
        return self.stages.setdefault(name, Stage())

    def _note(self) -> None:
        part = self._notes.with_suffix(".part")
        part.write_text(
            json.dumps({"fleet_is": attrs.asdict(self.fleet), "stages": {name: attrs.asdict(each) for name, each in self.stages.items()}})
        )
        os.replace(part, self._notes)

    def _work(self, name: str, label: str, total: int, tasks: Iterable[tuple[str, int, Callable[..., Any], tuple[Any, ...]]]) -> Iterator[Any]:
        """Runs tasks (group, size, function, arguments) in processes and records each finished one.
        `total`: total size of the stage.
        """
        stage = self._stage(name)
        with ProcessPoolExecutor(CORES, mp_context=multiprocessing.get_context("spawn")) as pool:
            running: dict[Future[Any], tuple[str, int]] = {}
            for group, size, function, arguments in tasks:
                running[pool.submit(function, *arguments)] = (group, size)
            before_s, begin = stage.seconds, time.monotonic()
            done, reported_s = total - sum(size for _, size in running.values()), begin
            for each in as_completed(running):
                group, size = running[each]
                yield group, each.result()
                stage.done.append(group)
                stage.seconds = before_s + time.monotonic() - begin
                self._note()
                done += size
                if time.monotonic() - reported_s >= REPORT_EVERY_S:
                    reported_s = time.monotonic()
                    self.report(f"{label}: {done:,} of {total:,} records, {stage.seconds:.0f} s")
        stage.over = True
        self._note()

    def simulate(self) -> None:
        stage = self._stage("fleet")
        if stage.over:
            return
        make_archive(store_at(self.archive))
        sizes = [(f"g{index:03}", index, size) for index, size in enumerate(self.fleet.sizes())]
        tasks = ((group, size, make_group, (self.fleet, index, size, self.archive)) for group, index, size in sizes if group not in stage.done)
        for _ in self._work("fleet", "simulating", sum(self.fleet.sizes()), tasks):
            pass

    @property
    def poisoned(self) -> str:
        return f"g{self.fleet.groups // 2:03}"

    def poison(self) -> None:
        """Changes the time of one fact of the middle group, in an otherwise valid file."""
        stage = self._stage("poison")
        if stage.over:
            return
        partition = self.fleet.groups // 2
        store = store_at(self.archive)
        files = look_at(store, partition)
        part = files.parts[len(files.parts) // 2]
        writer = Writer(store, partition, part.first_row, part.first_offset, 0, hidden="poison")
        changed = False
        for batch in batches(part):
            rows = batch.to_pylist()
            if not changed and writer.next_row - part.first_row + len(rows) > part.rows // 2:
                row = next(row for row in rows[len(rows) // 2 :] if row["append_ms"] is not None)
                row["append_ms"] += 1
                changed = True
            writer.add_batch(pa.RecordBatch.from_pylist(rows, schema=archive_schema()), part.day, part.next_offset)
        other = [found for name in writer.publish() if (found := part_of(store, name)) is not None]
        commit(store, files, lambda newest: newest.replaced([part], other, 0))
        (self.archive / part.name).unlink()
        stage.over = True
        self._note()

    def on_spark(self, job: Job, units: Sequence[Unit], session_of: Callable[[], Any]) -> Answers:
        """Spark's answers for all groups; computed once, then read from the folder."""
        stage, kept = self._stage(f"spark {job.name}"), self.folder / f"spark-{job.name}.json"
        if not stage.over:
            spark = session_of()
            begin = reported_s = time.monotonic()
            with ThreadPoolExecutor(1) as thread:
                asked = thread.submit(job.spark, spark, units, self.folder)
                while not asked.done():
                    time.sleep(0.05)
                    if time.monotonic() - reported_s >= REPORT_EVERY_S:
                        reported_s = time.monotonic()
                        self.report(f"spark {job.name}: {_tasks(spark)}{reported_s - begin:.0f} s")
            stage.seconds = time.monotonic() - begin
            kept.write_text(json.dumps(asked.result()))
            stage.over = True
            self._note()
        answers: Answers = json.loads(kept.read_text())
        return answers

    def plainly(self, job: Job, units: Sequence[Unit]) -> Answers:
        """The plain function's answers, group by group, in one process per core."""
        name, folder = f"plain {job.name}", self.folder / f"plain-{job.name}"
        folder.mkdir(exist_ok=True)
        stage = self._stage(name)
        if not stage.over:
            left = [unit for unit in sorted(units, key=lambda unit: -unit.records) if unit.group not in stage.done]
            total = sum(unit.records for unit in units)
            for group, answer in self._work(name, name, total, ((unit.group, unit.records, job.plain, (unit,)) for unit in left)):
                (folder / f"{group}.json").write_text(json.dumps(answer))
        return {unit.group: json.loads((folder / f"{unit.group}.json").read_text()) for unit in units}

    def row_of(self, job: Job, units: Sequence[Unit], session_of: Callable[[], Any]) -> dict[str, Any]:
        """One row of the answer: the job on Spark compared with the plain functions."""
        ours = self.on_spark(job, units, session_of)
        compared = [unit for at, unit in enumerate(units) if job.name != "what-if" or at % self.beside_every == 0 or unit.group == self.poisoned]
        theirs = self.plainly(job, compared)
        differences = [f"{group}{found}" for group in theirs if (found := first_difference(ours.get(group), theirs[group])) is not None]
        problems = {group: problem for group, answer in sorted(ours.items()) if (problem := job.problem(answer)) is not None}
        seconds, plain_s = self.stages[f"spark {job.name}"].seconds, self.stages[f"plain {job.name}"].seconds
        records, compared_records = (sum(unit.records for unit in of) for of in (units, compared))
        expected = list(problems) == [self.poisoned] and set(ours) == {unit.group for unit in units}
        return {
            "stage": f"spark {job.name}",
            "seconds": round(seconds, 1),
            "records_per_s": round(records / seconds),
            "plain_records_per_s": round(compared_records / plain_s),
            "groups_compared": len(compared),
            "beside_plain": differences[0] if differences else "identical",
            "error_rows": "; ".join(f"{group}: {problem}" for group, problem in problems.items()) or "none",
            "holds": expected and not differences,
        }


def _tasks(spark: Any) -> str:
    """Progress of the running stages."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    return "".join(f"{each.numCompletedTasks} of {each.numTasks} tasks, " for each in stages if each is not None)


@command("fleet", short_help="A whole fleet through every job over many groups.")
@click.option("--groups", type=click.IntRange(2), default=200, show_default=True, help="Number of groups; their sizes fall with 1/rank.")
@click.option("--records", type=click.IntRange(1), default=5_000_000, show_default=True, help="Facts and decisions of all groups together.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the simulation.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("out/fleet"), show_default=True, help="Folder of archive and answers.")
@click.option("--beside-every", type=click.IntRange(1), default=1, show_default=True, help="what-if: compare every N-th group with plain.")
def fleet(screen: Screen, groups: int, records: int, seed: int, folder: Path, beside_every: int) -> int:
    """Simulates a fleet, damages one group, runs verify, timeline and what-if on Spark, and
    compares with the plain functions.

    Exit code 0: all answers are identical, and only the damaged group has an error; else 1.

    \b
    Examples:
      python -m bench.fleet --folder out/small --groups 10 --records 250000
      python -m bench.fleet --beside-every 10
    """
    where = environment()
    run = Run(Fleet(groups=groups, records=records, seed=seed), folder, beside_every, screen.remark)
    run.simulate()
    run.poison()
    units = units_of([str(run.archive)])
    written = sum(unit.records for unit in units)
    started: list[Any] = []

    def session_of() -> Any:
        if not started:
            started.append(session()[0])
        return started[0]

    try:
        rows = []
        for job in JOBS:
            rows.append(run.row_of(job, units, session_of))
            screen.remark(" ".join(f"{name}={value}" for name, value in rows[-1].items()))
    finally:
        for spark in started:
            spark.stop()
    seconds = run.stages["fleet"].seconds
    head = {"stage": "fleet, archived", "seconds": round(seconds, 1), "records_per_s": round(written / seconds)}
    columns: tuple[str, ...] = ("stage", "seconds", "records_per_s", "plain_records_per_s", "groups_compared", "beside_plain", "error_rows")
    table = Table(
        columns=tuple(name.replace("_", " ") for name in columns), rows=[tuple(row.get(name, "") for name in columns) for row in (head, *rows)]
    )
    document = {"environment": where, "groups": groups, "records": written, "damaged": run.poisoned, "stages": [head, *rows]}
    screen.answer(document, f"{where}; {groups} groups, {written:,} records, {run.poisoned} damaged", table)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    fleet.main(prog_name="python -m bench.fleet")
