"""The target by load, as `hand_over` asks for it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors.common.indexed_problem import Situation
from equipoise.assignors.common.plan import LoadBalance, Plan, Reason
from equipoise.assignors.common.problem import Memory
from equipoise.assignors.common.target import Candidates, Target
from equipoise.assignors.load_balanced.options import Thresholds
from equipoise.assignors.load_balanced.rack_aware_swaps import bring_near
from equipoise.assignors.load_balanced.utilisation import Levels, Move, fewest_moves
from equipoise.assignors.load_balanced.weights import FAIR_SHARE, weights
from equipoise.events.tasks import TaskId

REBALANCING = "rebalancing"
"""In its memory: there while a rebalancing goes on."""
NEAR_TASKS, NEAR_MEMBERS = "near_tasks", "near_members"
"""In its memory: tasks that move for traffic, and where to, one for one. What is under way of it
stands in the problem too.
"""


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
