"""`timeline` over many groups: tables of intervals, unavailability, moves, rounds, imbalance,
members, and of what each day cost by what began it, as Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs

from equipoise.events.errors import InputError
from equipoise.replay.spans import ALWAYS, Span, SpanReader
from equipoise.replay.spark.groups import Unit, files_of, over_groups, problem_of
from equipoise.replay.spark.result_tables import Columns, SparkTables, tables_schema
from equipoise.replay.timelines import Timeline, build_timeline, costs_of, timeline_document

_TEXT, _WHOLE, _TRUTH = "string", "int64", "bool"
_FROM_TO = (("from_ms", _WHOLE), ("to_ms", _WHOLE))

TABLES: dict[str, Columns] = {
    "intervals": (("task", _TEXT), ("member_id", _TEXT), ("condition", _TEXT), *_FROM_TO, ("offset", _WHOLE), ("generation", _WHOLE)),
    "unavailability": (("task", _TEXT), *_FROM_TO),
    "moves": (
        ("task", _TEXT),
        ("source", _TEXT),
        ("destination", _TEXT),
        ("outcome", _TEXT),
        ("reason", _TEXT),
        ("began_ms", _WHOLE),
        ("ended_ms", _WHOLE),
        ("waited_ms", _WHOLE),
        ("warmed_ms", _WHOLE),
        ("revoking_ms", _WHOLE),
        ("restored_records", _WHOLE),
    ),
    "rounds": (("append_ms", _WHOLE), ("offset", _WHOLE), ("generation", _WHOLE), ("cause", _TEXT), ("moves", _WHOLE), ("members", _WHOLE)),
    "imbalance": (("append_ms", _WHOLE), ("tasks", _WHOLE)),
    "copies": (("task", _TEXT), ("member_id", _TEXT), ("kind", _TEXT), *_FROM_TO, ("ready_ms", _WHOLE)),
    "members": (
        ("member_id", _TEXT),
        ("incarnation", _WHOLE),
        ("capacity", _WHOLE),
        ("rack", _TEXT),
        ("joined_ms", _WHOLE),
        ("ended_ms", _WHOLE),
        ("silent_ms", _WHOLE),
        ("how", _TEXT),
    ),
    "costs": (
        ("day", _TEXT),
        ("cause", _TEXT),
        ("stretches", _WHOLE),
        ("tasks", _WHOLE),
        ("stopped_ms", _WHOLE),
        ("longest_ms", _WHOLE),
        ("moves", _WHOLE),
        ("restored_records", _WHOLE),
    ),
}
"""Table -> its columns after its key (`SparkTables`), named as in equipoise/schemas/timeline.json.
Unavailability:
times without a running owner. Costs: those of `equipoise.replay.timelines.history_costs.Cost`.
"""

GROUPS: Columns = (
    ("group", _TEXT),
    ("location", _TEXT),
    ("log_id", _TEXT),
    ("led_by", _TEXT),
    ("assignor", _TEXT),
    *_FROM_TO,
    ("facts", _WHOLE),
    ("tasks", _WHOLE),
    ("moves", _WHOLE),
    ("rounds", _WHOLE),
    ("stopped_ms", _WHOLE),
    ("tasks_stopped", _WHOLE),
    ("longest_ms", _WHOLE),
    ("rejections", _WHOLE),
    ("differs_at", _WHOLE),
    ("problem", _TEXT),
)
"""Columns of the table `groups`, with one row for each group; `problem`: why it has no history, or
null.
"""


def timeline_group(unit: Unit, span: Span = ALWAYS) -> dict[str, Any]:
    """Returns the rows of one group: its row in `groups`, and for each other table a list of rows.
    A group without a fact in the span has no row in the others.
    """
    reader = SpanReader(attrs.evolve(unit, last_day=span.last_day).entries(), span)
    nothing: dict[str, Any] = {"groups": {**dict.fromkeys(name for name, _ in GROUPS), **_head(unit)}, **{name: [] for name in TABLES}}
    try:
        timeline = build_timeline(reader, group=unit.group)
    except Exception as error:  # noqa: BLE001 - one group's defect is one row: the others go on
        if isinstance(error, InputError) and span != ALWAYS and not reader.facts:
            return {**nothing, "groups": {**nothing["groups"], "facts": 0}}
        return {**nothing, "groups": {**nothing["groups"], "problem": problem_of(error)}}
    if span == ALWAYS:
        return row_of(unit, timeline)
    if not reader.facts:
        return {**nothing, "groups": {**nothing["groups"], "facts": 0}}
    rows = row_of(unit, timeline, span)
    return {**rows, "groups": {**rows["groups"], "facts": reader.facts, "rejections": None}}


def row_of(unit: Unit, timeline: Timeline, span: Span = ALWAYS) -> dict[str, Any]:
    """Returns a history as rows of all tables, in the history's order. What goes over the ends of
    the span is there in full; a stretch without a running owner counts where its middle is, a move
    in the totals where it ended.
    """
    document = timeline_document(timeline)
    from_ms = timeline.from_ms if span.from_ms is None else max(timeline.from_ms, span.from_ms)
    to_ms = timeline.to_ms if span.until_ms is None else min(timeline.to_ms, span.until_ms)
    totals = timeline.totals("all", span.from_ms, span.until_ms).document()
    counted = {name: totals[name] for name in ("moves", "rounds", "stopped_ms", "tasks_stopped", "longest_ms")}
    plain = {name: document[name] for name in ("log_id", "led_by", "assignor", "facts", "rejections")}
    stopped = timeline.stopped(*(default if end is None else end for end, default in ((span.from_ms, timeline.from_ms), (span.until_ms, _END_MS))))
    rows = {
        **{name: [row for row in document[name] if _is_in(span, name, row)] for name in TABLES if name in document},
        "unavailability": [{"task": str(task), "from_ms": since, "to_ms": to} for task, stretches in stopped.items() for since, to in stretches],
        "imbalance": _levels(document["imbalance"], span),
        "costs": [attrs.asdict(each) for each in costs_of(timeline, span.from_ms, span.until_ms)],
    }
    head = {**_head(unit), **plain, "from_ms": from_ms, "to_ms": to_ms, **counted, "tasks": len(timeline.tasks)}
    head |= {"differs_at": timeline.first_divergence, "problem": None}
    return {"groups": head, **{table: [{name: row[name] for name, _ in TABLES[table]} for row in rows[table]] for table in TABLES}}


_END_MS = 2**62
_SPANS = {"moves": ("began_ms", "ended_ms"), "members": ("joined_ms", "ended_ms")}
"""Columns with the begin and the end of a table's rows, where they are not from_ms and to_ms."""


def _is_in(span: Span, table: str, row: dict[str, Any]) -> bool:
    if "append_ms" in row:
        return span.has(row["append_ms"])
    begin, end = _SPANS.get(table, ("from_ms", "to_ms"))
    return span.touches(row[begin], row[end])


def _levels(levels: list[dict[str, Any]], span: Span) -> list[dict[str, Any]]:
    """The levels of a curve in the span, with the one at its begin."""
    before = [each for each in levels if span.from_ms is not None and each["append_ms"] < span.from_ms][-1:]
    return before + [each for each in levels if span.has(each["append_ms"])]


def _head(unit: Unit) -> dict[str, Any]:
    return {"group": unit.group, "location": unit.location}


def schema() -> Any:
    """Returns the pyarrow schema of `timeline_group`'s rows."""
    return tables_schema(GROUPS, TABLES)


def spark_timeline(spark: Any, units: Sequence[Unit], span: Span = ALWAYS) -> SparkTables:
    """Returns table -> DataFrame: `groups` and those of TABLES, which the caller closes."""
    return SparkTables(over_groups(spark, units, partial(timeline_group, span=span), schema(), files=files_of(units, span.last_day)), TABLES)


def plain_tables(units: Sequence[Unit], span: Span = ALWAYS) -> dict[str, list[dict[str, Any]]]:
    """Returns the same tables without Spark, one group after the other, in the order of `units`."""
    found: dict[str, list[dict[str, Any]]] = {"groups": [], **{name: [] for name in TABLES}}
    for unit in units:
        answer = timeline_group(unit, span)
        found["groups"].append(answer["groups"])
        for name in TABLES:
            found[name] += [{**_head(unit), "seq": seq, **row} for seq, row in enumerate(answer[name])]
    return found
