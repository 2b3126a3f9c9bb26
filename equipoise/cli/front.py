"""The group of all commands: finds them, and turns every way a command can end into one exit code and at most one line on stderr."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Never

import click

from equipoise.cli.command import CONTEXT_SETTINGS, common_options, wants_debug
from events.errors import EquipoiseError

EXIT_USAGE = 2
EXIT_DEFECT = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader went away, which is neither a yes nor a no


def report(text: str) -> None:
    """``equipoise: <text>`` on stderr, as one line whatever is in it."""
    click.echo(f"equipoise: {' '.join(text.split())}", err=True)


class Front(click.Group):
    """`commands_by_place`: command name -> ``module:attribute``, imported when it is asked for."""

    def __init__(self, *, commands_by_place: Mapping[str, str], **settings: Any) -> None:
        version = click.version_option(metadata.version("equipoise"), message="equipoise %(version)s")(lambda: None)
        params = [*version.__click_params__, *common_options()]  # type: ignore[attr-defined]
        super().__init__(params=params, context_settings=CONTEXT_SETTINGS, invoke_without_command=True, callback=_help_alone, **settings)
        self.commands_by_place = commands_by_place

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands_by_place, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.commands_by_place.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = "equipoise", **settings: Any) -> Never:  # type: ignore[override]
        """Runs one command line (None: the process's own) and ends the process with its exit code."""
        try:
            code = super().main(args, prog_name, **{**settings, "standalone_mode": False})
        except click.Abort:
            report("interrupted")
            code = EXIT_INTERRUPTED
        except click.ClickException as error:
            report(_usage_text(error))
            code = EXIT_USAGE
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; returns its exit code (None: 0)."""
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()  # a broken pipe shows here at the latest, while we can still answer to it
            return code
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt as error:
            raise click.Abort from error
        except BrokenPipeError:
            _let_go_of_stdout()
            return EXIT_BROKEN_PIPE
        except EquipoiseError as error:
            return _failed(ctx, str(error) or type(error).__name__, error.exit_code)
        except OSError as error:
            return _failed(ctx, f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error), EXIT_USAGE)
        except Exception as error:  # noqa: BLE001 the last resort; nothing is swallowed: it ends the process with its own code
            first_line = next(iter(str(error).splitlines()), "")
            what = f"{type(error).__name__}: {first_line:.200}"
            return _failed(ctx, f"{what} (a defect of equipoise: please report it, with what the same command prints under --debug)", EXIT_DEFECT)


def _help_alone() -> None:
    """`equipoise` alone asks for help, and that is no misuse."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _failed(ctx: click.Context, text: str, code: int) -> int:
    if wants_debug(ctx):
        traceback.print_exc()
    report(text)
    return code


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.UsageError):
        text = f"{text.rstrip('.')}; see {error.ctx.command_path if error.ctx else 'equipoise'} --help"
    return text


def _let_go_of_stdout() -> None:
    """Points stdout to nowhere, so that the interpreter's own flush at the end does not complain of the broken pipe."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 a stdout without a file descriptor; it lives as long as the process
