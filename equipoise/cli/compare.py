"""`equipoise compare [LOG...]`: what each assignor would have cost, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from equipoise.cli.command import command
from equipoise.cli.params import LOG, WholeNumber, scalar
from equipoise.cli.screen import Screen, Table
from equipoise.cli.simulate import overridden, simulating
from equipoise.events.errors import FieldError, InputError
from equipoise.events.log import Log
from equipoise.replay.wording import counted

if TYPE_CHECKING:
    from equipoise.compare import Contender, Cost

MEASURES = (
    ("unavailable s", "unavailable_task_seconds", 1),
    ("longest s", "longest_silence_ms", 1_000),
    ("moves", "active_moves", 1),
    ("rounds", "generations", 1),
)
"""(heading, name of the total, divisor)."""


@command("compare", short_help="Simulate recorded history under each assignor: one row each.")
@click.argument("logs", type=LOG, nargs=-1, metavar="[LOG]...")
@click.option(
    "--assignor",
    "names",
    multiple=True,
    metavar="NAME[:OPTION=VALUE,...]",
    help="An assignor to compare, with its options; may be repeated. Default: all that are installed.",
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A group setting for every row, as num_standbys=1; may be repeated.")
@click.option("--group", metavar="GROUP", help="Group to compare; required if a LOG holds several.")
@click.option("--seed", type=WholeNumber(min=0), default=0, show_default=True, help="Random seed of network delays and other chances.")
def compare(screen: Screen, logs: tuple[Log, ...], names: tuple[str, ...], settings: tuple[str, ...], group: str | None, seed: int) -> None:
    """Simulate the recorded inputs of each LOG once for each assignor: the same process starts and
    ends, the same changelog growth. Show what each assignor cost in all marked windows, next to
    what was measured when the run was recorded. Without a LOG: the recorded runs that come with
    equipoise.

    In every row but `as recorded`, equipoise leads and the assignor only says which member should
    run which task. So the row kafka_streams costs less than `equipoise what-if` says for a group
    that Kafka Streams leads: there the protocol of Kafka Streams is simulated too.

    \b
    Examples:
      equipoise compare
      equipoise compare recorded.db --assignor high_availability --assignor learner:strict=true
      equipoise compare --set num_standbys=1 --json | jq '.rows[].runs[].totals.active_moves'
    """
    from equipoise.compare import all_contenders, cost_of, recorded_cost, recorded_runs, rows_of, run_of  # loads the solver

    contenders = [contender_of(name) for name in names] or all_contenders()
    if group is not None and not logs:
        raise InputError("--group: name a LOG that holds it; the recorded runs have one group each")
    runs = [run_of(str(log.location), log, group=group) for log in logs] or list(recorded_runs())
    costs: list[Cost] = []
    for run in runs:
        overrides = overridden(screen, run.inputs.start.config.knobs, settings)
        costs += recorded_cost(run)
        for contender in contenders:
            with simulating(screen, run.inputs, f"{run.name}, {contender}") as progress:
                costs.append(cost_of(run, contender, overrides=overrides, seed=seed, progress=progress))
    rows = rows_of(costs)
    names_of_runs = [run.name for run in runs]
    document = {
        "seed": seed,
        "runs": [{"run": run.name, "restore_records_per_s": run.restore_records_per_s} for run in runs],
        "rows": [
            {"contender": name, "runs": [{"run": cost.run, "totals": dict(cost.totals), "error": cost.error} for cost in of_runs.values()]}
            for name, of_runs in rows.items()
        ],
    }
    failed = [f"{cost.contender} could not lead {cost.run}: {cost.error}" for cost in costs if cost.error]
    screen.answer(document, comparison_table(rows, names_of_runs), *failed, *LEGEND)


LEGEND = (
    "unavailable s: seconds in which a task processed no record for over 1 s, summed over tasks; longest s: the longest of one task",
    "moves: changes of owner; rounds: generations that changed an assignment; all marked windows added up, same seed in each row",
    "as recorded: the group's own leader, as measured. Every other row: equipoise leads, and that assignor decides",
    "kafka_streams is Kafka Streams' assignor with equipoise moving state first; what-if simulates Kafka Streams' own protocol, which costs more",
    "rows are by name, and no single column ranks them: equipoise what-if weighs all of them and advises",
)


def contender_of(text: str) -> Contender:
    """``learner`` or ``learner:strict=true``. Raises InputError for an assignor that is not
    installed or an option that it does not have.
    """
    from equipoise.compare import Contender, check_contender

    name, _, rest = text.partition(":")
    options = {}
    for part in filter(None, rest.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"--assignor {text}: write options as NAME:OPTION=VALUE,OPTION=VALUE")
        options[option] = scalar(value)
    contender = Contender(assignor=name, options=options)
    try:
        check_contender(contender)
    except FieldError as error:
        raise InputError(f"--assignor {text}: {error.field.removeprefix('config.options.')}: {error.problem}") from None
    return contender


def comparison_table(rows: Mapping[str, Mapping[str, Cost]], runs: list[str]) -> Table:
    """A row for each contender; for each run the columns of MEASURES."""
    headings = [heading for heading, _, _ in MEASURES]
    columns = [f"{run} {heading}" if heading == headings[0] else heading for run in runs for heading in headings]
    body = [(name, *(_cell(of_runs.get(run), measure, scale) for run in runs for _, measure, scale in MEASURES)) for name, of_runs in rows.items()]
    return Table(columns=("assignor", *columns), rows=body, title=f"{counted(len(rows), 'row')}: {' and '.join(runs)}, led by each in turn")


def _cell(cost: Cost | None, measure: str, scale: int) -> Any:
    value = None if cost is None else cost.totals.get(measure)
    return None if value is None else value / scale if scale != 1 else value
