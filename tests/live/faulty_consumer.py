"""A member of a consumer group that can be made to misbehave, with its client's own log on standard
error: a line ``nap SECONDS`` on standard input makes it not poll for so long. SIGTERM: it leaves.

``python -m tests.live.faulty_consumer CLIENT TOPIC NAME=VALUE...``, CLIENT one of ``confluent``,
``kafka-python`` and ``aiokafka``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from typing import Any


def main(client: str, topic: str, *settings: str) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    given = dict(each.split("=", 1) for each in settings)
    numbers: dict[str, Any] = {name.replace(".", "_"): int(value) if value.isdecimal() else value for name, value in given.items()}
    stopped, naps = threading.Event(), list[float]()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def listen() -> None:
        for line in sys.stdin:
            naps.append(float(line.split()[1]))

    threading.Thread(target=listen, daemon=True).start()
    if client == "confluent":
        from confluent_kafka import Consumer

        consumer = Consumer(given)
        consumer.subscribe([topic])
        while not stopped.is_set():
            if naps:
                time.sleep(naps.pop())
            consumer.poll(0.1)
        consumer.close()
    elif client == "kafka-python":
        from kafka import KafkaConsumer

        other = KafkaConsumer(topic, **numbers)
        while not stopped.is_set():
            if naps:
                time.sleep(naps.pop())
            other.poll(timeout_ms=100)
        other.close()
    else:
        asyncio.run(_aiokafka(topic, numbers, stopped, naps))


async def _aiokafka(topic: str, settings: dict[str, Any], stopped: threading.Event, naps: list[float]) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(topic, **settings)
    await consumer.start()
    while not stopped.is_set():
        if naps:
            await asyncio.sleep(naps.pop())
        await consumer.getmany(timeout_ms=100)
    await consumer.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
