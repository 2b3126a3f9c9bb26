"""How a command line ends: every way it can end becomes one exit code and at most one line on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Never

import click

from events.errors import EquipoiseError

EXIT_USAGE = 2
EXIT_DEFECT = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader went away, which is neither a yes nor a no

DEBUG = "equipoise.cli.debug"
"""Key of a context's `meta`: true when tracebacks are wanted."""


def report(text: str) -> None:
    """``equipoise: <text>`` on stderr, as one line whatever is in it."""
    click.echo(f"equipoise: {' '.join(text.split())}", err=True)


class Endings(click.Command):
    """A command, or group of commands, whose callback returns its exit code (None: 0) and raises its errors."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **settings: Any) -> Never:  # type: ignore[override]
        """Runs one command line (None: the process's own) and ends the process with its exit code."""
        try:
            code = super().main(args, prog_name or self.name, **{**settings, "standalone_mode": False})
        except click.Abort:
            report("interrupted")
            code = EXIT_INTERRUPTED
        except click.ClickException as error:
            report(self._usage_text(error))
            code = EXIT_USAGE
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; returns its exit code. Misuse and interrupts go on to `main`."""
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
        except Exception as error:  # noqa: BLE001 the last resort; nothing is swallowed: each ends the process with its own code
            return _failed(ctx, error)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; a LOG that cannot be opened ends the command as it would inside of it."""
        try:
            return super().parse_args(ctx, args)
        except (EquipoiseError, OSError) as error:
            ctx.exit(_failed(ctx, error))

    def _usage_text(self, error: click.ClickException) -> str:
        text = error.format_message()
        if isinstance(error, click.UsageError):
            text = f"{text.rstrip('.')}; see {error.ctx.command_path if error.ctx else self.name} --help"
        return text


def _failed(ctx: click.Context, error: Exception) -> int:
    """Reports `error`; returns the exit code it asks for."""
    if ctx.meta.get(DEBUG):
        traceback.print_exception(error)
    if isinstance(error, EquipoiseError):
        report(str(error) or type(error).__name__)
        return error.exit_code
    if isinstance(error, OSError):
        report(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
        return EXIT_USAGE
    first_line = next(iter(str(error).splitlines()), "")
    report(f"{type(error).__name__}: {first_line:.200} (a defect of equipoise: please report it, with what the same command prints under --debug)")
    return EXIT_DEFECT


def _let_go_of_stdout() -> None:
    """Points stdout to nowhere, so that the interpreter's own flush at the end does not complain of the broken pipe."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 a stdout without a file descriptor; it lives as long as the process
