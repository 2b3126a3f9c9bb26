"""Evens out loads by few moves: the load of each member, owners for tasks without one, and the
moves that pay.

The *utilisation* of a member is its load per thread, in the unit of task weights, rounded down. A
move of a task of weight w from m to n *pays* more than g when n with the task is still more than g
below m now::

    utilisation(n with w) + g < utilisation(m)

Then the higher of the two falls, in exact numbers too, since g is worth thousands of roundings.

**Bound.** Where no move pays more than g, the most and the least loaded member differ by at most
the lightest task of the most loaded one, on a thread of the least loaded one, plus g. (Otherwise
that task would pay.) The mean is between the two, so no member is further than that from the mean.
This holds where every task may run everywhere; tasks that are in flight, blocked or of another
topology stay where they are.

**No thrash.** Any part of a plan may be carried out, in any order, and each move still pays when
its turn comes: in one plan a member either gives or takes, and after the whole plan each taker is
still more than g below where each of its givers was with the task. So from plan to plan the
utilisations, sorted from the highest down, only fall, and no state of the group recurs while its
loads stay the same.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Container, Iterator, Mapping

import attrs

from equipoise.assignors.common.indexed_problem import IndexedProblem, Pool
from equipoise.assignors.common.target import Candidates
from equipoise.events.tasks import LagSentinel, TaskId


@attrs.frozen
class LoadMove:
    """One task from its owner to another member."""

    task: TaskId
    source: str
    destination: str


class Utilisation:
    """Owners of tasks, and the utilisation of the staying members. `weight`: task -> its weight, at
    least 1.

    `tolerance`: outcomes whose utilisation differs by less are equal.
    """

    def __init__(self, indexed: IndexedProblem, weight: Mapping[TaskId, int], owner: Mapping[TaskId, str], *, tolerance: int) -> None:
        self.indexed = indexed
        self.weight = weight
        self.tolerance = max(1, tolerance)
        self.owner: dict[TaskId, str] = {}
        self.fixed: set[TaskId] = set()
        """Tasks that may not move."""
        self._capacity = {member.id: member.capacity for member in indexed.members.values()}
        self._most_threads = max(self._capacity.values(), default=1)
        self._load = dict.fromkeys(indexed.members, 0)
        self._tasks: dict[str, set[TaskId]] = {member: set() for member in indexed.members}
        self.order = _canonical_order(indexed)
        self._ladders: dict[tuple[int, str | None], list[tuple[int, int, str]]] = {}
        """(capacity, rack where racks make a difference) -> (utilisation, canonical place, member)
        of the staying members, rising.
        """
        self._ladder_of = {name: (threads, indexed.racks.of[name] if indexed.racks.counts else None) for name, threads in self._capacity.items()}
        for member in indexed.members.values():
            if not member.leaving:
                self._ladders.setdefault(self._ladder_of[member.id], []).append((0, self.order[member.id], member.id))
        for ladder in self._ladders.values():
            ladder.sort()
        for task in sorted(owner):
            self.give(task, owner[task])

    # Who has what

    def of(self, member: str, more: int = 0) -> int:
        """The member's utilisation, with `more` weight on it."""
        return (self._load[member] + more) // self._capacity[member]

    def loads(self) -> dict[str, int]:
        """Member -> its load now."""
        return dict(self._load)

    def give(self, task: TaskId, member: str) -> None:
        """Makes the member the owner of the task."""
        before = self.owner.get(task)
        if before is not None:
            self._tasks[before].discard(task)
            self._change(before, -self.weight[task])
        self.owner[task] = member
        self._tasks[member].add(task)
        self._change(member, self.weight[task])

    def _change(self, member: str, by: int) -> None:
        ladder = self._ladders.get(self._ladder_of[member], [])
        rung = (self.of(member), self.order[member], member)
        self._load[member] += by
        place = bisect.bisect_left(ladder, rung)
        if place < len(ladder) and ladder[place] == rung:
            del ladder[place]
            bisect.insort(ladder, (self.of(member), self.order[member], member))

    def falling(self) -> Iterator[str]:
        """Staying members, the most loaded first."""
        rungs = heapq.merge(*(reversed(ladder) for ladder in self._ladders.values()), reverse=True)
        return (member for _, _, member in rungs)

    def ends(self) -> tuple[str, str] | None:
        """The most and the least loaded staying member; None: no member stays."""
        rungs = [ladder[0] for ladder in self._ladders.values()]
        return (next(self.falling()), min(rungs)[2]) if rungs else None

    def movable(self, member: str) -> list[TaskId]:
        """The member's tasks that may move, in rising order."""
        return sorted(self._tasks[member] - self.fixed)

    def weights(self, member: str) -> list[int]:
        """Weights of the member's tasks."""
        return [self.weight[task] for task in self._tasks[member]]

    # Owners for tasks that must have one

    def place(self, task: TaskId, candidates: Candidates | None, *, unblocked: bool = False) -> None:
        """Gives the task to the candidate that is least loaded with it. `candidates` None: every
        eligible member (`unblocked`: on which a warm-up may begin).

        Among candidates within the tolerance: the one nearest to what the task reads, then a
        previous owner, then the least restore time.
        """
        indexed, weight = self.indexed, self.weight[task]
        if candidates is None:
            pool: Pool | None = (indexed.unblocked(task) if unblocked else None) or indexed.eligible(task)
            held = indexed.copies[task] if indexed.tasks[task].stateful else ()
            found = [member for member in (*indexed.previous_owners(task), *held) if pool is not None and member in pool]
        else:
            pool = candidates.fresh
            found = list(candidates.members)
        found += (self._least_full(pool) or pool.members) if pool is not None else ()
        if not found:
            return

        def worth(member: str) -> tuple[int, int, bool, int, int, int]:
            level = self.of(member, weight)
            away = not indexed.goes_back_to(member, task)
            return level // self.tolerance, indexed.racks.cost(task, member), away, indexed.restore_time(member, task), level, self.order[member]

        self.give(task, min(dict.fromkeys(found), key=worth))

    def _least_full(self, pool: Pool, source: str = "", besides: Container[str] = ()) -> list[str]:
        """The least loaded member of the pool for each capacity (and rack), without `source` and
        `besides`.
        """
        found = []
        for ladder in self._ladders.values():
            member = next((member for _, _, member in ladder if member in pool and member != source and member not in besides), None)
            if member is not None:
                found.append(member)
        return found

    def least_full_in(self, rack: str | None, pool: Pool) -> list[str]:
        """The least loaded member of the pool in that rack, for each capacity."""
        found = []
        for (_, where), ladder in self._ladders.items():
            member = next((member for _, _, member in ladder if member in pool), None) if where == rack else None
            if member is not None:
                found.append(member)
        return found

    # Moves that pay

    def gain(self) -> int:
        """Returns what the best single move pays: the greatest g for which a move pays g; 0: none
        pays.
        """
        best = 0
        ends = self.ends()
        for source in self.falling() if ends is not None else ():
            level, lowest = self.of(source), self.of(ends[1])  # type: ignore[index]
            if level - lowest <= best:
                break
            near: dict[Pool, list[str]] = {}
            for task in self.movable(source):
                if level - lowest - self.weight[task] // self._most_threads > best:
                    for member in self.destinations(task, source, (), near):
                        best = max(best, level - self.of(member, self.weight[task]))
        return best

    def even_out(self, margin: int, mean: int) -> list[LoadMove]:
        """Moves that each pay more than `margin` (see the module), applied to this object.

        The most loaded member gives first. The task and the taker are those that leave both members
        the least outside of even (the mean, plus or minus half the margin). Among equals: what is
        nearest to what it reads, then a previous owner, then the least restore time, then the
        heaviest task.

        Before: m1 (5, 4, 1), m2 (2), each of one thread. After: m1 (5, 1), m2 (2, 4).
        """
        plan = _Plan(self, margin, mean)
        for _ in range(len(self.owner)):
            move = plan.next_move()
            if move is None:
                break
            plan.add(move)
        return plan.moves

    def destinations(self, task: TaskId, source: str, besides: Container[str], near: dict[Pool, list[str]]) -> list[str]:
        """Members that the task may go to, without `besides`: the least loaded of each capacity
        (and rack), and members with a ready copy.

        `near`: pool -> its least loaded members; valid while source, loads and `besides` stay the
        same.
        """
        indexed = self.indexed
        pool = indexed.unblocked(task)
        if pool not in near:
            near[pool] = self._least_full(pool, source, besides)
        if indexed.tasks[task].stateful:
            held = [member for member, copy in indexed.copies[task].items() if copy.caught_up and indexed.may_run(member, task)]
        else:
            held = [member for member in indexed.previous_owners(task) if indexed.may_run(member, task)]
        if not held:
            return near[pool]
        return list(dict.fromkeys((*near[pool], *(member for member in held if member != source and member not in besides))))


class _Plan:
    """The moves so far, and which others may be added."""

    def __init__(self, utilisation: Utilisation, margin: int, mean: int) -> None:
        self.utilisation = utilisation
        self.margin = margin
        self.even = (mean - margin // 2, mean + margin // 2)
        self.moves: list[LoadMove] = []
        self.given: dict[str, list[LoadMove]] = {}
        self.taken: dict[str, list[LoadMove]] = {}
        self.sources = [(-utilisation.of(member), utilisation.order[member], member) for member in utilisation.falling()]
        """Heap of givers, the most loaded first. A member without a move is dropped; the next plan
        looks again.
        """

    def next_move(self) -> LoadMove | None:
        """The best move of the most loaded member that has one; None: no move pays."""
        utilisation = self.utilisation
        while self.sources:
            _, order, source = heapq.heappop(self.sources)
            best = None if source in self.taken else min(self._moves_of(source), default=None)
            if best is not None:
                move = best[-1]
                heapq.heappush(self.sources, (-utilisation.of(source, -utilisation.weight[move.task]), order, source))
                return move
        return None

    def _moves_of(self, source: str) -> Iterator[tuple[int, int, bool, int, int, int, TaskId, LoadMove]]:
        utilisation, indexed = self.utilisation, self.utilisation.indexed
        level = utilisation.of(source)
        near: dict[Pool, list[str]] = {}
        for task in utilisation.movable(source):
            weight = utilisation.weight[task]
            for member in utilisation.destinations(task, source, self.given, near):
                move = LoadMove(task, source, member)
                if utilisation.of(member, weight) + self.margin < level and self._may_stand(move):
                    outside = self._outside(utilisation.of(member, weight)) + self._outside(utilisation.of(source, -weight))
                    away = not indexed.goes_back_to(member, task)
                    farther = indexed.racks.cost(task, member) - indexed.racks.cost(task, source)
                    place = utilisation.order[member]
                    yield outside // utilisation.tolerance, farther, away, indexed.restore_time(member, task), -weight, place, task, move

    def _outside(self, level: int) -> int:
        return max(0, level - self.even[1], self.even[0] - level)

    def _may_stand(self, move: LoadMove) -> bool:
        """Returns whether each move of the plan still pays at the end of the plan with this one
        added.
        """
        utilisation, weight = self.utilisation, self.utilisation.weight[move.task]
        taker = utilisation.of(move.destination, weight)
        for other in self.taken.get(move.destination, ()):
            without = weight if other.source == move.source else 0
            if taker + self.margin >= utilisation.of(other.source, utilisation.weight[other.task] - without):
                return False
        for other in self.given.get(move.source, ()):
            level = taker if other.destination == move.destination else utilisation.of(other.destination)
            if level + self.margin >= utilisation.of(move.source, utilisation.weight[other.task] - weight):
                return False
        return True

    def add(self, move: LoadMove) -> None:
        self.moves.append(move)
        self.given.setdefault(move.source, []).append(move)
        self.taken.setdefault(move.destination, []).append(move)
        self.utilisation.give(move.task, move.destination)


def fewest_moves(dealt: Mapping[str, list[int]], capacity: Mapping[str, int], highest: int, lowest: int, forced: int) -> int:
    """A lower bound of the moves from these owners to any in which no utilisation is above
    `highest` and none below `lowest`.

    `dealt`: member -> weights of its tasks now; `capacity`: of the staying members. A member above
    `highest` gives at least as many tasks as it takes of its heaviest to come down to it, and
    leaving members give `forced` tasks. A member below `lowest` takes at least as many as it would
    take of the heaviest tasks of all. Every move has one giver and one taker, so each of the two
    sums is a bound.
    """
    heaviest = sorted((weight for of in dealt.values() for weight in of), reverse=True)
    leave, arrive = forced, 0
    for member, threads in capacity.items():
        load = sum(dealt[member])
        for weight in sorted(dealt[member], reverse=True):
            if load // threads <= highest:
                break
            load -= weight
            leave += 1
        load = sum(dealt[member])
        for weight in heaviest:
            if load // threads >= lowest:
                break
            load += weight
            arrive += 1
    return max(leave, arrive)


def _canonical_order(indexed: IndexedProblem) -> dict[str, int]:
    """Member -> its place by everything but its name, so that names decide only between members
    that are otherwise equal.
    """
    incoming: dict[str, list[TaskId]] = {}
    for movement in indexed.in_flight.values():
        incoming.setdefault(movement.destination, []).append(movement.task)
    blocked: dict[str, list[TaskId]] = {}
    for task, members in indexed.blocked.items():
        for member_id in members:
            blocked.setdefault(member_id, []).append(task)

    def looks(name: str) -> tuple[object, ...]:
        member = indexed.members[name]
        return (
            member.leaving,
            member.drain_expired,
            member.capacity,
            sorted(member.active),
            sorted(member.standby),
            sorted(member.warmup),
            [
                (task, lag.value if isinstance(lag, LagSentinel) else "", 0 if isinstance(lag, LagSentinel) else lag)
                for task, lag in sorted(member.lags.items(), key=lambda item: item[0])
            ],
            sorted(member.ready),
            member.readiness,
            -1 if member.ready_lag_records is None else member.ready_lag_records,
            sorted(member.previously_owned),
            sorted(incoming.get(name, ())),
            sorted(blocked.get(name, ())),
            (member.subtopologies is None, sorted((member.subtopologies or {}).items())),
            member.restore_records_per_s,
            member.rack or "",
            sorted(member.tags.items()),
            name,
        )

    return {name: place for place, name in enumerate(sorted(indexed.members, key=looks))}
