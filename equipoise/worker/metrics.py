"""Metrics of a worker, named by the conventions of Prometheus: base units, `_total` for counters.

`WorkerMetrics` counts events. States (members, tasks, imbalance, ...) are read off the machines at
each scrape (`equipoise.worker.group_metrics`), so a group that went to another worker is no longer
reported here.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from equipoise.events.decisions import ChangeJudged, Decision, EventRejected
from equipoise.events.facts import BaseRequested
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.owners import Owners
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.rejections import is_expected
from equipoise.statemachine.state import GroupState
from equipoise.worker.group_metrics import GroupMetrics

ROUND_STATUSES = ("200", "400", "401", "403", "408", "409", "413", "415", "421", "503")
"""Of the answers to rounds (`equipoise.worker.rounds_over_http`)."""
_FOLD_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TAKEOVER_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


CHANGE_VERDICTS = ("expected", "above", "undone", "other")
"""expected: nothing was above its interval of 95 %, or above its limit. other: it was replaced,
refused, or not over in time.
"""


def _change_verdict(judged: ChangeJudged) -> str:
    if judged.undone:
        return "undone"
    return "above" if judged.above else "expected" if judged.outcome == "at_rest" else "other"


class WorkerMetrics:
    """Counters and histograms of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._facts = FactCounts()
        registry.register(self._facts)
        self.decisions = Counter("equipoise_decisions", "Decisions computed live, by kind.", ["kind"], registry=registry)
        for kind in get_args(Decision):  # an alert on a rise needs the value before the first one
            self.decisions.labels(kind.__name__)
        self.changes = Counter("equipoise_changes_judged", "Planned changes that were judged live, by verdict.", ["verdict"], registry=registry)
        for verdict in CHANGE_VERDICTS:
            self.changes.labels(verdict)
        self.rejected_facts = Counter("equipoise_rejected_facts", "Facts rejected live, but for those of members in order.", registry=registry)
        self.fold_seconds = FoldSeconds()
        registry.register(self.fold_seconds)
        self.takeover_seconds = Histogram("equipoise_takeover_seconds", "Time to take a partition over.", buckets=_TAKEOVER_S, registry=registry)
        self.takeovers_failed = Counter("equipoise_takeovers_failed", "Takeover sessions that failed and were retried.", registry=registry)
        self.probings = Counter(
            "equipoise_probings", "Evaluations because probing_interval_ms was over, also those that change nothing.", registry=registry
        )
        self.ticks = Counter("equipoise_ticks", "Ticks sent.", registry=registry)
        self.checkpoints = Counter("equipoise_checkpoints", "Checkpoints stored.", registry=registry)
        self.bases = Counter("equipoise_bases", "Bases stored.", registry=registry)
        self.first_offset = Gauge(
            "equipoise_log_first_offset", "First fact of a partition, where this worker deletes records.", ["partition"], registry=registry
        )
        self.retention_held = Gauge(
            "equipoise_retention_held",
            "1: records that are due to be deleted are kept, because a group has halted or an archive does not have them.",
            ["partition"],
            registry=registry,
        )
        self.rejected = Counter("equipoise_rejected_records", "Records of the topic of facts that belong to no group.", registry=registry)
        self.rounds = Counter("equipoise_rounds_asked", "Rounds asked over HTTP, by status of the answer.", ["status"], registry=registry)
        for status in ROUND_STATUSES:
            self.rounds.labels(status)
        self.round_seconds = Histogram("equipoise_round_seconds", "Time to answer a round over HTTP.", buckets=_FOLD_S, registry=registry)
        self.unavailable_s: dict[str, float] = {}
        """Group -> task-seconds without a running owner (`equipoise.replay.numbers`), by the
        broker's clock. They stay while another worker leads the group.
        """
        self.unavailable_in_all_s = 0.0
        self._groups = GroupMetrics(lambda: (), lambda: 0, self.unavailable_s, lambda: self.unavailable_in_all_s, lambda: 0.0)
        self._counted: dict[str, _CountedGroup] = {}
        self._counted_to: dict[tuple[str, str], int] = {}
        """(log id, group) -> offset up to which unavailability was counted here. `forget` keeps it,
        because takeovers are retried.
        """

    def begin(self, group: str, state: GroupState) -> None:
        """Begins with a group as its checkpoint has it, before facts are folded: those since then
        show what a former worker, or none, did not count.
        """
        self._counted[group] = self._begun(FactRecord(group, state.last_offset, state.last_append_ms or 0, BaseRequested()), state)

    def _begun(self, record: FactRecord, state: GroupState) -> _CountedGroup:
        return _CountedGroup(record, state, self._counted_to.get((state.log_id, record.group), -1))

    def folded(self, record: FactRecord, decisions: Sequence[DecisionRecord], state: GroupState, *, live: bool, is_new: bool) -> None:
        """Counts one fact and its decisions. `state`: the group's state after it.

        `live`: folded as it came, not on a takeover. `is_new`: live, or later than every fact that
        a published decision answers, so that no earlier worker has counted it.
        """
        self._facts.counts[live][record.event.__class__] += 1
        of_group = self._counted.get(record.group)
        if of_group is None:
            of_group = self._counted[record.group] = self._begun(record, state)
        task_ms = of_group.pass_to(record, decisions, state)
        due_ms, of_group.probing_ms = of_group.probing_ms, state.probing_deadline_ms
        if live and due_ms is not None and due_ms <= state.now_ms:
            self.probings.inc()
        if live and decisions:
            for decision in decisions:
                self.decisions.labels(decision.decision.__class__.__name__).inc()
                if isinstance(decision.decision, ChangeJudged):
                    self.changes.labels(_change_verdict(decision.decision)).inc()
                if isinstance(decision.decision, EventRejected) and not is_expected(decision.decision, record.event, state.topologies):
                    self.rejected_facts.inc()
        if is_new and record.offset > of_group.counted_to:
            of_group.counted_to = record.offset
            if task_ms:
                self.unavailable_s[record.group] = self.unavailable_s.get(record.group, 0.0) + task_ms / 1_000
                self.unavailable_in_all_s += task_ms / 1_000

    def forget(self, groups: Iterable[str]) -> None:
        """Stops counting time for these groups: another worker leads them now."""
        for group in groups:
            of_group = self._counted.pop(group, None)
            if of_group is not None:
                self._counted_to[of_group.log_id, group] = of_group.counted_to

    def forget_partition(self, partition: int) -> None:
        """Shows nothing of this partition any more: another worker leads it."""
        for gauge in (self.first_offset, self.retention_held):
            with contextlib.suppress(KeyError):  # nothing was shown
                gauge.remove(str(partition))

    def observe(
        self,
        groups: Callable[[], Iterable[tuple[GroupLead, bool]]],
        positions: Callable[[], Iterable[tuple[int, int | None, bool]]],
        most_groups: Callable[[], int],
        monotonic_s: Callable[[], float],
    ) -> None:
        """Shows also the states of `groups`, which returns those led here, each with whether its
        state is that of now, at most `most_groups` of
        them by name, and `positions`: (partition, offset of the next fact, whether it is led).
        """
        self._groups = GroupMetrics(groups, most_groups, self.unavailable_s, lambda: self.unavailable_in_all_s, monotonic_s)
        self.registry.register(PartitionCollector(positions))

    def text(self) -> bytes:
        """The answer to a scrape, made at once."""
        return generate_latest(self.registry) + self._groups.text()

    async def page(self) -> bytes:
        """The answer to a scrape, made while other coroutines run."""
        of_groups = await self._groups.page()
        return generate_latest(self.registry) + of_groups


class FactCounts(Collector):
    """Counts of folded facts, in `counts`: those of a takeover and live ones, by class. The client
    library would take about as long to count a fact as the machine takes to fold it.
    """

    def __init__(self) -> None:
        self.counts: tuple[Multiset[type], Multiset[type]] = (Multiset(), Multiset())

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        metric = CounterMetricFamily("equipoise_facts", "Facts folded, by kind; takeover: of a log that is taken over.", labels=["kind", "takeover"])
        for counts, takeover in zip(self.counts, ("true", "false"), strict=True):
            for kind, count in counts.items():
                metric.add_metric([kind.__name__, takeover], count)
        yield metric


class FoldSeconds(Collector):
    """The histogram of the times to fold a fact. Counting one costs a tenth of what the client
    library takes, which would be more than most facts take.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(_FOLD_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one fact."""
        self._counts[bisect_left(_FOLD_S, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        bounds = [*map(floatToGoString, _FOLD_S), "+Inf"]
        metric = HistogramMetricFamily("equipoise_fold_seconds", "Time to fold one fact and decide.")
        metric.add_metric([], list(zip(bounds, accumulate(self._counts), strict=True)), self._sum_s)
        yield metric


class _CountedGroup:
    """Counts the task-milliseconds of one group without a running owner, as its timeline does.
    `counted_to`: offset of the last fact that was counted.
    """

    def __init__(self, record: FactRecord, state: GroupState, counted_to: int) -> None:
        self.log_id = state.log_id
        self.counted_to = counted_to
        self.probing_ms = state.probing_deadline_ms
        """When the balance was to be evaluated again, after the last fact."""
        self._owners = Owners()
        self._owners.begin(record, state)
        self._most_ms = 0
        """What was found so far: a clock of brokers may go back."""

    def pass_to(self, record: FactRecord, decisions: Sequence[DecisionRecord], state: GroupState) -> int:
        """Returns the task-milliseconds that this fact shows. A silence is known only when it ends,
        so it is counted all at once.
        """
        self._owners.see(record, decisions, state)
        self._owners.intervals.clear()
        more_ms = max(0, self._owners.stopped_ms(record.append_ms) - self._most_ms)
        self._most_ms += more_ms
        return more_ms


class PartitionCollector(Collector):
    """Reads positions at each scrape. `positions`: returns (partition, offset of the next fact,
    whether it is led) for every partition of the log; the offset is None where another worker has
    it.
    """

    def __init__(self, positions: Callable[[], Iterable[tuple[int, int | None, bool]]]) -> None:
        self._positions = positions

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        position = GaugeMetricFamily("equipoise_partition_position", "Offset of the next fact of each partition led here.", labels=["partition"])
        leading = GaugeMetricFamily("equipoise_partition_leading", "1: taken over and led here; 0: not, or not yet.", labels=["partition"])
        for partition, offset, leads in self._positions():
            if offset is not None:
                position.add_metric([str(partition)], offset)
            leading.add_metric([str(partition)], float(leads))
        yield from (position, leading)
