"""Where an archive's files are: in a folder (`FolderStore`), in an object store
(`equipoise.log.parquet.objects`), or in HDFS (`equipoise.log.parquet.hdfs`).

All keep the same promises, on which everything else in this package rests: a file appears under
its name when it is complete, and never changes; a list of names shows every file that was published
before; of two processes that create one name at once, one succeeds. Names are relative to the
archive, with ``/``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from equipoise.events.errors import InputError
from equipoise.log.parquet.archive_store import Lock, Staged, Store, crc32_of, differs
from equipoise.log.storage import StorageLock, cannot_write

if TYPE_CHECKING:
    from equipoise.log.parquet.objects import ObjectStore

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")
"""Of locations that are not in a folder: Amazon S3 and what speaks its protocol, Google, Azure, and
Hadoop's file system.
"""
_REMOTE = re.compile(rf"(?:{'|'.join(SCHEMES)})://.*")
_MOUNT = "mount it, and name the folder"
_FOLDER = "write ./{0} or another folder"
_OTHER_STORES = {
    "s3a": "write s3://{}",
    "s3n": "write s3://{}",
    "wasb": "write abfs://{}",
    "wasbs": "write abfss://{}",
    "dbfs": "Databricks mounts it as a folder: write /dbfs/{}",
    "file": "write /{}",
    "hdfs": "write hdfs:///{}",
    **dict.fromkeys(("webhdfs", "viewfs", "maprfs", "adl", "oss", "cosn", "obs", "ofs", "o3fs", "alluxio"), _MOUNT),
}
"""Scheme of a store that is not supported -> what to do, with the rest of the location."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):(/*.*)")
_QUERY = re.compile(r"(.*)\?partition=(\d{1,5})")
_MOST_ATTEMPTS = 10
_FOLDERS = ("date=", "_manifests")
"""Names of an archive's folders begin so."""
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


def is_remote_location(location: str) -> bool:
    """Returns whether the location is in an object store, ``s3://bucket/archive/``, or in HDFS."""
    return _REMOTE.fullmatch(location) is not None


def split_location(location: str) -> tuple[str, int | None]:
    """Splits ``archive/?partition=3`` into the archive's location and the named partition."""
    match = _QUERY.fullmatch(location)
    return (match[1], int(match[2])) if match else (location, None)


def check_scheme(location: str | Path) -> None:
    """Raises InputError, with what is supported, for a place in a store of another kind."""
    found = _SCHEME.match(str(location))
    if found is None or Path(location).exists() or (found[1] not in _OTHER_STORES and found[2].startswith("//")):
        return
    scheme, path = found[1], found[2].lstrip("/")
    fix = _OTHER_STORES.get(scheme, _FOLDER).format(path)
    places = "in a folder that all machines see, or at s3://, gs://, abfs:// or hdfs://"
    raise InputError(f"{location}: {scheme}: is not supported; {fix}. An archive is {places}")


def store_at(location: str | Path) -> Store:
    """Returns the store at a location without a partition. Raises InputError."""
    if isinstance(location, str) and is_remote_location(location):
        return remote_store(location)
    check_scheme(location)
    return FolderStore(Path(location))


def remote_store(location: str) -> ObjectStore:
    """Returns the store at a location of `is_remote_location`. Raises InputError."""
    if location.startswith("hdfs://"):
        from equipoise.log.parquet.hdfs import HdfsStore

        return HdfsStore(location)
    from equipoise.log.parquet.objects import ObjectStore

    return ObjectStore(location)


# ------------------------------------------------------------------------------------ in a folder


class FolderStore:
    """A folder, with subfolders of one level. A new file has a hidden name in its folder until it
    is renamed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)

    @property
    def absolute(self) -> str:
        return str(self.root.resolve())

    def create(self) -> None:
        """Raises InputError when there is no folder to make it in; StorageError."""
        try:
            self.root.mkdir(parents=False, exist_ok=True)
        except FileNotFoundError:
            raise InputError(f"{self.root}: there is no such folder; make it, or correct the path") from None
        except OSError as error:
            raise cannot_write(self.root, error) from None

    def exists(self) -> bool:
        return self.root.is_dir()

    def names(self, folder: str = "") -> list[str]:
        if folder:
            return sorted(f"{folder}/{each}" for each in _listed(self.root / folder))
        found: list[str] = []
        for name in _listed(self.root):
            has_files = name.startswith(_FOLDERS) and (self.root / name).is_dir()
            found += [f"{name}/{each}" for each in _listed(self.root / name)] if has_files else [name]
        return sorted(found)

    def read_text(self, name: str) -> str:
        return (self.root / name).read_text()

    def write_text(self, name: str, text: str) -> None:
        part = self.root / f".{name}.{os.getpid()}"
        try:
            part.write_text(text)
            os.replace(part, self.root / name)
        finally:
            part.unlink(missing_ok=True)

    def create_text(self, name: str, text: str) -> bool:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{uuid.uuid4().hex}")
        try:
            _write_to_last(part, text)
            try:
                os.link(part, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return _created(path, text)
            _sync(path.parent)
            return True
        finally:
            part.unlink(missing_ok=True)

    def fetch(self, name: str, crc32: int) -> Any:
        path = self.root / name
        status = path.stat()
        if not _is_whole(path, crc32, status.st_size, status.st_mtime_ns):
            raise differs(name)
        return path

    def open(self, name: str) -> Any:
        return open(self.root / name, "rb")

    def stage(self, folder: str, hidden: str) -> Staged:
        return _StagedFile(self.root, folder, hidden)

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def remove_empty_folders(self) -> None:
        for folder in self.root.glob("date=*"):
            _remove_if_empty(folder)

    def sweep(self, hidden: str) -> None:
        for path in self.root.glob(f"date=*/.{hidden}.*"):
            path.unlink(missing_ok=True)

    def lock(self, name: str, refusal: str) -> Lock | None:
        return StorageLock(self.root / f".lock-{name}", refusal)


class _StagedFile:
    """A file whose name begins with a dot."""

    file: BinaryIO

    def __init__(self, root: Path, folder: str, hidden: str) -> None:
        self._root, self._folder = root, root / folder
        self._path: Path | None = self._folder / f".{hidden}.{uuid.uuid4().hex}"
        try:
            self.file = self._open(self._path)
        except OSError:
            _remove_if_empty(self._folder)
            raise

    def _open(self, path: Path) -> BinaryIO:
        for _ in range(_MOST_ATTEMPTS):
            self._folder.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another partition's writer found the folder empty, and removed it
                return open(path, "w+b")
        raise FileNotFoundError(2, "the folder is removed as fast as it is made", str(self._folder))

    def finish(self) -> int:
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.seek(0)
            return crc32_of(self.file)

    def publish(self, name: str) -> None:
        assert self._path is not None, "a file is published once"
        os.replace(self._path, self._root / name)
        self._path = None
        for each in (self._folder, self._root):
            _sync(each)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            _remove_if_empty(self._folder)


def _created(path: Path, text: str) -> bool:
    """Writes a file in a file system without links, where a writer that is killed meanwhile leaves
    a part of it, which its checksum tells.
    """
    try:
        _write_to_last(path, text)
    except FileExistsError:
        return False
    _sync(path.parent)
    return True


def _write_to_last(path: Path, text: str) -> None:
    """Writes a new file to the disk. Raises FileExistsError."""
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


@lru_cache(100_000)
def _is_whole(path: Path, crc32: int, size: int, changed_ns: int) -> bool:
    with open(path, "rb", buffering=0) as file:
        return crc32_of(file) == crc32
