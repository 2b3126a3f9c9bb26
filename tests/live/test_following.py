"""`status --watch` and `archive --follow` beside a live group: they show and copy changes, and an
interrupt ends them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from equipoise.events.facts import MemberJoined
from equipoise.events.records import FactRecord
from equipoise.log import open_log
from equipoise.replay.verification import Verdict, verify
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.swarm import Swarm, topology

MOST_S = 90.0


class Following:
    """One command as a process, and its output so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._out, self._err = folder / f"{arguments[0]}.out", folder / f"{arguments[0]}.err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            command = [sys.executable, "-m", "equipoise", *arguments]
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"})

    @property
    def said(self) -> str:
        return self._out.read_text()

    async def until_said(self, text: str) -> None:
        end_s = time.monotonic() + MOST_S
        while text not in self.said:
            assert self.process.poll() is None, self.said + self._err.read_text()
            assert time.monotonic() < end_s, self.said
            await asyncio.sleep(0.1)

    def interrupted(self) -> tuple[int, str]:
        """Exit code and stderr after ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(20), self._err.read_text()


class OnTerminal:
    """`status --watch` on a terminal of 100 columns, and what it has written there."""

    def __init__(self, *arguments: str) -> None:
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        command = [sys.executable, "-m", "equipoise", "status", *arguments, "--watch"]
        self.process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env={**os.environ, "TERM": "xterm-256color"})
        os.close(follower)
        os.set_blocking(leader, False)
        self._leader = leader
        self.said = ""

    def read(self) -> str:
        with contextlib.suppress(OSError):  # nothing new, or it has ended
            while some := os.read(self._leader, 65_536):
                self.said += some.decode(errors="replace")
        return self.said

    async def until_said(self, text: str) -> None:
        end_s = time.monotonic() + MOST_S
        while text not in self.read():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end_s, self.said[-5_000:]
            await asyncio.sleep(0.1)

    def interrupted(self) -> int:
        """Exit code after ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(20)
        self.read()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._leader)


@pytest.mark.smoke
async def test_following_commands_show_and_copy_changes_until_an_interrupt(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0)
    archived = tmp_path / "followed.db"
    async with Worker(settings), Swarm(settings, settings.topics) as swarm:
        await swarm.configure("g", configured(initial_delay_ms=200, acceptable_recovery_lag=100), topology(4))
        swarm.add("g", ["m1"])
        swarm.start()
        await swarm.until_all_run("g", 4, ["m1"])
        watch = Following(tmp_path, "status", "--bootstrap", bootstrap, "--prefix", prefix, "--group", "g", "--watch")
        terminal = OnTerminal("--bootstrap", bootstrap, "--prefix", prefix, "--group", "g")
        archive = Following(tmp_path, "archive", f"kafka://{bootstrap}/{prefix}", "--to", str(archived), "--follow")
        try:
            await watch.until_said("1 member\n")
            await terminal.until_said("4 tasks, 1 member;")
            swarm.add("g", ["m2"])
            await swarm.until_all_run("g", 4, ["m1", "m2"])
            await watch.until_said("2 members\n")
            await terminal.until_said("4 tasks, 2 members;")
            assert terminal.interrupted() == 130
            assert terminal.said.startswith("\x1b[?1049h"), "the alternate screen"
            assert "\x1b[?1049l" in terminal.said, "and back"
            end_s = time.monotonic() + MOST_S
            while joined(archived) != ["m1", "m2"]:
                assert time.monotonic() < end_s, joined(archived)
                await asyncio.sleep(0.5)
            assert watch.interrupted() == (130, "equipoise: interrupted\n")
            code, said = archive.interrupted()
            resume = f"equipoise: interrupted; {archived} holds what was copied so far; the same command resumes there"
            assert (code, said.splitlines()[-1]) == (130, resume)
        finally:
            terminal.close()
            for each in (watch, archive):
                each.process.kill()
                each.process.wait()
    with open_log(archived) as log:
        found = verify(log.read())
    assert found.verdict is Verdict.IDENTICAL, found.problems
    with open_log(archived) as log, open_log(f"kafka://{bootstrap}/{prefix}") as live:
        copied, there = list(log.read()), list(live.read())
    assert copied == there[: len(copied)], "each record once, in the order of the log"


def joined(path: Path) -> list[str]:
    """Members that have joined, by the archive."""
    if not path.exists() or not path.stat().st_size:
        return []
    with open_log(path) as log:
        return [entry.event.member_id for entry in log.read() if isinstance(entry, FactRecord) and isinstance(entry.event, MemberJoined)]
