"""Records as handlers get and send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One record of a source topic. `key` and `value` are deserialized; None stays None.
    `timestamp_ms`: ms since 1970, as the topic's `message.timestamp.type` says.
    """

    key: Any
    value: Any
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    headers: Sequence[tuple[str, bytes]] = ()


class Output(NamedTuple):
    """One record to send. `partition` None: chosen by the key. `timestamp_ms` None: the time of
    sending.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int | None = None
