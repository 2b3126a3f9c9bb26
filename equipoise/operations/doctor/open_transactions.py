"""Transactions that hold a source: consumers with read_committed get nothing behind an open one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from aiokafka import errors

from equipoise.kafka.client import Admin, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import reader
from equipoise.kafka.transaction_requests import DescribeProducers, ListTransactions
from equipoise.operations.doctor.finding import Finding, problem, unknown, warning
from equipoise.replay.wording import counted

LOOK_AGAIN_S = 2.0
"""A transaction that ends sooner is not reported."""
_ONGOING = {"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
_MOST = 10
"""Most partitions whose producers are asked for."""


@attrs.frozen
class OpenTransaction:
    """An open transaction in a partition. `offset`: of its first record there. `producer_id`: -1 if
    the leader does not name the producer. `transactional_id`: None: no coordinator shows it.
    """

    place: TopicPartition
    offset: int
    producer_id: int = -1
    transactional_id: str | None = None


async def held_partitions(connection: Connection, places: Sequence[TopicPartition], request_timeout_ms: int) -> dict[TopicPartition, int]:
    """Partition -> last stable offset, where it is below the high watermark and does not move.
    Raises KafkaError.
    """
    async with reader(connection, read_committed=True, request_timeout_ms=request_timeout_ms) as committed:
        stable = await committed.end_offsets(places)
        async with reader(connection, request_timeout_ms=request_timeout_ms) as every:
            ends = await every.end_offsets(places)
        held = {place: offset for place, offset in stable.items() if offset < ends[place]}
        if not held:
            return {}
        await asyncio.sleep(LOOK_AGAIN_S)
        again = await committed.end_offsets(list(held))
    return {place: offset for place, offset in held.items() if again[place] == offset}


async def open_transactions(admin: Admin, held: Mapping[TopicPartition, int]) -> list[OpenTransaction]:
    """The transaction at the last stable offset of each partition. Raises KafkaError."""
    leaders = {
        TopicPartition(topic["topic"], part["partition"]): part["leader"]
        for topic in await admin.describe_topics(sorted({place.topic for place in held}))
        for part in topic["partitions"]
    }
    found = [await _first(admin, leaders.get(place), place, offset) for place, offset in held.items()]
    ids = sorted({each.producer_id for each in found if each.producer_id >= 0})
    names: dict[int, str] = {}
    for node in admin.nodes() if ids else ():
        answer: Any = await admin.ask(ListTransactions(ids), node)
        names |= {number: name for name, number, state, *_ in answer.transaction_states if state in _ONGOING}
    return [attrs.evolve(each, transactional_id=names.get(each.producer_id)) for each in found]


async def _first(admin: Admin, leader: int | None, place: TopicPartition, offset: int) -> OpenTransaction:
    answer: Any = await admin.ask(DescribeProducers(*place), leader)
    producers = [
        each
        for topic in answer.to_object()["topics"]
        for part in topic["partitions"]
        for each in part["active_producers"]
        if each["current_txn_start_offset"] == offset
    ]
    return OpenTransaction(place, offset, producers[0]["producer_id"] if producers else -1)


def of_transactions(found: Iterable[OpenTransaction], bootstrap: str) -> Iterable[Finding]:
    """Yields a warning for a transaction that its coordinator knows, else a problem."""
    for each in found:
        topic, partition = each.place
        held = f"{topic}/{partition}: records from offset {each.offset} on wait for an open transaction"
        if each.transactional_id is not None:
            fix = "the brokers abort the transaction at its timeout; if this lasts, look at the producer"
            yield warning("topics", f"{held} of transactional id {each.transactional_id}", fix)
        else:
            fix = f"kafka-transactions.sh --bootstrap-server {bootstrap} abort --topic {topic} --partition {partition} --start-offset {each.offset}"
            who = f" of producer {each.producer_id}" if each.producer_id >= 0 else ""
            yield problem("topics", f"{held}{who} that no coordinator shows this user: the transaction hangs, or this user may not describe it", fix)


async def of_sources(connection: Connection, admin: Admin, places: Sequence[TopicPartition], request_timeout_ms: int) -> list[Finding]:
    """All findings about the partitions of sources that this user may read."""
    held: dict[TopicPartition, int] = {}
    try:
        held = await held_partitions(connection, places, request_timeout_ms) if places else {}
        if not held:
            return []
        found = await open_transactions(admin, dict(sorted(held.items())[:_MOST]))
    except (errors.IncompatibleBrokerVersion, NotImplementedError):  # before Kafka 3.0: what holds is not named
        found = [OpenTransaction(place, offset) for place, offset in sorted(held.items())[:_MOST]]
    except errors.KafkaError as error:
        return [unknown("topics", f"whether transactions hold sources is not known: {error!r}")]
    left = [unknown("topics", f"open transactions hold up {counted(len(held) - _MOST, 'other partition')}")] if len(held) > _MOST else []
    return [*of_transactions(found, connection.bootstrap), *left]
