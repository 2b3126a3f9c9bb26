"""`python -m bench.incident_logs`: what `equipoise incident` says of logs alone.

Members of groups on a real broker join, leave, are killed, do not poll, stand still and come back,
with each client; their logs and the broker's are kept, and each fault is looked up in what
is told of the broker's log alone, of the members' logs alone, and of both. `--logs FOLDER` judges
what is kept there. KAFKA_VERSION chooses the broker.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import attrs
import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from equipoise.replay.importers.evidence.reading import read_evidence
from equipoise.replay.incident import Cause, Rebalance
from equipoise.replay.incident.from_logs import histories_of
from equipoise.replay.incident.rebalances import rebalances
from tests.group_logs import VERSIONS, Fault, faults_of, rebalance_of, unpack
from tests.live import brokers
from tests.live.group_clients import JAVA, ROOT

TOPIC, PARTITIONS = "t", 6
SESSION_MS, POLL_MS = 6_000, 8_000
CLIENTS = ("confluent", "kafka-python", "aiokafka", "java", "confluent-848", "java-848")
EXPECTED = {
    "join": Cause.JOINED, "leave": Cause.LEFT, "kill": Cause.EXPIRED, "back": Cause.BACK, "poll": Cause.POLL_TIMEOUT, "freeze": Cause.EXPIRED,
    "thaw": Cause.BACK,
}  # fmt: skip
VAGUE = {
    Cause.POLL_TIMEOUT: (Cause.LEFT, Cause.EXPIRED, Cause.GONE), Cause.BACK: (Cause.JOINED, Cause.EXPIRED, Cause.POLL_TIMEOUT),
    Cause.EXPIRED: (Cause.GONE,), Cause.LEFT: (Cause.GONE,),
}  # fmt: skip
"""What is true of a fault, and less than all: a broker sees that a member left, and not why; a
process that stood still tells, when it goes on, that its session or its poll interval was over.
"""


class Member:
    """One process. Its log goes to ``GROUP.NAME.log`` in `folder`, behind what is there."""

    def __init__(self, client: str, group: str, name: str, bootstrap: str, folder: Path) -> None:
        kind = client.removesuffix("-848")
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": name, "auto.offset.reset": "earliest",
                    "max.poll.interval.ms": f"{POLL_MS}", "auto.commit.interval.ms": "500"}  # fmt: skip
        if client != kind:
            settings["group.protocol"] = "consumer"
        else:
            settings |= {"session.timeout.ms": f"{SESSION_MS}", "heartbeat.interval.ms": "1000"}
        if kind == "aiokafka":
            settings["rebalance.timeout.ms"] = f"{POLL_MS}"
        written = [f"{name}={value}" for name, value in settings.items()]
        command = [*java_command(), TOPIC, *written] if kind == "java" else [
            sys.executable, "-m", "tests.live.faulty_consumer", kind, TOPIC, *written,
        ]  # fmt: skip
        with open(folder / f"{group}.{name}.log", "ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, text=True)

    def nap(self, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"nap {seconds}\n")
        self.process.stdin.flush()

    def end(self, which: int) -> None:
        self.process.send_signal(which)
        self.process.wait(60)


def java_command() -> list[str]:
    libraries = f"{brokers.jars(JAVA / 'pom.xml')}/*"
    classes = brokers.classes(JAVA / "FaultyConsumer.java", libraries)
    return ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", *TIMES, "-cp", f"{classes}:{libraries}", "FaultyConsumer"]


TIMES = ("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss,SSS")


def misbehave(client: str, bootstrap: str, folder: Path, done: list[Fault]) -> None:
    """Puts each fault into a group of one client, one after the other."""
    group = f"g-{client}"

    def note(fault: str, who: str) -> None:
        done.append(Fault(round(time.time() * 1000), group, fault, who))

    def start(name: str) -> Member:
        return Member(client, group, name, bootstrap, folder)

    members = {name: start(name) for name in ("m1", "m2")}
    time.sleep(12)
    note("join", "m3")
    members["m3"] = start("m3")
    time.sleep(10)
    note("leave", "m3")
    members.pop("m3").end(signal.SIGTERM)
    time.sleep(7)
    note("kill", "m2")
    members.pop("m2").end(signal.SIGKILL)
    time.sleep(13)
    note("back", "m2")
    members["m2"] = start("m2")
    time.sleep(10)
    note("poll", "m2")
    members["m2"].nap(17)
    time.sleep(26)
    note("freeze", "m1")
    members["m1"].process.send_signal(signal.SIGSTOP)
    time.sleep(12)
    note("thaw", "m1")
    members["m1"].process.send_signal(signal.SIGCONT)
    time.sleep(8)
    for each in members.values():
        each.end(signal.SIGTERM)


def keep_logs(folder: Path) -> None:
    """Runs a broker and all clients, and keeps their logs, and what was done to them."""
    settings = {"group.min.session.timeout.ms": "1000"}
    for kind in ("consumer", "streams") if os.environ.get("KAFKA_VERSION", "4") >= "4" else ():
        settings |= {f"group.{kind}.session.timeout.ms": f"{SESSION_MS}", f"group.{kind}.min.session.timeout.ms": f"{SESSION_MS}",
                     f"group.{kind}.heartbeat.interval.ms": "1000", f"group.{kind}.min.heartbeat.interval.ms": "1000"}  # fmt: skip
    libraries = brokers.jars(JAVA / "pom.xml")
    logger = ":".join(str(path) for name in ("slf4j-api", "slf4j-simple") for path in libraries.glob(f"{name}-*.jar"))
    done: list[Fault] = []
    with ExitStack() as running:
        broker = running.enter_context(brokers.Brokers(1, java=("-Xms64m", "-Xmx512m", f"-Xbootclasspath/a:{logger}", *TIMES), **settings))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        over = threading.Event()
        feeding = threading.Thread(target=feed, args=(broker.bootstrap, over))
        feeding.start()
        clients = [each for each in CLIENTS if not each.endswith("-848") or os.environ.get("KAFKA_VERSION", "4") >= "4"]
        threads = [threading.Thread(target=misbehave, args=(each, broker.bootstrap, folder, done)) for each in clients]
        for each in threads:
            each.start()
            time.sleep(1)
        for each in threads:
            each.join()
        over.set()
        feeding.join()
        shutil.copy(broker.log_of(0), folder / "server.log")
    (folder / "truth.json").write_text(json.dumps([attrs.asdict(each) for each in sorted(done)]), encoding="utf-8")


def feed(bootstrap: str, over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    number = 0
    while not over.wait(0.05):
        producer.produce(TOPIC, b"-", partition=number % PARTITIONS)
        number += 1
        producer.poll(0)
    producer.flush()


def judge(folder: Path) -> dict[tuple[str, str], Counter[str]]:
    """Client and files -> how many faults were named, told in part, not told, or mistaken."""
    faults = faults_of(folder)
    found: dict[tuple[str, str], Counter[str]] = {}
    for group in sorted({each.group for each in faults if each.group.startswith("g-")}):
        own = [path for path in sorted(folder.glob(f"{group}.*.log")) if path.stat().st_size]
        for files, paths in (("broker", [folder / "server.log"]), ("members", own), ("both", [folder / "server.log", *own])):
            histories = histories_of(read_evidence([str(path) for path in paths]), asked=group) if paths else {}
            history = histories.get(group) or (next(iter(histories.values())) if files == "members" and histories else None)
            counts = found.setdefault((group.removeprefix("g-"), files), Counter())
            for fault in faults:
                if fault.group == group and fault.fault in EXPECTED:
                    counts[grade(fault, None if history is None else rebalance_of(fault, rebalances(history), faults))] += 1
    return found


def grade(fault: Fault, found: Rebalance | None) -> str:
    """How well a rebalance that is told names its fault. `undecided`: it names the fault among what
    fits, and the file that would decide.
    """
    expected = EXPECTED[fault.fault]
    if found is None:
        return "not told"
    if found.cause is expected:
        return "right"
    if expected in found.may_be and found.untold:
        return "undecided"
    return "in part" if found.cause in VAGUE.get(expected, ()) else f"wrong: {fault.fault} as {found.cause.name}"


@click.command()
@click.option("--logs", "logs", type=click.Path(path_type=Path), help="Judge the logs of this folder.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the logs in this folder.")
@click.option("--shipped", is_flag=True, help="Judge the logs of the tests.")
def main(logs: Path | None, keep: Path | None, *, shipped: bool) -> None:
    """Print how many faults `equipoise incident` names from logs alone."""
    with ExitStack() as stack:
        import tempfile

        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if shipped:
            folders = [unpack(version, scratch) for version in VERSIONS]
        elif logs is not None:
            folders = [logs]
        else:
            folders = [keep or scratch]
            folders[0].mkdir(parents=True, exist_ok=True)
            keep_logs(folders[0])
        for folder in folders:
            click.echo(folder.name)
            for (client, files), counts in judge(folder).items():
                click.echo(
                    f"  {client:15} {files:8} {sum(counts.values()):3}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
                )


if __name__ == "__main__":
    main()
