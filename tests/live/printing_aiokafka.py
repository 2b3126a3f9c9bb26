"""The same as `tests/live/printing_consumer.py` with aiokafka.

``python -m tests.live.printing_aiokafka TOPIC NAME=VALUE...``
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

STRATEGIES: dict[str, Any] = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor}


async def main(topics: str, *settings: str) -> None:
    given: dict[str, Any] = {name.replace(".", "_"): value for name, _, value in (setting.partition("=") for setting in settings)}
    strategy = STRATEGIES[given.pop("partition_assignment_strategy", "roundrobin")]
    whole = {name: int(value) if value.isdecimal() else value for name, value in given.items()}
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    assigned: list[int] = []
    async with AIOKafkaConsumer(*topics.split(","), partition_assignment_strategy=[strategy], **whole) as consumer:
        while not stopped.is_set():
            for place, records in (await consumer.getmany(timeout_ms=100)).items():
                for record in records:
                    print("read", place.partition, record.offset, flush=True)
            if (now := sorted(each.partition for each in consumer.assignment())) != assigned:
                assigned = now
                print("assigned", *assigned, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
