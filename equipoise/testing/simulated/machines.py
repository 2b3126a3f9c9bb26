"""Machines, their disks, and processes on them, in virtual time."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import attrs

from equipoise.hosting.machine_load import HostShares
from equipoise.hosting.proof import MemberProof, Proof
from equipoise.log.kafka.envelope import group_key
from equipoise.testing.simulated.virtual_loops import MS_US, S_US, Scheduler, VirtualLoop, VirtualThread
from equipoise.witness.child import append

T = TypeVar("T")
MOST_UNDONE = 20
"""Writes of a store that a failure of its machine undoes, at most."""
WITNESS_S = 0.02, 0.4
"""From the end of a process until its witness begins to prove it."""
LOCK_LOOK_S = 0.05
SINCE_1970_US = 1_700_000_000 * S_US
"""The true time of day at the start."""


@attrs.define(eq=False)
class _Content:
    """The contents of one store on a disk, and how to undo its last writes."""

    values: dict[bytes, bytes] = attrs.field(factory=dict)
    offset: int = 0
    undo: list[tuple[bool, int, dict[bytes, bytes | None]]] = attrs.field(factory=list)
    """Of each of the last writes: whether it was in bulk, the offset and the values before."""

    def apply(self, changes: Mapping[bytes, bytes | None], offset: int, *, bulk: bool) -> None:
        before: dict[bytes, bytes | None] = {}
        for key, value in changes.items():
            before[key] = self.values.get(key)
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value
        self.undo.append((bulk, self.offset, before))
        del self.undo[:-MOST_UNDONE]
        self.offset = offset

    def lose(self, writes: int) -> None:
        """Undoes the last `writes`, each as a whole."""
        for _ in range(min(writes, len(self.undo))):
            _, self.offset, before = self.undo.pop()
            for key, value in before.items():
                if value is None:
                    self.values.pop(key, None)
                else:
                    self.values[key] = value

    @property
    def in_bulk(self) -> int:
        """Number of last writes that a killed process may lose."""
        count = 0
        for bulk, _, _ in reversed(self.undo):
            if not bulk:
                break
            count += 1
        return count


class Machine:
    """A computer: its clocks, its disk (files below `folder`, stores in memory), its boots."""

    def __init__(self, name: str, folder: Path, random: Random) -> None:
        self.name = name
        self.folder = folder
        self.random = random
        self.boot_offset_us = random.randrange(10_000 * S_US)
        """Its boot clock at the start."""
        self.wall_offset_us = random.randrange(-200 * MS_US, 200 * MS_US)
        """By how much its time of day is wrong."""
        self.boots = 1
        self.stores: dict[Path, _Content] = {}
        self.has_failed = False
        """Whether it has just failed as a whole, and every process on it."""
        self.held: dict[str, SimulatedProcess] = {}
        """Path of a locked file -> the process that holds it."""
        folder.mkdir(parents=True, exist_ok=True)

    def content(self, folder: Path) -> _Content:
        """Returns the contents of the store in a folder; new ones where the folder was removed."""
        if not folder.exists():
            self.stores.pop(folder, None)
        return self.stores.setdefault(folder, _Content())

    def wipe(self, folder: Path) -> None:
        """Removes everything below `folder`."""
        shutil.rmtree(folder, ignore_errors=True)
        for place in [place for place in self.stores if place.is_relative_to(folder)]:
            del self.stores[place]

    def copy(self, folder: Path, to: Path) -> None:
        """Copies everything below `folder`, as a clone or a backup of the disk does."""
        self.wipe(to)
        if folder.exists():
            shutil.copytree(folder, to)
        for place, content in list(self.stores.items()):
            if place.is_relative_to(folder):
                self.stores[to / place.relative_to(folder)] = _Content(dict(content.values), content.offset)

    def lose_writes(self, folder: Path, *, failed: bool) -> None:
        """A process was killed, or the machine itself failed: the last writes of some stores are
        gone.
        """
        for place, content in sorted(self.stores.items()):
            if place.is_relative_to(folder):
                content.lose(self.random.randrange((MOST_UNDONE if failed else content.in_bulk) + 1))


class DiskStore:
    """A `StateStore` on the disk of a machine. See `equipoise.member.copies.stores`."""

    lasting = True

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._content = machine.content(folder)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def offset(self) -> int:
        return self._content.offset

    def get(self, key: bytes) -> bytes | None:
        return self._content.values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._content.values.get(key) for key in keys]

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((key, value) for key, value in self._content.values.items() if key >= start and (end is None or key < end)))

    def apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        self._content.apply(changes, offset, bulk=bulk)

    def wipe(self) -> None:
        self._content.values.clear()
        self._content.undo.clear()
        self._content.offset = 0

    def close(self) -> None:
        self._content.undo.clear()


class _HeldLock:
    def __init__(self, process: SimulatedProcess, file: Path) -> None:
        self._process, self._file = process, file
        file.touch()
        self.identity = _identity(file)
        process.machine.held[str(file)] = process

    def release(self) -> None:
        self._process.machine.held.pop(str(self._file), None)


class _NoLoad:
    def look(self, now_ms: int) -> HostShares:
        return HostShares()


class SimulatedWitness:
    """Proves the end of a process, from another one on the same machine that starts then. See
    `equipoise.hosting.runtime.Witness`.
    """

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self._proof: MemberProof | None = None
        process.on_kill.append(self._ended)

    def watch(self, proof: Proof) -> None:
        assert isinstance(proof, MemberProof), "simulated workers have no witness"
        self._proof = proof

    def look(self) -> None:
        """Does nothing: it ends with its machine only, or by `dismiss`."""

    def dismiss(self) -> None:
        self._proof = None

    def _ended(self) -> None:
        watched, proof = self._process, self._proof
        if proof is not None and not watched.machine.has_failed:
            witness = SimulatedProcess(watched.scheduler, watched.machine, f"{watched.name}-witness", ended=lambda error: None)
            witness.start(self._prove(witness, proof))

    async def _prove(self, witness: SimulatedProcess, proof: MemberProof) -> None:
        from aiokafka.errors import KafkaError

        await asyncio.sleep(witness.machine.random.uniform(*WITNESS_S))
        by_s = witness.monotonic_s() + proof.within_s
        if proof.lock is not None:
            file, identity = proof.lock
            while file in witness.machine.held:
                if witness.monotonic_s() >= by_s:
                    return
                await asyncio.sleep(LOCK_LOOK_S)
            if _identity(file) != list(identity):
                return
        left = proof.facts(f"{self._process.name} has ended")
        while left and witness.monotonic_s() < by_s:
            clients = proof.connection.of_process(witness.name).clients  # type: ignore[attr-defined]  # a simulated one
            try:
                await append(clients.producer(request_timeout_ms=1_000), proof.topic, proof.partition, group_key(proof.group).hex(), left)
                return
            except KafkaError:
                await asyncio.sleep(LOCK_LOOK_S)


def _identity(file: Path | str) -> list[int]:
    """Device and inode; [] where there is no such file."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return []
    return [status.st_dev, status.st_ino]


class SimulatedProcess:
    """A process: its threads, and what the operating system does to it. It is the `Runtime` of the
    hosts in it. `main` runs on its first thread; `ended` is called with its error, or None, when it
    ends by itself.
    """

    def __init__(self, scheduler: Scheduler, machine: Machine, name: str, *, ended: Callable[[BaseException | None], object]) -> None:
        self.scheduler = scheduler
        self.machine = machine
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.is_cut_off = False
        """Whether the network is cut between this process and the brokers."""
        self.slowness = 1.0
        self.on_kill: list[Callable[[], object]] = []
        """What notices the end of this process from outside: its connections."""
        self._ended = ended
        self._uniques = 0
        self.loops: list[VirtualLoop] = []
        self.app = self._loop("app")

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        self.app.create_task(main).add_done_callback(self._main_ended)

    def _loop(self, thread: str) -> VirtualLoop:
        loop = VirtualLoop(self.scheduler, f"{self.name}:{thread}")
        loop.slowness = self.slowness
        if self.is_paused:
            loop.pause()
        self.loops.append(loop)
        return loop

    def _main_ended(self, task: Any) -> None:
        if not task.cancelled() and self.is_alive:
            error = task.exception()
            self.scheduler.call_later(0, self._exit, error)

    def _exit(self, error: BaseException | None) -> None:
        if self.is_alive:
            self.kill()
            self._ended(error)

    # Signals

    def pause(self) -> None:
        self.is_paused = True
        for loop in self.loops:
            loop.pause()

    def resume(self) -> None:
        self.is_paused = False
        for loop in self.loops:
            loop.resume()

    def slow_down(self, slowness: float) -> None:
        self.slowness = slowness
        for loop in self.loops:
            loop.slowness = slowness

    def kill(self) -> None:
        self.is_alive = False
        for loop in self.loops:
            loop.kill()
        for file in [file for file, process in self.machine.held.items() if process is self]:
            del self.machine.held[file]
        for each in self.on_kill:
            each()

    # equipoise.hosting.runtime.Runtime

    def boot_ms(self) -> int:
        return (self.scheduler.now_us + self.machine.boot_offset_us) // MS_US

    def monotonic_s(self) -> float:
        return (self.scheduler.now_us + self.machine.boot_offset_us) / S_US

    def wall_us(self) -> int:
        return SINCE_1970_US + self.scheduler.now_us + self.machine.wall_offset_us

    def unique(self) -> str:
        self._uniques += 1
        return f"{self.name}-{self._uniques}"

    def thread(self, name: str) -> VirtualThread:
        return VirtualThread(self._loop(name))

    async def run_blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    def lock(self, file: Path) -> _HeldLock:
        """Raises BlockingIOError when another process has the lock."""
        if str(file) in self.machine.held:
            raise BlockingIOError(11, "locked")
        return _HeldLock(self, file)

    def boot_id(self) -> str | None:
        return f"{self.machine.name}-{self.machine.boots}"

    def witness(self) -> SimulatedWitness:
        return SimulatedWitness(self)

    def load_meter(self, folder: Path | None) -> _NoLoad:
        return _NoLoad()
