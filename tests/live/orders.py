"""The sample application as processes: started, killed, stopped, followed by what they print."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from equipoise.assignors import registry
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.kafka.connection import Connection
from examples.orders.produce import make_topics, produce
from examples.orders.recount import NOT_COUNTED, Recount, recount
from tests.live.builds import THIS_BUILD, started

SESSION_MS = 8_000
LEASE_MARGIN_MS = 2_000
LEASE_S = (SESSION_MS - LEASE_MARGIN_MS) / 1_000
PATIENCE_S = 150.0
SETTINGS = GroupSettings(acceptable_recovery_lag=100, initial_delay_ms=500, num_standbys=1, probing_interval_ms=1_000, revocation_timeout_ms=20_000)


class Orders:
    """One deployment: topics, group and state folders of its own. Ends every process it has
    started. `prefix`: of the log. `name`: of the group and its topic; "": one after the prefix.
    """

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        folder: Path,
        guarantee: str,
        *,
        partitions: int = 4,
        session_ms: int = SESSION_MS,
        lease_margin_ms: int = LEASE_MARGIN_MS,
        heartbeat_ms: int = 1_000,
        commit_ms: int = 50,
        settings: GroupSettings = SETTINGS,
        name: str = "",
    ) -> None:
        self.connection = Connection(bootstrap=bootstrap)
        self.topic = self.group = name or f"{prefix}-orders"
        self.prefix, self.guarantee = prefix, guarantee
        self._folder = folder
        self._partitions = partitions
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.restore_records_per_s = 0.0
        """Throttle of members that are started from here on; 0: none."""
        self._numbers = itertools.count(1)
        self._seeds = itertools.count(1)
        part = Subtopology(
            subtopology=0, partitions=partitions, stateful=True, source_topics=(self.topic,), changelog_topics=(f"{self.topic}-state",)
        )
        self.topology = TopologyDeclared(epoch=0, subtopologies=(part,))
        assignor = registry.latest("high_availability")
        self.config = GroupConfigured(
            assignor=assignor.name,
            behaviour_version=assignor.version,
            solver=assignor.solver,
            knobs=settings,
        )
        self._timing = {
            "--session-timeout-ms": str(session_ms),
            "--lease-margin-ms": str(lease_margin_ms),
            "--heartbeat-interval-ms": str(heartbeat_ms),
            "--commit-interval-ms": str(commit_ms),
        }

    async def make_topics(self) -> None:
        await make_topics(self.connection, self.topic, self._partitions)

    async def produce(self, orders: int, *, per_second: float = 400.0, customers: int | Mapping[str, int] = 40) -> None:
        await produce(self.connection, self.topic, orders=orders, per_second=per_second, customers=customers, seed=next(self._seeds))

    # Processes

    def start(
        self,
        member_id: str,
        *,
        folder: str = "state",
        lead: bool = False,
        timing: tuple[int, int] | None = None,
        guarantee: str = "",
        epoch: int = 0,
        witness: bool = False,
        back_within_ms: int | None = None,
        bootstrap: str = "",
        build: Path = THIS_BUILD,
        clock: Path | None = None,
    ) -> str:
        """A process of `member_id`, with a worker in it if it is to `lead`; gives its name here.
        `timing`: its session timeout and margin in ms; None: those of all. `guarantee`: another
        one. `epoch`: of its topology. `witness`: whether it has one. `bootstrap`: another way to
        the brokers.
        `back_within_ms`: SIGTERM means that it will be back within that time; None: that it leaves.
        `build`: the repository of the build that it runs. `clock`: see `started`.
        """
        name = f"{member_id}.{next(self._numbers)}"
        options = {
            "--member": member_id,
            "--group": self.group,
            "--state": str(self._folder / folder),
            "--guarantee": guarantee or self.guarantee,
            "--prefix": self.prefix,
            "--topology-epoch": str(epoch),
            **self._timing,
        }
        if timing is not None:
            options |= {"--session-timeout-ms": str(timing[0]), "--lease-margin-ms": str(timing[1])}
        if back_within_ms is not None:
            options |= {"--on-sigterm": "restart", "--back-within-ms": str(back_within_ms)}
        if self.restore_records_per_s:
            options["--restore-records-per-s"] = str(self.restore_records_per_s)
        command = ["examples.orders", "--bootstrap", bootstrap or self.connection.bootstrap, "--topic", self.topic, "count"]
        command += [*itertools.chain(*options.items()), *(["--lead"] if lead else []), *(["--witness"] if witness else [])]
        self._processes[name] = started(command, self._folder / f"{name}.out", build, clock)
        return name

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.out").read_text(errors="replace")

    def process(self, name: str) -> subprocess.Popen[bytes]:
        return self._processes[name]

    def ended(self, name: str) -> int | None:
        """The exit code of a process that has come to its end; None: it lives."""
        return self._processes[name].poll()

    def signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def kill_witness(self, name: str) -> None:
        """kill -9 of the process that watches it, if that is there."""
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(file.read_text().rpartition(")")[2].split()[1])
                if parent == self._processes[name].pid and b"equipoise.witness.child" in (file.parent / "cmdline").read_bytes():
                    os.kill(int(file.parent.name), signal.SIGKILL)

    async def gone(self, name: str) -> int:
        """Waits for its end and gives its exit code."""
        process = self._processes[name]
        async with asyncio.timeout(PATIENCE_S):
            while process.poll() is None:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.1)
        del self._processes[name]
        return process.returncode

    async def until_said(self, name: str, text: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.said(name).count(text) < times:
                assert self._processes[name].poll() is None, self.said(name)
                await asyncio.sleep(0.1)

    # Judgement

    async def until_counted(self) -> Recount:
        """Waits until every order was counted, then judges by the recount."""
        exactly_once = self.guarantee == "exactly_once"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await recount(self.connection.options(), self.topic, exactly_once=exactly_once)
                if not any(NOT_COUNTED in fault for fault in found.faults):
                    return found
                await asyncio.sleep(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, process in list(self._processes.items()):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
            self.kill(name)
        if error is not None:
            for out in sorted(self._folder.glob("*.out")):
                print(f"--- {out.name}\n{out.read_text(errors='replace')[-3_000:]}")


def expired(leader: Any, member_id: str) -> list[str]:
    """Why incarnations of a member were put out, in order."""
    from equipoise.events.decisions import MemberExpired

    return [each.cause for each in leader.decided(MemberExpired) if each.member_id == member_id]
