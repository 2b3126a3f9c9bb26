"""Renders facts, decisions and members as lines of golden text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from equipoise.events import facts
from equipoise.events.decisions import (
    AssignmentIssued,
    AssignmentProposed,
    AssignmentProposedPart,
    BalanceEvaluated,
    ChangeJudged,
    Checkpointed,
    Decision,
    EventRejected,
    MemberAsked,
    MemberAssigned,
    MemberAssignedPart,
    MemberExpired,
    MemberWarned,
    Move,
    ProposedMember,
    RestartEnded,
    RestartPlanned,
    RoundPlanned,
)
from equipoise.events.facts import Fact
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.replay.wording import judged_text, warning_text
from equipoise.statemachine.rejections import rejection_text
from equipoise.statemachine.state import GroupState, MemberState
from tests.support.scenarios.argument_values import tasks_text


@attrs.define(kw_only=True)
class Shown:
    """Additional output, set by the directive `show`."""

    balance: bool = False
    """BalanceEvaluated, whenever the verdict changes."""
    reasons: bool = False
    """Under each AssignmentIssued: its cause, and each movement with its state, reason code and
    lag.
    """
    epochs: bool = False
    """In member lines: the assignment epoch issued and the one applied."""
    tokens: bool = False
    """In member lines: the fencing token of each active task."""
    checkpoints: bool = False
    """Checkpointed decisions (without the hash, which changes with every change of the state's
    form).
    """
    time: bool = False
    """Group time after each fact."""


def lag_text(lag: Lag) -> str:
    return lag.value if isinstance(lag, LagSentinel) else str(lag)


def by_task_text(values: dict[TaskId, str]) -> str:
    """``(0_0:5000,0_1:active)``."""
    return f"({','.join(f'{task}:{values[task]}' for task in sorted(values))})"


def fact_text(fact: Fact) -> str:
    """``MemberJoined m1``, ``LagReported m1 epoch=3``; incarnations from the second on as ``m1/2``."""
    words = [type(fact).__name__]
    member_id = getattr(fact, "member_id", None)
    if member_id is not None:
        words.append(member_text(member_id, getattr(fact, "incarnation", 1)))
    if isinstance(fact, facts.LagReported):
        words.append(f"epoch={fact.assignment_epoch}")
    elif isinstance(fact, facts.TaskReady | facts.TasksRevoked):
        words += [f"epoch={fact.assignment_epoch}", tasks_text(fact.tasks)]
    elif isinstance(fact, facts.TaskParked):
        words.append(f"{fact.task} token={fact.token}{'' if fact.error else ' again'}")
    elif isinstance(fact, facts.TroublesReported):
        words.append(f"({','.join(fact.troubles)})")
    elif isinstance(fact, facts.LeaveRequested):
        words += [f"({','.join(fact.members)})", *(["withdrawn"] if fact.withdrawn else [])]
        words += [] if fact.staying is None else [f"staying={fact.staying}"]
    elif isinstance(fact, facts.ChangePlanned):
        words += [fact.change_id, fact.kind, *(["or_undo"] if fact.or_undo else [])]
    elif isinstance(fact, facts.ChangeMeasured):
        words += [fact.change_id, fact.outcome]
    elif isinstance(fact, facts.TopologyDeclared):
        words.append(f"epoch={fact.epoch}")
    elif isinstance(fact, facts.AssignmentObserved):
        words.append(f"generation={fact.generation}")
    elif isinstance(fact, facts.RoundAsked):
        words += [fact.round_id, f"({','.join(member_text(each.member_id, each.incarnation) for each in fact.members)})"]
    elif isinstance(fact, facts.GroupRejoined):
        held = ",".join(f"{member_text(each.member_id, each.incarnation)}:{'|'.join(map(str, each.held))}" for each in fact.members)
        words += [f"generation={fact.generation}", f"held=({held})", *(f"absent={each.member_id}" for each in fact.absent)]
    elif isinstance(fact, facts.Undecodable):
        words.append(f"{fact.code} {fact.field}".strip())
    elif isinstance(fact, facts.GroupConfigured) and fact.led_by == "external":
        words.append("led_by=external")
    return " ".join(words)


def member_text(member_id: str, incarnation: int) -> str:
    """``m1``, from the second incarnation on ``m1/2``."""
    return member_id if incarnation <= 1 else f"{member_id}/{incarnation}"


def decision_lines(decision: Decision, shown: Shown, fact: Fact | None = None) -> list[str]:
    """The lines of one decision that `fact` caused; none for decisions that `shown` leaves out, and
    for MemberAssigned, which the member lines show. Raises TypeError for a decision without a text
    form.
    """
    if isinstance(decision, AssignmentIssued):
        part = f" part={decision.part}/{decision.parts}" if decision.parts > 1 else ""
        delay = f" scheduled_delay_ms={decision.scheduled_delay_ms}" if decision.scheduled_delay_ms else ""
        cause = f" cause={decision.cause}" if shown.reasons else ""
        first = f"-> AssignmentIssued gen={decision.generation} probing={'yes' if decision.probing else 'no'}{part}{delay}{cause}"
        return [first, *(move_lines(decision.moves) if shown.reasons else [])]
    if isinstance(decision, MemberAssigned):
        return []
    if isinstance(decision, MemberAssignedPart):
        who = member_text(decision.member_id, decision.incarnation)
        return [f"-> MemberAssignedPart {who} part={decision.part}/{decision.parts} active={tasks_text(decision.assigned.active)}"]
    if isinstance(decision, MemberExpired):
        hold = f" hold_ms={decision.hold_ms}" if decision.hold_ms else ""
        return [f"-> MemberExpired {member_text(decision.member_id, decision.incarnation)} {decision.cause} silent_ms={decision.silent_ms}{hold}"]
    if isinstance(decision, MemberAsked):
        wish = "to leave" if decision.leave else "to stay after all"
        return [f"-> MemberAsked {member_text(decision.member_id, decision.incarnation)} {wish}"]
    if isinstance(decision, RestartPlanned):
        who = member_text(decision.member_id, decision.incarnation)
        within = f"back_within_ms={decision.back_within_ms}{'' if decision.stated else ' (expected)'}"
        lent = f" lent={tasks_text(decision.lent)}" if decision.lent else ""
        waiting = f" waiting={tasks_text(decision.waiting)}" if decision.waiting else ""
        restore = f" restore={decision.restore_records} in {'unknown' if decision.restore_ms is None else decision.restore_ms} ms"
        return [f"-> RestartPlanned {who} {decision.choice} {within}{lent}{waiting}{restore if decision.restore_records else ''}"]
    if isinstance(decision, RestartEnded):
        return [f"-> RestartEnded {member_text(decision.member_id, decision.incarnation)} {decision.outcome} away_ms={decision.away_ms}"]
    if isinstance(decision, ChangeJudged):
        return [f"-> ChangeJudged {decision.change_id} {judged_text(decision)}"]
    if isinstance(decision, MemberWarned):
        return [f"-> MemberWarned {member_text(decision.member_id, decision.incarnation)} {warning_text(decision)}"]
    if isinstance(decision, EventRejected):
        return [f"-> EventRejected {decision.code}: {rejection_text(decision, fact)}"]
    if isinstance(decision, BalanceEvaluated):
        if not shown.balance:
            return []
        movements = f"movements={decision.available_movements}/{decision.planned_movements}"
        return [f"-> BalanceEvaluated {decision.verdict} {movements} imbalance={decision.imbalance_before}->{decision.imbalance_after}"]
    if isinstance(decision, AssignmentProposed):
        return proposal_lines(decision, shown)
    if isinstance(decision, AssignmentProposedPart):
        return [f"-> AssignmentProposedPart part={decision.part}/{decision.parts}", *proposal_lines(decision.proposed, shown)[1:]]
    if isinstance(decision, RoundPlanned):
        return round_lines(decision, shown)
    if isinstance(decision, Checkpointed):
        return [f"-> Checkpointed seq={decision.seq}"] if shown.checkpoints else []
    raise TypeError(f"{type(decision).__name__} has no text form here")


def move_lines(moves: Iterable[Move]) -> list[str]:
    """``   0_1 m1 -> m2 warming balance lag=5000``."""
    lines = []
    for move in moves:
        lag = "" if move.lag_records is None else f" lag={move.lag_records}"
        lines.append(f"   {move.task} {move.source or 'nobody'} -> {move.destination or 'nobody'} {move.state} {move.reason}{lag}")
    return lines


def proposal_lines(proposal: AssignmentProposed, shown: Shown) -> list[str]:
    lines = [f"-> AssignmentProposed generation={proposal.generation} probing={'yes' if proposal.probing else 'no'}"]
    lines += move_lines(proposal.moves) if shown.reasons else []
    return [*lines, *_planned_lines(proposal.members)]


def round_lines(planned: RoundPlanned, shown: Shown) -> list[str]:
    """``-> RoundPlanned r7 gen=7 follow_up_ms=5000``, its moves, and what each member gets."""
    part = f" part={planned.part}/{planned.parts}" if planned.parts > 1 else ""
    follow_up = "" if planned.follow_up_ms is None else f" follow_up_ms={planned.follow_up_ms}"
    lines = [f"-> RoundPlanned {planned.round_id} gen={planned.generation} probing={'yes' if planned.probing else 'no'}{follow_up}{part}"]
    lines += move_lines(planned.moves) if shown.reasons else []
    return [*lines, *_planned_lines(planned.members)]


def _planned_lines(members: Iterable[ProposedMember]) -> Iterator[str]:
    for member in members:
        copies = [f" {name}={tasks_text(tasks)}" for name, tasks in (("standby", member.standby), ("warmup", member.warmup)) if tasks]
        yield f"   {member.member_id} active={tasks_text(member.active)}{''.join(copies)}"


def member_line(state: GroupState, member: MemberState, shown: Shown) -> str:
    """``m2 gen=2 STABLE active=() warmup=(0_1)``: its assignment and phase."""
    words = [member_text(member.member_id, member.incarnation), f"gen={state.generation}", state.member_phase(member).value]
    if shown.epochs:
        words.append(f"epoch={member.issued_epoch}/{member.applied_epoch}")
    words.append(f"active={tasks_text(member.active)}")
    for name, tasks in (("standby", member.standby), ("warmup", member.warmup), ("revoke", member.revoking)):
        if tasks:
            words.append(f"{name}={tasks_text(tasks)}")
    holds = {task: str(state.holds[task]) for task in member.active if task in state.holds}
    if holds:
        words.append(f"hold={by_task_text(holds)}")
    if shown.tokens and member.active:
        words.append(f"tokens={by_task_text({task: str(state.tokens[task]) for task in member.active})}")
    if member.released:
        words.append("released")
    return " ".join(words)


def concerned(decisions: Iterable[Decision]) -> set[str]:
    """Members whose assignment a step's rounds change, or whose tasks they move."""
    members: set[str] = set()
    for decision in decisions:
        if isinstance(decision, AssignmentIssued):
            members.update(decision.members)
            for move in decision.moves:
                members.update(name for name in (move.source, move.destination) if name is not None)
    return members
