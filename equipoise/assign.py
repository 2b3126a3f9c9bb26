"""`python -m equipoise.assign`: reads assignment problems and answers plans, one JSON object a
line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, BinaryIO

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Screen, Table
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.replay.importers.evidence.tables import Look


@command("assign", json=False, short_help="Answer assignment problems (JSON Lines) with plans (JSON Lines).")
@click.argument("file", type=click.File("rb"), default="-")
def assign(screen: Screen, file: BinaryIO) -> None:
    """Answer each problem in FILE (default: stdin) with a plan on stdout: one JSON object a line,
    in the same order. On a terminal each plan is indented; in a pipe or a file it is one line.

    A problem lists the members, what each runs, which copies each has and how many records those
    are behind. A plan says which member may run which task now, which tasks will move, which copies
    must warm up first, and why. Each line is answered by itself: nothing is remembered.

    FILE may also be what `kafka-consumer-groups --describe` printed, or with `--members --verbose`:
    then the answer says, in sentences, how even each group is and what would be better. Members are
    taken to be able to read every topic of the table.

    The command stops at the first invalid line with exit code 2; one line on stderr names the line,
    the field and the fix. Plans of earlier lines are already written.

    \b
    Examples:
      python -m equipoise.assign problems.jsonl > plans.jsonl
      python -m equipoise.assign described.txt
      echo '{"assignor": "high_availability", "config": {},
             "tasks": [{"id": "0_0", "stateful": true, "end_offset": 5000}],
             "members": [{"id": "m1", "capacity": 2}]}' | tr -d '\\n' | python -m equipoise.assign
    """
    from equipoise.assignors.assign_json import assign_line  # loads the solver, which takes a second

    if file.isatty():
        screen.remark("reading problems from the terminal, one JSON object a line; Ctrl-D ends")
    answered = False
    lines = iter(screen.track(file, "assigning", streams_output=True))
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        if not answered and not line.lstrip().startswith((b"{", b"[")) and _answer_tables(screen, [line, *lines], getattr(file, "name", "<stdin>")):
            return
        answered = True
        try:
            plan = assign_line(line)
        except InputError as error:
            raise InputError(f"{getattr(file, 'name', '<stdin>')} line {number}: {error}") from error
        screen.json_line(plan, indent=2)  # flushed: the sender of the next problem may wait for this plan
    if not answered:
        screen.remark(f"{getattr(file, 'name', '<stdin>')} holds no problem; `python -m equipoise.assign --help` shows one")


def _answer_tables(screen: Screen, lines: list[bytes], name: str) -> bool:
    """Answers tables of groups; whether there are any."""
    from equipoise.replay.importers.evidence.lag_tables import problem_of
    from equipoise.replay.importers.evidence.lines import undressed
    from equipoise.replay.importers.evidence.tables import read_tables

    groups: dict[str, list[Look]] = {}
    for look in read_tables(enumerate(map(undressed, lines), 1), name):
        groups.setdefault(look.group, []).append(look)
    for group, looks in groups.items():
        problem = problem_of(looks)
        if problem is None:
            screen.line(f"{group or name}: the table does not name partitions with their members; add --members --verbose")
        else:
            _answer_group(screen, group or name, problem)
    return bool(groups)


def _answer_group(screen: Screen, group: str, problem: str) -> None:
    from equipoise.assignors.assign_json import assign_line

    asked, plan = json.loads(problem), json.loads(assign_line(problem.encode()))
    lags = {task["id"]: task["lag"] for task in asked["tasks"]}
    now = {member["id"]: member["active"] for member in asked["members"]}
    counts = [len(works) for works in now.values()]
    moves = plan["movements"]
    unowned = sorted(lags.keys() - {work for works in now.values() for work in works})
    head = f"{group}: {counted(len(now), 'member')}, {counted(len(lags), 'partition')}; {min(counts)} to {max(counts)} at each"
    behind = f", {sum(lags.values()):,} records behind" if any(lags.values()) else ""
    even = "spread each topic evenly" if max(counts) - min(counts) <= 1 and not unowned else "make it even"
    verdict = "as even as it can be" if not moves and not unowned else f"{counted(len(moves), 'move')} would {even}"
    screen.line(f"{head}{behind}: {verdict}")
    target = plan["target"]
    rows = [
        (name, len(now[name]), sum(lags[work] for work in now[name]), len(target.get(name, ())), sum(lags[work] for work in target.get(name, ())))
        for name in sorted(now)
    ]
    screen.answer(None, Table(columns=("member", "partitions", "behind", "then", "behind then"), rows=rows))
    for move in moves:
        screen.line(f"  {move['task']}: {move['source']} -> {move['destination']}")
    for work in unowned:
        owner = next((name for name, works in target.items() if work in works), "nobody")
        screen.line(f"  {work}: nobody -> {owner}")


if __name__ == "__main__":
    assign(prog_name="python -m equipoise.assign")
