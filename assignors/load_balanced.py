"""The assignor `load_balanced`: even in what tasks carry, not in how many they are. State moves
first, as in `high_availability`.

All but the target is `high_availability`: ranks, warm-ups, slots, standbys, hand-over. The target
is this:

* Every task has a weight (`load`), made of what members report of their hosts (`TaskLoad`; how a
  host's load is told apart by tasks says `equipoise.statemachine.loads`).
* What must have an owner goes to the least full of those that may have it, the heaviest first; what
  is under way is carried to its end.
* Other tasks move only when it pays (`levels`): when some single move betters things by more than
  `load_high_percent` of a fair share, the group is *rebalanced*, by moves that each better it by
  more than `load_low_percent`, until none does. Between the two nothing begins: so loads that
  wander by less than the difference move no work. That a group is being rebalanced is remembered
  (`Plan.memory`).

With `rack_aware_strategy` outcomes that are alike by load are told apart by traffic, and while no
rebalancing goes on tasks change places for traffic as far as that leaves loads as even
(`near_levels`). `balanced_min_cost` means the same as `min_cost`: what is spread here is load.

What it promises, where every task may go everywhere: at rest the fullest and the emptiest member
differ per thread by at most the lightest task of the fullest one plus `load_high_percent` of a fair
share; just after a rebalancing, plus `load_low_percent`. (Tasks are not split, so no deal can do
without a part of the first.) A plan says the levels now and at its target, and that bound
(`Plan.load`).

====================  =======
===================================================================================== option
default  is ====================  =======
=====================================================================================
`load_high_percent`   20       of a fair share: what one move must better for a rebalancing to begin
`load_low_percent`    5        the same for it to go on; 1 or more, at most the former `load_cpu`,
...                weights of the dimensions: see `load` ====================  =======
=====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors import options
from equipoise.assignors.high_availability import GUARANTEES_1, hand_over
from equipoise.assignors.levels import Levels, Move, fewest_moves
from equipoise.assignors.load import DEFAULT_WEIGHTS, FAIR_SHARE, weights
from equipoise.assignors.near_levels import bring_near
from equipoise.assignors.problem import AssignmentProblem, Guarantee, LoadBalance, Memory, Plan, Reason
from equipoise.assignors.situation import NEWEST, VERSION_1, Situation
from equipoise.assignors.target import Candidates, Target
from equipoise.assignors.transport import SOLVER
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

DEFAULT_PERCENTS: Mapping[str, int] = {"load_high_percent": 20, "load_low_percent": 5}
REBALANCING = "rebalancing"
"""In its memory: there while a rebalancing goes on."""
NEAR_TASKS, NEAR_MEMBERS = "near_tasks", "near_members"
"""In its memory: tasks that move for traffic, and where to, one for one. What is under way of it
stands in the problem too.
"""


class LoadBalanced:
    """Balance by measured load. Pure and without memory: what was begun stands in the problem."""

    name = "load_balanced"
    version = 2
    behaviour = NEWEST
    solver = SOLVER  # of standbys, where tags matter; the target itself needs none
    guarantees = frozenset(Guarantee)

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or an
        option is unsound or none of its own.
        """
        balance = LoadTarget(Situation(problem, behaviour=self.behaviour), Thresholds.of(problem.settings), problem.memory)
        plan = hand_over(balance.situation, balance)
        return attrs.evolve(
            plan,
            reasons={task: balance.reason(task, reason) for task, reason in plan.reasons.items()},
            memory=balance.memory(),
            watching=sum(not member.leaving for member in problem.members) > 1,
            load=balance.told(plan),
        )


class LoadBalanced1(LoadBalanced):
    """As it decided before."""

    version = 1
    behaviour = VERSION_1
    guarantees = GUARANTEES_1


@attrs.frozen(kw_only=True)
class Thresholds:
    """What a move must better, in millionths of a fair share, for a rebalancing to begin (`high`)
    and to go on (`low`).
    """

    high: int
    low: int

    @classmethod
    def of(cls, settings: GroupSettings) -> Thresholds:
        """Raises FieldError when an option is out of bounds, or unknown."""
        options.known_only(settings, LoadBalanced.name, (*DEFAULT_PERCENTS, *DEFAULT_WEIGHTS))
        high, low = (options.whole(settings, name, default) for name, default in DEFAULT_PERCENTS.items())
        if not 1 <= low <= high:
            raise FieldError("config.options.load_low_percent", f"{low} is not from 1 to load_high_percent = {high}")
        return cls(high=high * FAIR_SHARE // 100, low=low * FAIR_SHARE // 100)


class LoadTarget:
    """The target by load, as `hand_over` asks for it."""

    def __init__(self, situation: Situation, thresholds: Thresholds, memory: Memory) -> None:
        self.situation = situation
        self.thresholds = thresholds
        self.weight = weights(situation.tasks.values(), situation.members.values(), situation.settings)
        self.rebalances = False
        """Set by `target`: a rebalancing begins or goes on."""
        self._rebalancing = REBALANCING in memory
        self._for_load: frozenset[TaskId] = frozenset()
        self.near: dict[TaskId, str] = {}
        """Set by `target`: tasks that move for traffic -> where to."""
        self._begun: list[tuple[TaskId, str]] = []
        """Of those what was to be before."""
        tasks, members = memory.get(NEAR_TASKS, ()), memory.get(NEAR_MEMBERS, ())
        if isinstance(tasks, tuple) and isinstance(members, tuple):
            pairs = zip(tasks, members, strict=False)
            self._begun = [(task, name) for task, name in pairs if isinstance(task, TaskId) and isinstance(name, str)]

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
                takers = candidates.get(task)
                is_passing = takers is not None and not any(situation.may_run(name, task) for name in takers.everyone)
                owned = task in situation.owner or is_passing  # by a member that keeps crashing, until another is ready
                levels.place(task, None if is_passing else takers, unblocked=owned)
                if owned:
                    levels.fixed.add(task)
        enough = self.thresholds.low if self._rebalancing else self.thresholds.high
        begun = self._take_up(levels)
        self.rebalances = levels.gain() > enough
        if self.rebalances and begun:
            for move in begun:
                levels.give(move.task, move.source)
            self.rebalances = levels.gain() > enough
            begun = []
        if self.rebalances:
            self._for_load = frozenset(move.task for move in levels.even_out(self.thresholds.low, FAIR_SHARE))
        elif situation.racks.counts:
            near = bring_near(levels, mean=FAIR_SHARE, low=self.thresholds.low, high=self.thresholds.high)
            self.near = {move.task: move.destination for move in sorted((*begun, *near), key=lambda move: move.task)}
        return Target(owner=dict(sorted(levels.owner.items())), optimal=False)

    def _take_up(self, levels: Levels) -> list[Move]:
        """What was to move for traffic, and still can, does; the levels are then as if it had."""
        situation = self.situation
        moves = []
        for task, name in self._begun if situation.racks.counts else ():
            owner = situation.owner.get(task)
            if owner is not None and levels.owner.get(task) == owner != name and task not in levels.fixed and name in situation.unblocked(task):
                moves.append(Move(task, owner, name))
                levels.give(task, name)
        return moves

    def memory(self) -> Memory:
        """To be handed over with the next problem."""
        if self.rebalances:
            return {REBALANCING: 1}
        return {NEAR_MEMBERS: tuple(self.near.values()), NEAR_TASKS: tuple(self.near)} if self.near else {}

    def owners_for_now(self, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> dict[TaskId, str]:
        """Owners for tasks that need one now, of their candidates only, as even as that allows
        beside what is `running`.
        """
        levels = self._levels(running)
        for task in sorted(candidates, key=lambda task: (-self.weight[task], task)):
            levels.place(task, candidates[task])
        return {task: levels.owner[task] for task in sorted(candidates) if task in levels.owner}

    def imbalance(self, owner: Mapping[TaskId, str]) -> int:
        """What the best single move would better, in thousandths of a fair share; 0 when that is
        not worth a move.
        """
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

    def reason(self, task: TaskId, reason: Reason) -> Reason:
        """Balance is of load here, and what moves for it moves for nothing else."""

        def meant(code: str) -> str:
            if task in self._for_load and code in ("traffic", "traffic_room"):
                return "load"
            return ("traffic_room" if task in self.near else "load") if code == "balance" else code

        return attrs.evolve(reason, code=meant(reason.code), because=None if reason.because is None else meant(reason.because))

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
"""Outcomes that differ by less than such a part of the lower threshold are alike; then what is at
home, or ready, goes first.
"""
