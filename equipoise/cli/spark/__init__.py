"""`equipoise spark COMMAND`: offline commands over the many groups of Parquet archives, on Spark.
"""

from __future__ import annotations

from equipoise.cli.command_group import CommandGroup

SPARK_COMMANDS = {
    "verify": "equipoise.cli.spark.verify:verify",
    "timeline": "equipoise.cli.spark.timeline:timeline",
    "what-if": "equipoise.cli.spark.what_if:what_if",
    "stream": "equipoise.cli.spark.stream:stream",
    "archive": "equipoise.cli.spark.stream:archive",
    "script": "equipoise.cli.spark.script:script",
}

spark = CommandGroup(
    name="spark",
    sections={"Commands": SPARK_COMMANDS},
    short_help="Run verify, timeline and what-if over many groups, on Spark.",
    help="""Run verify, timeline and what-if over the many groups of Parquet archives, on Apache Spark: on all cores of this machine, or on a cluster
    (--master, spark-submit). An ARCHIVE is a folder that `equipoise archive` wrote; make one from a file with
    `equipoise archive group.db --to archive/`.

    \b
    Examples:
      equipoise spark verify archive/
      equipoise spark timeline archive/ --to history/
      equipoise spark what-if archive/ --sweep max_warmups=1,2,4
    """,
)
