"""`python -m bench.retention`: a log with retention that has lived for 30 days, in simulated time.

Groups with twenty members each, on real topics of a real broker, led by the deployed worker. The
times of all records are simulated: facts carry the sender's time instead of the broker's, which the
worker here accepts. Members report every REPORT_MS and do at once what they are asked. Every third
day one member of each group leaves or dies, and returns as another incarnation. An archive copies
the log every COPY_MS and declares its position.

Prints the size of the log on the broker's disk after each day. Then it measures and checks what a
log of a month with retention has to hold: a worker takes over, also one whose build has another
form of the state and has no checkpoint; `verify`, `explain`, `timeline` and `status` answer; the
archive and the log verify as one.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import click
from click.testing import CliRunner

from equipoise.cli import main as command_line
from equipoise.events.facts import Fact, LagReported, MemberJoined, MemberLeft
from equipoise.events.tasks import Lag, LagSentinel
from equipoise.folding import log_reading
from equipoise.kafka.aiokafka_wire import AiokafkaWire
from equipoise.kafka.client import NewTopic
from equipoise.kafka.started_clients import admin_client, writer
from equipoise.log import open_log
from equipoise.log.kafka import log as kafka_log
from equipoise.log.kafka import log_opening, log_topics
from equipoise.log.kafka.envelope import group_key, pack_fact
from equipoise.log.kafka.log import KafkaLog
from equipoise.log.kafka.log_archive import archive
from equipoise.replay.bases import read_as_one, stored_bases
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine import snapshots
from equipoise.statemachine.partition import PartitionLead
from equipoise.statemachine.state import MemberState
from equipoise.worker import base_storing
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.other_form import other_form
from tests.live.swarm import topology
from tools.brokers import FAST_JAVA, Brokers

MEMBERS, TASKS = 20, 40
DAY_MS = 86_400_000
SLOT_MS = 120_000
REPORT_MS = 180 * SLOT_MS
GOES_EVERY = 3
"""Days between two departures from a group."""
AWAY_MS = 24 * 3_600_000
SESSION_MS, MARGIN_MS, STEP_MS = 16 * 3_600_000, 3_600_000, 1_800_000
START_MS = 1_767_225_600_000  # 2026-01-01
COPY_MS = DAY_MS // 2
MOST_AHEAD = 2_000
"""Facts that are sent before the worker has folded those before."""


CONFIG = configured(max_step_ms=STEP_MS, revocation_timeout_ms=SESSION_MS, probing_interval_ms=DAY_MS, initial_delay_ms=1_000)


class Clock:
    """Simulated time, in ms."""

    now_ms = START_MS


@contextmanager
def simulated_time(clock: Clock) -> Iterator[None]:
    """Every record carries the time of `clock`, and readers take the senders' times."""

    senders = {name: {**must, "message.timestamp.type": "CreateTime"} for name, must in log_topics.MUST_BE.items() if name != "rejected"}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(AiokafkaWire, "wall_ms", side_effect=lambda: clock.now_ms))
        for module in (log_reading, kafka_log, log_opening):
            stack.enter_context(mock.patch.object(module, "check_append_time"))
        stack.enter_context(mock.patch.dict(log_topics.MUST_BE, senders))
        stack.enter_context(mock.patch.dict(log_topics.BASES_MUST_BE, {"message.timestamp.type": "CreateTime"}))
        stack.enter_context(mock.patch.object(base_storing, "_LOOK_S", 0.02))
        yield


async def make_topics(settings: WorkerSettings) -> None:
    """With small segments, which brokers free soon: a day passes in seconds."""
    quick = {"segment.bytes": str(2 * 2**20), "file.delete.delay.ms": "1000", "delete.retention.ms": "1000", "message.timestamp.type": "CreateTime"}
    for name in ("facts", "decisions"):
        quick_of = {**quick, "cleanup.policy": "delete", "retention.ms": "-1"}
        await make(settings, settings.topics.name_of(name), quick_of)
    for name in ("checkpoints", "bases"):
        compact = {**quick, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
        await make(settings, settings.topics.name_of(name), compact)


async def make(settings: WorkerSettings, name: str, configs: dict[str, str]) -> None:
    async with admin_client(settings) as admin:
        await admin.create_topics([NewTopic(name, 1, 1, {"unclean.leader.election.enable": "false", **configs})])


class Life:
    """The members of one log, as far as their facts go. `lead`: the leader's own state, which
    members obey at once.
    """

    def __init__(self, groups: int) -> None:
        self.groups = [f"g{number:03d}" for number in range(groups)]
        self.incarnations = {(group, member): 1 for group in self.groups for member in range(MEMBERS)}
        self.numbers: dict[tuple[str, int], int] = {}
        self.away: dict[tuple[str, int], int] = {}
        """Member -> when it returns (simulated ms)."""

    def first(self) -> Iterator[tuple[str, Fact]]:
        for group in self.groups:
            yield group, CONFIG
            yield group, topology(TASKS, prefix=f"{group}-")
            for member in range(MEMBERS):
                yield group, self._join(group, member)

    def _join(self, group: str, member: int) -> MemberJoined:
        incarnation = self.incarnations[group, member]
        return MemberJoined(
            member_id=f"m{member:02d}",
            incarnation=incarnation,
            session_timeout_ms=SESSION_MS,
            lease_margin_ms=MARGIN_MS,
            topology_epoch=1,
            join_nonce=f"{group} {member} {incarnation}",
            readiness="lag",
        )

    def slot(self, number: int, now_ms: int, lead: PartitionLead) -> Iterator[tuple[str, Fact]]:
        """The facts of SLOT_MS: reports, and who goes and who returns."""
        for who, back_ms in list(self.away.items()):
            if back_ms <= now_ms:
                del self.away[who]
                self.incarnations[who] += 1
                yield who[0], self._join(*who)
        a_day = DAY_MS // SLOT_MS
        for place, group in enumerate(self.groups):
            if number % a_day == (place * 7) % a_day and number > a_day // 2 and (number // a_day + place) % GOES_EVERY == 0:
                member = (number // a_day // GOES_EVERY + place) % MEMBERS
                if (group, member) not in self.away:
                    self.away[group, member] = now_ms + AWAY_MS
                    if place % 4:
                        name = f"m{member:02d}"
                        yield group, MemberLeft(member_id=name, incarnation=self.incarnations[group, member])
            for member in range(MEMBERS):
                if (place + member * 9 + number) % (REPORT_MS // SLOT_MS) == 0 and (group, member) not in self.away:
                    found = lead.groups[group].machine.state.members.get(f"m{member:02d}") if group in lead.groups else None
                    if found is not None and found.incarnation == self.incarnations[group, member]:
                        yield group, self._report(group, member, found)

    def _report(self, group: str, member: int, state: MemberState) -> LagReported:
        number = self.numbers[group, member] = self.numbers.get((group, member), 0) + 1
        lags: dict[Any, Lag] = {**dict.fromkeys((*state.standby, *state.warmup), 0), **dict.fromkeys(state.active, LagSentinel.ACTIVE)}
        return LagReported(
            member_id=state.member_id,
            incarnation=state.incarnation,
            number=number,
            assignment_epoch=state.issued_epoch,
            held=tuple(sorted(state.active)),
            ready=(),
            lags=dict(sorted(lags.items())),
        )


def size_of(disk: Path, prefix: str) -> dict[str, float]:
    """Megabytes of each topic on the broker's disk, indexes left out: they are allocated ahead."""
    found = {}
    for name in ("facts", "decisions", "bases", "checkpoints"):
        folder = disk / f"{prefix}.{name}-0"
        found[name] = sum(path.stat().st_size for path in folder.glob("*.log*")) / 1e6
    return found


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 300.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        await asyncio.sleep(0.02)


def has_risen(value: Callable[[], float], before: float) -> bool:
    return value() > before


def lead_of(worker: Worker) -> PartitionLead:
    return worker._partitions.hosts[0].lead


async def leading(settings: WorkerSettings) -> tuple[Worker, float]:
    """A worker that leads, and how long its takeover took in seconds."""
    worker = Worker(settings)
    await worker.start()
    await until(lambda: not worker.unready(), "the worker leads")
    return worker, worker.metrics.takeover_seconds._sum.get()


def copy(where: str, folder: str) -> int:
    with KafkaLog(where) as source, open_log(f"{folder}?partition=0", "a") as target:
        position = archive(source, target, facts_a_transaction=100_000).position
        source.declare_archive("bench", {0: position}, Clock.now_ms)
    return position


def answered(*arguments: str) -> tuple[float, str]:
    """Seconds of a command, and what it said on stderr. Raises AssertionError when it fails."""
    began_s = time.monotonic()
    result = CliRunner().invoke(command_line, list(arguments))
    assert result.exit_code == 0, (arguments, result.exit_code, result.output[-2_000:])
    return time.monotonic() - began_s, result.stderr


async def live(settings: WorkerSettings, life: Life, days: int, disk: Path, folder: str, where: str) -> None:
    """Lives `days`, and prints a line for each."""
    worker, _ = await leading(settings)
    print("| day | facts | first fact | facts MB | decisions MB | bases MB | checkpoints MB | s |\n|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    sent = 1
    based_ms, stored = START_MS, worker.metrics.bases._value.get
    async with writer(settings, max_batch_size=2**19) as producer:

        async def send(facts: Iterator[tuple[str, Fact]]) -> None:
            nonlocal sent
            for group, fact in facts:
                await producer.send(settings.topics.facts, pack_fact(fact), key=group_key(group), partition=0)
                sent += 1

        await send(life.first())
        await until(lambda: lead_of(worker).position >= sent, "the first facts are folded")
        await until(functools.partial(has_risen, stored, 0), "the first base is stored")
        bases_before = stored()
        for day in range(1, days + 1):
            began_s = time.monotonic()
            for number in range((day - 1) * DAY_MS // SLOT_MS, day * DAY_MS // SLOT_MS):
                Clock.now_ms = START_MS + number * SLOT_MS
                await send(life.slot(number, Clock.now_ms, lead_of(worker)))
                await until(lambda: lead_of(worker).position >= sent - MOST_AHEAD, "the worker keeps up")
                if Clock.now_ms - based_ms > settings.time_between_bases_ms:  # a day passes in seconds, and a base takes one
                    await until(functools.partial(has_risen, stored, bases_before), "a base is stored")
                    based_ms, bases_before = Clock.now_ms, stored()
                if (number + 1) % (COPY_MS // SLOT_MS) == 0:
                    await asyncio.to_thread(copy, where, folder)
            await asyncio.sleep(2.5)  # for the broker to free what was deleted
            sizes, begin = size_of(disk, settings.prefix), worker.metrics.first_offset.labels("0")._value.get()
            numbers = " | ".join(f"{size:.1f}" for size in sizes.values())
            print(f"| {day} | {lead_of(worker).position:,} | {begin:,.0f} | {numbers} | {time.monotonic() - began_s:.0f} |", flush=True)
    await worker.stop()


async def take_over(settings: WorkerSettings, what: str) -> None:
    worker, took_s = await leading(settings)
    lead = lead_of(worker)
    assert not any(group.halted for group in lead.groups.values()), what
    stored = worker.metrics.bases._value.get()
    Clock.now_ms += 7 * 3_600_000
    await worker._partitions.hosts[0].append(min(lead.groups), CONFIG)
    await until(lambda: worker.metrics.bases._value.get() > stored, "a base is stored")
    print(f"- {what}: leads {len(lead.groups)} groups after {took_s:.2f} s", flush=True)
    await worker.stop()


async def run(groups: int, days: int) -> None:
    clock = Clock()
    folder = tempfile.mkdtemp(prefix="equipoise-retention-")
    quick: Any = {"log.retention.check.interval.ms": "1000", "log.cleaner.backoff.ms": "1000", "log.initial.task.delay.ms": "1000"}
    with Brokers(java=FAST_JAVA, **quick) as brokers, simulated_time(clock):
        settings = WorkerSettings(bootstrap=brokers.bootstrap, prefix="month", http_port=0, retention_ms=DAY_MS, observe_interval_ms=3_600_000)
        where, archived = f"kafka://{settings.bootstrap}/month", f"{folder}/archive/"
        await make_topics(settings)
        await live(settings, Life(groups), days, brokers._disk(0), archived, where)
        await take_over(settings, "a new worker, from checkpoints")
        with other_form():
            await take_over(settings, f"a build with form {snapshots.FORM} of the state")
        await take_over(settings, f"rolled back to form {snapshots.FORM}")
        group = ("--group", "g007")
        for command in (("explain", where, *group, "--task", "0_3"), ("timeline", where, *group), ("status", where, *group, "--at", "2100-01-01")):
            took_s, stderr = await asyncio.to_thread(answered, *command)
            print(f"- {command[0]}: {took_s:.1f} s; {stderr.strip().splitlines()[0]}", flush=True)
        took_s, _ = await asyncio.to_thread(answered, "status", "--bootstrap", settings.bootstrap, "--prefix", "month", *group, "--json")
        print(f"- status: {took_s:.1f} s", flush=True)
        await asyncio.to_thread(copy, where, archived)
        await asyncio.to_thread(check, where, archived)
    shutil.rmtree(folder)


def check(where: str, archived: str) -> None:
    """Verifies the log, and the archive and the log as one."""
    for what, archive_ in (("the log", None), ("archive and log as one", archived)):
        began_s = time.monotonic()
        with open_log(where) as log_:
            found = verify(log_.read() if archive_ is None else read_as_one(archive_, log_), bases=stored_bases(log_))
        assert found.verdict is Verdict.IDENTICAL, found.problems[:3]
        counts = [sum(getattr(group, name) for group in found.groups) for name in ("facts", "compared", "bases")]
        numbers = "{:,} facts, {:,} decisions, {:,} states in bases".format(*counts)
        begins = "from its first record" if found.begins is None else f"from the base at {found.begins[0]:,}"
        print(f"- verify, {what}: identical, {begins}: {numbers}, {time.monotonic() - began_s:.0f} s", flush=True)


@click.command()
@click.option("--groups", default=200, show_default=True)
@click.option("--days", default=30, show_default=True)
def main(groups: int, days: int) -> None:
    """Prints a row for each day, and what was checked at the end."""
    asyncio.run(run(groups, days))


if __name__ == "__main__":
    sys.exit(main())
