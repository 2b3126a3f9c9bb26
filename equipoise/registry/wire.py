"""The first bytes of a record whose schema is in a registry: a byte 0, the number of the schema in
4 bytes, and with Protobuf the path to the message in its file.
"""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.events.errors import InputError

MAGIC = b"\0"
HEAD_BYTES = 5
_FIRST_MESSAGE = b"\0"


def head(number: int) -> bytes:
    """The first bytes for a schema."""
    return MAGIC + number.to_bytes(HEAD_BYTES - 1)


def schema_number(data: bytes) -> int:
    """The number of the schema of a record. Raises InputError."""
    if len(data) < HEAD_BYTES or data[:1] != MAGIC:
        raise InputError(f"{data[:16]!r} does not begin with a byte 0 and the number of a schema: it was written without a registry")
    return int.from_bytes(data[1:HEAD_BYTES])


def packed_path(path: Sequence[int]) -> bytes:
    """The place of a message in its file: the index of the outermost one, then of each within."""
    if list(path) == [0]:
        return _FIRST_MESSAGE
    return b"".join(_varint(each << 1) for each in (len(path), *path))


def unpacked_path(data: bytes, at: int) -> tuple[list[int], int]:
    """The path that begins at this byte, and where the message begins. Raises InputError."""
    count, at = _read_varint(data, at)
    path = []
    for _ in range(min(count, len(data))):
        index, at = _read_varint(data, at)
        path.append(index)
    return path or [0], at


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number that is not negative, in zigzag."""
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise InputError("the path to the message behind the number of the schema is cut off")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number >> 1, at
