"""`equipoise spark what-if ARCHIVE...`: what other settings would have cost every group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from equipoise.cli.command import command
from equipoise.cli.params import WholeNumber
from equipoise.cli.screen import Part, Screen, Table
from equipoise.cli.spark.shared import archives, spark_session, units
from equipoise.cli.what_if import MEASURES, swept
from equipoise.events.errors import InputError
from equipoise.output import check_tables, new_tables
from equipoise.replay.wording import counted

_MOST_ROWS = 40


@command("what-if", short_help="Simulate other settings on the history of every group.")
@archives
@click.option(
    "--config", "files", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="TOML file with configurations; may be repeated."
)
@click.option("--sweep", "dimensions", multiple=True, metavar="NAME=V1,V2,...", help="Values of a setting; several: all combinations.")
@click.option(
    "--seeds", type=WholeNumber(1, 100), default=3, show_default=True, help="Simulations of each configuration, with different random seeds."
)
@click.option("--to", "folder", metavar="FOLDER", help="Also write the rows to FOLDER, or s3://, gs:// or abfs://, as Parquet.")
def what_if(
    screen: Screen,
    locations: tuple[str, ...],
    patterns: tuple[str, ...],
    master: str | None,
    settings: tuple[str, ...],
    files: tuple[Path, ...],
    dimensions: tuple[str, ...],
    seeds: int,
    folder: str | None,
) -> int:
    """Simulate other settings for every group of the archives, as `equipoise what-if` does: each
    log is read once and each configuration simulated. Show the sums over all groups, and for each
    group one line of advice. --to writes a row for each group and configuration.

    Exit code 0: every group is answered. 2: at least one is not; its line says why.

    \b
    Examples:
      equipoise spark what-if archive/ --sweep max_warmups=1,2,4 --to costs/
      equipoise spark what-if archive/ --config calm.toml --json | jq -r '.groups[].advice'
    """
    from equipoise.replay.spark.results import check_complete, kept, write_table
    from equipoise.replay.spark.what_if import by_configuration, what_if_rows
    from equipoise.replay.whatif.sweep import read_configurations

    configurations = [each for path in files for each in read_configurations(path)] + swept(dimensions)
    if not configurations:
        raise InputError("--sweep or --config: name what to try, as --sweep max_warmups=1,2,4")
    if folder is not None:
        check_tables("--to", folder)
    found = units(locations, patterns)
    with spark_session(master, settings) as spark:
        rows = kept(what_if_rows(spark, found, configurations, range(seeds)))
        costs = by_configuration(rows)
        groups = sorted((row.asDict() for row in rows.drop("outcomes", "document").collect()), key=lambda row: (row["group"], row["location"]))
        check_complete(len(groups), found)
        if folder is not None:
            with new_tables("--to", folder) as part:
                write_table(costs, ("group", "location", "seq"), part)
        sums = _summed([row.asDict() for row in costs.where("seq is not null").collect()])
        rows.unpersist()
    advice = [(each["group"], each["advice"] or each["problem"]) for each in groups]
    columns = ("configuration", *(heading for heading, _ in MEASURES), "groups", "best in")
    cells = [(each["configuration"], *(each[name] for _, name in MEASURES), each["groups"], each["best_in"]) for each in sums]
    parts: list[Part] = [
        Table(columns=columns, rows=cells, title=f"{counted(len(groups), 'group')}, simulated: in all"),
        Table(columns=("group", "advice"), rows=advice[:_MOST_ROWS]),
    ]
    more = [f"... and {len(advice) - _MOST_ROWS:,} more: --json has all"] if len(advice) > _MOST_ROWS else []
    screen.answer({"seeds": seeds, "configurations": sums, "groups": groups}, *parts, *more)
    return 2 if any(each["problem"] for each in groups) else 0


def _summed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each configuration, in the order given: its metrics over all groups that it could
    lead.
    """
    sums: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["seq"], row["group"], row["location"])):
        start = {"configuration": row["configuration"], "groups": 0, "best_in": 0, **dict.fromkeys((name for _, name in MEASURES), 0.0)}
        of = sums.setdefault(row["seq"], start)
        if row["error"] is None:
            of["groups"] += 1
            of["best_in"] += row["front"]
            for _, name in MEASURES:
                of[name] = None if row[name] is None or of[name] is None else round(of[name] + row[name], 3)
    return list(sums.values())
