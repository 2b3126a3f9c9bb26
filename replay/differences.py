"""What the stored and the recomputed decisions of one fact change differently, field by field."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from equipoise.events.decisions import (
    AssignmentIssued,
    AssignmentProposed,
    BalanceEvaluated,
    ChangeJudged,
    Checkpointed,
    EventRejected,
    MemberAsked,
    MemberAssigned,
    MemberExpired,
    MemberWarned,
    RestartEnded,
    RestartPlanned,
    RoundPlanned,
)
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord
from equipoise.events.tasks import tasks_text
from equipoise.statemachine.state import GroupState


@attrs.frozen(kw_only=True)
class Difference:
    """One field that the two sides set differently: ``m1.active``, and its value on each side."""

    place: str
    recomputed: str
    stored: str

    def document(self) -> dict[str, str]:
        return {"place": self.place, "recomputed": self.recomputed, "stored": self.stored}


def differences(recomputed: Iterable[DecisionRecord], stored: Iterable[DecisionRecord], state: GroupState) -> list[Difference]:
    """Returns the fields that two lists of decisions of one fact set differently, by member and
    field.

    If only one side has a decision for a member, the other side is taken from `state`, the
    recomputed state after the fact.
    """
    ours, theirs = _by_place(recomputed), _by_place(stored)
    found = []
    for place in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(place), theirs.get(place)
        if mine is None:
            mine = _from_state(state, place) or "nothing"
        if other is None:
            other = "unchanged" if "." in place else "nothing"
        if mine != other:
            found.append(Difference(place=place, recomputed=mine, stored=other))
    return found


def _by_place(records: Iterable[DecisionRecord]) -> dict[str, str]:
    """The fields that these decisions set: ``m1.active`` -> ``(0_1,0_2)`` and so on."""
    places: dict[str, str] = {}
    for decision in whole(record.decision for record in records):
        if isinstance(decision, MemberAssigned):
            places.update(_member_places(decision))
        elif isinstance(decision, MemberExpired):
            places[f"{decision.member_id}.expired"] = f"{decision.cause} after {decision.silent_ms} ms, hold {decision.hold_ms} ms"
        elif isinstance(decision, BalanceEvaluated):
            numbers = f"{decision.available_movements} of {decision.planned_movements} movements available"
            places["group.verdict"] = f"{decision.verdict}, {numbers}, imbalance {decision.imbalance_before} -> {decision.imbalance_after}"
        elif isinstance(decision, AssignmentIssued):
            places["group.generation"] = f"{decision.generation} ({decision.cause})"
            for move in decision.moves:
                step = f"{move.source} -> {move.destination} {move.state}"
                places[f"task {move.task} to {move.destination}"] = f"{step}: {move.reason}, lag {move.lag_records}"
        elif isinstance(decision, AssignmentProposed):
            for member in decision.members:
                for name in ("active", "standby", "warmup"):
                    places[f"{member.member_id}.{name} (proposed)"] = tasks_text(getattr(member, name))
        elif isinstance(decision, RoundPlanned):
            places["group.generation"] = f"{decision.generation} (round {decision.round_id}, follow-up {decision.follow_up_ms} ms)"
            for member in decision.members:
                for name in ("active", "standby", "warmup"):
                    places[f"{member.member_id}.{name}"] = tasks_text(getattr(member, name))
            for move in decision.moves:
                places[f"task {move.task} to {move.destination}"] = f"{move.source} -> {move.destination} {move.state}: {move.reason}"
        elif isinstance(decision, MemberAsked):
            places[f"{decision.member_id}.asked"] = "to leave" if decision.leave else "to stay after all"
        elif isinstance(decision, RestartPlanned):
            numbers = f"{decision.back_within_ms} ms, restore {decision.restore_records} records in {decision.restore_ms} ms"
            places[f"{decision.member_id}.restart"] = f"{decision.choice}: {numbers}, lent {tasks_text(decision.lent)}"
        elif isinstance(decision, RestartEnded):
            places[f"{decision.member_id}.restart ended"] = f"{decision.outcome} after {decision.away_ms} ms"
        elif isinstance(decision, ChangeJudged):
            costs = f"{decision.unavailable_task_ms} task-ms, {decision.moves} moves, rest after {decision.rest_ms} ms"
            places[f"change {decision.change_id}"] = f"{decision.outcome}: {costs}, above {decision.above}, below {decision.below}, {decision.undone}"
        elif isinstance(decision, MemberWarned):
            places[f"{decision.member_id}.warned"] = f"{decision.code}: rack {decision.said}, tag {decision.tag}"
        elif isinstance(decision, Checkpointed):
            places["state hash"] = decision.state_sha256
        elif isinstance(decision, EventRejected):
            places[f"{decision.member_id or 'group'}.rejected"] = f"{decision.code} {decision.numbers}"
    return places


def _member_places(assigned: MemberAssigned) -> dict[str, str]:
    who = assigned.member_id
    tokens = ",".join(f"{task}:{token}" for task, token in zip(assigned.active, assigned.tokens, strict=True))
    return {
        f"{who}.epoch": str(assigned.assignment_epoch),
        f"{who}.active": tasks_text(assigned.active),
        f"{who}.standby": tasks_text(assigned.standby),
        f"{who}.warmup": tasks_text(assigned.warmup),
        f"{who}.revoke": tasks_text(assigned.revoke),
        f"{who}.tokens": f"({tokens})",
        f"{who}.hold_ms": str({str(task): hold_ms for task, hold_ms in assigned.hold_ms.items()}),
        f"{who}.released": str(assigned.released).lower(),
    }


def _from_state(state: GroupState, place: str) -> str | None:
    """The value of a field in the state, for a stored decision that was not recomputed."""
    who, _, what = place.rpartition(".")
    member = state.members.get(who)
    if member is None:
        return None
    active = sorted(member.active)
    values: dict[str, str] = {
        "epoch": str(member.issued_epoch),
        "active": tasks_text(active),
        "standby": tasks_text(sorted(member.standby)),
        "warmup": tasks_text(sorted(member.warmup)),
        "revoke": tasks_text(sorted(member.revoking)),
        "tokens": f"({','.join(f'{task}:{state.tokens[task]}' for task in active)})",
        "hold_ms": str({str(task): state.holds[task] for task in active if task in state.holds}),
        "released": str(member.released).lower(),
    }
    return values.get(what)
