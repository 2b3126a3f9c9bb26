"""`python -m bench.incident_logs`: what `equipoise incident` says of logs, tables and recordings.

Members of groups on a real broker join, leave, are killed, do not poll, stand still and come back,
with each client; others are slow to give up their work, ask for rebalances, are deployed again and
again, lose their disk, or their broker. Kept are the logs of members and broker, what
`kafka-consumer-groups --describe` printed every few seconds, and a recording. Each fault is looked
up in what is told of each of them alone, of all logs, and of all. `--logs FOLDER` judges what is
kept there. KAFKA_VERSION chooses the broker.
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
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

import attrs
import click
from confluent_kafka import ConsumerGroupState, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from equipoise.replay.importers.evidence.files import read_evidence
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.incident import Cause, GroupHistory, Rebalance, history_of, incidents
from equipoise.replay.incident.from_logs import histories_of
from equipoise.replay.incident.rebalances import rebalances
from tests.group_logs import VERSIONS, Fault, faults_of, rebalance_of, unpack
from tests.live.connect import ConnectWorker
from tests.live.group_clients import JAVA, ROOT
from tests.live.streams import StreamsApplication
from tools import brokers

TOOLS = JAVA.parent / "tools" / "pom.xml"
TOPIC, PARTITIONS = "t", 6
SESSION_MS, POLL_MS = 6_000, 8_000
CLIENTS = ("confluent", "kafka-python", "aiokafka", "java", "confluent-848", "java-848")
MORE_CLIENTS = ("confluent", "aiokafka", "java", "java-848")
SLOW_S, MORE_POLL_MS = 14, 30_000
EXPECTED = {
    "join": Cause.JOINED,
    "leave": Cause.LEFT,
    "kill": Cause.EXPIRED,
    "back": Cause.BACK,
    "poll": Cause.POLL_TIMEOUT,
    "freeze": Cause.EXPIRED,
    "thaw": Cause.BACK,
    "slow": Cause.LATE,
    "rejoin": Cause.ASKED,
    "deploy": Cause.RESTARTED,
    "broker": Cause.COORDINATOR,
    "worker": Cause.EXPIRED,
    "disk": Cause.BACK,
}
VAGUE = {
    Cause.POLL_TIMEOUT: (Cause.LEFT, Cause.EXPIRED, Cause.GONE),
    Cause.BACK: (Cause.JOINED, Cause.EXPIRED, Cause.POLL_TIMEOUT),
    Cause.EXPIRED: (Cause.GONE,),
    Cause.LEFT: (Cause.GONE,),
    Cause.LATE: (Cause.JOINED,),
}
"""What is true of a fault, and less than all: a broker sees that a member left, and not why; a
process that stood still tells, when it goes on, that its session or its poll interval was over.
"""


class Member:
    """One process. Its log goes to ``GROUP.NAME.log`` in `folder`, behind what is there."""

    def __init__(self, client: str, group: str, name: str, bootstrap: str, folder: Path, poll_ms: int = POLL_MS) -> None:
        kind = client.removesuffix("-848")
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": f"{poll_ms}",
            "auto.commit.interval.ms": "500",
        }
        if client != kind:
            settings["group.protocol"] = "consumer"
        else:
            settings |= {"session.timeout.ms": f"{SESSION_MS}", "heartbeat.interval.ms": "1000"}
        if kind == "aiokafka":
            settings["rebalance.timeout.ms"] = f"{poll_ms}"
        written = [f"{name}={value}" for name, value in settings.items()]
        command = (
            [*java_command(), TOPIC, *written]
            if kind == "java"
            else [
                sys.executable,
                "-m",
                "tests.live.faulty_consumer",
                kind,
                TOPIC,
                *written,
            ]
        )
        with open(folder / f"{group}.{name}.log", "ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, text=True)

    def tell(self, what: str, seconds: float) -> None:
        """Makes it misbehave, as `tests.live.faulty_consumer` has it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {seconds}\n")
        self.process.stdin.flush()

    def end(self, which: int) -> None:
        self.process.send_signal(which)
        try:
            self.process.wait(MOST_CLOSE_S)
        except subprocess.TimeoutExpired:  # its broker was away
            self.process.kill()
            self.process.wait()


def java_command() -> list[str]:
    libraries = f"{brokers.jars(JAVA / 'pom.xml')}/*"
    classes = brokers.classes(JAVA / "FaultyConsumer.java", libraries)
    return ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", *TIMES, "-cp", f"{classes}:{libraries}", "FaultyConsumer"]


MOST_SETTLE_S = 60.0


def until_members(bootstrap: str, group: str, count: int, settle_s: float) -> None:
    """Waits until a group has so many members and is stable, and `settle_s` more: a process takes
    long to begin where others run.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5_000})
    most_s = time.monotonic() + MOST_SETTLE_S
    while time.monotonic() < most_s:
        try:
            described = admin.describe_consumer_groups([group], request_timeout=5)[group].result()
        except KafkaException:
            time.sleep(0.5)
            continue
        if len(described.members) == count and described.state is ConsumerGroupState.STABLE:
            break
        time.sleep(0.3)
    time.sleep(settle_s)


STOPS = (Cause.RESTARTED, Cause.LEFT, Cause.GONE, Cause.EXPIRED)
DEPLOY_MS = 50_000
MOST_CLOSE_S = 60
TIMES = ("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss,SSS")


def misbehave(client: str, bootstrap: str, folder: Path, done: list[Fault]) -> None:
    """Puts each fault into a group of one client, one after the other."""
    group = f"g-{client}"

    def note(fault: str, who: str) -> None:
        done.append(Fault(round(time.time() * 1000), group, fault, who))

    def start(name: str) -> Member:
        return Member(client, group, name, bootstrap, folder)

    members = {name: start(name) for name in ("m1", "m2")}
    until_members(bootstrap, group, 2, 3)
    note("join", "m3")
    members["m3"] = start("m3")
    until_members(bootstrap, group, 3, 3)
    note("leave", "m3")
    members.pop("m3").end(signal.SIGTERM)
    time.sleep(7)
    note("kill", "m2")
    members.pop("m2").end(signal.SIGKILL)
    time.sleep(13)
    note("back", "m2")
    members["m2"] = start("m2")
    until_members(bootstrap, group, 2, 3)
    note("poll", "m2")
    members["m2"].tell("nap", 17)
    time.sleep(26)
    note("freeze", "m1")
    members["m1"].process.send_signal(signal.SIGSTOP)
    time.sleep(12)
    note("thaw", "m1")
    members["m1"].process.send_signal(signal.SIGCONT)
    time.sleep(8)
    for each in members.values():
        each.end(signal.SIGTERM)


def misbehave_more(client: str, bootstrap: str, folder: Path, done: list[Fault], broker_gone: threading.Barrier) -> None:
    """A member that is slow to give up its work, one that asks for a rebalance, a deployment that
    comes again and again, and a broker that is killed.
    """
    group = f"h-{client}"

    def note(fault: str, who: str) -> None:
        done.append(Fault(round(time.time() * 1000), group, fault, who))

    def start(name: str) -> Member:
        return Member(client, group, name, bootstrap, folder, MORE_POLL_MS)

    members = {name: start(name) for name in ("m1", "m2")}
    until_members(bootstrap, group, 2, 5)
    note("slow", "m1")
    members["m1"].tell("revoke", SLOW_S)
    members["m3"] = start("m3")
    time.sleep(SLOW_S)
    until_members(bootstrap, group, 3, 5)
    if client == "java":
        note("rejoin", "m1")
        members["m1"].tell("rejoin", 0)
        time.sleep(9)
    note("deploy", "m1")
    for _ in range(3):
        for name in ("m1", "m2", "m3"):
            members[name].end(signal.SIGTERM)
            time.sleep(0.5)
            members[name] = start(name)
            until_members(bootstrap, group, 3, 2)
    time.sleep(5)
    broker_gone.wait()
    note("broker", "")
    broker_gone.wait()
    time.sleep(25)
    for each in members.values():
        each.end(signal.SIGTERM)


def lose_a_disk(bootstrap: str, folder: Path, done: list[Fault]) -> None:
    """An instance of Kafka Streams is killed, and is back without its state directory."""
    with ExitStack() as running:
        names = {"input": TOPIC, "output": "counts", "settings": {"session.timeout.ms": f"{SESSION_MS}", "heartbeat.interval.ms": "1000"}}

        def start(instance: str) -> StreamsApplication:
            return running.enter_context(StreamsApplication(bootstrap, "k-streams", instance, folder / "streams", **names))  # type: ignore[arg-type]

        first, second = start("i1"), start("i2")
        for each in (first, second):
            each.until_said("state RUNNING")
        until_members(bootstrap, "k-streams", 2, 8)
        done.append(Fault(round(time.time() * 1000), "k-streams", "kill", "i2"))
        second.kill()
        time.sleep(14)
        shutil.rmtree(folder / "streams" / "streams-state" / "i2")
        done.append(Fault(round(time.time() * 1000), "k-streams", "disk", "i2"))
        start("i2").until_said("state RUNNING")
        time.sleep(14)
    for instance in ("i1", "i2"):
        shutil.copy(folder / "streams" / f"{instance}.out", folder / f"k-streams.{instance}.log")


def lose_a_worker(bootstrap: str, folder: Path, done: list[Fault]) -> None:
    """A worker of Kafka Connect is killed."""
    with ExitStack() as running:
        workers = [running.enter_context(ConnectWorker(bootstrap, "c-connect", folder / "connect", name)) for name in ("w1", "w2")]
        workers[0].add_sink("dropping", TOPIC, 4)
        time.sleep(20)
        done.append(Fault(round(time.time() * 1000), "c-connect", "worker", "w2"))
        workers[1].process.kill()
        time.sleep(20)
    for name in ("w1", "w2"):
        shutil.copy(folder / "connect" / f"{name}.out", folder / f"c-connect.{name}.log")


def watch(bootstrap: str, folder: Path, running: ExitStack) -> None:
    """Keeps what kafka-consumer-groups prints each 2 s, and a recording."""
    libraries = f"{brokers.jars(TOOLS, kafka=os.environ.get('KAFKA_VERSION', ''))}/*"
    classes = brokers.classes(JAVA / "Describing.java", libraries)
    java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", f"{classes}:{libraries}"]
    record = [sys.executable, "-m", "equipoise", "record", f"kafka://{bootstrap}", "--to", str(folder / "recording.db"), "--sample-s", "1"]
    for command, name in (([*java, "Describing", bootstrap, "2"], "described.txt"), (record, "record.txt")):
        with open(folder / name, "wb") as out:
            process = running.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL))
        running.callback(process.terminate)


def keep_logs(folder: Path, chosen: Sequence[str]) -> None:
    """Runs a broker and the chosen clients, and keeps their logs, and what was done to them."""
    settings = {"group.min.session.timeout.ms": "1000"}
    for kind in ("consumer", "streams") if os.environ.get("KAFKA_VERSION", "4") >= "4" else ():
        settings |= {
            f"group.{kind}.session.timeout.ms": f"{SESSION_MS}",
            f"group.{kind}.min.session.timeout.ms": f"{SESSION_MS}",
            f"group.{kind}.heartbeat.interval.ms": "1000",
            f"group.{kind}.min.heartbeat.interval.ms": "1000",
        }
    libraries = brokers.jars(JAVA / "pom.xml")
    logger = ":".join(str(path) for name in ("slf4j-api", "slf4j-simple") for path in libraries.glob(f"{name}-*.jar"))
    done: list[Fault] = []
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(f"'{each}'" for each in TIMES)  # for workers and applications, too
    with ExitStack() as running:
        broker = running.enter_context(brokers.Brokers(1, java=("-Xms64m", "-Xmx512m", f"-Xbootclasspath/a:{logger}", *TIMES), **settings))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (TOPIC, "counts")]).values():
            made.result()
        over = threading.Event()
        feeding = threading.Thread(target=feed, args=(broker.bootstrap, over))
        feeding.start()
        watch(broker.bootstrap, folder, running)
        is_new = os.environ.get("KAFKA_VERSION", "4") >= "4"
        clients, more = ([each for each in some if each in chosen and (is_new or not each.endswith("-848"))] for some in (CLIENTS, MORE_CLIENTS))
        broker_gone = threading.Barrier(len(more) + 1)
        in_turn(threading.Thread(target=misbehave, args=(each, broker.bootstrap, folder, done)) for each in clients)
        threads = [threading.Thread(target=misbehave_more, args=(each, broker.bootstrap, folder, done, broker_gone)) for each in more]
        for each in threads:
            each.start()
        broker_gone.wait()
        broker.kill(0)
        broker_gone.wait()
        time.sleep(3)
        broker.start(0)
        for each in threads:
            each.join()
        lose_a_disk(broker.bootstrap, folder, done)
        lose_a_worker(broker.bootstrap, folder, done)
        over.set()
        feeding.join()
        shutil.copy(broker.log_of(0), folder / "server.log")
    (folder / "truth.json").write_text(json.dumps([attrs.asdict(each) for each in sorted(done)]), encoding="utf-8")


def in_turn(threads: Iterable[threading.Thread]) -> None:
    """Starts them a second after each other, and waits for all."""
    started = []
    for each in threads:
        each.start()
        started.append(each)
        time.sleep(1)
    for each in started:
        each.join()


def feed(bootstrap: str, over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    number = 0
    while not over.wait(0.05):
        producer.produce(TOPIC, b"-", b"%d" % number, partition=number % PARTITIONS)  # Kafka Streams counts keys
        number += 1
        producer.poll(0)
    producer.flush()


def judge(folder: Path) -> dict[tuple[str, str], Counter[str]]:
    """Client and files -> how many faults were named, told in part, not told, or mistaken."""
    faults = faults_of(folder)
    found: dict[tuple[str, str], Counter[str]] = {}
    recording = folder / "recording.db"
    for group in sorted({each.group for each in faults if each.group[:2] in ("g-", "h-", "k-", "c-")}):
        own = [path for path in sorted(folder.glob(f"{group}.*.log")) if path.stat().st_size]
        broker = [folder / "server.log"]
        sources = {"broker": broker, "members": own, "logs": [*broker, *own]}
        if recording.exists():
            looks = [folder / "described.txt"]
            sources |= {"describe": looks, "recording": [], "all": [*broker, *own, *looks]}
        for files, paths in sources.items():
            with open_recording(str(recording)) if files in ("recording", "all") else nullcontext() as opened:
                recorded = {group: history_of(opened, group)} if opened is not None and group in opened.groups() else {}
                histories = histories_of(read_evidence([str(path) for path in paths]), recorded, group) if paths else recorded
                history = histories.get(group) or (next(iter(histories.values())) if files == "members" and histories else None)
            counts = found.setdefault((group, files), Counter())
            for fault in faults:
                if fault.group == group and fault.fault in EXPECTED:
                    counts[_graded(fault, history, faults)] += 1
    return found


def _graded(fault: Fault, history: GroupHistory | None, faults: list[Fault]) -> str:
    if history is None:
        return "not told"
    if fault.fault == "deploy":
        return _graded_deployment(fault, history)
    told = rebalances(history)
    if fault.fault == "broker":
        told = [each for each in told if each.cause is Cause.COORDINATOR]
    return grade(fault, rebalance_of(fault, told, faults))


def _graded_deployment(fault: Fault, history: GroupHistory) -> str:
    """A deployment that comes again and again is one incident, or restarts one after the other."""
    near = [each for each in incidents(history) if each.begin_ms <= fault.at_ms + DEPLOY_MS and each.end_ms >= fault.at_ms]
    if any((each.loop is not None and each.cause in STOPS) or each.is_rolling for each in near):
        return "right"
    fits = (*STOPS, Cause.BACK, Cause.JOINED, Cause.STATIC_BACK, Cause.FIRST, Cause.UNSEEN, Cause.FOLLOW_UP)
    wrong = [each.cause.name for each in near if each.cause not in fits]
    near = [each for each in near if each.cause not in (Cause.FIRST, Cause.UNSEEN)]
    return f"wrong: deploy as {wrong[0]}" if wrong else "in part" if near else "not told"


def grade(fault: Fault, found: Rebalance | None) -> str:
    """How well a rebalance that is told names its fault. `undecided`: it names the fault among what
    fits, and the file that would decide.
    """
    expected = EXPECTED[fault.fault]
    if found is None:
        return "not told"
    if fault.fault == "disk" and found.cause is expected:
        return "right" if found.lost_state or "state directory" in found.detail else "in part"
    if found.cause is expected or (fault.fault == "slow" and "took" in found.detail):
        return "right"
    if expected in found.may_be and found.untold:
        return "undecided"
    return "in part" if found.cause in VAGUE.get(expected, ()) else f"wrong: {fault.fault} as {found.cause.name}"


@click.command()
@click.option("--logs", "logs", type=click.Path(path_type=Path), help="Judge the logs of this folder.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the logs in this folder.")
@click.option("--clients", default=",".join(CLIENTS), show_default=True, help="Clients to run.")
@click.option("--shipped", is_flag=True, help="Judge the logs of the tests.")
def main(logs: Path | None, keep: Path | None, clients: str, *, shipped: bool) -> None:
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
            keep_logs(folders[0], clients.split(","))
        for folder in folders:
            click.echo(folder.name)
            for (client, files), counts in judge(folder).items():
                click.echo(
                    f"  {client:15} {files:9} {sum(counts.values()):3}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
                )


if __name__ == "__main__":
    main()
