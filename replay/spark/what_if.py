"""`what-if` over many groups: N configurations for each of M groups. A group's log is read once,
and every configuration is simulated from that reading.

Configurations are passed to the tasks; a group's records are never multiplied by them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from equipoise.events.errors import InputError
from equipoise.replay.spark.groups import Unit, over_groups, problem_of
from equipoise.replay.whatif.advice import advise, pareto_front
from equipoise.replay.whatif.evaluate import Configuration, Outcome, WhatIf, what_if_recorded
from equipoise.replay.whatif.recording import METRICS, read_recording

COLUMNS = (
    ("group", "string"),
    ("location", "string"),
    ("seq", "int64"),
    ("configuration", "string"),
    ("assignor", "string"),
    ("changes", "string"),
    *((name, "double") for name in METRICS),
    ("front", "bool"),
    ("error", "string"),
)
"""A row for each group and configuration. `seq` 0 is the factual one, then the others as given.
`changes`: settings, as a JSON object. `front`: no other configuration of the group beats it.
"""


def what_if_group(unit: Unit, configurations: Sequence[Configuration], seeds: Sequence[int]) -> dict[str, Any]:
    """Answers for one group: `document` is the output of ``equipoise what-if --json``, `advice` its
    one line, `outcomes` its rows of COLUMNS.
    """
    head = {"group": unit.group, "location": unit.location}
    nothing: dict[str, Any] = {**head, "facts": None, "document": None, "advice": None, "problem": None, "outcomes": []}
    try:
        answer = what_if_recorded(read_recording(unit.entries(), group=unit.group), configurations, seeds=seeds)
    except Exception as error:  # noqa: BLE001 - one group's defect is one row: the others go on
        return {**nothing, "problem": problem_of(error)}
    advice, best = advise(answer), pareto_front(answer)
    document = {**answer.as_json(), "front": best, "advice": {"change": advice.change, "line": advice.line}}
    written = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return {**nothing, "facts": answer.facts, "document": written, "advice": advice.line, "outcomes": outcomes_of(answer, best)}


def outcomes_of(answer: WhatIf, best: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of COLUMNS after `location`. `best`: names of the Pareto front."""
    return [_outcome(seq, each, each.configuration.name in best) for seq, each in enumerate((answer.factual, *answer.outcomes))]


def _outcome(seq: int, outcome: Outcome, is_front: bool) -> dict[str, Any]:
    metrics: dict[str, Any] = dict.fromkeys(METRICS) if outcome.metrics is None else dict(outcome.metrics.as_json())
    return {
        "seq": seq,
        "configuration": outcome.configuration.name,
        "assignor": outcome.assignor,
        "changes": json.dumps(dict(outcome.configuration.settings), sort_keys=True),
        **{name: None if value is None else float(value) for name, value in metrics.items()},
        "front": is_front,
        "error": outcome.error or None,
    }


def schema() -> Any:
    """Returns the pyarrow schema of `what_if_group`'s rows."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
    outcome = pa.struct([(name, kinds[kind]) for name, kind in COLUMNS[2:]])
    texts = [(name, pa.string()) for name in ("group", "location", "document", "advice", "problem")]
    return pa.schema([*texts, ("facts", pa.int64()), ("outcomes", pa.list_(outcome))])


def what_if_rows(spark: Any, units: Sequence[Unit], configurations: Sequence[Configuration], seeds: Sequence[int]) -> Any:
    """Returns a DataFrame with one row for each unit. Raises InputError for two configurations of
    one name.
    """
    names = [each.name for each in configurations]
    if len(set(names)) < len(names):
        raise InputError(f"configuration {next(name for name in names if names.count(name) > 1)!r}: there are two of that name; give each its own")
    return over_groups(spark, units, partial(what_if_group, configurations=tuple(configurations), seeds=tuple(seeds)), schema())


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


def plain_rows(units: Sequence[Unit], configurations: Sequence[Configuration], *, seeds: Sequence[int] = (0,)) -> list[dict[str, Any]]:
    """Returns the same rows without Spark, one group after the other."""
    found: list[dict[str, Any]] = []
    for unit in units:
        answer = what_if_group(unit, configurations, seeds)
        head = {"group": unit.group, "location": unit.location}
        nothing = {**dict.fromkeys(name for name, _ in COLUMNS), "error": answer["problem"]}
        found += [{**head, **row} for row in answer["outcomes"]] or [{**nothing, **head}]
    return found
