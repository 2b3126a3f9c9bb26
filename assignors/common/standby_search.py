"""A local search that moves and exchanges standbys: what is left to gain after copies were placed
one after another.

A copy moves to another member, or copies of two tasks change members, when that lowers the costs of
`standby_goal`. So spread and evenness never get worse for a lower cost. The search ends when no
move and no exchange gains anything, or after MOST_LOOKS; it proves nothing. (Kafka exchanges the
copies of each two clients, KIP-925, 4.C.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs

from equipoise.assignors.common.flow_network import PARTS_OF_A_SHARE
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.shares import Share
from equipoise.events.tasks import TaskId

MOST_LOOKS = 80_000
"""Pairs of copies of a task examined in one search: some tenths of a second."""

Worth = tuple[int, int, int, int, int, int]
"""Shared values, unevenness, rack cost, changes, stalled warm-ups, records: each outweighs all that
follow; less is better.
"""
NOTHING: Worth = (0, 0, 0, 0, 0, 0)


@attrs.frozen(kw_only=True)
class Wish:
    """A task whose standbys are to be placed.

    `copies`: how many. `owner`: of the task at the target. `never`: members that may not have one.
    `here`: members that have one. `begun`: members on which one restores already, which costs
    nothing more.
    """

    copies: int
    owner: str
    never: frozenset[str]
    here: tuple[str, ...]
    begun: tuple[str, ...]


class StandbySearch:
    """The search. `load`: member -> stateful tasks at the target. `apart`: whether values shared
    with earlier copies count for the copy of this number.

    `holders`: task -> members with its standbys; changed in place.
    """

    def __init__(
        self,
        indexed: IndexedProblem,
        wishes: Mapping[TaskId, Wish],
        load: Mapping[str, int],
        shares: Mapping[str, Share],
        apart: Callable[[int], bool],
        holders: dict[TaskId, list[str]],
    ) -> None:
        self.indexed = indexed
        self.wishes = wishes
        self.shares = shares
        self.apart = apart
        self.holders = holders
        self.copies: dict[str, set[TaskId]] = {member: set() for member in indexed.members}
        for task, members in holders.items():
            for member in members:
                self.copies[member].add(task)
        self.load = {member: count + len(self.copies[member]) for member, count in load.items()}
        self.looks = 0

    def search(self) -> None:
        """Moves and exchanges until nothing is gained, task by task in rising order."""
        gained = True
        while gained:
            gained = False
            for task, members in self.holders.items():
                for number in range(len(members)):
                    if self.looks >= MOST_LOOKS:
                        return
                    if self._may_gain(task, number):
                        gained |= self._move(task, number) or self._swap(task, number)

    def worth(self) -> Worth:
        """The cost of all copies where they are now."""
        total = NOTHING
        for task, members in self.holders.items():
            total = _sum(total, self._worth(task, members))
        uneven = sum(self._place(member, place) for member, load in self.load.items() for place in range(load - len(self.copies[member]), load))
        return _sum(total, (0, uneven, 0, 0, 0, 0))

    def _worth(self, task: TaskId, members: list[str]) -> Worth:
        """The cost of one task's copies, without unevenness, which concerns all tasks. The copy
        that shares least with the owner counts as the first, so the order of copies plays no part,
        and the search cannot cycle.
        """
        indexed, wish = self.indexed, self.wishes[task]
        places, traffic = indexed.places, indexed.racks.standby(task)
        before = [places.of[wish.owner]]
        common = cost = changes = preference_cost = records = 0
        for number, member in enumerate(sorted(members, key=lambda member: (places.common_values(places.of[member], before[:1]), member))):
            place = places.of[member]
            if self.apart(number):
                common += places.common_values(place, before)
            before.append(place)
            cost += traffic.at(indexed.racks.of[member])
            if member not in wish.here:
                changes += 1
                preference_cost += indexed.is_blocked(task, member)
            records += 0 if indexed.caught_up(member, task) else indexed.records(member, task)
        return common, 0, cost + self.replaced(task, members) * indexed.settings.rack_non_overlap_cost, changes, preference_cost, records

    def replaced(self, task: TaskId, members: list[str]) -> int:
        """Number of new copies that replace one that could stay; 0 where racks make no difference
        to copies.
        """
        wish = self.wishes[task]
        if not wish.here or not self.indexed.racks.copies_count:
            return 0
        left = sum(self.indexed.may_run(member, task) and member not in wish.never and member not in members for member in wish.here)
        return min(left, sum(member not in wish.here and member not in wish.begun for member in members))

    def _place(self, member: str, place: int) -> int:
        """Cost of a member's place of this number, as in `AssignmentNetwork.room`."""
        share = self.shares[member]
        return 0 if place < share.lower else 1 if place < share.upper else 2 + (place - share.upper) // max(1, share.upper // PARTS_OF_A_SHARE)

    def _may_gain(self, task: TaskId, number: int) -> bool:
        """Returns whether any cost of the copy could fall: its place, its traffic, its shared
        values.
        """
        indexed, members = self.indexed, self.holders[task]
        member = members[number]
        traffic, places = indexed.racks.standby(task), indexed.places
        if self._place(member, self.load[member] - 1) > 0 or traffic.at(indexed.racks.of[member]) > traffic.least:
            return True
        if not self.apart(0):
            return False
        self.looks += len(members)
        others = [places.of[self.wishes[task].owner], *[places.of[other] for other in members if other != member]]
        return places.common_values(places.of[member], others) > 0

    def _elsewhere(self, task: TaskId, number: int) -> Iterator[tuple[str, Worth]]:
        """Other members that may have this copy, with the change of cost."""
        members, wish = self.holders[task], self.wishes[task]
        now = self._worth(task, members)
        for member in self.indexed.eligible(task).members:
            if member not in wish.never and member not in members:
                self.looks += len(members) ** 2
                yield member, _less(self._worth(task, [*members[:number], member, *members[number + 1 :]]), now)

    def _move(self, task: TaskId, number: int) -> bool:
        """Moves the copy to the member where that gains most. Returns whether."""
        giver = self.holders[task][number]
        freed = self._place(giver, self.load[giver] - 1)
        best: tuple[Worth, str] = NOTHING, ""
        for member, gain in self._elsewhere(task, number):
            best = min(best, (_sum(gain, (0, self._place(member, self.load[member]) - freed, 0, 0, 0, 0)), member))
        if best[0] < NOTHING:
            self._give(task, number, best[1])
        return best[0] < NOTHING

    def _swap(self, task: TaskId, number: int) -> bool:
        """Exchanges the copy with the first one with which that gains. One of the two gains by
        itself: this one; the other has its own turn.
        """
        giver = self.holders[task][number]
        for member, gain in list(self._elsewhere(task, number)):
            if gain >= NOTHING:
                continue
            for other in sorted(self.copies[member] - self.copies[giver]):
                holders, wish = self.holders[other], self.wishes[other]
                if giver in wish.never or not self.indexed.may_run(giver, other):
                    continue
                self.looks += len(holders) ** 2
                changed = [giver if each == member else each for each in holders]
                if _sum(gain, _less(self._worth(other, changed), self._worth(other, holders))) < NOTHING:
                    self._give(task, number, member)
                    self._give(other, holders.index(member), giver)
                    return True
                if self.looks >= MOST_LOOKS:
                    return False
        return False

    def _give(self, task: TaskId, number: int, member: str) -> None:
        giver = self.holders[task][number]
        self.holders[task][number] = member
        self.copies[giver].remove(task)
        self.copies[member].add(task)
        self.load[giver] -= 1
        self.load[member] += 1


def _sum(one: Worth, other: Worth) -> Worth:
    a, b, c, d, e, f = one
    u, v, w, x, y, z = other
    return a + u, b + v, c + w, d + x, e + y, f + z


def _less(one: Worth, other: Worth) -> Worth:
    a, b, c, d, e, f = one
    u, v, w, x, y, z = other
    return a - u, b - v, c - w, d - x, e - y, f - z
