"""The application: one member. For each order it updates the customer's totals, and sends them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Unpack

from equipoise import Connection, Member, MemberKeywords, Record, TaskContext

MOST_UNCOMMITTED_RECORDS = 1_000
"""After a crash no more outputs of a task are repeated, with at_least_once."""


async def count(record: Record, context: TaskContext) -> None:
    """One order: ``{"order": 17, "customer": "c3", "cents": 1250}``, keyed by customer.

    The output also has the order's offset (`at`) and the last offset that the totals before it
    included (`after`; -1: none). So a recount finds a skipped order even where others were counted
    twice.
    """
    known = context.state.get(record.key)
    totals = {"orders": 0, "cents": 0, "read": -1} if known is None else json.loads(known)
    after = totals["read"]
    totals["orders"] += 1
    totals["cents"] += json.loads(record.value)["cents"]
    totals["read"] = max(after, record.offset)
    context.state.put(record.key, json.dumps(totals).encode())
    output = {"orders": totals["orders"], "cents": totals["cents"], "at": record.offset, "after": after}
    context.send(f"{record.topic}-counts", json.dumps(output).encode(), key=record.key)


def _print(text: str) -> None:
    print(text, flush=True)


async def run_member(
    connection: Connection,
    topic: str,
    group: str,
    member_id: str,
    *,
    topology_epoch: int = 0,
    lead: bool = False,
    say: Callable[[str], None] = _print,
    **options: Unpack[MemberKeywords],
) -> int:
    """Runs one member until SIGTERM (it leaves once its tasks run elsewhere, as after `equipoise
    scale-down`) or SIGINT (it stops at once). `topology_epoch`: one higher for members that start
    after partitions were added. `say`: takes what it tells, line by line.

    Returns the exit status: 3 if another process has joined with its id.
    """
    options.setdefault("most_uncommitted_records", MOST_UNCOMMITTED_RECORDS)
    member = Member(
        group,
        count,
        sources=topic,
        state=f"{topic}-state",
        member_id=member_id,
        connection=connection,
        topology_epoch=topology_epoch,
        lead=lead,
        on_asked=lambda leave: say(f"{member_id} is asked to {'leave' if leave else 'stay after all'}"),
        on_assigned=lambda context: say(f"{member_id} runs {context.task}, token {context.token}"),
        on_revoked=lambda context: say(f"{member_id} has stopped {context.task}"),
        on_standby=lambda task: say(f"{member_id} keeps a copy of {task}"),
        **options,
    )
    status = await member.run()
    say(f"{member_id} has gone; {member.fenced_writes} writes were fenced")
    return status
