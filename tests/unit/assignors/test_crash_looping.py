"""Members that keep crashing (`MemberSpec.crash_looping`), as assignors see them: not preferred,
and still better than a cold start (docs/protocol.md#d10).
"""

from __future__ import annotations

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, MemberSpec, MovementState, Plan, Task, registry
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.scale_down import Keep, scale_down
from equipoise.events.tasks import TaskId, parse_task
from tests.unit.assignors.build import member, plan, problem, tasks, text

STATE_FIRST = ("high_availability", "learner", "load_balanced")
OTHERS = ("cooperative", "lag_aware")
BASELINES = ("kafka_connect", "kafka_streams")


def looping(each: MemberSpec) -> MemberSpec:
    return attrs.evolve(each, crash_looping=True)


def asked(assignor: str, question: AssignmentProblem) -> Plan:
    found = registry.latest(assignor)
    answer = found.assign(question)
    assert plan_faults(question, answer, found.guarantees) == []
    return answer


def stateless(*names: str) -> list[Task]:
    return [Task(id=parse_task(name), stateful=False) for name in names]


@pytest.mark.parametrize("assignor", STATE_FIRST)
def test_crashing_owners_task_goes_to_a_caught_up_member(assignor: str):
    home = frozenset({TaskId(0, 0)})
    crashing = looping(attrs.evolve(member("m1", lags={"0_0": 0}), previously_owned=home, ready=home))
    other = attrs.evolve(member("m2", lags={"0_0": 100}), ready=home)
    answer = asked(assignor, problem(tasks("0_0"), crashing, other))
    assert text(answer.members["m2"].active) == "0_0"
    assert answer.reasons[TaskId(0, 0)].code == "crash_loop"
    assert answer.movements == ()


@pytest.mark.parametrize("assignor", STATE_FIRST)
@pytest.mark.parametrize("lag", [0, 3_000])
def test_task_without_another_warm_copy_runs_there_and_warms_up_elsewhere(assignor: str, lag: int):
    answer = asked(assignor, problem(tasks("0_0"), looping(member("m1", lags={"0_0": lag})), member("m2", lags={"0_0": 90_000})))
    assert text(answer.members["m1"].active) == "0_0"
    (movement,) = answer.movements
    assert (movement.source, movement.destination, movement.state) == ("m1", "m2", MovementState.WARMING)
    assert answer.reasons[TaskId(0, 0)].code == "crash_loop"


@pytest.mark.parametrize("assignor", STATE_FIRST)
def test_tasks_of_a_crash_looping_member_move_when_another_is_ready(assignor: str):
    ready = attrs.evolve(member("m2", lags={"0_0": 0}), ready=frozenset({TaskId(0, 0)}))
    answer = asked(assignor, problem(tasks("0_0"), looping(member("m1", "0_0")), ready))
    assert text(answer.members["m1"].revoke) == "0_0"


@pytest.mark.parametrize("assignor", [*STATE_FIRST, *OTHERS])
def test_crashing_member_gets_no_stateless_tasks(assignor: str):
    members = (looping(MemberSpec(id="m1")), MemberSpec(id="m2"), MemberSpec(id="m3"))
    question = AssignmentProblem(tasks=tuple(stateless("1_0", "1_1", "1_2", "1_3")), members=members)
    answer = asked(assignor, question)
    assert [len(answer.members[name].active) for name in ("m1", "m2", "m3")] == [0, 2, 2]
    assert answer.cost.imbalance == 0


@pytest.mark.parametrize("assignor", [*STATE_FIRST, *OTHERS])
def test_members_all_crashing_get_the_normal_plan(assignor: str):
    members = (member("m1", "0_0 0_1"), member("m2", lags={"0_2": 0}))
    calm = asked(assignor, problem(tasks("0_0 0_1 0_2"), *members))
    assert asked(assignor, problem(tasks("0_0 0_1 0_2"), *map(looping, members))) == calm


@pytest.mark.parametrize("assignor", BASELINES)
def test_baselines_ignore_crashes(assignor: str):
    members = (member("m1", lags={"0_0": 0}), member("m2"))
    question = problem(tasks("0_0 0_1"), looping(members[0]), members[1])
    assert asked(assignor, question) == asked(assignor, problem(tasks("0_0 0_1"), *members))


@pytest.mark.parametrize("assignor", [*STATE_FIRST, *OTHERS])
def test_crash_looping_member_gets_tasks_that_only_it_knows(assignor: str):
    others = MemberSpec(id="m2", subtopologies={0: 1})
    question = AssignmentProblem(tasks=tuple(stateless("0_0", "3_0")), members=(looping(MemberSpec(id="m1")), others))
    answer = asked(assignor, question)
    assert answer.members["m1"].active == (TaskId(3, 0),)
    assert answer.members["m2"].active == (TaskId(0, 0),)


def test_member_not_crashing_is_preferred_of_two_equally_ready():
    answer = plan(problem(tasks("0_0"), looping(member("m1", lags={"0_0": 500})), member("m2", lags={"0_0": 550})))
    assert text(answer.members["m2"].active) == "0_0"


def test_crashing_member_gets_no_standby():
    answer = plan(problem(tasks("0_0"), looping(member("m1", lags={"0_0": 0})), member("m2", "0_0"), member("m3"), num_standbys=1))
    assert text(answer.members["m3"].standby) == "0_0"
    assert answer.members["m1"].standby == ()


def test_crashing_member_gets_no_leavers_task():
    leaving = attrs.evolve(member("m2", "0_0"), leaving=True)
    answer = plan(problem(tasks("0_0"), looping(member("m1", lags={"0_0": 0})), leaving, member("m3")))
    assert [(each.destination, each.state) for each in answer.movements] == [("m3", MovementState.WARMING)]


def test_scale_down_keeps_crashing_member_as_staying():
    found = scale_down(problem(tasks("0_0 0_1"), looping(member("m1")), member("m2", "0_0"), member("m3", "0_1")), Keep(percent=67))
    assert found.leaving == ()
    assert found.keep == 3
