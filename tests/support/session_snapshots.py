"""A member's session as bytes and back, by which searches and scenarios copy and compare sessions.
Hosts store none: an incarnation ends with its process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

import attrs

from equipoise.events import codec
from equipoise.events.decisions import MemberAssignedPart
from equipoise.events.facts import LagReported, LeaveCancelled, LeaveIntended, Load, MemberLeft, RestartIntended
from equipoise.events.tasks import PARSED_TASKS, Lag, LagSentinel, TaskId
from equipoise.statemachine.member import End, Grant, MemberSession, MemberSettings
from equipoise.statemachine.session_state import Word

S = TypeVar("S", bound=MemberSession)
_WORDS: dict[str, type[Word]] = {word.__name__: word for word in (LeaveIntended, LeaveCancelled, MemberLeft)}


def snapshot(session: MemberSession) -> bytes:
    """Canonical bytes of everything but the settings: equal states have equal bytes."""
    return json.dumps(_state(session), sort_keys=True, separators=(",", ":")).encode()


def restore(kind: type[S], settings: MemberSettings, stored: bytes) -> S:
    """The session that continues from its `snapshot`, with the same settings."""
    state: dict[str, Any] = json.loads(stored)
    session = kind(settings)
    session.ended = None if state["ended"] is None else End(state["ended"])
    session.end_cause = state["end_cause"]
    session.end_numbers = tuple(state["end_numbers"])
    session.newest_incarnation = state["newest_incarnation"]
    session.assignment_epoch = state["epoch"]
    session.grants = {PARSED_TASKS[task]: Grant(*grant) for task, grant in state["grants"]}
    session.unknown = frozenset(_tasks(state["unknown"]))
    session.standby = frozenset(_tasks(state["standby"]))
    session.warmup = frozenset(_tasks(state["warmup"]))
    session.acceptable_recovery_lag, session.acceptable_recovery_ms = state["acceptable"]
    session.closing = set(_tasks(state["closing"]))
    session.leaving, session.asked, session.stopping = state["leaving"], state["asked"], state["stopping"]
    session.restart = None if state["restart"] is None else cast(RestartIntended, codec.from_json(state["restart"]))
    session.join_from_ms = state["join_from_ms"]
    session._log_id, session._doubtful_since_ms = state["log_id"], state["doubtful_since_ms"]
    session._joined, session._last_number, session._gap = state["joined"], state["last_number"], state["gap"]
    session._heartbeat_ms, session._fetch_ms = state["heartbeat_ms"], state["fetch_ms"]
    session._lags = _lags(state["lags"])
    session._ready = set(_tasks(state["ready"]))
    session._prepared = set(_tasks(state["prepared"]))
    session._preparing = {PARSED_TASKS[task]: done for task, done in state["preparing"]}
    session._failed = frozenset(_tasks(state["failed"]))
    session._load = None if state["load"] is None else _load(state["load"])
    session._urgent = [_WORDS[word] for word in state["urgent"]]
    session._newly_ready, session._given_up = _tasks(state["newly_ready"]), _tasks(state["given_up"])
    session._next_report_ms, session._report_number = state["next_report_ms"], state["report_number"]
    session._reported = None if state["reported"] is None else _lags(state["reported"])
    session._report_known = state["report_known"]
    session._more_to_report = state["more_to_report"]
    session._told = None if state["told"] is None else cast(LagReported, codec.from_json(state["told"]))
    session._said_ms, session._keepalive_due_ms = state["said_ms"], state["keepalive_due_ms"]
    session._parts = [cast(MemberAssignedPart, codec.from_json(part)) for part in state["parts"]]
    return session


def _state(session: MemberSession) -> dict[str, Any]:
    return {
        "ended": None if session.ended is None else session.ended.value,
        "end_cause": session.end_cause,
        "end_numbers": list(session.end_numbers),
        "newest_incarnation": session.newest_incarnation,
        "epoch": session.assignment_epoch,
        "grants": [[str(task), [grant.token, grant.start_ms, grant.restored]] for task, grant in sorted(session.grants.items())],
        "unknown": _texts(session.unknown),
        "standby": _texts(session.standby),
        "warmup": _texts(session.warmup),
        "acceptable": [session.acceptable_recovery_lag, session.acceptable_recovery_ms],
        "closing": _texts(session.closing),
        "leaving": session.leaving,
        "restart": None if session.restart is None else codec.to_json(session.restart),
        "asked": session.asked,
        "stopping": session.stopping,
        "join_from_ms": session.join_from_ms,
        "log_id": session._log_id,
        "doubtful_since_ms": session._doubtful_since_ms,
        "joined": session._joined,
        "last_number": session._last_number,
        "gap": session._gap,
        "heartbeat_ms": session._heartbeat_ms,
        "fetch_ms": session._fetch_ms,
        "lags": _lag_texts(session._lags),
        "ready": _texts(session._ready),
        "prepared": _texts(session._prepared),
        "preparing": [[str(task), done] for task, done in sorted(session._preparing.items())],
        "failed": _texts(session._failed),
        "load": None if session._load is None else _load_texts(session._load),
        "urgent": [word.__name__ for word in session._urgent],
        "newly_ready": _texts(session._newly_ready),
        "given_up": _texts(session._given_up),
        "next_report_ms": session._next_report_ms,
        "report_number": session._report_number,
        "reported": None if session._reported is None else _lag_texts(session._reported),
        "report_known": session._report_known,
        "more_to_report": session._more_to_report,
        "told": None if session._told is None else codec.to_json(session._told),
        "said_ms": session._said_ms,
        "keepalive_due_ms": session._keepalive_due_ms,
        "parts": [codec.to_json(part) for part in session._parts],
    }


def _texts(tasks: Iterable[TaskId]) -> list[str]:
    return [str(task) for task in sorted(tasks)]


def _tasks(texts: Iterable[str]) -> list[TaskId]:
    return [PARSED_TASKS[text] for text in texts]


def _lag_texts(lags: Mapping[TaskId, Lag]) -> list[list[Any]]:
    return [[str(task), lag.value if isinstance(lag, LagSentinel) else lag] for task, lag in sorted(lags.items())]


def _lags(texts: Iterable[list[Any]]) -> dict[TaskId, Lag]:
    return {PARSED_TASKS[task]: lag if isinstance(lag, int) else LagSentinel(lag) for task, lag in texts}


def _load_texts(load: Load) -> dict[str, Any]:
    """Field -> share or rate, or task -> number."""
    texts: dict[str, Any] = {}
    for field in attrs.fields(Load):
        value = getattr(load, field.name)
        texts[field.name] = {str(task): number for task, number in value.items()} if isinstance(value, dict) else value
    return texts


def _load(texts: Mapping[str, Any]) -> Load:
    values: dict[str, Any] = {}
    for name, value in texts.items():
        values[name] = {PARSED_TASKS[task]: number for task, number in value.items()} if isinstance(value, dict) else value
    return Load(**values)
