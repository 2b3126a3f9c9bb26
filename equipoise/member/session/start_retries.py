"""The start of a member goes on while brokers cannot answer yet, as in the first seconds of a
cluster, or while a topic that was made a moment ago is not known everywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from equipoise.kafka.started_clients import NotNowError

_LOG = logging.getLogger(__name__)
PATIENCE_S = 30.0
AGAIN_S = 1.0
T = TypeVar("T")


async def patiently(begin: Callable[[], Awaitable[T]], who: str, monotonic_s: Callable[[], float]) -> T:
    """Returns what `begin` returns. While that raises NotNowError it is called again, for half a
    minute. `who`: the member, for the log. Raises what `begin` raises last.
    """
    end_s = monotonic_s() + PATIENCE_S
    while True:
        try:
            return await begin()
        except NotNowError as error:
            if monotonic_s() >= end_s:
                raise
            _LOG.warning("%s cannot start yet, and tries again: %s", who, error)
        await asyncio.sleep(AGAIN_S)
