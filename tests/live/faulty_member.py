"""A member whose handler fails at the record ``fail`` and never returns from the record ``hang``:

python -m tests.live.faulty_member BOOTSTRAP PREFIX MEMBER HTTP_PORT
"""

from __future__ import annotations

import asyncio
import logging
import sys

from equipoise import Connection, Member, Record, TaskContext
from equipoise.member.tasks import runner

LONG_S = 4.0
"""After so long without a return a handler is in trouble; members say so after a minute."""
SESSION = {"session_timeout_ms": 6_000, "lease_margin_ms": 1_000, "heartbeat_interval_ms": 500}


async def handle(record: Record, context: TaskContext) -> None:
    if record.value == b"fail":
        raise ValueError("a record that cannot be")
    if record.value == b"hang":
        await asyncio.Event().wait()


def member(bootstrap: str, prefix: str, name: str, http_port: str) -> Member:
    """The group and its topic have the name of the prefix."""
    return Member(
        prefix,
        handle,
        sources=prefix,
        instance=name,
        connection=Connection(bootstrap=bootstrap),
        prefix=prefix,
        http_port=int(http_port),
        **SESSION,  # type: ignore[arg-type]  # of options
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    runner.LONG_S = LONG_S
    sys.exit(asyncio.run(member(*sys.argv[1:]).run()))
