"""`equipoise spark what-if ARCHIVE...`: what other settings would have cost every group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from equipoise.cli.command import command
from equipoise.cli.output import Kind, check_files
from equipoise.cli.output_tables import check_tables, new_tables
from equipoise.cli.params import WholeNumber
from equipoise.cli.screen import Part, Screen, Table
from equipoise.cli.spark.shared import archives, html_option, job_text, span_options, spark_session, units, write_page
from equipoise.cli.what_if import MEASURES, configuration_options
from equipoise.cli.what_if import configurations as configurations_to_try
from equipoise.events.errors import InputError
from equipoise.replay.numbers import UNAVAILABLE_TASK_S
from equipoise.replay.wording import counted

_MOST_ROWS = 40


@command("what-if", short_help="Simulate other settings on the history of every group.")
@archives
@span_options
@html_option
@configuration_options
@click.option(
    "--seeds",
    type=WholeNumber(1, 100),
    default=3,
    show_default=True,
    help="Simulations of each configuration, with different random seeds.",
)
@click.option("--to", "folder", metavar="FOLDER", help="Also write the rows to FOLDER, s3://, gs://, abfs://, hdfs:// or delta:FOLDER.")
def what_if(
    screen: Screen,
    locations: tuple[str, ...],
    patterns: tuple[str, ...],
    master: str | None,
    settings: tuple[str, ...],
    files: tuple[Path, ...],
    settings_given: tuple[str, ...],
    dimensions: tuple[str, ...],
    seeds: int,
    folder: str | None,
    from_: int | None,
    until: int | None,
    html_path: Path | None,
) -> int:
    """Simulate other settings for every group of the archives, as `equipoise what-if` does. Rank
    the configurations by what each saves over all groups, and show for each group one line of
    advice. --to writes the tables costs, with a row for each group and configuration, and ranking.

    Exit code 0: every group is answered. 2: at least one is not; its line says why.

    \b
    Examples:
      equipoise spark what-if archive/ --sweep max_warmups=1,2,4 --to costs/
      equipoise spark what-if archive/ --sweep behaviour_version=latest --to canary/
      equipoise spark what-if archive/ --config calm.toml --json | jq -r '.groups[].advice'
    """
    from equipoise.replay.spans import Span
    from equipoise.replay.spark.results import check_complete, kept, write_rows, write_table
    from equipoise.replay.spark.what_if import by_configuration, ranking_of, what_if_rows
    from equipoise.replay.whatif.configuration_ranking import RANKED

    configurations = configurations_to_try(files, settings_given, dimensions)
    if not configurations:
        raise InputError("--sweep or --config: name what to try, as --sweep max_warmups=1,2,4")
    if folder is not None:
        check_tables("--to", folder, _TABLES)
    check_files(("--html", html_path, Kind.PAGE))
    span = Span(from_, until)
    found = units(locations, patterns)
    with spark_session(master, settings, job_text("what-if", found, locations)) as spark:
        rows = kept(what_if_rows(spark, found, configurations, range(seeds), span))
        costs = by_configuration(rows)
        groups = sorted((row.asDict() for row in rows.drop("outcomes", "document").collect()), key=lambda row: (row["group"], row["location"]))
        check_complete([row["group"] for row in groups], found)
        ranked = [each.as_json() for each in ranking_of(costs).ranked()]
        if folder is not None:
            with new_tables("--to", folder, _TABLES) as part:
                part.mkdir()
                write_table(costs, ("group", "location", "seq"), part / "costs")
                write_rows(ranked, RANKED, part / "ranking")
        rows.unpersist()
    parts: list[Part] = [_trust(groups), _ranking_table(ranked), _sums_table(ranked, len(groups)), *_advice_parts(groups)]
    write_page(screen, html_path, f"{', '.join(locations)}: what settings would have cost", parts)
    screen.answer({"seeds": seeds, "configurations": ranked, "groups": groups}, *parts)
    return 2 if any(each["problem"] for each in groups) else 0


_TABLES = frozenset({"costs", "ranking"})


def _trust(groups: list[dict[str, Any]]) -> str:
    """How far the simulation of the groups as they are is from what was recorded."""
    told = [each for each in groups if each["simulated_task_seconds"] is not None]
    recorded, simulated = (sum(each[f"{name}_task_seconds"] for each in told) for name in ("recorded", "simulated"))
    error = f" ({simulated / recorded - 1:+.0%})" if recorded else ""
    return f"{counted(len(groups), 'group')} as they are, {UNAVAILABLE_TASK_S}: {recorded:,.1f} recorded, {simulated:,.1f} simulated{error}"


def _ranking_table(ranked: list[dict[str, Any]]) -> Table:
    columns = ("configuration", "task-s saved", "records saved", "moves saved", "better in", "worse in", "worst in", "task-s more there")
    cells = [
        (
            each["configuration"],
            each["saved_unavailable_task_seconds"],
            each["saved_records_restored"],
            each["saved_moves"],
            each["better"],
            each["worse"],
            each["worst_group"],
            each["worst_task_seconds"],
        )
        for each in ranked
    ]
    return Table(columns=columns, rows=cells, title="what each saves over all groups beside them as they are, the most first")


def _sums_table(ranked: list[dict[str, Any]], groups: int) -> Table:
    columns = ("configuration", *(heading for heading, _ in MEASURES), "groups", "best in")
    cells = [(each["configuration"], *(each[name] for _, name in MEASURES), each["groups"], each["best_in"]) for each in ranked]
    return Table(columns=columns, rows=cells, title=f"{counted(groups, 'group')}, simulated: in all")


def _advice_parts(groups: list[dict[str, Any]]) -> list[Part]:
    advice = [(each["group"], each["advice"] or each["problem"]) for each in groups if each["advice"] or each["problem"]]
    more = [f"... and {len(advice) - _MOST_ROWS:,} more: --json has all"] if len(advice) > _MOST_ROWS else []
    return [*([Table(columns=("group", "advice"), rows=advice[:_MOST_ROWS])] if advice else []), *more]
