"""Many groups on Spark: finds the groups, deals them to tasks, and calls one function for each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import attrs
import msgpack

from equipoise.events.errors import DamagedError, EquipoiseError, InputError
from equipoise.events.records import Entry
from equipoise.log.parquet.archive_stores import split_location
from equipoise.log.parquet.files import COLUMNS
from equipoise.log.parquet.log import ArchiveLog
from equipoise.log.parquet.manifests import Extent, PartitionFiles, extent_of
from equipoise.log.parquet.store import ArchivePartition
from equipoise.log.rows import Order
from equipoise.replay.spark.pieces import BEFORE, SCHEMA, Begin, PiecePlace, PieceScan, Targets, groups_in, pieces_of

T = TypeVar("T")

PAYLOAD = COLUMNS.index("payload")
FILES_AT_ONCE = 16
"""Partitions whose files are asked at once what they hold: an object store answers slowly."""
TASKS_A_CORE = 8
"""Tasks for each core. A task costs about 30 ms in Spark; with this many, the last one to end keeps
no core waiting for long.
"""


@attrs.frozen(kw_only=True)
class Unit:
    """One group of one archive; without a group, a partition, which has an answer of its own only
    where something is wrong with it. `location` names its partition: ``/data/archive?partition=3``.
    `records`: its facts and decisions.
    """

    location: str
    group: str
    records: int
    problem: str = ""
    """Why it cannot be read, or ""."""
    last_day: str | None = None
    """The last day of which its files are read, as ``2026-11-23``; None: all."""
    first_row: int = 0
    """The first row of its partition from which its rows are read."""
    next_row: int = attrs.field(default=0, eq=False)
    """Where a task has its log at hand: the row after the last one of its partition."""
    read: Callable[[], Iterator[Entry]] | None = attrs.field(default=None, eq=False, repr=False)
    """Yields its log where a task has it at hand; None: it is read from the archive."""
    order: Order | None = attrs.field(default=None, eq=False, repr=False)
    """Where a task has its log at hand: where `read` is in it."""
    saved: bytes | None = attrs.field(default=None, eq=False, repr=False)
    """What an earlier job has left of the group, up to `first_row`; None: nothing."""
    files: PartitionFiles | None = attrs.field(default=None, eq=False, repr=False)
    """The files of its partition when the archive was listed; None: not known."""

    def entries(self) -> Iterator[Entry]:
        """Yields its log from the start. Raises what opening and reading it raise."""
        if self.problem:
            raise DamagedError(-1, self.problem)
        if self.read is not None:
            yield from self.read()
            return
        with ArchiveLog(self.location, "r") as log:
            if self.last_day is None:
                yield from log.read(group=self.group)
                return
            for partition in log.partitions():
                yield from log.part(partition, last_day=self.last_day).read(group=self.group)


Work = Callable[[Unit], dict[str, Any]]
"""One group -> one row. An unreadable group is a row that says so; other errors are Spark's to
handle.
"""


def units_of(locations: Sequence[str]) -> list[Unit]:
    """Returns every group of these archives, by archive and name, and before them the partitions
    with a problem or without a known group. Each archive is listed once: what comes to it later is
    of the next job. Raises InputError when a location is no archive or has no group.
    """
    found: list[Unit] = []
    for location in locations:
        if location.startswith("kafka://"):
            raise InputError(f"{location}: is a log in Kafka and no archive; copy it into one, as `equipoise archive {location} --to archive/`")
        units = _units_of(location)
        if not units:
            raise InputError(f"{location}: holds no fact of any group; archive a log that has one")
        found += sorted(units, key=lambda unit: (unit.group, unit.location))
    return list(dict.fromkeys(found))  # an archive may be named twice


def _units_of(location: str) -> list[Unit]:
    """The partitions of an archive, and the groups that its files say they hold."""
    with ArchiveLog(location, "r") as log, ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        files = log.files()
        found = list(pool.map(ArchivePartition.readable_groups, [log.part(partition, files=each) for partition, each in files.items()]))
    units = []
    for (partition, each), (groups, problems) in zip(files.items(), found, strict=True):
        place = f"{log.absolute_location}?partition={partition}"
        if problems or not groups:
            units.append(Unit(location=place, group="", records=0, problem=next(iter(problems), each.doubt), files=each))
        units += [Unit(location=place, group=group, records=records, files=each) for group, records in groups.items()]
    return units if any(unit.group or unit.problem for unit in units) else []


def extents_of(units: Sequence[Unit]) -> dict[str, Extent]:
    """Returns archive -> up to where its partitions were listed."""
    found: dict[str, dict[int, PartitionFiles]] = {}
    for unit in units:
        archive, partition = split_location(unit.location)
        if unit.files is not None and partition is not None:
            found.setdefault(archive, {})[partition] = unit.files
    return {archive: extent_of(files, 0) for archive, files in found.items()}


def dealt(units: Sequence[T], most: int, size: Callable[[T], int] = attrgetter("records")) -> list[list[T]]:
    """Deals the units to at most `most` parts of about the same size: the largest first, each to
    the part with least so far.
    """
    heap = [(0, at) for at in range(min(most, len(units)))]
    parts: list[list[T]] = [[] for _ in heap]
    for unit in sorted(units, key=size, reverse=True):
        records, at = heapq.heappop(heap)
        parts[at].append(unit)
        heapq.heappush(heap, (records + size(unit), at))
    return parts


Numbers = Mapping[str, int]
"""Location -> number of the partition."""
Files = Mapping[str, PartitionFiles]
"""Location of a partition -> its files."""
Before = Callable[[Numbers, Sequence[Targets]], Any]
"""Where rows go -> what stands before them, as a pyarrow.Table of `pieces.SCHEMA`."""


def over_groups(spark: Any, units: Sequence[Unit], work: Work, schema: Any, files: Files | None = None, begun: Before | None = None) -> Any:
    """Returns a DataFrame with a row for each unit, in no order. `schema`: pyarrow.Schema of what
    `work` returns. `files`: those to read; None: all. `begun`: what an earlier job has left of the
    units.

    Each file is read once (`pieces`), and its rows go through Spark's shuffle to the tasks that
    fold one group after the other, each as a stream. A task whose worker dies is repeated by Spark.
    """
    most = TASKS_A_CORE * parallelism(spark)
    files = files_of(units) if files is None else files
    units = [attrs.evolve(unit, files=None) for unit in units]  # they are sent to each task
    buckets = dealt(units, most)
    places = _places_of(units, files)
    numbers, targets = targets_of(buckets, places)
    ends = ends_of(numbers, places)
    tasks = dealt(pieces_of(places), most, size=lambda piece: piece.next_row - piece.first_row)
    scan = PieceScan(tasks, targets)

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        return scan.read(batches)

    def fold(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for row in folded(batches, buckets, numbers, ends, work):
            yield pa.RecordBatch.from_pylist([row], schema=schema)

    rows = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, SCHEMA)
    if begun is not None:
        rows = rows.union(spark.createDataFrame(begun(numbers, targets), SCHEMA))
    return by_bucket(rows, len(buckets)).sortWithinPartitions("bucket", "place", "group", "seq").mapInArrow(fold, ddl(schema))


def by_bucket(rows: Any, buckets: int) -> Any:
    """Returns the rows, those of one bucket (column `bucket`, from 0) in one task."""
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(buckets, "bucket")
    return rows.repartition(buckets, "bucket")  # Spark 4.0: some tasks get two buckets, and others none


@attrs.frozen
class PartitionEnd:
    """The end of a partition. `next_row`: the row after its last one."""

    partition: int
    next_row: int


def ends_of(numbers: Numbers, places: Sequence[PiecePlace]) -> list[PartitionEnd]:
    """Returns the end of the partition of each place, by its number."""
    found = {place.location: PartitionEnd(place.partition, place.next_row) for place in places}
    return [found[location] for location in numbers]


def targets_of(buckets: Sequence[Sequence[Unit]], places: Sequence[PiecePlace]) -> tuple[dict[str, int], list[Targets]]:
    """Returns location -> number of the partition, and where the rows of each go."""
    numbers = {place.location: number for number, place in enumerate(places)}
    targets = [Targets() for _ in places]
    for bucket, each in enumerate(buckets):
        for unit in each:
            of = targets[numbers[unit.location]]
            of.every.add(bucket)
            if unit.group:
                of.groups[unit.group] = bucket
    return numbers, targets


def files_of(units: Sequence[Unit], last_day: str | None = None) -> dict[str, PartitionFiles]:
    """Returns the files of the units' partitions, as they were listed. `last_day`: without those
    that are entirely later, as ``2026-11-23``; None: all.
    """
    return {unit.location: unit.files.until_day(last_day) for unit in units if unit.files is not None}


def strict_files_of(units: Sequence[Unit]) -> dict[str, PartitionFiles]:
    """Returns `files_of` for a job that proves something: a doubt is a problem."""
    return {location: files.strict() for location, files in files_of(units).items()}


def _places_of(units: Sequence[Unit], files: Files) -> list[PiecePlace]:
    found = []
    for location in dict.fromkeys(unit.location for unit in units):
        _, partition = split_location(location)
        assert partition is not None, "a unit names its partition"
        first = min(unit.first_row for unit in units if unit.location == location)
        found.append(PiecePlace(location=location, partition=partition, files=files[location], first_row=first))
    return found


def folded(
    batches: Iterator[Any], buckets: Sequence[Sequence[Unit]], numbers: Numbers, ends: Sequence[PartitionEnd], work: Work
) -> Iterator[dict[str, Any]]:
    """Yields the row of each unit whose bucket is in these sorted rows of `pieces.SCHEMA`. A group
    of which nothing could be read has one, too, and a partition in which something is wrong.
    `ends`: of each partition.
    """
    for bucket, in_bucket in groupby(groups_in(batches), key=itemgetter(0)):
        waiting = {(numbers[unit.location], unit.group): unit for unit in buckets[bucket] if unit.group}
        begins: dict[int, Begin] = {}
        for _, place, group, rows in in_bucket:
            begin = begins.setdefault(place, Begin())
            if group is None:
                seq, *values = next(rows)
                begins[place] = attrs.evolve(begin, problem=(seq, values[PAYLOAD]))
            elif not group:
                begins[place] = attrs.evolve(begin, first=next(rows))
            else:
                yield work(_at_hand(waiting.pop((place, group)), begin, rows, ends[place]))
        for (place, _), unit in sorted(waiting.items()):
            yield work(_at_hand(unit, begins.get(place, Begin()), iter(()), ends[place]))
        for unit in buckets[bucket]:
            begin = begins.get(numbers[unit.location], Begin())
            if not unit.group and (unit.problem or begin.problem is not None):
                yield work(_at_hand(unit, begin, iter(()), ends[numbers[unit.location]]))


def _at_hand(unit: Unit, begin: Begin, rows: Iterator[tuple[Any, ...]], end: PartitionEnd) -> Unit:
    """The unit with its log. `rows`: its own, and before them what an earlier job has left."""
    order, saved = Order(), None
    if unit.first_row:
        head = next(rows, None)
        if head is not None and head[0] == BEFORE:
            try:
                order, saved = unpacked(head[1 + PAYLOAD])
            except InputError as error:
                return attrs.evolve(unit, problem=str(error))
            begin = attrs.evolve(begin, first=None)
        elif head is not None:
            rows = chain((head,), rows)
        rows = (row for row in rows if row[0] >= unit.first_row)
    read = partial(begin.entries, rows, end.partition, order)
    return attrs.evolve(unit, read=read, order=order, saved=saved, next_row=end.next_row)


def left(order: Order, saved: bytes) -> bytes:
    """Returns what a later job finds of a group before its rows: where its log was read to, and
    what `Unit.saved` gives.
    """
    packed: bytes = msgpack.packb([order.save(), saved])
    return packed


def unpacked(packed: bytes) -> tuple[Order, bytes]:
    """Returns what `left` was given. Raises InputError for other bytes."""
    try:
        order, saved = msgpack.unpackb(packed)
        return Order.restore(order), saved
    except (ValueError, TypeError, msgpack.UnpackException):
        raise InputError("the state at which it is to begin is damaged; it begins at the start in the next run") from None


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
