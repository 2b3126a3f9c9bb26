"""The class of the assignor `load_balanced`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from equipoise.assignors.common.assignor import Guarantee
from equipoise.assignors.common.handover import GUARANTEES_1, hand_over
from equipoise.assignors.common.indexed_problem import NEWEST, VERSION_1, VERSION_2, IndexedProblem
from equipoise.assignors.common.plan import LoadBalance, Plan, Reason
from equipoise.assignors.common.problem import AssignmentProblem, Memory
from equipoise.assignors.common.standby_goal import MAX_STANDBY_STEPS, max_standby_steps
from equipoise.assignors.common.target import Candidates, Target
from equipoise.assignors.common.transport import SOLVER
from equipoise.assignors.load_balanced.options import ASSIGNOR, Thresholds
from equipoise.assignors.load_balanced.rack_aware_swaps import swap_for_racks
from equipoise.assignors.load_balanced.utilisation import LoadMove, Utilisation, fewest_moves
from equipoise.assignors.load_balanced.weights import FAIR_SHARE, weights
from equipoise.events.tasks import TaskId

REBALANCING = "rebalancing"
"""Memory key: present while a rebalancing goes on."""
NEAR_TASKS, NEAR_MEMBERS = "near_tasks", "near_members"
"""Memory keys: tasks that move for traffic, and their destinations, in the same order. Movements in
flight are part of the problem too.
"""


class LoadTarget:
    """Balance by load (`Balance`)."""

    def __init__(self, indexed: IndexedProblem, thresholds: Thresholds, memory: Memory) -> None:
        self.indexed = indexed
        self.thresholds = thresholds
        self.weight = weights(indexed.tasks.values(), indexed.members.values(), indexed.settings)
        self.rebalances = False
        """Set by `target`: whether a rebalancing begins or goes on."""
        self._rebalancing = REBALANCING in memory
        self._for_load: frozenset[TaskId] = frozenset()
        self.near: dict[TaskId, str] = {}
        """Set by `target`: tasks that move for traffic -> destination."""
        self._before: Mapping[TaskId, str] = {}
        self._load: Mapping[str, int] = {}
        self._then: Mapping[TaskId, str] = {}
        """Set by `target`: owners and loads before anything moves for load or traffic, and owners
        then.
        """
        self._begun: list[tuple[TaskId, str]] = []
        """Moves for traffic that an earlier plan began."""
        tasks, members = memory.get(NEAR_TASKS, ()), memory.get(NEAR_MEMBERS, ())
        if isinstance(tasks, tuple) and isinstance(members, tuple):
            pairs = zip(tasks, members, strict=False)
            self._begun = [(task, name) for task, name in pairs if isinstance(task, TaskId) and isinstance(name, str)]

    def target(self, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str]) -> Target:
        indexed = self.indexed
        running = {
            task: owner
            for task, owner in indexed.owner.items()
            if task not in settled
            and task not in candidates
            and (indexed.may_run(owner, task) or not (indexed.eligible(task) or indexed.members[owner].leaving))
        }
        utilisation = self._utilisation({**running, **settled})
        utilisation.fixed.update(settled)
        utilisation.fixed.update(task for task, owner in running.items() if not indexed.may_run(owner, task))
        for task in sorted(indexed.tasks, key=lambda task: (-self.weight[task], task)):
            if task not in utilisation.owner:
                takers = candidates.get(task)
                is_passing = takers is not None and not any(indexed.may_run(name, task) for name in takers.everyone)
                owned = task in indexed.owner or is_passing  # by a member that keeps crashing, until another is ready
                utilisation.place(task, None if is_passing else takers, unblocked=owned)
                if owned:
                    utilisation.fixed.add(task)
        self._before, self._load = dict(utilisation.owner), utilisation.loads()
        self._then = utilisation.owner
        enough = self.thresholds.low if self._rebalancing else self.thresholds.high
        begun = self._take_up(utilisation)
        self.rebalances = utilisation.gain() > enough
        if self.rebalances and begun:
            for move in begun:
                utilisation.give(move.task, move.source)
            self.rebalances = utilisation.gain() > enough
            begun = []
        if self.rebalances:
            self._for_load = frozenset(move.task for move in utilisation.even_out(self.thresholds.low, FAIR_SHARE))
        elif indexed.racks.counts:
            near = swap_for_racks(utilisation, mean=FAIR_SHARE, low=self.thresholds.low, high=self.thresholds.high)
            self.near = {move.task: move.destination for move in sorted((*begun, *near), key=lambda move: move.task)}
        return Target(owner=dict(sorted(utilisation.owner.items())), optimal=False)

    def _take_up(self, utilisation: Utilisation) -> list[LoadMove]:
        """Repeats the earlier moves for traffic that are still possible, and applies them to
        `utilisation`.
        """
        indexed = self.indexed
        moves = []
        for task, name in self._begun if indexed.racks.counts else ():
            owner = indexed.owner.get(task)
            if owner is None or owner == name or utilisation.owner.get(task) != owner or task in utilisation.fixed:
                continue
            if name in indexed.unblocked(task):
                moves.append(LoadMove(task, owner, name))
                utilisation.give(task, name)
        return moves

    def memory(self) -> Memory:
        """`Plan.memory`."""
        if self.rebalances:
            return {REBALANCING: 1}
        return {NEAR_MEMBERS: tuple(self.near.values()), NEAR_TASKS: tuple(self.near)} if self.near else {}

    def owners_for_now(self, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> dict[TaskId, str]:
        """See `Balance.owners_for_now`."""
        utilisation = self._utilisation(running)
        for task in sorted(candidates, key=lambda task: (-self.weight[task], task)):
            utilisation.place(task, candidates[task])
        return {task: utilisation.owner[task] for task in sorted(candidates) if task in utilisation.owner}

    def stateless_for_now(self, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> dict[TaskId, str]:
        """See `Balance.stateless_for_now`."""
        return self.owners_for_now(candidates, running)

    def imbalance(self, owner: Mapping[TaskId, str]) -> int:
        """Gain of the best single move, in thousandths of a fair share; 0: it is not worth a move."""
        gain = self._utilisation(owner).gain()
        return 0 if gain <= self.thresholds.high else -(-gain // (FAIR_SHARE // 1_000))

    def moves_lower_bound(
        self, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str], now: Mapping[TaskId, str], target: Mapping[TaskId, str]
    ) -> int:
        """See `Balance.moves_lower_bound`."""
        indexed, reached = self.indexed, self._utilisation(target)
        ends = reached.ends()
        if ends is None:
            return 0
        before = self._utilisation({task: member for task, member in now.items() if task in target})
        staying = [member.id for member in indexed.members.values() if not member.leaving]
        forced = sum(indexed.members[member].leaving and target[task] != member for task, member in now.items() if task in target)
        dealt = {member: before.weights(member) for member in indexed.members}
        capacity = {member: indexed.members[member].capacity for member in staying}
        return fewest_moves(dealt, capacity, reached.of(ends[0]), reached.of(ends[1]), forced)

    def _pays(self, task: TaskId) -> bool:
        """Returns whether its owner with the task carries more than its destination would, by more
        than is worth a move.
        """
        source, destination = self.indexed.owner.get(task), self._then.get(task)
        if source is None or destination is None or task not in self._before:
            return False
        carried = {name: self._load[name] - self.weight[task] * (self._before[task] == name) for name in (source, destination)}
        with_it = {name: (load + self.weight[task]) // self.indexed.members[name].capacity for name, load in carried.items()}
        return with_it[destination] + self.thresholds.low < with_it[source]

    def reason(self, task: TaskId, reason: Reason) -> Reason:
        """The reason with the codes of balance by load."""

        def meant(code: str) -> str:
            if not self.indexed.behaviour.reasons_unchecked:
                if code not in ("balance", "balance_room") and not (task in self._for_load and code in ("traffic", "traffic_room")):
                    return code
                return "load" if self._pays(task) else "balance_room"
            if task in self._for_load and code in ("traffic", "traffic_room"):
                return "load"
            return ("traffic_room" if task in self.near else "load") if code == "balance" else code

        return attrs.evolve(reason, code=meant(reason.code), because=None if reason.because is None else meant(reason.because))

    @property
    def _is_restricted(self) -> bool:
        """Returns whether some task may not run on every staying member."""
        staying = sum(not member.leaving for member in self.indexed.members.values())
        return any(len(pool.members) < staying for pool in self.indexed.pools)

    def summary(self, plan: Plan) -> LoadBalance:
        """`Plan.load`: loads now and at the target, and the bound of their difference."""
        now = {task: member for member, part in plan.members.items() for task in (*part.active, *part.revoke) if task in self.indexed.tasks}
        before, after = self._utilisation(now), self._utilisation({task: member for member, tasks in plan.target.items() for task in tasks})
        ends = after.ends()
        if ends is None:
            return LoadBalance()
        was = before.ends() or ends
        fullest, emptiest = ends
        margin = self.thresholds.low if self.rebalances else self.thresholds.high
        lightest = min(after.weights(fullest), default=0) // self.indexed.members[emptiest].capacity
        bound = lightest + margin
        if not self.indexed.behaviour.bound_everywhere and (self._is_restricted or after.gain() > margin):
            bound = max(bound, after.of(fullest) - after.of(emptiest))  # the highest only falls from here, and the lowest only rises
        return LoadBalance(
            highest_now=before.of(was[0]),
            lowest_now=before.of(was[1]),
            highest=after.of(fullest),
            lowest=after.of(emptiest),
            bound=bound,
        )

    def _utilisation(self, owner: Mapping[TaskId, str]) -> Utilisation:
        return Utilisation(self.indexed, self.weight, owner, tolerance=self.thresholds.low // PARTS_OF_A_MARGIN)


PARTS_OF_A_MARGIN = 8
"""Outcomes whose difference is less than such a part of the lower threshold are equal; then
previous owners and ready copies come first.
"""


class LoadBalanced:
    """Balance by measured load. Pure and without memory: moves that have begun are part of the
    problem.
    """

    name = ASSIGNOR
    version = 3
    behaviour = NEWEST
    solver = SOLVER  # of standbys, where tags matter; the target itself needs none
    guarantees = frozenset(Guarantee)
    other_options: tuple[str, ...] = (MAX_STANDBY_STEPS,)

    def assign(self, problem: AssignmentProblem) -> Plan:
        """See `Assignor.assign`. Raises FieldError when the problem contradicts itself, or an
        option is unsound or none of its own.
        """
        thresholds = Thresholds.of(problem.settings, self.other_options)
        max_standby_steps(problem.settings)
        balance = LoadTarget(IndexedProblem(problem, behaviour=self.behaviour), thresholds, problem.memory)
        plan = hand_over(balance.indexed, balance)
        return attrs.evolve(
            plan,
            reasons={task: balance.reason(task, reason) for task, reason in plan.reasons.items()},
            memory=balance.memory(),
            watching=sum(not member.leaving for member in problem.members) > 1,
            load=balance.summary(plan),
        )


class LoadBalanced2(LoadBalanced):
    """Behaviour version 2."""

    version = 2
    behaviour = VERSION_2
    other_options = ()


class LoadBalanced1(LoadBalanced):
    """Behaviour version 1."""

    version = 1
    behaviour = VERSION_1
    other_options = ()
    guarantees = GUARANTEES_1
