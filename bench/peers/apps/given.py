"""What the processes of all applications are told, as JSON in their first argument."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attrs

from bench.peers.feed import COUNT_BYTES


@attrs.frozen(kw_only=True)
class Given:
    """One process."""

    bootstrap: str
    name: str
    """Of the application: its group."""
    instance: str
    input: str
    output: str
    changelog: str
    tasks: int
    folder: str
    """For the state of this instance; the same after each restart."""
    standbys: int
    session_timeout_ms: int
    heartbeat_interval_ms: int

    @property
    def state(self) -> Path:
        return Path(self.folder) / self.instance

    def pack(self) -> str:
        return json.dumps(attrs.asdict(self))


def given() -> Given:
    """Takes it from the arguments of this process."""
    return Given(**json.loads(sys.argv.pop(1)))


def counted(before: bytes | None) -> tuple[bytes, int]:
    """The value of a key after one more record, and the count in it."""
    kept = bytes(COUNT_BYTES) if before is None else before
    count = int.from_bytes(kept[:COUNT_BYTES]) + 1
    return count.to_bytes(COUNT_BYTES) + kept[COUNT_BYTES:], count


def answer_to(partition: int, offset: int, instance: str, count: int) -> bytes:
    """The output record for an input record."""
    return b"%d %d %b %d" % (partition, offset, instance.encode(), count)
