"""The habits of a group, from its log: what a prediction draws for each of its runs.

Restore speeds are log-normal: those of a member that was measured often enough around its own
median, those of others around a median that is known as well as the log shows it
(`equipoise.replay.whatif.restore_speeds`). Times to give tasks up,
heartbeats and the change of arrivals from one minute to the next are drawn from those of the log.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from equipoise.events.decisions import MemberAssigned, MemberAssignedPart
from equipoise.events.facts import (
    ChangePlanned,
    GroupConfigured,
    LagReported,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    RestartIntended,
    TasksRevoked,
)
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.replay.whatif.fit import Fit, Fitting
from equipoise.replay.whatif.restore_speeds import DEFAULT_RECORDS_PER_S

NORMAL_90 = 1.645
"""Standard deviations from the median to either end of an interval of 90 %."""
DEFAULT_SPREAD = 0.3
"""Of the speeds of members around their median, in logarithms, where too few were measured."""
FEWEST_SPREAD = 5
"""Fewest measurements of which a spread is used."""
FEWEST_OWN = 3
"""Fewest measurements of which the speed of a member is its own, and not that of any."""
MOST_SPREAD = 1.0
BUCKET_MS = 60_000
MOST_SAMPLES = 1_000
"""Of more, the last are used: a group changes."""
DEFAULT_HEARTBEAT_MS = 3_000
UNKNOWN_START_MS = 1_000, 5_000
"""A log does not say how long a process takes from its start to its join: drawn between these."""
UNKNOWN_CLOSE_MS = 20, 1_000
"""Drawn between these, evenly in logarithms, where the log shows no task that was given up."""
UNKNOWN_LATENCY_MS = 50, 1_000
"""The time that a member takes to open a copy, where the log does not show it: drawn between these,
evenly in logarithms.
"""
UNKNOWN_DELAY_MS = 2, 30
"""Longest that a record is under way, to the brokers or from them. Drawn between these, evenly in
logarithms.
"""
UNKNOWN_AWAY_MS = 500, 20_000
"""From the end of a process to the join of the next one, where the log shows no restart. Drawn
between these, evenly in logarithms: equally long for all, as one machine or cluster starts them.
"""
MOST_HAND_MS = 2_000
"""A change that is written down is made within so long: meanwhile members are heard again."""
MOST_TURN_MS = 120_000
"""Members that restart further apart are no restart of all in turn."""
LEAST_ERROR = 0.07
"""Standard error of the logarithm of the median speed, however often it was measured: simulations
of real groups were off by up to a tenth.
"""
MEASURED_LAST = "what its members measured last"


@attrs.frozen(kw_only=True)
class Draw:
    """The inputs of one run. Speeds in records/s of a member, times in milliseconds."""

    seed: int
    restore_records_per_s: float
    """Median over the members of this run."""
    member_spread: float
    arrivals: float
    """Records written, as a factor of those of now."""
    close_ms: int
    heartbeat_interval_ms: int
    start_ms: int
    phase: float
    """When the change begins, as a part of the time within which it does."""
    own_speeds: Mapping[str, float] = attrs.field(factory=dict)
    """Member -> its restore speed, where it is known."""
    own_spread: float = 0.0
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
    seen_away_ms: Sequence[int] = ()
    """The same, of restarts in the log."""
    is_brisk: bool = False
    """Where the log shows no members that restart in turn: whether the next one does so as soon as
    everything runs, or when the group is at rest.
    """
    seen_turn_ms: Sequence[int] = ()
    """Where members restarted in turn, from the join of one until the next one began."""

    def away_of(self, member_id: str) -> int:
        """Returns how long the member is away when it restarts, until it joins."""
        return self._seen(self.seen_away_ms, f"{member_id}/away") if self.seen_away_ms else self.away_ms

    def turn_of(self, member_id: str) -> int | None:
        """Returns how long after the join of this member the next one restarts, at least; None:
        until the group is at rest.
        """
        return self._seen(self.seen_turn_ms, f"{member_id}/turn") if self.seen_turn_ms else 0 if self.is_brisk else None

    def _seen(self, samples: Sequence[int], of: str) -> int:
        """Returns one of the samples; of too few, one like them."""
        dice = random.Random(f"{self.seed}/{of}")
        return round(dice.choice(samples) * (1 if len(samples) >= FEWEST_SPREAD else math.exp(dice.gauss(0, DEFAULT_SPREAD))))

    def speed_of(self, member_id: str) -> int:
        """Returns the restore speed of the member."""
        own = self.own_speeds.get(member_id)
        dice = random.Random(f"{self.seed}/{member_id}")
        factor = math.exp(dice.gauss(0, self.member_spread if own is None else self.own_spread))
        return max(1, round((self.restore_records_per_s if own is None else own) * factor))


@attrs.frozen(kw_only=True)
class Habits:
    """Distributions of one group. `restore_median` 0: nothing was seen restoring."""

    restore_median: int
    restore_error: float
    """Standard error of the logarithm of the median."""
    restore_spread: float
    restore_basis: str
    own_speeds: Mapping[str, float]
    """Member -> median of the speeds that were measured on it."""
    own_spread: float
    """Of the measurements of one member around their median, in logarithms."""
    arrivals: tuple[float, ...]
    """Factors from one minute to the next; empty: too short a log."""
    close_ms: tuple[int, ...]
    heartbeat_interval_ms: int
    away_ms: tuple[int, ...] = ()
    """Of restarts, from the end of a process to the join of the next one."""
    turn_ms: tuple[int, ...] = ()
    """Of members that restarted in turn, from the join of one until the next one began."""
    opening_ms: tuple[int, ...] = ()
    """From orders to keep a copy to the first record of it."""
    in_turn: float = 0.5
    """The probability that a member restores one copy after the other."""

    def draw(self, seed: int) -> Draw:
        """Returns the draw of this seed; equal seeds give equal draws."""
        dice = random.Random(f"draw {seed}")
        error = math.exp(dice.gauss(0, self.restore_error))
        return Draw(
            seed=seed,
            restore_records_per_s=max(1.0, (self.restore_median or DEFAULT_RECORDS_PER_S) * error),
            own_speeds={name: speed * error for name, speed in self.own_speeds.items()},
            own_spread=self.own_spread,
            member_spread=self.restore_spread,
            arrivals=dice.choice(self.arrivals) if self.arrivals else 1.0,
            close_ms=dice.choice(self.close_ms) if self.close_ms else _between(dice, UNKNOWN_CLOSE_MS),
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            start_ms=round(dice.uniform(*UNKNOWN_START_MS)),
            phase=dice.random(),
            latency_ms=dice.choice(self.opening_ms) if len(self.opening_ms) >= FEWEST_OWN else _between(dice, UNKNOWN_LATENCY_MS),
            in_turn=dice.random() < self.in_turn,
            delay_ms=_between(dice, UNKNOWN_DELAY_MS),
            away_ms=_between(dice, UNKNOWN_AWAY_MS),
            hand_ms=round(dice.uniform(0, MOST_HAND_MS)),
            is_brisk=dice.random() < 0.5,
            seen_away_ms=self.away_ms,
            seen_turn_ms=self.turn_ms,
        )

    def or_measured(self, restore_records_per_s: int | None) -> Habits:
        """Returns the habits with the speed that members measured last, where the log, which may
        begin after the last restore, shows none. None: they measured none.
        """
        if self.restore_median or not restore_records_per_s:
            return self
        return attrs.evolve(self, restore_median=restore_records_per_s, restore_basis=MEASURED_LAST)


def _between(dice: random.Random, ends: tuple[int, int]) -> int:
    """Returns a number between the ends, drawn evenly in logarithms."""
    return round(math.exp(dice.uniform(*map(math.log, ends))))


def habits_of(restore_records_per_s: int | None) -> Habits:
    """Returns the habits of a group of which no log is at hand, only what its members measured
    last; None: nothing.
    """
    return Habits(
        restore_median=restore_records_per_s or 0,
        restore_error=LEAST_ERROR,
        restore_spread=DEFAULT_SPREAD,
        restore_basis=MEASURED_LAST if restore_records_per_s else "nothing was measured",
        own_speeds={},
        own_spread=0.0,
        arrivals=(),
        close_ms=(),
        heartbeat_interval_ms=DEFAULT_HEARTBEAT_MS,
    )


class HabitsReader:
    """Reads a log for `Habits`, one record at a time, in stored order."""

    def __init__(self, *, group: str | None = None) -> None:
        self._group = group
        self._fitting = Fitting(group=group)
        self._assigned_ms: dict[tuple[str, int, int], int] = {}
        """(member, incarnation, epoch) -> when it was decided."""
        self._heard_ms: dict[tuple[str, int], int] = {}
        self._now_ms = 0
        self._close_ms: deque[int] = deque(maxlen=MOST_SAMPLES)
        self._heartbeats_ms: deque[int] = deque(maxlen=MOST_SAMPLES)
        self._restarting: set[tuple[str, int]] = set()
        self._left_ms: dict[str, int] = {}
        """Member that restarts -> when its process ended."""
        self._away_ms: deque[int] = deque(maxlen=MOST_SAMPLES)
        self._restarted: set[str] = set()
        """Members that restarted in turn, while nothing else changed."""
        self._back_ms = 0
        """When the last of them came back."""
        self._turn_ms: deque[int] = deque(maxlen=MOST_SAMPLES)

    def tap(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yields the entries, each taken before. Raises as `take` does."""
        for entry in entries:
            self.take(entry)
            yield entry

    def take(self, entry: Entry) -> None:
        """Takes a record. Raises UnknownKindError for a kind that this build does not know."""
        self._fitting.take(entry)
        if self._group is not None and entry.group != self._group:
            return
        if isinstance(entry, FactRecord):
            self._now_ms = max(self._now_ms, entry.append_ms)
            self._fact(entry)
        elif isinstance(entry, DecisionRecord):
            decision = entry.decision
            assigned = decision.assigned if isinstance(decision, MemberAssignedPart) else decision
            if isinstance(assigned, MemberAssigned) and assigned.revoke:
                self._assigned_ms[assigned.member_id, assigned.incarnation, assigned.assignment_epoch] = self._now_ms

    def _fact(self, record: FactRecord) -> None:
        event = record.event
        if isinstance(event, TasksRevoked):
            decided_ms = self._assigned_ms.pop((event.member_id, event.incarnation, event.assignment_epoch), None)
            if decided_ms is not None:
                self._close_ms.append(self._now_ms - decided_ms)
        elif isinstance(event, MemberUnchanged) or (isinstance(event, LagReported) and event.load is not None):
            key = (event.member_id, event.incarnation)
            if key in self._heard_ms:
                self._heartbeats_ms.append(self._now_ms - self._heard_ms[key])
            self._heard_ms[key] = self._now_ms
        elif isinstance(event, RestartIntended):
            self._restarting.add((event.member_id, event.incarnation))
            if event.member_id in self._restarted:
                self._restarted.clear()
            elif self._restarted and self._now_ms - self._back_ms <= MOST_TURN_MS:
                self._turn_ms.append(self._now_ms - self._back_ms)
        elif isinstance(event, MemberLeft) and (event.member_id, event.incarnation) in self._restarting:
            self._restarting.discard((event.member_id, event.incarnation))
            self._left_ms[event.member_id] = self._now_ms
        elif isinstance(event, MemberJoined) and event.member_id in self._left_ms:
            self._away_ms.append(self._now_ms - self._left_ms.pop(event.member_id))
            self._restarted.add(event.member_id)
            self._back_ms = self._now_ms
        elif isinstance(event, MemberJoined | MemberLeft | GroupConfigured | ChangePlanned):
            self._restarted.clear()

    def habits(self, restore_records_per_s: int | None = None) -> Habits:
        """Returns what was read. `restore_records_per_s`: a speed that is known otherwise."""
        fit = self._fitting.fit()
        measured = [(each.member_id, math.log(each.measured)) for each in fit.observations if each.measured is not None][-MOST_SAMPLES:]
        is_given = restore_records_per_s is not None
        median, error, basis = _restore(fit) if restore_records_per_s is None else (restore_records_per_s, 0.0, "given")
        own = {} if is_given else _medians(measured)
        return Habits(
            restore_median=median,
            restore_error=0.0 if is_given else max(LEAST_ERROR, error),
            restore_spread=0.0 if is_given else _spread([speed for _, speed in measured]),
            restore_basis=basis,
            own_speeds={name: math.exp(speed) for name, speed in own.items()},
            own_spread=_spread([speed - own[name] for name, speed in measured if name in own]),
            arrivals=_factors(self._fitting.samples),
            close_ms=tuple(sorted(self._close_ms)),
            heartbeat_interval_ms=round(statistics.median(self._heartbeats_ms)) if self._heartbeats_ms else DEFAULT_HEARTBEAT_MS,
            away_ms=tuple(sorted(self._away_ms)),
            turn_ms=tuple(sorted(self._turn_ms)),
            opening_ms=fit.opening_ms[-MOST_SAMPLES:],
            in_turn=0.5 if fit.in_turn is None else fit.in_turn,
        )


def _medians(measured: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Returns the median of each member's measurements."""
    of: dict[str, list[float]] = {}
    for name, speed in measured:
        of.setdefault(name, []).append(speed)
    return {name: statistics.median(speeds) for name, speeds in sorted(of.items()) if len(speeds) >= FEWEST_OWN}


def _spread(logarithms: Sequence[float]) -> float:
    return min(MOST_SPREAD, statistics.stdev(logarithms)) if len(logarithms) >= FEWEST_SPREAD else DEFAULT_SPREAD


def _restore(fit: Fit) -> tuple[int, float, str]:
    """Returns median, standard error of its logarithm, and where they come from; (0, 0, why) when
    the log shows no restore.
    """
    if fit.low_records_per_s is None or fit.high_records_per_s is None:
        return 0, 0.0, fit.basis
    error = math.log(fit.high_records_per_s / max(1, fit.low_records_per_s)) / 2 / NORMAL_90
    return fit.records_per_s, error, fit.basis


def _factors(samples: dict[tuple[str, int], list[tuple[int, int]]]) -> tuple[float, ...]:
    """Returns by which factor what is written changes from one minute to the next, over all
    partitions together: a group is changed at any time, and nobody knows the next minute.
    """
    written: dict[int, float] = {}
    for series in samples.values():
        for (before_ms, before), (after_ms, after) in itertools.pairwise(series):
            for bucket, share in _divided(before_ms, after_ms):
                written[bucket] = written.get(bucket, 0.0) + max(0, after - before) * share
    whole = sorted(written)[1:-1]  # the first and the last minute are not whole
    pairs = [(written[each], written[each + 1]) for each in whole if each + 1 in written and each + 1 in whole]
    return tuple(after / before for before, after in pairs if before > 0)[-MOST_SAMPLES:]


def _divided(from_ms: int, to_ms: int) -> Iterable[tuple[int, float]]:
    """Yields (bucket, its share of the time between)."""
    if to_ms <= from_ms:
        return
    at_ms = from_ms
    while at_ms < to_ms:
        end_ms = min(to_ms, (at_ms // BUCKET_MS + 1) * BUCKET_MS)
        yield at_ms // BUCKET_MS, (end_ms - at_ms) / (to_ms - from_ms)
        at_ms = end_ms


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the value below which one more value lies with this probability, interpolated between
    the rising ones: of n values the least is that of 1 / (n + 1). Of too few, the outermost.
    """
    place = min(max(0.0, share * (len(ordered) + 1) - 1), len(ordered) - 1.0)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
