"""Where tasks can run now, and where they should: `constrainedBalancedAssignment` and
`proposeBalancedAssignment` of KIP-441.

They are one transportation problem (see `network`) with two costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import attrs

from equipoise.assignors.common.indexed_problem import EquivalenceClass, IndexedProblem, Pool, pool_of
from equipoise.assignors.common.network import AssignmentNetwork, Lane, Offer
from equipoise.assignors.common.problem import Task
from equipoise.assignors.common.racks import Traffic
from equipoise.assignors.common.ranking import whole
from equipoise.assignors.common.restore_rate import RestoreRates
from equipoise.assignors.common.shares import Share, Shares
from equipoise.events.tasks import TaskId


@attrs.frozen(kw_only=True, eq=False)
class Candidates:
    """The members of a task's min rank: by name, because they have copies, or `fresh`, all that may
    run it and are least busy restoring.

    Tasks that are alike share one object.
    """

    members: tuple[str, ...] = ()
    fresh: Pool | None = None
    everyone: frozenset[str] = attrs.field(init=False)
    """All of them."""

    @everyone.default
    def _everyone(self) -> frozenset[str]:
        fresh = frozenset() if self.fresh is None else self.fresh.as_set
        return fresh.union(self.members) if self.members else fresh

    def __contains__(self, member: object) -> bool:
        return member in self.everyone


@attrs.frozen(kw_only=True)
class Target:
    """`owner`: task -> who is to run it in the end, in rising order; tasks that nobody may run are
    absent.
    """

    owner: Mapping[TaskId, str]
    optimal: bool = True
    unique: bool = True


def min_rank(indexed: IndexedProblem, tasks: Iterable[TaskId], classes: Iterable[EquivalenceClass] = ()) -> dict[TaskId, Candidates]:
    """Stateful tasks that need an owner now -> the members of their min rank. Tasks nobody may run
    are absent.

    Rank 0 if anybody is caught up on it. The others are ranked by `_soonest_ready`. `classes`: more
    such tasks, of which nobody has a copy.
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
    if cold:  # who has a copy looks at all that comes before it; when there are none, it does not matter what comes first
        one_by_one = sorted(itertools.chain(cold, *[tasks for tasks, _ in portions]))
        portions = [([task], whole(indexed.tasks[task])) for task in one_by_one]
    if portions:
        found.update(_soonest_ready(indexed, portions))
    return found


def _soonest_ready(indexed: IndexedProblem, portions: Iterable[tuple[list[TaskId], int]]) -> dict[TaskId, Candidates]:
    """For tasks on which nobody is caught up: least expected time to ready, the restore queue
    included (docs/protocol.md#d3).

    A member's queue is what it restores for tasks it owns, plus what it is likely to get here: so
    one that has half a copy of many tasks does not get all of them, and one that is busy is spared.
    Times are spans (`RestoreRates`): a member that measured a speed is judged by it. Members that
    differ by no more than acceptable_recovery_lag, by its definition next to no time, rank alike.
    Tasks that no copy makes ready sooner go to whoever would be first to have restored one like
    them: which of them gets which is a matter of balance. Names play no part in it.

    `portions`: one task each, or more that the same members may run and of which nobody has a copy;
    and the records of all their state.
    """
    slack = indexed.settings.acceptable_recovery_lag
    rates = indexed.restore_rates
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
    """How far up the restore queues of a pool are filled when records are poured into the shortest
    ones, each taking as many as its member restores.

    `queue`: member -> span. The level is `filled` / `speed`: of the `members` shortest queues,
    which stand at it, `speed` is the sum of the speeds. The others are longer.
    """

    def __init__(self, rates: RestoreRates, queue: Mapping[str, int], pool: Pool) -> None:
        self.rates = rates
        self.pool = pool
        self.queues = sorted(((queue[member], rates.speed[member]) for member in pool.members), key=lambda each: (each[0], -each[1]))
        self.first: list[tuple[int, int]] = []
        """Of the queues those that no faster member's is as short as: one of them is the first to
        have restored anything.
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
        """Pour these in too, which are those of so many tasks."""
        self.poured += records
        self.tasks += tasks

    def _settle(self) -> None:
        """Find the level anew. It does not matter in how many parts the records came."""
        self.filled += (self.poured - self._settled) * self.rates.slowest
        self._settled = self.poured
        while self.members < len(self.queues) and self.queues[self.members][0] * self.speed < self.filled:
            queue, speed = self.queues[self.members]
            self.filled += queue * speed
            self.speed += speed
            self.members += 1

    def is_later(self, records: int, *, than: int) -> bool:
        """Would `records` be ready later than `than`, on whichever member is first, above the level
        and its queue?
        """
        self._settle()
        effort = records * self.rates.slowest
        return all(
            length * speed + effort > than * speed or self.filled * speed + effort * self.speed > than * self.speed * speed
            for length, speed in self.first
        )

    def idle(self, queue: Mapping[str, int], slack: int) -> Pool:
        """Members that would have restored a task like those poured in before the level and one
        more such task, or next to first.

        Where all restore alike: those whose queue is below the level, or next to the shortest. The
        pool itself when that is everybody.
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
    """Member -> span of what it is restoring for tasks that it already owns."""
    queue = dict.fromkeys(indexed.members, 0)
    for task, owner in indexed.owner.items():
        if indexed.tasks[task].stateful and not indexed.caught_up(owner, task):
            queue[owner] += indexed.restore_time(owner, task)
    return queue


def constrained_balanced_assignment(
    indexed: IndexedProblem, shares: Shares, candidates: Mapping[TaskId, Candidates], running: Mapping[TaskId, str]
) -> dict[TaskId, str]:
    """Owners for stateful tasks that need one now, of the min rank only, as balanced as that allows
    beside what is `running`.

    A place costs nothing up to the member's lower share, 1 up to its upper share, and one more for
    each further part of a share. Among equals, members that had the task before come first, then
    those that have restored it soonest.
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
    indexed: IndexedProblem, shares: Shares, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str], *, even_parts: bool = False
) -> Target:
    """The proposed balance, adopted only if something must change or it is better than what runs
    (the KIP's last lines: no thrash).

    Better: more balanced; or as balanced and cheaper where racks make a difference, what the
    changes cost included. So when traffic could be less the group moves once, and stays.
    `even_parts`: see `propose_balanced_assignment`.
    """
    running = Target(owner={task: indexed.owner[task] for task in indexed.tasks if task in indexed.owner})
    must_change = (
        bool(settled)
        or len(indexed.owner) < len(indexed.tasks)
        or any(indexed.members[owner].leaving or indexed.must_move(task) for task, owner in indexed.owner.items())
    )
    if must_change:
        return propose_balanced_assignment(indexed, shares, candidates, settled, even_parts=even_parts)
    worth = _worth(indexed, shares, running.owner)
    if worth == (0, 0, indexed.racks.least()):
        return running
    proposed = propose_balanced_assignment(indexed, shares, candidates, settled, even_parts=even_parts)
    if _worth(indexed, shares, proposed.owner) < worth:
        return proposed
    return Target(owner=running.owner, optimal=proposed.optimal, unique=proposed.unique)


def _worth(indexed: IndexedProblem, shares: Shares, target: Mapping[TaskId, str]) -> tuple[int, int, int]:
    """What a target is judged by where nothing must change, the most important first; less is
    better.
    """
    racks = indexed.racks
    changes = sum(racks.move_cost(task) for task, member in target.items() if indexed.owner[task] != member) if racks.counts else 0
    return shares.imbalance(target), shares.crowding(target), racks.total(target) + changes


def propose_balanced_assignment(
    indexed: IndexedProblem, shares: Shares, candidates: Mapping[TaskId, Candidates], settled: Mapping[TaskId, str], *, even_parts: bool = False
) -> Target:
    """The target: among all assignments with the least imbalance the one that changes the fewest
    owners, regardless of ranks.

    Where racks make a difference, the cost of traffic and of the changes together come before the
    changes alone (KIP-925: `rack_traffic_cost` and `rack_non_overlap_cost` say how much one
    outweighs the other), and before them, where sub-topologies are to be spread, that they are.

    `even_parts`: of all that is as good until here, what is most even by sub-topology; nothing
    moves for that alone.

    Then, in this order: the moves liked best (see PREFERRED, NEUTRAL, BLOCKED), fewest records to
    restore, a tie-break drawn from the ids. `settled`: destinations decided earlier
    (docs/protocol.md#d9), kept even if the balance suffers. `candidates`: a task that needs an
    owner now changes none when it goes to one of them. For tasks that are alike they are the same,
    and none of them is settled.

    Before: m1 (0_0, 0_1, 0_2, 0_3), m2 (), both of capacity 1. After: m1 keeps two, m2 is to get
    the two that are cheapest to restore.
    """
    racks = indexed.racks
    limits = shares.limits()
    network = AssignmentNetwork(
        indexed.tasks, levels=len(STAYS), two_kinds=shares.two_kinds, racks=racks.of if racks.counts else None, spread=even_parts or bool(limits)
    )
    arcs = _TargetArcs(network, indexed)
    for same, tasks in itertools.groupby(indexed.tasks, indexed.class_of.get):
        if same is not None:
            arcs.add_class(same, list(tasks), candidates.get(same.first.id))
            continue
        for task in tasks:
            if task in settled:
                network.direct(task, settled[task], STAYS)
            elif indexed.eligible(task):
                arcs.add(task, indexed.tasks[task], candidates.get(task))
            elif task in indexed.owner and not indexed.members[indexed.owner[task]].leaving:
                network.direct(task, indexed.owner[task], STAYS)
    parts = shares.parts() if even_parts else {}
    for kind in parts or limits:
        for member in indexed.members:
            most = limits[kind].get(member, 0) if kind in limits else len(indexed.tasks)
            part = parts[kind].get(member, Share(0, 0)) if kind in parts else None
            network.places(member, kind, _steps_of_part(most, part, len(indexed.tasks)))
    for member in indexed.members:
        network.shares(member, shares.stateful[member].lower, shares.stateful[member].upper, kind="stateful")
        network.shares(member, shares.every[member].lower, shares.every[member].upper, kind="every")
    flow = network.solve()
    return Target(owner=network.assigned(flow), optimal=flow.optimal, unique=flow.unique)


STAYS = (0, 0, 0, 0, 0, 0, 0)


def _steps_of_part(most: int, part: Share | None, every: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """What a member's tasks of one sub-topology cost, as (up to how many, each of them): above
    `most` they crowd; beyond its even part they are uneven."""
    ends = {most, every} if part is None else {most, part.lower, part.upper, every}
    for end in sorted(ends):
        uneven = 0 if part is None or end <= part.lower else 1 if end <= part.upper else 2
        yield end, (0, int(end > most), 0, 0, uneven, 0, 0)


class _TargetArcs:
    """The arcs of each task.

    Costs: (imbalance, crowding, rack cost, changes of owner, unevenness, preference_cost, records
    to restore), where preference_cost is one of PREFERRED, NEUTRAL and BLOCKED. The rack cost is
    that of `racks.Racks`: of the traffic, and of a change of owner in the same coin; 0 where racks
    make no difference.
    """

    def __init__(self, network: AssignmentNetwork, indexed: IndexedProblem) -> None:
        self.network = network
        self.indexed = indexed
        self.known: dict[tuple[Pool, Lane, Traffic, int, int], Offer] = {}
        self.offers_of: dict[EquivalenceClass, tuple[list[Offer], Iterator[int]]] = {}
        """What all of them are offered, and the records of those that are still to come."""

    def add(self, task: TaskId, of_task: Task, candidates: Candidates | None) -> None:
        """Those of one task."""
        self._add_named(task, of_task, candidates)
        records = whole(of_task) if of_task.stateful else 0
        for offer in self._offers(of_task, candidates):
            self.network.pooled(task, offer, records)

    def add_class(self, same: EquivalenceClass, tasks: Sequence[TaskId], candidates: Candidates | None) -> None:
        """Those of some of the tasks that are alike: the next ones, in rising order."""
        if same not in self.offers_of:
            self.offers_of[same] = self._offers(same.first, candidates), iter(same.records)
        offers, records = self.offers_of[same]
        self.network.pooled_all(tasks, offers, list(itertools.islice(records, len(tasks))))

    def _add_named(self, task: TaskId, of_task: Task, candidates: Candidates | None) -> None:
        """To its owner, and to members that it names: its candidates, those that have copies or had
        it before, and those it may not warm up on.
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
        """Of all that may run it: at once, if they are of its min rank, and by a movement. The
        records come on top.
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
        """To any member of the pool. One for all tasks for which it is the same."""
        key = pool, self.network.lane(task.id), traffic, changes, preference_cost
        found = self.known.get(key)
        if found is None:
            rest = (changes, 0, preference_cost, 0)
            move_cost = changes * self.indexed.racks.move_cost(task.id)
            near = {rack: (0, 0, cost + move_cost, *rest) for rack, cost in traffic.near.items()}
            found = self.known[key] = Offer(pool, key[1], (0, 0, traffic.far + move_cost, *rest), near)
        return found


PREFERRED = 0
"""It goes back home, or is a guest where it is, or its move ends a restore because the destination
is caught up.
"""
NEUTRAL = 1
BLOCKED = 2
"""The last warm-up there stalled: only if nothing else does as well; then it waits for its
back-off.
"""


def _restoring(indexed: IndexedProblem, task: TaskId) -> bool:
    """It has an owner that does not run it yet."""
    owner = indexed.owner.get(task)
    return owner is not None and indexed.tasks[task].stateful and not indexed.caught_up(owner, task)
