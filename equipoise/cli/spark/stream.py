"""`equipoise spark stream`: verifies or archives a live log in Kafka continuously."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.cli.command import command
from equipoise.cli.params import WholeNumber, brokers_argument
from equipoise.cli.screen import Screen
from equipoise.cli.spark.shared import spark_options, spark_session
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.log.kafka.bases_topic import BaseStart

_LOOK_S = 1


@command("stream", short_help="Verify or archive a live log in Kafka continuously.")
@brokers_argument("location", "KAFKA")
@click.option("--alerts", metavar="FOLDER", type=click.Path(path_type=Path), help="Verify: folder for findings, as Parquet.")
@click.option("--to", "archive", metavar="ARCHIVE", help="Copy: archive to write; an existing one is continued.")
@click.option("--checkpoint", required=True, metavar="FOLDER", help="Folder for the query's position; one for each query.")
@click.option("--once", is_flag=True, help="Process the records that are there now, and exit.")
@click.option("--most-records", type=WholeNumber(1), default=200_000, show_default=True, help="Most records of one trigger.")
@click.option("--metrics-port", type=WholeNumber(1, 65_535), metavar="PORT", help="Serve counts to Prometheus on this port.")
@spark_options
def stream(
    screen: Screen,
    location: str,
    alerts: Path | None,
    archive: str | None,
    checkpoint: str,
    most_records: int,
    metrics_port: int | None,
    master: str | None,
    settings: tuple[str, ...],
    *,
    once: bool,
) -> int:
    """Read every partition of KAFKA (kafka://host:port[/prefix]) as its records arrive. With
    --alerts, compare each decision as `equipoise verify` does: the first finding of a group becomes
    a row, within the trigger that reads it. With --to, copy the log to a Parquet archive; merge its
    small files from time to time with `equipoise archive ARCHIVE --compact`. If the query is
    killed, the next run resumes.

    Exit code with --once: 0: no findings; 1: at least one row was written.

    \b
    Examples:
      spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        $(equipoise spark --script) stream kafka://127.0.0.1:9092 --alerts alerts/ --checkpoint a/
      spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        $(equipoise spark --script) stream kafka://127.0.0.1:9092 --to archive/ --checkpoint b/
      equipoise spark stream kafka://127.0.0.1:9092 --alerts alerts/ --checkpoint a/ --once \\
        --conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
    """
    from equipoise.replay.spark.archive import spark_archive
    from equipoise.replay.spark.stream import spark_stream

    if (alerts is None) == (archive is None):
        raise click.UsageError("name --alerts FOLDER to verify, or --to ARCHIVE to copy")
    trigger: dict[str, Any] | None = {"availableNow": True} if once else None
    with spark_session(master, settings, f"stream of {location}") as spark:
        records, begins = _records(spark, location, most_records)
        if alerts is not None:
            query = spark_stream(records, alerts, checkpoint, trigger=trigger, starts=begins)
        elif archive is not None:
            query = spark_archive(records, archive, checkpoint, trigger=trigger, starts=begins)
        totals = _follow(screen, query, metrics_port, alerts)
    if archive is not None:
        return _answer_archived(screen, archive)
    summary = f"{counted(totals['facts'], 'fact')} and {counted(totals['decisions'], 'decision')} verified, {counted(totals['alerts'], 'alert')}"
    screen.answer({"alerts_folder": str(alerts), **totals}, f"{summary} in {alerts}" if totals["alerts"] else summary)
    return 1 if totals["alerts"] else 0


def _answer_archived(screen: Screen, archive: str) -> int:
    from equipoise.log.parquet.log import ArchiveLog

    with ArchiveLog(archive, "r") as log:
        offsets = [(partition, log.part(partition).position()) for partition in log.partitions()]
        count = log.count()
    where = ", ".join(f"offset {offset} of partition {partition}" for partition, offset in offsets)
    document = {"archive": archive, "records": count, "next_offsets": [{"partition": each, "offset": offset} for each, offset in offsets]}
    screen.answer(document, f"{counted(count, 'record')} in {archive}, up to {where or 'nothing yet'}")
    return 0


def _records(spark: Any, location: str, most_records: int) -> tuple[Any, dict[int, BaseStart | None]]:
    """The log's records, and where its partitions begin."""
    from equipoise.log.kafka.log import SCHEME, Place
    from equipoise.replay.spark.kafka import records, starts

    if not location.startswith(SCHEME):
        raise InputError(f"{location}: not a log in Kafka; write kafka://host:port[/prefix]")
    place = Place.parse(location)
    if place.partition is not None:
        raise InputError(f"{location}: a stream reads all partitions; leave out ?partition")
    begins = starts(location)
    return records(spark, place.connection, place.topics, partitions=len(begins), most_records=most_records), begins


def _follow(screen: Screen, query: Any, metrics_port: int | None, alerts: Path | None) -> dict[str, int]:
    """Follows the query until it ends or is interrupted. Returns what it did, and serves the counts
    meanwhile. `alerts`: the folder of findings; None: it finds none.
    """
    from equipoise.replay.spark.stream import METRIC

    totals = {"records": 0, "facts": 0, "decisions": 0, "alerts": 0}
    seen = -1
    with _metrics(metrics_port, totals, alerts):
        while True:
            over = query.awaitTermination(_LOOK_S)
            for progress in query.recentProgress:
                if progress.batchId <= seen:
                    continue
                seen = progress.batchId
                observed = progress.observedMetrics.get(METRIC)
                totals["records"] += progress.numInputRows
                for name in ("facts", "decisions", "alerts"):
                    totals[name] += 0 if observed is None else observed[name] or 0
                if observed is not None and observed["alerts"]:
                    screen.remark(f"{counted(observed['alerts'], 'alert')} in trigger {progress.batchId}")
            if over:
                return totals


@contextlib.contextmanager
def _metrics(port: int | None, totals: dict[str, int], alerts: Path | None = None) -> Iterator[None]:
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, Gauge

        from equipoise.cli.exporter import MetricsExporter
    except ImportError:
        raise InputError("--metrics-port needs the extra: pip install 'equipoise[kafka]'") from None
    from equipoise.replay.spark.stream import count_alerts

    registry = CollectorRegistry()
    for name in sorted(totals):
        value, about = partial(totals.__getitem__, name), f"{name.capitalize()} since this process began."
        if name == "alerts" and alerts is not None:  # an alert on it outlasts the process
            value, about = partial(count_alerts, alerts), "Rows in the folder of alerts."
        Gauge(f"equipoise_stream_{name}", about, registry=registry).set_function(value)
    with MetricsExporter("equipoise spark stream", registry, port):
        yield
