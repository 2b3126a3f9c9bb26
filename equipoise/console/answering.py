"""``python -m equipoise.console.answering``: answers questions about the state of a group, in a
process of its own, which a worker starts and ends.

It reads questions from stdin and writes answers to stdout, each a pickle behind its length (four
bytes, big-endian), until stdin ends. Both ends are the same build.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from equipoise.assignors import Assignor, Plan, check_settings, registry
from equipoise.console.questions import Explain, Question, SizeQuestion, WhatIfQuestion
from equipoise.events.codec import make_record
from equipoise.events.decisions import AssignmentIssued, BalanceEvaluated, EventRejected
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import Fact, LeaveRequested, MemberJoined, ProbingTick
from equipoise.events.records import DecisionRecord
from equipoise.hosting.changed_settings import with_settings
from equipoise.replay.explanation import explain_state
from equipoise.replay.replayer import RecordingAssignor
from equipoise.replay.sizing.autoscaling import Followable, follow
from equipoise.replay.wording import reason_text
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.rejections import rejection_text
from equipoise.statemachine.state import GroupPhase, GroupState

NEW_MEMBER = "one more member"
"""The id of the first member that a what-if adds; the others are numbered."""
MOST_NEW = 100
_NICE = 10
"""The worker comes first."""
_MOST_TICKS = 200


def answer(question: Question) -> dict[str, Any]:
    """The answer, JSON-ready; ``{"problem": ...}`` where there is none."""
    try:
        if isinstance(question, Explain):
            return explain_state(
                question.base,
                question.task,
                moves=question.moves,
                stopped=question.stopped,
                unknown_before=question.unknown_before,
                grounds=question.grounds,
            ).document()
        return _size(question) if isinstance(question, SizeQuestion) else what_if(question)
    except EquipoiseError as error:
        return {"problem": str(error)}


def _size(question: SizeQuestion) -> dict[str, Any]:
    machine = GroupMachine.restore(question.base.state, any_solver=True)
    found = Followable(state=machine.state, habits=question.habits, demand=question.demand)
    return {"problem": "", **follow(found, question.policy, question.last).as_json()}


def what_if(question: WhatIfQuestion) -> dict[str, Any]:
    """Steps a copy of the group's machine through the asked facts, and on to the round that follows
    from them. Raises InputError for a group that equipoise does not lead.
    """
    recording: list[RecordingAssignor] = []

    def listen(name: str, version: int) -> Assignor:
        recording.append(RecordingAssignor(registry.load(name, version)))
        return recording[-1]

    base = question.base
    machine = GroupMachine.restore(base.state, load=listen, any_solver=True)
    before = _loads(machine.state)
    if machine.state.phase in (GroupPhase.UNCONFIGURED, GroupPhase.SHADOWING):
        raise InputError("equipoise does not lead this group, so it has no answer of its own")
    offset, decisions, remarks = base.offset, list[DecisionRecord](), list[str]()
    for fact in _facts(question, machine.state, remarks):
        offset += 1
        made = machine.step(make_record(base.group, offset, base.append_ms, fact))
        rejected = next((each.decision for each in made if isinstance(each.decision, EventRejected)), None)
        if rejected is not None:
            return {"problem": f"it would be rejected: {rejection_text(rejected, fact)}"}
        decisions += made
    waited_ms = _wait_for_round(machine, base.group, offset, base.append_ms, decisions)
    call = next((each.last_call for each in reversed(recording) if each.last_call is not None), None)
    if call is None:
        return {
            "problem": "",
            "remarks": [*remarks, "nothing would follow: the leader would not be asked for another plan"],
            "moves": [],
            "members": [],
            "warmups": 0,
        }
    return {"problem": "", "remarks": remarks, "waited_ms": waited_ms, **_outcome(machine.state, call.plan, before, decisions)}


def _facts(question: WhatIfQuestion, state: GroupState, remarks: list[str]) -> Iterable[Fact]:
    """Raises InputError for a question that has no sense."""
    assert state.config is not None, "it is configured"
    if question.settings:
        settings = with_settings(state.config.knobs, question.settings)
        check_settings(registry.load(state.config.assignor, state.config.behaviour_version), settings)
        remarks += settings.warnings()
        yield attrs.evolve(state.config, knobs=settings)
    if question.without:
        missing = sorted(set(question.without) - state.members.keys())
        if missing:
            raise InputError(f"the group has no member {missing[0]!r}")
        yield LeaveRequested(members=tuple(sorted(set(question.without))))
    if not 0 <= question.join <= MOST_NEW:
        raise InputError(f"at most {MOST_NEW} members can be added")
    members = list(state.members.values())
    capacity = Counter(member.capacity for member in members).most_common(1)[0][0] if members else 1
    tags = dict(members[0].tags) if members else {}
    rack = members[0].rack if members else None
    if question.join and members and (tags or rack):
        remarks.append(f"a new member is taken to be in the rack and to have the tags of {members[0].member_id}")
    for number in range(question.join):
        name = NEW_MEMBER if not number else f"{NEW_MEMBER} {number + 1}"
        yield MemberJoined(
            member_id=name,
            incarnation=1,
            capacity=capacity,
            rack=rack,
            tags=tags,
            join_nonce=f"what-if-{number}",
            topology_epoch=0 if state.topology is None else state.topology.epoch,
        )


def _wait_for_round(machine: GroupMachine, group: str, offset: int, append_ms: int, decisions: list[DecisionRecord]) -> int:
    """Lets time pass until the leader has decided on what happened, as after `join_delay_ms`.
    Returns it in ms.
    """
    began_ms = machine.state.now_ms
    for number in range(_MOST_TICKS):
        due_ms = machine.state.scheduled_ms if machine.state.gathering_until_ms is None else machine.state.gathering_until_ms
        if due_ms is None or any(isinstance(each.decision, AssignmentIssued | BalanceEvaluated) for each in decisions):
            break
        step_ms = max(1, min(machine.state.settings.max_step_ms, due_ms - machine.state.now_ms))
        append_ms += step_ms
        decisions += machine.step(make_record(group, offset + 1 + number, append_ms, ProbingTick()))
    return machine.state.now_ms - began_ms


def _loads(state: GroupState) -> dict[str, int]:
    """Member -> tasks that it runs or still has to give up."""
    return {name: len(member.active) + len(member.revoking) for name, member in state.members.items()}


def _outcome(state: GroupState, plan: Plan, before: dict[str, int], decisions: Sequence[DecisionRecord]) -> dict[str, Any]:
    after = {name: len(tasks) for name, tasks in plan.target.items()}
    owner_before = {
        task: move.source for each in decisions if isinstance(each.decision, AssignmentIssued) for move in each.decision.moves for task in [move.task]
    }
    moves = []
    for movement in plan.movements:
        reason = plan.reasons.get(movement.task)
        lag = None if reason is None else reason.lag_records
        code = "" if reason is None else reason.because or reason.code
        source = movement.source if movement.source is not None else owner_before.get(movement.task)
        text = reason_text(code, source=source, destination=movement.destination, lag_records=lag) if code else ""
        moves.append(
            {
                "task": str(movement.task),
                "source": source,
                "destination": movement.destination,
                "state": movement.state.value,
                "why": text,
                "lag_records": lag,
            }
        )
    rates = [member.restore_records_per_s for member in state.members.values() if member.restore_records_per_s]
    records = plan.cost.restore_records
    return {
        "moves": moves,
        "changes_of_owner": plan.cost.moves,
        "fewest": plan.cost.moves_lower_bound,
        "warmups": sum(len(part.warmup) for part in plan.members.values()),
        "restore_records": records,
        "restore_ms": records * 1_000 // min(rates) if rates else None,
        "imbalance_before": plan.imbalance_now,
        "imbalance_after": plan.cost.imbalance,
        "members": [{"member": name, "before": before.get(name, 0), "after": after.get(name, 0)} for name in sorted(before.keys() | after.keys())],
    }


def main() -> None:
    """Answers until stdin ends."""
    os.nice(_NICE)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    while head := sys.stdin.buffer.read(4):
        question = pickle.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))  # noqa: S301 of the worker that started this process
        body = pickle.dumps(answer(question))
        out.write(struct.pack(">I", len(body)) + body)
        out.flush()


if __name__ == "__main__":
    main()
