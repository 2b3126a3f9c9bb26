"""A transaction of another producer that never ends holds a source of a member."""

from __future__ import annotations

import pytest

from equipoise import Record, StringSerde, TaskContext
from equipoise.kafka.client import TopicPartition
from equipoise.member.tasks.held_sources import HELD_S, HeldSources, ReadTo
from equipoise.operations.doctor import group_findings
from equipoise.replay.trouble import Severity, Trouble, troubles
from equipoise.testing import Group
from equipoise.testing.simulated.kafka.partition_log import Batch

PLACE = TopicPartition("in", 0)
HANGING = Batch(900, 0, 0, True, [(b"k", b"held", (), 1_000_000)], 100)
MARKER = Batch(900, 0, -1, True, marker=False)


def copy(record: Record, context: TaskContext) -> None:
    context.send("out", record.value, key=record.key)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_member_whose_source_a_transaction_holds_logs_that_once_and_its_end(guarantee: str, caplog: pytest.LogCaptureFixture) -> None:
    text = StringSerde()
    with Group(copy, sources="in", state=(), outputs="out", partitions=1, guarantee=guarantee, key_serde=text, value_serde=text) as group:
        group.join("m1")
        group.send("before", key="k")
        group.settle()
        place = group._cluster.partition(PLACE)
        assert place is not None
        group._cluster.append(place, HANGING)
        held_from = HANGING.base
        group.send("behind", key="k")
        group.advance(HELD_S - 10)
        assert "transaction" not in caplog.text
        group.advance(120)
        (line,) = [each for each in caplog.messages if "wait for a transaction" in each]
        assert line.startswith(f"source in/0: records from offset {held_from} to {held_from + 1} wait for a transaction")
        assert "describe-producers --topic in --partition 0" in line
        assert [each.value for each in group.outputs()] == ["before"]
        ((_, lead),) = group._worker.groups()
        (trouble,) = troubles(lead.machine.state)
        waits = f"source in/0: records from offset {held_from} on wait for an open transaction; `equipoise doctor` names it"
        assert trouble == Trouble(Severity.THREATENS, f"m1: {waits}")
        (finding,) = group_findings.of_troubles(lead.machine.state)
        assert f"{finding.text}; {finding.fix}" == f"group {lead.name}: {trouble.text}"
        group._cluster.append(place, MARKER)
        group.settle()
        group.advance(10)
        assert troubles(lead.machine.state) == []
        assert f"source in/0: the transaction at offset {held_from} has ended, reading goes on" in caplog.messages
        assert [each.value for each in group.outputs()] == ["before", "behind"]


def test_member_whose_changelog_a_transaction_holds_names_it_and_restores_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """As after an unclean election that has lost the end of a transaction whose producer is gone."""

    def count(record: Record, context: TaskContext) -> None:
        counted = str(int(context.state.get(record.key) or 0) + 1)
        context.state.put(record.key, counted)
        context.send("out", counted, key=record.key)

    text = StringSerde()
    with Group(count, sources="in", state="s1", outputs="out", partitions=1, guarantee="exactly_once", key_serde=text, value_serde=text) as group:
        group.join("m1")
        group.send("1", key="k")
        group.settle()
        group.crash("m1")
        place = group._cluster.partition(TopicPartition("s1", 0))
        assert place is not None
        group._cluster.append(place, HANGING)
        group.join("m2")
        group.send("2", key="k")
        group.advance(HELD_S + 60)
        ((_, lead),) = group._worker.groups()
        named = f"m2: changelog s1/0: records from offset {HANGING.base} on wait for an open transaction; `equipoise doctor` names it"
        assert named in [each.text for each in troubles(lead.machine.state)]
        assert sum("changelog s1/0" in each and "wait for a transaction" in each for each in caplog.messages) == 1
        group._cluster.append(place, MARKER)
        group.settle()
        group.advance(10)
        assert troubles(lead.machine.state) == []
        assert [each.value for each in group.outputs()] == ["1", "2"]


@pytest.mark.parametrize("read", [ReadTo(3, 7, 9), ReadTo(7, 7, 7), ReadTo(None, 7, 9), ReadTo(7, None, 9), ReadTo(7, 7, None)])
def test_partition_that_waits_for_no_transaction_is_not_logged(read: ReadTo, caplog: pytest.LogCaptureFixture) -> None:
    held = HeldSources()
    for now_s in (0.0, 2 * HELD_S, 4 * HELD_S):
        held.look(now_s, {PLACE: read})
    assert caplog.messages == []


def test_transactions_that_end_in_time_one_after_the_other_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    held = HeldSources()
    for turn in range(10):
        held.look(turn * HELD_S * 0.9, {PLACE: ReadTo(turn, turn, turn + 1)})
    assert caplog.messages == []
