"""Settings of the commands and the worker that reach a log in Kafka.

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
from equipoise.events.errors import FieldError, InputError
from equipoise.events.log.kafka.connection import Connection
from equipoise.events.log.kafka.declared_settings import build, from_environment, setting
from equipoise.events.log.kafka.log_topics import DEFAULT_PREFIX, Topics

RELOADED = ("log_level", "log_format", "observe_interval_ms", "checkpoint_facts", "metrics_groups")
"""Settings of a worker that SIGHUP reloads. Others are part of connections, topics or ports."""
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


@attrs.frozen(kw_only=True)
class WorkerSettings(LiveSettings):
    """Settings of a worker. Names that end in ``_ms`` are in milliseconds."""

    partitions: int = setting(1, "Partitions of a log that this worker makes; an existing log keeps its own.", validator=fields.integer(1, 10_000))
    replication: int = setting(
        0, "Replicas of topics that this worker makes; 0: three, or as many as there are brokers.", validator=fields.integer(0, 100)
    )
    http_host: str = setting("127.0.0.1", "Address that serves health, metrics and states; 0.0.0.0 for everybody.", validator=fields.text())
    http_port: int = setting(8090, "Port of that address; 0: any free one.", validator=fields.integer(0, 65_535))
    http_token: str = setting(
        "", "Who asks for a round, or sees the console, must name this token; needed where http_host is not the loopback.", secret=True
    )
    console_behind_proxy: bool = setting(
        False, "Everybody sees the console who reaches http_host, because a proxy in front of it authenticates.", validator=fields.boolean
    )
    http_hosts: str = setting(
        "", "Further names under which that address is asked, as by a proxy, with commas between them; *.example.com for all of a domain."
    )
    http_tls_cert: str = setting("", "File with the certificate (PEM) by which that address is served over TLS.")
    http_tls_key: str = setting("", "File with the key of that certificate (PEM).")
    worker_session_timeout_ms: int = setting(
        10_000, "A silent worker's partitions go to another worker after this time.", validator=fields.integer(1_000, 3_600_000)
    )
    witness: bool = setting(
        False, "When this worker is killed, a process beside it takes it out of its consumer group, so that the next one leads at once.",
        validator=fields.boolean,
    )
    observe_interval_ms: int = setting(10_000, "Time between two reads of the end offsets of the groups' topics.", validator=fields.integer(100))
    metrics_groups: int = setting(
        1_000, "Groups that /metrics has series of by name: of more, those at rest are left out first; 0: only totals of all.",
        validator=fields.integer(0, 1_000_000),
    )
    checkpoint_facts: int = setting(40_000, "Facts in a partition between two checkpoints of all its groups.", validator=fields.integer(1))
    retention_ms: int = setting(
        0, "Facts and decisions are kept so long, and then deleted behind a base; 0: for ever.", validator=fields.integer(0, 10 * 365 * 86_400_000)
    )
    retention_bytes: int = setting(
        0, "Above about so many bytes of facts and decisions in a partition, older ones are deleted behind a base; 0: no limit.",
        validator=fields.integer(0, 2**60),
    )
    base_interval_ms: int = setting(
        0, "Time between two bases of a log with retention; 0: a quarter of retention_ms, or an hour.", validator=fields.integer(0, 30 * 86_400_000)
    )
    otlp_endpoint: str = setting(
        "", "Where each rebalance goes as a trace, over OTLP/HTTP: http://host:4318/v1/traces; empty: nowhere. Needs the extra otel."
    )
    log_level: str = setting("INFO", "DEBUG, INFO, WARNING or ERROR.", validator=fields.one_of("DEBUG", "INFO", "WARNING", "ERROR"))
    log_format: str = setting("text", "text, or json: one JSON document a line (docs/json.md).", validator=fields.one_of("text", "json"))

    def __attrs_post_init__(self) -> None:
        LiveSettings.__attrs_post_init__(self)
        if bool(self.http_tls_cert) != bool(self.http_tls_key):
            raise FieldError("WorkerSettings.http_tls_key", "http_tls_cert and http_tls_key belong together; set both or none")
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise FieldError("WorkerSettings.otlp_endpoint", f"{self.otlp_endpoint!r} is no URL; write http://host:4318/v1/traces")

    @property
    def has_retention(self) -> bool:
        """Returns whether this worker stores bases and deletes records behind them."""
        return bool(self.retention_ms or self.retention_bytes)

    @property
    def time_between_bases_ms(self) -> int:
        """`base_interval_ms`, or what its 0 stands for."""
        return self.base_interval_ms or self.retention_ms // 4 or 3_600_000


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
