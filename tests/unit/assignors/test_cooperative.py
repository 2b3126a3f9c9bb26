"""`cooperative`: lost work waits and returns, revocations for balance back off, new work is dealt
evenly, options are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, MemberSpec, Movement, MovementState, Plan, Revocations, Task, registry
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.cooperative import Cooperative
from equipoise.assignors.cooperative.options import CooperativeOptions
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId, parse_task
from equipoise.testing import AssignorGroup
from equipoise.testing.assignor_group import stateless
from tests.unit.assignors.build import ids, in_flight, member, numbered, problem, tasks

COOPERATIVE = Cooperative()


def plan(question: AssignmentProblem) -> Plan:
    answer = COOPERATIVE.assign(question)
    assert plan_faults(question, answer, COOPERATIVE.guarantees) == []
    return answer


def asked(every: Iterable[Task], *members: MemberSpec, lost: str = "", since_ms: int = 0, now_ms: int = 0, **rest: Any) -> AssignmentProblem:
    """A question about tasks without state of which `lost` were lost at `since_ms`."""
    gone = ids(lost)
    placed = [attrs.evolve(task, lost_since_ms=since_ms) if task.id in gone else task for task in every]
    revocations = rest.pop("revocations", Revocations())
    return attrs.evolve(problem(placed, *members, **rest), now_ms=now_ms, revocations=revocations)


def counts(answer: Plan) -> list[int]:
    """How many tasks each member has now."""
    return [len(part.active) for part in answer.members.values()]


def text(found: Iterable[TaskId]) -> str:
    return " ".join(map(str, found))


NINE = tasks(stateless="0_0 0_1 0_2 0_3 0_4 0_5 0_6 0_7 0_8")


# Lost work


def test_lost_work_waits_for_its_member_and_moves_no_other():
    group = [member("w1", "0_0 0_1 0_2"), member("w2", "0_3 0_4 0_5"), member("w4")]
    answer = plan(asked(NINE, *group, lost="0_6 0_7 0_8", since_ms=7_000, now_ms=8_000))
    assert counts(answer) == [3, 3, 0]
    assert answer.lost_until_ms == dict.fromkeys(ids("0_6 0_7 0_8"), 307_000)
    assert answer.scheduled_ms == 307_000
    assert answer.movements == ()
    assert {reason.code for reason in answer.reasons.values()} == {"lost"}


def test_returning_member_gets_its_lost_tasks_back():
    group = [member("w1", "0_0 0_1 0_2"), member("w2", "0_3 0_4 0_5"), member("w3", previously_owned="0_6 0_7 0_8")]
    answer = plan(asked(NINE, *group, lost="0_6 0_7 0_8", now_ms=1))
    assert text(answer.members["w3"].active) == "0_6 0_7 0_8"
    assert (answer.lost_until_ms, answer.scheduled_ms) == ({}, None)
    assert {reason.code for reason in answer.reasons.values()} == {"return_home"}


def test_returning_member_that_leaves_is_waited_for():
    group = [member("w1", "0_0 0_1 0_2"), member("w3", previously_owned="0_6", leaving=True)]
    answer = plan(asked(NINE[:3] + NINE[6:7], *group, lost="0_6", now_ms=1))
    assert list(map(str, answer.lost_until_ms)) == ["0_6"]


@pytest.mark.parametrize(("now_ms", "waits"), [(299_999, True), (300_000, False)])
def test_delay_ends_on_the_millisecond(now_ms: int, waits: bool):
    answer = plan(asked(NINE[:2], member("w1", "0_0"), lost="0_1", now_ms=now_ms))
    assert bool(answer.lost_until_ms) is waits
    assert text(answer.members["w1"].active) == ("0_0" if waits else "0_0 0_1")


def test_lost_tasks_have_own_delays_and_the_first_is_scheduled():
    every = [attrs.evolve(task, lost_since_ms=1_000 * task.id.partition) for task in NINE[:3]]
    answer = plan(attrs.evolve(problem(every, member("w1")), now_ms=2_500))
    assert {str(task): until_ms for task, until_ms in answer.lost_until_ms.items()} == {"0_0": 300_000, "0_1": 301_000, "0_2": 302_000}
    assert answer.scheduled_ms == 300_000


def test_zero_delay_assigns_at_once():
    answer = plan(asked(NINE[:2], member("w1", "0_0"), lost="0_1", options={"scheduled_delay_ms": 0}))
    assert text(answer.members["w1"].active) == "0_0 0_1"
    assert answer.reasons[parse_task("0_1")].code == "lost_passed_on"


def test_lost_task_in_flight_goes_to_its_destination():
    group = [member("w1", "0_0"), member("w2")]
    answer = plan(asked(NINE[:2], *group, lost="0_1", in_flight=[in_flight("0_1", None, "w2", "revoking")]))
    assert text(answer.members["w2"].active) == "0_1"


def test_leaving_member_hands_over_while_lost_work_waits():
    group = [member("w1", "0_0 0_1", leaving=True), member("w2", "0_2 0_3")]
    answer = plan(asked(NINE[:5], *group, lost="0_4", now_ms=5))
    assert [(str(each.task), each.destination, each.state) for each in answer.movements] == [
        ("0_0", "w2", MovementState.REVOKING),
        ("0_1", "w2", MovementState.REVOKING),
    ]
    assert list(map(str, answer.lost_until_ms)) == ["0_4"]


@pytest.mark.parametrize(
    ("wrong", "field"), [({"lost": "0_0"}, "tasks[0_0].lost_since_ms"), ({"lost": "0_1", "since_ms": 9}, "tasks[0_1].lost_since_ms")]
)
def test_problem_that_contradicts_itself_is_error(wrong: dict[str, Any], field: str):
    with pytest.raises(FieldError) as caught:
        COOPERATIVE.assign(asked(NINE[:2], member("w1", "0_0"), **{"now_ms": 5, **wrong}))
    assert caught.value.field == field


# The back-off


TWELVE = tasks(stateless=" ".join(f"0_{number}" for number in range(12)))
FULL_AND_EMPTY = (member("w1", text(task.id for task in TWELVE)), member("w2"))


def later(answer: Plan, question: AssignmentProblem, now_ms: int, *more: MemberSpec) -> AssignmentProblem:
    """The same group at `now_ms`, before the members have acted on the plan."""
    begun = tuple(each for each in answer.movements if each.state is not MovementState.WAITING)
    return attrs.evolve(question, now_ms=now_ms, revocations=answer.revocations, in_flight=begun, members=(*question.members, *more))


def states(answer: Plan) -> Counter[str]:
    return Counter(each.state.value for each in answer.movements)


def test_revocations_back_off_longer_each_time():
    many = tasks(stateless=" ".join(f"0_{number}" for number in range(240)))
    question = asked(many, member("w1", text(task.id for task in many)), member("w2"))
    answer = plan(question)
    assert (states(answer), answer.revocations, answer.scheduled_ms) == ({"revoking": 120}, Revocations(times=1, since_ms=0), None)
    now_ms = 0
    for times, wait_ms in enumerate((40, 1_600, 64_000, 300_000, 300_000), start=1):
        question = later(answer, question, now_ms + wait_ms - 1, member(f"w{times + 2}"))
        early = plan(question)
        assert states(early)["waiting"] > 0
        assert early.reasons[early.movements[-1].task].code == "back_off"
        assert early.scheduled_ms == now_ms + wait_ms
        now_ms += wait_ms
        question = later(early, question, now_ms)
        answer = plan(question)
        assert states(answer)["waiting"] == 0
        assert answer.revocations == Revocations(times=times + 1, since_ms=now_ms)


def test_balanced_group_resets_the_back_off():
    rest = plan(asked(TWELVE, member("w1", text(task.id for task in TWELVE)), revocations=Revocations(times=4, since_ms=0), now_ms=50))
    assert rest.revocations == Revocations(times=0, since_ms=0)
    again = plan(asked(TWELVE, *FULL_AND_EMPTY, revocations=rest.revocations, now_ms=60))
    assert states(again) == {"revoking": 6}
    assert again.revocations == Revocations(times=1, since_ms=60)


def test_balanced_group_keeps_the_back_off_deadline():
    waiting = Revocations(times=3, since_ms=0, until_ms=64_000)
    rest = plan(asked(TWELVE, member("w1", text(task.id for task in TWELVE)), revocations=waiting, now_ms=50))
    assert rest.revocations.until_ms == 64_000
    again = plan(asked(TWELVE, *FULL_AND_EMPTY, revocations=rest.revocations, now_ms=60))
    assert states(again) == {"waiting": 6}
    assert again.scheduled_ms == 64_000


def test_tasks_of_a_leaving_member_do_not_wait_for_the_back_off():
    group = [member("w1", "0_0 0_1", leaving=True), member("w2")]
    answer = plan(asked(TWELVE[:2], *group, revocations=Revocations(times=1, since_ms=0, until_ms=40), now_ms=1))
    assert states(answer) == {"revoking": 2}


def test_begun_revocations_continue():
    group = [member("w1", "0_0 0_1"), member("w2")]
    begun = [in_flight("0_0", "w1", "w2", "revoking")]
    answer = plan(asked(TWELVE[:2], *group, in_flight=begun, revocations=Revocations(times=1, since_ms=0, until_ms=40), now_ms=1))
    assert answer.movements == (Movement(task=TaskId(0, 0), source="w1", destination="w2", state=MovementState.REVOKING),)


# Dealing: Kafka's testAssignConnectorsWhenBalanced, testAssignTasksWhenBalanced,
# testAssignConnectorsWhenImbalanced


@pytest.mark.parametrize(("running", "new", "expected"), [((2, 2, 2), 5, (4, 4, 3)), ((2, 3, 4, 0), 15, (6, 6, 6, 6))])
def test_new_work_goes_to_the_least_loaded_and_moves_none(running: tuple[int, ...], new: int, expected: tuple[int, ...]):
    every = tasks(stateless=" ".join(f"0_{number}" for number in range(sum(running) + new)))
    left = iter(range(sum(running)))
    group = [member(f"w{number}", " ".join(f"0_{next(left)}" for _ in range(count))) for number, count in enumerate(running)]
    answer = plan(asked(every, *group))
    assert sorted(counts(answer)) == sorted(expected)
    assert answer.movements == ()


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.integers(1, 5))
def test_new_sub_topologies_are_even_on_every_member(sizes: list[int], members: int):
    every = tasks(stateless=" ".join(f"{part}_{number}" for part, size in enumerate(sizes) for number in range(size)))
    answer = plan(asked(every, *(member(f"w{number}") for number in range(members))))
    for part, size in enumerate(sizes):
        having = [sum(task.subtopology == part for task in each.active) for each in answer.members.values()]
        assert max(having) - min(having) <= 1, f"{size} tasks of {part}: {having}"
    assert max(counts(answer)) - min(counts(answer)) <= 1


@given(st.integers(1, 6), st.integers(1, 4))
def test_second_member_gets_half_of_each_sub_topology(size: int, parts: int):
    """As many moves as balance asks for, and they are spread."""
    every = tasks(stateless=" ".join(f"{part}_{number}" for part in range(parts) for number in range(2 * size)))
    answer = plan(asked(every, member("w1", text(task.id for task in every)), member("w2")))
    assert answer.cost.moves == answer.cost.moves_lower_bound == parts * size
    assert Counter(each.task.subtopology for each in answer.movements) == dict.fromkeys(range(parts), size)


# A whole life


def test_bounce_moves_nothing():
    group = AssignorGroup(stateless(12), {"w1": 1, "w2": 1, "w3": 1}, assignor=COOPERATIVE)
    group.settle(3)
    before = group.owners()
    group.die("w2")
    group.round()
    assert group.counts() == {"w1": 4, "w3": 4}
    group.join("w2")
    group.round()
    assert group.owners() == before
    assert group.owner_changes == 0


def test_lost_tasks_are_placed_when_the_delay_ends():
    group = AssignorGroup(stateless(12), {"w1": 1, "w2": 1, "w3": 1}, assignor=COOPERATIVE)
    group.settle(3)
    group.die("w2")
    for _ in range(5):  # 300 s after its death, at 60 s each
        assert group.decide().lost_until_ms
        group.round()
    assert group.counts() == {"w1": 6, "w3": 6}
    assert group.owner_changes == 0


# Options


@pytest.mark.parametrize("name", ["scheduled_delay_ms", "revocation_backoff_ms", "revocations_per_round"])
@pytest.mark.parametrize("wrong", [-1, 1.5, True, "5"])
def test_option_wrong_value_error_names_it(name: str, wrong: Any):
    with pytest.raises(FieldError, match="is not a whole number >= 0") as caught:
        COOPERATIVE.assign(asked(NINE, member("w1"), options={name: wrong}))
    assert caught.value.field == f"config.options.{name}"


def test_default_delays_are_those_of_connect():
    defaults = CooperativeOptions(scheduled_delay_ms=300_000, revocation_backoff_ms=40, revocations_per_round=0)
    assert CooperativeOptions.of(GroupSettings(), Cooperative.options) == defaults
    assert [CooperativeOptions().backoff_ms(times) for times in (0, 1, 2, 3, 4, 99)] == [40, 40, 1_600, 64_000, 300_000, 300_000]
    assert CooperativeOptions(scheduled_delay_ms=1).backoff_ms(1) == 1
    assert CooperativeOptions(scheduled_delay_ms=0).backoff_ms(3) == 0


def test_round_limits_revocations_for_balance():
    """Tasks that must move, because their owner is leaving, do not count."""
    options = {"revocations_per_round": 2}
    first = COOPERATIVE.assign(asked(NINE, member("w1", numbered(9)), member("w2"), options=options))
    assert [each.state.value for each in first.movements] == ["revoking"] * 2 + ["waiting"] * 2
    assert {reason.code for reason in first.reasons.values()} == {"balance", "next_step"}
    forced = COOPERATIVE.assign(asked(NINE, member("w1", numbered(9), leaving=True), member("w2"), options=options))
    assert [each.state.value for each in forced.movements] == ["revoking"] * 9


def test_version_1_has_no_such_option():
    with pytest.raises(FieldError, match="has no such option"):
        registry.load("cooperative", 1).assign(asked(NINE, member("w1"), options={"revocations_per_round": 2}))
