"""Tells what happened to a group as one HTML page that loads nothing: the picture of the timeline,
each incident as a window of it, and what it was in words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from equipoise.replay.all_clear import AllClear
from equipoise.replay.drawing.colours import CAUSE_COLOURS, colour_numbers, member_colour
from equipoise.replay.importers.groups.observed import ObservedGroup
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.coordinator_history import GroupHistory
from equipoise.replay.incident.rebalances import name_of
from equipoise.replay.incident.unavailable import Gap
from equipoise.replay.incident.values import Incident
from equipoise.replay.numbers import LONGEST_GAP, MOVES, WITHOUT_COMMITS
from equipoise.replay.timelines.build import as_people_sort
from equipoise.replay.timelines.page import MOST_ROWS, render_data
from equipoise.replay.wording import counted, day_text, span_text

MARGIN_MS = 30_000
"""Drawn before the first incident and after the last."""
_RUNNING, _STANDS_STILL, _NOBODY = 0, 2, 3
_COLOURS = {
    Cause.JOINED: "join",
    Cause.BACK: "join",
    Cause.FIRST: "join",
    Cause.LEFT: "leave",
    Cause.GONE: "leave",
    Cause.RESTARTED: "leave",
    Cause.EXPIRED: "expiry",
    Cause.POLL_TIMEOUT: "expiry",
    Cause.PROBING: "probing",
    Cause.FOLLOW_UP: "follow-up",
}
"""Causes as the timeline's picture knows them; the others have the colour of none."""


def render_incidents(
    history: GroupHistory, found: Sequence[Incident], told: Mapping[Incident, Sequence[str]], shown: Callable[[Any], Any] = lambda drawn: drawn
) -> str:
    """Returns the page as HTML. `told`: incident -> what it was, in lines. `shown`: applied to all
    that is drawn, to replace names. Equal arguments give equal pages.
    """
    return render_data(shown(page_data(history, found, told)), shown(f"{history.group} · equipoise incident"))


def page_data(history: GroupHistory, found: Sequence[Incident], told: Mapping[Incident, Sequence[str]]) -> dict[str, Any]:
    """Returns what the page's script draws, as `page_data` of a timeline's page does."""
    from_ms, to_ms = _span(history, found)
    shown = _Shown(history, from_ms, to_ms)
    gaps = sorted({gap for each in found for gap in each.gaps}, key=lambda gap: (gap.partition, gap.from_ms))
    unavailable_ms = sum(each.unavailable_ms for each in found)
    longest_ms = max((gap.unavailable_ms for gap in gaps), default=0)
    left_out = len(shown.every) - len(shown.works)
    incidents = counted(len(found), "incident") if found else AllClear.NO_INCIDENT
    return {
        "title": f"{history.group}: what happened",
        "subtitle": f"{day_text(from_ms)}, {span_text(to_ms - from_ms)}; {history.states[-1].group.kind.value if history.states else 'no records'}; "
        f"{incidents}, {counted(len(shown.every), 'piece')} of work, {counted(len(shown.members), 'member')}",
        "note": f"{counted(left_out, 'piece')} of work that changed least are not drawn." if left_out else "",
        "from": from_ms,
        "to": to_ms - from_ms,
        "cards": [
            [f"{len(found):,}", "incidents"],
            [f"{sum(len(each.chain) for each in found):,}", "rebalances"],
            [f"{sum(each.moves for each in found):,}", f"{MOVES}: changes of owner"],
            [span_text(unavailable_ms), f"{WITHOUT_COMMITS}, summed over partitions; {LONGEST_GAP} {span_text(longest_ms)}"],
        ],
        "columns": ["what began it", "after", "rebalances", MOVES, WITHOUT_COMMITS],
        "totals": [
            [
                ": ".join([each.cause.value, *([", ".join(each.members)] if each.members else [])]),
                span_text(each.begin_ms - from_ms),
                len(each.chain),
                each.moves,
                span_text(each.unavailable_ms),
            ]
            for each in found
        ],
        "caption": "",
        "stories": [[f"{day_text(each.begin_ms)} {each.cause.value}", list(told.get(each, ()))] for each in found],
        "windows": [{"label": each.cause.value, "from": max(0, each.begin_ms - from_ms), "to": each.end_ms - from_ms} for each in found],
        "members": shown.members,
        "colours": [member_colour(number) for number in colour_numbers(shown.members).values()],
        "cause_colours": CAUSE_COLOURS,
        "tasks": shown.works,
        "lives": [],
        "intervals": shown.intervals(gaps),
        "copies": shown.copies(),
        "moves": [],
        "rounds": [_round(each, from_ms, history.state_at(each.end_ms)) for one in found for each in one.chain],
        "lags": [],
        "imbalance": [],
    }


def _span(history: GroupHistory, found: Sequence[Incident]) -> tuple[int, int]:
    first_ms, last_ms = (history.states[0].at_ms, history.states[-1].at_ms) if history.states else (0, 1)
    if not found:
        return first_ms, max(last_ms, first_ms + 1)
    return max(first_ms, min(each.begin_ms for each in found) - MARGIN_MS), max(each.end_ms for each in found) + MARGIN_MS


def _round(each: Rebalance, from_ms: int, group: ObservedGroup | None) -> dict[str, Any]:
    return {
        "ms": each.end_ms - from_ms,
        "offset": None,
        "generation": each.number,
        "cause": _COLOURS.get(each.cause, "unknown"),
        "text": each.cause.value,
        "moves": len(each.changed),
        "members": 0 if group is None else len(group.readers),
    }


class _Shown:
    """Says who had what, between two times."""

    def __init__(self, history: GroupHistory, from_ms: int, to_ms: int) -> None:
        begin = history.state_at(from_ms)
        states = [(from_ms, begin)] if begin is not None else []
        states += [(state.at_ms, state.group) for state in history.states if from_ms < state.at_ms < to_ms]
        self._from_ms = from_ms
        self._spans = [(at_ms, end_ms, group) for (at_ms, group), (end_ms, _) in pairwise([*states, (to_ms, None)]) if group is not None]
        changes: dict[str, int] = {}
        for _, _, group in self._spans:
            for work in group.owners:
                changes[work] = changes.get(work, 0) + 1
        self.every = sorted(changes, key=as_people_sort)
        self.works = sorted(sorted(self.every, key=lambda work: -changes[work])[:MOST_ROWS], key=as_people_sort)
        self.members = sorted({name_of(member) for _, _, group in self._spans for member in group.members.values()}, key=as_people_sort)
        self._who = {name: number for number, name in enumerate(self.members)}

    def intervals(self, gaps: Sequence[Gap]) -> list[list[int | None]]:
        """Returns them as the page's script takes them: work, member, condition, from, to, offset,
        generation.
        """
        stopped = self._stopped(gaps)
        found: list[list[int | None]] = []
        for number, work in enumerate(self.works):
            for from_ms, to_ms, member, generation in self._owned(work):
                cuts = sorted({from_ms, to_ms, *(ms for span in stopped.get(work, ()) for ms in span if from_ms < ms < to_ms)})
                for begin_ms, end_ms in pairwise(cuts):
                    still = any(begin <= begin_ms < end for begin, end in stopped.get(work, ()))
                    condition = _NOBODY if member < 0 else _STANDS_STILL if still else _RUNNING
                    found.append([number, member, condition, begin_ms - self._from_ms, end_ms - self._from_ms, None, generation])
        return found

    def copies(self) -> list[list[int | None]]:
        """Standbys and warm-ups of Kafka Streams."""
        index = {work: number for number, work in enumerate(self.works)}
        found: dict[tuple[int, int, int], list[list[int]]] = {}
        for from_ms, to_ms, group in self._spans:
            for member in group.members.values():
                for is_warmup, works in ((0, member.standby), (1, member.warmup)):
                    for work in works & index.keys():
                        spans = found.setdefault((index[work], self._who[name_of(member)], is_warmup), [])
                        if spans and spans[-1][1] == from_ms:
                            spans[-1][1] = to_ms
                        else:
                            spans.append([from_ms, to_ms])
        return [[*key, from_ms - self._from_ms, to_ms - self._from_ms, None] for key, spans in sorted(found.items()) for from_ms, to_ms in spans]

    def _owned(self, work: str) -> list[tuple[int, int, int, int]]:
        found: list[tuple[int, int, int, int]] = []
        for from_ms, to_ms, group in self._spans:
            owners = group.owners.get(work)
            member = -1 if not owners else self._who[name_of(group.members[owners[0]])]
            if found and found[-1][2] == member:
                found[-1] = (found[-1][0], to_ms, member, found[-1][3])
            else:
                found.append((from_ms, to_ms, member, group.epoch))
        return found

    def _stopped(self, gaps: Sequence[Gap]) -> dict[str, list[tuple[int, int]]]:
        begins = [from_ms for from_ms, _, _ in self._spans]
        reads: dict[int, dict[str, list[str]]] = {}
        works: dict[str, list[tuple[int, int]]] = {}
        for gap in gaps:
            place = max(0, bisect_right(begins, gap.until_ms) - 1)
            if self._spans and place not in reads:
                reads[place] = _readers(self._spans[place][2])
            for work in reads.get(place, {}).get(gap.partition, ()):
                works.setdefault(work, []).append((gap.until_ms - gap.unavailable_ms, gap.until_ms))
        return works


def _readers(group: ObservedGroup) -> dict[str, list[str]]:
    """Partition -> the work that reads it."""
    found: dict[str, list[str]] = {}
    for work in group.owners:
        for partition in group.partitions_of(work):
            found.setdefault(partition, []).append(work)
    return found
