"""A record that fails in a batch is called alone, the others stay in batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from equipoise import ErrorPolicy, Processor, Record, TaskContext
from equipoise.events.tasks import TaskId
from equipoise.member.copies.stores import MemoryStore
from equipoise.member.tasks.context import State
from equipoise.member.tasks.processing import Processing
from equipoise.member.tasks.serdes import BytesSerde
from equipoise.member.tasks.timers import IntervalTimers

RECORDS = 500
CALLS = 18
"""For one failing record of 500: twice the binary logarithm."""


@pytest.mark.parametrize("failing", [[0], [137], [499], [3, 4, 250]])
@pytest.mark.parametrize("retries", [0, 2])
async def test_failing_record_of_a_batch_is_called_alone_and_the_rest_in_batches(failing: list[int], retries: int) -> None:
    calls: list[list[int]] = []

    def handle(records: Sequence[Record], context: TaskContext) -> None:
        calls.append([each.offset for each in records])
        for each in records:
            context.send("out", b"%d" % each.offset)
        if any(each.offset in failing for each in records):
            raise ValueError("one of them")

    skip = ErrorPolicy.skip()
    policy = ErrorPolicy.retry(retries, backoff_s=0.1, then=skip) if retries else skip
    processor = Processor(batch_handler=handle, sources="source", outputs="out", state="s")
    timers, serde = IntervalTimers(lambda: 0.0, lambda: 0), BytesSerde()
    context = TaskContext(TaskId(0, 0), 1, {"s": State(MemoryStore())}, timers, serde, serde)
    processing = Processing(processor, context, timers, group="g", policy=policy, key_serde=serde, value_serde=serde)
    records, done = [Record(b"k", b"v", "source", 0, offset, 0) for offset in range(RECORDS)], 0
    while done < RECORDS:
        done += await processing.handle(records, done, RECORDS, lambda: 0, 1)
    assert len(calls) <= (CALLS + 2 + retries) * len(failing)
    assert [each for each in calls if len(each) == 1 and each[0] in failing] == [[each] for each in failing for _ in range(1 + retries)]
    handled = [offset for call in calls if not set(call) & set(failing) for offset in call]
    assert handled == [offset for offset in range(RECORDS) if offset not in failing]
