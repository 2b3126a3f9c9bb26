"""Reads recordings (`equipoise record`) on Spark: each file once, by one task, which deals its rows
to the buckets of groups that other tasks explain.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from equipoise.events.errors import InputError
from equipoise.log.parquet.archive_stores import is_remote_location, store_at
from equipoise.replay.importers.groups.cluster_recording import ClusterRecording, is_recording, open_recording

ROW_SCHEMA = "bucket int, place int, unit string, part int, seq bigint, payload binary"
"""Rows on their way: their bucket, the number of their recording, and what `divided_recording` has.
"""


@contextlib.contextmanager
def opened(location: str) -> Iterator[ClusterRecording]:
    """Opens a recording in a file, an object store or HDFS. Raises InputError."""
    if not is_remote_location(location):
        with open_recording(location) as recording:
            yield recording
        return
    folder, _, name = location.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="equipoise-") as temporary:
        copy = Path(temporary) / name
        try:
            with store_at(folder).open(name) as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except FileNotFoundError:
            raise InputError(f"{location}: there is no such recording") from None
        with open_recording(str(copy)) as recording:
            yield recording


def recordings_in(locations: Sequence[str]) -> list[str]:
    """Returns the locations of recordings: files as they are named, of folders each recording in
    them, in the order of names. Raises InputError where there is none.
    """
    found: list[str] = []
    for location in locations:
        remote = is_remote_location(location)
        if location.startswith("kafka://"):
            raise InputError(f"{location}: is a broker and no recording; make one with equipoise record {location} --to cluster.db")
        if not remote and not Path(location).is_dir():
            if not Path(location).exists():
                raise InputError(f"{location}: there is no such recording; make one with equipoise record kafka://host:port --to {location}")
            found.append(str(Path(location).absolute()))
            continue
        if remote and location.endswith(".db"):
            found.append(location)
            continue
        store = store_at(location)
        names = [name for name in store.names() if (name.endswith(".db") if remote else is_recording(Path(location) / name))]
        if not names:
            raise InputError(f"{location}: holds no recording; name files that equipoise record wrote" + (", which end in .db" if remote else ""))
        found += [f"{store.absolute}/{name}" for name in names]
    return list(dict.fromkeys(found))


def bucket_of(place: int, unit: str, buckets: int) -> int:
    """The bucket of a unit: the same in every process."""
    return zlib.crc32(unit.encode(), place) % buckets
