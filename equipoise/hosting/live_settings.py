"""Settings of every command and host that reaches a log in Kafka, and how they are read.

Each setting is declared once. Its name is a flag, an environment variable (``EQUIPOISE_...``) and a
TOML key. A TOML file may have the tables ``[connection]``, for all commands, and ``[worker]`` and
``[member]``, for settings that only those have.
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
from equipoise.kafka.connection import Connection
from equipoise.kafka.declared_settings import build, from_environment, setting
from equipoise.log.kafka.log_topics import DEFAULT_PREFIX, Topics

TABLES = ("connection", "worker", "member")


@attrs.frozen(kw_only=True)
class LiveSettings(Connection):
    """Where a log is and how to reach it. Raises InputError when a value is invalid."""

    prefix: str = setting(DEFAULT_PREFIX, "What the names of the log's topics begin with.", validator=fields.text())

    def __attrs_post_init__(self) -> None:
        Connection.__attrs_post_init__(self)
        Topics(self.prefix)

    @property
    def topics(self) -> Topics:
        """The log's topics."""
        return Topics(self.prefix)


L = TypeVar("L", bound=Connection)


def read_settings(
    shape: type[L], flags: Mapping[str, Any], *, table: str = "", file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> L:
    """Reads settings: flags win over the environment, the environment over the file, the file over
    the defaults. `table`: the TOML table for settings that `LiveSettings` lacks. A `shape` without
    the log's settings takes the same files.

    Raises InputError, which names the source and the setting, when a value is invalid.
    """
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if file is not None:
        document = _document(file)
        unused = {field.name for field in attrs.fields(LiveSettings)} - {field.name for field in attrs.fields(shape)}
        used = {name: {key: value for key, value in values.items() if key not in unused} for name, values in document.items()}
        layers += [(f"{file}: [{name}]", used.get(name, {})) for name in ("connection", table) if name]
    layers += [("environment", from_environment(shape, environ)), ("option", flags)]
    return build(shape, *layers)


def _document(file: Path) -> dict[str, dict[str, Any]]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not valid TOML: {error}") from None
    for name, table in document.items():
        if name not in TABLES or not isinstance(table, dict):
            raise InputError(f"{file}: {name}: settings belong in one of the tables {', '.join(f'[{each}]' for each in TABLES)}")
    return cast(dict[str, dict[str, Any]], document)
