"""Whom the rebalances of a group wait for, as its seat sees it: another seat that hangs, this process
itself, or a client that polls late.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator

from equipoise.kafka.group_client import SESSION_MS
from equipoise.lead.seat.names import is_seat_id
from equipoise.lead.seat_status import SeatStatus

_LOG = logging.getLogger(__name__)
LATE_S = 3.0
"""A rebalance that takes longer waits for a member that does not poll, or does not answer."""


class RebalanceWatch:
    """Notes in `status` who is in the group, and logs what delayed it."""

    def __init__(self, status: SeatStatus) -> None:
        self._status = status
        self._seats: set[str] = set()
        """Member ids of the seats in the last generation."""
        self._waited_s = 0.0
        """How long the last generation was waited for, until that is said."""

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        """The seat joins, which the coordinator answers when everybody has: clients do so when they
        poll.
        """
        status = self._status
        began_s = status.waits_since_s = status.monotonic_s()
        try:
            yield
        finally:
            status.waits_since_s = None
        status.answered_s = status.monotonic_s()
        self._waited_s = status.answered_s - began_s

    def over(self, member_ids: Iterable[str]) -> None:
        """These are the members of the new generation."""
        ids = set(member_ids)
        seats = {each for each in ids if is_seat_id(each)}
        missing, self._seats = self._seats - ids, seats
        self._status.sees(len(ids) - len(seats), len(seats))
        waited_s, self._waited_s = self._waited_s, 0.0
        if waited_s < LATE_S:
            return
        if missing:
            self._status.silent_seats += len(missing)
            _LOG.warning(
                "group %s: the rebalance waited %.1f s for another seat of equipoise. It did not answer, and is out of the group now:"
                " its process hangs, or was killed (%s)",
                self._status.group,
                waited_s,
                ", ".join(sorted(missing)),
            )
        else:
            _LOG.warning("group %s: the rebalance waited %.1f s for the slowest member to poll", self._status.group, waited_s)

    def out_of_group(self, *, is_away: bool) -> None:
        """The broker has taken the seat out of the group. `is_away`: because brokers did not answer
        it.
        """
        silent_s = self._status.age_s(self._status.answered_s)
        self._seats = set()
        if silent_s is None or silent_s < SESSION_MS / 1_000 or is_away:
            return
        self._status.silent_seats += 1
        _LOG.warning(
            "group %s: this process did not run for %.1f s, so the broker took its seat out of the group. A rebalance that began meanwhile"
            " waited for it. Give the process CPU, and do not stop it",
            self._status.group,
            silent_s,
        )
