"""How the target becomes true without stopping work: movements as warm-ups (KIP-441, "create a standby task for each task we want to move").

A movement of a stateful task lives WAITING -> WARMING -> REVOKING -> granted:

* REVOKING at once when the task has no state, when its destination is caught up, or when its owner is leaving and its drain timeout has passed;
* WARMING without a slot when the destination is a standby of the task: it goes on as such;
* otherwise it needs a warm-up slot, of the group and of the destination. What is in flight keeps its slot, until the task is granted; then slots go
  to what is soonest ready. Without a slot it is WAITING.

So copies beside the standbys never exceed the caps. A destination that is caught up by a copy nobody asked for needs no slot; it is told to keep
that copy as a warm-up if slots are left over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from assignors.problem import Movement, MovementState, Reason
from assignors.situation import Situation
from events.tasks import TaskId


class Slots:
    """Extra copies that may still be begun, in the group and on each member."""

    def __init__(self, situation: Situation) -> None:
        self._group = situation.knobs.max_warmups
        self._member = dict.fromkeys(situation.members, situation.knobs.max_warmups_per_member)

    def take(self, member: str) -> bool:
        """Take one on this member, if both the group and the member have one left."""
        if self._group <= 0 or self._member[member] <= 0:
            return False
        self.hold(member)
        return True

    def hold(self, member: str) -> None:
        """Keep one that is there, whatever the caps are now (PROTOCOL D8)."""
        self._group -= 1
        self._member[member] -= 1

    @property
    def left(self) -> bool:
        return self._group > 0


@attrs.frozen(kw_only=True)
class Movements:
    """`planned`: soonest ready first. `warmups`: (task, destination) told to keep an extra copy.

    `standby_destinations`: task -> a destination that warms up as its standby.
    """

    planned: tuple[Movement, ...]
    reasons: Mapping[TaskId, Reason]
    warmups: frozenset[tuple[TaskId, str]]
    standby_destinations: Mapping[TaskId, str]
    ready_by_chance: tuple[tuple[TaskId, str], ...]
    """Destinations that are caught up by a copy nobody asked for; see `keep_ready`."""


def get_movements(situation: Situation, now: Mapping[TaskId, str], target: Mapping[TaskId, str], slots: Slots) -> Movements:
    """The seed's `getMovements`, with what each waits for. Tasks without an owner in `now` or in `target` have none."""
    moving = [task for task in situation.tasks if task in now and task in target and now[task] != target[task]]
    pace = _Pace(situation)
    states: dict[TaskId, MovementState] = {}
    warmups: set[tuple[TaskId, str]] = set()
    as_standby = {task: target[task] for task in moving if _is_standby(situation, task, now[task], target[task])}
    blocked: set[TaskId] = set()
    waiting: list[TaskId] = []
    by_chance: list[tuple[TaskId, str]] = []

    carried = [task for task in moving if task in situation.in_flight and situation.in_flight[task].destination == target[task]]
    decided = frozenset(carried)
    handing_over = {
        task for task in carried if situation.in_flight[task].state is MovementState.REVOKING or _may_go_now(situation, task, now[task], target[task])
    }
    carried.sort(key=lambda task: (task not in handing_over, pace.time_to_ready(task, target[task]), task))
    for task in carried:
        destination = target[task]
        revoking = task in handing_over
        holds = not situation.tasks[task].stateful or task in as_standby
        if not holds and revoking and task in situation.members[destination].warmup:
            slots.hold(destination)
            holds = True
            warmups.add((task, destination))
        elif not holds and revoking:
            by_chance.append((task, destination))
        elif not holds and slots.take(destination):
            holds = True
            warmups.add((task, destination))
        states[task] = MovementState.REVOKING if revoking else MovementState.WARMING if holds else MovementState.WAITING

    for task in moving:
        if task in decided:
            continue
        destination = target[task]
        if _may_go_now(situation, task, now[task], destination):
            states[task] = MovementState.REVOKING
            if situation.tasks[task].stateful and task not in as_standby:
                by_chance.append((task, destination))
        elif task in as_standby:
            states[task] = MovementState.WARMING
        elif (task, destination) in situation.blocked:
            blocked.add(task)
            states[task] = MovementState.WAITING
        else:
            waiting.append(task)

    for task in sorted(waiting, key=lambda task: (pace.time_to_ready(task, target[task]), task)):
        if slots.take(target[task]):
            warmups.add((task, target[task]))
            states[task] = MovementState.WARMING
        else:
            states[task] = MovementState.WAITING

    order = (MovementState.REVOKING, MovementState.WARMING, MovementState.WAITING)
    planned = sorted(
        (Movement(task=task, source=now[task], destination=target[task], state=states[task]) for task in moving),
        key=lambda movement: (order.index(movement.state), pace.time_to_ready(movement.task, movement.destination), movement.task),
    )
    return Movements(
        planned=tuple(planned),
        reasons={movement.task: _reason(situation, movement, movement.task in decided, movement.task in blocked) for movement in planned},
        warmups=frozenset(warmups),
        standby_destinations=as_standby,
        ready_by_chance=tuple(sorted(by_chance)),
    )


def keep_ready(movements: Movements, slots: Slots) -> frozenset[tuple[TaskId, str]]:
    """Destinations that are ready by chance and may keep their copy fresh until the task is theirs, as far as slots are left over."""
    return frozenset(pair for pair in movements.ready_by_chance if slots.left and slots.take(pair[1]))


def _may_go_now(situation: Situation, task: TaskId, source: str, destination: str) -> bool:
    return (
        not situation.tasks[task].stateful
        or situation.caught_up(destination, task)
        or (situation.members[source].leaving and situation.members[source].drained and situation.owner.get(task) == source)
    )


def _is_standby(situation: Situation, task: TaskId, source: str, destination: str) -> bool:
    """Is the destination's copy a standby: because it is one, or because too few other members are there to hold the standbys?"""
    wanted = situation.knobs.num_standbys
    if wanted == 0 or not situation.tasks[task].stateful:
        return False
    if task in situation.members[destination].standby:
        return True
    others = len(situation.eligible(task).members) - 1 - situation.may_run(source, task)
    return others < wanted


class _Pace:
    """How soon a destination is ready: records to restore over its restore speed. Members that measured none are taken for the slowest that did."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        measured = [member.restore_records_per_s for member in situation.members.values() if member.restore_records_per_s > 0]
        slowest = min(measured, default=1.0)
        self._speed = {member.id: member.restore_records_per_s or slowest for member in situation.members.values()}

    def time_to_ready(self, task: TaskId, destination: str) -> float:
        """Seconds; records when no member measured its speed; 0 when caught up."""
        if not self._situation.tasks[task].stateful or self._situation.caught_up(destination, task):
            return 0.0
        return self._situation.records(destination, task) / self._speed[destination]


def _reason(situation: Situation, movement: Movement, carried: bool, blocked: bool) -> Reason:
    """What the movement waits for, or why it was begun; and why it was wanted at all."""
    source = situation.members[movement.source or movement.destination]
    lag = situation.lag(movement.destination, movement.task)
    wanted = "balance"
    if source.leaving:
        wanted = "overdue" if source.drained else "leaving"
    elif situation.comes_home(movement.destination, movement.task):
        wanted = "return_home"
    code = wanted
    if movement.state is MovementState.WAITING:
        code = "blocked" if blocked else "slot_full"
    elif carried and movement.state is MovementState.WARMING:
        code = "warming"
    elif carried:
        before = situation.in_flight[movement.task].state
        code = "carried" if before is MovementState.REVOKING else "ready"
    return Reason(code=code, lag_records=lag, because=wanted)


def warmups_by_member(pairs: Iterable[tuple[TaskId, str]]) -> dict[str, list[TaskId]]:
    """Member -> tasks, in rising order."""
    tasks: dict[str, list[TaskId]] = {}
    for task, member in sorted(pairs):
        tasks.setdefault(member, []).append(task)
    return tasks
