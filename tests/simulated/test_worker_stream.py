"""Facts flow through the worker's Faust application: deployed workers on simulated brokers."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from equipoise.events.facts import Fact, MemberLeft
from equipoise.folding.log_reading import FactReader
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.envelope import group_key, pack_fact, partition_of, published
from equipoise.log.kafka.log_topics import Topics
from equipoise.operations.follower import Follower, KnownGroup
from equipoise.replay.all_clear import AskedNow
from equipoise.statemachine.machine import GroupMachine
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedSettings
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.machines import Machine, SimulatedProcess
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler
from equipoise.testing.simulated.worker import SimulatedWorker
from equipoise.worker.takeover_session import TakeoverSession
from tests.groups import configured
from tests.simulated.run import _quiet

PARTITIONS = 4
SETTLED_S = 15.0
TOPICS = Topics("equipoise")


class Workers:
    """One broker, and workers of one log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scheduler = Scheduler(1)
        self.cluster = Cluster(self.scheduler, Random(1))
        self.workers: dict[str, SimulatedWorker] = {}
        self.processes: dict[str, SimulatedProcess] = {}

    def start(self, name: str) -> None:
        process = SimulatedProcess(self.scheduler, Machine(name, self.folder / name, Random(1)), name, ended=print)
        settings = SimulatedSettings(made=SimulatedClients(self.cluster, name), partitions=PARTITIONS)

        async def lead() -> None:
            worker = self.workers[name] = SimulatedWorker(settings, process)
            await worker.start()
            await asyncio.get_running_loop().create_future()

        self.processes[name] = process
        process.start(lead())

    def settle(self, seconds: float = SETTLED_S) -> None:
        self.scheduler.run(self.scheduler.now_us + int(seconds * S_US))

    def led_by(self, name: str) -> dict[int, Any]:
        hosts = self.workers[name]._partitions.hosts
        return {partition: host._session for partition, host in hosts.items() if host.leading}

    def send(self, group: str, *facts: Fact) -> None:
        """Appends facts, as members do."""
        place = self.cluster.partition(TopicPartition(TOPICS.facts, partition_of(group, PARTITIONS)))
        assert place is not None
        contents = [(group_key(group), pack_fact(fact), (), self.cluster.now_ms()) for fact in facts]
        self.cluster.append(place, Batch(-1, -1, -1, False, contents, 100))

    def decided(self, group: str) -> list[int]:
        """Numbers of the published decisions of a group, in the order of the topic."""
        place = self.cluster.partition(TopicPartition(TOPICS.decisions, partition_of(group, PARTITIONS)))
        assert place is not None
        stored = [published(record) for record in place.log.records if record.value is not None]
        return [each.row.number for each in stored if each is not None and each.row.group == group]


@pytest.fixture
def workers() -> Iterator[Workers]:
    folder = Path(tempfile.mkdtemp())
    with _quiet(1):
        made = Workers(folder)
        yield made
        made.scheduler.dispose()
        vars(made).clear()
    shutil.rmtree(folder)


def left(number: int) -> list[Fact]:
    """Facts that are answered with one decision each, and change nothing."""
    return [MemberLeft(member_id="nobody", incarnation=each) for each in range(number)]


def in_frames_of(name: str) -> bool:
    """Returns whether a function of that name has called this one."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_qualname == name:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def test_machine_is_stepped_within_the_agents_own_call_and_nobody_else_reads_facts(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.start("a")
    workers.settle()
    stepped, read = [], []
    step, batch = GroupMachine.step, FactReader.batch

    def noting_step(machine: GroupMachine, *arguments: Any, **options: Any) -> Any:
        stepped.append(in_frames_of("Worker.declare.<locals>.fold"))
        return step(machine, *arguments, **options)

    async def noting_batch(reader: FactReader) -> Any:
        read.append(in_frames_of("LogConsumer.deliver"))
        return await batch(reader)

    monkeypatch.setattr(GroupMachine, "step", noting_step)
    monkeypatch.setattr(FactReader, "batch", noting_batch)
    workers.send("g", configured(), *left(5))
    workers.settle(5)
    assert len(stepped) >= 6
    assert all(stepped)
    assert len(read) >= PARTITIONS
    assert all(read)
    assert workers.decided("g") == [1, 2, 3, 4, 5]


def test_only_partitions_that_move_stop_when_a_worker_joins_is_killed_or_leaves(workers: Workers) -> None:
    workers.start("a")
    workers.settle()
    alone = workers.led_by("a")
    assert alone.keys() == set(range(PARTITIONS))
    workers.start("b")
    workers.settle()
    shared, others = workers.led_by("a"), workers.led_by("b")
    assert len(shared) == len(others) == PARTITIONS // 2
    assert shared.keys() | others.keys() == set(range(PARTITIONS))
    assert all(alone[partition] is session for partition, session in shared.items())
    workers.processes["b"].kill()
    workers.settle(30)
    again = workers.led_by("a")
    assert again.keys() == set(range(PARTITIONS))
    assert all(again[partition] is session for partition, session in shared.items())


def test_partition_that_waits_holds_back_no_other(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.start("a")
    workers.settle()
    names = {partition_of(name, PARTITIONS): name for name in map(str, range(100))}
    fold = TakeoverSession.fold

    async def slow_in_one(session: TakeoverSession, batch: Any) -> None:
        if session._partition == 0 and batch.records:
            await asyncio.sleep(2)
        await fold(session, batch)

    monkeypatch.setattr(TakeoverSession, "fold", slow_in_one)
    for name in names.values():
        workers.send(name, configured(), *left(1))
    workers.settle(1)
    assert {partition: bool(workers.decided(name)) for partition, name in names.items()} == {0: False, 1: True, 2: True, 3: True}
    workers.settle(3)
    assert workers.decided(names[0])


def test_sessions_that_fail_while_facts_come_skip_none_and_decide_none_twice(workers: Workers) -> None:
    """Batches that were brought for a session that has ended are read again by the next one."""
    workers.start("a")
    workers.settle()
    workers.send("g", configured())
    for number, fact in enumerate(left(200)):
        workers.send("g", fact)
        if number % 20 == 7:
            workers.led_by("a").get(partition_of("g", PARTITIONS), _NOBODY)._sender.fail(RuntimeError("a fault"))
        workers.settle(0.1)
    workers.settle()
    assert sorted(set(workers.decided("g"))) == [*range(1, 201)]


def test_group_that_nobody_decides_in_is_shown_as_it_was_before_the_first_undecided_fact(workers: Workers) -> None:
    """One fetch brings the facts behind it, too."""
    workers.start("a")
    workers.settle()
    workers.send("g", configured(), *left(2))
    workers.settle(5)
    workers.processes["a"].kill()
    workers.send("g", *left(5))
    found: list[KnownGroup] = []

    async def ask() -> None:
        settings = SimulatedSettings(made=SimulatedClients(workers.cluster, "reader"), partitions=PARTITIONS)
        follower = Follower(settings, TOPICS, "g")
        await follower.catch_up()
        found.extend(await follower.known(AskedNow(workers=0, unknown="", now_ms=workers.cluster.now_ms())))

    SimulatedProcess(workers.scheduler, Machine("reader", workers.folder / "reader", Random(1)), "reader", ended=lambda error: None).start(ask())
    workers.settle(30)
    [known] = found
    assert workers.decided("g") == [1, 2]
    assert known.lead.machine.state.number == 2
    assert known.grounds.complete.undecided is not None
    assert known.grounds.complete.undecided.decisions == 5


class _Nothing:
    def fail(self, error: Exception) -> None:
        """The session is over already."""


class _Nobody:
    _sender = _Nothing()


_NOBODY = _Nobody()
