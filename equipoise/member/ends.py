"""Where changelogs end, as far as that is known for certain: a lower number would call a copy up to
date that is not (docs/protocol.md#m2).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

_LOG = logging.getLogger(__name__)
ASK_S = 10.0
"""How long leaders may take to say where changelogs end, all together and then each by itself:
longer than a partition has none after a failure.
"""

Ask = Callable[[list[Any]], Awaitable[dict[Any, int]]]
"""Asks the leaders of changelog partitions for their ends."""


class ChangelogEnds:
    """Of the partitions of which somebody has a copy. For one event loop."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}
        """Partition -> as its leader said when it was asked last, or beyond, as was read since."""
        self._asked: set[Any] = set()
        """Partitions that are being asked for, and have not been forgotten meanwhile."""

    def behind(self, tp: Any, position: int) -> int | None:
        """Records from `position` to the end; None: that is not known. What is ahead of its
        changelog is of another one, and begins anew.
        """
        end = self.known.get(tp)
        return None if end is None or end < position else end - position

    def forget(self, partitions: Iterable[Any]) -> None:
        """What was known of them, or is being asked for, is from before."""
        for tp in partitions:
            self.known.pop(tp, None)
            self._asked.discard(tp)

    def answered(self, ends: Mapping[Any, int]) -> None:
        """Leaders say so, to a question of just now."""
        self.known.update(ends)

    def read(self, tp: Any, position: int, fetched_end: int | None) -> None:
        """It was read up to `position`, by a fetch that found `fetched_end`. That fetch may be long
        ago, when a throttled copy takes the last of it, or of a replica that is itself behind: it
        proves no lower end."""
        if tp in self.known:
            self.known[tp] = max(self.known[tp], position, fetched_end or 0)

    async def learn(self, ask: Ask, partitions: Iterable[Any]) -> None:
        """Asks for them all. What was learned while they answered is newer than the answer. Where
        nobody answers, the end is not known any more.
        """
        self._asked = set(partitions)
        if not self._asked:
            return
        before = dict(self.known)
        ends = await _ask(ask, sorted(self._asked))
        for tp in self._asked:
            if self.known.get(tp) != before.get(tp):
                self.known[tp] = max(self.known[tp], ends.get(tp, 0))
            elif tp in ends:
                self.known[tp] = ends[tp]
            else:
                self.known.pop(tp, None)
        if missing := sorted(self._asked.difference(ends)):
            _LOG.info("nobody says where %d changelogs end: %s/%d%s", len(missing), *missing[0], ", ..." if missing[1:] else "")


async def _ask(ask: Ask, partitions: list[Any]) -> dict[Any, int]:
    """The ends of those whose leaders answer: one that is away must not hide the others."""
    from aiokafka.errors import KafkaError

    with contextlib.suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(ASK_S):
            return await ask(partitions)
    one_by_one = await asyncio.gather(*(_ask(ask, [tp]) for tp in partitions)) if partitions[1:] else []
    return {tp: end for each in one_by_one for tp, end in each.items()}
