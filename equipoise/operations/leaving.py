"""Asks members of a live group to leave, and follows them until they are gone. `equipoise
scale-down` without a LOG does this. See docs/protocol.md#m8.

`equipoise.assignors.scale_down` chooses the members. The group is folded here from its log; the
request is the only fact written.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import ChangePlanned, LeaveRequested
from equipoise.hosting.live_settings import LiveSettings
from equipoise.operations.live_group import LiveGroup
from equipoise.replay.group_view import Drain, drains
from equipoise.replay.wording import counted
from equipoise.statemachine.state import GroupState, MemberState, known_lag

if TYPE_CHECKING:
    from equipoise.assignors.scale_down import Keep, ScaleDown

MOST_PICKS = 5
"""Requests in a row that may be rejected because members have restarted, left or were asked between
choosing and asking.
"""


class LeaveStage(enum.Enum):
    """How far the departure of a member is."""

    DRAINING = "draining"
    RELEASED = "released"
    """It owns no task and may end."""
    LEFT = "left"
    DIED = "died"
    """It ended without leaving. If it comes back within ten minutes it is asked again."""
    STAYS = "stays"
    """The request was withdrawn."""

    @property
    def is_out(self) -> bool:
        """Returns whether the member is no longer in the group."""
        return self in (LeaveStage.LEFT, LeaveStage.DIED)


@attrs.frozen(kw_only=True)
class LeavingMember:
    """One member that was asked to leave. `tasks`: number that it still owns. `warming`: how many
    of those are being copied elsewhere. `lag_records`: what these copies have still to restore, by
    the last reports.
    """

    member: str
    stage: LeaveStage
    tasks: int = 0
    warming: int = 0
    lag_records: int = 0
    drain: Drain | None = None
    """Expected time until it owns nothing; None: not known."""

    def line(self) -> str:
        """One line for people."""
        if self.stage is not LeaveStage.DRAINING:
            return f"{self.member} {'was released' if self.stage is LeaveStage.RELEASED else self.stage.value}"
        copies = f", {self.warming} of them being copied elsewhere ({counted(self.lag_records, 'record')} to go)" if self.warming else ""
        time = "" if self.drain is None else f"; {self.drain.text()}"
        return f"{self.member} still has {counted(self.tasks, 'task')}{copies}{time}"


def choose_members(state: GroupState, keep: Keep) -> tuple[ScaleDown, Drain]:
    """The members to ask so that `keep` stay, and the expected time until they own nothing. Raises
    InputError when the group has no members.
    """
    from equipoise.assignors import registry  # loads the solver
    from equipoise.assignors.scale_down import drain_ms, scale_down
    from equipoise.statemachine.round_problem import build_problem

    problem = build_problem(state)
    found = scale_down(problem, keep)
    config = state.config
    assert config is not None, "a group with members is configured"
    assignor = registry.load(config.assignor, config.behaviour_version)
    expected_ms = drain_ms(problem, [each.member for each in found.asked], assignor)
    return found, Drain(expected_ms=expected_ms, left_ms=state.settings.drain_timeout_ms)


class LeavingMembers(LiveGroup):
    """The members of one group that were asked to leave."""

    def __init__(self, settings: LiveSettings, group: str) -> None:
        super().__init__(settings, group)
        self.members: tuple[str, ...] = ()
        """Ids of the members that `look` reports on, sorted."""
        self.planned: str | None = None
        """Id of the change that was written down; None: none was."""
        self._stages: dict[str, LeaveStage] = {}

    async def pick(self, keep: Keep) -> tuple[ScaleDown, Drain]:
        """The members to ask in the group's present state, and the expected time. Appends nothing.

        Raises InputError when the group is led by its own leader, and what `machine` raises.
        """
        return choose_members(await self._led(), keep)

    async def _led(self) -> GroupState:
        state = await self.state()
        if state.config is not None and state.config.led_by != "equipoise":
            raise InputError(f"--group: {self.group!r} is led by its own leader; equipoise cannot ask its members")
        return state

    async def ask(self, keep: Keep, planned: ChangePlanned | None = None, expected: tuple[str, ...] = ()) -> tuple[ScaleDown, Drain]:
        """Chooses members and asks them, all in one fact. Chooses again when the group has changed
        meanwhile and the request was rejected. `planned`: is written down before, if the members
        are those that it `expected`.

        Raises InputError after MOST_PICKS rejected requests, and what `pick` raises.
        """
        for _ in range(MOST_PICKS):
            state = await self._led()
            found, drain = choose_members(state, keep)
            asked = tuple(sorted(each.member for each in found.asked))
            incarnations = tuple(state.members[member].incarnation for member in asked)
            self.follow((*asked, *found.leaving))
            if not asked:
                return found, drain
            if planned is not None and asked == expected:
                self.planned = planned.change_id if await self.plan(planned) else None
                planned = None  # it is written down once
            await self.append(LeaveRequested(members=asked, incarnations=incarnations, staying=found.keep))
            state = await self.state()
            if all(state.is_asked(member) or member not in state.members for member in asked):
                return found, drain
        raise InputError(f"--group: members of {self.group!r} come and go too fast to be asked; try again")

    async def asked(self) -> tuple[str, ...]:
        """Members that are asked to leave now, or would be if they came back."""
        state = await self.state()
        return tuple(sorted(member for member in state.asked if state.is_asked(member) or state.is_to_be_asked(member)))

    async def withdraw(self) -> tuple[str, ...]:
        """Withdraws every request, and returns the members that stay. A member that was released
        already still leaves.
        """
        asked = await self.asked()
        if not asked:
            return ()
        await self.append(LeaveRequested(members=asked, withdrawn=True))
        left = await self.asked()
        return tuple(member for member in asked if member not in left)

    def follow(self, members: Iterable[str]) -> None:
        """From here on `look` reports on these members."""
        self.members = tuple(sorted(members))
        self._stages = dict.fromkeys(self.members, LeaveStage.DRAINING)

    async def look(self) -> list[LeavingMember]:
        """Returns how far each followed member is, by id."""
        state = await self.state()
        draining = drains(state)
        return [attrs.evolve(going, drain=draining.get(going.member)) for going in (self._going(state, member) for member in self.members)]

    def _going(self, state: GroupState, name: str) -> LeavingMember:
        member = state.members.get(name)
        if member is None:
            # A member that leaves loses its request. One that died keeps it for its return.
            stage = LeaveStage.DIED if state.is_to_be_asked(name) else LeaveStage.LEFT
        elif self._stages[name].is_out and not (state.is_asked(name) or state.is_to_be_asked(name)):
            stage = self._stages[name]  # another process has joined under that id since
        elif member.released:
            stage = LeaveStage.RELEASED
        elif not member.leaving and not state.is_to_be_asked(name):
            stage = LeaveStage.STAYS
        else:
            stage = LeaveStage.DRAINING
        self._stages[name] = stage
        return LeavingMember(member=name, stage=stage) if member is None or stage is not LeaveStage.DRAINING else _draining(state, member)


def _draining(state: GroupState, member: MemberState) -> LeavingMember:
    moves: list[Any] = [movement for movement in state.in_flight.values() if movement.source == member.member_id]
    lags = [known_lag(state.members[each.destination].lags.get(each.task)) for each in moves if each.task in state.members[each.destination].warmup]
    return LeavingMember(
        member=member.member_id,
        stage=LeaveStage.DRAINING,
        tasks=len(member.active) + len(member.revoking),
        warming=len(lags),
        lag_records=sum(lag for lag in lags if lag is not None),
    )
