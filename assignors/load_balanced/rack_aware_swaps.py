"""Tasks that change places to be nearer to what they read, while loads stay as even as they are.

A change is one move, or an exchange of two tasks. It is made when the traffic falls by more than
the moves cost (`racks`), and only if

* neither of its members ends further from even than the lower threshold, or than both were before;
* with all changes made no move pays more than before, or than the lower threshold (see
  `utilisation` for what a move pays). So the result of a rebalancing is kept, and noise that moved
  nothing moves nothing. The check compares the members of each change with all others, as if every
  task might run everywhere, so it also holds where tasks may not.

A change that has begun is carried to its end (`Plan.memory`), since half of it may be uneven.
Changes only lower the traffic, so they end, whatever loads do meanwhile. This is a local search and
proves nothing about the optimum.

Before: m1 in rack a runs 0_0 (weight 5, replica in b) and 0_2 (4); m2 in b runs 0_1 (5, in a) and
0_3 (4). After: 0_0 and 0_1 have changed places.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from equipoise.assignors.load_balanced.utilisation import LoadMove, Utilisation
from equipoise.events.tasks import TaskId

PARTNERS = 8
"""Tasks just lighter and just heavier, in each rack, with which an exchange is tried: others would
hardly leave loads as they are.
"""
MOST_LOOKS = 100_000
"""Changes examined for one plan; the rest is for the next plan."""


def swap_for_racks(utilisation: Utilisation, *, mean: int, low: int, high: int) -> list[LoadMove]:
    """Moves for traffic, applied to `utilisation`. `mean`: the mean utilisation; `low`, `high`: the
    thresholds.
    """
    search = _Search(utilisation, mean, low, high)
    for _ in range(len(utilisation.owner)):
        change = search.best()
        if change is None:
            break
        search.make(change)
    return search.moves


@attrs.frozen
class _MemberLoad:
    """A member's load, and its lightest task (None: it has none)."""

    load: int
    lightest: int | None


class _LoadTable:
    """Loads of all staying members, and what a move between any two of them could pay."""

    def __init__(self, capacity: Mapping[str, int], loads: Mapping[str, _MemberLoad]) -> None:
        self.capacity = capacity
        self.loads = dict(loads)
        self._threads = sorted(set(capacity.values()))
        self._sort()

    def _sort(self) -> None:
        """For each capacity of a taker, the three givers that gain most; for each capacity, the
        three takers with the least load. Three, because a change has at most two members.
        """
        self._givers = {
            threads: sorted(((-self._worth(name, held, threads), name) for name, held in self.loads.items() if held.lightest is not None))[:3]
            for threads in self._threads
        }
        self._takers: dict[int, list[tuple[int, str]]] = {threads: [] for threads in self._threads}
        for name, held in self.loads.items():
            self._takers[self.capacity[name]].append((held.load, name))
        self._takers = {threads: sorted(of)[:3] for threads, of in self._takers.items()}

    def _worth(self, name: str, held: _MemberLoad, threads: int) -> int:
        """Returns what the member's lightest task would pay on an empty member with so many
        threads.
        """
        return held.load // self.capacity[name] - (held.lightest or 0) // threads

    def pays(self, changed: Mapping[str, _MemberLoad]) -> int:
        """An upper bound of what a move from or to a `changed` member could pay."""
        best = 0
        for name, held in changed.items():
            for threads in self._threads:
                takers = [(each.load, other) for other, each in changed.items() if self.capacity[other] == threads]
                takers += [(least, other) for least, other in self._takers[threads] if other not in changed]
                least = min((least for least, other in takers if other != name), default=None)
                if least is not None and held.lightest is not None:
                    best = max(best, self._worth(name, held, threads) - least // threads + 1)
            threads = self.capacity[name]
            worth = max((-lost for lost, other in self._givers[threads] if other not in changed), default=None)
            if worth is not None:
                best = max(best, worth - held.load // threads + 1)
        return best

    def change(self, changed: Mapping[str, _MemberLoad]) -> None:
        self.loads.update(changed)
        self._sort()


class _Search:
    """The changes so far, and the search for further ones."""

    def __init__(self, utilisation: Utilisation, mean: int, low: int, high: int) -> None:
        self.utilisation = utilisation
        self.even = (mean - low, mean + low)
        self.moves: list[LoadMove] = []
        self.looks = 0
        indexed = utilisation.indexed
        staying = {member.id: member.capacity for member in indexed.members.values() if not member.leaving}
        self.held = {name: sorted(utilisation.weights(name)) for name in staying}
        self.table = _LoadTable(staying, {name: _member_load(held) for name, held in self.held.items()})
        self.most = max(low, min(high, self.table.pays(self.table.loads)))
        self._open = [
            task
            for task, owner in utilisation.owner.items()
            if task not in utilisation.fixed and indexed.owner.get(task) == owner and owner in staying
        ]
        self._queue = sorted(self._open, key=lambda task: (-self._could_save(task), task), reverse=True)
        self._by_weight: dict[str | None, list[tuple[int, TaskId]]] = {}
        for task in self._open:
            self._by_weight.setdefault(indexed.racks.of[utilisation.owner[task]], []).append((utilisation.weight[task], task))
        for of_rack in self._by_weight.values():
            of_rack.sort()
        self._moved: set[TaskId] = set()

    def _could_save(self, task: TaskId) -> int:
        racks = self.utilisation.indexed.racks
        return racks.cost(task, self.utilisation.owner[task]) - racks.active(task).least

    def best(self) -> tuple[LoadMove, ...] | None:
        """The best change of the task that could save most; None: there is none, or the limit of
        the search is reached.
        """
        while self._queue and self.looks < MOST_LOOKS:
            task = self._queue[-1]
            if task not in self._moved:
                if self._could_save(task) == 0:
                    return None
                for _, _, _, _, change in sorted(self._changes_of(task), key=lambda each: each[:4]):
                    self.looks += 1
                    if self._may_be(change):
                        return change
            self._queue.pop()
        return None

    def _changes_of(self, task: TaskId) -> Iterator[tuple[int, int, int, TaskId, tuple[LoadMove, ...]]]:
        """(cost, unevenness, place of the other member, the other task, the change), for changes
        that save something.
        """
        utilisation, racks = self.utilisation, self.utilisation.indexed.racks
        source, weight = utilisation.owner[task], utilisation.weight[task]
        here = racks.cost(task, source)
        for rack, cost in racks.active(task).near.items():
            if cost >= here:
                continue
            for name in utilisation.least_full_in(rack, utilisation.indexed.unblocked(task)):
                saved = here - cost - racks.move_cost(task)
                if saved > 0 and name != source:
                    yield -saved, weight, utilisation.order[name], task, (LoadMove(task, source, name),)
            for other in self._partners(rack, weight):
                name = utilisation.owner[other]
                if other in self._moved or name == source or not self._may_go(task, name) or not self._may_go(other, source):
                    continue
                saved = here - cost - racks.move_cost(task) + racks.cost(other, name) - racks.cost(other, source) - racks.move_cost(other)
                if saved > 0:
                    change = (LoadMove(task, source, name), LoadMove(other, name, source))
                    yield -saved, abs(utilisation.weight[other] - weight), utilisation.order[name], other, change

    def _partners(self, rack: str | None, weight: int) -> list[TaskId]:
        of_rack = self._by_weight.get(rack, [])
        middle = bisect.bisect_left(of_rack, (weight, TaskId(0, 0)))
        return [task for _, task in of_rack[max(0, middle - PARTNERS) : middle + PARTNERS]]

    def _may_go(self, task: TaskId, name: str) -> bool:
        return name in self.utilisation.indexed.unblocked(task)

    def _may_be(self, change: tuple[LoadMove, ...]) -> bool:
        """Returns whether loads stay as even as they must be."""
        after = self._loads_after(change)
        before = [self.utilisation.of(name) for name in after]
        within = min(*before, self.even[0]), max(*before, self.even[1])
        utilisation = [held.load // self.table.capacity[name] for name, held in after.items()]
        return within[0] <= min(utilisation) and max(utilisation) <= within[1] and self.table.pays(after) <= self.most

    def _loads_after(self, change: tuple[LoadMove, ...]) -> dict[str, _MemberLoad]:
        weight = self.utilisation.weight
        loads = {}
        for name in _members(change):
            held = list(self.held[name])
            for move in change:
                if move.source == name:
                    held.remove(weight[move.task])
                else:
                    held.append(weight[move.task])
            loads[name] = _member_load(held)
        return loads

    def make(self, change: tuple[LoadMove, ...]) -> None:
        self.table.change(self._loads_after(change))
        for move in change:
            self.utilisation.give(move.task, move.destination)
            self._moved.add(move.task)
            self.moves.append(move)
        for name in _members(change):
            self.held[name] = sorted(self.utilisation.weights(name))


def _members(change: Iterable[LoadMove]) -> list[str]:
    return sorted({name for move in change for name in (move.source, move.destination)})


def _member_load(held: Sequence[int]) -> _MemberLoad:
    """The load of a member with tasks of these weights."""
    return _MemberLoad(sum(held), min(held, default=None))
