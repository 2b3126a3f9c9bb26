"""`python -m bench.changes --live`: do the intervals hold on real groups? Member processes, a
worker process and a real broker on this machine; the changes are made by the commands, which
predict them from the log, and judged by the leader. With `--wrong`: wrong changes, noticed and
undone there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import click

from bench.live import WorkerProcess, broker
from bench.live_members import Application, MemberProcess, until_running
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import writer
from equipoise.log import open_log
from equipoise.replay.known_changes import KnownChange, compared, cost_text, known_changes, verdict_text
from equipoise.worker.worker_settings import WorkerSettings
from tests.groups import configured

TASKS, RECORDS, VALUE_BYTES = 9, 20_000, 100
RESTORE_RECORDS_PER_S = 4_000.0
PER_SECOND = 20.0 * TASKS
SESSION_MS = 8_000
PREFIX = "changes"
JUDGED_S = 240.0
"""Within this time a change is judged."""
QUIET_S = 3.0


class LiveChanges:
    """A group of member processes under load, and the commands that change it."""

    def __init__(self, application: Application, folder: Path) -> None:
        self._application, self._folder = application, folder
        self.members: dict[str, MemberProcess] = {}
        self._numbers = itertools.count(1)

    def start(self, name: str | None = None, **options: object) -> str:
        """Starts a member; None: a new one. Returns its name."""
        name = f"m{next(self._numbers)}" if name is None else name
        given = {"restore_records_per_s": RESTORE_RECORDS_PER_S, "session_timeout_ms": SESSION_MS, "lease_margin_ms": 2_000, **options}
        self.members[name] = MemberProcess(self._application, name, prefix=PREFIX, state_directory=self._folder, **given)
        return name

    def kill(self, name: str) -> None:
        """Kills a member, which does not come back."""
        self.members.pop(name).kill()

    async def runs(self) -> None:
        """Waits until the members run all tasks."""
        await until_running(self.members.values(), TASKS)

    async def command(self, name: str, *words: str) -> dict[str, object]:
        """Runs a command on the group, and returns its document."""
        where = ["--group", self._application.name, "--bootstrap", self._application.connection.bootstrap, "--prefix", PREFIX, "--json"]
        call = [sys.executable, "-m", "equipoise", name, *where, *words]
        done = await asyncio.to_thread(subprocess.run, call, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    async def settings(self) -> str:
        """Returns the settings in force."""
        return json.dumps((await self.command("configure"))["settings"], sort_keys=True)

    def changes(self) -> list[KnownChange]:
        """Returns the changes that the log has."""
        with open_log(f"kafka://{self._application.connection.bootstrap}/{PREFIX}") as log:
            return [each for each in known_changes(log.read(), self._application.name) if each.planned is not None]

    async def judged(self, number: int) -> KnownChange:
        """Waits until the change of that number, from 1, is judged."""
        async with asyncio.timeout(JUDGED_S):
            while True:
                found = await asyncio.to_thread(self.changes)
                if len(found) >= number and found[number - 1].judged is not None:
                    return found[number - 1]
                await asyncio.sleep(1)

    # Changes

    async def join(self) -> None:
        await self.command("configure", "--plan", "join=1")
        self.start()

    async def leave(self) -> None:
        before = set(self.members)
        found = await self.command("scale-down", "--keep", str(len(before) - 1))
        gone = found["members"]
        assert isinstance(gone, dict)
        for name in gone:
            self.members.pop(name)

    async def restart(self) -> None:
        await self.command("configure", "--plan", "restart")
        for name in list(self.members):
            await asyncio.to_thread(self.members[name].restart)
            self.start(name)
            await self.runs()

    def standbys(self, number: int) -> Callable[[], Awaitable[None]]:
        async def change() -> None:
            await self.command("configure", "--set", f"num_standbys={number}", "--judge")

        return change


@asynccontextmanager
async def changing(bootstrap: str, folder: Path) -> AsyncIterator[LiveChanges]:
    """A group of three members under load, whose last member has restored its tasks."""
    config = configured(initial_delay_ms=3_000, acceptable_recovery_lag=1_000)
    application = Application(connection=Connection(bootstrap=bootstrap), name="orders", partitions=TASKS, config=config, value_bytes=VALUE_BYTES)
    await application.make_topics()
    noise = random.Random(1).randbytes(VALUE_BYTES)
    async with writer(application.connection) as producer:
        for key, partition in itertools.product(range(RECORDS), range(TASKS)):
            sent = await producer.send(f"{application.name}-state", b"%010d" % 0 + noise, key=b"s%d" % key, partition=partition)
        await sent
    group = LiveChanges(application, folder)
    feeding = asyncio.create_task(application.feed(PER_SECOND))
    try:
        for _ in range(3):
            group.start()
        await group.runs()
        await asyncio.sleep(20)
        yield group
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        for name in list(group.members):
            group.kill(name)


async def _right(group: LiveChanges, changes: int) -> list[KnownChange]:
    kinds = itertools.cycle((group.join, group.standbys(1), group.restart, group.leave, group.standbys(0)))
    found: list[KnownChange] = []
    for number in range(1, changes + 1):
        await next(kinds)()
        found.append(await group.judged(number))
        click.echo(f"{number} of {changes}: {found[-1].what()}: {cost_text(found[-1])}: {verdict_text(found[-1])}", err=True)
        for row in compared(found[-1]):
            click.echo(f"    {row['name']}: {row['expected']}; {row['was']}: {row['side']}", err=True)
        await asyncio.sleep(QUIET_S)
    return found


def holding(found: list[KnownChange], percent: int) -> list[bool]:
    """Returns whether each interval that was met holds; those of one value hold by nature."""
    held = []
    for each in found:
        for expected in () if each.planned is None or each.judged is None else each.planned.expected:
            low, high = (expected.low_50, expected.high_50) if percent == 50 else (expected.low_95, expected.high_95)
            value = getattr(each.judged, expected.metric)
            if not expected.low_95 == expected.high_95 == value:
                held.append(low <= value <= high)
    return held


async def _wrong(group: LiveChanges) -> bool:
    """Wrong changes, one after the other; each is over before the next."""
    is_good = True

    async def tried(name: str, number: int, act: Awaitable[object], before: str = "", *, is_last: bool = False) -> None:
        nonlocal is_good
        began_s = time.monotonic()
        await act
        found = await group.judged(number)
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

    async def settings_and(*words: str) -> None:
        group.start()
        await group.command("configure", *words, "--or-undo", "--at-most", "2", "--runs", "0")

    async def killed() -> None:
        await group.command("configure", "--plan", f"leave={max(group.members)}")
        group.kill(max(group.members))

    async def slow() -> None:
        await group.command("configure", "--plan", "join=1")
        group.start(restore_records_per_s=100.0)

    async def at_once() -> None:
        await group.command("configure", "--plan", "restart")
        names = list(group.members)
        for name in names:
            group.kill(name)
        await asyncio.sleep(15)
        for name in names:
            group.start(name)

    before = await group.settings()
    await tried("acceptable lag a million times too large, and one joins", 1, settings_and("--set", "acceptable_recovery_lag=1000000000"), before)
    await tried("cooperative assignor, and one joins", 2, settings_and("--assignor", "cooperative"), before)
    await tried("one is killed in place of leaving", 3, killed())
    await tried("all restart at once", 4, at_once())
    await tried("one joins, with a slow disk", 5, slow(), is_last=True)
    return is_good


async def _run(changes: int, *, wrong: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix="equipoise-changes-") as folder, broker() as bootstrap:
        worker = WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix=PREFIX))
        try:
            async with changing(bootstrap, Path(folder)) as group:
                if wrong:
                    return await _wrong(group)
                found = await _right(group, changes)
        finally:
            worker.end()
    for percent in (95, 50):
        held = holding(found, percent)
        click.echo(f"{statistics.fmean(held or [True]):.1%} of {len(held)} intervals of {percent} % hold, of {len(found)} changes")
    return True


def main(changes: int, *, wrong: bool) -> bool:
    """Makes the changes, and returns whether all wrong ones were noticed in time."""
    return asyncio.run(_run(changes, wrong=wrong))
