"""Waits for answers of brokers, as long as the event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from equipoise.kafka.client import ENDS_S, call_off

ANSWER_S = 10.0
"""Longest wait for the brokers' answer. Then a send is repeated on another connection; for anything
else the session fails, and the next one makes new connections.
"""
MOST_PASS_S = 1.0
"""Waits count at most this long for each time the event loop runs: while a very large decision is
made, answers arrive and are not seen.
"""


T = TypeVar("T")


async def answered(request: Coroutine[Any, Any, T], within_s: float = ANSWER_S) -> T:
    """Awaits `request`. Raises TimeoutError after `within_s` seconds; time in which another
    callback blocked the loop does not count.
    """
    asked = asyncio.ensure_future(request)
    try:
        for _ in range(round(within_s / MOST_PASS_S)):
            if (await asyncio.wait((asked,), timeout=MOST_PASS_S))[0]:
                return asked.result()
        raise TimeoutError(f"the brokers do not answer within {within_s:.0f} s")
    finally:
        await call_off(asked, again_s=ENDS_S)
