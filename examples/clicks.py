"""Clicks per page: a complete member of a group, in one file.

Run one process per member: `python examples/clicks.py m1`. docs/operations.md explains it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from equipoise import Member, TaskContext
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.log.kafka.connection import Connection

TOPOLOGY = TopologyDeclared(
    epoch=1,
    subtopologies=(
        Subtopology(subtopology=0, partitions=6, stateful=True, source_topics=("clicks",), changelog_topics=("clicks-state",)),
    ),
)  # fmt: skip


async def handle(record: Any, context: TaskContext) -> None:
    """Counts one click, and sends the page's new total."""
    total = int(context.state.get(record.key) or b"0") + 1
    context.state.put(record.key, str(total).encode())
    context.send("clicks-totals", str(total).encode(), key=record.key)


async def main(member_id: str) -> None:
    member = Member(
        "clicks",
        member_id,
        handle,
        TOPOLOGY,
        connection=Connection(bootstrap=os.environ.get("EQUIPOISE_BOOTSTRAP", "127.0.0.1:9092")),
        prefix=os.environ.get("EQUIPOISE_PREFIX", "equipoise"),
        guarantee="exactly_once",
        state_directory="state",
    )
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    async with member:
        ended = asyncio.ensure_future(member.wait())
        asked = asyncio.ensure_future(leaving.wait())
        await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await member.leave()  # tasks run on until other members have caught up
        asked.cancel()
        await ended


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
