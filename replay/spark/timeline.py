"""`timeline` over many groups: tables of intervals, unavailability, moves, rounds, imbalance,
members, and of what each day cost by what began it, as Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from equipoise.replay.spark.groups import Unit, over_groups, problem_of
from equipoise.replay.spark.results import kept, write_table
from equipoise.replay.timelines import Timeline, build_timeline, costs_of, timeline_document
from equipoise.replay.timelines.costs import SUMMED

_TEXT, _WHOLE, _TRUTH = "string", "int64", "bool"
_FROM_TO = (("from_ms", _WHOLE), ("to_ms", _WHOLE))

TABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "intervals": (("task", _TEXT), ("member_id", _TEXT), ("condition", _TEXT), *_FROM_TO, ("offset", _WHOLE), ("generation", _WHOLE)),
    "unavailability": (("task", _TEXT), *_FROM_TO),
    "moves": (
        ("task", _TEXT), ("source", _TEXT), ("destination", _TEXT), ("outcome", _TEXT), ("reason", _TEXT), ("began_ms", _WHOLE), ("ended_ms", _WHOLE),
        ("waited_ms", _WHOLE), ("warmed_ms", _WHOLE), ("revoking_ms", _WHOLE), ("restored_records", _WHOLE),
    ),
    "rounds": (("append_ms", _WHOLE), ("offset", _WHOLE), ("generation", _WHOLE), ("cause", _TEXT), ("moves", _WHOLE), ("members", _WHOLE)),
    "imbalance": (("append_ms", _WHOLE), ("tasks", _WHOLE)),
    "copies": (("task", _TEXT), ("member_id", _TEXT), ("kind", _TEXT), *_FROM_TO, ("ready_ms", _WHOLE)),
    "members": (
        ("member_id", _TEXT), ("incarnation", _WHOLE), ("capacity", _WHOLE), ("rack", _TEXT), ("joined_ms", _WHOLE), ("ended_ms", _WHOLE),
        ("silent_ms", _WHOLE), ("how", _TEXT),
    ),
    "costs": (
        ("day", _TEXT), ("cause", _TEXT), ("stretches", _WHOLE), ("tasks", _WHOLE), ("stopped_ms", _WHOLE), ("longest_ms", _WHOLE),
        ("moves", _WHOLE), ("restored_records", _WHOLE),
    ),
}  # fmt: skip
"""Table -> its columns after `group`, named as in equipoise/schemas/timeline.json. Unavailability:
times without a running owner. Costs: those of `equipoise.replay.timelines.costs.Cost`.
"""

GROUPS: tuple[tuple[str, str], ...] = (
    ("group", _TEXT), ("location", _TEXT), ("log_id", _TEXT), ("led_by", _TEXT), ("assignor", _TEXT), *_FROM_TO, ("facts", _WHOLE), ("tasks", _WHOLE),
    ("moves", _WHOLE), ("rounds", _WHOLE), ("stopped_ms", _WHOLE), ("tasks_stopped", _WHOLE), ("longest_ms", _WHOLE), ("rejections", _WHOLE),
    ("differs_at", _WHOLE), ("problem", _TEXT),
)  # fmt: skip
"""Columns of the table `groups`, with one row for each group; `problem`: why it has no history, or
null.
"""


def timeline_group(unit: Unit) -> dict[str, Any]:
    """Returns the rows of one group: its row in `groups`, and for each other table a list of rows.
    """
    try:
        return row_of(unit, build_timeline(unit.entries(), group=unit.group))
    except Exception as error:  # noqa: BLE001 - one group's defect is one row: the others go on
        nothing: dict[str, Any] = {name: [] for name in TABLES}
        return {"groups": {**dict.fromkeys(name for name, _ in GROUPS), **_head(unit), "problem": problem_of(error)}, **nothing}


def row_of(unit: Unit, timeline: Timeline) -> dict[str, Any]:
    """Returns a history as rows of all tables, in the history's order."""
    document = timeline_document(timeline)
    totals = document["totals"]
    counted = {name: totals[name] for name in ("moves", "rounds", "stopped_ms", "tasks_stopped", "longest_ms")}
    plain = {name: document[name] for name in ("log_id", "led_by", "assignor", "from_ms", "to_ms", "facts", "rejections")}
    stretches = [{"task": each["task"], **stretch} for each in document["not_running"] for stretch in each["stretches"]]
    rows = {**document, "unavailability": stretches, "costs": [attrs.asdict(each) for each in costs_of(timeline)]}
    head = {**_head(unit), **plain, **counted, "tasks": len(timeline.tasks), "differs_at": timeline.first_divergence, "problem": None}
    return {"groups": head, **{table: [{name: row[name] for name, _ in TABLES[table]} for row in rows[table]] for table in TABLES}}


def _head(unit: Unit) -> dict[str, Any]:
    return {"group": unit.group, "location": unit.location}


def schema() -> Any:
    """Returns the pyarrow schema of `timeline_group`'s rows."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "int64": pa.int64(), "bool": pa.bool_()}

    def struct(columns: Sequence[tuple[str, str]]) -> Any:
        return pa.struct([(name, kinds[kind]) for name, kind in columns])

    return pa.schema([("groups", struct(GROUPS)), *((table, pa.list_(struct(columns))) for table, columns in TABLES.items())])


def spark_timeline(spark: Any, units: Sequence[Unit]) -> dict[str, Any]:
    """Returns table -> DataFrame: `groups` and those of TABLES, each with `group` first; `seq`
    counts a group's rows from 0.

    The histories are computed once, when the first table is read, and kept on Spark's disks.
    """
    from pyspark.sql import functions as f

    rows = kept(over_groups(spark, units, timeline_group, schema()))
    tables = {"groups": rows.select("groups.*")}
    for table, columns in TABLES.items():
        exploded = rows.select(f.col("groups.group").alias("group"), f.posexplode(table).alias("seq", "row"))
        tables[table] = exploded.select("group", f.col("seq").cast("bigint").alias("seq"), *[f.col(f"row.{name}").alias(name) for name, _ in columns])
    return tables


def costs_by_group(tables: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the table `costs`, summed over days: a row for each group and cause, by name."""
    from pyspark.sql import functions as f

    sums = [f.sum(name).cast("bigint").alias(name) for name in SUMMED]
    rows = tables["costs"].groupBy("group", "cause").agg(*sums, f.max("longest_ms").alias("longest_ms")).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: (row["group"], row["cause"]))


def write_tables(tables: dict[str, Any], folder: Path) -> dict[str, int]:
    """Makes `folder`, and writes ``<table>/rows.parquet`` in it, sorted by group and seq. Returns
    table -> number of its rows.
    """
    folder.mkdir()
    return {
        name: write_table(table, ("group", "location") if name == "groups" else ("group", "seq"), folder / name) for name, table in tables.items()
    }


def plain_tables(units: Sequence[Unit]) -> dict[str, list[dict[str, Any]]]:
    """Returns the same tables without Spark, one group after the other, in the order of `units`."""
    found: dict[str, list[dict[str, Any]]] = {"groups": [], **{name: [] for name in TABLES}}
    for unit in units:
        answer = timeline_group(unit)
        found["groups"].append(answer["groups"])
        for name in TABLES:
            found[name] += [{"group": unit.group, "seq": seq, **row} for seq, row in enumerate(answer[name])]
    return found
