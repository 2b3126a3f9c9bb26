"""A witness of several processes: each connects to its socket, and says the same as to
`equipoise.witness.child`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from equipoise.events.errors import InputError
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.hosting.witnessed import READY
from equipoise.witness import child

MOST_LINE_BYTES = 2**20
_CREDENTIALS = struct.Struct("3i")


class WitnessServer:
    """Serves a Unix socket, which only its own user may connect to, while this is open."""

    def __init__(self, path: Path, runtime: Runtime = DEPLOYED) -> None:
        self._path, self._runtime = path, runtime
        self._watching: dict[asyncio.Task[None], int] = {}
        """Task of a connection -> pidfd of its process."""

    async def __aenter__(self) -> Self:
        if not hasattr(os, "pidfd_open"):
            raise InputError("this system cannot watch processes by pidfd; witnesses need Linux")
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._connected, self._path, limit=MOST_LINE_BYTES)
        except OSError as error:
            raise InputError(f"{self._path}: cannot listen there ({error.strerror}); name another socket") from None
        finally:
            os.umask(before)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        for each in list(self._watching):
            each.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    async def proven(self, within_s: float) -> None:
        """Returns when nothing is left to prove of processes that have ended."""
        monotonic_s = self._runtime.monotonic_s
        end_s = monotonic_s() + within_s
        while any(map(_has_ended, self._watching.values())) and monotonic_s() < end_s:  # noqa: ASYNC110  # the last 10 s of a process
            await asyncio.sleep(0.02)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs in one"
        connection: socket.socket = writer.get_extra_info("socket")
        pid, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        # It may have ended before it said anything. What this server cancels, asyncio would log.
        with contextlib.suppress(ProcessLookupError, asyncio.CancelledError):
            self._watching[task] = os.pidfd_open(pid)
            try:
                await self._watch(reader, writer, self._watching[task])
            finally:
                os.close(self._watching.pop(task))
        writer.close()

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: int) -> None:
        writer.write(READY)  # what it says from here on shows that it lived when its pidfd was opened
        last = b"{}"
        with contextlib.suppress(ValueError, ConnectionError):  # a line that is too long, or none of ours
            while (line := await reader.readline()).endswith(b"\n"):
                last = line
            said = json.loads(last)
            if said:
                await _ended(process)
                await self._prove(said)

    async def _prove(self, said: dict[str, Any]) -> None:
        runtime, began_s = self._runtime, self._runtime.monotonic_s()
        by_s = began_s + said["within_s"]
        problem = await runtime.run_blocking(child.why_unproven, said, by_s, runtime.monotonic_s)
        if not problem and not await runtime.run_blocking(child.was_appended, said):
            problem = await child.tell(said, by_s, runtime.monotonic_s)
        child.say_how_it_went(said, runtime.monotonic_s() - began_s, problem)


def _has_ended(process: int) -> bool:
    return bool(select.select([process], [], [], 0)[0])


async def _ended(process: int) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(process)
