"""Values of flexible records (KIP-482), declared: a class whose fields say how they are read and
written.

A field that a newer broker appends as tagged is passed over; any other change is a new version of
the record, which `read_value` refuses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import attrs

from equipoise.kafka.offsets_topic.byte_reader import ByteReader


@attrs.frozen
class Form:
    """Of one field. `read`: errors use its name."""

    read: Callable[[ByteReader, str], Any]
    write: Callable[[Any], bytes]


def _number(form: str) -> Callable[[int], bytes]:
    return struct.Struct(form).pack


def _uvarint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _bytes(content: bytes) -> bytes:
    return _uvarint(len(content) + 1) + content


def _text(content: str | None) -> bytes:
    return _uvarint(0) if content is None else _bytes(content.encode())


int8 = Form(ByteReader.int8, _number(">b"))
int16 = Form(ByteReader.int16, _number(">h"))
uint16 = Form(ByteReader.uint16, _number(">H"))
int32 = Form(ByteReader.int32, _number(">i"))
int64 = Form(ByteReader.int64, _number(">q"))
uuid = Form(ByteReader.uuid, lambda value: UUID(value).bytes)
text = Form(ByteReader.present_string, _text)
nullable_text = Form(ByteReader.compact_string, _text)
data = Form(ByteReader.compact_bytes, _bytes)

V = TypeVar("V")


def wire(form: Form) -> Any:
    """Declares a field."""
    return attrs.field(metadata={"form": form})


def tagged(tag: int, form: Form, *, default: Any) -> Any:
    """Declares an optional field. `default`: its value where the record does not have it."""
    return attrs.field(default=default, metadata={"form": form, "tag": tag})


def many(form: Form, least_bytes: int = 1) -> Form:
    """An array, read as a tuple. `least_bytes`: of one element, at least."""

    def read(reader: ByteReader, what: str) -> tuple[Any, ...]:
        return tuple(reader.compact_array(least_bytes, what, lambda inner: form.read(inner, what)))

    return Form(read, lambda items: _uvarint(len(items) + 1) + b"".join(map(form.write, items)))


def nullable_many(form: Form, least_bytes: int = 1) -> Form:
    """An array, or nothing, which is read as (), too."""

    def read(reader: ByteReader, what: str) -> tuple[Any, ...]:
        length = max(0, reader.uvarint(f"number of {what}") - 1)
        return tuple(form.read(reader, what) for _ in range(reader.count(length, least_bytes, what)))

    return Form(read, many(form, least_bytes).write)


def part(cls: type[Any]) -> Form:
    """A structure within a record."""
    return Form(lambda reader, what: read_fields(cls, reader), _written)


def nullable_part(cls: type[Any]) -> Form:
    """A structure within a record, or nothing, as a byte says: 1 or -1, in a tagged field 1 or 0."""

    def read(reader: ByteReader, what: str) -> Any:
        return read_fields(cls, reader) if reader.int8(f"mark of {what}") > 0 else None

    return Form(read, lambda value: b"\xff" if value is None else b"\x01" + _written(value))


def read_value(cls: type[V], reader: ByteReader, what: str) -> V:
    """Reads a record's value: its version, which is 0, and its fields. Raises WireError."""
    version = reader.int16(f"version of the {what}")
    if version != 0:
        raise reader.error(f"version {version} of the {what} is not known here (0 is)", 0)
    value = read_fields(cls, reader)
    reader.finish(f"the {what}")
    return value


def write_value(value: object) -> bytes:
    """Writes a record's value, as `read_value` reads it."""
    return int16.write(0) + _written(value)


def _written(value: Any) -> bytes:
    fields = attrs.fields(type(value))
    always = b"".join(each.metadata["form"].write(getattr(value, each.name)) for each in fields if "tag" not in each.metadata)
    said = [each for each in fields if "tag" in each.metadata and getattr(value, each.name) != each.default]
    contents = [(each.metadata["tag"], each.metadata["form"].write(getattr(value, each.name))) for each in said]
    optional = b"".join(_uvarint(tag) + _uvarint(len(content)) + content for tag, content in sorted(contents))
    return always + _uvarint(len(contents)) + optional


def read_fields(cls: type[V], reader: ByteReader) -> V:
    """Reads a structure and its tagged fields. Raises WireError."""
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(cls)  # type: ignore[arg-type]  # all values are attrs classes
    found = {each.name: each.metadata["form"].read(reader, each.name.replace("_", " ")) for each in fields if "tag" not in each.metadata}
    by_tag = {each.metadata["tag"]: each for each in fields if "tag" in each.metadata}
    for _ in range(reader.count(reader.uvarint("number of tagged fields"), 2, "tagged fields")):
        tag = reader.uvarint("tag")
        content = reader.nested(reader.uvarint("length of a tagged field"), "a tagged field")
        if (field := by_tag.get(tag)) is not None:
            words = field.name.replace("_", " ")
            found[field.name] = field.metadata["form"].read(content, words)
            content.finish(words)
    return cls(**found)
