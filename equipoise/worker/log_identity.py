"""Checks that the topics are still those of the log that a worker leads (docs/protocol.md#l9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from equipoise.events.errors import DamagedError
from equipoise.events.facts import LogOpened
from equipoise.folding.log_reading import FactReader
from equipoise.log.kafka.log_topics import Topics
from equipoise.worker.broker_answers import answered

SAME_FOR_S = 1.0
"""How long an answer that the topics are still those of the log is valid."""
_RETRY_S = 0.2


class LogReplacedError(Exception):
    """The log's topics were deleted and created again, so the folded state belongs to another log.
    See docs/protocol.md#l9.
    """


class LogIdentity:
    """Compares the present ids of the topics with `topic_ids`, those of the log that `opened` names
    (`Topics.ids`); None: the brokers give topics no ids, so nothing is compared.
    """

    def __init__(self, topics: Topics, opened: LogOpened, topic_ids: tuple[str, ...] | None, monotonic_s: Callable[[], float]) -> None:
        self._topics, self._opened, self._topic_ids, self._monotonic_s = topics, opened, topic_ids, monotonic_s
        self._same_s = 0.0
        """When the topics were last found to be those of the log (monotonic, s)."""
        self.decisions_end = 0
        """Offset behind the last decision that the brokers have acknowledged in this session."""

    @property
    def topic_ids(self) -> dict[str, str]:
        """Topic -> id; empty: the brokers give topics no ids."""
        topics = self._topics
        return dict(zip((topics.facts, topics.decisions, topics.checkpoints), self._topic_ids or (), strict=False))

    def forget(self) -> None:
        """Makes the next check ask the brokers."""
        self._same_s, self.decisions_end = 0.0, 0

    def silent_s(self) -> float:
        """Seconds since the last request that the brokers have answered; 0: they give no ids."""
        return 0.0 if self._topic_ids is None else self._monotonic_s() - self._same_s

    def is_stale(self, now_s: float) -> bool:
        """Returns whether the last answer is too old at `now_s` (monotonic, s)."""
        return now_s - self._same_s >= SAME_FOR_S

    async def check(self, facts: FactReader) -> None:
        """Compares the topics' ids, unless that was done less than SAME_FOR_S ago, and where the
        decisions end. Raises LogReplacedError when ids differ, DamagedError when decisions are
        lost, UnknownTopicOrPartitionError when the topics are gone, TimeoutError when the brokers
        do not answer.
        """
        from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

        if self._topic_ids is None or not self.is_stale(self._monotonic_s()):
            return

        async def ask() -> tuple[float, Any]:
            while True:
                asked_s = self._monotonic_s()
                try:
                    return asked_s, await facts.topic_ids(self._topics)
                except UnknownTopicOrPartitionError:
                    raise
                except KafkaError:  # a broker is down
                    await asyncio.sleep(_RETRY_S)

        asked_s, found = await answered(ask())
        if found != self._topic_ids:
            raise LogReplacedError(f"the topics of log {self._opened.log_id} were deleted and created again")
        self._same_s = asked_s
        if known := self.decisions_end:
            with contextlib.suppress(KafkaError, TimeoutError):  # the next check asks again
                async with asyncio.timeout(_RETRY_S):
                    end = await facts.end(self._topics.decisions)
                if end < known:
                    raise DamagedError(0, f"decisions end at {end}, before {known}: the brokers have lost some, which are made again")

    async def watch(self, facts: FactReader) -> None:
        """Checks the log while other jobs wait for brokers, for ever. A send to a topic that is
        gone waits until there is one of that name again, and must not reach that one. Raises what
        `check` raises.
        """
        while True:
            await asyncio.sleep(SAME_FOR_S / 2)
            await self.check(facts)
