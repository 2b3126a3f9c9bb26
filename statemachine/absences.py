"""Members that are gone from a group whose rounds are asked for, and expected back
(docs/protocol.md#d12).

A process that is restarted returns with its copies. A copy that is begun elsewhere meanwhile is
superfluous when it does. So for `Carrier.absence_ms` only copies are used that are there already.
Tasks do not wait: they run on the copies that are left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import attrs

from equipoise.assignors import Movement, MovementState, Plan
from equipoise.assignors.common.carrier import Carrier
from equipoise.assignors.common.problem import Memory
from equipoise.statemachine.state import GroupState

_ABSENT, _KNOWN, _SINCE = "carrier_absent_members", "carrier_known_members", "carrier_absent_since_ms"
KEYS = frozenset((_ABSENT, _KNOWN, _SINCE))
"""Of the memory."""


@attrs.frozen
class Absences:
    """`members`: those that are expected back, since `since_ms` (group time, of the last one that
    went). `until_ms`: how long. `known`: members of this round; empty: the carrier expects nobody.
    """

    members: tuple[str, ...]
    since_ms: int
    until_ms: int
    known: tuple[str, ...]

    @classmethod
    def after(cls, state: GroupState, carrier: Carrier, gone: Iterable[str]) -> Self:
        """Returns who is absent after a round that does not name `gone`. A member that joins and
        ran nothing stands for one that is gone: it is that one under another name.
        """
        if not carrier.absence_ms:
            return cls((), 0, 0, ())
        gone = sorted(gone)
        known, since_ms = _names(state.memory, _KNOWN), state.memory.get(_SINCE)
        absent = sorted({*_names(state.memory, _ABSENT), *gone} - state.members.keys())
        here = tuple(sorted(state.members))
        returned = {*_names(state.memory, _ABSENT), *gone} & state.members.keys()
        others = [name for name in here if name not in known and name not in returned and not state.members[name].held]
        absent = absent[len(others) :]
        if gone or not isinstance(since_ms, int):
            since_ms = state.now_ms
        until_ms = since_ms + carrier.absence_ms
        return cls(tuple(absent) if state.now_ms < until_ms else (), since_ms, until_ms, here)

    def remembered(self) -> Memory:
        memory: dict[str, int | tuple[str, ...]] = {_KNOWN: self.known} if self.known else {}
        return {_ABSENT: self.members, _SINCE: self.since_ms, **memory} if self.members else memory

    def sooner(self, state: GroupState, follow_up_ms: int | None) -> int | None:
        """Returns when the next round is wanted: at the latest when nobody is expected any more."""
        if not self.members:
            return follow_up_ms
        left_ms = max(1, self.until_ms - state.now_ms)
        return left_ms if follow_up_ms is None else min(left_ms, follow_up_ms)


def absent_members(state: GroupState) -> tuple[str, ...]:
    """Members that are expected back, as of the last round."""
    return _names(state.memory, _ABSENT)


def without_new_copies(state: GroupState, plan: Plan) -> Plan:
    """The plan without copies that would have to be restored first. Copies that are being restored
    already go on.
    """
    members = {}
    for name, part in plan.members.items():
        member = state.members[name]
        acceptable = state.acceptable_lag(member)
        has = {*member.standby, *member.warmup}
        members[name] = attrs.evolve(
            part,
            standby=tuple(task for task in part.standby if task in has or member.is_caught_up(task, acceptable)),
            warmup=tuple(task for task in part.warmup if task in has or member.is_caught_up(task, acceptable)),
        )
    movements = tuple(
        attrs.evolve(movement, state=MovementState.WAITING)
        if movement.state is MovementState.WARMING and movement.task not in members[movement.destination].warmup
        else movement
        for movement in plan.movements
    )
    return attrs.evolve(plan, members=members, movements=movements)


def copies_of_sources_kept(state: GroupState, plan: Plan, handed_over: Iterable[Movement]) -> Plan:
    """The plan with the copy of a task's former owner as a standby, in place of one that would have
    to be restored first.
    """
    standbys = {name: set(part.standby) for name, part in plan.members.items()}
    for movement in handed_over:
        task, source = movement.task, movement.source
        if source is None or source == movement.destination or task in standbys[source]:
            continue
        for name in sorted(standbys):
            member = state.members[name]
            if task in standbys[name] and task not in member.standby and not member.is_caught_up(task, state.acceptable_lag(member)):
                standbys[name].discard(task)
                standbys[source].add(task)
                break
    members = {name: attrs.evolve(part, standby=tuple(sorted(standbys[name]))) for name, part in plan.members.items()}
    return attrs.evolve(plan, members=members)


def _names(memory: Memory, key: str) -> tuple[str, ...]:
    found = memory.get(key, ())
    return tuple(name for name in found if isinstance(name, str)) if isinstance(found, tuple) else ()
