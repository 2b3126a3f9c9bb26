"""Tasks and members as a flow network, sparse, and read back as owners.

::

    stateful task --(it has a copy there)---> member's stateful tasks --> all its tasks --> sink
    stateful task --> pool of who may run it --> member's stateful tasks
    stateless task --> pool of who may run it --------------------------> all its tasks

A task has an arc to each member that it names and one arc to a pool, never one to each member.
Shares are soft, so that there always is a solution: a place up to the lower share costs 0, from
there to the upper share 1, above it 2. As the number of tasks is given, the sum is the number of
tasks outside the shares plus a constant. When all tasks are of one kind, a member is one node.

Where racks make a difference, a pool is split by them, and a task has one more arc for each rack
that is better than the rest::

    task --(costs less there)--> members of the pool in that rack --> member ...
    task --------------> pool --> members of the pool in any rack

Where sub-topologies are spread, a member has one more node for each of them, in front of the
others, with as many places at cost 0 as it should have.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from equipoise.assignors.common.indexed_problem import Pool
from equipoise.assignors.common.node_aggregation import Hashes, Ints, mixed
from equipoise.assignors.common.problem import Task
from equipoise.assignors.common.round_robin import deal
from equipoise.assignors.common.shares import Kind, Share
from equipoise.assignors.common.transport import Flow, FlowNetwork, solve, stable_hash
from equipoise.events.tasks import TaskId

_DIRECT, _POOLED, _POOL, _PLACE = (role << 32 for role in range(1, 5))  # so that arcs between the same names draw different ties
_RACK = 1 << 63

PARTS_OF_A_SHARE = 8  # members that must take more than their share are even to within an eighth of a share, or one task
MOST_STEPS = 64  # eight shares too many: beyond that evenness no longer matters


Lane = int
"""One of a member's nodes: OUTER, INNER, or that of one sub-topology and kind (see `_lane_of`)."""
OUTER: Lane = 0
"""All tasks of the member."""
INNER: Lane = 1
"""Its stateful tasks, where there are stateless ones too."""

_Key = tuple[Pool, Lane]
_Part = tuple[_Key, str | None]
"""Members of a pool in one rack; None: of unknown rack."""


def _lane_of(subtopology: int, stateful: bool) -> Lane:
    """The lane of a sub-topology's tasks of one kind, where they are spread."""
    return 2 + 2 * subtopology + stateful


@attrs.define(eq=False)
class Offer:
    """A choice shared by tasks of one lane: any member of the pool at `cost` (None: not allowed),
    and members in a rack of `near` at its cost. Equivalent tasks share one object.
    """

    pool: Pool
    lane: Lane
    cost: Sequence[int] | None
    near: Mapping[str, Sequence[int]] | None
    number: int | None = None
    """Its number in the network, once a task has it."""


@attrs.define
class _TaskArcs:
    """Arcs of tasks to single members, one item each."""

    node: list[int] = attrs.field(factory=list)
    head: list[int] = attrs.field(factory=list)
    row: list[int] = attrs.field(factory=list)
    last: list[int] = attrs.field(factory=list)
    name: list[int] = attrs.field(factory=list)
    task: list[TaskId] = attrs.field(factory=list)
    member: list[str] = attrs.field(factory=list)


@attrs.define
class _Offers:
    """The offers of tasks, one item for each task and offer, and the arcs that all tasks of an
    offer share.
    """

    node: list[int] = attrs.field(factory=list)
    offer: list[int] = attrs.field(factory=list)
    last: list[int] = attrs.field(factory=list)
    key: list[_Key] = attrs.field(factory=list)
    """Of each offer, as the next two: its pool, where its arcs begin, and how many they are."""
    first: list[int] = attrs.field(factory=list)
    arcs: list[int] = attrs.field(factory=list)
    head: list[int] = attrs.field(factory=list)
    row: list[int] = attrs.field(factory=list)
    rest: list[int] = attrs.field(factory=list)
    place: list[int] = attrs.field(factory=list)
    number: dict[_Key | _Part, int] = attrs.field(factory=dict)
    """Of each place that an arc leads to."""

    def open(self, key: _Key, arcs: Sequence[tuple[_Key | _Part, int, int, int]]) -> int:
        """A new offer's number. `arcs`: place, node, row of costs, and what the last level costs."""
        self.key.append(key)
        self.first.append(len(self.head))
        self.arcs.append(len(arcs))
        for place, node, row, rest in arcs:
            self.place.append(self.number.setdefault(place, len(self.number)))
            self.head.append(node)
            self.row.append(row)
            self.rest.append(rest)
        return len(self.key) - 1

    def written_out(self) -> tuple[Ints, Ints]:
        """For each arc of each task: its item, and its arc of the offer."""
        offer = np.array(self.offer, dtype=np.int64)
        arcs = np.array(self.arcs, dtype=np.int64)[offer]
        item = np.repeat(np.arange(len(offer)), arcs)
        before = np.cumsum(arcs) - arcs
        return item, np.array(self.first, dtype=np.int64)[offer][item] + np.arange(len(item)) - before[item]


@attrs.define
class _InnerArcs:
    """Arcs from pools to their members, and from members to the sink, one item each."""

    tail: list[int] = attrs.field(factory=list)
    head: list[int] = attrs.field(factory=list)
    capacity: list[int] = attrs.field(factory=list)
    row: list[int] = attrs.field(factory=list)
    name: list[int] = attrs.field(factory=list)
    role: list[int] = attrs.field(factory=list)

    def add(self, tail: int, head: int, capacity: int, row: int, name: int, role: int) -> int:
        """A new arc's number."""
        self.tail.append(tail)
        self.head.append(head)
        self.capacity.append(capacity)
        self.row.append(row)
        self.name.append(name)
        self.role.append(role)
        return len(self.tail) - 1

    def add_all(self, tail: int, head: int, capacity: Sequence[int], row: Sequence[int], name: int, role: Sequence[int]) -> None:
        """New arcs between the same nodes."""
        self.tail += [tail] * len(capacity)
        self.head += [head] * len(capacity)
        self.capacity += capacity
        self.row += row
        self.name += [name] * len(capacity)
        self.role += role

    def add_each(self, tail: Sequence[int], head: Sequence[int], capacity: Sequence[int], row: int, name: Sequence[int], role: int) -> None:
        """New arcs between different nodes; of one without capacity nothing follows."""
        self.tail += tail
        self.head += head
        self.capacity += capacity
        self.row += [row] * len(tail)
        self.name += name
        self.role += [role] * len(tail)


class AssignmentNetwork:
    """A network built arc by arc, solved, and read back as owners. `levels`: number of costs per
    arc, the most important first. Tasks are added in rising order.

    `racks`: member -> rack, where racks make a difference. `spread`: sub-topologies that have lanes
    of their own. `order`: the levels, the most important first, if that is not their own order; the
    last one stays the last.

    Arcs are stored in columns, and costs in a table: few differ but in the last level.
    """

    def __init__(
        self,
        tasks: Mapping[TaskId, Task],
        *,
        levels: int,
        two_kinds: bool = False,
        racks: Mapping[str, str | None] | None = None,
        spread: Collection[Kind] = (),
        order: Sequence[int] | None = None,
    ) -> None:
        self._tasks = tasks
        self._levels = levels
        self._order = order or range(levels)
        self._two_kinds = two_kinds
        self._racks = racks
        self._spread = spread
        self._nodes = 1  # 0 is the sink
        self._task_node: dict[TaskId, int] = {}
        self._member_node: defaultdict[Lane, dict[str, int]] = defaultdict(dict)
        self._pool_node: dict[_Key, int] = {}
        self._pool_tasks: Counter[_Key] = Counter()
        self._part_node: dict[_Part, int] = {}
        self._row_of: dict[tuple[int, ...], int] = {}
        self._free = self._row((0,) * levels)
        self._prices: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        self._direct = _TaskArcs()
        self._offers = _Offers()
        self._inner = _InnerArcs()
        self._rack_arcs: dict[_Key, list[tuple[int, str | None]]] = {}
        self._pool_arcs: dict[_Key | _Part, tuple[int, Sequence[str]]] = {}
        """The number of the first, and the members they lead to."""
        self._racks_of_pool: dict[Pool, dict[str | None, list[str]]] = {}
        self._opened = 0
        self._hash: dict[str, int] = {}

    def direct(self, task: TaskId, member: str, cost: Sequence[int]) -> None:
        """Allows the task to go to this member."""
        arcs = self._direct
        arcs.node.append(self._source(task))
        arcs.head.append(self._member(member, self.lane(task)))
        arcs.row.append(self._row(cost))
        arcs.last.append(cost[-1])
        arcs.name.append(self._hashed(member))
        arcs.task.append(task)
        arcs.member.append(member)

    def pooled(self, task: TaskId, offer: Offer, more: int = 0) -> None:
        """Gives the task this offer, at `more` on the last level of costs. `offer` is of its lane."""
        offers = self._offers
        node = self._task_node.get(task)
        offers.node.append(self._source(task) if node is None else node)
        offers.last.append(more)
        offers.offer.append(self._number(offer))

    def pooled_all(self, tasks: Sequence[TaskId], offers: Sequence[Offer], more: Sequence[int]) -> None:
        """`pooled` for new tasks with the same offers. `more`: of each task."""
        if not offers:
            return
        self._source(tasks[0])
        numbers = [self._number(offer) for offer in offers]
        nodes = range(self._nodes, self._nodes + len(tasks) - 1)
        self._task_node.update(zip(tasks[1:], nodes, strict=True))
        self._nodes += len(nodes)
        each = len(offers)
        self._offers.node += [node for node in (self._task_node[tasks[0]], *nodes) for _ in range(each)]
        self._offers.last += [records for records in more for _ in range(each)]
        self._offers.offer += numbers * len(tasks)

    def some_or_pooled(self, task: TaskId, ends: Iterable[tuple[str, tuple[int, ...]]], offer: Offer, more: int) -> None:
        """For a new task of the offer's lane: `direct` to each of these members at its cost, then
        `pooled` with the offer at `more`.
        """
        arcs, nodes = self._direct, self._member_node[offer.lane]
        node = self._task_node[task] = self._new_node()
        for member, cost in ends:
            head = nodes.get(member)
            arcs.node.append(node)
            arcs.head.append(self._member(member, offer.lane) if head is None else head)
            arcs.row.append(self._row(cost))
            arcs.last.append(cost[-1])
            arcs.name.append(self._hash[member])
            arcs.task.append(task)
            arcs.member.append(member)
        offers = self._offers
        offers.node.append(node)
        offers.last.append(more)
        offers.offer.append(self._number(offer))

    def kept_or_pooled(self, tasks: Sequence[TaskId], owners: Sequence[str], cost: Sequence[int], offer: Offer, more: Sequence[int]) -> None:
        """For new tasks of the offer's lane, each in turn: `direct` to its owner at `cost`, then
        `pooled` with the offer at `more`.
        """
        self.direct(tasks[0], owners[0], cost)
        self.pooled(tasks[0], offer, more[0])
        arcs, offers = self._direct, self._offers
        count = len(tasks) - 1
        nodes = range(self._nodes, self._nodes + count)
        self._nodes += count
        self._task_node.update(zip(tasks[1:], nodes, strict=True))
        heads = self._member_node[offer.lane]
        for owner in dict.fromkeys(itertools.filterfalse(heads.__contains__, owners)):
            self._member(owner, offer.lane)
        arcs.node += nodes
        arcs.head += map(heads.__getitem__, owners[1:])
        arcs.row += [self._row(cost)] * count
        arcs.last += [cost[-1]] * count
        arcs.name += map(self._hash.__getitem__, owners[1:])
        arcs.task += tasks[1:]
        arcs.member += owners[1:]
        offers.node += nodes
        offers.last += more[1:]
        offers.offer += [self._number(offer)] * count

    def _number(self, offer: Offer) -> int:
        if offer.number is None:
            offer.number = self._open_offer(offer)
        return offer.number

    def _open_offer(self, offer: Offer) -> int:
        key = (offer.pool, offer.lane)
        node = self._pool_node.get(key)
        if node is None:
            node = self._pool_node[key] = self._new_node()
        arcs: list[tuple[_Key | _Part, int, int, int]] = []
        if offer.cost is not None:
            arcs.append((key, node, self._row(offer.cost), offer.cost[-1]))
        if offer.near:
            racks = self._by_rack(offer.pool)
            for rack, cheaper in offer.near.items():
                if rack in racks:
                    arcs.append(((key, rack), self._part((key, rack)), self._row(cheaper), cheaper[-1]))
        return self._offers.open(key, arcs)

    def place(self, member: str, capacity: int, cost: Sequence[int], *, lane: Lane = OUTER) -> None:
        """Adds room for `capacity` tasks on a member, at this cost each."""
        if capacity <= 0 or member not in self._member_node[lane]:
            return
        behind = self._behind(lane)
        head = 0 if behind is None else self._member(member, behind)
        self._inner.add(self._member_node[lane][member], head, capacity, self._row(cost), self._hashed(member), _PLACE + (lane << 32) | sum(cost))

    def shares(self, shares: Mapping[str, Share], *, kind: str) -> None:
        """Soft bounds of each member's stateful tasks, or of all its tasks; the first level of cost
        counts tasks outside.
        """
        lane = INNER if kind == "stateful" else OUTER
        if lane == INNER and not self._two_kinds:
            return
        self._open_pools()
        behind = self._behind(lane)
        node_of = self._member_node[lane]
        held = {member: share for member, share in shares.items() if member in node_of}
        nodes = list(map(node_of.__getitem__, held))
        heads = [0 if behind is None else self._member(member, behind) for member in held]
        names = list(map(self._hashed, held))
        lower, between = [share.lower for share in held.values()], [share.upper - share.lower for share in held.values()]
        for outside, capacity in enumerate((lower, between, [len(self._task_node)] * len(held))):
            row, role = self._price(0, outside, 0, 0)
            self._inner.add_each(nodes, heads, capacity, row, names, role + (lane << 32))

    def room(
        self, member: str, lower: int, upper: int, *, taken: int, wanted: int, level: int = 0, finer: tuple[int, int, int] | None = None
    ) -> None:
        """Places for up to `wanted` tasks beside those `taken`, even as far as can be: a place
        costs 0 up to the lower share, 1 up to the upper one, and beyond that more with every part
        of a share. `level`: its rank among the costs.

        `finer`: another level, with a lower and an upper share that count there; beyond the upper
        one a place costs 2.
        """
        below = max(0, lower - taken)
        within = max(0, upper - taken) - below
        part = max(1, upper // PARTS_OF_A_SHARE)
        first_step = max(0, taken - upper) // part
        steps = min(-(-max(0, wanted - below - within) // part), MOST_STEPS)
        segments = [(below, 0), (within, 1)]
        segments += [(part if step < MOST_STEPS - 1 else wanted, 2 + min(first_step + step, MOST_STEPS)) for step in range(steps)]
        node = self._member_node[OUTER].get(member)
        if node is None:
            return
        fine_level, ends = (level, ()) if finer is None else (finer[0], finer[1:])
        capacity: list[int] = []
        prices: list[tuple[int, int]] = []
        for count, coarse in segments:
            while count > 0:
                ahead = [end - taken for end in ends if end > taken] if taken < max(ends, default=0) else ()
                some = min(count, *ahead) if ahead else count
                capacity.append(some)
                prices.append(self._price(level, coarse, fine_level, len(ends) - len(ahead)))
                taken += some
                count -= some
        self._inner.add_all(node, 0, capacity, [row for row, _ in prices], self._hashed(member), [role for _, role in prices])

    def _price(self, level: int, coarse: int, fine_level: int, fine: int) -> tuple[int, int]:
        """Row and role of places that cost so much at these two levels."""
        key = level, coarse, fine_level, fine
        found = self._prices.get(key)
        if found is None:
            cost = [0] * self._levels
            cost[level] += coarse
            cost[fine_level] += fine
            found = self._prices[key] = self._row(cost), _PLACE | sum(cost)
        return found

    def places(self, member: str, kind: Kind, steps: Iterable[tuple[int, Sequence[int]]]) -> None:
        """What a member's tasks of one sub-topology and kind cost: (up to how many, each of them),
        in rising order of both.
        """
        self._open_pools()
        before = 0
        for end, cost in steps:
            self.place(member, end - before, cost, lane=_lane_of(*kind))
            before = end

    def wanted(self) -> dict[str, int]:
        """Member -> the most tasks that could come to it."""
        self._open_pools()
        wanted: Counter[str] = Counter(self._direct.member)
        for (pool, _), tasks in self._pool_tasks.items():
            for member in pool.members:
                wanted[member] += tasks
        return dict(sorted(wanted.items()))

    def solve(self) -> Flow:
        """The cheapest flow."""
        self._open_pools()
        direct, offers, inner = self._direct, self._offers, self._inner
        item, arc = offers.written_out()
        offered_head = np.array(offers.head, dtype=np.int64)[arc]
        tail = _joined(direct.node, np.array(offers.node, dtype=np.int64)[item], inner.tail)
        supply = np.zeros(self._nodes, dtype=np.int64)
        supply[list(self._task_node.values())] = 1
        supply[0] = -len(self._task_node)
        return solve(
            FlowNetwork(
                nodes=self._nodes,
                supply=supply,
                tail=tail,
                head=_joined(direct.head, offered_head, inner.head),
                capacity=_joined(np.ones(len(direct.node) + len(item), dtype=np.int64), inner.capacity),
                costs=self._costs(tail, item, arc),
                names=lambda: self._names(tail, offered_head),
                most_costed=4,
            )
        )

    def _costs(self, tail: Ints, item: Ints, arc: Ints) -> tuple[Ints, ...]:
        """Per level and arc, less what its task costs whatever arc it takes: no reason for any of
        them. Without that more levels fit into one solve.

        `item`, `arc`: as `_Offers.written_out` has them.
        """
        direct, offers, inner = self._direct, self._offers, self._inner
        table = np.array(list(self._row_of), dtype=np.int64).reshape(len(self._row_of), self._levels - 1)
        row = _joined(direct.row, np.array(offers.row, dtype=np.int64)[arc], inner.row)
        offered = np.array(offers.last, dtype=np.int64)[item] + np.array(offers.rest, dtype=np.int64)[arc]
        last = _joined(direct.last, offered, np.zeros(len(inner.row), dtype=np.int64))
        of_tasks = tail[: len(tail) - len(inner.row)]

        def avoidable(cost: Ints) -> Ints:
            if cost.any():
                least = np.full(self._nodes, np.iinfo(np.int64).max, dtype=np.int64)
                np.minimum.at(least, of_tasks, cost[: len(of_tasks)])
                cost[: len(of_tasks)] -= least[of_tasks]
            return cost

        return (*(avoidable(table[row, level]) for level in self._order[:-1]), avoidable(last))

    def _names(self, tail: Ints, offered_head: Ints) -> Hashes:
        """Hash of the ends of each arc and of its role: competing arcs have different ones."""
        direct, inner = self._direct, self._inner
        of_node = np.zeros(self._nodes, dtype=np.uint64)
        tasks = np.fromiter(itertools.chain.from_iterable(self._task_node), dtype=np.int64, count=2 * len(self._task_node)).reshape(-1, 2)
        of_node[list(self._task_node.values())] = (tasks[:, 0] << 32 | tasks[:, 1]) + 1
        task = of_node[tail]
        member = np.zeros(len(tail), dtype=np.uint64)
        member[: len(direct.name)] = direct.name
        member[len(tail) - len(inner.name) :] = inner.name
        role = np.concatenate(
            (
                np.full(len(direct.node), _DIRECT, dtype=np.uint64),
                offered_head.astype(np.uint64) | np.uint64(_POOLED),
                np.array(inner.role, dtype=np.uint64),
            )
        )
        return mixed(member ^ mixed(task ^ mixed(role, 2), 1), 0)

    def assigned(
        self, flow: Flow, *, order: Callable[[TaskId], Any] | None = None, never: Callable[[TaskId], Container[str | None]] | None = None
    ) -> dict[TaskId, str]:
        """Task -> member. What the flow sent through a pool is dealt by `deal`, in `order`: first
        to the pool's racks, then to the members.

        `never`: members that a task must not go to, though its pool has them. Tasks for which no
        member is left are absent.
        """
        direct, offers, inner = len(self._direct.node), self._offers, len(self._inner.tail)
        amount = flow.amount
        named = (amount[:direct] > 0).tolist()
        owner = dict.fromkeys(self._task_node, nobody := "")
        owner.update(zip(itertools.compress(self._direct.task, named), itertools.compress(self._direct.member, named), strict=True))
        item, arc = offers.written_out()
        used = np.flatnonzero(amount[direct : len(amount) - inner])
        tasks_in_order = list(self._task_node)
        places = np.searchsorted(list(self._task_node.values()), np.array(offers.node, dtype=np.int64)[item[used]])
        through: list[list[TaskId]] = [[] for _ in offers.number]
        for place, number in zip(places.tolist(), np.array(offers.place)[arc[used]].tolist(), strict=True):
            through[number].append(tasks_in_order[place])
        pooled = dict(zip(offers.number, through, strict=True))
        onward: list[int] = amount[len(amount) - inner :].tolist()
        for hub, arcs in self._rack_arcs.items():
            parts = {rack or "": (hub, rack) for _, rack in arcs}
            for task, rack in deal(sorted(pooled.pop(hub, ()), key=order), {rack or "": onward[arc] for arc, rack in arcs}).items():
                pooled.setdefault(parts[rack], []).append(task)
        for part, tasks in pooled.items():
            first, members = self._pool_arcs[part]
            owner.update(deal(sorted(tasks, key=order), dict(zip(members, onward[first : first + len(members)], strict=True)), never))
        return owner if nobody not in owner.values() else {task: member for task, member in owner.items() if member != nobody}

    def lane(self, task: TaskId) -> Lane:
        """The lane that the task's arcs lead to."""
        stateful = self._tasks[task].stateful
        if self._spread and (task.subtopology, stateful) in self._spread:
            return _lane_of(task.subtopology, stateful)
        return INNER if self._two_kinds and stateful else OUTER

    def _behind(self, lane: Lane) -> Lane | None:
        """The lane behind a lane's places; None: the sink."""
        if lane == OUTER:
            return None
        if lane == INNER:
            return OUTER
        return INNER if self._two_kinds and lane % 2 else OUTER

    def _by_rack(self, pool: Pool) -> dict[str | None, list[str]]:
        """The pool's members by rack; empty where racks make no difference."""
        found = self._racks_of_pool.get(pool)
        if found is None:
            found = self._racks_of_pool[pool] = {}
            racks = self._racks or {}
            for member in pool.members if racks else ():
                found.setdefault(racks[member], []).append(member)
        return found

    def _part(self, part: _Part) -> int:
        node = self._part_node.get(part)
        if node is None:
            node = self._part_node[part] = self._new_node()
        return node

    def _open_pools(self) -> None:
        """Arcs from pools to their members; from those that are split, to their parts first."""
        if self._opened == len(self._pool_node):
            return
        self._opened = len(self._pool_node)
        offered = Counter(self._offers.offer)
        for number, key in enumerate(self._offers.key):
            self._pool_tasks[key] += offered[number]
        split = {key for key, _ in self._part_node}
        for key, node in self._pool_node.items():
            if key in self._pool_arcs or key in self._rack_arcs:
                continue
            pool, lane = key
            if key not in split:
                self._open(key, node, lane, pool.members, self._pool_tasks[key])
                continue
            arcs = self._rack_arcs[key] = []
            for rack, members in sorted(self._by_rack(pool).items(), key=lambda item: (item[0] is not None, item[0] or "")):
                part, name = self._part((key, rack)), 0 if rack is None else self._hashed(rack)
                arcs.append((self._inner.add(node, part, self._pool_tasks[key], self._free, name, _RACK | node), rack))
                self._open((key, rack), part, lane, members, self._pool_tasks[key])

    def _open(self, place: _Key | _Part, node: int, lane: Lane, members: Sequence[str], tasks: int) -> None:
        self._pool_arcs[place] = len(self._inner.tail), members
        heads = [self._member(member, lane) for member in members]
        names = list(map(self._hashed, members))
        self._inner.add_each([node] * len(members), heads, [tasks] * len(members), self._free, names, _POOL | node)

    def _row(self, cost: Sequence[int]) -> int:
        """Row of the table for all levels of this cost but the last."""
        return self._row_of.setdefault(tuple(cost[:-1]), len(self._row_of))

    def _hashed(self, name: str) -> int:
        found = self._hash.get(name)
        if found is None:
            found = self._hash[name] = stable_hash(name)
        return found

    def _new_node(self) -> int:
        self._nodes += 1
        return self._nodes - 1

    def _source(self, task: TaskId) -> int:
        node = self._task_node.get(task)
        if node is None:
            node = self._task_node[task] = self._new_node()
        return node

    def _member(self, member: str, lane: Lane) -> int:
        node = self._member_node[lane].get(member)
        if node is None:
            node = self._member_node[lane][member] = self._new_node()
            self._hashed(member)
            behind = self._behind(lane)
            if behind is not None:
                self._member(member, behind)
        return node


def _joined(*parts: Sequence[int] | Ints) -> Ints:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
