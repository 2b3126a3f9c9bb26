"""`python -m bench.seat`: consumer groups of unmodified clients, stock and led by `equipoise lead`.

Three clients read twelve partitions, each of which gets a record each EVERY_MS. All three are
restarted one after the other (DOWN_S away), a fourth joins, and is killed with SIGKILL. The brokers
have equipoise's assignor, so that groups of KIP-848 are led inside them, and classic ones are there
with `--convert`; such a seat joins when the clients run. A *move* is
a partition that another client (by its id) reads than before. *Paused* is the sum over partitions
of the times without a record read that are longer than GAP_S. *Repeated* are records that were read
more than once.

quixstreams (QUIXSTREAMS) needs other releases of what is in `.venv`, so it gets a virtual
environment of its own, once.

`--grow N` has ten clients, whose topic gets N more partitions: how long until each partition has a
client, and how many of the former ones have another.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import click

from bench.removals import fed
from equipoise.kafka.connection import Connection
from equipoise.kafka.group_client import PROTOCOLS, seat_bucket
from equipoise.kafka.group_client import GroupClient as RawMember
from equipoise.lead.broker_seat.extra_member import ExtraMember
from equipoise.lead.broker_seat.ways import CLASS, SETTING
from equipoise.log import open_log
from equipoise.replay.verification import verify
from tests.live.broker_assignor import assignor_jar_classes
from tests.live.group_clients import ROOT, GroupClient, aiokafka_command, confluent_kafka_command, java_command, kafka_python_command
from tests.live.kafka import admin_client, create_partitions
from tools.brokers import FAST_JAVA, Brokers

PARTITIONS, EVERY_MS = 12, 100
DOWN_S, SETTLE_S, KILL_S, GAP_S = 5.0, 10.0, 16.0, 0.5
PATIENCE_S, MOST_GAPS = 120.0, 25
GROWN_CLIENTS = 10
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
QUIXSTREAMS = "quixstreams==3.28.1"


def quixstreams_command() -> list[str]:
    """Starts an application of quixstreams with state."""
    folder = ROOT / ".venv" / "quixstreams"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "-q", QUIXSTREAMS], check=True)
        (folder / "ready").touch()
    return [str(folder / "bin" / "python"), str(Path(__file__).with_name("quixstreams_app.py"))]


NEW = {"group_protocol": "consumer"}
KINDS: dict[str, tuple[Callable[[], list[str]], dict[str, str]]] = {
    "confluent-kafka, KIP-848": (confluent_kafka_command, NEW),
    "Java, KIP-848": (java_command, NEW),
    "confluent-kafka, range": (confluent_kafka_command, {}),
    "confluent-kafka, cooperative-sticky": (confluent_kafka_command, COOPERATIVE),
    "aiokafka, roundrobin": (aiokafka_command, {}),
    "kafka-python, range": (kafka_python_command, {}),
    "quixstreams with state, range": (quixstreams_command, {}),
    **{
        f"Java, {name}": (java_command, {"partition_assignment_strategy": f"org.apache.kafka.clients.consumer.{assignor}"})
        for name, assignor in (("range", "RangeAssignor"), ("sticky", "StickyAssignor"), ("cooperative-sticky", "CooperativeStickyAssignor"))
    },
}
LEADERS: dict[str, tuple[str, ...] | None] = {
    "stock": None,
    "led": (),
    "led, hold 15 s": ("--hold", "15"),
    "converted": ("--convert",),
    "converted, hold 15 s": ("--convert", "--hold", "15"),
}
TIMES = {"session_timeout_ms": "6000", "heartbeat_interval_ms": "1000"}
BROKERS = {
    SETTING: f"uniform,range,{CLASS}",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
}


SETTLED = ("generation", "partitions move", "tasks move", "standing by")
"""One of these is in what a seat says once it knows the group."""


@attrs.frozen
class Window:
    """What happened in a part of a run."""

    moves: int
    paused_s: float
    longest_s: float
    longest_from_s: float
    longest_of: str = ""
    """Partition, who read it before, and who after."""
    gaps: Sequence[tuple[float, float, str]] = ()
    """The longest times without a reader of GAP_S and more: how long, from when, and as
    `longest_of`.
    """


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.05)


class Run:
    """One group with its clients, and seats if it is led."""

    def __init__(self, bootstrap: str, kind: str, leader: str, folder: Path) -> None:
        self.bootstrap, self.topic, self.folder = bootstrap, self.new_name(bootstrap), folder
        self.topics = self.topic
        """That clients read, with commas."""
        self.seat_bootstraps: Sequence[str] = ()
        """Where each seat finds the brokers, if elsewhere."""
        self._command, self._settings = KINDS[kind]
        self._options = LEADERS[leader]
        self.in_brokers = self._settings == NEW or leader.startswith("converted")
        self.clients: dict[str, GroupClient] = {}
        self.ended: list[tuple[str, GroupClient]] = []
        self.revived = 0
        """Clients that had ended by themselves, and were started again."""
        self.seats: list[subprocess.Popen[bytes]] = []
        self.logs: list[Path] = []
        asyncio.run(self._make_topic())

    @staticmethod
    def new_name(bootstrap: str) -> str:
        """A name for a group and its topic."""
        return f"seat-{uuid.uuid4().hex[:8]}"

    async def _make_topic(self) -> None:
        from aiokafka.admin import NewTopic

        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin:
            await admin.create_topics([NewTopic(self.topic, PARTITIONS, len(self.bootstrap.split(",")))])

    def start(self, name: str, settings: Mapping[str, str] | None = None) -> None:
        if name in self.clients:
            self.ended.append((name, self.clients.pop(name)))
        given = self._settings if settings is None else settings
        self.clients[name] = GroupClient(
            self._command(),
            self.topics,
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            client_id=name,
            auto_offset_reset="earliest",
            **({} if given == NEW else TIMES),
            **given,
        )

    def revive(self) -> None:
        """Starts clients again that have ended by themselves, as whatever deploys them would."""
        for name, client in list(self.clients.items()):
            if client.process.poll() is not None:
                self.revived += 1
                print(f"{name} has ended: {client.ended()[-300:]!r}", file=sys.stderr)
                self.start(name)

    def seat(self, number: int) -> None:
        """Starts a seat, which takes up its log again if it had one."""
        if self._options is None:
            return
        log = self.folder / f"{self.topic}-{number}.db"
        bootstrap = self.seat_bootstraps[number] if self.seat_bootstraps else self.bootstrap
        command = [sys.executable, "-m", "equipoise", "lead", "--bootstrap", bootstrap, "--group", self.topic, "--to", str(log), *self._options]
        with open(log.with_suffix(".err"), "a") as errors:
            process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=errors)
        if number < len(self.seats):
            self.seats[number] = process
        else:
            self.seats.append(process)
            self.logs.append(log)
        until(lambda: any(word in log.with_suffix(".err").read_text() for word in SETTLED) or process.poll() is not None)

    def is_shared(self) -> bool:
        self.revive()
        return all(each.assigned for each in self.clients.values()) and sum(len(each.assigned) for each in self.clients.values()) == PARTITIONS

    def window(self, since_s: float, until_s: float | None = None) -> Window:
        """What happened since then, until now if `until_s` is None."""
        reads: dict[int, list[tuple[float, str]]] = {partition: [] for partition in range(PARTITIONS)}
        for name, client in [*self.ended, *self.clients.items()]:
            for at_s, partition in list(client.reads):
                reads[partition].append((at_s, name))
        moves, found, end_s = 0, [], until_s or time.monotonic()
        for partition, each in enumerate(map(sorted, reads.values())):
            last = max((place for place, (at_s, _) in enumerate(each) if at_s <= since_s), default=0)
            seen = [(at_s, name) for at_s, name in each[last:] if at_s <= end_s]
            moves += sum(before != after for (_, before), (_, after) in itertools.pairwise(seen))
            times = [max(since_s, at_s) for at_s, _ in seen] + [end_s]
            names = [*(name for _, name in seen), "nobody"]
            found += [
                (after - before, before, f"{partition}, {names[place]} to {names[place + 1]}")
                for place, (before, after) in enumerate(itertools.pairwise(times))
                if after - before > GAP_S
            ]
        found.sort(reverse=True)
        return Window(moves, sum(gap_s for gap_s, _, _ in found), *(found[0] if found else (0.0, since_s, "")), gaps=found[:MOST_GAPS])

    def repeated(self) -> tuple[int, int]:
        """Records that were read more than once, and records that nobody read of those before the
        last one of each partition that was read.
        """
        counted = Counter(record for _, client in [*self.ended, *self.clients.items()] for record in list(client.records))
        ends = {partition: max((offset for at, offset in counted if at == partition), default=-1) for partition in range(PARTITIONS)}
        missing = sum((partition, offset) not in counted for partition, end in ends.items() for offset in range(end + 1))
        return sum(count - 1 for count in counted.values()), missing

    async def generations(self) -> int:
        """The number of the group's generation, learned by joining it, or its epoch."""
        async with ExtraMember(Connection(bootstrap=self.bootstrap), self.topic, "") as watching:
            found = await watching.describe()
        if found is not None:
            return found.epoch
        async with RawMember(Connection(bootstrap=self.bootstrap), self.topic) as member:
            others = [each.member_id for each in (await member.describe()).members]
            joined = await member.join_in(seat_bucket(others, counts=True), PROTOCOLS)
            await member.leave()
        return joined.number - 1

    def close(self) -> None:
        for seat in self.seats:
            if seat.poll() is None:
                seat.send_signal(signal.SIGCONT)
                seat.terminate()
                seat.wait(30)
        for client in self.clients.values():
            client.close()

    def verified(self) -> str:
        found = []
        for each in self.logs:
            with open_log(each) as log:
                found.append(verify(log.read()).verdict.value)
        return ", ".join(found) or "-"


def measured(bootstrap: str, kind: str, leader: str, folder: Path) -> list[str]:
    """One row: moves and paused partition-seconds of each action, generations, repeated records."""
    run = Run(bootstrap, kind, leader, folder)
    try:
        if not run.in_brokers:
            run.seat(0)
        for name in ("c1", "c2", "c3"):
            run.start(name)
        with fed(run.bootstrap, run.topic, partitions=PARTITIONS, every_ms=EVERY_MS):
            until(run.is_shared)
            if run.in_brokers:
                run.seat(0)
            time.sleep(SETTLE_S)
            began = asyncio.run(run.generations())
            time.sleep(SETTLE_S)
            windows, since_s = [], time.monotonic()
            for name in ("c1", "c2", "c3"):
                run.clients[name].signal(signal.SIGTERM)
                time.sleep(DOWN_S)
                run.start(name)
                time.sleep(SETTLE_S)
            until(run.is_shared)
            windows.append(run.window(since_s))
            since_s = time.monotonic()
            run.start("c4")
            time.sleep(SETTLE_S)
            until(run.is_shared)
            windows.append(run.window(since_s))
            since_s = time.monotonic()
            run.clients["c4"].signal(signal.SIGKILL)
            time.sleep(KILL_S)
            windows.append(run.window(since_s))
            ended = asyncio.run(run.generations())
            repeated, missing = run.repeated()
    finally:
        run.close()
    cells = [cell for window in windows for cell in (str(window.moves), f"{window.paused_s:.0f}")]
    return [*cells, str(ended - began if run.in_brokers else ended - began - 2), str(repeated), str(missing), run.verified()]


def grown(bootstrap: str, kind: str, leader: str, folder: Path, count: int) -> list[str]:
    """One row: seconds until all partitions have a client, moves, the fewest and most of a client."""
    run = Run(bootstrap, kind, leader, folder)
    try:
        for number in range(GROWN_CLIENTS):
            run.start(f"c{number}")
        until(run.is_shared)
        run.seat(0)
        time.sleep(SETTLE_S)
        had = {name: set(client.assigned) for name, client in run.clients.items()}
        began_s = time.monotonic()
        asyncio.run(_grow(bootstrap, run.topic, PARTITIONS + count))
        until(lambda: sum(len(each.assigned) for each in run.clients.values()) == PARTITIONS + count)
        took_s = time.monotonic() - began_s
        time.sleep(SETTLE_S)
        moves = sum(len(before - run.clients[name].assigned) for name, before in had.items())
        shares = sorted(len(each.assigned) for each in run.clients.values())
    finally:
        run.close()
    return [f"{took_s:.2f}", str(moves), f"{shares[0]} to {shares[-1]}", run.verified()]


async def _grow(bootstrap: str, topic: str, partitions: int) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await create_partitions(admin, {topic: partitions})


def print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


@click.command()
@click.option("--kinds", default="; ".join(KINDS), show_default=True, help="Separated by semicolons.")
@click.option("--leaders", default="; ".join(LEADERS), show_default=True, help="Separated by semicolons.")
@click.option("--grow", "more", default=0, help="How many partitions the topic gets; 0: none.")
def main(kinds: str, leaders: str, more: int) -> None:
    """Measures stock groups beside led ones."""
    columns = ["seconds until all have a client", "moves", "partitions of a client", "log"]
    if not more:
        actions = [f"{action}: {what}" for action in ("restarts", "join", "kill -9") for what in ("moves", "paused")]
        columns = [*actions, "generations", "repeated", "missing", "log"]
    print_row(("client", "leader", *columns))
    print_row(["---"] * (len(columns) + 2))
    folder = Path(tempfile.mkdtemp(prefix="equipoise-seat-"))
    try:
        given = [(kind.strip(), leader.strip()) for kind in kinds.split(";") for leader in leaders.split(";")]
        pairs = [(kind, leader) for kind, leader in given if KINDS[kind][1] != NEW or not leader.startswith("converted")]
        with Brokers(java=FAST_JAVA, classpath=str(assignor_jar_classes()), **BROKERS) as brokers:
            for pair in pairs:
                print_row((*pair, *(grown(brokers.bootstrap, *pair, folder, more) if more else measured(brokers.bootstrap, *pair, folder))))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
