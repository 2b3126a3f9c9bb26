"""The limits of records: of a batch, of one record, and of each topic as far as brokers have
refused some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from equipoise.events.errors import InputError
from equipoise.kafka.client import MOST_REQUEST_BYTES, SentBatch, SentHeaders, batch_bytes

BATCH_BYTES = 256 * 1024
"""Largest batch of several records. Of a partition one is on its way at a time, so a commit is as
many requests as it has batches.
"""
FORGET_S = 300.0
"""After this time a topic may take larger records again: its settings may have been changed."""
GROW_S = 3_600.0
"""After this time batches of a topic are twice as large again. Where its settings are as they were,
its tasks open again once in that time.
"""
_HEADERS_BYTES = 2_048
"""More than a record of a handler has around its key and value when it gives no headers."""


_TOO_LARGE = frozenset({"MessageSizeTooLargeError", "RecordListTooLargeError", "RecordTooLargeError"})


def is_too_large(error: BaseException) -> bool:
    """Returns whether something was larger than brokers, or the client, take."""
    return any(each.__name__ in _TOO_LARGE for each in type(error).__mro__)


Owns = Callable[[int, int | None], bool]
"""Whether the records with these numbers (from, to before; None: to the end) of those that were
sent are the member's own, such as offsets.
"""


class OversizedError(InputError):
    """A record is larger than its topic takes."""


class RecordSizes:
    """Learns how large batches and records of each topic may be. A broker refuses what is larger
    than the topic's `max.message.bytes`. Then the tasks that have sent it open again: they send
    smaller batches, and a record that is too large by itself is an error of what its handler does.
    """

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        """Sizes of batches that are below BATCH_BYTES."""
        self._refused: dict[str, int] = {}
        """Topic -> size of the smallest record that was refused there."""
        self.times_apart: set[str] = set()
        """Topics that have refused a batch with times of handlers and of the clock: these go apart.
        """
        self.small = MOST_REQUEST_BYTES - _HEADERS_BYTES
        """Of key and value together: up to this size every topic takes a record without headers, as
        far as is known.
        """
        self.learned = 0
        """Rises when a limit has become smaller."""

    def of(self, topic: str) -> int:
        """Most bytes of a batch of several records."""
        return self._of.get(topic, BATCH_BYTES)

    def check(self, topic: str, key: bytes | None, value: bytes | None, headers: SentHeaders) -> None:
        """Raises OversizedError when the topic does not take such a record."""
        size_bytes, refused_bytes = batch_bytes(key, value, headers), self._refused.get(topic)
        if refused_bytes is not None and size_bytes >= refused_bytes:
            raise OversizedError(
                f"a record for {topic} has {size_bytes:,} bytes, and the topic has refused one of {refused_bytes:,} (max.message.bytes): "
                "make it smaller, or raise the topic's limit"
            )
        if size_bytes > MOST_REQUEST_BYTES:
            raise OversizedError(f"a record for {topic} has {size_bytes:,} bytes, and {MOST_REQUEST_BYTES:,} is the most: make it smaller")

    def note(self, topic: str, sent: Iterable[SentBatch], owns: Owns, *, has_clock: bool = True, has_times: bool = False) -> None:
        """Batches of the present size were sent there. `has_clock`: with some records that have the
        time of this machine's clock; `has_times`: with some that have another.
        """
        size_bytes, first = self.of(topic), 0
        for each in sent:
            own = partial(owns, first, first + each.records)
            each.appended.add_done_callback(partial(self._settled, topic, size_bytes, each, own, has_clock, has_times))
            first += each.records

    def _settled(
        self,
        topic: str,
        size_bytes: int,
        batch: SentBatch,
        is_own: Callable[[], bool],
        has_clock: bool,
        has_times: bool,
        appended: asyncio.Future[Any],
    ) -> None:
        if appended.cancelled() or (error := appended.exception()) is None:
            return
        if "topic" not in vars(error):
            vars(error)["topic"] = topic  # Kafka's errors do not say it
        if type(error).__name__ != "InvalidTimestampError" or not has_clock:
            vars(error)["is_of_record"] = not is_own()
        elif has_times:
            vars(error)["is_either"] = True
            self.times_apart.add(topic)  # the next time it is known whose time is refused
            asyncio.get_running_loop().call_later(FORGET_S, self.times_apart.discard, topic)
        if not is_too_large(error):
            return
        if batch.records > 1:
            self._limit(topic, min(self.of(topic), size_bytes // 2))
        elif batch.size_bytes < self._refused.get(topic, MOST_REQUEST_BYTES):
            self._refused[topic] = batch.size_bytes
            asyncio.get_running_loop().call_later(FORGET_S, self._forget, topic, batch.size_bytes)
            self._look()
        else:
            return
        self.learned += 1

    def _limit(self, topic: str, size_bytes: int) -> None:
        self._of[topic] = size_bytes
        asyncio.get_running_loop().call_later(GROW_S, self._grow, topic, size_bytes)

    def _grow(self, topic: str, size_bytes: int) -> None:
        if self._of.get(topic) != size_bytes:
            return
        if 2 * size_bytes < BATCH_BYTES:
            self._limit(topic, 2 * size_bytes)
        else:
            del self._of[topic]

    def _forget(self, topic: str, size_bytes: int) -> None:
        if self._refused.get(topic) == size_bytes:
            del self._refused[topic]
            self._look()

    def _look(self) -> None:
        self.small = min([MOST_REQUEST_BYTES, *self._refused.values()]) - _HEADERS_BYTES
