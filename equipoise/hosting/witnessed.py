"""The watched process's side of `equipoise.witness.child` and `equipoise.witness.server`."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from equipoise.events.errors import InputError
from equipoise.hosting.proof import Proof, Witness

_LOG = logging.getLogger(__name__)
SOCKET_VARIABLE = "EQUIPOISE_WITNESS"
"""Names the socket of a witness that runs already: `equipoise witness`."""
READY = b"ready\n"
"""The first word of such a witness: from now on it sees the end of this process."""
READY_S = 5.0
END_S = 5.0
BLOCKED = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def start_witness(environment: Mapping[str, str] = os.environ) -> Witness:
    """The witness that SOCKET_VARIABLE names, else a child. Raises InputError."""
    path = environment.get(SOCKET_VARIABLE)
    return ChildWitness() if not path else ServedWitness(path)


class ServedWitness:
    """A witness that runs already, and listens on a socket. Raises InputError when it does not
    answer.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._proof: Proof | None = None
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(READY_S)
        try:
            connection.connect(self._path)
            said = b""
            while len(said) < len(READY) and (more := connection.recv(len(READY) - len(said))):
                said += more
        except OSError as error:
            connection.close()
            raise InputError(f"{SOCKET_VARIABLE}: no witness answers on {self._path} ({error}); start it, or unset the variable") from None
        if said != READY:
            connection.close()
            raise InputError(f"{SOCKET_VARIABLE}: {self._path} is no socket of a witness; name another one")
        return connection

    def watch(self, proof: Proof) -> None:
        self._proof = proof
        self._tell(proof.message(os.getpid()))

    def _tell(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, which `look` notices
            self._socket.sendall(line)

    def look(self) -> None:
        """Connects again if the witness has been started again."""
        if self._proof is None or (self._socket.fileno() >= 0 and not select.select([self._socket], [], [], 0)[0]):
            return
        self._socket.close()  # it says nothing more, so it has ended
        try:
            self._socket = self._connect()
        except InputError as error:
            _LOG.debug("%s", error)
            return
        _LOG.warning("the witness on %s was started again", self._path)
        self._tell(self._proof.message(os.getpid()))

    def dismiss(self) -> None:
        """There is nothing left to prove."""
        self._proof = None
        self._tell(b"{}\n")
        self._socket.close()


class ChildWitness:
    """A child of this process that proves its end. Raises InputError where the system has no
    pidfds (Linux has).
    """

    def __init__(self) -> None:
        if not hasattr(os, "pidfd_open"):
            raise InputError("witness: this system cannot watch processes by pidfd; leave the option out")
        if os.getpid() == 1:
            _LOG.warning("this process is the first one of its container, so its witness ends with it, and can prove nothing when it is killed")
        self._proof: Proof | None = None
        self._child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "equipoise.witness.child", str(os.getpid())]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)  # the child inherits that
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pid(self) -> int:
        return self._child.pid

    def watch(self, proof: Proof) -> None:
        """From now on, the end of this process proves this."""
        self._proof = proof
        if not self._tell(proof):
            self.look()

    def look(self) -> None:
        """Starts the witness again if it has ended."""
        if self._child.poll() is None or self._proof is None:
            return
        _LOG.warning("the witness of this process (pid %d) has ended with status %s; starting another one", self._child.pid, self._child.returncode)
        self._close()
        self._child = self._start()
        self._tell(self._proof)

    def _tell(self, proof: Proof) -> bool:
        assert self._child.stdin is not None, "it was started with a pipe"
        try:
            self._child.stdin.write(proof.message(os.getpid()))
            self._child.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def _close(self) -> None:
        assert self._child.stdin is not None, "it was started with a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()

    def dismiss(self) -> None:
        """There is nothing left to prove. Returns when the witness has ended."""
        assert self._child.stdin is not None, "it was started with a pipe"
        self._proof = None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._child.stdin.write(b"{}\n")
            self._child.stdin.flush()
        self._close()
        try:
            self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
