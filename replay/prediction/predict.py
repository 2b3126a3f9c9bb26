"""`predict`: simulates a change of the group many times, from the group as it is now.

Each run has its own draw of what is uncertain (`equipoise.replay.prediction.habits`). A run begins
with the members of now and what is on their disks; once the group is at rest the change is made,
and its costs are counted until the group is at rest again. Equal arguments give equal answers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from equipoise.assignors.load_balanced import LoadBalanced
from equipoise.assignors.registry import NEWEST
from equipoise.events.errors import InputError
from equipoise.events.facts import JUDGED_METRICS, ExpectedCost
from equipoise.events.tasks import TaskId
from equipoise.replay.numbers import MOVES, UNAVAILABLE_TASK_S
from equipoise.replay.parallel import in_processes
from equipoise.replay.prediction.change_run import ChangeRun, RunCost
from equipoise.replay.prediction.draw import Draw
from equipoise.replay.prediction.habits import Habits, quantile
from equipoise.replay.prediction.placed_as_now import FirstDeal
from equipoise.replay.prediction.planned_change import (
    Configure,
    PlannedChange,
    check_change,
    document_of,
    members_after,
)
from equipoise.replay.prediction.present import START_MS, PresentGroup
from equipoise.replay.simulation import ClusterConfig, NetworkSettings, SimulatedCluster
from equipoise.replay.simulation.measures import Notes
from equipoise.replay.simulation.restored_copies import Disk

RUNS = 200
WITHOUT_LOADS = {each.name for each in NEWEST} - {LoadBalanced.name}
"""Assignors that do not look at what tasks cost: simulated members need not report it."""
SMALLEST_RHO = 0.3
"""Smallest rank correlation that counts as sensitivity."""
SMALLEST_WIDTH = 0.05
"""Outcomes that differ by less, as a part of their median, are not asked what they depend on."""
METRICS = {
    "unavailable_task_seconds": UNAVAILABLE_TASK_S,
    "moves": MOVES,
    "records_restored": "records restored",
    "rest_s": "seconds until at rest",
}
"""What is predicted -> how a table calls it."""
INPUTS = {
    "restore_records_per_s": "how fast members restore",
    "arrivals": "how much is written meanwhile",
    "close_ms": "how fast members give tasks up",
    "start_ms": "how fast processes start",
    "latency_ms": "how fast members open copies",
    "delay_ms": "how long records are under way",
    "away_ms": "how long members are away",
    "in_turn": "whether members restore copies in turn",
    "phase": "when it begins",
}
"""What is drawn -> how a sentence calls it."""


@attrs.frozen
class PredictedInterval:
    """The middle half of the runs (`low_50` to `high_50`), and 95 % of them."""

    median: float
    low_50: float
    high_50: float
    low_95: float
    high_95: float

    def holds(self, value: float, percent: int = 95) -> bool:
        """Returns whether it contains the value. `percent`: 50 or 95."""
        low, high = (self.low_50, self.high_50) if percent == 50 else (self.low_95, self.high_95)
        return low <= value <= high


@attrs.frozen(kw_only=True)
class Prediction:
    """The cost of a change. `sensitive_to`: metric -> the drawn input that it depends on most;
    absent where it is chance. `as_now`: part of the tasks that the runs began with where they are
    now, 0 to 1.
    """

    change: Mapping[str, Any]
    runs: int
    intervals: Mapping[str, PredictedInterval]
    sensitive_to: Mapping[str, str]
    as_now: float
    restore_basis: str
    expected: tuple[ExpectedCost, ...] = ()
    """What the group's leader will judge the change by; empty: such a change cannot be planned."""
    owners: tuple[Mapping[TaskId, str], ...] = attrs.field(default=(), repr=False)
    """Of each run: task -> who runs it at the end."""
    bytes_read: PredictedInterval | None = None
    """None: how large records are is not known."""

    def in_bytes(self, record_bytes: float | None) -> Prediction:
        """Returns the prediction with the bytes that are read to restore, at so many for a record;
        None: unknown.
        """
        if record_bytes is None:
            return self
        values = attrs.astuple(self.intervals["records_restored"])
        return attrs.evolve(self, bytes_read=PredictedInterval(*(float(round(each * record_bytes)) for each in values)))

    def as_json(self) -> dict[str, Any]:
        """Returns the prediction, JSON-ready."""
        return {
            "change": dict(self.change),
            "runs": self.runs,
            "intervals": {name: attrs.asdict(each) for name, each in self.intervals.items()},
            "sensitive_to": dict(self.sensitive_to),
            "as_now": self.as_now,
            "restore_basis": self.restore_basis,
            "expected": [attrs.asdict(each) for each in self.expected],
            "bytes_read": None if self.bytes_read is None else attrs.asdict(self.bytes_read),
        }


def predict(
    present: PresentGroup,
    habits: Habits,
    change: PlannedChange,
    *,
    runs: int = RUNS,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Prediction:
    """Returns what `change` will cost. `progress` is called with (runs done, runs in total).

    Raises InputError for a change that the group cannot have, and when something would be restored
    and neither the log nor the caller says how fast; raises GroupHalted or InvariantBroken when a
    run finds a defect.
    """
    return predict_in_turn(present, habits, [change], runs=runs, processes=processes, progress=progress)[0]


def predict_in_turn(
    present: PresentGroup,
    habits: Habits,
    changes: Sequence[PlannedChange],
    *,
    runs: int = RUNS,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """Returns what each of the changes will cost when each is made once the group is at rest after
    the one before. A later one may name members that an earlier one brought: ``+1``, ``+2`` and so
    on. Otherwise as `predict`; raises InputError as it does.
    """
    if runs < 1:
        raise InputError("runs: at least one")
    members = {each.member_id for each in present.members}
    for change in changes:
        check_change(change, members)
        members = members_after(change, members)
    ask = partial(_numbered_run, present, habits, tuple(changes))
    costs: dict[int, list[RunCost]] = {}
    answers = map(ask, range(runs)) if processes == 1 else in_processes(ask, range(runs), min(processes, runs))
    for number, cost in answers:
        costs[number] = cost
        if progress is not None:
            progress(len(costs), runs)
    draws = [habits.draw(number) for number in range(runs)]
    return [_predicted(present, habits, change, [costs[number][place] for number in range(runs)], draws) for place, change in enumerate(changes)]


class UnknownSpeedError(InputError):
    """A change makes members restore, and nothing shows how fast they do."""


def _predicted(present: PresentGroup, habits: Habits, change: PlannedChange, costs: Sequence[RunCost], draws: Sequence[Draw]) -> Prediction:
    """Returns the prediction of the runs of one change."""
    if not habits.restore_median and any(each.records_restored for each in costs):
        raise UnknownSpeedError(
            f"group {present.group!r}: this change makes members restore, and the log shows no restore whose speed could be measured; "
            "name one with --restore-speed"
        )
    now = present.owners.items()
    outcomes = {name: [float(getattr(each, name)) for each in costs] for name in METRICS}
    return Prediction(
        change=document_of(change),
        runs=len(costs),
        intervals={name: _interval(values) for name, values in outcomes.items()},
        sensitive_to={name: found for name, values in outcomes.items() if (found := _most_sensitive(values, draws))},
        as_now=round(sum(each.before.get(task) == owner for each in costs for task, owner in now) / len(costs) / max(1, len(now)), 3),
        restore_basis=habits.restore_basis,
        expected=expected_costs([each.judged for each in costs]),
        owners=tuple(each.owners for each in costs),
    )


def _numbered_run(present: PresentGroup, habits: Habits, changes: Sequence[PlannedChange], number: int) -> tuple[int, list[RunCost]]:
    configs = (present.config, *(each.config for each in changes if isinstance(each, Configure)))
    return number, _begun(present, habits.draw(number), reports_loads=not {each.assignor for each in configs} <= WITHOUT_LOADS).costs(changes)


def _begun(present: PresentGroup, draw: Draw, *, reports_loads: bool) -> ChangeRun:
    """Returns a simulated group that begins as the group is now."""
    notes = Notes()
    growth = present.growth(draw.arrivals)
    network = NetworkSettings(least_delay_ms=1, most_delay_ms=draw.delay_ms)
    config = ClusterConfig(
        group=present.group, configured=present.config, topology=present.topology, growth=growth, start_ms=START_MS, network=network
    )
    deal = FirstDeal(present)
    cluster = SimulatedCluster(config, seed=draw.seed, watcher=notes, machine_factory=deal.machine)
    cluster.start_worker()
    run = ChangeRun(cluster, notes, present.members, draw, deal, reports_loads=reports_loads)
    for member in present.members:
        disk = cluster.disks[member.member_id] = Disk()
        disk.positions = {task: max(0, cluster.world.end_offset(task, START_MS) - lag) for task, lag in member.copies.items()}
        run.start(member, start_ms=0)
    return run


def _interval(values: Sequence[float]) -> PredictedInterval:
    ordered = sorted(values)
    return PredictedInterval(*(round(quantile(ordered, share), 3) for share in (0.5, 0.25, 0.75, 0.025, 0.975)))


def expected_costs(judged: Sequence[Mapping[str, int]]) -> tuple[ExpectedCost, ...]:
    """Returns the intervals of what is counted in each run; (): in one nothing was."""
    found = []
    for metric in JUDGED_METRICS if all(judged) else ():
        ordered = sorted(float(each[metric]) for each in judged)
        low_95, low_50, median, high_50, high_95 = (quantile(ordered, share) for share in (0.025, 0.25, 0.5, 0.75, 0.975))
        found.append(
            ExpectedCost(
                metric=metric,
                median=round(median),
                low_50=math.floor(low_50),
                high_50=math.ceil(high_50),
                low_95=math.floor(low_95),
                high_95=math.ceil(high_95),
            )
        )
    return tuple(found)


def _most_sensitive(outcomes: Sequence[float], draws: Sequence[Draw]) -> str | None:
    """Returns the input with the largest rank correlation; None: all are small, or the outcomes
    are nearly the same.
    """
    if max(outcomes) - min(outcomes) <= SMALLEST_WIDTH * statistics.median(outcomes):
        return None
    found = {name: _correlation([float(getattr(each, name)) for each in draws], outcomes) for name in INPUTS}
    name = max(found, key=lambda each: abs(found[each]))
    return name if abs(found[name]) >= SMALLEST_RHO else None


def _correlation(inputs: Sequence[float], outcomes: Sequence[float]) -> float:
    if len(set(inputs)) < 2 or len(set(outcomes)) < 2:
        return 0.0
    return statistics.correlation(_ranks(inputs), _ranks(outcomes))


def _ranks(values: Sequence[float]) -> list[float]:
    """Returns the rank of each value; equal values share the middle of their ranks."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [statistics.fmean(places[value]) for value in values]
