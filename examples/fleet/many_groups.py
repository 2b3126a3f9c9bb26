"""An archive of many simulated groups, on which jobs over many groups are tried and measured.

Each group lives in a simulated cluster of its own (`equipoise.replay.simulation`): members join,
are killed, come back, leave and are added while changelogs grow. Group ``g000`` is the largest;
sizes fall as one over the rank (Zipf). Each group is a partition of the archive. Equal fleets give
equal records, whatever the number of processes that write them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from equipoise.assignors import registry
from equipoise.events import fields
from equipoise.events.errors import FieldError, InputError
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.log.parquet.archive_stores import store_at
from equipoise.log.parquet.files import MOST_PARTITIONS, is_archive, make_archive
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.parquet.snapshot import snapshot
from equipoise.log.parquet.store import clear
from equipoise.replay.parallel import in_processes
from equipoise.replay.simulation import ClusterConfig, ProcessSettings, RestoreModel, SimulatedCluster
from equipoise.replay.simulation.world import steady

_FLEET = "fleet-"
START_MS = 1_790_000_000_000
LEAST_RECORDS = 200
"""Smallest size of a group: a shorter log has hardly begun."""
_RANK_SHIFT = 8
"""Flattens the top of Zipf's law: of 200 groups the largest has about 4 % of all records."""
_STEP_MS = 10_000
_HAPPENS_EVERY_MS = 300_000
"""Mean time between two changes of a group's members."""
_FETCH_WAIT_MS = 3_000
"""A third of the usual long polls of a process. New records are fetched at once anyway, and a lease
lasts 8 s.
"""
_KEPT_RECORDS = 20_000
"""Records that the cluster keeps; nothing reads older ones."""
_ASSIGNORS = ("high_availability", "high_availability", "high_availability", "cooperative", "learner", "kafka_streams")


@attrs.frozen(kw_only=True)
class Fleet:
    """`records`: facts and decisions of all groups together. A group ends with the step in which it
    reaches its share, so the archive has slightly more.
    """

    groups: int = attrs.field(default=200, validator=fields.integer(1, MOST_PARTITIONS))
    records: int = attrs.field(default=5_000_000, validator=fields.integer(1))
    seed: int = attrs.field(default=0, validator=fields.integer())

    def __attrs_post_init__(self) -> None:
        if self.records < self.groups * LEAST_RECORDS:
            raise FieldError("Fleet.records", f"{self.groups} groups need at least {self.groups * LEAST_RECORDS:,}, so that each lives for a while")

    def sizes(self) -> list[int]:
        """Returns the records of each group, largest first."""
        weights = [1.0 / (rank + _RANK_SHIFT) for rank in range(self.groups)]
        spare = self.records - self.groups * LEAST_RECORDS
        return [LEAST_RECORDS + int(spare * weight / sum(weights)) for weight in weights]

    @property
    def log_id(self) -> str:
        return f"{_FLEET}{self.groups}-{self.records}-{self.seed}"


def make_fleet(fleet: Fleet, location: Path, *, processes: int = 1, advance: Callable[[int], None] = lambda records: None) -> int:
    """Writes the fleet to the archive `location` and returns its number of records.

    Groups of this fleet that the archive already has are kept, so an interrupted call can be
    repeated. An archive of another fleet is replaced. Raises InputError when `location` holds
    something else, StorageError when the disk is full, ProcessDiedError when a child process dies.
    """
    _prepare_archive(fleet, location)
    there = groups_there(fleet, location)
    sizes = fleet.sizes()
    tasks = [(index, size) for index, size in enumerate(sizes) if index not in there]  # largest first, so that no process starts a large group last
    advance(sum(there.values()))
    made = map(_Making(fleet, location), tasks) if processes <= 1 else in_processes(_Making(fleet, location), tasks, processes)
    written = sum(there.values())
    for records in made:
        advance(records)
        written += records
    return written


def groups_there(fleet: Fleet, location: Path) -> dict[int, int]:
    """Returns index -> records of the fleet's groups that the archive `location` has as a whole."""
    found = {index: files.next_row for index, files in snapshot(store_at(location)).partitions.items()}
    sizes = fleet.sizes()
    return {index: records for index, records in sorted(found.items()) if index < len(sizes) and records >= sizes[index]}


def _prepare_archive(fleet: Fleet, location: Path) -> None:
    """Creates the archive, or checks the existing one."""
    if not is_archive(store_at(location)):
        make_archive(store_at(location))
        return
    with ArchiveLog(str(location), "r") as archive:
        ids = {_log_id(archive, partition) for partition in archive.partitions()}
    others = sorted(each for each in ids if not each.startswith(_FLEET))
    if others:
        raise InputError(f"--to {location}: is an archive of log {others[0]!r}, which is no fleet; name another folder")
    if ids - {fleet.log_id}:
        clear(store_at(location))


def _log_id(archive: ArchiveLog, partition: int) -> str:
    first = next(archive.part(partition).read(), None)
    return first.event.log_id if isinstance(first, FactRecord) and isinstance(first.event, LogOpened) else ""


@attrs.frozen
class _Making:
    """Calls `make_group` for (index, size)."""

    fleet: Fleet
    location: Path

    def __call__(self, group: tuple[int, int]) -> int:
        return make_group(self.fleet, *group, self.location)


def make_group(fleet: Fleet, index: int, size: int, location: Path) -> int:
    """Simulates one group until it has `size` records, and writes them as partition `index`.
    Returns the number of records written.
    """
    with ArchiveLog(f"{location}?partition={index}", "w") as log, log.transaction():
        sink = _Counting(log)
        _Group(fleet, index, sink).live_until(size)
        return sink.records


class _Counting:
    """A log that counts its records."""

    def __init__(self, log: ArchiveLog) -> None:
        self._log = log
        self.records = 0

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        self.records += 1
        return self._log.append_fact(group, append_ms, event)

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        decided = list(decisions)
        self.records += len(decided)
        self._log.append_decisions(decided)


class _Group:
    """One group and its changes of members, all drawn from the fleet's seed and the group's number."""

    def __init__(self, fleet: Fleet, index: int, sink: _Counting) -> None:
        self._random = random.Random(f"{fleet.seed}.{index}")
        draw = self._random
        self._sink = sink
        members = draw.randint(2, 8)
        tasks = members * draw.randint(1, 4)
        state_records = draw.choice((20_000, 200_000, 1_000_000))
        start_ms = START_MS + draw.randrange(86_400_000)
        growth = {("store", part): steady(records=state_records, records_per_s=draw.randint(1, 200), start_ms=start_ms) for part in range(tasks)}
        self._restore = RestoreModel(records_per_s=draw.choice((20_000, 50_000, 100_000)))
        config = ClusterConfig(
            group=f"g{index:03}",
            log_id=fleet.log_id,
            configured=self._configured(draw.choice(_ASSIGNORS), draw.choice((0, 0, 1))),
            topology=TopologyDeclared(
                epoch=0,
                subtopologies=(
                    Subtopology(subtopology=0, partitions=tasks, stateful=True, source_topics=("orders",), changelog_topics=("store",)),
                    Subtopology(subtopology=1, partitions=draw.randint(1, 4), stateful=False, source_topics=("clicks",)),
                ),
            ),
            growth=growth,
            start_ms=start_ms,
        )
        self._cluster = SimulatedCluster(config, seed=draw.randrange(2**31), sink=sink)
        self._cluster.start_worker()
        self._members = 0
        for _ in range(members):
            self._add()

    def _configured(self, name: str, standbys: int) -> GroupConfigured:
        assignor = registry.latest(name)
        settings = GroupSettings(num_standbys=standbys, acceptable_recovery_lag=10_000, probing_interval_ms=120_000)
        return GroupConfigured(assignor=name, behaviour_version=assignor.version, solver=assignor.solver, knobs=settings)

    def _add(self) -> None:
        self._members += 1
        self._cluster.start_process(ProcessSettings(member_id=f"m{self._members}", capacity=2, restore=self._restore, fetch_wait_ms=_FETCH_WAIT_MS))

    def live_until(self, records: int) -> None:
        """Runs steps of _STEP_MS until the log has that many records."""
        cluster, draw = self._cluster, self._random
        while self._sink.records < records:
            cluster.run_for(_STEP_MS)
            if draw.randrange(_HAPPENS_EVERY_MS) < _STEP_MS:
                self._happen()
            cluster.forget(_KEPT_RECORDS)

    def _happen(self) -> None:
        """One member dies, comes back, leaves or is added. At least one stays."""
        cluster, draw = self._cluster, self._random
        alive = cluster.live_processes()
        gone = sorted({process.member_id for process in cluster.processes} - {process.member_id for process in alive})
        what = draw.choice(("kill", "kill", "back", "back", "leave", "add"))
        if what == "kill" and len(alive) > 1:
            draw.choice(alive).kill()
        elif what == "back" and gone:
            cluster.restart(draw.choice(gone))
        elif what == "leave" and len(alive) > 2:
            draw.choice(alive).leave()
        elif what == "add" and len(alive) < 12:
            self._add()


def check_location(location: str) -> Path:
    """Returns the folder of a new archive. Raises InputError when `location` names no folder."""
    if "://" in location or "?" in location:
        raise InputError(f"--to {location}: name a folder for the archive, as fleet/")
    return Path(location)
