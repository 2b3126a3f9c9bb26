"""A granted task counts as running when its state is there, whatever lag the group accepts."""

from __future__ import annotations

import pytest

from equipoise.events.facts import PartitionsObserved
from equipoise.events.tasks import TaskId
from equipoise.replay.owners import FAR_BEHIND, Condition
from equipoise.replay.timelines import build_timeline
from equipoise.replay.whatif.fit import Fitting
from tests.groups import Group, configured, topology

RESTORES = 20_000
END = 3 * RESTORES
EVERY_MS = 1_000


def conditions(group: Group) -> list[tuple[str | None, Condition, int]]:
    """Returns (owner, condition, length in ms) of the one task."""
    return [(each.member_id, each.condition, each.to_ms - each.from_ms) for each in build_timeline(group.records).intervals]


def lived(group: Group, reports: int = 6) -> Group:
    member = group.join("m1", restores=RESTORES)
    for _ in range(reports):
        group.tick(0)
        member.reports(after_ms=EVERY_MS)
    return group


def test_task_of_unknown_end_offset_runs_when_reported() -> None:
    group = Group()
    group.fact(configured(initial_delay_ms=0))
    group.fact(topology(stateful=1))
    member = group.join("m1", restores=RESTORES)
    member.copies[TaskId(0, 0)] = END
    member.reports(after_ms=EVERY_MS)
    group.tick()
    assert group.state.owner, "it is granted before its end offset is observed"
    group.fact(PartitionsObserved(end_offsets={"log": {0: END}}))
    for _ in range(5):
        member.reports(after_ms=EVERY_MS)
    (owner, first, first_ms), (_, then, _) = conditions(group)
    assert (owner, first, then) == ("m1", Condition.STARTING, Condition.RUNNING)
    assert first_ms >= END / RESTORES * EVERY_MS - EVERY_MS


def test_task_without_records_in_its_changelog_runs_at_once() -> None:
    group = lived(Group().starts(stateful=1, end_offset=0))
    assert {condition for _, condition, _ in conditions(group)} == {Condition.RUNNING}


@pytest.mark.parametrize(("lag", "first"), [(END, Condition.STARTING), (FAR_BEHIND, Condition.RUNNING)])
def test_granted_copy_far_behind_restores_first(lag: int, first: Condition) -> None:
    group = Group().starts(stateful=1, end_offset=END, acceptable_recovery_lag=10**6)
    member = group.join("m1", restores=RESTORES, lags={TaskId(0, 0): lag})
    for _ in range(6):
        group.tick(0)
        member.reports(after_ms=EVERY_MS)
    assert conditions(group)[0][1] is first
    assert conditions(group)[-1][1] is Condition.RUNNING


def test_restores_are_measured_where_the_accepted_lag_is_larger_than_any_state() -> None:
    group = lived(Group().starts(stateful=1, end_offset=10 * RESTORES, acceptable_recovery_lag=10**6), reports=12)
    fitting = Fitting()
    for record in group.records:
        fitting.take(record)
        for decision in group.decisions:
            if decision.caused_by == record.offset:
                fitting.take(decision)
    found = fitting.fit()
    assert found.overall.measured >= 3
    assert found.records_per_s == pytest.approx(RESTORES * 1_000 / EVERY_MS, rel=0.05)
