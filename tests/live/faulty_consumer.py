"""A member of a consumer group that can be made to misbehave, with its client's own log on standard
error: a line ``nap SECONDS`` on standard input makes it not poll for so long, ``revoke SECONDS``
take so long to give up its partitions the next time. SIGTERM: it leaves.

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
    stopped, naps, revokes = threading.Event(), list[float](), list[float]()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def listen() -> None:
        for line in sys.stdin:
            word, seconds = line.split()
            (revokes if word == "revoke" else naps).append(float(seconds))

    def revoke(*_: object) -> None:
        if revokes:
            time.sleep(revokes.pop())

    threading.Thread(target=listen, daemon=True).start()
    if client == "confluent":
        from confluent_kafka import Consumer

        consumer = Consumer(given)
        consumer.subscribe([topic], on_revoke=revoke)
        while not stopped.is_set():
            if naps:
                time.sleep(naps.pop())
            consumer.poll(0.1)
        consumer.close()
    elif client == "kafka-python":
        from kafka import ConsumerRebalanceListener, KafkaConsumer

        other = KafkaConsumer(**numbers)
        other.subscribe(
            [topic],
            listener=type(
                "Slow",
                (ConsumerRebalanceListener,),
                {
                    "on_partitions_revoked": lambda self, revoked: revoke(),
                    "on_partitions_assigned": lambda self, assigned: None,
                },
            )(),
        )
        while not stopped.is_set():
            if naps:
                time.sleep(naps.pop())
            other.poll(timeout_ms=100)
        other.close()
    else:
        asyncio.run(_aiokafka(topic, numbers, stopped, naps, revokes))


async def _aiokafka(topic: str, settings: dict[str, Any], stopped: threading.Event, naps: list[float], revokes: list[float]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    class Slow(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
        async def on_partitions_revoked(self, revoked: object) -> None:
            if revokes:
                await asyncio.sleep(revokes.pop())

        def on_partitions_assigned(self, assigned: object) -> None:
            pass

    consumer = AIOKafkaConsumer(**settings)
    consumer.subscribe([topic], listener=Slow())
    await consumer.start()
    while not stopped.is_set():
        if naps:
            await asyncio.sleep(naps.pop())
        await consumer.getmany(timeout_ms=100)
    await consumer.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
