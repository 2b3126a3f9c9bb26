"""A group of commands, which imports each command when it is used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from equipoise.cli.command import CONTEXT_SETTINGS, common_options
from equipoise.cli.exit_codes import ExitCodeCommand


class CommandGroup(ExitCodeCommand, click.Group):
    """`sections`: heading of the help -> command -> ``module:attribute``, in the order of the help.
    `options`: its own.
    """

    def __init__(
        self,
        *,
        sections: Mapping[str, Mapping[str, str]],
        options: Sequence[click.Option] = (),
        **settings: Any,
    ) -> None:
        super().__init__(
            params=[*options, _version_option(), *common_options()],
            context_settings=CONTEXT_SETTINGS,
            invoke_without_command=True,
            callback=_help_alone,
            **settings,
        )
        self.sections = sections
        self.commands_by_place = {name: place for commands in sections.values() for name, place in commands.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_by_place)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.commands_by_place:
            near = difflib.get_close_matches(name, self.commands_by_place, n=1)
            ctx.fail(f"no command {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(self.commands_by_place)}"))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands by section, then the options on one line: a screen has few lines."""
        self.format_commands(ctx, formatter)
        names = [max(param.opts, key=len) for param in self.get_params(ctx) if isinstance(param, click.Option)]
        formatter.write_paragraph()
        formatter.write_text(f"Options: {' '.join(names)}; {ctx.command_path} COMMAND --help")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands_by_place), default=0)
        for heading, commands in self.sections.items():
            found = [(name, self.get_command(ctx, name)) for name in commands]
            rows = [(name.ljust(width), each.get_short_help_str(formatter.width - width - 6)) for name, each in found if each is not None]
            with formatter.section(heading):
                formatter.write_dl(rows)

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
            from equipoise._build import version_text

            click.echo(version_text())
            ctx.exit()

    about = "Print the version and its commit, and exit."
    return click.Option(["--version"], is_flag=True, expose_value=False, is_eager=True, callback=show, help=about)


def _help_alone() -> None:
    """`equipoise` without a command prints the help, with exit code 0."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
