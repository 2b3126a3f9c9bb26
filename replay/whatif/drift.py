"""Asks another behaviour version of a group's assignor each question that the log holds, and counts
where it answers otherwise.

Every question is as recorded: what the other version would have done before is not carried on, but
for what it remembers itself. So a count says in how many rounds it disagrees; what that would have
cost is for `equipoise.replay.whatif.evaluate` to simulate.
"""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.assignors import AssignmentProblem, Assignor, Plan, registry
from equipoise.assignors.common.problem import Memory, Revocations
from equipoise.events.tasks import TaskId
from equipoise.replay.replayer import ReplayStep
from equipoise.replay.simulation.run import LATEST

_PARTS = {"active": "runs on", "revoke": "is given up by", "warmup": "is warmed up on", "standby": "has a standby on"}


@attrs.frozen(kw_only=True)
class Drift:
    """What another behaviour version would have decided. `rounds`: questions that the log holds.
    `differing`: those that it answers otherwise; `failed`: those of them that it cannot answer.
    `offset`, `append_ms`: the fact of the first one, and its time; None: there is none.
    `difference`: what is otherwise there, in words.
    """

    behaviour_version: int | str
    rounds: int
    differing: int
    failed: int
    offset: int | None
    append_ms: int | None
    difference: str | None

    def as_json(self) -> dict[str, Any]:
        """Returns it, JSON-ready."""
        return attrs.asdict(self)


@attrs.define
class _Former:
    """The last answers: the recorded one's, and the other's."""

    memory: Memory = attrs.field(factory=dict)
    revocations: Revocations = attrs.field(factory=Revocations)
    own_memory: Memory = attrs.field(factory=dict)
    own_revocations: Revocations = attrs.field(factory=Revocations)


class DriftFinder:
    """Follows the replay of a group, step by step. `behaviour_version`: as in `Configuration`."""

    def __init__(self, behaviour_version: int | str) -> None:
        self.behaviour_version = behaviour_version
        self._former = _Former()
        self._rounds = self._differing = self._failed = 0
        self._first: tuple[int, int, str] | None = None

    def observe(self, step: ReplayStep, assignor: Assignor | None, *, counts: bool = True) -> None:
        """Takes a step. `assignor`: of the group. `counts`: False: what is otherwise there is only
        remembered. Raises InputError when it has no such version.
        """
        call = step.assignor_call
        if call is None or assignor is None or not call.problem.members:  # without members only its settings are looked at
            return
        self._rounds += counts
        other = other_version(assignor, self.behaviour_version)
        if other.version == assignor.version:
            return
        try:
            plan = other.assign(self._asked(call.problem))
        except Exception as error:  # noqa: BLE001 - of another version of an assignor, which may be anybody's: that is what is looked for
            self._failed += counts
            self._former = _Former()
            self._note(step, counts, f"it cannot answer: {' '.join(str(error).split()):.300}")
            return
        self._former = _Former(call.plan.memory, call.plan.revocations, plan.memory, plan.revocations)
        found = difference(call.plan, plan)
        if found is not None:
            self._note(step, counts, found)

    def _asked(self, problem: AssignmentProblem) -> AssignmentProblem:
        """The problem with what the other version remembers, unless the group has to forget."""
        former = self._former
        if problem.memory == former.memory:
            problem = attrs.evolve(problem, memory=former.own_memory)
        if problem.revocations == former.revocations:
            problem = attrs.evolve(problem, revocations=former.own_revocations)
        return problem

    def _note(self, step: ReplayStep, counts: bool, text: str) -> None:
        self._differing += counts
        if counts and self._first is None:
            self._first = step.record.offset, step.record.append_ms, text

    def drift(self) -> Drift:
        """Returns what was found so far."""
        offset, append_ms, text = self._first or (None, None, None)
        return Drift(
            behaviour_version=self.behaviour_version,
            rounds=self._rounds,
            differing=self._differing,
            failed=self._failed,
            offset=offset,
            append_ms=append_ms,
            difference=text,
        )


def other_version(assignor: Assignor, behaviour_version: int | str) -> Assignor:
    """Returns the assignor of the same name with this behaviour version. Raises InputError when it
    is not installed.
    """
    if behaviour_version == LATEST:
        return registry.latest(assignor.name)
    return assignor if isinstance(behaviour_version, str) else registry.load(assignor.name, behaviour_version)


def difference(plan: Plan, other: Plan) -> str | None:
    """Returns the first difference of two plans that changes a decision, in words; None: there is
    none. Reasons, costs and the order of tasks do not count.
    """
    for part, words in _PARTS.items():
        ours, theirs = _where(plan, part), _where(other, part)
        for task in sorted(ours.keys() | theirs.keys()):
            if ours.get(task) != theirs.get(task):
                return f"{task} {words} {_names(theirs.get(task))} instead of {_names(ours.get(task))}"
    moves, others = ({(each.task, each.destination, each.state.value) for each in of.movements} for of in (plan, other))
    if moves != others:
        task, destination, state = min(moves ^ others)
        is_new = (task, destination, state) in others
        return f"{task} {'moves' if is_new else 'does not move'} to {destination} ({state})"
    return None


def _where(plan: Plan, part: str) -> dict[TaskId, tuple[str, ...]]:
    found: dict[TaskId, tuple[str, ...]] = {}
    for name in sorted(plan.members):
        for task in getattr(plan.members[name], part):
            found[task] = (*found.get(task, ()), name)
    return found


def _names(members: tuple[str, ...] | None) -> str:
    return ", ".join(members) if members else "nobody"
