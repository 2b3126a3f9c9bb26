"""Waits that end whatever is waited for: in time, and with the client."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.errors import KafkaConnectionError


class WireStopped(KafkaConnectionError):  # type: ignore[misc]  # aiokafka ships no types
    """The client was closed. Whoever asks over its wire asks no more."""

    retriable = False


class BoundedWaits:
    """The waits of one client, in its event loop. `within_s`: the longest of each."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._open: set[asyncio.Future[None]] = set()
        self._is_over = False

    def until(self, asked: asyncio.Future[Any] | None) -> asyncio.Future[None]:
        """Returns what is done when `asked` is, `within_s` from now, or when the client ends. It
        raises nothing: whoever waits looks at what there is then. `asked` None: nothing is asked.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(_: object = None) -> None:
            if not ended.done():
                ended.set_result(None)

        if asked is None or self._is_over or asked.done():
            end()
            return ended
        late = loop.call_later(self._within_s, end)

        def forget(_: object) -> None:
            late.cancel()
            asked.remove_done_callback(end)
            self._open.discard(ended)

        self._open.add(ended)
        asked.add_done_callback(end)
        ended.add_done_callback(forget)
        return ended

    def end(self) -> None:
        """Ends all waits, and those that begin later."""
        self._is_over = True
        for ended in list(self._open):
            if not ended.done():
                ended.set_result(None)

    def check(self) -> None:
        """Raises WireStopped once the waits have ended."""
        if self._is_over:
            raise WireStopped("the client is closed")
