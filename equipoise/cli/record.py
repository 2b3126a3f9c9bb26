"""`equipoise record kafka://... --to recording.db`: keeps what happens to the groups of a cluster,
whatever leads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from equipoise.cli.command import command
from equipoise.cli.exit_codes import resumable
from equipoise.cli.outage import outages
from equipoise.cli.params import Number, WholeNumber, brokers_argument, brokers_of
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from equipoise.kafka.broker_watch import BrokerWatch
    from equipoise.replay.importers.groups.cluster_recording import ClusterRecording
    from equipoise.replay.importers.groups.recorder import Recorder
    from equipoise.replay.incident.watched_groups import WatchedGroups

_AGAIN_S = 1.0
_COUNT_S = 30.0
"""Between two counts of rebalances."""
_DAY_MS = 86_400_000


@command("record", short_help="Record what happens to the groups of a cluster.")
@brokers_argument("place", "kafka://HOST:PORT")
@click.option("--to", "location", metavar="FILE", required=True, help="Recording to write, or to continue.")
@click.option("--group", "patterns", multiple=True, metavar="PATTERN", help="Record these groups only, as 'orders-*'; may be given again.")
@click.option("--sample-s", type=Number(min=1), default=10.0, show_default=True, help="Seconds between two samples of end offsets.")
@click.option("--poll-s", type=Number(min=0.2), default=5.0, show_default=True, help="Seconds between two looks, if groups are polled.")
@click.option("--keep-days", type=Number(min=0, min_open=True), metavar="DAYS", help="Delete what is older. Default: keep everything.")
@click.option("--metrics-port", type=WholeNumber(1, 65_535), metavar="PORT", help="Serve rebalances and their cost to Prometheus on this port.")
@click.option("--once", is_flag=True, help="Record what the brokers still have, and exit. Default: continue until interrupted.")
def record(
    screen: Screen,
    place: str,
    location: str,
    patterns: tuple[str, ...],
    sample_s: float,
    poll_s: float,
    keep_days: float | None,
    metrics_port: int | None,
    *,
    once: bool,
) -> None:
    """Follow `__consumer_offsets` of a cluster, and write every change of its groups to FILE. End
    offsets and the newest commit of each second and partition go there, too. The topic is
    compacted, so what nobody recorded is gone. The command joins no group; it may be killed at any
    time, and waits for brokers that are away.

    With --metrics-port it counts rebalances by cause, and what they cost, while it records. Share
    groups are only named.

    It needs the right to read `__consumer_offsets` and to describe topics. Without the first, it
    polls the groups. It then misses what comes and goes between two looks, generations and timeouts
    of the classic protocol, and share groups.

    \b
    Examples:
      equipoise record kafka://127.0.0.1:9092 --to cluster.db
      equipoise record kafka://127.0.0.1:9092 --to orders.db --group 'orders-*' --keep-days 14
      equipoise incident cluster.db --all
    """
    from equipoise.replay.importers.groups.cluster_recording import open_recording

    brokers_of(place)
    keep_ms = None if keep_days is None else round(keep_days * _DAY_MS)

    def there() -> str:
        return f"{location} holds what was recorded so far; the same command resumes there"

    with (
        resumable(location, there),
        open_recording(location, write=True) as recording,
        screen.progress(f"recording {place}") as advance,
        outages(screen, place) as brokers,
        _served(recording, metrics_port) as watched,
    ):
        if not once:
            screen.remark(f"recording {place} into {location} until interrupted")
        options = {"patterns": patterns, "sample_s": sample_s, "keep_ms": keep_ms, "watcher": watched}
        recorder = asyncio.run(_record(screen, place, recording, brokers, advance, options, poll_s=poll_s, once=once))
    done = recorder.done
    document = {"records": done.records, "commits": done.commits, "samples": done.samples, "unread": done.unread, "recording": location}
    what = f"{counted(done.records, 'record')} about groups, {counted(done.commits, 'commit')}, {counted(done.samples, 'sample')} of end offsets"
    screen.answer(document, f"{what} -> {location}", *([f"{counted(done.unread, 'record')} not read: no key of Kafka's"] if done.unread else []))


@contextlib.contextmanager
def _served(recording: ClusterRecording, port: int | None) -> Iterator[WatchedGroups | None]:
    """Serves what is counted of the groups; None: without a port nothing is."""
    if port is None:
        yield None
        return
    from prometheus_client import CollectorRegistry

    from equipoise.cli.exporter import MetricsExporter
    from equipoise.cli.watched_metrics import WatchedCollector
    from equipoise.replay.incident.watched_groups import WatchedGroups

    watched, registry = WatchedGroups(recording, time.time_ns() // 1_000_000), CollectorRegistry()
    registry.register(WatchedCollector(watched))
    with MetricsExporter("equipoise record", registry, port):
        yield watched


async def _record(
    screen: Screen,
    place: str,
    recording: ClusterRecording,
    brokers: BrokerWatch,
    advance: Callable[[int], None],
    options: Mapping[str, Any],
    *,
    poll_s: float,
    once: bool,
) -> Recorder:
    """Reconnects after each outage, and resumes at the recording's own positions."""
    from equipoise.kafka.started_clients import NotAllowedError, admin_client
    from equipoise.replay.importers.groups.cluster_reading import ClusterReader
    from equipoise.replay.importers.groups.polled import LOST, PolledCluster
    from equipoise.replay.importers.groups.recorder import Recorded, Recorder

    connection = brokers_of(place)
    total = Recorded()
    polls, counted_s = False, 0.0
    while True:
        asked_s = time.monotonic()
        try:
            async with admin_client(connection) as admin:
                recording.begin(str((await admin.describe_cluster())["cluster_id"]))
            async with ClusterReader(connection, recording.positions()) as reader:
                recorder = Recorder(reader, recording, **options, done=total)
                if polls:
                    polled = PolledCluster(connection, reader, poll_s=poll_s, recording=recording, wanted=recorder.is_wanted, say=screen.remark)
                    recorder = Recorder(polled, recording, **options, done=total)
                while True:
                    asked_s, before = time.monotonic(), total.records + total.commits
                    await recorder.step()
                    brokers.answered(asked_s)
                    advance(total.records + total.commits - before)
                    if (watched := options["watcher"]) is not None and asked_s - counted_s >= _COUNT_S:
                        watched.count(time.time_ns() // 1_000_000, recording.topics())
                        counted_s = asked_s
                    if once and await recorder.has_read_all():
                        recorder.write()
                        return recorder
        except NotAllowedError:
            if polls:
                raise
            polls = True
            screen.remark(LOST)
        except InputError as error:
            if once or not brokers.noted("cannot record", error):
                raise
        await asyncio.sleep(_AGAIN_S)
