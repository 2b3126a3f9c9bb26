"""Turns of a member's tasks in the application's loop."""

from __future__ import annotations

import asyncio
from collections import deque

MOST_RECORDS = 500
"""Records that tasks process before the loop looks for what has arrived."""
FEW_RECORDS = 50
"""A task that processes fewer one after the other needs no turn: each takes two passes of the loop.
"""


class Turns:
    """Turns of tasks that have much to do. After some of them the loop looks for what has arrived:
    otherwise each answer of a broker would wait for a turn of all tasks. Belongs to the
    application's loop.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def next(self, records: int) -> None:
        """Returns when the task may go on. `records`: how many it has just processed, as it is
        likely to process as many again.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._begin)
        self._waiting.append((records, turn))
        await turn

    def _begin(self) -> None:
        records = 0
        while self._waiting and records < MOST_RECORDS:
            more, turn = self._waiting.popleft()
            if not turn.done():  # it was not cancelled
                turn.set_result(None)
                records += more
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)
