"""The recount: reads orders and counts with a plain consumer, and holds one against the other. It imports nothing of what it judges."""

from __future__ import annotations

import collections
import json
from collections.abc import AsyncIterator
from typing import Any

import attrs


@attrs.define
class Recount:
    """What is wrong, in sentences; nothing when all is well."""

    orders: int = 0
    counts: int = 0
    customers: int = 0
    repeated: int = 0
    """Totals that were said more than once, or went back: of orders that were processed again."""
    overtaken: int = 0
    """Counts with a smaller fencing token behind one with a larger, of the same task."""
    faults: list[str] = attrs.field(factory=list)


async def everything(options: dict[str, Any], topic: str, isolation_level: str) -> AsyncIterator[Any]:
    """All records of a topic that are there now, each partition in order."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(topic, **options, isolation_level=isolation_level, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = sorted(consumer.assignment())
        ends = await consumer.end_offsets(partitions)
        await consumer.seek_to_beginning(*partitions)
        for tp in partitions:
            while await consumer.position(tp) < ends[tp]:
                for record in (await consumer.getmany(tp, timeout_ms=500)).get(tp, ()):
                    yield record
    finally:
        await consumer.stop()


async def recount(options: dict[str, Any], topic: str, *, exactly_once: bool) -> Recount:
    """`options`: of aiokafka's clients, for the connection.

    With `exactly_once` each customer's counts must be 1, 2, 3, ... once each, in order, with the right sums, and tokens of a task never fall.
    Without, every order must be in the last totals at least once: more is allowed, less is not.
    """
    found = Recount()
    wanted: dict[bytes, list[int]] = collections.defaultdict(lambda: [0])
    async for record in everything(options, topic, "read_uncommitted"):
        found.orders += 1
        wanted[record.key].append(wanted[record.key][-1] + json.loads(record.value)["cents"])
    reached: dict[bytes, int] = collections.defaultdict(int)
    tokens: dict[str, int] = {}
    async for record in everything(options, f"{topic}-counts", "read_committed" if exactly_once else "read_uncommitted"):
        found.counts += 1
        totals, customer = json.loads(record.value), record.key.decode()
        task, _, token = dict(record.headers)["equipoise"].decode().rpartition("/")
        if int(token) < tokens.get(task, 0):
            found.overtaken += 1
        tokens[task] = max(tokens.get(task, 0), int(token))
        if totals["orders"] != reached[record.key] + 1:
            if totals["orders"] <= reached[record.key]:
                found.repeated += 1
            elif exactly_once:
                found.faults.append(f"{customer}: {totals['orders']} orders come after {reached[record.key]} ({record.partition}@{record.offset})")
        sums = wanted[record.key]
        if exactly_once and (totals["orders"] >= len(sums) or sums[totals["orders"]] != totals["cents"]):
            found.faults.append(f"{customer}: {totals} at {record.partition}@{record.offset} is no sum of its orders")
        reached[record.key] = max(reached[record.key], totals["orders"])
    for key, sums in sorted(wanted.items()):
        if reached[key] < len(sums) - 1:
            found.faults.append(f"{key.decode()}: {reached[key]} orders were counted, there are {len(sums) - 1}")
        elif exactly_once and reached[key] > len(sums) - 1:
            found.faults.append(f"{key.decode()}: {reached[key]} orders were counted, there are only {len(sums) - 1}")
    found.customers = len(wanted)
    if exactly_once:
        found.faults += [f"{found.repeated} counts were said twice"] if found.repeated else []
        found.faults += [f"{found.overtaken} counts with a smaller fencing token come after one with a larger"] if found.overtaken else []
    return found
