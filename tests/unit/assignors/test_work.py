"""A round's work has a bound: beyond it a cheaper stage places standbys, and the plan says so."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Plan, registry
from equipoise.assignors.common import indexed_problem, standby_goal
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.high_availability import HighAvailability
from equipoise.assignors.kafka_streams import KafkaStreams
from equipoise.events.errors import FieldError
from tests.unit.assignors.build import member, numbered, problem, tasks

TASKS, MEMBERS, STANDBYS = 40, 10, 6


def in_three_racks(**settings: Any) -> AssignmentProblem:
    """Each member owns four tasks."""
    members = [member(f"m{index}", numbered(4, start=4 * index)) for index in range(MEMBERS)]
    question = problem(
        tasks(numbered(TASKS)), *members, num_standbys=STANDBYS, rack_aware_strategy="balanced_min_cost", rack_standby_strategy="greedy", **settings
    )
    return attrs.evolve(question, members=tuple(attrs.evolve(each, rack=f"r{index % 3}") for index, each in enumerate(question.members)))


def answered(question: AssignmentProblem) -> Plan:
    answer = HighAvailability().assign(question)
    assert plan_faults(question, answer, HighAvailability.guarantees) == []
    return answer


def after(question: AssignmentProblem, answer: Plan) -> AssignmentProblem:
    """The problem when the members have the plan's standbys, all up to date."""
    members = [
        attrs.evolve(each, standby=answer.members[each.id].standby, lags={**each.lags, **dict.fromkeys(answer.members[each.id].standby, 0)})
        for each in question.members
    ]
    return attrs.evolve(question, members=tuple(members))


def copies(answer: Plan) -> dict[Any, list[str]]:
    found: dict[Any, list[str]] = {}
    for name, part in answer.members.items():
        for task in part.standby:
            found.setdefault(task, []).append(name)
    return found


def with_steps(most: object) -> AssignmentProblem:
    return in_three_racks(options={"max_standby_steps": most})


def test_copies_beyond_the_steps_are_placed_evenly_and_stay() -> None:
    exact = answered(in_three_racks())
    question = with_steps(0)
    answer = answered(question)
    assert {len(set(names)) for names in copies(answer).values()} == {STANDBYS}, "nobody lacks a copy"
    assert len(copies(answer)) == TASKS
    counts = [len(part.standby) for part in answer.members.values()]
    assert max(counts) - min(counts) <= 3, counts
    assert not answer.cost.optimal
    racks = {each.id: each.rack for each in question.members}
    for task, names in copies(answer).items():
        owner = next(name for name, part in answer.members.items() if task in part.active)
        assert {racks[name] for name in (owner, *names)} == {"r0", "r1", "r2"}, "the first two copies are placed by racks"
    again = answered(after(question, answer))
    assert copies(again) == copies(answer)
    assert not any(part.warmup for part in again.members.values())
    assert copies(exact) != copies(answer), "the two stages differ, so this test shows the cheaper one"


def test_problem_within_the_steps_is_decided_as_ever() -> None:
    assert answered(with_steps(10**12)) == answered(in_three_racks())


@pytest.mark.parametrize("name", ["high_availability", "learner", "load_balanced"])
def test_bound_is_an_option_of_all_that_place_standbys_by_racks(name: str) -> None:
    registry.latest(name).assign(with_steps(0))
    for bad in (-1, "many", True, 1.5):
        with pytest.raises(FieldError, match=r"config\.options\.max_standby_steps: .* is not a whole number >= 0"):
            registry.latest(name).assign(with_steps(bad))
    for version in range(1, registry.latest(name).version):
        with pytest.raises(FieldError, match="has no such option"):
            registry.load(name, version).assign(with_steps(0))


def test_rounds_end_when_the_steps_are_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    real = standby_goal._Goal.round

    def counted(self: Any, number: int) -> None:
        rounds.append(number)
        real(self, number)

    monkeypatch.setattr(standby_goal._Goal, "round", counted)
    answered(with_steps(6_000))
    assert ROUNDS_FIRST < len(rounds) < STANDBYS, rounds


ROUNDS_FIRST = standby_goal.ROUNDS


@pytest.mark.parametrize("assignor", [HighAvailability(), KafkaStreams()])
def test_standbys_end_at_the_most_copies(monkeypatch: pytest.MonkeyPatch, assignor: Any) -> None:
    question = problem(tasks(numbered(TASKS)), *[member(f"m{index}", numbered(4, start=4 * index)) for index in range(MEMBERS)], num_standbys=1_000)
    whole = assignor.assign(question)
    assert {len(names) for names in copies(whole).values()} == {MEMBERS - 1}
    monkeypatch.setattr(indexed_problem, "MOST_COPIES", 3 * TASKS + 1)
    answer = assignor.assign(question)
    counts = [len(names) for names in copies(answer).values()]
    assert min(counts) == 3
    assert max(counts) <= 3 + (assignor.name == "kafka_streams"), "whose standbys that move come on top"
    assert not answer.cost.optimal
    assert plan_faults(question, answer, assignor.guarantees) == []
    monkeypatch.setattr(indexed_problem, "MOST_COPIES", 1)
    assert min(len(names) for names in copies(assignor.assign(question)).values()) == 1, "one at least"


def test_standbys_that_members_are_missing_for_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    question = problem(tasks(numbered(8)), member("m1", numbered(4)), member("m2", numbered(4, start=4)), num_standbys=1_000)
    before = answered(question)
    monkeypatch.setattr(indexed_problem, "MOST_COPIES", 8)
    assert answered(question) == before
