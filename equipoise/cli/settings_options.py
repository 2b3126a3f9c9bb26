"""Makes command-line options of a settings class. `--help` shows the environment variable and the
default of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import attrs
import click

from equipoise.hosting.live_settings import read_settings
from equipoise.kafka.connection import Connection
from equipoise.kafka.declared_settings import variable


def settings_options(
    shape: type[Connection], *, table: str = "", only_with: str = "", again: bool = False, options: Collection[str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: passes `settings` to the command, read from ``--settings FILE``, the environment,
    and an option for each setting that is not secret. `only_with`: an option of the command;
    without it nothing is read and `settings` is None. `again`: passes `read_again` too, a function
    that reads the same sources once more. `options`: settings that have one; None: all.
    """
    named = [field for field in attrs.fields(shape) if not field.metadata["secret"] and (options is None or field.name in options)]
    secret = [variable(field.name) for field in attrs.fields(shape) if field.metadata["secret"]]

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def with_settings(*args: Any, settings_file: Path | None, **given: Any) -> Any:
            flags = {field.name: given.pop(field.name) for field in named}
            said = {name: value for name, value in flags.items() if value is not None}
            if only_with and given[only_with] is None:
                if said or settings_file is not None:
                    raise click.UsageError(f"{_flag(next(iter(said), 'settings'))}: needs {_flag(only_with)}")
                return run(*args, settings=None, **given)
            read_again = functools.partial(read_settings, shape, said, table=table, file=settings_file)
            return run(*args, settings=read_again(), **({"read_again": read_again} if again else {}), **given)

        decorated: Callable[..., Any] = with_settings
        for field in reversed(named):
            default = "" if field.default in (None, "") else f"  [{variable(field.name)}; default: {field.default}]"
            text = f"{field.metadata['help']}{default or f'  [{variable(field.name)}]'}"
            decorated = click.option(_flag(field.name), field.name, metavar="VALUE", help=text)(decorated)
        tables = f"tables [connection] and [{table}]" if table else "a table [connection]"
        text = f"TOML file with the same names, in {tables}. Secrets are read only from there or from {', '.join(secret)}."
        path = click.Path(exists=True, dir_okay=False, path_type=Path)
        return click.option("--settings", "settings_file", type=path, metavar="FILE", help=text)(decorated)

    return decorate


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
