"""A worker of Kafka Connect, as a process: the published jars, and the connectors of
``java/Ticking.java`` and ``java/Dropping.java``.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools import brokers

_POM = Path(__file__).parents[2] / "bench" / "java" / "connect" / "pom.xml"
_JAVA = Path(__file__).with_name("java")
_TEXTS = "org.apache.kafka.connect.storage.StringConverter"
PATIENCE_S = 120.0


class ConnectWorker:
    """One worker of the cluster `group`, started. `folder` gets its settings and its output."""

    def __init__(self, bootstrap: str, group: str, folder: Path, name: str, *, session_ms: int = 6_000) -> None:
        (self.port,) = brokers.free_ports(1)
        written = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "listeners": f"HTTP://127.0.0.1:{self.port}",
            "key.converter": _TEXTS,
            "value.converter": _TEXTS,
            "session.timeout.ms": str(session_ms),
            "consumer.session.timeout.ms": str(session_ms),
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "2000",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "only_scan",
            **{f"{what}.storage.topic": f"{group}-{what}" for what in ("offset", "config", "status")},
            **{f"{what}.storage.replication.factor": "1" for what in ("offset", "config", "status")},
            **{f"{what}.storage.partitions": "1" for what in ("offset", "status")},
        }
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in written.items()))
        self._out = folder / f"{name}.out"
        libraries = f"{brokers.jars(_POM)}/*"
        (log,) = brokers.jars(_JAVA / "pom.xml").glob("slf4j-simple-*.jar")
        connectors = ":".join(str(brokers.classes(_JAVA / f"{name}.java", libraries)) for name in ("Ticking", "Dropping"))
        every = f"{connectors}:{libraries}:{log}"
        command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", every]
        with open(self._out, "wb") as out:
            self.process = subprocess.Popen([*command, "org.apache.kafka.connect.cli.ConnectDistributed", str(file)], stdout=out, stderr=out)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Asks its REST interface, again and again until it answers."""
        end = time.monotonic() + PATIENCE_S
        data = None if body is None else json.dumps(body).encode()
        while True:
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return json.load(answer)
            except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code == HTTPStatus.BAD_REQUEST:
                    raise RuntimeError(error.read().decode()) from None
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the worker does not answer:\n{self._out.read_text()[-3_000:]}") from None
                time.sleep(0.3)

    def add_connector(self, name: str, topic: str, tasks: int) -> None:
        """Adds a source that writes one record a second with each task."""
        self.ask("/connectors", {"name": name, "config": {"connector.class": "Ticking", "topic": topic, "tasks.max": str(tasks)}})

    def add_sink(self, name: str, topic: str, tasks: int) -> None:
        """Adds a sink that reads a topic and keeps nothing."""
        self.ask("/connectors", {"name": name, "config": {"connector.class": "Dropping", "topics": topic, "tasks.max": str(tasks)}})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
