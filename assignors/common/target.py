"""`constrainedBalancedAssignment` and `proposeBalancedAssignment` of KIP-441: the best owners that
tasks can have now, and the balanced target.

Both solve one transportation problem (`network`), with different costs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import attrs

from equipoise.assignors.common.flow_network import AssignmentNetwork, Lane, Offer
from equipoise.assignors.common.indexed_problem import EquivalenceClass, IndexedProblem, Pool, pool_of
from equipoise.assignors.common.problem import Task
from equipoise.assignors.common.racks import Traffic
from equipoise.assignors.common.ranking import whole
from equipoise.assignors.common.restore_rate import RestoreRates
from equipoise.assignors.common.shares import Share, Shares
from equipoise.events.tasks import TaskId


@attrs.frozen(kw_only=True, eq=False)
class Candidates:
    """The members of a task's min rank. `members`: those that have copies. `fresh`: eligible
    members without one that are least busy restoring.

    Tasks of one equivalence class share one object.
    """

    members: tuple[str, ...] = ()
    fresh: Pool | None = None
    everyone: frozenset[str] = attrs.field(init=False)
    """`members` and `fresh` together."""

    @everyone.default
    def _everyone(self) -> frozenset[str]:
        fresh = frozenset() if self.fresh is None else self.fresh.as_set
        return fresh.union(self.members) if self.members else fresh

    def __contains__(self, member: object) -> bool:
        return member in self.everyone


@attrs.frozen(kw_only=True)
class Target:
    """`owner`: task -> its owner at the target, in rising order; tasks without an eligible member
    are absent. `optimal`, `unique`: proven by the solver.
    """

    owner: Mapping[TaskId, str]
    optimal: bool = True
    unique: bool = True


def min_rank(indexed: IndexedProblem, tasks: Iterable[TaskId], classes: Iterable[EquivalenceClass] = ()) -> dict[TaskId, Candidates]:
    """KIP-441, `rank`: stateful tasks that need an owner now -> the members of their min rank.
    Tasks without an eligible member are absent.

    Rank 0: caught up. Tasks on which no member is caught up are ranked by `_soonest_ready`.
    `classes`: more such tasks, without any copies.
    """
    found: dict[TaskId, Candidates] = {}
    cold: list[TaskId] = []
    for task in sorted(tasks):
        eligible = indexed.eligible(task)
        caught_up = tuple([member for member, copy in indexed.copies[task].items() if copy.caught_up and member in eligible])
        caught_up = caught_up or tuple([member for member in indexed.last_resort(task) if indexed.caught_up(member, task)])
        if caught_up:
            found[task] = Candidates(members=caught_up)
        elif eligible:
            cold.append(task)
    portions = [(group.tasks, sum(group.records)) for group in classes if indexed.eligible(group.first.id)]
    if cold:  # copies are compared with what is queued before them, so order matters; without copies it does not
        one_by_one = sorted(itertools.chain(cold, *[tasks for tasks, _ in portions]))
        portions = [([task], whole(indexed.tasks[task])) for task in one_by_one]
    if portions:
        found.update(_soonest_ready(indexed, portions))
    return found


def _soonest_ready(indexed: IndexedProblem, portions: Iterable[tuple[list[TaskId], int]]) -> dict[TaskId, Candidates]:
    """Candidates for tasks on which no member is caught up: the least expected restore time, the
    restore queue included. See docs/protocol.md#d3.

    A member's queue is the restore time of the tasks it owns and still restores, plus that of tasks
    it is likely to get here. So a member with half copies of many tasks does not get all of them,
    and a busy member gets fewer. Members whose times differ by less than is worth anything rank
    equal (`RestoreRates.equally_soon`, and at most acceptable_recovery_lag): balance decides among
    them. A task that no copy makes ready sooner goes to the members that would first restore a task
    of its size; which of them gets which task is a matter of balance. Names play no part.

    `portions`: (tasks, records of all their state): one task each, or several with the same
    eligible members and no copies.
    """
    rates = indexed.restore_rates
    slack = indexed.settings.acceptable_recovery_lag
    slack = slack if indexed.behaviour.equally_soon_within_lag else min(slack, rates.equally_soon)
    queue = _restore_queues(indexed)
    levels: dict[Pool, _FillLevel] = {}
    found: dict[TaskId, Candidates] = {}
    copyless: list[tuple[Pool, list[TaskId]]] = []
    for portion, records in portions:
        eligible = indexed.eligible(portion[0])
        level = levels.get(eligible)
        if level is None:
            level = levels[eligible] = _FillLevel(rates, queue, eligible)
        copies = indexed.copies[portion[0]]
        if copies:
            last = frozenset(indexed.last_resort(portion[0]))
            able = {member: copy for member, copy in copies.items() if member in eligible or member in last}
            expected = {member: queue[member] + rates.restore_time(member, copy.records) for member, copy in able.items()}
            soonest = min(expected.values(), default=None)
            if soonest is not None and level.is_later(records, than=soonest):
                within = [member for member, ready_at in expected.items() if ready_at <= soonest + slack]
                preferred = [member for member in within if member in eligible] if last else within
                found[portion[0]] = Candidates(members=tuple(preferred or within))
                takers = [member for member, ready_at in expected.items() if ready_at == soonest]
                for member in takers:
                    queue[member] += (soonest - queue[member]) // len(takers)
                continue
        copyless.append((eligible, portion))
        level.add(records, len(portion))
    idle = {eligible: Candidates(fresh=level.idle(queue, slack)) for eligible, level in levels.items()}
    for eligible, portion in copyless:
        found.update(dict.fromkeys(portion, idle[eligible]))
    return found


class _FillLevel:
    """The level to which records fill the restore queues of a pool (water filling): always the
    shortest queues, each at its member's rate.

    `queue`: member -> restore time. The level is `filled` / `speed`. The `members` shortest queues
    are at it, and `speed` is the sum of their rates; the others are longer.
    """

    def __init__(self, rates: RestoreRates, queue: Mapping[str, int], pool: Pool) -> None:
        self.rates = rates
        self.pool = pool
        self.queues = sorted(((queue[member], rates.speed[member]) for member in pool.members), key=lambda each: (each[0], -each[1]))
        self.first: list[tuple[int, int]] = []
        """Queues that are shorter than that of every faster member: one of them finishes any
        restore first.
        """
        for length, speed in self.queues:
            if not self.first or speed > self.first[-1][1]:
                self.first.append((length, speed))
        self.members = 1
        self.speed = self.queues[0][1]
        self.filled = self.queues[0][0] * self.speed
        self.poured = 0
        self.tasks = 0
        self._settled = 0

    def add(self, records: int, tasks: int) -> None:
        """Adds `records`, the state of so many tasks."""
        self.poured += records
        self.tasks += tasks

    def _settle(self) -> None:
        """Recomputes the level. In how many parts the records came does not matter."""
        self.filled += (self.poured - self._settled) * self.rates.slowest
        self._settled = self.poured
        while self.members < len(self.queues) and self.queues[self.members][0] * self.speed < self.filled:
            queue, speed = self.queues[self.members]
            self.filled += queue * speed
            self.speed += speed
            self.members += 1

    def is_later(self, records: int, *, than: int) -> bool:
        """Returns whether even the first member would restore `records` later than `than`, after
        its queue and the level.
        """
        self._settle()
        effort = records * self.rates.slowest
        return all(
            length * speed + effort > than * speed or self.filled * speed + effort * self.speed > than * self.speed * speed
            for length, speed in self.first
        )

    def idle(self, queue: Mapping[str, int], slack: int) -> Pool:
        """Members that would restore a task of mean size below the level with one more such task,
        or within `slack` of the first member.

        With equal rates: those whose queue is below the level, or within `slack` of the shortest.
        The pool itself when these are all.
        """
        self._settle()
        pool = self.pool
        mean = self.poured // max(1, self.tasks)
        done = {member: queue[member] + self.rates.restore_time(member, mean) for member in pool.members}
        first = min(done.values())
        level = self.filled + mean * self.rates.slowest * self.members
        ids = [member for member in pool.members if done[member] * self.speed < level or done[member] <= first + slack]
        return pool if len(ids) == len(pool.members) else pool_of(ids)


def _restore_queues(indexed: IndexedProblem) -> dict[str, int]:
    """Member -> restore time of the tasks that it owns and still restores."""
    queue = dict.fromkeys(indexed.members, 0)
    for owner, tasks in indexed.owned().items():
        for task in () if indexed.members[owner].only_runs else tasks:
            if task in indexed.copies:  # it has state
                copy = indexed.copies[task].get(owner)
                if copy is None or not copy.caught_up:
                    queue[owner] += indexed.restore_time(owner, task)
    return queue


def constrained_balanced_assignment(
    indexed: IndexedProblem, shares: Shares, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]
) -> dict[TaskId, str]:
    """KIP-441, `constrainedBalancedAssignment`: owners for stateful tasks that need one now,
    members of the min rank only, as balanced as they allow beside the tasks that are `running`.

    A place costs 0 up to the member's lower share, 1 up to its upper share, and one more for each
    further part of a share. Among equals, previous owners come first, then the least restore time.
    """
    if not candidates:
        return {}
    load = indexed.stateful_of(running)

    def cost(member: str, task: TaskId) -> tuple[int, int, int]:
        return 0, 0 if indexed.goes_back_to(member, task) else 1, indexed.restore_rates.restore_time(member, indexed.records(member, task))

    network = AssignmentNetwork(indexed.tasks, levels=3)
    offers: dict[Pool, Offer] = {}
    for task in sorted(candidates):
        for member in candidates[task].members:
            network.direct(task, member, cost(member, task))
        fresh = candidates[task].fresh
        for member in () if fresh is None else indexed.copies[task]:
            if member in candidates[task]:
                network.direct(task, member, cost(member, task))
        if fresh is not None:
            if fresh not in offers:
                offers[fresh] = Offer(fresh, network.lane(task), (0, 1, 0), None)
            network.pooled(task, offers[fresh], whole(indexed.tasks[task]))
    for member, wanted in network.wanted().items():
        share = shares.stateful[member]
        network.room(member, share.lower, share.upper, taken=load[member], wanted=wanted)
    return network.assigned(network.solve())


def adopted_target(
    indexed: IndexedProblem,
    shares: Shares,
    candidates: Mapping[TaskId, Candidates],
    settled: Mapping[TaskId, str],
    *,
    even_parts: bool = False,
    preferred_first: bool = False,
) -> Target:
    """The proposed target, adopted only when something must change or it is better than the present
    owners (KIP-441, last lines: no thrash).

    Better: more balanced; or as balanced and cheaper by racks, the cost of the changes included. So
    a group moves once for less traffic, and stays. `even_parts`, `preferred_first`: see
    `propose_balanced_assignment`.
    """
    running = Target(owner=indexed.owner)
    must_change = (
        bool(settled)
        or bool(indexed.unowned)
        or any(indexed.members[indexed.owner[task]].leaving or indexed.must_move(task) for task in indexed.owner.keys() - indexed.staying.keys())
    )
    if must_change:
        return propose_balanced_assignment(indexed, shares, candidates, settled, even_parts=even_parts, preferred_first=preferred_first)
    worth = _worth(indexed, shares, running.owner)
    if worth == (0, 0, indexed.racks.least()):
        return running
    proposed = propose_balanced_assignment(indexed, shares, candidates, settled, even_parts=even_parts, preferred_first=preferred_first)
    if _worth(indexed, shares, proposed.owner) < worth:
        return proposed
    return Target(owner=running.owner, optimal=proposed.optimal, unique=proposed.unique)


def _worth(indexed: IndexedProblem, shares: Shares, target: Mapping[TaskId, str]) -> tuple[int, int, int]:
    """(imbalance, crowding, rack cost with changes) of a target; less is better, the first
    outweighs the next.
    """
    racks = indexed.racks
    changes = sum(racks.move_cost(task) for task, member in target.items() if indexed.owner[task] != member) if racks.counts else 0
    return shares.imbalance(target), shares.crowding(target), racks.total(target) + changes


def propose_balanced_assignment(
    indexed: IndexedProblem,
    shares: Shares,
    candidates: Mapping[TaskId, Candidates],
    settled: Mapping[TaskId, str],
    *,
    even_parts: bool = False,
    preferred_first: bool = False,
) -> Target:
    """KIP-441, `proposeBalancedAssignment`: of all assignments with the least imbalance, the one
    that changes the fewest owners, regardless of ranks.

    The costs, each outweighing all later ones:

    1. imbalance;
    2. crowding, where sub-topologies are to be spread;
    3. rack cost, where racks make a difference: traffic and changes of owner together, weighed by
       `rack_traffic_cost` and `rack_non_overlap_cost` (KIP-925);
    4. changes of owner;
    5. unevenness by sub-topology, with `even_parts`; nothing moves for that alone;
    6. preference cost: PREFERRED, NEUTRAL or BLOCKED; with `preferred_first` before 5;
    7. records to restore;
    8. a tie-break drawn from the ids.

    `settled`: destinations decided earlier (docs/protocol.md#d9), kept even if the balance suffers.
    `candidates`: a task that needs an owner now and goes to one of them counts as unchanged. The
    tasks of an equivalence class share their candidates, and none is settled.

    Before: m1 (0_0, 0_1, 0_2, 0_3), m2 (), both of capacity 1. After: m1 keeps two; the two that
    are cheapest to restore go to m2.
    """
    racks = indexed.racks
    limits = shares.limits()
    parts = shares.parts() if even_parts else {}
    network = AssignmentNetwork(
        indexed.tasks,
        levels=len(STAYS),
        two_kinds=shares.two_kinds,
        racks=racks.of if racks.counts else None,
        spread={*parts, *limits},
        order=PREFERRED_FIRST if preferred_first else None,
    )
    arcs = _TargetArcs(network, indexed)
    together = indexed.settled if settled.keys().isdisjoint(indexed.settled) and candidates.keys().isdisjoint(indexed.settled) else {}
    copied = indexed.copied.difference(settled, candidates)
    for is_together, run in itertools.groupby(indexed.tasks, together.__contains__):
        if is_together:
            for _, of_subtopology in itertools.groupby(run, operator.itemgetter(0)):
                for _, of_kind in itertools.groupby([indexed.tasks[task] for task in of_subtopology], operator.attrgetter("stateful")):
                    arcs.add_settled(list(of_kind))
            continue
        for same, tasks in itertools.groupby(run, indexed.class_of.get):
            if same is not None:
                arcs.add_class(same, list(tasks), candidates.get(same.first.id))
                continue
            for task in tasks:
                if task in copied:
                    arcs.add_copied(task)
                elif task in settled:
                    network.direct(task, settled[task], STAYS)
                elif indexed.eligible(task):
                    arcs.add(task, indexed.tasks[task], candidates.get(task))
                elif task in indexed.owner and not indexed.members[indexed.owner[task]].leaving:
                    network.direct(task, indexed.owner[task], STAYS)
    for kind in {**parts, **limits}:
        for member in indexed.members:
            most = limits[kind].get(member, 0) if kind in limits else len(indexed.tasks)
            part = parts[kind].get(member, Share(0, 0)) if kind in parts else None
            network.places(member, kind, _steps_of_part(most, part, len(indexed.tasks)))
    network.shares(shares.stateful, kind="stateful")
    network.shares(shares.every, kind="every")
    flow = network.solve()
    return Target(owner=network.assigned(flow), optimal=flow.optimal, unique=flow.unique)


STAYS = (0, 0, 0, 0, 0, 0, 0)
PREFERRED_FIRST = (0, 1, 2, 3, 5, 4, 6)
"""The levels of cost, with preference before unevenness by sub-topology."""


def _steps_of_part(most: int, part: Share | None, every: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Costs of a member's tasks of one sub-topology, as (up to how many, cost of each): crowding
    above `most`, unevenness beyond its even part.
    """
    ends = {most, every} if part is None else {most, part.lower, part.upper, every}
    for end in sorted(ends):
        uneven = 0 if part is None or end <= part.lower else 1 if end <= part.upper else 2
        yield end, (0, int(end > most), 0, 0, uneven, 0, 0)


class _TargetArcs:
    """Adds the arcs of each task, at the costs that `propose_balanced_assignment` lists but the
    tie-break. The rack cost is that of `racks.Racks`; 0 where racks make no difference.
    """

    def __init__(self, network: AssignmentNetwork, indexed: IndexedProblem) -> None:
        self.network = network
        self.indexed = indexed
        self.known: dict[tuple[Pool, Lane, Traffic, int, int], Offer] = {}
        self.of_copied: dict[int, Offer] = {}
        """Sub-topology -> the offer of its tasks in `IndexedProblem.copied`."""
        self.offers_of: dict[EquivalenceClass, tuple[list[Offer], Iterator[int]]] = {}
        """The offers of all tasks of a class, and the records of those still to come."""

    def add(self, task: TaskId, of_task: Task, candidates: Candidates | None) -> None:
        """Arcs of one task."""
        self._add_named(task, of_task, candidates)
        records = whole(of_task) if of_task.stateful else 0
        for offer in self._offers(of_task, candidates):
            self.network.pooled(task, offer, records)

    def add_settled(self, tasks: Sequence[Task]) -> None:
        """`add` for tasks of one sub-topology and kind that only their owners have a reason to run
        (`IndexedProblem.settled`), in rising order.
        """
        (offer,) = self._offers(tasks[0], None)
        records = list(map(whole, tasks)) if tasks[0].stateful else [0] * len(tasks)
        names = [task.id for task in tasks]
        self.network.kept_or_pooled(names, list(map(self.indexed.owner.__getitem__, names)), STAYS, offer, records)

    def add_copied(self, task: TaskId) -> None:
        """`add` for a task of `IndexedProblem.copied`."""
        indexed = self.indexed
        of_task, owner, held = indexed.tasks[task], indexed.owner[task], indexed.copies[task]
        offer = self.of_copied.get(task.subtopology)
        if offer is None:
            (offer,) = self._offers(of_task, None)
            self.of_copied[task.subtopology] = offer
        taken_over = (0, 0, 0, 1, 0, NEUTRAL if held[owner].caught_up else PREFERRED, 0)
        ends = [(owner, STAYS)]
        for member, copy in held.items():
            if member != owner and member in offer.pool.as_set:
                ready = copy.caught_up and (not indexed.announced or task in indexed.members[member].ready)
                ends.append((member, taken_over if ready else (0, 0, 0, 1, 0, NEUTRAL, copy.records)))
        self.network.some_or_pooled(task, ends, offer, whole(of_task))

    def add_class(self, same: EquivalenceClass, tasks: Sequence[TaskId], candidates: Candidates | None) -> None:
        """Arcs of the next tasks of a class, in rising order."""
        if same not in self.offers_of:
            self.offers_of[same] = self._offers(same.first, candidates), iter(same.records)
        offers, records = self.offers_of[same]
        self.network.pooled_all(tasks, offers, list(itertools.islice(records, len(tasks))))

    def _add_named(self, task: TaskId, of_task: Task, candidates: Candidates | None) -> None:
        """Arcs to the owner, the candidates, members that have a copy or owned the task before, and
        members on which no warm-up may begin.
        """
        indexed = self.indexed
        owner = indexed.owner.get(task)
        unblocked = indexed.unblocked(task)
        traffic = indexed.racks.active(task)
        if owner is not None and indexed.may_run(owner, task):
            self.network.direct(task, owner, (0, 0, traffic.at(indexed.racks.of[owner]), 0, 0, 0, 0))
        granted: Container[str] = candidates if candidates is not None else ()
        named = dict.fromkeys(candidates.members if candidates is not None else ())
        if of_task.stateful:
            named.update(dict.fromkeys((*indexed.copies[task], *indexed.blocked.get(task, ()))))
        else:
            named.update(dict.fromkeys(indexed.previous_owners(task)))
        changes = 0 if owner is None and candidates is None else 1
        move_cost = indexed.racks.move_cost(task)
        for member in named:
            if member != owner and indexed.may_run(member, task):
                ready = indexed.is_ready(member, task)
                preference_cost = NEUTRAL
                if indexed.goes_back_to(member, task) or of_task.displaced or (ready and _restoring(indexed, task)):
                    preference_cost = PREFERRED
                elif not ready and member not in unblocked and member not in granted:
                    preference_cost = BLOCKED
                change = 0 if member in granted else changes
                rack_cost = traffic.at(indexed.racks.of[member]) + change * move_cost
                records = 0 if ready else indexed.records(member, task)
                self.network.direct(task, member, (0, 0, rack_cost, change, 0, preference_cost, records))

    def _offers(self, task: Task, candidates: Candidates | None) -> list[Offer]:
        """Arcs to every eligible member: at once, where it has the min rank, and by a movement.
        Records are added per task.
        """
        indexed = self.indexed
        traffic, unblocked = indexed.racks.active(task.id), indexed.unblocked(task.id)
        changes = 0 if candidates is None and task.id not in indexed.owner else 1
        fresh = None if candidates is None else candidates.fresh
        offers = [] if fresh is None else [self._offer(fresh, task, traffic, 0, NEUTRAL)]
        if fresh is not unblocked and unblocked:
            offers.append(self._offer(unblocked, task, traffic, changes, PREFERRED if task.displaced else NEUTRAL))
        return offers

    def _offer(self, pool: Pool, task: Task, traffic: Traffic, changes: int, preference_cost: int) -> Offer:
        """An arc to any member of the pool; tasks with the same arc share it."""
        key = pool, self.network.lane(task.id), traffic, changes, preference_cost
        found = self.known.get(key)
        if found is None:
            rest = (changes, 0, preference_cost, 0)
            move_cost = changes * self.indexed.racks.move_cost(task.id)
            near = {rack: (0, 0, cost + move_cost, *rest) for rack, cost in traffic.near.items()}
            found = self.known[key] = Offer(pool, key[1], (0, 0, traffic.far + move_cost, *rest), near)
        return found


PREFERRED = 0
"""The task returns to its previous owner, or is displaced, or the move ends a restore because the
destination is caught up.
"""
NEUTRAL = 1
BLOCKED = 2
"""The last warm-up there stalled: chosen only when nothing else is as good, and then it waits for
the back-off.
"""


def _restoring(indexed: IndexedProblem, task: TaskId) -> bool:
    """Returns whether the task has an owner that still restores it."""
    owner = indexed.owner.get(task)
    return owner is not None and indexed.tasks[task].stateful and not indexed.caught_up(owner, task)
