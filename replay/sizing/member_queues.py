"""The lag that a number of members would have had: each member a queue that takes the arrivals of
its tasks, bucket by bucket, and does what a member can.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import attrs

from equipoise.events.tasks import TaskId
from equipoise.replay.sizing.demand import BUCKET_MS, Demand

BUCKET_S = BUCKET_MS / 1_000


@attrs.frozen(kw_only=True)
class Lagging:
    """`lag_s`: the longest time until a record was processed. `utilisation`: of the busiest member,
    in its busiest minute. `mean_utilisation`: of all members, in the busiest minute of all.
    """

    lag_s: float
    utilisation: float
    mean_utilisation: float


def work_of(demand: Demand) -> dict[TaskId, tuple[float, ...]]:
    """Returns task -> what arrives in each bucket, in average records."""
    return {task: tuple(each * demand.weights[task] for each in series) for task, series in demand.arrivals.items()}


def lagging(
    work: Mapping[TaskId, Sequence[float]],
    shares: Iterable[Sequence[TaskId]],
    alone: Mapping[TaskId, float],
    per_s: float,
    bucket_s: float = BUCKET_S,
    hot: Container[TaskId] = (),
) -> Lagging:
    """Returns how far members would have fallen behind. `work`: task -> average records that arrive
    in each bucket. `shares`: the tasks of each member. `alone`: task -> average records a second of
    a task, as one record follows another. `per_s`: average records a second of a member. `hot`:
    tasks whose own lag does not count. A member gives its tasks turns of the same length, so such a
    one takes its part from the others, and no more.
    """
    most = per_s * bucket_s
    members = []
    for tasks in shares:
        known = [task for task in tasks if task in work]
        members.append(_summed([[min(each, most / len(known)) for each in work[task]] if task in hot else work[task] for task in known]))
    lags = [longest_lag_s(series, per_s, bucket_s) for series in members]
    lags += [longest_lag_s(series, alone[task], bucket_s) for task, series in work.items() if task in alone]
    whole = _summed([series for series in members if series])
    return Lagging(
        lag_s=max(lags, default=0.0),
        utilisation=max((max(series, default=0.0) for series in members), default=0.0) / most,
        mean_utilisation=max(whole, default=0.0) / most / max(1, len(members)),
    )


def longest_lag_s(series: Sequence[float], per_s: float, bucket_s: float = BUCKET_S) -> float:
    """Returns how long the last record of a bucket waits at most, when `per_s` are processed."""
    most = per_s * bucket_s
    behind = longest = 0.0
    for arrived in series:
        behind = max(0.0, behind + arrived - most)
        longest = max(longest, behind)
    return longest / per_s


def dealt(tasks: Iterable[TaskId], members: int) -> list[list[TaskId]]:
    """Returns the tasks of each member when they are dealt by count."""
    shares: list[list[TaskId]] = [[] for _ in range(members)]
    for index, task in enumerate(sorted(tasks)):
        shares[index % members].append(task)
    return shares


def _summed(series: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(map(sum, zip(*series, strict=True))) if series else ()
