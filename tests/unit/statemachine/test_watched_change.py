"""Planned changes: what they cost is counted from their beginning until rest, judged beside what
was expected, and undone where that was asked. Each is judged by an observer, and in the fold, as
former builds did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from equipoise.events import codec
from equipoise.events.decisions import ChangeJudged, Decision, EventRejected
from equipoise.events.errors import FieldError
from equipoise.events.facts import (
    MEASURED_KINDS,
    ChangeMeasured,
    ChangePlanned,
    ExpectedCost,
    Fact,
    GroupConfigured,
    LeaveRequested,
    Load,
    MemberLeft,
    TaskParked,
)
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine import snapshots, watched_change
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import ChangeCounts, Lent, Parked, Restart
from equipoise.statemachine.watched_change import UNDO_AGAIN_MS
from tests.groups import SESSION_MS, Group, configured, joined, topology

JUDGED_BY = ["observer"]


@pytest.fixture(autouse=True, params=["observer", "fold"])
def judged_by(request: pytest.FixtureRequest) -> Iterator[str]:
    JUDGED_BY[0] = request.param
    yield request.param
    JUDGED_BY[0] = "observer"


def planned(kind: str = "configure", **fields: Any) -> ChangePlanned:
    return ChangePlanned(change_id="c1", kind=kind, what="something", judged_by=JUDGED_BY[0], **fields)


def counted(group: Group) -> ChangeCounts:
    assert group.state.change is not None
    assert group.observer is not None
    return group.state.change.counts or group.observer.counts


def expected(metric: str, low: int, high: int) -> ExpectedCost:
    return ExpectedCost(metric=metric, median=(low + high) // 2, low_50=low, high_50=high, low_95=low, high_95=high)


def verdicts(decisions: list[Decision]) -> list[ChangeJudged]:
    return [each for each in decisions if isinstance(each, ChangeJudged)]


def led(**settings: Any) -> Group:
    group = Group().starts("m1", "m2", "m3", stateful=6, **settings)
    group.settles()
    for member in group.members.values():
        member.copies = {task: member.copies[task] for task in member.active}  # what it ran before it has wiped
    group.cycle()
    return group


def with_settings(group: Group, **settings: Any) -> GroupConfigured:
    assert group.state.config is not None
    return attrs.evolve(group.state.config, knobs=attrs.evolve(group.state.settings, **settings))


def until_judged(group: Group, *late: str, cycles: int = 60) -> ChangeJudged:
    for _ in range(cycles):
        found = verdicts(group.cycle(*late))
        if found:
            return found[0]
    raise AssertionError("no verdict")


def test_change_that_moves_nothing_costs_nothing() -> None:
    group = led()
    group.fact(planned(why="a test"))
    group.fact(with_settings(group, probing_interval_ms=120_000))
    found = until_judged(group)
    assert (found.change_id, found.outcome, found.unavailable_task_ms, found.moves, found.rest_ms) == ("c1", "at_rest", 0, 0, 0)
    assert (found.above, found.below, found.undone) == ((), (), False)
    assert group.state.change is None


def test_change_that_has_not_begun_is_not_over() -> None:
    group = led()
    group.fact(planned("join"))
    for _ in range(20):
        assert verdicts(group.cycle()) == []
    group.join("m4")
    found = until_judged(group)
    assert (found.outcome, found.moves) == ("at_rest", 1)
    assert found.rest_ms > 0


def test_member_that_dies_is_counted_from_when_it_was_heard_last() -> None:
    group = led()
    group.fact(planned("other"))
    tasks = len(group.state.members["m1"].active)
    del group.members["m1"]
    found = until_judged(group, cycles=200)
    assert found.moves == tasks == 2
    assert tasks * SESSION_MS <= found.unavailable_task_ms <= tasks * 2 * SESSION_MS


def test_tasks_of_a_member_that_leaves_without_a_word_before_stand_until_others_restored_them() -> None:
    group = led()
    group.fact(planned("restart"))
    tasks = sorted(group.state.members["m2"].active)
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    del group.members["m2"]
    assert sorted(counted(group).standing) == tasks
    found = until_judged(group)
    assert found.moves == len(tasks)
    assert found.unavailable_task_ms > 0


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [(0, 0, ("moves",), ()), (0, 1, (), ()), (1, 2, (), ()), (5, 9, (), ("moves",))],
)
def test_what_is_outside_of_its_interval_is_named(low: int, high: int, above: tuple[str, ...], below: tuple[str, ...]) -> None:
    group = led()
    group.fact(planned("join", expected=(expected("moves", low, high),)))
    group.join("m4")
    found = until_judged(group)
    assert (found.outcome, found.above, found.below) == ("too_much" if above else "at_rest", above, below)


def test_settings_that_cost_too_much_come_back() -> None:
    group = led()
    before = group.state.config
    group.fact(planned(or_undo=True, expected=(expected("rest_ms", 0, 0),)))
    group.fact(with_settings(group, num_standbys=1))
    group.members["m1"].restores = group.members["m2"].restores = group.members["m3"].restores = 1_000
    found = until_judged(group)
    assert (found.outcome, found.above, found.undone) == ("too_much", ("rest_ms",), True)
    assert found.rest_ms > 10_000
    lead = GroupLead("orders", group.machine)
    lead.folded_ms = 5
    undo = lead.tick()
    assert isinstance(undo, GroupConfigured)
    assert undo.content == before
    assert (undo.made_from, undo.change_id) == (group.state.config_number, "c1")
    assert lead.tick_at_ms == 5, "at once"
    assert [each.code for each in group.fact(planned()) if isinstance(each, EventRejected)] == ["being_undone"]
    assert before is not None
    group.fact(undo)
    assert group.state.config == before
    assert group.state.change is None
    assert lead.tick() != undo


@pytest.mark.parametrize(("number", "code"), [(0, "configuration_changed"), (None, "not_watched")], ids=["named", "by a former build"])
def test_undo_after_a_change_of_somebody_else_is_rejected(number: int | None, code: str) -> None:
    group = led()
    group.fact(planned(or_undo=True, expected=(expected("rest_ms", 0, 0),)))
    group.fact(with_settings(group, num_standbys=1))
    group.members["m1"].restores = group.members["m2"].restores = group.members["m3"].restores = 1_000
    assert until_judged(group).undone
    undo = GroupLead("orders", group.machine).tick()
    assert isinstance(undo, GroupConfigured)
    newer = attrs.evolve(with_settings(group, max_warmups=7), made_from=number)
    group.fact(newer)
    assert [each.code for each in group.fact(undo) if isinstance(each, EventRejected)] == [code]
    assert group.state.config == newer.content
    group.fact(with_settings(group, max_warmups=3))
    assert any(isinstance(each, EventRejected) for each in group.fact(undo)), "however late"


def test_undo_that_the_group_refuses_is_made_again_after_a_minute() -> None:
    """A member has come whose margin the settings of before do not fit."""
    group = led(max_step_ms=3_000)
    group.fact(planned(or_undo=True, expected=(expected("rest_ms", 0, 0),)))
    group.fact(with_settings(group, max_step_ms=500, num_standbys=1))
    group.fact(joined("m9", lease_margin_ms=1_000))
    group.members["m1"].restores = group.members["m2"].restores = group.members["m3"].restores = 1_000
    assert until_judged(group).undone
    assert group.observer is not None
    lead = GroupLead("orders", group.machine)
    lead.observer = group.observer
    undo = lead.tick()
    assert codes(group, undo) == ["step_exceeds_margin"]
    group.fact(MemberLeft(member_id="m9", incarnation=1))
    assert not isinstance(lead.tick(), GroupConfigured)
    group.pass_ms(UNDO_AGAIN_MS)
    assert lead.tick() == undo
    assert codes(group, undo) == []
    assert group.state.change is None


def made_from(group: Group, number: int, **changes: Any) -> GroupConfigured:
    return attrs.evolve(with_settings(group, **changes), made_from=number)


def codes(group: Group, fact: Fact) -> list[str]:
    return [each.code for each in group.fact(fact) if isinstance(each, EventRejected)]


def test_second_of_two_changes_made_from_the_same_settings_is_rejected() -> None:
    group = led()
    first, second = made_from(group, 0, max_warmups=21), made_from(group, 0, max_warmups_per_member=21)
    before = group.state.settings.max_warmups_per_member
    assert codes(group, first) == []
    assert codes(group, second) == ["configuration_changed"]
    assert (group.state.settings.max_warmups, group.state.settings.max_warmups_per_member) == (21, before)
    assert codes(group, made_from(group, 1, max_warmups_per_member=21)) == []
    assert (group.state.settings.max_warmups, group.state.settings.max_warmups_per_member) == (21, 21)


def test_change_made_from_settings_that_came_back_is_rejected() -> None:
    group = led()
    read, number = group.state.config, group.state.config_number
    assert codes(group, made_from(group, 0, max_warmups=21)) == []
    assert read is not None
    assert codes(group, attrs.evolve(read, made_from=1)) == []
    assert group.state.config == read
    assert codes(group, made_from(group, number, num_standbys=1)) == ["configuration_changed"]
    assert codes(group, with_settings(group, num_standbys=1)) == [], "it names nothing"
    assert codes(group, made_from(group, 2, num_standbys=0)) == ["configuration_changed"], "that one counts, too"


def test_plan_of_settings_that_are_not_in_force_is_rejected() -> None:
    group = led()
    group.fact(made_from(group, 0, max_warmups=21))
    assert codes(group, planned(made_from=0)) == ["configuration_changed"]
    assert codes(group, planned(made_from=1)) == []


def test_settings_of_somebody_else_end_a_plan_and_are_not_undone() -> None:
    """They were judged by what the plan expected, and taken back."""
    group = led()
    group.fact(planned(or_undo=True, made_from=0, expected=(expected("rest_ms", 0, 0),)))
    own = attrs.evolve(made_from(group, 0, num_standbys=1), change_id="c1")
    judged = [each for each in group.fact(made_from(group, 0, num_standbys=2)) if isinstance(each, ChangeJudged)]
    assert [(each.outcome, each.undone) for each in judged] == [("replaced", False)]
    assert codes(group, own) == ["configuration_changed"]
    assert codes(group, attrs.evolve(own, made_from=1)) == ["not_watched"]
    assert group.state.settings.num_standbys == 2


def test_rejected_settings_of_somebody_else_leave_a_plan_as_it_is() -> None:
    group = led()
    group.fact(made_from(group, 0, max_warmups=21))
    group.fact(planned(made_from=1, expected=(expected("rest_ms", 0, 0),)))
    assert codes(group, made_from(group, 0, num_standbys=2)) == ["configuration_changed"]
    assert counted(group).begun_ms is None
    assert codes(group, attrs.evolve(made_from(group, 1, num_standbys=1), change_id="c1")) == []
    assert counted(group).begun_ms is not None


def test_nothing_of_before_a_change_begins_counts() -> None:
    group = led()
    group.fact(planned("join"))
    for name, restores in (("m2", 1_000_000), ("m3", 1_000)):
        for member in group.members.values():
            member.restores = restores
        group.fact(MemberLeft(member_id=name, incarnation=1))
        del group.members[name]
        for _ in range(3):
            group.cycle()
    before = counted(group)
    assert before.begun_ms is None
    assert (before.unavailable_task_ms > 0, before.moves, len(before.standing) > 0) == (True, 2, True)
    now_ms = group.state.now_ms
    assert max(before.standing.values()) < now_ms
    group.join("m4")
    after = counted(group)
    assert (after.begun_ms, after.unavailable_task_ms, after.moves, after.standing) == (now_ms, 0, 0, dict.fromkeys(before.standing, now_ms))


def test_anything_under_way_holds_rest_up() -> None:
    group = led(num_standbys=1)
    group.settles()
    state, counts = group.state, ChangeCounts()
    task, member = min(group.state.owner), group.state.members["m1"]
    copied = min(member.standby)

    def is_at_rest() -> bool:
        return watched_change._is_at_rest(state, counts)

    member.lags = {**member.lags, copied: state.settings.acceptable_recovery_lag}
    assert is_at_rest()
    assert not watched_change._is_at_rest(state, ChangeCounts(standing={task: 0}))
    under_way: list[tuple[Any, str, Any]] = [
        (state, "in_flight", {task: None}),
        (state, "waiting", 1),
        (state, "restarts", {"m1": Restart(0, None, False, False)}),
        (state, "lent", {task: Lent("m1", "m2", False)}),
        (state, "members", {}),
        (member, "revoking", {task: (1, 0)}),
        (member, "warmup", {task: None}),
        (member, "leaving", True),
        (member, "lags", {**member.lags, copied: state.settings.acceptable_recovery_lag + 1}),
    ]
    member.ready = frozenset()
    for place, name, value in under_way:
        before = getattr(place, name)
        setattr(place, name, value)
        assert not is_at_rest(), name
        setattr(place, name, before)
        assert is_at_rest()


def test_task_runs_on_its_owner_once_a_report_shows_it_or_its_copy_is_near() -> None:
    state = led(acceptable_recovery_lag=100_000).state
    member = state.members["m1"]
    task = min(member.active)

    def runs(lag: Lag | None, **changed: Any) -> bool:
        for name, value in changed.items():
            setattr(member, name, value)
        member.lags = {} if lag is None else {task: lag}
        found = watched_change._runner(state, task, None, watched_change.OF_THIS_BUILD)
        assert found in (None, ("m1", 1))
        return found is not None

    member.ready, member.measured_records_per_s = frozenset(), 50_000
    assert (runs(LagSentinel.ACTIVE), runs(10_000), runs(10_001), runs(None)) == (True, True, False, False)
    assert (runs(5_000, ready_lag_records=4_999), runs(4_999), runs(300, measured_records_per_s=299)) == (False, True, False)
    assert runs(299)
    assert (runs(0, readiness="word_and_lag"), runs(1), runs(0, held=())) == (True, False, False), "nothing is left to restore where it is held"
    state.end_offsets = {}
    assert runs(None), "there is nothing to restore"
    state.restarts = {"m1": Restart(0, None, False, False, begun=True, left_ms=1)}
    assert not runs(LagSentinel.ACTIVE)
    state.parked = {task: Parked("m1", 7, "in", 0, 0, "no such customer")}
    assert [watched_change._is_parked(state, planned_ms, task) for planned_ms in (6, 7)] == [True, False]


def test_task_goes_on_where_it_ran_without_a_break() -> None:
    state = led().state
    task = min(state.members["m1"].active)
    state.members["m1"].lags = {task: 50_000}
    ran = ChangeCounts(begun_ms=0, runners={task: ("m1", 1)})
    for standing in ({}, {task: 5}):
        looked = watched_change._looked(state, 0, attrs.evolve(ran, standing=standing), [task], watched_change.OF_THIS_BUILD)
        assert (looked.standing, looked.unavailable_task_ms) == (standing, 0)


def test_limit_counts_whatever_was_expected() -> None:
    group = led()
    group.fact(planned("restart", most_unavailable_task_ms=1_000, expected=(expected("unavailable_task_ms", 0, 10**9),)))
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    del group.members["m2"]
    for member in group.members.values():
        member.restores = 1_000
    found = until_judged(group)
    assert (found.outcome, found.above) == ("too_much", ("limit",))


@pytest.mark.parametrize("kind", ["scale_down", "restart"])
def test_member_that_is_killed_begins_a_change_in_which_members_end(kind: str) -> None:
    group = led()
    group.fact(planned(kind, expected=(expected("unavailable_task_ms", 0, 1_000),)))
    found = until_judged(group, "m2")
    assert (found.outcome, found.above) == ("too_much", ("unavailable_task_ms",))
    assert found.unavailable_task_ms > SESSION_MS, "since it was heard last"


def test_task_that_was_parked_since_does_not_run() -> None:
    group = led()
    first, second = (min(group.members[name].active) for name in ("m1", "m2"))

    def park(member_id: str, task: TaskId) -> None:
        group.fact(TaskParked(member_id=member_id, incarnation=1, task=task, token=group.state.tokens[task], topic="in", error="no such customer"))

    park("m1", first)
    group.cycle()
    group.fact(planned("other", most_unavailable_task_ms=5_000))
    assert [verdicts(group.cycle()) for _ in range(3)] == [[], [], []], "what was parked before is not of the change"
    park("m2", second)
    found = until_judged(group)
    assert (found.outcome, found.above) == ("too_much", ("limit",))


def test_copy_that_its_member_restores_slowly_does_not_start_at_once() -> None:
    costs = []
    for speed in (0, 100):
        group = led(acceptable_recovery_lag=1_000_000, end_offset=5_000)
        group.fact(planned("join", most_unavailable_task_ms=10**6))
        group.join("m4", restores=1_000).load = Load(restored_records_per_s=speed)
        for _ in range(4):
            group.cycle()
        costs.append(counted(group).costs(group.state.now_ms)["unavailable_task_ms"])
    assert costs[0] < costs[1], costs


def test_other_settings_replace_the_change(judged_by: str) -> None:
    group = led()
    group.fact(planned(or_undo=True, most_unavailable_task_ms=0))
    assert verdicts(group.fact(with_settings(group, max_warmups=3))) == []
    (found,) = verdicts(group.fact(with_settings(group, max_warmups=4)))
    assert (found.outcome, found.undone) == ("replaced", False)
    group.fact(planned())
    group.fact(with_settings(group, max_warmups=5))
    group.fact(MemberLeft(member_id="m3", incarnation=1))
    del group.members["m3"]
    (found,) = verdicts(group.fact(with_settings(group, max_warmups=6), after_ms=1_000))
    assert (found.outcome, found.unavailable_task_ms >= 1_000) == ("replaced", judged_by == "fold")
    group.fact(planned("restart"))
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    (found,) = verdicts(group.fact(attrs.evolve(planned("join"), change_id="c2"), after_ms=2_000))
    assert (found.change_id, found.outcome) == ("c1", "replaced")
    assert (found.unavailable_task_ms >= 2_000) == (judged_by == "fold"), "until it was replaced"
    assert group.state.change is not None
    assert (group.state.change.planned.change_id, group.state.change.offset) == ("c2", group.state.last_offset)


def test_settings_that_are_refused_end_the_change() -> None:
    group = led()
    group.fact(planned())
    found = verdicts(group.fact(with_settings(group, max_step_ms=3_600_000)))
    assert [each.outcome for each in found] == ["refused"]


def test_change_is_judged_when_its_time_is_over() -> None:
    group = led()
    group.fact(planned("join", judge_within_ms=30_000))
    assert until_judged(group).outcome == "late"
    group.fact(planned("scale_down", judge_within_ms=30_000, expected=(expected("moves", 5, 9),)))
    for member in group.members.values():
        member.restores = 1
    group.fact(LeaveRequested(members=("m3",)))
    found = until_judged(group)
    assert (found.outcome, found.below) == ("late", ("moves",))


def test_group_that_judges_does_not_rest_and_another_leader_goes_on() -> None:
    group = led(probing_interval_ms=1_000_000)
    while not group.machine.rests:
        group.cycle()
    group.fact(planned("restart"))
    assert not group.machine.rests
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    copied = GroupMachine.restore(group.machine.snapshot())
    assert copied.state.change == group.state.change
    assert snapshots.dump(copied.state) == group.machine.snapshot()


def test_group_that_something_else_leads_judges_nothing() -> None:
    group = Group()
    group.fact(configured(led_by="external"))
    assert [each.code for each in group.fact(planned()) if isinstance(each, EventRejected)] == ["external"]
    unconfigured = Group()
    assert [each.code for each in unconfigured.fact(planned()) if isinstance(each, EventRejected)] == ["not_configured"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "join", "or_undo": True, "most_unavailable_task_ms": 1}, "or_undo"),
        ({"or_undo": True}, "or_undo"),
        ({"expected": (expected("moves", 0, 1), expected("unavailable_task_ms", 0, 1))}, "expected"),
        ({"expected": (expected("moves", 0, 1), expected("moves", 0, 1))}, "expected"),
        ({"kind": "no_such"}, "kind"),
    ],
)
def test_unsound_plans_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError, match=rf"ChangePlanned\.{field}"):
        planned(**{"kind": "configure", **fields})


def test_interval_of_50_percent_lies_within_the_other() -> None:
    with pytest.raises(FieldError, match="within"):
        ExpectedCost(metric="moves", median=2, low_50=0, high_50=3, low_95=1, high_95=9)


def test_tasks_that_the_topology_has_no_more_do_not_stand() -> None:
    group = led()
    group.fact(planned("restart"))
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    del group.members["m2"]
    gone = max(counted(group).standing)
    group.fact(topology(2, stateful=gone.partition))
    assert gone not in counted(group).standing


def measured(group: Group, *, is_over: bool = True, **costs: int) -> ChangeMeasured:
    """The fold goes by the costs alone, as former builds wrote no more."""
    costs = {"unavailable_task_ms": 0, "moves": 0, "rest_ms": 1_000, **costs}
    if JUDGED_BY[0] == "fold":
        return watched_change.verdict_on(planned("lead"), "at_rest" if is_over else "late", costs)
    change = group.state.change
    return watched_change.measured(planned("lead") if change is None else change.planned, costs, is_over=is_over)


@pytest.mark.parametrize("kind", MEASURED_KINDS)
def test_change_that_members_do_not_report_is_judged_by_who_made_it(kind: str) -> None:
    group = led()
    group.fact(planned(kind, expected=(expected("unavailable_task_ms", 0, 2_000), expected("moves", 1, 2))))
    group.join("m4")
    for _ in range(20):
        assert verdicts(group.cycle()) == [], "what members report does not count"
    (found,) = verdicts(group.fact(measured(group, unavailable_task_ms=2_500, moves=3)))
    assert (found.outcome, found.unavailable_task_ms, found.moves, found.rest_ms) == ("too_much", 2_500, 3, 1_000)
    assert (found.above, found.below) == (("unavailable_task_ms", "moves"), ())
    assert group.state.change is None


def test_account_of_what_it_cost_is_beside_what_was_expected() -> None:
    group = led()
    group.fact(planned("lead", expected=(expected("moves", 2, 3),)))
    (found,) = verdicts(group.fact(measured(group, moves=1, rest_ms=70_000)))
    assert (found.outcome, found.above, found.below, found.rest_ms) == ("at_rest", (), ("moves",), 70_000)
    group.fact(planned("lead", expected=(expected("moves", 2, 3),)))
    (found,) = verdicts(group.fact(measured(group, moves=2, is_over=False)))
    assert (found.outcome, found.above, found.below) == ("late", (), ())


@pytest.mark.parametrize("kind", ["join", "lead"])
def test_account_of_another_change_is_refused(kind: str) -> None:
    group = led()
    fact = measured(group)
    refused = [EventRejected(kind=codec.kind_of(ChangeMeasured), code="not_watched")]
    assert group.fact(fact) == refused
    group.fact(planned(kind))
    assert group.fact(attrs.evolve(fact, change_id="c2")) == refused
    assert (group.fact(fact) == refused) == (kind == "join" and JUDGED_BY[0] == "fold")


def test_other_settings_and_time_end_a_change_that_nobody_measures() -> None:
    group = led()
    group.fact(planned("lead", expected=(expected("moves", 2, 3),), judge_within_ms=3_600_000))
    (found,) = verdicts(group.fact(with_settings(group, probing_interval_ms=120_000)))
    assert (found.outcome, found.moves, found.below) == ("replaced", 0, ())
    group.fact(planned("lead", expected=(expected("moves", 2, 3),), judge_within_ms=20_000))
    found = until_judged(group)
    assert (found.outcome, found.moves, found.below) == ("late", 0, ()), "what it cost is not known"
