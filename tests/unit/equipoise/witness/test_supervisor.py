"""`equipoise witness` passes signals on, returns the command's status, and proves the end of what
ran in it. Real processes, and no broker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.events.errors import InputError
from equipoise.hosting.witnessed import SOCKET_VARIABLE, start_witness
from tests.unit.equipoise.witness.test_child import WATCHED, proof

ROOT = Path(__file__).resolve().parents[4]
PATIENCE_S = 30.0
TOLD = WATCHED.replace("print(witness.pid, flush=True)", "print(os.getpid(), flush=True)")
TRAPPED = "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\nprint('ready', flush=True)\ntime.sleep(60)"


def run(*command: str, said: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(said, "w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "equipoise", "witness", "--", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("command", "status"), [(("true",), 0), (("sh", "-c", "exit 3"), 3), (("sh", "-c", "kill -9 $$"), 137)])
def test_status_is_that_of_the_command(tmp_path: Path, command: tuple[str, ...], status: int) -> None:
    with run(*command, said=tmp_path / "said") as process:
        assert process.wait(PATIENCE_S) == status
    assert (tmp_path / "said").read_text() == ""


def test_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with run(str(tmp_path / "nothing"), said=tmp_path / "said") as process:
        assert process.wait(PATIENCE_S) == 2
    assert "nothing: cannot be started (No such file or directory)" in (tmp_path / "said").read_text()


def test_signals_are_passed_on(tmp_path: Path) -> None:
    with run(sys.executable, "-c", TRAPPED, said=tmp_path / "said") as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE_S) == 7


def test_killed_command_is_proven_dead_before_the_supervisor_ends(tmp_path: Path) -> None:
    source = TOLD.format(lock=str(tmp_path / "lock"), bootstrap="127.0.0.1:1", within_s=1.0, then="").replace("ChildWitness()", "start_witness()")
    source = source.replace("import ChildWitness", "import start_witness")
    with run(sys.executable, "-c", source, said=tmp_path / "said") as process:
        pid = int(first_line(process))
        os.kill(pid, signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 137
    assert f"group g: member m1, process {pid} has ended; no broker took the proof within 1 s" in (tmp_path / "said").read_text()


def test_served_witness_that_is_started_again_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def served() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", "equipoise", "witness", "--socket", str(path), "--quiet"], env=environment)
        end_s = time.monotonic() + PATIENCE_S
        while not path.is_socket():
            assert time.monotonic() < end_s
            time.sleep(0.02)
        return process

    with pytest.raises(InputError, match="no witness answers"):
        start_witness({SOCKET_VARIABLE: str(path)})
    first = served()
    try:
        witness = start_witness({SOCKET_VARIABLE: str(path)})
        witness.watch(proof())
        witness.look()
    finally:
        first.terminate()
        assert first.wait(PATIENCE_S) == 0
    assert not path.exists()
    witness.look()  # nobody is there
    second = served()
    try:
        before = witness._socket  # type: ignore[attr-defined]  # a ServedWitness
        witness.look()
        assert witness._socket is not before  # type: ignore[attr-defined]
        witness.dismiss()
    finally:
        second.terminate()
        assert second.wait(PATIENCE_S) == 0
