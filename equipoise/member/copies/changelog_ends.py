"""The ends of changelogs, as far as they are known for certain: with an end that is too low, a copy
would appear up to date. See docs/protocol.md#m2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from equipoise.kafka.client import TopicPartition

_LOG = logging.getLogger(__name__)
ASK_S = 10.0
"""Longest wait for the leaders' answers, for all partitions together and then for each: longer than
a partition has no leader after a failure.
"""

T = TypeVar("T")
Ask = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, T]]]
"""Requests the ends of partitions from their leaders. Raises KafkaError."""


class ChangelogEnds:
    """The known ends of the changelog partitions that this member has copies of. Belongs to one
    event loop.
    """

    def __init__(self) -> None:
        self.known: dict[TopicPartition, int] = {}
        """Partition -> end by its leader's last answer, or what was read beyond it since."""
        self._asked: set[TopicPartition] = set()
        """Partitions that are being requested and were not forgotten meanwhile."""

    def behind(self, tp: TopicPartition, position: int) -> int | None:
        """Records from `position` to the end; None: unknown, also when `position` is beyond the end
        (the copy belongs to a former changelog).
        """
        end = self.known.get(tp)
        return None if end is None or end < position else end - position

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets the ends of these partitions, and ignores answers that are under way."""
        for tp in partitions:
            self.known.pop(tp, None)
            self._asked.discard(tp)

    def answered(self, ends: Mapping[TopicPartition, int]) -> None:
        """Notes the leaders' answers to a request of just now."""
        self.known.update(ends)

    def read(self, tp: TopicPartition, position: int, fetched_end: int | None) -> None:
        """Notes that `tp` was read up to `position`, by a fetch that returned `fetched_end`; None:
        unknown. A known end only rises: the fetch may be old, or from a replica that is
        behind.
        """
        if tp in self.known:
            self.known[tp] = max(self.known[tp], position, fetched_end or 0)

    async def learn(self, ask: Ask[int], partitions: Iterable[TopicPartition]) -> None:
        """Requests the ends of all `partitions`. What was noted during the request is newer than
        the answer. Ends without answer become unknown.
        """
        self._asked = set(partitions)
        if not self._asked:
            return
        before = dict(self.known)
        ends = await ask_ends(ask, sorted(self._asked))
        for tp in self._asked:
            if self.known.get(tp) != before.get(tp):
                self.known[tp] = max(self.known[tp], ends.get(tp, 0))
            elif tp in ends:
                self.known[tp] = ends[tp]
            else:
                self.known.pop(tp, None)
        if missing := sorted(self._asked.difference(ends)):
            _LOG.debug("the ends of %d changelogs are unknown, no leader answers: %s/%d%s", len(missing), *missing[0], ", ..." if missing[1:] else "")


async def ask_ends(ask: Ask[T], partitions: list[TopicPartition]) -> dict[TopicPartition, T]:
    """The ends of the partitions whose leaders answer."""
    from aiokafka.errors import KafkaError

    with contextlib.suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(ASK_S):
            return await ask(partitions)
    one_by_one = await asyncio.gather(*(ask_ends(ask, [tp]) for tp in partitions)) if partitions[1:] else []
    return {tp: end for each in one_by_one for tp, end in each.items()}
