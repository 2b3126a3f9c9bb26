"""Draws what arrives and what members can do many times, because neither is known for sure, and
says what lags and needs follow.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

import attrs

from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.replay.prediction.habits import quantile
from equipoise.replay.sizing.demand import FEWEST_BUSY, Demand
from equipoise.replay.sizing.member_queues import Lagging, dealt, lagging, longest_lag_s, work_of
from equipoise.replay.wording import counted

DRAWS = 100
NEXT_SPREAD = 0.1
"""By how much what arrives next differs from what arrived, in logarithms (one standard deviation),
where the log has no two days to compare.
"""


@attrs.frozen(kw_only=True)
class DrawnLoad:
    """A load with its draws. `work`: task -> average records that arrive in each bucket of
    `bucket_s`. `alone`: task -> average records a second of it at most. `draws`: (average records a
    second of a member, factor of what arrives). `basis`: where the first comes from.
    """

    work: Mapping[TaskId, Sequence[float]]
    alone: Mapping[TaskId, float]
    draws: Sequence[tuple[float, float]]
    basis: str
    bucket_s: float
    put_up_with: frozenset[TaskId] = frozenset()
    """Tasks whose own lag does not count: no number of members keeps it short."""

    @property
    def per_s(self) -> float:
        """Records a second of a member, in the middle draw."""
        return statistics.median(per_s for per_s, _ in self.draws)

    def lags(self, shares: Sequence[Sequence[Sequence[TaskId]]]) -> list[Lagging]:
        """Returns the lag of each draw; `shares`: the tasks of each member, of one draw after the
        other. More arrivals are as slower members.
        """
        return [
            lagging(
                self.work,
                shares[number % len(shares)],
                {task: each / factor for task, each in self.alone.items() if task not in self.put_up_with},
                per_s / factor,
                self.bucket_s,
                self.put_up_with,
            )
            for number, (per_s, factor) in enumerate(self.draws)
        ]

    def needs(self, tasks: Sequence[TaskId], target_lag_s: float) -> list[int]:
        """Returns for each draw, rising, the fewest members that keep the lag within the target
        when tasks are dealt by count; one more than there are tasks: none does. By halving, as more
        members never do less.
        """
        return sorted(attrs.evolve(self, draws=[draw])._fewest(tasks, target_lag_s) for draw in self.draws)

    def _fewest(self, tasks: Sequence[TaskId], target_lag_s: float) -> int:
        low, high = 1, len(tasks) + 1
        while low < high:
            members = (low + high) // 2
            if self.lags([dealt(tasks, members)])[0].lag_s <= target_lag_s:
                high = members
            else:
                low = members + 1
        return low

    def hot(self, target_lag_s: float) -> tuple[TaskId, ...]:
        """Returns the tasks that fall behind by more than the target on a member of their own."""
        does = statistics.median(per_s / factor for per_s, factor in self.draws)
        lags = {task: longest_lag_s(series, min(does, self.alone.get(task, math.inf)), self.bucket_s) for task, series in self.work.items()}
        return tuple(task for task, lag_s in lags.items() if lag_s > target_lag_s)


def draw_load(demand: Demand, member_records_per_s: float | None = None, draws: int = DRAWS) -> DrawnLoad:
    """Returns the load with so many draws. `member_records_per_s`: what a member can do, where that
    is known otherwise. Raises InputError where nothing tells. Deterministic.
    """
    found, basis = _draws(demand, member_records_per_s, draws)
    alone = {task: each * demand.weights[task] for task, each in demand.alone.items()}
    return DrawnLoad(work=work_of(demand), alone=alone, draws=found, basis=basis, bucket_s=demand.bucket_s)


def count_at(needs: Sequence[int], share: float) -> int:
    """Returns how many members do in this share of the draws. `needs`: rising."""
    return math.ceil(quantile([float(each) for each in needs], share) - 1e-9)


def _draws(demand: Demand, given: float | None, draws: int) -> tuple[list[tuple[float, float]], str]:
    dice = random.Random("size")
    trend = demand.trend
    factors = [math.exp(dice.gauss(0, NEXT_SPREAD)) * (1.0 if trend is None else max(1.0, trend)) for _ in range(draws)]
    if given is not None:
        return [(given, factor) for factor in factors], "given"
    if len(demand.busy) >= FEWEST_BUSY:
        busy = demand.busy
        means = [statistics.median(dice.choices(busy, k=len(busy))) for _ in range(draws)]
        return list(zip(means, factors, strict=True)), f"median of {counted(len(busy), 'report')} of members that were busy"
    if demand.handler_per_s is not None:
        # nothing was ever busy: what is beside the handler is not known, so this is the most
        return [(demand.handler_per_s, factor) for factor in factors], HANDLERS_ALONE
    raise InputError("the log does not show what a member can do: none was ever behind; name it with --member-records-per-s")


HANDLERS_ALONE = "time in handlers alone: no member was ever busy, so one may do less"
"""The basis of what a member can do where nothing better is known."""
