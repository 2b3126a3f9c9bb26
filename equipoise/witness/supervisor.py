"""Runs a command, and proves the end of the members and workers in it. May be the first process of
a container: it passes signals on, and waits for every process that it inherits.

With a `MemberWatch` the command may be any Kafka client: its member is taken out of its consumer
group when the command and all that it started have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.events.errors import InputError
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.hosting.witnessed import SOCKET_VARIABLE
from equipoise.kafka.client import call_off
from equipoise.witness.server import WitnessServer

if TYPE_CHECKING:
    from equipoise.witness.member_watch import MemberWatch

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
PROVEN_S = 10.0
"""Longest wait for the proofs when the command has ended, and for processes that it has started."""
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_PR_SET_CHILD_SUBREAPER = 36


async def supervise(
    command: Sequence[str], environment: Mapping[str, str] = os.environ, watch: MemberWatch | None = None, runtime: Runtime = DEPLOYED
) -> int:
    """Runs the command to its end. Returns its exit status; 128 and the signal's number when a
    signal has ended it. Raises InputError when it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="equipoise-witness-") as folder:
        path = Path(folder) / "socket"
        async with WitnessServer(path, runtime) as server, contextlib.AsyncExitStack() as stack:
            if watch is not None:
                _adopt_orphans()
                await stack.enter_async_context(watch)
            status = await _run(command, {**environment, SOCKET_VARIABLE: str(path)}, watch, runtime)
            await server.proven(PROVEN_S)
            return status


async def _run(command: Sequence[str], environment: Mapping[str, str], watch: MemberWatch | None, runtime: Runtime) -> int:
    loop, children = asyncio.get_running_loop(), _Children()
    loop.add_signal_handler(signal.SIGCHLD, children.reap)
    try:
        try:
            process = subprocess.Popen(list(command), env=dict(environment))  # noqa: ASYNC220  # nothing else runs yet
        except OSError as error:
            raise InputError(f"{command[0]}: cannot be started ({error.strerror})") from None
        passed_on: set[int] = set()

        def pass_on(number: signal.Signals) -> None:
            passed_on.add(number)
            if number is not signal.SIGINT or not os.isatty(0):  # a terminal sends it to both
                process.send_signal(number)

        for number in PASSED_ON:
            loop.add_signal_handler(number, pass_on, number)
        async with _followed(watch, process.pid):
            children.reap()
            status = process.returncode = await children.ended_with(process.pid)
        if watch is not None:
            was_stopped = status == 0 or status - 128 in STOPS or not STOPS.isdisjoint(passed_on)
            await _remove_member(watch, process.pid, children, runtime.monotonic_s, was_stopped=was_stopped)
        return status if status >= 0 else 128 - status
    finally:
        for number in (signal.SIGCHLD, *PASSED_ON):
            loop.remove_signal_handler(number)


class _Children:
    """The processes that this one has to wait for. `ended`: process id -> exit code."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self.are_gone = False
        self._over = asyncio.Event()

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.are_gone = True
                break
            if not pid:
                break
            self.ended[pid] = os.waitstatus_to_exitcode(status)
        self._over.set()

    async def ended_with(self, pid: int) -> int:
        """Returns the exit code of a child, at its end."""
        while pid not in self.ended:
            self._over.clear()
            await self._over.wait()
        return self.ended[pid]

    async def next_end(self) -> None:
        """Returns after the end of a child."""
        self._over.clear()
        await self._over.wait()


@contextlib.asynccontextmanager
async def _followed(watch: MemberWatch | None, pid: int) -> AsyncIterator[None]:
    """Within the block `watch` looks which member the command is."""
    if watch is None:
        yield
        return
    process = os.pidfd_open(pid)
    looks = asyncio.create_task(watch.follow(pid, lambda: not select.select([process], [], [], 0)[0]))
    try:
        yield
    finally:
        await call_off(looks)
        os.close(process)
    if not looks.cancelled():
        looks.result()  # it ends by itself only with an error


async def _remove_member(watch: MemberWatch, pid: int, children: _Children, monotonic_s: Callable[[], float], *, was_stopped: bool) -> None:
    """Removes the member when every process that the command has started has ended; nothing while
    one lives: the member may be in it. `was_stopped`: the command ended in order.
    """
    end_s = monotonic_s() + PROVEN_S
    while not children.are_gone and monotonic_s() < end_s:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(children.next_end(), end_s - monotonic_s())
    if children.are_gone:
        await watch.remove(pid, was_stopped=was_stopped)
    else:
        watch.say(pid, "nothing was removed, because a process that it started lives on")


def _adopt_orphans() -> None:
    """From now on, a process whose parents have ended is a child of this one: when this one has no
    child left, everything that it has started has ended. Raises InputError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl") or libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise InputError("--group: this system does not hand orphaned processes to their supervisor; it needs Linux")
