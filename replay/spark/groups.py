"""Many groups on Spark: finds the groups, deals them to tasks, and calls one function for each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from equipoise.events.errors import DamagedError, EquipoiseError, InputError
from equipoise.events.log.parquet.log import ArchiveLog
from equipoise.events.records import Entry

TASKS_A_CORE = 8
"""Tasks for each core. A task costs about 30 ms in Spark; with this many, the last one to end keeps
no core waiting for long.
"""


@attrs.frozen(kw_only=True)
class Unit:
    """One group of one archive. `location` names its partition: ``/data/archive?partition=3``.
    `records`: its facts and decisions.
    """

    location: str
    group: str
    records: int
    problem: str = ""
    """Why the group cannot be read, or None; `group` is "" when it is unknown whose records these
    are.
    """

    def entries(self) -> Iterator[Entry]:
        """Yields its log from the start. Raises what opening and reading it raise."""
        if self.problem:
            raise DamagedError(-1, self.problem)
        with ArchiveLog(self.location, "r") as log:
            yield from log.read(group=self.group)


Work = Callable[[Unit], dict[str, Any]]
"""One group -> one row. An unreadable group is a row that says so; other errors are Spark's to
handle.
"""


def units_of(locations: Sequence[str]) -> list[Unit]:
    """Returns every group of these archives, by archive and name.

    A file that cannot be read is a unit without a group; the groups with records in it report it
    themselves. Raises InputError when a location is no archive or has no group.
    """
    found: list[Unit] = []
    for location in locations:
        if location.startswith("kafka://"):
            raise InputError(f"{location}: is a log in Kafka and no archive; copy it into one, as `equipoise archive {location} --to archive/`")
        with ArchiveLog(location, "r") as log:
            units = [unit for partition in log.partitions() for unit in _units_in(log, partition)]
        if not units:
            raise InputError(f"{location}: holds no fact of any group; archive a log that has one")
        found += sorted(units, key=lambda unit: (unit.group, unit.location))
    return found


def _units_in(log: ArchiveLog, partition: int) -> list[Unit]:
    location = f"{log.absolute_location}?partition={partition}"
    groups, problems = log.part(partition).readable_groups()
    units = [Unit(location=location, group=group, records=records) for group, records in groups.items()]
    return units + [Unit(location=location, group="", records=0, problem=problem) for problem in problems]


def dealt(units: Sequence[Unit], most: int) -> list[list[Unit]]:
    """Deals the units to at most `most` parts of about the same number of records: the largest
    first, each to the part with fewest records so far.
    """
    heap = [(0, at) for at in range(min(most, len(units)))]
    parts: list[list[Unit]] = [[] for _ in heap]
    for unit in sorted(units, key=lambda unit: (-unit.records, unit.location, unit.group)):
        records, at = heapq.heappop(heap)
        parts[at].append(unit)
        heapq.heappush(heap, (records + unit.records, at))
    return parts


def over_groups(spark: Any, units: Sequence[Unit], work: Work, schema: Any) -> Any:
    """Returns a DataFrame with a row for each unit, in no order. `schema`: pyarrow.Schema of what
    `work` returns.

    One task folds one group after the other, each as a stream. A task whose worker dies is repeated
    by Spark, from its first group on.
    """
    parts = dealt(units, TASKS_A_CORE * parallelism(spark))

    def fold(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for at in batch.column(0).to_pylist():
                for unit in parts[at]:
                    yield pa.RecordBatch.from_pylist([work(unit)], schema=schema)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(fold, ddl(schema))


def parallelism(spark: Any) -> int:
    """Returns the number of cores that Spark reports; 8 over Spark Connect, which reports none."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - PySparkAttributeError or PySparkNotImplementedError, by version
        return 8


def problem_of(error: Exception) -> str:
    """Returns why a group has no answer, in one line: an error of its log as it is, any other as a
    defect.
    """
    text = " ".join(str(error).split())
    return text if isinstance(error, EquipoiseError) else f"{error.__class__.__name__}: {text:.500} (a defect of equipoise)"


def ddl(schema: Any) -> str:
    """Returns a pyarrow.Schema in Spark's DDL."""
    return ", ".join(f"`{field.name}` {_word(field.type)}" for field in schema)


def _word(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_list(kind):
        return f"array<{_word(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{field.name}`: {_word(field.type)}' for field in kind)}>"
    return {"int64": "bigint", "int32": "int", "string": "string", "bool": "boolean", "double": "double", "binary": "binary"}[str(kind)]
