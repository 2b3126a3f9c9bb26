"""`equipoise restore ARCHIVE KAFKA` writes a log back into new topics of Kafka."""

from __future__ import annotations

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.exit_codes import resumable
from equipoise.cli.params import LOG, WholeNumber
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError
from equipoise.events.log import Log
from equipoise.events.log.stored import StoredLog
from equipoise.replay.wording import counted


@command("restore", short_help="Write an archived log back into new topics of Kafka.")
@click.argument("log", metavar="ARCHIVE", type=LOG)
@click.argument("location", metavar="KAFKA")
@click.option("--replication", type=WholeNumber(0), default=0, show_default=True, help="Copies of each topic. 0: three, or one for each broker.")
def restore(screen: Screen, log: Log, location: str, replication: int) -> None:
    """Make the topics of KAFKA (kafka://host:port[/prefix]) and write ARCHIVE into them: every fact
    at its former offset and with its former append time, and every decision. Then compare all of it
    byte by byte, and let workers lead it. The command may be killed at any time; the next run
    resumes.

    ARCHIVE is what `equipoise archive` wrote, with all partitions. What is not in it is lost: read
    "Back up and restore" in docs/operations.md before a group goes on from it.

    \b
    Examples:
      equipoise restore archive/ kafka://127.0.0.1:9092
      equipoise restore s3://bucket/archive/ kafka://127.0.0.1:9092/restored
    """
    from equipoise.events.log.kafka.kafka_log import SCHEME
    from equipoise.events.log.kafka.log_restore import restore
    from equipoise.events.log.parquet.parquet_log import ArchiveLog

    if not location.startswith(SCHEME):
        raise InputError(f"{location}: not a place in Kafka; write kafka://host:port[/prefix]")
    if isinstance(log, ArchiveLog):
        sources: dict[int, StoredLog] = {partition: log.part(partition) for partition in log.partitions()}
    elif isinstance(log, StoredLog):
        sources = {0: log}
    else:
        raise InputError(f"{log.location}: is a log in Kafka; archive it first: equipoise archive {log.location} --to archive/")

    def there() -> str:
        return f"{location} is not led before it is whole; the same command resumes there"

    count = sum(source.count() for source in sources.values())
    with resumable(location, there), screen.progress("restoring, in records", count) as advance:
        done = restore(sources, location, replication=replication, advance=advance)
    what = f"{counted(done.facts, 'fact')} and {counted(done.decisions, 'decision')} in {counted(done.partitions, 'partition')}"
    screen.answer(attrs.asdict(done), f"{what} are in {location} and equal the archive; {counted(done.written, 'record')} written by this run")
