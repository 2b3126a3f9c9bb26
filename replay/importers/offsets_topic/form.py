"""Values of flexible records (KIP-482), declared: a class whose fields say how they are written.

A field that a newer broker appends as tagged is passed over; any other change is a new version of
the record, which `read_value` refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from equipoise.replay.importers.offsets_topic.reader import ByteReader

Form = Callable[[ByteReader, str], Any]
"""Reads one field, whose name is used by errors."""

int8: Form = ByteReader.int8
int16: Form = ByteReader.int16
uint16: Form = ByteReader.uint16
int32: Form = ByteReader.int32
int64: Form = ByteReader.int64
uuid: Form = ByteReader.uuid
text: Form = ByteReader.present_string
nullable_text: Form = ByteReader.compact_string
data: Form = ByteReader.compact_bytes

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
        return tuple(reader.compact_array(least_bytes, what, lambda inner: form(inner, what)))

    return read


def part(cls: type[Any]) -> Form:
    """A structure within a record."""
    return lambda reader, what: _fields(cls, reader)


def nullable_part(cls: type[Any]) -> Form:
    """A structure within a record, or nothing, as a byte says: 1 or -1, in a tagged field 1 or 0.
    """
    return lambda reader, what: _fields(cls, reader) if reader.int8(f"mark of {what}") > 0 else None


def read_value(cls: type[V], reader: ByteReader, what: str) -> V:
    """Reads a record's value: its version, which is 0, and its fields. Raises WireError."""
    version = reader.int16(f"version of the {what}")
    if version != 0:
        raise reader.error(f"version {version} of the {what} is not known here (0 is)", 0)
    value = _fields(cls, reader)
    reader.finish(f"the {what}")
    return value


def _fields(cls: type[V], reader: ByteReader) -> V:
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(cls)  # type: ignore[arg-type]  # all values are attrs classes
    found = {each.name: each.metadata["form"](reader, each.name.replace("_", " ")) for each in fields if "tag" not in each.metadata}
    by_tag = {each.metadata["tag"]: each for each in fields if "tag" in each.metadata}
    for _ in range(reader.count(reader.uvarint("number of tagged fields"), 2, "tagged fields")):
        tag = reader.uvarint("tag")
        content = reader.nested(reader.uvarint("length of a tagged field"), "a tagged field")
        if (field := by_tag.get(tag)) is not None:
            words = field.name.replace("_", " ")
            found[field.name] = field.metadata["form"](content, words)
            content.finish(words)
    return cls(**found)
