"""`incident` over the groups of many recordings: tables of incidents, and of what each day cost by
what began it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.log.parquet.archive_stores import is_remote_location
from equipoise.replay.importers.groups.divided_recording import NO_UNIT, PROBLEM, HeldRecording, held, rows_of
from equipoise.replay.incident import Cause, Incident, history_of, incidents
from equipoise.replay.spans import ALWAYS, Span
from equipoise.replay.spark.groups import TASKS_A_CORE, by_bucket, ddl, dealt, parallelism, problem_of
from equipoise.replay.spark.pieces import is_first_attempt
from equipoise.replay.spark.recordings import ROW_SCHEMA, bucket_of, opened
from equipoise.replay.spark.result_tables import Columns, SparkTables, tables_schema
from equipoise.replay.spark.results import MissingRowsError
from equipoise.replay.wording import counted

_TEXT, _WHOLE, _TRUTH = "string", "int64", "bool"

TABLES: dict[str, Columns] = {
    "incidents": (
        ("begin_ms", _WHOLE),
        ("end_ms", _WHOLE),
        ("cause", _TEXT),
        ("members", _WHOLE),
        ("member", _TEXT),
        ("rebalances", _WHOLE),
        ("moves", _WHOLE),
        ("partitions", _WHOLE),
        ("unavailable_ms", _WHOLE),
        ("longest_ms", _WHOLE),
        ("rebalancing_ms", _WHOLE),
        ("is_rolling", _TRUTH),
        ("is_unusual", _TRUTH),
        ("period_ms", _WHOLE),
        ("advice", _TEXT),
    ),
    "costs": (
        ("day", _TEXT),
        ("cause", _TEXT),
        ("incidents", _WHOLE),
        ("unavailable_ms", _WHOLE),
        ("longest_ms", _WHOLE),
        ("rebalancing_ms", _WHOLE),
        ("moves", _WHOLE),
    ),
}
"""Table -> its columns after its key (`SparkTables`), named as in equipoise/schemas/incident.json.
`members`: how many the cause is about, `member`: the first of them. `partitions`: those that stood
still. `period_ms`: of rebalances that came again and again, else null.
"""

GROUPS: Columns = (
    ("group", _TEXT),
    ("location", _TEXT),
    ("cluster", _TEXT),
    ("kind", _TEXT),
    ("from_ms", _WHOLE),
    ("to_ms", _WHOLE),
    ("incidents", _WHOLE),
    ("unavailable_ms", _WHOLE),
    ("longest_ms", _WHOLE),
    ("rebalancing_ms", _WHOLE),
    ("moves", _WHOLE),
    ("unread", _WHOLE),
    ("problem", _TEXT),
    ("groups", _WHOLE),
)
"""Columns of the table `groups`, with a row for each group. `unread`: records that were passed
over. `problem`: why it is not explained, or null. `groups`: null; on their way a row without a
group has how many its recording holds.
"""
SUMMED = ("incidents", "unavailable_ms", "rebalancing_ms", "moves")
"""Columns of `costs` that are summed over days and groups."""
DEPLOY = "deploy"
"""Cause, in `costs`, of members that were stopped one after the other, and came back."""
_MOST_MS = 2**62


def explain_group(recording: HeldRecording, group: str, location: str, span: Span) -> dict[str, Any]:
    """Returns the rows of one group: its row in `groups`, and for each other table a list of rows."""
    nothing = _without(location, group, cluster=recording.cluster)
    try:
        history = history_of(recording, group)
        found = incidents(history, span.from_ms or 0, _MOST_MS if span.until_ms is None else span.until_ms) if history.states else []
    except Exception as error:  # noqa: BLE001 - one group's defect is one row: the others go on
        return {**nothing, "groups": {**nothing["groups"], "problem": problem_of(error)}}
    times = [each.at_ms for each in history.states[:1] + history.states[-1:]]
    times += [at_ms for commits in history.commits.values() for at_ms, _ in (commits[0], commits[-1])]
    totals = {
        "incidents": len(found),
        "unavailable_ms": sum(each.unavailable_ms for each in found),
        "longest_ms": max(map(_longest_ms, found), default=0),
        "rebalancing_ms": sum(each.rebalancing_ms for each in found),
        "moves": sum(each.moves for each in found),
    }
    head = {
        "kind": history.states[-1].group.kind.value if history.states else None,
        "from_ms": min(times, default=None),
        "to_ms": max(times, default=None),
        "unread": len(history.unread),
        **totals,
    }
    return {
        "groups": nothing["groups"] | head,
        "incidents": [_row(each) for each in found],
        "costs": costs_of(found),
    }


def _without(location: str, group: str, **columns: Any) -> dict[str, Any]:
    row = dict.fromkeys(name for name, _ in GROUPS)
    return {"groups": {**row, "group": group, "location": location, **columns}, **{name: [] for name in TABLES}}


def _longest_ms(incident: Incident) -> int:
    return max((gap.unavailable_ms for gap in incident.gaps), default=0)


def _row(incident: Incident) -> dict[str, Any]:
    return {
        "begin_ms": incident.begin_ms,
        "end_ms": incident.end_ms,
        "cause": incident.cause.name.lower(),
        "members": len(incident.members),
        "member": incident.members[0] if incident.members else None,
        "rebalances": len(incident.chain),
        "moves": incident.moves,
        "partitions": len({gap.partition for gap in incident.gaps}),
        "unavailable_ms": incident.unavailable_ms,
        "longest_ms": _longest_ms(incident),
        "rebalancing_ms": incident.rebalancing_ms,
        "is_rolling": incident.is_rolling,
        "is_unusual": incident.is_unusual,
        "period_ms": None if incident.loop is None else incident.loop.period_ms,
        "advice": "; ".join(incident.advice) or None,
    }


def costs_of(found: Iterable[Incident]) -> list[dict[str, Any]]:
    """Returns what incidents cost, by the day (UTC) on which they began and by cause."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for each in found:
        day = dt.datetime.fromtimestamp(each.begin_ms // 1_000, dt.UTC).date().isoformat()
        cause = DEPLOY if each.is_rolling else each.cause.name.lower()
        of = sums.setdefault((day, cause), {"day": day, "cause": cause, **dict.fromkeys(SUMMED, 0), "longest_ms": 0})
        of["incidents"] += 1
        for name in ("unavailable_ms", "rebalancing_ms", "moves"):
            of[name] += getattr(each, name)
        of["longest_ms"] = max(of["longest_ms"], _longest_ms(each))
    return [sums[key] for key in sorted(sums)]


def cause_text(cause: str) -> str:
    """Returns a cause of `costs` as a clause."""
    return "several members were restarted, one after the other" if cause == DEPLOY else Cause[cause.upper()].value


def by_cause(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the sums of rows of `costs`, one for each cause, the one that cost most first.
    `worst_group`: the group that it cost most.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["cause"], []).append(row)
    sums = []
    for cause, mine in found.items():
        worst = min(mine, key=lambda row: (-row["unavailable_ms"], row["group"], row["location"]))
        sums.append(
            {
                "cause": cause,
                "cause_text": cause_text(cause),
                "groups": len({(row["group"], row["location"]) for row in mine}),
                **{name: sum(row[name] for row in mine) for name in SUMMED},
                "longest_ms": max(row["longest_ms"] for row in mine),
                "worst_group": worst["group"],
                "worst_location": worst["location"],
                "worst_unavailable_ms": worst["unavailable_ms"],
            }
        )
    return sorted(sums, key=lambda of: (-of["unavailable_ms"], -of["rebalancing_ms"], of["cause"]))


def spark_incident(spark: Any, locations: Sequence[str], patterns: Sequence[str] = (), span: Span = ALWAYS) -> SparkTables:
    """Returns table -> DataFrame: `groups` and those of TABLES, which the caller closes. `locations`:
    of recordings, as `recordings.recordings_in` has them. `patterns`: of the groups to explain; ():
    all.

    `groups` has a row without a group for each recording: how many it holds, or its problem.
    """
    tasks = dealt(range(len(locations)), TASKS_A_CORE * parallelism(spark), size=lambda _: 1)
    buckets = TASKS_A_CORE * parallelism(spark)
    places, chosen = list(locations), tuple(patterns)

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for place in tasks[task]:
                    yield from read_recording(places[place], place, chosen, buckets)

    def explain(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for row in explained(batches, places, span):
            yield pa.RecordBatch.from_pylist([row], schema=tables_schema(GROUPS, TABLES))

    rows = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, ROW_SCHEMA)
    in_order = by_bucket(rows, buckets).sortWithinPartitions("bucket", "place", "unit", "part", "seq")
    return SparkTables(in_order.mapInArrow(explain, ddl(tables_schema(GROUPS, TABLES))), TABLES)


def read_recording(location: str, place: int, patterns: Sequence[str], buckets: int) -> Iterator[Any]:
    """Yields the rows of one recording. Of one that cannot be read to its end, why, for every
    bucket, which may have some of its rows already.
    """
    import pyarrow as pa

    def batch(bucket: int, unit: str, part: int, seq: int, payload: bytes) -> Any:
        return pa.RecordBatch.from_arrays(
            [
                pa.array([bucket], pa.int32()),
                pa.array([place], pa.int32()),
                pa.array([unit]),
                pa.array([part], pa.int32()),
                pa.array([seq], pa.int64()),
                pa.array([payload], pa.binary()),
            ],
            names=["bucket", "place", "unit", "part", "seq", "payload"],
        )

    try:
        with opened(location) as recording:
            for row in rows_of(recording, patterns):
                yield batch(bucket_of(place, row.unit, buckets), *row)
    except (EquipoiseError, OSError) as error:
        if is_first_attempt() and (is_remote_location(location) or isinstance(error, OSError)):
            raise  # a store that did not answer may, when Spark tries again
        problem = problem_of(error if isinstance(error, EquipoiseError) else InputError(f"{location}: cannot be read: {error}"))
        for bucket in range(buckets):
            yield batch(bucket, NO_UNIT, PROBLEM, int(bucket != bucket_of(place, NO_UNIT, buckets)), problem.encode())


def explained(batches: Iterator[Any], locations: Sequence[str], span: Span) -> Iterator[dict[str, Any]]:
    """Yields the rows of the groups whose rows, in order, are in `batches`."""
    rows = (row for batch in batches for row in zip(*(batch.column(name).to_pylist() for name in _ORDER), strict=True))
    broken: set[int] = set()
    for (place, unit), mine in groupby(rows, key=itemgetter(0, 1)):
        location = locations[place]
        if unit == NO_UNIT:
            for _, _, part, is_again, payload in mine:
                if part == PROBLEM:
                    broken.add(place)
                if not is_again and (part == PROBLEM or place not in broken):
                    yield _without(location, "", **({"problem": payload.decode()} if part == PROBLEM else {"groups": int(payload)}))
        elif place not in broken:
            recording, groups = held((part, payload) for _, _, part, _, payload in mine)
            for group in groups:
                yield explain_group(recording, group, location, span)


_ORDER = ("place", "unit", "part", "seq", "payload")


def check_every_group(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of `groups` that are of a group, or say why a recording was not read. Raises
    MissingRowsError unless there is one for each group that a recording holds.
    """
    for head in groups:
        if not head["group"] and head["problem"] is None:
            there = sum(row["group"] != "" and row["location"] == head["location"] for row in groups)
            if there != head["groups"]:
                raise MissingRowsError(
                    f"Spark has returned {counted(there, 'row')} for {counted(head['groups'], 'group')}, and nothing was written: "
                    "please report this defect"
                )
    return [dict(row) for row in groups if row["group"] or row["problem"] is not None]
