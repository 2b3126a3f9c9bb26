"""Shared parts of the benchmarks on a real broker: the broker, a deployed worker, groups for it to
lead, and the format of times.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Self

from equipoise.member.options import MemberOptions
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.swarm import Swarm, topology
from tools.brokers import FAST_JAVA, Brokers

Row = tuple[str, float, str]
DEFAULTS = MemberOptions()
KEEPALIVE_MS = DEFAULTS.keepalive_ms or DEFAULTS.heartbeat_interval_ms
AS_DEPLOYED = {
    "heartbeat_interval_ms": DEFAULTS.heartbeat_interval_ms,
    "keepalive_interval_ms": KEEPALIVE_MS,
    "session_timeout_ms": DEFAULTS.session_timeout_ms,
    "lease_margin_ms": DEFAULTS.lease_margin_ms,
}
"""Members without a process, with the defaults of `Member`."""
PATIENCE_S = 120.0


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """``host:port`` of a real Kafka: the broker in the environment variable `KAFKA_BOOTSTRAP`, or
    one that is started here and ended at the end.
    """
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        yield given
        return
    with Brokers(java=FAST_JAVA) as brokers:
        yield brokers.bootstrap


def quantile(values: Sequence[float], part: float) -> float:
    """The value that `part` of all do not exceed: 0.5 is the median."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def quantiles_text(values_s: Sequence[float]) -> str:
    """``0.8 / 2.1 ms``: median and 99th percentile of times in seconds."""
    return f"{statistics.median(values_s) * 1000:.2f} / {quantile(values_s, 0.99) * 1000:.2f} ms"


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used so far, over all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class WorkerProcess:
    """`equipoise worker`, as it is deployed, from construction to `end`."""

    def __init__(self, settings: WorkerSettings, *arguments: str) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115  # closed in `end`
        command = [sys.executable, "-m", "equipoise", "worker", "--bootstrap", settings.bootstrap, "--prefix", settings.prefix, "--http-port", "0"]
        self.process = subprocess.Popen([*command, *arguments], stderr=self._log)

    @property
    def said(self) -> str:
        return Path(self._log.name).read_text()

    def until_said(self, text: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while text not in self.said:
            assert self.process.poll() is None, self.said[-3_000:]
            assert time.monotonic() < end, f"the worker did not say {text!r}:\n{self.said[-3_000:]}"
            time.sleep(0.02)

    @property
    def cpu_s(self) -> float:
        return cpu_seconds(self.process.pid)

    def end(self, how: signal.Signals = signal.SIGTERM) -> float:
        """Ends the process; returns the seconds that took."""
        began_s = time.monotonic()
        self.process.send_signal(how)
        self.process.wait(60)
        took_s = time.monotonic() - began_s
        self._log.close()
        return took_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)


class Groups:
    """Groups with simulated members, in a separate process, so that their cost is not measured.
    They exist as long as the context. `alone`: see `Swarm.send_alone`.
    """

    def __init__(self, settings: WorkerSettings, groups: int, members: int, tasks: int, *, alone: bool = False, **member: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(settings, groups, members, tasks, alone, member, theirs), daemon=True)

    def __enter__(self) -> Self:
        """Returns when every task of every group has a running owner."""
        self._process.start()
        assert self._pipe.poll(2 * PATIENCE_S), "the groups did not come to run all their tasks"
        assert self._pipe.recv() == "running"
        return self

    def counted(self) -> dict[str, int]:
        """Facts sent so far, incarnations lost, and tasks run by two members at once."""
        self._pipe.send("count")
        assert self._pipe.poll(PATIENCE_S), "the swarm does not answer"
        counted: dict[str, int] = self._pipe.recv()
        return counted

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def group_name(number: int) -> str:
    return f"group-{number:03d}"


def _live(settings: WorkerSettings, groups: int, members: int, tasks: int, alone: bool, member: dict[str, Any], pipe: Pipe) -> None:
    asyncio.run(_run_groups(settings, groups, members, tasks, alone, member, pipe))


async def _run_groups(settings: WorkerSettings, groups: int, members: int, tasks: int, alone: bool, member: dict[str, Any], pipe: Pipe) -> None:
    async with Swarm(settings, settings.topics) as swarm:
        names = [group_name(number) for number in range(groups)]
        for name in names:
            await swarm.configure(name, configured(initial_delay_ms=500), topology(tasks, prefix=f"{name}-"))
            swarm.add(name, [f"m{each}" for each in range(members)], incarnations=time.time_ns() // 1_000, **{**AS_DEPLOYED, **member})
        swarm.start()
        while any(len(swarm.owners(name)) < tasks for name in names):  # many sessions, so poll instead of waiting for an event
            swarm.look()
            await asyncio.sleep(0.5)
        if alone:
            swarm.send_alone()
        pipe.send("running")
        while True:
            swarm.look()
            if pipe.poll():
                pipe.recv()
                pipe.send({"sent": swarm.sent, "lost": swarm.lost, "overlaps": len(swarm.overlaps)})
            await asyncio.sleep(0.02)
