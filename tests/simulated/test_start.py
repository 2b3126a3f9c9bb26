"""How long a new group takes to run its tasks, in virtual time: the member is refused, because the
group has no configuration, sends one, joins again, and opens what it is granted.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from equipoise import Member, MemoryStore, Record, TaskContext
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection, SimulatedSettings
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.partition_log import Batch
from equipoise.testing.simulated.machines import Machine, SimulatedProcess
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler
from equipoise.testing.simulated.worker import SimulatedWorker
from tests.groups import configured
from tests.simulated.run import _quiet
from tests.support.cluster_faults import grow_topic

TASKS = 6
GOAL_S = 1.5
"""Until all tasks of a new group run, beside its initial delay."""
DELAY_MS = 1_000
LED_S = 5.0
"""By then the worker leads."""
MOST_S = 60.0
SLOWNESS = 100.0


class NewGroup:
    """One broker, a worker, and members that start when it leads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scheduler = Scheduler(1)
        self.cluster = Cluster(self.scheduler, Random(1))
        self.cluster.create_topic("in", TASKS)
        self.cluster.create_topic("log", TASKS, 1, {"cleanup.policy": "compact"})
        self.assigned: list[tuple[TaskId, str]] = []
        """Task and member of each grant."""
        self.ended: dict[str, BaseException | None] = {}
        """Member whose process has ended -> why."""
        self.worker: SimulatedWorker
        worker = self._process("worker")
        settings = SimulatedSettings(made=SimulatedClients(self.cluster, "worker"), partitions=1)

        async def lead() -> None:
            self.worker = SimulatedWorker(settings, worker)
            await self.worker.start()
            await asyncio.get_running_loop().create_future()

        worker.start(lead())
        self.scheduler.run(int(LED_S * S_US))

    def _process(self, name: str) -> SimulatedProcess:
        return SimulatedProcess(self.scheduler, Machine(name, self.folder / name, Random(1)), name, ended=print)

    def start(self, name: str, *, slowness: float = 1.0, num_standbys: int = 0, **options: Any) -> Member:
        process = self._process(name)
        process.slow_down(slowness)

        def ignore(record: Record, context: TaskContext) -> None: ...

        member = Member(
            "g",
            options.pop("handler", ignore),
            sources=options.pop("sources", "in"),
            state=options.pop("state", "log"),
            member_id=name,
            open_store=options.pop("open_store", lambda folder: MemoryStore()),
            connection=SimulatedConnection(made=SimulatedClients(self.cluster, name)),
            _runtime=process,
            on_assigned=options.pop("on_assigned", lambda context: self.assigned.append((context.task, name))),
            group_config=configured(initial_delay_ms=DELAY_MS, num_standbys=num_standbys),
            **options,
        )
        process.start(self._until_over(name, member))
        return member

    async def _until_over(self, name: str, member: Member) -> None:
        try:
            await member._run()
        except BaseException as error:  # noqa: BLE001  # SystemExit is one
            self.ended[name] = error
        else:
            self.ended[name] = None

    def send(self, partition: int) -> None:
        """Appends a record to a source partition."""
        place = self.cluster.partition(TopicPartition("in", partition))
        assert place is not None
        self.cluster.append(place, Batch(-1, -1, -1, False, [(b"k", b"v", (), self.cluster.now_ms())], 100))

    def settle(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now_us + int(seconds * S_US))

    def runs_all_after_s(self) -> float:
        began_us = self.scheduler.now_us
        self.scheduler.run(int(began_us + MOST_S * S_US), lambda: len({task for task, _ in self.assigned}) == TASKS)
        return (self.scheduler.now_us - began_us) / S_US


@pytest.fixture
def group() -> Iterator[NewGroup]:
    folder = Path(tempfile.mkdtemp())
    with _quiet(1):
        made = NewGroup(folder)
        yield made
        made.scheduler.dispose()
        vars(made).clear()  # so that what is left of its coroutines is collected here
    shutil.rmtree(folder)


def test_new_group_runs_its_tasks_soon_after_the_initial_delay(group: NewGroup) -> None:
    group.start("m1")
    assert DELAY_MS / 1_000 < group.runs_all_after_s() < DELAY_MS / 1_000 + GOAL_S


@pytest.mark.parametrize("apart_s", [0.0, 0.3, 0.8])
def test_first_round_decides_for_two_members_that_start_together(group: NewGroup, apart_s: float) -> None:
    group.start("m1", slowness=SLOWNESS)
    group.scheduler.run(group.scheduler.now_us + int(apart_s * S_US))
    group.start("m2", slowness=SLOWNESS)  # it may find the group configured, by the member that was refused
    group.runs_all_after_s()
    assert sorted(name for _, name in group.assigned) == ["m1"] * (TASKS // 2) + ["m2"] * (TASKS // 2)


@pytest.mark.parametrize(
    ("given", "problem", "may"),
    [
        ({"sources": "other"}, "sub-topology 0 has other source topics {than} (source topics other there)", True),
        ({"state": "log-2"}, "sub-topology 0 has other state topics {than} (state topics log-2 there)", False),
        ({"state": ()}, "sub-topology 0 has state, or copies that are prepared, on one side only", False),
    ],
)
def test_member_with_another_topology_ends_with_the_difference(group: NewGroup, given: dict[str, Any], problem: str, may: bool) -> None:
    group.cluster.create_topic("other", TASKS)
    group.cluster.create_topic("log-2", TASKS, 1, {"cleanup.policy": "compact"})
    group.start("m1")
    group.runs_all_after_s()
    group.start("m2", **given)
    group.settle(10)
    assert problem.format(than="in topology epoch 0 of the group than at the member") in str(group.ended["m2"])
    assert "raise topology_epoch" in str(group.ended["m2"])
    assert {name for _, name in group.assigned} == {"m1"}
    del group.ended["m2"]
    group.start("m2", topology_epoch=1, **given)
    group.settle(20)
    if may:
        assert "m2" in {name for _, name in group.assigned}, "with a higher epoch it is let in"
    else:
        assert "its source offsets are in changelog log, which is no state of it any more" in str(group.ended["m2"])


def test_member_restarts_with_the_same_topology_when_its_topics_have_grown(group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    group.start("m1")
    group.runs_all_after_s()
    grow_topic(group.cluster, "in", TASKS + 2)
    grow_topic(group.cluster, "log", TASKS + 2)
    with caplog.at_level("WARNING", logger="equipoise"):
        group.start("m2")
        group.settle(30)
    assert "m2" in {name for _, name in group.assigned}
    assert [record.getMessage() for record in caplog.records if "read by nobody" in record.getMessage() and "member" not in record.getMessage()] == [
        "group g: 2 partitions of in are read by nobody: deploy with a higher topology_epoch"
    ]


def test_member_says_how_many_partitions_of_its_sources_nobody_reads_when_that_changes(group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    group.start("m1")
    group.runs_all_after_s()
    with caplog.at_level("WARNING", logger="equipoise"):
        for more in (1, 3):
            grow_topic(group.cluster, "in", TASKS + more)
            group.settle(700)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("equipoise.member")] == [
        "group g: member m1: 1 partition of in is read by nobody: deploy with a higher topology_epoch",
        "group g: member m1: 3 partitions of in are read by nobody: deploy with a higher topology_epoch",
    ]
