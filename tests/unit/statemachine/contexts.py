"""States built by hand and the context of one step on them, for tests of single parts of the
machine. No step is run and no assignor is asked, so that a test sees one part alone.
"""

from __future__ import annotations

from equipoise.assignors import Guarantee, Movement, MovementState
from equipoise.events.facts import GroupConfigured
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import Deadlines
from equipoise.statemachine.state import GroupState, MemberState
from equipoise.statemachine.step_context import StepContext
from tests.groups import Group, configured, joined, topology

ALL = frozenset(Guarantee)


def context_of(group: Group, guarantees: frozenset[Guarantee] = ALL) -> StepContext:
    """`guarantees`: those of the assignor of the group's configuration."""

    def guarantees_of(config: GroupConfigured) -> frozenset[Guarantee]:
        return guarantees if config is group.state.config else frozenset()

    return StepContext(group.state, Deadlines(group.state), lambda config: None, guarantees_of, 1_000_000)


def step(*member_ids: str, eager: tuple[str, ...] = (), stateless: int = 0, guarantees: frozenset[Guarantee] = ALL) -> StepContext:
    """A group of these members in which nobody owns anything, and the context of a step on it."""
    group = Group(watched=False)
    group.fact(configured(initial_delay_ms=0))
    group.fact(topology(stateful=6, stateless=stateless))
    for member_id in member_ids:
        group.fact(joined(member_id, eager=member_id in eager))
    state = group.state
    actions.clear_movements(state)
    state.owner.clear()
    state.lost.clear()
    for member in state.members.values():
        member.active.clear()
        member.revoking.clear()
        member.standby.clear()
        member.warmup.clear()
        member.issued_epoch = 5
    state.problem_cache.forget_all()
    context = context_of(group, guarantees)
    assert set(state.members) == set(member_ids)
    return context


def member_of(context: StepContext, member_id: str) -> MemberState:
    return context.state.members[member_id]


def owns(state: GroupState, member_id: str, *tasks: TaskId) -> None:
    """The member runs the tasks and knows of it."""
    for task in tasks:
        actions.grant(state, state.members[member_id], task)
        state.members[member_id].active[task] = 1


def gives_up(state: GroupState, member_id: str, *tasks: TaskId) -> None:
    """The member was told to give the tasks up."""
    owns(state, member_id, *tasks)
    for task in tasks:
        actions.revoke(state, state.members[member_id], task)


def moves(state: GroupState, task: TaskId, source: str | None, destination: str, how: MovementState) -> None:
    """A movement in flight; with a warm-up on its destination when it warms up."""
    actions.begin_movement(state, Movement(task=task, source=source, destination=destination, state=how))
    if how is MovementState.WARMING:
        actions.begin_warmup(state, state.members[destination], task, caught_up=False)
