"""Brokers whose quotas hold back a member."""

from __future__ import annotations

import pytest

from equipoise import ErrorPolicy, Record, StringSerde, TaskContext
from equipoise.kafka.throttling import QUOTAS
from equipoise.replay.trouble import Severity, Trouble, troubles
from equipoise.testing import Group


def copy(record: Record, context: TaskContext) -> None:
    context.send("out", record.value, key=record.key)


def test_member_that_quotas_hold_back_says_so_in_status_and_once_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    text = StringSerde()
    with Group(copy, sources="in", state=(), outputs="out", partitions=1, key_serde=text, value_serde=text) as group:
        group.join("m1")
        group.send("first", key="k")
        group.settle()
        ((_, lead),) = group._worker.groups()
        for broker in group._cluster.brokers:
            broker.throttle_ms = 500
        group.advance(120)
        assert troubles(lead.machine.state) == [Trouble(Severity.THREATENS, f"m1: quotas of the brokers hold it back; {QUOTAS}")]
        for broker in group._cluster.brokers:
            broker.throttle_ms = 0
        group.advance(120)
        assert troubles(lead.machine.state) == []
        said = [each for each in caplog.messages if "quotas of the brokers" in each]
    assert len(said) <= 4, "of the member and of the worker, once each"


def test_records_that_quotas_delay_are_neither_skipped_nor_repeated() -> None:
    text = StringSerde()
    with Group(
        copy,
        sources="in",
        state=(),
        outputs="out",
        partitions=1,
        guarantee="exactly_once",
        key_serde=text,
        value_serde=text,
        on_error=ErrorPolicy.skip(),
    ) as group:
        group.join("m1")
        group.settle()
        for throttle_ms in (500, 20_000, 0):
            for broker in group._cluster.brokers:
                broker.throttle_ms = throttle_ms
            for number in range(10):
                group.send(f"{throttle_ms}/{number}", key="k")
            group.advance(60)
        group.advance(60)
        assert [each.value for each in group.outputs("out")] == [f"{each}/{number}" for each in (500, 20_000, 0) for number in range(10)]
