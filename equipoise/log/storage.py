"""What all stores of logs share: reasons of failed writes, and a lock that leaves no file behind."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from pathlib import Path

from equipoise.events.errors import EquipoiseError, InputError, StorageError

_NO_MORE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_SQLITE_NO_MORE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})


def is_out_of_space(error: BaseException) -> bool:
    """Returns whether a write failed because the storage takes no more: a full disk, a quota, a
    limit on the file's size, or a failing device.
    """
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_NO_MORE
    return isinstance(error, OSError) and error.errno in _NO_MORE


def cannot_write(place: object, error: Exception) -> EquipoiseError:
    """Returns the error for a place that cannot be written: StorageError when the storage takes no
    more, else InputError.
    """
    if is_out_of_space(error):
        return StorageError(str(place), reason_of(error), "make room there, or name another place")
    return InputError(f"{place}: {reason_of(error)}; correct the path or its permissions")


def reason_of(error: Exception) -> str:
    """Returns why a write failed, in a few words."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)  # without the path, which may be that of a hidden file
    return " ".join(str(error).split())[:200]  # of a damaged schema SQLite quotes whole statements


class StorageLock:
    """An exclusive lock on a file, held from construction to `release`, which removes the file.

    A killed holder leaves the file, unlocked. Raises InputError with `refusal` when another process
    holds the lock; what `cannot_write` returns for `place` when the file cannot be made. `place`:
    what the user has named; None: `path`.
    """

    def __init__(self, path: Path, refusal: str, place: Path | None = None) -> None:
        self._path = path
        self._file: int | None = None
        while self._file is None:
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise cannot_write(place or path, error) from None
            locked = False
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
                if _is_at(path, file):  # else its holder removed the file between the two calls
                    self._file = file
            except BaseException as error:
                if locked and _is_at(path, file):  # interrupted before anything could release it
                    path.unlink()
                self._file = None
                if isinstance(error, OSError):
                    raise InputError(refusal) from None
                raise
            finally:
                if self._file is None:
                    os.close(file)

    def release(self) -> None:
        """Releases the lock. A second call does nothing."""
        if self._file is not None:
            file, self._file = self._file, None
            self._path.unlink(missing_ok=True)
            os.close(file)


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
