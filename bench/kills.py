"""`python -m bench.kills`: how long tasks stand still when their member is killed with SIGKILL,
under load, and how long groups are without decisions when their worker is, with witnesses and
without.

Three members run the tasks of a small stateful application. The oldest is killed; when its tasks
run elsewhere another one joins, under a new name, because a member that crashes again and again
gets no tasks for a while. The silence of a task is the time between its last
output before the kill and its first output by another owner, by the broker's clock; each task gets
a record each EVERY_MS. At the end everything is recounted.

Of two workers, the one that leads is killed. A fact that is answered with one decision is sent each
PROBE_MS; the gap is the longest time between two decisions, by the broker's clock.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import attrs
import click

from bench.live import PATIENCE_S, WorkerProcess, broker, quantile
from bench.live_members import Application, MemberProcess, until_running
from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import MemberLeft
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import reader, writer
from equipoise.log.kafka.envelope import group_key, pack_fact
from equipoise.log.kafka.log_topics import DEFAULT_PREFIX, Topics
from equipoise.member.copies.origin import read_origin
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.cut import Relays
from tests.live.storm.checks import decisions
from tools.brokers import FAST_JAVA, Brokers

MEMBERS = 3
EVERY_MS = 20
SESSION = {"session_timeout_ms": 10_000, "lease_margin_ms": 3_000, "heartbeat_interval_ms": 1_000}
REST_S = 2.0
STOP_S = 1.5
EVERY_LONG = 12
"""So many stops of a member are shorter than its lease, and the next is longer than its session."""
PROBE_MS = 50
GAP_S = 15.0
"""Time for the next worker to lead."""


async def outputs(application: Application) -> dict[str, list[tuple[int, int]]]:
    """Task -> (append time in ms, fencing token) of each output. Raises AssertionError when an
    input was not counted, or counted twice.
    """
    found: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    totals: dict[tuple[str, bytes], int] = {}
    topic = f"{application.name}-out"
    async with reader(application.connection, read_committed=True) as client:
        consumer: Any = client
        from aiokafka import TopicPartition

        places = [TopicPartition(topic, number) for number in range(application.partitions)]
        inputs = [TopicPartition(application.name, number) for number in range(application.partitions)]
        sent = sum((await consumer.end_offsets(inputs)).values())
        consumer.assign(places)
        for at, offset in (await consumer.beginning_offsets(places)).items():
            consumer.seek(at, offset)
        end_s = time.monotonic() + PATIENCE_S
        while sum(totals.values()) < sent:
            assert time.monotonic() < end_s, f"{sent} records, {sum(totals.values())} counted"
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    origin = read_origin(record.headers)
                    assert origin is not None, "a member has written it"
                    found[origin.task].append((record.timestamp_ms, origin.token))
                    counted = origin.task, record.key
                    totals[counted] = max(totals.get(counted, 0), int(record.value))
    assert sum(totals.values()) == sent, f"{sent} records, {sum(totals.values())} counted"
    return {task: sorted(each) for task, each in sorted(found.items())}


def silences(found: dict[str, list[tuple[int, int]]], kills: list[int]) -> list[int]:
    """Silence in ms of each task that a kill has stopped."""
    result = []
    for killed_ms in kills:
        for times in found.values():
            before = [each for each in times if each[0] <= killed_ms]
            after = [each for each in times if each[0] > killed_ms]
            if before and after and after[0][1] != before[-1][1] and after[0][0] - killed_ms < 2 * SESSION["session_timeout_ms"]:
                result.append(after[0][0] - before[-1][0])
    return result


async def measured(bootstrap: str, folder: Path, *, kills: int, tasks: int, guarantee: str, standbys: int, witness: bool) -> list[int]:
    config = configured(initial_delay_ms=1_000, num_standbys=standbys, probing_interval_ms=1_000, acceptable_recovery_lag=1_000)
    application = Application(connection=Connection(bootstrap=bootstrap), name="kills", partitions=tasks, config=config)
    await application.make_topics()
    options = {"state_directory": folder, "guarantee": guarantee, "witness": witness, **SESSION}
    members = {f"m{number}": MemberProcess(application, f"m{number}", **options) for number in range(MEMBERS)}
    done: list[int] = []
    feeding = None
    try:
        await until_running(list(members.values()), tasks, tasks // MEMBERS)
        feeding = asyncio.create_task(application.feed(1_000 / EVERY_MS * tasks))
        await asyncio.sleep(2 * REST_S)
        for number in range(kills):
            done.append(int(time.time() * 1_000))
            members.pop(f"m{number}").kill()
            await until_running(list(members.values()), tasks, 1)
            members[f"m{number + MEMBERS}"] = MemberProcess(application, f"m{number + MEMBERS}", **options)
            await until_running(list(members.values()), tasks, 1)
            await asyncio.sleep(REST_S)
            if sys.stderr.isatty() or (number + 1) % 10 == 0:
                print(f"{number + 1} of {kills} kills", file=sys.stderr, flush=True)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        return silences(await outputs(application), done)
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        await end_all(list(members.values()))


async def survivors(bootstrap: str, folder: Path, network: Relays | None, *, count: int, tasks: int, guarantee: str) -> tuple[int, int]:
    """Stops members with SIGSTOP `count` times, or with `network` cuts them off from the brokers;
    each EVERY_LONG-th time for longer than their session. They have witnesses. Returns how often a
    member was proven dead, and how often its session was over.
    """
    config = configured(initial_delay_ms=1_000, num_standbys=1, probing_interval_ms=1_000, acceptable_recovery_lag=1_000)
    application = Application(connection=Connection(bootstrap=bootstrap), name="kills", partitions=tasks, config=config)
    await application.make_topics()
    options = {"state_directory": folder, "guarantee": guarantee, "witness": True, **SESSION}
    names = [f"m{number}" for number in range(MEMBERS)]
    through = {name: Connection(bootstrap=network.bootstrap(name)) if network else application.connection for name in names}
    random = Random(count)
    async with contextlib.AsyncExitStack() as stack:
        if network:
            await stack.enter_async_context(network.relaying())
        members = {name: MemberProcess(attrs.evolve(application, connection=through[name]), name, **options) for name in names}
        stack.push_async_callback(end_all, list(members.values()))
        await until_running(list(members.values()), tasks, 1)
        feeding = asyncio.create_task(application.feed(100.0))

        async def stop(name: str, times: int) -> None:
            begin = partial(network.cut, name) if network else partial(members[name].signal, signal.SIGSTOP)
            end = partial(network.mend, name) if network else partial(members[name].signal, signal.SIGCONT)
            for number in range(times):
                begin()
                is_long = number % EVERY_LONG == EVERY_LONG - 1
                await asyncio.sleep((SESSION["session_timeout_ms"] / 1_000 + 3) if is_long else random.uniform(0.1, STOP_S))
                end()
                await asyncio.sleep(random.uniform(0.5, STOP_S))

        await asyncio.gather(*(stop(name, -(-count // MEMBERS)) for name in names))
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await until_running(list(members.values()), tasks, 1)
        await outputs(application)
        decided = [each async for each in decisions(application.connection, Topics(DEFAULT_PREFIX))]
    causes = [each.cause for each in decided if isinstance(each, MemberExpired)]
    return causes.count("proven_dead"), causes.count("session_timeout")


async def end_all(members: list[MemberProcess]) -> None:
    """Kills them; their witnesses prove it before the broker ends."""
    for member in members:
        member.kill()
    await asyncio.sleep(REST_S)


async def gaps(settings: WorkerSettings, kills: int, *, witness: bool) -> list[int]:
    """Longest time in ms without a decision, for each kill of the leading worker."""
    from aiokafka import TopicPartition

    start = partial(WorkerProcess, settings, *(["--witness", "true"] if witness else []))
    workers = [start()]
    workers[0].until_said("taken over")
    workers.append(start())
    found = []
    decisions = TopicPartition(settings.topics.decisions, 0)
    async with reader(settings) as client, writer(settings) as producer:
        consumer: Any = client
        consumer.assign([decisions])
        await producer.send_and_wait(settings.topics.facts, pack_fact(configured()), key=group_key("kills"), partition=0)
        for number in range(kills):
            workers[1].until_said("http://")
            await asyncio.sleep(REST_S)
            for at, offset in (await consumer.end_offsets([decisions])).items():
                consumer.seek(at, offset)
            await consumer.position(decisions)
            killed_s, sent = time.monotonic() + REST_S, 0
            begun_s = time.monotonic()
            while time.monotonic() < killed_s + GAP_S:
                fact = MemberLeft(member_id="nobody", incarnation=number * 10_000 + sent)
                await producer.send(settings.topics.facts, pack_fact(fact), key=group_key("kills"), partition=0)
                sent += 1
                if time.monotonic() >= killed_s and workers[0].process.poll() is None:
                    workers[0].process.kill()
                    workers[0].process.wait()
                await asyncio.sleep(max(0.0, begun_s + sent * PROBE_MS / 1_000 - time.monotonic()))
                if sent % 20 == 0 and workers[1].said.count("taken over") and time.monotonic() > killed_s + REST_S:
                    break
            await asyncio.sleep(1.0)
            times: list[int] = []
            while records := (await consumer.getmany(timeout_ms=500)).get(decisions, ()):
                times += [record.timestamp_ms for record in records]
            found.append(max(after - before for before, after in pairwise(times)))
            workers = [workers[1], start()]
    for worker in workers:
        worker.end(signal.SIGKILL)
    return found


@click.command()
@click.option("--kills", default=30, show_default=True)
@click.option("--tasks", default=6, show_default=True)
@click.option("--guarantees", default="at_least_once,exactly_once", show_default=True)
@click.option("--standbys", default=1, show_default=True)
@click.option("--workers", default=10, show_default=True, help="Kills of the leading worker.")
@click.option("--stops", default=0, show_default=True, help="SIGSTOPs of members with witnesses, none of whom may be taken for dead.")
@click.option("--cuts", default=0, show_default=True, help="Cuts of the network between such a member and the brokers.")
@click.option("--without", is_flag=True, help="Also without witnesses.")
def main(kills: int, tasks: int, guarantees: str, standbys: int, workers: int, stops: int, cuts: int, without: bool) -> None:
    """Measures the silence of tasks whose member is killed, and of groups whose worker is."""
    print("| | kills | tasks stopped | silence, ms: p50 | p99 | longest |\n|---|--:|--:|--:|--:|--:|")
    for guarantee in guarantees.split(",") if kills else ():
        for witness in (True, False) if without else (True,):
            folder = Path(tempfile.mkdtemp(prefix="equipoise-kills-"))
            try:
                with broker() as bootstrap, WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix=DEFAULT_PREFIX)) as worker:
                    worker.until_said("taken over")
                    found = asyncio.run(
                        measured(bootstrap, folder, kills=kills, tasks=tasks, guarantee=guarantee, standbys=standbys, witness=witness)
                    )
            finally:
                shutil.rmtree(folder)
            name = f"{guarantee}, {'witness' if witness else 'no witness'}"
            print(f"| {name} | {kills} | {len(found)} | {quantile(found, 0.5)} | {quantile(found, 0.99)} | {max(found)} |", flush=True)
    for what, count in (("stops", stops), ("cuts", cuts)):
        for guarantee in guarantees.split(",") if count else ():
            network = Relays([f"m{number}" for number in range(MEMBERS)]) if what == "cuts" else None
            with tempfile.TemporaryDirectory(prefix="equipoise-kills-") as home, contextlib.ExitStack() as stack:
                bootstrap = stack.enter_context(Brokers(1, network.listeners if network else (), java=FAST_JAVA)).bootstrap
                worker = stack.enter_context(WorkerProcess(WorkerSettings(bootstrap=bootstrap, prefix=DEFAULT_PREFIX)))
                worker.until_said("taken over")
                dead, expired = asyncio.run(survivors(bootstrap, Path(home), network, count=count, tasks=tasks, guarantee=guarantee))
            print(f"{guarantee}: {count} {what}, {dead} taken for dead, {expired} expired by their session timeout", flush=True)
            assert not dead, "a member that lives was taken for dead"
    for witness in (True, False)[: 1 + without] if workers else ():
        with broker() as bootstrap:
            found = asyncio.run(gaps(WorkerSettings(bootstrap=bootstrap, prefix=DEFAULT_PREFIX), workers, witness=witness))
        name = f"workers, {'witness' if witness else 'no witness'}"
        print(f"| {name} | {workers} | - | {quantile(found, 0.5)} | {quantile(found, 0.99)} | {max(found)} |", flush=True)


if __name__ == "__main__":
    main()
