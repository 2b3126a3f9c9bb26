"""`simulate`: a recorded group's inputs, led by equipoise in the simulated cluster. The results are
a complete log and its costs.

Taken from the recording (`equipoise.replay.recorded_inputs`): starts and ends of processes,
configuration, topology, growth of changelogs. Simulated: joins, lags, readiness, acknowledgements,
decisions. Equal inputs, settings and seeds write equal logs, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from equipoise.assignors import Assignor, check_settings, registry
from equipoise.events import fields
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured
from equipoise.events.settings import GroupSettings
from equipoise.replay.recorded_inputs import (
    ConfigurationChanged,
    PartitionsPlaced,
    ProcessEnded,
    ProcessStarted,
    RecordedInputs,
    TopologyChanged,
    Window,
)
from equipoise.replay.simulation import ClusterConfig, NetworkSettings, ProcessSettings, RestoreModel, SimulatedCluster, SimulatedWorkerSettings, Sink
from equipoise.replay.simulation.measures import Costs, Notes, ProcessLifetime, WindowCost
from equipoise.replay.simulation.member_process import ReplayedProcess
from equipoise.replay.simulation.world import SimulatedWorld

Progress = Callable[[int, int], None]
"""Called with (milliseconds simulated, milliseconds in total)."""
PROGRESS_EVERY_MS = 1_000
WITNESS_MS = 100
"""From the end of a process until its proof is appended."""
AFTER_EXIT_LOOK_MS = 100
"""Interval at which a start that waits for its predecessor's exit looks again."""


LATEST, RECORDED = "latest", "recorded"


def is_behaviour_version(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Validator: accepts a behaviour version of an assignor, LATEST and RECORDED."""
    if isinstance(value, str):
        fields.one_of(LATEST, RECORDED)(owner, attribute, value)
    else:
        fields.integer(1)(owner, attribute, value)


@attrs.frozen(kw_only=True)
class Simulation:
    """Settings of a simulation. None: as recorded in the log.

    `overrides`: settings of the group by name. `behaviour_version`: of the assignor, RECORDED or
    LATEST (None: LATEST, which a group gets when it is configured); another assignor than the
    recorded one has its latest for RECORDED. `restore`: see `equipoise.replay.whatif.fit` for
    fitted speeds. Times in milliseconds; the recorded JVM application took 1.3 s from its start to
    its first join request.
    """

    assignor: str | None = None
    behaviour_version: int | str | None = attrs.field(default=None, validator=fields.optional(is_behaviour_version))
    overrides: Mapping[str, Any] = attrs.field(factory=dict)
    seed: int = 0
    restore: RestoreModel = attrs.field(factory=RestoreModel)
    network: NetworkSettings = attrs.field(factory=NetworkSettings)
    worker: SimulatedWorkerSettings = attrs.field(factory=SimulatedWorkerSettings)
    start_ms: int = 1_300
    close_ms: int = 50
    heartbeat_interval_ms: int = 3_000


@attrs.frozen(kw_only=True)
class SimulationResult:
    """Costs of a simulation. `facts`, `decisions`: of the group, so LogOpened is none. `windows`:
    the log's own; one over the whole log when it has none.
    """

    group: str
    log_id: str
    configured: GroupConfigured
    seed: int
    announce_closes: bool | None
    start_ms: int
    end_ms: int
    facts: int
    decisions: int
    windows: tuple[WindowCost, ...]
    whole: WindowCost
    lives: tuple[ProcessLifetime, ...]
    measured: tuple[Mapping[str, Any] | None, ...]
    """Cost of each window under the group's own leader, where it was measured."""

    def as_json(self) -> dict[str, Any]:
        """Returns the result as a JSON-ready dict."""
        return {
            "group": self.group,
            "log_id": self.log_id,
            "assignor": self.configured.assignor,
            "behaviour_version": self.configured.behaviour_version,
            "knobs": attrs.asdict(self.configured.knobs),
            "seed": self.seed,
            "announce_closes": self.announce_closes,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "facts": self.facts,
            "decisions": self.decisions,
            "windows": [{**_cost_json(cost), "measured": measured} for cost, measured in zip(self.windows, self.measured, strict=True)],
            "whole": _cost_json(self.whole),
        }


def _cost_json(cost: WindowCost) -> dict[str, Any]:
    form = attrs.asdict(cost)
    for silence in form["silences"]:
        silence["task"] = f"{silence['task'][0]}_{silence['task'][1]}"
    return form


def override(settings: GroupSettings, overrides: Mapping[str, Any]) -> GroupSettings:
    """Returns `settings` with `overrides` applied. Raises InputError for an unknown name,
    FieldError for an invalid value.
    """
    known = {field.name for field in attrs.fields(GroupSettings)}
    for name in overrides:
        if name not in known:
            raise InputError(f"setting {name!r}: does not exist; there are {', '.join(sorted(known))}")
    replaced: dict[str, Any] = dict(overrides)
    return attrs.evolve(settings, **replaced)


def configuration(recorded: GroupConfigured, simulation: Simulation) -> GroupConfigured:
    """Returns the recorded configuration led by equipoise, with the simulation's assignor and
    settings and this build's solver.

    Options belong to one assignor: another assignor starts without any. Raises InputError or
    FieldError as `override` does.
    """
    assignor = _assignor_of(recorded, simulation)
    same = assignor.name == recorded.assignor
    settings = override(recorded.knobs if same else attrs.evolve(recorded.knobs, options={}), simulation.overrides)
    check_settings(assignor, settings)
    return GroupConfigured(
        assignor=assignor.name,
        behaviour_version=assignor.version,
        solver=assignor.solver,
        knobs=settings,
    )


def _assignor_of(recorded: GroupConfigured, simulation: Simulation) -> Assignor:
    name, version = simulation.assignor or recorded.assignor, simulation.behaviour_version
    if version == RECORDED and name == recorded.assignor:
        version = recorded.behaviour_version
    return registry.load(name, version) if isinstance(version, int) else registry.latest(name)


def simulate(inputs: RecordedInputs, simulation: Simulation, *, sink: Sink | None = None, progress: Progress | None = None) -> SimulationResult:
    """Simulates the group on the recorded `inputs` and returns what it cost. With a `sink` (a
    `Log`) the complete log is written there.

    Raises InputError when a setting or assignor does not exist or a process's lease cannot hold
    under the configuration. Raises GroupHalted or InvariantBroken when the run finds a defect.
    """
    run = _SimulationRun(inputs, simulation, sink)
    cluster, start_ms, end_ms = run.cluster, inputs.start.at_ms, inputs.end_ms
    for now_ms in range(start_ms, end_ms, PROGRESS_EVERY_MS):
        cluster.run_until(min(end_ms, now_ms + PROGRESS_EVERY_MS))
        if progress is not None:
            progress(cluster.now_ms - start_ms, end_ms - start_ms)
    return run.result()


_ENDS = {
    "killed": ReplayedProcess.kill,
    "witnessed": ReplayedProcess.kill,
    "silent": ReplayedProcess.close_silently,
    "closed": ReplayedProcess.close,
    "announced": ReplayedProcess.leave,
}
"""How a process ended (`ProcessEnded.how`) -> method that ends it."""


class _SimulationRun:
    """One simulation under way."""

    def __init__(self, inputs: RecordedInputs, simulation: Simulation, sink: Sink | None) -> None:
        self.inputs = inputs
        self.simulation = simulation
        self.notes = Notes()
        self.decisions = 0
        start = inputs.start
        self.configured = configuration(start.config, simulation)
        _check_leases(inputs, self.configured.knobs)
        config = ClusterConfig(
            group=start.group,
            log_id=log_id_of(inputs, simulation, self.configured),
            manifest=_manifest(inputs, simulation),
            configured=self.configured,
            topology=start.topology,
            growth=start.curves,
            start_ms=start.at_ms,
            network=simulation.network,
            worker=simulation.worker,
        )
        self.epoch = start.topology.epoch
        self.cluster = SimulatedCluster(config, seed=simulation.seed, sink=sink, watcher=self._folded)
        self.cluster.start_worker()
        for happening in inputs.happenings:
            self.cluster.engine.at(happening.at_ms, self._happens, happening)

    def _folded(self, *what: Any) -> None:
        self.decisions += len(what[1])
        self.notes(*what)

    def _happens(self, happening: Any) -> None:
        if isinstance(happening, ProcessStarted):
            self._starts(happening)
        elif isinstance(happening, ProcessEnded):
            process = self._process(happening.member_id)
            if process is not None and process.alive:
                if happening.how == "restarting":
                    process.leave_to_restart(happening.back_within_ms)
                else:
                    _ENDS[happening.how](process)
                if happening.how == "witnessed":
                    self.cluster.engine.after(WITNESS_MS, self.cluster.prove_end, process)
        elif isinstance(happening, ConfigurationChanged):
            self.cluster.append(configuration(happening.config, self.simulation))
        elif isinstance(happening, TopologyChanged):
            self.epoch = happening.topology.epoch
            self.cluster.append(happening.topology)
        elif isinstance(happening, PartitionsPlaced):
            self.cluster.append(happening.observed)

    def _process(self, member_id: str) -> ReplayedProcess | None:
        theirs = [process for process in self.cluster.processes if process.member_id == member_id]
        return theirs[-1] if theirs else None

    def _starts(self, happening: ProcessStarted) -> None:
        """Starts the process; when its predecessor still drains, after that, with the recorded
        pause between the two.
        """
        before = self._process(happening.member_id)
        if before is not None and before.alive:
            self.cluster.engine.after(AFTER_EXIT_LOOK_MS, self._starts, attrs.evolve(happening, at_ms=-1))
            return
        if before is not None and happening.at_ms == -1 and happening.pause_ms:
            self.cluster.engine.after(happening.pause_ms, self._starts, attrs.evolve(happening, at_ms=-1, pause_ms=None))
            return
        simulation = self.simulation
        settings = ProcessSettings(
            member_id=happening.member_id,
            capacity=happening.capacity,
            rack=happening.rack,
            tags=dict(happening.tags),
            eager=happening.eager,
            ready_lag_records=happening.ready_lag_records,
            prepare_ms=happening.prepare_ms,
            session_timeout_ms=happening.session_timeout_ms,
            lease_margin_ms=happening.lease_margin_ms,
            heartbeat_interval_ms=min(simulation.heartbeat_interval_ms, max(1, happening.session_timeout_ms // 3)),
            topology_epoch=self.epoch,
            restore=simulation.restore,
            start_ms=simulation.start_ms,
            close_ms=simulation.close_ms,
            reports_load=True,
        )
        proven = before.incarnation if before is not None and happening.state_kept else None
        self.cluster.start_process(settings, state_kept=happening.state_kept, proven_dead=proven)

    def result(self) -> SimulationResult:
        cluster = self.cluster
        ends = {name: at_ms for at_ms, name, _ in cluster.exits}
        lives = tuple(
            ProcessLifetime(member_id=each.member_id, capacity=each.settings.capacity, start_ms=each.started_ms, end_ms=ends.get(each.name))
            for each in cluster.processes
        )
        return result_of(
            self.inputs,
            cluster.world,
            self.notes,
            lives,
            configured=self.configured,
            log_id=cluster.config.log_id,
            seed=self.simulation.seed,
            facts=cluster.folded - 1,  # LogOpened is the log's
            decisions=self.decisions,
        )


def result_of(
    inputs: RecordedInputs,
    world: SimulatedWorld,
    notes: Notes,
    lives: tuple[ProcessLifetime, ...],
    *,
    configured: GroupConfigured,
    log_id: str,
    seed: int,
    facts: int,
    decisions: int,
) -> SimulationResult:
    """Returns the costs of a finished run, whichever leader led it."""
    start_ms, end_ms = inputs.start.at_ms, inputs.end_ms
    costs = Costs(tasks=world.tasks, history=world.history(end_ms), restores=world.restores, notes=notes, lives=lives, end_ms=end_ms)
    windows = inputs.windows or (Window(label="run", start_ms=start_ms, end_ms=end_ms, measured=None),)
    return SimulationResult(
        group=inputs.start.group,
        log_id=log_id,
        configured=configured,
        seed=seed,
        announce_closes=inputs.announce_closes,
        start_ms=start_ms,
        end_ms=end_ms,
        facts=facts,
        decisions=decisions,
        windows=tuple(costs.window(window.label, window.start_ms, window.end_ms) for window in windows),
        whole=costs.window("whole", start_ms, end_ms),
        lives=lives,
        measured=tuple(window.measured for window in windows),
    )


def _check_leases(inputs: RecordedInputs, settings: GroupSettings) -> None:
    for happening in inputs.happenings:
        if isinstance(happening, ProcessStarted) and not settings.max_step_ms <= happening.lease_margin_ms < happening.session_timeout_ms:
            raise InputError(
                f"{happening.member_id}: lease_margin_ms {happening.lease_margin_ms} must be from max_step_ms ({settings.max_step_ms}) "
                f"to under session_timeout_ms ({happening.session_timeout_ms}); set max_step_ms lower"
            )


_NAMES_IN_LOG_IDS = {"GroupSettings": "Knobs", "SimulatedWorkerSettings": "WorkerSettings"}
"""Renamed class -> its name in the text from which log ids are hashed, so that equal runs keep
equal ids.
"""
_NOT_IN_LOG_IDS = (
    "join_delay_ms=0, ",
    ", made_from=None, change_id='', by=''",
    ", back_within_ms=None",
    "behaviour_version=None, ",
    "behaviour_version='recorded', ",
)
"""Fields that are younger than the ids, with the values that runs had before."""


def log_id_of(inputs: RecordedInputs, simulation: Simulation, configured: GroupConfigured) -> str:
    """Returns an id that is equal for equal runs and different for different ones."""
    described = repr((inputs.start, inputs.happenings, inputs.end_ms, configured.content, simulation))
    for name, stored_name in _NAMES_IN_LOG_IDS.items():
        described = described.replace(f"{name}(", f"{stored_name}(")
    for younger in _NOT_IN_LOG_IDS:
        described = described.replace(younger, "")
    return f"simulated-{hashlib.sha256(described.encode()).hexdigest()[:16]}"


def _manifest(inputs: RecordedInputs, simulation: Simulation) -> str:
    """Describes how the log was made, with the windows of the log it comes from."""
    windows = [{"label": window.label, "start_ms": window.start_ms, "end_ms": window.end_ms} for window in inputs.windows]
    simulated = {
        "by": "equipoise simulate",
        "seed": simulation.seed,
        "announce_closes": inputs.announce_closes,
        "assignor": simulation.assignor,
        "overrides": dict(sorted(simulation.overrides.items())),
        "restore": attrs.asdict(simulation.restore),
        "network": attrs.asdict(simulation.network),
        "start_ms": simulation.start_ms,
        "close_ms": simulation.close_ms,
        "heartbeat_interval_ms": simulation.heartbeat_interval_ms,
    }
    return json.dumps({"simulated": simulated, "supplied": {"actions": {"values": [], "windows": windows}}}, sort_keys=True)
