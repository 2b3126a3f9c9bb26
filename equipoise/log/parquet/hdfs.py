"""An archive in Hadoop's file system: ``hdfs://namenode:8020/archive/``, ``hdfs://nameservice/archive/``,
or ``hdfs:///archive/`` for the default one, through `hdfs_native`, which needs neither Java nor
Hadoop's libraries. ``HADOOP_CONF_DIR`` names the services; Kerberos' tickets, or in a container of
YARN its tokens, come from the environment.

A file is uploaded under a hidden name and renamed, which replaces a file in one step. Nothing else
differs from an object store (`equipoise.log.parquet.objects`). A folder that is not empty
cannot be replaced in one step, so no folder is ever renamed: a kill between two renames leaves each
file as the former or the new one.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.events.errors import InputError
from equipoise.log.parquet.objects import ObjectStore, reaching, writing

_MISSING = "hdfs:// needs the extra: pip install 'equipoise[hdfs]'"
_LOCATION = re.compile(r"(hdfs://[^/]*)(/.*)")
_HIDDEN = ".upload-"
_LEFT_S = 86_400
"""An upload that is older was left by a killed process."""
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = "2"
"""To reach a name node that is named with its port: some seconds, where the client's own 15
attempts take three minutes. Those of a name service are the cluster's setting.
"""


class HdfsStore(ObjectStore):
    """The files below one folder. See `equipoise.log.parquet.archive_stores.Store`."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        found = _LOCATION.fullmatch(self.location)
        if found is None or "?" in location or "#" in location:
            raise InputError(f"{location}: names no folder; write hdfs://namenode:8020/archive/, or hdfs:///archive/ for the default name node")
        with reaching(self.location), _as_os_error():
            self._client = _client(found[1], os.getpid())
        self._root = found[2]

    def names(self, folder: str = "") -> list[str]:
        # An empty file is none, as in an object store.
        return sorted(each.path.removeprefix(f"{self._root}/") for each in self._listed(folder) if each.length and not _is_hidden(each.path))

    def _listed(self, folder: str = "") -> list[Any]:
        with reaching(self.location), _as_os_error():
            try:
                return [each for each in self._client.list_status(self._path(folder).rstrip("/"), True) if not each.isdir]
            except FileNotFoundError:
                return []

    def open(self, name: str) -> Any:
        with reaching(self.location), _as_os_error():
            return _HdfsFile(self._client.read(self._path(name)))

    def _stream(self, name: str) -> Any:
        with _as_os_error():
            return _HdfsFile(self._client.read(self._path(name)))

    def sweep(self, hidden: str) -> None:
        """Removes uploads that were left a day ago or longer."""
        for each in self._listed():
            if _is_hidden(each.path) and each.modification_time / 1_000 < time.time() - _LEFT_S:
                self._discard(each.path)

    def _delete(self, name: str) -> None:
        with _as_os_error():
            self._client.delete(self._path(name), False)

    def _upload(self, name: str, data: bytes | mmap.mmap) -> None:
        self._show([(self._uploaded(name, data), name)])

    def create_text(self, name: str, text: str) -> bool:
        """By a rename that does not overwrite."""
        with writing(self.location):
            hidden = self._uploaded(name, text.encode())
            try:
                with _as_os_error():
                    self._client.rename(hidden, self._path(name), overwrite=False)
            except OSError:
                self._discard(hidden)
                if name in self.names(name.rpartition("/")[0]):
                    return False
                raise
        return True

    def upload_files(self, folder: Path, names: Sequence[str]) -> None:
        """See there. All files are complete before the first one is renamed."""
        self.sweep("")
        ready: list[tuple[str, str]] = []
        with writing(self.location):
            try:
                for name in names:
                    with open(folder / name, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
                        ready.append((self._uploaded(name, data), name))
            except BaseException:
                for hidden, _ in ready:
                    self._discard(hidden)
                raise
            self._show(ready)

    def _uploaded(self, name: str, data: bytes | mmap.mmap) -> str:
        """Returns the hidden path of the upload."""
        folder = self._path(name).rpartition("/")[0]
        hidden = f"{folder}/{_HIDDEN}{uuid.uuid4().hex}"
        try:
            with _as_os_error(), self._client.create(hidden) as file:
                for at in range(0, len(data), _CHUNK_BYTES):
                    file.write(data[at : at + _CHUNK_BYTES])
        except BaseException:
            self._discard(hidden)
            raise
        return hidden

    def _show(self, ready: Sequence[tuple[str, str]]) -> None:
        for at, (hidden, name) in enumerate(ready):
            try:
                with _as_os_error():
                    self._client.rename(hidden, self._path(name), overwrite=True)
            except BaseException:
                for other, _ in ready[at:]:
                    self._discard(other)
                raise

    def _discard(self, path: str) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._client.delete(path, False)


class _HdfsFile(io.RawIOBase):
    """A file for pyarrow. Raises OSError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int | None = -1) -> bytes:
        with _as_os_error():
            data: bytes = self._file.read(-1 if size is None else size)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        at: int = self._file.tell()
        return at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _is_hidden(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_HIDDEN)


@lru_cache(16)
def _client(name_node: str, process_id: int) -> Any:
    """`process_id`: the connections of another process cannot be used, as after a fork. Those to
    data nodes are kept for all clients of a process, for three seconds: a child that is forked so
    soon after a reading hangs at its own first reading. Nothing here forks then; Spark's workers
    are children of a process that reads nothing.
    """
    try:
        from hdfs_native import Client
    except ImportError:
        raise InputError(_MISSING) from None
    has_no_other = name_node.rpartition(":")[2].isdecimal()
    return Client(name_node, {"dfs.client.failover.max.attempts": _ATTEMPTS} if has_no_other else None)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Turns the RuntimeError that the client raises, as for a refusal of the name node, into an
    OSError.
    """
    try:
        yield
    except RuntimeError as error:
        raise OSError(str(error)) from None
