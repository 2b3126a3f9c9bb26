"""The contract of assignors, as checks that search for a counterexample.

Each check is a function of an assignor. It returns, or raises AssertionError with the smallest
problem that hypothesis finds. With pytest::

    import pytest
    from equipoise.testing import CONTRACT

    @pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
    def test_contract(check):
        check(MyAssignor())

An assignor with options, or for which other settings matter, is wrapped, so that these are drawn
too::

    options = st.fixed_dictionaries({"strict": st.booleans()})
    check(Subject(assignor=MyAssignor(), group_settings={"options": options}))

A check that an assignor cannot pass by its nature (one that reproduces another system's decisions,
which depend on names) is left out by name, with a comment that says why: ``[check for check in
CONTRACT if check is not names_play_no_part]``. The number of examples comes from the hypothesis
profile, or from `Subject.settings`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs
import hypothesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from equipoise.assignors import AssignmentProblem, Assignor, Guarantee, Plan, PlanCost
from equipoise.assignors.common.validation import plan_faults
from equipoise.events.errors import InputError
from equipoise.events.tasks import Lag, TaskId
from equipoise.testing.assignor_group import AssignorGroup, stateful, stateless
from equipoise.testing.problems import problems

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Subject:
    """An assignor and its problems. `group_settings`: strategies of values by setting, beside the
    usual ones. `settings` None: those of the hypothesis profile.

    `adapted`: adds to each problem what only this assignor needs.
    """

    assignor: Assignor
    group_settings: Mapping[str, st.SearchStrategy[Any]] = attrs.field(factory=dict)
    adapted: Callable[[AssignmentProblem], AssignmentProblem] = lambda problem: problem
    settings: hypothesis.settings | None = None

    def problems(self, **wanted: Any) -> st.SearchStrategy[AssignmentProblem]:
        """See `equipoise.testing.problems.problems`."""
        return problems(others=self.group_settings, **wanted).map(self.adapted)

    def assign(self, problem: AssignmentProblem) -> Plan:
        return self.assignor.assign(problem)


Check = Callable[[Assignor | Subject], None]


def _subject(assignor: Assignor | Subject) -> Subject:
    return assignor if isinstance(assignor, Subject) else Subject(assignor=assignor)


def _look_for_one(subject: Subject, check: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    chosen = subject.settings or hypothesis.settings()
    patient = hypothesis.settings(chosen, deadline=None, suppress_health_check=[*chosen.suppress_health_check, HealthCheck.too_slow])
    patient(given(**strategies)(check))()


# The checks


def is_named(assignor: Assignor | Subject) -> None:
    """Name, version (from 1), solver (or "") and guarantees are values that a log can carry."""
    asked = _subject(assignor).assignor
    assert isinstance(asked.name, str), "name: no text"
    assert asked.name == asked.name.strip().lower(), f"name: {asked.name!r} is not lower case"
    assert asked.name, "name: empty; a log names it"
    assert isinstance(asked.version, int), "version: no whole number"
    assert asked.version >= 1, "version: behaviour versions begin at 1"
    assert isinstance(asked.solver, str), 'solver: name and version of a pinned solver, or ""'
    assert isinstance(asked.guarantees, frozenset), "guarantees: not a frozenset"
    assert all(isinstance(each, Guarantee) for each in asked.guarantees), "guarantees: not of equipoise.assignors.Guarantee"


def plans_hold(assignor: Assignor | Subject) -> None:
    """Every plan keeps invariants 1, 3 and 6, and 2, 4 and 5 as far as `guarantees` states them
    (`plan_faults`).

    Problems are groups in any state: leaving and overdue members, an older topology, warm-ups and
    hand-overs under way (of another assignor too), back-offs, unknown lags, claims of zombies.
    """
    subject = _subject(assignor)

    def check(problem: AssignmentProblem) -> None:
        plan = subject.assign(problem)
        faults = plan_faults(problem, plan, subject.assignor.guarantees)
        assert not faults, faults
        assert list(plan.target) == sorted(plan.target), "target: not in rising order of members"
        assert list(plan.reasons) == sorted(plan.reasons), "reasons: not in rising order of tasks"

    _look_for_one(subject, check, problem=subject.problems())


def has_no_memory(assignor: Assignor | Subject) -> None:
    """The same problem has the same plan, whatever was asked in between."""
    subject = _subject(assignor)

    def check(problem: AssignmentProblem, other: AssignmentProblem) -> None:
        before = repr(problem)
        first = subject.assign(problem)
        subject.assign(other)
        assert subject.assign(problem) == first
        assert repr(problem) == before, "it changed the question"

    _look_for_one(subject, check, problem=subject.problems(), other=subject.problems(most_tasks=4, most_members=3))


def order_plays_no_part(assignor: Assignor | Subject) -> None:
    """The plan is the same in whatever order tasks, members, movements and everything in them are
    given.
    """
    subject = _subject(assignor)

    def check(problem: AssignmentProblem, dice: random.Random) -> None:
        assert subject.assign(shuffled(problem, dice)) == subject.assign(problem)

    _look_for_one(subject, check, problem=subject.problems(), dice=st.randoms(use_true_random=False))


def names_play_no_part(assignor: Assignor | Subject) -> None:
    """With other member names the plan may differ, but its cost is the same, where the same members
    are granted the tasks without owner: of several that are as good, the name decides, and what is
    moved follows from it. (`cross_rack` is a cost only where the settings are rack-aware.)
    """
    subject = _subject(assignor)

    def cost(problem: AssignmentProblem, plan: Plan) -> PlanCost:
        cost = plan.cost
        if problem.settings.rack_aware_strategy == "none":
            cost = attrs.evolve(cost, cross_rack=0)
        if getattr(subject.assignor, "announced", False):
            cost = attrs.evolve(cost, restore_records=0)  # they are counted by lag, and copies are ready by word
        return cost

    def granted(problem: AssignmentProblem, plan: Plan) -> dict[TaskId, str]:
        return {task: name for name, part in plan.members.items() for task in part.active if task not in problem.owner}

    def check(problem: AssignmentProblem, order: list[int]) -> None:
        names = {f"m{index}": f"m{order[index]}" for index in range(6)}
        other = renamed(problem, names)
        plan, found = subject.assign(problem), subject.assign(other)
        assert cost(other, found) == cost(problem, plan) or granted(other, found) != {
            task: names[name] for task, name in granted(problem, plan).items()
        }

    _look_for_one(subject, check, problem=subject.problems(most_tasks=12, most_members=6), order=st.permutations(range(6)))


def a_group_that_obeys_settles(assignor: Assignor | Subject) -> None:
    """Members join, return, die and leave, also during movements; copies restore, and tasks are
    handed over. Every plan holds. With Guarantee.CONVERGES: within `most_rounds`, no movement is
    left, every task has an owner, the target is reached, and further rounds change nothing.
    """
    subject = _subject(assignor)

    def check(data: st.DataObject) -> None:
        group = data.draw(groups(subject))
        gone: dict[str, dict[TaskId, Lag]] = {}
        for number in range(data.draw(st.integers(1, 6))):
            change(data.draw, group, number, gone)
            for _ in range(data.draw(st.integers(0, 2))):
                group.round()
        if Guarantee.CONVERGES not in subject.assignor.guarantees:
            for _ in range(3):
                group.round()
            return
        group.settle(most_rounds(group))
        _stays(group)

    _look_for_one(subject, check, data=st.data())


def noise_moves_nothing(assignor: Assignor | Subject) -> None:
    """With Guarantee.CONVERGES: a group at rest whose changelogs grow and whose copies lag within
    acceptable_recovery_lag stays as it is.
    """
    subject = _subject(assignor)
    if Guarantee.CONVERGES not in subject.assignor.guarantees:
        return

    def check(data: st.DataObject) -> None:
        group = data.draw(groups(subject))
        group.settle(most_rounds(group))
        rest = _held(group)
        for _ in range(data.draw(st.integers(1, 4))):
            for task in list(group.tasks.values()):
                if task.stateful:
                    group.tasks[task.id] = attrs.evolve(task, end_offset=task.end_offset + data.draw(st.integers(0, 10_000)))
            for process in group.members.values():
                process.copies.update({task: data.draw(st.integers(0, group.settings.acceptable_recovery_lag)) for task in sorted(process.standby)})
            plan = group.decide()
            assert not plan.movements, f"it moves {[str(movement.task) for movement in plan.movements]}"
            assert _held(group) == rest

    _look_for_one(subject, check, data=st.data())


def hash_seeds_play_no_part(assignor: Assignor | Subject) -> None:
    """Another process with another PYTHONHASHSEED gives the same plans, byte for byte. The
    assignor's class must be importable and take no parameters, as for its entry point; the settings
    are the usual ones.
    """
    asked = type(_subject(assignor).assignor)
    answers = set()
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "equipoise.testing.elsewhere", asked.__module__, asked.__qualname__]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers.add(done.stdout)
    assert len(answers) == 1, "plans differ between processes: something iterates over a set, or asks for hash()"
    assert answers.pop().count("\n") >= 20, "too few plans were compared"


CONTRACT: tuple[Check, ...] = (
    is_named,
    plans_hold,
    has_no_memory,
    order_plays_no_part,
    names_play_no_part,
    a_group_that_obeys_settles,
    noise_moves_nothing,
    hash_seeds_play_no_part,
)
"""Every check, in the order in which failures are best fixed."""


# What they are made of


def shuffled(problem: AssignmentProblem, dice: random.Random) -> AssignmentProblem:
    """The problem with everything in it in another order."""

    def turned(values: Iterable[T]) -> tuple[T, ...]:
        given_ = list(values)
        dice.shuffle(given_)
        return tuple(given_)

    return attrs.evolve(
        problem,
        tasks=turned(problem.tasks),
        in_flight=turned(problem.in_flight),
        members=turned(
            attrs.evolve(
                member,
                active=turned(member.active),
                standby=turned(member.standby),
                warmup=turned(member.warmup),
                lags=dict(turned(member.lags.items())),
                ready=frozenset(turned(sorted(member.ready))),
                previously_owned=frozenset(turned(sorted(member.previously_owned))),
            )
            for member in problem.members
        ),
    )


def renamed(problem: AssignmentProblem, names: Mapping[str, str]) -> AssignmentProblem:
    """The problem with other member names."""
    return attrs.evolve(
        problem,
        members=tuple(attrs.evolve(member, id=names[member.id]) for member in problem.members),
        in_flight=tuple(
            attrs.evolve(each, source=None if each.source is None else names[each.source], destination=names[each.destination])
            for each in problem.in_flight
        ),
        blocked=frozenset((task, names[member]) for task, member in problem.blocked),
    )


@st.composite
def groups(draw: st.DrawFn, subject: Subject) -> AssignorGroup:
    """A group that has been given its first tasks."""
    made = [
        *stateful(draw(st.integers(0, 12))),
        *stateless(draw(st.integers(0, 8))),
        *stateful(draw(st.integers(0, 6)), subtopology=2, end_offset=draw(st.sampled_from([0, 50, 900]))),
    ]
    group = AssignorGroup(
        made,
        {f"m{index}": draw(st.sampled_from([1, 1, 2])) for index in range(draw(st.integers(1, 5)))},
        assignor=subject.assignor,
        adapted=subject.adapted,
        **{
            "num_standbys": draw(st.integers(0, 2)),
            "max_warmups": draw(st.integers(1, 4)),
            "max_warmups_per_member": draw(st.integers(1, 4)),
            "balance_factor": draw(st.sampled_from([1, 1, 2, 3])),
            **{name: draw(strategy) for name, strategy in sorted(subject.group_settings.items())},
        },
    )
    group.decide()
    return group


def change(draw: Callable[..., Any], group: AssignorGroup, number: int, gone: dict[str, dict[TaskId, Lag]]) -> None:
    """One change: a member joins, returns with its disk, dies, announces that it leaves, takes that
    back, begins to crash repeatedly, or recovers. `gone`: dead members and the copies on their
    disks.
    """
    names = sorted(group.members)
    match draw(st.sampled_from(["join", "return", "die", "leave", "crash"])):
        case "join":
            group.join(f"{draw(st.sampled_from('az'))}{number}", capacity=draw(st.sampled_from([1, 1, 2])))
        case "return" if gone:
            name = draw(st.sampled_from(sorted(gone)))
            group.join(name, copies=gone.pop(name))
            group.members[name].crash_looping = draw(st.booleans())
        case "die" if len(names) > 1:
            name = draw(st.sampled_from(names))
            process = group.die(name)
            lag = draw(st.sampled_from([0, 90, 5000]))
            gone[name] = {**process.copies, **{task: lag for task in sorted(process.owned) if group.tasks[task].stateful}}
        case "leave" if len(names) > 1:
            process = group.members[draw(st.sampled_from(names))]
            process.leaving = not process.leaving
        case "crash":
            process = group.members[draw(st.sampled_from(names))]
            process.crash_looping = not process.crash_looping


def most_rounds(group: AssignorGroup) -> int:
    """The most rounds to rest. Every movement and every standby passed on ends within a round of
    getting a slot, and there is at least one slot: their number, twice for standbys passed on
    again; one more round for lost tasks, and one for what waited for these.
    """
    kept = sum(task.stateful for task in group.tasks.values())
    return 2 * kept * (1 + group.settings.num_standbys) + 4


Held = dict[str, tuple[list[TaskId], list[TaskId], list[TaskId]]]


def _held(group: AssignorGroup) -> Held:
    return {name: (sorted(process.owned), sorted(process.standby), sorted(process.warmup)) for name, process in sorted(group.members.items())}


def _stays(group: AssignorGroup) -> None:
    """Checks that the group is at rest: every task runs, no movement is left, and another round
    changes nothing.
    """
    rest = _held(group)
    for _ in range(3):
        again = group.assignor.assign(group.problem())
        assert not again.movements, f"it had settled, and {[str(movement.task) for movement in again.movements]} move"
        assert not again.probing, "it has settled, and wants to be asked again"
        assert {name: (sorted(part.active), list(part.standby), list(part.warmup)) for name, part in again.members.items()} == rest
        if all(process.leaving for process in group.members.values()):
            return
        assert len(group.owners()) == len(group.tasks), "not every task has an owner"
        assert not any(process.owned for process in group.members.values() if process.leaving), "a leaving member still has tasks"
        assert again.imbalance_now == again.cost.imbalance, "nothing moves, and the target is not reached"
        group.round()
        assert _held(group) == rest, "it had settled"


def plans_of(assignor: Assignor, most: int) -> list[str]:
    """Plans of `most` problems as text; the problems are the same in every process."""
    plans: list[str] = []

    def ask(problem: AssignmentProblem) -> None:
        try:
            plans.append(repr(assignor.assign(problem)))
        except InputError as error:
            plans.append(str(error))

    fixed = hypothesis.settings(derandomize=True, database=None, max_examples=most, deadline=None, suppress_health_check=list(HealthCheck))
    fixed(given(problem=problems())(ask))()
    return plans
