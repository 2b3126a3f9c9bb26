"""Tasks without state while state still has to move: the load is even now, and at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equipoise.assignors import Movement, MovementState, Plan, Task, registry
from equipoise.events.tasks import TaskId
from equipoise.testing import AssignorGroup, stateful
from tests.unit.assignors.build import in_flight, member, movements, numbered, plan, problem, tasks


def with_stateless(group: AssignorGroup, count: int) -> None:
    """Adds tasks without state that nobody runs."""
    group.tasks.update({TaskId(1, number): Task(id=TaskId(1, number), stateful=False) for number in range(count)})


def packed(version: int, first: dict[str, int], joining: list[str], owned: int, count: int) -> tuple[list[int], list[int], int]:
    """The tasks of each member while the warm-ups go on, and at the end, and the changes of owner."""
    group = AssignorGroup(stateful(owned), first, assignor=registry.load("high_availability", version), max_warmups=2)
    group.decide()
    for name in joining:
        group.join(name)
    with_stateless(group, count)
    group.decide()
    meanwhile = list(group.counts().values())
    group.settle(20)
    return meanwhile, list(group.counts().values()), group.owner_changes


def test_member_with_much_state_to_give_away_gets_nothing_yet():
    """Measured: three owned tasks with state and two joiners, six tasks without state that nobody
    runs. Evenness costs two changes of owner of tasks that restore nothing.
    """
    assert packed(2, {"m1": 1}, ["m2", "m3"], 3, 6) == ([5, 2, 2], [3, 3, 3], 2)
    assert packed(3, {"m1": 1}, ["m2", "m3"], 3, 6) == ([3, 3, 3], [3, 3, 3], 4)


def test_joiner_of_a_group_of_two_gets_all_that_has_no_state():
    assert packed(2, {"m1": 1, "m2": 1}, ["m3"], 10, 4) == ([7, 6, 1], [5, 5, 4], 3)
    assert packed(3, {"m1": 1, "m2": 1}, ["m3"], 10, 4) == ([5, 5, 4], [4, 5, 5], 5)


def waiting(answer: Plan) -> list[Movement]:
    return [each for each in answer.movements if each.state is MovementState.WAITING]


def test_owned_task_waits_until_its_destination_has_given_state_away():
    """As many tasks on both; what has no state would go at once, and make them nine and three."""
    two_kinds = tasks(numbered(6), numbered(6, subtopology=1))
    answer = plan(problem(two_kinds, member("m1", numbered(6)), member("m2", numbered(6, subtopology=1))))
    assert [(each.source, each.destination) for each in waiting(answer) if each.task.subtopology == 1] == [("m2", "m1")] * 3
    assert {answer.reasons[each.task].code for each in waiting(answer) if each.task.subtopology == 1} == {"after_state"}
    assert not answer.members["m2"].revoke


def test_one_task_comes_back_for_each_that_has_gone():
    """One of three has moved: m1 has five tasks and m2 seven, so one more may go, and not three."""
    two_kinds = tasks(numbered(6), numbered(6, subtopology=1))
    owners = member("m1", numbered(5)), member("m2", "0_5 " + numbered(6, subtopology=1))
    answer = plan(problem(two_kinds, *owners))
    assert len(answer.members["m2"].revoke) == 1
    revoked = answer.members["m2"].revoke[0]
    again = plan(problem(two_kinds, *owners, in_flight=[in_flight(str(revoked), "m2", "m1", "revoking")]))
    assert again.members["m2"].revoke == (revoked,)  # it counts as there already


def test_capacity_counts():
    """m1 has three times the capacity, so with six tasks it runs less than m2 with three."""
    two_kinds = tasks(numbered(6), numbered(3, subtopology=1))
    answer = plan(problem(two_kinds, member("m1", numbered(6), capacity=3), member("m2", numbered(3, subtopology=1))))
    assert [str(each.task) for each in waiting(answer) if each.task.subtopology == 1] == []


def test_leaving_member_gives_its_tasks_away_at_once():
    two_kinds = tasks(numbered(6), numbered(2, subtopology=1))
    answer = plan(problem(two_kinds, member("m1", numbered(6)), member("m2", numbered(2, subtopology=1), leaving=True), member("m3")))
    assert not [each for each in waiting(answer) if each.task.subtopology == 1], movements(answer)


@given(owned=st.integers(1, 12), count=st.integers(0, 20), first=st.integers(1, 3), joining=st.integers(1, 3))
def test_what_is_placed_leaves_no_member_with_two_more_than_another(owned: int, count: int, first: int, joining: int):
    """A member that gets a task without state has then at most one more than any other."""
    group = AssignorGroup(stateful(owned), {f"m{number}": 1 for number in range(first)}, max_warmups=1)
    group.decide()
    for number in range(joining):
        group.join(f"n{number}")
    with_stateless(group, count)
    group.decide()
    check(group)


@given(owned=st.integers(1, 12), count=st.integers(0, 20), warm=st.integers(1, 3), cold=st.integers(1, 3))
def test_group_that_starts_where_few_have_the_state_is_even_at_once(owned: int, count: int, warm: int, cold: int):
    """Nobody runs anything yet, and the tasks with state can run on the `warm` members alone."""
    group = AssignorGroup(stateful(owned), {}, max_warmups=1)
    with_stateless(group, count)
    for number in range(warm):
        group.join(f"m{number}", copies={task: 0 for task in group.tasks if task.subtopology == 0})
    for number in range(cold):
        group.join(f"n{number}")
    group.decide()
    check(group)


def check(group: AssignorGroup) -> None:
    counts = group.counts()
    got = [name for name, process in group.members.items() if any(task.subtopology for task in process.owned)]
    assert all(counts[name] <= min(counts.values()) + 1 for name in got), counts
    group.settle(60)
    assert max(group.counts().values()) - min(group.counts().values()) <= 1
