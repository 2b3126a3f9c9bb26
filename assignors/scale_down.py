"""Which members to ask to leave when a group shrinks: those whose leaving moves the least state,
evenly from the racks.

The proposal behind `learner` has a tool that "will attempt to inform 8 of 40 hosts" when a cluster
of 40 is scaled down to 80 %, without saying which. Here the choice is a pure function of the
group's state. The members asked send `LeaveIntended`, and the group's assignor does the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import Self

import attrs

from equipoise.assignors.common.assignor import Assignor
from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.problem import AssignmentProblem, MovementState
from equipoise.assignors.common.ranking import whole
from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId

NO_RACK = ""
"""The rack of members without one."""


@attrs.frozen(kw_only=True)
class LeaveRequest:
    """One member to ask. `records`: records to restore elsewhere because it leaves after the
    members picked before it.
    """

    member: str
    rack: str
    active: int
    records: int


@attrs.frozen(kw_only=True)
class ScaleDown:
    """The members to ask. `leaving`: members that are leaving already, which count. `asked`: in the
    order picked.

    `keep`: number of members that stay. `restore_records`: of all of `asked` together. `racks`:
    rack -> (members now, members that stay).
    """

    keep: int
    leaving: tuple[str, ...]
    asked: tuple[LeaveRequest, ...]
    restore_records: int
    racks: Mapping[str, tuple[int, int]]


@attrs.frozen
class Keep:
    """How many members stay: `number`, at least 1; or `percent` of them, from 1 to 100, rounded up."""

    number: int | None = None
    percent: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``4`` as four members and ``80%`` as a share. Raises InputError."""
        digits = text.removesuffix("%")
        value = int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 10 else 0
        if text.endswith("%") and 1 <= value <= 100:
            return cls(percent=value)
        if not text.endswith("%") and value >= 1:
            return cls(number=value)
        raise InputError(f"{text!r:.40} is neither a number of members, as 4, nor a share of them, as 80%")

    def of(self, members: int) -> int:
        """The number of `members` that stay: at most all."""
        share = 100 if self.percent is None else self.percent
        return min(members, -(-members * share // 100) if self.number is None else self.number)


def scale_down(problem: AssignmentProblem, keep: Keep) -> ScaleDown:
    """Picks the members to ask so that `keep` stay: of 40 members, 80 % asks 8. Members that are
    leaving already count as asked.

    * **Racks.** Each rack gives up its share of the members that leave, rounded down or up, and
      keeps a member while as many stay as there are racks.
    * **State.** Of the members that the racks allow, the one whose leaving costs the fewest records
      is picked, repeatedly. A stateful task needs its owner and its standbys: the cost is what the
      best staying copies have to restore for that, and the whole changelog for each missing copy.
      Costs are recomputed after each pick. Where no two members have copies of one task, the sum is
      the minimum.
    * **Ties.** Fewer active tasks, then the id.

    Takes copies x log(members) plus picks x racks. Raises InputError when the group has no members.
    """
    if not problem.members:
        raise InputError("the group has no members; there is nobody to ask")
    indexed = IndexedProblem(problem, crash_loops=False)
    leaving = tuple(member.id for member in indexed.members.values() if member.leaving)
    stay = keep.of(len(indexed.members))
    picker = _Picker(indexed, stay)
    asked = picker.pick(max(0, len(indexed.members) - stay - len(leaving)))
    return ScaleDown(
        keep=len(indexed.members) - len(leaving) - len(asked),
        leaving=leaving,
        asked=asked,
        restore_records=sum(each.records for each in asked),
        racks={rack: (size, size - picker.quotas.gone[rack]) for rack, size in sorted(picker.quotas.size.items())},
    )


def drain_ms(problem: AssignmentProblem, asked: Collection[str], assignor: Assignor) -> int | None:
    """Milliseconds until the tasks of `asked`, and of members that are leaving already, are
    restored elsewhere if all are asked now: by the assignor's plan, at the measured rates of the
    receivers. None: no rate was measured. Records written meanwhile are not counted.

    Raises what `Assignor.assign` raises.
    """
    deadline_ms = problem.now_ms + problem.settings.drain_timeout_ms
    members = tuple(attrs.evolve(each, leaving=True, drain_deadline_ms=deadline_ms) if each.id in asked else each for each in problem.members)
    leaving = {each.id for each in members if each.leaving}
    plan = assignor.assign(attrs.evolve(problem, members=members))
    indexed = IndexedProblem(problem, crash_loops=False)
    work: dict[str, int] = dict.fromkeys(indexed.members, 0)
    for movement in plan.movements:
        if movement.source in leaving and movement.state is not MovementState.REVOKING:
            work[movement.destination] += indexed.records(movement.destination, movement.task)
    return indexed.restore_rates.longest_ms(work)


class _Quotas:
    """How many members of each rack may leave, and must."""

    def __init__(self, racks: Iterable[str], keep: int) -> None:
        self.size: dict[str, int] = {}
        for rack in sorted(racks):
            self.size[rack] = self.size.get(rack, 0) + 1
        count = sum(self.size.values())
        self.to_go = count - keep
        one_stays = 1 if keep >= len(self.size) else 0
        self.most = {rack: min(-(-size * self.to_go // count), size - one_stays) for rack, size in self.size.items()}
        while sum(self.most.values()) < self.to_go:  # the rack that keeps most makes up for single members that stay
            self.most[max(self.size, key=lambda rack: (self.size[rack] - self.most[rack], rack))] += 1
        self.least = {rack: min(size * self.to_go // count, self.most[rack]) for rack, size in self.size.items()}
        self.gone = dict.fromkeys(self.size, 0)

    def may_give(self, rack: str) -> bool:
        """Returns whether one more member of the rack may leave: within its share, and leaving
        enough for what other racks must give.
        """
        if self.gone[rack] < self.least[rack]:
            return True
        left = self.to_go - sum(self.gone.values())
        owed = sum(max(0, self.least[other] - self.gone[other]) for other in self.size)
        return self.gone[rack] < self.most[rack] and left > owed


class _Picker:
    """Picks members, with the cost of each further one."""

    def __init__(self, indexed: IndexedProblem, keep: int) -> None:
        self.indexed = indexed
        self.rack = {member.id: member.rack if member.rack is not None else NO_RACK for member in indexed.members.values()}
        self.quotas = _Quotas(self.rack.values(), keep)
        self.needed = 1 + min(indexed.settings.num_standbys, keep - 1)
        """Copies of each stateful task in the end, its owner's included."""
        self.staying = {member.id for member in indexed.members.values()}
        self.held: dict[str, list[TaskId]] = {name: [] for name in indexed.members}
        for task, copies in indexed.copies.items():
            for name in copies:
                self.held[name].append(task)
        for member in indexed.members.values():
            if member.leaving:
                self._goes(member.id)
        self.cost = {name: self._cost(name) for name in sorted(self.staying)}
        self.queues: dict[str, list[tuple[int, int, str]]] = {rack: [] for rack in self.quotas.size}
        for name in self.cost:
            self._queue(name)

    def pick(self, count: int) -> tuple[LeaveRequest, ...]:
        """The cheapest member that the racks allow, `count` times."""
        asked: list[LeaveRequest] = []
        for _ in range(count):
            records, active, name = min(self._cheapest(rack) for rack in self.quotas.size if self.quotas.may_give(rack))
            asked.append(LeaveRequest(member=name, rack=self.rack[name], active=active, records=records))
            self._goes(name)
            for other in sorted({other for task in self.held[name] for other in self.indexed.copies[task] if other in self.staying}):
                cost = self._cost(other)
                if cost != self.cost[other]:
                    self.cost[other] = cost
                    self._queue(other)
        return tuple(asked)

    def _queue(self, name: str) -> None:
        heapq.heappush(self.queues[self.rack[name]], (self.cost[name], len(self.indexed.members[name].active), name))

    def _cheapest(self, rack: str) -> tuple[int, int, str]:
        """The cheapest staying member of the rack. Drops outdated entries on the way."""
        queue = self.queues[rack]
        while queue[0][2] not in self.staying or queue[0][0] != self.cost[queue[0][2]]:
            heapq.heappop(queue)
        return queue[0]

    def _goes(self, name: str) -> None:
        self.staying.discard(name)
        self.quotas.gone[self.rack[name]] += 1

    def _cost(self, name: str) -> int:
        """Records to restore because this member leaves too."""
        return sum(self._to_restore(task, without=name) - self._to_restore(task) for task in self.held[name])

    def _to_restore(self, task: TaskId, *, without: str | None = None) -> int:
        """Records until the task has its owner and its standbys, from the best copies on staying
        members.
        """
        copies = self.indexed.copies[task].items()
        records = sorted(0 if copy.caught_up else copy.records for name, copy in copies if name in self.staying and name != without)[: self.needed]
        return sum(records) + (self.needed - len(records)) * whole(self.indexed.tasks[task])
