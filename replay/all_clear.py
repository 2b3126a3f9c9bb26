"""Every statement that something is well, and what it rests on: as of when, from whom, how complete.

No other module has such a sentence. One without its grounds cannot be made: `Grounds` needs all
three, and where one of them is missing, it says what is missing in the place of the sentence.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from equipoise.events.tasks import TaskId, ranges
from equipoise.replay.trouble import Severity, Trouble, first_names_text, troubles
from equipoise.replay.wording import clock_text, counted, day_text, span_text
from equipoise.statemachine.state import GroupPhase, GroupState, MemberState

if TYPE_CHECKING:
    from equipoise.statemachine.group_lead import GroupLead


class AllClear(enum.StrEnum):
    """The sentences, without a full stop. `Grounds.says` gives them their evidence."""

    RUNS = "every task runs, and nothing moves"
    BALANCED = "the group is balanced"
    NOTHING_WRONG = "nothing is wrong"
    NO_INCIDENT = "no incident was seen"
    NOTHING_WAITS = "nothing waits, and every task runs where it should"


LATE_MS = 2_000
"""A fact that members send in time is in the log so long after their session at the latest."""


@attrs.frozen
class Undecided:
    """`offset`, `append_ms`: of the first fact whose decisions are not all written. `decisions`:
    how many are not, of this fact and those after it.
    """

    offset: int
    append_ms: int
    decisions: int

    @property
    def text(self) -> str:
        """The sentence for people, without a full stop."""
        are = "is" if self.decisions == 1 else "are"
        return f"nobody has decided since {clock_text(self.append_ms)}: {counted(self.decisions, 'decision')} {are} not written"

    def document(self) -> dict[str, Any]:
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class AskedNow:
    """The answer of those who were asked beside the log. `workers`: how many workers of the log run,
    as their consumer group says; None: not known, and `unknown` says why. `now_ms`: wall time of
    that; None: facts are not compared with a clock, because the reader itself ends members that are
    silent.
    """

    workers: int | None
    unknown: str
    now_ms: int | None


@attrs.frozen(kw_only=True)
class AsOf:
    """The last fact whose decisions are written. `offset`; `append_ms`: when it came, by the
    broker's clock. `age_ms`: how old the last fact of the group was, by this machine's clock; None:
    nobody looked at a clock, because a file or a former moment was read.
    """

    offset: int
    append_ms: int
    age_ms: int | None


@attrs.frozen(kw_only=True)
class FromWhom:
    """The sources of a statement: leader and members. `workers`, `unknown`: as of `AskedNow`; None
    and "": nobody was asked, because a file or a former moment was read. `members`: how many are in
    the group. `silent`: those of whom nothing was read for longer than their sessions. `differs`:
    sentences, where members say of themselves what the log does not.
    """

    workers: int | None
    unknown: str
    members: int
    silent: tuple[str, ...]
    differs: tuple[str, ...]


@attrs.frozen(kw_only=True)
class HowComplete:
    """`undecided`: facts that were read and whose decisions are not written; None: there are none.
    `unread`: why the log was not read to its end; "": it was.
    """

    undecided: Undecided | None
    unread: str


@attrs.frozen(kw_only=True)
class Grounds:
    """The evidence of a statement about one group."""

    as_of: AsOf
    from_whom: FromWhom
    complete: HowComplete

    @property
    def missing(self) -> list[Trouble]:
        """Returns what keeps everybody from saying that the group is well, the worst first; empty:
        as far as is known, it is decided, written and reported.
        """
        return sorted(self._missing(), key=lambda each: each.severity)

    def _missing(self) -> Iterator[Trouble]:
        who, complete = self.from_whom, self.complete
        if complete.unread:
            yield Trouble(
                Severity.HALTED, f"the log is not read to its end: {complete.unread}; this is the state at {day_text(self.as_of.append_ms)}"
            )
        if complete.undecided is not None:
            yield Trouble(Severity.HALTED, f"{complete.undecided.text}{self._by()}; what follows is the state before")
        elif who.workers == 0:
            yield Trouble(Severity.HALTED, "no worker runs: nobody decides what becomes of the tasks of a member that leaves or ends")
        for text in who.differs:
            yield Trouble(Severity.STANDS_STILL, text)
        if who.silent and complete.undecided is None:
            yield Trouble(Severity.STANDS_STILL, f"{self._silent_text()}: whether their tasks run is not known")

    def _by(self) -> str:
        who = self.from_whom
        if who.workers is not None:
            return "; no worker runs" if who.workers == 0 else f"; {counted(who.workers, 'worker')} should: see what it logs"
        return f"; whether a worker runs is not known: {who.unknown}" if who.unknown else ""

    def _silent_text(self) -> str:
        silent, age_ms = self.from_whom.silent, self.as_of.age_ms or 0
        who = "no member" if len(silent) == self.from_whom.members else first_names_text(silent)
        was = "was heard" if who == "no member" else f"{'was' if len(silent) == 1 else 'were'} not heard"
        return f"{who} {was} for {span_text(age_ms)} or longer, by this machine's clock"

    @property
    def is_known(self) -> bool:
        """Returns whether all of the evidence is there: nothing is missing, and a worker is known to
        run.
        """
        return not self.missing and self.from_whom.workers is not None

    def says(self, clear: AllClear) -> str:
        """Returns the sentence with its evidence; or what is missing to say it."""
        missing = self.missing
        if missing:
            return missing[0].text
        who = self.from_whom
        if who.workers is None:
            when = f"as of {day_text(self.as_of.append_ms)}, offset {self.as_of.offset:,}"
            return f"{clear}, {when}" + (f"; whether a worker leads is not known: {who.unknown}" if who.unknown else "")
        when = clock_text(self.as_of.append_ms)[:8]
        return f"{clear}; as of {when} UTC, with {counted(who.workers, 'worker')} and {counted(who.members, 'member')} in their sessions"

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        who, undecided = self.from_whom, self.complete.undecided
        return {
            "as_of": attrs.asdict(self.as_of),
            "workers": who.workers,
            "unknown": who.unknown or None,
            "members": who.members,
            "silent": list(who.silent),
            "differs": list(who.differs),
            "undecided": None if undecided is None else undecided.document(),
            "unread": self.complete.unread or None,
            "missing": [each.text for each in self.missing],
        }


def grounds_of(
    shown: GroupState, *, read: GroupState | None = None, asked: AskedNow | None = None, undecided: Undecided | None = None, unread: str = ""
) -> Grounds:
    """Returns the grounds of what is said about a group. `shown`: the state that is shown. `read`:
    the one after the last fact that was read, decided on or not; None: the same. `asked`: None: a
    file or a former moment was read, and nobody was asked.
    """
    last = shown if read is None else read
    age_ms = None if asked is None or asked.now_ms is None else max(0, asked.now_ms - (last.last_append_ms or 0))
    who = FromWhom(
        workers=None if asked is None else asked.workers,
        unknown="" if asked is None else asked.unknown,
        members=len(shown.members),
        silent=() if age_ms is None else tuple(sorted(_silent(last, age_ms))),
        differs=tuple(_differences(shown)),
    )
    as_of = AsOf(offset=shown.last_offset, append_ms=shown.last_append_ms or 0, age_ms=age_ms)
    return Grounds(as_of=as_of, from_whom=who, complete=HowComplete(undecided=undecided, unread=unread))


def led_here(state: GroupState, unread: str = "") -> Grounds:
    """Returns the grounds of a group that the worker which speaks leads itself. `unread`: why it
    does not now; "": it does.
    """
    return grounds_of(state, asked=AskedNow(workers=1, unknown="", now_ms=None), unread=unread)


def all_troubles(lead: GroupLead, grounds: Grounds) -> list[Trouble]:
    """Returns what is wrong with a group, the worst first, and what is missing to know it."""
    if lead.halted is not None:
        return troubles(lead.machine.state, str(lead.halted))
    return sorted([*grounds.missing, *troubles(lead.machine.state)], key=lambda each: each.severity)


def nothing_seen(first_ms: int, last_ms: int, missing: Sequence[str]) -> str:
    """Returns that a recording has no incident, with its evidence. `first_ms`, `last_ms`: of the
    states that were read, 0: without times. `missing`: what the recording cannot tell.
    """
    read = f"between {day_text(first_ms)} and {day_text(last_ms)}, the first and last change that were read" if first_ms else "in what has no times"
    return "; ".join([f"{AllClear.NO_INCIDENT} {read}", *(f"it cannot tell {each}" for each in missing[:1])])


def _silent(state: GroupState, age_ms: int) -> Iterator[str]:
    """Members of whom nothing was read for longer than their sessions. `age_ms`: time since the
    last fact of the group.
    """
    for name, member in state.members.items() if state.phase is GroupPhase.LEADING else ():
        silent_ms = age_ms + state.now_ms - member.last_heard_ms
        if silent_ms > member.session_timeout_ms + LATE_MS and not state.is_away(name):
            yield name


def _differences(state: GroupState) -> Iterator[str]:
    """Compares what members say that they run with what the log gave them: tasks of grants that they
    have applied and do not hold.
    """
    for name, member in sorted(state.members.items()) if state.phase is GroupPhase.LEADING else ():
        if member.report_number < 0 or state.is_away(name):
            continue
        lacks = _not_held(state, member)
        if lacks:
            yield f"{name} says that it does not run {ranges(lacks)}, which the log gave it"


def _not_held(state: GroupState, member: MemberState) -> list[TaskId]:
    held = set(member.held)
    return sorted(task for task, epoch in member.active.items() if epoch <= member.applied_epoch and task not in held and task not in state.holds)
