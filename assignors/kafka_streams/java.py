"""Ids, hashes and heaps of the Java runtime that Kafka's assignments depend on. See also
`equipoise.events.java_order`.

A process id is a UUID, which Java compares as two *signed* 64-bit halves: ids that begin with 8..f
come before those that begin with 0..7. Member ids here may be any text. UUIDs in canonical form
come first and behave as in Java; all others follow in the order of Java's strings, and have the
hash of the Java string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from equipoise.events.java_order import MASK_32, text_hash, text_key
from equipoise.events.tasks import TaskId

MAX_LONG = 2**63 - 1
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_T = TypeVar("_T")


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _halves(member_id: str) -> tuple[int, int] | None:
    """The two signed halves of a UUID; None: not a UUID."""
    if _UUID.fullmatch(member_id) is None:
        return None
    number = int(member_id.replace("-", ""), 16)
    return _signed(number >> 64, 64), _signed(number & (1 << 64) - 1, 64)


def member_key(member_id: str) -> tuple[int, int, int, bytes]:
    """Sort key of a member id: UUIDs as ``UUID.compareTo``, then other texts as
    ``String.compareTo``.
    """
    halves = _halves(member_id)
    return (1, 0, 0, text_key(member_id)) if halves is None else (0, *halves, text_key(member_id))


def member_hash(member_id: str) -> int:
    """``UUID.hashCode`` of a UUID, else ``String.hashCode``; unsigned 32 bits."""
    halves = _halves(member_id)
    if halves is None:
        return text_hash(member_id)
    mixed = (halves[0] ^ halves[1]) & (1 << 64) - 1
    return (mixed >> 32) ^ (mixed & MASK_32)


def task_hash(task: TaskId) -> int:
    """``TaskId.hashCode`` of a task without topology name; unsigned 32 bits."""
    return 31 * (31 * (31 + task.subtopology) + task.partition) & MASK_32


class Heap(Generic[_T]):
    """``java.util.PriorityQueue``: a binary heap in an array that computes keys at each comparison.

    A key that changes while its item is in the heap moves nothing, and equal keys come out in array
    order. Kafka's assignments depend on both.
    """

    def __init__(self, key: Callable[[_T], tuple[float, ...]], items: Iterable[_T] = ()) -> None:
        self._key = key
        self._array: list[_T] = []
        for item in items:
            self.offer(item)

    def __len__(self) -> int:
        return len(self._array)

    def offer(self, item: _T) -> None:
        self._array.append(item)
        self._up(len(self._array) - 1, item)

    def poll(self) -> _T:
        """Removes and returns the head of a heap that is not empty."""
        head = self._array[0]
        last = self._array.pop()
        if self._array:
            self._down(0, last)
        return head

    def in_array_order(self) -> list[_T]:
        """All items in the order of the Java queue's iterator."""
        return list(self._array)

    def remove(self, item: _T) -> None:
        """Removes the first item that equals `item`; there is one."""
        place = self._array.index(item)
        last = self._array.pop()
        if place < len(self._array):
            self._down(place, last)
            if self._array[place] is last:
                self._up(place, last)

    def _up(self, place: int, item: _T) -> None:
        array, key = self._array, self._key
        mine = key(item)
        while place > 0:
            parent = (place - 1) // 2
            if mine >= key(array[parent]):
                break
            array[place] = array[parent]
            place = parent
        array[place] = item

    def _down(self, place: int, item: _T) -> None:
        array, key = self._array, self._key
        mine, size = key(item), len(self._array)
        while place < size // 2:
            child = 2 * place + 1
            least = key(array[child])
            if child + 1 < size and least > (right := key(array[child + 1])):
                child, least = child + 1, right
            if mine <= least:
                break
            array[place] = array[child]
            place = child
        array[place] = item
