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
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast, get_args, get_type_hints

import attrs

from equipoise.events.errors import FieldError, InputError

T = TypeVar("T")
ENVIRONMENT_PREFIX = "EQUIPOISE_"
OTHERS = frozenset({"EQUIPOISE_COMMIT", "EQUIPOISE_FAUST_LOG", "EQUIPOISE_WITNESS"})
"""Variables of equipoise that are no settings."""
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_")
"""Kubernetes sets such variables for a service named equipoise."""
_NEAR = 0.68


def setting(default: Any, help: str, *, validator: Callable[[Any, Any, Any], None] | None = None, secret: bool = False) -> Any:
    """Declares a setting. `secret`: never shown, and not accepted as a flag, which other users of
    the machine could see.
    """
    return attrs.field(default=default, validator=validator, metadata={"help": help, "secret": secret})


def variable(name: str) -> str:
    """Returns the environment variable of a setting, as in ``EQUIPOISE_BOOTSTRAP``."""
    return ENVIRONMENT_PREFIX + name.upper()


def from_environment(shape: type[Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of `shape` that the environment sets, by name. Raises InputError for an
    empty variable where text is needed, and for one that is nearly a setting. Others may be
    anybody's.
    """
    fields = {variable(field.name): field for field in attrs.fields(shape)}
    for name, value in environ.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        if name not in fields:
            _check_unknown(name, value, [field.name for field in fields.values()])
        elif not value and fields[name].default != "":
            raise InputError(f"environment {name}: it is empty; unset it, or set a value")
    return {field.name: environ[name] for name, field in fields.items() if name in environ}


def _check_unknown(name: str, value: str, known: Collection[str]) -> None:
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX).lower(), known, n=1, cutoff=_NEAR)
    if near and name not in OTHERS and not (_OF_KUBERNETES.search(name) or "://" in value):
        raise InputError(f"environment {name}: no such setting; did you mean {variable(near[0])}?")


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
                raise InputError(
                    f"{_place(word, name)}: no such setting; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}")
                )
            given[name], source[name] = _read(value, kinds[name], _place(word, name)), word
    try:
        return shape(**given)
    except FieldError as error:
        name = error.field.rpartition(".")[2]
        raise InputError(f"{_place(source.get(name, 'setting'), name)}: {error.problem}") from None


def _place(word: str, name: str) -> str:
    """Returns the name of a setting as its user wrote it. `word`: of the layer."""
    own = {"option": f"--{name.replace('_', '-')}", "environment": f"environment {variable(name)}"}
    return own.get(word, f"{word} {name}")


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
