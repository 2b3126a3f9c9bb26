"""A machine's clock is ahead for some time: brokers refuse its records, and no source record is
left out for that.
"""

from __future__ import annotations

import logging
import re

import pytest

from equipoise import ErrorPolicy, Processor, Record, TaskContext
from equipoise.replay.trouble import troubles
from tests.simulated.deploys import Deploys

HOUR_MS = 3_600_000


def handle(record: Record, context: TaskContext) -> None:
    for state in context.states.values():
        state.put(record.key, record.value)
    context.send("out", record.value, key=record.key)


@pytest.mark.parametrize("policy", [ErrorPolicy.skip(), ErrorPolicy.dead_letter("dead")], ids=["skip", "dead_letter"])
@pytest.mark.parametrize("states", [(), ("s1",)], ids=["stateless", "stateful"])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_member_whose_clock_is_ahead_leaves_out_no_record(
    seconds: int, guarantee: str, states: tuple[str, ...], policy: ErrorPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    processors = [Processor(handle, sources="source", outputs="out", state=states)]
    with caplog.at_level(logging.WARNING, "equipoise"), Deploys(processors, guarantee=guarantee, on_error=policy) as group:
        group.join("m1")
        group.advance(30)
        sent = 0

        def write(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                group.send(b"%d" % sent, key=b"k%d" % (sent % 5), topic="source", partition=0)
                sent += 1

        write(10)
        group.advance(10)
        group.set_clock("m1", 2 * HOUR_MS)
        for _ in range(seconds):
            write(1)
            group.advance(1)
        group.set_clock("m1", 0)
        write(5)
        group.advance(60)
        assert {each.value for each in group.outputs("out")} == {b"%d" % number for number in range(sent)}
        assert not policy.topic or not group.outputs(policy.topic)
    said = [each.getMessage() for each in caplog.records]
    assert sum(re.search(r"clock is off: it is 7,(199|200) s ahead of the brokers'", each) is not None for each in said) == 1
    assert sum("agrees with the brokers' again" in each for each in said) == 1
    assert sum("refuse records" in each for each in said) == 1
    assert sum("time again: the tasks go on" in each for each in said) == 1


def test_clock_that_jumps_back_and_forth_by_hours_is_said_each_time(caplog: pytest.LogCaptureFixture) -> None:
    processors = [Processor(handle, sources="source", outputs="out", state="s1")]
    with caplog.at_level(logging.WARNING, "equipoise"), Deploys(processors, guarantee="exactly_once", on_error=ErrorPolicy.skip()) as group:
        group.join("m1")
        group.advance(30)
        ((_, lead),) = group._worker.groups()
        shown = []
        for hours in (-5, 3, 0):
            group.set_clock("m1", hours * HOUR_MS)
            group.send(b"%d" % hours, key=b"k", topic="source", partition=0)
            group.advance(30)
            shown.append([each.text for each in troubles(lead.machine.state)])
        group.advance(40)
        behind, ahead, right = shown
        assert behind == ["m1: the clock of its machine is off by more than 60 s; set the clock"]
        assert ahead == ["m1: brokers do not take records with the time of its machine's clock, and tasks wait for that; set the clock"]
        assert right == []
        assert {each.value for each in group.outputs("out")} == {b"-5", b"3", b"0"}
    said = [each.getMessage() for each in caplog.records if "clock is off" in each.getMessage()]
    assert len(said) == 1, "one time until the clock is right"
    assert "s behind the brokers'" in said[0]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_brokers_whose_clocks_are_behind_have_no_record_left_out(guarantee: str, caplog: pytest.LogCaptureFixture) -> None:
    processors = [Processor(handle, sources="source", outputs="out", state=())]
    with caplog.at_level(logging.WARNING, "equipoise"), Deploys(processors, guarantee=guarantee, on_error=ErrorPolicy.skip()) as group:
        group.join("m1")
        group.advance(30)
        sent = 0
        for behind_ms, seconds in ((0, 5), (2 * HOUR_MS, 60), (0, 60)):
            for broker in group._cluster.brokers:
                broker.clock_ms = -behind_ms
            for _ in range(seconds):
                group.send(b"%d" % sent, key=b"k", topic="source", partition=0)
                sent += 1
                group.advance(1)
        group.advance(60)
        assert {each.value for each in group.outputs("out")} == {b"%d" % number for number in range(sent)}
    assert sum("refuse records" in each.getMessage() for each in caplog.records) == 1


def test_time_of_a_handler_that_brokers_refuse_is_of_its_record_when_clocks_agree(caplog: pytest.LogCaptureFixture) -> None:
    def send(record: Record, context: TaskContext) -> None:
        context.send("out", record.value, key=record.key, timestamp_ms=10**13 if record.value == b"3" else None)

    processors = [Processor(send, sources="source", outputs="out", state=())]
    with caplog.at_level(logging.WARNING, "equipoise"), Deploys(processors, guarantee="exactly_once", on_error=ErrorPolicy.skip()) as group:
        group.join("m1")
        group.advance(30)
        for number in range(6):
            group.send(b"%d" % number, key=b"k", topic="source", partition=0)
        group.advance(60)
        assert [each.value for each in group.outputs("out")] == [b"0", b"1", b"2", b"4", b"5"]
    assert not any("clock" in each.getMessage() for each in caplog.records)
