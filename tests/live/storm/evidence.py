"""What is kept of a storm in which something did not hold: the log, and the application's topics as
JSON Lines.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from equipoise.kafka.connection import Connection
from equipoise.log.kafka.log_topics import Topics
from examples.orders.recount import everything

MOST_S = 300


async def keep(connection: Connection, topics: Topics, partitions: int, application: list[str], folder: Path) -> None:
    """``log.p0.db`` and so on, to be read by every command that takes a LOG, and ``<topic>.jsonl``."""
    server = connection.bootstrap.split(",", maxsplit=1)[0]
    for partition in range(partitions):
        log = f"kafka://{server}/{topics.prefix}?partition={partition}"
        command = [sys.executable, "-m", "equipoise", "archive", log, "--to", str(folder / f"log.p{partition}.db")]
        await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, timeout=MOST_S)
    for topic in application:
        rows = [json.dumps(_row(record)) + "\n" async for record in everything(connection.options(), topic, "read_uncommitted")]
        (folder / f"{topic}.jsonl").write_text("".join(rows))


def _row(record: Any) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "ms": record.timestamp,
        "key": repr(record.key),
        "value": repr(record.value),
        "headers": {name: value.decode() for name, value in record.headers},
    }
