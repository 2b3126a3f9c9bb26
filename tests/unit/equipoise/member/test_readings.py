"""Iterators over state end with the call in which they were made, and with their store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise import ErrorPolicy, Processor, Record, TaskContext
from equipoise.events.errors import InputError
from equipoise.events.tasks import TaskId
from equipoise.member.copies.stores import RocksStore
from equipoise.member.tasks.context import State
from equipoise.member.tasks.processing import Processing
from equipoise.member.tasks.serdes import BytesSerde
from equipoise.member.tasks.timers import IntervalTimers

READS: list[Callable[[State], Iterator[Any]]] = [State.items, State.range, lambda state: state.prefix(b"k")]


@pytest.fixture
def store(tmp_path: Path) -> RocksStore:
    made = RocksStore(tmp_path / "store")
    made.apply({b"k1": b"1", b"k2": b"2"}, offset=1)
    return made


def test_store_that_is_closed_ends_its_iterators(store: RocksStore, tmp_path: Path) -> None:
    kept = store.items()
    assert next(kept) == (b"k1", b"1")
    store.close()
    again = RocksStore(tmp_path / "store")
    assert list(again.items()) == [(b"k1", b"1"), (b"k2", b"2")]
    with pytest.raises(InputError, match="closed under an iterator"):
        next(kept)


@pytest.mark.parametrize("change", [lambda store: store.apply({b"k3": b"3"}, offset=2, bulk=True), RocksStore.wipe])
def test_store_that_opens_again_by_itself_does_so_under_an_iterator(store: RocksStore, change: Callable[[RocksStore], None]) -> None:
    kept = store.items()
    next(kept)
    change(store)
    with pytest.raises(InputError, match="closed under an iterator"):
        next(kept)


def test_store_that_is_open_already_names_no_folder_to_remove(store: RocksStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this process has opened it already") as raised:
        RocksStore(tmp_path / "store")
    assert "remove" not in str(raised.value)
    assert store.get(b"k1") == b"1"


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("is_batch", [False, True])
async def test_iterator_that_a_handler_keeps_ends_with_its_call(
    store: RocksStore, read: Callable[[State], Iterator[Any]], is_batch: bool, tmp_path: Path
) -> None:
    kept: list[Iterator[Any]] = []
    errors: list[str] = []

    def handle(_: object, context: TaskContext) -> None:
        if kept:
            try:
                next(kept[0])
            except InputError as error:
                errors.append(str(error))
        else:
            kept.append(read(context.state))
            assert next(kept[0]) == (b"k1", b"1")

    handlers: dict[str, Any] = {"batch_handler": handle} if is_batch else {"handler": handle}
    processor, timers = Processor(**handlers, sources="source", state="s"), IntervalTimers(lambda: 0.0, lambda: 0)
    context = TaskContext(TaskId(0, 0), 1, {"s": State(store)}, timers, BytesSerde(), BytesSerde())
    serde = BytesSerde()
    processing = Processing(processor, context, timers, group="g", policy=ErrorPolicy.stop(), key_serde=serde, value_serde=serde)
    for offset in range(2):
        assert await processing.handle([Record(b"k", b"v", "source", 0, offset, 0)], 0, 1, lambda: 0, 1) == 1
    assert len(errors) == 1
    assert "make a list" in errors[0]
    store.close()
    RocksStore(tmp_path / "store").close()
