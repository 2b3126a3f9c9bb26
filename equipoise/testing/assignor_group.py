"""A simulated group that carries plans out, round after round, without clock, log or state machine:
the harness of Kafka's TaskAssignorConvergenceTest, with hand-overs.

Between two rounds every assigned copy catches up, and its member declares it ready. A member that
must revoke a task gives it up at once and keeps a copy on disk; the destination gets the task in
the same round, by the next plan. `plan_faults` checks every plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from equipoise.assignors import AssignmentProblem, Assignor, MemberSpec, Memory, Movement, MovementState, Plan, Revocations, Task, registry
from equipoise.assignors.common.validation import plan_faults
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, LagSentinel, TaskId

MOST_HAND_OVERS = 1_000
ROUND_MS = 60_000
"""Time between two rounds."""


def stateful(count: int, *, subtopology: int = 0, end_offset: int = 150_000) -> list[Task]:
    """`count` stateful tasks of one sub-topology and of equal size."""
    return [Task(id=TaskId(subtopology, partition), stateful=True, end_offset=end_offset) for partition in range(count)]


def stateless(count: int, *, subtopology: int = 1) -> list[Task]:
    return [Task(id=TaskId(subtopology, partition), stateful=False) for partition in range(count)]


@attrs.define
class Process:
    """The tasks of one member. `copies`: lag of each copy on its disk."""

    capacity: int = 1
    leaving: bool = False
    crash_looping: bool = False
    owned: set[TaskId] = attrs.field(factory=set)
    standby: set[TaskId] = attrs.field(factory=set)
    warmup: set[TaskId] = attrs.field(factory=set)
    copies: dict[TaskId, Lag] = attrs.field(factory=dict)


class AssignorGroup:
    """Members join, leave and die; `decide` asks the assignor and hands tasks over; `round` lets
    copies catch up and then decides.

    `members`: id -> capacity. `assignor` None: high_availability. `adapted`: applied to every
    problem. `group_settings`: values by name; acceptable_recovery_lag defaults to 100.
    """

    def __init__(
        self,
        tasks: list[Task],
        members: dict[str, int],
        *,
        assignor: Assignor | None = None,
        adapted: Callable[[AssignmentProblem], AssignmentProblem] = lambda problem: problem,
        **group_settings: Any,
    ) -> None:
        self.assignor = assignor or registry.latest("high_availability")
        self.adapted = adapted
        self.tasks = {task.id: task for task in sorted(tasks, key=lambda task: task.id)}
        self.members = {name: Process(capacity=capacity) for name, capacity in members.items()}
        self.settings = GroupSettings(**{"acceptable_recovery_lag": 100, **group_settings})
        self.in_flight: list[Movement] = []
        self.now_ms = 0
        self.revocations = Revocations()
        self.memory: Memory = {}
        self.lost: dict[TaskId, tuple[int, str]] = {}
        """Tasks of dead members -> (time of death in ms, member)."""
        self.owner_changes = 0
        """Number of changes of owner while the previous owner lived."""
        self.new_copies = 0
        """Number of standbys and warm-ups begun from nothing."""
        self.cold_grants = 0
        """Number of stateful tasks granted to a member that had to restore them."""
        self.plan: Plan | None = None
        self._last_owner: dict[TaskId, str] = {}

    def problem(self) -> AssignmentProblem:
        question = AssignmentProblem(
            tasks=tuple(attrs.evolve(task, lost_since_ms=self.lost[task.id][0]) if task.id in self.lost else task for task in self.tasks.values()),
            members=tuple(
                MemberSpec(
                    id=name,
                    capacity=process.capacity,
                    leaving=process.leaving,
                    crash_looping=process.crash_looping,
                    active=tuple(sorted(process.owned)),
                    standby=tuple(sorted(process.standby)),
                    warmup=tuple(sorted(process.warmup)),
                    ready=frozenset(task for task in process.standby | process.warmup if process.copies.get(task) == 0),
                    previously_owned=frozenset(task for task, (_, owner) in self.lost.items() if owner == name),
                    lags={**process.copies, **{task: LagSentinel.ACTIVE for task in process.owned if self.tasks[task].stateful}},
                )
                for name, process in self.members.items()
            ),
            settings=self.settings,
            in_flight=tuple(self.in_flight),
            now_ms=self.now_ms,
            revocations=self.revocations,
            memory=self.memory,
        )
        return self.adapted(question)

    def decide(self) -> Plan:
        """Asks until no more tasks can be handed over now. Returns the last plan."""
        for question in range(MOST_HAND_OVERS):
            problem = attrs.evolve(self.problem(), follow_up=question > 0)
            plan = self.assignor.assign(problem)
            faults = plan_faults(problem, plan, self.assignor.guarantees)
            if faults:
                raise AssertionError(f"{self.assignor.name} on {problem}: {faults}")
            self._apply(plan)
            if not any(part.revoke for part in plan.members.values()):
                self.plan = plan
                return plan
        raise AssertionError(f"still handing over after {MOST_HAND_OVERS} questions")

    def _apply(self, plan: Plan) -> None:
        for name, part in plan.members.items():
            process = self.members[name]
            for task in part.active:
                if task not in process.owned:
                    self._grant(name, task)
            for task in part.revoke:
                process.owned.discard(task)
                if self.tasks[task].stateful:
                    process.copies[task] = 0
            for task in (*part.standby, *part.warmup):
                if task not in process.copies:
                    process.copies[task] = self.tasks[task].end_offset
                    self.new_copies += 1
            process.standby, process.warmup = set(part.standby), set(part.warmup)
        self.revocations = plan.revocations
        self.memory = plan.memory
        revoked = {task for part in plan.members.values() for task in part.revoke}
        self.in_flight = [
            attrs.evolve(movement, source=None) if movement.task in revoked else movement
            for movement in plan.movements
            if movement.state is not MovementState.WAITING
        ]

    def _grant(self, name: str, task: TaskId) -> None:
        process = self.members[name]
        if self.tasks[task].stateful and process.copies.get(task) != 0:
            self.cold_grants += 1
        if self._last_owner.get(task, name) != name and self._last_owner[task] in self.members:
            self.owner_changes += 1
        self._last_owner[task] = name
        self.lost.pop(task, None)
        process.owned.add(task)
        process.copies.pop(task, None)

    def warm(self) -> None:
        """Brings every assigned copy up to date; other copies keep their lag."""
        for process in self.members.values():
            for task in process.standby | process.warmup:
                process.copies[task] = 0

    def round(self) -> Plan:
        self.now_ms += ROUND_MS
        self.warm()
        return self.decide()

    def settle(self, most_rounds: int) -> int:
        """Runs rounds until no movement is left; returns their number, the last one included. Fails
        beyond `most_rounds`.

        A plan that waits until a stated time is asked again in the next round. So is one that
        depends on measurements, as by the leader, until it changes nothing and remembers the same.
        """
        plan = self.decide()
        for rounds in range(most_rounds + 1):
            if not plan.probing and plan.scheduled_ms is None:
                if not plan.watching:
                    return rounds
                before = plan
                plan = self.round()
                if (plan.members, plan.memory) == (before.members, before.memory):
                    return rounds
            else:
                self.now_ms = max(self.now_ms, plan.revocations.until_ms, plan.ask_again_ms or 0, *plan.lost_until_ms.values(), 0)
                plan = self.round()
        raise AssertionError(f"still probing after {most_rounds} rounds: {plan.movements}")

    def join(self, name: str, capacity: int = 1, copies: dict[TaskId, Lag] | None = None) -> None:
        self.members[name] = Process(capacity=capacity, copies=dict(copies or {}))

    def die(self, name: str) -> Process:
        """Removes a member without notice; its movements end. Returns its process."""
        self.in_flight = [
            attrs.evolve(movement, source=None if movement.source == name else movement.source)
            for movement in self.in_flight
            if movement.destination != name
        ]
        process = self.members.pop(name)
        self.lost.update((task, (self.now_ms, name)) for task in process.owned)
        return process

    def owners(self) -> dict[TaskId, str]:
        return {task: name for name, process in sorted(self.members.items()) for task in sorted(process.owned)}

    def counts(self) -> dict[str, int]:
        return {name: len(process.owned) for name, process in sorted(self.members.items())}
