"""Metrics of a worker, named by the conventions of Prometheus: base units, `_total` for counters.

`WorkerMetrics` counts events. `GroupCollector` reads states (members, tasks, imbalance, ...) off
the machines at each scrape, so a group that went to another worker is no longer reported here.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from equipoise.events.decisions import Decision, EventRejected
from equipoise.events.facts import TopologyDeclared
from equipoise.events.records import DecisionRecord, Record
from equipoise.replay.group_view import task_rows
from equipoise.replay.silence import SilenceFinder
from equipoise.replay.trouble import unread_partitions
from equipoise.replay.wording import setting_text, setting_values
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import GroupLead
from equipoise.statemachine.rejections import is_expected
from equipoise.statemachine.state import GroupState

_LOG = logging.getLogger(__name__)
ROUND_STATUSES = ("200", "400", "401", "403", "408", "409", "413", "415", "421", "503")
"""Of the answers to rounds (`equipoise.worker.rounds`)."""
_FOLD_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TAKEOVER_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class WorkerMetrics:
    """Counters and histograms of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._facts = FactCounts()
        registry.register(self._facts)
        self.decisions = Counter("equipoise_decisions", "Decisions computed live, by kind.", ["kind"], registry=registry)
        for kind in get_args(Decision):  # an alert on a rise needs the value before the first one
            self.decisions.labels(kind.__name__)
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
        self.rejected = Counter("equipoise_rejected_records", "Records that belong to no group, put into the rejected topic.", registry=registry)
        self.rounds = Counter("equipoise_rounds_asked", "Rounds asked over HTTP, by status of the answer.", ["status"], registry=registry)
        for status in ROUND_STATUSES:
            self.rounds.labels(status)
        self.round_seconds = Histogram("equipoise_round_seconds", "Time to answer a round over HTTP.", buckets=_FOLD_S, registry=registry)
        self.unavailable = Counter(
            "equipoise_unavailable_task_seconds",
            "Task-seconds in which nobody owned a task, its owner waited for a hold, or its owner was silent, by the broker's clock.",
            ["group"],
            registry=registry,
        )
        self._times: dict[str, _UnavailableTime] = {}
        """Group -> what is needed to count its unavailable time."""
        self._counted_to: dict[tuple[str, str], int] = {}
        """(log id, group) -> offset up to which unavailability was counted here. `forget` keeps it,
        because takeovers are retried.
        """

    def folded(self, record: Record, decisions: Sequence[DecisionRecord], state: GroupState, *, live: bool, is_new: bool) -> None:
        """Counts one fact and its decisions. `state`: the group's state after it.

        `live`: folded as it came, not on a takeover. `is_new`: live, or later than every fact that
        a published decision answers, so that no earlier worker has counted it.
        """
        self._facts.counts[live][record.event.__class__] += 1
        of_group = self._times.get(record.group)
        if of_group is None:
            of_group = self._times[record.group] = _UnavailableTime(record, state, self._counted_to.get((state.log_id, record.group), -1))
        task_ms = of_group.pass_to(record, decisions, state)
        due_ms, of_group.probing_ms = of_group.probing_ms, state.probing_deadline_ms
        if live and due_ms is not None and due_ms <= state.now_ms:
            self.probings.inc()
        if live and decisions:
            for decision in decisions:
                self.decisions.labels(decision.decision.__class__.__name__).inc()
                if isinstance(decision.decision, EventRejected) and not is_expected(decision.decision, record.event, state.topologies):
                    self.rejected_facts.inc()
        if is_new and record.offset > of_group.counted_to:
            of_group.counted_to = record.offset
            if task_ms or not of_group.shown:
                of_group.shown = True
                self.unavailable.labels(record.group).inc(task_ms / 1_000)

    def forget(self, groups: Iterable[str]) -> None:
        """Stops counting time for these groups: another worker leads them now."""
        for group in groups:
            of_group = self._times.pop(group, None)
            if of_group is not None:
                self._counted_to[of_group.log_id, group] = of_group.counted_to

    def forget_partition(self, partition: int) -> None:
        """Shows nothing of this partition any more: another worker leads it."""
        for gauge in (self.first_offset, self.retention_held):
            with contextlib.suppress(KeyError):  # nothing was shown
                gauge.remove(str(partition))

    def text(self) -> bytes:
        """The answer to a scrape."""
        return generate_latest(self.registry)


def held(state: GroupState) -> int:
    """Tasks whose owner waits for a hold and is not known to run them. See docs/protocol.md#m5."""
    return sum(task in state.owner for task in state.holds)


def runnable(state: GroupState) -> Multiset[str]:
    """Member -> number of tasks that it owns without a hold."""
    return Multiset(owner for task, owner in state.owner.items() if task not in state.holds)


class FactCounts(Collector):
    """Counts of folded facts, in `counts`: those of a takeover and live ones, by class. The client
    library would take about as long to count a fact as the machine takes to fold it.
    """

    def __init__(self) -> None:
        self.counts: tuple[Multiset[type], Multiset[type]] = (Multiset(), Multiset())

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        metric = CounterMetricFamily(
            "equipoise_facts", "Facts folded, by kind; takeover: of a log that is taken over.", labels=["kind", "takeover"]
        )
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


class _UnavailableTime:
    """Counts the unavailable task-milliseconds of one group, from the fact `record` on. `state`:
    after it.
    """

    def __init__(self, record: Record, state: GroupState, counted_to: int) -> None:
        self.log_id = state.log_id
        self.counted_to = counted_to
        """Offset of the last fact that was counted."""
        self.shown = False
        """Whether the group's counter exists."""
        self._silences = SilenceFinder()
        self.probing_ms = state.probing_deadline_ms
        """When the balance was to be evaluated again, after the last fact."""
        self._owned, self._total = Multiset[str](), -1
        """Member -> tasks that it owned without a hold, after the last fact that changed any; and
        their sum.
        """
        self._since_ms = record.append_ms
        self._idle = 0
        """Tasks that had no owner, or one that waited for a hold, after the last fact."""
        self._topology: TopologyDeclared | None = None
        self._tasks = 0
        """Number of tasks of that topology, the newest."""
        self._look(state)

    def _look(self, state: GroupState) -> None:
        self._owned = runnable(state)
        self._total = self._owned.total()

    def pass_to(self, record: Record, decisions: Sequence[DecisionRecord], state: GroupState) -> int:
        """The task-milliseconds that end with this fact: of tasks without an owner since the last
        one, and of silent owners. A silence is known only when it ends, so it is counted all at
        once.
        """
        found = self._silences.note(record, decisions, state)
        task_ms = sum((each.to_ms - each.from_ms) * self._owned[each.member_id] for each in found) if found else 0
        waiting, owned = held(state) if state.holds else 0, len(state.owner)
        if decisions or self._total != owned - waiting:
            self._look(state)
        if record.append_ms > self._since_ms:
            task_ms += self._idle * (record.append_ms - self._since_ms)
            self._since_ms = record.append_ms
        if self._topology is None or record.event.__class__ is TopologyDeclared:
            self._topology = topology = state.topology
            self._tasks = 0 if topology is None else sum(part.partitions for part in topology.subtopologies)
        self._idle = waiting + (self._tasks - owned if self._tasks > owned else 0)  # an older topology may have had more
        return task_ms


class GroupCollector(Collector):
    """Reads the states of the groups at each scrape. `groups`: returns the groups that this worker
    leads now. `positions`: returns (partition, offset of the next fact, whether it is led).
    """

    def __init__(self, groups: Callable[[], Iterable[GroupLead]], positions: Callable[[], Iterable[tuple[int, int, bool]]]) -> None:
        self._groups = groups
        self._positions = positions
        self._unreadable: set[str] = set()
        """Groups whose state cannot be read, which were logged."""

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape."""
        members = GaugeMetricFamily("equipoise_members", "Live members, by state.", labels=["group", "state"])
        tasks = GaugeMetricFamily(
            "equipoise_tasks",
            "Tasks, by state: owned, revoking (its owner gives it up), nobody (without an owner).",
            labels=["group", "state"],
        )
        movements = GaugeMetricFamily("equipoise_movements", "Movements, by state; waiting: without a slot.", labels=["group", "state"])
        imbalance = GaugeMetricFamily("equipoise_imbalance_tasks", "Tasks over the upper share plus tasks under the lower share.", labels=["group"])
        lag = GaugeMetricFamily("equipoise_warmup_lag_records", "Records that warm-ups have still to restore, in all.", labels=["group"])
        halted = GaugeMetricFamily("equipoise_group_halted", "1: the group is halted (docs/operations.md).", labels=["group"])
        unread = GaugeMetricFamily("equipoise_unread_partitions", "Partitions of source topics that no task reads.", labels=["group", "topic"])
        refused = GaugeMetricFamily(
            "equipoise_members_refused", "Members that may not join, because they run another topology than the group.", labels=["group"]
        )
        generation = GaugeMetricFamily("equipoise_generation", "Number of the last decision round.", labels=["group"])
        others = _Promises()
        for group in self._groups():
            state = group.machine.state
            halted.add_metric([group.name], float(group.halted is not None))
            try:
                phases = [state.member_phase(member).value for member in state.members.values()]
                rows = list(task_rows(state))
            except Exception:  # noqa: BLE001 a defect may have halted it half-way through a step
                if group.name not in self._unreadable:
                    self._unreadable.add(group.name)
                    _LOG.exception("group %s: its state cannot be read for the metrics", group.name)
                continue
            for value, metric in ((state.generation, generation), (0 if state.verdict is None else state.verdict[3], imbalance)):
                metric.add_metric([group.name], value)
            _add(members, group.name, phases, ("STABLE",))
            _add(tasks, group.name, [row.state for row in rows], ("owned", "revoking", "nobody"))
            moving = [movement.state.value for movement in state.in_flight.values()] + ["waiting"] * state.waiting
            _add(movements, group.name, moving, ("waiting", "warming", "revoking"))
            behind = sum(copy.lag for row in rows for copy in row.warmups if isinstance(copy.lag, int))
            lag.add_metric([group.name], behind)
            unread_now = unread_partitions(state, state.end_offsets)
            for topic in sorted({topic for part in (() if state.topology is None else state.topology.subtopologies) for topic in part.source_topics}):
                unread.add_metric([group.name, topic], unread_now.get(topic, 0))
            refused.add_metric([group.name], len(state.recently_refused()))
            others.add(group.name, group.machine)
        yield from (members, tasks, movements, imbalance, lag, halted, unread, refused, generation, *others.metrics)
        position = GaugeMetricFamily("equipoise_partition_position", "Offset of the next fact of each partition led here.", labels=["partition"])
        leading = GaugeMetricFamily("equipoise_partition_leading", "1: taken over and led; 0: still being taken over.", labels=["partition"])
        for partition, offset, leads in self._positions():
            position.add_metric([str(partition)], offset)
            leading.add_metric([str(partition)], float(leads))
        yield from (position, leading)


class _Promises:
    """Gauges of what assignors promise (few moves, little traffic between racks, even load), of
    lost tasks, and of the settings in force.

    Values of the last evaluation are absent from a takeover to the next round.
    """

    def __init__(self) -> None:
        self._moves = GaugeMetricFamily(
            "equipoise_target_moves",
            "Changes of owner from the last evaluation to its target (planned), and the fewest for any balanced target (lower_bound).",
            labels=["group", "count"],
        )
        self._racks = GaugeMetricFamily(
            "equipoise_cross_rack_partitions", "Source partitions that the target reads from another rack.", labels=["group"]
        )
        self._load = GaugeMetricFamily(
            "equipoise_load_spread_ratio",
            "Highest less lowest load per thread of a staying member, in fair shares: at the last evaluation (now), at its target "
            "(target), and the greatest allowed at rest (bound).",
            labels=["group", "at"],
        )
        self._behind = GaugeMetricFamily("equipoise_source_lag_records", "Source records still to be processed, as reported.", labels=["group"])
        self._lost = GaugeMetricFamily(
            "equipoise_lost_tasks",
            "Tasks whose owner left or died and that have no new owner yet, on purpose (waiting) or not (free).",
            labels=["group", "state"],
        )
        self._lost_wait = GaugeMetricFamily(
            "equipoise_lost_tasks_wait_seconds", "Group time until the last of the waiting lost tasks gets a new owner.", labels=["group"]
        )
        self._settings = GaugeMetricFamily("equipoise_setting", "Numeric settings in force, in the unit of their names.", labels=["group", "setting"])
        self._configuration = InfoMetricFamily("equipoise_configuration", "The other settings in force.", labels=["group"])

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All of these gauges, to collect after `add`."""
        gauges = (self._moves, self._racks, self._load, self._behind, self._lost, self._lost_wait, self._settings)
        return (*gauges, self._configuration)

    def add(self, group: str, machine: GroupMachine) -> None:
        """Adds the values of one group."""
        state, evaluation = machine.state, machine.last_evaluation
        self._behind.add_metric([group], sum(state.behind.values()))
        waits_ms = [lost.until_ms - state.now_ms for lost in state.lost.values() if lost.until_ms is not None]
        self._lost.add_metric([group, "waiting"], len(waits_ms))
        self._lost.add_metric([group, "free"], len(state.lost) - len(waits_ms))
        self._lost_wait.add_metric([group], max(0, *waits_ms, 0) / 1_000)
        if evaluation is not None:
            self._moves.add_metric([group, "planned"], evaluation.cost.moves)
            self._moves.add_metric([group, "lower_bound"], evaluation.cost.moves_lower_bound)
            self._racks.add_metric([group], evaluation.cost.cross_rack)
            load = evaluation.load
            if load is not None:
                spreads = {"now": load.highest_now - load.lowest_now, "target": load.highest - load.lowest, "bound": load.bound}
                for at, millionths in spreads.items():
                    self._load.add_metric([group, at], millionths / 1_000_000)
        if state.config is not None:
            texts = {}
            for name, value in setting_values(state.config).items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self._settings.add_metric([group, name], value)
                else:
                    texts[name.replace(".", "_")] = setting_text(value)
            self._configuration.add_metric([group], texts)


def _add(metric: GaugeMetricFamily, group: str, states: list[str], always: tuple[str, ...]) -> None:
    for state in sorted({*states, *always}):
        metric.add_metric([group, state], states.count(state))
