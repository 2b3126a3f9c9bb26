"""Time, threads and the machine, as hosts see them. Tests have simulated ones."""

from __future__ import annotations

import asyncio
import concurrent.futures
import fcntl
import gc
import os
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from equipoise.hosting.machine_load import HostLoad, HostShares

if TYPE_CHECKING:
    from equipoise.hosting.proof import Witness

T = TypeVar("T")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""On Linux, and the same in all containers of one machine. Other systems have no such file."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no CLOCK_BOOTTIME; there CLOCK_MONOTONIC goes on in sleep

_COLLECTIONS = 50_000, 20, 20
"""Thresholds of Python's collector. The first: so many more objects than before."""


def collect_seldom() -> None:
    """Makes Python's collector of cycles run less often in this process, unless it is off or was
    made to run seldom already. What was imported stays, and what a round makes, or records that
    wait, is freed without it: with Python's own thresholds it takes a tenth of a busy member's CPU,
    and a round of a group of 10,000 tasks 0.1 s more.
    """
    gc.freeze()
    if 0 < gc.get_threshold()[0] < _COLLECTIONS[0]:
        gc.set_threshold(*_COLLECTIONS)


class HostThread(Protocol):
    """An event loop that runs beside the application's, so that a handler that blocks stops neither
    heartbeats nor restores.
    """

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts `coroutine` on that loop. Any thread may call this."""
        ...

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs `coroutine` on that loop, and returns its result here."""
        ...

    async def stop(self) -> None:
        """Cancels all tasks of the loop and ends the thread."""
        ...


class HeldLock(Protocol):
    """A lock on a file, held by this process until `release` or its end."""

    @property
    def identity(self) -> list[int]:
        """Device and inode of the file."""
        ...

    def release(self) -> None: ...


class LoadMeter(Protocol):
    """Measures how much of its machine a process uses."""

    def look(self, now_ms: int) -> HostShares:
        """The last measured shares; measures again after some seconds. `now_ms`: by `boot_ms`."""
        ...


class Runtime(Protocol):
    """What a host needs of the machine it runs on, apart from Kafka and files."""

    def boot_ms(self) -> int:
        """Milliseconds on CLOCK_BOOTTIME, which cannot be set and runs on while the machine sleeps.
        Leases are dated by it. See docs/protocol.md#m4.
        """
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock for waits and measurements."""
        ...

    def wall_us(self) -> int:
        """Microseconds since 1970, for incarnations. It may be set to any time."""
        ...

    def unique(self) -> str:
        """Text that no other call, process or machine returns."""
        ...

    def thread(self, name: str) -> HostThread:
        """Starts a thread with an event loop."""
        ...

    async def run_blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function that may block for long, beside the event loop."""
        ...

    def lock(self, file: Path) -> HeldLock:
        """Locks a file, which is created if it does not exist. Raises BlockingIOError when a live
        process has it, OSError when it cannot be written.
        """
        ...

    def boot_id(self) -> str | None:
        """Id of this boot of the machine; None: the system has none."""
        ...

    def witness(self) -> Witness:
        """Starts a witness of this process. Raises InputError when the system has none."""
        ...

    def load_meter(self, folder: Path | None) -> LoadMeter:
        """Measures this process. `folder`: where it keeps its state; None: it keeps none on disk."""
        ...


class LoopThread:
    """An event loop that runs from its construction to `stop`, on a daemon thread `name`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self.start(coroutine))

    async def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self._thread.join)


class FileLock:
    """A lock by flock(2). See `Runtime.lock`."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def identity(self) -> list[int]:
        file = os.fstat(self._descriptor)
        return [file.st_dev, file.st_ino]

    def release(self) -> None:
        os.close(self._descriptor)


class DeployedRuntime:
    """The `Runtime` of a process on a real machine."""

    monotonic_s = staticmethod(time.monotonic)

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_CLOCK) // 1_000_000

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    def unique(self) -> str:
        return uuid.uuid4().hex

    def thread(self, name: str) -> HostThread:
        return LoopThread(name)

    async def run_blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.to_thread(function, *arguments)

    def lock(self, file: Path) -> HeldLock:
        return FileLock(file)

    def boot_id(self) -> str | None:
        try:
            return BOOT_ID.read_text().strip() or None
        except OSError:
            return None

    def witness(self) -> Witness:
        from equipoise.hosting.witnessed import start_witness  # few processes have one

        return start_witness()

    def load_meter(self, folder: Path | None) -> LoadMeter:
        return HostLoad(folder)


DEPLOYED: Runtime = DeployedRuntime()


# Signals

EXIT_BLOCKED = 1


class SignalWatch:
    """Waits for the loop to hear of a signal. `within_s`: so long; then `expired` is called, on
    another thread. A signal handler of Python runs while a loop is blocked by Python code, or by a
    system call.
    """

    def __init__(self, within_s: float, expired: Callable[[], None]) -> None:
        self._within_s, self._expired = within_s, expired
        self._heard: list[threading.Event] = []

    def signalled(self, *_: object) -> None:
        """A signal has come. Use it with `signal.signal`."""
        heard = threading.Event()
        self._heard.append(heard)
        threading.Thread(target=self._wait, args=(heard,), name="equipoise-signal", daemon=True).start()

    def heard(self) -> None:
        """The loop runs."""
        for each in self._heard:
            each.set()
        self._heard.clear()

    def _wait(self, heard: threading.Event) -> None:
        if not heard.wait(self._within_s):
            self._expired()


def end_at_once(who: str, within_s: float) -> None:
    """Ends the process, without another write. The log may be blocked, too."""
    text = f"equipoise: {who}: a handler has blocked the event loop for {within_s:g} s after a signal: the process ends at once\n"
    os.write(2, text.encode(errors="backslashreplace"))
    os._exit(EXIT_BLOCKED)
