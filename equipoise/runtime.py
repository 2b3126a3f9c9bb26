"""Time and threads, as hosts see them: the deployed ones here, virtual ones in the simulation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
import uuid
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no CLOCK_BOOTTIME; there CLOCK_MONOTONIC goes on in sleep


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


class DeployedRuntime:
    """The `Runtime` of a process on a real machine."""

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_CLOCK) // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    def unique(self) -> str:
        return uuid.uuid4().hex

    def thread(self, name: str) -> HostThread:
        from equipoise.member.threads import LoopThread

        return LoopThread(name)


DEPLOYED = DeployedRuntime()
