"""The same as `tests/live/printing_consumer.py` with kafka-python.

``python -m tests.live.printing_kafka_python TOPIC NAME=VALUE...``
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

STRATEGIES: dict[str, Any] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def main(topic: str, *settings: str) -> None:
    given: dict[str, Any] = {name.replace(".", "_"): value for name, _, value in (setting.partition("=") for setting in settings)}
    strategy = STRATEGIES[given.pop("partition_assignment_strategy", "range")]
    whole = {name: int(value) if value.isdecimal() else value for name, value in given.items()}
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    consumer = KafkaConsumer(topic, partition_assignment_strategy=[strategy], **whole)
    assigned: list[int] = []
    while not stopped.is_set():
        for place, records in consumer.poll(timeout_ms=100).items():
            for record in records:
                print("read", place.partition, record.offset, flush=True)
        if (now := sorted(each.partition for each in consumer.assignment())) != assigned:
            assigned = now
            print("assigned", *assigned, flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
