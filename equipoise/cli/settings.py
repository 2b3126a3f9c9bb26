"""Options made of a class of settings: one declaration, and `--help` tells the environment variable
of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click

from equipoise.events.log.kafka.settings import variable
from equipoise.worker.settings import LiveSettings, read_settings


def settings_options(shape: type[LiveSettings], *, table: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the command gets `settings`, read from ``--settings FILE``, the environment and an
    option for each setting that is no secret.
    """
    named = [field for field in attrs.fields(shape) if not field.metadata["secret"]]
    secret = [variable(field.name) for field in attrs.fields(shape) if field.metadata["secret"]]

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def with_settings(*args: Any, settings_file: Path | None, **given: Any) -> Any:
            flags = {field.name: given.pop(field.name) for field in named}
            said = {name: value for name, value in flags.items() if value is not None}
            settings = read_settings(shape, said, table=table, file=settings_file)
            return run(*args, settings=settings, **given)

        decorated: Callable[..., Any] = with_settings
        for field in reversed(named):
            default = "" if field.default is None else f"  [{variable(field.name)}; default: {field.default}]"
            text = f"{field.metadata['help']}{default or f'  [{variable(field.name)}]'}"
            decorated = click.option(_flag(field.name), field.name, metavar="VALUE", help=text)(decorated)
        text = f"TOML with the same names, in tables [connection]{f' and [{table}]' if table else ''}. Secrets only there, or in {', '.join(secret)}."
        path = click.Path(exists=True, dir_okay=False, path_type=Path)
        return click.option("--settings", "settings_file", type=path, metavar="FILE", help=text)(decorated)

    return decorate


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
