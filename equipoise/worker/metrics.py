"""Metrics of a worker, named by the conventions of Prometheus: base units, `_total` for counters.

`WorkerMetrics` counts events. `GroupCollector` reads states (members, tasks, imbalance, ...) off
the machines at each scrape, so a group that went to another worker is no longer reported here.
"""

from __future__ import annotations

import logging
from collections import Counter as Tasks
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.events.records import DecisionRecord, Record
from equipoise.replay.group_view import task_rows
from equipoise.replay.silence import SilenceFinder
from equipoise.replay.wording import setting_text, setting_values
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.partition import GroupLead
from equipoise.statemachine.state import GroupState

_LOG = logging.getLogger(__name__)
_FOLD_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TAKEOVER_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class WorkerMetrics:
    """Counters and histograms of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.facts = Counter("equipoise_facts", "Facts folded, by kind; anew: folded again on a takeover.", ["kind", "anew"], registry=registry)
        self.decisions = Counter("equipoise_decisions", "Decisions computed live, by kind.", ["kind"], registry=registry)
        self.fold_seconds = Histogram("equipoise_fold_seconds", "Time to fold one fact and decide.", buckets=_FOLD_S, registry=registry)
        self.takeover_seconds = Histogram("equipoise_takeover_seconds", "Time to take a partition over.", buckets=_TAKEOVER_S, registry=registry)
        self.takeovers_failed = Counter("equipoise_takeovers_failed", "Takeover sessions that failed and were retried.", registry=registry)
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
        self.unavailable = Counter(
            "equipoise_unavailable_task_seconds",
            "Task-seconds in which nobody owned a task, its owner waited for a hold, or its owner was silent, by the broker's clock.",
            ["group"],
            registry=registry,
        )
        self._idle: dict[str, tuple[int, int]] = {}
        """Group -> time of its last fact (ms), and the tasks that had no owner, or one that waited
        for a hold, after it.
        """
        self._silences: dict[str, SilenceFinder] = {}
        self._owned: dict[str, Tasks[str]] = {}
        """Group -> member -> tasks that it owned without a hold, after the last fact that changed
        any.
        """
        self._counted_to: dict[tuple[str, str], int] = {}
        """(log id, group) -> offset up to which unavailability was counted here. `forget` keeps it,
        because takeovers are retried.
        """

    def folded(self, record: Record, decisions: Iterable[DecisionRecord], state: GroupState, *, live: bool, is_new: bool) -> None:
        """Counts one fact and its decisions. `state`: the group's state after it.

        `live`: folded as it came, not on a takeover. `is_new`: live, or later than every fact that
        a published decision answers, so that no earlier worker has counted it.
        """
        self.facts.labels(record.event.__class__.__name__, "false" if live else "true").inc()
        decisions = list(decisions)
        silent_ms = self._silent_task_ms(record, decisions, state)
        if live:
            for decision in decisions:
                self.decisions.labels(decision.decision.__class__.__name__).inc()
        idle_ms = self._idle_task_ms(record, state)
        key = state.log_id, record.group
        if is_new and record.offset > self._counted_to.get(key, -1):
            self._counted_to[key] = record.offset
            self.unavailable.labels(record.group).inc((silent_ms + idle_ms) / 1_000)

    def forget(self, groups: Iterable[str]) -> None:
        """Stops counting time for these groups: another worker leads them now."""
        for group in groups:
            self._idle.pop(group, None)
            self._silences.pop(group, None)
            self._owned.pop(group, None)

    def _silent_task_ms(self, record: Record, decisions: Sequence[DecisionRecord], state: GroupState) -> int:
        """Task-milliseconds of the silences of members that end with this fact. A silence is known
        only when it ends, so it is counted all at once.
        """
        owned = self._owned.get(record.group)
        if owned is None:
            owned = self._owned[record.group] = runnable(state)
        found = self._silences.setdefault(record.group, SilenceFinder()).note(record, decisions, state)
        task_ms = sum((each.to_ms - each.from_ms) * owned[each.member_id] for each in found)
        if decisions or owned.total() != len(state.owner) - held(state):
            self._owned[record.group] = runnable(state)
        return task_ms

    def _idle_task_ms(self, record: Record, state: GroupState) -> int:
        """Task-milliseconds since the last fact in which tasks had no owner, or one that waited for
        a hold.
        """
        since_ms, idle = self._idle.get(record.group, (record.append_ms, 0))
        now_ms = max(since_ms, record.append_ms)
        topology = state.topology
        tasks = 0 if topology is None else sum(part.partitions for part in topology.subtopologies)
        self._idle[record.group] = (now_ms, max(0, tasks - len(state.owner)) + held(state))  # an older topology may have had more
        return idle * (now_ms - since_ms)

    def text(self) -> bytes:
        """The answer to a scrape."""
        return generate_latest(self.registry)


def held(state: GroupState) -> int:
    """Tasks whose owner waits for a hold and is not known to run them. See docs/protocol.md#m5."""
    return sum(task in state.owner for task in state.holds)


def runnable(state: GroupState) -> Tasks[str]:
    """Member -> number of tasks that it owns without a hold."""
    return Tasks(owner for task, owner in state.owner.items() if task not in state.holds)


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
            others.add(group.name, group.machine)
        yield from (members, tasks, movements, imbalance, lag, halted, generation, *others.metrics)
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
