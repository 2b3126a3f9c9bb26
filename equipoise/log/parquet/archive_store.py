"""The interface of an archive's store, wherever its files are. See
`equipoise.log.parquet.archive_stores`, which has the promises.
"""

from __future__ import annotations

import zlib
from typing import Any, BinaryIO, Protocol

from equipoise.log.stored import BrokenStoreError

MISSING = "a Parquet archive needs the extra: pip install 'equipoise[spark]'"
_CHUNK_BYTES = 1 << 20


class Staged(Protocol):
    """A new file that no reader sees yet. `file`: to write its bytes to."""

    file: BinaryIO

    def finish(self) -> int:
        """Ends the writing, and returns the CRC-32 of the bytes. Raises OSError."""
        ...

    def publish(self, name: str) -> None:
        """Makes the finished file visible as `name`, to last. Raises OSError, StorageError."""
        ...

    def discard(self) -> None:
        """Removes it, unless it is published."""
        ...


class Lock(Protocol):
    def release(self) -> None:
        """Releases the lock. A second call does nothing."""
        ...


class Store(Protocol):
    """The files of one archive. Methods raise InputError when the store does not answer."""

    location: str
    """As the user named it, without a ``/`` at its end."""

    def __hash__(self) -> int: ...

    @property
    def absolute(self) -> str:
        """The location for other processes, in whatever folder they run."""
        ...

    def create(self) -> None:
        """Makes the folder, if the store has folders. Raises InputError, StorageError."""
        ...

    def exists(self) -> bool:
        """Returns whether anything is there."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Returns the names of all files, in rising order. `folder`: of those in it."""
        ...

    def read_text(self, name: str) -> str:
        """Raises FileNotFoundError, OSError."""
        ...

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file, whole or not at all. Raises OSError, StorageError."""
        ...

    def create_text(self, name: str, text: str) -> bool:
        """Writes a small file, whole, unless there is one of that name: then it returns False. Of
        two processes that call it at once, one gets True. Raises OSError, StorageError.
        """
        ...

    def fetch(self, name: str, crc32: int) -> Any:
        """Returns the source of a file for pyarrow, its CRC-32 checked. Raises FileNotFoundError,
        BrokenStoreError.
        """
        ...

    def open(self, name: str) -> Any:
        """Opens a file for pyarrow, to read parts of it, unchecked. Raises FileNotFoundError,
        OSError.
        """
        ...

    def stage(self, folder: str, hidden: str) -> Staged:
        """Begins a new file that is to be published in `folder`. `hidden`: what `sweep` knows it
        by. Raises OSError.
        """
        ...

    def remove(self, name: str) -> None:
        """Removes a file, if it is there. Raises OSError."""
        ...

    def remove_empty_folders(self) -> None: ...

    def sweep(self, hidden: str) -> None:
        """Removes what killed processes left of unpublished files."""
        ...

    def lock(self, name: str, refusal: str) -> Lock | None:
        """Returns an exclusive lock; None: the store has no locks, and needs none (see there).
        Raises InputError with `refusal`.
        """
        ...


def crc32_of(file: BinaryIO) -> int:
    """Returns the CRC-32 of a file from its position on. Raises OSError."""
    found = 0
    while chunk := file.read(_CHUNK_BYTES):
        found = zlib.crc32(chunk, found)
    return found


def differs(name: str) -> BrokenStoreError:
    """Returns the error for a file that is not what its name says."""
    return BrokenStoreError(f"the bytes of {name.rpartition('/')[2]} differ from the checksum in its name")
