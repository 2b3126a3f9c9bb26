"""Why a task that nobody ran goes to its owner of now: codes whose sentences claim only what holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from equipoise.assignors.common.indexed_problem import IndexedProblem, Pool
from equipoise.assignors.common.target import Candidates
from equipoise.events.tasks import TaskId


class Grants:
    """Reason codes of tasks that nobody ran. `candidates`: of stateful tasks, the members that were
    to choose from; `soonest`: whether these are the ones that are ready about as soon as the first.
    """

    def __init__(self, indexed: IndexedProblem, candidates: Mapping[TaskId, Candidates], *, soonest: bool) -> None:
        self._indexed = indexed
        self._candidates = candidates
        self._soonest = soonest
        self._fastest: dict[Pool, str] = {}

    def codes(self, tasks: Iterable[TaskId], now: Mapping[TaskId, str]) -> Iterable[str]:
        """Codes of the tasks of one equivalence class: the same for all that get the same owner."""
        found: dict[str, str] = {}
        indexed = self._indexed
        plain = indexed.behaviour.reasons_unchecked or not (indexed.racks.counts or indexed.restore_rates.is_known)
        for task in tasks:
            owner = "" if plain else now[task]
            if owner not in found:
                found[owner] = self.code(task, now[task])
            yield found[owner]

    def code(self, task: TaskId, owner: str) -> str:
        """Code of a task that no movement, return or crash explains."""
        indexed = self._indexed
        if indexed.behaviour.reasons_unchecked:
            if not indexed.tasks[task].stateful:
                return "unowned_stateless"
            return "unowned" if indexed.caught_up(owner, task) else "unowned_cold"
        if not indexed.tasks[task].stateful:
            return "unowned_stateless_near" if self._is_nearest(task, owner, indexed.eligible(task).as_set) else "unowned_stateless_balance"
        others = self._candidates[task].everyone if task in self._candidates else frozenset((owner,))
        is_nearest = self._is_nearest(task, owner, others)
        if indexed.caught_up(owner, task):
            caught_up = others if self._soonest else {member for member in others if indexed.caught_up(member, task)}
            return "unowned_near" if self._is_nearest(task, owner, caught_up) else "unowned"
        if self._soonest and is_nearest:
            return "unowned_cold_near"
        sooner = self._sooner(task, owner)
        if not sooner:
            return "unowned_cold"
        if not self._soonest:
            return "unowned_cold_nearest" if is_nearest else "unowned_cold_balance"
        return "unowned_cold_equal" if any(member in others for member in sooner) else "unowned_cold_queue"

    def _is_nearest(self, task: TaskId, owner: str, others: Iterable[str]) -> bool:
        """Returns whether the task costs no less on any of the others, and more on some."""
        racks = self._indexed.racks
        if not racks.counts:
            return False
        traffic, here = racks.active(task), racks.cost(task, owner)
        costs = {traffic.at(rack) for rack in {racks.of[member] for member in others}}
        return bool(costs) and here <= min(costs) < max(costs)

    def _sooner(self, task: TaskId, owner: str) -> list[str]:
        """Members that would restore the task sooner than its owner, if they restored nothing else:
        all that have a copy, and the fastest of the others.
        """
        indexed = self._indexed
        pool, mine = indexed.eligible(task), indexed.restore_time(owner, task)
        if not pool:
            return []
        if pool not in self._fastest:
            self._fastest[pool] = max(pool.members, key=lambda member: indexed.restore_rates.speed[member])
        held = [member for member in indexed.copies[task] if member in pool]
        return [member for member in (*held, self._fastest[pool]) if indexed.restore_time(member, task) < mine]
