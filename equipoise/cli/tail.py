"""`equipoise tail LOG`: the last decisions of a log, and new ones as they come."""

from __future__ import annotations

import json
import time
from collections import deque

import click

from equipoise.cli.command import command
from equipoise.cli.outage import outages
from equipoise.cli.params import WholeNumber, log_argument
from equipoise.cli.screen import Screen
from equipoise.events import codec
from equipoise.events.decisions import EventRejected
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured
from equipoise.events.log import Log
from equipoise.events.records import BaseState, DecisionRecord, Entry, Record, UnreadRecord
from equipoise.replay.wording import begins_text, clock_text, groups_text

_ROUND_S = 0.5
_MOST_CHARS = 300


@command("tail", short_help="Print the last decisions of a log; --follow goes on.")
@log_argument
@click.option("--group", metavar="GROUP", help="Print only this group.")
@click.option("-n", "--lines", type=WholeNumber(min=0), default=10, show_default=True, help="Number of past decisions.")
@click.option("--facts", is_flag=True, help="Print facts too.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new records until interrupted. A LOG with several partitions needs --group.")
def tail(screen: Screen, log: Log, group: str | None, lines: int, facts: bool, follow: bool) -> None:
    """Print decisions, one a line; with --json one JSON document a line. --follow waits for brokers
    that are away.

    \b
    Examples:
      equipoise tail kafka://127.0.0.1:9092 --group orders --follow
      equipoise tail group.db -n 100 --facts
    """
    last: deque[Entry] = deque(maxlen=lines)
    position = begin = 0
    numbers: dict[str, int] = {}
    asked: dict[tuple[str, int], GroupConfigured] = {}
    is_there = group is None
    is_said = False
    for entry in log.read(group=group):
        is_there = is_there or entry.group == group
        if isinstance(entry, BaseState):
            if not is_said:
                screen.remark(begins_text(entry.begins_offset, entry.append_ms))
            is_said, position = True, max(position, entry.begins_offset)
            begin = max(begin, entry.begins_offset)
            continue
        if _number(entry) is None:
            position = max(position, _offset(entry) + 1)
        else:
            begin = max(begin, _offset(entry))
        _remember(asked, entry)
        if _is_wanted(entry, numbers, facts=facts):
            last.append(entry)
    if not is_there:
        problem = f"the log holds no fact of group {group!r}; {groups_text({entry.group for entry in log.read() if entry.group})}"
        if not follow:
            raise InputError(f"--group: {problem}")
        screen.remark(f"{problem}; waiting for one")
    for entry in last:
        _print(screen, entry, asked)
    if not last and lines and not follow:
        of_group = "" if group is None else f" of group {group!r}"
        screen.remark(f"{log.location} holds no {'record' if facts else 'decision'}{of_group}{'' if facts else '; --facts prints its facts'}")
    if not follow:
        return
    with outages(screen, log.location) as brokers:
        while True:
            time.sleep(_ROUND_S)
            asked_s = time.monotonic()
            # What was decided on facts that are read already may have come since: all is read from
            # the last decision on, and what was shown passed over.
            try:
                for entry in log.read(begin, group=group):
                    if _number(entry) is None:
                        if _offset(entry) < position:
                            continue
                        position = _offset(entry) + 1
                    else:
                        begin = max(begin, _offset(entry))
                    _remember(asked, entry)
                    if _is_wanted(entry, numbers, facts=facts):
                        _print(screen, entry, asked)
            except InputError as error:
                if not brokers.noted("cannot read the log", error):
                    raise InputError(f"--follow: {error}") from None
            else:
                brokers.answered(asked_s)


def _remember(asked: dict[tuple[str, int], GroupConfigured], entry: Entry) -> None:
    """A configuration, so that its rejection can be explained."""
    if isinstance(entry, Record) and isinstance(entry.event, GroupConfigured):
        asked[entry.group, entry.offset] = entry.event


def _number(entry: Entry) -> int | None:
    """Of a decision; None: it is a fact."""
    return None if isinstance(entry, Record | BaseState) else entry.number


def _offset(entry: Entry) -> int:
    """Of the fact, or of the fact that caused the decision."""
    return entry.caused_by if isinstance(entry, DecisionRecord) else entry.offset


def _is_wanted(entry: Entry, numbers: dict[str, int], *, facts: bool) -> bool:
    """Each decision once: a second copy says nothing new."""
    number = _number(entry)
    if number is None:
        return facts
    if number <= numbers.get(entry.group, 0):
        return False
    numbers[entry.group] = number
    return True


def _print(screen: Screen, entry: Entry, asked: dict[tuple[str, int], GroupConfigured]) -> None:
    assert not isinstance(entry, BaseState), "a base has no line"
    if isinstance(entry, UnreadRecord):
        form = {"kind": codec.kind_name(entry.kind), "event": {"version": entry.version, "problem": entry.problem}}
    else:
        form = codec.to_json(entry.event if isinstance(entry, Record) else entry.decision)
    number, offset = _number(entry), _offset(entry)
    append_ms = entry.append_ms if isinstance(entry, Record) else None
    if screen.json:
        is_fact = number is None
        place = {
            "group": entry.group,
            "offset": offset if is_fact else None,
            "append_ms": append_ms,
            "number": number,
            "caused_by": None if is_fact else offset,
        }
        screen.json_line(json.dumps({**place, **form}, ensure_ascii=False))
        return
    text = f"{form['kind']} {json.dumps(form['event'], ensure_ascii=False)}"
    text = text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]} ..."
    if number is not None:
        screen.line(f"-> {number} (#{offset}) {entry.group} {text}")
        if isinstance(entry, DecisionRecord) and isinstance(entry.decision, EventRejected):
            from equipoise.statemachine.rejections import rejection_text  # with the assignors, which nothing else here needs

            screen.line(f"   {rejection_text(entry.decision, asked.get((entry.group, offset)))}")
    else:
        screen.line(f"#{offset} {'' if append_ms is None else clock_text(append_ms) + ' '}{entry.group} {text}")
