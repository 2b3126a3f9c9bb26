"""A group of commands, which imports each command when it is used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import click

from equipoise.cli.command import CONTEXT_SETTINGS, common_options
from equipoise.cli.exit_codes import ExitCodeCommand


class CommandGroup(ExitCodeCommand, click.Group):
    """`commands_by_place`: command name -> ``module:attribute``, in the order of the help."""

    def __init__(self, *, commands_by_place: Mapping[str, str], **settings: Any) -> None:
        super().__init__(
            params=[_version_option(), *common_options()],
            context_settings=CONTEXT_SETTINGS,
            invoke_without_command=True,
            callback=_help_alone,
            **settings,
        )
        self.commands_by_place = commands_by_place

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_by_place)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.commands_by_place:
            near = difflib.get_close_matches(name, self.commands_by_place, n=1)
            ctx.fail(f"no command {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(self.commands_by_place)}"))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.commands_by_place.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


def _version_option() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            click.echo(f"equipoise {metadata.version('equipoise')}")
            ctx.exit()

    return click.Option(["--version"], is_flag=True, expose_value=False, is_eager=True, callback=show, help="Print the version and exit.")


def _help_alone() -> None:
    """`equipoise` without a command prints the help, with exit code 0."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
