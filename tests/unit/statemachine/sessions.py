"""Sessions of a member and the decisions that they read, for tests of the member's side."""

from __future__ import annotations

from typing import Any

from equipoise.events.decisions import EventRejected, MemberAssigned
from equipoise.events.facts import LagReported
from equipoise.events.records import DecisionRecord
from equipoise.events.tasks import TaskId
from equipoise.statemachine.member import MemberSession, MemberSettings, Reception

STATEFUL = TaskId(0, 0)
OTHER = TaskId(0, 1)
STATELESS = TaskId(1, 0)
LEASE_MS = 8_000


def settings(**changes: Any) -> MemberSettings:
    base: dict[str, Any] = {
        "member_id": "m1",
        "incarnation": 7,
        "session_timeout_ms": 10_000,
        "lease_margin_ms": 2_000,
        "join_nonce": "n",
        "ready_lag_records": 100,
        "stateful_subtopologies": frozenset({0}),
    }
    return MemberSettings(**{**base, **changes})


def joined(at_ms: int = 0, session_class: type[MemberSession] = MemberSession, **changes: Any) -> MemberSession:
    session = session_class(settings(**changes))
    session.reader_placed(log_id="log", last_number=0, sent_ms=at_ms, answered_ms=at_ms)
    session.join(at_ms)
    return session


def record(number: int, decision: Any) -> DecisionRecord:
    return DecisionRecord("log", "g", number, number, 0, 0, decision)


def assigned(epoch: int, active: tuple[TaskId, ...] = (), **fields: Any) -> MemberAssigned:
    tokens = fields.pop("tokens", tuple(1 for _ in active))
    return MemberAssigned(member_id="m1", incarnation=fields.pop("incarnation", 7), assignment_epoch=epoch, active=active, tokens=tokens, **fields)


def renew(session: MemberSession, sent_ms: int, now_ms: int) -> None:
    session.heartbeat_acknowledged(sent_ms=sent_ms, now_ms=now_ms)
    session.fetch_completed(sent_ms=sent_ms, reached_end=True, now_ms=now_ms)


def running(task: TaskId = STATELESS, session_class: type[MemberSession] = MemberSession) -> MemberSession:
    session = joined(session_class=session_class)
    assert session.receive(record(1, assigned(1, (task,))), 0) is Reception.APPLIED
    session.copy_progress(task, 0, 0)
    assert session.may_process(task, 0)
    return session


def reports(session: MemberSession, now_ms: int) -> list[LagReported]:
    return [fact for fact in session.poll(now_ms) if isinstance(fact, LagReported)]


def refused(code: str, newest: int, *, read_ms: int = 0) -> MemberSession:
    """A session of incarnation 7 that joined at 0 and reads a rejection that names the newest
    incarnation.
    """
    session = joined()
    session.receive(record(1, EventRejected(kind=1, code=code, member_id="m1", incarnation=7, numbers=(7, newest))), read_ms)
    return session
