"""Settings of everything that is live: the same names as flags, environment variables
(``EQUIPOISE_...``) and TOML keys.

A TOML file may have a table ``[connection]``, for all commands, and ``[worker]`` and ``[member]``
for what only those have.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs

from equipoise.events import fields
from equipoise.events.errors import InputError
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.settings import build, from_environment, setting
from equipoise.events.log.kafka.topics import DEFAULT_PREFIX, Topics

TABLES = ("connection", "worker", "member")


@attrs.frozen(kw_only=True)
class LiveSettings(Connection):
    """Where the log is and how to reach it."""

    prefix: str = setting(DEFAULT_PREFIX, "What the names of the log's topics begin with.", validator=fields.text())

    def __attrs_post_init__(self) -> None:
        Connection.__attrs_post_init__(self)
        Topics(self.prefix)

    @property
    def topics(self) -> Topics:
        return Topics(self.prefix)


L = TypeVar("L", bound=LiveSettings)


def read_settings(
    shape: type[L], flags: Mapping[str, Any], *, table: str = "", file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> L:
    """Flags over environment over the file over defaults. `table`: where the file has what
    LiveSettings has not.

    Raises InputError that names the layer and the setting.
    """
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if file is not None:
        document = _document(file)
        layers += [(f"{file}: [{name}]", document.get(name, {})) for name in ("connection", table) if name]
    layers += [("environment", from_environment(shape, environ)), ("option", flags)]
    return build(shape, *layers)


def _document(file: Path) -> dict[str, dict[str, Any]]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: is no TOML: {error}") from None
    for name, table in document.items():
        if name not in TABLES or not isinstance(table, dict):
            raise InputError(f"{file}: {name}: settings stand in the tables {', '.join(f'[{each}]' for each in TABLES)}")
    return cast(dict[str, dict[str, Any]], document)
