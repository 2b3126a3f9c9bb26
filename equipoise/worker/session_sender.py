"""Sends the records of one takeover session."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from equipoise.events.facts import Fact
from equipoise.kafka.client import ENDS_S, Producer, call_off
from equipoise.log.kafka.envelope import group_key, pack_fact


class SendFailedError(Exception):
    """A send failed for good; later ones must not be sent. See docs/protocol.md#l4."""


class SessionSender:
    """Sends records of one takeover session in order, with the `producer` of that session. The
    first failure ends the session. `facts`: topic of the facts. Construct it in the running event
    loop.
    """

    def __init__(self, producer: Producer, partition: int, facts: str) -> None:
        self.producer, self._partition, self._facts = producer, partition, facts
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failed.add_done_callback(lambda future: future.exception())  # retrieved here, so that asyncio does not warn

    @property
    def has_failed(self) -> bool:
        """Returns whether a send, or what depends on it, has failed."""
        return self._failed.done()

    def fail(self, error: BaseException) -> None:
        """Ends the session with this error, unless an earlier one has."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def run_until_failed(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        """Runs them until one has ended, or the session has failed. Raises its error."""
        jobs = [asyncio.ensure_future(job) for job in coroutines]
        try:
            await asyncio.wait((*jobs, self._failed), return_when=asyncio.FIRST_COMPLETED)
            for each in (*jobs, self._failed):
                if each.done():
                    each.result()
        finally:
            await call_off(*jobs, again_s=ENDS_S)

    async def append(self, group: str, fact: Fact) -> None:
        """Appends a fact of the worker. Raises SendFailedError."""
        await self.send(self._facts, group_key(group), pack_fact(fact))

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None, *, partition: int | None = None, headers: Any = None
    ) -> asyncio.Future[Any]:
        """Sends to the partition that is led, or to `partition`. Returns a future with the record's
        place. Raises SendFailedError.
        """
        if self._failed.done():
            raise SendFailedError(f"to {topic}: not sent, because an earlier send failed")
        place = self._partition if partition is None else partition
        try:
            future: asyncio.Future[Any] = await self.producer.send(topic, value, key=key, partition=place, headers=headers)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise SendFailedError(f"to {topic}: {error.__class__.__name__} {error}") from error

        def look(done: asyncio.Future[Any]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is not None:
                self.fail(SendFailedError(f"to {topic}: {error.__class__.__name__} {error}"))

        future.add_done_callback(look)
        return future
