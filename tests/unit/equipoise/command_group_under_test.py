"""A command line of its own, made of the same frame, whose commands end in every way a command can
end. Run as a script by test_cli_command_group.py.
"""

from __future__ import annotations

import os
import signal
import sys

import click

from equipoise.cli.command import command
from equipoise.cli.command_group import CommandGroup
from equipoise.cli.screen import Screen, Table
from equipoise.events.errors import EquipoiseError, FieldError, GapError, InputError, InvariantBroken

ERRORS: dict[str, BaseException] = {
    "input": InputError("the log is a folder;\nname a file in it"),
    "field": FieldError("LagReported.lags[0_3]", "-1 is not a lag"),
    "gap": GapError(17, "offset 16 is missing"),
    "invariant": InvariantBroken(1, "0_0 has two owners"),
    "base": EquipoiseError("no"),
    "defect": KeyError("a\nb"),
    "recursion": RecursionError("maximum recursion depth exceeded"),
    "missing-file": FileNotFoundError(2, "No such file or directory", "group.db"),
    "interrupt": KeyboardInterrupt(),
}


@command("fails", json=False)
@click.argument("how", type=click.Choice(sorted(ERRORS)))
def fails(screen: Screen, how: str) -> None:
    """Raises an error of one kind."""
    raise ERRORS[how]


@command("answers")
@click.option("--code", type=int, default=0)
def answers(screen: Screen, code: int) -> int:
    """Prints a table of two rows and ends with the code of `--code`."""
    rows = [("0_0", 5, None), ("0_10", 123456, 0.25)]
    screen.remark("two rows follow")
    screen.answer({"rows": rows}, "a heading", Table(columns=("task", "lag", "share"), rows=rows))
    return code


@command("explains", json=False)
def explains(screen: Screen) -> None:
    """Prints a table of many columns, the last one of sentences."""
    columns = ("task", "decided", "generation", "lag then", "outcome", "why")
    rows = [("0_10", "04:35:17.024", 15, 123456, "granted", "within acceptable_recovery_lag when that was decided, so it was handed over at once")]
    screen.answer(None, Table(columns=columns, rows=rows, title="moves"))


@command("counts", json=True)
@click.argument("total", type=int)
def counts(screen: Screen, total: int) -> None:
    """Takes so many steps under a progress bar."""
    steps = sum(1 for _ in screen.track(range(total), "counting", total))
    screen.answer(steps, str(steps))


@command("floods", json=False)
def floods(screen: Screen) -> None:
    """Writes far more than a pipe holds."""
    for _ in range(100_000):
        print("x" * 80)


@command("waits", json=False)
def waits(screen: Screen) -> None:
    """Says that it is there, then is interrupted as a terminal does it."""
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


NAMES = ("fails", "answers", "explains", "counts", "floods", "waits")
group = CommandGroup(name="group", help="A group.", sections={"Commands": {name: f"{__name__}:{name}" for name in NAMES}})

if __name__ == "__main__":
    sys.exit(group())
