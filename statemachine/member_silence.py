"""How long members have been silent, by the clock of their partition (docs/protocol.md#l11).

The time of a group at rest stands still between its records, because nothing in it is due. Whether
one of its members died is measured by a clock that all groups of the partition move, and told to
the group as a fact.
"""

from __future__ import annotations

from typing import NamedTuple

from equipoise.events.facts import SilenceObserved
from equipoise.events.settings import GroupSettings
from equipoise.statemachine.state import GroupState, MemberState


class PartitionClock:
    """Moves with each record of the partition as a group's time does with the group's: as far as
    the log's clock, and at most as far as in any of its groups (docs/protocol.md#l2).
    """

    def __init__(self) -> None:
        self.now_ms = 0
        """Since reading began."""
        self.step_ms = GroupSettings().max_step_ms
        """The most that one record moves it."""
        self._append_ms: int | None = None

    def advance(self, append_ms: int) -> None:
        """A record with this append time was read."""
        if self._append_ms is not None:
            self.now_ms += min(max(0, append_ms - self._append_ms), self.step_ms)
        self._append_ms = append_ms

    def limit(self, max_step_ms: int) -> None:
        """A group of the partition has this `max_step_ms`, which its members' margins cover."""
        self.step_ms = min(self.step_ms, max_step_ms)


class _Heard(NamedTuple):
    clock_ms: int
    """When, by the partition's clock."""
    last_heard_ms: int
    """The same in group time, as the state says: a later one there was not noted here."""


class Silences:
    """The members of one group."""

    def __init__(self, clock: PartitionClock) -> None:
        self._clock = clock
        self._heard: dict[str, _Heard] = {}

    def note(self, state: GroupState, member_id: str) -> None:
        """A fact of a member was folded: it was heard now, if the state says so."""
        member = state.members.get(member_id)
        if member is not None and member.last_heard_ms == state.now_ms:
            self._heard[member_id] = _Heard(self._clock.now_ms, member.last_heard_ms)

    def note_all(self, state: GroupState) -> None:
        """Reading begins: nobody has been silent for less than group time says. Costs time in the
        number of members.
        """
        for member in state.members.values():
            self._of(state, member)

    def next_look_ms(self, state: GroupState) -> int | None:
        """Returns when a member will have been silent for so long that the group is told, by the
        partition's clock, if nothing is heard of it; None: there is none. Costs time in the number
        of members.
        """
        for member_id in self._heard.keys() - state.members.keys():
            del self._heard[member_id]
        watched = (member for member in state.members.values() if not state.is_away(member.member_id))
        return min((self._clock.now_ms - self._of(state, member) + told_after_ms(member.session_timeout_ms) for member in watched), default=None)

    def untold(self, state: GroupState) -> SilenceObserved | None:
        """Returns what the group does not know by its own time, if a member has been silent for
        long; None: it knows, or none has. Costs time in the number of members.
        """
        silent_ms = {}
        is_long = False
        for member in state.members.values():
            measured_ms = self._of(state, member)
            if not state.is_away(member.member_id) and measured_ms - (state.now_ms - member.last_heard_ms) >= self._clock.step_ms:
                silent_ms[member.member_id] = measured_ms
                is_long |= measured_ms >= told_after_ms(member.session_timeout_ms)
        return SilenceObserved(silent_ms=silent_ms, after_offset=state.last_offset) if is_long else None

    def _of(self, state: GroupState, member: MemberState) -> int:
        """Returns how long the member has been silent, in ms."""
        known_ms = state.now_ms - member.last_heard_ms
        heard = self._heard.get(member.member_id)
        if heard is None or heard.last_heard_ms < member.last_heard_ms:
            self._heard[member.member_id] = _Heard(self._clock.now_ms - known_ms, member.last_heard_ms)
            return known_ms
        return max(known_ms, self._clock.now_ms - heard.clock_ms)


def told_after_ms(session_timeout_ms: int) -> int:
    """After how much silence of a member its group is told: two thirds of its session, more than a
    member lets pass between two facts (docs/protocol.md#m4).
    """
    return session_timeout_ms * 2 // 3
