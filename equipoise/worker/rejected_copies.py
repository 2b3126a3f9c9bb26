"""Copies records that belong to no group to the topic of rejected records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from equipoise.events.records import FactRecord
from equipoise.kafka.client import Producer, within
from equipoise.log.kafka.envelope import rejected_record
from equipoise.log.kafka.log_topics import Topics

_LOG = logging.getLogger(__name__)
_SEND_S, AGAIN_S = 1.0, 60.0
"""How long one copy may hold up the groups, and how long none is tried after that."""


class RejectedCopies:
    """Writes them with the `producer` of a session. A copy that cannot be written is logged once,
    and ends nothing: whoever sends such records must not keep groups from being led.
    """

    def __init__(self, producer: Producer, topics: Topics, partition: int, monotonic_s: Callable[[], float]) -> None:
        self._producer, self._topics, self._partition, self._monotonic_s = producer, topics, partition, monotonic_s
        self._again_s = 0.0
        self._has_failed = False

    async def write(self, key: bytes | None, value: bytes | None, record: FactRecord) -> None:
        """One more, with reason and place. `record`: what was folded of it."""
        from aiokafka.errors import KafkaError, ProducerClosed

        if self._monotonic_s() < self._again_s:
            return
        code: str = record.event.code  # type: ignore[union-attr]  # a record without a group is Undecodable
        key, value, why = rejected_record(key, value, code, self._topics.facts, self._partition, record.offset)
        try:
            async with within(f"topic {self._topics.rejected}", _SEND_S):
                sent = await self._producer.send(self._topics.rejected, value, key=key, partition=0, headers=[("equipoise", why)])
        except ProducerClosed:
            return  # the session has ended, and the next one comes to this record again
        except KafkaError as error:
            self._failed(error)
        else:
            sent.add_done_callback(self._look)

    def _look(self, sent: asyncio.Future[Any]) -> None:
        from aiokafka.errors import ProducerClosed

        error = None if sent.cancelled() else sent.exception()
        if error is not None and not isinstance(error, ProducerClosed):
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._again_s = self._monotonic_s() + AGAIN_S
        if not self._has_failed:
            self._has_failed = True
            text = "partition %d: records that belong to no group are not copied: %s: %s. A worker that starts makes %s if it is gone"
            _LOG.warning(text, self._partition, type(error).__name__, error, self._topics.rejected)
