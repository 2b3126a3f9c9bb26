"""What a member at rest says, and how seldom (docs/protocol.md#m2, #m4)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from equipoise.events.codec import kind_of
from equipoise.events.decisions import EventRejected
from equipoise.events.facts import Fact, LagReported, Load, MemberUnchanged
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.member import SMALL_RATE, MemberSession, differs
from tests.support.session_snapshots import restore, snapshot
from tests.unit.statemachine.sessions import OTHER, STATEFUL, assigned, joined, record

LEFT_OVER = TaskId(0, 7)
REST_MS = 20_000
HEARTBEAT_MS = 3_000
UNCHANGED = MemberUnchanged(member_id="m1", incarnation=7, report=0)
LOAD = Load(cpu=0.5, memory=0.25, tasks={STATEFUL: 1_000}, behind={STATEFUL: 200}, busy={STATEFUL: 400_000})


def resting(**changes: Any) -> tuple[MemberSession, int]:
    """A member that runs a task and keeps a standby, after its first report, and when its next fact
    is due.
    """
    settings = {"keepalive_interval_ms": REST_MS, "session_timeout_ms": 45_000, "lease_margin_ms": 3_000, **changes}
    session = joined(**settings)
    session.receive(record(1, assigned(1, (STATEFUL,), standby=(OTHER,))), 0)
    for task, lag in ((STATEFUL, 0), (OTHER, 40), (LEFT_OVER, 5_000)):
        session.copy_progress(task, lag, 0)
    session.load_measured(LOAD)
    (report,) = session.poll(HEARTBEAT_MS)
    assert isinstance(report, LagReported)
    acknowledge(session, HEARTBEAT_MS, report)
    return session, session._keepalive_due_ms


def acknowledge(session: MemberSession, sent_ms: int, fact: Fact) -> None:
    session.heartbeat_acknowledged(sent_ms=sent_ms, now_ms=sent_ms, report_number=fact.number if isinstance(fact, LagReported) else None)
    session.fetch_completed(sent_ms=sent_ms, reached_end=True, now_ms=sent_ms)


def said(session: MemberSession, from_ms: int, to_ms: int) -> list[tuple[int, Fact]]:
    """What it says in this time, when it is asked as it wants to be, and the broker has it at once."""
    facts: list[tuple[int, Fact]] = []
    now_ms = from_ms
    while now_ms <= to_ms:
        for fact in session.poll(now_ms):
            facts.append((now_ms, fact))
            acknowledge(session, now_ms, fact)
        session.fetch_completed(sent_ms=now_ms, reached_end=True, now_ms=now_ms)
        due_ms = session.next_poll_ms
        assert due_ms is not None
        assert now_ms < due_ms <= now_ms + HEARTBEAT_MS, "it looks for news at each heartbeat"
        now_ms = due_ms
    return facts


def test_member_at_rest_says_only_at_its_interval_that_nothing_changed():
    session, due_ms = resting()
    assert HEARTBEAT_MS * 2 <= due_ms <= HEARTBEAT_MS + REST_MS
    assert said(session, 2 * HEARTBEAT_MS, 80_000) == [(at_ms, UNCHANGED) for at_ms in range(due_ms, 80_001, REST_MS)]


def test_members_that_come_to_rest_together_do_not_speak_together():
    due = set()
    for number in range(20):
        session = joined(member_id=f"m{number}", keepalive_interval_ms=REST_MS, session_timeout_ms=45_000)
        (report,) = session.poll(HEARTBEAT_MS)
        acknowledge(session, HEARTBEAT_MS, report)
        due.add(session._keepalive_due_ms)
    ordered = sorted(due)
    assert len(ordered) >= 18
    assert (ordered[0] >= 2 * HEARTBEAT_MS, ordered[-1] <= HEARTBEAT_MS + REST_MS, ordered[-1] - ordered[0] > REST_MS // 2) == (True, True, True)


def _epoch(session: MemberSession) -> None:
    session.receive(record(2, assigned(2, (STATEFUL,), standby=(OTHER,))), 4_000)


def _reading_rejection(session: MemberSession) -> None:
    rejected = EventRejected(kind=kind_of(LagReported), code="held_not_granted", member_id="m1", incarnation=7, numbers=(0, 0))
    session.receive(record(2, rejected), 4_000)


NEWS: dict[str, Callable[[MemberSession], None]] = {
    "another assignment": _epoch,
    "a copy that restores": lambda session: session.copy_progress(OTHER, 101, 4_000),
    "an unknown lag": lambda session: session.copy_progress(OTHER, LagSentinel.UNKNOWN, 4_000),
    "a new copy": lambda session: session.copy_progress(TaskId(0, 8), 0, 4_000),
    "a copy that is gone": lambda session: session.copy_dropped(LEFT_OVER),
    "it leaves": lambda session: setattr(session, "leaving", True),
    "it restarts": lambda session: session.intend_restart(4_000),
    "a task that closes": lambda session: session.closing.add(OTHER),
    "a task being prepared": lambda session: session.note_preparing({OTHER: 5}, ()),
    "a preparation that failed": lambda session: session.note_preparing({}, (OTHER,)),
    "a source lag of another task": lambda session: session.load_measured(Load(behind={STATEFUL: 200, OTHER: 1})),
    "no load": lambda session: session.load_measured(None),
    "a refused report": _reading_rejection,
}


@pytest.mark.parametrize("what", sorted(NEWS))
def test_news_is_reported_at_the_next_heartbeat(what: str):
    session, _ = resting()
    NEWS[what](session)
    facts = session.poll(2 * HEARTBEAT_MS)
    assert [fact.number for fact in facts if isinstance(fact, LagReported)] == [1]
    assert not any(isinstance(fact, MemberUnchanged) for fact in facts)


def test_member_with_a_warm_up_reports_at_each_heartbeat():
    session = joined(keepalive_interval_ms=REST_MS, session_timeout_ms=45_000)
    session.receive(record(1, assigned(1, (), warmup=(OTHER,))), 0)
    session.copy_progress(OTHER, 5_000, 0)
    facts = said(session, HEARTBEAT_MS, 10 * HEARTBEAT_MS)
    assert [(at_ms, fact.number) for at_ms, fact in facts if isinstance(fact, LagReported)] == [(n * HEARTBEAT_MS, n - 1) for n in range(1, 11)]


def test_member_that_restores_what_it_runs_reports_at_each_heartbeat():
    session = joined(keepalive_interval_ms=REST_MS, session_timeout_ms=45_000)
    session.receive(record(1, assigned(1, (STATEFUL,))), 0)
    session.copy_progress(STATEFUL, 5_000, 0)
    assert len(said(session, HEARTBEAT_MS, 5 * HEARTBEAT_MS)) == 5
    session.copy_progress(STATEFUL, 0, 5 * HEARTBEAT_MS)
    assert len(said(session, 6 * HEARTBEAT_MS, 6 * HEARTBEAT_MS)) == 1  # that it runs now


def test_standby_that_restores_reports_at_each_heartbeat():
    session, _ = resting()
    for beat, lag in enumerate((5_000, 4_000, 3_000), start=2):
        session.copy_progress(OTHER, lag, beat * HEARTBEAT_MS - 1)
        (report,) = session.poll(beat * HEARTBEAT_MS)
        assert isinstance(report, LagReported)
        assert report.lags[OTHER] == lag
        acknowledge(session, beat * HEARTBEAT_MS, report)


LATER: dict[str, Callable[[MemberSession], None]] = {
    "a standby within the limit": lambda session: session.copy_progress(OTHER, 100, 4_000),
    "a copy that nobody wants": lambda session: session.copy_progress(LEFT_OVER, 9_000, 4_000),
    "a busier host": lambda session: session.load_measured(Load(cpu=0.53, memory=0.25, tasks=LOAD.tasks, behind=LOAD.behind, busy=LOAD.busy)),
    "a busier task": lambda session: session.load_measured(Load(cpu=0.5, memory=0.25, tasks={STATEFUL: 1_112}, behind=LOAD.behind, busy=LOAD.busy)),
    "a longer source": lambda session: session.load_measured(Load(cpu=0.5, memory=0.25, tasks=LOAD.tasks, behind={STATEFUL: 223}, busy=LOAD.busy)),
    "a task that is measured": lambda session: session.load_measured(
        Load(cpu=0.5, memory=0.25, tasks=LOAD.tasks, behind=LOAD.behind, busy={**LOAD.busy, OTHER: 11})
    ),
}


@pytest.mark.parametrize("what", sorted(LATER))
def test_what_can_wait_is_reported_with_the_next_fact_that_is_due(what: str):
    session, due_ms = resting()
    LATER[what](session)
    facts = said(session, 2 * HEARTBEAT_MS, due_ms + REST_MS)
    assert [(at_ms, type(fact), getattr(fact, "base", None)) for at_ms, fact in facts] == [
        (due_ms, LagReported, 0),
        (due_ms + REST_MS, MemberUnchanged, None),
    ]
    assert facts[-1][1] == MemberUnchanged(member_id="m1", incarnation=7, report=1)


def test_load_that_differs_a_little_is_no_news():
    session, due_ms = resting()
    session.load_measured(Load(cpu=0.51, memory=0.24, tasks={STATEFUL: 1_100}, behind={STATEFUL: 210}, busy={STATEFUL: 440_000}))
    assert said(session, 2 * HEARTBEAT_MS, due_ms) == [(due_ms, UNCHANGED)]


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (Load(cpu=0.02), Load(), False),
        (Load(cpu=0.021), Load(), True),
        (Load(records_per_s=1_000), Load(records_per_s=900), False),
        (Load(records_per_s=1_000), Load(records_per_s=899), True),
        (Load(records_per_s=SMALL_RATE), Load(), False),
        (Load(records_per_s=SMALL_RATE + 1), Load(), True),
        (Load(), Load(tasks={OTHER: SMALL_RATE + 1}), True),
        (Load(), Load(tasks={OTHER: SMALL_RATE}), False),
    ],
)
def test_load_differs_from_a_limit_on(now: Load, before: Load, expected: bool):
    assert differs(now, before) is expected


def test_first_fact_of_a_member_at_rest_is_due_by_its_name():
    session = joined(keepalive_interval_ms=REST_MS, session_timeout_ms=45_000)
    span_ms = REST_MS - HEARTBEAT_MS + 1
    assert session._first_keepalive_ms(REST_MS) == HEARTBEAT_MS + zlib.crc32(b"m1 7") % span_ms
    names = [f"m{number}" for number in range(8)]
    assert {zlib.crc32(f"{name} 7".encode()) % 2 for name in names} == {0, 1}
    for name in names:
        assert joined(member_id=name)._first_keepalive_ms(HEARTBEAT_MS) == HEARTBEAT_MS


def test_member_that_closes_tasks_reports_at_each_heartbeat():
    session, _ = resting()
    session.closing.add(OTHER)
    for beat in range(2, 6):
        (report,) = session.poll(beat * HEARTBEAT_MS)
        assert isinstance(report, LagReported)
        acknowledge(session, beat * HEARTBEAT_MS, report)


def test_heartbeat_acknowledged_without_its_report_is_followed_by_the_report():
    """The brokers have answered a later fact, and nobody knows whether the report arrived."""
    session, _ = resting()
    session.copy_progress(OTHER, 500, 4_000)
    (delta,) = session.poll(2 * HEARTBEAT_MS)
    assert isinstance(delta, LagReported)
    session.heartbeat_acknowledged(sent_ms=2 * HEARTBEAT_MS, now_ms=2 * HEARTBEAT_MS)
    (full,) = session.poll(3 * HEARTBEAT_MS)
    assert isinstance(full, LagReported)
    assert full.base is None


def test_fact_that_is_not_acknowledged_is_repeated_at_the_next_heartbeat():
    session, due_ms = resting()
    assert said(session, 2 * HEARTBEAT_MS, due_ms - 1) == []
    for turn in range(3):
        assert session.poll(due_ms + turn * HEARTBEAT_MS) == [UNCHANGED]
        session.fetch_completed(sent_ms=due_ms + turn * HEARTBEAT_MS, reached_end=True, now_ms=due_ms + turn * HEARTBEAT_MS)
    session.heartbeat_acknowledged(sent_ms=due_ms + 2 * HEARTBEAT_MS, now_ms=due_ms + 2 * HEARTBEAT_MS + 5)
    assert session.poll(due_ms + 3 * HEARTBEAT_MS) == []


def test_report_that_is_not_acknowledged_is_sent_in_full():
    session, _ = resting()
    session.copy_progress(OTHER, 500, 4_000)
    (delta,) = session.poll(2 * HEARTBEAT_MS)
    session.copy_progress(OTHER, 40, 7_000)  # as the last known report has it
    (full,) = session.poll(3 * HEARTBEAT_MS)
    assert isinstance(delta, LagReported)
    assert isinstance(full, LagReported)
    assert (delta.base, full.base, full.lags) == (0, None, {STATEFUL: LagSentinel.ACTIVE, OTHER: 40, LEFT_OVER: 5_000})


def test_unchanged_that_names_another_report_than_the_leader_has_is_followed_by_a_full_one():
    session, due_ms = resting()
    assert said(session, 2 * HEARTBEAT_MS, due_ms) == [(due_ms, UNCHANGED)]
    rejected = EventRejected(kind=kind_of(MemberUnchanged), code="report_base_unknown", member_id="m1", incarnation=7, numbers=(0, -1))
    session.receive(record(2, rejected), due_ms + 10)
    (full,) = session.poll(due_ms + 10)
    assert isinstance(full, LagReported)
    assert (full.base, len(full.lags)) == (None, 3)


def test_lease_of_a_member_at_rest_outlasts_brokers_that_are_away():
    """The worst moment: the brokers go away just before its fact is due."""
    session, due_ms = resting()
    said(session, 2 * HEARTBEAT_MS, due_ms)
    last_ms, away_ms = due_ms, due_ms + REST_MS
    assert session.lease_ends_ms == last_ms + 42_000
    session.fetch_completed(sent_ms=away_ms - 1, reached_end=True, now_ms=away_ms - 1)
    assert session.poll(away_ms) == [UNCHANGED]
    assert session.lease_is_fresh(away_ms + 42_000 - REST_MS - 1)
    assert not session.lease_is_fresh(away_ms + 42_000 - REST_MS)


def test_brokers_that_do_not_answer_are_told_from_a_member_at_rest():
    session, due_ms = resting()
    session.fetch_completed(sent_ms=due_ms - 5, reached_end=True, now_ms=due_ms - 1)
    assert session.unanswered_ms(due_ms) <= HEARTBEAT_MS
    session.poll(due_ms)
    assert session.unanswered_ms(due_ms + 9_000) == 9_005
    session.fetch_completed(sent_ms=due_ms + 9_000, reached_end=True, now_ms=due_ms + 9_000)
    late_ms = HEARTBEAT_MS + REST_MS + 500
    assert session.unanswered_ms(late_ms) == max(late_ms - due_ms - 9_000, late_ms - HEARTBEAT_MS - (REST_MS - HEARTBEAT_MS))


@pytest.mark.parametrize("interval_ms", [None, HEARTBEAT_MS])
def test_without_rest_brokers_have_not_answered_since_the_last_heartbeat(interval_ms: int | None):
    session, _ = resting(keepalive_interval_ms=interval_ms)
    session.fetch_completed(sent_ms=9_000, reached_end=True, now_ms=9_000)
    assert session.unanswered_ms(10_000) == 10_000 - HEARTBEAT_MS


def test_session_without_the_interval_reports_at_each_heartbeat():
    session, _ = resting(keepalive_interval_ms=None)
    facts = said(session, 2 * HEARTBEAT_MS, 5 * HEARTBEAT_MS)
    assert [type(fact) for _, fact in facts] == [LagReported] * 4


def test_restored_session_goes_on_resting():
    session, due_ms = resting()
    again = restore(MemberSession, session.settings, snapshot(session))
    assert said(again, 2 * HEARTBEAT_MS, due_ms + REST_MS) == said(session, 2 * HEARTBEAT_MS, due_ms + REST_MS)
