"""Makes commands, with the options that all of them take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from equipoise.cli.exit_codes import DEBUG, ExitCodeCommand
from equipoise.cli.screen import Screen

_QUIET = "equipoise.cli.quiet"
_JSON = "equipoise.cli.json"

CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def command(name: str, *, json: bool = True, **settings: Any) -> Callable[[Callable[..., int | None]], click.Command]:
    """Decorator: makes a command of ``def run(screen: Screen, ...) -> int | None``, which returns
    its exit code (None: 0).

    The docstring is the help text. It ends with examples, in one block that begins with a line
    ``\\b``. `json`: the command takes ``--json``. `settings` go to click.Command. The function
    raises its errors and prints none: see `equipoise.cli.exit_codes`.
    """

    def make(run: Callable[..., int | None]) -> click.Command:
        def with_screen(*args: Any, **kwargs: Any) -> int | None:
            meta = click.get_current_context().meta
            return run(Screen(json=_JSON in meta, quiet=_QUIET in meta), *args, **kwargs)

        with_screen.__doc__ = run.__doc__
        with_screen.__click_params__ = getattr(run, "__click_params__", [])  # type: ignore[attr-defined]
        made = click.command(name, cls=ExitCodeCommand, context_settings=CONTEXT_SETTINGS, **settings)(with_screen)
        if json:
            made.params.append(_flag(_JSON, "--json", help="Print one JSON document on stdout and nothing else (schemas: docs/json.md)."))
        made.params.extend(common_options())
        return made

    return make


def common_options() -> list[click.Parameter]:
    """New ``--quiet`` and ``--debug`` options. Both may come before or after the command's name."""
    return [
        _flag(_QUIET, "-q", "--quiet", help="Show no progress bar and no remarks."),
        _flag(DEBUG, "--debug", help="Print the traceback of an error."),
    ]


def _flag(key: str, *names: str, help: str) -> click.Option:
    """A flag that sets `key` in the context's `meta`, which a command and its group share."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[key] = True

    return click.Option(names, is_flag=True, expose_value=False, callback=remember, is_eager=True, help=help)
