"""Rounds that another leader asks for and carries out (docs/protocol.md#d12).

A round is all that such a group has: nobody reports between two of them, no timer runs, and what
the answer says becomes current at once. Whoever carries it out stops the former owner of a task
before the next one starts it.

Each round in which tasks change owners stops more than these tasks (`assignors.common.carrier`). So
no round hands over while the last hand-over is still being carried out, and copies that are ready
wait a little for those that will be ready soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from equipoise.assignors import Assignor, Movement, MovementState, Plan, Task
from equipoise.assignors.common.carrier import CARRIERS, Carrier
from equipoise.events import parts
from equipoise.events.decisions import Move, ProposedMember, RoundPlanned
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions, leader
from equipoise.statemachine.absences import KEYS as KEYS_OF_ABSENCES
from equipoise.statemachine.absences import Absences, copies_of_sources_kept, without_new_copies
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import GroupState, known_lag
from equipoise.statemachine.step_context import StepContext

WAITS_SINCE = "carrier_waits_since_ms"
"""Key of the memory: group time since which ready copies wait for others."""
SMALL_TASKS, SMALL_SINCE = "carrier_small_tasks", "carrier_small_since_ms"
"""Keys of the memory: tasks whose copies are within the limit and not ready, and group time since
which these are the same.
"""


def answer(context: StepContext, assignor: Assignor, offset: int) -> None:
    """Plans the round `context.round_asked`, makes the plan current and emits RoundPlanned.

    Raises GroupHalted when the assignor's plan is invalid.
    """
    state, asked = context.state, context.round_asked
    assert asked is not None, "a round was asked for"
    carrier = CARRIERS[asked.carrier]
    for member_id in sorted(state.members):
        actions.take_part(state, state.members[member_id])
    actions.begin_generation(state)
    starting = _reconcile(context)
    problem = attrs.evolve(build_problem(state), carrier=carrier)
    absences = Absences.after(state, carrier, context.gone)
    plan = leader.ask(state, assignor, problem, offset)
    if absences.members:
        plan = without_new_copies(state, plan)
    context.plan = plan
    tasks = problem.task_by_id
    ready = [movement for movement in plan.movements if movement.state is MovementState.REVOKING]
    ready_ms, small = _ready_ms(state, carrier, plan, tasks, due_by_copies=asked.due_by_copies)
    small_since_ms = state.memory.get(SMALL_SINCE)
    if not isinstance(small_since_ms, int) or state.memory.get(SMALL_TASKS) != small:
        small_since_ms = state.now_ms
    if small:  # each wait is as long as all before: a copy that is never reported costs few rounds
        ready_ms.append(max(carrier.look_ms, state.now_ms - small_since_ms))
    since_ms = state.memory.get(WAITS_SINCE)
    waits = bool(starting) or (
        any(ms is None or ms <= carrier.patience_ms for ms in ready_ms)
        and not (isinstance(since_ms, int) and state.now_ms - since_ms >= carrier.patience_ms)
    )
    held_back = ready if waits else []
    memory = {key: value for key, value in plan.memory.items() if key not in (WAITS_SINCE, SMALL_TASKS, SMALL_SINCE, *KEYS_OF_ABSENCES)}
    memory |= absences.remembered()
    if small:
        memory |= {SMALL_TASKS: small, SMALL_SINCE: small_since_ms}
    if held_back:
        memory[WAITS_SINCE] = since_ms if isinstance(since_ms, int) else state.now_ms
    actions.remember_plan(state, plan.revocations, memory)
    leader.note_verdict(context, plan)
    _carry_out(context, carrier, plan, tasks, {movement.task: movement for movement in held_back})
    planned = RoundPlanned(
        round_id=asked.round_id,
        generation=state.generation,
        members=tuple(
            ProposedMember(
                member_id=name,
                active=tuple(sorted(member.active)),
                standby=tuple(sorted(member.standby)),
                warmup=tuple(sorted(member.warmup)),
            )
            for name, member in sorted(state.members.items())
        ),
        moves=tuple(context.moves[place] for place in sorted(context.moves)),
        probing=plan.probing,
        follow_up_ms=absences.sooner(state, _follow_up_ms(carrier, plan, ready_ms, bool(ready), bool(held_back), state.settings.probing_interval_ms)),
        unique=plan.unique,
    )
    context.emitted += parts.split(planned, context.most_event_bytes)


def _reconcile(context: StepContext) -> list[TaskId]:
    """Makes current what the members report. Returns the tasks whose owner by the last answer does
    not run them yet.

    A task that a member runs is its own, whatever was decided: another assignor may have decided
    since, or the answer never arrived. A task that nobody runs stays with the owner of the last
    answer while that can run it at once; else it is free.
    """
    state = context.state
    tasks = state.tasks()
    runs: dict[TaskId, list[str]] = {}
    for name in sorted(state.members):
        for task in state.members[name].held:
            if task in tasks:
                runs.setdefault(task, []).append(name)
    owner: dict[TaskId, str] = {}
    starting: list[TaskId] = []
    for task, part in tasks.items():
        decided, claims = state.owner.get(task), runs.get(task, ())
        if claims:
            owner[task] = decided if decided in claims else claims[0]
        elif decided is not None:
            member = state.members[decided]
            if not part.stateful or member.is_caught_up(task, state.acceptable_lag(member)):
                owner[task] = decided
                starting.append(task)
            else:
                actions.lose(state, member, task)
    for task, movement in sorted(state.in_flight.items()):
        if task not in tasks:
            context.cancel(task, "task_gone")
        elif movement.source != owner.get(task):
            context.cancel(task, "source_gone")
    actions.observe_owners(state, owner)
    for name in sorted(state.members):
        member = state.members[name]
        acceptable = state.acceptable_lag(member)
        for task in sorted(member.warmup):
            actions.record_progress(state, member, task, caught_up=member.is_caught_up(task, acceptable))
    return starting


def _ready_ms(
    state: GroupState, carrier: Carrier, plan: Plan, tasks: Mapping[TaskId, Task], *, due_by_copies: bool
) -> tuple[list[int | None], tuple[TaskId, ...]]:
    """For each member that restores copies: in how many ms they are ready; None: not known. A
    member's copies share its rate, so all of them are ready together.

    `due_by_copies` (`RoundAsked.due_by_copies`): standbys that take over count like warm-ups. Tasks
    are returned apart whose whole restore is within the limit: they are looked at soon, whatever
    the rate, because one measured on a copy that had little to restore is too low.
    """
    found: list[int | None] = []
    soon: set[TaskId] = set()
    for name, part in plan.members.items():
        member = state.members[name]
        acceptable = state.acceptable_lag(member)
        moving = [each.task for each in plan.movements if each.destination == name and each.state is MovementState.WARMING]
        wanted: Sequence[TaskId] = part.warmup
        if carrier.reports_ready:  # a copy that replaces a standby hands nothing over, so nothing waits for it
            wanted = moving
        elif due_by_copies:
            wanted = sorted({*part.warmup, *moving})
        restoring = [task for task in wanted if not member.is_caught_up(task, acceptable)]
        lags = {task: known_lag(member.lags.get(task)) for task in restoring}
        left = {task: tasks[task].end_offset if lag is None else lag for task, lag in lags.items()}
        if due_by_copies and not carrier.reports_ready:
            begun = {*member.warmup, *member.standby}
            small = {task for task in restoring if left[task] <= max(acceptable, 1)}
            soon |= small
            restoring = [task for task in restoring if task not in small]
        else:
            begun = set(member.warmup)
        if not restoring:
            continue
        if not member.restore_records_per_s:
            found.append(None)
            continue
        records = sum(left[task] for task in restoring)
        begins_ms = carrier.round_ms if any(task not in begun for task in restoring) else 0
        found.append(begins_ms + -(-records * 1_000 // member.restore_records_per_s))
    return found, tuple(sorted(soon))


def _follow_up_ms(carrier: Carrier, plan: Plan, ready_ms: Sequence[int | None], is_ready: bool, waits: bool, longest_ms: int) -> int | None:
    """Returns when the next round is wanted: when all copies that are ready soon will be."""
    if carrier.reports_ready and not waits:
        is_wanted = bool(ready_ms) or any(movement.state is MovementState.WAITING for movement in plan.movements)
        return longest_ms if is_wanted else None
    if is_ready and not waits:
        return None  # the owners that stop begin the next round
    looks = sorted(carrier.look_ms if ms is None else ms for ms in ready_ms)
    soon = [ms for ms in looks if ms <= carrier.patience_ms]
    if looks:
        return min(max(soon[-1] if soon else looks[0], carrier.round_ms), longest_ms)
    if waits:
        return min(carrier.look_ms, longest_ms)
    return longest_ms if plan.probing else None


def _carry_out(context: StepContext, carrier: Carrier, plan: Plan, tasks: Mapping[TaskId, Task], held_back: Mapping[TaskId, Movement]) -> None:
    """Makes the plan current: what it hands over now belongs to its destination."""
    state = context.state
    handed_over = {
        movement.task: movement for movement in plan.movements if movement.state is MovementState.REVOKING and movement.task not in held_back
    }
    if carrier.absence_ms:
        plan = copies_of_sources_kept(state, plan, handed_over.values())
    owner = {task: name for name, part in plan.members.items() for task in part.active}
    owner.update((task, name) for name, part in plan.members.items() for task in part.revoke if task in tasks)
    owner.update((task, movement.destination) for task, movement in handed_over.items())
    before = dict(state.owner)
    acceptable = {name: state.acceptable_lag(member) for name, member in state.members.items()}
    old_movements = actions.clear_movements(state)
    for task in sorted(owner):
        if owner[task] == before.get(task):
            continue
        member = state.members[owner[task]]
        reason = plan.reasons.get(task)
        if task not in handed_over or reason is None:
            reason = leader.placed(state, member, task, acceptable[owner[task]])
        source = before.get(task, state.previous_owners.get(task))
        context.note(
            Move(
                task=task,
                source=None if source == owner[task] else source,
                destination=owner[task],
                state="granted",
                reason=reason.code,
                lag_records=reason.lag_records,
            )
        )
    warming: dict[TaskId, Movement] = {}
    for movement in plan.movements:
        held = movement.task in held_back
        if movement.state is MovementState.WARMING or (held and tasks[movement.task].stateful):
            warming[movement.task] = attrs.evolve(movement, state=MovementState.WARMING)
        elif held or movement.state is MovementState.WAITING:
            actions.count_waiting(state)
    for task in sorted(warming):
        actions.begin_movement(state, warming[task])
        if old_movements.get(task) != warming[task]:
            context.note(leader.move_of(plan, warming[task]))
    for task, gone in sorted(old_movements.items()):
        if task not in warming and owner.get(task) != gone.destination:
            context.note(Move(task=task, source=gone.source, destination=gone.destination, state="cancelled", reason="not_wanted"))
    for task in sorted(before):
        if owner.get(task) != before[task] and task in owner:
            actions.set_previous_owner(state, task, None)  # it moved for balance
    actions.observe_owners(state, owner)
    kept = _kept_copies(state, plan, tasks, handed_over)
    for name in sorted(state.members):
        member, part = state.members[name], plan.members[name]
        standby = {task for task in part.standby if owner.get(task) != name} | kept.get(name, set())
        warmup = {task for task in part.warmup if owner.get(task) != name}
        warmup |= {task for task, movement in warming.items() if movement.destination == name and task not in standby}
        if member.standby != standby:
            actions.set_standbys(member, standby)
        for task in sorted(set(member.warmup) - warmup):
            actions.end_warmup(member, task)
        for task in sorted(warmup - set(member.warmup)):
            actions.begin_warmup(state, member, task, caught_up=member.is_caught_up(task, acceptable[name]))


def _kept_copies(state: GroupState, plan: Plan, tasks: Mapping[TaskId, Task], handed_over: Mapping[TaskId, Movement]) -> dict[str, set[TaskId]]:
    """Member -> tasks that it gives up and keeps as standbys, because the standby has become the
    owner and no other is assigned.
    """
    kept: dict[str, set[TaskId]] = {}
    for task, movement in handed_over.items():
        if movement.source is None or not tasks[task].stateful or movement.source == movement.destination:
            continue
        holders = [name for name, part in plan.members.items() if task in part.standby and name != movement.destination]
        if len(holders) < state.settings.num_standbys and movement.source not in holders:
            kept.setdefault(movement.source, set()).add(task)
    return kept
