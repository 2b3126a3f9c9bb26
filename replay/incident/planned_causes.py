"""Planned changes beside incidents: which of a group's changes was under way when an incident
began, and whether it is its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from equipoise.replay.incident.causes import Cause
from equipoise.replay.known_changes import KnownChange, cost_text, expected_text, verdict_text

CLOCKS_MS = 2_000
"""The log's broker and the coordinator agree on the time within so much."""
NO_PLAN_MS = 60_000
"""A change of settings that was not planned is named for so long."""
_GOES = (Cause.LEFT, Cause.GONE, Cause.EXPIRED, Cause.RESTARTED, Cause.NOTHING)
_COMES = (Cause.JOINED, Cause.FIRST, Cause.NOTHING)
_LEADS = (Cause.ASKED, Cause.FOLLOW_UP, Cause.PROBING, Cause.DELAY_OVER, Cause.NOTHING)
CAUSED_BY: dict[str, tuple[Cause, ...]] = {
    "configure": _LEADS,
    "deal": _LEADS,
    "scale_down": _GOES,
    "join": _COMES,
    "restart": (*_GOES, Cause.BACK, Cause.STATIC_BACK),
    "other": tuple(Cause),
}
"""Kind of a change -> what the coordinator sees of it."""


@attrs.frozen(kw_only=True)
class ChangeMeanwhile:
    """A change that was under way in an incident's span. `is_cause`: the incident began after it,
    with what such a change looks like.
    """

    change: KnownChange
    is_cause: bool

    def line(self) -> str:
        """Returns it in a line."""
        change = self.change
        if change.planned is None:
            return f"meanwhile settings were changed without a plan: {change.what()}"
        why = f", because {change.planned.why}" if change.planned.why else ""
        was = cost_text(change)
        told = f"expected {expected_text(change) or 'nothing'}; {f'it cost {was}: ' if was else ''}{verdict_text(change)}"
        return f"{'it was planned' if self.is_cause else 'meanwhile planned'} ({change.change_id}): {change.what()}{why}; {told}"


def changes_meanwhile(changes: Iterable[KnownChange], cause: Cause, begin_ms: int, first_ms: int, end_ms: int) -> tuple[ChangeMeanwhile, ...]:
    """Returns the changes of the incident's group that were under way between `begin_ms` and
    `end_ms`. `first_ms`: when its first rebalance began.
    """
    return tuple(
        ChangeMeanwhile(change=each, is_cause=each.planned is not None and cause in CAUSED_BY[each.kind] and each.append_ms <= first_ms + CLOCKS_MS)
        for each in changes
        if each.append_ms <= end_ms and _ends_ms(each) + CLOCKS_MS >= begin_ms
    )


def _ends_ms(change: KnownChange) -> int:
    if change.planned is None:
        return change.append_ms + NO_PLAN_MS
    return change.append_ms + change.planned.judge_within_ms if change.judged_ms is None else change.judged_ms


def without_names(changes: Sequence[KnownChange]) -> list[KnownChange]:
    """Returns the changes without what their authors wrote: it may name members."""
    return [
        each
        if each.planned is None
        else attrs.evolve(
            each, planned=attrs.evolve(each.planned, why="", what=each.planned.what if each.kind == "configure" else f"a change of kind {each.kind}")
        )
        for each in changes
    ]
