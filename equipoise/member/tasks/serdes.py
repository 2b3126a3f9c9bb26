"""Serdes: keys and values of records and of state as bytes, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, Protocol, TypeVar

import msgpack

from equipoise.events.errors import EquipoiseError, FieldError, InputError

T = TypeVar("T")


class SerdeUnavailableError(EquipoiseError):
    """A serde cannot work at present, such as for a registry that does not answer. It is no error
    of the record: that is tried again, with any `ErrorPolicy`, until it works.
    """


class SerdeAsksError(EquipoiseError):
    """A serde has to ask something that may take seconds. Its caller calls `look_up` in another
    thread, which raises what came of it, and then the serde again, which knows the answer.
    """

    def __init__(self, what: str, look_up: Callable[[], object]) -> None:
        super().__init__(f"a serde asks for {what}")
        self.look_up = look_up


looks_up: ContextVar[list[SerdeAsksError] | None] = ContextVar("looks_up", default=None)
"""Where a serde adds the SerdeAsksError that it raises in place of blocking the loop. None: its
caller has no thread for it. It is set while a task handles records or runs timers.
"""


def ask(what: str, look_up: Callable[[], T]) -> T:
    """Returns what `look_up` returns. Raises SerdeAsksError where the caller can wait for it."""
    asked = looks_up.get()
    if asked is None:
        return look_up()
    asked.append(SerdeAsksError(what, look_up))
    raise asked[-1]


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
    """JSON in UTF-8, object keys sorted, without spaces. `of`: an attrs class or dataclass of the
    values, with fields of such classes, `datetime`, `Decimal`, `bytes`, ...; None: they are what
    JSON has.
    """

    def __init__(self, of: type | None = None) -> None:
        self._pack, self._unpack = values_of(of, "JsonSerde.of", "json")

    def serialize(self, value: Any) -> bytes:
        return json.dumps(self._pack(value), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    def deserialize(self, data: bytes) -> Any:
        return self._unpack(json.loads(data))


class MsgpackSerde:
    """MessagePack. Arrays come back as lists. `of`: as of `JsonSerde`."""

    def __init__(self, of: type | None = None) -> None:
        self._pack, self._unpack = values_of(of, "MsgpackSerde.of", "msgpack")

    def serialize(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(self._pack(value))
        return packed

    def deserialize(self, data: bytes) -> Any:
        return self._unpack(msgpack.unpackb(data, strict_map_key=False))


def values_of(of: type | None, field: str, form: str = "") -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Returns what makes simple values of those of the class `of`, and the reverse. `form`: json or
    msgpack, which decides what is simple; "": only their fields are taken apart. Raises FieldError
    when `of` is neither an attrs class nor a dataclass.
    """
    if of is None:
        return _as_is, _as_is
    if not isinstance(of, type) or not (hasattr(of, "__attrs_attrs__") or hasattr(of, "__dataclass_fields__")):
        raise FieldError(field, f"{of!r:.60} is neither an attrs class nor a dataclass")
    from importlib import import_module

    converter = import_module(f"cattrs.preconf.{form}").make_converter() if form else import_module("cattrs").Converter()
    converter.register_structure_hook(Decimal, lambda value, _: Decimal(value))
    if form:
        converter.register_unstructure_hook(Decimal, str)

    def pack(value: Any) -> Any:
        if not isinstance(value, of):
            raise InputError(f"{value!r:.40} is no {of.__name__}")
        return converter.unstructure(value)

    def unpack(value: Any) -> Any:
        try:
            return converter.structure(value, of)
        except Exception as error:  # noqa: BLE001  # cattrs raises groups of whatever a field's class raises
            raise InputError(f"it is no {of.__name__}: {'; '.join(_causes(error))}") from None

    return pack, unpack


def _causes(error: BaseException) -> list[str]:
    """The errors that are no groups."""
    if isinstance(error, BaseExceptionGroup):
        return [text for each in error.exceptions for text in _causes(each)]
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    return [f"{type(error).__name__} {error}{f' ({notes[0]})' if notes else ''}"]


def _as_is(value: Any) -> Any:
    return value
