"""Bounded reads over untrusted bytes. Every error names the record, the byte, and what was expected
there.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import TypeVar

from equipoise.events.errors import InputError

T = TypeVar("T")

_INT8, _INT16, _UINT16, _INT32, _INT64 = (struct.Struct(form) for form in (">b", ">h", ">H", ">i", ">q"))


class WireError(InputError):
    """Raised for bytes that do not follow the format, and for a group that cannot be read.

    `offset`: of the record in its partition of `__consumer_offsets`. `part`: ``key`` or ``value``.
    `position`: byte within that part.
    """

    def __init__(
        self, offset: int, part: str, position: int, problem: str, fix: str = "dump the topic again, or cut the history before this record"
    ) -> None:
        super().__init__(f"record at offset {offset}, byte {position} of its {part}: {problem}; {fix}")
        self.offset = offset
        self.part = part
        self.position = position
        self.problem = problem


class ByteReader:
    """Bounded reads over one key or value. A nested field has a reader over the same bytes, so
    positions refer to the whole.
    """

    def __init__(self, data: bytes, offset: int, part: str, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.offset = offset
        self.part = part
        self.position = position
        self.end = len(data) if end is None else end

    def error(self, problem: str, position: int | None = None) -> WireError:
        return WireError(self.offset, self.part, self.position if position is None else position, problem)

    def _take(self, length: int, what: str) -> int:
        start = self.position
        if length < 0 or start + length > self.end:
            raise self.error(f"{what} needs {length} bytes, {self.end - start} are left")
        self.position = start + length
        return start

    def _number(self, form: struct.Struct, what: str) -> int:
        start = self._take(form.size, what)
        value: int = form.unpack_from(self.data, start)[0]
        return value

    def int8(self, what: str) -> int:
        return self._number(_INT8, what)

    def int16(self, what: str) -> int:
        return self._number(_INT16, what)

    def uint16(self, what: str) -> int:
        return self._number(_UINT16, what)

    def int32(self, what: str) -> int:
        return self._number(_INT32, what)

    def int64(self, what: str) -> int:
        return self._number(_INT64, what)

    def uvarint(self, what: str) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.data[self._take(1, what)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise self.error(f"{what} is a variable-length number of more than 5 bytes")

    def uuid(self, what: str) -> str:
        start = self._take(16, what)
        return str(uuid.UUID(bytes=self.data[start : start + 16]))

    def raw(self, length: int, what: str) -> bytes:
        start = self._take(length, what)
        return self.data[start : start + length]

    def text(self, length: int, what: str) -> str:
        start = self._take(length, what)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8", start + error.start) from None

    def count(self, length: int, least_bytes: int, what: str) -> int:
        """Reads a number of elements of at least `least_bytes` each. Raises WireError when the rest
        cannot hold them.
        """
        if length < 0 or length * least_bytes > self.end - self.position:
            raise self.error(f"{length} {what} cannot be in the {self.end - self.position} bytes that are left")
        return length

    def array(self, least_bytes: int, what: str, item: Callable[[ByteReader], T]) -> list[T]:
        return [item(self) for _ in range(self.count(self.int32(f"number of {what}"), least_bytes, what))]

    def string(self, what: str) -> str:
        return self.text(self.int16(f"length of {what}"), what)

    def nullable_string(self, what: str) -> str | None:
        length = self.int16(f"length of {what}")
        return None if length == -1 else self.text(length, what)

    def compact_string(self, what: str) -> str | None:
        length = self.uvarint(f"length of {what}")
        return None if length == 0 else self.text(length - 1, what)

    def present_string(self, what: str) -> str:
        """A compact string that may not be null."""
        text = self.compact_string(what)
        if text is None:
            raise self.error(f"{what} is null")
        return text

    def compact_bytes(self, what: str) -> bytes:
        return self.raw(self.uvarint(f"length of {what}") - 1, what)

    def compact_array(self, least_bytes: int, what: str, item: Callable[[ByteReader], T]) -> list[T]:
        length = self.uvarint(f"number of {what}") - 1
        return [item(self) for _ in range(self.count(length, least_bytes, what))]

    def utf(self, what: str) -> str:
        """Reads Java's `writeUTF`: an unsigned 16-bit length and modified UTF-8, which differs from
        UTF-8 for NUL and characters outside the BMP.
        """
        return self.text(self.uint16(f"length of {what}"), what)

    def nested(self, length: int, what: str) -> ByteReader:
        start = self._take(length, what)
        return ByteReader(self.data, self.offset, self.part, start, start + length)

    def tagged_fields(self) -> None:
        """Skips the optional fields of flexible versions (KIP-482)."""
        for _ in range(self.count(self.uvarint("number of tagged fields"), 2, "tagged fields")):
            self.uvarint("tag")
            self._take(self.uvarint("length of a tagged field"), "a tagged field")

    def finish(self, what: str) -> None:
        if self.position != self.end:
            raise self.error(f"{self.end - self.position} bytes too many after {what}")
