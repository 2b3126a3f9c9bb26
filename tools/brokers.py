"""A real Kafka, started and stopped by whoever asks: brokers in KRaft mode on free ports of this
machine, in a folder of their own.

::

    with Brokers(3) as brokers:
        brokers.bootstrap        # "127.0.0.1:40001,127.0.0.1:40003,127.0.0.1:40005"
        brokers.kill(1)          # kill -9
        brokers.start(1)         # the same broker again, with what it had on its disk

The jars come from Maven, once, into a cache folder. A broker does not outlive its starter, however
that ends: each runs under a shell that ends it when the starter's end of a pipe is closed.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from equipoise.kafka.connection import Connection

POM = Path(__file__).with_name("pom.xml")
INSTALL = "apt-get install -y default-jdk-headless maven"
MOST_START_S = 120.0
_ENDS_WITH_ITS_STARTER = '"$@" </dev/null >&2 & child=$!; echo $child; cat >/dev/null; kill -9 $child 2>/dev/null; wait $child'
_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xmx512m")
"""Small and soon there: the tests ask nothing of its speed."""
FAST_JAVA = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:+AlwaysPreTouch",
    "-Xms1g",
    "-Xmx1g",
)
"""For benchmarks: the options of Kafka's own start script, with all of its memory from the
beginning. Without a goal for the pauses of its collector, records wait for these.
"""
INDEX_BYTES = 256 * 1024
"""Enough for segments of 128 MB. Kafka makes two files of 10 MB for each partition and maps them:
where the disk reads 8 MB ahead, the first records of 200 new partitions took the broker 8 s.
"""
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Of the formatted disks that are kept; each cluster has one of its own."""


class NoBrokerError(Exception):
    """No broker can be started here; the text says what to install."""


def jars(pom: Path = POM, **versions: str) -> Path:
    """The folder with the jars that `pom` names, filled by Maven at the first call on this machine.
    `versions`: of what the pom leaves open, as `connector`. The environment's KAFKA_VERSION is the
    version of the brokers. Raises NoBrokerError.
    """
    if pom == POM and not versions and "KAFKA_VERSION" in os.environ:
        versions = {"kafka": os.environ["KAFKA_VERSION"]}
    chosen = [f"-D{what}.version={version}" for what, version in versions.items() if version]

    def fetch(part: Path) -> None:
        run("mvn", "-q", "-B", "-f", str(pom), *chosen, "dependency:copy-dependencies", f"-DoutputDirectory={part}")

    return cached("kafka", pom.read_bytes() + "".join(chosen).encode(), fetch, ("java", "mvn"))


def classes(source: Path, classpath: str) -> Path:
    """The folder with the classes of `source`, compiled at the first call on this machine. Raises
    NoBrokerError.
    """

    def compile_into(part: Path) -> None:
        run("javac", "-nowarn", "-cp", classpath, "-d", str(part), str(source))

    return cached(source.stem, source.read_bytes() + classpath.encode(), compile_into, ("javac",))


def cached(name: str, made_of: bytes, make: Callable[[Path], None], programs: Sequence[str]) -> Path:
    """A folder in the cache, filled by `make` when there is none that is made of the same. Raises
    NoBrokerError when one of `programs` is missing.
    """
    for program in programs:
        if shutil.which(program) is None:
            raise NoBrokerError(f"the tests of the live parts start a real Kafka, and {program} is not there: {INSTALL} (or set KAFKA_BOOTSTRAP)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "equipoise"
    folder = cache / f"{name}-{hashlib.sha256(made_of).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may ask at once
        if not folder.is_dir():
            part = Path(tempfile.mkdtemp(prefix="part-", dir=cache))
            try:
                make(part)
                part.rename(folder)
            except BaseException:
                shutil.rmtree(part)
                raise
    return folder


def run(*command: str) -> None:
    """Runs a program to its end. Raises NoBrokerError, with its output, when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoBrokerError(f"{' '.join(command)} failed:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")


def free_ports(count: int) -> list[int]:
    """Unused ports of the loopback."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Brokers:
    """`count` brokers, which are the controllers too. `settings` go to each one's
    server.properties.

    `port`: of the first one, for its clients; "": any that is free. `java`: options of the JVMs.
    `listeners`: further ones, each with (port, advertised port) for each broker. `version`: of
    Kafka; "": the pom's. `classpath`: beside Kafka's jars.
    """

    def __init__(
        self,
        count: int = 1,
        listeners: Sequence[Sequence[tuple[int, int]]] = (),
        /,
        *,
        port: str = "",
        java: Sequence[str] = _JAVA,
        version: str = "",
        classpath: str = "",
        **settings: str,
    ) -> None:
        self._jars = jars(kafka=version) if version else jars()
        self._classpath = f"{self._jars}/*:{classpath}" if classpath else f"{self._jars}/*"
        self._home = Path(tempfile.mkdtemp(prefix="equipoise-kafka-"))
        self._ports = free_ports(2 * count)
        if port:
            self._ports[0] = int(port)
        self._running: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        self._settings, self._java, self._listeners = settings, java, listeners
        self.count = count
        try:
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            for index in range(count):
                self.properties_of(index).write_text(self._written(index, self._disk(index)))
                self._format(index, cluster_id)
            for index in range(count):
                self.start(index, wait=False)
            for index in range(count):
                self._wait(index)
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self._port(index)}" for index in range(self.count))

    def properties_of(self, index: int) -> Path:
        """Its server.properties, which it reads when it starts."""
        return self._home / f"{index}.properties"

    def log_of(self, index: int) -> Path:
        """What the broker has written to its standard error."""
        return self._home / f"{index}.log"

    def pid(self, index: int) -> int:
        """The broker's own process, to be stopped and continued."""
        return self._running[index][1]

    def start(self, index: int, *, wait: bool = True) -> None:
        """Starts a broker that is not running. With `wait`, returns when it answers."""
        with open(self.log_of(index), "ab") as log:
            command = ["java", *self._java, "-cp", self._classpath, "kafka.Kafka", str(self.properties_of(index))]
            process = subprocess.Popen(
                ["sh", "-c", _ENDS_WITH_ITS_STARTER, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "KAFKA_OPTS": ""},
            )
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        self._running[index] = process, pid
        if wait:
            self._wait(index)

    def kill(self, index: int) -> None:
        """kill -9; what it had on its disk stays."""
        process, _ = self._running.pop(index)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()

    def lose_tail(self, topic: str, partition: int, batches: int, keeps: int = 0) -> None:
        """Cuts the last batches off a partition on the disks of the brokers that have it, none of
        which runs: a loss of power does that to what was not flushed. The first `keeps` stay.
        """
        for index in range(self.count):
            segment = max((self._disk(index) / f"{topic}-{partition}").glob("*.log"), default=None)
            if segment is None:
                continue
            content, begins = segment.read_bytes(), [0]
            while begins[-1] < len(content):
                begins.append(begins[-1] + 12 + int.from_bytes(content[begins[-1] + 8 : begins[-1] + 12], "big"))
            segment.write_bytes(content[: begins[min(max(keeps, len(begins) - 1 - batches), len(begins) - 1)]])

    def written_bytes(self, topic: str) -> int:
        """Size of a topic's segments and of what is used of their indexes, on the disks of all
        brokers.
        """
        found = [path for index in range(self.count) for path in self._disk(index).glob(f"{topic}-*/*")]
        return sum(path.stat().st_size if path.suffix == ".log" else min(path.stat().st_size, path.stat().st_blocks * 512) for path in found)

    def close(self) -> None:
        """Ends all of them and removes what they wrote."""
        for index in list(self._running):
            self.kill(index)
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _port(self, index: int) -> int:
        return self._ports[2 * index]

    def _disk(self, index: int) -> Path:
        return self._home / f"{index}.data"

    def _written(self, index: int, disk: Path) -> str:
        replication = min(self.count, 3)
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(index),
            "broker.rack": f"rack-{index}",
            "controller.quorum.voters": ",".join(f"{each}@127.0.0.1:{self._ports[2 * each + 1]}" for each in range(self.count)),
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port(index)},CONTROLLER://127.0.0.1:{self._ports[2 * index + 1]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(disk),
            "default.replication.factor": str(replication),
            "min.insync.replicas": "2" if replication > 2 else "1",
            "offsets.topic.replication.factor": str(replication),
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.replication.factor": str(replication),
            "transaction.state.log.min.isr": "2" if replication > 2 else "1",
            "transaction.state.log.num.partitions": "5",
            "share.coordinator.state.topic.replication.factor": str(replication),
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "log.index.size.max.bytes": str(INDEX_BYTES),
            **(self._with_more_listeners(index) if self._listeners else {}),
            **self._settings,
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def _with_more_listeners(self, index: int) -> dict[str, str]:
        own, controller = self._port(index), self._ports[2 * index + 1]
        ports = {"PLAINTEXT": (own, own), "CONTROLLER": (controller, controller)}
        ports |= {f"MORE{number}": each[index] for number, each in enumerate(self._listeners)}
        return {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, (port, _) in ports.items()),
            "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, (_, port) in ports.items() if name != "CONTROLLER"),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ports),
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def _format(self, index: int, cluster_id: str) -> None:
        """An empty disk. A JVM formats one for each index on this machine; later ones are copies of
        it with another cluster id.
        """

        def format_disk(part: Path) -> None:
            properties = part / "server.properties"
            properties.write_text(self._written(index, part / "disk"))
            tool = ("java", "-XX:TieredStopAtLevel=1", "-cp", self._classpath, "kafka.tools.StorageTool")
            run(*tool, "format", f"--cluster-id={_CLUSTER_ID}", "-c", str(properties))

        formatted = cached(f"disk-{index}", str(self._jars).encode(), format_disk, ("java",)) / "disk"
        disk = shutil.copytree(formatted, self._disk(index))
        written = (disk / "meta.properties").read_text()
        (disk / "meta.properties").write_text(written.replace(_CLUSTER_ID, cluster_id))

    def _wait(self, index: int) -> None:
        """Until its port answers: it opens that only when it serves."""
        end = time.monotonic() + MOST_START_S
        while time.monotonic() < end:
            if self._running[index][0].poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port(index))) == 0:
                    return
            time.sleep(0.1)
        raise NoBrokerError(f"broker {index} did not come up:\n{(self._home / f'{index}.log').read_text(errors='replace')[-3_000:]}")


@contextmanager
def shared_broker(folder: Path) -> Iterator[str]:
    """``host:port`` of `KAFKA_BOOTSTRAP`, or of one broker for all processes that name the same
    folder: the first one starts it, and ends it when no other uses it.
    """
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        yield given
        return
    with open(folder / "broker", "a+") as known, open(folder / "broker.users", "a") as users, ExitStack() as stack:
        fcntl.flock(known, fcntl.LOCK_EX)
        known.seek(0)
        bootstrap, started = known.read(), None
        if not bootstrap:
            started = stack.enter_context(Brokers())
            bootstrap = started.bootstrap
            known.write(bootstrap)
            known.flush()
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(known, fcntl.LOCK_UN)
        yield bootstrap
        if started is not None:
            fcntl.flock(known, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_EX)  # when the others are done
            known.truncate(0)


def main(arguments: list[str]) -> int:
    """``python -m tools.brokers [PORT]``: one broker on this machine, until interrupted; gone
    then, with what it held.
    """
    given = arguments[0] if arguments else "9092"
    if not (given.isascii() and given.isdecimal() and 1 <= int(given) <= 65_535):
        print(f"PORT={given}: not a port from 1 to 65535; as in make broker PORT=9192", file=sys.stderr)
        return 2
    port = int(given)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            print(f"port {port} is taken; name another one: make broker PORT=9192", file=sys.stderr)
            return 2
    stopped = threading.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda *_: stopped.set())
    try:
        with Brokers(port=str(port)) as brokers:
            print(f"a Kafka broker at {brokers.bootstrap}; ctrl-C ends it, and what it holds is gone then", flush=True)
            if brokers.bootstrap != Connection().bootstrap:
                print(f"in each other terminal: export EQUIPOISE_BOOTSTRAP={brokers.bootstrap}", flush=True)
            stopped.wait()
    except NoBrokerError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
