"""Checkpoints in the compacted topic, read by our own reader (PROTOCOL L7).

Two kinds of records, in the partition of the facts they are about:

- a part of a group's state: key msgpack ``[group, slot, part]``, value ``[log_id, offset, number,
  parts, CRC-32 of the whole, bytes]``. A group's checkpoints go to two slots by turns, so that one
  that was cut off in the middle leaves the one before it whole.
- a part of the partition's index, key msgpack ``[part]``, value ``[log_id, position,
  recovery_offset, decisions_offset, parts, {group: offset}]``: from which fact and which decision
  on a worker has to read that takes the partition over. It is no more than a short cut, and good
  only whole and with every checkpoint that it rests on: without it the fold from the log's start
  gives the same bytes.

So a record that is neither, whoever wrote it, is passed over.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import msgpack

from equipoise.statemachine.partition import StoredCheckpoint

PART_BYTES = 900_000
INDEX_PART_BYTES = 900_000


@attrs.frozen(kw_only=True)
class Index:
    """Every group that has facts before `position` needs none before `recovery_offset`; what those
    cause is at `decisions_offset` or behind.
    """

    position: int = 0
    recovery_offset: int = 0
    decisions_offset: int = 0
    checkpoints: dict[str, int] = attrs.field(factory=dict)
    """Group -> fact of the checkpoint that this rests on. Where one is gone, the index is worth
    nothing.
    """


def index_records(log_id: str, index: Index) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of all parts; one, unless the partition has very many groups."""
    parts: list[dict[str, int]] = [{}]
    length = 0
    for group, offset in sorted(index.checkpoints.items()):
        length += len(msgpack.packb([group, offset]))
        if length > INDEX_PART_BYTES:
            parts.append({})
            length = 0
        parts[-1][group] = offset
    for part, checkpoints in enumerate(parts):
        head = [log_id, index.position, index.recovery_offset, index.decisions_offset, len(parts)]
        yield msgpack.packb([part]), msgpack.packb([*head, checkpoints])


def checkpoint_records(log_id: str, checkpoint: StoredCheckpoint, slot: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of all parts."""
    state = checkpoint.state
    parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
    for part, content in enumerate(parts):
        key = msgpack.packb([checkpoint.group, slot, part])
        yield key, msgpack.packb([log_id, checkpoint.offset, checkpoint.number, len(parts), zlib.crc32(state), content])


@attrs.frozen(kw_only=True)
class FoundCheckpoints:
    """What the topic holds of one partition."""

    checkpoints: dict[str, StoredCheckpoint]
    """The last whole one of each group."""
    slots: dict[str, int]
    """Where each of those is."""
    index: Index


def find(log_id: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> FoundCheckpoints:
    """From the records of a partition, in order. What is of another log, cut off or no checkpoint
    at all is passed over.
    """
    indexes: dict[int, list[Any]] = {}
    parts: dict[tuple[str, int], dict[int, list[Any]]] = {}
    for key, value in records:
        name, said = _unpack(key), _unpack(value)
        if _is(name, _INDEX_KEY):
            of_one, is_sound = indexes, _is(said, _INDEX_VALUE)
        elif _is(name, _PART_KEY):
            of_one, is_sound = parts.setdefault((name[0], name[1]), {}), _is(said, _PART_VALUE)
        else:
            continue
        if not value:  # somebody has deleted it
            of_one.pop(name[-1], None)
        elif is_sound and said[0] == log_id:
            of_one[name[-1]] = said
    checkpoints: dict[str, StoredCheckpoint] = {}
    slots: dict[str, int] = {}
    for (group, slot), of_group in sorted(parts.items()):
        whole = _whole(group, of_group)
        if whole is not None and (group not in checkpoints or whole.offset > checkpoints[group].offset):
            checkpoints[group], slots[group] = whole, slot
    index = _index(indexes)
    if any(group not in checkpoints or checkpoints[group].offset < offset for group, offset in index.checkpoints.items()):
        index = Index()
    return FoundCheckpoints(checkpoints=checkpoints, slots=slots, index=index)


_PART_KEY = (str, int, int)
_PART_VALUE = (str, int, int, int, int, bytes)
_INDEX_KEY = (int,)
_INDEX_VALUE = (str, int, int, int, int, dict)


def _is(values: list[Any], kinds: tuple[type, ...]) -> bool:
    """Whether these are values of these kinds; a number is no less than 0."""
    if tuple(value.__class__ for value in values) != kinds:
        return False
    return all(value >= 0 for value in values if value.__class__ is int)


def _index(parts: dict[int, list[Any]]) -> Index:
    """The index of these parts; an empty one when a part is missing or of another index."""
    found = _all_parts(parts, 4)
    checkpoints = {group: offset for part in found for group, offset in part[5].items()}
    if not found or not all(_is([group, offset], (str, int)) for group, offset in checkpoints.items()):
        return Index()
    _, position, recovery_offset, decisions_offset, _, _ = found[0]
    return Index(position=position, recovery_offset=recovery_offset, decisions_offset=decisions_offset, checkpoints=checkpoints)


def _whole(group: str, parts: dict[int, list[Any]]) -> StoredCheckpoint | None:
    found = _all_parts(parts, 3)
    if not found:
        return None
    _, offset, number, _, checksum, _ = found[0]
    state = b"".join(part[5] for part in found)
    return StoredCheckpoint(group=group, offset=offset, number=number, state=state) if zlib.crc32(state) == checksum else None


def _all_parts(parts: dict[int, list[Any]], count_at: int) -> list[list[Any]]:
    """The parts in order; none when one is missing, or is of another whole: all but their last
    fields are the same. `count_at`: the field that says how many there are."""
    first = parts.get(0)
    if first is None or not 1 <= first[count_at] <= len(parts):
        return []
    wanted = [parts.get(part) for part in range(first[count_at])]
    found = [part for part in wanted if part is not None and part[:-1] == first[:-1]]
    return found if len(found) == len(wanted) else []


def _unpack(value: bytes | None) -> list[Any]:
    """The array that these bytes are; an empty one when they are none."""
    try:
        unpacked = msgpack.unpackb(value) if value else None
    except (ValueError, TypeError, msgpack.UnpackException):
        return []
    return unpacked if isinstance(unpacked, list) else []
