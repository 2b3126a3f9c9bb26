"""`equipoise spark incident RECORDING...`: explains all groups of many recordings, and ranks what
they cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from equipoise.cli.command import command
from equipoise.cli.output import Kind, check_files
from equipoise.cli.output_tables import check_tables, new_tables
from equipoise.cli.screen import Part, Screen, Table
from equipoise.cli.spark.shared import group_option, html_option, span_options, spark_options, spark_session, write_page
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted

_MOST_ROWS = 40


@command("incident", short_help="Explain the incidents of every group of recordings.")
@click.argument("locations", metavar="RECORDING...", nargs=-1, required=True)
@group_option
@spark_options
@span_options
@html_option
@click.option("--to", "folder", metavar="FOLDER", help="Also write the tables to FOLDER, s3://, gs://, abfs://, hdfs:// or delta:FOLDER.")
def incident(
    screen: Screen,
    locations: tuple[str, ...],
    patterns: tuple[str, ...],
    master: str | None,
    settings: tuple[str, ...],
    folder: str | None,
    from_: int | None,
    until: int | None,
    html_path: Path | None,
) -> int:
    """Explain what happened to every group, as `equipoise incident` does from a recording: which
    groups cost most, and by what. A RECORDING is a file of `equipoise record`, or a folder of them,
    whose names end in .db. It may be in an object store or HDFS. --to writes the tables groups,
    incidents and costs, a row for each group, day and cause.

    Exit code 0: every group is explained. 2: at least one is not; its line says why.

    \b
    Examples:
      equipoise spark incident recordings/ --from 2026-11-01 --until 2026-12-01 --to incidents/
      equipoise spark incident eu.db us.db --group 'orders-*' --html incidents.html
      duckdb -c "select * from 'incidents/incidents/*.parquet' order by unavailable_ms desc"
    """
    from equipoise.replay.spans import Span
    from equipoise.replay.spark.incident import SUMMED, TABLES, by_cause, check_every_group, spark_incident
    from equipoise.replay.spark.recordings import recordings_in
    from equipoise.replay.spark.result_tables import costs_by_group, write_tables

    names, span = frozenset({"groups", *TABLES}), Span(from_, until)
    if folder is not None:
        check_tables("--to", folder, names)
    check_files(("--html", html_path, Kind.PAGE))
    found = recordings_in(locations)
    with spark_session(master, settings, f"incident: {counted(len(found), 'recording')}") as spark:
        tables = spark_incident(spark, found, patterns, span)
        groups = check_every_group(sorted((row.asDict() for row in tables["groups"].collect()), key=lambda row: (row["group"], row["location"])))
        if not groups:
            what = f"--group {', '.join(patterns)}: fits no group of these recordings" if patterns else "these recordings hold no group"
            raise InputError(f"{what}, and nothing was written; equipoise cluster {found[0]} lists what there is")
        if folder is not None:
            kept = {**tables, "groups": tables["groups"].where("`group` <> '' or problem is not null").drop("groups")}
            with new_tables("--to", folder, names) as part:
                write_tables(kept, part)
        costs = costs_by_group(tables, SUMMED)
        tables.close()
    causes, of_groups = by_cause(costs), _by_group(costs)
    shown: list[Part] = [f"{counted(sum(row['group'] != '' for row in groups), 'group')} of {counted(len(found), 'recording')}"]
    parts = [*shown, _causes_table(causes), *_groups(groups, of_groups, several=len(found) > 1)]
    write_page(screen, html_path, f"{', '.join(locations)}: what groups cost", parts)
    screen.answer({"folder": folder, "causes": causes, "groups": [_document(row, _of(row, of_groups)) for row in groups]}, *parts)
    return 2 if any(row["problem"] is not None for row in groups) else 0


Costs = dict[tuple[str, str], list[dict[str, Any]]]
"""Group and location -> its rows of costs, the one that cost most first."""


def _by_group(costs: list[dict[str, Any]]) -> Costs:
    found: Costs = {}
    for each in sorted(costs, key=lambda each: (-each["unavailable_ms"], -each["rebalancing_ms"], each["cause"])):
        found.setdefault((each["group"], each["location"]), []).append(each)
    return found


def _of(row: dict[str, Any], of_groups: Costs) -> list[dict[str, Any]]:
    return of_groups.get((row["group"], row["location"]), [])


def _document(row: dict[str, Any], mine: list[dict[str, Any]]) -> dict[str, Any]:
    causes = {each["cause"]: each["unavailable_ms"] for each in mine}
    return {**{name: value for name, value in row.items() if name != "groups"}, "causes": causes}


def _causes_table(causes: list[dict[str, Any]]) -> Table:
    columns = ("what began it", "groups", "incidents", "partition-seconds not read", "longest s", "rebalancing s", "moves", "most in")
    cells = [
        (
            each["cause_text"],
            each["groups"],
            each["incidents"],
            each["unavailable_ms"] / 1_000,
            each["longest_ms"] / 1_000,
            each["rebalancing_ms"] / 1_000,
            each["moves"],
            each["worst_group"] if each["worst_unavailable_ms"] else None,
        )
        for each in causes
    ]
    return Table(columns=columns, rows=cells, title="what it cost, over all groups")


def _groups(groups: list[dict[str, Any]], of_groups: Costs, *, several: bool) -> list[Part]:
    worst = sorted(groups, key=lambda row: (row["problem"] is None, -(row["unavailable_ms"] or 0), -(row["rebalancing_ms"] or 0), row["group"]))
    columns = ("group", *(["recording"] if several else []), "kind", "incidents", "partition-seconds not read", "longest s", "mostly by", "problem")
    cells = []
    for row in worst[:_MOST_ROWS]:
        mostly = next((each for each in _of(row, of_groups) if each["unavailable_ms"]), None)
        part = None if mostly is None else f"{mostly['cause']} {mostly['unavailable_ms'] / row['unavailable_ms']:.0%}"
        seconds = [None if row[name] is None else row[name] / 1_000 for name in ("unavailable_ms", "longest_ms")]
        place = [Path(row["location"]).name] if several else []
        cells.append((row["group"], *place, row["kind"], row["incidents"], *seconds, part, row["problem"]))
    more = [f"... and {len(worst) - _MOST_ROWS:,} more: --json has all"] if len(worst) > _MOST_ROWS else []
    return [Table(columns=columns, rows=cells, title="groups, those that cost most first"), *more]
