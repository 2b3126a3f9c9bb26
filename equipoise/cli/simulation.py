"""`equipoise what-if LOG --to LOG2`: plays the recorded inputs of a log with equipoise leading, and
writes what it decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from equipoise.cli.output import SIMULATED as SIMULATED_LOG
from equipoise.cli.output import new_log, same_place
from equipoise.cli.params import read
from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.events.errors import InputError
from equipoise.events.settings import GroupSettings
from equipoise.hosting.changed_settings import with_settings
from equipoise.log import Log
from equipoise.replay.numbers import LONGEST_GAP, MEASURED, MOVES, SIMULATED, UNAVAILABLE_TASK_S
from equipoise.replay.wording import counted, span_text

if TYPE_CHECKING:
    from equipoise.replay.recorded_inputs import RecordedInputs
    from equipoise.replay.simulation.run import Progress, SimulationResult
    from equipoise.replay.whatif.fit import Fit


def write_simulation(
    screen: Screen,
    log: Log,
    location: str,
    *,
    group: str | None,
    settings: Sequence[str],
    seed: int,
    restarts_within_s: float | None,
    restore_speed: int | None,
    force: bool,
) -> None:
    """Simulates the recorded inputs of `log` with equipoise leading, writes the complete log to
    `location`, and answers with what it cost. `settings`: ``name=value``, as of ``--set``. `force`:
    see `new_log`. Raises InputError, and what the simulation raises.
    """
    from equipoise.replay.simulation.restored_copies import RestoreModel  # each loads the solver
    from equipoise.replay.simulation.run import Simulation, simulate
    from equipoise.replay.whatif.compared import cost_rows
    from equipoise.replay.whatif.evaluate import AS_IT_IS, run_configuration

    if same_place(log.location, location):
        raise InputError(f"--to {location}: that is the log to read; name another one")
    of_leader, of_group = _of_the_leader(settings)
    recorded, fitted = outside(screen, log, group=group)
    inputs = recorded.with_closes(of_leader.get("announce_closes", True))
    if restarts_within_s is not None:
        inputs = inputs.with_restarts(round(restarts_within_s * 1_000))
    speed = fitted.records_per_s if restore_speed is None else restore_speed
    simulation = Simulation(
        assignor=of_leader.get("assignor"),
        behaviour_version=of_leader.get("behaviour_version"),
        overrides=overridden(screen, inputs.start.config.knobs, of_group),
        seed=seed,
        restore=RestoreModel(records_per_s=speed),
    )
    was = [run_configuration(recorded, AS_IT_IS, seed=seed, speed=speed)] if inputs.imported else []
    with new_log(location, replaces=SIMULATED_LOG, force=force) as sink, simulating(screen, inputs) as progress:
        result = simulate(inputs, simulation, sink=sink, progress=progress)
    costs = cost_rows(inputs.windows, was, [result])
    document = {**result.as_json(), "costs": costs}
    document |= {"log": location, "fit": fitted.as_json(), "restore_records_per_s": speed}
    screen.answer(document, *simulation_parts(result, costs, fitted, speed, location))


def _of_the_leader(settings: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings that are none of the group, by name, and the others as they are."""
    found: dict[str, Any] = {}
    others = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if name == "carrier":
            raise InputError("--set carrier: with --to members carry out what equipoise decides; leave out one of the two")
        if equals and name in ("assignor", "announce_closes", "behaviour_version"):
            found[name] = leader_value(name, text, option="--set")
        else:
            others.append(setting)
    return found, others


def leader_value(name: str, text: str, *, option: str) -> Any:
    """The value of ``assignor``, ``carrier``, ``behaviour_version`` or ``announce_closes``. Raises
    InputError, which begins with `option`.
    """
    if name == "behaviour_version":
        return int(text) if text.isdecimal() else text
    if name == "announce_closes":
        if text not in ("true", "false"):
            raise InputError(f"{option} announce_closes: {text!r} is neither true nor false")
        return text == "true"
    return text


def outside(screen: Screen, log: Log, *, group: str | None) -> tuple[RecordedInputs, Fit]:
    """The recorded inputs of `log`, and the restore speed of its members."""
    from equipoise.replay.inputs_reader import read_recorded_inputs
    from equipoise.replay.whatif.fit import fit

    inputs = read_recorded_inputs(read(screen, log, "reading", group), group=group, announce_closes=None)
    return inputs, fit(log.read(group=inputs.start.group))


def overridden(screen: Screen, settings: GroupSettings, changes: Iterable[str]) -> dict[str, Any]:
    """The settings that ``name=value`` texts change, by name. Prints a remark for each warning.
    Raises what `with_settings` raises.
    """
    changes = tuple(changes)
    changed = with_settings(settings, changes)
    for warning in changed.warnings() if changes else ():
        screen.remark(f"--set {warning}")
    names = {setting.partition("=")[0].partition(".")[0] for setting in changes}
    return {name: getattr(changed, name) for name in sorted(names)}


@contextlib.contextmanager
def simulating(screen: Screen, inputs: RecordedInputs) -> Iterator[Progress]:
    """A progress bar in simulated seconds."""
    total_s = (inputs.end_ms - inputs.start.at_ms) // 1_000
    with screen.progress("simulating, in seconds", total_s) as advance:
        done_s = 0

        def progress(done_ms: int, of_ms: int) -> None:
            nonlocal done_s
            advance(done_ms // 1_000 - done_s)
            done_s = done_ms // 1_000

        yield progress


def simulation_parts(result: SimulationResult, costs: Sequence[Mapping[str, Any]], fitted: Fit, speed: int, location: str) -> list[Part]:
    """Simulated and measured cost, and the speeds that the simulation uses."""
    configured = result.configured
    span = span_text(result.end_ms - result.start_ms)
    records = f"{counted(result.facts, 'fact')}, {counted(result.decisions, 'decision')}"
    led = f"led by {configured.assignor} {configured.behaviour_version}"
    head = Line(bold(result.group), f" -> {location}  {span}, {led}: {records}")
    return [head, "", cost_table(costs, f"seed {result.seed}"), closes_text(result), "", *fidelity_parts(fitted, speed, result.seed)]


def cost_table(costs: Sequence[Mapping[str, Any]], seeds: str) -> Table:
    """Compares what each action cost, simulated as it was led and by equipoise, beside what was
    measured. ``for good``: tasks that moved for good; ``fewest``: the moves that balance needs.
    `seeds`: of the simulations.
    """
    from equipoise.replay.whatif.compared import compared

    found = compared(costs)
    is_measured = any(each.measured is not None for each in found)
    rows: list[tuple[str | int, ...]] = []
    pairs = [_arrows([(_cell(each.as_it_was, name, scale), _cell(each.led, name, scale)) for each in found]) for _, name, scale in MEASURES]
    measured = _arrows([("", _cell(each.measured, "unavailable_task_seconds", 1.0)) for each in found])
    for number, each in enumerate(found):
        before = [measured[number]] if is_measured else []
        rows.append((each.action, *before, *(pair[number] for pair in pairs), round(each.led["min_moves_for_balance"])))
    columns = ("action", *([MEASURED] if is_measured else []), *(heading for heading, _, _ in MEASURES), "fewest")
    who = " (as it was led -> equipoise)" if any(each.as_it_was is not None for each in found) else ""
    measured_too = f"{MEASURED} {UNAVAILABLE_TASK_S}, and " if is_measured else ""
    return Table(columns=columns, rows=rows, title=f"what each action cost: {measured_too}{SIMULATED}{who}, {seeds}")


def closes_text(result: SimulationResult) -> str:
    """Says how members closed."""
    if result.announce_closes:
        return "members announce that they close, as equipoise members do; with announce_closes=false they stop at once"
    return "members that close stop at once; without announce_closes=false they announce it first, as equipoise members do"


MEASURES = (
    (UNAVAILABLE_TASK_S, "unavailable_task_seconds", 1.0),
    (f"{LONGEST_GAP}, s", "longest_silence_ms", 1_000.0),
    (MOVES, "active_moves", 1),
    ("for good", "net_active_moves", 1),
    ("rounds", "generations", 1),
    ("restored before running", "records_restored_before_running", 1),
)
"""(heading, name of the total, divisor: a float for one decimal)."""


def _cell(totals: Mapping[str, float] | None, name: str, scale: float) -> str:
    if totals is None:
        return ""
    return f"{totals[name] / scale:,.1f}" if isinstance(scale, float) else f"{totals[name] / scale:,.0f}"


def _arrows(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """``65.8 ->  0.0``, the numbers of a column under each other; alone where there is nothing to
    compare with.
    """
    before, after = (max(len(pair[side]) for pair in pairs) for side in (0, 1))
    if not before:
        return [pair[1].rjust(after) for pair in pairs]
    return [f"{pair[0].rjust(before)} -> {pair[1].rjust(after)}" if any(pair) else "" for pair in pairs]


def fidelity_parts(fitted: Fit, speed: int, seed: int) -> list[Part]:
    """What the simulated members are like, and where that comes from."""
    header, *rows = fitted.table()
    used = f"{speed:,} records/s a member" + (f" ({fitted.basis})" if speed == fitted.records_per_s else " (given)")
    line = f"simulated with: restore {used}; seed {seed}"
    return [Table(columns=header, rows=rows, title="restore and write speeds fitted from what was reported"), "", line]
