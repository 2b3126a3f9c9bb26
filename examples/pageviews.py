"""Page views: clicks with the country of their user, sessions of 30 s, and views per country and
minute. Run one process per member: `python examples/pageviews.py 1`.
"""

import asyncio
import sys
from typing import Any

from equipoise import ErrorPolicy, JsonSerde, Member, Processor, Record, Source, StringSerde, TaskContext
from equipoise.streams import Aggregate, StreamTable, aggregate, count, sessions, tumbling

Click = dict[str, Any]
users: StreamTable[dict[str, str]] = StreamTable("users")
last_pages: Aggregate[Click, list[str], list[str]] = aggregate(
    list, lambda pages, click: [*pages, click["page"]][-5:], lambda one, other: [*one, *other][-5:]
)
visits = sessions("visits", last_pages, gap_ms=30_000, grace_ms=5_000, emit="final")
views = tumbling("views", count(), size_ms=60_000, grace_ms=86_400_000)  # its records come from several tasks: one may be behind


def enrich(record: Record, context: TaskContext) -> None:
    if record.topic == "users":
        users.put(context, record.key, record.value)
        return
    country = (users.get(context, record.key) or {"country": "??"})["country"]
    context.send("pv-views", record.value, key=country, timestamp_ms=record.timestamp_ms)
    for each in visits.add(context, record.key, record.value, record.timestamp_ms):
        context.send("pv-sessions", {"start": each.start_ms, "end": each.end_ms, "pages": each.value}, key=each.key)


def count_views(record: Record, context: TaskContext) -> None:
    for each in views.add(context, record.key, record.value, record.timestamp_ms):
        context.send("pv-counts", {"minute": each.start_ms, "views": each.value}, key=each.key)


PROCESSORS = [
    Processor(enrich, sources=["clicks", Source("users", table=True)], state="pv-users", outputs=["pv-views", "pv-sessions"]),
    Processor(count_views, sources="pv-views", state="pv-minutes", outputs="pv-counts"),
]
OPTIONS: Any = {"key_serde": StringSerde(), "value_serde": JsonSerde(), "guarantee": "exactly_once", "on_error": ErrorPolicy.dead_letter("pv-dead")}


if __name__ == "__main__":
    member = Member("pageviews", processors=PROCESSORS, create_topics=True, instance=sys.argv[1], state_directory="state", **OPTIONS)
    sys.exit(asyncio.run(member.run()))
