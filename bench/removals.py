"""`python -m bench.removals`: how long the partitions of a killed member are not read, with
unmodified clients: stock, and under `equipoise witness --group`.

A group of three members reads six partitions, each of which gets a record each EVERY_MS. One member
after the other is killed with SIGKILL, and started again when another one reads its partitions. The
time is that from the kill to the first record of its last partition that another member reads. All
timeouts are defaults: 45 s of session, and heartbeats each 3 s, or each 5 s with KIP-848, whose
interval is the broker's.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from confluent_kafka import Producer

from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import admin_client
from tests.live.group_clients import GroupClient, confluent_kafka_command, java_command
from tools.brokers import Brokers

MEMBERS, PARTITIONS = 3, 6
EVERY_MS = 50
PATIENCE_S = 120.0
SETTLE_S, MORE_S = 6.0, 5.0
"""Time before a kill: longer than a heartbeat interval, and by up to MORE_S more, so that kills are
at any moment between two heartbeats.
"""
KINDS: dict[str, tuple[Callable[[], list[str]], dict[str, str]]] = {
    "confluent-kafka": (confluent_kafka_command, {}),
    "confluent-kafka, KIP-848": (confluent_kafka_command, {"group_protocol": "consumer"}),
    "Java": (java_command, {}),
}


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.02)


@contextmanager
def fed(bootstrap: str, topic: str, *, partitions: int = PARTITIONS, every_ms: int = EVERY_MS) -> Iterator[None]:
    """Within the block each partition gets a record each `every_ms`."""
    over = threading.Event()

    def feed() -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        while not over.wait(every_ms / 1_000):
            for partition in range(partitions):
                producer.produce(topic, b"-", key=b"%d" % partition, partition=partition)
            producer.flush()

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def read_again_after(killed: GroupClient, others: list[GroupClient]) -> float:
    """Kills the client. Returns the seconds until others read all of its partitions."""
    partitions, killed_s = killed.assigned, time.monotonic()
    assert partitions, "it has none"
    killed.signal(signal.SIGKILL)

    def first_reads() -> dict[int, float]:
        found: dict[int, float] = {}
        for other in others:
            for at_s, partition in list(other.reads):
                if at_s > killed_s and partition in partitions:
                    found[partition] = min(at_s, found.get(partition, at_s))
        return found

    until(lambda: first_reads().keys() == partitions)
    return max(first_reads().values()) - killed_s


async def make_topic(bootstrap: str, topic: str) -> None:
    from aiokafka.admin import NewTopic

    async with admin_client(Connection(bootstrap=bootstrap)) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])


def measured(bootstrap: str, kind: str, kills: int, *, is_supervised: bool) -> list[float]:
    """Seconds for each kill."""
    topic = f"removals-{list(KINDS).index(kind)}-{is_supervised}"
    asyncio.run(make_topic(bootstrap, topic))
    command, settings = KINDS[kind]

    def start(number: int) -> GroupClient:
        name = f"c{number}"
        supervised = ["--group", topic, "--bootstrap", bootstrap, "--client-id", name] if is_supervised else None
        return GroupClient(command(), topic, supervised=supervised, bootstrap_servers=bootstrap, group_id=topic, client_id=name, **settings)

    clients = [start(number) for number in range(MEMBERS)]

    def all_have_some() -> bool:
        return all(each.assigned for each in clients) and sum(len(each.assigned) for each in clients) == PARTITIONS

    found, chance = [], random.Random(f"{kind} {is_supervised}")
    try:
        with fed(bootstrap, topic):
            for number in range(kills):
                until(all_have_some)
                time.sleep(SETTLE_S + chance.uniform(0, MORE_S))
                killed = clients.pop(0)
                found.append(read_again_after(killed, clients))
                killed.close()
                clients.append(start(MEMBERS + number))
    finally:
        for each in clients:
            each.close()
    return found


@click.command()
@click.option("--kills", default=5, show_default=True, help="Kills of a member under `equipoise witness`.")
@click.option("--stock", default=5, show_default=True, help="Kills of a member without it.")
@click.option("--only", multiple=True, type=click.Choice(list(KINDS)), help="Only this client; may be repeated.")
@click.option("--heartbeat-ms", default=5_000, show_default=True, help="Heartbeat interval of KIP-848, a setting of the brokers.")
def main(kills: int, stock: int, only: tuple[str, ...], heartbeat_ms: int) -> None:
    """Measures how long the partitions of a killed member of a consumer group are not read."""
    interval: Any = {name: str(heartbeat_ms) for name in ("group.consumer.heartbeat.interval.ms", "group.consumer.min.heartbeat.interval.ms")}
    print("| | kills | not read, s: shortest | median | longest |\n|---|--:|--:|--:|--:|")
    with Brokers(**interval) as brokers:
        for kind in only or KINDS:
            for count, is_supervised in ((stock, False), (kills, True)):
                if count:
                    found = measured(brokers.bootstrap, kind, count, is_supervised=is_supervised)
                    name = f"{kind}, {'equipoise witness' if is_supervised else 'stock'}"
                    print(f"| {name} | {count} | {min(found):.1f} | {statistics.median(found):.1f} | {max(found):.1f} |", flush=True)


if __name__ == "__main__":
    main()
