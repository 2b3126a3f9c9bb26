"""Checkpoints in the compacted topic, read by our own reader (PROTOCOL L7).

Two kinds of records, in the partition of the facts they are about:

- a part of a group's state: key msgpack ``[group, slot, part]``, value ``[log_id, offset, number, parts, CRC-32 of the whole, bytes]``. A group's
  checkpoints go to two slots by turns, so that one that was cut off in the middle leaves the one before it whole.
- the partition's index, key msgpack ``[]``: from which fact and which decision on a worker has to read that takes the partition over. It is no more
  than a short cut, and good only with every checkpoint that it rests on: without it the fold from the log's start gives the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import msgpack

from statemachine.partition import StoredCheckpoint

PART_BYTES = 900_000
_INDEX_KEY = msgpack.packb([])


@attrs.frozen(kw_only=True)
class Index:
    """Every group that has facts before `position` needs none before `recovery_offset`; what those cause is at `decisions_offset` or behind."""

    position: int = 0
    recovery_offset: int = 0
    decisions_offset: int = 0
    checkpoints: dict[str, int] = attrs.field(factory=dict)
    """Group -> fact of the checkpoint that this rests on. Where one is gone, the index is worth nothing."""


def index_record(log_id: str, index: Index) -> tuple[bytes, bytes]:
    """Key and value."""
    return _INDEX_KEY, msgpack.packb([log_id, index.position, index.recovery_offset, index.decisions_offset, index.checkpoints])


def checkpoint_records(log_id: str, checkpoint: StoredCheckpoint, slot: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of all parts."""
    state = checkpoint.state
    parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
    for part, content in enumerate(parts):
        key = msgpack.packb([checkpoint.group, slot, part])
        yield key, msgpack.packb([log_id, checkpoint.offset, checkpoint.number, len(parts), zlib.crc32(state), content])


@attrs.frozen(kw_only=True)
class Found:
    """What the topic holds of one partition."""

    checkpoints: dict[str, StoredCheckpoint]
    """The last whole one of each group."""
    slots: dict[str, int]
    """Where each of those is."""
    index: Index


def find(log_id: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> Found:
    """From the records of a partition, in order. What is of another log, cut off or no checkpoint at all is passed over."""
    index = Index()
    parts: dict[tuple[str, int], dict[int, list[Any]]] = {}
    for key, value in records:
        name, said = _unpack(key), _unpack(value)
        if name is None:
            continue
        if not value:  # somebody has deleted it
            if name == []:
                index = Index()
            elif len(name) == 3:
                parts.get((name[0], name[1]), {}).pop(name[2], None)
        elif not said or said[0] != log_id:
            continue
        elif name == [] and len(said) == 5:
            index = Index(position=said[1], recovery_offset=said[2], decisions_offset=said[3], checkpoints=said[4])
        elif len(name) == 3 and len(said) == 6:
            parts.setdefault((name[0], name[1]), {})[name[2]] = said
    checkpoints: dict[str, StoredCheckpoint] = {}
    slots: dict[str, int] = {}
    for (group, slot), of_slot in sorted(parts.items()):
        whole = _whole(group, of_slot)
        if whole is not None and (group not in checkpoints or whole.offset > checkpoints[group].offset):
            checkpoints[group], slots[group] = whole, slot
    if any(group not in checkpoints or checkpoints[group].offset < offset for group, offset in index.checkpoints.items()):
        index = Index()
    return Found(checkpoints=checkpoints, slots=slots, index=index)


def _whole(group: str, parts: dict[int, list[Any]]) -> StoredCheckpoint | None:
    if 0 not in parts:
        return None
    _, offset, number, count, checksum, _ = parts[0]
    wanted = [parts.get(part) for part in range(count)]
    if any(part is None or part[1:5] != [offset, number, count, checksum] for part in wanted):
        return None
    state = b"".join(part[5] for part in wanted if part is not None)
    return StoredCheckpoint(group=group, offset=offset, number=number, state=state) if zlib.crc32(state) == checksum else None


def _unpack(value: bytes | None) -> list[Any] | None:
    try:
        unpacked = msgpack.unpackb(value) if value else None
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    return unpacked if isinstance(unpacked, list) else None
