"""`python -m bench.seat_storm`: faults of groups that `equipoise lead` leads, on three brokers,
beside the same faults of the group as it comes.

Three clients read twelve partitions, each of which gets a record each EVERY_MS, and a topic beside
that is empty; two seats. The faults (WHATS) are drawn from the seed. A stock group has the same
faults of brokers, clients and topics at the same times: where a seat would have had one, nothing
happens for as long. Clients that end by themselves are started again. In a group of KIP-1071 the
clients are processes of Kafka Streams with state, whose output says what they have handled; the
topic beside is that of tasks without state, as Kafka Streams does not allow others to change. It
does not vanish there: some clients read nothing more after that, also of a stock group.

*Repeated* are records that were read more than once, *missing* those that nobody read. Ends with 1
when a record is missing or a log does not verify.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import click
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, TopicPartition

from bench import seat, streams_seat
from bench.removals import fed
from bench.seat import BROKERS, EVERY_MS, NEW, PARTITIONS, Run, Window, print_row, until
from equipoise.kafka.connection import Connection
from equipoise.kafka.group_requests import own_group_settings, set_group_settings
from equipoise.lead.broker_seat.broker_plan import MARK, BrokerPlan, PlanEntry, in_order, made_for, write_plan
from equipoise.lead.broker_seat.described_group import subscriptions
from equipoise.lead.broker_seat.extra_member import CLIENT_ID, ExtraMember
from equipoise.lead.broker_seat.streams_seat import NAME, TAGS
from tests.live.broker_assignor import assignor_jar_classes
from tests.live.cut import Relays
from tests.live.group_clients import GroupClient
from tests.live.kafka import admin_client, create_partitions, delete_topics
from tests.live.streams import StreamsApplication, described_streams
from tools.brokers import Brokers

DOWN_S, SYNC_S, SHORT_S, SETTLE_S = 5.0, 5.0, 4.0, 20.0
BESIDE = 3
"""Partitions of the topic beside, at first, and that it gets."""
MOST_CHARS = 32_000
SEATS = ("seat-0", "seat-1")
WHATS = (
    "kill a broker",
    "kill the coordinator",
    "kill a client",
    "restart a client",
    "kill a seat",
    "stop a seat",
    "cut off a seat",
    "kill both seats",
    "a wrong plan",
    "another protocol",
    "more partitions",
    "a topic vanishes",
)
WRONG = ("stale", "forged", "forged, the highest", "for others", "oversized", "none")
"""Plans that somebody else writes."""


@attrs.frozen
class Fault:
    """`which`: number of the broker, client or seat. `lasts_s`: of what has an end."""

    what: str
    after_s: float
    which: int
    lasts_s: float
    wrong: str

    def __str__(self) -> str:
        return f"{self.what} ({self.wrong if self.what == 'a wrong plan' else self.which})"


def faults_of(seed: int, way: str, count: int, whats: Sequence[str]) -> list[Fault]:
    chance = random.Random(f"{seed} {way}")
    found = []
    for _ in range(count):
        what = chance.choice(whats)
        which = chance.randrange(2 if what.endswith("seat") else 3)
        found.append(Fault(what, chance.uniform(1, 5), which, chance.uniform(1, 12), chance.choice(WRONG)))
    return found


def wrong_plan(kind: str, members: Sequence[str], topics: Sequence[bytes]) -> str:
    """A plan that takes everything from all but the first member, or that is none."""
    entries = tuple(PlanEntry("move", 0, topic, 0, BESIDE - 1) for topic in range(len(topics)))
    number = {"stale": 1, "forged, the highest": 10**18 - 1}.get(kind, 10**15)
    names = [*members, "gone"] if kind == "for others" else members
    plan = write_plan(BrokerPlan(number=number, made_for=made_for(in_order(names), sorted(topics)), entries=entries))
    if kind == "oversized":
        return plan + ";0:0=1" * ((MOST_CHARS - len(plan)) // len(";0:0=1"))
    return f"{MARK}1;nonsense" if kind == "none" else plan


class Storm(Run):
    """A consumer group in a storm."""

    def __init__(self, bootstrap: str, kind: str, leader: str, folder: Path) -> None:
        super().__init__(bootstrap, kind, leader, folder)
        self.beside = f"{self.topic}-beside"
        self.topics = f"{self.topic},{self.beside}"
        self.is_led = leader != "stock"
        asyncio.run(self.make(self.beside, BESIDE))

    @staticmethod
    def new_name(bootstrap: str) -> str:
        """A name of a group whose coordinator is the first broker, then the second, in any cluster:
        faults of brokers are then the same for groups of two clusters.
        """
        replicas = asyncio.run(coordinators(bootstrap))
        names = (Run.new_name(bootstrap) for _ in itertools.count())
        return next(name for name in names if replicas[java_hash(name) % len(replicas)] == sorted(replicas[0]))

    async def make(self, name: str, partitions: int) -> None:
        from aiokafka.admin import NewTopic

        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin:
            await admin.create_topics([NewTopic(name, partitions, 3)])

    def restart(self, name: str) -> None:
        """Has a client end; the caller starts it again."""
        self.clients[name].signal(signal.SIGTERM)

    def other_protocol(self) -> Callable[[], None]:
        """Starts a client that uses another protocol than the others. Returns what ends it."""
        self.start("x", {} if self._settings == NEW else NEW)

        def end() -> None:
            client = self.clients.pop("x")
            with contextlib.suppress(ProcessLookupError):
                client.signal(signal.SIGTERM)
            self.ended.append(("x", client))

        return end

    async def change_topic(self, what: str) -> None:
        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin:
            if what == "more partitions":
                about = (await admin.describe_topics([self.beside]))[0]
                await create_partitions(admin, {self.beside: len(about["partitions"]) + BESIDE})
                return
            await delete_topics(admin, [self.beside])
        await asyncio.sleep(SHORT_S)
        await self.make(self.beside, BESIDE)

    async def write_wrong(self, kind: str, lasts_s: float) -> None:
        """Joins as one more member with a plan, before or behind the seats, and leaves."""
        name = CLIENT_ID + ("-0" if lasts_s < DOWN_S else "-9")
        async with ExtraMember(Connection(bootstrap=self.bootstrap), self.topic, name) as member:
            group = await member.describe()
            if group is None:
                return
            topics = {topic for of in subscriptions(group.consumers, ()).values() for topic in of}
            asked = await member.topics(topics)
            plan = wrong_plan(kind, [each.member_id for each in group.consumers], list(asked.ids.values()))
            end_s = time.monotonic() + lasts_s
            with contextlib.suppress(KafkaError):  # a coordinator may just move
                await member.beat(plan)
                while time.monotonic() < end_s:
                    await member.beat(begins=True)
                    await asyncio.sleep(0.5)
                await member.leave()


class StreamsClient(GroupClient):
    """A process of Kafka Streams; what it handled is in its output."""

    def __init__(self, application: StreamsApplication) -> None:
        self.application, self.process = application, application.process  # type: ignore[assignment]  # its output is no pipe
        self.assigned, self.reads, self.records = set(), [], []

    @property
    def pid(self) -> int:
        return self.process.pid

    def ended(self) -> str:
        self.process.wait(seat.PATIENCE_S)
        return self.application.said()

    def close(self) -> None:
        self.application.kill()


class StreamsStorm(Storm):
    """A group of KIP-1071 in a storm."""

    def __init__(self, bootstrap: str, kind: str, leader: str, folder: Path) -> None:
        super().__init__(bootstrap, kind, leader, folder)
        self.in_brokers = True
        self.output = f"{self.topic}-out"
        asyncio.run(self.make(self.output, PARTITIONS))
        self._instances: dict[str, list[StreamsClient]] = {}
        self._was_shared = False
        """Later a client may have tasks of the topic beside alone, once that has more of them."""
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def start(self, name: str, settings: Any = None) -> None:
        if name in self.clients:
            self.ended.append((name, self.clients.pop(name)))
        given = {"group.protocol": "streams", "commit.interval.ms": "500", "replication.factor": "3", "beside": self.beside, **(settings or {})}
        made = StreamsApplication(
            self.bootstrap,
            self.topic,
            name,
            self.folder / self.topic,
            input=self.topic,
            output=self.output,
            settings=given,
            version=streams_seat.VERSION,
        )
        self.clients[name] = StreamsClient(made)
        self._instances.setdefault(name, []).append(self.clients[name])  # type: ignore[arg-type]

    def restart(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self.clients[name].application.end("leave")  # type: ignore[attr-defined]

    def _read(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "-", "enable.auto.commit": False, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(self.output, number, 0) for number in range(PARTITIONS)])
        while not self._over.is_set():
            record = consumer.poll(0.2)
            if record is None or record.error() is not None:
                continue
            partition, offset, instance, _ = record.value().decode().split(" ")
            client = self._instances[instance][-1]
            client.reads.append((time.monotonic(), int(partition)))
            client.records.append((int(partition), int(offset)))
        consumer.close()

    def is_shared(self) -> bool:
        self.revive()
        since_s = time.monotonic() - 2
        recent = [{partition for at_s, partition in client.reads[-200:] if at_s > since_s} for client in self.clients.values()]
        is_read = len(set().union(*recent)) == PARTITIONS
        self._was_shared |= is_read and all(recent)
        return is_read and self._was_shared

    def other_protocol(self) -> Callable[[], None]:
        self.start("x", {"group.protocol": "classic"})

        def end() -> None:
            client = self.clients.pop("x")
            client.close()
            self.ended.append(("x", client))

        return end

    async def write_wrong(self, kind: str, lasts_s: float) -> None:
        found = await described_streams(self.bootstrap, self.topic)
        parts = () if found.topology is None else found.topology.subtopologies
        plan = wrong_plan(kind, [each.member_id for each in found.members], [part.subtopology_id.encode() for part in parts])
        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin:
            own = await own_group_settings(admin, self.topic)
            if own.get(NAME):
                await set_group_settings(admin, self.topic, {TAGS: ",".join([*filter(None, own.get(TAGS, "").split(",")), plan])})
        await asyncio.sleep(lasts_s)  # as long as in a stock group, so that the next fault comes at the same time in both

    def close(self) -> None:
        super().close()
        self._over.set()
        self._reader.join()


WAYS: dict[str, tuple[str, str, type[Storm]]] = {
    "KIP-848": ("confluent-kafka, KIP-848", "led", Storm),
    "converted": ("confluent-kafka, range", "converted", Storm),
    "classic": ("confluent-kafka, range", "led", Storm),
    "KIP-1071": ("confluent-kafka, range", "led", StreamsStorm),
}


class Network:
    """Relays of the seats, in a thread of their own."""

    def __init__(self) -> None:
        self.relays = Relays(SEATS, 3)
        self._loop = asyncio.new_event_loop()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        up, over = threading.Event(), asyncio.Event()

        async def serve() -> None:
            async with self.relays.relaying():
                up.set()
                await over.wait()

        thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),))
        thread.start()
        up.wait()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(over.set)
            thread.join()

    def do(self, what: Callable[[str], None], name: str) -> None:
        self._loop.call_soon_threadsafe(what, name)


def java_hash(text: str) -> int:
    """By which Kafka spreads groups over the partitions of __consumer_offsets."""
    found = 0
    for each in text:
        found = (31 * found + ord(each)) % 2**32
    return found if found < 2**31 else 2**32 - found


async def coordinators(bootstrap: str) -> list[list[int]]:
    """Of each partition of __consumer_offsets: its brokers, the preferred one first."""
    while True:
        with contextlib.suppress(KafkaError):
            await coordinator_of(bootstrap, "any")  # makes the topic
            async with admin_client(Connection(bootstrap=bootstrap)) as admin:
                (about,) = await admin.describe_topics(["__consumer_offsets"])
            if about["partitions"]:
                return [each["replicas"] for each in sorted(about["partitions"], key=lambda each: each["partition"])]
        await asyncio.sleep(0.5)


async def coordinator_of(bootstrap: str, group: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        return int(await admin.find_coordinator(group))
    finally:
        await admin.close()


def happen(fault: Fault, run: Storm, brokers: Brokers, network: Network) -> None:
    if fault.what in ("kill a broker", "kill the coordinator"):
        index = fault.which if fault.what == "kill a broker" else asyncio.run(coordinator_of(run.bootstrap, run.topic))
        brokers.kill(index)
        time.sleep(DOWN_S)
        brokers.start(index)
        time.sleep(SYNC_S)  # its replicas are in sync again
    elif fault.what.endswith("client"):
        name = f"c{fault.which + 1}"
        if fault.what.startswith("kill"):
            run.clients[name].signal(signal.SIGKILL)
        else:
            run.restart(name)
        time.sleep(SHORT_S)
        run.start(name)
    elif fault.what == "another protocol":
        end = run.other_protocol()
        time.sleep(DOWN_S + SHORT_S)
        end()
    elif fault.what in ("more partitions", "a topic vanishes"):
        asyncio.run(run.change_topic(fault.what))
    elif not run.is_led:
        time.sleep(fault.lasts_s)
    else:
        happen_to_seats(fault, run, network)


def happen_to_seats(fault: Fault, run: Storm, network: Network) -> None:
    if fault.what == "a wrong plan":
        if run.in_brokers:
            asyncio.run(run.write_wrong(fault.wrong, fault.lasts_s))
    elif fault.what == "cut off a seat":
        network.do(network.relays.cut, SEATS[fault.which])
        time.sleep(fault.lasts_s)
        network.do(network.relays.mend, SEATS[fault.which])
    elif fault.what == "stop a seat":
        run.seats[fault.which].send_signal(signal.SIGSTOP)
        time.sleep(fault.lasts_s)
        run.seats[fault.which].send_signal(signal.SIGCONT)
    else:
        killed = range(2) if fault.what == "kill both seats" else [fault.which]
        for number in killed:
            run.seats[number].kill()
            run.seats[number].wait()
        time.sleep(fault.lasts_s)
        for number in killed:
            run.seat(number)


def storm(brokers: Brokers, network: Network, way: str, folder: Path, faults: Sequence[Fault], *, led: bool) -> tuple[list[str], bool]:
    """One row: what happened, how long partitions were not read, and repeated and missing records.
    And whether nothing is missing and the logs verify.
    """
    kind, leader, made = WAYS[way]
    run = made(brokers.bootstrap, kind, leader if led else "stock", folder)
    run.seat_bootstraps = [network.relays.bootstrap(name) for name in SEATS]
    times: list[tuple[float, Fault]] = []
    try:
        if not run.in_brokers:
            for number in range(2):
                run.seat(number)
        for name in ("c1", "c2", "c3"):
            run.start(name)
        with fed(run.bootstrap, run.topic, partitions=PARTITIONS, every_ms=EVERY_MS):
            until(run.is_shared)
            if run.in_brokers:
                for number in range(2):
                    run.seat(number)
            since_s = time.monotonic()
            for number, fault in enumerate(faults):
                time.sleep(fault.after_s)
                run.revive()
                times.append((time.monotonic(), fault))
                print(f"{way}, {leader if led else 'stock'}: {time.monotonic() - since_s:.0f} s, {number}: {fault}", file=sys.stderr, flush=True)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    happen(fault, run, brokers, network)
            time.sleep(SETTLE_S)
            until(run.is_shared)
            over_s = time.monotonic()
            window = run.window(since_s, over_s)
            for gap_s, from_s, of in window.gaps:
                at = time.strftime("%T", time.localtime(time.time() - time.monotonic() + from_s))
                print(f"{way}: {at}, {from_s - since_s:.1f} s, for {gap_s:.1f} s: {of}", file=sys.stderr)
        time.sleep(SHORT_S)
        repeated, missing = run.repeated()
    finally:
        run.close()
    return _row(run, times, over_s, window, repeated, missing)


def _row(run: Storm, times: Sequence[tuple[float, Fault]], over_s: float, window: Window, repeated: int, missing: int) -> tuple[list[str], bool]:
    before = ", ".join(str(fault) for at_s, fault in times if window.longest_from_s - 10 <= at_s <= window.longest_from_s + window.longest_s)
    told = ", ".join(f"{count} × {what}" for what, count in sorted(Counter(fault.what for _, fault in times).items()))
    ends_s = [*(at_s for at_s, _ in times[1:]), over_s]
    killed = [
        run.window(at_s, end_s).longest_s
        for (at_s, fault), end_s in zip(times, ends_s, strict=True)
        if fault.what in ("kill a broker", "kill the coordinator")
    ]
    of_killed, log = f"{statistics.median(killed):.1f}" if killed else "-", run.verified()
    cells = [told, str(window.moves), f"{window.paused_s:.0f}", f"{window.longest_s:.1f} ({window.longest_of})", of_killed, before]
    return [*cells, str(repeated), str(missing), str(run.revived), log], not missing and set(log.split(", ")) <= {"identical", "-"}


@click.command()
@click.option("--ways", default="; ".join(WAYS), show_default=True, help="Separated by semicolons.")
@click.option("--leaders", default="stock; led", show_default=True, help="Separated by semicolons.")
@click.option("--count", default=100, show_default=True, help="How many faults.")
@click.option("--faults", "whats", default="; ".join(WHATS), show_default=True, help="Separated by semicolons.")
@click.option("--seed", default=1, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Folder for logs; default: they are removed.")
def main(ways: str, leaders: str, count: int, whats: str, seed: int, keep: Path | None) -> None:
    """Has the same faults happen to a stock group and to a led one."""
    named = [each.strip() for each in whats.split(";")]
    if unknown := set(named) - set(WHATS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: no such fault; there are: {'; '.join(WHATS)}", param_hint="--faults")
    columns = ("faults", "moves", "paused", "longest, s", "killed broker, median s", "faults about it", "repeated", "missing", "ended", "log")
    print_row(("way", "leader", *columns))
    print_row(["---"] * (len(columns) + 2))
    folder = Path(tempfile.mkdtemp(prefix="equipoise-storm-")) if keep is None else keep
    folder.mkdir(parents=True, exist_ok=True)
    hold = True
    try:
        for way in (each.strip() for each in ways.split(";")):
            some = [each for each in named if way != "KIP-1071" or each != "a topic vanishes"]
            for leader in (each.strip() for each in leaders.split(";")):
                network = Network()
                settings = {"broker.session.timeout.ms": "6000", **BROKERS, **(streams_seat.BROKERS if way == "KIP-1071" else {})}
                version = streams_seat.VERSION if way == "KIP-1071" else ""
                jar = str(assignor_jar_classes())
                with Brokers(3, network.relays.listeners, version=version, classpath=jar, **settings) as brokers, network.running():
                    row, holds = storm(brokers, network, way, folder, faults_of(seed, way, count, some), led=leader == "led")
                hold &= holds
                print_row((way, leader, *row))
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if hold else 1)


if __name__ == "__main__":
    main()
