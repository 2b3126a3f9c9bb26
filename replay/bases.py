"""Bases of logs in Kafka (docs/protocol.md#l10), for readers of logs in any form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import attrs

from equipoise.events.errors import GapError, InputError
from equipoise.events.facts import LogOpened
from equipoise.events.records import Entry, FactRecord
from equipoise.log import Log, is_archive_location, open_log

if TYPE_CHECKING:
    from equipoise.log.kafka.log import KafkaLog

BaseHash = tuple[int, str]
"""Form and SHA-256 of a state in a base."""


@attrs.frozen(kw_only=True)
class StoredBases:
    """What the bases of a log say. `hashes`: (group, fact) -> hash of the state after that fact.
    `problem`: where a base does not name the one before it; "": nowhere.
    """

    hashes: dict[tuple[str, int], BaseHash] = attrs.field(factory=dict)
    problem: str = ""


def stored_bases(log: Log) -> StoredBases:
    """Reads the bases of a log in Kafka. Other logs have none but the one that they begin with."""
    kafka = as_kafka(log)
    hashes: dict[tuple[str, int], BaseHash] = {}
    problem = ""
    for partition in kafka.partitions() if kafka is not None else ():
        bases = cast("KafkaLog", kafka).bases(partition, keep_states=False)
        for base in bases.stored:
            hashes |= {(group, offset): (form, sha256) for group, (offset, _, form, sha256) in base.groups.items()}
        problem = problem or bases.broken_chain()
    return StoredBases(hashes=hashes, problem=problem)


def as_kafka(log: Log) -> KafkaLog | None:
    """The log, if it is one in Kafka."""
    if not log.location.startswith("kafka://"):
        return None
    from equipoise.log.kafka.log import KafkaLog

    return log if isinstance(log, KafkaLog) else None


def read_as_one(archive: str, log: Log, group: str | None = None) -> Iterator[Entry]:
    """Yields the records of an archive of `log`, then those that only `log` has, partition by
    partition. `archive`: its location; `log`: a log in Kafka.

    Raises InputError when they are not of one log; GapError when records between the two are gone.
    """
    kafka = as_kafka(log)
    if kafka is None:
        raise InputError(f"{log.location}: an archive continues with a log in Kafka; name kafka://host:port[/prefix]")
    is_first = True
    for partition in kafka.partitions():
        with open_log(f"{archive}?partition={partition}" if is_archive_location(archive) and "?" not in archive else archive) as copy:
            if not is_archive_location(archive) and len(kafka.partitions()) > 1:
                raise InputError(f"{archive}: holds one partition; name that one of {log.location} with ?partition=N")
            for entry in copy.read(group=group):
                if isinstance(entry, FactRecord) and isinstance(entry.event, LogOpened):
                    if entry.event != kafka.opened:
                        there = f"holds log {entry.event.log_id!r}, and {log.location} is {kafka.opened.log_id!r}"
                        raise InputError(f"{archive}: {there}; name its archive")
                    if not is_first:
                        continue
                    is_first = False
                yield entry
            position = copy.position()
        begin = kafka.begins(partition)
        if position < begin:
            problem = f"partition {partition}: the archive ends here, and the log begins at {begin}: what is between is in neither"
            raise GapError(position, problem)
        yield from kafka.read_partition(partition, position, group)
