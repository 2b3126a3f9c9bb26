"""The simulated cluster: a broker, workers that lead, processes of members, the world that checks
who really runs what, and one seed.

::

    cluster = SimulatedCluster(config, seed=7)
    cluster.start_worker()
    cluster.start_process(ProcessSettings(member_id="m1"))
    cluster.run_until(60_000)
    cluster.world.owners(cluster.now_ms)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from equipoise.events.codec import make_record
from equipoise.events.errors import InputError, InvariantBroken
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, MemberEnded, TopologyDeclared
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.member_process import Exit, ProcessSettings, ReplayedProcess, SessionFactory
from equipoise.replay.simulation.process_network import NetworkSettings, SimulatedNetwork
from equipoise.replay.simulation.restored_copies import Disk
from equipoise.replay.simulation.simulated_broker import Broker
from equipoise.replay.simulation.worker import ReplayedWorker, SimulatedWorkerSettings
from equipoise.replay.simulation.world import EndOffsetCurve, PartitionKey, SimulatedWorld
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.member import MemberSession
from equipoise.statemachine.partition import MachineFactory, real_machine


class Sink(Protocol):
    """Receives a complete log: `equipoise.log.Log` is one."""

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord: ...
    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None: ...


class MemorySink:
    """A complete log in memory, in stored order."""

    def __init__(self) -> None:
        self.entries: list[FactRecord | DecisionRecord] = []
        self._offset = 0

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        record = make_record(group, self._offset, append_ms, event)
        self._offset += 1
        self.entries.append(record)
        return record

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        self.entries += decisions


@attrs.frozen(kw_only=True)
class ClusterConfig:
    """Configuration of a group and its environment. `growth`: end offsets of changelog partitions
    over world time.
    """

    group: str = "group"
    log_id: str = "simulated"
    manifest: str = ""
    configured: GroupConfigured
    topology: TopologyDeclared
    growth: Mapping[PartitionKey, EndOffsetCurve] = attrs.field(factory=dict)
    start_ms: int = 0
    network: NetworkSettings = attrs.field(factory=NetworkSettings)
    worker: SimulatedWorkerSettings = attrs.field(factory=SimulatedWorkerSettings)


Watcher = Callable[[FactRecord, list[DecisionRecord], GroupMachine], None]
"""Called once for every fact, in the log's order, with its decisions and the machine that folded
it.
"""


class SimulatedCluster:
    """A group in a simulation. Equal configuration, seed and calls give equal logs, byte for byte.

    With a `sink` the complete log is written to it: each fact, followed by its decisions. `ended`
    is called with each process that has ended. Raises InvariantBroken(1) as soon as two members
    process one task at the same time, GroupHalted when a group halts or two computations of a
    decision differ.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        seed: int,
        sink: Sink | None = None,
        watcher: Watcher | None = None,
        session_factory: SessionFactory = MemberSession,
        machine_factory: MachineFactory = real_machine,
        ended: Callable[[ReplayedProcess], None] | None = None,
    ) -> None:
        self.config = config
        self.engine = Engine(seed=seed, start_ms=config.start_ms)
        self.network = SimulatedNetwork(self.engine, config.network)
        self.broker = Broker(self.engine, self.network, group=config.group, make_record=FactRecord if sink is None else make_record)
        self.world = SimulatedWorld(config.topology, config.growth)
        self.workers: list[ReplayedWorker] = []
        self.processes: list[ReplayedProcess] = []
        """Every process so far, in order of starting."""
        self.disks: dict[str, Disk] = {}
        self.exits: list[tuple[int, str, Exit]] = []
        """(time in ms, process, how it ended)."""
        self.folded = 0
        """Number of facts whose decisions are known."""
        self._sink = sink
        self._watcher = watcher
        self._session_factory = session_factory
        self._machine_factory = machine_factory
        self._ended = ended
        self._incarnation = 0
        self._topology_epoch = config.topology.epoch
        for event in (LogOpened(log_id=config.log_id, manifest=config.manifest), config.configured, config.topology):
            self.broker.append_fact(event)

    # Time

    @property
    def now_ms(self) -> int:
        return self.engine.now_ms

    def run_until(self, time_ms: int) -> None:
        """Runs everything up to and including world time `time_ms`."""
        self.engine.run_until(time_ms)

    def run_for(self, duration_ms: int) -> None:
        self.engine.run_until(self.engine.now_ms + duration_ms)

    def step(self) -> bool:
        """Runs the next event. Returns False when nothing is left."""
        return self.engine.step()

    # Workers

    def start_worker(self) -> ReplayedWorker:
        """Starts a worker that takes the partition, even when another worker believes that it
        leads.
        """
        worker = ReplayedWorker(
            f"worker-{len(self.workers) + 1}",
            self.engine,
            self.network,
            self.broker,
            self.world,
            self.config.worker,
            machine_factory=self._machine_factory,
            folded=self._was_folded,
        )
        self.workers.append(worker)
        worker.start()
        return worker

    def live_workers(self) -> list[ReplayedWorker]:
        return [worker for worker in self.workers if worker.alive]

    @property
    def machine(self) -> GroupMachine:
        """The machine that has folded most. Raises InputError before a worker has taken over."""
        machines = [worker.machine for worker in self.workers if worker.machine is not None]
        if not machines:
            raise InputError("SimulatedCluster: no worker has taken over yet; start one and let time pass")
        return max(machines, key=lambda machine: machine.state.last_offset)

    # Processes

    def start_process(self, settings: ProcessSettings, *, state_kept: bool = True, proven_dead: int | None = None) -> ReplayedProcess:
        """Starts a process on the disk of its member id. `proven_dead`: an earlier incarnation that
        the lock of its state directory proves to have ended.
        """
        if not state_kept:
            self.wipe(settings.member_id)
        lives = sum(process.member_id == settings.member_id for process in self.processes)
        return self._start(settings, self.disks.setdefault(settings.member_id, Disk()), lives + 1, proven_dead)

    def restart(self, member_id: str, *, proven: bool = True) -> ReplayedProcess:
        """Starts the member's last process, which has ended, again on its disk. `proven`: it proves
        that its predecessor is dead. See docs/protocol.md#m5. Raises InputError while the process
        is alive.
        """
        before = self.last_process(member_id)
        if before.alive:
            raise InputError(f"SimulatedCluster.restart: {before.name} is still alive; kill it first, or duplicate it")
        return self.start_process(before.settings, proven_dead=before.incarnation if proven else None)

    def prove_end(self, process: ReplayedProcess) -> None:
        """A witness proves that the process, which has ended, is gone (docs/protocol.md#m11).
        Raises InputError while the process is alive.
        """
        if process.alive:
            raise InputError(f"SimulatedCluster.prove_end: {process.name} is still alive")
        self.append(MemberEnded(member_id=process.member_id, incarnation=process.incarnation))

    def duplicate(self, member_id: str) -> ReplayedProcess:
        """Starts a second process with the same member id on an empty disk, whether or not the
        first one runs.
        """
        lives = sum(process.member_id == member_id for process in self.processes)
        disk = self.disks[member_id] = Disk()
        return self._start(self.last_process(member_id).settings, disk, lives + 1, None)

    def wipe(self, member_id: str) -> None:
        """Empties the member's disk. A running process keeps the stores it has open."""
        self.disks[member_id] = Disk()

    def last_process(self, member_id: str) -> ReplayedProcess:
        """Returns the member's process that was started last. Raises InputError when it never had
        one.
        """
        for process in reversed(self.processes):
            if process.member_id == member_id:
                return process
        raise InputError(f"SimulatedCluster: {member_id!r} never had a process")

    def live_processes(self) -> list[ReplayedProcess]:
        return [process for process in self.processes if process.alive]

    def _start(self, settings: ProcessSettings, disk: Disk, life: int, proven_dead: int | None) -> ReplayedProcess:
        process = ReplayedProcess(
            f"{settings.member_id}#{life}",
            self.engine,
            self.network,
            self.broker,
            self.world,
            settings,
            disk,
            next_incarnation=self._next_incarnation,
            proven_dead=proven_dead,
            session_factory=self._session_factory,
            ended=self._process_ended,
        )
        self.processes.append(process)
        process.start()
        return process

    def _next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def _process_ended(self, process: ReplayedProcess) -> None:
        assert process.exit is not None, "a process that ended has ended somehow"
        self.exits.append((self.now_ms, process.name, process.exit))
        if self._ended is not None:
            self._ended(process)

    # The log

    def append(self, fact: Fact) -> FactRecord:
        """Appends an operator's fact, such as a new configuration or topology, at once."""
        if isinstance(fact, TopologyDeclared) and fact.epoch > self._topology_epoch:
            self._topology_epoch = fact.epoch
            self.world.declare(fact)
        record = self.broker.append_fact(fact)
        self.broker.wake_facts()
        return record

    def forget(self, keep: int) -> None:
        """Drops facts and decisions older than the last `keep` of each, to bound the memory of long
        runs. Reading a dropped one fails.
        """
        self.broker.forget(keep)

    def _was_folded(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        if record.offset != self.folded:
            return
        self.folded += 1
        if self._watcher is not None:
            self._watcher(record, decisions, machine)
        if self._sink is not None:
            written = self._sink.append_fact(record.group, record.append_ms, record.event)
            if attrs.evolve(written, refused=record.refused) != record:
                raise InvariantBroken(8, f"offset {record.offset}: the log holds another record than was folded")
            if decisions:
                self._sink.append_decisions(decisions)
