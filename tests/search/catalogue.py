"""What is searched: every set of faults that a full search covers, and each rule of PROTOCOL's last table left out."""

from __future__ import annotations

from typing import Any

import attrs

from statemachine.machine import GroupMachine
from statemachine.member import MemberSession
from tests.search import rules
from tests.search.search import Found, Search
from tests.search.world import Room


@attrs.frozen(kw_only=True)
class Planned:
    """One search: which faults may happen, each once, at any moment. A session is `session_steps` long, the broker's clock jumps `jump_steps`."""

    faults: frozenset[str] = frozenset()
    session_steps: int = 5
    margin_steps: int = 1
    jump_steps: int = 4
    session_class: type[MemberSession] = MemberSession
    machine_class: type[GroupMachine] = GroupMachine


def _planned(*faults: str, **options: Any) -> Planned:
    return Planned(faults=frozenset(faults), **options)


WHOLE: dict[str, Planned] = {
    "expired, with a clock jump": _planned("clock jumps"),
    "superseded, with a clock jump": _planned("clock jumps", "second process"),
    "expelled, with a clock jump": _planned("clock jumps", "told otherwise"),
    "crashed and back with proof, with a clock jump": _planned("clock jumps", "crash", "restart"),
    "closed, with a clock jump": _planned("clock jumps", "stops"),
}
"""Searched to the end at every change."""

LONG: dict[str, Planned] = {
    "leaving, with a clock jump": _planned("clock jumps", "leaves"),
    "expelled and superseded": _planned("told otherwise", "second process"),
    "expelled, crashed and superseded": _planned("told otherwise", "second process", "crash", "restart"),
}
"""Searched to the end by `python -m tests.search`."""

BROKEN: dict[str, Planned] = {
    "lease dated from its sending": _planned("clock jumps", session_class=rules.DatedFromArrival),
    "a lapsed lease never revives": _planned(session_class=rules.Revives),
    "group time clamped to max_step_ms": _planned("clock jumps", machine_class=rules.TimeFollowsTheClock),
    "margin for failovers": _planned("clock jumps", session_class=rules.NoMargin),
    "hold after force (superseded)": _planned("second process", session_class=rules.NoHold),
    "hold after force (expelled)": _planned("told otherwise", session_class=rules.NoHold),
    "a fetch that reached the end (superseded)": _planned("second process", session_class=rules.HeartbeatsAlone),
    "a fetch that reached the end (expelled)": _planned("told otherwise", session_class=rules.HeartbeatsAlone),
}
"""Rule -> the search that finds what happens without it."""


def run(planned: Planned) -> Found:
    """Searches to the end, or to the first state with two owners."""
    room = Room(
        session_steps=planned.session_steps,
        margin_steps=planned.margin_steps,
        jump_steps=planned.jump_steps,
        session_class=planned.session_class,
        machine_class=planned.machine_class,
    )
    return Search(room, planned.faults).run()
