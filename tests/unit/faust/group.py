"""A group of Faust's real assignors, without Kafka: each round has all workers join, one of them
assign, and all take what they are assigned. Copies are restored at once when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import faust
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from faust.assignor.partition_assignor import PartitionAssignor

from equipoise.faust import FaustAssignor
from equipoise.faust.report import Report, told_in, with_report

SOURCE, CHANGELOG = "orders", "app-counts-changelog"
TOPICS = (SOURCE, CHANGELOG)
RECORDS = 50_000


class Topics(ClusterMetadata):  # type: ignore[misc]
    """The cluster's metadata as a broker would give it."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self._partitions = {topic: dict.fromkeys(range(partitions)) for topic in TOPICS}


@attrs.define
class Process:
    """One worker. `offsets`: of the copies on its disk."""

    name: str
    assignor: Any
    offsets: dict[int, int] = attrs.field(factory=dict)
    generation: int = -1
    group: tuple[str, ...] = ()
    warmups: tuple[tuple[str, int], ...] = ()
    reported: dict[int, int] | None = None
    """What it reports instead of `offsets`."""
    is_current: bool = True

    @property
    def active(self) -> set[int]:
        return set(self.assignor._assignment.actives.get(SOURCE, []))

    @property
    def standby(self) -> set[int]:
        return set(self.assignor._assignment.standbys.get(CHANGELOG, []))


class Group:
    """`kinds`: name -> class of the assignor. Every changelog partition has `records`."""

    def __init__(self, folder: Path, *, partitions: int, replicas: int, records: int = RECORDS) -> None:
        self.folder, self.partitions, self.replicas, self.records = folder, partitions, replicas, records
        self.processes: dict[str, Process] = {}
        self.generation = 0
        self.restored = 0
        """Records that tasks had to restore before they could process."""
        self._disks: dict[str, dict[int, int]] = {}

    def start(self, name: str, kind: type[PartitionAssignor] = FaustAssignor) -> Process:
        """A new process of the worker, on its disk."""
        app = faust.App(
            "app",
            broker="kafka://nowhere",
            store="rocksdb://",
            datadir=str(self.folder / name),
            web_host=name,
            PartitionAssignor=kind,
            table_standby_replicas=self.replicas,
            autodiscover=False,
        )
        table = app.Table("counts", partitions=self.partitions)
        app.tables._changelogs[table.changelog_topic.get_topic_name()] = table
        self.processes[name] = Process(name, app.assignor, self._disks.setdefault(name, {}))
        return self.processes[name]

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        if isinstance(process.assignor, FaustAssignor):
            process.assignor._close_log()

    def close(self) -> None:
        for name in list(self.processes):
            self.stop(name)

    def rebalance(self, leader: str | None = None) -> None:
        """All join, and are assigned. Whoever is the first leads, or `leader`."""
        self.generation += 1
        leading = self.processes[leader or min(self.processes)].assignor
        if isinstance(leading, FaustAssignor):
            leading._ends = {(CHANGELOG, number): self.records for number in range(self.partitions)}
        assigned = leading.assign(Topics(self.partitions), {name: self._metadata(process) for name, process in self.processes.items()})
        for name, process in self.processes.items():
            process.assignor.on_assignment(assigned[name])
            self._take(process, assigned[name])

    def _metadata(self, process: Process) -> ConsumerProtocolMemberMetadata:
        stock = PartitionAssignor.metadata(process.assignor, set(TOPICS))
        if not isinstance(process.assignor, FaustAssignor):
            return stock
        offsets = {CHANGELOG: dict(process.offsets if process.reported is None else process.reported)}
        report = Report(worker=process.name, generation=process.generation, group=process.group, is_current=process.is_current, offsets=offsets)
        return ConsumerProtocolMemberMetadata(stock.version, stock.subscription, with_report(stock.user_data, report))

    def _take(self, process: Process, assignment: Any) -> None:
        told = told_in(PartitionAssignor._decompress(assignment.user_data))
        process.generation = self.generation
        process.group, process.warmups = (told.group, told.warmups) if told is not None else ((), ())
        for number in process.active:
            self.restored += self.records - 1 - process.offsets.get(number, -1)
            process.offsets[number] = self.records - 1
        for number in process.standby:
            process.offsets[number] = self.records - 1

    def settle(self) -> int:
        """Rebalances until nobody waits for a copy. Returns how often."""
        times = 0
        while any(process.warmups for process in self.processes.values()):
            self.rebalance()
            times += 1
            assert times < 10, "it does not come to rest"
        return times

    def counts(self) -> Mapping[str, int]:
        return {name: len(process.active) for name, process in self.processes.items()}

    def check(self) -> None:
        """Every partition is active on one worker, and on that one alone."""
        owned = sorted(number for process in self.processes.values() for number in process.active)
        assert owned == list(range(self.partitions))
        for process in self.processes.values():
            assert not process.active & process.standby
