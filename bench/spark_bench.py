"""Jobs over many groups: Spark beside as many plain processes as there are cores, on the same work;
the archive of a worker, whose many groups share a partition, beside one process that verifies it;
and one long group in little memory.

The plain peer is what a careful user would write: a pool of processes, the groups dealt to them by
size, the same function of one group. Spark's session and its first Python workers are begun before,
and shown apart.

A sweep is measured three times: whole, with half of its configurations, with half of its groups.
Each is held against the same sweep without Spark: one pass over each log and every configuration
simulated, one group after the other in each process. So how the sizes of groups fall, and that the
factual configuration is simulated beside those asked for, makes no difference. And it is held
against the least that it could be: decoding each log once and folding its facts as often as there
are configurations, in as many processes.

By default it takes about five minutes on two cores. Larger sizes take longer in proportion::

    BENCH_SWEEP_GROUPS=200 BENCH_SWEEP_RECORDS=60000 BENCH_CONFIGURATIONS=50 python -m bench spark
    BENCH_GROUPS=200 BENCH_RECORDS=5000000 BENCH_LONG_RECORDS=5000000 python -m bench spark
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.many_groups import ManyGroups, make
from bench.verify_bench import write_log
from equipoise.events.records import FactRecord
from equipoise.log.copying import copy_log
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.sqlite import SqliteLog
from equipoise.replay.spark.groups import Unit, dealt, over_groups, units_of
from equipoise.replay.spark.session import session
from equipoise.replay.spark.verify import schema, spark_verify, verify_group
from equipoise.replay.spark.what_if import what_if_group, what_if_rows
from equipoise.replay.verification import verify
from equipoise.replay.whatif.evaluate import Configuration
from equipoise.replay.wording import counted
from equipoise.statemachine.machine import GroupMachine
from examples.fleet.many_groups import Fleet, make_fleet

CORES = os.cpu_count() or 1
FLEET = Fleet(groups=int(os.environ.get("BENCH_GROUPS", "40")), records=int(os.environ.get("BENCH_RECORDS", "200000")), seed=1)
SWEPT_FLEET = Fleet(groups=int(os.environ.get("BENCH_SWEEP_GROUPS", "24")), records=int(os.environ.get("BENCH_SWEEP_RECORDS", "9600")), seed=1)
CONFIGURATIONS = int(os.environ.get("BENCH_CONFIGURATIONS", "20"))
MANY = [
    ManyGroups(
        groups=int(os.environ.get("BENCH_MANY_GROUPS", "2000")),
        partitions=int(partitions),
        records=int(os.environ.get("BENCH_MANY_RECORDS", "300000")),
    )
    for partitions in os.environ.get("BENCH_MANY_PARTITIONS", "1,32").split(",")
]
LONG_RECORDS = int(os.environ.get("BENCH_LONG_RECORDS", "300000"))
SHORT_RECORDS = 100_000


def _verified_all(units: Sequence[Unit]) -> list[dict[str, Any]]:
    return [verify_group(unit) for unit in units]


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    done = work()
    return time.perf_counter() - begin, done


def _plain(pool: ProcessPoolExecutor, units: Sequence[Unit]) -> list[dict[str, Any]]:
    return [row for rows in pool.map(_verified_all, dealt(units, CORES)) for row in rows]


def _verified_alone(archive: Path) -> dict[str, int]:
    """Group -> decisions that equal the recomputed ones, as one process finds them."""
    with ArchiveLog(str(archive), "r") as log:
        return {each.group: each.compared for each in verify(log.read()).groups}


def _by_name(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["group"]))


def _configurations(count: int) -> list[Configuration]:
    return [Configuration(name=f"c{each}", settings={"max_warmups": 1 + each, "balance_factor": 1 + each % 3}) for each in range(count)]


def _many(spark: Any, many: ManyGroups, archive: Path) -> tuple[str, float, str]:
    alone_s, alone = _seconds(partial(_verified_alone, archive))
    spark_s, rows = _seconds(lambda: spark_verify(spark, units_of([str(archive)])).drop("document").collect())
    if {row.group: row.decisions_identical for row in rows} != alone:
        raise RuntimeError("Spark and one process do not say the same of many groups")
    name = f"spark verify of {many.groups:,} groups in {counted(many.partitions, 'partition')} / one process"
    return name, spark_s / alone_s, f"{spark_s:.1f} s over {alone_s:.1f} s ({many.records:,} records); goal: at most 0.65"


def _peak_mb(archive: Path) -> float:
    """Peak memory of a process of its own that verifies the one group of an archive, as a worker
    does.
    """
    code = (
        "from bench.memory import peak_mb\n"
        "from equipoise.replay.spark.groups import units_of\n"
        "from equipoise.replay.spark.verify import verify_group\n"
        f"row = verify_group(units_of([{str(archive)!r}])[0])\nassert row['verdict'] == 'identical', row\n"
        "print(peak_mb())\n"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def _long_archive(folder: Path, records: int) -> Path:
    database, archive = folder / f"{records}.db", folder / f"{records}.parquet"
    write_log(database, records)
    with SqliteLog(database, "r") as source, ArchiveLog(str(archive), "w") as target:
        copy_log(source, target)
    database.unlink()
    return archive


def run() -> list[tuple[str, float, str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_fleet(FLEET, folder / "fleet", processes=CORES)
        for many in MANY:
            make(many, folder / f"many{many.partitions}")
        make_fleet(SWEPT_FLEET, folder / "swept", processes=CORES)
        units, swept = units_of([str(folder / "fleet")]), units_of([str(folder / "swept")])
        asked = _configurations(CONFIGURATIONS)
        sweeps = ((swept, asked), (swept, asked[: CONFIGURATIONS // 2]), (swept[::2], asked))
        with ProcessPoolExecutor(CORES) as pool:  # begun before the JVM: a process with its threads is not one to fork
            _swept(pool, swept[-CORES:], asked[:1])
            plain_s, plain = _seconds(lambda: _plain(pool, units))
            start_s, (spark, _) = _seconds(session)
            try:
                first_s, _ = _seconds(lambda: over_groups(spark, swept[-CORES:], verify_group, schema()).collect())
                spark_s, rows = _seconds(lambda: [row.asDict() for row in spark_verify(spark, units).collect()])
                if _by_name(rows) != _by_name(plain):
                    raise RuntimeError("Spark and the plain processes do not say the same")
                of_many = [_many(spark, many, folder / f"many{many.partitions}") for many in MANY]
                _swept_on_spark(spark, swept[-CORES:], asked[:1])
                # by turns, so that whoever else is at work on this machine slows both
                seconds = [(_seconds(partial(_swept, pool, *each))[0], _seconds(partial(_swept_on_spark, spark, *each))[0]) for each in sweeps]
                folds_s, _ = _seconds(lambda: _folded(pool, swept, CONFIGURATIONS))
            finally:
                spark.stop()
        (alone_s, whole_s), (fewer_alone_s, fewer_s), (half_alone_s, half_s) = seconds
        short, long = (_long_archive(folder, records) for records in (SHORT_RECORDS, LONG_RECORDS))
        short_mb, long_mb = _peak_mb(short), _peak_mb(long)
    work = f"{FLEET.groups} groups, {FLEET.records:,} records, {CORES} cores"
    sweep = f"{len(swept)} groups x {CONFIGURATIONS} configurations"
    return [
        (f"spark verify / {CORES} plain processes", spark_s / plain_s, f"{spark_s:.1f} s over {plain_s:.1f} s ({work}); goal: at most 1.3"),
        *of_many,
        ("Spark's start, seconds", start_s + first_s, f"session {start_s:.1f} s, first workers {first_s:.1f} s; shown apart"),
        (f"{sweep} / decoding once and folding as often", whole_s / folds_s, f"{whole_s:.1f} s over {folds_s:.1f} s; goal: at most 8"),
        (f"{sweep} / reading once and simulating each, alone", whole_s / alone_s, f"{whole_s:.1f} s over {alone_s:.1f} s; goal: at most 1.3"),
        (
            f"{CONFIGURATIONS} configurations / {CONFIGURATIONS // 2}, over the same alone",
            (whole_s / fewer_s) / (alone_s / fewer_alone_s),
            f"{whole_s:.1f} s over {fewer_s:.1f} s, alone {alone_s / fewer_alone_s:.2f} times; goal: at most 1.2",
        ),
        (
            f"{len(swept)} groups / {len(sweeps[2][0])}, over the same alone",
            (whole_s / half_s) / (alone_s / half_alone_s),
            f"{whole_s:.1f} s over {half_s:.1f} s, alone {alone_s / half_alone_s:.2f} times; goal: at most 1.2",
        ),
        (
            f"peak memory of a group of {LONG_RECORDS:,} records / {SHORT_RECORDS:,}",
            long_mb / short_mb,
            f"{long_mb:.0f} MB over {short_mb:.0f} MB; goal: at most 1.1, and under 300 MB with 5,000,000",
        ),
    ]


def _swept(pool: ProcessPoolExecutor, units: Sequence[Unit], asked: Sequence[Configuration]) -> None:
    """What Spark's tasks do, in as many processes as there are cores, the largest group first."""
    running = [pool.submit(what_if_group, unit, asked, (0,)) for unit in sorted(units, key=lambda unit: -unit.records)]
    for each in running:
        each.result()


def _fold(unit: Unit, times: int) -> int:
    """Decodes a group's log once and folds its facts `times` times. Returns how many decisions that
    made.
    """
    facts = [entry for entry in unit.entries() if isinstance(entry, FactRecord)]
    machines = (GroupMachine(any_solver=True) for _ in range(times))
    return sum(len(machine.step(fact)) for machine in machines for fact in facts)


def _folded(pool: ProcessPoolExecutor, units: Sequence[Unit], times: int) -> None:
    running = [pool.submit(_fold, unit, times) for unit in sorted(units, key=lambda unit: -unit.records)]
    for each in running:
        each.result()


def _swept_on_spark(spark: Any, units: Sequence[Unit], asked: Sequence[Configuration]) -> None:
    what_if_rows(spark, units, asked, (0,)).collect()
