"""Windows, joins, tables and timers over the state of a task, for handlers.

Each is made once, with a name of its own, and is used in the middle of a handler::

    from equipoise.streams import count, tumbling

    views = tumbling("views", count(), size_ms=60_000, grace_ms=5_000)

    def handle(record: Record, context: TaskContext) -> None:
        for each in views.add(context, record.key, record.value, record.timestamp_ms):
            context.send("views-per-minute", each.value, key=each.key, timestamp_ms=each.start_ms)

They hold nothing but what they were made with. All else is in the task's state: it is committed
with it, moves with it, and what a failed record has changed is taken back. `equipoise.State` does
not show it.

`sum`, `min` and `max` are the aggregates, as in `streams.sum(cents)` after ``from equipoise import
streams``.

- `stream_time`: the highest timestamp; `kept`: what all have in common
- `windows`: tumbling and hopping ones; `moving_windows`: sessions and sliding ones; `aggregates`
- `tables`, `joins`, `timers`
"""

from __future__ import annotations

from equipoise.streams.aggregates import Aggregate, aggregate, count, max, min, reduce, sum
from equipoise.streams.joins import JoinedPair, StreamJoin
from equipoise.streams.moving_windows import SessionWindows, SlidingWindows, sessions, sliding
from equipoise.streams.stream_time import advance, stream_time_ms
from equipoise.streams.tables import JoinedRows, StreamTable, TableJoin
from equipoise.streams.timers import Timers
from equipoise.streams.windows import FixedWindows, WindowResult, hopping, tumbling

__all__ = [
    "Aggregate",
    "FixedWindows",
    "JoinedPair",
    "JoinedRows",
    "SessionWindows",
    "SlidingWindows",
    "StreamJoin",
    "StreamTable",
    "TableJoin",
    "Timers",
    "WindowResult",
    "advance",
    "aggregate",
    "count",
    "hopping",
    "max",
    "min",
    "reduce",
    "sessions",
    "sliding",
    "stream_time_ms",
    "sum",
    "tumbling",
]
