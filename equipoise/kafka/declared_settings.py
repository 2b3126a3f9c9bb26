"""Settings declared once: an attrs class whose fields name flags, environment variables and TOML
keys.

::

    @attrs.frozen(kw_only=True)
    class Connection:
        bootstrap: str = setting("127.0.0.1:9092", "brokers to begin with, as host:port,host:port")

``--bootstrap``, ``EQUIPOISE_BOOTSTRAP`` and ``bootstrap = ...`` in TOML then mean the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, get_args, get_type_hints

import attrs

from equipoise.events.errors import FieldError, InputError

T = TypeVar("T")
ENVIRONMENT_PREFIX = "EQUIPOISE_"


def setting(default: Any, help: str, *, validator: Callable[[Any, Any, Any], None] | None = None, secret: bool = False) -> Any:
    """Declares a setting. `secret`: never shown, and not accepted as a flag, which other users of
    the machine could see.
    """
    return attrs.field(default=default, validator=validator, metadata={"help": help, "secret": secret})


def variable(name: str) -> str:
    """Returns the environment variable of a setting, as in ``EQUIPOISE_BOOTSTRAP``."""
    return ENVIRONMENT_PREFIX + name.upper()


def from_environment(shape: type[Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of `shape` that the environment sets, by name."""
    return {field.name: environ[variable(field.name)] for field in attrs.fields(shape) if variable(field.name) in environ}


def build(shape: type[T], *layers: tuple[str, Mapping[str, Any]]) -> T:
    """Builds settings from `layers`; later layers win.

    Each layer is a word for messages and its values: texts, which are parsed as the field's type,
    or values of that type. Raises InputError that names the layer and the setting.
    """
    kinds = get_type_hints(shape)
    names = [field.name for field in attrs.fields(cast(Any, shape))]
    given: dict[str, Any] = {}
    source: dict[str, str] = {}
    for word, values in layers:
        for name, value in values.items():
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise InputError(f"{word} {name}: no such setting; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"))
            given[name], source[name] = _read(value, kinds[name], f"{word} {name}"), word
    try:
        return shape(**given)
    except FieldError as error:
        name = error.field.rpartition(".")[2]
        raise InputError(f"{source.get(name, 'setting')} {name}: {error.problem}") from None


def _read(value: Any, kind: Any, place: str) -> Any:
    optional = type(None) in get_args(kind)
    plain = next((part for part in get_args(kind) if part is not type(None)), kind) if optional else kind
    if isinstance(value, str) and plain is not str:
        return _parse(value, plain, place)
    if plain is float and value.__class__ is int:
        return float(value)
    if value.__class__ is not plain and not (optional and value is None):
        raise InputError(f"{place}: {value!r:.80} is not a {_WORDS[plain]}")
    return value


_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _parse(text: str, kind: type, place: str) -> Any:
    try:
        return _TRUTHS[text.lower()] if kind is bool else kind(text.replace("_", ""))
    except (ValueError, KeyError):
        raise InputError(f"{place}: {text!r:.80} is not a {_WORDS[kind]}") from None
