"""Brokers, workers and members of the sample application, all of them processes; and how each fault
is done to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from equipoise.events.errors import EquipoiseError
from equipoise.events.facts import AssignmentObserved, GroupConfigured
from equipoise.events.settings import GroupSettings
from equipoise.kafka.client import NewTopic, TopicPartition
from equipoise.kafka.started_clients import writer
from equipoise.log.kafka.envelope import group_key, pack_fact, partition_of
from equipoise.log.kafka.log_opening import read_opening
from equipoise.log.kafka.log_topics import Topics
from equipoise.log.kafka.topic_making import partition_count
from equipoise.member.copies.fencing import AT_LEAST_ONCE, EXACTLY_ONCE
from equipoise.member.tasks.positions import PARTITIONS, positions_topic
from equipoise.member.tasks.positions import SETTINGS as SETTINGS_OF_POSITIONS
from tests import faults
from tests.customers import placed_customers
from tests.live.builds import THIS_BUILD, run_in, started
from tests.live.cut import Relays
from tests.live.kafka import admin_client, create_partitions, delete_topics
from tests.live.orders import Orders
from tests.live.storm.faults import (
    BROKERS,
    EXTRA,
    LEASE_S,
    MEMBERS,
    OPERATORS,
    SESSION_S,
    WIRE,
    WITNESSED,
    WORKER_SESSION_S,
    WORKERS,
    Fault,
    Kind,
)
from tests.live.storm.transactions import Transactions
from tools.brokers import Brokers

CUSTOMERS = 5
"""For each task that there is at first."""
LOG_PARTITIONS = 2
COMMIT_MS = 20
"""Short, so that members commit nearly all the time, and nearly every pause falls into a commit."""
PREFIX = "storm"
SETTINGS = GroupSettings(
    acceptable_recovery_lag=200,
    num_standbys=1,
    initial_delay_ms=2_000,
    probing_interval_ms=5_000,
    revocation_timeout_ms=30_000,
    drain_timeout_ms=30_000,
    checkpoint_every_records=200,
)
LOOK_S = 0.3
AGAIN_S = 1.0
TWIN_S = 90.0
"""How long two processes may have one id: until one of them reads that it is out."""
DELAYS_S = (0.05, 0.2, 1.0)
"""Of each way."""
PASSED_BYTES = (2_000, 20_000)
"""Of a connection, each second."""
JOINED_S = 90.0
LEAVING_S = 120.0
GROUP_KNOWN_S = 60.0
STOPS_S = 45.0
"""A member that joined and was told to stop has stopped."""
DELETED_S = 20.0
"""After this time a topic that is there has been made again."""
KNOWN_TIMES, KNOWN_EVERY_S = 10, 0.2
"""Brokers learn of a new partition one after the other."""
OBSERVED_STEP = 1_000_000
"""From one generation that is observed to the next. Above every generation of the group, as the
other leader's have to be: equipoise counts on from the last.
"""
CLOCKS_OFF_S = (2 * 3_600, -2 * 3_600, 26 * 3_600, -26 * 3_600)
"""Above what brokers take by default (message.timestamp.after.max.ms: 1 h), and behind."""
MOST_TRIES, ARRIVES_S, RUNS_S = 20, 0.1, 0.04
"""To catch a member in a transaction: it is stopped, what it has sent arrives, one looks, it runs
on.
"""


_WORKER_BEGUN = "leading log "
_HAS_JOINED = re.compile(r": member m\d+ joined, incarnation \d+$", re.MULTILINE)
"""It need not get anything: one that was killed again and again is in back-off
(docs/protocol.md#d10).
"""


@attrs.define
class Seat:
    """One member id: the process that has it, and where its disk is."""

    member_id: str
    process: str | None = None
    """None: it is meant to be down."""
    disk: int = 0
    timing: tuple[int, int] | None = None
    """Session timeout and margin, in ms, of the processes that start from here on; None: those of
    all.
    """
    lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    @property
    def folder(self) -> str:
        return f"disk-{self.disk}"


RESTARTS = "24"
"""Members whose names end so say that they will be back when they leave."""
BACK_WITHIN_MS = 8_000
"""Some are away for longer."""


BROKER_SETTINGS = {
    "broker.session.timeout.ms": "6000",
    "compression.type": "zstd",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "5000",
    "transactional.id.expiration.ms": "60000",
    "producer.id.expiration.ms": "60000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "5000",
    "log.cleaner.backoff.ms": "1000",
}
"""Brokers compress every topic, and forget within a minute what they forget within a week."""


class Deployment:
    """`folder` gets the output of every process, and the members' disks. `tasks`: at first; faults
    add more. `incidents`: whatever ended or went on when it should not have.
    """

    def __init__(self, folder: Path, guarantee: str, tasks: int) -> None:
        self._folder = folder
        self.network = Relays(MEMBERS, len(BROKERS))
        self._relaying = contextlib.AsyncExitStack()
        self.brokers = Brokers(len(BROKERS), self.network.listeners, **BROKER_SETTINGS)
        self.orders = Orders(
            self.brokers.bootstrap,
            PREFIX,
            folder,
            guarantee,
            partitions=tasks,
            session_ms=round(SESSION_S * 1_000),
            lease_margin_ms=round((SESSION_S - LEASE_S) * 1_000),
            heartbeat_ms=1_500,
            commit_ms=COMMIT_MS,
            settings=SETTINGS,
        )
        self.topics = Topics(PREFIX)
        self.seats = {name: Seat(name) for name in (*MEMBERS, *EXTRA)}
        self._workers: dict[str, subprocess.Popen[bytes] | None] = dict.fromkeys(WORKERS)
        self._worker_locks = {name: asyncio.Lock() for name in WORKERS}
        self._brokers_lock = asyncio.Lock()
        self._deploys_lock = asyncio.Lock()
        """Only one rolling deploy at a time."""
        self._configures_lock = asyncio.Lock()
        """Whoever sets the settings back must not meet the next who changes them."""
        self._transactions = Transactions(self.orders.connection, f"{self.orders.topic}-counts") if guarantee == EXACTLY_ONCE else None
        self._first_tasks = self.tasks = tasks
        self._guarantee = guarantee
        """Of the processes that start from here on."""
        self._epoch = 0
        """Of their topology."""
        self.owned: Callable[[str], list[int]] = lambda member_id: []
        """Partitions of the tasks that a member owns, as far as whoever watches the group knows."""
        self.config: Callable[[], GroupConfigured | None] = lambda: None
        """The group's configuration in force, as far as that is known."""
        self.has_members: Callable[[], bool] = lambda: False
        """Whether the group has members, as far as that is known."""
        self.incidents: list[str] = []
        self.killed: set[str] = set()
        """Processes of members that were ended with kill -9."""
        self._guard: asyncio.Task[None] | None = None
        self._strangers = self._observed = 0

    async def start(self) -> None:
        """Topics, the group's configuration, both workers at once, all members."""
        await self._relaying.enter_async_context(self.network.relaying())
        await self.orders.make_topics()
        for name in (*MEMBERS, *EXTRA, *WORKERS):
            self._clock(name).write_text("0")
        for name in WORKERS:
            self._start_worker(name)
        await self._configure()
        for name in MEMBERS:
            self._start_member(self.seats[name])
        self._guard = asyncio.ensure_future(self._restart_who_ended())
        if self._transactions is not None:
            await self._transactions.start()

    async def _configure(self) -> None:

        await read_opening(self.orders.connection, self.topics, timeout_s=GROUP_KNOWN_S)
        await self._write(pack_fact(self.orders.config))

    async def _write(self, value: bytes) -> None:
        """Appends a record of the group to the facts, however long brokers are away."""
        from aiokafka.errors import KafkaError

        place = partition_of(self.orders.group, LOG_PARTITIONS)
        while True:
            try:
                async with writer(self.orders.connection) as producer:
                    await producer.send_and_wait(self.topics.facts, value, key=group_key(self.orders.group), partition=place)
                return
            except (KafkaError, TimeoutError, OSError):
                await asyncio.sleep(AGAIN_S)

    def __enter__(self) -> Self:
        self.orders.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.orders.__exit__(None, None, None)
        for process in self._workers.values():
            if process is not None:
                process.kill()
                process.wait()
        for each in self._folder.glob("disk-*"):
            shutil.rmtree(each, ignore_errors=True)
        self.brokers.close()

    # What is meant to be there

    @property
    def present(self) -> set[str]:
        """Members that are to be in the group."""
        return {name for name, seat in self.seats.items() if seat.process is not None}

    @property
    def customers(self) -> Mapping[str, int]:
        """Customers -> partition of the source."""
        return placed_customers(CUSTOMERS * self._first_tasks, self._first_tasks, self.tasks)

    def _clock(self, name: str) -> Path:
        return self._folder / f"{name}.clock"

    def _start_member(self, seat: Seat) -> None:
        seat.process = self._start_process(seat)

    def _start_process(self, seat: Seat) -> str:
        return self.orders.start(
            seat.member_id,
            folder=seat.folder,
            timing=seat.timing,
            guarantee=self._guarantee,
            epoch=self._epoch,
            bootstrap=self.network.bootstrap(seat.member_id) if seat.member_id in MEMBERS else "",
            clock=self._clock(seat.member_id),
            witness=seat.member_id in WITNESSED,
            back_within_ms=BACK_WITHIN_MS if seat.member_id[-1] in RESTARTS else None,
        )

    def _kill(self, process: str) -> None:
        self.killed.add(process)
        self.orders.kill(process)

    def _start_worker(self, name: str) -> None:
        command = [
            "equipoise",
            "worker",
            "--bootstrap",
            self.brokers.bootstrap,
            "--prefix",
            PREFIX,
            "--http-port",
            "0",
            "--partitions",
            str(LOG_PARTITIONS),
            "--worker-session-timeout-ms",
            str(round(WORKER_SESSION_S * 1_000)),
            "--observe-interval-ms",
            "2000",
            "--witness",
            "true",
        ]
        self._workers[name] = started(command, self._folder / f"{name}.out", clock=self._clock(name))

    async def _restart_who_ended(self) -> None:
        """As whoever runs processes would; and it is written down, because nothing may end by
        itself.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            for seat in self.seats.values():
                if seat.process is not None and not seat.lock.locked() and (code := self.orders.ended(seat.process)) is not None:
                    self._incident(f"{seat.process} ended by itself with {code}: {self._last_line(seat.process)}")
                    await asyncio.sleep(AGAIN_S)
                    self._start_member(seat)
            for name, process in self._workers.items():
                if process is not None and not self._worker_locks[name].locked() and (code := process.poll()) is not None:
                    self._incident(f"{name} ended by itself with {code}: {self._last_line(name)}")
                    await asyncio.sleep(AGAIN_S)
                    self._start_worker(name)

    def _incident(self, text: str) -> None:
        self.incidents.append(text)
        print(f"           ! {text}", flush=True)

    def _last_line(self, name: str) -> str:
        lines = self.orders.said(name).splitlines()
        return lines[-1] if lines else "it said nothing"

    async def end(self) -> None:
        """Nothing is started again from here on."""
        if self._transactions is not None:
            await self._transactions.stop()
        if self._guard is not None:
            self._guard.cancel()
            await asyncio.gather(self._guard, return_exceptions=True)
        await self._relaying.aclose()

    # Faults

    async def do(self, fault: Fault) -> None:
        """From the fault to its end, when everything is as it was before."""
        if fault.kind is Kind.KILL_BROKER:
            async with self._brokers_lock:
                await self._kill_broker(BROKERS.index(fault.victim), fault.length_s)
        elif fault.kind is Kind.PAUSE_BROKER:
            async with self._brokers_lock:
                await self._pause_broker(BROKERS.index(fault.victim), fault.length_s)
        elif fault.kind in (Kind.CLOCK, Kind.CLOCK_WORKER):
            self._clock(fault.victim).write_text(str(CLOCKS_OFF_S[fault.which % len(CLOCKS_OFF_S)]))
            await asyncio.sleep(fault.length_s)
            self._clock(fault.victim).write_text("0")
        elif fault.victim == OPERATORS:
            await self._operate(fault)
        elif fault.victim in WORKERS:
            async with self._worker_locks[fault.victim]:
                await self._worker(fault)
        else:
            seat = self.seats[fault.victim]
            async with seat.lock:
                await self._member(fault, seat)

    async def _operate(self, fault: Fault) -> None:
        config = self.orders.config
        if fault.kind in (Kind.GUARANTEE, Kind.PARTITIONS, Kind.LED_BY):
            async with self._deploys_lock:
                await self._deploy(fault)
        elif fault.kind is Kind.TWO_OPERATORS:
            async with self._configures_lock:
                await self._configure_twice(fault)
                await self._write(pack_fact(config))
        elif fault.kind is Kind.POSITIONS:
            await self._make_positions_again()
        elif fault.kind is Kind.CUT_POSITIONS:
            await self._cut_positions()
        elif fault.kind is Kind.HOSTILE:
            await self._write(faults.HOSTILE[fault.which % len(faults.HOSTILE)])
        elif fault.kind is Kind.GIANT:
            await self._write(pack_fact(faults.giant(fault.which)))
        elif fault.kind is Kind.STRANGER:
            self._strangers += 1
            await self._write(pack_fact(faults.stranger(self._strangers, f"stranger {self._strangers}")))
            await asyncio.sleep(fault.length_s)
        else:
            changed = faults.with_setting if fault.kind is Kind.SETTING else faults.with_assignor
            async with self._configures_lock:
                await self._write(pack_fact(changed(config, fault.which)))
                await asyncio.sleep(fault.length_s)
                await self._write(pack_fact(config))

    async def _configure_twice(self, fault: Fault) -> None:
        """Both set something else. Who was answered "in force" has changed that, and nothing more."""
        wanted = {"max_warmups": 3 + fault.which % 50, "max_warmups_per_member": 3 + fault.which % 40}
        options = ("--bootstrap", self.brokers.bootstrap, "--prefix", PREFIX, "--group", self.orders.group)
        changes = [f"{name}={value}" for name, value in wanted.items()]
        runs = [asyncio.to_thread(run_in, THIS_BUILD, "-m", "equipoise", "configure", *options, "--set", each) for each in changes]
        answered = await asyncio.gather(*runs)
        done = {name: value for (name, value), each in zip(wanted.items(), answered, strict=True) if each.returncode == 0}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GROUP_KNOWN_S):
                while (config := self.config()) is None or any(  # noqa: ASYNC110  # as the log tells it
                    getattr(config.knobs, name) != value for name, value in done.items()
                ):
                    await asyncio.sleep(LOOK_S)
                await asyncio.sleep(fault.length_s)
                return
        self._incident(f"two operators were answered that {done} is in force, and {self.config()} is; {[each.stderr[-200:] for each in answered]}")

    async def _make_positions_again(self) -> None:
        """However long brokers are away."""
        from aiokafka.errors import KafkaError

        name, made_s = positions_topic(self.orders.group), 0.0
        while True:
            try:
                async with admin_client(self.orders.connection) as admin:
                    if not made_s:
                        await delete_topics(admin, [name])
                        made_s = time.monotonic() + DELETED_S
                    refused = await admin.create_topics([NewTopic(name, PARTITIONS, len(BROKERS), SETTINGS_OF_POSITIONS)])
                    if not refused or time.monotonic() > made_s:  # the answer that it was made may be lost
                        return
            except (KafkaError, TimeoutError, OSError):
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(KNOWN_EVERY_S)

    async def _cut_positions(self) -> None:
        """However long brokers are away. They delete no records of a topic that is only compacted."""
        from aiokafka.errors import KafkaError

        name, whole = positions_topic(self.orders.group), False
        while not whole:
            try:
                async with admin_client(self.orders.connection) as admin:
                    await admin.set_topic_configs(name, {**SETTINGS_OF_POSITIONS, "cleanup.policy": "compact,delete"})
                    await admin.delete_records({TopicPartition(name, number): -1 for number in range(PARTITIONS)})
                    await admin.set_topic_configs(name, SETTINGS_OF_POSITIONS)
                whole = True
            except (KafkaError, EquipoiseError, TimeoutError, OSError):
                await asyncio.sleep(AGAIN_S)

    async def _deploy(self, fault: Fault) -> None:
        if fault.kind is Kind.PARTITIONS:
            self.tasks = await self._add_partition()
            self._epoch += 1
            await self._restart_all()
        elif fault.kind is Kind.LED_BY:
            await self._led_by_another(fault.length_s)
        else:
            first = self._guarantee
            self._guarantee = AT_LEAST_ONCE if first == EXACTLY_ONCE else EXACTLY_ONCE
            await self._restart_all()
            await asyncio.sleep(fault.length_s)
            self._guarantee = first
            await self._restart_all()

    async def _restart_all(self) -> None:
        """One after the other."""
        for seat in self.seats.values():
            async with seat.lock:
                if seat.process is not None:
                    await self._stop(seat, seat.process)
                    self._start_member(seat)
                    await self._until_in_group(seat)

    async def _stop(self, seat: Seat, process: str) -> None:
        """It stops at once, and leaves. One that has not joined yet may be killed."""
        if self.orders.ended(process) is None:
            self.orders.signal(process, signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOPS_S):
                await self.orders.gone(process)
            return
        if _HAS_JOINED.search(self.orders.said(process)):
            self._incident(f"{process} was told to stop and is still there after {STOPS_S:.0f} s")
        self._kill(process)

    async def _add_partition(self) -> int:
        """To the source and to the changelog, until every broker knows it."""
        from aiokafka.errors import KafkaError

        tasks, topics, times = self.tasks + 1, (self.orders.topic, f"{self.orders.topic}-state"), 0
        while times < KNOWN_TIMES:
            try:
                counts = [await partition_count(self.orders.connection, topic) for topic in topics]
                if counts == [tasks, tasks]:
                    times += 1
                else:
                    times = 0
                    async with admin_client(self.orders.connection) as admin:
                        lacking = [topic for topic, count in zip(topics, counts, strict=True) if count < tasks]
                        await create_partitions(admin, dict.fromkeys(lacking, tasks))
            except (KafkaError, EquipoiseError, TimeoutError, OSError):
                times = 0
            await asyncio.sleep(KNOWN_EVERY_S)
        return tasks

    async def _led_by_another(self, length_s: float) -> None:
        async with contextlib.AsyncExitStack() as locks:
            for each in self.seats.values():
                await locks.enter_async_context(each.lock)
            running = {seat.member_id: process for seat in self.seats.values() if (process := seat.process) is not None}
            for name in running:
                self.seats[name].process = None
            await asyncio.gather(*(self._stop(self.seats[name], process) for name, process in running.items()))
            with contextlib.suppress(TimeoutError):  # one that was killed is a member until its session is over
                async with asyncio.timeout(2 * SESSION_S):
                    while self.has_members():  # noqa: ASYNC110  # as the log tells it
                        await asyncio.sleep(LOOK_S)
            async with self._configures_lock:
                await self._write(pack_fact(faults.with_other_leader(self.orders.config)))
                await asyncio.sleep(length_s)
                self._observed += 1
                await self._write(pack_fact(AssignmentObserved(generation=OBSERVED_STEP * self._observed, members=())))
                await self._write(pack_fact(self.orders.config))
            for name in running:
                self._start_member(self.seats[name])

    async def _kill_broker(self, index: int, length_s: float) -> None:
        await asyncio.to_thread(self.brokers.kill, index)
        await asyncio.sleep(length_s)
        await asyncio.to_thread(self.brokers.start, index)

    async def _pause_broker(self, index: int, length_s: float) -> None:
        os.kill(self.brokers.pid(index), signal.SIGSTOP)
        try:
            await asyncio.sleep(length_s)
        finally:
            os.kill(self.brokers.pid(index), signal.SIGCONT)

    async def _worker(self, fault: Fault) -> None:
        process = self._workers[fault.victim]
        assert process is not None, "workers are always meant to be there"
        if fault.kind is Kind.KILL_WORKER:
            process.kill()
            process.wait()
            await asyncio.sleep(fault.length_s)
            begun = self.orders.said(fault.victim).count(_WORKER_BEGUN)
            self._start_worker(fault.victim)
            with contextlib.suppress(TimeoutError):  # on a busy machine a worker takes long to start; killed before, it would never lead
                async with asyncio.timeout(JOINED_S):
                    while self.orders.said(fault.victim).count(_WORKER_BEGUN) == begun:  # noqa: ASYNC110  # another process
                        await asyncio.sleep(LOOK_S)
        else:
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.length_s)
            process.send_signal(signal.SIGCONT)

    async def _member(self, fault: Fault, seat: Seat) -> None:
        process = seat.process
        if fault.kind is Kind.JOIN:
            self._start_member(seat)
            await self._until_in_group(seat)
            await asyncio.sleep(fault.length_s)
            await self._leave(seat)
            return
        assert process is not None, "the five are always meant to be there"
        if self.orders.ended(process) is not None:
            self._incident(f"{process} ended by itself before {fault}: {self._last_line(process)}")
            self._start_member(seat)
        elif fault.kind in (Kind.KILL, Kind.WIPE, Kind.REDEPLOY):
            self._kill(process)
            if fault.kind is Kind.REDEPLOY:
                margin_ms = round((SESSION_S - LEASE_S) * 1_000)
                seat.timing = faults.redeployed_settings(fault.which, round(SESSION_S * 1_000), least_margin_ms=margin_ms)
            if fault.kind is Kind.WIPE:
                shutil.rmtree(self._folder / seat.folder / self.orders.group / seat.member_id, ignore_errors=True)  # killed before it had made one
            await asyncio.sleep(fault.length_s)
            self._start_member(seat)
        elif fault.kind is Kind.KILL_WITNESS:
            self.orders.kill_witness(process)
        elif fault.kind in (Kind.PAUSE, Kind.PAUSE_BEYOND):
            if fault.kind is Kind.PAUSE_BEYOND and self._transactions is not None:
                await self._stop_in_a_transaction(process, fault.victim)
            self.orders.signal(process, signal.SIGSTOP)
            await asyncio.sleep(fault.length_s)
            self.orders.signal(process, signal.SIGCONT)
        elif fault.kind in (Kind.CUT, Kind.CUT_BEYOND):
            self.network.cut(fault.victim)
            await asyncio.sleep(fault.length_s)
            self.network.mend(fault.victim)
        elif fault.kind in WIRE:
            self._fail_wire(fault)
            await asyncio.sleep(fault.length_s)
            self.network.mend(fault.victim)
        elif fault.kind is Kind.TWIN:
            await self._twin(seat, process)
        elif fault.kind is Kind.LEAVE:
            await self._until_in_group(seat)
            await self._leave(seat)
            await asyncio.sleep(fault.length_s)
            self._start_member(seat)

    def _fail_wire(self, fault: Fault) -> None:
        for relay in self.network.of(fault.victim):
            match fault.kind:
                case Kind.DELAY:
                    relay.delay_s = DELAYS_S[fault.which % len(DELAYS_S)]
                case Kind.THROTTLE:
                    relay.bytes_per_s = PASSED_BYTES[fault.which % len(PASSED_BYTES)]
                case Kind.LOSE_ANSWERS:
                    relay.loses_answers = True
                case Kind.HANG:
                    relay.hang()
                case Kind.HALVE:
                    relay.halve()
                case Kind.HALF_CLOSE:
                    relay.half_close(to_client=bool(fault.which % 2))
                case Kind.RESET:
                    relay.reset()

    async def _stop_in_a_transaction(self, process: str, member_id: str) -> None:
        """Stops it while Kafka holds one of its transactions open, if it is caught there."""
        assert self._transactions is not None, "asked before"
        for _ in range(MOST_TRIES if self.owned(member_id) else 0):
            self.orders.signal(process, signal.SIGSTOP)
            await asyncio.sleep(ARRIVES_S)
            if await self._transactions.open_in(self.owned(member_id)):
                return
            self.orders.signal(process, signal.SIGCONT)
            await asyncio.sleep(RUNS_S)

    async def _twin(self, seat: Seat, first: str) -> None:
        """Two processes with one id: the one that joined last is the member, the other reads that
        it is out and ends with 3.
        """
        seat.disk = 1 - seat.disk
        second = self._start_process(seat)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TWIN_S):
                while self.orders.ended(first) is None and self.orders.ended(second) is None:  # noqa: ASYNC110  # other processes
                    await asyncio.sleep(LOOK_S)
        loser, winner = (second, first) if self.orders.ended(second) is not None else (first, second)
        if self.orders.ended(loser) is None:
            self._incident(f"{first} and {second} have one id for {TWIN_S:.0f} s, and neither has ended")
            self._kill(loser)
        elif (code := await self.orders.gone(loser)) != 3:
            self._incident(f"{loser} has a twin, {winner}, and ended with {code}: {self._last_line(loser)}")
        if loser == second:  # the first lost its lease meanwhile and joined again, behind the second
            seat.disk = 1 - seat.disk
        seat.process = winner

    async def _until_in_group(self, seat: Seat) -> None:
        """A member must have joined before it can leave in order: a process that gets SIGTERM while
        it starts just ends.
        """
        assert seat.process is not None, "it was started"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOINED_S):
                while not _HAS_JOINED.search(self.orders.said(seat.process)):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(LOOK_S)
                return
        self._incident(f"{seat.process} has not joined {JOINED_S:.0f} s after its start")

    async def _leave(self, seat: Seat) -> None:
        process = seat.process
        assert process is not None, "a leaving member runs"
        seat.process = None
        if self.orders.ended(process) is None:
            self.orders.signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(LEAVING_S):
                code = await self.orders.gone(process)
        except TimeoutError:
            self._incident(f"{process} was told to leave and is still there after {LEAVING_S:.0f} s")
            self._kill(process)
            return
        if code != 0:
            self._incident(f"{process} was told to leave and ended with {code}: {self._last_line(process)}")
