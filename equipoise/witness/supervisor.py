"""Runs a command, and proves the end of the members and workers in it. May be the first process of
a container: it passes signals on, and waits for every process that it inherits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.events.errors import InputError
from equipoise.witness.parent import SOCKET_VARIABLE
from equipoise.witness.server import WitnessServer

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
PROVEN_S = 10.0
"""Longest wait for the proofs when the command has ended."""


async def supervise(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Runs the command to its end. Returns its exit status; 128 and the signal's number when a
    signal has ended it. Raises InputError when it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="equipoise-witness-") as folder:
        path = Path(folder) / "socket"
        async with WitnessServer(path) as server:
            status = await _run(command, {**environment, SOCKET_VARIABLE: str(path)})
            await server.proven(PROVEN_S)
            return status


async def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    ended: dict[int, int] = {}

    def reap() -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
        over.set()

    loop.add_signal_handler(signal.SIGCHLD, reap)
    try:
        try:
            process = subprocess.Popen(list(command), env=dict(environment))  # noqa: ASYNC220  # nothing else runs yet
        except OSError as error:
            raise InputError(f"{command[0]}: cannot be started ({error.strerror})") from None
        for number in PASSED_ON:
            if number is not signal.SIGINT or not os.isatty(0):  # a terminal sends it to both
                loop.add_signal_handler(number, process.send_signal, number)
            else:
                loop.add_signal_handler(number, lambda: None)
        reap()
        while process.pid not in ended:
            over.clear()
            await over.wait()
        status = process.returncode = ended[process.pid]
        return status if status >= 0 else 128 - status
    finally:
        for number in (signal.SIGCHLD, *PASSED_ON):
            loop.remove_signal_handler(number)
