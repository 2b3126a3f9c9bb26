"""`python -m bench.sizing`: does `equipoise size` name the number of members that a search by
experiment finds?

Five groups of member processes that do MEMBER_PER_S each live side by side on a real broker, each
with a load of its own. Each begins with one member, which cannot do it, and then has as many as it
has tasks. After LIVED_S the command says how many are needed. Then the group is run with that
number, with fewer or with more, until the fewest are found that keep the lag. Goal: the command is
at most one off. Ends with 1 when it is missed.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import click

from bench.live import WorkerProcess, broker
from bench.live_members import until_running
from bench.live_scaling import MEMBER_PER_S, PREFIX, TASKS, LiveGroup
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import Consumer
from equipoise.worker.settings import WorkerSettings

LAG_S = 10.0
ALONE_S, LIVED_S = 45, 690
TRIED_S = 120
"""For so long a number of members is tried, when what waited is done."""
EMPTY_S = 2.0
SETTLES_S = 90


def steady(at_s: float) -> Mapping[TaskId, float]:
    return _shared(1.7, dict.fromkeys(TASKS, 1.0))


def uneven(at_s: float) -> Mapping[TaskId, float]:
    return _shared(2.4, {task: 1.0 + task.partition / 4 for task in TASKS})


def waves(at_s: float) -> Mapping[TaskId, float]:
    return _shared(2.0 + math.sin(at_s / 120 * 2 * math.pi), dict.fromkeys(TASKS, 1.0))


def steps(at_s: float) -> Mapping[TaskId, float]:
    return _shared(1.2 if at_s % 120 < 60 else 2.6, dict.fromkeys(TASKS, 1.0))


def hot(at_s: float) -> Mapping[TaskId, float]:
    return _shared(2.0, {task: 1.0 if task.partition else 30.0 for task in TASKS})


def _shared(worth: float, weights: Mapping[TaskId, float]) -> Mapping[TaskId, float]:
    """So many members' worth of records, by these weights."""
    whole = sum(weights.values())
    return {task: worth * MEMBER_PER_S * weight / whole for task, weight in weights.items()}


LOADS: tuple[Callable[[float], Mapping[TaskId, float]], ...] = (steady, uneven, waves, steps, hot)


@attrs.frozen(kw_only=True)
class SizeFound:
    """`said`: by the command, with its interval; `found`: by experiment. None: no number does."""

    name: str
    said: int | None
    low: int
    high: int
    found: int | None
    line: str

    @property
    def is_good(self) -> bool:
        return (self.said is None) == (self.found is None) and abs((self.said or 0) - (self.found or 0)) <= 1


async def sized(bootstrap: str, folder: Path, load: Callable[[float], Mapping[TaskId, float]]) -> SizeFound:
    """Returns what the command says of one group, and what is found by experiment."""
    group = LiveGroup(bootstrap, folder, load.__name__, load)
    async with group.begun(1) as ends:
        began_s = time.monotonic()
        await asyncio.sleep(ALONE_S)
        await _with(group, len(TASKS) // 2)
        await asyncio.sleep(began_s + LIVED_S - time.monotonic())
        call = [sys.executable, "-m", "equipoise", "size", f"kafka://{bootstrap}/{PREFIX}", "--group", load.__name__, "--lag", f"{LAG_S:g}"]
        done = await asyncio.to_thread(subprocess.run, [*call, "--runs", "0", "--json"], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        answer = json.loads(done.stdout)
        click.echo(f"{load.__name__}: {answer['line']}; {answer['basis']}", err=True)
        found = await _search(group, ends, answer["recommended"])
    return SizeFound(name=load.__name__, said=answer["recommended"], low=answer["low"], high=answer["high"], found=found, line=answer["line"])


async def _search(group: LiveGroup, ends: Consumer, said: int | None) -> int | None:
    """Returns the fewest members that keep the lag, from the neighbourhood of `said`."""
    members = len(TASKS) if said is None else said
    does = await _does(group, ends, members)
    if said is None:
        return members if does else None
    while does and members > 1:
        if not await _does(group, ends, members - 1):
            return members
        members -= 1
    while not does and members < len(TASKS):
        members += 1
        does = await _does(group, ends, members)
    return members if does else None


async def _does(group: LiveGroup, ends: Consumer, members: int) -> bool:
    """Returns whether so many members keep the lag, once what waited before is done."""
    await _with(group, members)
    until_s = time.monotonic() + SETTLES_S
    while await group.look(ends) > EMPTY_S and time.monotonic() < until_s:  # noqa: ASYNC110 it looks each second
        await asyncio.sleep(1)
    longest = 0.0
    for _ in range(TRIED_S):
        longest = max(longest, await group.look(ends))
        await asyncio.sleep(1)
    click.echo(f"{group.application.name}: {members} members: {longest:.0f} s behind", err=True)
    return longest <= LAG_S


async def _with(group: LiveGroup, members: int) -> None:
    """Runs so many members, one after the other."""
    for _ in range(members - len(group.members)):
        group.start()
    for name in group.staying[members:]:
        group.end(name)
    await asyncio.gather(*group.ending.values())
    await until_running(group.members.values(), len(TASKS))


async def _all() -> list[SizeFound]:
    with (
        tempfile.TemporaryDirectory(prefix="equipoise-sizing-") as folder,
        broker() as bootstrap,
        WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix=PREFIX)),
    ):
        return await asyncio.gather(*(sized(bootstrap, Path(folder), load) for load in LOADS))


def main() -> None:
    """Sizes the groups, and tries it."""
    found = asyncio.run(_all())
    print("| load | said | 95 % of the draws | by experiment |\n|---|--:|--:|--:|")
    for each in found:
        said, tried = ("none" if number is None else number for number in (each.said, each.found))
        print(f"| {each.name} | {said} | {each.low} to {each.high} | {tried}{'' if each.is_good else ' MISSED'} |")
    sys.exit(not all(each.is_good for each in found))


if __name__ == "__main__":
    main()
