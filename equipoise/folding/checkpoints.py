"""Checkpoints in the compacted topic: their form, and how they are found. See docs/protocol.md#l7.

The topic holds two kinds of records, each in the partition of its facts:

- a part of a group's state: key msgpack ``[group, slot, part]``, value ``[log_id, offset, number,
  parts, CRC-32 of the whole, bytes]``. A group's checkpoints alternate between two slots, so that a
  checkpoint that was cut off leaves the one before it whole.
- a part of the partition's index, key msgpack ``[part]``, value ``[log_id, position,
  recovery_offset, decisions_offset, parts, {group: offset}]``: the first fact and the first
  decision that a takeover has to read. An index only saves reading. It is valid when all its parts
  and all its checkpoints are there; without it, the fold from the log's start gives the same bytes.

Other records are ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import msgpack

from equipoise.statemachine.group_lead import StoredCheckpoint

PART_BYTES = 900_000
INDEX_PART_BYTES = 900_000


@attrs.frozen(kw_only=True)
class Index:
    """Where a takeover begins to read. `position`: offset of the next fact when the index was
    written. Groups with facts before `position` need no fact before `recovery_offset`, and no
    decision before `decisions_offset` (an offset of the decisions).
    """

    position: int = 0
    recovery_offset: int = 0
    decisions_offset: int = 0
    checkpoints: dict[str, int] = attrs.field(factory=dict)
    """Group -> last fact of the checkpoint that the index needs."""


def index_records(log_id: str, index: Index) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of all parts of the index; one part, unless the partition has very many
    groups.
    """
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
    """Keys and values of all parts of a checkpoint. `slot`: 0 or 1."""
    state = checkpoint.state
    parts = [state[start : start + PART_BYTES] for start in range(0, len(state), PART_BYTES)]
    for part, content in enumerate(parts):
        key = msgpack.packb([checkpoint.group, slot, part])
        yield key, msgpack.packb([log_id, checkpoint.offset, checkpoint.number, len(parts), zlib.crc32(state), content])


@attrs.frozen(kw_only=True)
class FoundCheckpoints:
    """The checkpoints of one partition. `checkpoints`: the last whole one of each group. `slots`:
    the slot of each of those.
    """

    checkpoints: dict[str, StoredCheckpoint]
    slots: dict[str, int]
    index: Index


def find(log_id: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> FoundCheckpoints:
    """Finds checkpoints in the (key, value) records of a partition, in offset order. Ignores
    records of other logs, incomplete checkpoints and everything else.
    """
    indexes: dict[int, list[Any]] = {}
    parts: dict[tuple[str, int], dict[int, list[Any]]] = {}
    for key, value in records:
        name, content = _unpack(key), _unpack(value)
        if _is(name, _INDEX_KEY):
            of_one, is_sound = indexes, _is(content, _INDEX_VALUE)
        elif _is(name, _PART_KEY):
            of_one, is_sound = parts.setdefault((name[0], name[1]), {}), _is(content, _PART_VALUE)
        else:
            continue
        if not value:  # a tombstone
            of_one.pop(name[-1], None)
        elif is_sound and content[0] == log_id:
            of_one[name[-1]] = content
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
    """Returns whether the values have these types; numbers must be at least 0."""
    if tuple(value.__class__ for value in values) != kinds:
        return False
    return all(value >= 0 for value in values if value.__class__ is int)


def _index(parts: dict[int, list[Any]]) -> Index:
    """The index that these parts make; an empty one when a part is missing or differs."""
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
    """The parts in order; empty when one is missing or belongs to another whole (all fields but the
    last must be equal). `count_at`: index of the field with the number of parts.
    """
    first = parts.get(0)
    if first is None or not 1 <= first[count_at] <= len(parts):
        return []
    wanted = [parts.get(part) for part in range(first[count_at])]
    found = [part for part in wanted if part is not None and part[:-1] == first[:-1]]
    return found if len(found) == len(wanted) else []


def _unpack(value: bytes | None) -> list[Any]:
    """The msgpack array in these bytes; an empty one when they hold none."""
    try:
        unpacked = msgpack.unpackb(value) if value else None
    except (ValueError, TypeError, msgpack.UnpackException):
        return []
    return unpacked if isinstance(unpacked, list) else []
