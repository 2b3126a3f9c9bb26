"""The work that members of a group have to do, and can do, from the loads that they report.

A member reports, of each task that it runs, the records that it processed a second, those that are
still to be processed, and the time in its handler (`equipoise.events.facts.Load`). What arrived is
what was processed and what more is waiting. What a member can do shows while all that it does is
behind: then it does what it can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import attrs

from equipoise.events.facts import LagReported, Load, MemberUnchanged
from equipoise.events.records import Entry, FactRecord
from equipoise.events.tasks import TaskId

BUCKET_MS = 60_000
"""Arrivals are added up over so long, unless a reader is asked for something else."""
BUSY_S = 2.0
"""A member is busy while its tasks have more to process than it does in so many seconds."""
FEWEST_BUSY = 3
"""Fewest measurements of busy members that tell what one can do."""
MOST_BUSY = 1_000
"""Of more measurements of busy members, the last are used: a group changes."""
MICROS = 1_000_000
DAY_MS = 86_400_000


@attrs.frozen(kw_only=True)
class Demand:
    """The work of a group. `buckets`: numbers since the epoch of times of `bucket_ms`, rising,
    without those in which nothing was reported; `arrivals`: task -> records that arrived in each.

    `weights`: task -> work of one of its records, where an average record is 1. `busy`: what single
    members did when they were busy, as average records a second. `handler_per_s`: average records a
    second that a handler would do that never waits for anything else; None: not reported. `alone`:
    task -> its records a second at most, as one follows another; absent where it is not known.
    """

    buckets: tuple[int, ...]
    arrivals: Mapping[TaskId, Sequence[float]]
    weights: Mapping[TaskId, float]
    busy: tuple[float, ...]
    handler_per_s: float | None
    alone: Mapping[TaskId, float]
    members: int
    """That reported."""
    bucket_ms: int = BUCKET_MS

    @property
    def hours(self) -> float:
        return len(self.buckets) * self.bucket_ms / 3_600_000

    @property
    def bucket_s(self) -> float:
        return self.bucket_ms / 1_000

    def between(self, from_ms: int, to_ms: int) -> Demand:
        """Returns what arrived in the buckets that are whole between two times."""
        kept = [index for index, bucket in enumerate(self.buckets) if bucket * self.bucket_ms >= from_ms and (bucket + 1) * self.bucket_ms <= to_ms]
        arrivals = {task: tuple(series[index] for index in kept) for task, series in self.arrivals.items()}
        return attrs.evolve(self, buckets=tuple(self.buckets[index] for index in kept), arrivals=arrivals)

    @property
    def trend(self) -> float | None:
        """Arrivals of the last day over those of the day before, of the minutes that both have;
        None: the log has no two days.
        """
        total = self.totals()
        last, day = self.buckets[-1] if self.buckets else 0, DAY_MS // self.bucket_ms
        both = [each for each in total if last - day < each and each - day in total]
        before = sum(total[each - day] for each in both)
        return sum(total[each] for each in both) / before if len(both) > day // 2 and before else None

    def totals(self) -> dict[int, float]:
        """Returns bucket -> records that arrived in it, of all tasks."""
        return {bucket: sum(series[index] for series in self.arrivals.values()) for index, bucket in enumerate(self.buckets)}


@attrs.define
class _Reporter:
    """The last word of one incarnation."""

    at_ms: int
    load: Load


class DemandReader:
    """Reads a log for its `Demand`, one record at a time, in stored order. `bucket_ms`: over how
    long arrivals are added up.
    """

    def __init__(self, *, group: str | None = None, bucket_ms: int = BUCKET_MS) -> None:
        self._group, self._bucket_ms = group, bucket_ms
        self._last: dict[tuple[str, int], _Reporter] = {}
        self._arrivals: dict[TaskId, dict[int, float]] = {}
        self._seen: set[int] = set()
        self._records: dict[TaskId, float] = {}
        self._handler_us: dict[TaskId, float] = {}
        self._busy: deque[Mapping[TaskId, float]] = deque(maxlen=MOST_BUSY)
        """Records a second of the tasks of a busy member."""
        self._members: set[str] = set()

    def take(self, entry: Entry) -> None:
        """Takes a record; what is no report of this group is passed over."""
        if not isinstance(entry, FactRecord) or (self._group is not None and entry.group != self._group):
            return
        event = entry.event
        if isinstance(event, LagReported):
            self._reported((event.member_id, event.incarnation), entry.append_ms, event.load)
        elif isinstance(event, MemberUnchanged):
            before = self._last.get((event.member_id, event.incarnation))
            self._reported((event.member_id, event.incarnation), entry.append_ms, None if before is None else before.load)

    def _reported(self, key: tuple[str, int], now_ms: int, load: Load | None) -> None:
        before = self._last.pop(key, None)
        if load is None:
            return
        self._last[key] = _Reporter(now_ms, load)
        if before is None or now_ms <= before.at_ms or not load.tasks:
            return
        self._members.add(key[0])
        took_s = (now_ms - before.at_ms) / 1_000
        bucket = now_ms // self._bucket_ms
        self._seen.add(bucket)
        for task, rate in load.tasks.items():
            processed = rate * took_s
            waiting = load.behind.get(task, 0) - before.load.behind.get(task, load.behind.get(task, 0))
            series = self._arrivals.setdefault(task, {})
            series[bucket] = series.get(bucket, 0.0) + max(0.0, processed + waiting)
            if task in load.busy:
                self._records[task] = self._records.get(task, 0.0) + processed
                self._handler_us[task] = self._handler_us.get(task, 0.0) + load.busy[task] * took_s
        if _is_busy(load) and _is_busy(before.load):
            self._busy.append({task: float(rate) for task, rate in load.tasks.items()})

    def demand(self) -> Demand:
        """Returns what was read."""
        buckets = tuple(sorted(self._seen))
        per_record = {task: self._handler_us[task] / records for task, records in self._records.items() if records > 0 and self._handler_us[task] > 0}
        counted = {task: self._records[task] for task in per_record}
        mean_us = sum(per_record[task] * counted[task] for task in per_record) / sum(counted.values()) if per_record else None
        weights = {task: 1.0 if mean_us is None else per_record.get(task, mean_us) / mean_us for task in sorted(self._arrivals)}
        return Demand(
            buckets=buckets,
            arrivals={task: tuple(series.get(bucket, 0.0) for bucket in buckets) for task, series in sorted(self._arrivals.items())},
            weights=weights,
            busy=tuple(sum(rate * weights[task] for task, rate in each.items()) for each in self._busy),
            handler_per_s=None if mean_us is None else MICROS / mean_us,
            alone={task: MICROS / each for task, each in sorted(per_record.items())},
            members=len(self._members),
            bucket_ms=self._bucket_ms,
        )


def _is_busy(load: Load) -> bool:
    """Returns whether every task of the member has work for BUSY_S: then its rate is what it can
    do, and not what arrives.
    """
    rates = {task: rate for task, rate in load.tasks.items() if rate}
    return bool(rates) and all(load.behind.get(task, 0) >= BUSY_S * rate for task, rate in rates.items())
