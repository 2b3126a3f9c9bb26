"""Sums of what a group's history cost, by day and by what began it: a crash, a leave, a deployment,
a rebalance.

Causes are those of rounds (`equipoise.replay.wording.CAUSES`), and COST_CAUSES. A stretch without a
running owner belongs to what began it, however many rounds it lasted; a change of owner to what
began its movement. Each counts in full on one day, by the rule of `Timeline.totals`, so that the
sums over all days and causes are its totals.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from equipoise.events.tasks import TaskId
from equipoise.replay.history import MoveStory
from equipoise.replay.owners import Condition, Interval
from equipoise.replay.timelines.values import Lifeline, Timeline, changes_owner
from equipoise.replay.wording import CAUSES

COST_CAUSES: Mapping[str, str] = {
    "start": "the group began",
    "deploy": "several members were restarted, one after the other",
    "restarting": "a member was restarted",
    "expiry": "a member crashed, or was not heard of for its session timeout",
    "silent": "a member was not heard of for its lease, and was back before its session was over",
}
"""Causes that rounds do not have, or that mean more here -> text."""
_ENDS: Mapping[str, str] = {
    "left": "leave",
    "restarting": "restarting",
    "superseded": "restarting",
    "replaced": "restarting",
    "revocation_timeout": "expelled",
}
"""`Lifeline.how` -> cause; all others: ``expiry``."""
_FOLLOWS = ("", "handover", "follow-up", "hold_over")
"""Causes of rounds that an earlier one has asked for."""
ROLLING_MS = 300_000
"""Restarts so soon after each other are of one deployment."""
SUMMED = ("stretches", "stopped_ms", "moves", "restored_records")
"""Fields of `Cost` that are summed over days and groups."""
_DAY_MS = 86_400_000


@attrs.frozen(kw_only=True)
class Cost:
    """What one cause cost on one day (UTC, as ``2026-11-23``)."""

    day: str
    cause: str
    stretches: int
    """Of tasks without a running owner."""
    tasks: int
    """Those with such a stretch."""
    stopped_ms: int
    longest_ms: int
    moves: int
    """Changes of owner."""
    restored_records: int
    """By those who got them, as far as it is known."""


def cause_of_cost_text(cause: str) -> str:
    """Returns a cause of a cost as a clause."""
    return COST_CAUSES.get(cause) or CAUSES.get(cause, cause)


def costs_of(timeline: Timeline, from_ms: int | None = None, to_ms: int | None = None) -> list[Cost]:
    """Returns the costs of [from_ms, to_ms) by day and cause. None: the log's own ends, the last
    moment included.
    """
    start_ms = timeline.from_ms if from_ms is None else from_ms
    end_ms = timeline.to_ms + 1 if to_ms is None else to_ms
    causes = _Causes(timeline)
    found: dict[tuple[str, str], Cost] = {}
    tasks: dict[tuple[str, str], set[TaskId]] = {}

    def at(ms: int, cause: str) -> tuple[tuple[str, str], Cost]:
        key = dt.datetime.fromtimestamp(ms // _DAY_MS * _DAY_MS // 1_000, dt.UTC).date().isoformat(), cause
        nothing = Cost(day=key[0], cause=cause, stretches=0, tasks=0, stopped_ms=0, longest_ms=0, moves=0, restored_records=0)
        return key, found.get(key, nothing)

    begins = {(interval.task, interval.from_ms): interval for interval in timeline.intervals}
    ended = {(interval.task, interval.to_ms): interval for interval in timeline.intervals}
    for task, stretches in timeline.stopped(start_ms, end_ms).items():
        for since_ms, until_ms in stretches:
            key, so_far = at((since_ms + until_ms) // 2, causes.of_stretch(begins[task, since_ms], ended.get((task, since_ms))))
            lasted_ms = until_ms - since_ms
            of = tasks.setdefault(key, set())
            of.add(task)
            found[key] = attrs.evolve(
                so_far,
                stretches=so_far.stretches + 1,
                tasks=len(of),
                stopped_ms=so_far.stopped_ms + lasted_ms,
                longest_ms=max(so_far.longest_ms, lasted_ms),
            )
    for move in timeline.moves:
        if changes_owner(move) and start_ms <= (move.ended_ms or 0) < end_ms:
            key, so_far = at(move.ended_ms or 0, causes.of_move(move))
            found[key] = attrs.evolve(so_far, moves=so_far.moves + 1, restored_records=so_far.restored_records + max(0, move.restored_records or 0))
    return [found[key] for key in sorted(found)]


class _Causes:
    """Finds what began a stretch or a movement of one history."""

    def __init__(self, timeline: Timeline) -> None:
        self._rounds: dict[int, str] = {}
        """Offset -> cause of the round, of one that follows up that of the one before."""
        root = "unknown"
        for each in timeline.rounds:
            root = self._rounds[each.offset] = root if each.cause in _FOLLOWS else each.cause
        self._moves: dict[TaskId, list[MoveStory]] = {}
        for move in timeline.moves:
            self._moves.setdefault(move.task, []).append(move)
        self._ends = {(life.member_id, life.ended_ms): cause for life, cause in _ends(timeline.lifelines)}

    def of_stretch(self, first: Interval, before: Interval | None) -> str:
        """`first`: the interval with which it begins. `before`: of the same task; None: none."""
        if first.condition is Condition.SILENT:
            return self._ends.get((first.member_id or "", first.to_ms), "silent")
        owner = None if before is None else before.member_id
        cause = None if owner is None else self._ends.get((owner, first.from_ms))
        if cause is not None:
            return cause
        move = self._under_way(first.task, first.from_ms)
        return self._rounds.get(first.offset, "unknown") if move is None else self.of_move(move)

    def _under_way(self, task: TaskId, at_ms: int) -> MoveStory | None:
        """The first of the task's movements that are under way then: those behind it that had ended
        need not be looked at.
        """
        found = None
        moves = self._moves.get(task, [])
        for at in range(bisect_right(moves, at_ms, key=lambda each: each.began_ms) - 1, -1, -1):
            ended_ms = moves[at].ended_ms
            if ended_ms is not None and ended_ms < at_ms:
                break
            found = moves[at]
        return found

    def of_move(self, move: MoveStory) -> str:
        """A movement that waits for a slot is wanted since the round in which it began to."""
        cause = None if move.source is None else self._ends.get((move.source, move.began_ms))
        of_steps = (step.cause or self._rounds.get(step.offset, "") for step in move.steps)
        return cause or next((each for each in of_steps if each not in _FOLLOWS), self._rounds.get(move.steps[0].offset, "unknown"))


def _ends(lives: Sequence[Lifeline]) -> Iterable[tuple[Lifeline, str]]:
    """Ended lives, each with its cause. Restarts of several members within ROLLING_MS are a
    deployment.
    """
    joined: dict[str, list[int]] = {}
    for life in lives:
        joined.setdefault(life.member_id, []).append(life.joined_ms)
    causes: list[tuple[Lifeline, str]] = []
    restarts: list[tuple[int, str]] = []
    for life in lives:
        if life.ended_ms is None:
            continue
        cause = _ENDS.get(life.how, "expiry")
        begin = bisect_left(joined[life.member_id], life.ended_ms)
        is_back = begin < bisect_right(joined[life.member_id], life.ended_ms + ROLLING_MS)
        if cause in ("leave", "restarting"):
            cause = "restarting" if is_back else cause
        if cause == "restarting":
            restarts.append((life.ended_ms, life.member_id))
        causes.append((life, cause))
    rolling = _rolling(sorted(restarts))
    return [(life, "deploy" if (life.ended_ms, life.member_id) in rolling else cause) for life, cause in causes]


def _rolling(restarts: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those with a restart of another member soon before or after."""
    found: set[tuple[int, str]] = set()
    for at, (ended_ms, member_id) in enumerate(restarts):
        for other in restarts[at + 1 :]:
            if other[0] - ended_ms > ROLLING_MS:
                break
            if other[1] != member_id:
                found |= {(ended_ms, member_id), other}
    return found


Place = tuple[str, str]
"""(group, location): archives may have groups of one name."""


def by_cause(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the sums of rows of several groups (the fields of `Cost`, ``group`` and
    ``location``), one for each cause, the one that cost most first. ``worst_group``: the group that
    it cost most, in ``worst_location``.
    """
    sums: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[Place, int]] = {}
    for row in rows:
        cause = row["cause"]
        nothing = {"cause": cause, "cause_text": cause_of_cost_text(cause), "groups": 0, **dict.fromkeys(SUMMED, 0), "longest_ms": 0}
        of = sums.setdefault(cause, nothing)
        for name in SUMMED:
            of[name] += row[name]
        of["longest_ms"] = max(of["longest_ms"], row["longest_ms"])
        of_groups = groups.setdefault(cause, {})
        place = row["group"], row["location"]
        of_groups[place] = of_groups.get(place, 0) + row["stopped_ms"]
    for cause, of_groups in groups.items():
        worst = min(of_groups, key=lambda place: (-of_groups[place], place))
        what = {"worst_group": worst[0], "worst_location": worst[1], "worst_stopped_ms": of_groups[worst]}
        sums[cause] |= {"groups": len(of_groups), **what}
    return sorted(sums.values(), key=lambda of: (-of["stopped_ms"], -of["moves"], of["cause"]))


def by_group(rows: Iterable[Mapping[str, Any]]) -> dict[Place, dict[str, int]]:
    """Returns (group, location) -> cause -> `Cost.stopped_ms`, the one that cost most first."""
    found: dict[Place, dict[str, int]] = {}
    for row in rows:
        of = found.setdefault((row["group"], row["location"]), {})
        of[row["cause"]] = of.get(row["cause"], 0) + row["stopped_ms"]
    return {place: dict(sorted(of.items(), key=lambda each: (-each[1], each[0]))) for place, of in sorted(found.items())}
