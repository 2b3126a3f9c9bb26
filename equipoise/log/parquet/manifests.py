"""The manifests of an archive: what each of its partitions holds, in numbered commits.

::

    archive/_manifests/p00003.000000000012.json

A manifest names the files of its partition, so a lost file is detected, the last one and a whole
partition included. It is written only if its number is free: of two processes that commit at once,
one begins again from the other's manifest, and no file of either is lost. A file that readers no
longer need stays for a day (`Manifest.unused`), for those that have begun.

This module is pure: `look` says in which state a partition is, `TABLE` what a reader, an appender
and a compactor do then. `equipoise.log.parquet.snapshot` reads and writes.
"""

from __future__ import annotations

import enum
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from equipoise.log.parquet.archive_store import Store
from equipoise.log.parquet.files import Part, part_of

FOLDER = "_manifests"
FORM = 1
KEPT = 3
"""Newest manifests of a partition that stay."""
UNUSED_MS = 86_400_000
"""How long a file stays that no manifest names any more."""
_NAME = re.compile(rf"{FOLDER}/p(\d{{5}})\.(\d{{12}})\.json")


@attrs.frozen(kw_only=True)
class Manifest:
    """The files of a partition since its commit `number`, from 1. `log_id`: of the log.
    `partitions`: how many the log has.
    """

    partition: int
    number: int
    log_id: str
    partitions: int
    end_offset: int | None
    """Offset of the next fact of the log's partition when it was last read; None: unknown."""
    files: tuple[Part, ...]
    """They hold every row from 0 on, in order."""
    unused: Mapping[str, int] = attrs.field(factory=dict)
    """File that readers no longer need -> since when (ms)."""

    @property
    def next_row(self) -> int:
        return self.files[-1].next_row if self.files else 0

    @property
    def name(self) -> str:
        return name_of(self.partition, self.number)

    def appended(self, files: Sequence[Part]) -> Manifest:
        """Returns the next manifest, with the files that go on behind this one's end."""
        new = tuple(part for part in files if part.next_row > self.next_row)
        return self._next(self.files + new, self.unused)

    def adopted(self, there: Sequence[Part]) -> Manifest | None:
        """Returns the next manifest, with those files that go on without a hole: a writer was killed
        before its commit. None: there is nothing to name.
        """
        new: list[Part] = []
        for part in there:
            if part.first_row == (new[-1].next_row if new else self.next_row):
                new.append(part)
        return self._next((*self.files, *new), self.unused) if new or not self.number else None

    def replaced(self, former: Sequence[Part], by: Sequence[Part], now_ms: int) -> Manifest | None:
        """Returns the next manifest, in which other files hold the rows of some; None: another
        commit has replaced these already.
        """
        gone, new = {part.name for part in former}, {part.name for part in by}
        if not gone <= {part.name for part in self.files}:
            return None
        at = next(at for at, part in enumerate(self.files) if part.name in gone)
        files = self.files[:at] + tuple(by) + tuple(part for part in self.files[at:] if part.name not in gone)
        return self._next(files, {**self.unused, **dict.fromkeys(gone - new, now_ms)})

    def tidied(self, there: Sequence[Part], now_ms: int) -> tuple[Manifest, list[str]]:
        """Returns the next manifest, and the unused files to remove now. `there`: the partition's
        files. One that no manifest names, as of a writer that was killed, is unused from now on.
        """
        named = {part.name for part in self.files}
        unused = {part.name: now_ms for part in there if part.name not in named and part.next_row <= self.next_row} | dict(self.unused)
        gone = sorted(name for name, since_ms in unused.items() if since_ms <= now_ms - UNUSED_MS)
        return self._next(self.files, {name: since_ms for name, since_ms in unused.items() if name not in gone}), gone

    def _next(self, files: tuple[Part, ...], unused: Mapping[str, int]) -> Manifest:
        named = {part.name for part in files}
        return attrs.evolve(self, number=self.number + 1, files=files, unused={name: at for name, at in unused.items() if name not in named})


def name_of(partition: int, number: int) -> str:
    """Returns the name of a manifest in its archive."""
    return f"{FOLDER}/p{partition:05}.{number:012}.json"


def place_of(name: str) -> tuple[int, int] | None:
    """Returns partition and number of a manifest's name; None: it is none."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def encode(manifest: Manifest) -> str:
    """Returns the text of a manifest, with its own checksum."""
    document = {
        "form": FORM,
        "partition": manifest.partition,
        "number": manifest.number,
        "log_id": manifest.log_id,
        "partitions": manifest.partitions,
        "end_offset": manifest.end_offset,
        "rows": manifest.next_row,
        "files": [part.name for part in manifest.files],
        "unused": dict(sorted(manifest.unused.items())),
    }
    return json.dumps({**document, "crc32": _crc32(document)}, indent=1, ensure_ascii=False) + "\n"


def decode(store: Store, name: str, text: str) -> Manifest:
    """Returns the manifest with this name and text. Raises ValueError, with what is wrong with it."""
    try:
        document = json.loads(text)
        form = document["form"]
        if form != FORM:
            raise ValueError(f"it is of form {form!r:.20}, this build reads {FORM}; use the build that wrote it")
        crc32 = document.pop("crc32")
        parts = [part_of(store, each) for each in document["files"]]
        files = tuple(part for part in parts if part is not None)
        manifest = Manifest(
            partition=document["partition"],
            number=document["number"],
            log_id=document["log_id"],
            partitions=document["partitions"],
            end_offset=document["end_offset"],
            files=files,
            unused=document["unused"],
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, RecursionError):
        raise ValueError("its text is cut or changed") from None
    if crc32 != _crc32(document) or len(files) < len(parts):
        raise ValueError("its text differs from its checksum")
    if (manifest.partition, manifest.number) != place_of(name):
        raise ValueError(f"it is manifest {manifest.number} of partition {manifest.partition}")
    return manifest


def _crc32(document: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(document, sort_keys=True, separators=(',', ':')).encode()):08x}"


# -------------------------------------------------------------------------------------------- states


class PartitionState(enum.Enum):
    """The states of a partition of an archive."""

    EMPTY = "nothing"
    ABSENT = "nothing, and other partitions name it"
    UNLISTED = "files without a manifest"
    HOLED = "files without a manifest, one is missing"
    COMMITTED = "all files of the newest manifest"
    AHEAD = "those, and files behind its end"
    LACKING = "not all files of the newest manifest"
    UNREADABLE = "a newest manifest that cannot be read"


class Reader(enum.Enum):
    """The ways of a reader of a partition."""

    NOTHING = "reads nothing"
    ALL = "reads to the end, which is proven"
    AS_FOUND = "reads what is there; its end is not proven"
    COMMITTED = "reads what is committed; verify names what else there is, or was"
    STOPS = "reads what is sound up to the problem, then names that"


class Appender(enum.Enum):
    """The ways of an appender."""

    BEGIN = "begins with manifest 1"
    ADOPT = "first names the files that go on without a hole"
    GO_ON = "goes on behind the newest manifest"
    REFUSE = "refuses"


class Compactor(enum.Enum):
    """The ways of a compactor."""

    NOTHING = "does nothing"
    ADOPT = "first names the files that are there, then merges"
    MERGE = "merges"
    REFUSE = "refuses"


TABLE: Mapping[PartitionState, tuple[Reader, Appender, Compactor]] = {
    PartitionState.EMPTY: (Reader.NOTHING, Appender.BEGIN, Compactor.NOTHING),
    PartitionState.ABSENT: (Reader.COMMITTED, Appender.BEGIN, Compactor.NOTHING),
    PartitionState.UNLISTED: (Reader.AS_FOUND, Appender.ADOPT, Compactor.ADOPT),
    PartitionState.HOLED: (Reader.STOPS, Appender.REFUSE, Compactor.REFUSE),
    PartitionState.COMMITTED: (Reader.ALL, Appender.GO_ON, Compactor.MERGE),
    PartitionState.AHEAD: (Reader.COMMITTED, Appender.ADOPT, Compactor.MERGE),
    PartitionState.LACKING: (Reader.STOPS, Appender.REFUSE, Compactor.REFUSE),
    PartitionState.UNREADABLE: (Reader.STOPS, Appender.REFUSE, Compactor.REFUSE),
}
"""What each does with what it finds. Nobody removes a file that may hold rows of its own."""


@attrs.frozen(kw_only=True)
class PartitionFiles:
    """The files of a partition, as a reader sees them at one moment. `parts`: they hold every row
    from 0 on, in order, as far as that is known.
    """

    partition: int
    state: PartitionState
    parts: tuple[Part, ...] = ()
    behind: tuple[Part, ...] = ()
    """Files behind what is missing. They say which groups there are; their rows are not read."""
    problem: str = ""
    """What is wrong behind the rows of `parts`, where a reader stops; "": nothing."""
    doubt: str = ""
    """Why there may be more rows; "": nothing says so."""
    manifest: Manifest | None = None
    """None: there is none that can be read."""
    ahead: tuple[Part, ...] = ()
    """Files behind the end of the newest manifest."""

    @property
    def reader(self) -> Reader:
        return TABLE[self.state][0]

    @property
    def appender(self) -> Appender:
        return TABLE[self.state][1]

    @property
    def compactor(self) -> Compactor:
        return TABLE[self.state][2]

    @property
    def next_row(self) -> int:
        return self.parts[-1].next_row if self.parts else 0

    @property
    def next_offset(self) -> int:
        return self.parts[-1].next_offset if self.parts else 0

    def strict(self) -> PartitionFiles:
        """Returns it for a reader that proves something: a doubt is a problem."""
        return attrs.evolve(self, problem=self.problem or self.doubt)

    def until_day(self, last_day: str | None) -> PartitionFiles:
        """Returns it without the files behind the last one of that day (``2026-03-01``) or an
        earlier one; the first, which opens the log, stays. None: all.
        """
        last = max((at for at, part in enumerate(self.parts) if last_day is None or part.day <= last_day), default=0)
        if last + 1 >= len(self.parts):
            return self
        return attrs.evolve(self, parts=self.parts[: last + 1], behind=(), problem="", doubt="")


def look(partition: int, there: Sequence[Part], manifest: Manifest | str | None) -> PartitionFiles:
    """Returns how a partition is found. `there`: its files, by row, the longer first. `manifest`:
    the newest; a text: why it cannot be read; None: there is none.
    """
    if isinstance(manifest, Manifest):
        return _committed(manifest, there)
    parts, behind = covering(there)
    hole = ""
    if behind:
        hole = f"row {parts[-1].next_row if parts else 0} of partition {partition}; the next file has row {behind[0].first_row}"
    if manifest is not None:
        return PartitionFiles(partition=partition, state=PartitionState.UNREADABLE, parts=parts, behind=behind, problem=hole or manifest)
    state = PartitionState.HOLED if hole else PartitionState.UNLISTED if parts else PartitionState.EMPTY
    return PartitionFiles(partition=partition, state=state, parts=parts, behind=behind, problem=hole)


def _committed(manifest: Manifest, there: Sequence[Part]) -> PartitionFiles:
    names = {part.name for part in there}
    files = manifest.files
    lost = next((at for at, part in enumerate(files) if part.name not in names), None)
    if lost is not None:
        behind = tuple(part for part in files[lost:] if part.name in names)
        row = max(files[lost].first_row, files[lost - 1].next_row if lost else 0)
        problem = f"row {row} of partition {manifest.partition}: {files[lost].file_name}, which manifest {manifest.number} names, is not there"
        found = PartitionFiles(partition=manifest.partition, state=PartitionState.LACKING, manifest=manifest)
        return attrs.evolve(found, parts=files[:lost], behind=behind, problem=problem)
    ahead = tuple(part for part in there if part.next_row > manifest.next_row)
    if not ahead:
        return PartitionFiles(partition=manifest.partition, state=PartitionState.COMMITTED, parts=files, manifest=manifest)
    doubt = (
        f"{ahead[0].file_name} of partition {manifest.partition} is behind the end of its newest manifest, {manifest.number}: the next one is "
        "missing, or a writer was killed, which has to run again"
    )
    return PartitionFiles(partition=manifest.partition, state=PartitionState.AHEAD, parts=files, manifest=manifest, doubt=doubt, ahead=ahead)


def absent(partition: int, partitions: int) -> PartitionFiles:
    """Returns a partition of which nothing is there, though the log has so many."""
    return PartitionFiles(partition=partition, state=PartitionState.ABSENT, doubt=f"partition {partition} of {partitions} is not there")


def covering(there: Sequence[Part]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Returns the files of one partition that hold every row from 0 on once, without files that
    others cover, and the files behind the first hole. `there`: by row, the longer first.
    """
    chosen: list[Part] = []
    due = 0
    for at, part in enumerate(there):
        if part.next_row <= due:
            continue
        if part.first_row > due:
            return tuple(chosen), tuple(there[at:])
        chosen.append(part)
        due = part.next_row
    return tuple(chosen), ()


# ---------------------------------------------------------------------------------------- for answers


@attrs.frozen(kw_only=True)
class PartitionRead:
    """Up to where a partition was read. `next_offset`: of the fact behind. `manifest`: number of
    the manifest that proves it; None: nothing proves that the archive had no more.
    """

    partition: int
    next_offset: int
    manifest: int | None
    end_offset: int | None
    """Offset of the next fact of the log, when it was copied last; None: unknown."""


@attrs.frozen(kw_only=True)
class Extent:
    """Up to where an archive was read, in how many of the `expected` partitions."""

    read: tuple[PartitionRead, ...]
    expected: int

    def document(self) -> dict[str, Any]:
        return attrs.asdict(self)


def extent_of(found: Mapping[int, PartitionFiles], expected: int) -> Extent:
    """Returns the extent of a reading of these partitions. `expected`: how many there are to be."""
    read = []
    for partition, files in sorted(found.items()):
        manifest = files.manifest if files.reader is Reader.ALL else None
        number, end_offset = (None, None) if manifest is None else (manifest.number, manifest.end_offset)
        if files.parts:
            read.append(PartitionRead(partition=partition, next_offset=files.next_offset, manifest=number, end_offset=end_offset))
    return Extent(read=tuple(read), expected=max(expected, len(found)))
