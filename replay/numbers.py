"""The numbers that are told of a group: what each means, and what it is called
(docs/architecture.md#numbers).

A number that is told says where it comes from: *measured* at the records of an application,
*simulated*, or read from a log or from commits, which have names of their own. Two numbers are
compared only if they have one name and one source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import attrs

LEAST_GAP_MS = 1_000
"""A task whose records wait for no longer than this is not unavailable."""
UNAVAILABLE = "unavailable"
"""No record of a task was processed for more than LEAST_GAP_MS: from the last record before to the
first after. Only an application that is measured, or simulated, shows it.
"""
UNAVAILABLE_TASK_S = f"{UNAVAILABLE} task-s"
MEASURED, SIMULATED = "measured", "simulated"
"""Where a number of the time in which tasks are unavailable comes from."""
WITHOUT_RUNNER = "without a running owner"
"""What a log of equipoise shows: from the last fact of a running owner to the first fact that shows
the next one running. The first comes up to a heartbeat too early, the last up to one too late.
"""
WITHOUT_OWNER = "without an owner"
"""The same in a group that something else leads: its log shows no restore, so an owner counts as
running from its assignment on.
"""
WITHOUT_COMMITS = "without commits"
"""What commits show: a partition had records, and the time from one commit to the next was longer
than usual by LEAST_GAP_MS and more. It is the time beyond the usual, in partition-seconds.
"""
LONGEST_GAP = "longest gap"
"""Of one task or partition, at a stretch; of the kind that it stands beside."""
MOVES = "moves"
"""Changes of owner. The threads of one process are one owner. The first owner of a task is no move;
a task that goes away and comes back has moved twice.
"""
MOVED_FOR_GOOD = "moved for good"
"""Tasks whose owner at the end of an action is another than at its beginning."""
LAG = "lag"
"""Of a copy: records that it has still to restore. Of a partition that a group reads: its end less
the last commit; unknown where the group has committed nothing.
"""
NEVER_COMMITTED = "never committed"

Place = TypeVar("Place")
Stretches = Mapping[Place, Collection[tuple[int, int]]]
"""Task or partition -> (from ms, to ms) of each gap."""


@attrs.frozen(kw_only=True)
class Unavailable:
    """The time for which tasks were unavailable. `source`: MEASURED, or SIMULATED with how."""

    task_s: float
    longest_ms: int
    source: str


@attrs.frozen
class GapSums:
    """The gaps of one kind: summed over tasks, the tasks that had one, and the longest."""

    total_ms: int
    tasks: int
    longest_ms: int


def sum_gaps(stretches: Stretches[Place]) -> GapSums:
    """Returns the sums. Places without a gap are absent, or have none."""
    lasted = [[until_ms - from_ms for from_ms, until_ms in of_place] for of_place in stretches.values() if of_place]
    every = [each for of_place in lasted for each in of_place]
    return GapSums(total_ms=sum(every), tasks=len(lasted), longest_ms=max(every, default=0))


def counted_ms(span_ms: int) -> int:
    """Returns a span without a processed record as it counts: in full, or not at all."""
    return span_ms if span_ms > LEAST_GAP_MS else 0


def is_move(before: str | None, after: str | None) -> bool:
    """Returns whether a task has another owner than its last one. None: it has or had none."""
    return before is not None and after is not None and before != after


def lag_of(committed: int | None, end: int | None) -> int | None:
    """Returns the records of a partition after the last commit; None: not known, because nothing
    was committed or the partition is not there.
    """
    return None if committed is None or end is None else max(0, end - committed)


def joined(intervals: Iterable[tuple[Place, int, int]]) -> dict[Place, list[tuple[int, int]]]:
    """Returns place -> its stretches, joined where they touch. `intervals`: by place and time."""
    found: dict[Place, list[tuple[int, int]]] = {}
    for place, from_ms, to_ms in intervals:
        so_far = found.setdefault(place, [])
        if so_far and so_far[-1][1] == from_ms:
            so_far[-1] = (so_far[-1][0], to_ms)
        else:
            so_far.append((from_ms, to_ms))
    return found
