"""What all commands share: how one is made, and the options every one takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from equipoise.cli.screen import Screen

_META = "equipoise.cli."

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_META + str(param.name)] = True


def _flag(*names: str, help: str) -> click.Option:
    return click.Option(names, is_flag=True, expose_value=False, callback=_remember, is_eager=True, help=help)


def common_options() -> list[click.Parameter]:
    """Fresh ``--quiet`` and ``--debug`` options; both may stand before or after the command's name."""
    return [_flag("-q", "--quiet", help="No progress bar, no remarks."), _flag("--debug", help="Show the traceback of an error.")]


def wants_debug(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_META + "debug"))


def current_screen(ctx: click.Context) -> Screen:
    """The screen as the options given so far want it."""
    return Screen(json=bool(ctx.meta.get(_META + "json")), quiet=bool(ctx.meta.get(_META + "quiet")))


def command(name: str, *, json: bool = True, **settings: Any) -> Callable[[Callable[..., int | None]], click.Command]:
    """Decorator: makes a command out of ``def run(screen: Screen, ...) -> int | None``, which returns its exit code (None: 0).

    The docstring is the help text; end it with examples, as one block that begins with a line ``\\b``. `json`: the command has an answer in JSON
    and takes ``--json``. `settings` go to click.Command. Errors are raised, never printed: see `equipoise.cli.front`.
    """

    def make(run: Callable[..., int | None]) -> click.Command:
        def with_screen(*args: Any, **kwargs: Any) -> int | None:
            return run(current_screen(click.get_current_context()), *args, **kwargs)

        with_screen.__doc__ = run.__doc__
        with_screen.__click_params__ = getattr(run, "__click_params__", [])  # type: ignore[attr-defined]
        made: click.Command = click.command(name, cls=click.Command, context_settings=CONTEXT_SETTINGS, **settings)(with_screen)
        if json:
            made.params.append(_flag("--json", help="Answer with one JSON document on stdout, and nothing else there."))
        made.params.extend(common_options())
        return made

    return make
