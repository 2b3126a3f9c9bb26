"""Tasks and members as a flow network, sparse, and read back as owners.

::

    stateful task --(it has a copy there)---> member's stateful tasks --> all its tasks --> sink
    stateful task --> pool of who may run it --> member's stateful tasks
    stateless task --> pool of who may run it --------------------------> all its tasks

A task has an arc to each member that it names and one arc to a pool, never one to each member. Shares are soft, so that there always is a solution:
a place up to the lower share costs 0, from there to the upper share 1, above it 2. As the number of tasks is given, the sum is the number of tasks
outside the shares plus a constant. When all tasks are of one kind, a member is one node.

Where racks make a difference, a pool is split by them, and a task has one more arc for each rack that is better than the rest::

    task --(costs less there)--> members of the pool in that rack --> member ...
    task --------------> pool --> members of the pool in any rack

Where sub-topologies are spread, a member has one more node for each of them, in front of the others, with as many places at cost 0 as it should have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from assignors.problem import Task
from assignors.situation import Kind, Pool
from assignors.transport import Flow, Hashes, Ints, Network, mixed, solve, stable_hash
from events.tasks import TaskId

_DIRECT, _POOLED, _POOL, _PLACE = (role << 32 for role in range(1, 5))  # so that arcs between the same names draw different ties
_RACK = 1 << 63

PARTS_OF_A_SHARE = 8  # members that must take more than their share are even to within an eighth of a share, or one task
MOST_STEPS = 64  # eight shares too many: beyond that evenness no longer matters


def anywhere(task: TaskId, member: str) -> bool:
    """For what may go to every member that has a place."""
    return True


Lane = int
"""Which of a member's nodes: OUTER, INNER, or that of one sub-topology and kind (see `_lane_of`)."""
OUTER: Lane = 0
"""All its tasks."""
INNER: Lane = 1
"""Its stateful tasks, when there are stateless ones too."""

_Key = tuple[Pool, Lane]
_Part = tuple[_Key, str | None]
"""A pool's members in one rack; None: in one that is not known."""


def _lane_of(subtopology: int, stateful: bool) -> Lane:
    """The lane of the tasks of one kind of a sub-topology, where they are spread."""
    return 2 + 2 * subtopology + stateful


class AssignmentNetwork:
    """Built arc by arc, solved, and read back. `levels`: costs per arc, the most important first.

    `racks`: member -> rack, when racks make a difference. `spread`: each sub-topology has lanes of its own.
    """

    def __init__(
        self,
        tasks: Mapping[TaskId, Task],
        *,
        levels: int,
        two_kinds: bool = False,
        racks: Mapping[str, str | None] | None = None,
        spread: bool = False,
    ) -> None:
        self._tasks = tasks
        self._levels = levels
        self._two_kinds = two_kinds
        self._racks = racks
        self._spread = spread
        self._nodes = 1  # 0 is the sink
        self._task_node: dict[TaskId, int] = {}
        self._member_node: dict[tuple[str, Lane], int] = {}
        self._pool_node: dict[_Key, int] = {}
        self._pool_tasks: dict[_Key, int] = {}
        self._part_node: dict[_Part, int] = {}
        self._direct_wanted: dict[str, int] = {}
        self._tail: list[int] = []
        self._head: list[int] = []
        self._capacity: list[int] = []
        self._cost: list[int] = []
        self._name_of_member: list[int] = []
        self._name_of_task: list[int] = []
        self._role: list[int] = []
        self._direct_arcs: tuple[list[int], list[TaskId], list[str]] = ([], [], [])
        self._pooled_arcs: dict[_Key | _Part, tuple[list[int], list[TaskId]]] = {}
        self._rack_arcs: dict[_Key, list[tuple[int, str | None]]] = {}
        self._pool_arcs: dict[_Key | _Part, list[tuple[int, str]]] = {}
        self._racks_of_pool: dict[Pool, dict[str | None, list[str]]] = {}
        self._opened = 0
        self._hash: dict[str, int] = {}

    def direct(self, task: TaskId, member: str, cost: Sequence[int]) -> None:
        """The task may go to this member."""
        node = self._source(task)
        arcs, tasks, members = self._direct_arcs
        arcs.append(len(self._tail))
        tasks.append(task)
        members.append(member)
        self._direct_wanted[member] = self._direct_wanted.get(member, 0) + 1
        self._arc(node, self._member(member, self._lane(task)), 1, cost, _DIRECT, task, member)

    def pooled(self, task: TaskId, pool: Pool, cost: Sequence[int] | None, near: Mapping[str, Sequence[int]] | None = None) -> None:
        """The task may go to any member of the pool at `cost` (None: it may not), and to those in a rack of `near` at the cost that stands there."""
        node = self._source(task)
        key = (pool, self._lane(task))
        pool_node = self._pool_node.get(key)
        if pool_node is None:
            pool_node = self._pool_node[key] = self._new_node()
            self._pool_tasks[key] = 0
        self._pool_tasks[key] += 1
        if cost is not None:
            self._to_pool(key, task)
            self._arc(node, pool_node, 1, cost, _POOLED | pool_node, task, None)
        if near:
            racks = self._by_rack(pool)
            for rack, cheaper in near.items():
                if rack in racks:
                    part = (key, rack)
                    part_node = self._part(part)
                    self._to_pool(part, task)
                    self._arc(node, part_node, 1, cheaper, _POOLED | part_node, task, None)

    def _to_pool(self, place: _Key | _Part, task: TaskId) -> None:
        """The next arc is one of the task to this pool, or to its members in a rack."""
        found = self._pooled_arcs.get(place)
        if found is None:
            found = self._pooled_arcs[place] = ([], [])
        found[0].append(len(self._tail))
        found[1].append(task)

    def place(self, member: str, capacity: int, cost: Sequence[int], *, lane: Lane = OUTER) -> None:
        """Room for `capacity` tasks on a member, at this cost each."""
        if capacity <= 0 or (member, lane) not in self._member_node:
            return
        node = self._member_node[member, lane]
        behind = self._behind(lane)
        head = 0 if behind is None else self._member(member, behind)
        self._arc(node, head, capacity, cost, _PLACE + (lane << 32) | sum(cost), None, member)

    def shares(self, member: str, lower: int, upper: int, *, kind: str) -> None:
        """Soft bounds for a member's stateful tasks, or for all its tasks; the first level of cost counts what is outside."""
        lane = INNER if kind == "stateful" else OUTER
        if lane == INNER and not self._two_kinds:
            return
        self._open_pools()
        rest = (0,) * (self._levels - 1)
        self.place(member, lower, (0, *rest), lane=lane)
        self.place(member, upper - lower, (1, *rest), lane=lane)
        self.place(member, len(self._task_node), (2, *rest), lane=lane)

    def room(
        self, member: str, lower: int, upper: int, *, taken: int, wanted: int, level: int = 0, finer: tuple[int, int, int] | None = None
    ) -> None:
        """Places for up to `wanted` tasks beside those `taken`, even as far as can be: a place costs 0 up to the lower share, 1 up to the upper one,
        and beyond that more with every part of a share. `level`: where that stands among the costs.

        `finer`: another level, with a lower and an upper share that count there; beyond the upper one a place costs 2.
        """
        below = max(0, lower - taken)
        within = max(0, upper - taken) - below
        part = max(1, upper // PARTS_OF_A_SHARE)
        first_step = max(0, taken - upper) // part
        steps = min(-(-max(0, wanted - below - within) // part), MOST_STEPS)
        segments = [(below, 0), (within, 1)]
        segments += [(part if step < MOST_STEPS - 1 else wanted, 2 + min(first_step + step, MOST_STEPS)) for step in range(steps)]
        cost = [0] * self._levels
        for count, coarse in segments:
            cost[level] = coarse
            while count > 0:
                some = count
                if finer is not None:
                    cost[finer[0]] = (taken >= finer[1]) + (taken >= finer[2])
                    ends = [end - taken for end in finer[1:] if end > taken]
                    some = min([count, *ends])
                self.place(member, some, tuple(cost))
                taken += some
                count -= some

    def places(self, member: str, kind: Kind, steps: Iterable[tuple[int, Sequence[int]]]) -> None:
        """What a member's tasks of one sub-topology and kind cost: (up to how many, each of them), in rising order of both."""
        self._open_pools()
        before = 0
        for end, cost in steps:
            self.place(member, end - before, cost, lane=_lane_of(*kind))
            before = end

    def wanted(self) -> dict[str, int]:
        """Member -> how many tasks could come to it at most."""
        self._open_pools()
        wanted = dict(self._direct_wanted)
        for (pool, _), tasks in self._pool_tasks.items():
            for member in pool.members:
                wanted[member] = wanted.get(member, 0) + tasks
        return dict(sorted(wanted.items()))

    def solve(self) -> Flow:
        """The cheapest flow."""
        self._open_pools()
        supply = np.zeros(self._nodes, dtype=np.int64)
        supply[list(self._task_node.values())] = 1
        supply[0] = -len(self._task_node)
        tail = np.array(self._tail, dtype=np.int64)
        cost = np.array(self._cost, dtype=np.int64).reshape(-1, self._levels)
        for level in range(self._levels):
            cost[:, level] -= self._unavoidable(tail, cost[:, level])
        return solve(
            Network(
                nodes=self._nodes,
                supply=supply,
                tail=tail,
                head=np.array(self._head, dtype=np.int64),
                capacity=np.array(self._capacity, dtype=np.int64),
                costs=tuple(np.ascontiguousarray(cost[:, level]) for level in range(self._levels)),
                names=self._names(),
                most_costed=4,
            )
        )

    def _unavoidable(self, tail: Ints, cost: Ints) -> Ints:
        """Per arc, what its task costs whatever arc it takes: no reason for any of them. Without it more levels fit into one solve."""
        of_task = np.zeros(self._nodes, dtype=np.bool_)
        of_task[list(self._task_node.values())] = True
        least = np.full(self._nodes, np.iinfo(np.int64).max, dtype=np.int64)
        np.minimum.at(least, tail, cost)
        return np.where(of_task[tail], least[tail], 0)

    def assigned(
        self, flow: Flow, *, order: Callable[[TaskId], Any] | None = None, allowed: Callable[[TaskId, str], bool] = anywhere
    ) -> dict[TaskId, str]:
        """Task -> member. What the flow sent through a pool is dealt by `deal`, in `order`: first to the pool's racks, then to the members.

        Tasks for which no member is `allowed` are absent.
        """
        amount: list[int] = flow.amount.tolist()
        owner = {task: member for arc, task, member in zip(*self._direct_arcs, strict=True) if amount[arc]}
        pooled = {place: [task for arc, task in zip(arcs, tasks, strict=True) if amount[arc]] for place, (arcs, tasks) in self._pooled_arcs.items()}
        for hub, arcs in self._rack_arcs.items():
            parts = {rack or "": (hub, rack) for _, rack in arcs}
            for task, rack in deal(sorted(pooled.pop(hub, ()), key=order), {rack or "": amount[arc] for arc, rack in arcs}).items():
                pooled.setdefault(parts[rack], []).append(task)
        for place, tasks in pooled.items():
            owner.update(deal(sorted(tasks, key=order), {member: amount[arc] for arc, member in self._pool_arcs[place]}, allowed))
        return dict(sorted(owner.items()))

    def _lane(self, task: TaskId) -> Lane:
        stateful = self._tasks[task].stateful
        if self._spread:
            return _lane_of(task.subtopology, stateful)
        return INNER if self._two_kinds and stateful else OUTER

    def _behind(self, lane: Lane) -> Lane | None:
        """The lane that a lane's places lead to; None: the sink."""
        if lane == OUTER:
            return None
        if lane == INNER:
            return OUTER
        return INNER if self._two_kinds and lane % 2 else OUTER

    def _by_rack(self, pool: Pool) -> dict[str | None, list[str]]:
        """The pool's members, by rack. Empty when racks make no difference."""
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
                arcs.append((len(self._tail), rack))
                self._arc(node, self._part((key, rack)), self._pool_tasks[key], (0,) * self._levels, _RACK | node, None, rack)
                self._open((key, rack), self._part((key, rack)), lane, members, self._pool_tasks[key])

    def _open(self, place: _Key | _Part, node: int, lane: Lane, members: Sequence[str], tasks: int) -> None:
        arcs = self._pool_arcs[place] = []
        for member in members:
            arcs.append((len(self._tail), member))
            self._arc(node, self._member(member, lane), tasks, (0,) * self._levels, _POOL | node, None, member)

    def _new_node(self) -> int:
        self._nodes += 1
        return self._nodes - 1

    def _source(self, task: TaskId) -> int:
        node = self._task_node.get(task)
        if node is None:
            node = self._task_node[task] = self._new_node()
        return node

    def _member(self, member: str, lane: Lane) -> int:
        node = self._member_node.get((member, lane))
        if node is None:
            node = self._member_node[member, lane] = self._new_node()
            behind = self._behind(lane)
            if behind is not None:
                self._member(member, behind)
        return node

    def _arc(self, tail: int, head: int, capacity: int, cost: Sequence[int], role: int, task: TaskId | None, member: str | None) -> None:
        self._tail.append(tail)
        self._head.append(head)
        self._capacity.append(capacity)
        self._cost.extend(cost)
        named = 0
        if member is not None:
            named = self._hash.get(member, 0) or self._hash.setdefault(member, stable_hash(member))
        self._name_of_member.append(named)
        self._name_of_task.append(0 if task is None else (task[0] << 32 | task[1]) + 1)
        self._role.append(role)

    def _names(self) -> Hashes:
        """Of all that an arc joins, and of its role there: no two arcs that compete have the same."""
        member, task, role = (np.array(each, dtype=np.uint64) for each in (self._name_of_member, self._name_of_task, self._role))
        return mixed(member ^ mixed(task ^ mixed(role, 2), 1), 0)


def deal(tasks: Sequence[TaskId], places: Mapping[str, int], allowed: Callable[[TaskId, str], bool] = anywhere) -> dict[TaskId, str]:
    """The canonical rule for what is left open: tasks, in the order given, go round the members, in rising order, one to each that has a place left.

    So tasks that follow each other spread over the members. A task goes to the next member that is `allowed` for it. Those for which none is left
    come last: others change places for them (an augmenting path, the shortest there is). Tasks for which nobody can are absent.
    """
    turn = deque((member, count) for member, count in sorted(places.items()) if count > 0)
    dealt: dict[TaskId, str] = {}
    stuck: list[TaskId] = []
    for task in tasks:
        place = next((index for index, (member, _) in enumerate(turn) if allowed(task, member)), None)
        if place is None:
            stuck.append(task)
            continue
        member, count = turn[place]
        del turn[place]
        if count > 1:
            turn.append((member, count - 1))
        dealt[task] = member
    left = dict(turn)
    for task in stuck:
        _change_places(task, dealt, left, sorted(places), allowed)
    return dealt


def _change_places(
    task: TaskId, dealt: dict[TaskId, str], left: dict[str, int], members: Sequence[str], allowed: Callable[[TaskId, str], bool]
) -> None:
    """Finds a place for `task` by moving others on, breadth first; changes nothing if there is none."""
    if not any(left.values()):
        return
    guests: dict[str, list[TaskId]] = {}
    for guest, member in dealt.items():
        guests.setdefault(member, []).append(guest)
    reached_by: dict[str, TaskId] = {}
    queue = deque([task])
    while queue:
        mover = queue.popleft()
        for member in members:
            if member in reached_by or not allowed(mover, member):
                continue
            reached_by[member] = mover
            if left.get(member, 0) > 0:
                left[member] -= 1
                _move_on(task, member, dealt, reached_by)
                return
            queue.extend(guests.get(member, ()))


def _move_on(task: TaskId, member: str, dealt: dict[TaskId, str], reached_by: Mapping[str, TaskId]) -> None:
    """Each task on the path takes the place it reached, the last one first."""
    mover = reached_by[member]
    while mover != task:
        before = dealt[mover]
        dealt[mover] = member
        member, mover = before, reached_by[before]
    dealt[task] = member
