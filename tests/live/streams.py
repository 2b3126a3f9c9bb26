"""A running Kafka Streams application (``java/CountPerKey.java``), as a process: the published
jars, and a topology that counts records per key.

::

    names = {"input": "orders-in", "output": "orders-out"}
    with StreamsApplication(bootstrap, "orders", "i1", folder, **names) as application:
        application.until_said("state RUNNING")
        application.end("leave")

It does not outlive its starter: the end of its stdin closes it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup
from equipoise.kafka.described_groups import DescribedStreamsGroup, read_streams_groups
from equipoise.kafka.group_requests import StreamsGroupDescribe
from tools import brokers

JAVA = Path(__file__).with_name("java")
ASSIGNOR = Path(__file__).parents[2] / "java" / "streams-assignor" / "src" / "main"
STORE = "counts"
PATIENCE_S = 120.0


def classpath(version: str = "") -> str:
    """Of the application, fetched and compiled at the first call on this machine. `version`: of
    Kafka Streams; "": the pom's. Raises NoBrokerError.
    """
    libraries = f"{brokers.jars(JAVA / 'pom.xml', **({'streams': version} if version else {}))}/*"
    return f"{brokers.classes(JAVA / 'CountPerKey.java', libraries)}:{libraries}"


def assignor_classes() -> Path:
    """The folder with the classes of ``java/streams-assignor``, compiled at the first call on this
    machine. Raises NoBrokerError.
    """
    sources = sorted(ASSIGNOR.rglob("*.java"))
    libraries = f"{brokers.jars(JAVA / 'pom.xml')}/*"

    def compile_into(part: Path) -> None:
        brokers.run("javac", "-nowarn", "-cp", libraries, "-d", str(part), *map(str, sources))

    return brokers.cached("streams-assignor", b"".join(source.read_bytes() for source in sources) + libraries.encode(), compile_into, ("javac",))


def changelog_of(application_id: str) -> str:
    """Kafka Streams' name for the topic behind the store."""
    return f"{application_id}-{STORE}-changelog"


async def described_streams(bootstrap: str, group: str) -> DescribedStreamsGroup:
    """A group of KIP-1071, as its coordinator describes it."""
    async with ConsumerGroup(Connection(bootstrap=bootstrap), group) as asked:
        (found,) = read_streams_groups((await asked.send(StreamsGroupDescribe(group))).body)
    return found


class StreamsApplication:
    """One instance, started. `folder` gets its state, its output and its settings; `settings` are
    Kafka Streams' own, by their own names. `version`: of its jars. `supervised`: options of
    `equipoise witness`; None: without it. `assignor`: the jar of ``java/streams-assignor``; "": its
    classes.
    """

    def __init__(
        self,
        bootstrap: str,
        application_id: str,
        instance: str,
        folder: Path,
        *,
        input: str,
        output: str,
        settings: dict[str, str] | None = None,
        supervised: Sequence[str] | None = None,
        version: str = "",
        assignor: str = "",
    ) -> None:
        written = {
            "bootstrap.servers": bootstrap,
            "application.id": application_id,
            "client.id": instance,
            "state.dir": str(folder / "streams-state" / instance),
            "input": input,
            "output": output,
            "instance": instance,
            **(settings or {}),
        }
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{instance}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in written.items()))
        self.instance = instance
        self._out = folder / f"{instance}.out"
        every = f"{classpath(version)}:{assignor or assignor_classes()}"
        command = ["java", "-XX:+UseSerialGC", "-Xms64m", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-cp", every]
        supervisor = [] if supervised is None else [sys.executable, "-m", "equipoise", "witness", *supervised, "--"]
        with open(self._out, "ab") as out:
            self._from = out.tell()
            self.process = subprocess.Popen(
                [*supervisor, *command, "CountPerKey", str(file)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
            )

    def said(self) -> str:
        """What this process has printed, its log included."""
        return self._out.read_bytes()[self._from :].decode(errors="replace")

    def until_said(self, text: str) -> None:
        """Waits for it. Raises RuntimeError when the process ends before, or PATIENCE_S have
        passed.
        """
        end = time.monotonic() + PATIENCE_S
        while text not in self.said():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.instance} did not say {text!r}:\n{self.said()[-3_000:]}")
            time.sleep(0.1)

    def end(self, how: str = "close") -> None:
        """Asks it to end, and does not wait: `close` as KafkaStreams.close() does by default,
        `leave` with a request to leave the group.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{how}\n".encode())
        self.process.stdin.close()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
