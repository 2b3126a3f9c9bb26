"""`equipoise spark timeline ARCHIVE... --to FOLDER`: writes the history of every group as Parquet
tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from equipoise.cli.command import command
from equipoise.cli.output import Kind, check_files
from equipoise.cli.output_tables import check_tables, new_tables
from equipoise.cli.screen import Part, Screen, Table
from equipoise.cli.spark.shared import archives, html_option, job_text, span_options, spark_session, units, write_page
from equipoise.replay.numbers import MOVES, WITHOUT_RUNNER
from equipoise.replay.wording import counted

_MOST_ROWS = 40


@command("timeline", short_help="Write the history of every group as Parquet tables.")
@archives
@span_options
@html_option
@click.option(
    "--to",
    "folder",
    metavar="FOLDER",
    required=True,
    help="Folder to write, s3://, gs://, abfs://, hdfs:// or delta:FOLDER; replaces its tables.",
)
def timeline(
    screen: Screen,
    locations: tuple[str, ...],
    patterns: tuple[str, ...],
    master: str | None,
    settings: tuple[str, ...],
    folder: str,
    from_: int | None,
    until: int | None,
    html_path: Path | None,
) -> int:
    """Write the history of every group of the archives, as `equipoise timeline` has it. The tables
    are groups, intervals, unavailability, moves, rounds, imbalance, copies, members and costs. Each
    is a folder of Parquet files in FOLDER, with the group's name and its archive in the first
    columns. Show what cost most, by cause and by group.

    Exit code 0: every group has its history. 2: at least one group has none; its row in `groups`
    says why.

    \b
    Examples:
      equipoise spark timeline archive/ --to history/
      duckdb -c "select * from 'history/unavailability/*.parquet' order by to_ms - from_ms desc"
    """
    from equipoise.replay.spans import Span
    from equipoise.replay.spark.result_tables import costs_by_group, write_tables
    from equipoise.replay.spark.results import check_complete
    from equipoise.replay.spark.timeline import TABLES, spark_timeline
    from equipoise.replay.timelines.history_costs import SUMMED, by_cause, by_group

    names, span = frozenset({"groups", *TABLES}), Span(from_, until)
    check_tables("--to", folder, names)
    check_files(("--html", html_path, Kind.PAGE))
    found = units(locations, patterns)
    with spark_session(master, settings, job_text("timeline", found, locations)) as spark:
        tables = spark_timeline(spark, found, span)
        groups = sorted((row.asDict() for row in tables["groups"].collect()), key=lambda row: (row["group"], row["location"]))
        check_complete([row["group"] for row in groups], found)
        with new_tables("--to", folder, names) as part:
            counts = write_tables(tables, part)
        costs = costs_by_group(tables, SUMMED)
        tables.close()
    without = [group for group in groups if group["problem"] is not None]
    causes, of_groups = by_cause(costs), by_group(costs)
    said = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    parts: list[Part] = [
        f"{counted(len(groups), 'group')}, rows in {folder}: {said}",
        _causes_table(causes),
        *_groups(groups, of_groups, folder, several=len(locations) > 1),
    ]
    write_page(screen, html_path, f"{', '.join(locations)}: what groups cost", parts)
    screen.answer(
        {
            "folder": folder,
            "tables": [{"table": name, "rows": count} for name, count in counts.items()],
            "causes": causes,
            "groups": [{**row, "causes": of_groups.get((row["group"], row["location"]), {})} for row in groups],
        },
        *parts,
    )
    return 2 if without else 0


def _causes_table(causes: list[dict[str, Any]]) -> Table:
    columns = ("what began it", "groups", f"task-s {WITHOUT_RUNNER}", "longest s", MOVES, "records restored", "most in", "task-s there")
    cells = [
        (
            each["cause_text"],
            each["groups"],
            _seconds(each["stopped_ms"]),
            _seconds(each["longest_ms"]),
            each["moves"],
            each["restored_records"],
            each["worst_group"],
            _seconds(each["worst_stopped_ms"]),
        )
        for each in causes
    ]
    return Table(columns=columns, rows=cells, title="what it cost, over all groups")


def _groups(groups: list[dict[str, Any]], of_groups: Mapping[tuple[str, str], dict[str, int]], folder: str, *, several: bool) -> list[Part]:
    worst = sorted(groups, key=lambda row: (-(row["stopped_ms"] or 0), row["group"], row["location"]))[:_MOST_ROWS]
    columns = (
        "group",
        *(["archive"] if several else []),
        "facts",
        "rounds",
        MOVES,
        f"task-s {WITHOUT_RUNNER}",
        "longest s",
        "mostly by",
        "problem",
    )
    cells = [
        (
            row["group"],
            *([row["location"]] if several else []),
            row["facts"],
            row["rounds"],
            row["moves"],
            _seconds(row["stopped_ms"]),
            _seconds(row["longest_ms"]),
            _mostly(of_groups.get((row["group"], row["location"]), {})),
            row["problem"],
        )
        for row in worst
    ]
    more = [f"... and {len(groups) - len(worst):,} more in {folder}/groups"] if len(worst) < len(groups) else []
    return [Table(columns=columns, rows=cells, title="groups, those that cost most first"), *more]


def _mostly(causes: dict[str, int]) -> str | None:
    """The cause that cost most, with its part."""
    cause, stopped_ms = next(iter(causes.items()), ("", 0))
    return f"{cause} {stopped_ms / sum(causes.values()):.0%}" if stopped_ms else None


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000
