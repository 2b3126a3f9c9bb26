"""`python -m bench.incidents`: faults in real groups of five kinds, and what `equipoise incident`
says of each.

Each round puts one fault into every group at once, waits until it is over, and undoes it. All are
recorded by `equipoise record`. Then each fault is looked up among the incidents of its group, and
the table of confusions is printed: for each kind of group and fault, how many were named rightly,
and what the others were taken for.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import attrs
import click
from confluent_kafka import Producer

from equipoise.kafka.client import NewTopic
from equipoise.kafka.connection import Connection
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.incident import Cause, Incident, counterfactual, history_of, incidents
from tests.live.connect import ConnectWorker
from tests.live.group_clients import GroupClient, confluent_kafka_command
from tests.live.kafka import admin_client, create_partitions
from tests.live.streams import StreamsApplication
from tools.brokers import Brokers

SESSION_S = 10.0
PARTITIONS = 6
SETTLE_S = 16.0
"""After each fault, and after it is undone, at least: longer than SESSION_S and a rebalance."""
MOST_SETTLE_S = 60.0
"""For a process that takes long to start."""
PAUSE_S = 8.5
"""A process that stands still for so long loses no session."""
MEMBERS = 3
_CLOCK_MS, _COMMIT_MS = 100, 2_000
"""The brokers' clock beside ours; the interval in which commits are recorded, and some."""


class Process(Protocol):
    """A member that can be signalled."""

    @property
    def process(self) -> subprocess.Popen[Any]: ...


@attrs.define
class Group:
    """A group under test. `start`: starts the member of a number. `leave`: asks one to leave."""

    kind: str
    name: str
    start: Callable[[int], Process]
    leave: Callable[[Process], None]
    topic: str
    members: dict[int, Process] = attrs.field(factory=dict)
    next_number: int = 0
    frozen: set[int] = attrs.field(factory=set)

    @property
    def expected(self) -> int:
        """Members that the group has once it has settled."""
        return len(self.members) - len(self.frozen)

    def add(self, number: int) -> None:
        self.members[number] = self.start(number)
        self.next_number = max(self.next_number, number + 1)

    def end(self, number: int, how: Callable[[Process], None]) -> None:
        member = self.members.pop(number)
        how(member)
        member.process.wait(60)


@attrs.define(kw_only=True)
class Injected:
    """`until_ms`: when its group had settled; 0: not yet."""

    group: str
    kind: str
    fault: str
    at_ms: int
    until_ms: int = 0


def kill(member: Process) -> None:
    member.process.kill()


EXPECTED: dict[str, tuple[Cause, ...]] = {
    "join": (Cause.JOINED,),
    "back": (Cause.BACK,),
    "leave": (Cause.LEFT,),
    "kill": (Cause.EXPIRED,),
    "kill, back at once": (Cause.EXPIRED, Cause.RESTARTED),
    "freeze": (Cause.EXPIRED,),
    "leave, back at once": (Cause.LEFT, Cause.RESTARTED),
    "pause": (Cause.NOTHING,),
    "partitions": (Cause.PARTITIONS,),
    "all stop": (Cause.LEFT,),
}
"""Fault -> the causes that name it rightly."""
FAULTS = [each for each in EXPECTED if each != "back"]
"""What is undone makes a fault of its own: a member that is back."""
NOT_FOR = {"classic streams": ("partitions",), "streams": ("partitions",), "connect": ("partitions",)}
"""A changelog keeps the number of partitions that it was made with; a sink's group notices new
partitions, and Connect's own does not.
"""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def groups_on(bootstrap: str, folder: Path, running: ExitStack) -> list[Group]:
    def consumer(name: str, topic: str, protocol: str) -> Callable[[int], Process]:
        plain = {"session_timeout_ms": str(round(SESSION_S * 1000)), "heartbeat_interval_ms": "1000"} if protocol == "classic" else {}

        def start(number: int) -> Process:
            client = GroupClient(
                confluent_kafka_command(),
                topic,
                bootstrap_servers=bootstrap,
                group_id=name,
                client_id=f"c{number}",
                group_protocol=protocol,
                auto_offset_reset="earliest",
                auto_commit_interval_ms="500",
                topic_metadata_refresh_interval_ms="1000",
                **plain,
            )
            running.callback(client.close)
            return client

        return start

    def streams(name: str, topic: str, protocol: str) -> Callable[[int], Process]:
        plain = {"session.timeout.ms": str(round(SESSION_S * 1000)), "heartbeat.interval.ms": "1000"} if protocol == "classic" else {}
        settings = {"group.protocol": protocol, "commit.interval.ms": "500", "num.stream.threads": "1", **plain}

        def start(number: int) -> Process:
            where = folder / name
            return running.enter_context(
                StreamsApplication(bootstrap, name, f"i{number}", where, input=topic, output=f"{topic}-out", settings=settings)
            )

        return start

    def connect(number: int) -> Process:
        return running.enter_context(ConnectWorker(bootstrap, "connect", folder / "connect", f"w{number}", session_ms=round(SESSION_S * 1000)))

    def term(member: Process) -> None:
        member.process.send_signal(signal.SIGTERM)

    def leave(member: Process) -> None:
        assert isinstance(member, StreamsApplication)
        member.end("leave")

    return [
        Group("classic consumer", "plain", consumer("plain", "plain-in", "classic"), term, "plain-in"),
        Group("consumer", "next", consumer("next", "next-in", "consumer"), term, "next-in"),
        Group("classic streams", "old-app", streams("old-app", "old-in", "classic"), leave, "old-in"),
        Group("streams", "new-app", streams("new-app", "new-in", "streams"), leave, "new-in"),
        Group("connect", "connect", connect, term, "sunk-in"),
    ]


def inject(group: Group, fault: str, bootstrap: str, chance: random.Random) -> Callable[[], None]:
    """Begins a fault, and returns what undoes it."""
    number = chance.choice(sorted(group.members))
    match fault:
        case "join":
            new = group.next_number
            group.add(new)
            return lambda: group.end(new, group.leave)
        case "leave":
            group.end(number, group.leave)
            return lambda: group.add(number)
        case "kill":
            group.end(number, kill)
            return lambda: group.add(number)
        case "kill, back at once":
            group.end(number, kill)
            group.add(number)
        case "leave, back at once":
            group.end(number, group.leave)
            group.add(number)
        case "freeze":
            group.members[number].process.send_signal(signal.SIGSTOP)
            group.frozen.add(number)
            return lambda: thaw(group, number)
        case "pause":
            process = group.members[number].process
            process.send_signal(signal.SIGSTOP)
            threading.Timer(PAUSE_S, process.send_signal, (signal.SIGCONT,)).start()
        case "partitions":
            asyncio.run(grow(bootstrap, group.topic))
        case "all stop":
            numbers = sorted(group.members)
            for each in numbers:
                group.end(each, group.leave)
            return lambda: start_all(group, numbers)
    return lambda: None


def thaw(group: Group, number: int) -> None:
    group.frozen.discard(number)
    group.members[number].process.send_signal(signal.SIGCONT)


def settle(recording: str, groups: list[Group], since_ms: int) -> None:
    """Waits until each group has the members that it should have, and SETTLE_S are over."""
    most_s = time.monotonic() + MOST_SETTLE_S
    time.sleep(max(0.0, SETTLE_S - (now_ms() - since_ms) / 1000))
    while time.monotonic() < most_s:
        with open_recording(recording) as opened:
            seen = {group.name: history_of(opened, group.name).states for group in groups}
        if all(states and len(states[-1].group.members) == group.expected for group in groups for states in [seen[group.name]]):
            return
        time.sleep(1)


def start_all(group: Group, numbers: list[int]) -> None:
    for number in numbers:
        group.add(number)


async def grow(bootstrap: str, topic: str) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        (described,) = await admin.describe_topics([topic])
        await create_partitions(admin, {topic: len(described["partitions"]) + 1})


async def make_topics(bootstrap: str, topics: list[str]) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics])


def feed(bootstrap: str, topics: list[str], over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "topic.metadata.refresh.interval.ms": 1000, "partitioner": "random"})
    while not over.wait(0.02):
        for topic in topics:
            producer.produce(topic, b"-", key=b"%d" % random.getrandbits(16))
        producer.poll(0)
    producer.flush()


def undone_as(fault: str) -> str | None:
    """The fault that undoing one is."""
    return {"leave": "back", "kill": "back", "join": "leave", "freeze": "back"}.get(fault)


def ended(done: list[Injected], groups: list[Group], at_ms: int) -> None:
    for each in done:
        if not each.until_ms and any(group.name == each.group for group in groups):
            each.until_ms = at_ms


def named(injected: Injected, found: list[Incident]) -> Incident | None:
    """The incident that a fault is: the first of its group whose rebalance came before the group
    had settled, or that began then, where there was no rebalance.
    """
    return next((each for each in found if injected.at_ms - _CLOCK_MS <= _seen_ms(each) <= injected.until_ms), None)


def _seen_ms(incident: Incident) -> int:
    return incident.chain[0].begin_ms if incident.chain else incident.begin_ms + _COMMIT_MS


@click.command()
@click.option("--rounds", default=10, show_default=True, help="Faults in each group.")
@click.option("--seed", default=1, show_default=True)
@click.option("--keep", metavar="FILE", help="Keep the recording as FILE.")
@click.option("--kinds", default="", help="Kinds of groups, separated by semicolons; all.")
def main(rounds: int, seed: int, kinds: str, keep: str | None) -> None:
    """Put faults into real groups, and print what `equipoise incident` takes them for."""
    chance = random.Random(seed)
    done: list[Injected] = []
    settings = {
        "group.consumer.session.timeout.ms": SESSION_S,
        "group.consumer.min.session.timeout.ms": SESSION_S,
        "group.consumer.heartbeat.interval.ms": 1.0,
        "group.consumer.min.heartbeat.interval.ms": 1.0,
        "group.streams.session.timeout.ms": SESSION_S,
        "group.streams.min.session.timeout.ms": SESSION_S,
        "group.streams.heartbeat.interval.ms": 1.0,
        "group.streams.min.heartbeat.interval.ms": 1.0,
    }
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        brokers = running.enter_context(Brokers(1, **{name: str(round(value * 1000)) for name, value in settings.items()}))
        bootstrap = brokers.bootstrap
        groups = [each for each in groups_on(bootstrap, folder, running) if not kinds or each.kind in kinds.split("; ")]
        topics = [each.topic for each in groups]
        asyncio.run(make_topics(bootstrap, [*topics, *(f"{topic}-out" for topic in topics)]))
        over = threading.Event()
        feeding = threading.Thread(target=feed, args=(bootstrap, topics, over))
        feeding.start()
        running.callback(feeding.join)
        running.callback(over.set)
        recording = str(folder / "cluster.db")
        record = [sys.executable, "-m", "equipoise", "record", f"kafka://{bootstrap}", "--to", recording, "--sample-s", "1"]
        recorder = running.enter_context(subprocess.Popen(record, stderr=subprocess.DEVNULL))
        running.callback(recorder.kill)
        for group in groups:
            for number in range(MEMBERS):
                group.add(number)
            worker = group.members[0]
            if isinstance(worker, ConnectWorker):
                worker.add_sink("dropping", group.topic, PARTITIONS)
        settle(recording, groups, now_ms())
        time.sleep(SETTLE_S)
        faults: dict[str, list[str]] = {}
        for turn in range(rounds):
            undo, begun = [], now_ms()
            for group in groups:
                if not faults.get(group.kind):
                    fitting = [fault for fault in FAULTS if fault not in NOT_FOR.get(group.kind, ())]
                    faults[group.kind] = chance.sample(fitting, len(fitting))
                fault = faults[group.kind].pop()
                at_ms = now_ms()
                undo.append((group, fault, inject(group, fault, bootstrap, chance)))
                done.append(Injected(group=group.name, kind=group.kind, fault=fault, at_ms=at_ms))
            settle(recording, groups, begun)
            begun = now_ms()
            ended(done, groups, begun)
            for group, fault, undoing in undo:
                at_ms = now_ms()
                undoing()
                if (after := undone_as(fault)) is not None:
                    done.append(Injected(group=group.name, kind=group.kind, fault=after, at_ms=at_ms))
            settle(recording, groups, begun)
            ended(done, groups, now_ms())
            click.echo(f"round {turn + 1} of {rounds}: {', '.join(fault for _, fault, _ in undo)}", err=True)
        recorder.terminate()  # not SIGINT, which a shell makes its background jobs ignore
        recorder.wait(60)
        if keep is not None:
            Path(f"{keep}.json").write_text(json.dumps([attrs.asdict(each) for each in done]), encoding="utf-8")
            shutil.copy(recording, keep)
        report(recording, done)


def report(recording: str, done: list[Injected]) -> None:
    """Prints the table of confusions."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    longest_s = 0.0
    simulated: dict[tuple[str, str], list[int]] = {}
    """Kind and cause -> incidents that were simulated, their cost (ms), and that in the simulation.
    """
    kinds = {each.group: each.kind for each in done}
    with open_recording(recording) as opened:
        found = {}
        for name, kind in kinds.items():
            began_s = time.monotonic()
            history = history_of(opened, name)
            found[name] = incidents(history)
            longest_s = max(longest_s, time.monotonic() - began_s)
            for incident in found[name]:
                if (answer := counterfactual(history, incident, found[name])) is not None:
                    sums = simulated.setdefault((kind, incident.cause.name.lower()), [0, 0, 0])
                    for number, value in enumerate((1, answer.measured_ms, answer.as_it_was_ms)):
                        sums[number] += value
    for each in done:
        taken = named(each, found[each.group])
        cause = "nothing" if taken is None else taken.cause.name.lower()
        is_right = taken is not None and taken.cause in EXPECTED[each.fault]
        counts.setdefault((each.kind, each.fault), Counter())["right" if is_right else cause] += 1
    click.echo("| group | fault | times | right | taken for |\n|---|---|--:|--:|---|")
    for (kind, fault), count in sorted(counts.items()):
        others = ", ".join(f"{name} {times}" for name, times in count.most_common() if name != "right")
        click.echo(f"| {kind} | {fault} | {count.total()} | {count['right']} | {others} |")
    click.echo("\n| group | cause | simulated | measured | as it was | error |\n|---|---|--:|--:|--:|--:|")
    for (kind, cause), sums in sorted(simulated.items()):
        error = (sums[2] - sums[1]) / max(1, sums[1])
        click.echo(f"| {kind} | {cause} | {sums[0]} | {sums[1] / 1000:.0f} s | {sums[2] / 1000:.0f} s | {error:+.0%} |")
    right = sum(count["right"] for count in counts.values())
    click.echo(f"{right} of {len(done)} ({right / len(done):.0%}) right; the longest report took {longest_s:.1f} s")


if __name__ == "__main__":
    main()
