"""`what_if`: the costs of a recorded group under other settings, each simulated, with the error of
the simulation.

Inputs from outside the group (`equipoise.replay.recorded_inputs`) come from the log; the group's
answers come from the simulated cluster, whose members restore as fast as the log shows. The
*factual* configuration, the group's own, is always simulated as well: its distance from the
recording is the error of every other result. The log is read once for all configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from equipoise.assignors.common.carrier import KAFKA_STREAMS
from equipoise.events import fields
from equipoise.events.errors import EquipoiseError, FieldError, GroupHalted, InputError
from equipoise.events.facts import GroupConfigured
from equipoise.events.records import Entry
from equipoise.events.settings import GroupSettings
from equipoise.replay.inputs_reader import sum_windows
from equipoise.replay.numbers import UNAVAILABLE, WITHOUT_OWNER, WITHOUT_RUNNER
from equipoise.replay.recorded_inputs import RecordedInputs
from equipoise.replay.simulation import MemorySink, RestoreModel
from equipoise.replay.simulation.run import RECORDED, Simulation, SimulationResult, configuration, is_behaviour_version, simulate
from equipoise.replay.simulation.run_kafka import ASSIGNOR as KAFKA
from equipoise.replay.simulation.run_kafka import kafka_configuration, rounds_configuration, simulate_kafka
from equipoise.replay.whatif.recorded_costs import METRICS, Metrics, Recording, mean, metrics_of, read_recording

FACTUAL = "as it is"
"""Name of the group's own configuration."""

LEAST_SPAN_MS = 1_000
"""Shortest log that can be simulated. A leader needs half a second to take over."""
Progress = Callable[[int, int], None]
"""Called with (milliseconds simulated, milliseconds in total), over all configurations and seeds.
"""


@attrs.frozen(kw_only=True)
class Configuration:
    """A configuration to try, as changes to the log's own. `settings`: by name
    (`equipoise.events.settings.GroupSettings`); `assignor` None: the log's leader.

    A group imported from Kafka Streams is led by Kafka Streams with `assignor` None or
    ``kafka_streams``, and by equipoise with any other. `carrier`: then what carries equipoise's
    plans out: ``kafka_streams``, the application as it is, which asks for rounds (docs/streams.md);
    ``members``, which embed equipoise. None: as recorded; members where Kafka Streams led.

    `behaviour_version`: of the assignor: a number, ``latest``, or ``recorded``, as in the log.
    None: ``latest``, which a group has once it is configured.

    `announce_closes`: whether a member announces its close (True) or stops at once (False). None:
    as recorded under the log's own leader; announced where equipoise replaces Kafka Streams.
    """

    name: str
    assignor: str | None = None
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    announce_closes: bool | None = None
    carrier: str | None = attrs.field(default=None, validator=fields.optional(fields.one_of("members", KAFKA_STREAMS.name)))
    behaviour_version: int | str | None = attrs.field(default=None, validator=fields.optional(is_behaviour_version))


AS_IT_IS = Configuration(name=FACTUAL, behaviour_version=RECORDED)


@attrs.frozen(kw_only=True)
class Outcome:
    """Costs of one configuration. `runs`: one for each seed; `metrics`: their mean. `error`: why
    the configuration could not lead; then there are no runs.
    """

    configuration: Configuration
    assignor: str
    behaviour_version: int
    settings: GroupSettings
    runs: tuple[Metrics, ...]
    metrics: Metrics | None
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the outcome, JSON-ready."""
        return {
            "name": self.configuration.name,
            "assignor": self.assignor,
            "behaviour_version": self.behaviour_version,
            "changes": dict(self.configuration.settings),
            "announce_closes": self.configuration.announce_closes,
            "carrier": self.configuration.carrier,
            "metrics": None if self.metrics is None else self.metrics.as_json(),
            "runs": [run.as_json() for run in self.runs],
            "error": self.error,
        }


@attrs.frozen(kw_only=True)
class Deviation:
    """One metric of the factual configuration. `simulated`: mean of the runs. `low`, `high`: over
    all runs, including those with the restore speed at either end of its interval. `error`:
    relative error; 0.2: simulated is 20 % above recorded.

    None: unknown, or nothing of the same name was recorded to compare with.
    """

    metric: str
    recorded: float | None
    simulated: float | None
    low: float | None
    high: float | None
    error: float | None


@attrs.frozen(kw_only=True)
class WhatIf:
    """The answer for one group. `factual`: the group's own configuration, simulated; `outcomes`:
    the others, in the order given.
    """

    group: str
    facts: int
    span_ms: int
    seeds: tuple[int, ...]
    restore_records_per_s: int
    restore_basis: str
    recorded: Metrics
    metrics_source: str
    """Source of the recorded metrics: ``measured`` in the group itself, or the ``log``."""
    fidelity: tuple[Deviation, ...]
    factual: Outcome
    outcomes: tuple[Outcome, ...]
    log_shows: str = UNAVAILABLE
    """What the recorded ``unavailable_task_seconds`` are (`equipoise.replay.numbers`): as measured,
    or as the log shows it. A log of another leader shows something else than its simulation.
    """

    def as_json(self) -> dict[str, Any]:
        """Returns the answer, JSON-ready."""
        return {
            "group": self.group,
            "facts": self.facts,
            "span_ms": self.span_ms,
            "seeds": list(self.seeds),
            "restore_records_per_s": self.restore_records_per_s,
            "restore_basis": self.restore_basis,
            "recorded": self.recorded.as_json(),
            "eyes": self.metrics_source,
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
    """Returns what each configuration would have cost the group of a log. `entries`: facts and
    decisions in stored order, as `Log.read` gives them; read once, and not kept.

    A configuration that cannot lead (it halts, or breaks an invariant) is an outcome with an error.
    Equal arguments give equal answers.

    Raises InputError, before any simulation, for a setting or an assignor that does not exist, two
    configurations of one name, several groups of which none is named, and a log shorter than
    LEAST_SPAN_MS. Raises FieldError for an invalid value of a setting. Raises what reading the log
    raises.
    """
    recording = read_recording(entries, group=group)
    return what_if_recorded(recording, configurations, seeds=seeds, restore_records_per_s=restore_records_per_s, progress=progress)


def what_if_recorded(
    recording: Recording,
    configurations: Sequence[Configuration] = (),
    *,
    seeds: Sequence[int] = (0,),
    restore_records_per_s: int | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Returns the answer of `what_if` for a log that was already read. Raises as `what_if` does."""
    check_configurations(recording.inputs, configurations)
    if not seeds:
        raise InputError("seeds: name at least one")
    inputs, fit = recording.inputs, recording.fit
    if restore_records_per_s is None:
        speeds = _Speeds(fit.records_per_s, tuple(each for each in (fit.low_records_per_s, fit.high_records_per_s) if each is not None))
    else:
        speeds = _Speeds(restore_records_per_s, ())
    span_ms = recording.span_ms
    if span_ms < LEAST_SPAN_MS:
        raise InputError(f"the log of group {inputs.start.group!r} spans {span_ms} ms; there is nothing to play in less than {LEAST_SPAN_MS} ms")
    bar = _Bar(progress, span_ms, (1 + len(speeds.ends) + len(configurations)) * len(seeds))
    seen: list[Metrics] = []
    log_shows = UNAVAILABLE if recording.metrics_source == "measured" else WITHOUT_OWNER if inputs.imported else WITHOUT_RUNNER
    factual = _outcome(recording, AS_IT_IS, seeds, speeds.used, bar, seen)
    outcomes = tuple(_outcome(recording, each, seeds, speeds.used, bar) for each in configurations)
    return WhatIf(
        group=inputs.start.group,
        facts=recording.facts,
        span_ms=span_ms,
        seeds=tuple(seeds),
        restore_records_per_s=speeds.used,
        restore_basis=fit.basis if restore_records_per_s is None else "given",
        recorded=recording.recorded,
        metrics_source=recording.metrics_source,
        fidelity=_fidelity(recording, seeds, speeds, seen, bar, log_shows),
        log_shows=log_shows,
        factual=factual,
        outcomes=outcomes,
    )


@attrs.frozen
class Checked:
    """A valid configuration. `same`: it equals the group's own."""

    configuration: Configuration
    same: bool


def check_configurations(inputs: RecordedInputs, configurations: Sequence[Configuration]) -> list[Checked]:
    """Returns the configurations, checked. Raises InputError or FieldError as `what_if` does."""
    names = {FACTUAL}
    found = []
    own = configured_as(inputs, AS_IT_IS)
    for each in configurations:
        if each.name in names:
            raise InputError(f"configuration {each.name!r}: there are two of that name; give each its own")
        names.add(each.name)
        found.append(Checked(each, configured_as(inputs, each) == own and each.announce_closes is None and each.carrier in (None, inputs.carrier)))
    return found


def configured_as(inputs: RecordedInputs, each: Configuration) -> GroupConfigured:
    """Returns the group's configuration with the changes of `each`. Raises InputError for an
    assignor or a setting that does not exist, FieldError for an invalid value.
    """
    if each.carrier == KAFKA_STREAMS.name and not inputs.imported:
        raise InputError(f"carrier {each.carrier}: the group's members embed equipoise; import one that Kafka Streams carries out")
    simulation = _simulation(inputs, each, seed=0, speed=1)
    configured_by = kafka_configuration if kafka_leads(inputs, each) else rounds_configuration if in_rounds(inputs, each) else configuration
    try:
        return configured_by(inputs.start.config, simulation)
    except FieldError as error:
        raise FieldError(error.name, error.problem) from None


def kafka_leads(inputs: RecordedInputs, each: Configuration) -> bool:
    """Returns whether Kafka Streams leads under this configuration."""
    return inputs.imported and (each.assignor == KAFKA or (each.assignor is None and not in_rounds(inputs, each)))


def in_rounds(inputs: RecordedInputs, each: Configuration) -> bool:
    """Returns whether a Kafka Streams application asks equipoise for rounds under this
    configuration.
    """
    return each.assignor != KAFKA and (each.carrier or inputs.carrier) == KAFKA_STREAMS.name


@attrs.frozen
class _Speeds:
    """Restore speeds in records/s: the one used, and the ends of its interval."""

    used: int
    ends: tuple[int, ...]


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


def _simulation(inputs: RecordedInputs, each: Configuration, *, seed: int, speed: int) -> Simulation:
    """Options of the recorded assignor do not apply to another one."""
    recorded = inputs.start.config
    overrides = dict(each.settings)
    if each.assignor not in (None, recorded.assignor):
        overrides.setdefault("options", {})
    return Simulation(
        assignor=each.assignor,
        behaviour_version=each.behaviour_version,
        overrides=overrides,
        seed=seed,
        restore=RestoreModel(records_per_s=speed),
    )


def run_configuration(
    inputs: RecordedInputs, each: Configuration, *, seed: int, speed: int, sink: MemorySink | None = None, progress: Progress | None = None
) -> SimulationResult:
    """Makes one run of one configuration. `speed`: records/s that a process restores. `sink` gets
    the log, unless Kafka's protocol carries the group out, which writes none. Raises as `simulate`
    and `simulate_kafka` do.
    """
    simulation = _simulation(inputs, each, seed=seed, speed=speed)
    rounds = in_rounds(inputs, each)
    if rounds or kafka_leads(inputs, each):
        return simulate_kafka(inputs.with_closes(each.announce_closes), simulation, rounds=rounds, progress=progress)
    announce = True if each.announce_closes is None and inputs.imported else each.announce_closes
    return simulate(inputs.with_closes(announce), simulation, sink=sink, progress=progress)


def _simulate_once(recording: Recording, each: Configuration, seed: int, speed: int, bar: _Bar, seen: list[Metrics] | None = None) -> Metrics:
    """Makes one run. Adds to `seen` the metrics as the recording's source would have given them:
    measured in the group, or read from the log.
    """
    inputs = recording.inputs
    writes_log = not (in_rounds(inputs, each) or kafka_leads(inputs, each))
    memory = MemorySink() if seen is not None and recording.metrics_source != "measured" and writes_log else None
    try:
        result = run_configuration(inputs, each, seed=seed, speed=speed, sink=memory, progress=bar)
    finally:
        bar.next_run()
    metrics = metrics_of(sum_windows([window.totals for window in result.windows]))
    if seen is not None:
        seen.append(metrics if memory is None else read_recording(memory.entries, group=result.group).recorded)
    return metrics


def _outcome(recording: Recording, each: Configuration, seeds: Sequence[int], speed: int, bar: _Bar, seen: list[Metrics] | None = None) -> Outcome:
    configured = configured_as(recording.inputs, each)
    runs: list[Metrics] = []
    error = ""
    for seed in seeds:
        try:
            runs.append(_simulate_once(recording, each, seed, speed, bar, seen))
        except InputError:
            raise
        except EquipoiseError as problem:
            error = problem.problem if isinstance(problem, GroupHalted) else str(problem)
            break
    return Outcome(
        configuration=each,
        assignor=configured.assignor,
        behaviour_version=configured.behaviour_version,
        settings=configured.knobs,
        runs=() if error else tuple(runs),
        metrics=None if error else mean(runs),
        error=error,
    )


def _fidelity(
    recording: Recording, seeds: Sequence[int], speeds: _Speeds, seen: Sequence[Metrics], bar: _Bar, log_shows: str
) -> tuple[Deviation, ...]:
    """Compares recorded with simulated metrics, those of one name. `seen`: the factual runs; fewer
    than `seeds` when one failed.
    """
    ends: list[Metrics] = []
    if len(seen) == len(seeds):
        for speed in speeds.ends:
            _outcome(recording, AS_IT_IS, seeds, speed, bar, ends)
    found = [
        _deviation(metric, getattr(recording.recorded, metric), [getattr(run, metric) for run in seen], [getattr(run, metric) for run in ends])
        for metric in METRICS
    ]
    unlike = "unavailable_task_seconds" if log_shows == WITHOUT_OWNER else ""
    return tuple(attrs.evolve(each, error=None) if each.metric == unlike else each for each in found)


def _deviation(metric: str, recorded: float | None, runs: Sequence[float | None], ends: Sequence[float | None]) -> Deviation:
    values = [value for value in runs if value is not None]
    everything = [*values, *(value for value in ends if value is not None)]
    simulated = sum(values) / len(values) if values and len(values) == len(runs) else None
    return Deviation(
        metric=metric,
        recorded=recorded,
        simulated=None if simulated is None else round(simulated, 3),
        low=min(everything, default=None),
        high=max(everything, default=None),
        error=None if not recorded or simulated is None else round(simulated / recorded - 1, 4),
    )
