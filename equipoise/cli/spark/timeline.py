"""`equipoise spark timeline ARCHIVE... --to FOLDER`: writes the history of every group as Parquet
tables.
"""

from __future__ import annotations

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Part, Screen, Table
from equipoise.cli.spark.shared import archives, spark_session, units
from equipoise.output import check_tables, new_tables
from equipoise.replay.wording import counted

_MOST_ROWS = 40


@command("timeline", short_help="Write the history of every group as Parquet tables.")
@archives
@click.option("--to", "folder", metavar="FOLDER", required=True, help="Folder to write, or s3://, gs:// or abfs://; tables in it are replaced.")
def timeline(
    screen: Screen, locations: tuple[str, ...], patterns: tuple[str, ...], master: str | None, settings: tuple[str, ...], folder: str
) -> int:
    """Write the history of every group of the archives, as `equipoise timeline` has it: the tables
    groups, intervals, unavailability, moves, rounds, imbalance, copies and members, each a folder
    of Parquet files in FOLDER, with the group's name in the first column.

    Exit code 0: every group has its history. 2: at least one group has none; its row in `groups`
    says why.

    \b
    Examples:
      equipoise spark timeline archive/ --to history/
      duckdb -c "select * from 'history/unavailability/*.parquet' order by to_ms - from_ms desc"
    """
    from equipoise.replay.spark.results import check_complete
    from equipoise.replay.spark.timeline import TABLES, spark_timeline, write_tables

    names = frozenset({"groups", *TABLES})
    check_tables("--to", folder, names)
    found = units(locations, patterns)
    with spark_session(master, settings) as spark:
        tables = spark_timeline(spark, found)
        groups = sorted((row.asDict() for row in tables["groups"].collect()), key=lambda row: row["group"])
        check_complete(len(groups), found)
        with new_tables("--to", folder, names) as part:
            counts = write_tables(tables, part)
        tables["groups"].unpersist()
    without = [group for group in groups if group["problem"] is not None]
    worst = sorted(groups, key=lambda row: (-(row["stopped_ms"] or 0), row["group"]))[:_MOST_ROWS]
    columns = ("group", "facts", "rounds", "moves", "task-seconds not running", "longest s", "problem")
    cells = [(r["group"], r["facts"], r["rounds"], r["moves"], _seconds(r["stopped_ms"]), _seconds(r["longest_ms"]), r["problem"]) for r in worst]
    said = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    more = [f"... and {len(groups) - len(worst):,} more in {folder}/groups"] if len(worst) < len(groups) else []
    parts: list[Part] = [f"{counted(len(groups), 'group')}, rows in {folder}: {said}", Table(columns=columns, rows=cells), *more]
    screen.answer({"folder": folder, "tables": [{"table": name, "rows": count} for name, count in counts.items()], "groups": groups}, *parts)
    return 2 if without else 0


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000
