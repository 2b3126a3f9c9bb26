"""How many tasks each member should have: balance by capacity (docs/protocol.md#d4), and the tasks
outside these shares.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.events.tasks import TaskId

Seats = Sequence[tuple[str, int, bool]]
"""Members as (id, capacity, whether it leaves and so gets none)."""


@attrs.frozen
class Share:
    """Fewest and most tasks of a member."""

    lower: int
    upper: int

    def outside(self, count: int) -> int:
        """Tasks above the upper share or below the lower one."""
        return max(count - self.upper, self.lower - count, 0)


@attrs.frozen
class Slack:
    """How many tasks a member may have `below` the floor of its fair share, and `above` its
    ceiling.
    """

    below: int = 0
    above: int = 0


def shares_of(members: Seats, tasks: int, slack: Slack) -> dict[str, Share]:
    """Member -> its share of so many tasks. See docs/protocol.md#d4."""
    fair = _fair(members, tasks).items()
    shares = {capacity: Share(max(0, floor - slack.below), min(tasks, ceiling + slack.above)) for capacity, (floor, ceiling) in fair}
    nothing = Share(0, 0)
    return {member: nothing if leaving else shares[capacity] for member, capacity, leaving in members}


def _fair(members: Seats, tasks: int) -> dict[int, tuple[int, int]]:
    """Capacity of members that stay -> their fair share, rounded down and up."""
    capacities = [capacity for _, capacity, leaving in members if not leaving]
    every = sum(capacities)
    return {capacity: (tasks * capacity // every, -(-tasks * capacity // every)) for capacity in dict.fromkeys(capacities)}


def slack_of(members: Seats, tasks: int, balance_factor: int, kept: Mapping[str, int]) -> Slack:
    """The slack with which `balance_factor` is the most that two members of equal capacity differ
    by (KIP-441: "the target difference in number of tasks assigned to the node with the most tasks
    vs. the node with the least tasks").

    Floor and ceiling of a fair share differ by 1 already, so the rest goes below the floor, above
    the ceiling, or to both. Where all fair shares are whole, there is one more, because floor and
    ceiling are equal; then both sides get at least 1. Of these slacks the one with the fewest moves
    is chosen; among equals the most symmetric.

    `kept`: number of tasks of each member, without those that must leave it.
    """
    factor = min(balance_factor, 2 * tasks + 2)  # beyond that nothing is outside
    if factor <= 1:
        return Slack()
    fair_of = _fair(members, tasks)
    fair = [(*fair_of[capacity], kept.get(member, 0)) for member, capacity, leaving in members if not leaving]
    is_whole = all(floor == ceiling for floor, ceiling, _ in fair)
    both = factor if is_whole else factor - 1
    choices = range(1, factor) if is_whole else range(factor)
    free = tasks - sum([count for *_, count in fair])

    def arriving(below: int) -> int:
        """Tasks that must come to a member, without those in flight to any; the fewer, the larger
        `below` is.
        """
        return sum([max(0, floor - below - count) for floor, _, count in fair]) - free

    def departing(below: int) -> int:
        """Tasks that must leave a member; the more, the larger `below` is, because less is left for
        above.
        """
        return sum([max(0, count - ceiling - (both - below)) for _, ceiling, count in fair])

    def moves(below: int) -> int:
        return max(arriving(below), departing(below), 0)

    crossing = bisect_left(choices, True, key=lambda below: departing(below) >= arriving(below))
    fewest = min([moves(below) for below in choices[max(0, crossing - 1) : crossing + 1]])
    first = choices[bisect_left(choices, True, key=lambda below: arriving(below) <= fewest)]
    last = choices[bisect_right(choices, False, key=lambda below: departing(below) > fewest) - 1]
    below = min(max(both // 2, first), last)
    return Slack(below, both - below)


def group_slack(indexed: IndexedProblem, members: Seats, tasks: int, kept: Mapping[str, int]) -> Slack:
    """`slack_of` for a group, by the behaviour version of its assignor."""
    factor = indexed.settings.balance_factor
    if indexed.behaviour.slack_on_both_sides:
        return Slack(factor - 1, factor - 1)
    return slack_of(members, tasks, factor, kept)


def outside_shares(shares: Mapping[str, Share], counts: Mapping[str, int]) -> int:
    """Tasks outside the shares, summed over members. `counts`: member -> number of tasks."""
    return sum([share.outside(counts.get(member, 0)) for member, share in shares.items()])


MOST_PARTS = 50_000
"""Sub-topologies times members, about 2 s of work: the other groups of a partition wait for it."""
Kind = tuple[int, bool]
"""A sub-topology, and whether its stateful tasks are meant."""


def seats(indexed: IndexedProblem) -> Seats:
    """The seats of the members."""
    return [(member.id, member.capacity, member.leaving) for member in indexed.members.values()]


def _kept(indexed: IndexedProblem) -> dict[TaskId, str]:
    """Task -> its owner or destination, without tasks that must move."""
    kept = {task: owner for task, owner in indexed.owner.items() if not (indexed.members[owner].leaving or indexed.must_move(task))}
    return {**kept, **{task: movement.destination for task, movement in indexed.in_flight.items()}}


class Shares:
    """Balance: between floor and ceiling of T*c/C, with the slack of balance_factor, for stateful
    tasks and for all tasks. A leaving member: 0. See docs/protocol.md#d4.

    C: capacity of the staying members. When all tasks are of one kind the two bounds are one.
    """

    def __init__(self, indexed: IndexedProblem) -> None:
        members = seats(indexed)
        stateful, every = len(indexed.stateful), len(indexed.tasks)
        self.two_kinds = 0 < stateful < every
        kept = _kept(indexed) if indexed.settings.balance_factor > 1 else {}
        self.every = shares_of(members, every, group_slack(indexed, members, every, Counter(kept.values())))
        self.stateful = self.every
        if stateful < every:
            self.stateful = shares_of(members, stateful, group_slack(indexed, members, stateful, indexed.stateful_of(kept)))
        self._indexed = indexed
        self._limits: dict[Kind, dict[str, int]] | None = None

    def imbalance(self, owner: Mapping[TaskId, str]) -> int:
        """Tasks outside the shares, summed over members: of stateful tasks plus of all tasks where
        there are both kinds.
        """
        outside = outside_shares(self.every, Counter(owner.values()))
        if self.two_kinds:
            outside += outside_shares(self.stateful, self._indexed.stateful_of(owner))
        return outside

    @cached_property
    def kinds(self) -> Mapping[Kind, int]:
        """Number of tasks of each sub-topology and kind."""
        return Counter([(task.id.subtopology, task.stateful) for task in self._indexed.tasks.values()])

    @property
    def _spread(self) -> Mapping[Kind, int]:
        """The sub-topologies that are spread, in rising order: not a single task, which is even
        anywhere.
        """
        if self._indexed.behaviour.subtopologies_apart:
            return self.kinds
        several = [kind for kind, tasks in self.kinds.items() if tasks > 1]
        largest = sorted(several, key=lambda kind: (-self.kinds[kind], kind))[: MOST_PARTS // max(1, len(self._indexed.members))]
        return {kind: self.kinds[kind] for kind in sorted(largest)}

    def parts(self) -> Mapping[Kind, Mapping[str, Share]]:
        """The tasks of each sub-topology spread evenly, by capacity, over the members that may run
        any of them: between floor and ceiling. Of very many sub-topologies the largest
        (MOST_PARTS).
        """
        parts: dict[Kind, dict[str, Share]] = {}
        for kind, tasks in self._spread.items():
            members = [self._indexed.members[name] for name in self._indexed.eligible_for_any(kind[0]).members]
            capacity = sum(member.capacity for member in members)
            parts[kind] = {each.id: Share(tasks * each.capacity // capacity, -(-tasks * each.capacity // capacity)) for each in members}
        return parts

    def limits(self) -> Mapping[Kind, Mapping[str, int]]:
        """For `balanced_min_cost`: the most tasks of a sub-topology that each member should have
        (KIP-925, 4.B.II); otherwise empty.

        Of g tasks of a sub-topology, a member whose upper share of all T tasks of their kind is u
        should have at most ceil(g*u/T), as in Kafka, which uses the member's count for u. Where
        only some members may run the sub-topology, at least its share among them.
        """
        if self._limits is None:
            self._limits = {}
            for (subtopology, stateful), tasks in self.kinds.items() if self._indexed.racks.spreads else ():
                self._limits[subtopology, stateful] = self._limits_of(subtopology, stateful, tasks)
        return self._limits

    def _limits_of(self, subtopology: int, stateful: bool, tasks: int) -> dict[str, int]:
        indexed = self._indexed
        every = len(indexed.stateful) if stateful else len(indexed.tasks) - len(indexed.stateful)
        pool = indexed.eligible_for_any(subtopology).members
        capacity = sum(indexed.members[member].capacity for member in pool)
        return {
            member: max(-(-tasks * self._upper(member, stateful) // every), -(-tasks * indexed.members[member].capacity // capacity))
            for member in pool
        }

    def _upper(self, member: str, stateful: bool) -> int:
        """The most tasks of a kind that fit into a member's shares."""
        if not self.two_kinds:
            return self.every[member].upper
        return self.stateful[member].upper if stateful else self.every[member].upper - self.stateful[member].lower

    def crowding(self, owner: Mapping[TaskId, str]) -> int:
        """Tasks above the `limits`, summed over sub-topologies and members."""
        limits = self.limits()
        counts: dict[tuple[Kind, str], int] = {}
        for task, member in owner.items() if limits else ():
            key = (task.subtopology, self._indexed.tasks[task].stateful), member
            counts[key] = counts.get(key, 0) + 1
        return sum(max(0, count - limits[kind].get(member, 0)) for (kind, member), count in counts.items())
