"""A model of the assignor inside the brokers for groups of Kafka Streams (KIP-1071): the answer of
``java/broker-assignor`` for the same group. A plan is an entry of the group's setting
``streams.rack.aware.assignment.tags``; its topics are sub-topologies, its partitions tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import attrs

from equipoise.lead.broker_seat.broker_plan import BrokerPlan, in_order, made_for, newest

Tasks = dict[str, set[int]]
"""Sub-topology -> numbers of its tasks."""
_HELD = -1
_Task = tuple[int, int]


@attrs.frozen(kw_only=True)
class TaskMember:
    """A member, which is a thread. `process`: the process that it is in. `active`, `standby`: what
    it is assigned now. `offsets`: how far it has the state of other tasks on its disk.
    """

    member_id: str
    process: str
    active: Mapping[str, Set[int]] = attrs.field(factory=dict)
    standby: Mapping[str, Set[int]] = attrs.field(factory=dict)
    offsets: Mapping[str, Mapping[int, int]] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class TaskPart:
    """A sub-topology, with as many tasks as `partitions`."""

    partitions: int
    stateful: bool


@attrs.frozen(kw_only=True)
class AssignedTasks:
    active: Tasks
    standby: Tasks


def listed_parts(parts: Mapping[str, TaskPart]) -> list[str]:
    """Sub-topologies in the order of a plan's positions."""
    return sorted(parts, key=lambda name: name.encode())


def assign_tasks(members: Sequence[TaskMember], parts: Mapping[str, TaskPart], tags: Sequence[str]) -> dict[str, AssignedTasks]:
    """Member id -> what it is assigned."""
    placing = _TaskPlacing(members, parts)
    plan = newest(tags)
    if plan is not None and plan.made_for == made_for(placing.names, [name.encode() for name in placing.parts]):
        placing.apply(plan)
    if plan is None or not plan.holds:
        placing.fill()
    if plan is None:
        placing.balance()
    placing.tidy_copies()
    return placing.answer()


class _TaskPlacing:
    def __init__(self, members: Sequence[TaskMember], parts: Mapping[str, TaskPart]) -> None:
        known = {each.member_id: each for each in members}
        self.names, self.parts = in_order(known), listed_parts(parts)
        self.members, self.of = [known[name] for name in self.names], [parts[name] for name in self.parts]
        self.owner: dict[_Task, int] = {}
        self.load = [0] * len(self.members)
        self.copies: dict[_Task, set[int]] = {task: set() for task in self._tasks()}
        position = {name: at for at, name in enumerate(self.parts)}
        for at, member in enumerate(self.members):
            for task in sorted((position[part], number) for part, numbers in member.active.items() if part in position for number in numbers):
                if task in self.copies and task not in self.owner:
                    self._give(task, at)
            for task in ((position[part], number) for part, numbers in member.standby.items() if part in position for number in numbers):
                if task in self.copies:
                    self.copies[task].add(at)

    def _tasks(self) -> list[_Task]:
        return [(index, number) for index, part in enumerate(self.of) for number in range(part.partitions)]

    def _give(self, task: _Task, to: int) -> None:
        before = self.owner.get(task, _HELD)
        if before != _HELD:
            self.load[before] -= 1
        if to != _HELD:
            self.load[to] += 1
        self.owner[task] = to

    def apply(self, plan: BrokerPlan) -> None:
        """Carries out all of a plan, or nothing."""
        wanted: dict[_Task, int] = {}
        for each in plan.entries:
            if each.topic >= len(self.of) or each.last >= self.of[each.topic].partitions:
                return
            if each.kind != "hold" and each.member >= len(self.members):
                return
            tasks = [(each.topic, number) for number in range(each.first, each.last + 1)]
            if each.kind in ("copy", "drop"):
                continue
            if not wanted.keys().isdisjoint(tasks):
                return
            wanted.update(dict.fromkeys(tasks, each.member if each.kind == "move" else _HELD))
        for task, to in wanted.items():
            self._give(task, to)
        for each in plan.entries:
            for number in range(each.first, each.last + 1):
                if each.kind == "copy":
                    self.copies[each.topic, number].add(each.member)
                elif each.kind == "drop":
                    self.copies[each.topic, number].discard(each.member)

    def fill(self) -> None:
        """Gives what nobody runs to the least loaded of those with a copy, else of those with the
        furthest state, else of all.
        """
        for task in self._tasks():
            if task not in self.owner and self.members:
                self._give(task, self._least(self.copies[task] or self._furthest(task) or range(len(self.members))))

    def _furthest(self, task: _Task) -> Set[int]:
        offsets = [each.offsets.get(self.parts[task[0]], {}).get(task[1], 0) for each in self.members]
        return {at for at, offset in enumerate(offsets) if 0 < offset == max(offsets)}

    def balance(self) -> None:
        """Moves tasks until no member has two more than another."""
        for task in self._tasks():
            if self.owner.get(task, _HELD) != _HELD and self.load[self.owner[task]] > min(self.load) + 1:
                self._give(task, self._least(range(len(self.members))))

    def _least(self, among: Set[int] | range) -> int:
        return min(among, key=lambda at: (self.load[at], at))

    def tidy_copies(self) -> None:
        """Leaves one copy a process, none where the task runs, and none without state."""
        for task, copies in self.copies.items():
            has = self.owner.get(task, _HELD)
            taken = set() if has == _HELD else {self.members[has].process}
            for at in sorted(copies):
                process = self.members[at].process
                if not self.of[task[0]].stateful or process in taken:
                    copies.discard(at)
                taken.add(process)

    def answer(self) -> dict[str, AssignedTasks]:
        found = {name: AssignedTasks(active={}, standby={}) for name in self.names}
        for (index, number), at in self.owner.items():
            if at != _HELD:
                found[self.names[at]].active.setdefault(self.parts[index], set()).add(number)
        for (index, number), copies in self.copies.items():
            for at in copies:
                found[self.names[at]].standby.setdefault(self.parts[index], set()).add(number)
        return found
