"""A witness proves the end of its parent and nothing else. Real processes; no broker answers, which
the witness says, so what it says shows what it would have proven.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.errors import InputError
from equipoise.hosting.witnessed import ChildWitness
from equipoise.witness import child

PATIENCE_S = 20.0
NOBODY = "127.0.0.1:1"
WATCHED = """
import os, subprocess, sys, time
from equipoise.kafka.connection import Connection
from equipoise.hosting.runtime import FileLock
from equipoise.hosting.witnessed import ChildWitness
from equipoise.hosting.proof import MemberProof
from pathlib import Path

lock = FileLock(Path({lock!r}))
witness = ChildWitness()
witness.watch(MemberProof(
    connection=Connection(bootstrap={bootstrap!r}), topic="facts", partition=0, group="g", member_id="m1", incarnations=[1, 2],
    lock=({lock!r}, lock.identity), within_s={within_s},
))
{then}
print(witness.pid, flush=True)
time.sleep(60)
"""
FORKS = "child = os.fork()\nif not child:\n    time.sleep(60)\nprint(child, flush=True)"


class Watched:
    """A process with a witness. `numbers`: what it has printed: its witness's pid comes last."""

    def __init__(self, folder: Path, *, then: str = "", within_s: float = 1.0, printed: int = 1) -> None:
        self._said = folder / "said"
        self.lock = folder / "lock"
        source = WATCHED.format(lock=str(self.lock), bootstrap=NOBODY, within_s=within_s, then=then)
        with open(self._said, "wb") as file:
            self.process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=file)
        assert self.process.stdout is not None
        self.numbers = [int(self.process.stdout.readline()) for _ in range(printed)]

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def witness_lives(self) -> bool:
        return _lives(self.numbers[-1])

    def until_over(self) -> str:
        """Waits until the witness has ended. Returns what it said."""
        end_s = time.monotonic() + PATIENCE_S
        while self.witness_lives:
            assert time.monotonic() < end_s, "the witness goes on"
            time.sleep(0.02)
        return self.said


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Any]:
    made: list[Watched] = []

    def make(**options: Any) -> Watched:
        made.append(Watched(tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.wait()
        assert each.process.stdout is not None
        each.process.stdout.close()
        for number in each.numbers:
            if _lives(number):
                os.kill(number, signal.SIGKILL)


def test_killed_process_is_proven_dead_for_as_long_as_its_session(watched: Any) -> None:
    process = watched()
    process.process.kill()
    said = process.until_over()
    assert f"group g: member m1, process {process.process.pid} has ended; no broker took the proof within 1 s" in said
    assert "another file" not in said


def test_stopped_process_is_not_dead(watched: Any) -> None:
    process = watched(within_s=0.1)
    process.process.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    process.process.send_signal(signal.SIGCONT)
    assert process.witness_lives
    assert process.said == ""


def test_process_that_has_nothing_to_prove_ends_without_a_word(watched: Any) -> None:
    process = watched(then="witness.dismiss()")
    assert not process.witness_lives
    process.process.kill()
    assert process.until_over() == ""


def test_forked_child_that_goes_on_keeps_its_parent_from_being_proven_dead(watched: Any) -> None:
    process = watched(then=FORKS, printed=2)
    process.process.kill()
    time.sleep(1.0)
    assert process.witness_lives
    assert process.said == ""
    os.kill(process.numbers[0], signal.SIGKILL)
    assert "has ended; no broker took the proof" in process.until_over()


def test_lock_that_is_held_or_is_another_file_proves_nothing(watched: Any) -> None:
    process = watched(within_s=0.5)
    copied = process.lock.with_name("copy")
    copied.touch()
    copied.replace(process.lock)
    process.process.kill()
    assert "nothing is proven, because" in process.until_over()


def test_signals_to_all_processes_of_a_service_end_no_witness(watched: Any) -> None:
    process = watched()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process.numbers[-1], number)
    time.sleep(0.3)
    assert process.witness_lives
    process.process.kill()
    assert "has ended" in process.until_over()


def test_witness_takes_little_memory(watched: Any) -> None:
    process = watched()
    time.sleep(0.5)
    status = Path(f"/proc/{process.numbers[-1]}/status").read_text().splitlines()
    (peak,) = (int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    assert peak < 15 * 1_024, f"{peak} kB"


TOPIC_ID = "00112233445566778899aabbccddeeff"


@pytest.mark.parametrize(
    ("answers", "appended", "requests"),
    [
        ([bytes.fromhex(TOPIC_ID), bytes(40)], True, 2),
        ([bytes(40), bytes(40)], False, 1),
        ([bytes.fromhex(TOPIC_ID), bytes(23) + b"\x00\x06" + bytes(20)], False, 2),
        ([bytes.fromhex(TOPIC_ID), bytes(10)], False, 2),
        ([bytes.fromhex(TOPIC_ID)], False, 2),
        ([], False, 1),
    ],
    ids=["the same topic", "another topic of that name", "an error", "a short answer", "no answer", "no answers"],
)
def test_prepared_append_is_sent_to_the_same_topic_only_and_counts_when_it_is_answered_without_error(
    answers: list[bytes], appended: bool, requests: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked: list[bytes] = []

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                for given in (*answers, None):
                    size = connection.recv(4, socket.MSG_WAITALL)
                    if size:
                        asked.append(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
                    if given is None or not size:
                        return
                    connection.sendall(len(given).to_bytes(4, "big") + given)

        thread = threading.Thread(target=answer)
        thread.start()
        made = attrs.evolve(proof(), leader=server.getsockname(), topic_id=TOPIC_ID)
        said = json.loads(made.message(7))
        assert child.was_appended(said) == appended
        thread.join(PATIENCE_S)
    assert len(asked) == requests
    assert bytes.fromhex(said["prepared"]["ask"]) == asked[0]
    assert all(bytes.fromhex(fact) in bytes.fromhex(said["prepared"]["append"]) for fact in said["append"]["facts"])


def test_append_is_not_prepared_without_a_leader_or_over_an_encrypted_connection() -> None:
    known = attrs.evolve(proof(), leader=("127.0.0.1", 9), topic_id=TOPIC_ID)
    for given in (
        attrs.evolve(known, leader=None),
        attrs.evolve(known, topic_id=""),
        attrs.evolve(known, connection=attrs.evolve(known.connection, security_protocol="SSL")),
    ):
        assert json.loads(given.message(7))["prepared"] is None
    assert not child.was_appended(json.loads(known.message(7))), "nobody listens there"


def test_witness_that_was_killed_is_replaced(tmp_path: Path) -> None:
    witness = ChildWitness()
    first = witness.pid
    try:
        witness.watch(proof())
        os.kill(first, signal.SIGKILL)
        end_s = time.monotonic() + PATIENCE_S
        while witness.pid == first:
            assert time.monotonic() < end_s
            witness.look()
            time.sleep(0.02)
        assert _lives(witness.pid)
    finally:
        witness.dismiss()
    assert not _lives(witness.pid)
    witness.look()
    assert not _lives(witness.pid), "it was dismissed"


def test_system_without_pidfds_has_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(InputError, match="cannot watch processes"):
        ChildWitness()


def proof() -> Any:
    from equipoise.hosting.proof import MemberProof
    from equipoise.kafka.connection import Connection

    return MemberProof(
        connection=Connection(bootstrap=NOBODY), topic="facts", partition=0, group="g", member_id="m1", incarnations=[1], lock=None, within_s=1.0
    )
