"""The habits of a group, from its log: what a prediction draws for each of its runs.

Restore speeds differ as those that were measured: of a member that was measured often enough around
its own median, of others around a median that is known as well as the log shows it
(`equipoise.replay.whatif.restore_speeds`). Times to give tasks up, restarts, heartbeats and the
change of arrivals from one minute to the next are drawn from those of the log.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.events.decisions import MemberAssigned, MemberAssignedPart
from equipoise.events.facts import (
    ChangePlanned,
    Fact,
    GroupConfigured,
    LagReported,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    RestartIntended,
    TasksRevoked,
)
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.replay.prediction.draw import DEFAULT_ERRORS, FEWEST, Draw, RestartSeries
from equipoise.replay.whatif.fit import Fit, Fitting
from equipoise.replay.whatif.restore_speeds import DEFAULT_RECORDS_PER_S
from equipoise.statemachine.state import GroupState

NORMAL_90 = 1.645
"""Standard deviations from the median to either end of an interval of 90 %."""
FEWEST_OWN = 3
"""Fewest measurements of which the speed of a member is its own, and not that of any."""
MOST_ERROR = 2.0
"""A speed that is further off, in logarithms, counts as this far."""
BUCKET_MS = 60_000
MOST_SAMPLES = 1_000
"""Of more, the last are used: a group changes."""
MOST_SERIES = 50
"""As MOST_SAMPLES, of series of restarts."""
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
UNKNOWN_HAND_MS = 100, 2_000
"""From the record that a change is planned until a hand or a script makes it: meanwhile members are
heard again. Drawn between these, evenly in logarithms.
"""
MOST_TURN_MS = 120_000
"""Members that restart further apart are no restart of all in turn."""
LEAST_ERROR = 0.07
"""Standard error of the logarithm of the median speed, however often it was measured: simulations
of real groups were off by up to a tenth.
"""
MEASURED_LAST = "what its members measured last"


@attrs.frozen(kw_only=True)
class Habits:
    """Distributions of one group. `restore_median` 0: nothing was seen restoring."""

    restore_median: int
    restore_error: float
    """Standard error of the logarithm of the median."""
    restore_errors: tuple[float, ...]
    """Of the speeds of members around it, in logarithms."""
    restore_basis: str
    own_speeds: Mapping[str, float]
    """Member -> median of the speeds that were measured on it."""
    own_errors: tuple[float, ...]
    """Of the measurements of one member around their median, in logarithms."""
    arrivals: tuple[float, ...]
    """Factors from one minute to the next; empty: too short a log."""
    close_ms: tuple[int, ...]
    heartbeat_interval_ms: int
    restarts: tuple[RestartSeries, ...] = ()
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
            own_errors=self.own_errors,
            member_errors=self.restore_errors,
            arrivals=dice.choice(self.arrivals) if self.arrivals else 1.0,
            close_ms=dice.choice(self.close_ms) if self.close_ms else _between(dice, UNKNOWN_CLOSE_MS),
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            start_ms=round(dice.uniform(*UNKNOWN_START_MS)),
            phase=dice.random(),
            latency_ms=self._latency_ms(dice),
            in_turn=dice.random() < self.in_turn,
            delay_ms=_between(dice, UNKNOWN_DELAY_MS),
            away_ms=_between(dice, UNKNOWN_AWAY_MS),
            hand_ms=_between(dice, UNKNOWN_HAND_MS),
            is_brisk=dice.random() < 0.5,
            restarts=self.restarts,
        )

    def _latency_ms(self, dice: random.Random) -> int:
        """Returns the time that a member takes to open a copy. Where a log does not show it, the
        speed may have it in it.
        """
        if len(self.opening_ms) >= FEWEST_OWN:
            return dice.choice(self.opening_ms)
        return 0 if self.restore_median and dice.random() < 0.5 else _between(dice, UNKNOWN_LATENCY_MS)

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
        restore_errors=DEFAULT_ERRORS,
        restore_basis=MEASURED_LAST if restore_records_per_s else "nothing was measured",
        own_speeds={},
        own_errors=(0.0,),
        arrivals=(),
        close_ms=(),
        heartbeat_interval_ms=DEFAULT_HEARTBEAT_MS,
    )


class HabitsReader:
    """Reads a log for `Habits`, one record at a time, in stored order. `state`: as of `Fitting`."""

    def __init__(self, *, group: str | None = None, state: GroupState | None = None) -> None:
        self._group = group
        self._fitting = Fitting(group=group, state=state)
        self._assigned_ms: dict[tuple[str, int, int], int] = {}
        """(member, incarnation, epoch) -> when it was decided."""
        self._heard_ms: dict[tuple[str, int], int] = {}
        self._now_ms = 0
        self._close_ms: deque[int] = deque(maxlen=MOST_SAMPLES)
        self._heartbeats_ms: deque[int] = deque(maxlen=MOST_SAMPLES)
        self._restarting: set[tuple[str, int]] = set()
        self._left_ms: dict[str, int] = {}
        """Member that restarts -> when its process ended."""
        self._restarts: deque[RestartSeries] = deque(maxlen=MOST_SERIES)
        self._begun: set[str] = set()
        """Members that restarted in turn, while nothing else changed; empty: the next restart is
        another series.
        """
        self._seen_ms = 0
        """When something happened in the series."""
        self._back_ms: int | None = None
        """When the last of its members came back; None: none has."""

    def afresh(self) -> HabitsReader:
        """Returns a reader that goes on from here, and has seen no habits yet."""
        fresh = HabitsReader(group=self._group)
        fresh._fitting = self._fitting.afresh()
        return fresh

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
        else:
            self._restart(event)

    def _restart(self, event: Fact) -> None:
        """Takes a fact of a restart, or one that ends a series of them."""
        key = (event.member_id, event.incarnation) if isinstance(event, RestartIntended | MemberLeft) else None
        if isinstance(event, RestartIntended) and key is not None:
            self._restarting.add(key)
            if not self._begun or event.member_id in self._begun or self._now_ms - self._seen_ms > MOST_TURN_MS:
                self._begun, self._back_ms = set(), None
                self._restarts.append(RestartSeries(()))
            elif self._back_ms is not None:
                self._restarts[-1] = attrs.evolve(self._restarts[-1], turn_ms=(*self._restarts[-1].turn_ms, self._now_ms - self._back_ms))
            self._begun.add(event.member_id)
        elif isinstance(event, MemberLeft) and key in self._restarting:
            self._restarting.discard(key)
            self._left_ms[event.member_id] = self._now_ms
        elif isinstance(event, MemberJoined) and event.member_id in self._left_ms:
            away_ms = self._now_ms - self._left_ms.pop(event.member_id)
            self._restarts[-1] = attrs.evolve(self._restarts[-1], away_ms=(*self._restarts[-1].away_ms, away_ms))
            self._back_ms = self._now_ms
        elif isinstance(event, MemberJoined | MemberLeft | GroupConfigured | ChangePlanned):
            self._begun = set()
            return
        else:
            return
        self._seen_ms = self._now_ms

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
            restore_errors=(0.0,) if is_given else _errors([speed for _, speed in measured]),
            restore_basis=basis,
            own_speeds={name: math.exp(speed) for name, speed in own.items()},
            own_errors=_errors([speed - own[name] for name, speed in measured if name in own]),
            arrivals=_factors(self._fitting.samples),
            close_ms=tuple(sorted(self._close_ms)),
            heartbeat_interval_ms=round(statistics.median(self._heartbeats_ms)) if self._heartbeats_ms else DEFAULT_HEARTBEAT_MS,
            restarts=tuple(each for each in self._restarts if each.away_ms),
            opening_ms=fit.opening_ms[-MOST_SAMPLES:],
            in_turn=0.5 if fit.in_turn is None else fit.in_turn,
        )


def _medians(measured: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Returns the median of each member's measurements."""
    of: dict[str, list[float]] = {}
    for name, speed in measured:
        of.setdefault(name, []).append(speed)
    return {name: statistics.median(speeds) for name, speeds in sorted(of.items()) if len(speeds) >= FEWEST_OWN}


def _errors(logarithms: Sequence[float]) -> tuple[float, ...]:
    """Returns by how much speeds differ from their median: as they did, for a few that are far off
    say nothing of the others.
    """
    if len(logarithms) < FEWEST:
        return DEFAULT_ERRORS
    median, wider = statistics.median(logarithms), math.sqrt(len(logarithms) / (len(logarithms) - 1))
    return tuple(sorted(max(-MOST_ERROR, min(MOST_ERROR, (each - median) * wider)) for each in logarithms))


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
