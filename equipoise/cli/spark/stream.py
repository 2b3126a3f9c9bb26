"""`equipoise spark stream` verifies a live log in Kafka continuously; `equipoise spark archive`
archives one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.params import WholeNumber, brokers_argument
from equipoise.cli.screen import Screen
from equipoise.cli.spark.shared import spark_options, spark_session
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.events.log.kafka.bases import BaseStart

_LOOK_S = 1


@attrs.frozen(kw_only=True)
class _Streaming:
    """Arguments and options of both commands."""

    location: str
    master: str | None
    settings: tuple[str, ...]
    checkpoint: str
    once: bool
    most_records: int
    metrics_port: int | None

    @property
    def trigger(self) -> dict[str, Any] | None:
        return {"availableNow": True} if self.once else None


def _streaming(run: Callable[..., int | None]) -> Callable[..., int | None]:
    """Passes the arguments and options of both commands as one `_Streaming`, after the screen."""

    def with_streaming(screen: Screen, **given: Any) -> int | None:
        return run(screen, _Streaming(**{field.name: given.pop(field.name) for field in attrs.fields(_Streaming)}), **given)

    with_streaming.__doc__ = run.__doc__
    with_streaming.__click_params__ = getattr(run, "__click_params__", [])  # type: ignore[attr-defined]
    where_it_is = "Folder for the query's position; one for each query."
    made = brokers_argument("location", "KAFKA")(with_streaming)
    made = click.option("--checkpoint", required=True, metavar="FOLDER", help=where_it_is)(made)
    made = click.option("--once", is_flag=True, help="Process the records that are there now, and exit.")(made)
    made = click.option("--most-records", type=WholeNumber(1), default=200_000, show_default=True, help="Most records of one trigger.")(made)
    made = click.option("--metrics-port", type=WholeNumber(1, 65_535), metavar="PORT", help="Serve counts to Prometheus on this port.")(made)
    return spark_options(made)


@command("stream", short_help="Verify a live log in Kafka continuously; each finding becomes a row.")
@_streaming
@click.option("--alerts", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Folder for findings, as Parquet.")
def stream(screen: Screen, streaming: _Streaming, alerts: Path) -> int:
    """Replay every group of KAFKA (kafka://host:port[/prefix]) as its records arrive, and compare
    each decision as `equipoise verify` does. The first finding of a group becomes a row in
    --alerts, within the trigger that reads it. If the query is killed, the next run resumes.

    Exit code with --once: 0: no findings; 1: at least one row was written.

    \b
    Examples:
      spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        $(equipoise spark script) stream kafka://127.0.0.1:9092 --alerts alerts/ --checkpoint state/
      equipoise spark stream kafka://127.0.0.1:9092 --alerts alerts/ --checkpoint state/ --once \\
        --conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
    """
    from equipoise.replay.spark.stream import spark_stream

    with spark_session(streaming.master, streaming.settings) as spark:
        records, begins = _records(spark, streaming)
        query = spark_stream(records, alerts, streaming.checkpoint, trigger=streaming.trigger, starts=begins)
        totals = _follow(screen, query, streaming.metrics_port)
    summary = f"{counted(totals['facts'], 'fact')} and {counted(totals['decisions'], 'decision')} verified, {counted(totals['alerts'], 'alert')}"
    screen.answer({"alerts_folder": str(alerts), **totals}, f"{summary} in {alerts}" if totals["alerts"] else summary)
    return 1 if totals["alerts"] else 0


@command("archive", short_help="Archive a live log in Kafka continuously.")
@_streaming
@click.option(
    "--to",
    "archive_folder",
    required=True,
    metavar="ARCHIVE",
    help="Archive to write; an existing one is continued.",
)
def archive(screen: Screen, streaming: _Streaming, archive_folder: str) -> None:
    """Copy every partition of KAFKA (kafka://host:port[/prefix]) to the Parquet archive ARCHIVE,
    each fact when all its decisions are written. If the query is killed, the next run resumes, and
    no record is in the archive twice. Merge its small files from time to time with `equipoise
    compact`.

    \b
    Examples:
      spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        $(equipoise spark script) archive kafka://127.0.0.1:9092 --to archive/ --checkpoint state/
    """
    from equipoise.events.log.parquet.log import ArchiveLog
    from equipoise.replay.spark.archive import spark_archive

    with spark_session(streaming.master, streaming.settings) as spark:
        records, begins = _records(spark, streaming)
        query = spark_archive(records, archive_folder, streaming.checkpoint, trigger=streaming.trigger, starts=begins)
        _follow(screen, query, streaming.metrics_port)
    with ArchiveLog(archive_folder, "r") as log:
        offsets = [(partition, log.part(partition).position()) for partition in log.partitions()]
        count = log.count()
    where = ", ".join(f"offset {offset} of partition {partition}" for partition, offset in offsets)
    document = {"archive": archive_folder, "records": count, "next_offsets": [{"partition": each, "offset": offset} for each, offset in offsets]}
    screen.answer(document, f"{count:,} records in {archive_folder}, up to {where or 'nothing yet'}")


def _records(spark: Any, streaming: _Streaming) -> tuple[Any, dict[int, BaseStart]]:
    """The log's records, and where its partitions begin."""
    from equipoise.events.log.kafka.log import SCHEME, Place
    from equipoise.replay.spark.kafka import records, starts

    location = streaming.location
    if not location.startswith(SCHEME):
        raise InputError(f"{location}: not a log in Kafka; write kafka://host:port[/prefix]")
    place = Place.parse(location)
    if place.partition is not None:
        raise InputError(f"{location}: a stream reads all partitions; leave out ?partition")
    return records(spark, place.connection, place.topics, most_records=streaming.most_records), starts(location)


def _follow(screen: Screen, query: Any, metrics_port: int | None) -> dict[str, int]:
    """Follows the query until it ends or is interrupted. Returns what it did, and serves the counts
    meanwhile.
    """
    from equipoise.replay.spark.stream import METRIC

    totals = {"records": 0, "facts": 0, "decisions": 0, "alerts": 0}
    seen = -1
    with _metrics(metrics_port, totals):
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
def _metrics(port: int | None, totals: dict[str, int]) -> Iterator[None]:
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, Gauge

        from equipoise.cli.spark.exporter import StreamExporter
    except ImportError:
        raise InputError("--metrics-port needs the extra: pip install 'equipoise[kafka]'") from None
    registry = CollectorRegistry()
    for name in sorted(totals):
        gauge = Gauge(f"equipoise_stream_{name}", f"{name.capitalize()} since this process began.", registry=registry)
        gauge.set_function(partial(totals.__getitem__, name))
    with StreamExporter(registry, port):
        yield
