"""Standbys: `num_standbys` copies of each stateful task beside its owner, spread evenly and kept
where they are.

The KIP places one ("if count < num_standbys"). Here all are placed, one round over all tasks after
another, so that scarcity is shared.

* Copies that a member holds stay while the task needs them. The copy of a movement counts as one of
  them only where its destination held a standby of the task, or no other member can hold one (see
  `movements`). In the loads it counts as its source's, which keeps its copy after the hand-over. In
  the KIP it always counts, so a hot copy is dropped for one that has everything to restore.
* Missing copies are placed at once: first where a copy is left over and there is room, then on the
  least loaded member.
* A member with more copies than its share (of (1 + n) x tasks, by capacity, its own tasks included)
  passes copies on, and so does a leaving one, and one with more than the least to one with less.
  The new copy restores as a warm-up, under the same caps; when it is caught up it becomes the
  standby, and the old one is dropped. A leaving member's copies count until then, or until it has
  left.

Where racks or tags matter, `standby_goal` decides where the copies are in the end.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping

import attrs
import numpy as np

from equipoise.assignors.common.indexed_problem import IndexedProblem, Pool
from equipoise.assignors.common.movements import Movements, WarmupSlots
from equipoise.assignors.common.node_aggregation import Ints
from equipoise.assignors.common.round_robin import deal
from equipoise.assignors.common.shares import Share, group_slack, seats, shares_of
from equipoise.assignors.common.standby_goal import StandbyGoal, standby_goal
from equipoise.assignors.common.standby_search import Wish
from equipoise.events.tasks import TaskId

MANY_COPIES = 4
"""Copies per member above which it pays to fill members to a common level before comparing them one
by one.
"""


@attrs.frozen(kw_only=True)
class Standbys:
    """`holders`: task -> members, in rising order.

    `warmups`: (task, member) copies that will replace a standby elsewhere. `placed`: tasks that got
    a new standby.
    """

    holders: Mapping[TaskId, tuple[str, ...]]
    warmups: frozenset[tuple[TaskId, str]]
    placed: frozenset[TaskId]
    unsettled: bool
    """Whether a standby is still to be passed on."""
    goal: StandbyGoal | None = None
    """Where the standbys are in the end, where racks or tags matter."""


def assign_standbys(
    indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str], movements: Movements, slots: WarmupSlots
) -> Standbys:
    """KIP-441, `assignStandbys`. `now`, `target`: task -> its owner after this plan, and in the
    end.
    """
    if indexed.settings.num_standbys == 0:
        return Standbys(holders={}, warmups=frozenset(), placed=frozenset(), unsettled=False)
    board = _Board(indexed, now, target, movements)
    if indexed.places.matter or indexed.racks.copies_count:
        return _Exchange(indexed, now, target, movements, board.wanted).standbys(board, slots)
    board.keep()
    board.fill()
    warmups, unsettled = board.pass_on(slots)
    return Standbys(
        holders=board.in_order(),
        warmups=warmups,
        placed=frozenset(board.placed),
        unsettled=unsettled,
    )


class _Exchange:
    """Standbys where racks or tags matter: a goal for all of them, and copies passed on one by one
    until it is reached.

    A missing copy is placed at once. A copy in the wrong place is replaced as always: the new one
    restores as a warm-up, and when it is caught up the old one is dropped. A task in flight to a
    member with a standby of it keeps that copy, and the others are placed as for its new owner.
    """

    def __init__(
        self, indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str], movements: Movements, wanted: Mapping[TaskId, int]
    ) -> None:
        self.indexed = indexed
        self.now = now
        self.owner = {task: target.get(task, now[task]) for task in wanted}
        self.swapped = {task: member for task, member in movements.standby_destinations.items() if task in wanted}
        self.room = {task: max(0, count - (task in self.swapped)) for task, count in wanted.items()}
        self.here: dict[TaskId, list[str]] = {task: [] for task in wanted}
        self.begun: dict[TaskId, list[str]] = {task: [] for task in wanted}
        for member in indexed.members.values():
            for task in sorted(member.standby):
                useful = task in wanted and (member.leaving or indexed.may_run(member.id, task))
                if useful and member.id not in (self.now[task], self.swapped.get(task)):
                    self.here[task].append(member.id)
            for task in sorted(member.warmup):
                if task in wanted and member.id not in (self.now[task], self.owner[task]) and indexed.may_run(member.id, task):
                    self.begun[task].append(member.id)

    def standbys(self, board: _Board, slots: WarmupSlots) -> Standbys:
        """`board`: loads and shares, before any standby is placed."""
        wishes = {
            task: Wish(
                copies=room,
                owner=self.owner[task],
                never=frozenset((self.now[task], self.owner[task])),
                here=tuple(self.here[task]),
                begun=tuple(self.begun[task]),
            )
            for task, room in self.room.items()
        }
        goal = standby_goal(self.indexed, wishes, board.load, board.shares)
        placed = {task for task, member in self.swapped.items() if task not in self.indexed.members[member].standby}
        holders: dict[TaskId, list[str]] = {}
        exchanges: list[tuple[bool, int, TaskId, str, str]] = []
        for task, room in self.room.items():
            wished = goal.holders[task]
            here = self.here[task]
            kept = [member for *_, member in sorted(self._worth(member, wished, task) for member in here)][:room] if here else []
            missing = [member for member in wished if member not in kept]
            while missing and len(kept) < room:
                kept.append(missing.pop(0))
                placed.add(task)
            givers = [member for member in kept if member not in wished]
            for giver, taker in zip(reversed(givers), missing, strict=False):
                exchanges.append((taker not in self.begun[task], self.indexed.records(taker, task), task, giver, taker))
            holders[task] = kept
        warmups: set[tuple[TaskId, str]] = set()
        unsettled = False
        for is_new, _, task, giver, taker in sorted(exchanges):
            if self.indexed.caught_up(taker, task):
                holders[task][holders[task].index(giver)] = taker
                continue
            unsettled = True
            if not (is_new and self.indexed.is_blocked(task, taker)) and slots.take(taker):
                warmups.add((task, taker))
        if goal.searched and not self.indexed.behaviour.standbys_rest_early:
            unsettled = unsettled or any(sorted(members) != sorted(self.here[task]) for task, members in holders.items())
        for task, member in self.swapped.items():
            holders[task].append(member)
        return Standbys(
            holders={task: tuple(sorted(members)) for task, members in holders.items()},
            warmups=frozenset(warmups),
            placed=frozenset(placed),
            unsettled=unsettled,
            goal=goal,
        )

    def _worth(self, member: str, wished: tuple[str, ...], task: TaskId) -> tuple[bool, bool, int, str]:
        """Most first: copies that stay; then those of staying members, with the least to restore."""
        return member not in wished, self.indexed.members[member].leaving, self.indexed.records(member, task), member


class _Board:
    """The holders of standbys, and the load that each member will have."""

    def __init__(self, indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str], movements: Movements) -> None:
        self.indexed = indexed
        self.now = now
        self.destination = {movement.task: movement.destination for movement in movements.planned}
        self.holders: dict[TaskId, tuple[str, ...]] = dict.fromkeys([task for task in indexed.stateful if task in now], ())
        self.alone = {member: (member,) for member in indexed.members}
        """The only holder of a task: one object for all tasks of a member."""
        self.wanted = self._wanted()
        self.placed: set[TaskId] = set()
        self.load = {**dict.fromkeys(indexed.members, 0), **indexed.stateful_of(target)}
        self.shares = self._shares()
        self.upper = {member: share.upper for member, share in self.shares.items()}
        self.lower = {member: share.lower for member, share in self.shares.items()}
        self.heap: list[tuple[float, str]] = []
        self.must_stay = movements.standby_destinations

    def _shares(self) -> dict[str, Share]:
        """Share of copies of each member, its own tasks included. Copies left over count until they
        are dropped.
        """
        members = seats(self.indexed)
        copies = sum(self.wanted.values()) + len(self.holders)
        kept = {member.id: self.load[member.id] + len(member.standby) for member in self.indexed.members.values()}
        return shares_of(members, copies, group_slack(self.indexed, members, copies, kept))

    def _wanted(self) -> dict[TaskId, int]:
        """Number of standbys of the task: num_standbys, or fewer where there are fewer members
        beside the owner.
        """
        asked = self.indexed.settings.num_standbys
        wanted = dict.fromkeys(self.holders, asked)
        if any(len(pool.members) <= asked for pool in self.indexed.pools):
            for task in wanted:
                wanted[task] = min(asked, len(self.indexed.eligible(task).members) - self.indexed.may_run(self.now[task], task))
        return wanted

    def keep(self) -> None:
        """Keeps copies that are still needed."""
        for member in self.indexed.members.values():
            for task in sorted(member.standby):
                useful = member.leaving or self.indexed.may_run(member.id, task) if task in self.holders else False
                if useful and self.now[task] != member.id and self.wanted[task] > 0:
                    self.add(task, member.id)
        for task, destination in self.must_stay.items():
            if task in self.holders and destination not in self.holders[task]:
                self.add(task, destination)
                self.placed.add(task)
        for task in [task for task, members in self.holders.items() if members]:
            while len(self.holders[task]) > self.wanted[task]:
                self.remove(task, min(self.holders[task], key=lambda member: self._worth_keeping(task, member)))

    def _worth_keeping(self, task: TaskId, member: str) -> tuple[bool, bool, int, int, str]:
        """Least first: what a movement needs stays; then copies of staying members with room and
        the least to restore.
        """
        return (
            self.must_stay.get(task) == member,
            not self.indexed.members[member].leaving,
            min(0, self.upper[member] - self.load[member]),
            -self.indexed.records(member, task),
            member,
        )

    def fill(self) -> None:
        """Places missing copies, one round over all tasks after another: copies that are left over
        first, then new ones.
        """
        self.heap = [self._entry(member.id) for member in self.indexed.members.values() if not member.leaving]
        heapq.heapify(self.heap)
        for copies in range(max(self.wanted.values(), default=0)):
            missing: dict[Pool, list[TaskId]] = {}
            short = [task for task, members in self.holders.items() if len(members) == copies < self.wanted[task]]
            for pool, run in itertools.groupby(short, self.indexed.eligible):
                bare = [task for task in run if not (self.indexed.copies[task] and self._place_left_over(task))]
                if bare:
                    missing.setdefault(pool, []).extend(bare)
            for pool, tasks in missing.items():
                self._deal(pool, tasks, copies)

    def _deal(self, pool: Pool, tasks: list[TaskId], copies: int) -> None:
        """One more than `copies` of each task: first how many each member gets, so that loads are
        even; then which, in round-robin order.

        Tasks of one owner follow each other, so an owner's standbys spread over many members, and
        so does its work when it dies.
        """
        of_owner: defaultdict[str, list[TaskId]] = defaultdict(list)
        for task in tasks:
            of_owner[self.now[task]].append(task)
        by_owner = [task for owner in sorted(of_owner) for task in of_owner[owner]]
        dealt = deal(by_owner, self._places(pool, of_owner, tasks), self._never)
        self.holders.update({task: (*self.holders[task], member) if copies else self.alone[member] for task, member in dealt.items()})
        for member, count in Counter(dealt.values()).items():
            self.load[member] += count
        self.placed.update(dealt)
        for task in by_owner if len(dealt) < len(by_owner) else ():
            if task not in dealt:
                last_resort = self._least_loaded(task, beside=self.destination.get(task)) or self._least_loaded(task, beside=None)
                if last_resort is not None:
                    self._place(task, last_resort)

    def _never(self, task: TaskId) -> Container[str | None]:
        """Members that may not hold one more copy of the task."""
        return (self.now[task], self.destination.get(task), *self.holders[task])

    def _places(self, pool: Pool, of_owner: Mapping[str, list[TaskId]], tasks: list[TaskId]) -> dict[str, int]:
        """Member -> number of copies it gets, one of each task: each goes to the least loaded
        member with room.
        """
        held = Counter(itertools.chain.from_iterable([self.holders[task] for task in tasks]))
        room = {member: len(tasks) - len(of_owner.get(member, ())) - held[member] for member in pool.members}
        places = self._level_places(room, len(tasks))
        loads = [self._entry(member, places[member]) for member in pool.members]
        heapq.heapify(loads)
        for _ in range(len(tasks) - sum(places.values())):
            while loads and places[loads[0][1]] >= room[loads[0][1]]:
                heapq.heappop(loads)
            if not loads:
                break
            member = loads[0][1]
            places[member] += 1
            heapq.heapreplace(loads, self._entry(member, places[member]))
        return places

    def _level_places(self, room: Mapping[str, int], copies: int) -> dict[str, int]:
        """Member -> places that it gets in any order, so that most copies need no comparison.

        They fill each member with room to the same whole number of copies per capacity, the highest
        for which there are enough.
        """
        if copies < MANY_COPIES * len(room):
            return dict.fromkeys(room, 0)
        load = np.array([self.load[member] for member in room], dtype=np.int64)
        capacity = np.array([self.indexed.members[member].capacity for member in room], dtype=np.int64)
        most = np.array(list(room.values()), dtype=np.int64)

        def places(level: int) -> Ints:
            wanted: Ints = np.minimum(np.maximum(level * capacity - load, 0), most)
            return wanted

        low, high = 0, int(((load + most) // capacity).max()) + 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if places(middle).sum() <= copies else (low, middle - 1)
        return dict(zip(room, places(low).tolist(), strict=True))

    def _place(self, task: TaskId, member: str) -> None:
        self.add(task, member)
        self.placed.add(task)

    def _place_left_over(self, task: TaskId) -> bool:
        """Makes a copy that is left over a standby. Returns whether there is one."""
        left_over = self._left_over(task)
        if left_over is not None:
            self._place(task, left_over)
        return left_over is not None

    def _left_over(self, task: TaskId) -> str | None:
        """The best copy that does not count yet, on a member with room."""
        found = sorted(
            (not copy.caught_up, copy.records, member)
            for member, copy in self.indexed.copies[task].items()
            if self.may_hold(member, task) and member != self.destination.get(task) and self.load[member] < self.upper[member]
        )
        return found[0][2] if found else None

    def _least_loaded(self, task: TaskId, beside: str | None) -> str | None:
        """The least loaded member by capacity that may hold a copy; not `beside`."""
        skipped = []
        found = None
        while self.heap:
            entry = heapq.heappop(self.heap)
            current = self._entry(entry[1])
            if entry != current:
                heapq.heappush(self.heap, current)
                continue
            skipped.append(entry)
            if entry[1] != beside and self.may_hold(entry[1], task):
                found = entry[1]
                break
        for entry in skipped:
            heapq.heappush(self.heap, entry)
        return found

    def pass_on(self, slots: WarmupSlots) -> tuple[frozenset[tuple[TaskId, str]], bool]:
        """Passes on copies of members that have too many, or are leaving. Returns the warm-ups, and
        whether a copy is still to be passed on.
        """
        warmups: set[tuple[TaskId, str]] = set()
        begun = [
            (task, member.id)
            for member in self.indexed.members.values()
            for task in member.warmup
            if task in self.holders and self.destination.get(task) != member.id and self.may_hold(member.id, task)
        ]
        for task, member in sorted(begun):
            giver = self._giver(task, member)
            if giver is None:
                continue
            if self.indexed.caught_up(member, task):
                self._replace(task, giver, member)
            elif slots.take(member):
                warmups.add((task, member))
                self._promise(giver, member)
        unsettled = bool(warmups)
        being_passed_on = {task for task, _ in warmups}
        while True:
            passed_on = False
            for task, giver in self._surplus():
                may_give = self.load[giver] > self.lower[giver] or self.indexed.members[giver].leaving
                if not may_give or task in being_passed_on:
                    continue
                receiver = self._left_over(task)
                if receiver is not None and self._evens_out(giver, receiver) and self.indexed.caught_up(receiver, task):
                    self._replace(task, giver, receiver)
                    passed_on = True
                    continue
                taker = receiver or self._least_loaded(task, beside=self.destination.get(task))
                if taker is None or not self._evens_out(giver, taker):
                    continue
                unsettled = True
                if not self.indexed.is_blocked(task, taker) and slots.take(taker):
                    warmups.add((task, taker))
                    being_passed_on.add(task)
                    self._promise(giver, taker)
                elif not slots.left:
                    break
            if not passed_on:  # each one evens loads out, so this ends; and each may make room for another
                return frozenset(warmups), unsettled

    def _surplus(self) -> Iterator[tuple[TaskId, str]]:
        """Copies that may be passed on, cheapest first: of members that leave, have too many, or,
        while a member has too few, have more than the least.
        """
        too_few = any(load < self.lower[member] for member, load in self.load.items())
        most = self.lower if too_few else self.upper
        givers = {member for member, load in self.load.items() if load > most[member] or self.indexed.members[member].leaving}
        pairs = [
            (self.indexed.tasks[task].end_offset, task, member)
            for task, members in (self.holders.items() if givers else ())
            for member in members
            if member in givers and self.must_stay.get(task) != member
        ]
        for _, task, member in sorted(pairs):
            yield task, member

    def _evens_out(self, giver: str, taker: str) -> bool:
        """Returns whether a copy should go from one member to the other: from a leaving one, or
        from above its share, or to below its own.
        """
        if self.load[taker] >= self.upper[taker]:
            return False
        if self.indexed.members[giver].leaving or self.load[giver] > self.upper[giver]:
            return True
        return self.load[giver] > self.lower[giver] and self.load[taker] < self.lower[taker]

    def _giver(self, task: TaskId, taker: str) -> str | None:
        """The standby that a new copy on `taker` replaces: of a leaving member, or of the one most
        above its share.
        """
        found = sorted(
            (not self.indexed.members[member].leaving, self.upper[member] - self.load[member], member)
            for member in self.holders[task]
            if self.must_stay.get(task) != member and self._evens_out(member, taker)
        )
        return found[0][2] if found else None

    def _replace(self, task: TaskId, giver: str, member: str) -> None:
        self.remove(task, giver)
        self.add(task, member)

    def _promise(self, giver: str, member: str) -> None:
        """Updates loads to those after the copy has been passed on."""
        self.load[giver] -= 1
        self.load[member] += 1

    def in_order(self) -> dict[TaskId, tuple[str, ...]]:
        """Task -> its holders in rising order."""
        return {task: tuple(sorted(members)) if len(members) > 1 else members for task, members in self.holders.items()}

    def _hold(self, task: TaskId, member: str) -> None:
        before = self.holders[task]
        self.holders[task] = (*before, member) if before else self.alone[member]

    def may_hold(self, member: str, task: TaskId) -> bool:
        return self.now[task] != member and member not in self.holders[task] and self.indexed.may_run(member, task)

    def add(self, task: TaskId, member: str) -> None:
        self._hold(task, member)
        self.load[self._counted_at(task, member)] += 1

    def remove(self, task: TaskId, member: str) -> None:
        """Drops a copy that no movement needs."""
        self.holders[task] = tuple([other for other in self.holders[task] if other != member])
        self.load[member] -= 1

    def _counted_at(self, task: TaskId, member: str) -> str:
        """The member at which a copy counts: a destination that is a standby becomes the owner, and
        its source then holds the standby.
        """
        return self.now[task] if self.must_stay.get(task) == member else member

    def _entry(self, member: str, more: int = 0) -> tuple[float, str]:
        return (self.load[member] + more) / self.indexed.members[member].capacity, member
