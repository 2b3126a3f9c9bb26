"""Storms of the code with one rule of docs/protocol.md switched off. The model must refuse their
logs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

import attrs

from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions, deadlines
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.member import MemberSession
from equipoise.statemachine.state import GroupState, MemberState
from equipoise.statemachine.step_context import StepContext
from tests.model.recording import Recording
from tests.search import rules
from tests.seeds import setting_of
from tests.storms import run_storm

Patches = list[AbstractContextManager[Any]]


@attrs.frozen(kw_only=True)
class Without:
    """`seed`: of a plain storm that shows it."""

    seed: int
    session: type[MemberSession] | None = None
    machine: type[GroupMachine] | None = None
    patches: Callable[[], Patches] = list


def storm(without: Without) -> Recording:
    """Its log, up to the storm's end or its first error: two owners, or a halted group."""
    recording = Recording()
    options: dict[str, Any] = {} if without.session is None else {"session_factory": without.session}
    machine = without.machine
    if machine is not None:
        options["machine_factory"] = lambda stored: machine() if stored is None else machine.restore(stored)
    with ExitStack() as stack:
        for patch in (recording.on(), *without.patches()):
            stack.enter_context(patch)
        run_storm(setting_of(without.seed, "plain"), judges=[recording], **options)
    return recording


def sessions_end_early() -> Patches:
    def of_session(state: GroupState, key: deadlines.Key) -> int | None:
        due_ms = plain(state, key)
        return None if due_ms is None else due_ms - 4_000

    plain = deadlines._of_session
    return [mock.patch.object(deadlines, "_DUE", (of_session, *deadlines._DUE[1:]))]


def _fenced_are_not_heard() -> Patches:
    def hear(state: GroupState, member_id: str, incarnation: int) -> MemberState | None:
        with mock.patch.object(state, "fenced", {}):
            return plain(state, member_id, incarnation)

    plain = actions.hear
    return [mock.patch.object(actions, "hear", hear)]


def _hold_of_the_shortest_session() -> Patches:
    def expire(context: StepContext, member: MemberState, cause: str, *, hold_ms: int) -> None:
        plain(context, member, cause, hold_ms=min(hold_ms, *(each.session_timeout_ms for each in context.state.members.values())))

    plain = StepContext.expire
    return [mock.patch.object(StepContext, "expire", expire)]


def _tokens_stay() -> Patches:
    def grant(state: GroupState, member: MemberState, task: TaskId) -> None:
        token = state.tokens.get(task, 1)
        plain(state, member, task)
        state.tokens[task] = token

    plain = actions.grant
    return [mock.patch.object(actions, "grant", grant)]


WITHOUT: dict[str, Without] = {
    "a lease dates from its sending": Without(seed=2, session=rules.DatedFromArrival),
    "a lapsed lease never revives": Without(seed=2, session=rules.Revives),
    "a margin for failovers": Without(seed=2, session=rules.NoMargin),
    "a lease needs a fetch too, not heartbeats alone": Without(seed=14, session=rules.HeartbeatsAlone),
    "a hold after force": Without(seed=2, session=rules.NoHold),
    "group time is clamped to `max_step_ms`": Without(seed=2, machine=rules.TimeFollowsTheClock),
    "a hold passes to the next owner": Without(seed=2, machine=rules.HoldsAreForgotten),
    "a member expires after its session timeout": Without(seed=2, patches=sessions_end_early),
    "what a fenced incarnation sends shows that it lives": Without(seed=6, patches=_fenced_are_not_heard),
    "a hold lasts the session timeout that the replaced incarnation joined with": Without(seed=2, patches=_hold_of_the_shortest_session),
    "tokens rise": Without(seed=2, patches=_tokens_stay),
}
