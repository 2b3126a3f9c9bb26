"""The application: one member. For each order it adds to what is known of the customer, and says
the new totals.
"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

from equipoise import Member, SupersededError, TaskContext
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.opening import partition_count


async def count(record: Any, context: TaskContext) -> None:
    """One order: ``{"order": 17, "customer": "c3", "cents": 1250}``, keyed by customer.

    What is said of it also tells where the order stands (`at`), and up to where the totals before
    it went (`after`; -1: nowhere): so a recount sees whether one was passed over even where others
    were counted twice.
    """
    known = context.state.get(record.key)
    totals = {"orders": 0, "cents": 0, "read": -1} if known is None else json.loads(known)
    after = totals["read"]
    totals["orders"] += 1
    totals["cents"] += json.loads(record.value)["cents"]
    totals["read"] = max(after, record.offset)
    context.state.put(record.key, json.dumps(totals).encode())
    said = {"orders": totals["orders"], "cents": totals["cents"], "at": record.offset, "after": after}
    context.send(f"{record.topic}-counts", json.dumps(said).encode(), key=record.key)


async def run_member(connection: Connection, topic: str, group: str, member_id: str, **options: Any) -> bool:
    """Until it was told to go: SIGTERM leaves in order, its tasks first, as who is asked by
    `equipoise scale-down` does; SIGINT stops at once.

    False: another process has its id by now.
    """
    partitions = await partition_count(connection, topic)
    part = Subtopology(
        subtopology=0, partitions=partitions, stateful=True, source_topics=(topic,), changelog_topics=(f"{topic}-state",),
    )  # fmt: skip
    topology = TopologyDeclared(epoch=0, subtopologies=(part,))
    said: dict[str, Any] = {
        "on_asked": lambda leave: print(f"{member_id} is asked to {'leave' if leave else 'stay after all'}", flush=True),
        "on_assigned": lambda context: print(f"{member_id} runs {context.task}, token {context.token}", flush=True),
        "on_revoked": lambda context: print(f"{member_id} has stopped {context.task}", flush=True),
        "on_standby": lambda task: print(f"{member_id} keeps a copy of {task}", flush=True),
    }
    try:
        async with Member(group, member_id, count, topology, connection=connection, **said, **options) as member:
            loop = asyncio.get_running_loop()
            leaving: list[asyncio.Task[None]] = []
            loop.add_signal_handler(signal.SIGTERM, lambda: leaving.append(asyncio.ensure_future(member.leave())))
            loop.add_signal_handler(signal.SIGINT, member.close)
            await member.wait()
    except SupersededError as error:
        print(f"{error}", flush=True)
        return False
    print(f"{member_id} has gone; {member.fenced_writes} writes were fenced", flush=True)
    return True
