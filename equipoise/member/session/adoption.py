"""A member that takes the place of a consumer group (docs/adopt.md): its tasks begin when the
group's consumers have left, where these have read to, and none can be in it while they run.

Everything here belongs to the member's own loop, except `position` and `lease_ends_ms`, which any
thread may use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from equipoise.kafka.client import ENDS_S, TopicPartition, call_off
from equipoise.kafka.connection import Connection
from equipoise.kafka.held_group import MEMBER, RETRY_S, HeldGroup, Holders

_LOG = logging.getLogger(__name__)
LOOK_S = 0.02
WAIT_S = 0.1
"""Between two tries to enter the group while its consumers are there."""


class _ReleasedError(Exception):
    """The group is given back to its consumers; this one waits, outside of it."""


class Adoption:
    """The member's part in holding the consumer group `adopted`. `released`: called when somebody
    gives the group back to its consumers. `who`: the member, for the log.
    """

    def __init__(
        self,
        connection: Connection,
        adopted: str,
        partitions: Sequence[TopicPartition],
        *,
        session_ms: int,
        boot_ms: Callable[[], int],
        released: Callable[[], None],
        who: str,
    ) -> None:
        self.adopted = adopted
        self._connection, self._partitions, self._boot_ms, self._released, self._who = connection, partitions, boot_ms, released, who
        self._held = HeldGroup(connection, adopted, MEMBER, boot_ms, session_ms=session_ms, quiet=False)
        self._offsets: Mapping[TopicPartition, int | None] | None = None
        """Committed offsets of the group, read since this one is in it."""
        self._waits = self._stops = False

    @property
    def lease_ends_ms(self) -> int:
        """Until when tasks may run (ms, CLOCK_BOOTTIME)."""
        return self._held.lease_ends_ms

    async def offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group's consumers have read to, once none is there. Partitions of which they
        committed nothing are absent.
        """
        while (found := self._offsets) is None or self._held.is_released or self._boot_ms() >= self.lease_ends_ms:  # noqa: ASYNC110  # of another loop
            await asyncio.sleep(LOOK_S)
        return {tp: offset for tp in partitions if (offset := found.get(tp)) is not None}

    async def run(self) -> None:
        """Waits for the group, and holds it until this is cancelled. While somebody releases it, it
        does not enter.
        """
        from aiokafka.errors import InconsistentGroupProtocolError, KafkaError

        while True:
            reading = asyncio.ensure_future(self._read_offsets())
            try:
                await self._held.look()
                if not self._held.is_released:
                    await self._held.enter_and_stay(self._looked)
                await asyncio.sleep(WAIT_S)
                continue
            except _ReleasedError:
                await self._held.step_out()
                continue
            except InconsistentGroupProtocolError:
                if not self._waits:
                    self._waits = True
                    _LOG.info("%s waits until the consumers of group %s have left", self._who, self.adopted)
                await asyncio.sleep(WAIT_S)
                continue
            except (KafkaError, OSError) as error:
                _LOG.info("%s: group %s: %s: %s; trying again", self._who, self.adopted, type(error).__name__, error)
            finally:
                await call_off(reading, again_s=ENDS_S)
            await asyncio.sleep(RETRY_S)

    async def leave(self) -> None:
        """After the last task has stopped: leaves the group."""
        await self._held.leave()

    def _looked(self, holders: Holders) -> None:
        if not self._held.is_released:
            return
        if self._offsets is None:  # it has not begun
            raise _ReleasedError
        if not self._stops:
            self._stops = True
            _LOG.info("%s: group %s is released to its consumers: stopping", self._who, self.adopted)
            self._released()

    async def _read_offsets(self) -> None:
        """Reads the offsets when this one has entered the group: nobody commits any there then."""
        from aiokafka.errors import KafkaError

        if self._boot_ms() >= self.lease_ends_ms:
            self._offsets = None
        while self._offsets is None:
            if self._boot_ms() >= self.lease_ends_ms:
                await asyncio.sleep(LOOK_S)
                continue
            consumer = self._connection.clients.consumer(group=self.adopted)
            try:
                await consumer.start()
                found = dict(zip(self._partitions, await asyncio.gather(*map(consumer.committed, self._partitions)), strict=True))
            except KafkaError as error:
                _LOG.warning("%s: group %s: cannot read its offsets (%s); trying again", self._who, self.adopted, type(error).__name__)
                await asyncio.sleep(RETRY_S)
                continue
            finally:
                await consumer.stop()
            self._offsets = found
            if self._waits:
                _LOG.info("%s: group %s has no consumers any more: its tasks begin", self._who, self.adopted)
