"""The recount: reads orders and counts with a plain consumer, and compares them. It imports nothing
of the code that it checks.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import json
from collections.abc import AsyncIterator, Container
from typing import Any

import attrs


@attrs.define
class Recount:
    """What was found. It holds when `faults` is empty."""

    orders: int = 0
    counts: int = 0
    customers: int = 0
    again: collections.Counter[str] = attrs.field(factory=collections.Counter)
    """``<log id>/<group>/<task>/<token>`` -> counts under that grant of orders that had been
    counted before.
    """
    late: collections.Counter[str] = attrs.field(factory=collections.Counter)
    """The same -> counts under that grant behind one with a larger fencing token for the same task
    of the same log.
    """
    faults: list[str] = attrs.field(factory=list)
    """What is wrong, a sentence each."""
    is_arriving: bool = False
    """Orders were written while this read. The newest of each customer may not be counted yet, and
    are no fault.
    """
    not_yet_counted: int = 0
    """While orders arrive: orders behind the last one that was counted of their customer."""

    @property
    def repeated(self) -> int:
        return self.again.total()

    @property
    def overtaken(self) -> int:
        return self.late.total()


@contextlib.asynccontextmanager
async def reading(options: dict[str, Any], topic: str, isolation_level: str) -> AsyncIterator[tuple[Any, dict[Any, int]]]:
    """A consumer of the topic, and where each partition ends now."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    settings = {"isolation_level": isolation_level, "enable_auto_commit": False, "auto_offset_reset": "earliest", "fetch_max_wait_ms": FETCH_WAIT_MS}
    consumer = AIOKafkaConsumer(topic, **options, **settings)
    await consumer.start()
    try:
        partitions = sorted(TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic))
        ends = await consumer.end_offsets(partitions)
        yield consumer, {tp: ends[tp] for tp in partitions}
    finally:
        await consumer.stop()


async def ends_of(options: dict[str, Any], topic: str, isolation_level: str) -> dict[Any, int]:
    """Where each partition of a topic ends now."""
    async with reading(options, topic, isolation_level) as (_, ends):
        return ends


async def everything(options: dict[str, Any], topic: str, isolation_level: str, *, until: dict[Any, int] | None = None) -> AsyncIterator[Any]:
    """All records of a topic, each partition in order, up to `until` (None: those that are there
    now).
    """
    async with reading(options, topic, isolation_level) as (consumer, now):
        ends = now if until is None else until
        consumer.unsubscribe()  # not sooner: aiokafka may never stop a consumer that was unsubscribed and has no assignment
        for tp in sorted(ends):  # one at a time: a request waits for those sent to the broker before it
            consumer.assign([tp])
            await consumer.seek_to_beginning(tp)
            while await consumer.position(tp) < ends[tp]:
                for record in (await consumer.getmany(tp, timeout_ms=FETCH_WAIT_MS)).get(tp, ()):
                    if record.offset < ends[tp]:
                        yield record


FETCH_WAIT_MS = 50
"""A marker that ends a transaction is no record to return for: a short wait, and one looks how far
that was.
"""


class Recounting:
    """The comparison, record by record: first every order, then every count.

    With either guarantee each order must be counted, and into totals that hold every order before
    it. With `exactly_once` each customer's counts must also be 1, 2, 3, ... once each, in order,
    with the right sums, and the tokens of a task never fall within one log. `at_least_once`: grants
    that committed so nevertheless, because the guarantee was changed meanwhile.
    """

    def __init__(self, *, exactly_once: bool, at_least_once: Container[str] = ()) -> None:
        self.found = Recount()
        self._exactly_once = exactly_once
        self._at_least_once = at_least_once
        self._twice = self._late = 0
        """Counts that `exactly_once` excludes."""
        self._wanted: dict[bytes, _Customer] = collections.defaultdict(_Customer)
        self._tokens: dict[str, int] = {}

    def order(self, record: Any) -> None:
        """Notes an order."""
        self.found.orders += 1
        customer = self._wanted[record.key]
        customer.places.append(record.offset)
        customer.sums.append(customer.sums[-1] + json.loads(record.value)["cents"])

    def count(self, record: Any) -> None:
        """Compares a count with the orders."""
        found = self.found
        found.counts += 1
        said, customer, place = json.loads(record.value), self._wanted[record.key], f"{record.key.decode()}, {record.partition}@{record.offset}"
        task, token, _, log_id = dict(record.headers)["equipoise"].decode().rsplit("/", 3)
        task = f"{log_id}/{task}"
        grant = f"{task}/{token}"
        exactly_once = self._exactly_once and grant not in self._at_least_once
        if int(token) < self._tokens.get(task, 0):
            found.late[grant] += 1
            self._late += exactly_once
        self._tokens[task] = max(self._tokens.get(task, 0), int(token))
        number = bisect.bisect_right(customer.places, said["at"])
        before = customer.places[number - 2] if number > 1 else -1
        if number == 0 or customer.places[number - 1] != said["at"]:
            found.faults.append(f"{place}: counts an order at {said['at']}; there is none")
            return
        if said["after"] < before:
            found.faults.append(f"{place}: counts the order at {said['at']} into totals that end at {said['after']}: the order at {before} is lost")
        former = customer.counted.get(said["at"])
        if former is not None:
            found.again[grant] += 1
            former_task, _, former_token = former.rpartition("/")
            self._twice += former != "" and (exactly_once or (task == former_task and int(token) > int(former_token)))
        customer.counted[said["at"]] = former or (grant if exactly_once else "")
        customer.is_exact = customer.is_exact and exactly_once
        if customer.is_exact and (said["orders"], said["cents"], said["after"]) != (number, customer.sums[number], before):
            found.faults.append(f"{place}: {said}, and it is order {number} behind {before}, {customer.sums[number]} cents in all")

    def finish(self, *, is_arriving: bool = False) -> Recount:
        """The result. `is_arriving`: orders were written meanwhile."""
        found = self.found
        found.customers, found.is_arriving = len(self._wanted), is_arriving
        for key, customer in sorted(self._wanted.items()):
            lacking = [place for place in customer.places if place not in customer.counted]
            if is_arriving:
                newest = max(customer.counted, default=-1)
                found.not_yet_counted += sum(place > newest for place in lacking)
                lacking = [place for place in lacking if place < newest]
            if lacking:
                found.faults.append(f"{key.decode()}: {len(lacking)} of {len(customer.places)} {NOT_COUNTED}, the first at {lacking[0]}")
        if self._exactly_once:
            found.faults += [f"{self._twice} counts were said twice"] if self._twice else []
            found.faults += [f"{self._late} counts with a smaller fencing token come after one with a larger"] if self._late else []
        return found


async def recount(options: dict[str, Any], topic: str, *, exactly_once: bool, at_least_once: Container[str] = ()) -> Recount:
    """Compares what Kafka holds. `options`: of aiokafka's clients, for the connection; for the
    others see `Recounting`.
    """
    recounting = Recounting(exactly_once=exactly_once, at_least_once=at_least_once)
    committed = "read_committed" if exactly_once else "read_uncommitted"
    counted_until = await ends_of(options, f"{topic}-counts", committed)  # first, so that each count is of an order that is read
    orders_until = await ends_of(options, topic, "read_uncommitted")
    async for record in everything(options, topic, "read_uncommitted", until=orders_until):
        recounting.order(record)
    async for record in everything(options, f"{topic}-counts", committed, until=counted_until):
        recounting.count(record)
    return recounting.finish(is_arriving=await ends_of(options, topic, "read_uncommitted") != orders_until)


NOT_COUNTED = "orders were not counted"


@attrs.define
class _Customer:
    """One customer's orders, as they stand in the input."""

    places: list[int] = attrs.field(factory=list)
    """Offsets, rising."""
    sums: list[int] = attrs.field(factory=lambda: [0])
    """Cents of the first 0, 1, 2, ... orders."""
    counted: dict[int, str] = attrs.field(factory=dict)
    """Offset of each counted order -> the grant that counted it exactly once; "": there is none."""
    is_exact: bool = True
    """Whether all counts so far were exactly once."""
