"""How the group reaches the target without stopping work: movements as warm-ups (KIP-441, "create a
standby task for each task we want to move").

A movement of a stateful task goes WAITING -> WARMING -> REVOKING -> granted:

* REVOKING at once when the destination is caught up, or when the owner is leaving and its drain
  timeout has passed. Without state, unless the destination runs enough now (`stateless`).
* WARMING without a slot when the destination is a standby of the task.
* WARMING without a slot when the owner is leaving and the destination will have restored the task,
  together with its other restores, by the drain timeout (docs/protocol.md#m7): such copies restore
  together, and wait for nothing that moves for balance.
* Otherwise it needs a warm-up slot of the group and of the destination. A movement in flight keeps
  its slot until the task is granted; then slots go to what is soonest ready. Without a slot it is
  WAITING.

So copies beside the standbys never exceed the caps. A destination that is caught up by a copy that
was not assigned needs no slot; it keeps that copy as a warm-up if slots are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.plan import Reason
from equipoise.assignors.common.problem import Movement, MovementState
from equipoise.assignors.common.stateless import LoadNow
from equipoise.events.tasks import TaskId


class WarmupSlots:
    """Copies that may still begin, in the group and on each member."""

    def __init__(self, indexed: IndexedProblem) -> None:
        self._group = indexed.settings.max_warmups
        self._member = dict.fromkeys(indexed.members, indexed.settings.max_warmups_per_member)
        self._indexed = indexed
        self._restoring: dict[str, int] = {}
        """Member -> records that it restores before a copy begun now."""

    def take_apart(self, task: TaskId, member: str) -> bool:
        """Begins a copy outside the caps if the member restores it before the drain deadline of the
        task's owner. Returns whether.

        A member's copies share its rate, so all are ready as soon together as one after the other.
        """
        indexed = self._indexed
        if not indexed.is_apart(task):
            return False
        queue = self._queue(member) + (0 if task in indexed.members[member].warmup else indexed.records(member, task))
        deadline_ms = indexed.members[indexed.owner[task]].drain_deadline_ms
        most = None if deadline_ms is None else indexed.restore_rates.within(member, deadline_ms - indexed.now_ms)
        if most is not None and queue > most:
            return False
        self._restoring[member] = queue
        return True

    def _queue(self, name: str) -> int:
        """Records that the member restores already."""
        if name not in self._restoring:
            indexed = self._indexed
            member = indexed.members[name]
            tasks = {task for task in (*member.active, *member.standby, *member.warmup) if task in indexed.tasks}
            self._restoring[name] = sum(indexed.records(name, task) for task in tasks if not indexed.is_ready(name, task))
        return self._restoring[name]

    def take(self, member: str) -> bool:
        """Takes a slot of the group and of the member, if both have one. Returns whether."""
        if self._group <= 0 or self._member[member] <= 0:
            return False
        self.hold(member)
        return True

    def hold(self, member: str) -> None:
        """Keeps a slot in use, whatever the caps are now (docs/protocol.md#d8)."""
        self._group -= 1
        self._member[member] -= 1

    @property
    def left(self) -> bool:
        return self._group > 0


@attrs.frozen(kw_only=True)
class Movements:
    """`planned`: soonest ready first. `warmups`: (task, destination) pairs with an extra copy.

    `standby_destinations`: task -> a destination that warms up as its standby.
    """

    planned: tuple[Movement, ...]
    reasons: Mapping[TaskId, Reason]
    warmups: frozenset[tuple[TaskId, str]]
    standby_destinations: Mapping[TaskId, str]
    ready_by_chance: tuple[tuple[TaskId, str], ...]
    """Destinations that are caught up by a copy that was not assigned; see `keep_ready`."""


def get_movements(indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str], slots: WarmupSlots) -> Movements:
    """KIP-441, `getMovements`, with what each movement waits for. Tasks without an owner in `now`
    or `target` have none.
    """
    planner = _Planner(indexed, now, target, slots)
    planner.carry_on()
    planner.begin()
    return planner.result()


class MoveBenefits:
    """Why a task of a member that stays moves: for balance, for its traffic, to make room for what
    moves for these, or because its owner may not keep it. `moving`: tasks whose owner in
    `target` is not that in `now`.
    """

    def __init__(self, indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str], moving: Iterable[TaskId]) -> None:
        self._indexed = indexed
        self._racks = indexed.racks
        self._now, self._target = now, target
        self._gains: Counter[tuple[object, str]] = Counter()
        """(kind of tasks, member) -> tasks of that kind that it gains."""
        self._gets_nearer: set[str] = set()
        """Members to which a task moves that is nearer there."""
        for task in moving:
            for kind in self._kinds(task):
                self._gains[kind, now[task]] -= 1
                self._gains[kind, target[task]] += 1
            costs = self.rack_costs(task)
            if costs is not None and costs[1] < costs[0]:
                self._gets_nearer.add(target[task])

    def _kinds(self, task: TaskId) -> tuple[object, ...]:
        """Kinds of tasks that are balanced, the task among them."""
        stateful = self._indexed.tasks[task].stateful
        return ("all", stateful, (task.subtopology, stateful)) if self._racks.spreads else ("all", stateful)

    def code(self, task: TaskId) -> str:
        """One of balance, balance_room, traffic, traffic_room and not_its_own."""
        source, destination = self._now[task], self._target[task]
        costs = self.rack_costs(task)
        if self._indexed.behaviour.reasons_unchecked:
            if costs is None or (costs[1] >= costs[0] and self._gains["all", source] < 0):
                return "balance"
            return "traffic" if costs[1] < costs[0] else "traffic_room"
        if self._indexed.must_move(task):
            return "not_its_own"
        if costs is not None and costs[1] < costs[0]:
            return "traffic"
        if any(self._gains[kind, source] < 0 < self._gains[kind, destination] for kind in self._kinds(task)):
            return "balance"
        return "traffic_room" if source in self._gets_nearer else "balance_room"

    def rack_costs(self, task: TaskId) -> tuple[int, int] | None:
        """Traffic cost of the task at its owner and at its destination; None: racks make no
        difference.
        """
        racks = self._racks
        return (racks.cost(task, self._now[task]), racks.cost(task, self._target[task])) if racks.counts else None


class _Planner:
    """Gives each movement a state, a reason, and a slot if it needs one."""

    def __init__(self, indexed: IndexedProblem, now: Mapping[TaskId, str], target: Mapping[TaskId, str], slots: WarmupSlots) -> None:
        self.indexed = indexed
        self.now = now
        self.target = target
        self.slots = slots
        moving = [task for task, owner in now.items() if target.get(task, owner) != owner]
        in_flight = indexed.in_flight
        self.carried = [task for task in moving if task in in_flight and in_flight[task].destination == target[task]]
        decided = frozenset(self.carried)
        self.new = [task for task in moving if task not in decided]
        self.as_standby = {task: target[task] for task in moving if _is_standby(indexed, task, now[task], target[task])}
        self.states: dict[TaskId, MovementState] = {}
        self.codes: dict[TaskId, str] = {}
        self.warmups: set[tuple[TaskId, str]] = set()
        self.by_chance: list[tuple[TaskId, str]] = []
        self.load_now = LoadNow(indexed, now, target)
        self.benefits = MoveBenefits(indexed, now, target, moving)

    def carry_on(self) -> None:
        """Movements in flight keep their slot; a destination that is caught up gets the task
        (docs/protocol.md#d3, #d9).
        """
        for task in sorted(self.carried, key=lambda task: (not self._hands_over(task), self.soon(task), task)):
            destination = self.target[task]
            if self._hands_over(task):
                already_revoking = self.indexed.in_flight[task].state is MovementState.REVOKING
                ready = self._readiness(task) if self.indexed.is_ready(destination, task) else self._wanted(task)  # what must go is no readier
                self._set(task, MovementState.REVOKING, "carried" if already_revoking else ready)
                if self._has_copy(task) and self._needs_slot(task):
                    self._keep(task, destination)
                elif self._needs_slot(task):
                    self.by_chance.append((task, destination))
            elif not self._needs_slot(task):
                self._set(task, MovementState.WARMING, "warming")
            elif self._has_copy(task) and not self.indexed.behaviour.leaving_within_caps:
                self._keep(task, destination)  # also above a cap: it began outside of it, for an owner that has gone meanwhile
                self._set(task, MovementState.WARMING, "warming")
            elif self._is_one_too_many(task):
                self._set(task, MovementState.WAITING, "slot_full")
            else:
                self._warm_up(task, "warming")

    def begin(self) -> None:
        """New movements: at once where possible, then slots for what is soonest ready."""
        waiting: list[TaskId] = []
        for task in self.new:
            if self._may_go_now(task):
                if not self._may_run_beside(task):
                    self._set(task, MovementState.WAITING, "after_state")
                    continue
                if task not in self.indexed.owner:
                    self._set(task, MovementState.WAITING, self._wanted(task))  # its owner of now is granted it in this very plan
                    continue
                self._set(task, MovementState.REVOKING, self._wanted(task))
                if self._needs_slot(task):
                    self.by_chance.append((task, self.target[task]))
            elif not self._needs_slot(task):
                self._set(task, MovementState.WARMING, self._wanted(task))
            elif self.indexed.is_blocked(task, self.target[task]):
                self._set(task, MovementState.WAITING, "blocked")
            else:
                waiting.append(task)
        for task in sorted(waiting, key=lambda task: (self.soon(task), task)):
            self._warm_up(task, self._wanted(task))

    def result(self) -> Movements:
        order = (MovementState.REVOKING, MovementState.WARMING, MovementState.WAITING)
        planned = [Movement(task=task, source=self.now[task], destination=self.target[task], state=state) for task, state in self.states.items()]
        planned.sort(key=lambda movement: (order.index(movement.state), self.soon(movement.task), movement.task))
        return Movements(
            planned=tuple(planned),
            reasons={
                task: Reason(
                    code=code,
                    lag_records=self.indexed.lag(self.target[task], task),
                    because=self._wanted(task),
                    rack_costs=self.benefits.rack_costs(task),
                )
                for task, code in self.codes.items()
            },
            warmups=frozenset(self.warmups),
            standby_destinations=self.as_standby,
            ready_by_chance=tuple(sorted(self.by_chance)),
        )

    def soon(self, task: TaskId) -> int:
        return self.indexed.restore_time(self.target[task], task)

    def _set(self, task: TaskId, state: MovementState, code: str) -> None:
        self.states[task] = state
        self.codes[task] = code

    def _keep(self, task: TaskId, destination: str) -> None:
        """Keeps a copy that began earlier."""
        if not self.indexed.is_apart(task):
            self.slots.hold(destination)
        self.warmups.add((task, destination))

    def _warm_up(self, task: TaskId, code: str) -> None:
        if self.slots.take_apart(task, self.target[task]) or self.slots.take(self.target[task]):
            self.warmups.add((task, self.target[task]))
            self._set(task, MovementState.WARMING, code)
        else:
            self._set(task, MovementState.WAITING, "slot_full")

    def _needs_slot(self, task: TaskId) -> bool:
        return self.indexed.tasks[task].stateful and task not in self.as_standby

    def _hands_over(self, task: TaskId) -> bool:
        return self.indexed.in_flight[task].state is MovementState.REVOKING or self._may_go_now(task)

    def _may_go_now(self, task: TaskId) -> bool:
        if self.indexed.is_ready(self.target[task], task):
            return True
        source = self.indexed.members[self.now[task]]
        return source.leaving and source.drain_expired

    def _may_run_beside(self, task: TaskId) -> bool:
        """Returns whether the task may run beside what its destination runs now: it has state, must
        leave its owner, or makes the load no less even (`stateless`).
        """
        indexed, source = self.indexed, self.now[task]
        if indexed.tasks[task].stateful or indexed.parting(source) or indexed.must_move(task):
            return True
        return self.load_now.move(source, self.target[task])

    def _has_copy(self, task: TaskId) -> bool:
        return task in self.indexed.members[self.target[task]].warmup

    def _is_one_too_many(self, task: TaskId) -> bool:
        """Returns whether a copy of the task would leave too few slots for the copies that
        movements in flight keep: they hold theirs whatever the caps are, and may be further from
        ready.
        """
        indexed, settings = self.indexed, self.indexed.settings
        if indexed.is_apart(task) or indexed.behaviour.leaving_within_caps:
            return False
        kept = self.warmups.union((other, self.target[other]) for other in self.carried if self._has_copy(other) and self._needs_slot(other))
        used = Counter(destination for other, destination in kept if not indexed.is_apart(other))
        member = self.target[task]
        before = sum(len(each.warmup) for each in indexed.members.values())
        return used.total() >= max(settings.max_warmups, before) or used[member] >= max(
            settings.max_warmups_per_member, len(indexed.members[member].warmup)
        )

    def _readiness(self, task: TaskId) -> str:
        return "ready" if self.indexed.within_records(self.target[task], task) else "ready_in_time"

    def _wanted(self, task: TaskId) -> str:
        """Reason code of the movement."""
        parting = self.indexed.parting(self.now[task])
        if parting:
            return parting
        if self.indexed.goes_back_to(self.target[task], task):
            return "return_home"
        return self.benefits.code(task)


def keep_ready(movements: Movements, slots: WarmupSlots) -> frozenset[tuple[TaskId, str]]:
    """Destinations in `ready_by_chance` that keep their copy until the task is granted, while slots
    are left.
    """
    return frozenset(pair for pair in movements.ready_by_chance if slots.take_apart(*pair) or (slots.left and slots.take(pair[1])))


def _is_standby(indexed: IndexedProblem, task: TaskId, source: str, destination: str) -> bool:
    """Returns whether the destination's copy is a standby: it was assigned as one, or too few other
    members can hold the standbys.
    """
    wanted = indexed.settings.num_standbys
    if wanted == 0 or not indexed.tasks[task].stateful:
        return False
    if task in indexed.members[destination].standby:
        return True
    others = len(indexed.eligible(task).members) - 1 - indexed.may_run(source, task)
    return others < wanted
