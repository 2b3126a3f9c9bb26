"""Compares assignors on the same recorded inputs: the simulated cost of each, next to the measured
cost.

Each assignor gets its own simulation; the command renders one table with a row per assignor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from equipoise.assignors import check_settings, registry
from equipoise.events.errors import EquipoiseError, GroupHalted, InputError
from equipoise.events.settings import GroupSettings, Scalar
from equipoise.log import Log, open_log
from equipoise.replay.importers.kafka_streams import import_history, shipped_runs
from equipoise.replay.inputs_reader import read_recorded_inputs, sum_windows
from equipoise.replay.recorded_inputs import RecordedInputs
from equipoise.replay.simulation.restored_copies import RestoreModel
from equipoise.replay.simulation.run import Progress, Simulation, simulate
from equipoise.replay.whatif.fit import fit

RECORDED = "as recorded"
"""Name of the row with the cost measured during the recording."""


@attrs.frozen(kw_only=True)
class Run:
    """Recorded inputs and the restore rate of the members. `measured`: cost of the group's own
    leader over all windows; {}: not measured.
    """

    name: str
    inputs: RecordedInputs
    restore_records_per_s: int
    measured: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Contender:
    """An assignor and its options, written ``learner`` or
    ``learner:strict=true,other=5``.
    """

    assignor: str
    options: Mapping[str, Scalar] = attrs.field(factory=dict)

    def __str__(self) -> str:
        options = ",".join(f"{name}={str(value).lower()}" for name, value in sorted(self.options.items()))
        return f"{self.assignor}:{options}" if options else self.assignor


@attrs.frozen(kw_only=True)
class ContenderCost:
    """The cost of one contender over all windows of one run. `totals`: as in a simulation's
    windows; {} with `error` when the contender could not lead.
    """

    run: str
    contender: str
    totals: Mapping[str, Any]
    error: str = ""


def all_contenders() -> list[Contender]:
    """Every installed assignor in its highest version, in rising order."""
    return [Contender(assignor=name) for name in dict.fromkeys(name for name, _ in registry.available())]


def recorded_runs() -> Iterator[Run]:
    """The recorded runs that come with equipoise, the simpler one first."""
    for name, source in sorted(shipped_runs().items(), reverse=True):
        with tempfile.TemporaryDirectory() as folder:
            with open_log(Path(folder) / "recorded.db", "w") as log, log.transaction():
                import_history(source, log)
            with open_log(Path(folder) / "recorded.db") as log:
                yield run_of(name, log)


def run_of(name: str, log: Log, *, group: str | None = None, announce_closes: bool = True) -> Run:
    """Reads the run recorded in `log`. Raises the errors of `read_recorded_inputs` and `fit`."""
    inputs = read_recorded_inputs(log.read(), group=group, announce_closes=announce_closes)
    windows = [window.measured["totals"] for window in inputs.windows if window.measured is not None]
    measured = sum_windows(windows) if len(windows) == len(inputs.windows) else {}
    fitted = fit(log.read(group=inputs.start.group))
    return Run(name=name, inputs=inputs, restore_records_per_s=fitted.records_per_s, measured=measured)


def check_contender(contender: Contender) -> None:
    """Raises InputError for an assignor that is not installed, or an option that it does not
    accept.
    """
    check_settings(registry.latest(contender.assignor), GroupSettings(options=dict(contender.options)))


def recorded_cost(run: Run) -> list[ContenderCost]:
    """The cost measured during the recording; [] when it was not measured."""
    return [ContenderCost(run=run.name, contender=RECORDED, totals=run.measured)] if run.measured else []


def cost_of(
    run: Run, contender: Contender, *, overrides: Mapping[str, Any] | None = None, seed: int = 0, progress: Progress | None = None
) -> ContenderCost:
    """Simulates the run under this contender, with the run's settings changed by `overrides`.

    A simulation that halts or breaks an invariant returns a Cost with `error`. Raises InputError
    for an assignor, a setting or an option that does not exist.
    """
    simulation = Simulation(
        assignor=contender.assignor,
        overrides={**(overrides or {}), "options": dict(contender.options)},
        seed=seed,
        restore=RestoreModel(records_per_s=run.restore_records_per_s),
    )
    try:
        result = simulate(run.inputs, simulation, progress=progress)
    except InputError:
        raise
    except EquipoiseError as error:
        problem = error.problem if isinstance(error, GroupHalted) else str(error)
        return ContenderCost(run=run.name, contender=str(contender), totals={}, error=problem)
    return ContenderCost(run=run.name, contender=str(contender), totals=sum_windows([window.totals for window in result.windows]))


def rows_of(costs: Iterable[ContenderCost]) -> dict[str, dict[str, ContenderCost]]:
    """Contender -> run -> cost, in order of first occurrence."""
    rows: dict[str, dict[str, ContenderCost]] = {}
    for cost in costs:
        rows.setdefault(cost.contender, {})[cost.run] = cost
    return rows
