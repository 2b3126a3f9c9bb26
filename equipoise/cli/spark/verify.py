"""`equipoise spark verify ARCHIVE...`: verifies the log of every group."""

from __future__ import annotations

from typing import Any

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Part, Screen, Table
from equipoise.cli.spark.shared import archives, spark_session, units
from equipoise.output import check_tables, new_tables
from equipoise.replay.wording import counted

_MOST_ROWS = 40


@command("verify", short_help="Verify the log of every group: one row each.")
@archives
@click.option("--to", "folder", metavar="FOLDER", help="Also write the rows to FOLDER, or s3://, gs:// or abfs://; earlier rows are replaced.")
@click.option("--all", "everything", is_flag=True, help="Show every group. Default: some, those that are not identical first.")
def verify(
    screen: Screen,
    locations: tuple[str, ...],
    patterns: tuple[str, ...],
    master: str | None,
    settings: tuple[str, ...],
    folder: str | None,
    everything: bool,
) -> int:
    """Verify every group of the archives as `equipoise verify` does, many at once. A group whose
    log is damaged is one row that says so.

    Exit code 0: all identical. 1: at least one diverges. 2: none diverges, but at least one cannot
    be verified.

    \b
    Examples:
      equipoise spark verify archive/
      equipoise spark verify archive/ --json | jq '.groups[] | select(.verdict != "identical")'
    """
    from equipoise.replay.spark.results import check_complete, kept, write_table
    from equipoise.replay.spark.verify import spark_verify
    from equipoise.replay.verification import Verdict

    if folder is not None:
        check_tables("--to", folder)
    found = units(locations, patterns)
    with spark_session(master, settings) as spark:
        rows = kept(spark_verify(spark, found)) if folder is not None else spark_verify(spark, found)
        answers = sorted((row.asDict() for row in rows.drop("document").collect()), key=lambda row: (row["group"], row["location"]))
        check_complete(len(answers), found)
        if folder is not None:
            with new_tables("--to", folder) as part:
                write_table(rows, ("group", "location"), part)
            rows.unpersist()
    verdicts = [Verdict(row["verdict"]) for row in answers]
    worst = next((each for each in (Verdict.DIVERGENCE, Verdict.CANNOT_VERIFY) if each in verdicts), Verdict.IDENTICAL)
    screen.answer({"verdict": worst.value, "groups": answers}, *_parts(answers, everything))
    return worst.exit_code


def _parts(rows: list[dict[str, Any]], everything: bool) -> list[Part]:
    counts = [f"{counted(sum(row['verdict'] == verdict for row in rows), 'group')} {word}" for verdict, word in _WORDS.items()]
    records = sum(row["records"] or 0 for row in rows)
    first = sorted(rows, key=lambda row: (row["verdict"] == "identical", row["group"], row["location"]))
    shown = first if everything else first[:_MOST_ROWS]
    columns = ("group", "verdict", "records", "facts", "decisions identical", "offset", "problem")
    cells = [tuple(row[name.replace(" ", "_")] for name in columns) for row in shown]
    more = [f"... and {len(rows) - len(shown):,} more: --all shows them"] if len(shown) < len(rows) else []
    return [f"{', '.join(counts)}; {records:,} records read", Table(columns=columns, rows=cells), *more]


_WORDS = {"identical": "identical", "divergence": "diverging", "cannot verify": "not verified"}
