"""Each rule of the table in docs/protocol.md as the one method that keeps it, overridden."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.events.facts import GroupConfigured
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.member import MemberSession
from equipoise.statemachine.state import FencedIncarnation, MemberState


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

    def step(self, record: FactRecord) -> list[DecisionRecord]:
        decisions = super().step(record)
        self.state.holds.clear()
        self.state.fenced.clear()
        return decisions


class MarginsDoNotCount(GroupMachine):
    """Without "max_step_ms stays within the margins of members and of fenced incarnations"."""

    def step(self, record: FactRecord) -> list[DecisionRecord]:
        if not isinstance(record.event, GroupConfigured):
            return super().step(record)
        known = tuple(self._those())
        margins = [each.lease_margin_ms for each in known]
        for each in known:
            each.lease_margin_ms = record.event.knobs.max_step_ms
        decisions = super().step(record)
        for each, margin_ms in zip(known, margins, strict=True):
            each.lease_margin_ms = margin_ms
        return decisions

    def _those(self) -> Iterable[MemberState | FencedIncarnation]:
        return (*self.state.members.values(), *self.state.fenced.values())


class FencedMarginsDoNotCount(MarginsDoNotCount):
    """Only those of members."""

    def _those(self) -> Iterable[MemberState | FencedIncarnation]:
        return self.state.fenced.values()
