"""Which of several processes leads a group that has no members of theirs: they are members of a
group beside it (KIP-848), and the one that joined first leads.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from equipoise.hosting.runtime import Runtime
from equipoise.kafka.connection import Connection
from equipoise.lead.broker_seat.broker_plan import MARK
from equipoise.lead.broker_seat.extra_member import CLIENT_ID, ExtraMember, OutOfGroupError, id_behind

PREFIX = f"{CLIENT_ID}."


class SeatQueue:
    """The place of this process in the queue for `group`. An asynchronous context manager."""

    def __init__(self, connection: Connection, group: str, runtime: Runtime) -> None:
        self._runtime = runtime
        self._member = ExtraMember(connection, f"{PREFIX}{group}", "", assignor=None)
        self._beaten_s = 0.0
        self.seats = 0
        """How many processes are in the queue, by the last look."""
        self.first = ""
        """Member id of the one that leads."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._member.__aexit__(kind, error, trace)

    async def is_first(self) -> bool:
        """Joins, or stays, and looks. Call it at least once a second. Raises KafkaError, OSError,
        InputError when the broker refuses.
        """
        now_s = self._runtime.monotonic_s()
        try:
            if self._member.epoch == 0:
                self._beaten_s = now_s
                self._member.member_id = self._member.member_id or id_behind(await self._member.describe(), self._runtime)
                await self._member.beat(f"{MARK}1")
            elif now_s - self._beaten_s >= self._member.heartbeat_interval_ms / 2_000:
                self._beaten_s = now_s
                await self._member.beat()
        except OutOfGroupError as error:
            if error.is_removed:
                self._member.member_id = ""  # another one behind the process that leads since
            return False
        found = await self._member.describe()
        ids = [] if found is None else [each.member_id for each in found.carriers]
        self.seats, self.first = len(ids), min(ids, default="")
        return bool(ids) and self.first == self._member.member_id

    async def leave(self) -> None:
        """Raises KafkaError, OSError."""
        await self._member.leave()
