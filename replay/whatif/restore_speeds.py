"""Estimates one restore speed from observations, of which some are only lower bounds.

With enough measurements the median is used. With too few, every observation counts as an interval
(interval censoring), and the most likely speed is found: speeds are log-normal around one median,
with a prior for that median (PRIOR_FACTOR, PRIOR_SPREAD). Without the prior, bounds alone would
allow any speed above the largest. The result has an interval of 90 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import attrs

from equipoise.replay.wording import counted

FEWEST_MEASURED = 3
"""Fewest measurements of which a median is used."""
MOST_SPREAD = 4.0
"""A speed known to within this factor is a measurement (its geometric middle is used); of a wider
interval only the lower end is used.
"""
DEFAULT_RECORDS_PER_S = 50_000
"""Speed when a log shows none: a tenth of what one local disk and broker reached (Kafka Streams,
values of 152 bytes).
"""
PRIOR_FACTOR = 5.0
"""Prior: the median speed is DEFAULT_RECORDS_PER_S to within this factor (one standard deviation of
its logarithm).
"""
PRIOR_SPREAD = 0.5
"""Prior: speeds of one group spread around their median by a factor of e to this (one standard
deviation).
"""
LEAST_WIDTH = 0.05
"""Least width of an interval, as a fraction of its speed: clocks and positions are no more exact.
"""
LEAST_STRETCH_MS = 1_000
"""In a shorter time, what was fetched before and when it was reported count for too much."""
LEAST_SPREAD, MOST_DOUBT_MS = 0.05, 300.0
"""How long a copy was opened is what is left of the time that restoring it took: it is told where
the speeds differ by so little, or it took so short, that the rest is not off by more.
"""
CONFIDENCE = 0.9
MOST_INTERVALS = 400
"""Of more observations those with most information are used: intervals, and the largest bounds."""


@attrs.frozen(kw_only=True)
class Observation:
    """One member restored `records` within a stretch of time. Speed in records/s of all its copies
    together.

    `high` None: a bound, the speed was at least `low`. `basis`: ``reports`` or ``first commit``.
    `opens`: the copies were opened in that time, too, while nothing was restored.
    """

    member_id: str
    from_ms: int
    to_ms: int
    copies: int
    records: int
    low: float
    high: float | None
    basis: str
    opens: bool = False

    @property
    def measured(self) -> float | None:
        """Returns the speed where it is known well enough, else None."""
        if self.high is None or self.low <= 0 or self.high / self.low > MOST_SPREAD:
            return None
        return math.sqrt(self.low * self.high)


@attrs.frozen(kw_only=True)
class Speed:
    """Summary of observations, records/s. Quartiles are None where bounds leave them open."""

    measured: int
    bounds: int
    lower_quartile: float | None
    median: float | None
    upper_quartile: float | None
    largest_bound: float | None


@attrs.frozen(kw_only=True)
class Estimate:
    """Speed to simulate with, and the interval that holds it with CONFIDENCE. None: no observation
    allows one.
    """

    records_per_s: int
    low: int | None
    high: int | None
    basis: str


def without_openings(observations: Sequence[Observation]) -> tuple[tuple[Observation, ...], tuple[int, ...]]:
    """Returns the observations without those in which copies were opened, or which are short, and
    for how long (ms) copies were opened, where that can be told from how much the speeds differ;
    all of them and nothing where too few others are measurements: then the speed has it in it.
    """
    opening = [each for each in observations if each.opens and each.measured is not None]
    others = tuple(each for each in observations if each not in opening)
    longer = tuple(each for each in others if each.measured is None or each.to_ms - each.from_ms >= LEAST_STRETCH_MS)
    for telling in (longer, others):
        median, speeds = speed_of(telling).median, [math.log(each.measured) for each in telling if each.measured is not None]
        if median is not None and len(speeds) >= FEWEST_MEASURED:
            spread = max(LEAST_SPREAD, statistics.stdev(speeds))
            took_ms = [(each.to_ms - each.from_ms, each.records * 1_000 / median) for each in opening]
            return telling, tuple(max(0, round(whole - restoring)) for whole, restoring in took_ms if restoring * spread <= MOST_DOUBT_MS)
    return tuple(observations), ()


def estimate_of(observations: Sequence[Observation]) -> Estimate:
    """Returns the estimate from the observations: the median of the measurements where there are
    FEWEST_MEASURED, else the most likely speed.
    """
    measured = sorted(each.measured for each in observations if each.measured is not None)
    if len(measured) >= FEWEST_MEASURED:
        median = speed_of(observations).median
        if median is not None:
            low, high = _around_the_median(measured)
            return Estimate(records_per_s=max(1, round(median)), low=low, high=high, basis=f"median of {len(measured)} measurements")
    if not observations:
        return Estimate(records_per_s=DEFAULT_RECORDS_PER_S, low=None, high=None, basis="default: nothing was seen restoring")
    low, middle, high = most_likely(observations)
    bounds = sum(each.high is None for each in observations)
    seen = f"{counted(bounds, 'bound')} and {counted(len(observations) - bounds, 'interval')}"
    basis = f"most likely of {seen}, 90 % between {low:,} and {high:,}"
    return Estimate(records_per_s=middle, low=low, high=high, basis=basis)


def _around_the_median(measured: Sequence[float]) -> tuple[int, int]:
    """Returns the order statistics between which the median lies with at least CONFIDENCE; of too
    few, the least and the largest.
    """
    number = len(measured)
    below, rank = 0.0, 0
    while rank < number // 2:
        # of `number` tosses `rank` heads; by logarithms, as of over a thousand neither the binomial
        # nor the power is a float any more
        below += math.exp(math.lgamma(number + 1) - math.lgamma(rank + 1) - math.lgamma(number - rank + 1) - number * math.log(2))
        if below > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    place = max(0, rank - 1)
    return max(1, math.floor(measured[place])), math.ceil(measured[number - 1 - place])


def most_likely(observations: Sequence[Observation]) -> tuple[int, int, int]:
    """Returns the speeds below which the true median lies with 5, 50 and 95 %: posterior over a
    grid, each observation an interval of a log-normal speed.
    """
    largest = max(each.low for each in observations)
    telling = [each for each in observations if each.high is not None or each.low * 50 > largest]
    telling = sorted(telling, key=lambda each: (each.high is None, -each.low))[:MOST_INTERVALS]
    intervals = sorted(
        {(math.log(each.low), math.inf if each.high is None else math.log(max(each.high, each.low * (1 + LEAST_WIDTH)))) for each in telling}
    )
    first, last = math.log(DEFAULT_RECORDS_PER_S) - 6, math.log(DEFAULT_RECORDS_PER_S) + 6
    steps = 120
    found: list[tuple[float, float]] = []
    """(logarithm of the median, logarithm of its likelihood, over all spreads)"""
    for step in range(steps + 1):
        middle = first + (last - first) * step / steps
        prior = -(((middle - math.log(DEFAULT_RECORDS_PER_S)) / math.log(PRIOR_FACTOR)) ** 2) / 2
        likelihoods = []
        for number in range(1, 13):
            spread = number / 8
            total = prior - (spread / PRIOR_SPREAD) ** 2 / 2
            for low, high in intervals:
                total += math.log(max(1e-12, _below(high, middle, spread) - _below(low, middle, spread)))
            likelihoods.append(total)
        top = max(likelihoods)
        found.append((middle, top + math.log(sum(math.exp(each - top) for each in likelihoods))))
    top = max(likelihood for _, likelihood in found)
    weights = [math.exp(likelihood - top) for _, likelihood in found]
    whole = sum(weights)
    quantiles = []
    for quantile in ((1 - CONFIDENCE) / 2, 0.5, (1 + CONFIDENCE) / 2):
        passed = 0.0
        for (middle, _), weight in zip(found, weights, strict=True):
            passed += weight
            if passed >= quantile * whole:
                quantiles.append(max(1, round(math.exp(middle))))
                break
    return quantiles[0], quantiles[1], quantiles[2]


def _below(speed: float, middle: float, spread: float) -> float:
    """Returns the share of a log-normal distribution below `speed`; all as logarithms."""
    return 1.0 if speed == math.inf else 0.5 * math.erfc((middle - speed) / spread / math.sqrt(2))


def speed_of(observations: Sequence[Observation]) -> Speed:
    """Returns Kaplan-Meier quartiles over measurements (events) and bounds (right-censored)."""
    ordered = sorted([(each.measured, 0) if each.measured is not None else (each.low, 1) for each in observations])
    lows = [each.low for each in observations]
    quartiles: dict[float, float | None] = {0.25: None, 0.5: None, 0.75: None}
    still = 1.0
    for index, (speed, censored) in enumerate(ordered):
        if not censored:
            still *= 1 - 1 / (len(ordered) - index)
            for quantile, found in quartiles.items():
                if found is None and 1 - still >= quantile - 1e-9:
                    quartiles[quantile] = speed
    measured = sum(not censored for _, censored in ordered)
    return Speed(
        measured=measured,
        bounds=len(ordered) - measured,
        lower_quartile=quartiles[0.25],
        median=quartiles[0.5],
        upper_quartile=quartiles[0.75],
        largest_bound=max(lows) if lows else None,
    )
