"""Each rule of the table in docs/protocol.md as the one method that keeps it, overridden."""

from __future__ import annotations

from equipoise.events.records import DecisionRecord, Record
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.member import MemberSession


class DatedFromArrival(MemberSession):
    """Without "lease dated from its sending"."""

    def _lease_dates_from(self, sent_ms: int, arrived_ms: int) -> int:
        return arrived_ms


class Revives(MemberSession):
    """Without "a lapsed lease never revives"."""

    def _may_revive(self) -> bool:
        return True


class TimeFollowsTheClock(GroupMachine):
    """Without "group time clamped to max_step_ms"."""

    def _time_step_ms(self, previous_append_ms: int, append_ms: int) -> int:
        return max(0, append_ms - previous_append_ms)


class NoMargin(MemberSession):
    """Without "margin for failovers"."""

    def lease_lasts_ms(self) -> int:
        return self.settings.session_timeout_ms


class NoHold(MemberSession):
    """Without "hold after force"."""

    def _hold_ends_ms(self, read_ms: int, hold_ms: int) -> int:
        return read_ms


class HeartbeatsAlone(MemberSession):
    """Without "a fetch that reached the end"."""

    def _lease_rests_on(self, heartbeat_ms: int, fetch_ms: int) -> int:
        return heartbeat_ms


class HoldsAreForgotten(GroupMachine):
    """Without "a task taken by force is waited for until it is known to run": only its first new
    owner waits.
    """

    def step(self, record: Record) -> list[DecisionRecord]:
        decisions = super().step(record)
        self.state.holds.clear()
        self.state.fenced.clear()
        return decisions
