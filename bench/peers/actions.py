"""The actions on an application (start, rolling restart, join, leave, kill), and when it has
settled so that the next action may start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

import attrs

from bench.peers.feed import Load, Outside, feeding, load_state, make_topics
from bench.peers.systems import Instance, System
from bench.peers.waits import STILL_MS, Cost, cost_of
from equipoise.events.errors import InputError
from equipoise.kafka.connection import Connection

ACTIONS = ("restart", "join", "leave", "kill")
START_S = 600.0
LOOK_S = 0.1
AWAY_S = 1.0
"""Time between the end of a process and its next start in a rolling restart."""
LATE_S = 2.0
"""After this time, records in flight have reached the observer."""


@attrs.frozen(kw_only=True)
class Step:
    """One action. `title` may repeat (each bounce of a rolling restart)."""

    action: str
    title: str
    begin_ms: int
    cost: Cost
    still: list[tuple[int, int, int]]
    """(task, from, to) of each period in which a task was unavailable, by the broker's clock."""


@attrs.frozen(kw_only=True)
class Run:
    """The result of one system. `wait_median_ms` and `wait_p99_ms`: waits of inputs between the
    start and the first action.
    """

    system: str
    settings: str
    keys: int
    loaded_s: float
    started_s: float
    steps: list[Step]
    unanswered: int
    """Records that were never answered."""
    unanswered_later: int
    """Those of them that came after the start."""
    wait_median_ms: int
    wait_p99_ms: int


@attrs.define
class _Marks:
    """One action in progress."""

    action: str
    title: str
    touched: frozenset[str]
    begin_ms: int
    end_ms: int = 0
    settled: bool = False

    def step(self, outside: Outside) -> Step:
        return Step(
            action=self.action,
            title=self.title,
            begin_ms=self.begin_ms,
            cost=cost_of(outside.tasks, self.begin_ms, self.end_ms, touched=self.touched, settled=self.settled),
            still=[(number, *each) for number, task in enumerate(outside.tasks) for each in task.still(self.begin_ms, self.end_ms)],
        )


class Application:
    """One system under its load.

    An action is over when, for `rest_s`, no task has moved or been unavailable and the tasks are
    spread evenly over the running members; after `most_s` it is cut off.
    """

    def __init__(self, system: System, load: Load, outside: Outside, *, rest_s: float, most_s: float) -> None:
        self._system, self._load, self._outside, self._rest_s, self._most_s = system, load, outside, rest_s, most_s
        self._running: dict[str, Instance] = {}
        """Members that should run."""
        self._leaving: list[Instance] = []

    def close(self) -> None:
        """Kills all remaining processes."""
        for each in (*self._running.values(), *self._leaving):
            each.kill()

    async def start(self, names: Sequence[str]) -> None:
        """Starts all at once and returns when they have settled. Raises InputError when they do
        not.
        """
        for name in names:
            self._running[name] = self._system.start(name)
        if not await self._settles(START_S):
            raise InputError(f"{self._system.label} did not come to rest within {START_S:.0f} s: {self._state()}; see {self._system.folder}")

    async def act(self, action: str) -> AsyncIterator[_Marks]:
        """Runs the action. Yields its measurement, for a rolling restart one per bounce."""
        if action == "restart":
            for name in sorted(self._running):
                async for marks in self._bounce(name):
                    yield marks
        elif action == "join":
            name = f"m{len(self._running) + 1}"
            marks = _Marks(action, f"{name} joins", frozenset({name}), _now_ms())
            self._running[name] = self._system.start(name)
            yield await self._measured(marks)
        elif action in ("leave", "kill"):
            name = min(self._running)
            marks = _Marks(action, f"{name} {'leaves' if action == 'leave' else 'is killed'}", frozenset({name}), _now_ms())
            instance = self._running.pop(name)
            if action == "kill":
                instance.kill()
            else:
                self._leaving.append(instance)
                instance.leave()
            yield await self._measured(marks)

    async def _bounce(self, name: str) -> AsyncIterator[_Marks]:
        marks = _Marks("restart", f"{name} is restarted", frozenset({name}), _now_ms())
        before = self._running[name]
        before.stop()
        end_s = time.monotonic() + self._most_s
        while before.process.poll() is None:
            if time.monotonic() > end_s:
                before.kill()
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(AWAY_S)
        self._running[name] = self._system.start(name)
        yield await self._measured(marks)

    async def _measured(self, marks: _Marks) -> _Marks:
        left_s = self._most_s - (_now_ms() - marks.begin_ms) / 1_000
        marks.settled = await self._settles(max(self._rest_s, left_s))
        marks.end_ms = _now_ms()
        return marks

    async def _settles(self, most_s: float) -> bool:
        end_s, quiet_since_s = time.monotonic() + most_s, time.monotonic()
        while time.monotonic() < end_s:
            if not self._at_rest():
                quiet_since_s = time.monotonic()
            elif time.monotonic() - quiet_since_s >= self._rest_s:
                return True
            for name, instance in self._running.items():
                if instance.process.poll() is not None:
                    raise InputError(f"{self._system.label}: {name} has ended with {instance.process.returncode}; see {self._system.folder}")
            await asyncio.sleep(LOOK_S)
        return False

    def _at_rest(self) -> bool:
        """Whether, at this moment, the tasks are spread evenly, none is unavailable or has just
        moved, and leaving members have ended.
        """
        outside, owners = self._outside, self._outside.owners()
        most = -(-self._load.tasks // len(self._running))
        return (
            outside.answered_all_once()
            and outside.longest_open_ms(_now_ms()) <= STILL_MS
            and owners.keys() <= self._running.keys()
            and max(owners.values()) <= most
            and _now_ms() - outside.last_move_ms() > 1_000
            and all(instance.process.poll() is not None for instance in self._leaving)
        )

    def _state(self) -> str:
        return f"tasks of each {self._outside.owners()}, longest wait {self._outside.longest_open_ms(_now_ms())} ms"


async def run(
    system: System, load: Load, actions: Sequence[str], *, members: int, rest_s: float, most_s: float, warm_s: float, report: Callable[[str], None]
) -> Run:
    """Measures one system, from creating its topics to its end. `report` gets a line per step."""
    connection = Connection(bootstrap=system.bootstrap)
    begun_s = time.monotonic()
    await make_topics(connection, load, input=system.input, output=system.output, changelog=system.changelog)
    keys = await load_state(connection, load, system.changelog)
    loaded_s = time.monotonic() - begun_s
    report(f"{system.label}: {keys:,} keys of state loaded in {loaded_s:.0f} s")
    system.open()
    try:
        async with feeding(connection, load, input=system.input, output=system.output) as outside:
            application = Application(system, load, outside, rest_s=rest_s, most_s=most_s)
            try:
                return await _measure(
                    application, outside, system, actions, members=members, rest_s=rest_s, warm_s=warm_s, keys=keys, loaded_s=loaded_s, report=report
                )
            finally:
                application.close()
    finally:
        system.close()


async def _measure(
    application: Application,
    outside: Outside,
    system: System,
    actions: Sequence[str],
    *,
    members: int,
    rest_s: float,
    warm_s: float,
    keys: int,
    loaded_s: float,
    report: Callable[[str], None],
) -> Run:
    started_ms = _now_ms()
    await application.start([f"m{number + 1}" for number in range(members)])
    rest_ms = _now_ms()
    report(f"{system.label}: {members} members run all tasks after {(rest_ms - started_ms) / 1_000:.0f} s")
    await asyncio.sleep(warm_s)
    marks: list[_Marks] = []
    for action in actions:
        async for each in application.act(action):
            marks.append(each)
            ended = "at rest" if each.settled else "cut off"
            report(f"{system.label}: {each.title}: {ended} after {(each.end_ms - each.begin_ms) / 1_000:.0f} s; tasks of each {outside.owners()}")
    end_ms = _now_ms()
    await asyncio.sleep(LATE_S)
    steps = [each.step(outside) for each in marks]
    quiet = sorted(until - asked for task in outside.tasks for asked, until in task.waits(rest_ms - int(rest_s * 1_000), rest_ms))
    return Run(
        system=system.label,
        settings=system.settings,
        keys=keys,
        loaded_s=round(loaded_s, 1),
        started_s=round((rest_ms - started_ms) / 1_000, 1),
        steps=steps,
        unanswered=sum(task.unanswered(started_ms, end_ms - STILL_MS) for task in outside.tasks),
        unanswered_later=sum(task.unanswered(rest_ms, end_ms - STILL_MS) for task in outside.tasks),
        wait_median_ms=quiet[len(quiet) // 2],
        wait_p99_ms=quiet[len(quiet) * 99 // 100],
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
