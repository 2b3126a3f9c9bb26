"""Where a seat of equipoise is in its group: who leads, as of which answer of the coordinator."""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

MOST_SILENT_S = 15.0
"""A seat is not ready when its coordinator has not answered for so long."""


class SeatState(enum.StrEnum):
    JOINS = "joins"
    """It is not in the group, or nobody has said yet who leads."""
    LEADS = "leads"
    STANDS_BY = "stands_by"
    """Another member leads: a client, or another seat."""
    REFUSED = "refused"
    """The group cannot be led now; it is tried again."""


@attrs.define
class SeatStatus:
    """The knowledge that one seat has of its group. Times are monotonic, in seconds; None: never.

    `way`: as of `equipoise.lead.broker_seat.ways.Way`; "": not known yet. `state`: since `since_s`.
    `answered_s`: when the last question was asked that the coordinator has answered; the rest is as
    of then. `leader`: who leads while the seat stands by, as far as the coordinator says it.
    `waits_since_s`: when it joined the generation that others have still to join. `members`: of the
    group, without seats. `seats`: this one included. `decided_s`: its last decision. `pending`:
    partitions or tasks that the members do not have yet as was decided last. `topics`: what the
    members read. `lag_records`: behind the group's commits; None: not known. `uncommitted`:
    partitions without a commit, of which no lag is known; None: not known. `silent_seats`: how often
    a seat was found to have been silent for its session. `problem`: why the group is not led.
    """

    group: str
    monotonic_s: Callable[[], float]
    way: str = ""
    state: SeatState = SeatState.JOINS
    since_s: float = attrs.field(default=attrs.Factory(lambda self: self.monotonic_s(), takes_self=True))
    answered_s: float | None = None
    leader: str = ""
    waits_since_s: float | None = None
    members: int | None = None
    seats: int = 0
    decided_s: float | None = None
    pending: int = 0
    topics: frozenset[str] = frozenset()
    lag_records: int | None = None
    uncommitted: int | None = None
    silent_seats: int = 0
    problem: str = ""

    @property
    def leads(self) -> bool:
        return self.state is SeatState.LEADS

    @property
    def stands_by(self) -> bool:
        return self.state is SeatState.STANDS_BY

    def become(self, state: SeatState, *, leader: str = "", problem: str = "") -> bool:
        """Returns whether that was not known before."""
        is_new = (state, leader, problem) != (self.state, self.leader, self.problem)
        if state is not self.state:
            self.since_s = self.monotonic_s()
        if state is not SeatState.LEADS:
            self.pending = 0
        if state in (SeatState.JOINS, SeatState.REFUSED):
            self.members, self.seats, self.topics = None, 0, frozenset()
            self.lag_records = self.uncommitted = None
        self.state, self.leader, self.problem = state, leader, problem
        return is_new

    def decided(self, pending: int) -> None:
        """The seat has decided, and the members lack so much of it."""
        self.decided_s, self.pending = self.monotonic_s(), pending

    def sees(self, members: int, seats: int) -> None:
        """The coordinator says how many are in the group, and how many of them are seats."""
        self.members, self.seats = members, seats

    def unready(self) -> str:
        """Returns why the seat is not in its group, on one line; "": it is, waits there for others to
        join, or cannot be.
        """
        if self.state is SeatState.REFUSED or self.waits_since_s is not None:
            return ""
        if self.state is SeatState.JOINS:
            return f"group {self.group}: the seat is not in the group yet"
        silent_s = self.age_s(self.answered_s)
        return f"group {self.group}: its coordinator has not answered for {silent_s:.0f} s" if silent_s and silent_s > MOST_SILENT_S else ""

    def age_s(self, then_s: float | None) -> float | None:
        """Returns how long ago that was; None: never."""
        return None if then_s is None else max(0.0, self.monotonic_s() - then_s)
