"""`kafka_connect`: the recorded rounds of Connect's own assignor, how a problem maps to its terms,
and its memory.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Plan
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.kafka_connect import KafkaConnect
from equipoise.assignors.kafka_connect.connect_round import back_off_ms
from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from tests import vectors
from tests.support.assign_json import assign_line, problem_of
from tests.unit.assignors.build import ids, member, numbered, problem, tasks, text

ASSIGNOR = KafkaConnect()


def plan(question: AssignmentProblem) -> Plan:
    answer = ASSIGNOR.assign(question)
    assert plan_faults(question, answer, ASSIGNOR.guarantees) == []
    return answer


def after(question: AssignmentProblem, **changes: Any) -> AssignmentProblem:
    """The next problem, with the memory of this plan."""
    return attrs.evolve(question, memory=plan(question).memory, **changes)


def refused(question: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        assign_line(json.dumps({"assignor": "kafka_connect", "tasks": [], "members": [], **question}))
    return str(caught.value)


# As Connect's own


@pytest.mark.parametrize("name", ["connect", pytest.param("connect_claims", marks=pytest.mark.slow)])
def test_recorded_rounds(name: str):
    recorded = list(vectors.vectors(vectors.FOLDER / f"{name}.jsonl.gz"))
    assert len(recorded) >= 60
    for vector in recorded:
        assert vectors.connect_answer(vector["in"])["rounds"] == vectors.in_any_order(vector["out"]["rounds"]), vector["in"]


@pytest.mark.parametrize(
    ("most_ms", "back_offs"),
    [(300_000, [40, 1600, 64_000, 300_000, 300_000]), (1000, [40, 1000, 1000]), (40, [40, 40]), (39, [39, 39]), (1, [1, 1]), (0, [0, 0])],
)
def test_back_offs_grow_by_40_up_to_the_delay(most_ms: int, back_offs: list[int]):
    found = [back_off_ms(times, most_ms) for times in range(1, len(back_offs) + 1)]
    assert all(abs(value - expected) <= 1 for value, expected in zip(found, back_offs, strict=True))
    assert found[:1] == back_offs[:1]


# In our terms


def test_moving_work_is_unassigned_until_all_have_stopped():
    first = problem(tasks(stateless=numbered(4)), member("w1", numbered(4)), member("w2"))
    told = plan(first)
    assert text(told.members["w1"].revoke) == "0_0 0_1"
    assert told.members["w2"].active == ()
    assert told.target == {"w1": ids("0_2 0_3"), "w2": ()}
    assert told.probing
    still_at_it = after(first, members=(member("w1", "0_1 0_2 0_3"), member("w2"), member("w3")))
    waiting = plan(still_at_it)
    assert waiting.members["w1"] == attrs.evolve(told.members["w1"], revoke=ids("0_1"))
    assert all(not waiting.members[name].active for name in ("w2", "w3"))
    done = after(still_at_it, members=(member("w1", "0_2 0_3"), member("w2")))
    assert text(plan(done).members["w2"].active) == "0_0 0_1"
    assert {reason.code for reason in plan(done).reasons.values()} == {"fewest"}


def test_member_that_reports_its_tasks_is_not_awaited():
    first = problem(tasks(stateless=numbered(4)), member("w1", numbered(4)), member("w2"))
    again = attrs.evolve(member("w1"), reported=ids(numbered(4)))
    second = after(first, members=(again, attrs.evolve(member("w2"), reported=())))
    assert text(plan(second).members["w1"].active) == numbered(4), "the leader assumes that the members missed the last round, and backs off"
    assert plan(second).ask_again_ms == 40


def test_work_of_a_leaving_member_waits_for_the_delay():
    lost = problem(tasks(stateless="0_0 0_1"), member("w1", "0_0"), member("w2", "0_1"))
    leaving = after(lost, members=(member("w1", "0_0"), member("w2", "0_1", leaving=True)))
    assert plan(leaving).members["w2"].revoke == ids("0_1")
    assert plan(leaving).members["w1"].active == ids("0_0")
    gone = after(leaving, members=(member("w1", "0_0"), member("w2", leaving=True)), now_ms=7)
    assert plan(gone).members["w1"].active == ids("0_0")
    assert plan(gone).ask_again_ms == 300_007


def test_lost_work_states_its_deadline():
    first = problem(tasks(stateless="0_0 0_1"), member("w1", "0_0"), member("w2", "0_1"))
    known = tuple(attrs.evolve(task, lost_since_ms=5) if task.id == TaskId(0, 1) else task for task in first.tasks)
    gone = after(first, members=(member("w1", "0_0"),), tasks=known, now_ms=5)
    answer = plan(gone)
    assert answer.lost_until_ms == {TaskId(0, 1): 300_005}
    assert answer.reasons[TaskId(0, 1)].code == "lost"
    expired = attrs.evolve(gone, memory=answer.memory, now_ms=300_005)
    assert text(plan(expired).members["w1"].active) == "0_0 0_1"


def test_work_claimed_twice_is_revoked_from_both():
    claims = [attrs.evolve(member(name), reported=ids("0_0")) for name in ("w1", "w2")]
    answer = plan(problem(tasks(stateless="0_0 0_1"), *claims))
    assert all(answer.members[name].revoke == ids("0_0") for name in ("w1", "w2"))
    assert answer.reasons[TaskId(0, 0)].code == "claimed_twice"


def test_connectors_are_balanced_apart_from_tasks():
    question = problem(tasks(stateless="0_0 0_1 1_0 1_1"), member("w1"), member("w2"), options={"connectors": 0})
    assert {name: text(part.active) for name, part in plan(question).members.items()} == {"w1": "0_0 1_0", "w2": "0_1 1_1"}


def test_work_is_given_to_members_that_know_it():
    blind = member("w1", subtopologies=[7])
    assert plan(problem(tasks(stateless="0_0"), blind)).members["w1"].active == ()
    assert plan(problem(tasks(stateless="0_0"), member("w1", leaving=True))).members["w1"].active == ()
    assert plan(problem(tasks(stateless="0_0"))).members == {}


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        ({"config": {"options": {"scheduled_delay_ms": -1}}}, "$.config.options.scheduled_delay_ms: -1 is not a whole number >= 0"),
        ({"config": {"options": {"connectors": "c"}}}, "$.config.options.connectors: 'c' is not a whole number >= 0"),
        ({"memory": []}, "$.memory: [] is not an object"),
        ({"memory": {"delay_ms": "soon"}}, '$.memory.delay_ms: "soon" is not a whole number >= 0'),
        ({"memory": {"assigned_tasks": ["x"]}}, "$.memory.assigned_tasks[0]: 'x' is not a task id"),
        ({"memory": {"last_members": [1]}}, "$.memory.last_members[0]: 1 is not a text"),
        ({"members": [{"id": "w", "reported": ["0_0", "0_0"]}]}, "$.members[0].reported[1]: '0_0' repeats item [0]"),
        (
            {"tasks": [{"id": "0_0", "stateful": False}], "members": [{"id": "w", "active": ["0_0"], "reported": []}]},
            "$.members[w].reported: 0_0 is active there; name it here too",
        ),
    ],
)
def test_unsound_problem_is_refused_with_its_json_path(question: dict[str, Any], complaint: str):
    assert refused(question).startswith(complaint)


def test_memory_goes_out_and_comes_back_the_same():
    question = {"assignor": "kafka_connect", "tasks": [{"id": "0_0", "stateful": False}], "members": [{"id": "w1"}, {"id": "w2"}], "now_ms": 9}
    memory = json.loads(assign_line(json.dumps(question)))["memory"]
    assert memory["assigned_tasks"] == ["0_0"]
    assert memory["last_members"] == ["w1", "w2"]
    again = problem_of(json.dumps({**question, "memory": memory}))[2]
    assert again.now_ms == 9
    assert again.memory == ASSIGNOR.assign(problem_of(json.dumps(question))[2]).memory
