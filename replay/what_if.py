"""`what_if`: what the same outside would have cost under other settings, each simulated, and how far the simulation can be believed.

What the world did (`replay.exogenous`) is taken from the log; what the group did in answer comes from the simulated cluster, whose members restore
as fast as the log shows. The group as it was, the *factual* configuration, is always simulated as well: how far that is from what was recorded
is the error of everything beside it. The log is read once, however many configurations there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from events.codec import make_record
from events.errors import EquipoiseError, GroupHalted, InputError
from events.facts import Fact
from events.knobs import Knobs
from events.records import DecisionRecord, Record
from replay.cluster.restore import RestoreModel
from replay.exogenous import Exogenous
from replay.recording import METRICS, Metrics, Recording, mean, metrics_of, read_recording
from replay.refold import Entry
from replay.simulate import Simulation, SimulationResult, configuration, simulate
from replay.totals import in_all

FACTUAL = "as it is"
"""The name of the configuration that the group had."""

Progress = Callable[[int, int], None]
"""(milliseconds simulated, milliseconds in all), over all configurations and seeds."""


@attrs.frozen(kw_only=True)
class Configuration:
    """A configuration to try: what is other than in the log. `knobs`: by name (`events.knobs.Knobs`); `assignor` None: the same.

    `announce_closes`: a member that closes says so first (True) or stops at once (False). None: as its leader has it: as it was where the log's own
    leader leads, announced where equipoise takes the place of another one.
    """

    name: str
    assignor: str | None = None
    knobs: Mapping[str, Any] = attrs.field(factory=dict)
    announce_closes: bool | None = None


@attrs.frozen(kw_only=True)
class Outcome:
    """What one configuration cost. `runs`: one for each seed, `metrics` their mean. `error`: why it could not lead; then there are no runs."""

    configuration: Configuration
    assignor: str
    knobs: Knobs
    runs: tuple[Metrics, ...]
    metrics: Metrics | None
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.configuration.name,
            "assignor": self.assignor,
            "changes": dict(self.configuration.knobs),
            "announce_closes": self.configuration.announce_closes,
            "metrics": None if self.metrics is None else self.metrics.as_json(),
            "runs": [run.as_json() for run in self.runs],
            "error": self.error,
        }


@attrs.frozen(kw_only=True)
class Deviation:
    """One metric of the factual configuration. `low`, `high`: of the runs. `error`: simulated beside recorded, 0.2 is 20 % too much.

    None: not known, or nothing was recorded that it could be related to.
    """

    metric: str
    recorded: float | None
    simulated: float | None
    low: float | None
    high: float | None
    error: float | None


@attrs.frozen(kw_only=True)
class WhatIf:
    """The answer for one group. `factual`: the group's own configuration, simulated; `outcomes`: the others, in the order asked."""

    group: str
    facts: int
    span_ms: int
    seeds: tuple[int, ...]
    restore_records_per_s: int
    restore_basis: str
    recorded: Metrics
    eyes: str
    """Who says what was recorded: ``measured`` in the group itself, or the ``log``."""
    fidelity: tuple[Deviation, ...]
    factual: Outcome
    outcomes: tuple[Outcome, ...]

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "group": self.group,
            "facts": self.facts,
            "span_ms": self.span_ms,
            "seeds": list(self.seeds),
            "restore_records_per_s": self.restore_records_per_s,
            "restore_basis": self.restore_basis,
            "recorded": self.recorded.as_json(),
            "eyes": self.eyes,
            "fidelity": [attrs.asdict(each) for each in self.fidelity],
            "factual": self.factual.as_json(),
            "outcomes": [each.as_json() for each in self.outcomes],
        }


def what_if(
    entries: Iterable[Entry],
    configurations: Sequence[Configuration] = (),
    *,
    group: str | None = None,
    seeds: Sequence[int] = (0,),
    restore_records_per_s: int | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """What each configuration would have cost the group of a log. `entries`: facts and decisions in stored order, as `Log.read` gives them; read
    once, and not kept.

    A configuration that cannot lead (it halts, or breaks an invariant) is an outcome with an error. Equal arguments give equal answers.

    Raises:
        InputError: a knob or an assignor that does not exist, two configurations of one name, several groups and none named; before anything is
            simulated. FieldError: a knob's value is unsound.
        What the log raises.
    """
    return what_if_recorded(
        read_recording(entries, group=group), configurations, seeds=seeds, restore_records_per_s=restore_records_per_s, progress=progress
    )


def what_if_recorded(
    recording: Recording,
    configurations: Sequence[Configuration] = (),
    *,
    seeds: Sequence[int] = (0,),
    restore_records_per_s: int | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """`what_if` of a log that was read already."""
    check_configurations(recording.exogenous, configurations)
    if not seeds:
        raise InputError("seeds: name at least one")
    exogenous = recording.exogenous
    speed = recording.fit.records_per_s if restore_records_per_s is None else restore_records_per_s
    basis = recording.fit.basis if restore_records_per_s is None else "given"
    span_ms = exogenous.end_ms - exogenous.start.at_ms
    bar = _Bar(progress, span_ms, (1 + len(configurations)) * len(seeds))
    factual = Configuration(name=FACTUAL)
    tried = [_outcome(recording, each, seeds, speed, bar) for each in (factual, *configurations)]
    return WhatIf(
        group=exogenous.start.group,
        facts=recording.facts,
        span_ms=span_ms,
        seeds=tuple(seeds),
        restore_records_per_s=speed,
        restore_basis=basis,
        recorded=recording.recorded,
        eyes=recording.eyes,
        fidelity=_fidelity(recording, seeds, speed, tried[0]),
        factual=tried[0],
        outcomes=tuple(tried[1:]),
    )


def check_configurations(exogenous: Exogenous, configurations: Sequence[Configuration]) -> None:
    """Raises what `what_if` raises for configurations that are unsound."""
    names = {FACTUAL}
    for each in configurations:
        if each.name in names:
            raise InputError(f"configuration {each.name!r}: there are two of that name; give each its own")
        names.add(each.name)
        configuration(exogenous.start.config, _simulation(exogenous, each, seed=0, speed=1))


class _Bar:
    """Progress over several simulations."""

    def __init__(self, progress: Progress | None, span_ms: int, runs: int) -> None:
        self._progress = progress
        self._span_ms = span_ms
        self._runs = runs
        self._done = 0

    def __call__(self, done_ms: int, of_ms: int) -> None:
        if self._progress is not None:
            self._progress(self._done * self._span_ms + done_ms, self._runs * self._span_ms)

    def next_run(self) -> None:
        self._done += 1
        self(0, self._span_ms)


def _simulation(exogenous: Exogenous, each: Configuration, *, seed: int, speed: int) -> Simulation:
    """Options of the recorded assignor say nothing to another one."""
    recorded = exogenous.start.config
    overrides = dict(each.knobs)
    if each.assignor not in (None, recorded.assignor):
        overrides.setdefault("options", {})
    return Simulation(assignor=each.assignor, overrides=overrides, seed=seed, restore=RestoreModel(records_per_s=speed))


def _outcome(recording: Recording, each: Configuration, seeds: Sequence[int], speed: int, bar: _Bar) -> Outcome:
    exogenous = recording.exogenous
    outside = exogenous.with_closes(True if each.announce_closes is None and exogenous.imported else each.announce_closes)
    configured = configuration(exogenous.start.config, _simulation(exogenous, each, seed=0, speed=speed))
    runs: list[Metrics] = []
    error = ""
    for seed in seeds:
        try:
            result = simulate(outside, _simulation(exogenous, each, seed=seed, speed=speed), progress=bar)
            runs.append(metrics_of(in_all([window.totals for window in result.windows])))
        except InputError:
            raise
        except EquipoiseError as problem:
            error = problem.problem if isinstance(problem, GroupHalted) else str(problem)
            break
        finally:
            bar.next_run()
    return Outcome(
        configuration=each,
        assignor=configured.assignor,
        knobs=configured.knobs,
        runs=() if error else tuple(runs),
        metrics=None if error else mean(runs),
        error=error,
    )


def _fidelity(recording: Recording, seeds: Sequence[int], speed: int, factual: Outcome) -> tuple[Deviation, ...]:
    """Recorded beside simulated, both seen in the same way: what was measured in a group beside what is so in the simulated one, what a log tells
    beside what the simulated log tells."""
    runs = list(factual.runs) if recording.eyes == "measured" else [_seen_run(recording, seed, speed) for seed in seeds if factual.runs]
    return tuple(_deviation(metric, getattr(recording.recorded, metric), [getattr(run, metric) for run in runs]) for metric in METRICS)


def _deviation(metric: str, recorded: float | None, runs: Sequence[float | None]) -> Deviation:
    values = [value for value in runs if value is not None]
    simulated = sum(values) / len(values) if values and len(values) == len(runs) else None
    return Deviation(
        metric=metric,
        recorded=recorded,
        simulated=None if simulated is None else round(simulated, 3),
        low=min(values) if values else None,
        high=max(values) if values else None,
        error=None if not recorded or simulated is None else round(simulated / recorded - 1, 4),
    )


def _seen_run(recording: Recording, seed: int, speed: int) -> Metrics:
    """The factual configuration's log, read as the recorded one was."""
    exogenous = recording.exogenous
    memory = _Memory()
    result: SimulationResult = simulate(exogenous, _simulation(exogenous, Configuration(name=FACTUAL), seed=seed, speed=speed), sink=memory)
    return read_recording(memory.entries, group=result.group).recorded


class _Memory:
    """A log that is kept for a moment."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._offset = 0

    def append_fact(self, group: str, append_ms: int, event: Fact) -> Record:
        record = make_record(group, self._offset, append_ms, event)
        self._offset += 1
        self.entries.append(record)
        return record

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        self.entries += decisions
