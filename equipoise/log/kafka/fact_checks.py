"""Checks what consumers return of the facts: no offset is left out, and each time is a broker's."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.events.errors import GapError, InputError
from equipoise.kafka.client import ConsumedRecord, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.known_ends import batches_before
from equipoise.kafka.started_clients import reaching, reader
from equipoise.log.kafka.envelope import NoRecord

APPEND_TIME = 1  # timestamp_type of a record: LogAppendTime


async def fill_holes(connection: Connection, due: int, records: Sequence[ConsumedRecord]) -> list[ConsumedRecord | NoRecord]:
    """Returns `records`, which a consumer of the facts returned from offset `due` on, with a
    NoRecord for each offset that it skipped.

    Checks with a new consumer that these offsets have no record. Raises GapError when one has.
    """
    filled: list[ConsumedRecord | NoRecord] = []
    for record in records:
        if record.offset > due:
            await _must_hold_nothing(connection, record.topic, record.partition, due, record.offset)
            filled += [NoRecord(offset, record.timestamp_ms) for offset in range(due, record.offset)]
        filled.append(record)
        due = record.offset + 1
    return filled


async def _must_hold_nothing(connection: Connection, topic: str, partition: int, start: int, end: int) -> None:
    tp = TopicPartition(topic, partition)
    async with reader(connection) as consumer:
        consumer.assign([tp])
        with reaching(connection):
            if (await consumer.beginning_offsets([tp]))[tp] > start:
                raise GapError(start, f"is missing: topic {topic}/{partition} begins after it; earlier records were deleted by topic retention")
            consumer.seek(tp, start)
            async for batch in batches_before(consumer, tp, end):
                for record in batch:
                    raise GapError(start, f"was skipped by a reader of topic {topic}/{partition}, which holds offset {record.offset}")


RESTORED = "equipoise.restored"
"""Header of a fact that `log_restore` wrote with its former append time, while its topic took the
sender's. A topic that takes the broker's only takes no such record.
"""


def check_append_time(record: ConsumedRecord) -> None:
    """Raises InputError when the time of a fact's record is not that of a broker
    (docs/protocol.md#l2).
    """
    if record.timestamp_type != APPEND_TIME and all(name != RESTORED for name, _ in record.headers):
        raise InputError(
            f"topic {record.topic}/{record.partition}, offset {record.offset}: its time is its sender's; set message.timestamp.type=LogAppendTime"
        )
