"""`equipoise assign`: problems in, plans out, one JSON object a line."""

from __future__ import annotations

from typing import BinaryIO

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Screen
from equipoise.events.errors import InputError


@command("assign", json=False, short_help="Problems as JSON Lines in, plans as JSON Lines out.")
@click.argument("file", type=click.File("rb"), default="-")
def assign(screen: Screen, file: BinaryIO) -> None:
    """Answers each problem in FILE (default: stdin) with a plan on stdout: one JSON object a line,
    one plan for each problem, in order.

    A problem says who is there, what each member runs, has copies of and how far those are behind;
    a plan says who may run what now, where that is going, what has to warm up first, and why.
    Nothing is remembered from one line to the next. At the first line that is no sound problem it
    ends with exit code 2 and one line on stderr that names the line and the field; plans of the
    lines before it stand.

    \b
    Examples:
      equipoise assign problems.jsonl > plans.jsonl
      echo '{"assignor": "high_availability", "config": {},
             "tasks": [{"id": "0_0", "stateful": true, "end_offset": 5000}],
             "members": [{"id": "m1", "capacity": 2}]}' | tr -d '\\n' | equipoise assign
    """
    from equipoise.assignors.assign_json import assign_line  # the solver; a second that --help need not wait for

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
        screen.json_line(plan)  # flushed, as who sends the next problem may wait for this plan
    if not answered:
        screen.remark(f"{getattr(file, 'name', '<stdin>')} holds no problem, so there is no plan; equipoise assign --help shows one")
