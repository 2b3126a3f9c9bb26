"""A deployment of the sample application in virtual time: brokers, workers and members, each a
process that runs the code that is deployed.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import msgpack

from equipoise import Member, SupersededError, TaskContext
from equipoise.events import codec, forms
from equipoise.events.errors import InputError
from equipoise.events.facts import Fact, GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.envelope import pack_decision, pack_fact, pack_payload
from equipoise.log.kafka.log_topics import Topics
from equipoise.member.tasks.context import State, read_sources
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection, SimulatedSettings
from equipoise.testing.simulated.kafka.broker_network import BrokerConnection, Network
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.cluster_state import BrokerPartition
from equipoise.testing.simulated.kafka.partition_log import Batch, StoredRecord
from equipoise.testing.simulated.machines import DiskStore, Machine, SimulatedProcess
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler
from equipoise.testing.simulated.worker import SimulatedWorker
from examples.orders.count import count
from examples.orders.produce import STATE_SETTINGS
from tests import faults
from tests.customers import placed_customers
from tests.simulated.judge import OwnerWatch
from tests.support.cluster_faults import committed_end, heal_broker, resume_broker, start_broker

GROUP = "orders"
TOPIC = "orders"
PREFIXES = ("simulated", "other", "third")
"""Of the logs that an operator changes between; the first one is the first."""
TASKS = 4
LOG_PARTITIONS = 2
CUSTOMERS = 12
BROKERS = 3
LATEST_S = 12
"""So much later than others a late produce request may arrive."""
ORDER_S = 0.03
"""Mean time between two orders."""
MOST_MISSING = 30
MEMBERS = ("m1", "m2", "m3")
EXTRA = ("m4",)
WORKERS = ("w1", "w2")
EXTRA_WORKERS = ("w3", "w4")
"""They lead another log while members of both run."""
SESSION_MS, MARGIN_MS, HEARTBEAT_MS = 6_000, 1_500, 700
WORKER_SESSION_S = 3.0
RESTART_S = 0.5
SETTINGS = GroupSettings(
    acceptable_recovery_lag=20,
    num_standbys=1,
    initial_delay_ms=500,
    probing_interval_ms=3_000,
    max_step_ms=500,
    revocation_timeout_ms=8_000,
    drain_timeout_ms=8_000,
    warmup_stall_ms=5_000,
    checkpoint_every_records=60,
)
CONFIG = GroupConfigured(assignor="high_availability", behaviour_version=3, solver="ortools-9.15.6755", knobs=SETTINGS)
MOST_UNCOMMITTED = 8


class FaultyNetwork(Network):
    """`late`: processes of which every fifth produce request arrives late; the last of these has
    arrived by `late_until_s`. `unheard`: processes of which every fifth answer to one is lost.
    `kept`: process -> (connection, arrival) of requests that wait for `deliver`: a produce request,
    and what follows it. Every second one is kept, because the changelog's is sent when that of the
    outputs is answered.
    """

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.late: set[str] = set()
        self.late_until_s = 0.0
        self.kept: dict[str, list[tuple[BrokerConnection, Callable[[], None]]]] = {}
        self.unheard: set[str] = set()

    def trip_us(self, process: str, broker: int, request: str, *, back: bool) -> int | None:
        trip_us = super().trip_us(process, broker, request, back=back)
        if trip_us is None or request != "Produce" or process not in (self.unheard if back else self.late) or self.random.random() > 0.2:
            return trip_us
        return None if back else trip_us + self.random.randrange(LATEST_S * 1_000_000)

    def keeps(self, process: str, connection: BrokerConnection, request: str, arrive: Callable[[], None]) -> bool:
        kept = self.kept.get(process)
        if kept is None:
            return False
        if any(each is connection for each, _ in kept) or (request == "Produce" and self.random.random() < 0.5):
            kept.append((connection, arrive))
            return True
        return False

    def deliver(self, process: str) -> None:
        """Lets arrive what was kept of a process, and keeps no more of it."""
        for _, arrive in self.kept.pop(process, []):
            arrive()


@attrs.define(eq=False)
class Seat:
    """One member id: the process that has it, and where its disk is."""

    name: str
    member_id: str
    machine: Machine
    wanted: bool = True
    """Whether a process of this member is to run."""
    process: SimulatedProcess | None = None
    member: Member | None = None
    disk: int = 0
    busy: bool = False
    """Whether a fault is under way here."""
    session_ms: int = SESSION_MS
    margin_ms: int = MARGIN_MS
    """Of the processes that start from here on."""
    mistake: str = ""
    """What the build that it has got changed of the topology without another epoch; "": nothing."""

    @property
    def folder(self) -> Path:
        """State directory."""
        return self.machine.folder / f"disk-{self.disk}"

    @property
    def running(self) -> Collection[TaskId]:
        """The tasks that its process runs; none while that starts."""
        return () if self.member is None or self.member._host is None else self.member.running


@attrs.define(eq=False)
class WorkerSeat:
    """One worker: the process that runs it."""

    name: str
    machine: Machine
    wanted: bool = True
    prefix: str = PREFIXES[0]
    """Of the log that its processes lead from here on."""
    process: SimulatedProcess | None = None
    worker: SimulatedWorker | None = None
    busy: bool = False


class Deployment:
    """Everything that runs. `seed` decides all that chance decides. `problems`: what should not
    have happened while it ran.
    """

    def __init__(self, seed: int, guarantee: str) -> None:
        self.seed = seed
        self.guarantee = guarantee
        self.random = Random(f"deployment {seed}")
        self.scheduler = Scheduler(seed)
        self.prefix = PREFIXES[0]
        """Of the log that members join now."""
        self.prefixes = {self.prefix}
        self.have_overlapped = False
        """Whether members of two logs ran at once."""
        """Of all logs that there are."""
        self.folder = Path(tempfile.mkdtemp(prefix="equipoise-simulated-", dir=_fast_folder()))
        self.network = FaultyNetwork(Random(f"network {seed}"))
        self.cluster = Cluster(self.scheduler, Random(f"kafka {seed}"), brokers=BROKERS, network=self.network)
        self.cluster.tells_epochs = seed % 7 < 3
        for broker in self.cluster.brokers:
            broker.clock_ms = self.random.randrange(-3_000, 3_000)
        self.failover_from_s = 0.0
        """From then on a failover may happen."""
        self.known: dict[TopicPartition, dict[int, StoredRecord]] = {}
        """Committed records of a partition, by offset, as they were before it was compacted."""
        self.new_logs = 0
        self.guarantee_changes = 0
        self.watch = OwnerWatch()
        self.problems: list[str] = []
        self.trace: list[str] = []
        """Faults, starts and ends of processes."""
        self._launches = 0
        self.is_calm = True
        """Whether no fault is under way that explains why a process ends by itself."""
        id_of = faults.long_id if seed % 3 == 0 else str
        self.members = {name: Seat(name, id_of(name), self._machine(name), wanted=name in MEMBERS) for name in (*MEMBERS, *EXTRA)}
        self.workers = {name: WorkerSeat(name, self._machine(name), wanted=name in WORKERS) for name in (*WORKERS, *EXTRA_WORKERS)}
        self.orders = 0
        self.tasks = TASKS
        """Partitions of the source, and tasks of the present build of the application."""
        self.subtopology = 0
        """The number of the only one, in the present build."""
        self.topology_epoch = 0
        self.present_guarantee = guarantee
        """With which members start now."""
        self.newer: set[str] = set()
        """Processes of workers whose build appends a field to each decision."""
        self.older: set[str] = set()
        """Members whose processes write facts by the schemas before the last change."""
        self._orders_until_us = 0
        self.observer = self._process(self._machine("observer"), "observer", lambda error: self.problem(f"the observer has ended: {error!r}"))

    def _machine(self, name: str) -> Machine:
        return Machine(name, self.folder / name, Random(f"machine {self.seed} {name}"))

    def _process(self, machine: Machine, name: str, ended: Callable[[BaseException | None], object]) -> SimulatedProcess:
        self._launches += 1
        process = SimulatedProcess(self.scheduler, machine, f"{name}#{self._launches}", ended=ended)
        return process

    def connection(self, process: SimulatedProcess) -> SimulatedConnection:
        return SimulatedConnection(made=SimulatedClients(self.cluster, process.name))

    def close(self) -> None:
        """Ends everything."""
        self.scheduler.dispose()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def topics(self) -> Topics:
        """Of the log that members join now."""
        return Topics(self.prefix)

    def topology_of(self, seat: Seat) -> TopologyDeclared:
        """Of the build that the seat has."""
        if not seat.mistake:
            return self.topology
        (part,) = self.topology.subtopologies
        changed: dict[str, Any] = {
            "sources": {"source_topics": (f"{TOPIC}-other",)},
            "state": {"changelog_topics": (f"{TOPIC}-other-state",)},
            "number": {"subtopology": part.subtopology + 1},
        }
        return TopologyDeclared(epoch=self.topology_epoch, subtopologies=(attrs.evolve(part, **changed[seat.mistake]),))

    @property
    def topology(self) -> TopologyDeclared:
        """Of the present build of the application."""
        part = Subtopology(
            subtopology=self.subtopology, partitions=self.tasks, stateful=True, source_topics=(TOPIC,), changelog_topics=(f"{TOPIC}-state",)
        )
        return TopologyDeclared(epoch=self.topology_epoch, subtopologies=(part,))

    @property
    def now_s(self) -> float:
        return self.scheduler.now_us / S_US

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now_s:8.3f} {text}")

    def problem(self, text: str) -> None:
        self.say(f"PROBLEM: {text}")
        self.problems.append(f"{self.now_s:.3f} s: {text}")

    def later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        self.scheduler.call_later(delay_s * S_US, callback, *arguments)

    # Members

    def join_log(self, prefix: str, *, overlap: bool = False) -> None:
        """Members that start from here on join the log of that prefix. `overlap`: while others run
        in the log before.
        """
        self.say(f"members join the log {prefix}")
        self.prefix = prefix
        self.prefixes.add(prefix)
        self.watch.begins_log(overlap=overlap)
        self.have_overlapped |= overlap

    def start_member(self, seat: Seat) -> None:
        if seat.process is not None or not seat.wanted:
            return
        process = self._process(seat.machine, seat.name, lambda error: self._member_ended(seat, process, error))
        seat.process = process
        self.say(f"{process.name} starts")
        process.start(self._run_member(seat, process))

    async def _run_member(self, seat: Seat, process: SimulatedProcess) -> None:
        async def handler(record: Any, context: TaskContext) -> None:
            host = member._host
            assert host is not None, "it runs"
            self.watch.handles(self.now_s, process.name, host._link.log_id, context.task, context.token)
            await count(record, context)

        member = Member(
            GROUP,
            handler,
            _topology=self.topology_of(seat),
            member_id=seat.member_id,
            connection=self.connection(process),
            _runtime=process,
            guarantee=self.present_guarantee,
            most_uncommitted_records=MOST_UNCOMMITTED,
            prefix=self.prefix,
            group_config=CONFIG,
            session_timeout_ms=seat.session_ms,
            lease_margin_ms=seat.margin_ms,
            heartbeat_interval_ms=min(HEARTBEAT_MS, (seat.session_ms - seat.margin_ms) // 2),
            start_timeout_ms=20_000,
            keepalive_interval_ms=(seat.session_ms - seat.margin_ms) * 3 // 4 if self.seed % 5 == 3 else None,
            rack=f"rack-{seat.name}" if self.seed % 4 == 1 else None,
            witness=self.seed % 3 == 2,
            state_directory=seat.folder,
            open_store=lambda folder: DiskStore(seat.machine, folder),
        )
        seat.member = member
        async with member:
            await member.wait()

    def _member_ended(self, seat: Seat, process: SimulatedProcess, error: BaseException | None) -> None:
        self.say(f"{process.name} ends: {error!r}")
        host = None if seat.member is None else seat.member._host
        was_closed = error is None and host is not None and host._closing  # it may wait FINAL_FACTS_S before it ends
        if seat.process is process:
            seat.process = seat.member = None
        if error is not None and not isinstance(error, SupersededError | InputError):
            self.problem(f"{process.name} ended with {error!r}")
        elif self.is_calm and seat.wanted and not was_closed:
            self.problem(f"{process.name} ended by itself while nothing was wrong: {error!r}")
        self.later(RESTART_S, self.start_member, seat)

    def kill_member(self, seat: Seat, *, failed: bool = False) -> None:
        """kill -9; with `failed` the machine has failed."""
        process, seat.process, seat.member = seat.process, None, None
        seat.machine.has_failed = failed
        if failed:
            seat.machine.boots += 1
        if process is not None:
            process.kill()
            seat.machine.lose_writes(seat.folder, failed=failed)

    # Workers

    def start_worker(self, seat: WorkerSeat) -> None:
        if seat.process is not None or not seat.wanted:
            return
        process = self._process(seat.machine, seat.name, lambda error: self._worker_ended(seat, process, error))
        seat.process = process
        self.say(f"{process.name} starts")
        process.start(self._run_worker(seat, process))

    async def _run_worker(self, seat: WorkerSeat, process: SimulatedProcess) -> None:
        settings = SimulatedSettings(
            made=SimulatedClients(self.cluster, process.name),
            prefix=seat.prefix,
            partitions=LOG_PARTITIONS,
            observe_interval_ms=1_000,
            checkpoint_facts=80,
        )
        seat.worker = SimulatedWorker(settings, process)
        await seat.worker.start()
        await asyncio.get_running_loop().create_future()

    def _worker_ended(self, seat: WorkerSeat, process: SimulatedProcess, error: BaseException | None) -> None:
        self.say(f"{process.name} ends: {error!r}")
        if seat.process is process:
            seat.process = seat.worker = None
        if not isinstance(error, InputError) or self.is_calm:
            self.problem(f"{process.name} ended with {error!r}")
        self.later(RESTART_S, self.start_worker, seat)

    def pack_decision(self, record: DecisionRecord) -> bytes:
        """As the build of the worker does that runs now."""
        if self._current not in self.newer:
            return pack_decision(record)
        kind, version, payload = codec.encode(record.decision)
        known = msgpack.unpackb(payload, strict_map_key=False)
        defaults = [default for _, default in forms.appended(type(record.decision))]
        left_out = len(attrs.fields(type(record.decision))) - len(known)  # the last ones, which have their defaults
        payload = msgpack.packb([*known, *defaults[len(defaults) - left_out :], "of a newer build"])
        place = (record.log_id, record.group, record.number, record.caused_by, record.index, record.fact_checksum)
        checksum = codec.decision_checksum(*place, kind, version, payload)
        head = (record.log_id, record.number, record.caused_by, record.index, record.fact_checksum, checksum, kind, version)
        return msgpack.packb([*head, None])[:-1] + payload

    def pack_fact(self, fact: Fact) -> bytes:
        """As the build of the member does that runs now."""
        older = faults.older_payload(fact) if self._current.partition("#")[0] in self.older else None
        return pack_fact(fact) if older is None else pack_payload(*older)

    @property
    def _current(self) -> str:
        """The process that runs now; "": none."""
        current = self.scheduler.current
        return "" if current is None else current.name.partition(":")[0]

    def kill_worker(self, seat: WorkerSeat) -> None:
        process, seat.process, seat.worker = seat.process, None, None
        if process is not None:
            process.kill()

    # Input

    def start(self, orders_until_s: float) -> None:
        """Creates the application's topics, starts everything, and sends orders until then."""
        for name, settings in ((TOPIC, {}), (f"{TOPIC}-state", STATE_SETTINGS), (f"{TOPIC}-counts", {})):
            self.cluster.create_topic(name, TASKS, BROKERS, {"min.insync.replicas": "2", **settings})
        self._orders_until_us = int(orders_until_s * S_US)
        for worker in self.workers.values():
            self.later(self.random.random(), self.start_worker, worker)
        for member in self.members.values():
            self.later(0.5 + 2 * self.random.random(), self.start_member, member)
        self._order()

    def stop_orders_at(self, time_s: float) -> None:
        self._orders_until_us = int(time_s * S_US)

    def _order(self) -> None:
        if self.scheduler.now_us >= self._orders_until_us:
            return
        customer, place = self.random.choice(list(placed_customers(CUSTOMERS, TASKS, self.tasks).items()))
        value = {"order": self.orders, "customer": customer, "cents": self.random.randrange(1, 10_000)}
        partition = self.cluster.partition(TopicPartition(TOPIC, place))
        if partition is not None and partition.leader >= 0:
            self.orders += 1
            content = (customer.encode(), json.dumps(value).encode(), (), self.cluster.now_ms())
            self.cluster.append(partition, Batch(-1, -1, -1, False, [content], 100))
        self.later(self.random.random() * 2 * ORDER_S, self._order)

    def seats(self) -> list[Seat | WorkerSeat]:
        """Of all members and workers."""
        return [*self.members.values(), *self.workers.values()]

    def remember(self, partition: BrokerPartition) -> dict[int, StoredRecord]:
        """Notes the committed records of a partition; returns these, and those that compaction has
        removed since.
        """
        known = self.known.setdefault(partition.place, {})
        read, _ = partition.log.read(0, partition.log.last_stable_offset, committed=True, max_bytes=2**40)
        known.update((record.offset, record) for record in read)
        return known

    def records(self) -> Iterator[StoredRecord]:
        """Every record in the brokers."""
        for each in self.cluster.every_partition():
            yield from each.log.records

    def calm(self) -> None:
        """Ends every fault that is left: all brokers run, and no message is lost."""
        self.network.slow_us.clear()
        for processes in (self.network.cut, self.network.late, self.network.unheard):
            processes.clear()
        for broker in self.cluster.brokers:
            if not broker.is_up:
                start_broker(self.cluster, broker.id)
            elif broker.is_paused:
                resume_broker(self.cluster, broker.id)
            elif broker.view is not None:
                heal_broker(self.cluster, broker.id)
        self.is_calm = True

    # What is to come

    def unsettled(self) -> str:
        """Why the deployment is not at rest; "": every task runs once, every order is counted (the
        newest ones may be missing while orders arrive).
        """
        missing = MOST_MISSING if self.scheduler.now_us < self._orders_until_us else 0
        running: dict[TaskId, list[Seat]] = {TaskId(self.subtopology, partition): [] for partition in range(self.tasks)}
        for seat in self.members.values():
            if seat.wanted and (seat.process is None or seat.member is None or seat.member._host is None):
                return f"{seat.name} does not run"
            for task in seat.running:
                running.setdefault(task, []).append(seat)
        for task, owners in running.items():
            if len(owners) != 1:
                return f"{task} runs at {[seat.name for seat in owners]}"
            store = DiskStore(owners[0].machine, self.store_folder(owners[0], task))
            read = read_sources(State(store))[0].get(TopicPartition(TOPIC, task.partition), 0)
            partition = self.cluster.partition(TopicPartition(TOPIC, task.partition))
            assert partition is not None, "it was created"
            if read < partition.log.end - missing:
                return f"{task} at {owners[0].name} has counted up to {read} of {partition.log.end}"
            behind = "" if missing else self._copy_behind(task.partition)
            if behind:
                return behind
        workers = [seat for seat in self.workers.values() if seat.wanted]
        for worker in workers:
            if worker.worker is None:
                return f"{worker.name} does not run"
            for _, lead in worker.worker.groups():
                if lead.halted is not None:
                    return f"group {lead.name} is halted: {lead.halted}"
                if lead.last_published < lead.machine.state.number:
                    return f"decisions of {worker.name} are published up to {lead.last_published} of {lead.machine.state.number}"
        hosts = [each for worker in workers if worker.worker is not None for each in worker.worker._partitions.hosts.items()]
        leading = [(number, host) for number, host in hosts if host.leading]
        if len(leading) != LOG_PARTITIONS:
            return f"{len(leading)} of {LOG_PARTITIONS} partitions are led"
        unread = (self._facts_unread(number, host.lead.position) for number, host in leading)
        return next(filter(None, unread), "") or self._left_open()

    def _left_open(self) -> str:
        """A transaction that hides outputs. The owner of a task knows those of former owners, but
        not always one of the other log, where two logs have granted it: brokers end that.
        """
        if not self.have_overlapped:
            return ""
        outputs = self.cluster.topics[f"{TOPIC}-counts"].partitions
        return next((f"a transaction in outputs {each.place.partition} is open" for each in outputs if each.log.open_transactions), "")

    def _facts_unread(self, number: int, position: int) -> str:
        """Facts that the leader of a partition has not read for a second; "": there are none."""
        partition = self.cluster.partition(TopicPartition(self.topics.facts, number))
        assert partition is not None, "it was created"
        long_ago_us = self.scheduler.now_us - S_US
        old = any(record.offset >= position and record.batch.appended_us < long_ago_us for record in partition.log.records[-50:])
        return f"facts {number} were read up to {position} of {partition.log.end}" if old else ""

    def _copy_behind(self, partition: int) -> str:
        """A copy that is followed and has not reached the end of its changelog; "": there is none."""
        found = self.cluster.partition(TopicPartition(f"{TOPIC}-state", partition))
        assert found is not None, "it was created"
        end = committed_end(found.log)
        for seat in self.members.values():
            copies = {} if seat.member is None or seat.member._host is None else seat.member._host._restorer._copies
            for task in copies:
                position = DiskStore(seat.machine, self.store_folder(seat, task)).offset if task.partition == partition else end
                if position < end:
                    return f"copy of {task} at {seat.name} has read up to {position} of {end}"
        return ""

    def store_folder(self, seat: Seat, task: TaskId) -> Path:
        """Of the store of a task's changelog, on the disk that the member has now."""
        return seat.folder / GROUP / seat.member_id / "tasks" / str(task) / f"{TOPIC}-state"


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
