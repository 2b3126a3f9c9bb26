"""A member of a consumer group with an unmodified client, confluent-kafka: prints ``assigned P...``
at each change of its assignment, and ``read P OFFSET`` for each record. SIGTERM: it leaves the
group.

``python -m tests.live.printing_consumer TOPIC NAME=VALUE...``
"""

from __future__ import annotations

import signal
import sys
import threading

from confluent_kafka import Consumer


def main(topic: str, *settings: str) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    consumer = Consumer(dict(setting.split("=", 1) for setting in settings))
    consumer.subscribe([topic])
    assigned: list[int] = []
    while not stopped.is_set():
        record = consumer.poll(0.1)
        if record is not None and record.error() is None:
            print("read", record.partition(), record.offset(), flush=True)
        if (now := sorted(each.partition for each in consumer.assignment())) != assigned:
            assigned = now
            print("assigned", *assigned, flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
