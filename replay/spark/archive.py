"""Archives a log in Kafka with Structured Streaming: each trigger's settled records go to the
Parquet archive, each record once.

Spark's state keeps the records that wait. The archive knows what it has, so a trigger that is
repeated after a failure adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from types import MappingProxyType
from typing import Any

import attrs
import msgpack

from equipoise.events.errors import InputError
from equipoise.events.facts import LogOpened
from equipoise.events.records import FactRecord
from equipoise.log.kafka.bases_topic import BaseStart
from equipoise.log.kafka.envelope import StoredDecision
from equipoise.log.kafka.log_archive import Settled, Settling
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.rows import BASE_KIND, BASE_NUMBER, BASE_VERSION, BaseRow, DecisionRow, FactRow, Row
from equipoise.replay.spark.stream import Starts, arrived
from equipoise.replay.watch import InOrder

_COLUMNS = (
    "partition int, seq bigint, `group` string, offset bigint, append_ms bigint, kind int, version int, payload binary, "
    "number bigint, caused_by bigint, `index` bigint, checksum bigint"
)
_NAMES = [part.split()[0].strip("`") for part in _COLUMNS.split(", ")]


class Settle:
    """State of one partition between triggers: records that wait for the one before them, facts
    that wait for their decisions.
    """

    def __init__(self, start: BaseStart | None = None) -> None:
        self._order = InOrder() if start is None else InOrder(start.facts_offset, start.decisions_offset)
        self._settling = Settling()
        self._next_row = 0
        self._first: list[Row] = []
        """LogOpened and the states at which the partition begins, until they are settled."""
        if start is not None:
            self._first = [start.opened, *start.states]
            self._settling.numbers = {state.group: state.entry().number for state in start.states}

    def feed(self, records: Iterator[Any]) -> list[tuple[int, Row]]:
        """Takes new records. Returns (place in the partition's archive, row) of those that are
        settled, in order. Raises LogError when the records are no sound log.
        """
        for each in records:
            self._order.add(each)
        settled, self._first = self._first, []
        for done in self._settling.over(self._order.due()):
            settled += [done.fact, *(stored.row for stored in done.decisions)]
        first, self._next_row = self._next_row, self._next_row + len(settled)
        return list(enumerate(settled, first))

    def save(self) -> bytes:
        pending = [
            [list(attrs.astuple(each.fact)), [[list(attrs.astuple(stored.row)), stored.log_id, stored.fact_checksum] for stored in each.decisions]]
            for each in self._settling.pending
        ]
        saved: bytes = msgpack.packb([self._order.save(), pending, self._settling.numbers, self._next_row])
        return saved

    @classmethod
    def restore(cls, saved: bytes) -> Settle:
        settle = cls()
        order, pending, settle._settling.numbers, settle._next_row = msgpack.unpackb(saved)
        settle._order = InOrder.restore(order)
        settle._settling.pending = [
            Settled(FactRow(*fact), [StoredDecision(DecisionRow(*row), log_id, checksum) for row, log_id, checksum in decisions])
            for fact, decisions in pending
        ]
        return settle


def processor(starts: Starts) -> Any:
    """Returns the stateful processor, keyed by partition."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class SettleProcessor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._state = handle.getValueState("settle", "saved binary")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
            import pandas as pd

            settle = Settle.restore(bytes(self._state.get()[0])) if self._state.exists() else Settle(starts.get(int(key[0])))
            settled = settle.feed(arrived(rows))
            self._state.update((settle.save(),))
            if settled:
                yield pd.DataFrame([_columns_of(int(key[0]), seq, row) for seq, row in settled], columns=_NAMES).astype(_KINDS)

        def close(self) -> None:
            pass

    return SettleProcessor()


_KINDS = dict.fromkeys(("offset", "append_ms", "number", "caused_by", "index"), "Int64")
"""Nullable columns, which pandas would otherwise turn into floats."""


def _columns_of(partition: int, seq: int, row: Row) -> list[Any]:
    if isinstance(row, BaseRow):
        about = [BASE_NUMBER, row.offset, 0, row.checksum]
        return [partition, seq, row.group, None, row.append_ms, BASE_KIND, BASE_VERSION, row.payload, *about]
    what = [row.kind, row.version, row.payload]
    if isinstance(row, FactRow):
        return [partition, seq, row.group, row.offset, row.append_ms, *what, None, None, None, row.checksum]
    return [partition, seq, row.group, None, None, *what, row.number, row.caused_by, row.index, row.checksum]


def spark_archive(
    records: Any, archive: str, checkpoint: str, *, trigger: dict[str, Any] | None = None, starts: Starts = MappingProxyType({})
) -> Any:
    """Starts the query and returns it. `records`: `equipoise.replay.spark.kafka.records`;
    `archive`: a folder that every worker sees, or a place in an object store. `checkpoint`: a
    folder as Spark names it. `starts`: as of `spark_stream`. Raises InputError when the archive is
    of another log.
    """
    with ArchiveLog(archive, "a") as log:  # that it is there, and can be written to
        location = log.absolute_location
    settled = records.groupBy("partition").transformWithStateInPandas(
        statefulProcessor=processor(starts), outputStructType=_COLUMNS, outputMode="Append", timeMode="None"
    )

    def append(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for partition, rows in groupby(_rows_of(batches), key=lambda pair: pair[0]):
            with ArchiveLog(f"{location}?partition={partition}", "a") as log, log.transaction():
                appended = sum(_append(log, row) for _, row in rows)
            yield pa.RecordBatch.from_pylist([{"partition": partition, "records": appended}])

    def write(batch: Any, batch_id: int) -> None:
        ordered = batch.repartition("partition").sortWithinPartitions("partition", "seq")
        ordered.mapInArrow(append, "partition bigint, records bigint").collect()

    writer = settled.writeStream.outputMode("append").foreachBatch(write).option("checkpointLocation", checkpoint)
    return writer.queryName("equipoise archive").trigger(**(trigger or {"processingTime": "10 seconds"})).start()


def _rows_of(batches: Iterator[Any]) -> Iterator[tuple[int, Row]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _NAMES]
        for partition, _, group, offset, append_ms, kind, version, payload, number, caused_by, index, checksum in zip(*columns, strict=True):
            if number == BASE_NUMBER:
                yield partition, BaseRow(group, caused_by, append_ms, payload, checksum)
            elif number is None:
                yield partition, FactRow(group, offset, append_ms, kind, version, payload, checksum)
            else:
                yield partition, DecisionRow(group, number, caused_by, index, kind, version, payload, checksum)


def _append(log: ArchiveLog, row: Row) -> bool:
    if isinstance(row, FactRow) and row.offset == 0 and log.position():
        there = next(log.read())
        opened = row.record().event
        if not isinstance(there, FactRecord) or not isinstance(opened, LogOpened) or there.event != opened:
            raise InputError(f"{log.location}: holds another log than the one in Kafka; name another archive")
    return log.append_row(row)
