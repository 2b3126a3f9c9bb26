"""Fits the restore speed of a log's members, and the write rates of their changelogs, from their
reports.

A copy whose lag shrinks between two reports was restored at (lag drop + growth) / time. This is a
*measurement* only if the member was restoring all the time. If all its copies are caught up at the
later report, they may have been so long before, and the quotient is a lower *bound*. Kafka Streams
reports a minute apart and catches up in seconds, so its logs give bounds almost only. equipoise's
members report every few seconds, so their logs give measurements.
`equipoise.replay.whatif.restore_speeds` estimates the speed from both.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from equipoise.events.decisions import MemberAssigned, MemberAssignedPart
from equipoise.events.facts import (
    AssignmentObserved,
    GroupConfigured,
    LagReported,
    LogOpened,
    MemberJoined,
    PartitionsObserved,
    TaskReady,
    TopologyDeclared,
)
from equipoise.events.records import BaseState, DecisionRecord, Entry, FactRecord, UnreadRecord
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.replay.inputs_reader import read_manifest
from equipoise.replay.owners import FAR_BEHIND
from equipoise.replay.replayer import ConfigurationAnswers
from equipoise.replay.whatif.restore_speeds import FEWEST_MEASURED, Observation, Speed, estimate_of, speed_of, without_openings
from equipoise.replay.wording import counted
from equipoise.statemachine import snapshots
from equipoise.statemachine.state import GroupState

LEAST_ROUND_MS = 2_500
"""A Kafka Streams task that changes hands waits for a heartbeat interval (3 s), which is nearly
always longer than this.
"""
READY_WITHIN_MS = 50
"""Longest time between a report and the readiness that it was made for."""


@attrs.frozen(kw_only=True)
class WriteRate:
    """Growth of one changelog partition in records/s: quartiles over the stretches between its
    samples, and the mean over all.
    """

    topic: str
    partition: int
    lower_quartile: float
    median: float
    upper_quartile: float
    mean: float


@attrs.frozen(kw_only=True)
class Fit:
    """Result of a fit. `records_per_s`: speed of one member to simulate with, all its copies
    together; `basis`: its source.
    """

    records_per_s: int
    low_records_per_s: int | None
    high_records_per_s: int | None
    """Upper end of the interval with CONFIDENCE; None: nothing was observed."""
    basis: str
    overall: Speed
    members: Mapping[str, Speed]
    observations: tuple[Observation, ...]
    write_rates: tuple[WriteRate, ...]
    join_wait_ms: int
    """Reports may be this much older than their record (imported group: they were sent when the
    rebalance began).
    """
    opening_ms: tuple[int, ...] = ()
    """From the order to keep copies to their first restored record, where it could be told apart
    from the speed.
    """
    in_turn: float | None = None
    """Part of the stretches in which a member with several copies far behind restored one alone;
    None: too few were seen.
    """

    def table(self) -> list[tuple[str, ...]]:
        """Returns rows for a table, the header first: one for all members, one for each, one for
        each changelog topic.
        """
        rows: list[tuple[str, ...]] = [("what", "measured", "bounds", "quartile", "median", "quartile", "at least", "used")]
        for name, speed in [("restore, all members", self.overall), *((f"restore, {name}", speed) for name, speed in self.members.items())]:
            used = f"{self.records_per_s:,}/s ({self.basis})" if speed is self.overall else ""
            numbers = (speed.lower_quartile, speed.median, speed.upper_quartile, speed.largest_bound)
            rows.append((name, str(speed.measured), str(speed.bounds), *("-" if each is None else f"{each:,.0f}/s" for each in numbers), used))
        for topic in sorted({rate.topic for rate in self.write_rates}):
            rates = [rate for rate in self.write_rates if rate.topic == topic]
            sums = (sum(rate.lower_quartile for rate in rates), sum(rate.median for rate in rates), sum(rate.upper_quartile for rate in rates))
            rows.append((f"writes, {topic} ({counted(len(rates), 'partition')})", str(len(rates)), "", *(f"{each:,.0f}/s" for each in sums), "", ""))
        return rows

    def as_json(self) -> dict[str, Any]:
        """Returns the fit, JSON-ready."""
        return attrs.asdict(self)


@attrs.define
class _Copies:
    """Last report of one member on its copies, and its assignment by then."""

    at_ms: int
    positions: dict[TaskId, tuple[Lag, int | None]]
    """task -> (lag, end offset; None: not observed yet)"""
    assigned: frozenset[TaskId]
    lacks: bool = True
    """Whether the member may have to restore something."""


class Fitting:
    """`fit` one record at a time, for callers that read the log for other purposes too: each record
    once, in stored order. `group` None: records of every group. `state`: of the group at any later
    time, for a reader that begins in the middle of the log, which does not see its settings.
    """

    def __init__(self, *, group: str | None = None, state: GroupState | None = None) -> None:
        self.group = group
        self.observations: list[Observation] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.samples: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.changelogs: dict[int, tuple[str, ...]] = {}
        self.acceptable = 0
        self.external = False
        self.join_wait_ms = 0
        self.assigned: dict[tuple[str, int], frozenset[TaskId]] = {}
        self.lags: dict[tuple[str, int], dict[TaskId, Lag]] = {}
        self.last: dict[tuple[str, int], _Copies] = {}
        self.now_ms = 0
        self._answers = ConfigurationAnswers()
        self._ordered: dict[tuple[str, int], dict[TaskId, int]] = {}
        """Member and incarnation -> copies that it was told to keep, and their lag then."""
        self._alone = self._together = 0
        self._whole: set[tuple[str, int]] = set()
        """Members of which everything on their disks is known: of others, only what they reported.
        """
        if state is not None:
            self._settings(state)

    def afresh(self) -> Fitting:
        """Returns a fitting that knows what this one knows of now, and has observed nothing."""
        fresh = Fitting(group=self.group)
        fresh.acceptable, fresh.external, fresh.join_wait_ms = self.acceptable, self.external, self.join_wait_ms
        fresh.changelogs, fresh.now_ms = self.changelogs, self.now_ms
        fresh.ends, fresh.assigned, fresh.last = dict(self.ends), dict(self.assigned), dict(self.last)
        fresh.lags = {key: dict(lags) for key, lags in self.lags.items()}
        fresh._ordered = {key: dict(lags) for key, lags in self._ordered.items()}
        fresh._whole = set(self._whole)
        return fresh

    def take(self, record: Entry) -> None:
        """Takes a record. Raises UnknownKindError for a kind of the group that this build does not
        know.
        """
        if self.group is None or record.group in ("", self.group):
            self._known(self._answers.take(record))

    def _known(self, records: Iterable[Entry]) -> None:
        for record in records:
            if isinstance(record, UnreadRecord):
                raise record.error()
            if isinstance(record, BaseState):
                self._begin(snapshots.load(record.state))
            elif isinstance(record, DecisionRecord):
                self._decision(record)
            else:
                self._fact(record)

    def _begin(self, state: GroupState) -> None:
        """Goes on from the state at which the log begins. When its members reported last is not in
        it, so the first report of each measures nothing.
        """
        self.now_ms = max(self.now_ms, state.now_ms)
        self._settings(state)
        self.ends |= {(topic, partition): end for topic, ends in state.end_offsets.items() for partition, end in ends.items()}
        for member in state.members.values():
            key = (member.member_id, member.incarnation)
            self._joined(key, member.lags, member.session_timeout_ms)
            self.assigned[key] = frozenset((*member.active, *member.standby, *member.warmup))

    def _settings(self, state: GroupState) -> None:
        if state.config is not None:
            self._configured(state.config)
        if state.topology is not None:
            self._declared(state.topology)

    def _configured(self, config: GroupConfigured) -> None:
        self.acceptable = min(config.knobs.acceptable_recovery_lag, FAR_BEHIND)
        self.external = config.led_by == "external"

    def _declared(self, topology: TopologyDeclared) -> None:
        self.changelogs = {each.subtopology: each.changelog_topics for each in topology.subtopologies}

    def _joined(self, key: tuple[str, int], lags: Mapping[TaskId, Lag], session_timeout_ms: int) -> None:
        if self.external:
            self.join_wait_ms = max(self.join_wait_ms, session_timeout_ms // 3)
        self.lags[key] = dict(lags)
        self._whole.add(key)

    def _fact(self, record: FactRecord) -> None:
        event = record.event
        self.now_ms = max(self.now_ms, record.append_ms)
        if isinstance(event, LogOpened):
            self._restores(event.manifest)
        elif isinstance(event, GroupConfigured) and not record.refused:
            self._configured(event)
        elif isinstance(event, TopologyDeclared):
            self._declared(event)
        elif isinstance(event, PartitionsObserved):
            for topic, ends in event.end_offsets.items():
                for partition, end in ends.items():
                    self.ends[topic, partition] = end
                    self.samples.setdefault((topic, partition), []).append((self.now_ms, end))
        elif isinstance(event, MemberJoined):
            key = (event.member_id, event.incarnation)
            self._joined(key, event.lags, event.session_timeout_ms)
            self.last[key] = self._copies(key)
        elif isinstance(event, LagReported):
            self._reported(event)
        elif isinstance(event, TaskReady):
            self._ready(event)
        elif isinstance(event, AssignmentObserved):
            for each in event.members:
                self.assigned[each.member_id, each.incarnation] = frozenset((*each.active, *each.standby))
                self.last[each.member_id, each.incarnation] = self._copies((each.member_id, each.incarnation))

    def _decision(self, record: DecisionRecord) -> None:
        event = record.decision
        before: frozenset[TaskId] = frozenset()
        if isinstance(event, MemberAssignedPart):
            before = self.assigned[event.assigned.member_id, event.assigned.incarnation] if event.part > 1 else before
            event = event.assigned
        if isinstance(event, MemberAssigned):
            key = (event.member_id, event.incarnation)
            known, ordered, lags = self.assigned.get(key, frozenset()), self._ordered.setdefault(key, {}), self.lags.get(key, {})
            self.assigned[key] = now = before.union(event.active, event.standby, event.warmup)
            for task in now - known:
                lag = lags.get(task, self._end(task))
                if isinstance(lag, int):
                    ordered[task] = lag

    def _restores(self, manifest: str) -> None:
        """Uses the manifest of an imported log: each task that had to be restored and was seen
        running gives a bound.

        Where the commit interval is known, the restore ended at most that long before the first
        commit, which is the interval's other end, unless the task also waited for a round, which
        takes longer than any usual commit interval.
        """
        document = read_manifest(manifest)
        commit_ms = document.get("supplied", {}).get("settings", {}).get("values", {}).get("commit_interval_ms")
        for each in document.get("observed", {}).get("restores", {}).get("values", []):
            took_ms = each["committed_ms"] - each["granted_ms"]
            if took_ms > 0:
                least_ms = took_ms - commit_ms if commit_ms and took_ms < LEAST_ROUND_MS else 0
                self.observations.append(
                    Observation(
                        member_id=each["member_id"],
                        from_ms=each["granted_ms"],
                        to_ms=each["committed_ms"],
                        copies=1,
                        records=each["records"],
                        low=each["records"] * 1_000 / took_ms,
                        high=each["records"] * 1_000 / least_ms if least_ms > 0 else None,
                        basis="first commit",
                    )
                )

    def fit(self) -> Fit:
        """Returns the fit of the records taken so far."""
        self._known(self._answers.rest())
        observations, opening_ms = without_openings(self.observations)
        overall = speed_of(observations)
        names = sorted({each.member_id for each in observations})
        estimate = estimate_of(observations)
        return Fit(
            records_per_s=estimate.records_per_s,
            low_records_per_s=estimate.low,
            high_records_per_s=estimate.high,
            basis=estimate.basis,
            overall=overall,
            members={name: speed_of([each for each in observations if each.member_id == name]) for name in names},
            observations=observations,
            write_rates=_write_rates(self),
            join_wait_ms=self.join_wait_ms,
            opening_ms=opening_ms,
            in_turn=self._alone / several if (several := self._alone + self._together) >= FEWEST_MEASURED else None,
        )

    def _end(self, task: TaskId) -> int | None:
        ends = [self.ends.get((topic, task.partition)) for topic in self.changelogs.get(task.subtopology, ())]
        known = [end for end in ends if end is not None]
        return sum(known) if len(known) == len(ends) else None

    def _copies(self, key: tuple[str, int]) -> _Copies:
        assigned = self.assigned.get(key, frozenset())
        lags = self.lags.get(key, {})
        missing = (task for task in assigned if self.changelogs.get(task.subtopology)) if key in self._whole else ()
        tasks = sorted({*lags, *missing})
        ends = {task: self._end(task) for task in tasks}
        return _Copies(self.now_ms, {task: (lags.get(task, end or 0), end) for task, end in ends.items()}, assigned)

    def _reported(self, event: LagReported) -> None:
        key = (event.member_id, event.incarnation)
        lags = self.lags.setdefault(key, {}) if event.base is not None else {}
        if event.base is None:
            self._whole.add(key)
        lags.update(event.lags)
        for task in event.forgotten:
            lags.pop(task, None)
        self.lags[key] = lags
        before = self.last.get(key)
        restores, lacks = before is not None and before.lacks and self.now_ms > before.at_ms, self._lacks(key)
        after = self._copies(key) if restores or lacks else _Copies(self.now_ms, {}, frozenset(), False)
        if restores and before is not None:
            self._observe(key, before, after)
        self.last[key] = attrs.evolve(after, lacks=lacks)

    def _lacks(self, key: tuple[str, int]) -> bool:
        """Returns whether the member may have to restore something: most reports say that it has
        not, and a log has many.
        """
        lags = self.lags[key]
        for task in self.assigned.get(key, frozenset()):
            lag = lags.get(task)
            if lag is None:
                if key in self._whole and self.changelogs.get(task.subtopology):
                    return True
            elif isinstance(lag, int) and lag > self.acceptable:
                return True
        return False

    def _ready(self, event: TaskReady) -> None:
        """A member reports as soon as a copy is ready, and declares it right after: it was
        restoring until then.
        """
        last = self.observations[-1] if self.observations else None
        if last is None or last.high is not None or last.member_id != event.member_id or self.now_ms - last.to_ms > READY_WITHIN_MS:
            return
        self.observations[-1] = attrs.evolve(last, high=last.low)

    def _observe(self, key: tuple[str, int], before: _Copies, after: _Copies) -> None:
        """Uses the copies that were far behind at the first report and assigned from then to the
        second.
        """
        took_ms = after.at_ms - before.at_ms
        restored = copies = 0
        busy = False
        ordered = self._ordered.get(key, {})
        opens, ahead, behind = True, 0, 0
        for task in sorted(before.assigned):
            if task not in before.positions or task not in after.positions:
                continue
            (lag, end), (later, later_end) = before.positions[task], after.positions[task]
            if not isinstance(lag, int) or lag <= self.acceptable:
                continue
            remaining = 0 if later is LagSentinel.ACTIVE else later
            if not isinstance(remaining, int):
                continue
            growth = 0 if end is None or later_end is None else max(0, later_end - end)  # a first observation is no growth
            here = max(0, lag - remaining + growth)
            restored += here
            copies += 1
            opens &= lag >= ordered.get(task, 0)
            if remaining > self.acceptable + growth:
                ahead, behind = ahead + (here > 0), behind + 1
            busy = busy or remaining > self.acceptable + growth * self.join_wait_ms // took_ms
        if behind > 1 and ahead:
            self._together, self._alone = self._together + (ahead > 1), self._alone + (ahead == 1)
        if copies and restored > 0:
            low = restored * 1_000 / (took_ms + self.join_wait_ms)
            high = restored * 1_000 / (took_ms - self.join_wait_ms) if busy and took_ms > self.join_wait_ms else None
            self.observations.append(
                Observation(
                    member_id=key[0],
                    from_ms=before.at_ms,
                    to_ms=after.at_ms,
                    copies=copies,
                    records=restored,
                    low=low,
                    high=high,
                    basis="reports",
                    opens=opens,
                )
            )


def fit(records: Iterable[Entry]) -> Fit:
    """Returns the restore speed of one group's members and the write rates of its changelogs, in
    one pass over facts and decisions in stored order. Raises as `Fitting.take` does.
    """
    fitting = Fitting()
    for record in records:
        fitting.take(record)
    return fitting.fit()


def _write_rates(fitting: Fitting) -> tuple[WriteRate, ...]:
    changelogs = {topic for topics in fitting.changelogs.values() for topic in topics}
    found = []
    for (topic, partition), samples in sorted(fitting.samples.items()):
        rates = [
            (after - before) * 1_000 / (after_ms - before_ms)
            for (before_ms, before), (after_ms, after) in itertools.pairwise(samples)
            if after_ms > before_ms
        ]
        if topic in changelogs and rates:
            lower, median, upper = statistics.quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else (rates[0],) * 3
            span_ms = samples[-1][0] - samples[0][0]
            found.append(
                WriteRate(
                    topic=topic,
                    partition=partition,
                    lower_quartile=lower,
                    median=median,
                    upper_quartile=upper,
                    mean=(samples[-1][1] - samples[0][1]) * 1_000 / span_ms,
                )
            )
    return tuple(found)
