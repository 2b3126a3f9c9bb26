"""Ctrl-C while Java starts ends a command at once, and Java with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.cli.exit_codes import EXIT_INTERRUPTED

pytestmark = pytest.mark.xdist_group("spark")

MOST_S = 60.0
ENDS_S = 10.0


def javas(session: int) -> list[int]:
    """Java processes of a session that run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        if int(fields[3]) == session and fields[0] != "Z" and name.endswith("(java"):
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.5, marks=pytest.mark.slow), pytest.param(1.5, marks=pytest.mark.slow)])
def test_interrupt_while_java_starts_ends_both(fleet: Path, after_s: float) -> None:
    command = [sys.executable, "-m", "equipoise", "spark", "verify", str(fleet), "--master", "local[1]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as process:
        until_s = time.monotonic() + MOST_S
        while not javas(process.pid):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        try:
            said, _ = process.communicate(timeout=ENDS_S)
            left = javas(process.pid)
        finally:
            for pid in javas(process.pid):
                os.kill(pid, signal.SIGKILL)
    assert left == []
    assert process.returncode == EXIT_INTERRUPTED
    assert b"equipoise: interrupted" in said
    assert b"Traceback" not in said
