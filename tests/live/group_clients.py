"""Members of a consumer group as processes, with clients that know nothing of equipoise: what
`tests/live/printing_consumer.py` and ``java/PrintingConsumer.java`` print.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tools import brokers

ROOT = Path(__file__).resolve().parents[2]
JAVA = Path(__file__).with_name("java")
PATIENCE_S = 60.0


def confluent_kafka_command() -> list[str]:
    """Starts the consumer with confluent-kafka."""
    return [sys.executable, "-m", "tests.live.printing_consumer"]


def aiokafka_command() -> list[str]:
    """Starts the consumer with aiokafka."""
    return [sys.executable, "-m", "tests.live.printing_aiokafka"]


def kafka_python_command() -> list[str]:
    """Starts the consumer with kafka-python."""
    return [sys.executable, "-m", "tests.live.printing_kafka_python"]


def java_command() -> list[str]:
    """Starts the consumer with Java's client, compiled at the first call on this machine. Raises
    NoBrokerError.
    """
    libraries = f"{brokers.jars(JAVA / 'pom.xml')}/*"
    classes = brokers.classes(JAVA / "PrintingConsumer.java", libraries)
    return ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", f"{classes}:{libraries}", "PrintingConsumer"]


class GroupClient:
    """One process, started; its standard output is read. `supervised`: options of `equipoise
    witness`; None: without it. `settings`: of the client, with ``_`` for the dots; empty ones are
    left out.
    """

    def __init__(self, command: Sequence[str], topic: str, *, supervised: Sequence[str] | None = None, **settings: str) -> None:
        self.assigned: set[int] = set()
        self.reads: list[tuple[float, int]] = []
        """Time (monotonic, in seconds) and partition of each record."""
        self.records: list[tuple[int, int]] = []
        """Partition and offset of each record."""
        written = [f"{name.replace('_', '.')}={value}" for name, value in settings.items() if value]
        supervisor = [] if supervised is None else [sys.executable, "-m", "equipoise", "witness", *supervised, "--"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        self.process = subprocess.Popen(
            [*supervisor, *command, topic, *written],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._is_supervised = supervised is not None
        self._said: list[str] = []
        self._readers = [threading.Thread(target=each, daemon=True) for each in (self._read, self._listen)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break  # it was killed within the line
            word, *numbers = line.split()
            if word == "read":
                self.reads.append((time.monotonic(), int(numbers[0])))
                self.records += [(int(numbers[0]), int(numbers[1]))] if len(numbers) > 1 else []
            elif word == "assigned":
                self.assigned = set(map(int, numbers))

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self._said.extend(self.process.stderr)

    @property
    def said(self) -> str:
        """What the client and its supervisor have written to standard error."""
        return "".join(self._said)

    @property
    def pid(self) -> int:
        """Of the client itself."""
        if not self._is_supervised:
            return self.process.pid
        (child,) = children_of(self.process.pid)
        return child

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def ended(self) -> str:
        """Waits for the end of the process, and returns what it has said."""
        self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return self.said

    def close(self) -> None:
        """Kills the supervisor first, so that nothing is removed."""
        pids = [self.process.pid, *children_of(self.process.pid)]
        for pid in pids if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        self.ended()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def children_of(pid: int) -> list[int]:
    try:
        return [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    except FileNotFoundError:
        return []
