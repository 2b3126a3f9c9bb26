"""A member of a consumer group with an unmodified client, confluent-kafka: prints ``assigned P...``
at each change of its assignment, and ``read P OFFSET`` for each record, both of its first topic, or
of those that match it, as ``^PATTERN``. SIGTERM: it leaves the group.

``python -m tests.live.printing_consumer TOPIC[,TOPIC...] NAME=VALUE...``
"""

from __future__ import annotations

import re
import signal
import sys
import threading

from confluent_kafka import Consumer


def main(given: str, *settings: str) -> None:
    topic, *others = given.split(",")
    counts = re.compile(topic if topic.startswith("^") else re.escape(topic)).fullmatch
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    consumer = Consumer(dict(setting.split("=", 1) for setting in settings))
    consumer.subscribe([topic, *others])
    assigned: list[int] = []
    while not stopped.is_set():
        record = consumer.poll(0.1)
        if record is not None and record.error() is None and counts(record.topic()):
            print("read", record.partition(), record.offset(), flush=True)
        if (now := sorted(each.partition for each in consumer.assignment() if counts(each.topic))) != assigned:
            assigned = now
            print("assigned", *assigned, flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
