"""Finds the periods in which a member could not run the tasks it owned because its lease had ended.

A member runs a task only under a fresh lease. The lease is dated from the sending of its last fact
that the broker appended (docs/protocol.md#m4). So a log shows a silent period in two ways:

- An incarnation expires. It was silent from its last fact on. It may have run a little longer;
  nobody can know.
- Two facts of one incarnation are further apart than its lease. It was silent between them,
  whatever it reported later: facts that waited in its producer are appended when the brokers are
  back.

Times are append times of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import AssignmentObserved
from equipoise.events.records import DecisionRecord, Record
from equipoise.statemachine.state import GroupPhase, GroupState


@attrs.frozen
class SilentPeriod:
    """`member_id` was silent over [`from_ms`, `to_ms`). `ended`: its incarnation ended at `to_ms`.
    """

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
        """Begins with the members of a stored state, as if they were heard at that time."""
        self._heard = {name: (member.incarnation, append_ms) for name, member in state.members.items()}

    def note(self, record: Record, decisions: Iterable[DecisionRecord], state: GroupState) -> list[SilentPeriod]:
        """Returns the silent periods that this step ends. `state`: after the step."""
        event = record.event
        found = []
        for decision in decisions:
            ended = decision.decision
            if isinstance(ended, MemberExpired):
                incarnation, heard_ms = self._heard.pop(ended.member_id, (ended.incarnation, record.append_ms))
                if ended.cause != "revocation_timeout" and incarnation == ended.incarnation:
                    found.append(SilentPeriod(ended.member_id, heard_ms, record.append_ms, ended=True))
        if isinstance(event, AssignmentObserved):
            found += [SilentPeriod(each.member_id, min(each.ended_ms, record.append_ms), record.append_ms, ended=True) for each in event.ended]
        member_id = getattr(event, "member_id", None)
        member = None if member_id is None else state.members.get(member_id)
        if member is not None and member.incarnation == getattr(event, "incarnation", None):
            incarnation, heard_ms = self._heard.get(member.member_id, (member.incarnation, record.append_ms))
            lease_ms = member.session_timeout_ms - member.lease_margin_ms
            leads = state.phase is not GroupPhase.SHADOWING  # members of another leader hold no lease
            if leads and incarnation == member.incarnation and record.append_ms - heard_ms > lease_ms:
                found.append(SilentPeriod(member.member_id, heard_ms, record.append_ms, ended=False))
            self._heard[member.member_id] = member.incarnation, record.append_ms
        return found
