"""State stores: the state of a task, made of its changelog up to `offset`.

A running task writes to the changelog first, and to its store only what the broker acknowledged. So
offset and content always agree, a copy can resume where it was left, and no store is ahead of its
changelog.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.member.tasks.changes import Changes
from equipoise.member.tasks.open_iterators import KeptReading

_LOG = logging.getLogger(__name__)

Change = tuple[bytes, bytes | None]
"""Key and value of a changelog record; None deletes the key."""


class StoreError(EquipoiseError):
    """A store cannot be read or written: an error of the machine, never of a record. It ends the
    member, and others take its tasks.
    """

    exit_code = 74  # EX_IOERR of sysexits.h


class DamagedStoreError(StoreError):
    """The content of a store is damaged. Its copy is given up and restored from the changelog. A
    store of your own may raise this, too.
    """


class StateStore(Protocol):
    """Keys and values, and the offset in one changelog partition that they correspond to. One
    thread at a time uses a store. What it raises ends the member, but for DamagedStoreError.

    A store keeps keys that begin with ``\\0equipoise.`` (the member's own) like any other.
    """

    @property
    def offset(self) -> int:
        """Offset of the changelog record to apply next; 0 for a new store."""
        ...

    @property
    def lasting(self) -> bool:
        """Returns whether the store outlives the process."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`; None when there is none."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, as `get` returns it."""
        ...

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `start` to before `end` (None: to the last) with their values, sorted by
        the keys' bytes.
        """
        ...

    def apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        """Sets each key to its value (None: deletes it), and moves to `offset`, atomically.

        `bulk`: much more follows at once. A crash may then undo this call and those before it, last
        first and each as a whole, back to the last call without `bulk`.
        """
        ...

    def wipe(self) -> None:
        """Removes everything; `offset` is 0 again."""
        ...

    def close(self) -> None:
        """Closes the files. Everything applied is kept."""
        ...


OpenStore = Callable[[Path], StateStore]
"""Opens the store in a folder, or makes one there: `MemoryStore`, `RocksStore`, or your own."""


class MemoryStore:
    """A `StateStore` in memory, empty at each start. `folder` is not used."""

    lasting = False

    def __init__(self, folder: Path | None = None) -> None:
        self._values = Changes()  # without deleted keys
        self._offset = 0

    @property
    def offset(self) -> int:
        return self._offset

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._values.get(key) for key in keys]

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for key in self._values.between(start, end):
            value = self._values.get(key)
            if value is not None:
                yield key, value

    def apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        values = self._values
        for key, value in changes.items():
            if value is None:
                values.drop(key)
            else:
                values[key] = value
        self._offset = offset

    def wipe(self) -> None:
        self._values = Changes()
        self._offset = 0

    def close(self) -> None:
        """Does nothing."""


PROGRESS_KEY = b"\x00equipoise.store"
"""Key of a RocksStore's offset (8 bytes). It is in the same column family as the application's
keys, so that after a crash even writes that skip RocksDB's log come back with their offset, or
not at all.
"""
_OFFSET_BYTES = 8
WRITE_BUFFER_BYTES = 16 * 2**20
"""Most of one store."""
WRITE_BUFFERS = 4
"""Of one store, full ones that wait for their file included. With all of them full a commit waits,
and with RocksDB's two that was seconds where a window expired while the disk was busy.
"""
ALLOCATION_BLOCK_BYTES = 64 * 2**10
"""A store's write buffer grows by this. RocksDB would take 1 MB at once, for each of hundreds."""
CACHE_BYTES = 32 * 2**20
WRITE_BUFFERS_BYTES = 16 * 2**20
"""Of all stores of a process."""


class RocksMemory:
    """Memory that several `RocksStore` share. `write_buffer_bytes`: of what is not in files yet.
    When it is full, a store that is written to begins a file; meanwhile it may take more.
    `cache_bytes`: of what was read from files. Raises InputError when `rocksdict` is not installed.
    """

    def __init__(self, *, write_buffer_bytes: int = WRITE_BUFFERS_BYTES, cache_bytes: int = CACHE_BYTES) -> None:
        rocksdict = _rocksdict()
        self.write_buffers = rocksdict.WriteBufferManager(write_buffer_bytes, False)  # no write waits for a file
        self.table_options = rocksdict.BlockBasedOptions()
        self.table_options.set_block_cache(rocksdict.Cache(cache_bytes))


@cache
def _shared_memory() -> RocksMemory:
    return RocksMemory()


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError:
        raise InputError("RocksStore needs the extra: pip install 'equipoise[member]'") from None
    return rocksdict


class RocksStore:
    """A `StateStore` in RocksDB, by `rocksdict` (the extra `kafka`), in `folder`. What was applied
    survives a killed process. A failure of the machine may undo the last calls, each as a whole.
    `memory` None: the stores of a process share 16 MB of write buffers and 32 MB of cache.

    Raises InputError when `rocksdict` is not installed, RocksDB cannot open the folder, or `apply`
    gets PROGRESS_KEY; DamagedStoreError when RocksDB finds its files damaged, StoreError when it
    cannot read or write them.
    """

    lasting = True

    def __init__(self, folder: Path, memory: RocksMemory | None = None) -> None:
        rocksdict = self._rocksdict = _rocksdict()
        self._folder, self._memory = folder, memory or _shared_memory()
        self._unlogged = rocksdict.WriteOptions()
        self._unlogged.disable_wal = True
        self._logged = rocksdict.WriteOptions()
        self._readings: WeakSet[KeptReading] = WeakSet()
        """RocksDB stays open as long as one of them is there."""
        self._open(bulk=False)

    def _open(self, *, bulk: bool) -> None:
        options = self._rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_max_write_buffer_number(WRITE_BUFFERS)
        options.set_arena_block_size(ALLOCATION_BLOCK_BYTES)
        options.set_write_buffer_manager(self._memory.write_buffers)
        options.set_block_based_table_factory(self._memory.table_options)
        options.set_compression_type(self._rocksdict.DBCompressionType.lz4())
        options.set_keep_log_file_num(2)
        options.set_allow_concurrent_memtable_write(False)  # one thread writes
        if bulk:  # sorted at each flush, on another thread, not at each write: a third of the cost, slow look-ups
            options.set_memtable_factory(self._rocksdict.MemtableFactory.vector())
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            # An existing column family that is not named keeps its former options.
            self._db = self._rocksdict.Rdict(str(self._folder), options, column_families={"default": options})
        except Exception as error:  # noqa: BLE001  # rocksdict raises plain Exception
            if _is_damage(error):
                raise self._failed(error) from None
            if "lock hold by current process" in str(error):
                raise InputError(f"{self._folder}: cannot open RocksDB here: this process has opened it already; close that one first") from None
            raise InputError(f"{self._folder}: cannot open RocksDB here ({error}); remove the folder, and the task restores its state") from None
        self._bulk = bulk
        try:
            progress = self._db.get(PROGRESS_KEY)
        except Exception as error:  # noqa: BLE001  # rocksdict raises plain Exception
            self._db.close()
            raise self._failed(error) from None
        self._offset = 0 if progress is None else int.from_bytes(progress[:_OFFSET_BYTES])
        if progress is not None and len(progress) > _OFFSET_BYTES:
            _LOG.warning("%s was written by a build without fences: restoring it from the beginning of its changelog", self._folder)
            self.wipe()

    @property
    def offset(self) -> int:
        return self._offset

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:  # noqa: BLE001  # rocksdict raises plain Exception
            raise self._failed(error) from None
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = self._db.get(list(keys))
        except Exception as error:  # noqa: BLE001  # rocksdict raises plain Exception
            raise self._failed(error) from None
        return values

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        last = start
        found = KeptReading(self._db.items(from_key=start), f"{self._folder}: the store was closed under an iterator over it")
        self._readings.add(found)
        for key, value in found:
            if end is not None and key >= end:
                return
            last = key
            if key != PROGRESS_KEY:
                yield key, value
        self._check_end(last)

    def _check_end(self, last: bytes) -> None:
        """An iteration ends at damage as at the last key: it is asked for what follows `last`."""
        rest = self._db.iter()
        rest.seek(last)
        if rest.valid() and rest.key() == last:
            rest.next()
        try:
            rest.status()
        except Exception as error:  # noqa: BLE001  # rocksdict raises plain Exception
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> StoreError:
        if _is_damage(error):
            return DamagedStoreError(f"{self._folder}: the files of this store are damaged ({error})")
        return StoreError(f"{self._folder}: RocksDB cannot read or write here ({error}); see that the disk is well and has room")

    def apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        if bulk != self._bulk:
            self._switch(bulk=bulk)
        if PROGRESS_KEY in changes:
            raise InputError(f"key {PROGRESS_KEY!r}: RocksStore keeps its own offset there; use another key")
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        put, delete, values = batch.put, batch.delete, changes.values()
        if None in values:
            for key, value in changes.items():
                if value is None:
                    delete(key)
                else:
                    put(key, value)
        else:
            keys = sorted(changes)  # RocksDB takes neighbours in half of the time
            deque(map(put, keys, map(changes.__getitem__, keys)), maxlen=0)  # half the time of the loop
        put(PROGRESS_KEY, offset.to_bytes(_OFFSET_BYTES))
        try:
            self._db.write(batch, self._unlogged if bulk else self._logged)
        except Exception as error:  # noqa: BLE001  # rocksdict raises plain Exception
            raise self._failed(error) from None
        self._offset = offset

    def wipe(self) -> None:
        self._close()
        self._rocksdict.Rdict.destroy(str(self._folder))
        self._open(bulk=False)

    def _switch(self, *, bulk: bool) -> None:
        self.close()
        self._open(bulk=bulk)

    def close(self) -> None:
        """Closes the files. Everything applied is kept."""
        if self._bulk:
            self._db.flush()  # after a crash a logged write must not come back without the unlogged ones before it
        self._close()

    def _close(self) -> None:
        for each in list(self._readings):
            each.end()
        self._db.close()


def _is_damage(error: Exception) -> bool:
    return str(error).startswith("Corruption")


class GuardedStore:
    """A `StateStore` of the application, whose errors are StoreError, whatever it raises."""

    def __init__(self, store: StateStore, place: str) -> None:
        self._store, self._place = store, place
        with guard(place):
            self.lasting = store.lasting

    @property
    def offset(self) -> int:
        with guard(self._place):
            return self._store.offset

    def get(self, key: bytes) -> bytes | None:
        with guard(self._place):
            return self._store.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with guard(self._place):
            return self._store.get_many(keys)

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        with guard(self._place):
            found = iter(self._store.items(start, end))
        while True:
            with guard(self._place):  # not around the `yield`, where the handler may end the iteration
                each = next(found, None)
            if each is None:
                return
            yield each

    def apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        with guard(self._place):
            self._store.apply(changes, offset=offset, bulk=bulk)

    def wipe(self) -> None:
        with guard(self._place):
            self._store.wipe()

    def close(self) -> None:
        with guard(self._place):
            self._store.close()


@contextmanager
def guard(place: str) -> Iterator[None]:
    """Raises whatever a store of the application raises as StoreError: most of it is used on a
    thread of the member's, which SystemExit would end.
    """
    try:
        yield
    except StoreError:
        raise
    except BaseException as error:
        raise StoreError(f"the store of {place} fails: {type(error).__name__}: {error}") from error


def opened(open_store: OpenStore, folder: Path, place: str) -> StateStore:
    """The store in `folder`, whose errors are StoreError: of `place`, for messages."""
    if open_store in (MemoryStore, RocksStore):
        return open_store(folder)
    with guard(place):
        store = open_store(folder)
    return store if type(store) in (MemoryStore, RocksStore) else GuardedStore(store, place)
