"""Jobs over many groups: Spark beside as many plain processes as there are cores, on the same work; and one long group in little memory.

The plain peer is what a careful user would write: a pool of processes, the groups dealt to them by size, the same function of one group. Spark's
session and its first Python workers are begun before, and shown apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.verify_bench import write_log
from events.log.copying import copy_log
from events.log.parquet.log import ArchiveLog
from events.log.sqlite import SqliteLog
from replay.fleet import Fleet, make_fleet
from replay.recording import read_recording
from replay.spark.groups import Unit, dealt, over_groups, units_of
from replay.spark.session import session
from replay.spark.verify import schema, spark_verify, verify_group
from replay.spark.what_if import what_if_rows
from replay.what_if import Configuration, what_if_recorded

CORES = os.cpu_count() or 1
FLEET = Fleet(groups=int(os.environ.get("BENCH_GROUPS", "40")), records=int(os.environ.get("BENCH_RECORDS", "200000")), seed=1)
SMALL_FLEET = Fleet(groups=8, records=4_000, seed=1)
CONFIGURATIONS = int(os.environ.get("BENCH_CONFIGURATIONS", "10"))
LONG_RECORDS = int(os.environ.get("BENCH_LONG_RECORDS", "1000000"))
SHORT_RECORDS = 100_000


def _verified_all(units: Sequence[Unit]) -> list[dict[str, Any]]:
    return [verify_group(unit) for unit in units]


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    done = work()
    return time.perf_counter() - begin, done


def _plain(units: Sequence[Unit]) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(CORES) as pool:
        return [row for rows in pool.map(_verified_all, dealt(units, CORES)) for row in rows]


def _by_name(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["group"]))


def _configurations(count: int) -> list[Configuration]:
    return [Configuration(name=f"c{each}", knobs={"max_warmups": 1 + each, "balance_factor": 1 + each % 3}) for each in range(count)]


def _peak_mb(archive: Path) -> float:
    """Peak memory of a process of its own that verifies the one group of an archive, as a worker does."""
    code = (
        "from bench.memory import peak_mb\nfrom replay.spark.groups import units_of\nfrom replay.spark.verify import verify_group\n"
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
        make_fleet(SMALL_FLEET, folder / "small", processes=CORES)
        units, small = units_of([str(folder / "fleet")]), units_of([str(folder / "small")])
        plain_s, plain = _seconds(lambda: _plain(units))
        start_s, (spark, _) = _seconds(session)
        try:
            first_s, _ = _seconds(lambda: over_groups(spark, small[-CORES:], verify_group, schema()).collect())
            spark_s, rows = _seconds(lambda: [row.asDict() for row in spark_verify(spark, units).collect()])
            if _by_name(rows) != _by_name(plain):
                raise RuntimeError("Spark and the plain processes do not say the same")
            asked = _configurations(CONFIGURATIONS)
            sweep_s, _ = _seconds(lambda: what_if_rows(spark, small, asked, (0,)).collect())
            half_s, _ = _seconds(lambda: what_if_rows(spark, small, asked[: CONFIGURATIONS // 2], (0,)).collect())
        finally:
            spark.stop()
        alone_s = sum(_alone(unit, asked) for unit in small) / CORES
        short, long = (_long_archive(folder, records) for records in (SHORT_RECORDS, LONG_RECORDS))
        short_mb, long_mb = _peak_mb(short), _peak_mb(long)
    work = f"{FLEET.groups} groups, {FLEET.records:,} records, {CORES} cores"
    return [
        (f"spark verify / {CORES} plain processes", spark_s / plain_s, f"{spark_s:.1f} s over {plain_s:.1f} s ({work}); goal: at most 1.3"),
        ("Spark's start, seconds", start_s + first_s, f"session {start_s:.1f} s, first workers {first_s:.1f} s; shown apart"),
        (
            f"{len(small)} groups x {CONFIGURATIONS} configurations / reading once and simulating each, alone",
            sweep_s / alone_s,
            f"{sweep_s:.1f} s over {alone_s:.1f} s; goal: at most 3",
        ),
        (
            f"{CONFIGURATIONS} configurations / {CONFIGURATIONS // 2}",
            sweep_s / half_s,
            f"{sweep_s:.1f} s over {half_s:.1f} s; linear: {(CONFIGURATIONS + 2) / (CONFIGURATIONS // 2 + 2):.2f}, with the two of the factual one",
        ),
        (
            f"peak memory of a group of {LONG_RECORDS:,} records, MB",
            float(long_mb),
            f"{short_mb} MB with {SHORT_RECORDS:,}; goal: under 300 with 5,000,000",
        ),
    ]


def _alone(unit: Unit, asked: Sequence[Configuration]) -> float:
    """CPU seconds: the log read once, and each configuration simulated."""
    begin = time.process_time()
    recording = read_recording(unit.entries(), group=unit.group)
    what_if_recorded(recording, asked)
    return time.process_time() - begin


