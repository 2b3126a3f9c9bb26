"""Continuous verification of a live log on Spark Structured Streaming: each partition is watched,
and a defect becomes a row within one trigger.

State is Spark's own (RocksDB, checkpointed), so a query that is killed continues when it is started
again. There is no watermark and no timer: a watermark would drop late rows, a timer would judge
them, and the log's own offsets already give the order (`equipoise.replay.watch`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from equipoise.events.errors import InputError
from equipoise.log.kafka.bases_topic import BaseStart
from equipoise.replay.watch import Alert, Arrived, Watch

METRIC = "equipoise"
"""Name of the metrics in a query's progress: records, facts, decisions and alerts of the trigger.
"""

ALERT_COLUMNS = "partition int, group string, verdict string, offset bigint, problem string, document string"
_ROWS = f"{ALERT_COLUMNS}, facts bigint, decisions bigint"
"""Rows for each partition and trigger: its alerts, and one row of counts without a verdict."""


Starts = Mapping[int, BaseStart | None]
"""Partition -> the base at which it begins; None, or not in it: it begins with its first record."""


def processor(starts: Starts) -> Any:
    """Returns the stateful processor. It is defined here so that this module can be imported
    without Spark.
    """
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class WatchProcessor(StatefulProcessor):
        """Keyed by partition. State: the watch, and each group's verification under its name, so
        that only groups with new records are written.
        """

        def init(self, handle: Any) -> None:
            self._watch = handle.getValueState("watch", "saved binary")
            self._groups = handle.getMapState("groups", "name string", "saved binary")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
            import pandas as pd

            groups = _Groups(self._groups)
            start = starts.get(int(key[0]))
            watch = Watch.restore(bytes(self._watch.get()[0]), groups) if self._watch.exists() else Watch(groups, start=start)
            facts, decisions = watch.facts, watch.decisions
            alerts = watch.feed(arrived(rows))
            self._watch.update((watch.save(),))
            partition = int(key[0])
            found = [_alert_row(partition, alert) for alert in alerts]
            yield pd.DataFrame([*found, [partition, None, None, None, None, None, watch.facts - facts, watch.decisions - decisions]], columns=_NAMES)

        def close(self) -> None:
            pass

    return WatchProcessor()


_NAMES = [part.split()[0] for part in _ROWS.split(", ")]


def arrived(frames: Iterator[Any]) -> Iterator[Arrived]:
    for frame in frames:
        columns = [frame[name].tolist() for name in ("is_fact", "offset", "key", "value", "append_ms")]
        for is_fact, offset, key, value, append_ms in zip(*columns, strict=True):
            yield Arrived(bool(is_fact), int(offset), None if key is None else bytes(key), None if value is None else bytes(value), int(append_ms))


def _alert_row(partition: int, alert: Alert) -> list[Any]:
    document = None if alert.document is None else json.dumps(alert.document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return [partition, alert.group, alert.verdict.value, alert.offset, alert.problem, document, 0, 0]


class _Groups(MutableMapping[str, bytes]):
    """Spark's MapState as a mapping."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getitem__(self, name: str) -> bytes:
        if not self._state.containsKey((name,)):
            raise KeyError(name)
        return bytes(self._state.getValue((name,))[0])

    def __setitem__(self, name: str, saved: bytes) -> None:
        self._state.updateValue((name,), (saved,))

    def __delitem__(self, name: str) -> None:
        self._state.removeKey((name,))

    def __iter__(self) -> Iterator[str]:
        return (key[0] for key in self._state.keys())  # noqa: SIM118 - no dict

    def __len__(self) -> int:
        return sum(1 for _ in self)


def watched(records: Any, starts: Starts) -> Any:
    """Returns the streaming DataFrame of alerts and counts, from
    `equipoise.replay.spark.kafka.records`.
    """
    return records.groupBy("partition").transformWithStateInPandas(
        statefulProcessor=processor(starts), outputStructType=_ROWS, outputMode="Append", timeMode="None"
    )


def spark_stream(records: Any, alerts: Path, checkpoint: str, *, trigger: dict[str, Any] | None = None, starts: Starts = MappingProxyType({})) -> Any:
    """Starts the query and returns it. `alerts`: a folder for Parquet files, one for each trigger
    with alerts; `checkpoint`: the query's own folder, as Spark names it.

    `trigger`: as of DataStreamWriter.trigger; default: one after the other. Each trigger's counts
    are in ``query.lastProgress["observedMetrics"]``. Raises InputError when a folder cannot be
    created. `starts`: `equipoise.replay.spark.kafka.starts`, for a query that begins.
    """
    from pyspark.sql import functions as f

    counted = watched(records, starts).observe(
        METRIC,
        f.sum("facts").alias("facts"),
        f.sum("decisions").alias("decisions"),
        f.count("verdict").alias("alerts"),
    )
    alerts_found = counted.where("verdict is not null").drop("facts", "decisions")
    make_folder(alerts)

    def write(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")  # the same however often the query is started
        write_alerts(batch.toArrow(), alerts, query, number)

    writer = alerts_found.writeStream.outputMode("append").foreachBatch(write).option("checkpointLocation", checkpoint)
    return writer.queryName("equipoise verify").trigger(**(trigger or {"processingTime": "0 seconds"})).start()


def make_folder(alerts: Path) -> None:
    """Creates the folder. Raises InputError when it cannot be created."""
    try:
        alerts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--alerts {alerts}: {error.strerror}; name a folder, or mend its rights") from None


def write_alerts(rows: Any, alerts: Path, query: str, number: int) -> None:
    """Writes a trigger's rows (pyarrow.Table) as one file, named for query and trigger, so that a
    repeated trigger replaces its file.

    Spark's own sink leaves the files of a killed trigger and lists the valid ones in a folder that
    only Spark reads.
    """
    if not rows.num_rows:
        return
    import pyarrow.parquet as parquet

    path = alerts / f"trigger-{number:09}.{query}.parquet"
    part = path.with_name(f".{path.name}.part")
    parquet.write_table(rows.sort_by([("partition", "ascending"), ("group", "ascending"), ("offset", "ascending")]), part)
    os.replace(part, path)


def count_alerts(alerts: Path) -> int:
    """Returns the number of rows that are in the folder, of this query and of those before."""
    import pyarrow.parquet as parquet

    return sum(parquet.read_metadata(path).num_rows for path in alerts.glob("trigger-*.parquet"))
