"""Reads and writes the manifests of an archive (`equipoise.log.parquet.manifests`).

A reader's snapshot is the newest manifest of each partition. Manifests are listed before files, and
a file that was replaced stays for a day, so the files of a snapshot are there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import lru_cache

import attrs

from equipoise.events import codec
from equipoise.events.errors import InputError, LogError, UnknownEventError, UnsoundError
from equipoise.events.facts import LogOpened
from equipoise.log.parquet import manifests
from equipoise.log.parquet.archive_store import Store
from equipoise.log.parquet.files import Part, all_parts, batches, by_partition
from equipoise.log.parquet.manifests import Manifest, PartitionFiles, PartitionState
from equipoise.log.stored import BrokenStoreError

_MOST_COMMITS = 1_000
"""Most times that a commit begins again because another process has committed."""
_WAITS_S = (0.05, 0.2, 0.5, 1.0, 2.0)
"""A writer publishes its files, then its manifest: a reader that comes in between looks again."""
_WAITED: set[tuple[str, int, str]] = set()
"""What this process has waited for in vain: archive, partition, problem."""


@attrs.frozen(kw_only=True)
class Snapshot:
    """The files of an archive at one moment. `partitions`: partition -> its files, also of those
    that the log has and of which nothing is there. `expected`: how many the log has.
    """

    partitions: Mapping[int, PartitionFiles]
    expected: int


def snapshot(store: Store) -> Snapshot:
    """Returns what is there now. Raises InputError when the store does not answer."""
    found = _looked(store, None)
    expected = _expected(found)
    absent = {each: manifests.absent(each, expected) for each in range(expected) if each not in found}
    return Snapshot(partitions=dict(sorted((found | absent).items())), expected=expected)


def look_at(store: Store, partition: int) -> PartitionFiles:
    """Returns what one partition holds now. Raises InputError."""
    return _looked(store, partition).get(partition) or PartitionFiles(partition=partition, state=PartitionState.EMPTY)


def _looked(store: Store, only: int | None) -> dict[int, PartitionFiles]:
    waits_s = iter(_WAITS_S)
    while True:
        newest = _newest(store)
        parts = by_partition(all_parts(store))
        wanted = [each for each in sorted({*parts, *newest}) if only in (None, each)]
        found = {each: manifests.look(each, parts.get(each, ()), _read(store, each, newest.get(each))) for each in wanted}
        if all(files.state in (PartitionState.COMMITTED, PartitionState.EMPTY) for files in found.values()):
            return found
        if _newest(store) != newest:
            continue
        unsettled = {
            (store.absolute, files.partition, files.problem or files.doubt)
            for files in found.values()
            if files.state in (PartitionState.AHEAD, PartitionState.UNREADABLE)
        }
        wait_s = next(waits_s, None) if unsettled - _WAITED else None
        if wait_s is None:
            _WAITED.update(unsettled)
            return found
        time.sleep(wait_s)


def _newest(store: Store) -> dict[int, int]:
    """Partition -> number of its newest manifest."""
    found: dict[int, int] = {}
    for name in store.names(manifests.FOLDER):
        place = manifests.place_of(name)
        if place is not None:
            found[place[0]] = max(place[1], found.get(place[0], 0))
    return found


def _read(store: Store, partition: int, number: int | None) -> Manifest | str | None:
    """The manifest, or why it cannot be read; None: there is none."""
    if number is None:
        return None
    name = manifests.name_of(partition, number)
    try:
        return _decoded(store, name, store.read_text(name))
    except (FileNotFoundError, ValueError) as error:  # a UnicodeDecodeError is a ValueError
        reason = "is not there any more" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        return f"{name} {reason}; restore it from a copy of the archive"
    except OSError as error:
        raise InputError(f"{store.location}/{name}: {error.strerror}") from None


@lru_cache(256)
def _decoded(store: Store, name: str, text: str) -> Manifest:
    return manifests.decode(store, name, text)


def _expected(found: Mapping[int, PartitionFiles]) -> int:
    """The number of partitions of the log: as manifests say, or the first record of one of them."""
    known = [files.manifest.partitions for files in found.values() if files.manifest is not None]
    if known:
        return max(known)
    for files in found.values():
        if files.parts:
            opened = opened_of(files.parts[0])
            if opened is not None:
                return opened.partitions
    return 0


@lru_cache(1_024)
def opened_of(part: Part) -> LogOpened | None:
    """Returns the first record of a partition, from its first file; None: it cannot be read."""
    try:
        first = next(batches(part, batch_rows=1), None)
        if first is None or not first.num_rows:
            return None
        kind, version, payload = (first.column(name)[0].as_py() for name in ("kind", "version", "payload"))
        event = codec.decode(kind, version, payload)
    except (BrokenStoreError, LogError, UnknownEventError, UnsoundError, TypeError):
        return None
    return event if isinstance(event, LogOpened) else None


def commit(store: Store, files: PartitionFiles, change: Callable[[Manifest], Manifest | None]) -> Manifest:
    """Writes the next manifest of a partition, and returns it. `files`: as they were looked at.
    `change`: what is to be in it, from the newest manifest; None: that has it already, and nothing
    is written. It is called again when another process has committed meanwhile.

    Raises BrokenStoreError when the newest manifest cannot be read; OSError, StorageError.
    """
    newest = files.manifest or _first(files)
    for _ in range(_MOST_COMMITS):
        changed = change(newest)
        if changed is None:
            return newest
        if _is_written(store, changed):
            return changed
        found = _read(store, changed.partition, number := _newest(store).get(changed.partition))
        if isinstance(found, Manifest):
            newest = found
        elif _newest(store).get(changed.partition) == number:
            raise BrokenStoreError(found or f"the manifests of partition {changed.partition} are not there any more")
    raise BrokenStoreError("other processes commit faster than this one")


def _is_written(store: Store, manifest: Manifest) -> bool:
    """Writes a manifest, and returns whether it is the newest now. Then old ones are removed."""
    text = manifests.encode(manifest)
    if not store.create_text(manifest.name, text):
        with contextlib.suppress(FileNotFoundError):
            return store.read_text(manifest.name) == text  # the answer to an earlier attempt was lost
        return False
    places = [place for name in store.names(manifests.FOLDER) if (place := manifests.place_of(name)) is not None]
    numbers = [number for partition, number in places if partition == manifest.partition]
    if max(numbers, default=0) > manifest.number:
        store.remove(manifest.name)  # its number was free because it is long gone
        return False
    for number in numbers:
        if number <= manifest.number - manifests.KEPT:
            store.remove(manifests.name_of(manifest.partition, number))
    return True


def _first(files: PartitionFiles) -> Manifest:
    """Returns manifest 0, which is not written: the files that are there without one."""
    opened = opened_of(files.parts[0]) if files.parts else None
    log_id, partitions = ("", 0) if opened is None else (opened.log_id, opened.partitions)
    return Manifest(partition=files.partition, number=0, log_id=log_id, partitions=partitions, end_offset=None, files=files.parts)
