"""Serdes: keys and values of records and of state as bytes, and back."""

from __future__ import annotations

import json
from typing import Any, Protocol

import msgpack

from equipoise.events.errors import FieldError, InputError


class Serde(Protocol):
    """Serializes keys or values, and deserializes them. Equal keys must give equal bytes. Whatever
    `deserialize` raises is an error of the record.
    """

    def serialize(self, value: Any) -> bytes: ...
    def deserialize(self, data: bytes) -> Any: ...


def check_serde(field: str, serde: Any) -> None:
    """Raises FieldError when `serde` is none, such as a class in place of an instance."""
    name = getattr(serde, "__name__", type(serde).__name__)
    if isinstance(serde, type):
        raise FieldError(field, f"{name} is a class; give an instance of it: {name}()")
    missing = [each for each in ("serialize", "deserialize") if not callable(getattr(serde, each, None))]
    if missing:
        raise FieldError(field, f"{serde!r:.60} is no serde: it has no {' and no '.join(missing)}")


class BytesSerde:
    """Bytes as they are; the default."""

    def serialize(self, value: Any) -> bytes:
        """Raises InputError for a value of another type."""
        if value.__class__ is not bytes:
            raise InputError(f"{value!r:.40} is not bytes; encode it, or give Member another serde: StringSerde(), JsonSerde(), MsgpackSerde()")
        data: bytes = value
        return data

    def deserialize(self, data: bytes) -> bytes:
        return data


class StringSerde:
    """Text in UTF-8."""

    def serialize(self, value: Any) -> bytes:
        """Raises InputError for a value of another type."""
        if not isinstance(value, str):
            raise InputError(f"{value!r:.40} is not a str; convert it, or use another serde")
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()


class JsonSerde:
    """JSON in UTF-8, object keys sorted, without spaces."""

    def serialize(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    def deserialize(self, data: bytes) -> Any:
        return json.loads(data)


class MsgpackSerde:
    """MessagePack. Arrays come back as lists."""

    def serialize(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(value)
        return packed

    def deserialize(self, data: bytes) -> Any:
        return msgpack.unpackb(data, strict_map_key=False)
