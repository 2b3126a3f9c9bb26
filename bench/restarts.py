"""`python -m bench.restarts`: where the silence of a restart without standbys goes.

Three members run the tasks of a small stateful application. One after the other is stopped with
`leave(back_within_s=...)` and started again. A task is silent from its last record before to its
first one after. Its process is *away* from that call to the first line of the next process's code;
stopping is the part of it until the code has ended. The rest of the silence is what it takes to
join and to go on. The first restart is not counted: the broker's process is new, too.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path

import attrs
import click

from bench.live import WorkerProcess, broker, quantile
from bench.live_members import Application, MemberProcess, Turn, until_running
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.log_topics import DEFAULT_PREFIX
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured

MEMBERS = 3
PER_S = 10
"""Records of each task a second."""
DOWN_S = 1.0
REST_S = 6.0


@attrs.frozen(kw_only=True)
class Restart:
    """One restart, times in s. `silent_s`: the longest of a task of the member. `moved`: so many of
    its tasks another member ran next.
    """

    silent_s: float
    moved: int
    stopping_s: float
    away_s: float


async def measured(bootstrap: str, folder: Path, *, restarts: int, tasks: int, guarantee: str) -> list[Restart]:
    config = configured(initial_delay_ms=1_000, probing_interval_ms=60_000)
    application = Application(connection=Connection(bootstrap=bootstrap), name="restarts", partitions=tasks, config=config)
    await application.make_topics()
    options = {"state_directory": folder, "guarantee": guarantee}
    members = {f"m{number}": MemberProcess(application, f"m{number}", **options) for number in range(MEMBERS)}
    turns: dict[str, list[Turn]] = {name: [] for name in members}
    stopped: list[tuple[str, float, float, float]] = []
    feeding = None
    try:
        await until_running(list(members.values()), tasks, tasks // MEMBERS)
        feeding = asyncio.create_task(application.feed(PER_S * tasks))
        await asyncio.sleep(REST_S)
        for number in range(restarts + 1):
            name = f"m{number % MEMBERS}"
            turns[name] += await asyncio.to_thread(members[name].restart)
            asked_s, ended_s = members[name].asked_s, members[name].ended_s
            await asyncio.sleep(DOWN_S)
            members[name] = MemberProcess(application, name, **options)
            await until_running(list(members.values()), tasks, 1)
            stopped.append((name, asked_s, ended_s, members[name].began_s()))
            await asyncio.sleep(REST_S)
        for name, member in members.items():
            turns[name] += member.turns()
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        for member in members.values():
            member.kill()
    found = []
    for name, asked_s, ended_s, began_s in stopped[1:]:
        silent_s, moved = silence(turns, name, ended_s)
        found.append(Restart(silent_s=silent_s, moved=moved, stopping_s=ended_s - asked_s, away_s=began_s - asked_s))
    return found


def silence(turns: dict[str, list[Turn]], name: str, ended_s: float) -> tuple[float, int]:
    """The longest silence around `ended_s` of a task that `name` ran until then; and how many of
    these another member ran next.
    """
    of_task: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for member, of_member in turns.items():
        for partition, _, when_s in of_member:
            of_task[partition].append((when_s, member))
    longest, moved = 0.0, 0
    for each in map(sorted, of_task.values()):
        place = bisect_left(each, (ended_s, ""))
        (before_s, before), (after_s, after) = each[place - 1], each[place]
        if before == name:
            longest, moved = max(longest, after_s - before_s), moved + (after != name)
    return longest, moved


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


@click.command()
@click.option("--restarts", default=12, show_default=True)
@click.option("--tasks", default=26, show_default=True)
@click.option("--guarantees", default="at_least_once,exactly_once", show_default=True)
def main(restarts: int, tasks: int, guarantees: str) -> None:
    """Measures what a restart adds to the time in which the process is away."""
    print("| | restarts | owners changed | away, s | of which stopping | silent beyond that, s: p50 | longest |\n|---|--:|--:|--:|--:|--:|--:|")
    for guarantee in guarantees.split(","):
        folder = Path(tempfile.mkdtemp(prefix="equipoise-restarts-"))
        try:
            with broker() as bootstrap, WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix=DEFAULT_PREFIX)) as worker:
                worker.until_said("taken over")
                found = asyncio.run(measured(bootstrap, folder, restarts=restarts, tasks=tasks, guarantee=guarantee))
        finally:
            shutil.rmtree(folder)
        away, stopping = _range([each.away_s for each in found]), _range([each.stopping_s for each in found])
        beyond = [each.silent_s - each.away_s for each in found]
        counts = f"{restarts} | {sum(each.moved for each in found)}"
        print(f"| {guarantee} | {counts} | {away} | {stopping} | {quantile(beyond, 0.5):.2f} | {max(beyond):.2f} |", flush=True)


if __name__ == "__main__":
    main()
