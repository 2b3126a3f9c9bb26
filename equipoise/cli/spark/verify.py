"""`equipoise spark verify ARCHIVE...`: verifies the log of every group."""

from __future__ import annotations

from typing import Any

import click

from equipoise.cli.command import command
from equipoise.cli.output_tables import check_tables, new_tables
from equipoise.cli.screen import Part, Screen, Table
from equipoise.cli.spark.shared import archives, job_text, spark_session, units
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted, extent_text

_MOST_ROWS = 40
_BY = ("group", "location")


@command("verify", short_help="Verify the log of every group: one row each.")
@archives
@click.option(
    "--to", "folder", metavar="FOLDER", help="Also write the rows to FOLDER, s3://, gs://, abfs://, hdfs:// or delta:FOLDER. Replaces earlier ones."
)
@click.option(
    "--states",
    metavar="FOLDER",
    help="Go on where the last run ended: FOLDER, or s3://, gs://, abfs:// or hdfs://, has the groups' states. It is replaced.",
)
@click.option(
    "--again",
    is_flag=True,
    help="With --states: verify everything from the start, and replace the states, of whichever build they are.",
)
@click.option("--all", "everything", is_flag=True, help="Show every group. Default: some, those that are not identical first.")
def verify(
    screen: Screen,
    locations: tuple[str, ...],
    patterns: tuple[str, ...],
    master: str | None,
    settings: tuple[str, ...],
    folder: str | None,
    states: str | None,
    everything: bool,
    again: bool,
) -> int:
    """Verify every group of the archives as `equipoise verify` does, many at once.

    Exit code 0: all identical. 1: at least one diverges. 2: none diverges, but at least one cannot
    be verified.

    \b
    Examples:
      equipoise spark verify archive/
      equipoise spark verify archive/ --states states/      # each night: what came since the last
      equipoise spark verify archive/ --states states/ --again   # all of it, by a new build
      equipoise spark verify archive/ --json | jq '.groups[] | select(.verdict != "identical")'
    """
    from equipoise.replay.spark.groups import extents_of
    from equipoise.replay.spark.incremental import lost_partitions, plan_of, spark_verify_on
    from equipoise.replay.spark.results import check_complete, kept, write_table
    from equipoise.replay.spark.states import Former
    from equipoise.replay.spark.verify import COLUMNS, spark_verify
    from equipoise.replay.verification import Verdict

    for option, place in (("--to", folder), ("--states", states)):
        if place is not None:
            check_tables(option, place)
    if states is not None and states.startswith("delta:"):
        raise InputError(f"--states {states}: states are files, and no table; name a folder")
    if folder is not None and folder == states:
        raise InputError(f"--states {states}: is the folder of --to; name another one")
    if again and states is None:
        raise InputError("--again: needs --states FOLDER; without it, everything is verified from the start anyway")
    found = units(locations, patterns)
    former = Former() if states is None or again else Former.read(states)
    if not patterns:
        found += lost_partitions(found, former)
    done = None
    with spark_session(master, settings, job_text("verify", found, locations)) as spark:
        if states is None:
            rows = kept(spark_verify(spark, found))
        else:
            done = spark_verify_on(spark, plan_of(found, former))
            rows = done.rows
        shown = (row.asDict() for row in rows.select(*(name for name, _ in COLUMNS if name != "document")).collect())
        answers = sorted(shown, key=lambda row: (row["group"], row["location"]))
        check_complete([row["group"] for row in answers], found)
        if folder is not None:
            with new_tables("--to", folder) as part:
                write_table(rows.select(*(name for name, _ in COLUMNS)), _BY, part)
        if done is not None and states is not None:
            with new_tables("--states", states) as part:  # last: a run that is killed before goes on from the former ones again
                done.write(part)
        (rows if done is None else done).unpersist()
    verdicts = [Verdict(row["verdict"]) for row in answers]
    worst = next((each for each in (Verdict.DIVERGENCE, Verdict.CANNOT_VERIFY) if each in verdicts), Verdict.IDENTICAL)
    extents = extents_of(found)
    parts = _parts(answers, everything)
    parts += [f"{archive}: {extent_text(extent)}" for archive, extent in extents.items()]
    if done is not None:
        parts += _of_states(done.counts, again=again)
    listed = [{"location": archive, **extent.document()} for archive, extent in extents.items()]
    screen.answer({"verdict": worst.value, "archives": listed, "groups": answers, "states": None if done is None else done.counts}, *parts)
    return worst.exit_code


def _of_states(counts: dict[str, int], *, again: bool) -> list[Part]:
    went = "{went_on:,} of them went on from the last run, {began:,} began at the start, {unchanged:,} had nothing new".format_map(counts)
    return ["verified from the start"] if again else [went]


def _parts(rows: list[dict[str, Any]], everything: bool) -> list[Part]:
    counts = [f"{counted(sum(row['verdict'] == verdict for row in rows), 'group')} {word}" for verdict, word in _WORDS.items()]
    records = sum(row["records"] or 0 for row in rows)
    first = sorted(rows, key=lambda row: (row["verdict"] == "identical", row["group"], row["location"]))
    shown = first if everything else first[:_MOST_ROWS]
    columns = ("group", "verdict", "records", "facts", "decisions identical", "offset", "problem")
    cells = [tuple(row[name.replace(" ", "_")] for name in columns) for row in shown]
    more = [f"... and {len(rows) - len(shown):,} more: --all shows them"] if len(shown) < len(rows) else []
    return [f"{', '.join(counts)}; {counted(records, 'record')} read", Table(columns=columns, rows=cells), *more]


_WORDS = {"identical": "identical", "divergence": "diverging", "cannot verify": "not verified"}
