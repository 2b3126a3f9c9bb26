"""The readable form of events: a JSON object with named fields, tasks as ``"0_3"``. Used by JSON
Lines, diffs, fixtures and `--json`.

Missing fields get the constructors' defaults; unknown names are refused.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import attrs
import cattrs

from equipoise.events.errors import FieldError, UnsoundError
from equipoise.events.fields import stored_name
from equipoise.events.forms import (
    MisshapenError,
    Reader,
    Writer,
    appended,
    as_is,
    columns,
    is_mapping_from,
    make_converter,
    read_lag,
    read_task,
    simply,
    write_float,
)
from equipoise.events.tasks import TASK_TEXTS, Lag, TaskId

_text = TASK_TEXTS.__getitem__


def _read_key(text: str) -> int:
    """``"12"`` -> 12. Accepts no other text for 12."""
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or str(int(text)) != text:
        raise MisshapenError(f"key {text!r:.80} is not a whole number >= 0")
    return int(text)


def _mapping_reader(read_key: Callable[[str], Any], read_value: Callable[[Any], Any]) -> Reader:
    def read(form: Any, _: Any = None) -> Any:
        if form.__class__ is not dict:
            raise MisshapenError(f"{form!r:.80} is not an object")
        return {read_key(key): read_value(value) for key, value in form.items()}

    return read


def _any_mapping_reader(read_key: Callable[[str], Any]) -> Callable[[cattrs.Converter, Any], Reader]:
    def make(converter: cattrs.Converter, kind: Any) -> Reader:
        inner = typing.get_args(kind)[1]
        read_value = converter.get_structure_hook(inner)
        return _mapping_reader(read_key, lambda value: read_value(value, inner))

    return make


def _any_mapping_writer(write_key: Callable[[Any], str]) -> Callable[[cattrs.Converter, Any], Writer]:
    def make(converter: cattrs.Converter, kind: Any) -> Writer:
        write_value = converter.get_unstructure_hook(typing.get_args(kind)[1])
        return lambda mapping: {write_key(key): write_value(mapping[key]) for key in sorted(mapping)}

    return make


def _class_reader(converter: cattrs.Converter, kind: Any) -> Reader:
    shape = stored_name(kind)
    fields = {name: (converter.get_structure_hook(type_), type_) for name, type_ in columns(kind)}
    needed = [attribute.name for attribute in attrs.fields(kind) if attribute.default is attrs.NOTHING]

    def read(form: Any, _: Any = None) -> Any:
        if form.__class__ is not dict:
            raise UnsoundError("misshapen", shape, f"{form!r:.80} is not an object")
        for name in needed:
            if name not in form:
                raise UnsoundError("misshapen", f"{shape}.{name}", "is missing")
        values = {}
        for name, item in form.items():
            if name not in fields:
                raise UnsoundError("misshapen", shape, f"has no field {name!r:.80}; it has {', '.join(fields)}")
            read_field, type_ = fields[name]
            try:
                values[name] = read_field(item, type_)
            except MisshapenError as error:
                raise UnsoundError("unsound_field", f"{shape}.{name}", str(error)) from None
        return kind(**values)

    return read


def _class_writer(converter: cattrs.Converter, kind: Any) -> Writer:
    fields = [(name, converter.get_unstructure_hook(type_)) for name, type_ in columns(kind)]
    later = appended(kind)

    def write_all(event: Any) -> dict[str, Any]:
        return {name: write_field(getattr(event, name)) for name, write_field in fields}

    def write(event: Any) -> dict[str, Any]:
        unsaid = {name for name, default in later if getattr(event, name) == default}
        return {name: form for name, form in write_all(event).items() if name not in unsaid}

    return write if later else write_all


def _write_lag(lag: Lag) -> int | str:
    return lag if isinstance(lag, int) else str(lag.value)


_converter = make_converter(
    [
        (attrs.has, _class_reader, _class_writer),
        (is_mapping_from(str), _any_mapping_reader(str), _any_mapping_writer(str)),
        (is_mapping_from(int), _any_mapping_reader(_read_key), _any_mapping_writer(str)),
        (is_mapping_from(TaskId), _any_mapping_reader(read_task), _any_mapping_writer(_text)),
        simply(float, as_is, write_float),
        simply(TaskId, read_task, _text),
        simply(
            dict[TaskId, Lag],
            _mapping_reader(read_task, read_lag),
            lambda lags: {_text(task): _write_lag(lags[task]) for task in sorted(lags)},
        ),
    ]
)


def write(event: Any) -> dict[str, Any]:
    """Returns the readable form of `event`, for `json.dumps`."""
    return typing.cast(dict[str, Any], _converter.unstructure(event))


def read(kind: type, form: Any) -> Any:
    """Builds a `kind` from its readable form. Raises FieldError, or UnsoundError, with the field's
    name.
    """
    try:
        return _converter.structure(form, kind)
    except UnsoundError:
        raise
    except FieldError as error:
        raise UnsoundError("unsound_field", error.field, error.problem) from None
    except RecursionError:
        raise UnsoundError("misshapen", kind.__name__, "is nested too deeply") from None
