"""Asks members of a live group to leave, and follows until they are gone (PROTOCOL M8): what
`equipoise scale-down` does without a LOG.

Whom to ask is `equipoise.assignors.scale_down`'s; the group is folded here from its log, and all
that is written is the request.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import LeaveRequested
from equipoise.live import LiveSettings
from equipoise.live_group import LiveGroup
from equipoise.replay.draining import Drain, drains
from equipoise.statemachine.state import GroupState, MemberState, known_lag

if TYPE_CHECKING:
    from equipoise.assignors.scale_down import ScaleDown

MOST_PICKS = 5
"""Requests that may be refused one after the other, because somebody joined or left between the
picking and the asking.
"""


class Stage(enum.Enum):
    """How far a member is on its way out."""

    DRAINING = "draining"
    RELEASED = "released"
    """It owns nothing and may go."""
    LEFT = "left"
    DIED = "died"
    """It is gone and did not say so; if it comes back within ten minutes it is asked again."""
    STAYS = "stays"
    """The request was taken back."""

    @property
    def is_out(self) -> bool:
        return self in (Stage.LEFT, Stage.DIED)


@attrs.frozen(kw_only=True)
class Going:
    """One member on its way out. `tasks`: it still has; `warming` of them are copied elsewhere,
    with `lag_records` to restore at last report.
    """

    member: str
    stage: Stage
    tasks: int = 0
    warming: int = 0
    lag_records: int = 0
    drain: Drain | None = None
    """How long it still takes."""

    def line(self) -> str:
        """For people."""
        if self.stage is not Stage.DRAINING:
            return f"{self.member} {'was released' if self.stage is Stage.RELEASED else self.stage.value}"
        copies = f", {self.warming} of them being copied elsewhere ({self.lag_records:,} records to go)" if self.warming else ""
        time = "" if self.drain is None else f"; {self.drain.text()}"
        return f"{self.member} still has {self.tasks} task{'' if self.tasks == 1 else 's'}{copies}{time}"


def picked(state: GroupState, percent: int) -> tuple[ScaleDown, Drain]:
    """Whom to ask, and how long it will take until they can go."""
    from equipoise.assignors import registry  # loads the solver
    from equipoise.assignors.scale_down import drain_ms, scale_down
    from equipoise.statemachine.leader import build_problem

    problem = build_problem(state)
    found = scale_down(problem, percent)
    config = state.config
    assert config is not None, "a group with members is configured"
    assignor = registry.load(config.assignor, config.behaviour_version)
    expected_ms = drain_ms(problem, [each.member for each in found.asked], assignor)
    return found, Drain(expected_ms=expected_ms, left_ms=state.settings.drain_timeout_ms)


class Leaving(LiveGroup):
    """The members of one group that are on their way out."""

    def __init__(self, settings: LiveSettings, group: str) -> None:
        super().__init__(settings, group)
        self.members: tuple[str, ...] = ()
        """Whom to follow, by id."""
        self._stages: dict[str, Stage] = {}

    async def pick(self, percent: int) -> tuple[ScaleDown, Drain]:
        """Whom to ask, as the group is now, and how long it will take. Nobody is asked yet."""
        state = await self.state()
        if state.config is not None and state.config.led_by != "equipoise":
            raise InputError(f"--group: {self.group!r} is led by something else; equipoise cannot ask its members")
        return picked(state, percent)

    async def ask(self, percent: int) -> tuple[ScaleDown, Drain]:
        """Picks members and asks them, all in one fact. When the group has changed meanwhile, so
        that somebody is not there, it picks anew.
        """
        for _ in range(MOST_PICKS):
            found, drain = await self.pick(percent)
            asked = tuple(sorted(each.member for each in found.asked))
            self.follow((*asked, *found.leaving))
            if not asked:
                return found, drain
            await self.append(LeaveRequested(members=asked))
            state = await self.state()
            if all(state.is_asked(member) or member not in state.members for member in asked):
                return found, drain
        raise InputError(f"--group: members of {self.group!r} come and go too fast to be asked; try again")

    async def asked(self) -> tuple[str, ...]:
        """Who is asked to leave now, or would be if it came back."""
        state = await self.state()
        return tuple(sorted(member for member in state.asked if state.is_asked(member) or state.is_to_be_asked(member)))

    async def withdraw(self) -> tuple[str, ...]:
        """Takes every request back; gives those that stay. Who was released already goes all the
        same.
        """
        asked = await self.asked()
        if not asked:
            return ()
        await self.append(LeaveRequested(members=asked, withdrawn=True))
        left = await self.asked()
        return tuple(member for member in asked if member not in left)

    def follow(self, members: Iterable[str]) -> None:
        """From here on `look` tells of these."""
        self.members = tuple(sorted(members))
        self._stages = dict.fromkeys(self.members, Stage.DRAINING)

    async def look(self) -> list[Going]:
        """How far each is, by id."""
        state = await self.state()
        draining = drains(state)
        return [attrs.evolve(going, drain=draining.get(going.member)) for going in (self._going(state, member) for member in self.members)]

    def _going(self, state: GroupState, name: str) -> Going:
        member = state.members.get(name)
        if member is None:
            # Who left has no request any more; who is remembered for another one went without a
            # word.
            stage = Stage.DIED if state.is_to_be_asked(name) else Stage.LEFT
        elif self._stages[name].is_out and not (state.is_asked(name) or state.is_to_be_asked(name)):
            stage = self._stages[name]  # somebody was started under that name since
        elif member.released:
            stage = Stage.RELEASED
        elif not member.leaving and not state.is_to_be_asked(name):
            stage = Stage.STAYS
        else:
            stage = Stage.DRAINING
        self._stages[name] = stage
        return Going(member=name, stage=stage) if member is None or stage is not Stage.DRAINING else _draining(state, member)


def _draining(state: GroupState, member: MemberState) -> Going:
    moves: list[Any] = [movement for movement in state.in_flight.values() if movement.source == member.member_id]
    lags = [known_lag(state.members[each.destination].lags.get(each.task)) for each in moves if each.task in state.members[each.destination].warmup]
    return Going(
        member=member.member_id,
        stage=Stage.DRAINING,
        tasks=len(member.active) + len(member.revoking),
        warming=len(lags),
        lag_records=sum(lag for lag in lags if lag is not None),
    )
