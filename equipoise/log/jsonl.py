"""JSON Lines: one record per line, for reading, diffing and fixtures.

::

    {"offset":0,"group":"","append_ms":1,"kind":"LogOpened","version":1,"event":{"log_id":"a1",...},"checksum":"0a1b2c3d"}
    {"number":1,"group":"orders","caused_by":3,"index":0,"kind":"BalanceEvaluated","version":1,"event":{...},"checksum":"00c0ffee"}

A payload that is not the canonical form of a sound event has its type code as `kind`, and
``"payload":"<hex>"`` instead of `event`.

Each row is one line: UTF-8, no spaces, names in this order, ``\\n`` at its end. A line that differs
in any byte from this canonical form is damaged, so even a flipped bit that keeps the meaning is
detected. A last line without its ``\\n`` is torn: its writer was killed. Readers stop there.
Opening the log to append cuts it off and reports it in `repaired`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from equipoise.events import codec
from equipoise.events.errors import FieldError, InputError, UnknownEventError, UnknownKindError
from equipoise.log.rows import BaseRow, DecisionRow, FactRow, Order, Row
from equipoise.log.storage import cannot_write
from equipoise.log.stored import BrokenStoreError, Mode, StoredLog, failed_write

MOST_LINE_BYTES = 32_000_000
"""Most bytes of a line: a payload of MOST_EVENT_BYTES has at most 20 times as many bytes as text (a
step of 1, and its task in quotes).
"""

_WRITE_BYTES = 1_000_000
_LOG = logging.getLogger(__name__)


class TornError(BrokenStoreError):
    """The last line has no end."""

    def __init__(self, begin: int, length: int) -> None:
        super().__init__(f"the last line has no end: {length} bytes from byte {begin}; its writer was killed. Opening it to append cuts it off")
        self.begin = begin
        self.length = length


class JsonLinesLog(StoredLog):
    """A log in a JSON Lines file. Opening it to append reads all of it."""

    def __init__(self, path: Path, mode: Mode) -> None:
        super().__init__(str(path), mode)
        self.repaired = ""
        """What was cut off when the log was opened; "": nothing."""
        self._path = path
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        try:
            self._file = open(path, "rb" if mode == "r" else "ab+", buffering=0)  # noqa: SIM115 - held until close: it carries the lock
        except FileNotFoundError:
            missing = "there is no such log; import or simulate one" if mode == "r" else "there is no such folder; make it"
            raise InputError(f"{path}: {missing}, or correct the path") from None
        except OSError as error:
            raise cannot_write(path, error) from None
        try:
            if mode != "r":
                self._lock()
                head = os.pread(self._file.fileno(), len(_FIRST), 0)
                if head != _FIRST[: len(head)]:
                    raise InputError(f"{path}: is not a log of equipoise; name another file")
                if mode == "w":
                    os.ftruncate(self._file.fileno(), 0)
                with self._as_damage():
                    self._mend()
                    self._order = self._last_order()
            self._committed_bytes = os.fstat(self._file.fileno()).st_size
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{self.location}: another process appends to it; a log has one writer, so close the other one") from None

    def _mend(self) -> None:
        """Cuts off a torn last line."""
        try:
            for _ in self._lines(0):
                pass
        except TornError as torn:
            os.ftruncate(self._file.fileno(), torn.begin)
            self.repaired = f"cut off {torn.length} bytes of a record that its writer, killed, had not finished"
            _LOG.warning("%s: %s", self.location, self.repaired)

    # -------------------------------------------------------------------------------------- reading

    def _lines(self, begin: int) -> Iterator[tuple[int, bytes]]:
        """Yields position and bytes of each line, without its end. Raises TornError,
        BrokenStoreError.
        """
        size = os.fstat(self._file.fileno()).st_size
        with open(self._path, "rb") as file:
            file.seek(begin)
            while begin < size:
                line = file.readline(MOST_LINE_BYTES)
                if not line.endswith(b"\n"):
                    if len(line) == MOST_LINE_BYTES:
                        raise BrokenStoreError(f"a line of over {MOST_LINE_BYTES} bytes, from byte {begin} on")
                    raise TornError(begin, len(line))
                yield begin, line[:-1]
                begin += len(line)

    def _rows(self, from_offset: int) -> Iterator[Row]:
        self._write_pending()
        reached = from_offset == 0
        for _, line in self._lines(0):
            reached = reached or line.startswith(b'{"offset":%d,' % from_offset)
            if reached:
                yield parse(line)

    def _last_order(self) -> Order:
        order = self._order = Order()  # at once, so that damage on the way has its offset
        for row in self._rows(0):
            order.take(row)
        return order

    def _stored_position(self) -> int:
        position = 0
        for _, line in self._lines(0):
            if line.startswith(b'{"offset":'):
                position += 1
            elif line.startswith(b'{"base":') and position == 1:
                state = parse(line)
                assert isinstance(state, BaseRow), "the line begins so"
                position = state.entry().begins_offset
        return position

    def _count(self) -> int:
        with open(self._path, "rb", buffering=0) as file:
            return len(self._pending) + sum(part.count(b"\n") for part in iter(lambda: file.read(_WRITE_BYTES), b""))

    # ------------------------------------------------------------------------------------ appending

    def _store(self, row: Row) -> None:
        line = render(row) + b"\n"
        self._pending.append(line)
        self._pending_bytes += len(line)
        if self._pending_bytes >= _WRITE_BYTES:
            self._write_pending()

    def _write_pending(self) -> None:
        if self._pending:
            data = memoryview(b"".join(self._pending))
            self._pending, self._pending_bytes = [], 0
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                raise failed_write(error) from None

    def _begin(self) -> None:
        pass

    def _commit(self) -> None:
        self._write_pending()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise failed_write(error) from None
        self._committed_bytes = os.fstat(self._file.fileno()).st_size

    def _roll_back(self) -> None:
        self._pending, self._pending_bytes = [], 0
        os.ftruncate(self._file.fileno(), self._committed_bytes)

    def _close(self) -> None:
        self._file.close()


# -------------------------------------------------------------------------------------------- lines

_FIRST = b'{"offset":0,"group":"","append_ms":'


def _dump(form: dict[str, Any]) -> bytes:
    return json.dumps(form, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def render(row: Row) -> bytes:
    """Returns the line of a row, without its end."""
    return _render(row, None if isinstance(row, BaseRow) else codec.payload_to_json(row.kind, row.version, row.payload))


def _render(row: Row, event: dict[str, Any] | None) -> bytes:
    place: dict[str, Any]
    if isinstance(row, BaseRow):
        state = row.entry()
        about = {"number": state.number, "begins": state.begins_offset, "state": state.state.hex(), "checksum": f"{row.checksum:08x}"}
        return _dump({"base": row.offset, "group": row.group, "append_ms": row.append_ms, **about})
    if isinstance(row, FactRow):
        place = {"offset": row.offset, "group": row.group, "append_ms": row.append_ms}
    else:
        place = {"number": row.number, "group": row.group, "caused_by": row.caused_by, "index": row.index}
    if event is None:
        what: dict[str, Any] = {"kind": row.kind, "version": row.version, "payload": row.payload.hex()}
    else:
        what = {"kind": codec.kind_name(row.kind), "version": row.version, "event": event}
    return _dump({**place, **what, "checksum": f"{row.checksum:08x}"})


def parse(line: bytes) -> Row:
    """Parses a line. Raises UnknownKindError; BrokenStoreError when the line is not the canonical
    form of a row.
    """
    try:
        form = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise BrokenStoreError("the line is not JSON") from None
    if form.__class__ is not dict:
        raise BrokenStoreError("the line is not a JSON object")
    try:
        row = _row(form)
        canonical = render(row)
    except UnknownEventError as error:
        offset = form.get("offset", form.get("caused_by"))
        raise UnknownKindError(offset if offset.__class__ is int else -1, str(error)) from None
    except FieldError as error:
        raise BrokenStoreError(f"the line is not a sound event: {error}") from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BrokenStoreError(f"the line is not a record ({error!s:.80})") from None
    if canonical != line:
        raise BrokenStoreError("the line is not in canonical form")
    return row


def _row(form: dict[str, Any]) -> Row:
    if "base" in form:
        row = BaseRow.of(form["group"], form["base"], form["number"], form["begins"], form["append_ms"], bytes.fromhex(form["state"]))
        return attrs.evolve(row, checksum=int(form["checksum"], 16))
    version = form["version"]
    if "event" in form:
        kind, payload = codec.payload_from_json(form["kind"], version, form["event"])
    else:
        kind, payload = form["kind"], bytes.fromhex(form["payload"])
    checksum = int(form["checksum"], 16)
    if "offset" in form:
        return FactRow(form["group"], form["offset"], form["append_ms"], kind, version, payload, checksum)
    return DecisionRow(form["group"], form["number"], form["caused_by"], form["index"], kind, version, payload, checksum)
