"""The parameters of an application's process, passed as JSON in its first argument."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attrs

from bench.peers.feed import COUNT_BYTES

KEYS = 5_000
"""Per partition, where records are counted in windows."""
WINDOW_MS = 4 * KEYS
"""The offset of a record is its time in ms there: each key is in a window four times."""


@attrs.frozen(kw_only=True)
class Given:
    """The parameters of one process."""

    bootstrap: str
    name: str
    """Name of the application, and so of its group."""
    instance: str
    input: str
    output: str
    changelog: str
    tasks: int
    folder: str
    """Folder for the instance's state; the same after each restart."""
    standbys: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    exactly_once: bool = False
    handler_ms: int = 0
    """Time that the handler waits for each record."""
    witness: bool = True
    """equipoise: beside each member."""
    in_batches: bool = False
    """equipoise: with a batch handler."""
    in_windows: bool = False
    """equipoise: counts by key and window."""
    assignor: tuple[str, int, str] = ("", 0, "")
    """equipoise: name, version and solver, looked up by who starts the process: an application need
    not load assignors.
    """
    initial_delay_ms: int | None = None
    """equipoise: how long a new group waits for further members. None: the default."""

    @property
    def state(self) -> Path:
        return Path(self.folder) / self.instance

    def pack(self) -> str:
        return json.dumps(attrs.asdict(self))


def given() -> Given:
    """Reads the parameters from the arguments of this process."""
    return Given(**json.loads(sys.argv.pop(1)))


def counted(before: bytes | None) -> tuple[bytes, int]:
    """The value of a key after one more record, and the count in it."""
    kept = bytes(COUNT_BYTES) if before is None else before
    count = int.from_bytes(kept[:COUNT_BYTES]) + 1
    return count.to_bytes(COUNT_BYTES) + kept[COUNT_BYTES:], count


def answer_to(partition: int, offset: int, instance: str, count: int) -> bytes:
    """The output record for an input record."""
    return b"%d %d %b %d" % (partition, offset, instance.encode(), count)
