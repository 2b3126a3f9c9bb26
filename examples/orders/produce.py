"""The input: orders of random customers, numbered, at a given rate."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping

from equipoise import Connection

STATE_SETTINGS = {"cleanup.policy": "compact"}
BATCH_S = 0.05


async def make_topics(connection: Connection, topic: str, partitions: int) -> list[str]:
    """Makes the application's topics that do not exist yet, and returns the names of all three."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    settings: dict[str, dict[str, str]] = {topic: {}, f"{topic}-state": STATE_SETTINGS, f"{topic}-counts": {}}
    admin = AIOKafkaAdminClient(**connection.options())
    await admin.start()
    try:
        copies = min(3, len((await admin.describe_cluster())["brokers"]))
        await admin.create_topics([NewTopic(name, partitions, copies, topic_configs=each) for name, each in settings.items()])
    finally:
        await admin.close()
    return list(settings)


async def produce(connection: Connection, topic: str, *, orders: int, per_second: float, customers: int | Mapping[str, int], seed: int) -> int:
    """Sends `orders` orders and returns their number. `customers`: how many, or name -> partition.
    Raises KafkaError when one is not acknowledged.
    """
    from aiokafka import AIOKafkaProducer

    dice = random.Random(seed)
    places = {f"c{number}": None for number in range(customers)} if isinstance(customers, int) else customers
    names = list(places)
    producer = AIOKafkaProducer(**connection.options(), enable_idempotence=True, linger_ms=5)
    await producer.start()
    try:
        begun_s, sent = time.monotonic(), []
        for number in range(orders):
            customer = names[dice.randrange(len(names))]
            value = {"order": number, "customer": customer, "cents": dice.randrange(1, 10_000)}
            sent.append(await producer.send(topic, json.dumps(value).encode(), key=customer.encode(), partition=places[customer]))
            ahead_s = (number + 1) / per_second - (time.monotonic() - begun_s)
            if ahead_s > BATCH_S:
                await asyncio.sleep(ahead_s)
        await asyncio.gather(*sent)
        return len(sent)
    finally:
        await producer.stop()
