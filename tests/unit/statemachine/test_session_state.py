"""A session as bytes: nothing that it remembers is lost, and equal sessions have equal bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from equipoise.events.decisions import MemberAssignedPart
from equipoise.events.errors import FieldError
from equipoise.events.facts import LagReported, LeaveCancelled, LeaveIntended, Load, MemberLeft, RestartIntended
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.statemachine.member import MemberSession
from equipoise.statemachine.session_state import End, Grant, MemberSettings
from tests.support.session_snapshots import restore, snapshot
from tests.unit.statemachine.sessions import assigned, settings

A, B, C = TaskId(0, 2), TaskId(0, 10), TaskId(1, 0)
"""In the order of tasks, which is not that of their texts."""
NEW: dict[str, Any] = {
    "ended": None,
    "end_cause": "",
    "end_numbers": (),
    "newest_incarnation": None,
    "assignment_epoch": 0,
    "grants": {},
    "unknown": frozenset(),
    "standby": frozenset(),
    "warmup": frozenset(),
    "acceptable_recovery_lag": None,
    "acceptable_recovery_ms": None,
    "closing": set(),
    "leaving": False,
    "restart": None,
    "asked": False,
    "stopping": False,
    "join_from_ms": 0,
    "_joined": False,
    "_log_id": "",
    "_doubtful_since_ms": None,
    "_last_number": None,
    "_gap": False,
    "_heartbeat_ms": 0,
    "_fetch_ms": 0,
    "_lags": {},
    "_ready": set(),
    "_prepared": set(),
    "_preparing": {},
    "_failed": frozenset(),
    "_load": None,
    "_urgent": [],
    "_newly_ready": [],
    "_given_up": [],
    "_next_report_ms": 0,
    "_report_number": -1,
    "_reported": None,
    "_report_known": False,
    "_more_to_report": False,
    "_told": None,
    "_said_ms": 0,
    "_keepalive_due_ms": 0,
    "_parts": [],
}
PART = MemberAssignedPart(member_id="m1", incarnation=7, part=1, parts=2, assigned=assigned(3, (A,)))
USED: dict[str, Any] = {
    "ended": End.EXPIRED,
    "end_cause": "session_timeout",
    "end_numbers": (1, 2),
    "newest_incarnation": 8,
    "assignment_epoch": 3,
    "grants": {B: Grant(4, 5, True), A: Grant(6, 7, False)},
    "unknown": frozenset({B, A}),
    "standby": frozenset({C, B}),
    "warmup": frozenset({C, A}),
    "acceptable_recovery_lag": 9,
    "acceptable_recovery_ms": 10,
    "closing": {A, B, C},
    "leaving": True,
    "restart": RestartIntended(member_id="m1", incarnation=1, back_within_ms=28, wait_turn=False),
    "asked": True,
    "stopping": True,
    "join_from_ms": 11,
    "_joined": True,
    "_log_id": "log",
    "_doubtful_since_ms": 12,
    "_last_number": 13,
    "_gap": True,
    "_heartbeat_ms": 14,
    "_fetch_ms": 15,
    "_lags": {C: LagSentinel.UNKNOWN, B: LagSentinel.ACTIVE, A: 16},
    "_ready": {B},
    "_prepared": {B, C},
    "_preparing": {B: 17, A: 18},
    "_failed": frozenset({C}),
    "_load": Load(
        cpu=0.5, memory=0.25, disk=0.125, records_per_s=19.0, restored_records_per_s=20.5, tasks={A: 21}, behind={B: 22, A: 23}, busy={C: 24}
    ),
    "_urgent": [LeaveCancelled, LeaveIntended, MemberLeft],
    "_newly_ready": [A, B],
    "_given_up": [B, C],
    "_next_report_ms": 25,
    "_report_number": 26,
    "_reported": {B: 27, A: LagSentinel.UNKNOWN},
    "_report_known": True,
    "_more_to_report": True,
    "_told": LagReported("m1", 7, 0, 3, (A,), load=Load(cpu=0.5)),
    "_said_ms": 20,
    "_keepalive_due_ms": 21,
    "_parts": [PART],
}


def used(**changes: Any) -> MemberSession:
    session = MemberSession(settings())
    vars(session).update({**USED, **changes})
    return session


def remembered(session: MemberSession) -> dict[str, Any]:
    return {name: value for name, value in vars(session).items() if name != "settings"}


def test_session_that_begins_remembers_nothing():
    assert remembered(MemberSession(settings())) == NEW
    assert {name for name in NEW if USED[name] == NEW[name]} == set(), "each value of the next tests is another one"


def test_restored_session_remembers_everything():
    for session in (used(), MemberSession(settings())):
        restored = restore(MemberSession, session.settings, snapshot(session))
        assert remembered(restored) == remembered(session)
        assert {name: type(value) for name, value in vars(restored).items()} == {name: type(value) for name, value in vars(session).items()}
        assert restored.settings is session.settings


def test_equal_sessions_have_equal_bytes():
    other = {name: dict(reversed(value.items())) if isinstance(value, dict) else value for name, value in USED.items()}
    backwards = used(**{**other, "closing": {C, B, A}, "_newly_ready": [B, A], "_given_up": [C, B]})
    assert (list(backwards.grants), snapshot(backwards)) == ([A, B], snapshot(used()))
    state = json.loads(snapshot(used()))
    assert (state["closing"], [task for task, _ in state["lags"]], state["newly_ready"]) == (["0_2", "0_10", "1_0"],) * 2 + (["0_2", "0_10"],)
    assert snapshot(used()).startswith(b'{"acceptable":[9,10],"asked":true,"closing":["0_2","0_10","1_0"],"doubtful_since_ms":12,')


def test_settings_have_the_documented_defaults_and_limits():
    bare = MemberSettings(member_id="m1", incarnation=0, join_nonce="n")
    assert (bare.capacity, bare.session_timeout_ms, bare.lease_margin_ms, bare.heartbeat_interval_ms) == (1, 30_000, 3_000, 3_000)
    assert settings(lease_margin_ms=9_999).lease_margin_ms == 9_999
    with pytest.raises(FieldError) as caught:
        settings(lease_margin_ms=10_000)
    assert str(caught.value) == "MemberSettings.lease_margin_ms: 10000 leaves nothing of session_timeout_ms 10000; lower it"


@pytest.mark.parametrize(("partitions", "known"), [(None, [A, B, C]), ({}, []), ({0: 3}, [A]), ({0: 2}, []), ({0: 11, 1: 1}, [A, B, C])])
def test_member_knows_the_tasks_of_its_topology(partitions: dict[int, int] | None, known: list[TaskId]):
    assert [task for task in (A, B, C) if settings(partitions=partitions).knows(task)] == known
