"""An error of a store is never an error of a record: whatever the error policy is, no record is
left out. A damaged copy is restored from its changelog; any other error ends the member, and others
take its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from equipoise import ErrorPolicy, MemoryStore, Record, TaskContext
from equipoise.member.copies.stores import DamagedStoreError, StoreError
from tests.simulated.test_start import TASKS, NewGroup, group

__all__ = ["group"]

POLICIES = {
    "stop": ErrorPolicy.stop(),
    "skip": ErrorPolicy.skip(),
    "dead_letter": ErrorPolicy.dead_letter("dead"),
    "retry": ErrorPolicy.retry(2, backoff_s=0.1, then=ErrorPolicy.skip()),
}
EACH_POLICY = [pytest.param(each, marks=[] if each == "skip" else [pytest.mark.slow]) for each in POLICIES]
CALLS = ["get", "get_many", "items", "apply", "open"]
RECORDS = 12


class Disk:
    """Makes stores, of which one fails once when it is armed. `content`: of stores that were wiped,
    nothing.
    """

    def __init__(self, call: str, error: Callable[[], Exception]) -> None:
        self.call, self.error = call, error
        self.is_armed = False
        self.failed = 0

    def __call__(self, folder: Path) -> FailingStore:
        self.check("open")
        return FailingStore(self)

    def check(self, call: str) -> None:
        if self.is_armed and call == self.call:
            self.is_armed = False
            self.failed += 1
            raise self.error()


class FailingStore(MemoryStore):
    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def get(self, key: bytes) -> bytes | None:
        if not key.startswith(b"\0"):
            self._disk.check("get")
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._disk.check("get_many")
        return super().get_many(keys)

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        yield from super().items(start, end)
        self._disk.check("items")

    def apply(self, changes: Mapping[bytes, bytes | None], *, offset: int, bulk: bool = False) -> None:
        if any(not key.startswith(b"\0") for key in changes):
            self._disk.check("apply")
        super().apply(changes, offset=offset, bulk=bulk)


def counting(record: Record, context: TaskContext) -> None:
    """Reads in each way, and goes on although one fails, as careless handlers do."""
    state = context.state
    key = b"%d" % record.offset
    try:
        known = state.get(b"n") or b"0"
        state.get_many([b"n", b"m"])
        list(state.items())
        state.get(key)
    except Exception:
        if record.offset % 2:
            raise
        known = b"-1000"
    state.put(b"n", b"%d" % (int(known) + 1))


def state_of(group: NewGroup, partition: int) -> bytes | None:
    log = group.cluster.topics["log"].partitions[partition].log
    return next((each.value for each in reversed(list(log.records)) if each.key == b"n"), None)


@pytest.mark.parametrize("policy", EACH_POLICY)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.slow)])
def test_damaged_copy_is_restored_and_no_record_is_left_out(group: NewGroup, call: str, policy: str, guarantee: str) -> None:
    disk = Disk(call, lambda: DamagedStoreError("the files of this store are damaged"))
    group.cluster.create_topic("dead", 1)
    member = group.start("m1", handler=counting, on_error=POLICIES[policy], open_store=disk, guarantee=guarantee)
    disk.is_armed = call == "open"
    group.settle(8)
    disk.is_armed = True
    for _ in range(RECORDS):
        group.send(0)
        group.settle(0.5)
    group.settle(20)
    assert disk.failed or call == "open"
    assert group.ended == {}
    assert not member.failed_tasks
    assert state_of(group, 0) == b"%d" % RECORDS
    assert not group.cluster.topics["dead"].partitions[0].log.records
    assert member._host is not None
    figures = member._host.work.figures()
    assert figures.damaged == disk.failed
    assert not any(figures.failures.values())


@pytest.mark.parametrize("policy", EACH_POLICY)
@pytest.mark.parametrize("call", ["get", "apply", pytest.param("items", marks=pytest.mark.slow)])
def test_member_whose_disk_fails_ends_and_others_go_on(group: NewGroup, call: str, policy: str) -> None:
    group.cluster.create_topic("dead", 1)
    disk = Disk(call, lambda: OSError(28, "No space left on device"))
    member = group.start("m1", handler=counting, on_error=POLICIES[policy], open_store=disk, guarantee="exactly_once")
    group.start("m2", handler=counting, on_error=POLICIES[policy], guarantee="exactly_once")
    group.settle(10)
    partition = next(task.partition for task, name in group.assigned if name == "m1")
    for number in range(RECORDS):
        disk.is_armed = number == 5
        group.send(partition)
        group.settle(0.5)
    group.settle(60)
    assert disk.failed == 1
    assert "No space left on device" in str(group.ended["m1"])
    assert isinstance(group.ended["m1"], StoreError)
    assert {name for _, name in dict(group.assigned).items()} == {"m2"}
    assert len(dict(group.assigned)) == TASKS
    assert state_of(group, partition) == b"%d" % RECORDS
    assert not group.cluster.topics["dead"].partitions[0].log.records
    assert member is not None


def test_copy_that_is_damaged_again_at_once_ends_the_member(group: NewGroup) -> None:
    class Bad(FailingStore):
        def get(self, key: bytes) -> bytes | None:
            if not key.startswith(b"\0"):
                raise DamagedStoreError("bad blocks")
            return super().get(key)

    group.start("m1", handler=counting, on_error=ErrorPolicy.skip(), open_store=lambda folder: Bad(Disk("", ValueError)))
    group.settle(8)
    group.send(0)
    group.settle(30)
    error: Any = group.ended["m1"]
    assert "its local copy is damaged again after" in str(error)
    assert "see the disk: bad blocks" in str(error)
