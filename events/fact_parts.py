"""Splits facts that are too large for one event: what a first fact holds, and what later facts add
(docs/protocol.md#l8).

A fact that fits is unchanged. Sizes are upper bounds, as in `equipoise.events.parts`, unless a fact
is near the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from equipoise.events import codec
from equipoise.events.codec import MOST_EVENT_BYTES
from equipoise.events.facts import LagReported, Load, MemberJoined, PartitionsObserved
from equipoise.events.parts import HEAD_BYTES, HOLD_BYTES, TASK_BYTES, text_bytes, weighed_runs
from equipoise.events.tasks import Lag, TaskId

LAG_BYTES = 30
"""Upper bound for a task in text form with its lag."""
_JOIN_BYTES = 30_000
"""Upper bound for a join without lags, with the longest names and tags."""
_NUMBER_BYTES = 15
"""Upper bound for a partition with an offset, a weight or a lag, headers included."""

LagOrder = Callable[[tuple[TaskId, Lag]], Any]
"""Sorting key: the copies to report first when not all fit."""


def nearest_first(item: tuple[TaskId, Lag]) -> tuple[int, int, TaskId]:
    """Orders copies by lag, the nearest to ready first."""
    task, lag = item
    return (0, lag, task) if isinstance(lag, int) else (1, 0, task)


def shortened_join(joined: MemberJoined, most_bytes: int = MOST_EVENT_BYTES) -> MemberJoined:
    """Returns the join with as many lags as fit, the nearest to ready first. Later reports have the
    rest.
    """
    bound = _JOIN_BYTES + LAG_BYTES * len(joined.lags)
    if joined.subtopologies is None and _fits(bound, joined, most_bytes):
        return joined
    room = most_bytes - codec.size_bytes(attrs.evolve(joined, lags={}))
    return attrs.evolve(joined, lags=_first(joined.lags, room, nearest_first))


def shortened_report(report: LagReported, order: LagOrder = nearest_first, most_bytes: int = MOST_EVENT_BYTES) -> LagReported:
    """Returns the report with as much of its load, forgotten copies and lags as fits. Later reports
    have the rest.

    A load loses all its numbers of single tasks, and the report all preparations. `held` and
    `ready` are never shortened: a member does not run a task that is missing there.
    """
    if _fits(_report_bytes(report), report, most_bytes):
        return report
    load = None if report.load is None else attrs.evolve(report.load, tasks={}, behind={}, busy={})
    report = attrs.evolve(report, load=load, preparing={}, failed=())
    if _fits(_report_bytes(report), report, most_bytes):
        return report
    room = most_bytes - codec.size_bytes(attrs.evolve(report, lags={}, forgotten=()))
    forgotten = report.forgotten[: max(0, room) // 2 // TASK_BYTES]
    return attrs.evolve(report, forgotten=forgotten, lags=_first(report.lags, room - TASK_BYTES * len(forgotten), order))


def report_in_parts(report: LagReported, most_bytes: int = MOST_EVENT_BYTES) -> Iterator[LagReported]:
    """Yields a full report, then reports with the changes that had no room in it. Each number is
    one higher than the last.
    """
    part = shortened_report(report, most_bytes=most_bytes)
    yield part
    while len(part.lags) < len(report.lags):
        rest = {task: lag for task, lag in report.lags.items() if task not in part.lags}
        report = attrs.evolve(report, number=part.number + 1, base=part.number, lags=rest, load=None)
        part = shortened_report(report, most_bytes=most_bytes)
        yield part


def task_sets(tasks: Iterable[TaskId], most_bytes: int = MOST_EVENT_BYTES) -> Iterator[tuple[TaskId, ...]]:
    """Yields the tasks in rising order, in sets that each fit into a fact with little else in it.
    Yields nothing for no tasks.
    """
    rising = tuple(sorted(set(tasks)))
    most = max(1, (most_bytes - 5 * HEAD_BYTES) // TASK_BYTES)
    for at in range(0, len(rising), most):
        yield rising[at : at + most]


def observed_in_parts(observed: PartitionsObserved, most_bytes: int = MOST_EVENT_BYTES) -> Iterator[PartitionsObserved]:
    """Yields the observation if it fits, else several that together say the same."""
    maps: list[tuple[str, dict[str, dict[int, Any]]]] = [(name, getattr(observed, name)) for name in _OBSERVED]
    items = [(name, topic, number, value) for name, by_topic in maps for topic, of in by_topic.items() for number, value in of.items()]
    weights = [_observed_bytes(*item) for item in items]
    if HEAD_BYTES + sum(weights) <= most_bytes or codec.size_bytes(observed) <= most_bytes:
        yield observed
        return
    for begin, end in weighed_runs(weights, most_bytes - HEAD_BYTES):
        piece: dict[str, dict[str, dict[int, Any]]] = {}
        for name, topic, partition, value in items[begin:end]:
            piece.setdefault(name, {}).setdefault(topic, {})[partition] = value
        yield PartitionsObserved(**piece)


_OBSERVED = ("end_offsets", "racks", "weights", "source_lags")


def _observed_bytes(name: str, topic: str, partition: int, value: Any) -> int:
    racks = sum(map(text_bytes, value)) if name == "racks" else 0
    return text_bytes(topic) + _NUMBER_BYTES + racks


def _first(lags: Mapping[TaskId, Lag], room: int, order: LagOrder) -> dict[TaskId, Lag]:
    return dict(sorted(sorted(lags.items(), key=order)[: max(0, room) // LAG_BYTES]))


def _report_bytes(report: LagReported) -> int:
    """Upper bound for the size of a report in bytes."""
    load = 0 if report.load is None else _load_bytes(report.load)
    tasks = len(report.held) + len(report.ready) + len(report.forgotten) + len(report.failed)
    return HEAD_BYTES + text_bytes(report.member_id) + TASK_BYTES * tasks + HOLD_BYTES * len(report.preparing) + LAG_BYTES * len(report.lags) + load


def _load_bytes(load: Load) -> int:
    return HEAD_BYTES + HOLD_BYTES * (len(load.tasks) + len(load.behind) + len(load.busy))


def _fits(bound: int, fact: MemberJoined | LagReported, most_bytes: int) -> bool:
    return bound <= most_bytes or codec.size_bytes(fact) <= most_bytes
