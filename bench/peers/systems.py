"""The compared systems: their settings, and how a process of each is started, asked to leave, and
stopped for a restart.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from bench.peers.apps.given import KEYS, WINDOW_MS, Given
from bench.peers.feed import Load
from equipoise.assignors import registry
from tests.live.streams import StreamsApplication, changelog_of

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 3_000
WORKER_START_S = 60.0
STREAMS = {
    "num.stream.threads": "1",
    "acceptable.recovery.lag": "10000",
    "max.warmup.replicas": "2",
    "probing.rebalance.interval.ms": "60000",
    "commit.interval.ms": "1000",
    "session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "heartbeat.interval.ms": str(HEARTBEAT_INTERVAL_MS),
    "auto.offset.reset": "earliest",
}


class Instance(Protocol):
    """One process of an application."""

    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""

    def leave(self) -> None:
        """Asks the process to leave permanently, in the best way the system has. Does not wait."""

    def stop(self) -> None:
        """Asks the process to stop before an immediate restart, in the way the system intends. Does
        not wait.
        """


class System:
    """One application on one broker. `label`: its name in tables; `settings`: its settings, for the
    reader.
    """

    label = ""
    settings = ""
    witness = True
    in_batches = False
    """Of the handler."""
    in_windows = False
    """Counts by key and window: see `given.WINDOW_MS`."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        folder: Path,
        load: Load,
        standbys: int,
        *,
        exactly_once: bool = False,
        handler_ms: int = 0,
        initial_delay_ms: int | None = None,
    ) -> None:
        self.bootstrap, self.name, self.folder, self.load, self.standbys = bootstrap, name, folder, load, standbys
        self.exactly_once, self.handler_ms, self.initial_delay_ms = exactly_once, handler_ms, initial_delay_ms
        self.input, self.output = f"{name}-in", f"{name}-out"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def changelog(self) -> str:
        return f"{self.name}-state"

    def open(self) -> None:
        """Starts processes besides the instances."""

    def close(self) -> None:
        """Ends the processes that `open` started."""

    def start(self, instance: str) -> Instance:
        """Starts a process. A process with the same name as a former one gets its disk."""
        raise NotImplementedError

    def given(self, instance: str) -> Given:
        assignor = registry.latest("high_availability")
        return Given(
            bootstrap=self.bootstrap,
            name=self.name,
            instance=instance,
            input=self.input,
            output=self.output,
            changelog=self.changelog,
            tasks=self.load.tasks,
            folder=str(self.folder / "state"),
            standbys=self.standbys,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            exactly_once=self.exactly_once,
            handler_ms=self.handler_ms,
            witness=self.witness,
            in_batches=self.in_batches,
            in_windows=self.in_windows,
            initial_delay_ms=self.initial_delay_ms,
            assignor=(assignor.name, assignor.version, assignor.solver),
        )


class PythonInstance:
    """A process in Python: SIGTERM for both leaving and stopping."""

    def __init__(self, out: Path, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "bench.peers.apps.tied", module, *arguments]
        with open(out, "ab") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"})

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def leave(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)


class Equipoise(System):
    label = "equipoise"
    settings = (
        "high_availability with its defaults (2 warm-ups at once), probing 60 s, lease margin 3 s, RocksDB, each member with a witness; "
        "commits after 500 ms or 10,000 records, exactly once after 100 ms; outputs are sent at once; "
        "one worker process leads; leave and restart: SIGTERM, which gives tasks up as copies of them are warm elsewhere"
    )

    def open(self) -> None:
        out = self.folder / "worker.out"
        self._worker = PythonInstance(out, "equipoise", "worker", "--bootstrap", self.bootstrap, "--prefix", self.name, "--http-port", "0")
        end = time.monotonic() + WORKER_START_S
        while "leading log" not in out.read_text(errors="replace"):
            if time.monotonic() > end or self._worker.process.poll() is not None:
                raise RuntimeError(f"the worker did not begin to lead:\n{out.read_text(errors='replace')[-3_000:]}")
            time.sleep(0.1)

    def close(self) -> None:
        self._worker.kill()

    def start(self, instance: str) -> Instance:
        return PythonInstance(self.folder / f"{instance}.out", "bench.peers.apps.equipoise_app", self.given(instance).pack())


class RestartingInstance(PythonInstance):
    """A member that says that it will be back."""

    def stop(self) -> None:
        self.process.send_signal(signal.SIGUSR1)


class EquipoiseRestarts(Equipoise):
    label = "equipoise, back within 30 s"
    settings = "as equipoise; restart: leave(back_within_s=30)"

    def start(self, instance: str) -> Instance:
        return RestartingInstance(self.folder / f"{instance}.out", "bench.peers.apps.equipoise_app", self.given(instance).pack())


class EquipoiseWithoutWitness(Equipoise):
    label = "equipoise, no witness"
    settings = "as equipoise, without witnesses"
    witness = False


class EquipoiseInBatches(Equipoise):
    label = "equipoise, in batches"
    in_batches = True


class EquipoiseInWindows(Equipoise):
    label = "equipoise, in windows"
    in_windows = True


class StreamsInstance:
    def __init__(self, application: StreamsApplication) -> None:
        self._application, self.process = application, application.process

    def kill(self) -> None:
        self._application.kill()

    def leave(self) -> None:
        self._application.end("leave")

    def stop(self) -> None:
        self._application.end("close")


class KafkaStreams(System):
    label = "Kafka Streams"
    settings = (
        "4.3.1, HighAvailabilityTaskAssignor with its defaults (2 warm-ups at once), 1 thread, probing 60 s, RocksDB, linger.ms=100 (its default); "
        "commits after 1 s, exactly once after 100 ms; leave: close with LEAVE_GROUP; restart: close(), which does not leave the group"
    )
    linger_ms: int | None = None
    """How long its producer waits for more records. None: as it comes, which is 100."""

    @property
    def changelog(self) -> str:
        return changelog_of(self.name)

    def settings_of(self, instance: str) -> dict[str, str]:
        settings = {**STREAMS, "num.standby.replicas": str(self.standbys)}
        if self.exactly_once:
            settings |= {"processing.guarantee": "exactly_once_v2", "commit.interval.ms": "100"}
        if self.linger_ms is not None:
            settings["producer.linger.ms"] = str(self.linger_ms)
        if self.in_windows:
            settings |= {"keys": str(KEYS), "window.ms": str(WINDOW_MS)}
        return settings

    def start(self, instance: str) -> Instance:
        settings = self.settings_of(instance)
        made = StreamsApplication(self.bootstrap, self.name, instance, self.folder, input=self.input, output=self.output, settings=settings)
        return StreamsInstance(made)


class KafkaStreamsLinger5(KafkaStreams):
    label = "Kafka Streams, linger.ms=5"
    settings = "as Kafka Streams, with producer.linger.ms=5"
    linger_ms = 5


class KafkaStreamsLinger0(KafkaStreams):
    label = "Kafka Streams, linger.ms=0"
    settings = "as Kafka Streams, with producer.linger.ms=0"
    linger_ms = 0


class KafkaStreamsInWindows(KafkaStreams):
    label = "Kafka Streams, in windows"
    in_windows = True


class StaticKafkaStreams(KafkaStreams):
    label = "Kafka Streams, static members"
    settings = "as Kafka Streams; each instance with a group.instance.id"

    def settings_of(self, instance: str) -> dict[str, str]:
        return {**super().settings_of(instance), "group.instance.id": instance}


class Faust(System):
    label = "Faust"
    settings = "faust-streaming 0.15, at least once, table in RocksDB (rocksdict), commit every 1 s; leave and restart: SIGTERM"

    @property
    def changelog(self) -> str:
        return f"{self.name}-counts-changelog"

    def start(self, instance: str) -> Instance:
        out = self.folder / f"{instance}.out"
        return PythonInstance(out, "bench.peers.apps.faust_app", self.given(instance).pack(), "worker", "--loglevel", "info", "--without-web")


class PlainGroup(System):
    label = "consumer group"
    settings = (
        "aiokafka 0.14, sticky assignor, commit every 1 s, counts in memory, rebuilt from the changelog of each partition that is new to a member; "
        "leave and restart: SIGTERM, which commits and leaves the group; no standbys"
    )

    def start(self, instance: str) -> Instance:
        return PythonInstance(self.folder / f"{instance}.out", "bench.peers.apps.group_app", self.given(instance).pack())


class Loop(System):
    label = "aiokafka loop"
    settings = "aiokafka 0.14, counts in a dict that nothing keeps, linger_ms=0 (its default); commits after 1 s, exactly once after 100 ms"

    def start(self, instance: str) -> Instance:
        return PythonInstance(self.folder / f"{instance}.out", "bench.peers.apps.loop_app", self.given(instance).pack())


class Ceiling(System):
    label = "ceiling"
    settings = "aiokafka 0.14, reads and sends in whole batches, RocksDB, nothing fenced or restored; commits as the loop"

    def start(self, instance: str) -> Instance:
        return PythonInstance(self.folder / f"{instance}.out", "bench.peers.apps.ceiling_app", self.given(instance).pack())


SYSTEMS: dict[str, type[System]] = {"equipoise": Equipoise, "streams": KafkaStreams, "faust": Faust, "group": PlainGroup}
OTHERS: dict[str, type[System]] = {
    "restarts": EquipoiseRestarts,
    "no-witness": EquipoiseWithoutWitness,
    "static": StaticKafkaStreams,
    "streams-linger-0": KafkaStreamsLinger0,
}
"""Other ways to restart, and other settings, for ``--only``."""
