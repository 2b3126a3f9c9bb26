"""Reads a group's log once for every what-if question: its recorded inputs, the restore speed of
its members, and its recorded costs.

Costs of recorded and simulated runs have one form: `Metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.events.records import Entry
from equipoise.replay.inputs_reader import RecordedInputsReader, sum_windows
from equipoise.replay.recorded_inputs import RecordedInputs, Window
from equipoise.replay.replayer import Replayer
from equipoise.replay.simulation.measures import Costs, Notes, ProcessLifetime
from equipoise.replay.simulation.world import Ownership
from equipoise.replay.spans import ALWAYS, Span, SpanReader
from equipoise.replay.timelines.build import TimelineBuilder
from equipoise.replay.timelines.values import Timeline
from equipoise.replay.whatif.fit import Fit, Fitting


class NoFactInSpanError(InputError):
    """The group has no fact in the span."""


@attrs.frozen(kw_only=True)
class Metrics:
    """Costs of a run in all its marked windows together, or in the whole run when none is marked.
    None: unknown. Less is better.
    """

    unavailable_task_seconds: float
    """Seconds without processing, summed over tasks."""
    records_restored: float | None
    """Read into copies and into granted tasks."""
    rebalances: float
    """Rounds that changed some member's assignment."""
    imbalance_task_seconds: float
    """Seconds above or below the members' shares, summed over tasks."""
    moves: float
    """Changes of owner, intermediate ones included."""
    records_restored_before_running: float | None
    """Part of `records_restored` that a granted task waited for."""

    def as_json(self) -> dict[str, float | None]:
        """Returns the metrics, JSON-ready, in the order of this class."""
        return attrs.asdict(self)


METRICS = tuple(field.name for field in attrs.fields(Metrics))


def metrics_of(totals: Mapping[str, Any]) -> Metrics:
    """Returns metrics from totals in the form of `equipoise.replay.simulation.measures` and the
    recorded runs. A recorded run has no imbalance among its totals: 0.
    """
    return Metrics(
        unavailable_task_seconds=totals["unavailable_task_seconds"],
        records_restored=totals.get("records_restored"),
        rebalances=totals["generations"],
        imbalance_task_seconds=totals.get("imbalance_task_seconds", 0.0),
        moves=totals["active_moves"],
        records_restored_before_running=totals.get("records_restored_before_running"),
    )


def mean(runs: Sequence[Metrics]) -> Metrics:
    """Returns the mean of several runs; None for a metric that is unknown in one of them."""
    found: dict[str, float | None] = {}
    for name in METRICS:
        values = [getattr(run, name) for run in runs]
        found[name] = None if None in values else round(sum(values) / len(values), 3)
    return Metrics(**found)  # type: ignore[arg-type]  # only those are None that may be


@attrs.frozen(kw_only=True)
class Recording:
    """What was read from a log. `recorded`: its costs. `metrics_source`: their source, ``measured``
    or ``log``.
    """

    inputs: RecordedInputs
    fit: Fit
    recorded: Metrics
    metrics_source: str
    facts: int

    @property
    def span_ms(self) -> int:
        return self.inputs.end_ms - self.inputs.start.at_ms


def read_recording(entries: Iterable[Entry], *, group: str | None = None, span: Span = ALWAYS) -> Recording:
    """Reads a log in one pass; memory grows with the number of changes, not of records. `span`:
    costs are those of that time, instead of the marked windows; what was before is simulated, too,
    and not counted.

    Raises NoFactInSpanError when the group has no fact in the span; InputError for several groups
    of which none is named, for a group that is absent, or without configuration or topology. Raises
    GroupHalted as `build_timeline` does, and what reading the log raises.
    """
    reader = RecordedInputsReader(group=group, announce_closes=None)
    fitting = Fitting(group=group)

    within = SpanReader(entries, span)

    def tapped() -> Iterator[Entry]:
        for entry in within:
            reader.take(entry)
            fitting.take(entry)
            yield entry

    replayer = Replayer(group)
    builder = TimelineBuilder(replayer)
    try:
        for step in replayer.follow(tapped()):
            builder.observe(step)
    except InputError:
        if span == ALWAYS or within.facts:
            raise
    if span != ALWAYS and not within.facts:
        raise NoFactInSpanError("the log has no fact of the group in this span; name another one")
    timeline = builder.timeline()
    inputs = reader.inputs()
    if span != ALWAYS:
        window = _window(span, inputs)
        inputs, timeline = attrs.evolve(inputs, windows=(window,)), attrs.evolve(timeline, windows=(window,))
    fit = fitting.fit()
    seen = seen_in(timeline, fit)
    measured = [window.measured["totals"] for window in inputs.windows if window.measured is not None]
    if measured and len(measured) == len(inputs.windows):
        of_group = metrics_of(sum_windows(measured))
        seen = attrs.evolve(of_group, imbalance_task_seconds=seen.imbalance_task_seconds, records_restored=seen.records_restored)
    return Recording(
        inputs=inputs,
        fit=fit,
        recorded=seen,
        metrics_source="measured" if measured else "log",
        facts=timeline.facts if span == ALWAYS else within.facts,
    )


def _window(span: Span, inputs: RecordedInputs) -> Window:
    start_ms = inputs.start.at_ms if span.from_ms is None else max(inputs.start.at_ms, span.from_ms)
    end_ms = inputs.end_ms if span.until_ms is None else min(inputs.end_ms, span.until_ms)
    return Window(label="span", start_ms=start_ms, end_ms=max(start_ms, end_ms), measured=None)


def seen_in(timeline: Timeline, fit: Fit) -> Metrics:
    """Returns the costs that the log itself shows."""
    totals = timeline.window_totals()
    windows = timeline.windows or (Window(label="all", start_ms=timeline.from_ms, end_ms=timeline.to_ms, measured=None),)
    costs = _costs(timeline)
    restored = [each.records for each in fit.observations if any(window.start_ms <= each.to_ms < window.end_ms for window in windows)]
    return Metrics(
        unavailable_task_seconds=round(sum(each.stopped_ms for each in totals) / 1_000, 1),
        records_restored=sum(restored),
        rebalances=sum(each.rounds for each in totals),
        imbalance_task_seconds=round(sum(costs.imbalance_ms(window.start_ms, window.end_ms) for window in windows) / 1_000, 1),
        moves=sum(each.moves for each in totals),
        records_restored_before_running=None,
    )


def _costs(timeline: Timeline) -> Costs:
    """Returns the log's owners as measurements, for costs that are computed as in a simulated
    group.
    """
    history = [
        Ownership(task=each.task, member_id=each.member_id, process=each.member_id, incarnation=0, token=0, start_ms=each.from_ms, end_ms=each.to_ms)
        for each in timeline.intervals
        if each.member_id is not None
    ]
    lives = [
        ProcessLifetime(
            member_id=each.member_id,
            capacity=each.capacity,
            start_ms=each.joined_ms,
            end_ms=each.ended_ms if each.silent_ms is None else each.silent_ms,
        )
        for each in timeline.lifelines
    ]
    return Costs(tasks=timeline.tasks, history=history, restores=(), notes=Notes(), lives=lives, end_ms=timeline.to_ms)
