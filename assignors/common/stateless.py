"""Tasks without state, while tasks with state still wait to move: the load is even now, and not
only when the warm-ups have ended.

A member that has much state to give away is to get tasks without state in return. Until the state
has moved it has enough to do, so a task that nobody runs goes to whoever runs little now, and a
movement to such a member waits. That may cost a task without state a second move, which restores
nothing; no task with state moves for it.

KIP-441 packs these tasks by what members run now, too, and packs them again in every round.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from equipoise.assignors.common.indexed_problem import IndexedProblem, Pool
from equipoise.assignors.common.problem import MovementState
from equipoise.assignors.common.target import Candidates
from equipoise.events.tasks import TaskId


def giving_state_away(indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str]) -> frozenset[str]:
    """Members that run tasks with state which are to move. `now`, `target`: task -> owner."""
    if indexed.behaviour.stateless_at_target or len(indexed.stateful) in (0, len(indexed.tasks)):
        return frozenset()
    return frozenset(name for task, name in now.items() if indexed.tasks[task].stateful and target.get(task, name) != name)


def placed_by_load(
    indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str], decided: Mapping[TaskId, Candidates]
) -> dict[TaskId, Candidates]:
    """Tasks without state that nobody runs and that may go where little runs now -> their
    candidates, the target first. Empty: no member gives state away, or racks decide.

    `now`: with the target as the owner of these tasks. `decided`: tasks that have candidates.
    """
    if indexed.racks.counts or not giving_state_away(indexed, now, target):
        return {}
    return {
        task: Candidates(members=(target[task],), fresh=indexed.eligible(task))
        for task in indexed.unowned
        if task in target and task not in decided and not indexed.tasks[task].stateful
    }


def least_loaded(indexed: IndexedProblem, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """Owners for tasks without state: by its capacity, the member with the fewest tasks gets the
    next one, and as many as can stay at their target.

    `candidates`: of `placed_by_load`. `running`: all other tasks -> owner.
    """
    load = Counter(running.values())
    pools: dict[Pool, list[TaskId]] = {}
    for task in candidates:
        pools.setdefault(indexed.eligible(task), []).append(task)
    found: dict[TaskId, str] = {}
    for pool in sorted(pools, key=lambda pool: (len(pool.members), pool.members)):
        at_target = Counter(target for task in pools[pool] for target in candidates[task].members)

        def rank(name: str, got: int) -> tuple[Fraction, bool, str]:
            return Fraction(load[name] + got + 1, indexed.members[name].capacity), got >= at_target[name], name  # noqa: B023  # used in this turn only

        least = [rank(name, 0) for name in pool.members]
        heapq.heapify(least)
        places: Counter[str] = Counter()
        for _ in pools[pool]:
            name = least[0][-1]
            places[name] += 1
            heapq.heapreplace(least, rank(name, places[name]))
        load.update(places)
        left: list[TaskId] = []
        for task in sorted(pools[pool]):
            (name,) = candidates[task].members
            if places[name] > 0:
                places[name] -= 1
                found[task] = name
            else:
                left.append(task)
        found.update(zip(left, places.elements(), strict=True))
    return found


class LoadNow:
    """Tasks that each member runs until the state has moved. `now`, `target`: task -> owner."""

    def __init__(self, indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str]) -> None:
        self._members = indexed.members
        self._giving = giving_state_away(indexed, now, target)
        revoking = {task: each.destination for task, each in indexed.in_flight.items() if each.state is MovementState.REVOKING}
        self._load = Counter({**now, **revoking}.values()) if self._giving else Counter[str]()

    def move(self, source: str, destination: str) -> bool:
        """Moves a task without state, unless the destination still has state to give away and the
        two would be less even. Returns whether.
        """
        if destination not in self._giving:
            return True
        load, members = self._load, self._members
        if (load[destination] + 1) * members[source].capacity > load[source] * members[destination].capacity:
            return False
        load[source] -= 1
        load[destination] += 1
        return True
