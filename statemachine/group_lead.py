"""One group of a partition, as its leader sees it: what was folded, published and stored, when its
next tick is due, and whether it is at rest (docs/protocol.md#l11).
"""

from __future__ import annotations

import attrs

from equipoise.events.errors import GroupHalted
from equipoise.events.facts import BaseRequested, ChangeMeasured, GroupConfigured, MemberJoined, MemberUnchanged, ProbingTick, SilenceObserved
from equipoise.events.records import FactRecord
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.member_silence import PartitionClock, Silences, told_after_ms
from equipoise.statemachine.published import PublishedDecisions
from equipoise.statemachine.state import GroupPhase
from equipoise.statemachine.ticks import EARLIER, PlannedTick
from equipoise.statemachine.watched_change import ChangeObserver

REST_AFTER_MS = 60_000
"""For so long nothing but keepalives, ticks and requests for bases came to a group at rest: what
the leader measures, as the speed of a topic, it measures in group time.
"""
_QUIET = frozenset({MemberUnchanged, ProbingTick, BaseRequested})


@attrs.frozen(kw_only=True)
class StoredCheckpoint:
    """A group's state after the fact at `offset`, with `number` decisions made so far
    (docs/protocol.md#l7).
    """

    group: str
    offset: int
    number: int
    state: bytes
    is_base: bool = False
    """A `BaseRequested` asked for it (docs/protocol.md#l10)."""


class GroupLead:
    """One group of the partition. `clock`: the partition's; None: one that stands still."""

    def __init__(self, name: str, machine: GroupMachine, clock: PartitionClock | None = None) -> None:
        self.name = name
        self.machine = machine
        self._clock = clock = clock or PartitionClock()
        self._silences = Silences(clock)
        self._rests_from_ms = clock.now_ms
        """Earliest time of rest, by the partition's clock; its first fact moves it."""
        self.look_at_ms: int | None = None
        """When to look for members that have been silent for long, by the partition's clock; None:
        not planned.
        """
        self.halted: GroupHalted | None = None
        """Why the group halted; None: it did not."""
        self.published = PublishedDecisions()
        self.refused: set[int] = set()
        """Offsets of facts, not yet folded, that published decisions refuse because a leader's
        build lacked what they ask for (docs/protocol.md#l6).
        """
        self.checkpoint_offset = -1
        """Fact of the last checkpoint that was stored or restored; -1: none."""
        self.from_offset = 0
        """First fact of the group that was folded here without a checkpoint before it."""
        self.unstored_offset = 0
        """First fact that came when all before it were in a stored checkpoint."""
        self.folded_ms: int | None = None
        """When its last fact was folded, on the host's clock, if its next tick was not planned
        since; None: it was. Planned when somebody asks, which is seldom beside facts.
        """
        self.tick_under_way = False
        self._shows_reading = False
        """Nothing was decided on new settings: the next tick, which is due at once, is the only
        sign that the leader has read them.
        """
        self._planned: PlannedTick | None = None
        self.waiting: list[StoredCheckpoint] = []
        """Checkpoints that were taken and whose decisions are not all acknowledged."""
        self.observer = ChangeObserver()
        """Counts what a planned change costs."""
        self.observed_ends: dict[str, dict[int, int]] = {}
        self.observed_racks: dict[str, dict[int, tuple[str, ...]]] = {}

    @property
    def tick_at_ms(self) -> int | None:
        """Returns when its next tick is due, on the host's clock; None: the group is empty, or
        halted.
        """
        planned = self.planned
        return None if planned is None else planned.at_ms

    @property
    def planned(self) -> PlannedTick | None:
        """Its next tick: at the next deadline, and at the latest max_step_ms after the last record
        of a group with members (docs/protocol.md#l3); None: the group is empty and no change of it
        is judged or undone now, or it is halted.
        """
        now_ms, self.folded_ms = self.folded_ms, None
        if now_ms is None:
            return self._planned
        state = self.machine.state
        self._planned = None
        tells = self.observer.undoes(state) or self.observer.verdict is not None
        if (state.members or tells) and self.halted is None:
            wait_ms = longest_ms = state.settings.max_step_ms
            if self.machine.has_deadline_before(state.now_ms + wait_ms):
                deadline_ms = self.machine.next_deadline_ms
                wait_ms = wait_ms if deadline_ms is None else min(wait_ms, deadline_ms - state.now_ms)
            at_ms = now_ms if tells or self._shows_reading else now_ms + max(1, wait_ms)
            rests = self._rests_from_ms <= self._clock.now_ms and self.machine.rests
            self._planned = PlannedTick(at_ms, at_ms - (longest_ms // EARLIER if wait_ms == longest_ms else 0), rests)
        return self._planned

    def begin_at_rest(self) -> None:
        """The group was led before, so it may be at rest. Costs time in the number of members."""
        self._silences.note_all(self.machine.state)
        self._clock.limit(self.machine.state.settings.max_step_ms)

    def note(self, record: FactRecord, *, is_decided: bool) -> None:
        """A fact was folded: who was heard, and whether the group may be at rest. `is_decided`:
        something was decided on it.
        """
        event = record.event
        kind = event.__class__
        if kind is GroupConfigured:
            self._shows_reading = not is_decided and bool(self.machine.state.members)
        elif kind is ProbingTick or kind is SilenceObserved or is_decided:
            self._shows_reading = False
        if kind is SilenceObserved:
            longest_ms = max((told_after_ms(member.session_timeout_ms) for member in self.machine.state.members.values()), default=0)
            self._rests_from_ms = self._clock.now_ms + max(longest_ms, REST_AFTER_MS)  # until they were heard, or are removed
            return
        if kind not in _QUIET:
            self._rests_from_ms = self._clock.now_ms + REST_AFTER_MS
        member_id = getattr(event, "member_id", None)
        if member_id is not None:
            self._silences.note(self.machine.state, member_id)
        if kind is MemberJoined:
            self.look_at_ms = None  # its session may be shorter than those of the others
        elif kind is GroupConfigured:
            self._clock.limit(self.machine.state.settings.max_step_ms)

    def plan_look(self) -> int | None:
        """Plans and returns `look_at_ms`. Costs time in the number of members."""
        self.look_at_ms = None
        if self.halted is None and self.machine.state.phase is GroupPhase.LEADING:
            next_ms = self._silences.next_look_ms(self.machine.state)
            self.look_at_ms = None if next_ms is None else max(next_ms, self._clock.now_ms + self._clock.step_ms)
        return self.look_at_ms

    def tick(self) -> ProbingTick | SilenceObserved | GroupConfigured | ChangeMeasured:
        """Returns what its next tick says: the verdict on a change, or the settings of before, if
        it is to be undone (docs/protocol.md#d14).
        """
        change = self.machine.state.change
        if change is not None and self.observer.undoes(self.machine.state):
            number, change_id = self.machine.state.config_number, change.planned.change_id
            return attrs.evolve(change.former, made_from=number, change_id=change_id, by="the leader")
        if self.observer.verdict is not None:
            return self.observer.verdict
        untold = self._silences.untold(self.machine.state) if self.machine.state.phase is GroupPhase.LEADING else None
        return ProbingTick() if untold is None else untold

    @property
    def last_published(self) -> int:
        """Highest number of a published decision; `PartitionLead.acknowledged` advances it."""
        return self.published.last_number

    @property
    def confirmed(self) -> int:
        """Recomputed decisions that equal the published ones."""
        return self.published.confirmed

    @property
    def not_compared(self) -> int:
        """Published hashes of the state in a form that this build does not write."""
        return self.published.not_compared

    @property
    def is_stored(self) -> bool:
        """Returns whether its last fact is in a stored checkpoint."""
        return self.machine.state.last_offset <= self.checkpoint_offset

    @property
    def recovery_offset(self) -> int:
        """The first fact that a worker needs to take this group over."""
        return self.from_offset if self.checkpoint_offset < 0 else max(self.checkpoint_offset + 1, self.unstored_offset)
