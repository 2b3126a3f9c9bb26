"""A task whose windows were given another size under their name fails before its first record."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from equipoise import ErrorPolicy, JsonSerde, Record, StringSerde, TaskContext
from equipoise.streams import FixedWindows, count, tumbling
from equipoise.testing import Group

BASE = 1_600_000_000_000
SERDES: Any = {"key_serde": StringSerde(), "value_serde": JsonSerde()}


def _windows(size_ms: int) -> FixedWindows[Any, int, int]:
    return tumbling("views", count(), size_ms=size_ms)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("by", ["handler", "on_assigned"])
def test_task_with_changed_windows_fails_before_its_first_record(by: str, guarantee: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    deployed, handled, of_task = [_windows(10_000)], list[int](), dict[int, Any]()

    def handle(record: Record, context: TaskContext) -> None:
        handled.append(record.offset)
        context.send("out", deployed[0].add(context, record.key, 1, record.timestamp_ms)[0].value)

    def handle_by_task(record: Record, context: TaskContext) -> None:
        handled.append(record.offset)
        context.send("out", of_task[context.task.partition].add(context, record.key, 1, record.timestamp_ms)[0].value)

    def on_assigned(context: TaskContext) -> None:
        of_task[context.task.partition] = deployed[0]
        deployed[0].close(context)

    with Group(
        handle if by == "handler" else handle_by_task,
        sources="views",
        state="s",
        outputs="out",
        partitions=1,
        guarantee=guarantee,
        on_assigned=None if by == "handler" else on_assigned,
        on_error=ErrorPolicy.skip(),
        **SERDES,
    ) as group:
        group.join("m1")
        for second in range(5):
            group.send(1, key="k", timestamp_ms=BASE + second * 1_000)
        group.settle()
        group.leave("m1")
        handled.clear()
        deployed[0] = _windows(60_000)
        group.send(1, key="k", timestamp_ms=BASE + 5_000)
        group.join("m1")
        group.advance(60.0)
        ((_, parked),) = group.failed_tasks.items()
        assert "windows of a fixed size 'views' had size_ms=10000 and has size_ms=60000 now" in parked.error
        assert handled == []
        lines = [each.getMessage() for each in caplog.records if "has failed" in each.getMessage()]
        assert len(lines) == 1
        assert "give them another name, or size_ms=10000 again. Then restart the member" in lines[0]
        assert [each.value for each in group.outputs("out")] == [1, 2, 3, 4, 5]
        group.leave("m1")
        deployed[0] = _windows(10_000)
        group.join("m1")
        group.settle()
        assert not group.failed_tasks
        assert [each.value for each in group.outputs("out")] == [1, 2, 3, 4, 5, 6]
        assert not any("was skipped" in each.getMessage() for each in caplog.records)
