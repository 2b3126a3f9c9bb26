"""`equipoise spark COMMAND`: offline commands over the many groups of Parquet archives, on Spark."""

from __future__ import annotations

from pathlib import Path

import click

import equipoise
from equipoise.cli.command_group import CommandGroup

SPARK_COMMANDS = {
    "verify": "equipoise.cli.spark.verify:verify",
    "timeline": "equipoise.cli.spark.timeline:timeline",
    "what-if": "equipoise.cli.spark.what_if:what_if",
    "incident": "equipoise.cli.spark.incident:incident",
    "stream": "equipoise.cli.spark.stream:stream",
}


def _print_script(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(Path(equipoise.__file__).parent / "spark_submit" / "equipoise_spark.py")
        ctx.exit()


spark = CommandGroup(
    name="spark",
    sections={"Commands": SPARK_COMMANDS},
    options=[
        click.Option(
            ["--script"], is_flag=True, expose_value=False, is_eager=True, callback=_print_script, help="Print the path of the file for spark-submit."
        )
    ],
    short_help="Verify, replay and explain many groups at once, on Spark.",
    help="""Run verify, timeline and what-if over the many groups of Parquet archives, and incident over those of recordings. They run on
    Apache Spark: on all cores of this machine, or on a cluster (--master, spark-submit). An ARCHIVE is a folder that `equipoise archive`
    wrote; `equipoise archive group.db --to archive/` makes one from a file. A RECORDING is a file that `equipoise record` wrote.

    \b
    Examples:
      equipoise spark verify archive/
      equipoise spark timeline archive/ --to history/
      equipoise spark what-if archive/ --sweep max_warmups=1,2,4
      equipoise spark incident recordings/ --to incidents/
      spark-submit --master yarn $(equipoise spark --script) verify /data/archive
    """,
)
