"""Operators that ask members of a deployed group to leave, at once, or while the group changes."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest

from equipoise.assignors.scale_down import Keep, ScaleDown
from equipoise.events.facts import ChangePlanned, Fact, LeaveRequested
from equipoise.operations.leaving import LeavingMembers
from equipoise.testing import Group
from equipoise.testing.group import NAME
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedSettings

MEMBERS = ("m1", "m2", "m3", "m4")


@attrs.define
class Operator:
    """One `equipoise scale-down --keep`. `late_s`: its request is so long on its way. `asks`: whom
    it asks, whatever is best. `plan`: what it writes down before. `planned`: id of the change that
    will be judged.
    """

    keep: str
    late_s: float = 0.0
    asks: tuple[str, ...] = ()
    plan: ChangePlanned | None = None
    planned: str | None = None
    asked: tuple[str, ...] | None = None
    error: BaseException | None = None

    async def work(self, settings: SimulatedSettings) -> None:
        late_s = [self.late_s]

        class Late(LeavingMembers):
            async def append(self, fact: Fact) -> int:
                if isinstance(fact, LeaveRequested) and late_s:
                    await asyncio.sleep(late_s.pop())
                return await super().append(fact)

        async with Late(settings, NAME) as leaving:
            if self.asks:
                await leaving.append(LeaveRequested(members=self.asks))
                return
            keep = Keep.parse(self.keep)
            found, _ = await leaving.pick(keep)
            found, _ = await leaving.ask(keep, self.plan, _names(found))
            self.asked, self.planned = _names(found), leaving.planned

    def begin(self, group: Group, name: str) -> None:
        def ended(error: BaseException | None) -> None:
            self.error = error

        process = group._process(name, ended)
        process.start(self.work(SimulatedSettings(made=SimulatedClients(group._cluster, process.name), partitions=1)))


def _names(found: ScaleDown) -> tuple[str, ...]:
    return tuple(sorted(each.member for each in found.asked))


def run(group: Group) -> set[str]:
    return {name for name, seat in group._seats.items() if seat.process is not None}


@pytest.fixture
def group() -> Any:
    with Group(lambda record, context: None, guarantee="at_least_once") as made:
        made.join(*MEMBERS)
        made.settle()
        yield made


@pytest.mark.parametrize("apart_s", [0.0, 0.002, 0.5])
def test_operators_at_once_leave_as_many_members_as_the_one_that_wants_fewest(group: Group, apart_s: float) -> None:
    operators = [Operator("3"), Operator("50%")]
    for number, operator in enumerate(operators):
        operator.begin(group, f"operator{number}")
        group.advance(apart_s)
    group.advance(60)
    assert [each.error for each in operators] == [None, None]
    assert len(run(group)) == 2


@pytest.mark.parametrize("other", ["leaves", "asked", "killed"])
def test_request_that_is_late_asks_nobody_when_others_have_gone_meanwhile(group: Group, other: str) -> None:
    """It was made for four members of which three stay; another one has gone, so three are left."""
    late = Operator("3", late_s=90.0)
    late.begin(group, "operator")
    group.advance(5)
    if other == "leaves":
        group.leave("m4")
    elif other == "killed":
        group.crash("m4")
    else:
        Operator("3", asks=("m4",)).begin(group, "other")
    group.advance(120)
    assert late.error is None
    assert late.asked == ()
    assert run(group) == {"m1", "m2", "m3"}


@pytest.mark.parametrize(("made_from", "planned"), [(0, "c1"), (1, None)])
def test_members_are_asked_whether_or_not_their_leaving_is_judged(group: Group, made_from: int, planned: str | None) -> None:
    """A plan of settings that are not in force is not said to be judged."""
    operator = Operator("3", plan=ChangePlanned(change_id="c1", kind="scale_down", what="one leaves", made_from=made_from))
    operator.begin(group, "operator")
    group.advance(60)
    assert (operator.error, operator.planned, len(run(group))) == (None, planned, 3)
