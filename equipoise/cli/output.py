"""Output files of commands. A command replaces only an earlier output of the same kind, and only
when the new output is complete.

`write_file` writes pages, pictures and results, `new_log` logs, `equipoise.cli.output_tables` folders
of Parquet tables. Each resolves links and the case of letters in the path, and raises InputError
for any file that the user may want to keep. After an interrupt or on a full disk, the old output is
unchanged and no other file is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from equipoise.events.errors import EquipoiseError, InputError, StorageError
from equipoise.events.facts import LogOpened
from equipoise.events.records import FactRecord
from equipoise.log import Log, is_archive_location, open_log
from equipoise.log.parquet.archive_stores import is_remote_location, store_at
from equipoise.log.parquet.files import MARK, foreign_files
from equipoise.log.storage import cannot_write
from equipoise.replay.interrupts import undisturbed

_SQLITE_SIDES = ("-wal", "-shm", "-journal")
_HEAD_BYTES = 4_096
_NOTHING_WRITTEN = "nothing was written there: make room, or name another place, and run it again"


class Kind(enum.Enum):
    """The kind of a file, recognised by its first bytes: (name for users, first bytes, marker
    within the first _HEAD_BYTES bytes).
    """

    PAGE = ("page", b"<!doctype html>", b'<meta name="generator" content="equipoise">')
    PICTURE = ("picture", b"<svg ", b"<!-- made by equipoise -->")
    RESULTS = ("results file", b"{", b'"made_by": "equipoise"')

    @property
    def words(self) -> str:
        return self.value[0]

    def is_of(self, path: Path) -> bool:
        """Returns whether the file at `path` is of this kind. Raises OSError."""
        _, begins, marker = self.value
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
        return head.startswith(begins) and marker in head


# -------------------------------------------------------------------------------------------- files


def check_files(*outputs: tuple[str, Path | None, Kind]) -> None:
    """Raises InputError unless all outputs, (option, path or None, kind), may be written. Call it
    before long work.
    """
    seen: dict[Path, str] = {}
    for option, path, kind in outputs:
        if path is not None:
            place = _checked(option, path, kind)
            if place in seen:
                raise InputError(f"{option} {path}: is the file that {seen[place]} writes; name another one")
            seen[place] = option


def write_file(option: str, path: Path, kind: Kind, text: str) -> None:
    """Writes `text`, which must start as `kind` requires, to `path`, completely or not at all.
    Keeps a symbolic link and the file's permissions.

    Raises InputError, which starts with `option`, when the path is invalid or holds something else;
    StorageError when the disk is full.
    """
    data = text.encode()
    _, begins, marker = kind.value
    assert data.startswith(begins), f"a {kind.words} begins otherwise"
    assert marker in data[:_HEAD_BYTES], f"a {kind.words} would not be recognised the next time"
    _replace(f"{option} {path}", _checked(option, path, kind), data)


def rewrite_file(option: str, path: Path, text: str) -> None:
    """Replaces the contents of a file that the user named to be rewritten, completely or not at
    all. Raises the errors of `write_file`.
    """
    _replace(f"{option} {path}", Path(os.path.realpath(path)), text.encode())


def _replace(shown: str, place: Path, data: bytes) -> None:
    part = place.with_name(f".equipoise-{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if place.exists():
            shutil.copymode(place, part)
        os.replace(part, place)
    except OSError as error:
        raise cannot_write(shown, error) from None
    finally:
        with undisturbed(), contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _checked(option: str, path: Path, kind: Kind) -> Path:
    """Resolves `path` to the file to create or replace. Raises InputError when it must not be
    written.
    """
    try:
        place = Path(os.path.realpath(path))
        check_apart(option, path, place)
        try:
            status = place.stat()
        except FileNotFoundError:
            if not place.parent.is_dir():
                raise InputError(f"{option} {path}: there is no such folder; make it, or name a file that can be written") from None
            return place
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{option} {path}: is a folder; name a file")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{option} {path}: is no regular file; name one that can be replaced")
        if status.st_size and not kind.is_of(place):
            raise InputError(f"{option} {path}: holds something else than a {kind.words} of equipoise, and stays as it is; name another file")
        if not os.access(place, os.W_OK):
            raise InputError(f"{option} {path}: is write-protected; name a file that can be written")
    except OSError as error:
        raise cannot_write(f"{option} {path}", error) from None
    return place


def check_apart(option: str, path: Path | str, place: Path) -> None:
    """Raises InputError for a file that belongs to a log: a side file of SQLite, or a file inside
    an archive.
    """
    log = next((place.with_name(place.name.removesuffix(end)) for end in _SQLITE_SIDES if place.name.endswith(end)), None)
    if log is not None and log.is_file():
        raise InputError(f"{option} {path}: belongs to {log.name}; name another file")
    if any((folder / MARK).is_file() for folder in place.parents):
        raise InputError(f"{option} {path}: is inside an archive; name a place outside of it")


# --------------------------------------------------------------------------------------------- logs


def same_place(one: str, other: str) -> bool:
    """Returns whether two locations of logs in files resolve to the same file or folder."""
    if any("://" in each.removeprefix(_SQLITE) for each in (one, other)):
        return one == other
    ours, theirs = (Path(each.removeprefix(_SQLITE).partition("?partition=")[0]) for each in (one, other))
    with contextlib.suppress(OSError):
        return ours.samefile(theirs)
    return ours.resolve() == theirs.resolve()


_SQLITE = "sqlite:///"


IMPORTED, SIMULATED = "source", "simulated"
"""Keys by which the manifest of a log's first record says which command has made it."""


@contextlib.contextmanager
def new_log(location: str, *, replaces: str, force: bool = False, option: str = "--to") -> Iterator[Log]:
    """Opens a new log, which replaces the log at `location` at the end of the block. After an
    exception in the block, the old log is unchanged.

    `replaces`: the key of the manifests of logs that may be replaced; a copy of a live log has
    none. `force`: any log may. Until the end the new log is in a hidden folder next to it. Raises
    InputError when `location` holds another log, or anything besides a log; the errors of
    `open_log`; StorageError when the disk is full.
    """
    scheme = _SQLITE if location.startswith(_SQLITE) else ""
    if is_remote_location(location):
        raise InputError(f"{option} {location}: write to a file, as group.db, and copy it: equipoise archive group.db --to {location}")
    if "://" in location.removeprefix(scheme):
        open_log(location, "w").close()  # raises: only files are written
    given = Path(location.removeprefix(scheme))
    place = Path(os.path.realpath(given))
    is_archive = is_archive_location(location)
    check_apart(option, location, place)
    _check_log(option, location, place, is_archive=is_archive)
    if not force:
        _check_maker(option, location, place, replaces, is_archive=is_archive)
    with staging_folder(f"{option} {given}", place) as staging:
        part = staging / (given.name or place.name)
        try:
            with _opened(f"{part}/" if is_archive else f"{scheme}{part}", f"{option} ", part, given) as log, log.transaction():
                yield log
        except StorageError as error:
            if not error.place.startswith(str(part)):
                raise
            raise StorageError(f"{option} {given}", error.reason, _NOTHING_WRITTEN) from None
        put_in_place(f"{option} {given}", part, place, staging)


def _opened(location: str, shown: str, part: Path, given: Path) -> Log:
    try:
        return open_log(location, "w")
    except InputError as error:
        raise InputError(f"{shown}{str(error).replace(str(part), str(given))}") from None


def _check_log(option: str, location: str, place: Path, *, is_archive: bool) -> None:
    """Raises InputError, or the errors of reading, unless `place` is free, empty, or holds only a
    log.
    """
    if place.is_dir():
        if not any(place.iterdir()) and location.endswith(("/", ".parquet")):
            return  # the archive is created here
        open_log(f"{place}/" if is_archive else location, "r").close()
        others = foreign_files(store_at(place))
        if others:
            raise InputError(f"{option} {location}: holds {others[0]} beside the archive, which would be lost; name another folder, or remove it")
    elif place.is_file():
        if not place.stat().st_size:
            return
        try:
            with open_log(location, "r") as log:
                next(iter(log.read()), None)
        except InputError:
            raise
        except (EquipoiseError, OSError) as error:
            problem = f"{option} {location}: holds something else than a log that can be read, and stays as it is; name another file"
            raise InputError(f"{problem} ({error})") from None
    elif place.exists():
        raise InputError(f"{option} {location}: is no regular file; name one that can be replaced")


def _check_maker(option: str, location: str, place: Path, replaces: str, *, is_archive: bool) -> None:
    """Raises InputError when another command has made the log at `place`: a copy of a live log may
    be the only one.
    """
    if not place.exists() or (place.is_file() and not place.stat().st_size) or (place.is_dir() and not any(place.iterdir())):
        return
    manifest = ""
    with contextlib.suppress(EquipoiseError, OSError), open_log(f"{place}/" if is_archive else location, "r") as log:
        opened = next(iter(log.read()))
        if isinstance(opened, FactRecord) and isinstance(opened.event, LogOpened):
            manifest = opened.event.manifest
    try:
        made = json.loads(manifest or "{}")
    except ValueError:
        made = {}
    if not isinstance(made, dict) or replaces not in made:
        raise InputError(f"{option} {location}: holds a log that this command has not made, and stays as it is; name another file, or add --force")


# ---------------------------------------------------------------------------------------- replacing


@contextlib.contextmanager
def staging_folder(shown: str, place: Path) -> Iterator[Path]:
    """A hidden folder next to `place`, removed at the end of the block."""
    staging: Path | None = None
    try:
        with undisturbed():
            staging = _hidden_folder(shown, place)
        yield staging
    except KeyboardInterrupt as error:
        error.add_note(f"{place} was not written")
        raise
    finally:
        with undisturbed():
            if staging is not None:
                shutil.rmtree(staging, ignore_errors=True)


def _hidden_folder(shown: str, place: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=f".{place.name[:40]}.", suffix=".part", dir=place.parent))
    except FileNotFoundError:
        raise InputError(f"{shown}: there is no such folder; make it, or correct the path") from None
    except OSError as error:
        raise cannot_write(shown, error) from None


def put_in_place(shown: str, part: Path, place: Path, staging: Path) -> None:
    """Moves a finished file or folder to `place`. The old one is removed only when the new one is
    in place. Raises the error of `cannot_write`.
    """
    try:
        with undisturbed():
            if place.is_dir():
                _exchange(part, place, staging / "before")
                return
            if place.exists():
                shutil.copymode(place, part)
            for end in _SQLITE_SIDES:
                Path(f"{place}{end}").unlink(missing_ok=True)
            os.replace(part, place)
    except OSError as error:
        raise cannot_write(shown, error) from None


def _exchange(part: Path, place: Path, before: Path) -> None:
    """Puts a folder in place of another, which is then in `part` or in `before`. In one step where
    the system has it (Linux): a kill leaves one or the other there.
    """
    if _swapped(part, place):
        return
    os.rename(place, before)
    try:
        os.rename(part, place)
    except OSError:
        os.rename(before, place)
        raise


_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


def _swapped(one: Path, other: Path) -> bool:
    """Exchanges two paths, and returns whether the system can. Raises OSError."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # as on NFS
        return False
    raise OSError(code, os.strerror(code), str(other))
