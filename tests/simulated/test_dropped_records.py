"""What members drop is in their metrics and once in their logs."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise import ErrorPolicy, JsonSerde, Processor, Record, StringSerde, TaskContext
from equipoise.kafka.client import TopicPartition
from equipoise.member.http.metrics import MemberCollector
from equipoise.streams import count, tumbling
from equipoise.testing import Group

SERDES: Any = {"key_serde": StringSerde(), "value_serde": JsonSerde()}
NEW_MS = 1_600_000_000_000


def metrics_of(group: Group) -> dict[tuple[str, str, str], float]:
    """Processor, who drops, reason -> number, of all members, without what is 0."""
    found: dict[tuple[str, str, str], float] = {}
    for name, member in group._members():
        assert member._host is not None
        for metric in MemberCollector("test", name, member._host.work.figures).collect():
            for sample in metric.samples:
                if sample.name == "equipoise_member_dropped_records_total" and sample.value:
                    kind = sample.labels["processor"], sample.labels["by"], sample.labels["reason"]
                    found[kind] = found.get(kind, 0) + sample.value
    return found


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_dropped_records_are_counted_by_reason_and_logged_once(guarantee: str, caplog: pytest.LogCaptureFixture) -> None:
    views = tumbling("minutes", count(), size_ms=60_000)

    def handle(record: Record, context: TaskContext) -> None:
        if record.value == "bad":
            raise ValueError("bad")
        views.add(context, record.key, record.value, record.timestamp_ms)

    def check(record: Record, context: TaskContext) -> None:
        if record.value == "bad":
            raise ValueError("bad")

    both = [Processor(handle, sources="views", state="s"), Processor(check, sources="views", name="audit")]
    with Group(processors=both, partitions=1, guarantee=guarantee, on_error=ErrorPolicy.skip(), **SERDES) as group:

        def send(value: Any, key: str | None, at_ms: int, times: int) -> None:
            for _ in range(times):
                group.send(value, key=key, timestamp_ms=at_ms)

        group.join("m1")
        send(1, "a", NEW_MS, 3)
        send(1, "a", NEW_MS - 1_000_000, 50)
        send(1, None, NEW_MS, 2)
        send("bad", "a", NEW_MS, 4)
        group.settle()
        dropped = {("0", "minutes", "late"): 50, ("0", "minutes", "null_key"): 2, ("0", "views", "skipped"): 4, ("audit", "views", "skipped"): 4}
        assert metrics_of(group) == dropped
        lines = [each.getMessage() for each in caplog.records if "equipoise_member_dropped_records_total" in each.getMessage()]
        assert len(lines) == 4
        assert sum("task 0_0: FixedWindows 'minutes' left out a record as late: views/0 at offset 3, key 'a', time" in line for line in lines) == 1
        group.leave("m1")
        send(1, "a", NEW_MS, 5)
        group._cluster.delete_records(TopicPartition("views", 0), group._log("views", 0).end)
        send(1, "a", NEW_MS, 1)
        group.join("m1")
        group.settle()
        found = metrics_of(group)
        assert found.keys() == {("0", "views", "expired"), ("audit", "views", "expired")}
        assert all(5 <= each <= 6 for each in found.values()), "offsets: with the marker of a transaction"
