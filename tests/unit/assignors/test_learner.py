"""`learner`, plan by plan; tests/scenarios/learner plays whole groups."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Guarantee, Plan, registry
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.learner import Learner
from equipoise.events.errors import FieldError
from equipoise.testing import AssignorGroup, stateful, stateless
from tests.support.assign_json import problem_of
from tests.unit.assignors.build import in_flight, member, movements, problem, tasks, text

STRICT: dict[str, Any] = {"options": {"strict": True}}


def plan(question: AssignmentProblem) -> Plan:
    answer = Learner().assign(question)
    assert plan_faults(question, answer, Learner.guarantees) == []
    return answer


def one_learner(lag: int = 0, ready: str = "", **settings: Any) -> AssignmentProblem:
    """m1 runs 0_0 and 0_1; m2 learns 0_1 and is so far behind."""
    return problem(
        tasks("0_0 0_1"),
        member("m1", "0_0 0_1"),
        member("m2", warmup="0_1", lags={"0_1": lag}, ready=ready),
        in_flight=[in_flight("0_1", "m1", "m2", "warming")],
        **settings,
    )


def test_guarantees_of_high_availability():
    assert Learner.guarantees == registry.latest("high_availability").guarantees == frozenset(Guarantee)


def test_ready_needs_a_report_not_a_lag():
    assert movements(plan(one_learner(lag=0))) == ["0_1 m1 -> m2 warming"]
    assert movements(registry.latest("high_availability").assign(one_learner(lag=0))) == ["0_1 m1 -> m2 revoking"]
    assert movements(plan(one_learner(lag=90_000, ready="0_1"))) == ["0_1 m1 -> m2 revoking"]


def test_strict_owner_revokes_and_resumes_a_learned_task():
    answer = plan(one_learner(lag=5, **STRICT))
    assert movements(answer) == ["0_1 m1 -> m1 revoking"]
    assert text(answer.members["m1"].active) == "0_0"
    assert text(answer.members["m1"].revoke) == "0_1"
    assert text(answer.members["m2"].warmup) == text(answer.target["m2"]) == "0_1"
    assert answer.probing


def test_strict_ready_learner_gets_the_task_at_once():
    assert movements(plan(one_learner(ready="0_1", **STRICT))) == ["0_1 m1 -> m2 revoking"]


def test_strict_follow_up_round_revokes_nothing():
    answer = plan(attrs.evolve(one_learner(**STRICT), follow_up=True))
    assert movements(answer) == ["0_1 m1 -> m2 warming"]
    assert text(answer.members["m1"].active) == "0_0 0_1"


def test_strict_revocation_continues_until_the_owner_confirms():
    question = attrs.evolve(one_learner(**STRICT), follow_up=True, in_flight=(in_flight("0_1", "m1", "m1", "revoking"),))
    assert movements(plan(question)) == ["0_1 m1 -> m1 revoking"]


@pytest.mark.parametrize("owner", [{"leaving": True}, {"lags": {"0_1": 900}}, {"subtopologies": ()}])
def test_strict_keeps_tasks_that_could_not_return(owner: dict[str, Any]):
    """A leaving member's, as in the proposal's own table; what its owner still restores; what its
    owner's topology no longer has.
    """
    question = problem(
        tasks("0_0 0_1"),
        member("m1", "0_0 0_1", **owner),
        member("m2", warmup="0_1", lags={"0_1": 700}),
        in_flight=[in_flight("0_1", "m1", "m2", "warming")],
        **STRICT,
    )
    assert "0_1 m1 -> m2 warming" in movements(plan(question))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"srict": True}, "config.options.srict: learner has no such option; it has max_standby_steps, strict"),
        ({"strict": 1}, "config.options.strict: 1 is neither true nor false"),
    ],
)
def test_invalid_option_error_names_it(options: dict[str, Any], complaint: str):
    with pytest.raises(FieldError) as refused:
        Learner().assign(problem(tasks("0_0"), member("m1"), options=options))
    assert str(refused.value).startswith(complaint)


def test_follow_up_is_read_from_json():
    line = '{"assignor": "learner", "follow_up": true, "tasks": [], "members": []}'
    assert problem_of(line)[2].follow_up
    assert not problem_of(line.replace(', "follow_up": true', ""))[2].follow_up


def test_join_moves_the_fewest_tasks_once_and_warm():
    """11 tasks with state, 7 without, on 2 members; a third joins, with 2 slots: 3 and 3 (of 7: 2
    or 3) move.
    """
    group = AssignorGroup([*stateful(11), *stateless(7)], {"m1": 1, "m2": 1}, assignor=Learner())
    group.settle(0)
    before = group.owners()
    cold = group.cold_grants
    group.join("m3")
    first = group.assignor.assign(group.problem())
    assert first.cost.moves == first.cost.moves_lower_bound
    group.settle(4)
    assert group.cold_grants == cold
    assert sum(before[task] != owner for task, owner in group.owners().items()) == first.cost.moves == group.owner_changes


def test_leaving_member_hands_over_without_cold_grants():
    group = AssignorGroup(stateful(9), {"m1": 1, "m2": 1, "m3": 1}, assignor=Learner(), max_warmups=1)
    group.settle(0)
    cold = group.cold_grants
    group.members["m2"].leaving = True
    assert group.settle(6) <= 4
    assert group.counts() == {"m1": 5, "m2": 0, "m3": 4}
    assert group.cold_grants == cold
    assert group.owner_changes == 3
