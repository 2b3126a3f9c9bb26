"""`what-if` over many groups: N configurations for each of M groups. A group's log is read once,
and every configuration is simulated from that reading.

Configurations are passed to the tasks; a group's records are never multiplied by them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs

from equipoise.events.errors import FieldError, InputError
from equipoise.events.settings import GroupSettings
from equipoise.replay.spans import ALWAYS, Span
from equipoise.replay.spark.groups import Unit, files_of, over_groups, problem_of
from equipoise.replay.spark.results import sorted_batches
from equipoise.replay.whatif.advice import advise, pareto_front
from equipoise.replay.whatif.configuration_ranking import LEADING, Ranking, compared
from equipoise.replay.whatif.evaluate import Configuration, Outcome, WhatIf, what_if_recorded
from equipoise.replay.whatif.recorded_costs import METRICS, NoFactInSpanError, read_recording

COLUMNS = (
    ("group", "string"),
    ("location", "string"),
    ("seq", "int64"),
    ("configuration", "string"),
    ("assignor", "string"),
    ("behaviour_version", "int64"),
    ("changes", "string"),
    *((name, "double") for name in METRICS),
    ("compared", "string"),
    ("front", "bool"),
    ("error", "string"),
)
"""A row for each group and configuration. `seq` 0 is the factual one, then the others as given.
`changes`: settings, as a JSON object. `compared`: in unavailability with the factual one
(`equipoise.replay.whatif.configuration_ranking.compared`). `front`: no other configuration of the
group beats it.
"""

_NUMBERS = ("facts", "recorded_task_seconds", "simulated_task_seconds")
"""The last two: unavailability of the group as it is, both measured in the same way."""


def what_if_group(unit: Unit, configurations: Sequence[Configuration], seeds: Sequence[int], span: Span = ALWAYS) -> dict[str, Any]:
    """Answers for one group: `document` is the output of ``equipoise what-if --json``, `advice` its
    one line, `outcomes` its rows of COLUMNS. A group without a fact in the span has 0 facts and no
    outcomes.
    """
    head = {"group": unit.group, "location": unit.location}
    nothing: dict[str, Any] = {**head, **dict.fromkeys((*_NUMBERS, "document", "advice", "problem")), "outcomes": []}
    try:
        entries = attrs.evolve(unit, last_day=span.last_day).entries()
        recording = read_recording(entries, group=unit.group, span=span)
        answer = what_if_recorded(recording, configurations, seeds=seeds)
    except NoFactInSpanError:
        return {**nothing, "facts": 0}
    except Exception as error:  # noqa: BLE001 - one group's defect is one row: the others go on
        return {**nothing, "problem": problem_of(error)}
    advice, best = advise(answer), pareto_front(answer)
    trust = next(each for each in answer.fidelity if each.metric == LEADING)
    document = {**answer.as_json(), "front": best, "advice": {"change": advice.change, "line": advice.line}}
    written = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return {
        **nothing,
        "facts": answer.facts,
        "recorded_task_seconds": trust.recorded,
        "simulated_task_seconds": trust.simulated,
        "document": written,
        "advice": advice.line,
        "outcomes": outcomes_of(answer, best),
    }


def outcomes_of(answer: WhatIf, best: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of COLUMNS after `location`. `best`: names of the Pareto front."""
    return [_outcome(answer, seq, each, each.configuration.name in best) for seq, each in enumerate((answer.factual, *answer.outcomes))]


def _outcome(answer: WhatIf, seq: int, outcome: Outcome, is_front: bool) -> dict[str, Any]:
    metrics: dict[str, Any] = dict.fromkeys(METRICS) if outcome.metrics is None else dict(outcome.metrics.as_json())
    return {
        "seq": seq,
        "configuration": outcome.configuration.name,
        "assignor": outcome.assignor,
        "behaviour_version": outcome.behaviour_version,
        "changes": json.dumps(dict(outcome.configuration.settings), sort_keys=True),
        **{name: None if value is None else float(value) for name, value in metrics.items()},
        "compared": None if seq == 0 else compared(outcome, answer.factual),
        "front": is_front,
        "error": outcome.error or None,
    }


def schema() -> Any:
    """Returns the pyarrow schema of `what_if_group`'s rows."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
    outcome = pa.struct([(name, kinds[kind]) for name, kind in COLUMNS[2:]])
    texts = [(name, pa.string()) for name in ("group", "location", "document", "advice", "problem")]
    return pa.schema([*texts, ("facts", pa.int64()), *((name, pa.float64()) for name in _NUMBERS[1:]), ("outcomes", pa.list_(outcome))])


def what_if_rows(spark: Any, units: Sequence[Unit], configurations: Sequence[Configuration], seeds: Sequence[int], span: Span = ALWAYS) -> Any:
    """Returns a DataFrame with one row for each unit. Raises InputError for two configurations of
    one name.
    """
    names = [each.name for each in configurations]
    if len(set(names)) < len(names):
        raise InputError(f"configuration {next(name for name in names if names.count(name) > 1)!r}: there are two of that name; give each its own")
    for each in configurations:
        _check_settings(each)
    work = partial(what_if_group, configurations=tuple(configurations), seeds=tuple(seeds), span=span)
    return over_groups(spark, units, work, schema(), files=files_of(units, span.last_day))


def _check_settings(configuration: Configuration) -> None:
    """Raises InputError for a value that no group may have."""
    fields = attrs.fields_dict(GroupSettings)
    for name, value in configuration.settings.items():
        validator = fields[name].validator if name in fields else None
        try:
            if validator is not None:
                validator(GroupSettings(), fields[name], value)
        except FieldError as error:
            raise InputError(f"configuration {configuration.name!r}, {name}: {error.problem}") from None


def spark_what_if(spark: Any, units: Sequence[Unit], configurations: Sequence[Configuration], *, seeds: Sequence[int] = (0,)) -> Any:
    """Returns a DataFrame with one row for each unit and configuration. A group without an answer
    has one row, whose `error` says why. Raises InputError for two configurations of one name.
    """
    return by_configuration(what_if_rows(spark, units, configurations, seeds))


def by_configuration(rows: Any) -> Any:
    """Returns the rows of `what_if_rows`, one for each configuration."""
    from pyspark.sql import functions as f

    exploded = rows.select("group", "location", "problem", f.explode_outer("outcomes").alias("row"))
    columns = [f.col(f"row.{name}").alias(name) for name, _ in COLUMNS[2:-1]]
    return exploded.select("group", "location", *columns, f.coalesce("problem", "row.error").alias("error"))


def ranking_of(costs: Any) -> Ranking:
    """Returns the ranking of the rows of `by_configuration`."""
    ranking = Ranking()
    ranking.take(row for batch in sorted_batches(costs, ("group", "location", "seq")) for row in batch.to_pylist())
    return ranking


def plain_rows(
    units: Sequence[Unit], configurations: Sequence[Configuration], *, seeds: Sequence[int] = (0,), span: Span = ALWAYS
) -> list[dict[str, Any]]:
    """Returns the same rows without Spark, one group after the other."""
    found: list[dict[str, Any]] = []
    for unit in units:
        answer = what_if_group(unit, configurations, seeds, span)
        head = {"group": unit.group, "location": unit.location}
        nothing = {**dict.fromkeys(name for name, _ in COLUMNS), "error": answer["problem"]}
        found += [{**head, **row} for row in answer["outcomes"]] or [{**nothing, **head}]
    return found
