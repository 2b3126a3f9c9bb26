"""`python -m bench.scaling --live`: the same day of load on real groups, side by side: one for each
way of scaling, of member processes that do so many records a second, led by one worker process on a
real broker. equipoise's recommendation is that which the worker serves to autoscalers.

A day passes in half an hour or so (`--hours`). The lag that is allowed, the times by which the
recommendation and KEDA's rule look back, and starts of processes are as always.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import click

from bench.live import WorkerProcess, broker
from bench.live_members import Application, MemberProcess, until_running
from bench.scaling import TARGET_S, Backlog, DayCost, Fixed, Keda, Scaler, arriving
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import Consumer, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import reader, writer
from equipoise.log import open_log
from equipoise.replay.spans import Span
from equipoise.replay.whatif.recorded_costs import Metrics, read_recording
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured

TASKS = [TaskId(0, number) for number in range(12)]
MEMBER_PER_S = 20.0
WORTH = 0.8
"""Of the load of a simulated day: with 12 tasks, six members do at most."""
FIRST, FIXED = 3, 6
STATE_RECORDS, RESTORE_PER_S = 8_000, 4_000.0
SESSION_MS = 10_000
LOW_FOR_S = 300
"""As KEDA's rule, the recommendation looks back for so long before it takes members away."""
ASK_S, BEGIN_S = 15, 45
PREFIX = "scaling"


class Recommended(Scaler):
    """The recommendation that the worker serves (docs/change.md#let-an-autoscaler-follow-it)."""

    def __init__(self, port: int, group: str, queues: Backlog) -> None:
        super().__init__(queues)
        query = f"lag_s={TARGET_S:g}&most={len(TASKS)}&low_for_s={LOW_FOR_S}"
        self._address = f"http://127.0.0.1:{port}/groups/{group}/size?{query}"
        self._leave: tuple[str, ...] = ()

    def members(self, now: int, now_ms: int) -> int:
        try:
            with urllib.request.urlopen(self._address, timeout=60) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:  # autoscalers keep what they have
            click.echo(f"recommended: {error.code}: {error.read().decode():.200}", err=True)
            return now
        self._leave = tuple(document["leave"])
        waiting = {str(task): round(each) for task, each in self.queues.waiting.items() if each >= MEMBER_PER_S}
        click.echo(f"recommended: {document['members']} for {now}: {document['line']}; waiting {waiting}", err=True)
        return int(document["members"])

    def leaving(self, names: Sequence[str], count: int) -> Sequence[str]:
        return [*(name for name in self._leave if name in names), *(name for name in reversed(names) if name not in self._leave)][:count]


Way = Callable[[int, str, Backlog], Scaler]
WAYS: dict[str, tuple[str, Way]] = {
    "equipoise's recommendation": ("recommended", Recommended),
    "KEDA, lagThreshold 200": ("keda", lambda port, group, queues: Keda(200.0, queues)),
    f"{FIXED} members": ("fixed", lambda port, group, queues: Fixed(queues)),
}
"""Name -> its group, and what scales it."""


class LiveGroup:
    """A group of member processes that do `member_per_s` records a second each. `load`: seconds
    since its begin -> records that arrive in a second.
    """

    def __init__(
        self, bootstrap: str, folder: Path, name: str, load: Callable[[float], Mapping[TaskId, float]], member_per_s: float = MEMBER_PER_S
    ) -> None:
        config = configured(initial_delay_ms=3_000, acceptable_recovery_lag=1_000)
        self.application = Application(
            connection=Connection(bootstrap=bootstrap), name=name, partitions=len(TASKS), config=config, work_s=1 / member_per_s
        )
        self.backlog = Backlog(TASKS)
        self.members: dict[str, MemberProcess] = {}
        self.ending: dict[str, asyncio.Task[None]] = {}
        self._load, self._folder = load, folder / name
        self._numbers, self._dice = itertools.count(1), random.Random(name)

    @property
    def staying(self) -> list[str]:
        """The members that are not about to leave, the oldest first."""
        return [name for name in self.members if name not in self.ending]

    @asynccontextmanager
    async def begun(self, members: int) -> AsyncIterator[Consumer]:
        """It runs so many members, and gets its load from then on. Yields what `look` needs."""
        application = self.application
        await application.make_topics()
        async with writer(application.connection) as producer:
            for key, task in itertools.product(range(STATE_RECORDS), TASKS):
                sent = await producer.send(f"{application.name}-state", b"%020d" % 0, key=b"s%d" % key, partition=task.partition)
            await sent
        for _ in range(members):
            self.start()
        feeding: asyncio.Task[None] | None = None
        try:
            if members:
                await until_running(self.members.values(), len(TASKS))
            feeding = asyncio.create_task(self._feed())
            async with reader(application.connection) as ends:
                yield ends
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, *self.ending.values(), return_exceptions=True)
            for member in self.members.values():
                member.kill()

    def start(self, name: str = "") -> None:
        """Starts one more member."""
        name = name or f"pod-{next(self._numbers):04}"
        self.members[name] = MemberProcess(
            self.application,
            name,
            prefix=PREFIX,
            state_directory=self._folder,
            restore_records_per_s=RESTORE_PER_S,
            session_timeout_ms=SESSION_MS,
            lease_margin_ms=2_000,
        )

    def end(self, name: str) -> None:
        """Lets the member leave."""
        self.ending[name] = asyncio.create_task(self._leaves(name))

    async def _leaves(self, name: str) -> None:
        await asyncio.to_thread(self.members[name].leave)
        del self.members[name], self.ending[name]

    async def look(self, ends: Consumer) -> float:
        """Sees what each task has done: it sends one record on for each. Returns the longest lag in
        seconds.
        """
        places = {TopicPartition(f"{self.application.name}-out", task.partition): task for task in TASKS}
        for place, end in (await ends.end_offsets(list(places))).items():
            self.backlog.do(places[place], end)
        return self.backlog.lag_s(round(time.time() * 1_000))

    async def _feed(self) -> None:
        """Sends what arrives, each fifth of a second."""
        waiting, began_s = dict.fromkeys(TASKS, 0.0), time.monotonic()
        async with writer(self.application.connection) as producer:
            for step in itertools.count(1):
                await asyncio.sleep(max(0.0, began_s + step / 5 - time.monotonic()))
                sent = {}
                for task, per_s in self._load(step / 5).items():
                    waiting[task] += per_s / 5
                    sent[task] = int(waiting[task])
                    waiting[task] -= sent[task]
                    for _ in range(sent[task]):
                        await producer.send(self.application.name, b"1", key=b"s%d" % self._dice.randrange(STATE_RECORDS), partition=task.partition)
                self.backlog.take(sent, round(time.time() * 1_000))


async def _day(bootstrap: str, port: int, folder: Path, day_s: float, name: str) -> DayCost:
    """Lives through the day in one way, and returns what it costs. `port`: of the worker."""
    key, way = WAYS[name]
    group = LiveGroup(bootstrap, folder, key, partial(_arriving, day_s))
    scaler = way(port, key, group.backlog)
    late_s = most = changes = 0
    member_s = 0.0

    async def scale(now_ms: int) -> None:
        nonlocal changes
        staying = group.staying
        wanted = await asyncio.to_thread(scaler.members, len(staying), now_ms)
        changes += wanted != len(staying)
        for _ in range(wanted - len(staying)):
            group.start()
        for each in scaler.leaving(staying, len(staying) - wanted) if wanted < len(staying) else ():
            group.end(each)

    async with group.begun(FIXED if isinstance(scaler, Fixed) else FIRST) as ends:
        began_ms, began_s = round(time.time() * 1_000), time.monotonic()
        scaling: asyncio.Task[None] | None = None
        for second in range(round(day_s)):
            await asyncio.sleep(max(0.0, began_s + second - time.monotonic()))
            late_s += await group.look(ends) > TARGET_S
            member_s += len(group.members)
            most = max(most, len(group.members))
            if second % ASK_S == 0 and second >= BEGIN_S and (scaling is None or scaling.done()):
                if scaling is not None:
                    scaling.result()
                scaling = asyncio.create_task(scale(round(time.time() * 1_000)))
        if scaling is not None:
            await scaling
    costs = await asyncio.to_thread(_recorded, bootstrap, key, began_ms)
    return DayCost(
        name=name,
        member_hours=round(member_s / 3_600, 2),
        late_s=late_s,
        changes=changes,
        moves=round(costs.moves),
        unavailable_s=costs.unavailable_task_seconds,
        most=most,
        rebalances=round(costs.rebalances),
    )


def _arriving(day_s: float, at_s: float) -> Mapping[TaskId, float]:
    return arriving(at_s, day_s, WORTH * MEMBER_PER_S, TASKS)


def _recorded(bootstrap: str, group: str, began_ms: int) -> Metrics:
    with open_log(f"kafka://{bootstrap}/{PREFIX}") as log:
        return read_recording(log.read(group=group), group=group, span=Span(from_ms=began_ms)).recorded


async def _days(hours: float, names: Sequence[str]) -> list[DayCost]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with (
        tempfile.TemporaryDirectory(prefix="equipoise-scaling-") as folder,
        broker() as bootstrap,
        WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix=PREFIX), "--http-port", str(port)),
    ):
        return await asyncio.gather(*(_day(bootstrap, port, Path(folder), hours * 3_600, name) for name in names))


def live_days(hours: float, only: str) -> list[DayCost]:
    """Returns what the day costs with each of the ways whose names contain `only`."""
    return asyncio.run(_days(hours, [name for name in WAYS if only in name]))
