"""The seal of a finished SQLite log: one changed byte anywhere in its file is found, in unused
bytes of its pages and in its header too.

A log that was made in one go (imported, simulated) is sealed when its writer closes it: the one row
of the table `seal` then holds the SHA-256 of the file as it was until then, with UNSEALED in that
place. Putting the seal on overwrites these 32 bytes and no others, so nothing is left out: the
header, the seal's own page and what no page uses are covered as the records are.

A log that is being written, whose writer was killed, or to which something was appended, has
UNSEALED there. These are the only two: other bytes in that place are damage, so no damage makes a
sealed log look like one that never was.
"""

from __future__ import annotations

import hashlib
import sqlite3
from io import FileIO
from pathlib import Path

UNSEALED = b"not sealed".ljust(32, b"\0")

SCHEMA = ("CREATE TABLE seal (sha256 BLOB NOT NULL) STRICT", f"INSERT INTO seal VALUES (X'{UNSEALED.hex()}')")

UNSEAL = f"UPDATE seal SET sha256 = X'{UNSEALED.hex()}' WHERE sha256 <> X'{UNSEALED.hex()}'"
"""Part of every transaction that appends; writes nothing when there is no seal."""

_SPARE_AT = 20
"""Where the header says how many bytes at the end of each page are not SQLite's (Database File
Format, section 1.3); 0 in most builds.
"""
_CHUNK_BYTES = 1 << 20


class Seal:
    """The seal of the log that `db` has open.

    The file is read beside SQLite, and it stays open until `close`, which must come after the
    connection's: closing any of its descriptors drops the locks that SQLite holds on it for this
    process.
    """

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._ahead = Path(f"{path.resolve()}-wal")
        self._file: FileIO | None = None

    def put(self) -> bool:
        """Seal the log; False when somebody else is using it, so that it stays unsealed.

        Killed at any moment, it leaves the log whole: unsealed, or with the seal in the write-ahead
        log, from where SQLite brings it home.

        Raises sqlite3.Error, OSError.
        """
        if not self._bring_home():
            return False
        self._db.execute("BEGIN IMMEDIATE")  # nobody else writes while the file is read
        if not self._is_all_at_home():  # somebody did, in between
            self._db.execute("ROLLBACK")
            return False
        _, seal = self._read()
        self._db.execute("UPDATE seal SET sha256 = ?", (seal,))
        self._db.execute("COMMIT")
        self._bring_home()  # or whoever closes the log last does
        return True

    def is_broken(self) -> bool:
        """Whether the log is sealed, and the file is not what was sealed. Reads all of it, in
        constant memory. Raises sqlite3.Error, OSError.
        """
        self._db.execute("BEGIN")
        try:
            self._db.execute("SELECT 1 FROM sqlite_schema").fetchone()
            # A reader who found the write-ahead log empty keeps every writer from bringing pages
            # home, so the file stands still from here on.
            if not self._is_all_at_home():
                return False
            there, due = self._read()
            return there not in (UNSEALED, due)
        finally:
            if self._db.in_transaction:  # some errors end it
                self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _bring_home(self) -> bool:
        """Move what is in the write-ahead log into the file, all of it."""
        busy: int = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return not busy

    def _is_all_at_home(self) -> bool:
        return not self._ahead.exists() or self._ahead.stat().st_size == 0

    def _read(self) -> tuple[bytes, bytes]:
        """What is in the seal's place in the file, and the seal that would be right."""
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
        """Where in the file the seal is: SQLite fills a page from its end, so the one row ends
        where its page does. 0, where none can be: nowhere.
        """
        file.seek(_SPARE_AT)
        spare = file.read(1)
        page_bytes: int = self._db.execute("PRAGMA page_size").fetchone()[0]
        found = self._db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'seal'").fetchone()
        root = found[0] if found else None
        return root * page_bytes - spare[0] - len(UNSEALED) if spare and isinstance(root, int) else 0
