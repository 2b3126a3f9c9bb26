"""`equipoise archive`: copies a log into a file, a Parquet archive or new topics of Kafka, and can
be resumed; merges the small files of an archive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.exit_codes import resumable
from equipoise.cli.outage import outages
from equipoise.cli.output import same_place
from equipoise.cli.params import WholeNumber, log_argument
from equipoise.cli.restore import restore
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError
from equipoise.events.records import UnreadRecord
from equipoise.log import Log, is_archive_location, open_log
from equipoise.log.stored import StoredLog
from equipoise.replay.bases import as_kafka
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.kafka.broker_watch import BrokerWatch
    from equipoise.log.kafka.log import KafkaLog

Advance = Callable[[int], None]
_ROUND_S = 2.0
_FACTS_A_TRANSACTION = 1_000
_FACTS_A_FILE = 100_000
_MOST_NAME_CHARS = 200
EXIT_UNREAD = 1


@attrs.define
class _Done:
    facts: int = 0
    decisions: int = 0
    waiting: int = 0
    held_by: dict[int, str] = attrs.field(factory=dict)
    """Partition -> a group that has halted, behind which nothing is copied."""
    unread: list[UnreadRecord] = attrs.field(factory=list)
    next_offsets: dict[int, int] = attrs.field(factory=dict)
    """Partition -> offset of the next fact to copy."""

    def document(self, withdrawn: str | None = None) -> dict[str, Any]:
        offsets = sorted(self.next_offsets.items())
        return {
            "facts": self.facts,
            "decisions": self.decisions,
            "next_offset": offsets[0][1] if len(offsets) == 1 else None,
            "next_offsets": [{"partition": each, "offset": offset} for each, offset in offsets],
            "waiting": self.waiting,
            "unread": [attrs.asdict(each) for each in self.unread],
            "withdrawn": withdrawn,
        }


@command("archive", short_help="Copy a log into a file or an archive, or back to Kafka.")
@log_argument
@click.option(
    "--to",
    "location",
    metavar="LOG2",
    help="Target: a file (group.db) or an archive (archive/, s3://bucket/archive/), continued if it holds LOG's beginning; or new topics "
    "of Kafka (kafka://host:port[/prefix]).",
)
@click.option("--follow", is_flag=True, help="Keep copying new records until interrupted.")
@click.option("--final", is_flag=True, help="No worker leads LOG any more: copy the facts after the last decision, too.")
@click.option("--declare", metavar="NAME", help="Declare this archive of a log in Kafka under NAME: workers delete no record that it lacks.")
@click.option("--withdraw", metavar="NAME", help="Withdraw an archive that was declared under NAME, and copy nothing.")
@click.option("--replication", type=WholeNumber(0), help="--to Kafka: copies of each topic. Default: three, or one for each broker.")
@click.option("--compact", "compacts", is_flag=True, help="LOG is an archive: merge its small files, and copy nothing.")
def archive(
    screen: Screen,
    log: Log,
    location: str | None,
    declare: str | None,
    withdraw: str | None,
    replication: int | None,
    *,
    follow: bool,
    final: bool,
    compacts: bool,
) -> int:
    """Copy facts and decisions of LOG into a file, or into a Parquet archive, that every other
    command reads. Or copy such a copy back into Kafka. The command may be killed at any time; the
    next run resumes, and copies no record twice.

    From a log in Kafka (kafka://host:port[/prefix][?partition=N]) it copies a fact when all its
    decisions are written. A file holds one partition, an archive holds all. When the log's workers
    are stopped for good, --final copies the facts that wait, too. --follow waits for brokers that
    are away.

    Workers with retention delete old records, archived or not. With --declare they keep what this
    archive lacks, also while it does not run, until it is withdrawn. Declare the same NAME each
    time.

    Each run adds a file for each partition and day to an archive. --compact merges them into few
    large ones, while other processes read it and append to it, and may be killed. The former files
    stay for a day, and go with a later --compact.

    --to kafka://host:port[/prefix] makes the topics there and writes LOG into them: every decision,
    and every fact at its former offset and append time. Then all of it is compared byte by byte,
    and workers may lead it. LOG is a copy with all partitions. What is not in it is lost: read
    "Back up and restore" in docs/logs.md before a group goes on from it.

    Exit code 1: everything is copied byte for byte, but this build cannot read some group's records
    (unknown kind or version).

    \b
    Examples:
      equipoise archive kafka://127.0.0.1:9092 --to archive/
      equipoise archive 'kafka://127.0.0.1:9092/equipoise?partition=3' --to groups.p3.db --follow
      equipoise archive kafka://127.0.0.1:9092 --to archive/ --follow --declare nightly
      equipoise archive kafka://127.0.0.1:9092 --withdraw nightly
      equipoise archive archive/ --compact
      equipoise archive s3://bucket/archive/ --to kafka://127.0.0.1:9092/restored
    """
    given = {"--to": location, "--declare": declare, "--follow": follow, "--final": final, "--replication": replication is not None}
    others = [name for name, is_given in given.items() if is_given]
    if compacts:
        if others or withdraw is not None:
            raise InputError(f"--compact: copies nothing, so leave out {[*others, '--withdraw'][0]}")
        return _compact(screen, log.location)
    if withdraw is not None:
        return _withdraw(screen, log, withdraw, others)
    if location is None:
        raise InputError("--to: name the file or the archive to copy to")
    if location.startswith("kafka://") and as_kafka(log) is None:
        if others[1:] not in ([], ["--replication"]):
            raise InputError(f"{others[1]}: is of copies of a log in Kafka; leave it out, or name a file or an archive after --to")
        restore(screen, log, location, replication or 0)
        return 0
    if location.startswith("kafka://"):
        raise InputError(f"--to {location}: {log.location} is in Kafka, too; archive it first, as --to archive/, and that to Kafka")
    if replication is not None:
        raise InputError("--replication: is of topics of Kafka; leave it out, or name kafka://host:port[/prefix] after --to")
    if same_place(log.location, location):
        raise InputError(f"--to {location}: that is the log to read; name another one")
    if final and follow:
        raise InputError("--final: is for a log that is not led any more, which --follow would wait for; leave one of them out")
    done = _Done()
    declared: dict[int, int] = {}
    kafka = as_kafka(log)
    if declare is not None:
        _check_name(declare)
        if kafka is None:
            raise InputError(f"--declare: {log.location} is not in Kafka, so nothing deletes its records")
        kafka.declare_archive(declare, _positions(kafka, location), _now_ms())

    def there() -> str:
        return f"{location} holds what was copied so far; the same command resumes there"

    def copy() -> None:
        _round(log, location, done, advance, pairs, opened, final=final)
        if declare is not None and kafka is not None and done.next_offsets != declared:
            kafka.declare_archive(declare, dict(done.next_offsets), _now_ms())
            declared.update(done.next_offsets)

    with ExitStack() as opened, resumable(location, there), screen.progress("copying") as advance:
        pairs: list[tuple[KafkaLog, Log]] = []
        if follow:
            _follow(copy, opened.enter_context(outages(screen, log.location)))
        copy()
    offsets = sorted(done.next_offsets.items())
    where = f"offset {offsets[0][1]}" if len(offsets) == 1 else ", ".join(f"offset {offset} of partition {each}" for each, offset in offsets)
    summary = f"{counted(done.facts, 'fact')} and {counted(done.decisions, 'decision')} copied to {location}, up to {where}"
    waiting = f"; {counted(done.waiting, 'fact')} after the last decision wait for the next run" if done.waiting else ""
    document = done.document()
    unread = [f"copied, but this build cannot read it: {each.error()}" for each in done.unread]
    held = [f"partition {partition} is copied up to where group {group} has halted" for partition, group in sorted(done.held_by.items())]
    screen.answer(document, summary + waiting, *held, *unread)
    return EXIT_UNREAD if unread else 0


def _follow(copy: Callable[[], None], brokers: BrokerWatch) -> NoReturn:
    """Copies again and again, and waits for brokers that are away."""
    while True:
        asked_s = time.monotonic()
        try:
            copy()
        except InputError as error:
            if not brokers.noted("cannot copy", error):
                raise
        else:
            brokers.answered(asked_s)
        time.sleep(_ROUND_S)


def _withdraw(screen: Screen, log: Log, name: str, others: list[str]) -> int:
    if others:
        raise InputError(f"--withdraw: copies nothing, so leave out {others[0]}")
    _check_name(name)
    kafka = as_kafka(log)
    if kafka is None:
        raise InputError(f"--withdraw: {log.location} is not in Kafka, so it has no declared archive")
    known = [partition for partition in kafka.partitions() if name in kafka.bases(partition, keep_states=False).archives]
    if not known:
        raise InputError(f"--withdraw {name}: the log has no declared archive of that name")
    kafka.declare_archive(name, dict.fromkeys(known), _now_ms())
    screen.answer(_Done().document(name), f"archive {name} is withdrawn: workers may delete what it lacks")
    return 0


def _positions(log: KafkaLog, location: str) -> dict[int, int]:
    """Partition -> offset of the next fact to copy."""
    positions = {}
    for partition in log.partitions():
        with open_log(f"{location}?partition={partition}" if is_archive_location(location) else location, "a") as target:
            positions[partition] = target.position()
    return positions


def _check_name(name: str) -> None:
    if not 0 < len(name) <= _MOST_NAME_CHARS:
        raise InputError(f"a declared archive has a name of 1 to {_MOST_NAME_CHARS} characters; name a shorter one")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _round(log: Log, location: str, done: _Done, advance: Advance, pairs: list[tuple[KafkaLog, Log]], opened: ExitStack, *, final: bool) -> None:
    """`pairs`: partitions of a log in Kafka and of an archive, which the first round opens, and
    `opened` closes.
    """
    from equipoise.log.kafka.log import KafkaLog
    from equipoise.log.parquet.log import ArchiveLog

    done.waiting = 0
    done.held_by.clear()
    if isinstance(log, KafkaLog) and is_archive_location(location):
        if not pairs:
            made: list[tuple[KafkaLog, Log]] = []
            with ExitStack() as opening:  # all of them, or none
                for partition in log.partitions():
                    source = opening.enter_context(KafkaLog(log.location_of(partition)))
                    made.append((source, opening.enter_context(open_log(f"{location}?partition={partition}", "a"))))
                opened.push(opening.pop_all())
            pairs += made
        partitions = len(log.partitions())
        for source, target in pairs:
            if isinstance(target, ArchiveLog):
                target.of_log(partitions, source.position())
            _from_kafka(source, target, done, advance, facts_a_transaction=_FACTS_A_FILE, final=final)
    elif isinstance(log, KafkaLog):
        with open_log(location, "a") as target:
            _from_kafka(log, target, done, advance, facts_a_transaction=_FACTS_A_TRANSACTION, final=final)
    elif isinstance(log, StoredLog):
        from equipoise.log.copying import copy_log

        with open_log(location, "a") as target:
            if isinstance(target, ArchiveLog):
                target.of_log(0, log.position())
            copied = copy_log(log, target, advance=advance)
        done.facts, done.decisions = done.facts + copied.facts, done.decisions + copied.decisions
        done.next_offsets[0] = copied.position
        done.unread += copied.unread
    else:
        raise InputError(
            f"{log.location}: is already an archive; this command copies logs in Kafka (kafka://host:port[/prefix]) and in files (group.db)"
        )


def _from_kafka(source: KafkaLog, target: Log, done: _Done, advance: Advance, *, facts_a_transaction: int, final: bool) -> None:
    from equipoise.log.kafka.log_archive import archive

    archived = archive(source, target, facts_a_transaction=facts_a_transaction, final=final, advance=advance)
    done.facts, done.decisions, done.waiting = done.facts + archived.facts, done.decisions + archived.decisions, done.waiting + archived.waiting
    done.next_offsets[source.only_partition()] = archived.position
    done.unread += archived.unread
    if archived.held_by:
        done.held_by[source.only_partition()] = archived.held_by


def _compact(screen: Screen, location: str) -> int:
    from equipoise.log.parquet.archive_stores import store_at
    from equipoise.log.parquet.compact import compact

    if not is_archive_location(location):
        raise InputError(f"--compact: {location} is no archive; name a folder, as archive/, or s3://bucket/archive/")

    def there() -> str:
        return f"nothing in {location} is lost; the same command merges the rest"

    with resumable(location, there), screen.progress("compacting, in partitions") as advance:
        done = compact(store_at(location), advance=advance)
    screen.answer(attrs.asdict(done), f"{counted(done.before, 'file')} -> {done.after:,}: {counted(done.merged_rows, 'record')} merged")
    return 0
