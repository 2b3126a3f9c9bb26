"""The parts that seats have in common, in whichever way they lead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from aiokafka import errors

from equipoise.hosting.lag_fetching import LagFetcher
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.kafka.client import ENDS_S, call_off
from equipoise.kafka.connection import Connection
from equipoise.kafka.embedded_protocol import TopicPartition
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat_status import SeatStatus

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
LAGS_WITHIN_S = 1.0


class AnySeat:
    """A seat in one group. `status`: what it knows of the group; None: one of its own."""

    def __init__(self, connection: Connection, group: str, seat_log: SeatLog, runtime: Runtime, status: SeatStatus | None) -> None:
        self.group = group
        self.status = SeatStatus(group=group, monotonic_s=runtime.monotonic_s) if status is None else status
        self._log, self._runtime = seat_log, runtime
        self._lags = LagFetcher(group_id=group, connection=connection, auto_offset_reset="earliest", timeout_s=LAGS_WITHIN_S)
        self._brokers = BrokerWatch(f"group {group}", runtime.monotonic_s)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Has `run` leave the group and return."""
        self._stopped.set()

    def _answered(self, asked_s: float) -> None:
        """The coordinator has answered what was asked at `asked_s` (monotonic)."""
        self._brokers.answered(asked_s)
        self.status.answered_s = asked_s

    async def _source_lags(self, counts: Mapping[str, int]) -> Mapping[TopicPartition, int]:
        """Records behind, where the assignor deals by them. `counts`: topic -> its partitions."""
        if not self._log.deals_by_lag:
            return {}
        try:
            return await self._lags.fetch((topic, number) for topic, count in counts.items() for number in range(count))
        except (errors.KafkaError, OSError, TimeoutError) as error:
            _LOG.warning("group %s: cannot fetch lags (%s); dealing by those known before", self.group, type(error).__name__)
            return {}


async def unless_stopped(asked: Coroutine[Any, Any, T], stopped: asyncio.Event) -> T | None:
    """Returns what `asked` does; None: `stopped` was set before, and `asked` has ended, too."""
    asking, stopping = asyncio.ensure_future(asked), asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else None
    finally:
        await call_off(asking, stopping, again_s=ENDS_S)
