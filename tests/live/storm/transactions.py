"""Which partitions of a topic have a transaction open at this moment, as their brokers say it."""

from __future__ import annotations

import asyncio
from typing import Any

from equipoise.kafka.connection import Connection

MOST_S = 2.0


class Transactions:
    """A partition that ends later for who reads everything than for who reads only what was
    committed has one open.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._consumers: list[Any] = []

    async def start(self) -> None:
        for read_committed in (True, False):
            consumer = self._connection.clients.consumer(read_committed=read_committed)
            await consumer.start()
            self._consumers.append(consumer)

    async def stop(self) -> None:
        for consumer in self._consumers:
            await consumer.stop()

    async def open_in(self, partitions: list[int]) -> list[int]:
        """Those of `partitions` with an open transaction; none when a broker does not answer soon."""
        from aiokafka import TopicPartition
        from aiokafka.errors import KafkaError

        places = [TopicPartition(self._topic, partition) for partition in partitions]
        if not places:
            return []
        try:
            async with asyncio.timeout(MOST_S):
                committed, written = [await consumer.end_offsets(places) for consumer in self._consumers]
        except (KafkaError, TimeoutError):
            return []
        return [place.partition for place in places if written[place] > committed[place]]
