"""The demo: imports the recorded runs that come with equipoise, decides, verifies, compares,
explains and draws, embedded and without Kafka.

`run_demo` yields the result of each step; the command renders it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from equipoise.cli.output import IMPORTED, SIMULATED, Kind, new_log, write_file
from equipoise.log import Log, open_log
from equipoise.log.storage import cannot_write
from equipoise.replay.explanation import Explanation, explain
from equipoise.replay.importers.kafka_streams import ImportSummary, import_history, shipped_runs
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.numbers import Unavailable
from equipoise.replay.recorded_inputs import Window
from equipoise.replay.simulation.restored_copies import RestoreModel
from equipoise.replay.simulation.run import Simulation, SimulationResult, simulate
from equipoise.replay.timelines import Timeline, build_timeline, render_page, render_picture
from equipoise.replay.verification import Verification, verify
from equipoise.replay.whatif.compared import compared, cost_rows, simulated_unavailable
from equipoise.replay.whatif.evaluate import AS_IT_IS, run_configuration
from equipoise.replay.whatif.fit import Fit, fit

SEEDS = (0, 1, 2)
"""Both leaders are simulated once with each, as `equipoise what-if` does."""
RESTARTS_WITHIN_MS = 30_000
"""Members that close and start again within this time say before that they will be back."""


@attrs.frozen(kw_only=True)
class Imported:
    """A recorded run, imported into `log`. `windows`: the marked actions, with the cost measured in
    each.
    """

    run: str
    log: Path
    summary: ImportSummary
    windows: tuple[Window, ...]
    fitted: Fit


@attrs.frozen(kw_only=True)
class Simulated:
    """The same recorded inputs, simulated with equipoise as leader into another log, which is that
    of the first seed. `costs`: of all simulations, and what was measured. `verification`: whether
    that log replays byte for byte.
    """

    run: str
    log: Path
    result: SimulationResult
    costs: list[dict[str, Any]]
    verification: Verification


@attrs.frozen(kw_only=True)
class Explained:
    """Why one task moved; `at_offset` is the fact at which it was granted."""

    run: str
    log: Path
    explanation: Explanation


@attrs.frozen(kw_only=True)
class Drawing:
    """The owner of each task over time under one leader, as an interactive page and as a picture."""

    leader: str
    html: Path
    svg: Path


@attrs.frozen(kw_only=True)
class Drawn:
    """Both leaders' drawings. The pictures share one time scale."""

    run: str
    drawings: tuple[Drawing, ...]


Step = Imported | Simulated | Explained | Drawn


def run_demo(out: Path) -> Iterator[Step]:
    """Runs all steps for every recorded run and yields each result. Writes into `out`, which is
    created if missing; replaces its own files there. Raises InputError when `out` cannot be written.
    """
    for run, source in sorted(shipped_runs().items(), reverse=True):  # scale-out first: the simpler run
        folder = out / run
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(f"--out {out}", error) from None
        recorded, led = folder / "recorded.db", folder / "equipoise.db"
        with new_log(str(recorded), option="--out", replaces=IMPORTED) as log:
            summary = import_history(source, log)
        with open_log(recorded) as log:
            inputs = read_recorded_inputs(log.read(), announce_closes=None)
            fitted = fit(log.read())
            before = build_timeline(log.read())
        yield Imported(run=run, log=recorded, summary=summary, windows=inputs.windows, fitted=fitted)

        was = [run_configuration(inputs, AS_IT_IS, seed=seed, speed=fitted.records_per_s) for seed in SEEDS]
        restarted = inputs.with_closes(True).with_restarts(RESTARTS_WITHIN_MS)
        simulations = [Simulation(seed=seed, restore=RestoreModel(records_per_s=fitted.records_per_s)) for seed in SEEDS]
        with new_log(str(led), option="--out", replaces=SIMULATED) as log:
            result = simulate(restarted, simulations[0], sink=log)
        costs = cost_rows(inputs.windows, was, [result, *(simulate(restarted, each) for each in simulations[1:])])
        with open_log(led) as log:
            verification = verify(log.read())
            yield Simulated(run=run, log=led, result=result, costs=costs, verification=verification)
            after = build_timeline(log.read())
            explanation = _explained(log, after)
        if explanation is not None:
            yield Explained(run=run, log=led, explanation=explanation)
        to_ms = max(before.to_ms, after.to_ms)
        whole = compared(costs)[-1]
        was_it, led_it = (simulated_unavailable(each, len(SEEDS)) for each in (whole.as_it_was, whole.led) if each is not None)
        title = "Led by Kafka Streams, as recorded"
        title_led = "The same recorded inputs, led by equipoise"
        drawn = (
            _drawn(before, "Kafka Streams", folder / "recorded", title=title, to_ms=to_ms, simulated=was_it),
            _drawn(after, "equipoise", folder / "equipoise", title=title_led, to_ms=to_ms, simulated=led_it),
        )
        yield Drawn(run=run, drawings=drawn)


def _drawn(timeline: Timeline, leader: str, path: Path, *, title: str, to_ms: int, simulated: Unavailable) -> Drawing:
    drawing = Drawing(leader=leader, html=path.with_suffix(".html"), svg=path.with_suffix(".svg"))
    write_file("--out", drawing.html, Kind.PAGE, render_page(timeline, simulated))
    write_file("--out", drawing.svg, Kind.PICTURE, render_picture(timeline, title=title, to_ms=to_ms))
    return drawing


def _explained(log: Log, timeline: Timeline) -> Explanation | None:
    """Explains the move with the most states (waited, warmed up, handed over) since the first
    action.
    """
    starts = [window.start_ms for window in timeline.windows] or [timeline.from_ms]
    moves = [move for move in timeline.moves if move.began_ms >= starts[0] and move.outcome == "granted" and move.spent_ms("warming", 0) > 0]
    if not moves:
        return None
    best = min(moves, key=lambda move: (-len({step.state for step in move.steps}), move.began_ms, move.task))
    return explain(log.read(), best.task, at_offset=best.steps[-1].offset)


def step_document(step: Step) -> dict[str, Any]:
    """The document of one step for `--json`."""
    if isinstance(step, Imported):
        measured = [None if window.measured is None else dict(window.measured) for window in step.windows]
        return {"log": str(step.log), "facts": step.summary.facts, "generations": step.summary.generations, "measured": measured}
    if isinstance(step, Simulated):
        return {"log": str(step.log), "simulation": step.result.as_json(), "costs": step.costs, "verification": step.verification.document()}
    if isinstance(step, Explained):
        return step.explanation.document()
    return {name: {"html": str(each.html), "svg": str(each.svg)} for name, each in zip(("recorded", "equipoise"), step.drawings, strict=True)}
