"""Members of an application on a simulated Kafka, in one process and in virtual time: what is
deployed joins, restores, hands tasks over, crashes and comes back, and a minute takes a moment.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, Unpack

import attrs

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition, partition_of_key
from equipoise.member.copies.stores import StateStore
from equipoise.member.member import Member
from equipoise.member.options import MemberKeywords, MemberOptions
from equipoise.member.source import Sources
from equipoise.member.tasks.context import Callback, State
from equipoise.member.tasks.error_policy import FailedTask
from equipoise.member.tasks.processing import BatchHandler, Handler, Processor
from equipoise.member.tasks.serdes import BytesSerde
from equipoise.member.tasks.source_order import in_order
from equipoise.testing.driver import SentRecord, TaskDriver, deserialized
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection, SimulatedSettings
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.partition_log import Batch, StoredRecord
from equipoise.testing.simulated.machines import DiskStore, Machine, SimulatedProcess
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler
from equipoise.testing.simulated.worker import SimulatedWorker

NAME = "test"
LOOK_S = 0.1
LED_S = 10.0
"""Within this time the worker leads."""
_READS_CLOCK = ": the handler reads context.now_ms, which is another time alone; take record.timestamp_ms, or compare with a count of your own"
OWN_HEADERS = "equipoise"
"""Headers that begin so are the member's own."""


@attrs.define(eq=False)
class _Seat:
    """One member id: its machine, and the process that runs there now."""

    machine: Machine
    process: SimulatedProcess | None = None
    member: Member | None = None
    error: BaseException | None = None
    """With which its last process ended."""


class Group:
    """A group of members, on one simulated broker. The arguments are those of `Member`;
    `partitions`: of each topic. Everything that chance decides follows from `seed`.

    ::

        with Group(count, sources="orders", state="counts") as group:
            group.join("m1", "m2")
            group.send(b"book", key=b"c1")
            group.settle()
            group.crash("m2")
            group.settle()
            group.recount()

    A member keeps its state on the disk of a machine of its own, which survives crashes. Nothing
    happens but in `advance` and `settle`, and what calls them. Not for tests that are coroutines.
    """

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        sources: Sources = "source",
        state: str | Sequence[str] = "state",
        outputs: str | Sequence[str] = (),
        processors: Sequence[Processor] = (),
        partitions: int = 4,
        on_assigned: Callback | None = None,
        seed: int = 0,
        **options: Unpack[MemberKeywords],
    ) -> None:
        one = Processor(handler, batch_handler=batch_handler, sources=sources, state=state, outputs=outputs) if not processors else None
        self._processors = list(processors) if one is None else [one]
        self._deployed, self._epoch = self._processors, 0
        """The processors of members that start from here on, and their topology epoch."""
        self._partitions = partitions
        self._on_assigned = on_assigned
        self._given = options
        self._options = MemberOptions(**options)
        self._random = Random(f"group {seed}")
        self._scheduler = Scheduler(seed)
        self._cluster = Cluster(self._scheduler, Random(f"kafka {seed}"))
        self._seats: dict[str, _Seat] = {}
        self._processes = 0

    def __enter__(self) -> Self:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise InputError("Group: it has event loops of its own; use it in a test that is no coroutine")
        gc.freeze()  # a coroutine that is collected runs its `finally`, which a killed process does not
        gc.disable()
        self._folder = Path(tempfile.mkdtemp(prefix="equipoise-group-"))
        dead, kept = self._options.on_error.topic, [topic for each in self._processors for topic in each.state]
        others = [topic for each in self._processors for topic in (*each.sources, *each.outputs)]
        for topic in dict.fromkeys((*kept, *others, *([dead] if dead else ()))):
            policy = "compact" if topic in kept else "delete"
            self._cluster.create_topic(topic, self._partitions, 1, {"cleanup.policy": policy})
        self._worker = SimulatedWorker(
            SimulatedSettings(made=SimulatedClients(self._cluster, "worker"), prefix=self._options.prefix, partitions=1, observe_interval_ms=1_000),
            self._process("worker", lambda error: None),
        )
        self._worker.process.start(self._lead())
        self._until(lambda: not self._worker.unready(), LED_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Coroutines are left where they are, and what they say of that is nobody's concern.
        hook, sys.unraisablehook = sys.unraisablehook, lambda error: None
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        self._scheduler.dispose()
        shutil.rmtree(self._folder, ignore_errors=True)
        vars(self).clear()
        gc.collect()
        logging.disable(level)
        sys.unraisablehook = hook
        gc.unfreeze()
        gc.enable()

    async def _lead(self) -> None:
        await self._worker.start()
        await asyncio.get_running_loop().create_future()

    def _process(self, name: str, ended: Callable[[BaseException | None], object], machine: Machine | None = None) -> SimulatedProcess:
        self._processes += 1
        machine = machine or self._machine(name)
        return SimulatedProcess(self._scheduler, machine, f"{name}#{self._processes}", ended=ended)

    def _machine(self, name: str) -> Machine:
        return Machine(name, self._folder / name, Random(f"machine {name} {self._random.random()}"))

    # Members

    def join(self, *member_ids: str) -> None:
        """Starts a process of each member, on the disk that the member had before. Raises
        InputError for a member that runs.
        """
        for member_id in member_ids:
            seat = self._seats.get(member_id) or self._seats.setdefault(member_id, _Seat(self._machine(member_id)))
            if seat.process is not None:
                raise InputError(f"join: member {member_id} runs")
            self._start(member_id, seat)

    def _start(self, member_id: str, seat: _Seat) -> None:
        def ended(error: BaseException | None) -> None:
            seat.process, seat.member, seat.error = None, None, error

        process = seat.process = self._process(member_id, ended, seat.machine)
        machine = seat.machine
        given: dict[str, Any] = {**self._given, "state_directory": machine.folder / "state", "open_store": partial(self._open_store, machine)}
        seat.error = None
        seat.member = Member(
            NAME,
            processors=self._deployed,
            topology_epoch=self._epoch,
            member_id=member_id,
            on_assigned=self._on_assigned,
            connection=SimulatedConnection(made=SimulatedClients(self._cluster, process.name)),
            _runtime=process,
            **given,
        )
        process.start(seat.member._run())

    def _open_store(self, machine: Machine, folder: Path) -> StateStore:
        return DiskStore(machine, folder)

    def leave(self, member_id: str, *, within_s: float = 700.0) -> None:
        """The member leaves: returns when its tasks run elsewhere and its process has ended."""
        member, process = self._running(member_id)
        self._until(lambda: member._host is not None or self._seats[member_id].process is not process, within_s)
        if self._seats[member_id].process is process:
            process.app.create_task(member.leave())
        self._until(lambda: self._seats[member_id].process is None, within_s)

    def crash(self, member_id: str) -> None:
        """Kills the member's process (kill -9). What it had not written to its disk is lost."""
        _, process = self._running(member_id)
        seat = self._seats[member_id]
        seat.process = seat.member = None
        process.kill()
        seat.machine.lose_writes(seat.machine.folder, failed=False)

    def _running(self, member_id: str) -> tuple[Member, SimulatedProcess]:
        seat = self._seats.get(member_id)
        if seat is None or seat.member is None or seat.process is None:
            raise InputError(f"member {member_id} does not run")
        return seat.member, seat.process

    def _members(self) -> Iterator[tuple[str, Member]]:
        """Yields the members that have joined."""
        for member_id, seat in sorted(self._seats.items()):
            if seat.member is not None and seat.member._host is not None:
                yield member_id, seat.member

    @property
    def running(self) -> dict[TaskId, str]:
        """Task that may be processed now -> member."""
        return dict(sorted((task, member_id) for member_id, member in self._members() for task in member.running))

    @property
    def failed_tasks(self) -> dict[TaskId, FailedTask]:
        """Task whose handler failed -> the record and the error."""
        return {task: failed for _, member in self._members() for task, failed in member.failed_tasks.items()}

    # Time

    @property
    def now_s(self) -> float:
        """Virtual seconds since the beginning."""
        return self._scheduler.now_us / S_US

    def advance(self, seconds: float) -> None:
        """Lets this time pass."""
        self._scheduler.run(self._scheduler.now_us + int(seconds * S_US))

    def settle(self, *, within_s: float = 300.0) -> None:
        """Lets time pass until each task runs and everything sent is handled and committed. Raises
        AssertionError, which says what is missing, when that takes longer.
        """
        self._until(lambda: not self._unsettled(), within_s)

    def _until(self, holds: Callable[[], bool], within_s: float) -> None:
        end_s = self.now_s + within_s
        while not holds():
            if self.now_s >= end_s:
                raise AssertionError(f"not after {within_s:.0f} s: {self._unsettled() or self._worker.unready()}")
            self.advance(LOOK_S)

    def _unsettled(self) -> str:
        """Returns what is missing; "": nothing."""
        running = self.running
        committed = self._cluster.coordinators.offsets.get(NAME, {})
        for member_id, seat in sorted(self._seats.items()):
            if seat.error is not None:
                return f"member {member_id} has ended: {seat.error!r}"
        for number, partition in product(range(len(self._processors)), range(self._partitions)):
            task = TaskId(number, partition)
            if task in self.failed_tasks:
                return f"task {task} has failed: {self.failed_tasks[task].error}"
            if task not in running:
                return f"task {task} does not run"
            for topic in self._processors[number].sources:
                log, done = self._log(topic, partition), committed.get(TopicPartition(topic, partition), 0)
                if done < log.end and log.read(done, log.last_stable_offset, committed=True, max_bytes=1)[0]:  # not only markers
                    return f"task {task} has committed {done} of {log.end} records of {topic}/{partition}"
        return ""

    # Records

    def send(
        self,
        value: Any,
        *,
        key: Any = None,
        topic: str | None = None,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Appends a record to `topic` (None: the first source). `partition` None: by the key, as
        Kafka's own clients choose it. `timestamp_ms` None: the present. Raises InputError for a
        partition that is not there.
        """
        source = next((each for processor in self._processors for each in processor.inputs if topic in (None, each.topic)), None)
        keys, values = self._options.key_serde, self._options.value_serde
        if source is not None:
            keys, values = source.key_serde or keys, source.value_serde or values
        raw_key = None if key is None else keys.serialize(key)
        raw_value = None if value is None else values.serialize(value)
        if partition is None:
            partition = self._random.randrange(self._partitions) if raw_key is None else partition_of_key(raw_key, self._partitions)
        at_ms = self._cluster.now_ms() if timestamp_ms is None else timestamp_ms
        place = self._cluster.partition(TopicPartition(topic or self._processors[0].sources[0], partition))
        if place is None:
            raise InputError(f"send: there is no partition {topic}/{partition}")
        self._cluster.append(place, Batch(-1, -1, -1, False, [(raw_key, raw_value, tuple(headers), at_ms)], 100))

    def _log(self, topic: str, partition: int) -> Any:
        return self._cluster.topics[topic].partitions[partition].log

    def _committed(self, topic: str) -> Iterator[StoredRecord]:
        for partition in range(self._partitions):
            log = self._log(topic, partition)
            yield from log.read(0, log.last_stable_offset, committed=True, max_bytes=2**40)[0]

    def outputs(self, topic: str | None = None) -> list[SentRecord]:
        """Returns what the members have sent to `topic` (None: the first of `outputs`, of the last
        processor), partition by partition.
        """
        topic = self._processors[-1].outputs[0] if topic is None else topic
        keys, values = self._options.key_serde, self._options.value_serde
        return [
            SentRecord(
                topic,
                deserialized(keys, each.key),
                deserialized(values, each.value),
                each.partition,
                tuple(header for header in each.headers if not header[0].startswith(OWN_HEADERS)),
                each.timestamp_ms,
            )
            for each in self._committed(topic)
        ]

    def state(self, topic: str | None = None) -> dict[Any, Any]:
        """The state of all running tasks in the changelog `topic` (None: the first one)."""
        topic = self._processors[0].state[0] if topic is None else topic
        tasks = [task for task in self.running if topic in self._processors[task.subtopology].state]
        return {key: value for task in tasks for key, value in self._state_of(task, topic).items()}

    def _state_of(self, task: TaskId, topic: str) -> State:
        member, _ = self._running(self.running[task])
        assert member._host is not None, "it runs a task"
        return member._host.work._runners[task]._open_task[0].context.states[topic]

    def recount(self) -> None:
        """Compares state and outputs with those of tasks that never move or fail: a `TaskDriver`
        gets the records of each partition, in the order in which a task takes them that finds all
        of them there. Raises AssertionError that shows a difference. With ``at_least_once`` outputs
        may repeat. Timers do not run, and ``context.now_ms`` is 0.
        """
        expected: Counter[tuple[str, str, str]] = Counter()
        why = ""
        for number, partition in product(range(len(self._processors)), range(self._partitions)):
            task = TaskId(number, partition)
            driver, sent, reads_clock = asyncio.run(self._alone(task))
            why = _READS_CLOCK if reads_clock else why
            expected.update((each.topic, repr(each.key), repr(each.value)) for each in sent)
            for topic, state in driver.states.items():
                alone, here = dict(state.items()), dict(self._state_of(task, topic).items())
                assert here == alone, f"state of task {task} in {topic}: {here}; alone it has {alone}{why}"
        topics = {topic for topic, _, _ in expected}.union(topic for each in self._processors for topic in each.outputs)
        found = Counter((each.topic, repr(each.key), repr(each.value)) for topic in sorted(topics) for each in self.outputs(topic))
        missing, more = expected - found, found - expected
        assert not missing, f"outputs are missing: {sorted(missing)[:10]}{why}"
        assert not more or not self._options.transactional, f"outputs are too many: {sorted(more)[:10]}{why}"

    async def _alone(self, task: TaskId) -> tuple[TaskDriver, list[SentRecord], bool]:
        """A driver that got the records of a task, what it has sent, and whether the clock was
        read.
        """
        processor, partition = self._processors[task.subtopology], task.partition
        driver = TaskDriver(
            processor.handler,
            batch_handler=processor.batch_handler,
            sources=processor.inputs,
            state=processor.state,
            partition=partition,
            subtopology=task.subtopology,
            group=NAME,
            on_assigned=self._on_assigned,
            **self._given,
        )
        reads_clock = False

        def wall_ms() -> int:
            nonlocal reads_clock
            reads_clock = True
            return 0

        driver._timers.wall_ms = wall_ms
        driver.context.look_up_latest = lambda: self._cluster.now_ms() + self._options.max_ahead_ms
        inputs = processor.inputs
        keys = {each.topic: each.key_serde or self._options.key_serde for each in inputs}
        records = {topic: [each for each in self._committed(topic) if each.partition == partition] for topic in keys}
        sent: list[SentRecord] = []
        for each in in_order(inputs, partition, records):
            key = deserialized(keys[each.topic], each.key)
            try:
                sent += await driver.send(
                    each.value, key=key, topic=each.topic, headers=each.headers, timestamp_ms=each.timestamp_ms, value_serde=BytesSerde()
                )
            except Exception:  # noqa: BLE001  # the application's code may raise anything: the task is parked
                break
        return driver, sent, reads_clock
