"""`equipoise tail LOG`: what was decided last, and what is decided from now on."""

from __future__ import annotations

import json
import time
from collections import deque

import click

from equipoise.cli.command import command
from equipoise.cli.params import LOG
from equipoise.cli.screen import Screen
from events import codec
from events.errors import InputError
from events.log import Log
from events.records import DecisionRecord, Record
from replay.wording import clock_text

_ROUND_S = 0.5
_MOST_CHARS = 300


@command("tail", short_help="The last decisions of a log; --follow goes on with what comes.")
@click.argument("log", type=LOG)
@click.option("--group", metavar="GROUP", help="Only this group.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=10, show_default=True, help="How many decisions to begin with.")
@click.option("--facts", is_flag=True, help="Facts too.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until interrupted. A LOG of several partitions needs --group.")
def tail(screen: Screen, log: Log, group: str | None, lines: int, facts: bool, follow: bool) -> None:
    """Prints decisions, one a line; with --json one JSON document a line.

    \b
    Examples:
      equipoise tail kafka://127.0.0.1:9092 --follow
      equipoise tail group.db -n 100 --group orders
    """
    last: deque[Record | DecisionRecord] = deque(maxlen=lines)
    position = begin = 0
    numbers: dict[str, int] = {}
    for entry in log.read(group=group):
        if isinstance(entry, Record):
            position = max(position, entry.offset + 1)
        else:
            begin = max(begin, entry.caused_by)
        if _is_wanted(entry, numbers, facts=facts):
            last.append(entry)
    for entry in last:
        _print(screen, entry)
    while follow:
        time.sleep(_ROUND_S)
        # What was decided on facts that are read already may have come since: all is read from the last decision on, and what was shown passed over.
        try:
            entries = log.read(begin, group=group)
            for entry in entries:
                if isinstance(entry, Record):
                    if entry.offset < position:
                        continue
                    position = entry.offset + 1
                else:
                    begin = max(begin, entry.caused_by)
                if _is_wanted(entry, numbers, facts=facts):
                    _print(screen, entry)
        except InputError as error:
            raise InputError(f"--follow: {error}") from None


def _is_wanted(entry: Record | DecisionRecord, numbers: dict[str, int], *, facts: bool) -> bool:
    """Each decision once: a second copy says nothing new."""
    if isinstance(entry, Record):
        return facts
    if entry.number <= numbers.get(entry.group, 0):
        return False
    numbers[entry.group] = entry.number
    return True


def _print(screen: Screen, entry: Record | DecisionRecord) -> None:
    event = entry.event if isinstance(entry, Record) else entry.decision
    form = codec.to_json(event)
    if screen.json:
        if isinstance(entry, Record):
            place = {"group": entry.group, "offset": entry.offset, "append_ms": entry.append_ms, "number": None, "caused_by": None}
        else:
            place = {"group": entry.group, "offset": None, "append_ms": None, "number": entry.number, "caused_by": entry.caused_by}
        click.echo(json.dumps({**place, **form}, ensure_ascii=False))
        return
    said = f"{form['kind']} {json.dumps(form['event'], ensure_ascii=False)}"
    said = said if len(said) <= _MOST_CHARS else f"{said[:_MOST_CHARS]} ..."
    if isinstance(entry, Record):
        click.echo(f"#{entry.offset} {clock_text(entry.append_ms)} {entry.group} {said}")
    else:
        click.echo(f"-> {entry.number} (#{entry.caused_by}) {entry.group} {said}")
