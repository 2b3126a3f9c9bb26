"""Clicks per page: a complete member of a group, in one file.

Run one process per member: `python examples/clicks.py 1`. docs/deploy.md explains it.
"""

from __future__ import annotations

import asyncio
import os
import sys

from equipoise import JsonSerde, Member, Record, StringSerde, TaskContext


async def handle(record: Record, context: TaskContext) -> None:
    """Counts one click, and sends the page's new total."""
    total = (context.state.get(record.key) or 0) + 1
    context.state.put(record.key, total)
    context.send("clicks-totals", total, key=record.key)


def member(instance: str) -> Member:
    return Member(
        "clicks",
        handle,
        sources="clicks",
        state="clicks-state",
        outputs="clicks-totals",
        create_topics=True,
        instance=instance,
        prefix=os.environ.get("EQUIPOISE_PREFIX", "equipoise"),
        key_serde=StringSerde(),
        value_serde=JsonSerde(),
        guarantee="exactly_once",
        state_directory="state",
    )


if __name__ == "__main__":
    sys.exit(asyncio.run(member(*sys.argv[1:2] or [""]).run()))
