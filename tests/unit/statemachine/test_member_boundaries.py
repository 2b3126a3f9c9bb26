"""The member's rules at their boundaries: the very millisecond, the same number, nothing there."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import attrs
import pytest

from equipoise.events.codec import size_bytes
from equipoise.events.decisions import EventRejected, MemberAsked, MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import LagReported, LeaveIntended, Load, MemberJoined, MemberLeft, TaskReady
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.member import End, MemberSession, MemberSettings
from tests.support.session_snapshots import snapshot
from tests.unit.statemachine.sessions import (
    LEASE_MS,
    OTHER,
    STATEFUL,
    STATELESS,
    assigned,
    joined,
    record,
    refused,
    renew,
    reports,
    running,
    settings,
)

# Joining (M1)


def test_join_carries_every_setting_of_the_incarnation():
    given = settings(
        capacity=3,
        rack="r1",
        tags={"zone": "z"},
        topology_epoch=4,
        ended_incarnation=6,
        eager=True,
        prepares=True,
        heartbeat_interval_ms=500,
        ready_lag_records=9,
        advertised="host-1:80",
    )
    session = MemberSession(given)
    session.reader_placed(log_id="log", last_number=0, sent_ms=0, answered_ms=0)
    fact = session.join(0)
    in_the_fact = {field.name for field in attrs.fields(MemberSettings)} & {field.name for field in attrs.fields(MemberJoined)}
    assert {"capacity", "ready_lag_records", "advertised"} < in_the_fact
    assert {name: getattr(fact, name) for name in in_the_fact} == {name: getattr(given, name) for name in in_the_fact}
    assert fact.readiness == "word_and_lag"


def test_join_is_shortened_to_the_size_limit():
    class Terse(MemberSession):
        most_event_bytes = 200

    session = Terse(settings())
    for partition in range(100):
        session.copy_progress(TaskId(0, partition), partition, 0)
    session.reader_placed(log_id="log", last_number=0, sent_ms=0, answered_ms=0)
    fact = session.join(0)
    assert size_bytes(fact) <= 200
    assert 0 < len(fact.lags) < 100


def test_next_number_is_unknown_before_the_reader_is_placed():
    with pytest.raises(InputError, match="reader_placed"):
        _ = MemberSession(settings()).next_number


def test_lease_runs_from_the_join_not_from_the_placing_of_the_reader():
    session = MemberSession(settings())
    session.reader_placed(log_id="log", last_number=0, sent_ms=0, answered_ms=0)
    session.join(5_000)
    session.fetch_completed(sent_ms=6_000, reached_end=True, now_ms=6_000)
    assert session.lease_ends_ms == 5_000 + LEASE_MS


def test_session_refused_for_its_own_number_is_not_ousted():
    assert not refused("incarnation_repeated", 7).is_ousted
    assert not refused("incarnation_too_low", 7).is_ousted


# The lease (M4)


@pytest.mark.parametrize(
    "happens",
    [
        lambda session: session.poll(LEASE_MS),
        lambda session: session.heartbeat_acknowledged(sent_ms=LEASE_MS - 1, now_ms=LEASE_MS),
        lambda session: session.fetch_completed(sent_ms=LEASE_MS - 1, reached_end=True, now_ms=LEASE_MS),
        lambda session: session.receive(record(2, assigned(2, (STATELESS,))), LEASE_MS),
        lambda session: session.log_went_back(sent_ms=LEASE_MS, now_ms=LEASE_MS),
        lambda session: session.log_replaced(LEASE_MS),
        lambda session: session.close(LEASE_MS),
        lambda session: session.give_up(End.FAILED, LEASE_MS),
        lambda session: session.task_closed(OTHER, LEASE_MS),
    ],
    ids=["poll", "acknowledged", "fetched", "received", "went_back", "replaced", "close", "give_up", "task_closed"],
)
def test_whatever_a_session_does_after_its_lease_finds_the_lease_over(happens: Callable[[MemberSession], object]):
    session = running()
    happens(session)
    assert (session.ended, session.closing) == (End.LEASE_LAPSED, {STATELESS})


def test_session_that_has_ended_keeps_no_copies():
    session = joined()
    session.receive(record(1, assigned(1, (), standby=(OTHER,), warmup=(STATEFUL,))), 0)
    session.log_replaced(10)
    assert (session.standby, session.warmup) == (frozenset(), frozenset())
    assert not session.declare_ready(OTHER)


def test_read_sent_when_the_shorter_log_was_found_counts_as_intact():
    session = running()
    session.heartbeat_acknowledged(sent_ms=5_000, now_ms=5_000)
    session.log_went_back(sent_ms=3_000, now_ms=3_010)
    session.fetch_completed(sent_ms=3_010, reached_end=True, now_ms=3_020)
    assert session.lease_ends_ms == 3_010 + LEASE_MS


# Reports (M2)


def test_acknowledgement_of_an_earlier_report_does_not_stand_for_the_last_one():
    session = joined()
    session.copy_progress(OTHER, 20, 0)
    reports(session, 3_000)
    renew(session, 3_000, 3_001)
    reports(session, 6_000)
    session.heartbeat_acknowledged(sent_ms=3_000, now_ms=6_001, report_number=0)
    assert reports(session, 9_000)[0].base is None


def test_report_carries_the_measured_load():
    session = joined()
    session.load_measured(Load(restored_records_per_s=5.0))
    assert reports(session, 3_000)[0].load == Load(restored_records_per_s=5.0)


def test_task_restored_in_the_millisecond_its_hold_ends_is_reported_as_running():
    session = joined()
    session.receive(record(1, assigned(1, (STATEFUL,), hold_ms={STATEFUL: 3_000})), 0)
    session.copy_progress(STATEFUL, 0, 3_000)
    assert reports(session, 3_000)[0].lags == {STATEFUL: LagSentinel.ACTIVE}


def test_speed_of_one_record_a_second_suffices_to_judge_by_time():
    session = joined(ready_lag_records=None)
    session.receive(record(1, assigned(1, (), warmup=(OTHER,), acceptable_recovery_lag=0, acceptable_recovery_ms=2_000)), 0)
    session.load_measured(Load(restored_records_per_s=1.0))
    session.copy_progress(OTHER, 2, 0)
    assert [type(fact) for fact in session.poll(1)] == [LagReported, TaskReady]


def test_report_without_space_keeps_warm_ups_then_standbys_then_tasks_then_other_copies():
    other = [TaskId(0, number) for number in range(99)]
    warmup, standby, granted = other[50:55], other[40:45], other[60:65]
    other = [task for task in other if task not in (*warmup, *standby, *granted)]
    order = [*warmup, *standby, *granted, *other]
    lengths = set()
    for most_bytes in range(60, 700, 10):
        session = joined(session_class=type("Terse", (MemberSession,), {"most_event_bytes": most_bytes}))
        session.receive(record(1, assigned(1, tuple(granted), standby=tuple(standby), warmup=tuple(warmup))), 0)
        for lag, task in enumerate(reversed(order)):
            session.copy_progress(task, 5_000 + lag, 0)
        reported = set(reports(session, 3_000)[0].lags)
        lengths.add(len(reported))
        for kept, later in itertools.pairwise((warmup, standby, granted, other)):
            assert reported.isdisjoint(later) or reported.issuperset(kept)
    assert lengths >= {3, 8, 13, 18}


def test_preparations_are_named_in_the_order_of_their_tasks():
    session = joined(prepares=True)
    session.note_preparing({TaskId(0, number): 1_000 - number for number in range(200)}, ())
    assert list(reports(session, 3_000)[0].preparing) == [TaskId(0, number) for number in range(100)]


def test_copy_that_was_never_there_can_be_dropped():
    session = joined()
    session.copy_dropped(OTHER)
    assert reports(session, 3_000)[0].lags == {}


# Tasks


def test_assignment_of_the_applied_epoch_is_not_applied_again():
    session = joined()
    session.receive(record(1, assigned(1, (STATELESS,))), 0)
    session.receive(record(2, assigned(1, (OTHER,))), 0)
    assert list(session.grants) == [STATELESS]


def test_task_revoked_in_the_millisecond_its_hold_ends_is_closed_first():
    """It may have begun in this millisecond, so it is not given up before the host has closed it."""
    session = joined()
    session.receive(record(1, assigned(1, (STATELESS,), hold_ms={STATELESS: 500})), 0)
    session.receive(record(2, assigned(2, (), revoke=(STATELESS,))), 500)
    assert session.closing == {STATELESS}
    assert session.poll(500) == []


# Decisions about the member itself


def test_member_asked_to_leave_knows_it_until_the_request_is_withdrawn():
    session = joined()
    ask = MemberAsked(member_id="m1", incarnation=7, leave=True)
    others = [attrs.evolve(ask, member_id="m2"), attrs.evolve(ask, incarnation=6)]
    for number, decision in enumerate(others, 1):
        session.receive(record(number, decision), 0)
    assert session.asked is False
    session.receive(record(3, ask), 0)
    assert session.asked is True
    session.receive(record(4, attrs.evolve(ask, leave=False)), 0)
    assert session.asked is False


@pytest.mark.parametrize("code", ["report_base_unknown", "already_released"])
def test_rejection_of_another_incarnation_changes_nothing(code: str):
    session = joined()
    before = snapshot(session)
    session.receive(record(1, EventRejected(kind=1, code=code, member_id="m1", incarnation=6)), 100)
    session.receive(record(2, EventRejected(kind=1, code=code, member_id="m2", incarnation=7)), 100)
    assert snapshot(session) == before.replace(b'"last_number":0', b'"last_number":2')


def test_released_member_without_tasks_leaves_at_once():
    session = joined()
    session.receive(record(1, EventRejected(kind=1, code="already_released", member_id="m1", incarnation=7)), 0)
    assert session.ended is End.RELEASED
    assert session.poll(0) == [MemberLeft(member_id="m1", incarnation=7)]


def test_refused_member_closes_what_it_runs():
    session = running()
    session.receive(record(2, EventRejected(kind=1, code="unknown_member", member_id="m1", incarnation=7)), 10)
    assert (session.ended, session.closing) == (End.REFUSED, {STATELESS})


def test_first_end_of_an_incarnation_is_its_end():
    session = running()
    session.receive(record(2, MemberExpired(member_id="m1", incarnation=7, cause="session_timeout", silent_ms=1)), 10)
    session.receive(record(3, EventRejected(kind=1, code="stale_incarnation", member_id="m1", incarnation=7, numbers=(7, 9))), 11)
    assert (session.ended, session.end_cause, session.newest_incarnation) == (End.EXPIRED, "session_timeout", None)


def test_session_that_was_closed_heeds_no_rejection():
    session = joined()
    session.close(5)
    session.receive(record(1, EventRejected(kind=1, code="stale_incarnation", member_id="m1", incarnation=7, numbers=(7, 9))), 11)
    assert (session.ended, session.end_cause, session.is_ousted) == (End.LEFT, "", False)


def test_rejection_without_the_newest_incarnation_ends_the_session_all_the_same():
    session = joined()
    session.receive(record(1, EventRejected(kind=1, code="stale_incarnation", member_id="m1", incarnation=7, numbers=(7,))), 0)
    assert (session.ended, session.newest_incarnation) == (End.REFUSED, None)


# Leaving


def test_cancelled_leave_is_not_reported():
    session = joined()
    session.intend_leave()
    session.cancel_leave()
    session.poll(0)
    assert session.leaving is False
    assert reports(session, 3_000)[0].leaving is False


def test_leave_that_was_not_announced_cannot_be_cancelled():
    session = joined()
    session.cancel_leave()
    assert session.poll(0) == []


def test_leave_is_not_cancelled_after_the_end():
    session = joined()
    session.intend_leave()
    assert session.poll(0) == [LeaveIntended(member_id="m1", incarnation=7)]
    session.log_replaced(10)
    session.cancel_leave()
    assert session.poll(10) == []


def test_closed_session_without_tasks_leaves_at_once():
    session = joined()
    session.close(10)
    assert session.ended is End.LEFT
    assert session.poll(10) == [MemberLeft(member_id="m1", incarnation=7)]


def test_closed_session_gives_up_its_tasks_with_member_left_alone():
    session = joined()
    session.receive(record(1, assigned(1, (OTHER, STATELESS))), 0)
    session.close(10)
    session.task_closed(OTHER, 20)
    assert session.poll(20) == []
    session.task_closed(STATELESS, 30)
    assert session.poll(30) == [MemberLeft(member_id="m1", incarnation=7)]


def test_task_in_its_hold_never_begins_in_a_session_that_is_closed():
    session = joined()
    session.receive(record(1, assigned(1, (OTHER, STATELESS), hold_ms={STATELESS: 500})), 0)
    session.close(10)
    assert session.refusal(STATELESS, 600) == "not_granted"
    session.task_closed(OTHER, 600)
    assert (session.ended, session.closing) == (End.LEFT, set())
