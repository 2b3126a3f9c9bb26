"""`equipoise what-if LOG`: what other settings would have cost, as a table, a picture and one line
of advice; or, with `--to`, the whole log of one simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.cli.command import command
from equipoise.cli.params import NEW_LOG, F, Number, WholeNumber, groups_of, log_argument, read
from equipoise.cli.predicted import FORMS, not_answered, predict_changes
from equipoise.cli.screen import Line, Part, Screen, Table, bold
from equipoise.cli.simulation import leader_value, write_simulation
from equipoise.events.errors import EquipoiseError, InputError
from equipoise.hosting.changed_settings import setting_value
from equipoise.log import Log
from equipoise.replay.numbers import MOVES, UNAVAILABLE, UNAVAILABLE_TASK_S, WITHOUT_OWNER
from equipoise.replay.wording import counted, span_text

if TYPE_CHECKING:
    from equipoise.replay.whatif.advice import Advice
    from equipoise.replay.whatif.evaluate import Configuration, Outcome, WhatIf

MEASURES = (
    (UNAVAILABLE_TASK_S, "unavailable_task_seconds"),
    ("records restored", "records_restored"),
    ("rebalances", "rebalances"),
    ("imbalanced task-s", "imbalance_task_seconds"),
    (MOVES, "moves"),
    ("restored before running", "records_restored_before_running"),
)
"""(heading, metric)."""


def configuration_options(run: F) -> F:
    """Options that name what to try: ``files``, ``settings_given``, ``dimensions``."""
    run = click.option(
        "--sweep",
        "dimensions",
        multiple=True,
        metavar="NAME=V1,V2,...",
        help="Values of a setting, or of assignor (all: each that is installed), behaviour_version, announce_closes or carrier; "
        "several: all combinations.",
    )(run)
    run = click.option("--set", "settings_given", multiple=True, metavar="NAME=VALUE", help="One value for all configurations; may be repeated.")(run)
    return click.option(
        "--config", "files", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="TOML file with configurations; may be repeated."
    )(run)


@command("what-if", short_help="Simulate other settings on a group's history, and advise.")
@log_argument
@configuration_options
@click.option(
    "--seeds", type=WholeNumber(1, 100), default=3, show_default=True, help="Simulations of each configuration, with different random seeds."
)
@click.option("--seed", type=WholeNumber(min=0), default=0, show_default=True, help="The first random seed, of network delays and other chances.")
@click.option("--restore-speed", type=WholeNumber(min=1), metavar="N", help="Records per second that a member restores. Default: fitted from LOG.")
@click.option("--group", metavar="GROUP", help="Group to simulate. Default: every group of LOG, one after the other.")
@click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help=f"Predict this change of the group as LOG leaves it instead: {FORMS}; may be repeated.",
)
@click.option("--runs", type=WholeNumber(1, 10_000), default=200, show_default=True, help="With --change: simulated runs of each.")
@click.option("--to", "location", type=NEW_LOG, metavar="LOG2", help="Write the log of one simulation instead. An earlier simulation is replaced.")
@click.option("--force", is_flag=True, help="With --to: replace whatever log is there.")
@click.option(
    "--restarts-within",
    type=Number(min=0.001),
    metavar="SECONDS",
    help="With --to: members that close and start again within this time say that they will be back (on_sigterm=restart).",
)
def what_if(
    screen: Screen,
    log: Log,
    files: tuple[Path, ...],
    settings_given: tuple[str, ...],
    dimensions: tuple[str, ...],
    seeds: int,
    seed: int,
    restore_speed: int | None,
    group: str | None,
    changes: tuple[str, ...],
    runs: int,
    location: str | None,
    restarts_within: float | None,
    *,
    force: bool,
) -> int:
    """Simulate the recorded inputs of LOG (processes that start and end, changelog growth,
    configuration) once for each configuration, and show what each would have cost. The group as it
    is is always simulated too: how far that is from the recording shows how far to trust the rest.
    `*` marks configurations that no other beats. The same LOG, settings and seed give the same
    answer.

    A group imported from Kafka Streams is simulated with Kafka Streams as its leader, under its own
    settings. With another assignor, equipoise leads.

    With --to, equipoise leads one simulation under the settings of --set, and its complete log goes
    to LOG2. The answer is the cost of each marked window, next to what was measured.

    With --change, the group is simulated from the end of LOG on, many times. Restore speeds,
    arrivals and times are drawn from what its log shows. The answer is what the change costs, as
    the median and the interval that holds 95 % of the runs.

    Exit code 1: one of several groups cannot be answered; the others are.

    \b
    Examples:
      equipoise what-if group.db --sweep max_warmups=1,2,4 --sweep num_standbys=0,1
      equipoise what-if rec.db --sweep assignor=all --set max_warmups=4
      equipoise what-if group.db --config calm.toml --config b.toml --json | jq '.groups[].advice'
      equipoise what-if group.db --change join=2 --change restart --change num_standbys=1
      equipoise what-if rec.db --to led.db --set num_standbys=1 --set assignor=learner
    """
    if changes:
        if files or dimensions or settings_given or location is not None:
            raise click.UsageError("--change: predicts from the end of LOG; leave out --config, --sweep, --set and --to")
        return predict_changes(screen, log, [group] if group is not None else groups_of(log), changes, runs=runs, restore_speed=restore_speed)
    if location is not None:
        if files or dimensions:
            raise click.UsageError("--to: writes one simulation; name its settings with --set, and leave out --config and --sweep")
        write_simulation(
            screen,
            log,
            location,
            group=group,
            settings=settings_given,
            seed=seed,
            restarts_within_s=restarts_within,
            restore_speed=restore_speed,
            force=force,
        )
        return 0
    if force or restarts_within is not None:
        raise click.UsageError(f"--{'force' if force else 'restarts-within'}: needs --to")
    from equipoise.replay.whatif.advice import advise  # loads the solver
    from equipoise.replay.whatif.evaluate import LEAST_SPAN_MS, check_configurations, what_if_recorded
    from equipoise.replay.whatif.recorded_costs import read_recording

    asked = configurations(files, settings_given, dimensions)
    names = [group] if group is not None else groups_of(log)
    answers = []
    failed = []
    for name in names:
        try:
            entries = read(screen, log, f"reading {name}", name) if len(names) == 1 else log.read(group=name)
            recording = read_recording(entries, group=name)
            if recording.span_ms < LEAST_SPAN_MS:
                raise InputError(f"its log spans {recording.span_ms} ms: too little to simulate")
        except EquipoiseError as error:
            if len(names) == 1:
                raise
            failed.append({"group": name, "error": str(error)})
            continue
        tried = []
        for each in check_configurations(recording.inputs, asked):
            if each.same:
                screen.remark(f"{name}: {each.configuration.name} is the group's own configuration")
            else:
                tried.append(each.configuration)
        with screen.progress(f"{name}: {counted(len(tried) + 1, 'configuration')}, in simulated seconds") as advance:
            done_s = 0

            def progress(done_ms: int, of_ms: int) -> None:
                nonlocal done_s
                advance(done_ms // 1_000 - done_s)
                done_s = done_ms // 1_000

            answer = what_if_recorded(recording, tried, seeds=range(seed, seed + seeds), restore_records_per_s=restore_speed, progress=progress)
        answers.append((answer, advise(answer)))
    parts: list[Part] = []
    for answer, advice in answers:
        parts += [*([""] if parts else []), *answer_parts(answer, advice)]
    parts += [not_answered(each) for each in failed]
    screen.answer({"seeds": seeds, "groups": [document(answer, advice) for answer, advice in answers], "failed": failed}, *parts)
    return 1 if failed else 0


def configurations(files: Sequence[Path], settings: Sequence[str], dimensions: Sequence[str]) -> list[Configuration]:
    """Those of the TOML files, and every combination of the ``name=v1,v2`` texts (`dimensions`),
    each with all `settings` (``name=value``). Raises InputError when a setting does not exist or a
    value is of the wrong kind.
    """
    from equipoise.replay.whatif.sweep import grid, read_configurations

    given: dict[str, list[Any]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: write it as name=value")
        given[name] = [_value(name, text, option="--set")]
    found = [each for path in files for each in read_configurations(path)]
    if given:
        found = [one for each in found for one in grid(given, each)]
    swept = _swept(dimensions)
    if both := given.keys() & swept.keys():
        raise InputError(f"--sweep {min(both)}: has a value by --set already; leave out one of the two")
    if swept or (given and not files):
        found += grid({**given, **swept})
    return found


def _swept(dimensions: Sequence[str]) -> dict[str, list[Any]]:
    from equipoise.assignors import registry

    found: dict[str, list[Any]] = {}
    for dimension in dimensions:
        name, equals, texts = dimension.partition("=")
        values = [part for part in texts.split(",") if part]
        if not equals or not values:
            raise InputError(f"--sweep {dimension}: write it as name=value,value")
        if name in found:
            raise InputError(f"--sweep {name}: given twice; write all values into one option")
        if (name, values) == ("assignor", ["all"]):
            values = sorted({each for each, _ in registry.available()})
        found[name] = [_value(name, value, option="--sweep") for value in values]
    return found


def _value(name: str, text: str, *, option: str) -> Any:
    if name in ("assignor", "carrier", "behaviour_version", "announce_closes"):
        return leader_value(name, text, option=option)
    return setting_value(name, text, option=option)


def document(answer: WhatIf, advice: Advice) -> dict[str, Any]:
    """One group for `--json`."""
    from equipoise.replay.whatif.advice import pareto_front
    from equipoise.replay.whatif.kafka_properties import kafka_properties

    properties = kafka_properties(answer)
    return {
        **answer.as_json(),
        "front": pareto_front(answer),
        "advice": {"change": advice.change, "line": advice.line},
        "kafka_properties": None if properties is None else properties.as_json(),
    }


def answer_parts(answer: WhatIf, advice: Advice) -> list[Part]:
    """The fidelity, the cost of each configuration, the advice, and Kafka's properties to set."""
    from equipoise.replay.whatif.advice import pareto_front
    from equipoise.replay.whatif.kafka_properties import kafka_properties

    head = Line(bold(answer.group), f"  {span_text(answer.span_ms)}, {counted(answer.facts, 'fact')}, led by {answer.factual.assignor}")
    best = pareto_front(answer)
    outcomes = (answer.factual, *answer.outcomes)
    failed = [f"{each.configuration.name} could not lead: {each.error}" for each in outcomes if each.error]
    used = f"restore {answer.restore_records_per_s:,} records/s a member ({answer.restore_basis}); {counted(len(answer.seeds), 'seed')}"
    costs = Table(
        columns=("", "configuration", *(heading for heading, _ in MEASURES)),
        rows=[_row(each, each.configuration.name in best) for each in outcomes if not each.error],
        title="what each would have cost, simulated; less is better; *: no other configuration beats it",
    )
    properties = kafka_properties(answer)
    lines = ["", *properties.lines()] if properties is not None and answer.outcomes else []
    return [head, "", fidelity_table(answer), f"simulated with: {used}", "", costs, *failed, "", Line(bold(advice.line)), *lines]


def fidelity_table(answer: WhatIf) -> Table:
    """The group as it is: recorded next to simulated."""
    measured = answer.metrics_source == "measured"
    headings = {metric: heading for heading, metric in MEASURES}
    if not measured:  # the log shows this of it, of the simulated log too
        simulated = f"; simulated: {UNAVAILABLE}" if answer.log_shows == WITHOUT_OWNER else ""
        headings |= {"unavailable_task_seconds": f"task-s {answer.log_shows}{simulated}", "records_restored": "records restored, by reports"}
    rows = [
        (
            headings[each.metric],
            _amount(each.recorded),
            _amount(each.simulated),
            "" if each.low is None else f"{_amount(each.low)} to {_amount(each.high)}",
            "" if each.error is None else f"{each.error:+.0%}",
        )
        for each in answer.fidelity
    ]
    source = "measured in the group" if measured else "from its log"
    return Table(
        columns=("as it is", "recorded", "simulated", "runs", "error"), rows=rows, title=f"fidelity: the group as it is, {source}, next to simulated"
    )


def _row(each: Outcome, is_best: bool) -> tuple[str, ...]:
    return ("*" if is_best else "", each.configuration.name, *(_amount(getattr(each.metrics, metric)) for _, metric in MEASURES))


def _amount(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10_000 or value == int(value) else f"{value:,.1f}"
