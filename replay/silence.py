"""Finds the periods in which a member could not run the tasks it owned because its lease had ended.

A member runs a task only under a fresh lease. The lease is dated from the sending of its last fact
that the broker appended (docs/protocol.md#m4). So a log shows a silent period in two ways:

- An incarnation expires. It was silent from its last fact on. It may have run a little longer, at
  rest by as much as its interval; nobody can know. If a witness proved its end, it ran until
  PROVEN_WITHIN_MS before that.
- Two facts of one incarnation are further apart than its lease. It was silent between them,
  whatever it reported later: facts that waited in its producer are appended when the brokers are
  back.

Times are append times of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import AssignmentObserved, MemberEnded
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.statemachine.state import GroupPhase, GroupState

PROVEN_WITHIN_MS = 1_000
"""Longest time from the end of a process to the proof of its witness, as measured
(docs/benchmarks.md#killed-processes).
"""


@attrs.frozen
class SilentPeriod:
    """`member_id` was silent over [`from_ms`, `to_ms`). `ended`: its incarnation ended at `to_ms`."""

    member_id: str
    from_ms: int
    to_ms: int
    ended: bool


class SilenceFinder:
    """Finds the silent periods of one group, step by step. The cost of a step does not depend on
    the size of the group.
    """

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}
        """Member -> (incarnation, append time of its last fact in ms)."""

    def begin(self, state: GroupState, append_ms: int) -> None:
        """Begins with the members of a state that was stored at that time: what the group's own
        clock says of when each was heard last.
        """
        silent_ms = {name: state.now_ms - member.last_heard_ms for name, member in state.members.items()}
        self._heard = {name: (member.incarnation, append_ms - silent_ms[name]) for name, member in state.members.items()}

    def note(self, record: FactRecord, decisions: Iterable[DecisionRecord], state: GroupState) -> list[SilentPeriod]:
        """Returns the silent periods that this step ends. `state`: after the step."""
        event, now_ms = record.event, record.append_ms
        found: list[SilentPeriod] = []
        for decision in decisions:
            ended = decision.decision
            if isinstance(ended, MemberExpired):
                incarnation, heard_ms = self._heard.pop(ended.member_id, (ended.incarnation, now_ms))
                if isinstance(event, MemberEnded) and event.member_id == ended.member_id:
                    heard_ms = max(heard_ms, now_ms - PROVEN_WITHIN_MS)
                if ended.cause != "revocation_timeout" and incarnation == ended.incarnation:
                    found.append(SilentPeriod(ended.member_id, heard_ms, now_ms, ended=True))
        if event.__class__ is AssignmentObserved:
            found += [SilentPeriod(each.member_id, min(each.ended_ms, now_ms), now_ms, ended=True) for each in event.ended]
        member_id = getattr(event, "member_id", None)
        member = None if member_id is None else state.members.get(member_id)
        if member is not None and member.incarnation == event.incarnation:  # type: ignore[union-attr]  # who names a member names its incarnation
            heard = self._heard.get(member.member_id)
            lapsed = heard is not None and heard[0] == member.incarnation and now_ms - heard[1] > member.session_timeout_ms - member.lease_margin_ms
            if lapsed and heard is not None and state.phase is not GroupPhase.SHADOWING:  # members of another leader hold no lease
                found.append(SilentPeriod(member.member_id, heard[1], now_ms, ended=False))
            self._heard[member.member_id] = member.incarnation, now_ms
        return found
