"""`python -m bench.led_changes`: does what it is expected to cost that `equipoise lead` begins to
lead a group hold? Groups of unmodified clients on a real broker, several side by side, each led by
a process that plans, measures and judges; half of them with a client that is to get twice as much.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs
import click
from aiokafka.admin import NewTopic

from bench.live_changes import busy_since, cpu_s
from bench.made_changes import MadeChange, compared, told
from equipoise.events.facts import JUDGED_METRICS
from equipoise.kafka.connection import Connection
from equipoise.lead.broker_seat.ways import CLASS, SETTING
from equipoise.replay.known_changes import verdict_text
from tests.live.broker_assignor import assignor_jar_classes
from tests.live.group_clients import GroupClient, aiokafka_command, confluent_kafka_command
from tests.live.kafka import admin_client
from tests.live.seat_process import SeatProcess
from tools.brokers import Brokers

WITHIN_S = 90.0
SETTLED_S = (6.0, 12.0)
"""Between these, so that heartbeats are at any place."""
LOOK_S = 0.2


@attrs.frozen(kw_only=True)
class LedWay:
    """`options`: of `equipoise lead`. `settings`: of the clients."""

    name: str
    command: Callable[[], list[str]]
    settings: dict[str, str]
    options: tuple[str, ...] = ()


WAYS = (
    LedWay(name="KIP-848", command=confluent_kafka_command, settings={"group_protocol": "consumer"}),
    LedWay(name="converted", command=aiokafka_command, settings={}, options=("--convert",)),
    LedWay(name="eager", command=aiokafka_command, settings={}, options=("--evict",)),
    LedWay(
        name="cooperative", command=confluent_kafka_command, settings={"partition_assignment_strategy": "cooperative-sticky"}, options=("--evict",)
    ),
)


@click.command()
@click.option("--groups", default=40, show_default=True, help="How many are led, in each way equally many.")
@click.option("--at-once", default=4, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default=Path("out/led-changes.jsonl"), show_default=True, help="File to write.")
def main(groups: int, at_once: int, seed: int, results: Path) -> None:
    """Leads groups, and tells how well it was predicted what that costs."""
    settings = {SETTING: f"uniform,range,{CLASS}", "group.initial.rebalance.delay.ms": "0"}
    with Brokers(classpath=str(assignor_jar_classes()), **settings) as brokers, tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_led(brokers, Path(folder), groups, at_once, random.Random(seed)))
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("".join(json.dumps(attrs.asdict(each)) + "\n" for each in found))
    raise SystemExit(0 if told(found) else 1)


async def _led(brokers: Brokers, folder: Path, groups: int, at_once: int, draw: random.Random) -> list[MadeChange]:
    slots = asyncio.Semaphore(at_once)

    async def one(number: int, members: int, partitions: int, settled_s: float, *, moves: bool) -> MadeChange:
        async with slots:
            made = await _lead(brokers, folder, WAYS[number % len(WAYS)], f"led-{number}", members, partitions, settled_s, moves=moves)
        for line in (f"{made.text}: {made.verdict}", *(f"    {each}" for each in compared(made))):
            click.echo(line, err=True)
        return made

    drawn = [(draw.randint(2, 5), draw.choice((6, 12, 24)), draw.uniform(*SETTLED_S), draw.random() < 0.5) for _ in range(groups)]
    return list(await asyncio.gather(*(one(number, *each[:3], moves=each[3]) for number, each in enumerate(drawn))))


async def _lead(
    brokers: Brokers, folder: Path, way: LedWay, group: str, members: int, partitions: int, settled_s: float, *, moves: bool
) -> MadeChange:
    async with admin_client(Connection(bootstrap=brokers.bootstrap)) as admin:
        await admin.create_topics([NewTopic(group, partitions, 1)])
    clients = [
        GroupClient(way.command(), group, bootstrap_servers=brokers.bootstrap, client_id=f"c{number}", group_id=group, **way.settings)
        for number in range(members)
    ]
    seat: SeatProcess | None = None
    try:
        async with asyncio.timeout(WITHIN_S):
            while not _is_shared(clients, partitions):  # noqa: ASYNC110  # processes
                await asyncio.sleep(LOOK_S)
        await asyncio.sleep(settled_s)
        since = cpu_s()
        seat = SeatProcess(brokers.bootstrap, group, folder / f"{group}.db", *way.options, *(("--capacity", "c0=2") if moves else ()))
        async with asyncio.timeout(WITHIN_S):
            while "lead-2 " not in seat.said.partition("; expected: ")[2]:  # noqa: ASYNC110  # a process
                await asyncio.sleep(1.0)
        (known,) = seat.changes()
        assert known.planned is not None
        assert known.judged is not None
        return MadeChange(
            group=way.name,
            tasks=partitions,
            members=members,
            guarantee="-",
            standbys=0,
            kind="lead",
            busy=round(busy_since(since), 2),
            what=f"{known.what()}{', one has twice as much' if moves else ''}",
            outcome=known.judged.outcome,
            verdict=verdict_text(known),
            expected=known.planned.expected,
            costs={name: getattr(known.judged, name) for name in JUDGED_METRICS},
        )
    except BaseException:
        click.echo(f"{group} ({way.name}): {'' if seat is None else seat.said}", err=True)
        raise
    finally:
        if seat is not None:
            seat.end(signal.SIGKILL)
        for client in clients:
            client.close()


def _is_shared(clients: list[GroupClient], partitions: int) -> bool:
    counts = [len(each.assigned) for each in clients]
    return sum(counts) == partitions and max(counts) - min(counts) <= 1


if __name__ == "__main__":
    main()
