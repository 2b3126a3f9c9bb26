"""`python -m equipoise.assign`: reads assignment problems and answers plans, one JSON object a
line.
"""

from __future__ import annotations

from typing import BinaryIO

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError


@command("assign", json=False, short_help="Answer assignment problems (JSON Lines) with plans (JSON Lines).")
@click.argument("file", type=click.File("rb"), default="-")
def assign(screen: Screen, file: BinaryIO) -> None:
    """Answer each problem in FILE (default: stdin) with a plan on stdout: one JSON object a line,
    in the same order. On a terminal each plan is indented; in a pipe or a file it is one line.

    A problem lists the members, what each runs, which copies each has and how many records those
    are behind. A plan says which member may run which task now, which tasks will move, which copies
    must warm up first, and why. Each line is answered by itself: nothing is remembered.

    The command stops at the first invalid line with exit code 2; one line on stderr names the line,
    the field and the fix. Plans of earlier lines are already written.

    \b
    Examples:
      python -m equipoise.assign problems.jsonl > plans.jsonl
      echo '{"assignor": "high_availability", "config": {},
             "tasks": [{"id": "0_0", "stateful": true, "end_offset": 5000}],
             "members": [{"id": "m1", "capacity": 2}]}' | tr -d '\\n' | python -m equipoise.assign
    """
    from equipoise.assignors.assign_json import assign_line  # loads the solver, which takes a second

    if file.isatty():
        screen.remark("reading problems from the terminal, one JSON object a line; Ctrl-D ends")
    answered = False
    for number, line in enumerate(screen.track(file, "assigning", streams_output=True), 1):
        if line.isspace():
            continue
        answered = True
        try:
            plan = assign_line(line)
        except InputError as error:
            raise InputError(f"{getattr(file, 'name', '<stdin>')} line {number}: {error}") from error
        screen.json_line(plan, indent=2)  # flushed: the sender of the next problem may wait for this plan
    if not answered:
        screen.remark(f"{getattr(file, 'name', '<stdin>')} holds no problem; `python -m equipoise.assign --help` shows one")


if __name__ == "__main__":
    assign(prog_name="python -m equipoise.assign")
