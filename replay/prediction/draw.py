"""One draw of what a prediction does not know: the inputs of one of its runs."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

import attrs

DEFAULT_SPREAD = 0.3
"""Of speeds of members, and of times, around their median, in logarithms, where too few were
measured.
"""
FEWEST = 5
"""Fewest measurements that show how much they differ."""


def normal_errors(spread: float) -> tuple[float, ...]:
    """Returns a hundred logarithms of this standard deviation, as a normal distribution has them."""
    return tuple(statistics.NormalDist(0, spread).inv_cdf((number + 0.5) / 100) for number in range(100))


DEFAULT_ERRORS = normal_errors(DEFAULT_SPREAD)


@attrs.frozen
class RestartSeries:
    """Members that restarted in turn. `away_ms`: from the end of a process to the join of the next
    one. `turn_ms`: from the join of one until the next one began.
    """

    away_ms: tuple[int, ...]
    turn_ms: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class Draw:
    """The inputs of one run. Speeds in records/s of a member, times in milliseconds."""

    seed: int
    restore_records_per_s: float
    """Median over the members of this run."""
    member_errors: Sequence[float]
    """Of the speeds of members around it, in logarithms."""
    arrivals: float
    """Records written, as a factor of those of now."""
    close_ms: int
    heartbeat_interval_ms: int
    start_ms: int
    phase: float
    """When the change begins, as a part of the time within which it does."""
    own_speeds: Mapping[str, float] = attrs.field(factory=dict)
    """Member -> its restore speed, where it is known."""
    own_errors: Sequence[float] = (0.0,)
    """Of the speeds of one member around its own, in logarithms."""
    latency_ms: int = 200
    """From an order to restore a copy to its first record."""
    in_turn: bool = False
    """Whether a member restores one copy after the other."""
    hand_ms: int = 0
    """From the record that a change is planned until it is made."""
    delay_ms: int = 4
    """Longest that a message of a process or broker is under way."""
    away_ms: int = 5_000
    """From the end of a process to the join of the next one, where the log shows no restart."""
    restarts: Sequence[RestartSeries] = ()
    """Those of the log."""
    is_brisk: bool = False
    """Where the log shows no members that restart in turn: whether the next one does so as soon as
    everything runs, or when the group is at rest.
    """

    def away_of(self, member_id: str) -> int:
        """Returns how long the member is away when it restarts, until it joins."""
        return self._seen([each.away_ms for each in self.restarts], f"{member_id}/away", self.away_ms)

    def turn_of(self, member_id: str) -> int | None:
        """Returns how long after the join of this member the next one restarts, at least; None:
        until the group is at rest.
        """
        series = [each.turn_ms for each in self.restarts if each.turn_ms]
        return self._seen(series, f"{member_id}/turn", 0) if series or self.is_brisk else None

    def _seen(self, series: Sequence[Sequence[int]], of: str, unseen: int) -> int:
        """Returns one of the times of a series, which is the same one for all members; of too few,
        one like them. `unseen`: where there are none.
        """
        if not series:
            return unseen
        all_of, own = random.Random(f"{self.seed}/series"), random.Random(f"{self.seed}/{of}")
        place, factor = all_of.random(), 1.0
        if len(series) < FEWEST:
            factor *= math.exp(all_of.gauss(0, DEFAULT_SPREAD))
        if sum(map(len, series)) < FEWEST:
            factor *= math.exp(own.gauss(0, DEFAULT_SPREAD))
        return round(own.choice(series[int(place * len(series))]) * factor)

    def speed_of(self, member_id: str) -> int:
        """Returns the restore speed of the member."""
        own = self.own_speeds.get(member_id)
        error = random.Random(f"{self.seed}/{member_id}").choice(self.member_errors if own is None else self.own_errors)
        return max(1, round((self.restore_records_per_s if own is None else own) * math.exp(error)))
