"""Says in the log what holds up a member from outside (docs/protocol.md#m10)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from equipoise.events.facts import MOST_TROUBLES, Fact, TroublesReported
from equipoise.events.fields import MOST_TEXT_CHARS
from equipoise.member.tasks.runner_factory import SharedSession


class TroubleReports:
    """Reports troubles that have changed, until the brokers have acknowledged that. `send` queues a
    fact. Belongs to the member's own loop.
    """

    def __init__(self, shared: SharedSession, send: Callable[[Fact], None]) -> None:
        self._shared, self._send = shared, send
        self._acknowledged: tuple[int, tuple[str, ...]] = (-1, ())
        """Incarnation and troubles that the leader knows of."""

    def say(self, troubles: Iterable[str]) -> None:
        """Reports what holds up the member now, unless the leader knows that."""
        with self._shared.lock:
            session = self._shared.session
            member_id, incarnation, joined = session.member_id, session.incarnation, session.joined and session.ended is None
        now = tuple(each[:MOST_TEXT_CHARS] for each in sorted(set(troubles))[:MOST_TROUBLES])
        of, known = self._acknowledged
        if joined and now != (known if of == incarnation else ()):
            self._send(TroublesReported(member_id=member_id, incarnation=incarnation, troubles=now))

    def acknowledged(self, fact: TroublesReported) -> None:
        """Notes that the brokers have appended it."""
        self._acknowledged = fact.incarnation, fact.troubles
