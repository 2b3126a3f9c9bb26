"""What a fact and its decisions mean for the group, one sentence each: who joined, expired or is
drained, what moves and why, by what the group is led. The worker's log consists of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from equipoise.events.decisions import (
    REACHED,
    AssignmentIssued,
    AssignmentProposed,
    BalanceEvaluated,
    ChangeJudged,
    Decision,
    EventRejected,
    MemberAsked,
    MemberAssigned,
    MemberExpired,
    MemberWarned,
    Move,
    RestartEnded,
    RestartPlanned,
    RoundPlanned,
)
from equipoise.events.facts import (
    ChangePlanned,
    Fact,
    GroupConfigured,
    LeaveCancelled,
    LeaveIntended,
    MemberJoined,
    MemberLeft,
    TaskParked,
    TopologyDeclared,
    TroublesReported,
)
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import ranges
from equipoise.replay.wording import (
    NOBODY,
    cause_text,
    counted,
    expiry_text,
    judged_text,
    planned_text,
    reason_text,
    restart_text,
    span_text,
    warning_text,
)
from equipoise.statemachine.rejections import rejection_text
from equipoise.statemachine.topologies import TOPOLOGY_DIFFERS

MOST_LINES = 20
"""Most sentences for the moves of one round; the others are counted."""
VALUES = (
    "group",
    "offset",
    "number",
    "kind",
    "member",
    "incarnation",
    "generation",
    "tasks",
    "source",
    "destination",
    "state",
    "reason",
    "lag_records",
    "led_by",
    "assignor",
)
"""Names of what a sentence says as codes and numbers (equipoise/schemas/worker.json)."""
_FINAL = {REACHED: "the target is reached", "blocked": "blocked"}
"""Verdict that the moves do not show -> text."""


@attrs.frozen
class Sentence:
    """`level`: of `logging`. `values`: what the sentence says as codes and numbers."""

    text: str
    values: Mapping[str, Any] = attrs.field(factory=dict)
    level: int = logging.INFO


def tell(record: FactRecord, decisions: Sequence[DecisionRecord]) -> Iterator[Sentence]:
    """The sentences of a fact with its own decisions, each with its place in the log. A rejected
    fact is not among them.
    """
    place = {**dict.fromkeys(VALUES), "group": record.group, "offset": record.offset}
    rejected = any(isinstance(each.decision, EventRejected) for each in decisions)
    if not rejected and (said := of_fact(record.event)) is not None:
        yield attrs.evolve(said, values={**place, "kind": type(record.event).__name__, **said.values})
    for each in decisions:
        for said in of_decision(each.decision, record.event):
            yield attrs.evolve(said, values={**place, "number": each.number, "kind": type(each.decision).__name__, **said.values})


TOLD_FACTS = frozenset(
    {MemberJoined, MemberLeft, LeaveIntended, LeaveCancelled, TaskParked, TroublesReported, TopologyDeclared, GroupConfigured, ChangePlanned}
)
"""Facts of which `of_fact` says something: of others there is only something to tell with their
decisions.
"""


def of_fact(fact: Fact) -> Sentence | None:
    """Returns what an accepted fact changes by itself; None: nothing, or its decisions say it."""
    match fact:
        case MemberJoined():
            # A proof that ends a former incarnation is told with its end. Others mean nothing to a
            # reader: a member whose first join is rejected, because the group is new, joins again
            # with a proof that it has stopped itself.
            return Sentence(f"{fact.member_id} joined, incarnation {fact.incarnation}", _member(fact))
        case MemberLeft():
            return Sentence(f"{fact.member_id} left", _member(fact))
        case LeaveIntended():
            return Sentence(f"{fact.member_id} wants to leave, and is drained first", _member(fact))
        case LeaveCancelled():
            return Sentence(f"{fact.member_id} stays after all", _member(fact))
        case TaskParked() if not fact.error:
            return Sentence(f"{fact.member_id} handles {fact.task} again", {**_member(fact), "tasks": [str(fact.task)]})
        case TaskParked():
            place = f" at {fact.topic}/{fact.partition} offset {fact.offset}" if fact.topic else ""
            values = {**_member(fact), "tasks": [str(fact.task)]}
            return Sentence(f"{fact.task} has failed on {fact.member_id}{place}: {fact.error}", values, logging.WARNING)
        case TroublesReported() if not fact.troubles:
            return Sentence(f"nothing outside holds up {fact.member_id} any more", _member(fact))
        case TroublesReported():
            return Sentence(f"{fact.member_id} is held up: {'; '.join(fact.troubles)}", _member(fact), logging.WARNING)
        case TopologyDeclared():
            tasks = sum(part.partitions for part in fact.subtopologies)
            return Sentence(f"topology epoch {fact.epoch}: {counted(tasks, 'task')}")
        case GroupConfigured():
            by = f"{fact.assignor}@{fact.behaviour_version}"
            return Sentence(f"configured: led by {fact.led_by}, assignor {by}", {"led_by": fact.led_by, "assignor": by})
        case ChangePlanned():
            return Sentence(f"change {fact.change_id}: {planned_text(fact)}")
    return None


def of_decision(decision: Decision, fact: Fact) -> Iterator[Sentence]:
    """Yields what a decision on `fact` means; nothing for the parts of an assignment, whose round
    says it.
    """
    match decision:
        case MemberExpired():
            waits = f"; who gets its tasks waits another {span_text(decision.hold_ms)}" if decision.hold_ms else ""
            text = f"{decision.member_id} expired, incarnation {decision.incarnation}: {expiry_text(decision.cause, decision.silent_ms)}{waits}"
            yield Sentence(text, {**_member(decision), "reason": decision.cause}, logging.WARNING)
        case AssignmentIssued():
            part = f" (part {decision.part} of {decision.parts})" if decision.parts > 1 else ""
            values: dict[str, Any] = {"generation": decision.generation}
            yield Sentence(f"round {decision.generation}{part}, because {cause_text(decision.cause)}", {**values, "reason": decision.cause})
            yield from _of_moves(f"round {decision.generation}", decision.moves, values)
        case AssignmentProposed():
            yield Sentence(f"generation {decision.generation} of its own leader; equipoise would decide:", {"generation": decision.generation})
            yield from _of_moves(f"generation {decision.generation}", decision.moves, {"generation": decision.generation})
        case RoundPlanned():
            part = f" (part {decision.part} of {decision.parts})" if decision.parts > 1 else ""
            values = {"generation": decision.generation}
            then = "" if decision.follow_up_ms is None else f"; the next one is wanted after {span_text(decision.follow_up_ms)}"
            yield Sentence(f"round {decision.generation}{part}, which the group carries out{then}", values)
            yield from _of_moves(f"round {decision.generation}", decision.moves, values)
        case MemberAssigned(released=True):
            end = "what it still runs waits for it" if decision.active else "it runs nothing any more"
            yield Sentence(f"{decision.member_id} may go: {end}", _member(decision))
        case MemberAsked():
            yield Sentence(f"{decision.member_id} {'was asked to leave' if decision.leave else 'need not leave any more'}", _member(decision))
        case RestartPlanned():
            yield Sentence(f"{decision.member_id} restarts: {restart_text(decision)}", {**_member(decision), "state": decision.choice})
        case RestartEnded():
            yield Sentence(
                f"{decision.member_id} {_ENDS[decision.outcome].format(span_text(decision.away_ms))}",
                {**_member(decision), "state": decision.outcome},
            )
        case ChangeJudged():
            level = logging.WARNING if decision.above else logging.INFO
            yield Sentence(f"change {decision.change_id} {judged_text(decision)}", {"state": decision.outcome}, level)
        case MemberWarned():
            yield Sentence(f"{decision.member_id}: {warning_text(decision)}", {**_member(decision), "reason": decision.code}, logging.WARNING)
        case BalanceEvaluated(verdict=verdict) if verdict in _FINAL:
            yield Sentence(
                f"{_FINAL[verdict]}: {counted(decision.planned_movements, 'movement')} planned, imbalance {decision.imbalance_before}",
                {"state": verdict},
            )
        case EventRejected() if decision.code in _ORDINARY:
            who = decision.member_id or "a member"
            values = {"reason": decision.code, "member": decision.member_id, "incarnation": decision.incarnation}
            yield Sentence(_ORDINARY[decision.code].format(who), values, logging.DEBUG)
        case EventRejected():
            who = "" if decision.member_id is None else f" of {decision.member_id}"
            text = f"{type(fact).__name__}{who} is rejected ({decision.code}): {rejection_text(decision, fact)}"
            values = {"reason": decision.code, "member": decision.member_id, "incarnation": decision.incarnation}
            is_loud = isinstance(fact, GroupConfigured) or decision.code in TOPOLOGY_DIFFERS
            yield Sentence(text, values, logging.WARNING if is_loud else logging.DEBUG)


_ORDINARY = {
    "not_configured": "{0} waits until the group has a configuration",
    "join_repeated": "{0} has asked to join twice, and was heard the first time",
    "report_base_unknown": "{0} is asked for a complete report",
    "report_repeated": "{0} has sent a report twice, and was heard the first time",
}
"""Code of a rejection that members in order cause (`equipoise.statemachine.rejections`) -> text."""
_ENDS = {
    "returned": "is back from its restart, after {0}",
    "not_back": "was not back from its restart after {0}: its tasks go elsewhere",
    "cancelled": "does not restart after all",
}


def _member(event: Any) -> dict[str, Any]:
    return {"member": event.member_id, "incarnation": event.incarnation}


def _of_moves(head: str, moves: Sequence[Move], values: Mapping[str, Any]) -> Iterator[Sentence]:
    """One sentence for all tasks that go the same way for the same reason."""
    bundles: dict[tuple[str | None, str | None, str, str], list[Move]] = {}
    for move in moves:
        bundles.setdefault((move.source, move.destination, move.state, move.reason), []).append(move)
    for (source, destination, state, reason), bundle in list(bundles.items())[:MOST_LINES]:
        tasks = [move.task for move in bundle]
        lags = [move.lag_records for move in bundle]
        records = None if None in lags else sum(lag for lag in lags if lag is not None)
        why = reason_text(reason, source=source, destination=destination, lag_records=records)
        way = {"source": source, "destination": destination, "state": state, "reason": reason, "lag_records": records}
        text = f"{head}: {ranges(tasks)} {source or NOBODY} -> {destination or NOBODY} {state}: {why}"
        yield Sentence(text, {**values, "tasks": list(map(str, tasks)), **way})
    if len(bundles) > MOST_LINES:
        left = sum(map(len, list(bundles.values())[MOST_LINES:]))
        yield Sentence(f"{head}: {counted(left, 'task')} more; `equipoise tail --json` has all", dict(values))
