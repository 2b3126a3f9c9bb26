"""`python -m bench.scaling`: a day of load, scaled by equipoise's recommendation, by KEDA's rule,
and not at all.

A group of 24 tasks with state lives in the simulated cluster through one day, compressed into eight
hours: a sawtooth, steps, a spike, and a time in which one partition gets more than a member does.
Members do what they can
and report it, as deployed ones do; pods start, and leave when they are released. Each way of
scaling sees the same load. Counted: member-hours, seconds in which the longest lag was over the
target, changes of the number of members, moves, and task-seconds in which nobody ran a task.

KEDA's rule is that of its Kafka scaler and of the autoscaler that it drives: members = ceil(total
lag / threshold), no more than partitions; looked at each 15 s; no change within a tenth; at most 4
members or twice as many in a step; fewer only when all of the last 300 s asked for fewer (its
cool-down is about scaling to zero).

Goal: at most a third of its changes and of its unavailable task-seconds, at no more lag over the
target and no more member-hours. Ends with 1 when a goal is missed.
"""

from __future__ import annotations

import abc
import itertools
import math
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import click

from equipoise.assignors import registry
from equipoise.events.decisions import AssignmentIssued
from equipoise.events.facts import GroupConfigured, Load, PartitionsObserved, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.replay.parallel import in_processes
from equipoise.replay.simulation import ClusterConfig, ProcessSettings, RestoreModel, SimulatedCluster
from equipoise.replay.simulation.world import ChangelogGrowth
from equipoise.replay.sizing.autoscaling import Followable, FollowingPolicy, FollowingReader, LastAnswer, follow
from equipoise.statemachine.machine import GroupMachine

START_MS = 1_700_000_000_000
TASKS = [TaskId(0, number) for number in range(24)]
MEMBER_PER_S = 1_000.0
"""Records a second of a member."""
STATE_RECORDS = 600_000
RESTORE_PER_S = 30_000
TARGET_S = 30.0
POD_START_MS = 10_000
FIRST = 3
FIXED = 7
"""As many as the highest step needs."""
SLOW_S = 60
"""How often the recommendation is asked for."""


def members_worth(at_s: float, day_s: float) -> tuple[float, float]:
    """Returns what arrives in records a second of so many members, and the part of it that the hot
    partition gets beside its own share.
    """
    hour = at_s / day_s * 24
    if hour < 6:  # a sawtooth of two hours
        return 1 + 3 * (hour % 2) / 2, 0.0
    if hour < 12:
        return (2.0, 5.0, 3.0, 6.0)[int((hour - 6) / 1.5)], 0.0
    if hour < 18:
        return (6.0 if 15 <= hour < 15 + 1 / 6 else 2.0), 0.0
    return (3.0, 0.45) if hour < 20 else (2.0, 0.0)


def arriving(at_s: float, day_s: float, member_per_s: float, tasks: Sequence[TaskId]) -> dict[TaskId, float]:
    """Returns task -> records that arrive in a second; the last task is the one that gets hot."""
    worth, hot = members_worth(at_s, day_s)
    noise = random.Random(f"noise {int(at_s) // 30}").uniform(0.95, 1.05)
    return {task: worth * member_per_s * noise * ((1 - hot) / len(tasks) + (hot if task == tasks[-1] else 0.0)) for task in tasks}


class Backlog:
    """The records of each task that came, were done, and wait."""

    def __init__(self, tasks: Sequence[TaskId]) -> None:
        self.waiting, self.done = dict.fromkeys(tasks, 0.0), dict.fromkeys(tasks, 0.0)
        self._arrived = dict.fromkeys(tasks, 0.0)
        self._came: dict[TaskId, deque[tuple[int, float]]] = {task: deque() for task in tasks}

    def take(self, came: Mapping[TaskId, float], now_ms: int) -> None:
        """These records came."""
        for task, records in came.items():
            self._arrived[task] += records
            self.waiting[task] += records
            self._came[task].append((now_ms, self._arrived[task]))

    def do(self, task: TaskId, done: float) -> None:
        """So many records of the task are done by now."""
        self.done[task], self.waiting[task] = done, max(0.0, self._arrived[task] - done)

    def lag_s(self, now_ms: int) -> float:
        """Returns how long a record has waited at most, in seconds."""
        longest = 0.0
        for task, came in self._came.items():
            while came and came[0][1] <= self.done[task] + 1e-6:
                came.popleft()
            if came:
                longest = max(longest, (now_ms - came[0][0]) / 1_000)
        return longest


class Queues(Backlog):
    """What members do about the records that wait, second by second."""

    def __init__(self, day_s: float) -> None:
        super().__init__(TASKS)
        self.day_s = day_s
        self._reported: dict[str, tuple[int, dict[TaskId, float]]] = {}

    def second(self, owners: dict[TaskId, str], now_ms: int) -> float:
        """Lets a second pass. Returns the longest lag in seconds."""
        self.take(arriving((now_ms - START_MS) / 1_000, self.day_s, MEMBER_PER_S, TASKS), now_ms)
        tasks_of: dict[str, list[TaskId]] = {}
        for task, owner in owners.items():
            tasks_of.setdefault(owner, []).append(task)
        for tasks in tasks_of.values():
            there = sum(self.waiting[task] for task in tasks)
            part = min(1.0, MEMBER_PER_S / there) if there else 0.0
            for task in tasks:
                self.do(task, self.done[task] + self.waiting[task] * part)
        return self.lag_s(now_ms)

    def load_of(self, member: str, tasks: Sequence[TaskId], now_ms: int) -> Load:
        """The report of a member: what it did since the last one, and what waits."""
        since_ms, done = self._reported.get(member, (now_ms, {}))
        self._reported[member] = (now_ms, {task: self.done[task] for task in tasks})
        took_s = (now_ms - since_ms) / 1_000
        rates = {task: (self.done[task] - done.get(task, self.done[task])) / took_s if took_s > 0 else 0.0 for task in tasks}
        return Load(
            tasks={task: round(rate) for task, rate in rates.items()},
            behind={task: round(self.waiting[task]) for task in tasks},
            busy={task: round(rate / MEMBER_PER_S * 1e6) for task, rate in rates.items()},
        )


class Scaler(abc.ABC):
    """A way of scaling. It is asked each 15 s."""

    def __init__(self, queues: Backlog) -> None:
        self.queues = queues
        self.rebalances = 0

    def note(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        """Sees a fact of a simulated log."""
        self.rebalances += any(isinstance(each.decision, AssignmentIssued) and each.decision.part == 1 for each in decisions)

    @abc.abstractmethod
    def members(self, now: int, now_ms: int) -> int:
        """Returns how many should run, where `now` do."""

    def leaving(self, names: Sequence[str], count: int) -> Sequence[str]:
        """Returns who leaves. `names`: the oldest first. Kubernetes takes the newest pods."""
        return names[-count:]


class Fixed(Scaler):
    """Never changes the number."""

    def members(self, now: int, now_ms: int) -> int:
        return now


class Keda(Scaler):
    """KEDA's Kafka scaler with this threshold, and the autoscaler of Kubernetes behind it."""

    def __init__(self, threshold: float, queues: Backlog) -> None:
        super().__init__(queues)
        self._threshold = threshold
        self._asked: deque[tuple[int, int]] = deque()

    def members(self, now: int, now_ms: int) -> int:
        lag = min(sum(self.queues.waiting.values()), len(self.queues.waiting) * self._threshold)
        ratio = lag / (self._threshold * now)
        wanted = now if abs(1 - ratio) <= 0.1 else max(1, math.ceil(lag / self._threshold))
        self._asked.append((now_ms, wanted))
        while self._asked[0][0] < now_ms - 300_000:
            self._asked.popleft()
        if wanted > now:
            return min(wanted, max(2 * now, now + 4))
        return min(now, max(each for _, each in self._asked))


class Ours(Scaler):
    """The recommendation of a worker."""

    def __init__(self, queues: Backlog) -> None:
        super().__init__(queues)
        self._reader = FollowingReader("orders")
        self._machine: GroupMachine | None = None
        self._last: LastAnswer | None = None
        self._asked_ms = 0
        self._answer = 0
        self._leave: Sequence[str] = ()

    def note(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        super().note(record, decisions, machine)
        self._machine = machine
        self._reader.take(record)
        for each in decisions:
            self._reader.take(each)

    def members(self, now: int, now_ms: int) -> int:
        if self._machine is not None and (now_ms - self._asked_ms >= SLOW_S * 1_000 or not self._answer):
            state = self._machine.state
            habits, demand = self._reader.read()
            found = follow(Followable(state=state, habits=habits, demand=demand), FollowingPolicy(lag_s=TARGET_S), self._last)
            if not found.holds:
                self._last = LastAnswer(members=found.members, at_ms=state.last_append_ms or 0) if found.members != found.now else None
            self._asked_ms, self._answer, self._leave = now_ms, found.members, found.leave
        return self._answer

    def leaving(self, names: Sequence[str], count: int) -> Sequence[str]:
        return [*self._leave, *(name for name in reversed(names) if name not in self._leave)][:count]


@attrs.frozen(kw_only=True)
class DayCost:
    """What a day cost. `unavailable_s`: task-seconds in which nobody ran a task."""

    name: str
    member_hours: float
    late_s: int
    changes: int
    moves: int
    unavailable_s: float
    most: int
    rebalances: int


WAYS: dict[str, Callable[[Queues], Scaler]] = {
    "equipoise's recommendation": Ours,
    "KEDA, lagThreshold 5,000": partial(Keda, 5_000.0),
    "KEDA, lagThreshold 10,000": partial(Keda, 10_000.0),
    "KEDA, lagThreshold 30,000": partial(Keda, 30_000.0),
    f"{FIXED} members": Fixed,
}


def day(hours: float, name: str) -> DayCost:
    """Returns what the day costs with this way of scaling."""
    day_s = hours * 3_600
    queues = Queues(day_s)
    scaler: Scaler = WAYS[name](queues)
    assignor = registry.latest("high_availability")
    configured = GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=GroupSettings())
    part = Subtopology(subtopology=0, partitions=len(TASKS), stateful=True, source_topics=("in",), changelog_topics=("changelog",))
    growth = {("changelog", task.partition): ChangelogGrowth(((START_MS, STATE_RECORDS),)) for task in TASKS}
    cluster = SimulatedCluster(
        ClusterConfig(
            group="orders", configured=configured, topology=TopologyDeclared(epoch=1, subtopologies=(part,)), growth=growth, start_ms=START_MS
        ),
        seed=1,
        watcher=scaler.note,
    )
    cluster.start_worker()
    numbers = itertools.count(1)

    def start(start_ms: int) -> None:
        settings = ProcessSettings(
            member_id=f"pod-{next(numbers):04}",
            restore=RestoreModel(records_per_s=RESTORE_PER_S),
            start_ms=start_ms,
            load_of=queues.load_of,
            topology_epoch=1,
        )
        cluster.start_process(settings)

    for _ in range(FIXED if isinstance(scaler, Fixed) else FIRST):
        start(100)
    cluster.append(PartitionsObserved(end_offsets={"changelog": dict.fromkeys(range(len(TASKS)), STATE_RECORDS)}))
    late_s = changes = most = 0
    member_s = 0.0
    for second in range(round(day_s)):
        cluster.run_for(1_000)
        owners = cluster.world.owners(cluster.now_ms)
        lag_s = queues.second(owners, cluster.now_ms)
        late_s += lag_s > TARGET_S
        here = cluster.live_processes()
        member_s += len(here)
        most = max(most, len(here))
        if second % 15 or second < 300:
            continue
        staying = [each.member_id for each in here if not each.session.closing]
        wanted = scaler.members(len(staying), cluster.now_ms)
        changes += wanted != len(staying)
        for _ in range(wanted - len(staying)):
            start(POD_START_MS)
        if wanted < len(staying):
            for left in scaler.leaving(staying, len(staying) - wanted):
                cluster.last_process(left).leave()
        if not second % 3_600:
            cluster.forget(20_000)
    history = [each for each in cluster.world.history(cluster.now_ms) if each.end_ms > START_MS + 300_000]
    unavailable_ms, moves = 0, 0
    for _, runs in itertools.groupby(history, key=lambda each: each.task):
        for before, after in itertools.pairwise(runs):
            unavailable_ms += max(0, after.start_ms - before.end_ms)
            moves += before.member_id != after.member_id
    return DayCost(
        name=name,
        member_hours=round(member_s / 3_600, 1),
        late_s=late_s,
        changes=changes,
        moves=moves,
        unavailable_s=round(unavailable_ms / 1_000, 1),
        most=most,
        rebalances=scaler.rebalances,
    )


@click.command()
@click.option("--hours", default=8.0, show_default=True, help="Hours in which the day passes.")
@click.option("--only", default="", help="Ways of scaling whose names contain this.")
@click.option("--live", is_flag=True, help="In groups of member processes on a real broker (bench/live_scaling.py).")
def main(hours: float, only: str, live: bool) -> None:
    """Lives through the day once for each way of scaling."""
    if live:
        from bench.live_scaling import live_days

        days = live_days(hours, only)
    else:
        names = [name for name in WAYS if only in name]
        days = sorted(in_processes(partial(day, hours), names, os.cpu_count() or 1), key=lambda each: names.index(each.name))
    found = {each.name: each for each in days}
    click.echo("| way | member-hours | s over the target | changes | rebalances | moves | task-s unavailable | most members |")
    click.echo("|---|--:|--:|--:|--:|--:|--:|--:|")
    for each in days:
        counts = f"{each.late_s:,} | {each.changes:,} | {each.rebalances:,} | {each.moves:,} | {each.unavailable_s:,.1f} | {each.most}"
        click.echo(f"| {each.name} | {each.member_hours:,.1f} | {counts} |")
    ours = found.get("equipoise's recommendation")
    missed = False
    for name, each in found.items() if ours is not None else ():
        if name.startswith("KEDA") and ours is not None:
            goals = {
                "rebalances": ours.rebalances * 3 <= each.rebalances,
                "unavailable": ours.unavailable_s * 3 <= each.unavailable_s,
                "lag": ours.late_s <= each.late_s,
                "member-hours": ours.member_hours <= each.member_hours,
            }
            lost = [goal for goal, holds in goals.items() if not holds]
            missed |= bool(lost)
            click.echo(f"beside {name}: {'MISSED: ' + ', '.join(lost) if lost else 'all goals hold'}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
