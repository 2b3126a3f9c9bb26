"""How far a group is behind its sources: where that is reported or observed, which value counts,
and what waits for it (docs/protocol.md#d2, #d6, #d11).
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.facts import DealRequested, LagReported, Load, PartitionsObserved, Subtopology, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import PartitionLead
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import GroupPhase
from tests.groups import Group, configured, joined, rejections

DELAY_MS = 1_000
EXAMPLE = {0: 100_000, 1: 60_000, 2: 50_000}
"""The example of KIP-169."""


def two_sources(partitions: int = 3) -> TopologyDeclared:
    """Tasks 0_p read two topics, 1_p none."""
    both = Subtopology(subtopology=0, partitions=partitions, stateful=False, source_topics=("a", "b"))
    return TopologyDeclared(epoch=1, subtopologies=(both, Subtopology(subtopology=1, partitions=1, stateful=False)))


def one_source(partitions: int = 3, epoch: int = 1) -> TopologyDeclared:
    part = Subtopology(subtopology=0, partitions=partitions, stateful=False, source_topics=("a",))
    return TopologyDeclared(epoch=epoch, subtopologies=(part,))


def gathering(topology: TopologyDeclared, assignor: str = "lag_aware", **settings: Any) -> Group:
    group = Group()
    group.fact(configured(assignor, **{"initial_delay_ms": DELAY_MS, **settings}))
    group.fact(topology)
    group.fact(joined("m1"))
    group.fact(joined("m2"))
    return group


def observed(**lags: dict[int, int]) -> PartitionsObserved:
    return PartitionsObserved(source_lags=lags)


def report(number: int, behind: dict[TaskId, int]) -> LagReported:
    return LagReported("m1", 1, number, 0, load=Load(behind=behind))


def known(group: Group) -> dict[str, int | None]:
    return {str(task.id): task.lag for task in build_problem(group.state).tasks}


def test_task_lag_sums_its_sources_once_all_are_known() -> None:
    group = gathering(two_sources(1))
    group.fact(observed(a={0: 5}))
    assert known(group) == {"0_0": None, "1_0": None}
    group.fact(observed(b={0: 3, 9: 4}))
    assert known(group) == {"0_0": 8, "1_0": None}


def test_newer_of_reported_and_observed_lag_counts() -> None:
    group = gathering(one_source(2))
    group.fact(observed(a={0: 500, 1: 600}))
    group.fact(report(0, {TaskId(0, 0): 7}))
    assert known(group) == {"0_0": 7, "0_1": 600}
    group.fact(observed(a={1: 90}))
    assert known(group) == {"0_0": 7, "0_1": 90}, "partition 0 was not observed again"
    group.fact(observed(a={0: 80}))
    assert known(group) == {"0_0": 80, "0_1": 90}


def test_first_round_begins_with_the_last_unknown_lag() -> None:
    group = gathering(one_source())
    group.fact(observed(a={0: 100_000, 1: 60_000}))
    group.pass_ms(DELAY_MS)
    assert (group.state.phase, group.machine.awaits_lags, group.moves()) == (GroupPhase.GATHERING, True, [])
    group.fact(report(0, {TaskId(0, 2): 50_000}))
    assert (group.state.phase, group.machine.awaits_lags) == (GroupPhase.LEADING, False)
    assert {str(move.task): (move.destination, move.lag_records) for move in group.moves()} == {
        "0_0": ("m1", 100_000),
        "0_1": ("m2", 60_000),
        "0_2": ("m2", 50_000),
    }


def test_initial_delay_applies_though_the_lags_are_known() -> None:
    group = gathering(one_source())
    group.fact(observed(a=EXAMPLE))
    group.pass_ms(DELAY_MS - 1)
    assert group.moves() == []
    group.tick(1)
    assert len(group.moves()) == 3


@pytest.mark.parametrize("told", [{}, {0: 4, 1: 4}])
def test_first_round_waits_at_most_four_initial_delays(told: dict[int, int]) -> None:
    group = gathering(one_source())
    group.fact(observed(a=told))
    group.pass_ms(4 * DELAY_MS - 1)
    assert group.moves() == []
    group.tick(1)
    assert len(group.moves()) == 3


def test_first_round_waits_for_the_topology_too() -> None:
    group = Group()
    group.fact(configured("lag_aware", initial_delay_ms=DELAY_MS))
    group.fact(joined("m1"))
    group.pass_ms(DELAY_MS)
    group.fact(one_source())
    assert group.moves() == [], "the tasks came, and their lags did not"
    group.fact(observed(a=EXAMPLE))
    assert sorted(move.lag_records or 0 for move in group.moves()) == [50_000, 60_000, 100_000]
    group.fact(one_source(4, epoch=2))
    assert not group.machine.awaits_lags, "a group that runs waits for no lag"


def test_first_round_of_another_assignor_does_not_wait_for_lags() -> None:
    group = gathering(one_source(), "high_availability")
    assert not group.machine.awaits_lags
    group.pass_ms(DELAY_MS)
    assert len(group.moves()) == 3
    group = gathering(one_source())
    group.pass_ms(DELAY_MS)
    assert group.state.awaiting_lags
    group.fact(configured("lag_aware", initial_delay_ms=DELAY_MS, probing_interval_ms=9_000))
    assert (group.state.awaiting_lags, group.moves()) == (True, []), "other settings of the same assignor"
    group.fact(configured("high_availability", initial_delay_ms=DELAY_MS))
    assert len(group.moves()) == 3, "the assignor that needs them is gone"


def test_lags_from_before_the_group_was_empty_are_forgotten() -> None:
    group = gathering(one_source())
    group.fact(observed(a=EXAMPLE))
    group.fact(report(0, {TaskId(0, 0): 9}))
    group.pass_ms(5_000)
    for name in ("m1", "m2"):
        group.fact(joined(name, 2))
    assert known(group)["0_0"] == 9, "the group continues"
    group.pass_ms(60_000)
    assert group.state.members == {}
    group.fact(joined("m1", 3))
    assert known(group) == dict.fromkeys(["0_0", "0_1", "0_2"])
    group.pass_ms(DELAY_MS)
    assert group.machine.awaits_lags


def test_snapshot_keeps_the_wait_for_lags() -> None:
    group = gathering(one_source())
    group.fact(observed(a={0: 100_000, 1: 60_000}))
    group.pass_ms(DELAY_MS)
    restored = GroupMachine.restore(group.machine.snapshot())
    assert restored.state == group.state
    assert restored.timers() == group.machine.timers()
    assert restored.awaits_lags


# A new deal


def settled() -> Group:
    """Dealt without lags: m1 has partitions 0 and 1, m2 has 2."""
    group = Group()
    group.fact(configured("lag_aware", initial_delay_ms=0))
    group.fact(one_source())
    group.join("m1")
    group.join("m2")
    group.settles()
    return group


def test_deal_request_moves_tasks_that_lag_alone_would_not() -> None:
    group = settled()
    assert group.owners() == {TaskId(0, 0): "m1", TaskId(0, 1): "m1", TaskId(0, 2): "m2"}
    group.fact(observed(a=EXAMPLE))
    group.pass_ms(10_000)
    group.settles()
    assert group.owners()[TaskId(0, 1)] == "m1", "even by count: it stays"
    answer = group.fact(DealRequested())
    assert rejections(answer) == []
    group.settles()
    assert group.owners() == {TaskId(0, 0): "m1", TaskId(0, 1): "m2", TaskId(0, 2): "m2"}
    count = len(group.moves())
    group.fact(DealRequested())
    assert len(group.moves()) == count, "as it is, it is dealt"


def test_deal_request_without_anything_to_deal_is_rejected() -> None:
    group = settled()
    group.join("m3")
    assert rejections(group.fact(DealRequested())) == ["handing_over"]
    group.settles()
    group.fact(configured("high_availability", initial_delay_ms=0))
    assert rejections(group.fact(DealRequested())) == ["deals_nothing"]
    assert rejections(gathering(one_source()).fact(DealRequested())) == ["not_dealt_yet"]
    group = Group()
    assert rejections(group.fact(DealRequested())) == ["not_configured"]
    group.fact(configured("lag_aware"))
    assert rejections(group.fact(DealRequested())) == ["not_dealt_yet"]
    group.fact(configured("lag_aware", led_by="external"))
    assert rejections(group.fact(DealRequested())) == ["external"]


# A worker's observations


def test_worker_observes_the_lags_that_its_group_does_not_know() -> None:
    group = gathering(one_source(2))
    lead = PartitionLead()
    for record in group.records:
        lead.fold(record, 0)
    lags = {"a": {0: 5, 1: 15}}
    told = lead.observe(group.records[-1].group, {}, {}, lags)
    assert told == observed(a={0: 5, 1: 15})
    assert lead.observe(group.records[-1].group, {}, {}, lags) == told, "until it is in the log"
    group.fact(told)
    lead.fold(group.records[-1], 0)
    assert lead.observe(group.records[-1].group, {}, {}, lags) is None
    assert lead.observe(group.records[-1].group, {}, {}, {"a": {0: 5, 1: 16}}) == observed(a={1: 16})
