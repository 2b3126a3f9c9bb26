"""`python -m bench.changes --live`: do the intervals hold on real groups? Groups of member
processes under load, side by side on one worker process and a real broker on this machine; the
changes are made by the commands, which predict them from the log, and judged by the leader. Each is
appended to a file as soon as it is judged, so that a run which is cut off can be told, too. With
`--wrong`: wrong changes, noticed and undone there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import click

from bench.live import WorkerProcess, broker
from bench.live_members import Application, MemberProcess, until_running
from bench.made_changes import MadeChange, compared, read_results, told
from equipoise.events.facts import JUDGED_METRICS
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import writer
from equipoise.log import open_log
from equipoise.member.copies.fencing import AT_LEAST_ONCE, EXACTLY_ONCE
from equipoise.replay.known_changes import KnownChange, cost_text, known_changes, verdict_text
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured

VALUE_BYTES = 100
RESTORE_RECORDS_PER_S = 4_000.0
PER_SECOND = 3.0
"""Records that each task gets."""
SESSION_MS, LEASE_MARGIN_MS = 12_000, 3_000
"""Long enough for a loaded machine."""
PREFIX = "changes"
JUDGED_S = 300.0
"""Within this time a change is judged."""
REST_S = 20.0
"""After a restart of all the next change is made when nothing was under way for so long: the leader
alone would wait for two minutes.
"""
QUIET_S = 3.0


@attrs.frozen(kw_only=True)
class Shape:
    """A group as it is started."""

    name: str
    tasks: int
    members: int
    guarantee: str
    records: int = 8_000
    """State of each task."""


SHAPES = (
    Shape(name="small", tasks=6, members=2, guarantee=AT_LEAST_ONCE),
    Shape(name="middle", tasks=9, members=3, guarantee=EXACTLY_ONCE),
    Shape(name="large", tasks=18, members=4, guarantee=AT_LEAST_ONCE),
)
WRONG = (Shape(name="orders", tasks=9, members=3, guarantee=AT_LEAST_ONCE, records=20_000),)


class LiveChanges:
    """A group of member processes under load, and the commands that change it. A change returns its
    id in the log; "": it was not written down.
    """

    def __init__(self, application: Application, folder: Path, shape: Shape) -> None:
        self._application, self._folder, self.shape = application, folder, shape
        self.members: dict[str, MemberProcess] = {}
        self.standbys = 0
        self._numbers = itertools.count(1)

    def start(self, name: str | None = None, **options: object) -> str:
        """Starts a member; None: a new one. Returns its name."""
        name = f"m{next(self._numbers)}" if name is None else name
        given = {"restore_records_per_s": RESTORE_RECORDS_PER_S, "session_timeout_ms": SESSION_MS, "lease_margin_ms": LEASE_MARGIN_MS, **options}
        self.members[name] = MemberProcess(
            self._application, name, prefix=PREFIX, state_directory=self._folder, guarantee=self.shape.guarantee, **given
        )
        return name

    def kill(self, name: str) -> None:
        """Kills a member, which does not come back."""
        self.members.pop(name).kill()

    async def runs(self) -> None:
        """Waits until the members run all tasks."""
        await until_running(self.members.values(), self.shape.tasks)

    async def command(self, name: str, *words: str) -> dict[str, Any]:
        """Runs a command on the group, and returns its document."""
        where = ["--group", self._application.name, "--bootstrap", self._application.connection.bootstrap, "--prefix", PREFIX, "--json"]
        call = [sys.executable, "-m", "equipoise", name, *where, *words]
        done = await asyncio.to_thread(subprocess.run, call, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    async def planned(self, *words: str) -> str:
        """Runs `configure`, and returns the id of the change."""
        return str((await self.command("configure", *words))["change_id"] or "")

    async def settings(self) -> str:
        """Returns the settings in force."""
        return json.dumps((await self.command("configure"))["settings"], sort_keys=True)

    def _change(self, change_id: str) -> KnownChange | None:
        """Returns the change of that id, which ends with the offset that it was written after."""
        with open_log(f"kafka://{self._application.connection.bootstrap}/{PREFIX}") as log:
            entries = log.read(int(change_id.rpartition("-")[2]), self._application.name)
            return next((each for each in known_changes(entries) if each.change_id == change_id), None)

    async def judged(self, change_id: str) -> KnownChange:
        """Waits until the change is judged."""
        async with asyncio.timeout(JUDGED_S):
            while True:
                found = await asyncio.to_thread(self._change, change_id)
                if found is not None and found.judged is not None:
                    return found
                await asyncio.sleep(2)

    # Changes

    async def join(self) -> str:
        change_id = await self.planned("--plan", "join=1")
        self.start()
        return change_id

    async def leave(self) -> str:
        found = await self.command("scale-down", "--keep", str(len(self.members) - 1))
        for name in found["members"]:
            await asyncio.to_thread(self.members.pop(name).gone)
        return str(found["change_id"] or "")

    async def kill_one(self) -> str:
        name = random.Random(f"{self.shape.name} {sorted(self.members)}").choice(sorted(self.members))
        change_id = await self.planned("--plan", f"kill={name}")
        self.kill(name)
        return change_id

    async def restart(self) -> str:
        change_id = await self.planned("--plan", "restart")
        for name in list(self.members):
            await asyncio.to_thread(self.members[name].restart)
            self.start(name)
            await self.runs()
        await asyncio.sleep(REST_S)
        return change_id

    async def keep_standbys(self) -> str:
        self.standbys = 1
        return await self.planned("--set", "num_standbys=1", "--judge")

    async def drop_standbys(self) -> str:
        self.standbys = 0
        return await self.planned("--set", "num_standbys=0", "--judge")


CYCLE: tuple[Callable[[LiveChanges], Awaitable[str]], ...] = (
    LiveChanges.join,
    LiveChanges.kill_one,
    LiveChanges.join,
    LiveChanges.leave,
    LiveChanges.restart,
    LiveChanges.keep_standbys,
    LiveChanges.join,
    LiveChanges.leave,
    LiveChanges.join,
    LiveChanges.kill_one,
    LiveChanges.restart,
    LiveChanges.drop_standbys,
)
"""Of one group, over and over. A restart is followed by a change that may end the watch over it."""


@asynccontextmanager
async def changing(bootstrap: str, folder: Path, shape: Shape) -> AsyncIterator[LiveChanges]:
    """A group under load, whose last member has restored its tasks."""
    config = configured(initial_delay_ms=3_000, acceptable_recovery_lag=1_000)
    application = Application(
        connection=Connection(bootstrap=bootstrap), name=shape.name, partitions=shape.tasks, config=config, value_bytes=VALUE_BYTES
    )
    await application.make_topics()
    noise = random.Random(1).randbytes(VALUE_BYTES)
    async with writer(application.connection) as producer:
        for key, partition in itertools.product(range(shape.records), range(shape.tasks)):
            sent = await producer.send(f"{application.name}-state", b"%010d" % 0 + noise, key=b"s%d" % key, partition=partition)
        await sent
    group = LiveChanges(application, folder / shape.name, shape)
    feeding = asyncio.create_task(application.feed(PER_SECOND * shape.tasks))
    try:
        for _ in range(shape.members):
            group.start()
        await group.runs()
        await asyncio.sleep(REST_S)
        yield group
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        for name in list(group.members):
            group.kill(name)


async def _right(group: LiveChanges, changes: Iterator[int], results: Path) -> None:
    """Makes the changes of one group for as long as there are numbers, and appends them to a file."""
    unjudged: list[tuple[str, int, int, str, tuple[float, float]]] = []

    async def tell() -> None:
        change_id, members, standbys, kind, since = unjudged.pop(0)
        found = _made(await group.judged(change_id), group.shape, members, standbys, kind, busy_since(since))
        with results.open("a") as file:
            file.write(json.dumps(attrs.asdict(found)) + "\n")
        for line in (f"{group.shape.name}: {found.text}: {found.verdict}", *(f"    {each}" for each in compared(found))):
            click.echo(line, err=True)

    for act in itertools.cycle(CYCLE):
        if next(changes, None) is None:
            break
        members, standbys, since, began = len(group.members), group.standbys, cpu_s(), time.monotonic()
        change_id = await act(group)
        if not change_id:
            click.echo(f"{group.shape.name}: {act.__name__} was not written down", err=True)
            await asyncio.sleep(REST_S)
            continue
        unjudged.append((change_id, members, standbys, act.__name__, since))
        while unjudged and (act is not LiveChanges.restart or len(unjudged) > 1):
            await tell()
        click.echo(f"{group.shape.name}: {time.monotonic() - began:.0f} s", err=True)
        await asyncio.sleep(QUIET_S)
    while unjudged:
        await tell()


def _made(found: KnownChange, shape: Shape, members: int, standbys: int, kind: str, busy: float) -> MadeChange:
    assert found.planned is not None, "it was written down"
    assert found.judged is not None, "it was judged"
    return MadeChange(
        group=shape.name,
        tasks=shape.tasks,
        members=members,
        guarantee=shape.guarantee,
        standbys=standbys,
        kind=kind,
        busy=round(busy, 2),
        what=found.what(),
        outcome=found.judged.outcome,
        verdict=verdict_text(found),
        expected=found.planned.expected,
        costs={name: getattr(found.judged, name) for name in JUDGED_METRICS},
    )


def cpu_s() -> tuple[float, float]:
    """Returns for how long this machine's processors were busy so far, and in all."""
    with open("/proc/stat") as file:
        ticks = [float(each) for each in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def busy_since(since: tuple[float, float]) -> float:
    busy, whole = cpu_s()
    return (busy - since[0]) / max(1.0, whole - since[1])


async def _wrong(group: LiveChanges) -> bool:
    """Wrong changes, one after the other; each is over before the next."""
    is_good = True

    async def tried(name: str, act: Awaitable[str], before: str = "", *, is_last: bool = False) -> None:
        nonlocal is_good
        began_s = time.monotonic()
        found = await group.judged(await act)
        noticed_s = time.monotonic() - began_s
        back = ""
        if before:
            while await group.settings() != before:  # noqa: ASYNC110 a command is asked
                await asyncio.sleep(0.5)
            back_s = time.monotonic() - began_s
            is_good &= back_s <= 60
            back = f", back after {back_s:.0f} s"
        is_good &= found.is_bad
        click.echo(f"{name}: noticed after {noticed_s:.0f} s{back}: {verdict_text(found)}; {cost_text(found)}")
        if not is_last:
            await group.runs()
            await asyncio.sleep(30)

    async def settings_and(*words: str) -> str:
        group.start()
        return await group.planned(*words, "--or-undo", "--at-most", "2", "--runs", "0")

    async def killed() -> str:
        change_id = await group.planned("--plan", f"leave={max(group.members)}")
        group.kill(max(group.members))
        return change_id

    async def slow() -> str:
        change_id = await group.planned("--plan", "join=1")
        group.start(restore_records_per_s=100.0)
        return change_id

    async def at_once() -> str:
        change_id = await group.planned("--plan", "restart")
        names = list(group.members)
        for name in names:
            group.kill(name)
        await asyncio.sleep(15)
        for name in names:
            group.start(name)
        return change_id

    before = await group.settings()
    await tried("acceptable lag a million times too large, and one joins", settings_and("--set", "acceptable_recovery_lag=1000000000"), before)
    await tried("cooperative assignor, and one joins", settings_and("--assignor", "cooperative"), before)
    await tried("one is killed in place of leaving", killed())
    await tried("all restart at once", at_once())
    await tried("one joins, with a slow disk", slow(), is_last=True)
    return is_good


async def _run(changes: int, results: Path | None) -> bool:
    """`results` None: makes the wrong changes."""
    numbers = iter(range(changes))

    async def lived(shape: Shape) -> bool:
        async with changing(bootstrap, Path(folder), shape) as group:
            if results is None:
                return await _wrong(group)
            await _right(group, numbers, results)
            return True

    with tempfile.TemporaryDirectory(prefix="equipoise-changes-") as folder, broker() as bootstrap:
        worker = WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix=PREFIX))
        try:
            ended = await asyncio.gather(*map(lived, WRONG if results is None else SHAPES), return_exceptions=True)
            failed = [each for each in ended if isinstance(each, BaseException)]
            if failed:
                raise failed[0]
            return all(ended)
        finally:
            worker.end()


def main(changes: int, *, wrong: bool, results: Path) -> bool:
    """Makes the changes, and returns whether all wrong ones were noticed in time, or the goals of
    the intervals are met. An interrupt ends it with what was found so far.
    """
    if wrong:
        return asyncio.run(_run(changes, None))
    results.parent.mkdir(parents=True, exist_ok=True)
    try:
        if changes:
            asyncio.run(_run(changes, results))
    except KeyboardInterrupt:
        click.echo("cut off")
    finally:
        is_good = told(read_results(results))
    return is_good
