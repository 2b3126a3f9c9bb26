"""The assignor `load_balanced`: even in what tasks carry, not in how many they are. State moves first, as in `high_availability`.

All but the target is `high_availability`: ranks, warm-ups, slots, standbys, hand-over. The target is this:

* Every task has a weight (`load`), made of what members report of their hosts (`TaskLoad`; how a host's load is told apart by tasks says
  `statemachine.loads`).
* What must have an owner goes to the least full of those that may have it, the heaviest first; what is under way is carried to its end.
* Other tasks move only when it pays (`levels`): when some single move betters things by more than `load_high_percent` of a fair share, the group is
  *rebalanced*, by moves that each better it by more than `load_low_percent`, until none does. Between the two nothing begins: so loads that wander by
  less than the difference move no work. That a group is being rebalanced is all that it remembers (`Plan.memory`).

What it promises, where every task may go everywhere: at rest the fullest and the emptiest member differ per thread by at most the lightest task
of the fullest one plus `load_high_percent` of a fair share; just after a rebalancing, plus `load_low_percent`. (Tasks are not split, so no deal
can do without a part of the first.) A plan says the levels now and at its target, and that bound (`Plan.load`).

====================  =======  =====================================================================================
option                default  is
====================  =======  =====================================================================================
`load_high_percent`   20       of a fair share: what one move must better for a rebalancing to begin
`load_low_percent`    5        the same for it to go on; 1 or more, at most the former
`load_cpu`, ...                weights of the dimensions: see `load`
====================  =======  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from assignors import options
from assignors.high_availability import hand_over
from assignors.levels import Levels, fewest_moves
from assignors.load import DEFAULT_WEIGHTS, FAIR_SHARE, weights
from assignors.problem import AssignmentProblem, Guarantee, LoadBalance, Plan, Reason
from assignors.situation import Situation
from assignors.target import Candidates, Target
from assignors.transport import SOLVER
from events.errors import FieldError
from events.knobs import Knobs
from events.tasks import TaskId

DEFAULT_PERCENTS: Mapping[str, int] = {"load_high_percent": 20, "load_low_percent": 5}
REBALANCING = "rebalancing"
"""Its one memory: there while a rebalancing goes on."""


class LoadBalanced:
    """Balance by measured load. Pure and without memory: that a rebalancing is under way stands in the problem."""

    name = "load_balanced"
    version = 1
    solver = SOLVER  # of standbys, where tags matter; the target itself needs none
    guarantees = frozenset(Guarantee)

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or asks for racks, which have no part in its target."""
        if problem.knobs.rack_aware_strategy != "none":
            raise FieldError("config.rack_aware_strategy", f"{self.name} places by load, without regard to racks; use 'none'")
        balance = LoadTarget(Situation(problem), Thresholds.of(problem.knobs), REBALANCING in problem.memory)
        plan = hand_over(balance.situation, balance)
        return attrs.evolve(
            plan,
            reasons={task: _by_load(reason) for task, reason in plan.reasons.items()},
            memory={REBALANCING: 1} if balance.rebalances else {},
            watching=sum(not member.leaving for member in problem.members) > 1,
            load=balance.told(plan),
        )


def _by_load(reason: Reason) -> Reason:
    """Balance is of load here."""
    because = "load" if reason.because == "balance" else reason.because
    return attrs.evolve(reason, code="load" if reason.code == "balance" else reason.code, because=because)


@attrs.frozen(kw_only=True)
class Thresholds:
    """What a move must better, in millionths of a fair share, for a rebalancing to begin (`high`) and to go on (`low`)."""

    high: int
    low: int

    @classmethod
    def of(cls, knobs: Knobs) -> Thresholds:
        """Raises FieldError when an option is out of bounds, or unknown."""
        options.known_only(knobs, LoadBalanced.name, (*DEFAULT_PERCENTS, *DEFAULT_WEIGHTS))
        high, low = (options.whole(knobs, name, default) for name, default in DEFAULT_PERCENTS.items())
        if not 1 <= low <= high:
            raise FieldError("config.options.load_low_percent", f"{low} is not from 1 to load_high_percent = {high}")
        return cls(high=high * FAIR_SHARE // 100, low=low * FAIR_SHARE // 100)


class LoadTarget:
    """The target by load, as `hand_over` asks for it."""

    def __init__(self, situation: Situation, thresholds: Thresholds, rebalancing: bool) -> None:
        self.situation = situation
        self.thresholds = thresholds
        self.weight = weights(situation.tasks.values(), situation.members.values(), situation.knobs)
        self.rebalances = False
        """Set by `target`: a rebalancing begins or goes on."""
        self._rebalancing = rebalancing

    def target(self, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str]) -> Target:
        situation = self.situation
        running = {
            task: owner
            for task, owner in situation.owner.items()
            if task not in settled
            and task not in candidates
            and (situation.may_run(owner, task) or not (situation.eligible(task) or situation.members[owner].leaving))
        }
        levels = self._levels({**running, **settled})
        levels.fixed.update(settled)
        levels.fixed.update(task for task, owner in running.items() if not situation.may_run(owner, task))
        for task in sorted(situation.tasks, key=lambda task: (-self.weight[task], task)):
            if task not in levels.owner:
                owned = task in situation.owner
                levels.place(task, candidates.get(task), unblocked=owned)
                if owned:
                    levels.fixed.add(task)
        enough = self.thresholds.low if self._rebalancing else self.thresholds.high
        self.rebalances = levels.gain() > enough
        if self.rebalances:
            levels.even_out(self.thresholds.low, FAIR_SHARE)
        return Target(owner=dict(sorted(levels.owner.items())), optimal=False)

    def owners_for_now(self, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> dict[TaskId, str]:
        """Owners for tasks that need one now, of their candidates only, as even as that allows beside what is `running`."""
        levels = self._levels(running)
        for task in sorted(candidates, key=lambda task: (-self.weight[task], task)):
            levels.place(task, candidates[task])
        return {task: levels.owner[task] for task in sorted(candidates) if task in levels.owner}

    def imbalance(self, owner: Mapping[TaskId, str]) -> int:
        """What the best single move would better, in thousandths of a fair share; 0 when that is not worth a move."""
        gain = self._levels(owner).gain()
        return 0 if gain <= self.thresholds.high else -(-gain // (FAIR_SHARE // 1_000))

    def moves_lower_bound(
        self, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str], now: Mapping[TaskId, str], target: Mapping[TaskId, str]
    ) -> int:
        """Fewest changes of owner from now to any target that is as even as this one."""
        situation, reached = self.situation, self._levels(target)
        ends = reached.ends()
        if ends is None:
            return 0
        before = self._levels({task: member for task, member in now.items() if task in target})
        staying = [member.id for member in situation.members.values() if not member.leaving]
        forced = sum(situation.members[member].leaving and target[task] != member for task, member in now.items() if task in target)
        dealt = {member: before.weights(member) for member in situation.members}
        capacity = {member: situation.members[member].capacity for member in staying}
        return fewest_moves(dealt, capacity, reached.level(ends[0]), reached.level(ends[1]), forced)

    def told(self, plan: Plan) -> LoadBalance:
        """How full members are now and at the target, and what is promised of that."""
        now = {task: member for member, part in plan.members.items() for task in (*part.active, *part.revoke) if task in self.situation.tasks}
        before, after = self._levels(now), self._levels({task: member for member, tasks in plan.target.items() for task in tasks})
        ends = after.ends()
        if ends is None:
            return LoadBalance()
        was = before.ends() or ends
        fullest, emptiest = ends
        margin = self.thresholds.low if self.rebalances else self.thresholds.high
        lightest = min(after.weights(fullest), default=0) // self.situation.members[emptiest].capacity
        return LoadBalance(
            highest_now=before.level(was[0]),
            lowest_now=before.level(was[1]),
            highest=after.level(fullest),
            lowest=after.level(emptiest),
            bound=lightest + margin,
        )

    def _levels(self, owner: Mapping[TaskId, str]) -> Levels:
        return Levels(self.situation, self.weight, owner, grain=self.thresholds.low // PARTS_OF_A_MARGIN)


PARTS_OF_A_MARGIN = 8
"""Outcomes that differ by less than such a part of the lower threshold are alike; then what is at home, or ready, goes first."""
