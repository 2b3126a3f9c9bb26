"""Where standbys should be in the end when racks or tags matter (KIP-925, 4.C; KIP-708).

One copy of every task after another: each round is a transportation problem, solved exactly, given
the rounds before it. The costs of a copy, each outweighing all later ones:

1. values shared with the copies before it, the active one first: so copies are in as many places
   (racks, or values of tags) as there are;
2. unevenness: loads of all copies, active ones included, against the shares by capacity;
3. rack cost: `rack_traffic_cost` for each remote changelog partition, and `rack_non_overlap_cost`
   for a new copy;
4. changes; then a warm-up that stalled there; then unevenness of the copies so far, so that a round
   leaves room for the next ones; then records to restore; then a tie-break drawn from the ids.

With `rack_standby_strategy` `balance` the first cost applies to the first `rack_standbys_apart`
copies only, and the others go where they cost least. With tags and no strategy, all copies are
spread by the tags (KIP-708).

A copy stays unless another place is better by one of these costs, so optimal standbys do not move.

Rounds compare each place with all copies before it, so their work grows with the square of the
copies. After `max_standby_steps` of it the copies that are left stay where they are, or go to the
least loaded members, and the plan is not called optimal.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Mapping

import attrs

from equipoise.assignors.common import options
from equipoise.assignors.common.flow_network import AssignmentNetwork, Lane, Offer
from equipoise.assignors.common.indexed_problem import IndexedProblem, Pool
from equipoise.assignors.common.plan import StageCost
from equipoise.assignors.common.racks import Traffic
from equipoise.assignors.common.ranking import whole
from equipoise.assignors.common.shares import Share
from equipoise.assignors.common.standby_search import StandbySearch, Wish
from equipoise.assignors.common.transport import stable_hash
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

MOST_PLACES = 16
"""Places offered to a task in one round: all up to this number; of more, the best, and among equals
different ones for each task. It bounds the arcs, as a tag may differ on every member. With more
places a plan is not called optimal unless its cost equals its bound.
"""
MAX_STANDBY_STEPS, DEFAULT_STEPS = "max_standby_steps", 20_000_000
"""An option of all assignors with standbys: comparisons of a place with an earlier copy in all
rounds; the default is about 20 s of work. The other groups of a partition wait for a round. 100,000
tasks with two standbys in seven racks need about half of it. A count of steps and no time, because
every build must decide the same.
"""
STEPS_OF_A_COPY, STEPS_OF_A_PLACE = 10, 4
"""What a copy that is there, and a place, cost beside their comparisons, in such steps."""
ROUNDS = 2
"""So many take place whatever the steps: the first copies are those that racks are for."""
LEVELS = 7
UNEVENNESS, UNEVENNESS_SO_FAR = 1, 5  # their places among the levels


@attrs.frozen(kw_only=True)
class StandbyGoal:
    """`holders`: task -> members that will hold its standbys, the first one first. `unique`: see
    `Plan`.
    """

    holders: Mapping[TaskId, tuple[str, ...]]
    stage: StageCost
    least: int
    """A lower bound of the cost wherever the tasks run."""
    unique: bool
    within_steps: bool
    """Whether the steps were enough for all copies."""
    searched: bool
    """Whether it was searched for, not solved: from where the copies are then, another search may
    find better places.
    """


def max_standby_steps(settings: GroupSettings) -> int:
    """The option. Raises FieldError when it is no whole number."""
    return options.whole(settings, MAX_STANDBY_STEPS, DEFAULT_STEPS)


def standby_goal(indexed: IndexedProblem, wishes: Mapping[TaskId, Wish], load: Mapping[str, int], shares: Mapping[str, Share]) -> StandbyGoal:
    """Solves the goal. `load`: member -> stateful tasks at the target. `shares`: fewest and most
    copies of any kind of each member.
    """
    goal = _Goal(indexed, wishes, dict(load), shares)
    rounds = max((wish.copies for wish in wishes.values()), default=0)
    most_steps = max_standby_steps(indexed.settings)
    for number in range(rounds):
        if number >= ROUNDS and goal.steps >= most_steps:
            goal.place_evenly()
            return goal.result()
        goal.round(number)
    if not goal.is_exact:
        goal.exchange(load)
    return goal.result()


class _Goal:
    def __init__(self, indexed: IndexedProblem, wishes: Mapping[TaskId, Wish], load: dict[str, int], shares: Mapping[str, Share]) -> None:
        self.indexed = indexed
        self.wishes = wishes
        self.load = load
        self.shares = shares
        self.places = indexed.places
        self.holders: dict[TaskId, list[str]] = {task: [] for task in wishes}
        self.exact = True
        self.unique = True
        self.within_steps = True
        self.rounds = 0
        self.steps = 0
        """Work done, as `max_standby_steps` counts it."""
        self.cost = 0
        self._members_of: dict[Pool, dict[str, int]] = {}
        self._most_taken = max((len(wish.never) + wish.copies for wish in wishes.values()), default=0)
        self._offers: dict[tuple[Pool, Lane, tuple[str, ...], frozenset[str], Traffic, int], Offer] = {}
        """Of this round: where somebody may have a copy, one for all tasks for which it is the
        same.
        """

    def round(self, number: int) -> None:
        """Adds one copy of each task that has fewer than `number` + 1."""
        open_tasks = [task for task, wish in self.wishes.items() if len(self.holders[task]) <= number < wish.copies]
        if not open_tasks:
            return
        self.rounds += 1
        apart = self._apart(number)
        network = AssignmentNetwork(self.indexed.tasks, levels=LEVELS, racks=self.places.of)
        self._offers = {}
        placed = [task for task in open_tasks if self._add(network, task, apart=apart)]
        members = self.indexed.members
        so_far = sum(self.load.values()) + len(open_tasks)
        capacity = sum(each.capacity for each in members.values() if not each.leaving)
        for member, wanted in network.wanted().items():
            share, part = self.shares[member], so_far * members[member].capacity
            finer = (UNEVENNESS_SO_FAR, part // capacity, -(-part // capacity))
            network.room(member, share.lower, share.upper, taken=self.load[member], wanted=wanted, level=UNEVENNESS, finer=finer)
        flow = network.solve()
        self.exact &= flow.optimal
        self.unique &= flow.unique
        owner = self.wishes
        taken = network.assigned(flow, order=lambda task: (owner[task].owner, task), never=self._never)
        for task in placed:
            self.exact &= task in taken
            holder = taken.get(task) or self._any(task)
            if holder is not None:
                self._take(task, holder)

    def place_evenly(self) -> None:
        """Gives each task the copies that it still lacks: those that are there stay, and the least
        loaded members get the others. Takes time in the number of copies.
        """
        self.exact = self.within_steps = False
        heaps: dict[Pool, list[tuple[float, str]]] = {}
        for task, wish in self.wishes.items():
            pool = self.indexed.eligible(task)
            taken = {*wish.never, *self.holders[task]}
            for member in wish.here:
                if len(self.holders[task]) < wish.copies and member not in taken and member in pool:
                    self._take(task, member)
                    taken.add(member)
            if len(self.holders[task]) >= wish.copies:
                continue
            if pool not in heaps:
                heaps[pool] = sorted(map(self._loaded, pool.members))
            heap, skipped = heaps[pool], []
            while heap and len(self.holders[task]) < wish.copies:
                now = self._loaded(heap[0][1])
                if now != heap[0]:  # it got a copy since
                    heapq.heapreplace(heap, now)
                    continue
                _, member = heapq.heappop(heap)
                if member not in taken:
                    self._take(task, member)
                skipped.append(self._loaded(member))
            for entry in skipped:
                heapq.heappush(heap, entry)

    def _loaded(self, member: str) -> tuple[float, str]:
        return self.load[member] / self.indexed.members[member].capacity, member

    def _apart(self, number: int) -> bool:
        """Returns whether values shared with earlier copies count for the copy of this number."""
        settings = self.indexed.settings
        everywhere = settings.rack_aware_strategy == "none" or settings.rack_standby_strategy == "greedy"
        return self.places.matter and (everywhere or number < settings.rack_standbys_apart)

    @property
    def is_exact(self) -> bool:
        """Returns whether the rounds together are exact."""
        return self.exact and self.rounds <= 1

    def exchange(self, load: Mapping[str, int]) -> None:
        """Improves the result of the rounds, or the present copies if these are complete and end no
        worse. So a result once reached is kept.
        """

        def searched(holders: dict[TaskId, list[str]]) -> StandbySearch:
            exchanges = StandbySearch(self.indexed, self.wishes, load, self.shares, self._apart, holders)
            exchanges.search()
            return exchanges

        best = searched(self.holders)
        here = {
            task: [member for member in wish.here if member not in wish.never and self.indexed.may_run(member, task)]
            for task, wish in self.wishes.items()
        }
        if all(len(here[task]) == len(members) for task, members in self.holders.items()):
            stays = searched(here)
            best = stays if stays.worth() <= best.worth() else best
        self.holders, self.load, self.cost = best.holders, best.load, best.worth()[2]

    def _add(self, network: AssignmentNetwork, task: TaskId, *, apart: bool) -> bool:
        """Adds the arcs of one task; returns False when no member may have a copy. `apart`: values
        shared with earlier copies count.
        """
        indexed, wish = self.indexed, self.wishes[task]
        others = tuple([self.places.of[member] for member in (wish.owner, *self.holders[task])]) if apart else ()
        any_arc = False
        known = dict.fromkeys((*wish.here, *wish.begun, *indexed.copies[task]))
        places = min(len(self.places.rack), MOST_PLACES)
        self.steps += len(known) * (STEPS_OF_A_COPY + len(others)) + places * (STEPS_OF_A_PLACE + len(others))
        for member in known:
            if not indexed.may_run(member, task) or not self._may_have(task, member):
                continue
            stays = member in wish.here
            cost = self._cost(task, member)
            preference_cost = 1 if not stays and indexed.is_blocked(task, member) else 0
            records = 0 if indexed.caught_up(member, task) else indexed.records(member, task)
            common = self.places.common_values(self.places.of[member], others)
            network.direct(task, member, (common, 0, cost, 0 if stays else 1, preference_cost, 0, records))
            any_arc = True
        offer = self._offer(network, task, others)
        if offer.near:
            network.pooled(task, offer, whole(indexed.tasks[task]))
        return any_arc or bool(offer.near)

    def _offer(self, network: AssignmentNetwork, task: TaskId, others: tuple[str, ...]) -> Offer:
        """Places where a member may have a copy, with their cost. `others`: places of the earlier
        copies.
        """
        pool, move_cost = self.indexed.unblocked(task), self._move_cost(task)
        traffic = self.indexed.racks.standby(task)
        members = self._by_place(pool)
        full = self._full(task, pool, members)
        many = len(members) - len(full) > MOST_PLACES
        key = pool, network.lane(task), others, full, traffic, move_cost
        found = None if many else self._offers.get(key)
        if found is None:
            free = [(place, self.places.common_values(place, others)) for place in members if place not in full]
            if many:
                self.exact = False
                turn = stable_hash(str(task)) % len(free)
                free = free[turn:] + free[:turn]
                free.sort(key=lambda item: (item[1], traffic.at(self.places.rack[item[0]])))
                free = free[:MOST_PLACES]
            near = {place: (common, 0, traffic.at(self.places.rack[place]) + move_cost, 1, 0, 0, 0) for place, common in free}
            found = Offer(pool, key[1], None, near)
            if not many:
                self._offers[key] = found
        return found

    def _full(self, task: TaskId, pool: Pool, members: Mapping[str, int]) -> frozenset[str]:
        """Places in which every member has the task or a copy, or may not have one."""
        if all(count > self._most_taken for count in members.values()):
            return frozenset()
        others = {*self.wishes[task].never, *self.holders[task]}
        taken = Counter([self.places.of[member] for member in others if member in pool])
        return frozenset([place for place, count in members.items() if count <= taken[place]])

    def _by_place(self, pool: Pool) -> dict[str, int]:
        """Place -> number of members of the pool."""
        found = self._members_of.get(pool)
        if found is None:
            found = self._members_of[pool] = Counter([self.places.of[member] for member in pool.members])
        return found

    def _never(self, task: TaskId) -> Container[str | None]:
        """Members that may not have one more copy of the task."""
        return (*self.wishes[task].never, *self.holders[task])

    def _may_have(self, task: TaskId, member: str) -> bool:
        return member not in self.wishes[task].never and member not in self.holders[task]

    def _any(self, task: TaskId) -> str | None:
        """The least loaded member that may have the copy, where the rule finds no place."""
        found = [member for member in self.indexed.eligible(task).members if self._may_have(task, member)]
        return min(found, key=lambda member: (self.load[member] / self.indexed.members[member].capacity, member), default=None)

    def _move_cost(self, task: TaskId) -> int:
        """Cost of a new copy beside its traffic: not 0 while it replaces one that could stay."""
        if not self.wishes[task].here:
            return 0
        stays = any(self.indexed.may_run(member, task) and self._may_have(task, member) for member in self.wishes[task].here)
        return self.indexed.settings.rack_non_overlap_cost if stays and self.indexed.racks.copies_count else 0

    def _cost(self, task: TaskId, member: str) -> int:
        racks, wish = self.indexed.racks, self.wishes[task]
        return racks.standby(task).at(racks.of[member]) + (0 if member in wish.here or member in wish.begun else self._move_cost(task))

    def _take(self, task: TaskId, member: str) -> None:
        self.cost += self._cost(task, member)
        self.holders[task].append(member)
        self.load[member] += 1

    def result(self) -> StandbyGoal:
        least = self.indexed.racks.least_of_copies({task: len(members) for task, members in self.holders.items()})
        return StandbyGoal(
            holders={task: tuple(members) for task, members in self.holders.items()},
            stage=StageCost(name="standby", cost=self.cost, lower_bound=self.cost if self.is_exact else least),
            least=least,
            unique=self.unique,
            within_steps=self.within_steps,
            searched=not self.is_exact and self.within_steps,
        )
