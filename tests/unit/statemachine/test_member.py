"""The member's side of the protocol: lease arithmetic to the millisecond, epochs, holds,
revocations, reports, and the ways to end.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.events.decisions import EventRejected, MemberExpired
from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import LagReported, LeaveCancelled, LeaveIntended, Load, MemberLeft, RestartIntended, Subtopology, TaskReady, TasksRevoked
from equipoise.events.fields import INT64_MAX
from equipoise.events.parts import split
from equipoise.events.records import UnreadDecision
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.member import End, MemberSession, Reception
from tests.support.session_snapshots import restore, snapshot
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

# Joining


def test_join_needs_a_reader_at_the_end():
    session = MemberSession(settings())
    with pytest.raises(InputError, match="reader_placed"):
        session.join(0)
    session.reader_placed(log_id="log", last_number=4, sent_ms=0, answered_ms=0)
    with pytest.raises(InputError, match="reader_placed"):  # so long ago that the lease would be over
        session.join(LEASE_MS)
    fact = session.join(LEASE_MS - 1)
    assert (fact.member_id, fact.incarnation, fact.session_timeout_ms, fact.lease_margin_ms) == ("m1", 7, 10_000, 2_000)
    assert session.next_number == 5
    with pytest.raises(InputError, match="joins once"):
        session.join(1)
    with pytest.raises(InputError, match="joined already"):
        session.reader_placed(log_id="log", last_number=9, sent_ms=1, answered_ms=1)


def test_join_names_the_copies_on_disk_and_is_the_first_fact():
    session = MemberSession(settings())
    session.copy_progress(OTHER, 50, 0)
    session.copy_progress(STATEFUL, LagSentinel.UNKNOWN, 0)
    session.reader_placed(log_id="log", last_number=0, sent_ms=0, answered_ms=0)
    assert session.poll(0) == []
    assert list(session.join(0).lags.items()) == [(STATEFUL, LagSentinel.UNKNOWN), (OTHER, 50)]


def test_margin_as_long_as_the_session_is_refused():
    with pytest.raises(FieldError, match="lease_margin_ms"):
        settings(lease_margin_ms=10_000)


# The lease (M4)


def test_lease_lasts_the_session_timeout_less_the_margin():
    session = running()
    assert session.may_process(STATELESS, LEASE_MS - 1)
    assert session.refusal(STATELESS, LEASE_MS) == "ended"
    assert session.ended is End.LEASE_LAPSED


@pytest.mark.parametrize(("heartbeat_ms", "fetch_ms", "ends_ms"), [(3_000, 0, LEASE_MS), (0, 3_000, LEASE_MS), (3_000, 2_000, 2_000 + LEASE_MS)])
def test_lease_needs_fresh_heartbeat_and_fetch(heartbeat_ms: int, fetch_ms: int, ends_ms: int):
    session = running()
    session.heartbeat_acknowledged(sent_ms=heartbeat_ms, now_ms=4_000)
    session.fetch_completed(sent_ms=fetch_ms, reached_end=True, now_ms=4_000)
    assert session.lease_ends_ms == ends_ms
    assert session.may_process(STATELESS, ends_ms - 1)
    assert not session.may_process(STATELESS, ends_ms)


def test_lease_starts_at_sending_not_at_arrival():
    session = running()
    renew(session, 1_000, LEASE_MS - 1)
    assert session.lease_ends_ms == 1_000 + LEASE_MS


def test_older_acknowledgement_does_not_shorten_the_lease():
    session = running()
    renew(session, 3_000, 3_010)
    renew(session, 2_000, 3_020)
    assert session.lease_ends_ms == 3_000 + LEASE_MS


def test_fetch_that_left_records_unread_renews_nothing():
    session = running()
    session.heartbeat_acknowledged(sent_ms=5_000, now_ms=5_001)
    session.fetch_completed(sent_ms=5_000, reached_end=False, now_ms=5_001)
    assert session.lease_ends_ms == LEASE_MS


def test_lapsed_lease_never_revives():
    """A paused member wakes, and a fact that it sent before the pause is acknowledged."""
    session = running()
    renew(session, LEASE_MS - 1, LEASE_MS)
    assert session.ended is End.LEASE_LAPSED
    assert session.closing == {STATELESS}
    assert session.poll(LEASE_MS) == []
    assert session.receive(record(2, assigned(2, (STATELESS,))), LEASE_MS) is Reception.APPLIED
    assert not session.may_process(STATELESS, LEASE_MS)
    session.receive(record(3, MemberExpired(member_id="m1", incarnation=7, cause="superseded", silent_ms=1)), LEASE_MS)
    assert (session.ended, session.end_cause) == (End.LEASE_LAPSED, "superseded")


def test_lease_rules_can_be_overridden():
    class Revives(MemberSession):
        def _may_revive(self) -> bool:
            return True

    class DatesArrival(MemberSession):
        def _lease_dates_from(self, sent_ms: int, arrived_ms: int) -> int:
            return arrived_ms

    class HeartbeatsOnly(MemberSession):
        def _lease_rests_on(self, heartbeat_ms: int, fetch_ms: int) -> int:
            return heartbeat_ms

    revived = running(session_class=Revives)
    assert not revived.may_process(STATELESS, LEASE_MS)
    renew(revived, LEASE_MS, LEASE_MS)
    assert revived.may_process(STATELESS, LEASE_MS)
    late = running(session_class=DatesArrival)
    renew(late, 0, 7_000)
    assert late.may_process(STATELESS, LEASE_MS)
    deaf = running(session_class=HeartbeatsOnly)
    deaf.heartbeat_acknowledged(sent_ms=5_000, now_ms=5_000)
    assert deaf.may_process(STATELESS, LEASE_MS)


# Decisions in order (L4, M3)


def test_decisions_are_taken_in_order_and_a_gap_is_read_first():
    session = joined()
    first, second = record(1, assigned(1, (STATELESS,))), record(2, assigned(2, (OTHER,)))
    assert session.receive(second, 0) is Reception.GAP
    assert session.next_number == 1
    assert not session.grants
    assert session.receive(first, 0) is Reception.APPLIED
    assert session.receive(first, 0) is Reception.DROPPED
    assert session.receive(second, 0) is Reception.APPLIED
    assert list(session.grants) == [OTHER]


def test_while_a_gap_is_open_no_fetch_renews():
    session = running()
    session.heartbeat_acknowledged(sent_ms=5_000, now_ms=5_000)
    session.receive(record(3, assigned(3)), 5_000)
    session.fetch_completed(sent_ms=5_000, reached_end=True, now_ms=5_000)
    assert session.lease_ends_ms == LEASE_MS
    session.receive(record(2, assigned(2)), 5_000)
    session.fetch_completed(sent_ms=5_000, reached_end=True, now_ms=5_000)
    assert session.lease_ends_ms == 5_000 + LEASE_MS


def test_older_epoch_or_other_incarnation_is_not_applied():
    session = joined()
    session.receive(record(1, assigned(5, (STATELESS,))), 0)
    session.receive(record(2, assigned(4, (OTHER,))), 0)
    session.receive(record(3, assigned(6, (OTHER,), incarnation=6)), 0)
    assert (session.assignment_epoch, list(session.grants)) == (5, [STATELESS])


# Tasks


def test_stateful_task_processes_once_caught_up():
    session = joined()
    session.receive(record(1, assigned(1, (STATEFUL,))), 0)
    assert session.refusal(STATEFUL, 0) == "restoring"
    session.copy_progress(STATEFUL, 1, 10)
    assert session.refusal(STATEFUL, 10) == "restoring"
    session.copy_progress(STATEFUL, 0, 20)
    assert session.refusal(STATEFUL, 20) is None
    assert session.refusal(OTHER, 20) == "not_granted"


def test_hold_counts_from_reading_the_grant_and_restore_after_it():
    session = joined()
    session.receive(record(1, assigned(1, (STATEFUL, STATELESS), hold_ms={STATEFUL: 500, STATELESS: 500})), 1_000)
    session.copy_progress(STATEFUL, 0, 1_499)
    assert session.refusal(STATELESS, 1_499) == "hold"
    assert session.held(1_499) == []
    assert session.refusal(STATELESS, 1_500) is None
    assert session.refusal(STATEFUL, 1_500) == "restoring"
    assert session.held(1_500) == [STATEFUL, STATELESS]
    session.copy_progress(STATEFUL, 0, 1_500)
    assert session.may_process(STATEFUL, 1_500)


def test_repeated_grant_does_not_restart_its_hold():
    session = joined()
    session.receive(record(1, assigned(1, (STATELESS,), hold_ms={STATELESS: 500})), 1_000)
    session.receive(record(2, assigned(2, (STATELESS,), hold_ms={STATELESS: 500})), 1_400)
    assert session.may_process(STATELESS, 1_500)


def test_hold_lifted_by_the_leader_ends_at_once():
    session = joined()
    session.receive(record(1, assigned(1, (OTHER, STATELESS), hold_ms={OTHER: 5_000, STATELESS: 5_000})), 1_000)
    session.receive(record(2, assigned(2, (OTHER, STATELESS), hold_ms={OTHER: 5_000})), 2_000)
    assert session.refusal(STATELESS, 2_000) is None
    assert session.refusal(OTHER, 2_000) == "hold"
    assert session.held(2_000) == [STATELESS]


def test_revoked_task_stops_closes_and_is_given_up_with_the_revoking_epoch():
    session = running()
    session.receive(record(2, assigned(2, (), revoke=(STATELESS,))), 100)
    assert session.refusal(STATELESS, 100) == "closing"
    assert session.held(100) == [STATELESS]
    assert session.poll(100) == []
    session.task_closed(STATELESS, 150)
    assert session.poll(150) == [TasksRevoked(member_id="m1", incarnation=7, assignment_epoch=2, tasks=(STATELESS,))]
    assert session.held(150) == []


def test_assignment_without_a_task_closes_it_without_a_revocation():
    session = running()
    session.receive(record(2, assigned(2, ())), 100)
    assert session.closing == {STATELESS}


def test_tasks_that_close_together_are_given_up_together():
    session = joined()
    session.receive(record(1, assigned(1, (OTHER, STATELESS))), 0)
    session.receive(record(2, assigned(2, (), revoke=(OTHER, STATELESS))), 100)
    session.task_closed(STATELESS, 150)
    session.task_closed(OTHER, 150)
    assert session.next_poll_ms == 0
    assert session.poll(150) == [TasksRevoked(member_id="m1", incarnation=7, assignment_epoch=2, tasks=(OTHER, STATELESS))]


def test_task_revoked_in_its_hold_is_given_up_at_once():
    session = joined()
    session.receive(record(1, assigned(1, (STATELESS,), hold_ms={STATELESS: 500})), 0)
    session.receive(record(2, assigned(2, (), revoke=(STATELESS,))), 100)
    assert session.closing == set()
    assert session.poll(100) == [TasksRevoked(member_id="m1", incarnation=7, assignment_epoch=2, tasks=(STATELESS,))]


def test_task_granted_while_it_closes_is_restored_again():
    session = running(STATEFUL)
    session.receive(record(2, assigned(2, (), revoke=(STATEFUL,))), 100)
    session.receive(record(3, assigned(3, (STATEFUL,), tokens=(2,))), 110)
    assert session.refusal(STATEFUL, 110) == "closing"
    session.task_closed(STATEFUL, 120)
    assert session.poll(120) == []  # nothing is given up
    assert session.refusal(STATEFUL, 120) == "restoring"
    session.copy_progress(STATEFUL, 0, 130)
    assert session.may_process(STATEFUL, 130)


# One log (L9)


def fetch(session: MemberSession, at_ms: int, *, reached_end: bool = True) -> None:
    session.fetch_completed(sent_ms=at_ms, reached_end=reached_end, now_ms=at_ms)


def test_decision_of_another_log_ends_the_incarnation_whatever_its_number():
    for number in (1, 2, 9):
        session = running()
        other = attrs.evolve(record(number, assigned(2, (OTHER, STATELESS), tokens=(1, 1))), log_id="another")
        assert session.receive(other, 100) is Reception.DROPPED
        assert (session.ended, session.closing, session.next_number) == (End.LOG_REPLACED, {STATELESS}, 2)
        session.task_closed(STATELESS, 200)
        assert session.poll(10_000) == []  # it sends nothing into another log


def test_proof_that_the_log_was_replaced_ends_the_incarnation_at_once():
    session = running()
    session.log_replaced(100)
    assert (session.ended, session.refusal(STATELESS, 100)) == (End.LOG_REPLACED, "ended")


def test_shorter_log_found_once_is_forgotten_after_an_intact_read():
    session = running()
    session.heartbeat_acknowledged(sent_ms=5_000, now_ms=5_000)
    session.log_went_back(sent_ms=3_000, now_ms=3_010)
    fetch(session, 3_005)  # sent before the shorter log was found, so it proves nothing
    assert session.lease_ends_ms == LEASE_MS
    fetch(session, 3_500, reached_end=False)
    session.log_went_back(sent_ms=4_009, now_ms=4_009)
    assert session.may_process(STATELESS, 4_009)
    fetch(session, 4_500)
    assert session.lease_ends_ms == 4_500 + LEASE_MS
    session.log_went_back(sent_ms=5_100, now_ms=5_100)
    assert session.may_process(STATELESS, 5_100)


def test_shorter_log_found_again_a_second_later_ends_the_incarnation():
    session = running()
    session.log_went_back(sent_ms=3_000, now_ms=3_010)
    restored = restore(MemberSession, session.settings, snapshot(session))
    for each in (session, restored):
        each.log_went_back(sent_ms=4_010, now_ms=4_020)
        assert (each.ended, each.closing) == (End.LOG_WENT_BACK, {STATELESS})


def placed(session: MemberSession, log_id: str, at_ms: int) -> int:
    session.reader_placed(log_id=log_id, last_number=0, sent_ms=at_ms - 10, answered_ms=at_ms)
    return session.join_from_ms


def test_member_of_a_former_log_waits_one_session_timeout_from_when_it_learned_of_the_new_one():
    session = MemberSession(settings(former_log_id="log-1"))
    assert placed(session, "log-2", 500) == 10_500
    with pytest.raises(InputError, match="members of log 'log-1' may run until 10500"):
        session.join(510)
    assert placed(session, "log-2", 4_000) == 10_500  # placed again, it learns nothing new
    assert placed(session, "log-3", 9_000) == 19_000
    assert placed(session, "log-3", 19_000) == 19_000
    assert session.join(19_000).incarnation == 7


@pytest.mark.parametrize("former", [None, "log-1"])
def test_member_of_the_same_log_or_of_none_joins_at_once(former: str | None):
    session = MemberSession(settings(former_log_id=former))
    placed(session, "log-1", 500)
    assert session.join(500).incarnation == 7


# Decisions that it cannot read (M9)


def unread(number: int, member_id: str | None, incarnation: int | None, *, binding: bool = True) -> UnreadDecision:
    return UnreadDecision("log", "g", number, 103, 2, binding, member_id, incarnation, "version 2 is not known")


@pytest.mark.parametrize(
    "for_others", [unread(2, "m2", 7), unread(2, "m1", 6), unread(2, "m1", 8), unread(2, None, None), unread(2, "m1", 7, binding=False)]
)
def test_unreadable_decision_that_does_not_bind_this_incarnation_is_counted_and_skipped(for_others: UnreadDecision):
    session = running()
    assert session.receive(for_others, 100) is Reception.APPLIED
    assert session.next_number == 3
    assert session.may_process(STATELESS, 100)
    assert session.receive(unread(5, "m1", 7), 100) is Reception.GAP
    assert session.receive(unread(2, "m1", 7), 100) is Reception.DROPPED
    assert session.may_process(STATELESS, 100)


def test_unreadable_decision_for_this_incarnation_ends_it_with_member_left():
    session = running()
    session.receive(record(2, assigned(2, (OTHER, STATELESS), tokens=(1, 1))), 50)
    assert session.receive(unread(3, "m1", 7), 100) is Reception.APPLIED
    assert (session.ended, session.refusal(STATELESS, 100)) == (End.UNREADABLE, "ended")
    assert session.closing == {OTHER, STATELESS}
    session.task_closed(OTHER, 150)
    assert session.poll(150) == []
    restored = restore(MemberSession, session.settings, snapshot(session))
    for each in (session, restored):
        each.task_closed(STATELESS, 200)
        assert each.poll(200) == [MemberLeft(member_id="m1", incarnation=7)]
        assert each.poll(10_000) == []
        assert each.next_poll_ms is None


@pytest.mark.parametrize("how", [End.UNREADABLE, End.FAILED])
def test_incarnation_that_gives_up_without_tasks_sends_member_left_at_once(how: End):
    session = joined()
    session.give_up(how, 100)
    assert session.ended is how
    assert session.poll(100) == [MemberLeft(member_id="m1", incarnation=7)]


def test_incarnation_that_has_ended_does_not_give_up():
    session = running()
    session.give_up(End.FAILED, LEASE_MS)
    assert session.ended is End.LEASE_LAPSED
    session.task_closed(STATELESS, LEASE_MS)
    assert session.poll(LEASE_MS) == []


# Reports (M2)


def test_heartbeat_comes_at_its_interval_with_a_complete_report():
    session = joined()
    session.receive(record(1, assigned(1, (STATEFUL,), warmup=(OTHER,))), 0)
    session.copy_progress(STATEFUL, 0, 0)
    session.copy_progress(OTHER, 5_000, 0)
    assert session.next_poll_ms == 3_000
    assert session.poll(2_999) == []
    assert session.poll(3_000) == [
        LagReported(member_id="m1", incarnation=7, number=0, assignment_epoch=1, held=(STATEFUL,), lags={STATEFUL: LagSentinel.ACTIVE, OTHER: 5_000})
    ]
    assert session.next_poll_ms == 6_000


def test_report_builds_on_the_last_acknowledged_one():
    session = joined()
    session.copy_progress(STATEFUL, 10, 0)
    session.copy_progress(OTHER, 20, 0)
    assert reports(session, 3_000)[0].base is None
    renew(session, 3_000, 3_010)
    session.copy_progress(OTHER, 15, 0)
    assert reports(session, 6_000)[0].base is None  # number 0 was not acknowledged as a report
    session.heartbeat_acknowledged(sent_ms=6_000, now_ms=6_010, report_number=1)
    session.fetch_completed(sent_ms=6_000, reached_end=True, now_ms=6_010)
    session.copy_progress(OTHER, 14, 0)
    session.copy_dropped(STATEFUL)
    delta = reports(session, 9_000)[0]
    assert (delta.base, delta.lags, delta.forgotten) == (1, {OTHER: 14}, (STATEFUL,))


def test_report_rejected_for_its_base_is_sent_in_full():
    session = joined()
    session.copy_progress(OTHER, 20, 0)
    reports(session, 3_000)
    session.heartbeat_acknowledged(sent_ms=3_000, now_ms=3_001, report_number=0)
    rejected = EventRejected(kind=1, code="report_base_unknown", member_id="m1", incarnation=7, numbers=(0, 5))
    session.receive(record(1, rejected), 3_100)
    full = reports(session, 3_100)[0]
    assert (full.number, full.base, full.lags) == (1, None, {OTHER: 20})


def test_readiness_is_sent_once_and_repeated_in_reports():
    session = joined()
    session.receive(record(1, assigned(1, (), warmup=(OTHER,))), 0)
    session.copy_progress(OTHER, 101, 0)
    assert session.poll(0) == []
    session.copy_progress(OTHER, 100, 10)
    session.copy_progress(OTHER, 90, 11)
    report, ready = session.poll(11)
    assert isinstance(report, LagReported)  # the report with the lag comes first
    assert (report.ready, report.lags) == ((OTHER,), {OTHER: 90})
    assert ready == TaskReady(member_id="m1", incarnation=7, assignment_epoch=1, tasks=(OTHER,))
    assert session.next_poll_ms == 3_011
    session.copy_progress(OTHER, 101, 3_001)
    assert reports(session, 3_011)[0].ready == ()


def test_standby_readiness_waits_for_the_heartbeat():
    session = joined()
    session.receive(record(1, assigned(1, (), standby=(OTHER,))), 0)
    session.copy_progress(OTHER, 90, 10)
    assert session.next_poll_ms == 3_000
    assert reports(session, 3_000)[0].ready == (OTHER,)


def test_copies_are_judged_by_the_groups_limit_as_it_is_now():
    session = joined(ready_lag_records=None)
    session.receive(record(1, assigned(1, (), warmup=(OTHER,), acceptable_recovery_lag=100, acceptable_recovery_ms=0)), 0)
    session.copy_progress(OTHER, 9_999, 0)
    assert (session.acceptable_lag, session.poll(0)) == (100, [])
    session.receive(record(2, assigned(2, (), warmup=(OTHER,), acceptable_recovery_lag=9_999, acceptable_recovery_ms=0)), 10)
    assert session.next_poll_ms == 0  # at once, although its copy made no progress
    report, ready = session.poll(10)
    assert isinstance(report, LagReported)
    assert report.ready == (OTHER,)
    assert ready == TaskReady(member_id="m1", incarnation=7, assignment_epoch=2, tasks=(OTHER,))
    session.receive(record(3, assigned(3, (), warmup=(OTHER,), acceptable_recovery_lag=9_998, acceptable_recovery_ms=0)), 20)
    assert reports(session, 3_010)[0].ready == ()


def test_own_limit_is_in_the_join_and_replaces_the_groups():
    session = MemberSession(settings(ready_lag_records=7))
    session.reader_placed(log_id="log", last_number=0, sent_ms=0, answered_ms=0)
    join = session.join(0)
    assert (join.readiness, join.ready_lag_records) == ("lag", 7)
    session.receive(record(1, assigned(1, (), warmup=(OTHER,), acceptable_recovery_lag=100, acceptable_recovery_ms=60_000)), 0)
    session.load_measured(Load(restored_records_per_s=1_000.0))
    session.copy_progress(OTHER, 8, 0)
    assert session.poll(0) == []
    session.copy_progress(OTHER, 7, 1)
    assert [type(fact) for fact in session.poll(1)] == [LagReported, TaskReady]


def test_copies_are_judged_by_time_where_the_group_asks_for_it():
    session = joined(ready_lag_records=None)
    session.receive(record(1, assigned(1, (), warmup=(OTHER,), acceptable_recovery_lag=100, acceptable_recovery_ms=2_000)), 0)
    session.copy_progress(OTHER, 2_000, 0)
    assert session.poll(0) == []  # its speed is unknown
    session.load_measured(Load(restored_records_per_s=999.0))
    assert session.poll(1) == []
    session.load_measured(Load(restored_records_per_s=1_000.0))
    assert [type(fact) for fact in session.poll(2)] == [LagReported, TaskReady]


def test_copies_are_not_ready_before_a_limit_is_known():
    session = joined(ready_lag_records=None)
    session.copy_progress(OTHER, 0, 0)
    session.receive(record(1, assigned(1, (), warmup=(OTHER,))), 0)  # from a leader that names no limit
    assert (session.acceptable_lag, session.poll(0)) == (None, [])


LIMITS = {"acceptable_recovery_lag": 100, "acceptable_recovery_ms": 0}


def test_prepared_copy_is_ready_when_declared_and_within_the_limit():
    session = joined(ready_lag_records=None, prepares=True)
    session.receive(record(1, assigned(1, (), warmup=(OTHER,), **LIMITS)), 0)
    session.copy_progress(OTHER, 101, 0)
    assert (session.to_prepare(), session.poll(0)) == (frozenset(), [])
    session.copy_progress(OTHER, 100, 1)
    assert (session.to_prepare(), session.poll(1)) == (frozenset({OTHER}), [])
    session.note_preparing({OTHER: 400}, ())
    assert reports(session, 3_000)[0].preparing == {OTHER: 400}
    assert session.declare_ready(OTHER)
    assert [type(fact) for fact in session.poll(3_001)] == [LagReported, TaskReady]
    assert session.to_prepare() == frozenset()
    session.copy_progress(OTHER, 101, 3_002)
    assert reports(session, 6_001)[0].ready == ()
    session.copy_progress(OTHER, 99, 6_002)
    assert [type(fact) for fact in session.poll(6_003)] == [LagReported, TaskReady], "its word still holds"


def test_declaration_holds_while_data_of_the_task_is_here():
    session = joined(ready_lag_records=None, prepares=True)
    assert not session.declare_ready(OTHER)
    session.receive(record(1, assigned(1, (), standby=(OTHER,), **LIMITS)), 0)
    assert session.declare_ready(OTHER)
    session.receive(record(2, assigned(2, (OTHER,), **LIMITS)), 1)
    assert session.is_prepared(OTHER)
    session.receive(record(3, assigned(3, (), warmup=(OTHER,), **LIMITS)), 2)
    assert session.is_prepared(OTHER), "it is still closing"
    session.task_closed(OTHER, 3)
    assert not session.is_prepared(OTHER), "it has run here and stopped"
    assert session.declare_ready(OTHER)
    session.receive(record(4, assigned(4, (), **LIMITS)), 4)
    assert not session.is_prepared(OTHER)


def test_task_being_prepared_before_its_first_record_is_not_reported_as_held():
    session = joined(ready_lag_records=None, prepares=True)
    session.receive(record(1, assigned(1, (STATEFUL,), **LIMITS)), 0)
    session.copy_progress(STATEFUL, 0, 1)
    assert reports(session, 3_000)[0].lags == {STATEFUL: 0}
    assert session.declare_ready(STATEFUL)
    assert reports(session, 6_000)[0].lags == {STATEFUL: LagSentinel.ACTIVE}


def test_report_of_many_preparations_names_those_first_that_a_movement_waits_for():
    last = TaskId(0, 5_000)
    session = joined(prepares=True)
    many = tuple(TaskId(0, number) for number in range(4_000))
    session.receive(record(1, assigned(1, (), standby=many, warmup=(last,), **LIMITS)), 0)
    session.note_preparing(dict.fromkeys((*many, last), 5), many)
    (report,) = reports(session, 3_000)
    assert last in report.preparing
    assert (len(report.preparing), len(report.failed)) == (100, 100)


def test_member_ignores_tasks_outside_its_topology():
    session = joined(partitions={0: 3, 1: 1})
    known, unknown = (STATELESS, TaskId(0, 1)), (TaskId(0, 3), TaskId(2, 0))
    session.receive(record(1, assigned(1, tuple(sorted((STATELESS, TaskId(0, 3)))), standby=(TaskId(0, 1),), warmup=(TaskId(2, 0),))), 0)
    assert session.unknown == set(unknown)
    assert set(session.grants) == {known[0]}
    assert (session.standby, session.warmup) == (frozenset({known[1]}), frozenset())
    assert session.held(0) == [STATELESS]
    assert restore(MemberSession, session.settings, snapshot(session)).unknown == set(unknown)
    session.receive(record(2, assigned(2, (STATELESS,))), 1)
    assert session.unknown == frozenset()


# Ends


@pytest.mark.parametrize("cause", ["session_timeout", "superseded", "revocation_timeout"])
def test_member_that_reads_its_expiry_closes_everything(cause: str):
    session = running()
    session.receive(record(2, MemberExpired(member_id="m1", incarnation=6, cause=cause, silent_ms=1)), 10)
    assert session.may_process(STATELESS, 10)
    session.receive(record(3, MemberExpired(member_id="m1", incarnation=7, cause=cause, silent_ms=1)), 11)
    assert (session.ended, session.end_cause) == (End.EXPIRED, cause)
    assert (session.closing, session.grants, session.poll(5_000), session.next_poll_ms) == ({STATELESS}, {}, [], None)
    session.task_closed(STATELESS, 12)
    assert session.poll(12) == []


@pytest.mark.parametrize("code", ["unknown_member", "stale_incarnation", "margin_too_small"])
def test_member_whose_messages_are_rejected_ends(code: str):
    session = joined()
    session.receive(record(1, EventRejected(kind=1, code=code, member_id="m1", incarnation=7)), 0)
    assert (session.ended, session.end_cause) == (End.REFUSED, code)


@pytest.mark.parametrize("code", ["incarnation_too_low", "stale_incarnation"])
def test_session_refused_for_a_higher_incarnation_is_ousted(code: str):
    session = refused(code, 9)
    assert (session.ended, session.newest_incarnation, session.is_ousted) == (End.REFUSED, 9, True)
    assert restore(MemberSession, settings(), snapshot(session)).is_ousted


def test_session_whose_join_was_lost_is_not_ousted_by_its_predecessor():
    session = refused("stale_incarnation", 6)
    assert (session.ended, session.is_ousted) == (End.REFUSED, False)


def test_process_whose_clock_is_behind_may_join_above_the_incarnation_that_is_there():
    session = refused("incarnation_too_low", 90)
    assert session.may_join_above(clock=89)


@pytest.mark.parametrize(
    ("session", "clock"),
    [
        (refused("incarnation_too_low", 90), 90),
        (refused("incarnation_too_low", 90, read_ms=8_000), 10),
        (refused("incarnation_too_low", INT64_MAX), 10),
        (refused("stale_incarnation", 90), 10),
        (joined(), 10),
    ],
    ids=["the_other_began_later", "the_lease_has_lapsed", "no_number_is_above", "it_had_joined", "it_was_not_refused"],
)
def test_process_may_not_join_above_the_incarnation_that_is_there(session: MemberSession, clock: int):
    assert not session.may_join_above(clock)


def test_late_join_that_is_refused_after_the_lease_has_lapsed_says_that_another_process_joined():
    session = refused("incarnation_too_low", 90, read_ms=8_000)
    assert (session.ended, session.end_cause, session.is_ousted) == (End.LEASE_LAPSED, "incarnation_too_low", True)


def test_rejection_of_another_member_or_without_consequence_ends_nothing():
    session = joined()
    session.receive(record(1, EventRejected(kind=1, code="unknown_member", member_id="m1", incarnation=6)), 0)
    session.receive(record(2, EventRejected(kind=1, code="not_revoking", member_id="m1", incarnation=7)), 0)
    assert session.ended is None


def test_announced_leave_ends_with_the_release_and_member_left():
    session = running()
    session.intend_leave()
    session.intend_leave()
    assert session.poll(10) == [LeaveIntended(member_id="m1", incarnation=7)]
    assert reports(session, 3_000)[0].leaving
    session.receive(record(2, assigned(2, (), revoke=(STATELESS,))), 3_100)
    session.task_closed(STATELESS, 3_200)
    assert session.poll(3_200) == [TasksRevoked(member_id="m1", incarnation=7, assignment_epoch=2, tasks=(STATELESS,))]
    session.receive(record(3, assigned(3, (), revoke=(STATELESS,))), 3_250)
    assert session.poll(3_250) == []  # sent already, and every report repeats it
    session.receive(record(4, assigned(4, (), released=True)), 3_300)
    assert session.ended is End.RELEASED
    assert session.poll(3_300) == [MemberLeft(member_id="m1", incarnation=7)]
    assert session.poll(3_301) == []


def test_leave_can_be_cancelled_until_release():
    session = running()
    session.intend_leave()
    session.cancel_leave()
    assert session.poll(10) == [LeaveIntended(member_id="m1", incarnation=7), LeaveCancelled(member_id="m1", incarnation=7)]
    assert session.may_process(STATELESS, 10)
    session.receive(record(2, EventRejected(kind=1, code="already_released", member_id="m1", incarnation=7)), 20)
    assert session.ended is None  # a task still closes
    session.task_closed(STATELESS, 30)
    assert session.ended is End.LEFT
    assert session.poll(30)[-1] == MemberLeft(member_id="m1", incarnation=7)


def restarting(back_within_ms: int | None = None, *, wait_turn: bool = True) -> RestartIntended:
    return RestartIntended(member_id="m1", incarnation=7, back_within_ms=back_within_ms, wait_turn=wait_turn)


def test_restart_is_said_at_once_and_with_each_report():
    session = running()
    reports(session, 3_000)
    session.intend_restart(3_100, back_within_ms=5_000, wait_turn=False)
    for now_ms in (3_100, 6_100):
        assert session.next_poll_ms == now_ms
        said, report = session.poll(now_ms)
        assert said == restarting(5_000, wait_turn=False)
        assert isinstance(report, LagReported)
        assert not report.leaving
        assert session.poll(now_ms + 1) == []
    session.intend_restart(6_200)
    assert session.poll(6_200)[0] == restarting()


def test_restart_does_not_postpone_a_report_that_is_due_sooner():
    session = running()
    due_ms = session.next_report_ms
    session.intend_restart(due_ms + 100)
    assert session.next_report_ms == due_ms


def test_released_member_that_restarts_stops_its_tasks_and_leaves():
    session = running()
    session.intend_restart(10, back_within_ms=5_000)
    session.poll(10)
    session.receive(record(2, assigned(2, (STATELESS,), released=True)), 20)
    assert session.refusal(STATELESS, 20) == "closing"
    assert session.ended is None
    session.task_closed(STATELESS, 30)
    assert session.ended is End.LEFT
    assert session.poll(30) == [MemberLeft(member_id="m1", incarnation=7)]


def test_restart_can_be_cancelled_or_become_a_leave_and_back():
    session = running()
    session.intend_restart(10)
    session.cancel_leave()
    assert session.restart is None
    assert session.poll(10)[0] == LeaveCancelled(member_id="m1", incarnation=7)
    session.intend_restart(20)
    session.intend_leave()
    assert session.leaving
    assert session.restart is None
    assert [type(fact) for fact in session.poll(20)] == [LeaveIntended, LagReported]
    session.intend_restart(30)
    assert not session.leaving
    assert session.poll(30)[0] == restarting()


def test_session_that_has_ended_does_not_restart():
    session = running()
    session.log_replaced(10)
    session.intend_restart(10)
    assert session.restart is None


def test_closing_stops_all_tasks_before_member_left():
    session = running()
    session.close(10)
    assert session.refusal(STATELESS, 10) == "closing"
    assert session.poll(10) == []
    session.receive(record(2, assigned(2, (OTHER,))), 11)
    assert session.refusal(OTHER, 11) == "not_granted"
    session.task_closed(STATELESS, 20)
    assert session.ended is End.LEFT
    assert session.poll(20) == [MemberLeft(member_id="m1", incarnation=7)]


# State as bytes


def _moments() -> list[MemberSession]:
    bare = MemberSession(settings())
    busy = running(STATEFUL)
    busy.copy_progress(OTHER, LagSentinel.UNKNOWN, 5)
    busy.receive(record(2, assigned(2, (STATELESS,), tokens=(3,), revoke=(STATEFUL,), standby=(OTHER,), hold_ms={STATELESS: 70})), 10)
    busy.copy_progress(OTHER, 3, 15)
    busy.intend_leave()
    told = running()
    reports(told, 3_000)
    told.heartbeat_acknowledged(sent_ms=3_000, now_ms=3_001, report_number=0)
    ended = running()
    ended.close(4)
    ended.task_closed(STATELESS, 5)
    return [bare, busy, told, ended]


@pytest.mark.parametrize("moment", range(4))
def test_restored_session_equals_and_continues_the_original(moment: int):
    original = _moments()[moment]
    restored = restore(MemberSession, original.settings, snapshot(original))
    assert snapshot(restored) == snapshot(original)
    for session in (original, restored):
        if session.joined and session.ended is None:
            session.receive(record(session.next_number, assigned(9, (OTHER,), tokens=(9,))), 3_500)
    assert restored.poll(7_000) == original.poll(7_000)
    assert snapshot(restored) == snapshot(original)


# Assignments in parts (L8)


def test_assignment_in_parts_is_applied_at_its_last_part():
    session = running()
    parts = split(assigned(2, (STATEFUL, OTHER), standby=(TaskId(0, 7),), revoke=(STATELESS,), hold_ms={OTHER: 500}), 20)
    assert len(parts) == 4
    for number, part in enumerate(parts[:-1], 2):
        assert session.receive(record(number, part), 10) is Reception.APPLIED
        assert session.assignment_epoch == 1
        assert session.may_process(STATELESS, 10)
    session = restore(MemberSession, session.settings, snapshot(session))
    session.receive(record(5, parts[-1]), 20)
    assert session.assignment_epoch == 2
    assert session.closing == {STATELESS}
    assert session.standby == {TaskId(0, 7)}
    assert {task: grant.start_ms for task, grant in session.grants.items()} == {STATEFUL: 20, OTHER: 520}  # from reading the last part


def test_parts_for_another_incarnation_are_ignored():
    session = running()
    for number, part in enumerate(split(assigned(2, (STATEFUL, OTHER), incarnation=6), 15), 2):
        assert session.receive(record(number, part), 10) is Reception.APPLIED
    assert session.next_number == 4
    assert session.assignment_epoch == 1


def test_part_read_again_after_a_gap_counts_once():
    session = running()
    first, last = split(assigned(2, (STATEFUL, OTHER)), 15)
    session.receive(record(2, first), 10)
    assert session.receive(record(2, first), 11) is Reception.DROPPED
    assert session.receive(record(4, last), 12) is Reception.GAP
    session.receive(record(3, last), 13)
    assert list(session.grants) == [STATEFUL, OTHER]


# Reports in parts (L8)


class Terse(MemberSession):
    most_event_bytes = 110


def test_report_that_does_not_fit_has_assigned_copies_first_and_the_rest_follows():
    session = joined(session_class=Terse)
    session.receive(record(1, assigned(1, (), standby=(TaskId(0, 8),), warmup=(TaskId(0, 9),))), 0)
    for partition in range(20):
        session.copy_progress(TaskId(0, partition), 5_000 + partition, 0)
    sent: list[Any] = session.poll(3_000)
    (first,) = sent
    assert (first.base, list(first.lags)) == (None, [TaskId(0, 0), TaskId(0, 8), TaskId(0, 9)])
    assert session.next_poll_ms == 6_000  # it has not arrived yet
    assert not session.has_more_to_report
    heard = dict(first.lags)
    now_ms = 3_100
    while True:
        session = restore(Terse, session.settings, snapshot(session))
        session.heartbeat_acknowledged(sent_ms=3_000, now_ms=now_ms, report_number=sent[-1].number)
        if not session.has_more_to_report:
            break
        report: Any
        (report,) = session.poll(now_ms)
        assert report.base == sent[-1].number
        assert heard.keys().isdisjoint(report.lags)
        heard.update(report.lags)
        sent.append(report)
        now_ms += 100
    assert heard == {TaskId(0, partition): 5_000 + partition for partition in range(20)}
    assert len(sent) == 4
    session.copy_dropped(TaskId(0, 3))
    (report,) = session.poll(session.next_report_ms)
    assert (report.lags, report.forgotten) == ({}, (TaskId(0, 3),))


def test_report_after_an_unacknowledged_part_is_full():
    session = joined(session_class=Terse)
    for partition in range(20):
        session.copy_progress(TaskId(0, partition), 5_000, 0)
    first: Any
    second: Any
    (first,), (second,) = session.poll(3_000), session.poll(6_000)
    assert (second.number, second.base, second.lags) == (first.number + 1, None, first.lags)


def test_released_and_ready_tasks_are_split_over_several_facts():
    session = joined(session_class=Terse)
    tasks = tuple(TaskId(1, partition) for partition in range(4))
    session.receive(record(1, assigned(1, tasks)), 0)
    session.receive(record(2, assigned(2, revoke=tasks)), 0)
    for task in tasks:
        session.task_closed(task, 5)
    sent = [fact for fact in session.poll(10) if isinstance(fact, TasksRevoked)]
    assert [task for fact in sent for task in fact.tasks] == list(tasks)
    assert len(sent) == 4


def test_join_says_the_members_topology():
    part = Subtopology(subtopology=0, partitions=2, stateful=True, source_topics=("in",), changelog_topics=("log",))
    session = MemberSession(settings(subtopologies=(part,)))
    session.reader_placed(log_id="log", last_number=0, sent_ms=0, answered_ms=0)
    assert session.join(0).subtopologies == (part,)
