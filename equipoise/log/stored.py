"""What every log of rows does alike: encode, check, number, yield. Subclasses store the rows."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Literal, Self, cast

from equipoise.events import codec
from equipoise.events.errors import DamagedError, EquipoiseError, GapError, InputError, LogError, StorageError
from equipoise.events.facts import Fact
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log.rows import LOG_OPENED, UNDECODABLE, BaseRow, DecisionRow, FactRow, Order, Row, is_count, is_group
from equipoise.log.storage import is_out_of_space, reason_of

Mode = Literal["r", "w", "a"]


class BrokenStoreError(Exception):
    """The store cannot return the next row. `StoredLog` knows its offset and raises DamagedError
    instead.
    """


class FullStoreError(BrokenStoreError):
    """The store takes no more; the text says why. Committed rows are complete."""


class MissingRowError(BrokenStoreError):
    """The store knows that a row is missing between the last one and the next."""


def failed_write(error: Exception) -> BrokenStoreError:
    """Returns the error for a failed write."""
    kind = FullStoreError if is_out_of_space(error) else BrokenStoreError
    return kind(reason_of(error))


@contextlib.contextmanager
def as_damage(order: Callable[[], Order], where: str = "") -> Iterator[None]:
    """Turns errors of a store into errors with the offset at which `order()` is by then."""
    try:
        yield
    except MissingRowError as error:
        raise GapError(order().position, f"a record is missing here: {error}; restore the log from a copy") from None
    except BrokenStoreError as error:
        raise DamagedError(order().position, f"{where}cannot be read: {error}; restore the log from a copy") from None


class StoredLog(abc.ABC):
    """A log that stores rows in order. `equipoise.log.Log` documents its methods."""

    partition: int | None = None
    """Its partition of the log; None: unnamed."""

    def __init__(self, location: str, mode: Mode) -> None:
        self.location = location
        self.mode = mode
        self._order = Order()
        """The order after the last appended row, in the modes that append."""
        self._in_transaction = self._part_failed = False
        self._closed = False
        self._failed = False
        """An exception ended the `with` block of the log."""

    # ----------------------------------------------------------------------- what a store has to do

    @abc.abstractmethod
    def _rows(self, from_offset: int) -> Iterator[Row]:
        """Yields the rows from that fact on, in stored order. Raises BrokenStoreError."""

    @abc.abstractmethod
    def _store(self, row: Row) -> None:
        """Stores a row after the last one, within a transaction. Raises BrokenStoreError, as
        `_begin` and `_commit` do.
        """

    @abc.abstractmethod
    def _begin(self) -> None:
        """Begins a transaction, which `_commit` makes durable and `_roll_back` undoes."""

    @abc.abstractmethod
    def _commit(self) -> None: ...

    @abc.abstractmethod
    def _roll_back(self) -> None: ...

    @abc.abstractmethod
    def _last_order(self) -> Order:
        """Returns the order after the last stored row. Raises LogError, BrokenStoreError."""

    @abc.abstractmethod
    def _close(self) -> None: ...

    @abc.abstractmethod
    def _count(self) -> int:
        """Returns the number of records without decoding them. Raises BrokenStoreError."""

    @abc.abstractmethod
    def _stored_position(self) -> int:
        """Returns the offset of the next fact without decoding other facts. Raises
        BrokenStoreError.
        """

    # -------------------------------------------------------------------------------------- reading

    def read(self, from_offset: int = 0, group: str | None = None) -> Iterator[Entry]:
        """Yields records in stored order, from the fact at `from_offset` on. See
        `equipoise.log.Log.read`. Raises InputError for what is no offset.
        """
        self._must_be_open()
        if not is_count(from_offset):
            raise InputError(f"{self.location}: {from_offset!r} is not an offset; offsets are whole numbers from 0")
        return self._read(from_offset, group)

    def _read(self, from_offset: int, group: str | None) -> Iterator[Entry]:
        any_row = False
        for row, order in self.checked_rows(from_offset):
            any_row = True
            if isinstance(row, FactRow) and row.belongs_to_no_group:
                continue
            if group is None or row.group == group or row.group == "":
                yield order.entry(row, self.partition)
        if from_offset and not any_row and from_offset != self.position():
            raise InputError(f"{self.location}: offset {from_offset} is past the end of the log (next offset {self.position()})")

    def checked_rows(self, from_offset: int = 0) -> Iterator[tuple[Row, Order]]:
        """Yields every checked row, also those without a group, with the order, which decodes it.
        Raises what `read` raises.
        """
        order = Order(from_offset)
        with self._as_damage(order):
            order.log_id = self._log_id() if from_offset else ""
            for row in self._rows(from_offset):
                order.take(row)
                yield row, order

    def before(self, position: int) -> int:
        """Returns the offset of the fact before the one at `position`; 0: there is none, or the log
        begins at a base there.
        """
        begins = 0
        with self._as_damage(order := Order()):
            for row in self._rows(0):
                if isinstance(row, DecisionRow) or (isinstance(row, FactRow) and row.offset > 0):
                    break
                order.take(row)
                begins = order.begins_offset or 0
        return 0 if position <= begins else max(0, position - 1)

    def _log_id(self) -> str:
        order = Order()
        for row in self._rows(0):
            order.take(row)
            break
        return order.log_id

    def count(self) -> int:
        """Returns the number of records without decoding them."""
        self._must_be_open()
        with self._as_damage():
            return self._count()

    def group_names(self) -> set[str]:
        """Returns the names of all groups that have records, without decoding them."""
        self._must_be_open()
        return {row.group for row, _ in self.checked_rows()} - {""}

    def position(self) -> int:
        """Returns the offset of the next fact."""
        self._must_be_open()
        with self._as_damage():
            return self._stored_position() if self.mode == "r" else self._order.position

    @contextlib.contextmanager
    def _as_damage(self, reading: Order | None = None) -> Iterator[None]:
        """`as_damage`. `reading`: the order of the current reading."""
        with as_damage(lambda: reading or self._order, "" if reading is not None else f"{self.location} "):
            yield

    # ------------------------------------------------------------------------------------ appending

    def append_fact(self, group: str, append_ms: int, event: Fact) -> FactRecord:
        """Appends a fact at the next offset. See `equipoise.log.Log.append_fact`."""
        kind, version, payload = codec.encode(event)
        return self.append_payload(group, append_ms, kind, version, payload)

    def append_payload(self, group: str, append_ms: int, kind: int, version: int, payload: bytes) -> FactRecord:
        """Appends a payload that a sender declares to be a fact. See
        `equipoise.log.Log.append_payload`. Raises InputError for a time or a place that
        cannot be.
        """
        self._must_append()
        position = self._order.position
        if not is_count(append_ms):
            raise InputError(f"append_ms: {append_ms!r:.80} is not a number of milliseconds from 0")
        if position == 0 and (kind != LOG_OPENED or group != ""):
            raise InputError(f'{self.location}: the first record of a log is LogOpened, of group ""; append that first')
        if position > 0 and (kind == LOG_OPENED or not (is_group(group) or (group == "" and kind == UNDECODABLE))):
            raise InputError(f"{self.location}: {codec.kind_name(kind)} of group {group!r:.80}: after LogOpened, records are facts of a named group")
        if kind >= codec.FIRST_DECISION_KIND:
            raise InputError(f"{self.location}: {codec.kind_name(kind)} is a decision; append it with append_decisions")
        if len(payload) > codec.MOST_EVENT_BYTES:
            raise InputError(f"{self.location}: {len(payload)} bytes; an event has at most {codec.MOST_EVENT_BYTES}")
        row = FactRow(group, position, append_ms, kind, version, payload, codec.fact_checksum(group, position, append_ms, kind, version, payload))
        with self.transaction():
            record = self._order.record(row)
            self._order.take(row)
            self._store(row)
        return cast(FactRecord, record)

    def append_decisions(self, decisions: Iterable[DecisionRecord]) -> None:
        """Appends decisions of the last fact. See `equipoise.log.Log.append_decisions`."""
        self._must_append()
        with self.transaction():
            for record in decisions:
                if record.log_id != self._order.log_id:
                    raise InputError(f"{self.location}: a decision of log {record.log_id!r:.80}; this is log {self._order.log_id!r}")
                if record.fact_checksum != self._order.fact_checksum and record.caused_by == self._order.position - 1:
                    raise InputError(f"{self.location}: decision {record.number} names another checksum than offset {record.caused_by} has")
                kind, version, payload = codec.encode(record.decision)
                checksum = codec.decision_checksum(
                    record.log_id, record.group, record.number, record.caused_by, record.index, record.fact_checksum, kind, version, payload
                )
                row = DecisionRow(record.group, record.number, record.caused_by, record.index, kind, version, payload, checksum)
                self._order.take(row)
                self._store(row)

    def append_row(self, row: Row) -> bool:
        """Appends a row of another log unchanged, unless it is already there. See
        `equipoise.log.Log.append_row`.
        """
        self._must_append()
        order = self._order
        if isinstance(row, FactRow):
            is_there = row.offset < order.position
        elif isinstance(row, BaseRow):
            begins = row.entry().begins_offset
            is_there = row.group in order.bases or (order.begins_offset != begins and order.position >= begins)
        else:
            is_there = row.caused_by < order.position - 1 or (row.caused_by == order.position - 1 and row.index < order.index)
        if is_there:
            return False
        with self.transaction():
            order.take(row)
            order.entry(row, self.partition)
            self._store(row)
        return True

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Makes all appends within the block durable together, or none. See
        `equipoise.log.Log.transaction`. Raises InputError when an append within the block
        has failed.
        """
        self._must_append()
        if self._in_transaction:  # part of the outer one, which cannot be saved when a part of it has failed
            try:
                yield
            except BaseException:
                self._part_failed = True
                raise
            return
        try:
            self._begin()
        except BrokenStoreError as error:
            raise self._cannot_append(error) from None
        self._in_transaction, self._part_failed = True, False
        try:
            yield
            if self._part_failed:
                raise InputError(f"{self.location}: an append within the transaction has failed, so it cannot be committed; start it again")
            self._commit()
        except BaseException as error:
            self._roll_back()
            with self._as_damage():
                self._order = self._last_order()
            if isinstance(error, BrokenStoreError):
                raise self._cannot_append(error) from None
            raise
        finally:
            self._in_transaction = False

    def _cannot_append(self, error: BrokenStoreError) -> EquipoiseError:
        if isinstance(error, FullStoreError):
            return StorageError(self.location, str(error), f"make room there; it is whole up to its next offset, {self._order.position}")
        return LogError(self._order.position, f"{self.location}: cannot be appended to: {error}")

    # -------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Closes the files. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._failed = error is not None
        self.close()

    def _must_be_open(self) -> None:
        if self._closed:
            raise InputError(f"{self.location}: is closed; open it again")

    def _must_append(self) -> None:
        self._must_be_open()
        if self.mode == "r":
            raise InputError(f'{self.location}: is open for reading; open it with mode "a" to append')
