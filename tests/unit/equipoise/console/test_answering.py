"""What-if and explanations, by the process beside the worker: the real machine, on a copy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from equipoise.console import questions as questions_module
from equipoise.console.answering import NEW_MEMBER, answer
from equipoise.console.questions import BusyError, Explain, Questions, WhatIfQuestion
from equipoise.events.facts import LeaveRequested
from equipoise.events.records import BaseState
from equipoise.events.tasks import TaskId
from equipoise.replay.all_clear import led_here
from equipoise.statemachine.state import GroupState
from tests.groups import GROUP, Group, configured, joined, topology


def base_of(group: Group) -> BaseState:
    state = group.state
    return BaseState(
        group=GROUP,
        offset=state.last_offset,
        number=state.number,
        begins_offset=state.last_offset,
        append_ms=state.last_append_ms or 0,
        state=group.machine.snapshot(),
    )


def settled(**settings: Any) -> Group:
    group = Group().starts("m1", "m2", "m3", stateful=12, **settings)
    group.settles()
    return group


def loads(state: GroupState) -> dict[str, int]:
    return {name: len(member.active) for name, member in state.members.items()}


def test_what_if_another_member_joins_is_what_then_happens() -> None:
    group = settled()
    before = group.machine.snapshot()
    found = answer(WhatIfQuestion(base=base_of(group), join=1))
    assert group.machine.snapshot() == before
    assert {each["member"]: (each["before"], each["after"]) for each in found["members"]} == {
        "m1": (4, 3),
        "m2": (4, 3),
        "m3": (4, 3),
        NEW_MEMBER: (0, 3),
    }
    assert (found["changes_of_owner"], found["fewest"], found["imbalance_after"]) == (3, 3, 0)
    assert found["warmups"] == 2, "max_warmups"
    first = len(group.moves("warming"))
    group.join(NEW_MEMBER)
    moved = {str(move.task) for move in group.moves("warming")[first:]}
    assert {each["task"] for each in found["moves"] if each["state"] == "warming"} == moved
    assert all(each["why"] for each in found["moves"])
    group.settles()
    assert loads(group.state)[NEW_MEMBER] == 3


def test_what_if_members_leave_is_what_then_happens() -> None:
    group = settled()
    found = answer(WhatIfQuestion(base=base_of(group), without=("m2",)))
    assert {each["member"]: each["after"] for each in found["members"]} == {"m1": 6, "m2": 0, "m3": 6}
    group.fact(LeaveRequested(members=("m2",)))
    assert {str(task) for task in group.state.in_flight} <= {each["task"] for each in found["moves"]}


def test_what_if_a_setting_changes() -> None:
    group = Group().starts("m1", "m2", stateful=12, max_warmups=1)
    group.settles()
    group.join("m3", restores=10)
    assert len(group.state.members["m3"].warmup) == 1
    found = answer(WhatIfQuestion(base=base_of(group), settings=("max_warmups=4", "max_warmups_per_member=4")))
    assert found["warmups"] == 4


def test_what_if_waits_until_the_leader_decides() -> None:
    group = settled(join_delay_ms=5_000)
    found = answer(WhatIfQuestion(base=base_of(group), join=1))
    assert found["waited_ms"] == 2_000, "group time is at 3 s, and the first join was at its beginning"
    assert {each["after"] for each in found["members"]} == {3}


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"settings": ("max_warmup=4",)}, "did you mean max_warmups"),
        ({"settings": ("max_warmups=-1",)}, "max_warmups"),
        ({"without": ("m9",)}, "no member 'm9'"),
        ({"join": 101}, "at most 100"),
        ({"join": -1}, "at most 100"),
    ],
)
def test_what_if_without_sense_says_why(asked: dict[str, Any], problem: str) -> None:
    assert problem in answer(WhatIfQuestion(base=base_of(settled()), **asked))["problem"]


def test_what_if_of_a_group_that_another_leader_leads_has_no_answer() -> None:
    group = Group()
    group.fact(configured(led_by="external"))
    group.fact(topology(stateful=2))
    group.fact(joined("m1"))
    assert "equipoise does not lead this group" in answer(WhatIfQuestion(base=base_of(group), join=1))["problem"]


def test_what_if_nothing_follows_says_so() -> None:
    group = settled()
    found = answer(WhatIfQuestion(base=base_of(group)))
    assert (found["problem"], found["moves"]) == ("", [])
    assert "nothing would follow" in found["remarks"][0]


def test_explanation_says_where_its_memory_begins() -> None:
    group = settled()
    found = answer(
        Explain(base=base_of(group), task=TaskId(0, 3), moves=(), stopped=(), unknown_before=", since before 12:00:00", grounds=led_here(group.state))
    )
    owner = group.state.owner[TaskId(0, 3)]
    assert found["why_here"] == [f"0_3 is on {owner}, since before 12:00:00."]
    assert {each["member_id"] for each in found["candidates"]} == {"m1", "m2", "m3"}
    assert (
        "no task 7_0"
        in answer(Explain(base=base_of(group), task=TaskId(7, 0), moves=(), stopped=(), unknown_before="", grounds=led_here(group.state)))["problem"]
    )


async def test_process_answers_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = Questions()
    group = settled()
    try:
        first = await questions.ask(WhatIfQuestion(base=base_of(group), join=1))
        process = questions._process
        assert process is not None
        again = await asyncio.gather(*(questions.ask(WhatIfQuestion(base=base_of(group), join=1)) for _ in range(3)))
        assert again == [first] * 3 == [answer(WhatIfQuestion(base=base_of(group), join=1))] * 3
        assert questions._process is process, "one process for all"
        monkeypatch.setattr(questions_module, "ANSWER_S", 0.000_1)
        with pytest.raises(BusyError, match="no answer within"):
            await questions.ask(WhatIfQuestion(base=base_of(group), join=1))
        assert process.returncode is not None, "a late answer must not be taken for another one's"
        monkeypatch.setattr(questions_module, "MOST_WAITING", 0)
        with pytest.raises(BusyError, match="ask again"):
            await questions.ask(WhatIfQuestion(base=base_of(group)))
    finally:
        await questions.close()
