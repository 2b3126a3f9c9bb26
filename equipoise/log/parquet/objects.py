"""An archive in an object store: ``s3://bucket/archive/``, ``gs://bucket/archive/``,
``abfs://container@account.dfs.core.windows.net/archive/``, through pyarrow's file systems.
Credentials and endpoints come from the environment (docs/spark.md).

No file is ever renamed. An object appears when its upload is complete, and what is uploaded is a
whole file, so a killed writer leaves nothing that can be seen. There are no locks: a manifest is
written only if its number is free (`create_text`), so of two processes that append at once each
keeps its files. A row of a log has one content, so those that archive the same log do no harm; one
that has appended other rows is refused.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.events.errors import InputError, StorageError
from equipoise.log.parquet.archive_store import MISSING, Lock, Staged, crc32_of, differs

_CHUNK_BYTES = 1 << 20
_SMALL_BYTES = 1 << 20
_MOST_CACHED_BYTES = 256 << 20
_S3_OPTIONS = "?allow_delayed_open=true"
"""A file that is smaller than a part of an upload is one request, and a killed writer leaves no
begun upload of it.
"""


class ObjectStore:
    """The objects with one prefix. See `equipoise.log.parquet.archive_store.Store`."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        if "?" in location or "#" in location:
            raise InputError(f"{location}: write only bucket and path; credentials, region and endpoint come from the environment (docs/spark.md)")
        with reaching(self.location):
            self._files, self._root = _file_system(self.location, os.getpid())
        if "/" not in self._root:
            raise InputError(f"{location}: names no place in the bucket; write {self.location}/archive/")

    @property
    def absolute(self) -> str:
        return self.location

    def create(self) -> None:
        """Nothing to make: a prefix is there as soon as an object has it."""

    def exists(self) -> bool:
        return bool(self.names())

    def names(self, folder: str = "") -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        root = f"{self._root}/{folder}".rstrip("/")
        with reaching(self.location):
            found = self._files.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
        # An empty object is none: Azure shows one while it is written, and an interrupt before the
        # first byte leaves one.
        return sorted(each.path.removeprefix(f"{self._root}/") for each in found if each.type == FileType.File and each.size)

    def read_text(self, name: str) -> str:
        with reaching(self.location), self._stream(name) as stream:
            data: bytes = stream.read()
        return data.decode()

    def write_text(self, name: str, text: str) -> None:
        with reaching(self.location):
            self._upload(name, text.encode())

    def create_text(self, name: str, text: str) -> bool:
        """By a conditional put, which pyarrow does not have."""
        with writing(self.location):
            return _put_new(self.location, name, text.encode())

    def fetch(self, name: str, crc32: int) -> Any:
        """Downloads the file once. See `_Cache`."""
        import pyarrow as pa

        found = _CACHE.get(place := _Place(self.location, name))
        if found is None:
            with tempfile.TemporaryFile() as file:
                with reaching(self.location), self._stream(name) as stream:
                    checksum = 0
                    while chunk := stream.read(_CHUNK_BYTES):
                        checksum = zlib.crc32(chunk, checksum)
                        file.write(chunk)
                if checksum != crc32 or not file.tell():
                    raise differs(name)
                file.flush()
                found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            _CACHE.put(place, found)
        return pa.BufferReader(pa.py_buffer(found))

    def open(self, name: str) -> Any:
        with reaching(self.location):
            return self._files.open_input_file(self._path(name))

    def stage(self, folder: str, hidden: str) -> Staged:
        return _StagedObject(self)

    def remove(self, name: str) -> None:
        with writing(self.location), contextlib.suppress(FileNotFoundError):
            self._delete(name)

    def remove_empty_folders(self) -> None:
        """There are none."""

    def sweep(self, hidden: str) -> None:
        """Nothing unpublished can be seen. What is left of begun uploads is the bucket's to remove."""

    def lock(self, name: str, refusal: str) -> Lock | None:
        return None

    def upload(self, name: str, data: bytes | mmap.mmap) -> None:
        """Uploads a whole file. Raises StorageError."""
        with writing(self.location):
            self._upload(name, data)

    def upload_files(self, folder: Path, names: Sequence[str]) -> None:
        """Uploads these files of a folder of this machine, each whole or not at all. Raises
        StorageError.
        """
        for name in names:
            with open(folder / name, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self.upload(name, data)

    def _stream(self, name: str) -> Any:
        return self._files.open_input_stream(self._path(name))

    def _delete(self, name: str) -> None:
        self._files.delete_file(self._path(name))

    def _upload(self, name: str, data: bytes | mmap.mmap) -> None:
        """With a single `write`: a stream that is closed by an exception between two would publish
        a part of the file. A `write` that fails fails the `close`, too.
        """
        with self._files.open_output_stream(self._path(name)) as stream:
            stream.write(data)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class _StagedObject:
    """A file in memory, or in the temporary folder of this machine, where it has no name, so that
    it goes with its process.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.file: Any = tempfile.SpooledTemporaryFile(_SMALL_BYTES)  # noqa: SIM115 - until it is published or discarded

    def finish(self) -> int:
        self.file.seek(0)
        return crc32_of(self.file)

    def publish(self, name: str) -> None:
        self.file.seek(0)
        self._store.upload(name, self.file.read())
        self.file.close()

    def discard(self) -> None:
        self.file.close()


class _Place(NamedTuple):
    location: str
    name: str


class _Cache:
    """The last downloaded files of this process, at most _MOST_CACHED_BYTES of them and at least
    one: a command may read a log several times. They are on this machine's disk, without names. A
    file never changes under its name.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[_Place, mmap.mmap] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, place: _Place) -> mmap.mmap | None:
        with self._lock:
            if place in self._files:
                self._files.move_to_end(place)
            return self._files.get(place)

    def put(self, place: _Place, file: mmap.mmap) -> None:
        with self._lock:
            self._files[place] = file
            while len(self._files) > 1 and sum(map(len, self._files.values())) > _MOST_CACHED_BYTES:
                self._files.popitem(last=False)  # unmapped when its last reader is done


_CACHE = _Cache()


@lru_cache(16)
def _file_system(location: str, process_id: int) -> tuple[Any, str]:
    """Returns pyarrow's file system and the path in it. `process_id`: connections of another
    process cannot be used, as after a fork.
    """
    try:
        from pyarrow.fs import FileSystem
    except ImportError:
        raise InputError(MISSING) from None
    files, path = FileSystem.from_uri(location + (_S3_OPTIONS if location.startswith("s3://") else ""))
    return files, path.rstrip("/")


def _put_new(location: str, name: str, data: bytes) -> bool:
    """Writes an object if there is none of that name. Raises OSError."""
    try:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError
    except ImportError:
        raise InputError(MISSING) from None
    try:
        obstore.put(_conditional_store(location, os.getpid()), name, data, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return False
    except BaseError as error:
        raise OSError(str(error)) from None
    return True


@lru_cache(16)
def _conditional_store(location: str, process_id: int) -> Any:
    """The same place for obstore, with the same environment. `process_id`: as of `_file_system`."""
    from obstore.store import from_url

    options: Any = {"client_options": {"allow_http": True}}
    if location.startswith("s3://") and "AWS_PROFILE" in os.environ:
        options["credential_provider"] = _of_profile()
    if location.startswith("gs://anonymous@"):
        location, options["skip_signature"] = location.replace("anonymous@", "", 1), True
    if location.startswith(("gs://", "gcs://")) and "CLOUD_STORAGE_EMULATOR_ENDPOINT" in os.environ:
        options["base_url"] = os.environ["CLOUD_STORAGE_EMULATOR_ENDPOINT"]
    return from_url(location.replace("gcs://", "gs://", 1), **options)


def _of_profile() -> Any:
    """The credentials of ``AWS_PROFILE``, which obstore reads through boto3. Raises InputError."""
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise InputError("AWS_PROFILE: writing an archive with a profile needs boto3: pip install boto3") from None
    return Boto3CredentialProvider()


@contextlib.contextmanager
def reaching(location: str) -> Iterator[None]:
    """Turns what pyarrow raises, but for a missing file, into an error for users. Raises
    InputError.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        hint = "check the location, and credentials, region and endpoint in the environment (docs/spark.md)"
        raise InputError(f"{location}: {_reason(error)}; {hint}") from None


@contextlib.contextmanager
def writing(location: str) -> Iterator[None]:
    """Turns what is raised while something is written into an error for users. Raises
    StorageError.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(location, _reason(error), "what is there is whole; run it again when the store takes more") from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
