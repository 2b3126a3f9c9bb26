"""Members that join together are decided together (docs/protocol.md#d5)."""

from __future__ import annotations

from equipoise.events.decisions import AssignmentIssued, Decision
from equipoise.events.facts import LeaveIntended, MemberLeft
from equipoise.statemachine.deadlines import GROUP_KEY, Timer
from tests.groups import Group, assigned, configured, joined
from tests.unit.statemachine.contexts import context_of

DELAY_MS = 100


def causes(decisions: list[Decision]) -> list[str]:
    return [each.cause for each in decisions if isinstance(each, AssignmentIssued)]


def running(**settings: int) -> Group:
    """m1 runs 12 tasks, and has reported that."""
    group = Group().starts("m1", stateless=12, **{"join_delay_ms": DELAY_MS, **settings})
    group.cycle()
    return group


def test_first_join_of_empty_group_is_decided_at_once():
    assert set(running().state.owner.values()) == {"m1"}


def test_joins_within_the_delay_are_one_round_counted_from_the_first():
    group = running()
    assert group.fact(joined("m2")) == []
    assert group.fact(joined("m3"), after_ms=60) == []
    assert group.machine.next_deadline_ms == group.state.now_ms + DELAY_MS - 60, "a later join does not extend the wait"
    assert group.tick(DELAY_MS - 61) == []
    out = group.tick(1)
    assert causes(out) == ["scheduled"]
    assert len(assigned(out)["m1"].revoke) == 8, "it keeps a third"
    assert group.state.scheduled_ms is None


def test_join_after_that_round_waits_for_others_again():
    group = running()
    group.fact(joined("m2"))
    assert causes(group.tick(DELAY_MS)) == ["scheduled"]
    assert group.fact(joined("m3"), after_ms=1) == []
    assert causes(group.tick(DELAY_MS)) == ["scheduled"]


def test_round_that_begins_meanwhile_decides_for_new_members():
    group = running()
    group.fact(joined("m2"))
    out = group.fact(configured(initial_delay_ms=0, join_delay_ms=DELAY_MS, max_warmups=3))
    assert causes(out) == ["configured"]
    assert group.state.scheduled_ms is None
    assert causes(group.tick(DELAY_MS)) == []


def test_join_while_a_task_has_no_owner_is_decided_at_once():
    group = Group().starts("m1", "m2", stateless=2, assignor="cooperative", join_delay_ms=DELAY_MS)
    group.tick(DELAY_MS)
    group.cycle()
    group.fact(MemberLeft(member_id="m1", incarnation=1))
    assert len(group.state.owner) == 1, "the other task waits for m1"
    assert causes(group.fact(joined("m1", 2))) == ["join"]


def test_join_while_a_task_has_no_owner_waits_for_no_scheduled_round():
    group = Group().starts("m1", "m2", stateless=2, assignor="cooperative")
    group.cycle()
    group.fact(configured(assignor="cooperative", join_delay_ms=600_000))
    group.fact(MemberLeft(member_id="m1", incarnation=1))
    assert group.state.scheduled_ms == group.state.now_ms + 300_000, "then the task no longer waits for m1"
    assert causes(group.fact(joined("m1", 2))) == ["join"]


def test_join_while_a_task_is_given_up_to_nobody_is_decided_at_once():
    group = running()
    group.fact(LeaveIntended(member_id="m1", incarnation=1))
    assert len(group.state.members["m1"].revoking) == 12, "there is no other member"
    assert causes(group.fact(joined("m2"))) == ["join"]
    assert {movement.destination for movement in group.state.in_flight.values()} == {"m2"}
    assert group.fact(joined("m3")) == [], "each task goes to m2"


def test_join_that_replaces_a_live_incarnation_is_decided_at_once():
    group = running()
    assert causes(group.fact(joined("m1", 2))) == ["join"]


def test_join_that_replaces_a_waiting_incarnation_without_tasks_is_decided_at_once():
    group = running()
    assert group.fact(joined("m2")) == []
    assert causes(group.fact(joined("m2", 2))) == ["join"]


def test_scheduled_round_moves_to_an_earlier_time_only():
    group = running()
    context = context_of(group)
    for delay_ms, scheduled_ms in ((900, 900), (800, 800), (850, 800)):
        assert context.waits_for_others(delay_ms)
        assert group.state.scheduled_ms == group.state.now_ms + scheduled_ms
        assert (group.state.scheduled_ms, Timer.SCHEDULED, GROUP_KEY) in context.deadlines.running()


def test_without_delay_each_join_is_a_round():
    group = running(join_delay_ms=0)
    assert causes(group.fact(joined("m2"))) == ["join"]
    assert causes(group.fact(joined("m3"))) == ["join"]
