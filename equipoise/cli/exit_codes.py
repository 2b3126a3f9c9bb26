"""Turns every end of a command into one exit code and at most one line on stderr."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Never

import click

from equipoise._extras import missing_extra, needs
from equipoise.cli.screen import hide_bars
from equipoise.cli.visible import visible
from equipoise.events.errors import EquipoiseError, StorageError
from equipoise.log.storage import is_out_of_space

EXIT_USAGE = 2
EXIT_DEFECT = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_TERMINATED = 143  # 128 + SIGTERM
EXIT_STORAGE = StorageError.exit_code
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader of stdout is gone

DEBUG = "equipoise.cli.debug"
"""Key of a context's `meta`: true with --debug."""


def report(text: str) -> None:
    """Prints ``equipoise: <text>`` on stderr, as one line."""
    hide_bars()
    click.echo(f"equipoise: {visible(' '.join(text.split()))}", err=True)


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does, with another exit code."""


@contextlib.contextmanager
def resumable(place: str, what_is_there: Callable[[], str]) -> Iterator[None]:
    """A block that writes to `place` piece by piece. When an interrupt or a full disk ends it, the
    error says what is there (`what_is_there`) and how to resume. Raises StorageError, with the
    command that goes on.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(what_is_there())
        raise
    except StorageError as error:
        raise StorageError(place, error.reason, f"make room there; {what_is_there()}") from None


class ExitCodeCommand(click.Command):
    """A command or a group of commands. Its callback returns the exit code (None: 0) and raises
    errors.
    """

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **settings: Any) -> Never:  # type: ignore[override]
        """Runs one command line (None: the process's own) and ends the process with its exit code."""
        _open_what_is_closed()
        with _ended_by_sigterm():
            sys.exit(self._code(args, prog_name or self.name, settings))

    def _code(self, args: Sequence[str] | None, prog_name: str | None, settings: dict[str, Any]) -> int:
        try:
            code = super().main(args, prog_name, **{**settings, "standalone_mode": False})
            sys.stdout.flush()  # --help and --version write outside of `invoke`
        except click.Abort as error:
            report("; ".join(["interrupted", *getattr(error.__cause__, "__notes__", ())]))
            code = EXIT_TERMINATED if isinstance(error.__cause__, Terminated) else EXIT_INTERRUPTED
        except click.ClickException as error:
            report(self._usage_text(error))
            code = EXIT_USAGE
        except OSError as error:
            code = _failed(None, error)
        return code if isinstance(code, int) else 0

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
        except Exception as error:  # noqa: BLE001 the last resort; nothing is swallowed: each ends the process with its own code
            return _failed(ctx, error)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses as click does. A LOG that cannot be opened ends the command with the error's exit
        code; an opened LOG is closed when a later argument is wrong.
        """
        try:
            return super().parse_args(ctx, args)
        except (EquipoiseError, OSError) as error:
            ctx.close()
            ctx.exit(_failed(ctx, error))
        except KeyboardInterrupt as error:
            ctx.close()
            raise click.Abort from error
        except BaseException:
            ctx.close()
            raise

    def _usage_text(self, error: click.ClickException) -> str:
        text = error.format_message()
        if isinstance(error, click.UsageError):
            text = f"{text.rstrip('.')}; see {error.ctx.command_path if error.ctx else self.name} --help"
        return text


def _failed(ctx: click.Context | None, error: Exception) -> int:
    """Reports `error`; returns the exit code it asks for."""
    if isinstance(error, BrokenPipeError):
        _let_go_of_stdout()
        return EXIT_BROKEN_PIPE
    if ctx is not None and ctx.meta.get(DEBUG):
        traceback.print_exception(error)
    if isinstance(error, EquipoiseError):
        report(str(error) or type(error).__name__)
        return error.exit_code
    if isinstance(error, OSError):
        if error.filename and error.strerror:
            report(f"{error.filename}: {error.strerror}")
        else:  # a stream without a name: ours
            report(f"the answer cannot be written: {error.strerror or error}")
            _let_go_of_stdout()
        return EXIT_STORAGE if is_out_of_space(error) else EXIT_USAGE
    extra = missing_extra(error)
    if extra is not None:
        report(needs("this", extra))
        return EXIT_USAGE
    first_line = next(iter(str(error).splitlines()), "")
    report(f"{type(error).__name__}: {first_line:.200} (a defect of equipoise: please report it, with what the same command prints under --debug)")
    return EXIT_DEFECT


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises Terminated, unless the caller handles or ignores it, or this
    is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _open_what_is_closed() -> None:
    """Opens the null device for each standard stream that the caller closed (``<&-``, ``>&-``,
    ``2>&-``).
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 it lives as long as the process


def _let_go_of_stdout() -> None:
    """Points stdout to the null device, so that the interpreter's flush at exit does not fail too."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 a stdout without a file descriptor; it lives as long as the process
