"""The searches: every set of faults that a full search covers, and each rule of the table in
docs/protocol.md left out.
"""

from __future__ import annotations

from typing import Any

import attrs

from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.member import MemberSession
from tests.search import rules
from tests.search.search import Found, Search
from tests.search.world import Stepper


@attrs.frozen(kw_only=True)
class Planned:
    """One search. Each of `faults` may happen once, at any moment. Sessions last `session_steps`;
    the broker's clock jumps by `jump_steps`.
    """

    faults: frozenset[str] = frozenset()
    session_steps: int = 5
    margin_steps: int = 1
    others: tuple[int, int] | None = None
    """Session and margin of every process but m1's first; None: the same."""
    later: tuple[int, int] | None = None
    """... of the processes that start later; None: as the others."""
    most_step_ms: int = 1
    """What `max_step_ms` is raised to."""
    jump_steps: int = 4
    suspects: int = 1
    """How many processes go step by step: m1, or m1 and m2."""
    session_class: type[MemberSession] = MemberSession
    machine_class: type[GroupMachine] = GroupMachine


def _planned(*faults: str, **options: Any) -> Planned:
    return Planned(faults=frozenset(faults), **options)


WHOLE: dict[str, Planned] = {
    "expired, with a clock jump": _planned("clock jumps", others=(3, 2)),
    "superseded, with a clock jump": _planned("clock jumps", "second process", session_steps=4, others=(3, 2)),
    "expelled, with a clock jump": _planned("clock jumps", "task reassigned", session_steps=4, others=(3, 2)),
    "crashed and back with proof, with a clock jump": _planned("clock jumps", "crash", "restart"),
    "crashed and proven dead, with a clock jump": _planned("clock jumps", "crash", "proven dead", session_steps=4),
    "superseded and proven dead": _planned("second process", "crash", "proven dead", session_steps=3),
    "expelled and proven dead": _planned("task reassigned", "crash", "proven dead", session_steps=3),
    "leaving, with a clock jump": _planned("clock jumps", "leaves", session_steps=4),
    "closed, with a clock jump": _planned("clock jumps", "stops", session_steps=4),
    "expelled, and the next owner restarts": _planned("task reassigned", "m2 restarts", session_steps=4),
    "superseded, and closed all the same": _planned("second process", "stops", session_steps=4),
    "superseded by a longer session, with a clock jump": _planned("clock jumps", "second process", session_steps=3, others=(5, 1)),
    "both step by step, with a clock jump": _planned("clock jumps", session_steps=3, suspects=2),
    "both step by step, unequal sessions": _planned("clock jumps", session_steps=3, others=(2, 1), suspects=2),
    "both step by step, one superseded": _planned("second process", session_steps=4, others=(2, 1), suspects=2),
    "max_step_ms raised and set back, with a clock jump": _planned(
        "clock jumps", "max_step_ms raised", "set back", session_steps=4, margin_steps=2, most_step_ms=2
    ),
    "max_step_ms raised, superseded, with a clock jump": _planned(
        "clock jumps", "max_step_ms raised", "second process", session_steps=4, margin_steps=2, most_step_ms=2
    ),
    "max_step_ms raised, expelled, with a clock jump": _planned(
        "clock jumps", "max_step_ms raised", "task reassigned", session_steps=3, margin_steps=2, most_step_ms=2
    ),
    "expelled, and the revocation timeout is lowered": _planned("task reassigned", "revocation timeout lowered", session_steps=3),
    "expelled, and the revocation timeout is raised": _planned("task reassigned", "revocation timeout raised", session_steps=3),
    "another assignor and back": _planned("other assignor", "set back", session_steps=3),
    "another assignor, with a clock jump": _planned("clock jumps", "other assignor", session_steps=3),
    "another assignor, superseded": _planned("other assignor", "second process", session_steps=3),
    "tasks removed and back": _planned("tasks removed", "tasks return", session_steps=3),
    "tasks removed and back, superseded": _planned("tasks removed", "tasks return", "second process", session_steps=3),
    "asked to leave and to stay": _planned("asked to leave", "asked to stay", session_steps=3),
    "asked to leave, and the drain timeout is raised": _planned("asked to leave", "drain timeout raised", session_steps=3),
    "redeployed with a longer session and another margin": _planned("clock jumps", "m2 restarts", session_steps=3, later=(5, 2)),
    "expelled, and the next owner is redeployed": _planned("task reassigned", "m2 restarts", session_steps=3, later=(5, 2)),
}
"""Searched to the end at every change."""

LONG: dict[str, Planned] = {
    "expelled, with a clock jump, the same sessions": _planned("clock jumps", "task reassigned", session_steps=4),
    "expelled, with a clock jump, longer session": _planned("clock jumps", "task reassigned"),
    "leaving, with a clock jump, longer session": _planned("clock jumps", "leaves"),
    "expelled, superseded and crashed": _planned("task reassigned", "second process", "crash", "restart"),
    "expelled, superseded, a clock jump, and the next owner restarts": _planned(
        "clock jumps", "task reassigned", "second process", "m2 restarts", session_steps=3
    ),
    "superseded, and the next owner too": _planned("second process", "m2 is doubled"),
    "expelled, and the next owner superseded": _planned("task reassigned", "m2 is doubled", session_steps=4, others=(2, 1)),
    "leaving and superseded": _planned("leaves", "second process", session_steps=4),
    "both step by step, with a clock jump, longer session": _planned("clock jumps", session_steps=4, suspects=2),
    "both step by step, one expelled": _planned("task reassigned", session_steps=3, suspects=2),
}
"""Searched to the end by `python -m tests.search`."""

BROKEN: dict[str, Planned] = {
    "lease dated from its sending": _planned("clock jumps", session_class=rules.DatedFromArrival),
    "a lapsed lease never revives": _planned(session_class=rules.Revives),
    "group time clamped to max_step_ms": _planned("clock jumps", machine_class=rules.TimeFollowsTheClock),
    "margin for failovers": _planned("clock jumps", session_class=rules.NoMargin),
    "hold after force (superseded)": _planned("second process", session_class=rules.NoHold),
    "hold after force (expelled)": _planned("task reassigned", session_class=rules.NoHold),
    "a proof of death is true": _planned("false proof"),
    "a hold passes to the next owner": _planned("task reassigned", "m2 restarts", machine_class=rules.HoldsAreForgotten),
    "a fetch that reached the end (superseded)": _planned("second process", session_class=rules.HeartbeatsAlone),
    "a fetch that reached the end (expelled)": _planned("task reassigned", session_steps=4, session_class=rules.HeartbeatsAlone),
    "max_step_ms within the margins of members": _planned(
        "clock jumps", "max_step_ms raised", session_steps=4, most_step_ms=2, machine_class=rules.MarginsDoNotCount
    ),
    "max_step_ms within the margins of fenced incarnations": _planned(
        "clock jumps",
        "max_step_ms raised",
        "second process",
        session_steps=3,
        others=(3, 2),
        most_step_ms=2,
        machine_class=rules.FencedMarginsDoNotCount,
    ),
}
"""Rule -> the search that finds two owners without it."""


def run(planned: Planned) -> Found:
    """Searches to the end, or to the first state with two owners."""
    stepper = Stepper(
        session_steps=planned.session_steps,
        margin_steps=planned.margin_steps,
        jump_steps=planned.jump_steps,
        others=planned.others,
        later=planned.later,
        most_step_ms=planned.most_step_ms,
        session_class=planned.session_class,
        machine_class=planned.machine_class,
    )
    return Search(stepper, planned.faults, planned.suspects).run()
