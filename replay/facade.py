"""The functions of `equipoise.replay`. Each opens the log and calls what the command of its name
calls.

Every function takes `log`, a location (see `equipoise.open_log`) or an open log, which stays open.
`group` names the group to read; it may be None when the log holds only one. Every function raises
InputError when the location, the group or another argument is wrong, and LogError when the log
cannot be read, unless its docstring says otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from os import PathLike

from equipoise.events.records import Entry
from equipoise.events.tasks import TaskId, parse_task
from equipoise.log import Log, PartitionedLog, open_log
from equipoise.replay import bases, explanation, group_view, inputs_reader, recorded_inputs, timelines, verification
from equipoise.replay.simulation import run
from equipoise.replay.simulation.restored_copies import RestoreModel
from equipoise.replay.whatif import evaluate, recorded_costs
from equipoise.replay.whatif.fit import fit

Location = str | PathLike[str] | Log


def verify(log: Location, *, group: str | None = None, archive: str | None = None) -> verification.Verification:
    """Recomputes every decision of a log and compares it with the stored one, byte for byte.

    `group` None: every group. `archive`: an archive of `log`, which is in Kafka; the two are
    verified as one. Damage of the log is part of the answer, not an error. Raises InputError when
    the location is wrong.
    """
    with _opened(log) as opened:
        stored = bases.stored_bases(opened)
        if archive is None:
            return verification.verify_log(opened, () if group is None else (group,), bases=stored)
        return verification.verify(bases.read_as_one(archive, opened, group), bases=stored)


def explain(log: Location, task: TaskId | str, *, group: str | None = None, at_offset: int | None = None) -> explanation.Explanation:
    """Returns why a task is where it is, why it moved, and what happens next.

    `task`: as in ``0_3``. `at_offset`: after the fact at this offset; None: at the end of the log.
    Raises InputError when the group has no such task then; GroupHalted when the group had halted.
    """
    with _opened(log) as opened:
        task_id = parse_task(task) if isinstance(task, str) else task
        return explanation.explain_decided(lambda: _entries(opened, group), task_id, group=group, at_offset=at_offset)


def show(log: Location, *, group: str | None = None, at_offset: int | None = None) -> group_view.GroupView:
    """The state of a group: its members, its tasks and what is in flight.

    `at_offset`: after the fact at this offset; None: at the end of the log. Raises GroupHalted when
    the group had halted by then.
    """
    with _opened(log) as opened:
        return group_view.show(_entries(opened, group), group=group, at_offset=at_offset)


def timeline(log: Location, *, group: str | None = None, until_offset: int | None = None) -> timelines.Timeline:
    """The history of a group: which member owned which task when, moves, rounds and members' lives.

    `until_offset`: up to the fact at this offset; None: all. Raises GroupHalted when the group
    halted by then.
    """
    with _opened(log) as opened:
        return timelines.build_timeline(_entries(opened, group), group=group, until_offset=until_offset)


def read_recorded_inputs(log: Location, *, group: str | None = None, announce_closes: bool | None = True) -> recorded_inputs.RecordedInputs:
    """The recorded inputs of a group: the part of its log that does not depend on who led it.

    `announce_closes`: members that close ask to leave first (True), stop at once (False), or do
    what they did (None). Raises InputError when the log has no configuration or no topology.
    """
    with _opened(log) as opened:
        return inputs_reader.read_recorded_inputs(opened.read(group=group), group=group, announce_closes=announce_closes)


def simulate(
    log: Location, simulation: run.Simulation | None = None, *, group: str | None = None, announce_closes: bool = True, to: Log | None = None
) -> run.SimulationResult:
    """Plays the recorded inputs of a group in the simulated cluster, led by equipoise.

    `simulation` None: the log's own settings, with the restore speed fitted from the log.
    `announce_closes`: see `read_recorded_inputs`. `to`: a new log that gets every fact and
    decision. Raises InputError for a setting or an assignor that does not exist; InvariantBroken
    for a defect.
    """
    with _opened(log) as opened:
        inputs = read_recorded_inputs(opened, group=group, announce_closes=announce_closes)
        if simulation is None:
            simulation = run.Simulation(restore=RestoreModel(records_per_s=fit(opened.read(group=inputs.start.group)).records_per_s))
        return run.simulate(inputs, simulation, sink=to)


def read_recording(log: Location, *, group: str | None = None) -> recorded_costs.Recording:
    """Reads a log once for several calls of `what_if`. Raises GroupHalted when the group halted."""
    with _opened(log) as opened:
        return recorded_costs.read_recording(opened.read(group=group), group=group)


def what_if(
    log: Location | recorded_costs.Recording,
    configurations: Sequence[evaluate.Configuration] = (),
    *,
    group: str | None = None,
    seeds: Sequence[int] = (0,),
    restore_records_per_s: int | None = None,
) -> evaluate.WhatIf:
    """Returns what each configuration would have cost a group, and its own configuration, for
    comparison.

    `log`: also a `Recording`. `seeds`: one simulation of each configuration per seed.
    `restore_records_per_s`: restore speed of a member; None: fitted from the log. A configuration
    that cannot lead is an outcome with an error. Raises InputError for a setting or an assignor
    that does not exist, two configurations of one name, or a log of under
    `equipoise.replay.whatif.evaluate.LEAST_SPAN_MS`; FieldError for an unsound value.
    """
    recorded = log if isinstance(log, recorded_costs.Recording) else read_recording(log, group=group)
    return evaluate.what_if_recorded(recorded, configurations, seeds=seeds, restore_records_per_s=restore_records_per_s)


# --------------------------------------------------------------------------------------------- logs


@contextlib.contextmanager
def _opened(log: Location) -> Iterator[Log]:
    if isinstance(log, str | PathLike):
        with open_log(log) as opened:
            yield opened
    else:
        yield log


def _entries(log: Log, group: str | None) -> Iterator[Entry]:
    return log.read_beside(group) if group is not None and isinstance(log, PartitionedLog) else log.read()
