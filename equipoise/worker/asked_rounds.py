"""Rounds that somebody has asked for, until their decisions are published."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.worker.session_sender import SendFailedError


class AskedRounds:
    """Answers those who wait for rounds of one partition. It outlives a takeover session: the next
    one may publish the decisions.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], asyncio.Future[list[DecisionRecord]]] = {}
        """(group, id of the round) -> its decisions, once they are published."""

    @contextlib.contextmanager
    def waiting(self, group: str, round_id: str) -> Iterator[asyncio.Future[list[DecisionRecord]]]:
        """Waits for a round. The future gets its decisions, or SendFailedError."""
        answered = self._waiting[group, round_id] = asyncio.get_running_loop().create_future()
        try:
            yield answered
        finally:
            del self._waiting[group, round_id]

    def answer(self, record: FactRecord, decisions: list[DecisionRecord], published: list[asyncio.Future[Any]]) -> None:
        """Tells whoever waits for the round of this RoundAsked what was decided, once the log has
        it.
        """
        waiting = self._waiting.get((record.group, record.event.round_id))  # type: ignore[union-attr]  # a RoundAsked
        if waiting is None:
            return

        def tell(done: asyncio.Future[Any]) -> None:
            if waiting.done() or not all(each.done() for each in published):
                return
            if all(not each.cancelled() and each.exception() is None for each in published):
                waiting.set_result(decisions)
            else:
                waiting.set_exception(SendFailedError("the decisions of the round could not be published"))

        for each in published:
            each.add_done_callback(tell)
        if not published and not waiting.done():
            waiting.set_result(decisions)  # the group is halted
