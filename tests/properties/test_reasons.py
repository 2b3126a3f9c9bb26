"""Reasons are true, for every problem: what the sentence of a decision claims of members and tasks
is compared with the problem, without the assignors' own functions where that is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import cast

import attrs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, Assignor, MemberSpec, Plan, Reason, registry
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.load_balanced.weights import weights
from equipoise.events.tasks import TaskId
from equipoise.testing import AssignorGroup, problems, stateful, stateless

ASSIGNORS = [registry.latest(name) for name in ("high_availability", "learner", "cooperative", "lag_aware", "load_balanced")]
UNEVEN_MS = 60_000
LAGS = st.sampled_from([0, 0, 5, 90, 4_000])
WITH_RACKS = {
    "rack_aware_strategy": st.sampled_from(["none", "none", "min_cost", "balanced_min_cost"]),
    "rack_traffic_cost": st.sampled_from([10, 1]),
    "rack_non_overlap_cost": st.sampled_from([1, 0]),
}


@attrs.frozen(kw_only=True)
class Said:
    """One reason of a plan, and what it speaks of."""

    problem: AssignmentProblem
    plan: Plan
    task: TaskId
    reason: Reason
    source: str | None
    destination: str

    @property
    def facts(self) -> IndexedProblem:
        """Members, copies and rates of the problem."""
        return IndexedProblem(self.problem)

    @property
    def member(self) -> MemberSpec:
        """The destination."""
        return self.of(self.destination)

    def of(self, name: str | None) -> MemberSpec:
        return next(member for member in self.problem.members if member.id == name)

    def counts(self) -> list[tuple[Counter[str], Counter[str]]]:
        """Tasks of each member now and at the target: all, those with or without state, and those
        of the sub-topology.
        """
        facts = self.facts
        now = {task: name for name, part in self.plan.members.items() for task in (*part.active, *part.revoke) if task in facts.tasks}
        then = {task: name for name, tasks in self.plan.target.items() for task in tasks}
        kinds: list[Callable[[TaskId], bool]] = [lambda _: True, lambda task: facts.tasks[task].stateful == facts.tasks[self.task].stateful]
        kinds.append(lambda task: task.subtopology == self.task.subtopology)
        both = [task for task in then if task in now]
        return [(Counter(now[task] for task in both if kind(task)), Counter(then[task] for task in both if kind(task))) for kind in kinds]


def _restores_sooner(said: Said) -> list[str]:
    facts = said.facts
    mine = facts.restore_time(said.destination, said.task)
    return [name for name in facts.eligible(said.task).members if facts.restore_time(name, said.task) < mine]


def _restores_others(said: Said, name: str) -> bool:
    """Whether the member restores, or was to restore, anything else."""
    facts = said.facts
    unready = [task for task in facts.stateful if task != said.task and not facts.caught_up(name, task)]
    has = {*facts.members[name].active, *(task for task in facts.unowned if facts.may_run(name, task))}
    return any(task in has for task in unready)


def _is_nearest(said: Said, among: Callable[[IndexedProblem, str], bool]) -> bool:
    facts = said.facts
    costs = [facts.racks.cost(said.task, name) for name in facts.eligible(said.task).members if among(facts, name)]
    return not costs or facts.racks.cost(said.task, said.destination) <= min(costs)


def _caught_up(said: Said) -> bool:
    return said.facts.caught_up(said.destination, said.task)


def _gives(said: Said) -> bool:
    return any(now[said.source or ""] > then[said.source or ""] and now[said.destination] < then[said.destination] for now, then in said.counts())


def _carries_more(said: Said) -> bool:
    """The owner with the task, compared with its destination with the task. What is in flight, or
    has no owner, counts where it goes.
    """
    problem, facts = said.problem, said.facts
    weight = weights(problem.tasks, problem.members, problem.settings)
    forced = {task for task, name in problem.owner.items() if task in facts.tasks and not facts.may_run(name, task) and facts.eligible(task)}
    then = {task: name for name, tasks in said.plan.target.items() for task in tasks}
    at = {task: then[task] if task in forced or task in facts.in_flight else problem.owner.get(task, then[task]) for task in then}
    carried = {name: sum(weight[task] for task in at if at[task] == name and task != said.task) for name in (said.source, said.destination)}
    with_it = [(carried[name] + weight[said.task]) // said.of(name).capacity for name in (said.destination, said.source)]
    return with_it[0] < with_it[1]


def _makes_room(said: Said) -> bool:
    facts = said.facts
    others = [move for move in said.plan.movements if move.destination == said.source and move.task != said.task]
    return any(facts.racks.cost(move.task, move.destination) < facts.racks.cost(move.task, move.source or "") for move in others)


def _costs_less(said: Said) -> bool:
    racks = said.facts.racks
    return racks.cost(said.task, said.destination) < racks.cost(said.task, said.source or "")


def _gives_state_away(said: Said) -> bool:
    """Whether tasks with state are to move away from the destination."""
    return any(move.source == said.destination and said.facts.tasks[move.task].stateful for move in said.plan.movements)


CLAIMS: Mapping[str, Callable[[Said], bool]] = {
    "balance": _gives,
    "balance_room": lambda said: not said.of(said.source).leaving and said.of(said.source).knows(said.task),
    "load": _carries_more,
    "traffic": _costs_less,
    "traffic_room": _makes_room,
    "not_its_own": lambda said: not said.of(said.source).knows(said.task),
    "leaving": lambda said: said.of(said.source).leaving,
    "overdue": lambda said: said.of(said.source).drain_expired,
    "crash_loop": lambda said: any(each.crash_looping for each in said.problem.members),
    "return_home": lambda said: said.task in said.member.previously_owned,
    "unowned": _caught_up,
    "unowned_near": lambda said: _caught_up(said) and _is_nearest(said, lambda facts, name: facts.caught_up(name, said.task)),
    "unowned_stateless_balance": lambda said: not said.facts.tasks[said.task].stateful,
    "unowned_stateless_near": lambda said: not said.facts.tasks[said.task].stateful and _is_nearest(said, lambda *_: True),
    "unowned_cold": lambda said: not _caught_up(said) and not _restores_sooner(said),
    "unowned_cold_equal": lambda said: not _caught_up(said) and bool(_restores_sooner(said)),
    "unowned_cold_queue": lambda said: all(_restores_others(said, name) for name in _restores_sooner(said)) and bool(_restores_sooner(said)),
    "unowned_cold_near": lambda said: not _caught_up(said),
    "unowned_cold_nearest": lambda said: not _caught_up(said) and _is_nearest(said, lambda *_: True),
    "unowned_cold_balance": lambda said: not _caught_up(said) and bool(_restores_sooner(said)),
    "ready": lambda said: said.facts.within_records(said.destination, said.task) or not said.facts.tasks[said.task].stateful,
    "ready_in_time": lambda said: said.facts.caught_up(said.destination, said.task),
    "carried": lambda said: any(move.task == said.task and move.destination == said.destination for move in said.problem.in_flight),
    "warming": lambda said: said.task in (*said.plan.members[said.destination].warmup, *said.plan.members[said.destination].standby),
    "slot_full": lambda said: said.task not in said.plan.members[said.destination].warmup,
    "after_state": lambda said: not said.facts.tasks[said.task].stateful and _gives_state_away(said),
    "blocked": lambda said: (said.task, said.destination) in said.problem.blocked,
    "lost_passed_on": lambda said: said.facts.tasks[said.task].lost_since_ms is not None,
    "lost_elsewhere": lambda said: said.facts.tasks[said.task].lost_since_ms is not None and said.task not in said.member.previously_owned,
    "passed_on": lambda said: said.destination in said.facts.eligible(said.task) and said.destination != said.source,
    "dealt": lambda said: said.destination in said.facts.eligible(said.task),
    "uneven": lambda said: said.problem.now_ms - cast(int, said.problem.memory["uneven_since_ms"]) >= UNEVEN_MS,
}
NO_CLAIM = {"standby", "lost", "next_step", "back_off", "lost_work_waits"}


def said_of(problem: AssignmentProblem, plan: Plan) -> list[Said]:
    """Every reason of the plan, of a grant or a movement; that of a movement that waits twice: for
    what it waits, and why it is wanted.
    """
    owner = problem.owner
    moving = {move.task: move for move in plan.movements}
    found = []
    for task, reason in plan.reasons.items():
        granted = next((name for name, part in plan.members.items() if task in part.active and task not in owner), None)
        move = moving.get(task)
        if move is not None:
            source: str | None = move.source
            destination: str | None = move.destination
        else:
            source, destination = owner.get(task), granted
        if destination is None:
            continue
        said = Said(problem=problem, plan=plan, task=task, reason=reason, source=source, destination=destination)
        found.append(said)
        if move is not None and reason.because is not None:
            found.append(attrs.evolve(said, reason=attrs.evolve(reason, code=reason.because)))
    return found


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=2), members=st.integers(2, 4), lags=st.lists(LAGS, min_size=8, max_size=8))
def test_reason_is_true_after_uneven_lags(sizes: list[int], members: int, lags: list[int]):
    """Of a group at rest that deals by itself, asked again after the time."""
    made = [task for topic, size in enumerate(sizes) for task in stateless(size, subtopology=topic)]
    group = AssignorGroup(made, {f"m{number}": 1 for number in range(members)}, assignor=registry.latest("lag_aware"))
    group.settle(9)
    tasks = tuple(attrs.evolve(task, lag=lag) for task, lag in zip(group.problem().tasks, lags, strict=False))
    chosen = attrs.evolve(group.settings, options={"deal_after_ms": UNEVEN_MS, "deal_gain_records": 1})
    resting = attrs.evolve(group.problem(), tasks=tasks, settings=chosen)
    first = group.assignor.assign(resting)
    assert not first.movements
    later = attrs.evolve(resting, now_ms=resting.now_ms + UNEVEN_MS, memory=first.memory)
    plan = group.assignor.assign(later)
    assert len(plan.movements) > 0 or not first.memory
    for said in said_of(later, plan):
        assert said.reason.code == "uneven"
        assert CLAIMS["uneven"](said)
        assert said.destination in said.facts.eligible(said.task)


@settings(max_examples=50)
@given(owned=st.integers(1, 8), count=st.integers(1, 12), joining=st.integers(1, 3))
def test_reason_is_true_while_state_moves(owned: int, count: int, joining: int):
    """Of tasks without state that nobody runs, beside members that join."""
    group = AssignorGroup(stateful(owned), {"m": 1}, max_warmups=1)
    group.settle(9)
    group.tasks.update({task.id: task for task in stateless(count, subtopology=1)})
    for number in range(joining):
        group.join(f"n{number}")
    problem = group.problem()
    plan = group.assignor.assign(problem)
    for said in said_of(problem, plan):
        assert CLAIMS[said.reason.code](said), f"{said.task} {said.source} -> {said.destination}: {said.reason.code}"
    event(f"waits: {any(reason.code == 'after_state' for reason in plan.reasons.values())}")


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda each: each.name)
@settings(max_examples=150)
@given(problem=problems(others=WITH_RACKS, most_tasks=8, most_members=4))
def test_reason_is_true(assignor: Assignor, problem: AssignmentProblem):
    plan = assignor.assign(problem)
    for said in said_of(problem, plan):
        if said.reason.code not in NO_CLAIM:
            assert CLAIMS[said.reason.code](said), f"{said.task} {said.source} -> {said.destination}: {said.reason.code}"
