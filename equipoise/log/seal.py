"""The seal of a finished SQLite log: detects any changed byte of the file, also in unused bytes of
its pages and in its header.

A log that was written in one go (imported, simulated) is sealed when its writer closes it. The only
row of the table `seal` then holds the SHA-256 of the file as it was with UNSEALED in that place.
Sealing overwrites only these 32 bytes, so the hash covers everything: records, header, unused bytes
and the page of the seal.

A log that is being written, whose writer was killed, or that was appended to has UNSEALED there.
Any other bytes there are damage, so damage cannot make a sealed log look unsealed.
"""

from __future__ import annotations

import hashlib
import sqlite3
from io import FileIO
from pathlib import Path

UNSEALED = b"not sealed".ljust(32, b"\0")

SCHEMA = ("CREATE TABLE seal (sha256 BLOB NOT NULL) STRICT", f"INSERT INTO seal VALUES (X'{UNSEALED.hex()}')")

UNSEAL = f"UPDATE seal SET sha256 = X'{UNSEALED.hex()}' WHERE sha256 <> X'{UNSEALED.hex()}'"
"""Part of every appending transaction; writes nothing if there is no seal."""

_SPARE_AT = 20
"""Offset of the header byte with the number of reserved bytes at the end of each page (SQLite's
Database File Format, section 1.3); 0 in most builds.
"""
_CHUNK_BYTES = 1 << 20


class Seal:
    """The seal of the log that `db` has open.

    The file is read beside SQLite. It stays open until `close`, which must come after that of the
    connection: closing any descriptor of the file drops the locks that SQLite holds on it in this
    process.
    """

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._ahead = Path(f"{path.resolve()}-wal")
        self._file: FileIO | None = None

    def put(self) -> bool:
        """Seals the log. Returns False, and leaves it unsealed, if another process uses it.

        If it is killed, the log stays complete: unsealed, or with the seal in the write-ahead log,
        from where SQLite recovers it. Raises sqlite3.Error, OSError.
        """
        if not self._bring_home():
            return False
        self._db.execute("BEGIN IMMEDIATE")  # no other process writes while the file is read
        if not self._is_all_at_home():  # another process wrote in between
            self._db.execute("ROLLBACK")
            return False
        _, seal = self._read()
        self._db.execute("UPDATE seal SET sha256 = ?", (seal,))
        self._db.execute("COMMIT")
        self._bring_home()  # else the last process that closes the log does
        return True

    def is_broken(self) -> bool:
        """Returns whether the log is sealed and the file differs from what was sealed. Reads the
        whole file in constant memory. Raises sqlite3.Error, OSError.
        """
        self._db.execute("BEGIN")
        try:
            self._db.execute("SELECT 1 FROM sqlite_schema").fetchone()
            # A read transaction on an empty write-ahead log keeps every writer from moving pages
            # into the file, so the file does not change from here on.
            if not self._is_all_at_home():
                return False
            there, due = self._read()
            return there not in (UNSEALED, due)
        finally:
            if self._db.in_transaction:  # some errors end it
                self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def _bring_home(self) -> bool:
        """Moves the whole write-ahead log into the file."""
        busy: int = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return not busy

    def _is_all_at_home(self) -> bool:
        return not self._ahead.exists() or self._ahead.stat().st_size == 0

    def _read(self) -> tuple[bytes, bytes]:
        """The stored seal of the file, and the correct one."""
        if self._file is None:
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - see the class
        file, digest = self._file, hashlib.sha256()
        left = self._place(file)
        file.seek(0)
        while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
        there = file.read(len(UNSEALED))
        digest.update(UNSEALED)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        return there, digest.digest()

    def _place(self, file: FileIO) -> int:
        """Position of the seal in the file. SQLite fills a page from its end, so the only row ends
        where its page does. 0: there is no seal.
        """
        file.seek(_SPARE_AT)
        spare = file.read(1)
        page_bytes: int = self._db.execute("PRAGMA page_size").fetchone()[0]
        found = self._db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'seal'").fetchone()
        root = found[0] if found else None
        return root * page_bytes - spare[0] - len(UNSEALED) if spare and isinstance(root, int) else 0
