"""`equipoise tail LOG`: the last decisions of a log, and new ones as they come."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.outage import outages
from equipoise.cli.params import WholeNumber, log_argument
from equipoise.cli.screen import Screen
from equipoise.events import codec
from equipoise.events.decisions import EventRejected
from equipoise.events.errors import InputError
from equipoise.events.records import BaseState, DecisionRecord, Entry, FactRecord, UnreadRecord
from equipoise.log import Log
from equipoise.replay.wording import begins_text, clock_text, groups_text

_ROUND_S = 0.5
_MOST_CHARS = 300


@command("tail", short_help="Print the last decisions of a log; --follow goes on.")
@log_argument
@click.option("--group", metavar="GROUP", help="Print only this group.")
@click.option("-n", "--lines", type=WholeNumber(min=0), default=10, show_default=True, help="Number of past lines.")
@click.option("--facts", is_flag=True, help="Print also facts that decide nothing by themselves, as lags.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new records until interrupted. A LOG with several partitions needs --group.")
def tail(screen: Screen, log: Log, group: str | None, lines: int, facts: bool, follow: bool) -> None:
    """Print what was decided as sentences, in the words of the worker's log. A line begins with the
    time and the offset of its fact, which `equipoise explain` and `status` take as --at.

    --json prints every decision, one document a line, with --facts every fact too. --follow waits
    for brokers that are away.

    \b
    Examples:
      equipoise tail kafka://127.0.0.1:9092 --group orders --follow
      equipoise tail group.db -n 100 --facts
      equipoise tail group.db --json | jq 'select(.kind == "AssignmentIssued") | .event.moves'
    """
    shown = _Documents(facts) if screen.json else _Sentences(facts)
    last: deque[str] = deque(maxlen=lines)
    position = begin = 0
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
        last.extend(shown.take(entry, is_new=True))
    last.extend(shown.rest(at_end=not follow))
    if not is_there:
        problem = f"the log holds no fact of group {group!r}; {groups_text({entry.group for entry in log.read() if entry.group})}"
        if not follow:
            raise InputError(f"--group: {problem}")
        screen.remark(f"{problem}; waiting for one")
    for line in last:
        _print(screen, line)
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
                    is_new = True
                    if _number(entry) is None:
                        is_new = _offset(entry) >= position
                        position = max(position, _offset(entry) + 1)
                    else:
                        begin = max(begin, _offset(entry))
                    for line in shown.take(entry, is_new=is_new):
                        _print(screen, line)
                for line in shown.rest():
                    _print(screen, line)
            except InputError as error:
                if not brokers.noted("cannot read the log", error):
                    raise InputError(f"--follow: {error}") from None
            else:
                brokers.answered(asked_s)


def _print(screen: Screen, line: str) -> None:
    if screen.json:
        screen.json_line(line)
    else:
        screen.line(line)


def _number(entry: Entry) -> int | None:
    """Of a decision; None: it is a fact."""
    return None if isinstance(entry, FactRecord | BaseState) else entry.number


def _offset(entry: Entry) -> int:
    """Of the fact, or of the fact that caused the decision."""
    return entry.caused_by if isinstance(entry, DecisionRecord) else entry.offset


class _Once:
    """Tells decisions that are met for the first time: after a takeover one may be stored twice."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def is_new(self, group: str, number: int) -> bool:
        if number <= self._numbers.get(group, 0):
            return False
        self._numbers[group] = number
        return True


class _Documents:
    """Each decision as JSON. `facts`: each fact too."""

    def __init__(self, facts: bool) -> None:
        self._facts = facts
        self._once = _Once()

    def take(self, entry: Entry, *, is_new: bool) -> Iterator[str]:
        """The lines of the next entry. `is_new`: it was not read before."""
        number, offset = _number(entry), _offset(entry)
        is_fact = number is None
        if isinstance(entry, BaseState) or not (self._facts and is_new if number is None else self._once.is_new(entry.group, number)):
            return
        place = {
            "group": entry.group,
            "offset": offset if is_fact else None,
            "append_ms": entry.append_ms if isinstance(entry, FactRecord) else None,
            "number": number,
            "caused_by": None if is_fact else offset,
        }
        yield json.dumps({**place, **_form(entry)}, ensure_ascii=False)

    def rest(self, *, at_end: bool = False) -> Iterator[str]:
        """The lines that wait for an entry that has not come: none."""
        return iter(())


@attrs.define
class _UntoldFact:
    """A fact whose sentence is told when it is known that it was not rejected."""

    record: FactRecord
    text: str
    rests: int = 0


class _Sentences:
    """What facts and decisions mean, in the words of `equipoise.replay.sentences`. `facts`: also
    facts without a sentence, by their kind and values.
    """

    def __init__(self, facts: bool) -> None:
        self._facts = facts
        self._once = _Once()
        self._cause: dict[str, FactRecord] = {}
        """Group -> its last fact: its decisions stand behind it."""
        self._waiting: dict[str, _UntoldFact] = {}

    def take(self, entry: Entry, *, is_new: bool) -> Iterator[str]:
        """The lines of the next entry. `is_new`: it was not read before."""
        from equipoise.replay.sentences import of_fact  # with the assignors, which nothing else here needs

        number = _number(entry)
        if isinstance(entry, UnreadRecord):
            if self._facts and is_new if number is None else self._once.is_new(entry.group, number):
                yield f"{'':12} #{entry.offset} {entry.group}: {codec.kind_name(entry.kind)} {entry.version}: {entry.problem}"
        elif isinstance(entry, DecisionRecord):
            yield from self._decided(entry)
        elif isinstance(entry, FactRecord):
            self._cause[entry.group] = entry
            if not is_new:
                return
            yield from self._told(entry.group)
            said = of_fact(entry.event)
            if said is not None:
                self._waiting[entry.group] = _UntoldFact(entry, said.text)
            elif self._facts:
                text = json.dumps(codec.to_json(entry.event)["event"], ensure_ascii=False)
                yield _line(entry, f"{type(entry.event).__name__} {text if len(text) <= _MOST_CHARS else text[:_MOST_CHARS] + ' ...'}")

    def _decided(self, stored: DecisionRecord) -> Iterator[str]:
        from equipoise.replay.sentences import of_decision

        waiting = self._waiting.get(stored.group)
        if isinstance(stored.decision, EventRejected) and waiting is not None and waiting.record.offset == stored.caused_by:
            del self._waiting[stored.group]
        if not self._once.is_new(stored.group, stored.number):
            return
        cause = self._cause.get(stored.group)
        if cause is None or cause.offset != stored.caused_by:
            cause = None
        before = isinstance(stored.decision, EventRejected) or cause is None
        yield from () if before else self._told(stored.group)
        if cause is None:  # its fact is not in the log any more, or far before
            yield f"{'':12} #{stored.caused_by} {stored.group}: {type(stored.decision).__name__}"
            return
        for said in of_decision(stored.decision, cause.event):
            yield _line(cause, said.text)

    def _told(self, group: str) -> Iterator[str]:
        waiting = self._waiting.pop(group, None)
        if waiting is not None:
            yield _line(waiting.record, waiting.text)

    def rest(self, *, at_end: bool = False) -> Iterator[str]:
        """The sentences of facts that still wait for their decisions: at the second call, because
        in a log that is followed these may come a moment later. `at_end`: none will come.
        """
        for group, waiting in list(self._waiting.items()):
            waiting.rests += 1
            if at_end or waiting.rests > 1:
                yield from self._told(group)


def _form(entry: FactRecord | DecisionRecord | UnreadRecord) -> dict[str, object]:
    if isinstance(entry, UnreadRecord):
        return {"kind": codec.kind_name(entry.kind), "event": {"version": entry.version, "problem": entry.problem}}
    return codec.to_json(entry.event if isinstance(entry, FactRecord) else entry.decision)


def _line(cause: FactRecord, text: str) -> str:
    return f"{clock_text(cause.append_ms)} #{cause.offset} {cause.group}: {text}"
