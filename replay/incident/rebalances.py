"""The rebalances of a group, and what caused each: from members before and after, their last
commits, and what they had been asked to do.

A coordinator stores a classic group's generation when it is complete, so `begin_ms` of one is when
work stopped or the former generation's end, whichever is known. Groups of KIP-848 and KIP-1071
store every step.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable

import attrs

from equipoise.replay.importers.groups.observed import ObservedGroup, ObservedMember, kind_is_classic
from equipoise.replay.incident.history import GroupHistory

_EXPIRED_FROM = 0.6
"""A member that stopped this part of its session timeout before it was removed has expired: commits
come at intervals, so its last sign of life was up to one of them later.
"""
_UNKNOWN_SESSION_MS, _UNKNOWN_INTERVALS = 5_000, 3.0
"""The same for groups of KIP-848 and KIP-1071, whose session timeout is the brokers' and in no
record: at least so long, and so many times the usual time between two commits.
"""
_LONGEST_SESSION_MS = 46_000
"""Of them, too: a `max.poll.interval.ms` is told from a session timeout when it is above this."""
_GOES_ON = 0.3
"""A group goes on without a member when the others commit later than this part of the time since
that member's last commit.
"""
_BACK_WITHIN_MS = 600_000
_REMOVED_WITHIN_MS = 120_000
_COOPERATIVE = ("cooperative-sticky", "stream")
"""Assignors that revoke work in one round and give it out in the next."""
_THREAD = re.compile(r"-StreamThread-[0-9]+(-consumer)?$", re.ASCII)


class Cause(enum.StrEnum):
    """What a rebalance began with. In the order in which they are preferred: what came with a
    member that is gone explains more than what came with one that joined.
    """

    EXPIRED = "a member was not heard of for its session timeout"
    POLL_TIMEOUT = "a member did not poll within max.poll.interval.ms"
    RESTARTED = "a member left and is back"
    LEFT = "a member left"
    GONE = "a member is gone: it left, or was not heard of"
    BACK = "a member is back"
    JOINED = "a member joined"
    SUBSCRIBED = "members subscribed to other topics"
    TOPOLOGY = "the topology changed"
    PARTITIONS = "topics got partitions, or were made or deleted"
    PROBING = "Kafka Streams looked whether copies are ready"
    FOLLOW_UP = "work that was revoked in the round before is given out"
    DELAY_OVER = "Kafka Connect's rebalance delay was over"
    STATIC_BACK = "a static member is back under its instance id"
    ASKED = "a member asked to join again"
    FIRST = "the group began"
    NOTHING = "work stood still without a rebalance"
    OUTSIDE = "offsets were committed by somebody outside the group"


FOLLOWS = (Cause.FOLLOW_UP, Cause.PROBING, Cause.DELAY_OVER)
"""Causes of rebalances that an earlier one has asked for."""


@attrs.frozen(kw_only=True)
class Rebalance:
    """`number`: generation, or group epoch. `members`: those that the cause is about. `stopped_ms`:
    how long before the rebalance they had last committed, -1: unknown. `moved`: work with another
    owner than before. `unowned`: work that had an owner before and has none. `ends_ms`: when every
    member had its part. `lost_state`: processes of Kafka Streams that are back with another process
    id, which is kept in the state directory. `is_static`: all that are gone have an instance id.
    """

    number: int
    begin_ms: int
    end_ms: int
    cause: Cause
    members: tuple[str, ...]
    stopped_ms: int = -1
    joined: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    unowned: tuple[str, ...] = ()
    lost_state: tuple[str, ...] = ()
    is_static: bool = False

    @property
    def took_ms(self) -> int:
        """How long it took, as far as the coordinator stored it."""
        return self.end_ms - self.begin_ms


def rebalances(history: GroupHistory) -> list[Rebalance]:
    """Returns the rebalances in order."""
    found: list[Rebalance] = []
    states = history.states
    settled = ObservedGroup(name=history.group, kind=states[0].group.kind) if states else None
    seen: dict[tuple[str, str], tuple[int, ObservedMember]] = {}
    """Key -> when the member was gone, and as what."""
    known: set[str] = set()
    """Work that some member had."""
    begin_ms: int | None = None
    for number, state in enumerate(states):
        now = state.group
        assert settled is not None, "there is a state"
        if kind_is_classic(now.kind):
            if (now.epoch, set(now.members)) == (settled.epoch, set(settled.members)) and number:
                settled = now
                continue
            begin_ms = state.at_ms
        else:
            if begin_ms is None and (now.epoch, set(now.members)) != (settled.epoch, set(settled.members)):
                begin_ms = state.at_ms
            if begin_ms is None or now.state in ("assigning", "reconciling"):
                continue
        found.append(_rebalance(history, settled, now, begin_ms, state.at_ms, seen, known))
        known.update(now.owners)
        settled, begin_ms = now, None
    return found


def _rebalance(
    history: GroupHistory,
    before: ObservedGroup,
    after: ObservedGroup,
    begin_ms: int,
    end_ms: int,
    seen: dict[tuple[str, str], tuple[int, ObservedMember]],
    known: set[str],
) -> Rebalance:
    gone = [member for name, member in before.members.items() if name not in after.members]
    joined = [member for name, member in after.members.items() if name not in before.members]
    owners, owners_before = after.owners, before.owners
    moved = sorted(work for work, who in owners.items() if work in owners_before and set(who) != set(owners_before[work]))
    unowned = sorted(set(owners_before).difference(owners))
    cause, members, stopped_ms = _cause(history, before, after, gone, joined, begin_ms, seen, known)
    ids = {_key(member): member.process_id for _, member in seen.values()} | {_key(member): member.process_id for member in gone}
    lost = [member for member in joined if ids.get(_key(member), member.process_id) != member.process_id]
    for member in gone:
        seen[_key(member)] = (begin_ms, member)
    for member in joined:
        seen.pop(_key(member), None)
    return Rebalance(
        number=after.epoch,
        begin_ms=begin_ms,
        end_ms=end_ms,
        cause=cause,
        members=_names(members),
        stopped_ms=stopped_ms,
        joined=_names(joined),
        gone=_names(gone),
        moved=tuple(moved),
        unowned=tuple(unowned),
        lost_state=_names(lost),
        is_static=bool(gone) and all(member.instance_id is not None for member in gone),
    )


def _names(members: Iterable[ObservedMember]) -> tuple[str, ...]:
    return tuple(sorted({name_of(member) for member in members}))


def name_of(member: ObservedMember) -> str:
    """The process as an operator knows it: instance id or client id, without the number of a thread
    of Kafka Streams; the member id where it has neither.
    """
    return member.instance_id or _THREAD.sub("", member.client_id) or member.member_id


def _cause(
    history: GroupHistory,
    before: ObservedGroup,
    after: ObservedGroup,
    gone: list[ObservedMember],
    joined: list[ObservedMember],
    at_ms: int,
    seen: dict[tuple[str, str], tuple[int, ObservedMember]],
    known: set[str],
) -> tuple[Cause, list[ObservedMember], int]:
    if not before.members and not seen:
        return Cause.FIRST, joined, -1
    back = _unique(joined) & _unique([*gone, *(member for _, member in seen.values())])
    statics = [member for member in gone if member.instance_id is not None and _key(member) in back]
    really_gone = [member for member in gone if member not in statics]
    if really_gone:
        ends_ms = {member.member_id: max(at_ms, history.gone_ms.get(member.member_id, at_ms)) for member in really_gone}
        heard = [(last_heard_before_ms(history, before, member, ends_ms[member.member_id]), member) for member in really_gone]
        stops = [
            (ms, member) for ms, member in heard
            if ms is not None and not _all_stood_still(history, before, member, ms, ends_ms[member.member_id])
        ]  # fmt: skip
        if stops:
            stopped, member = max(stops, key=lambda pair: pair[0])
            session_ms = member.session_timeout_ms if member.session_timeout_ms > 0 else _LONGEST_SESSION_MS
            if session_ms < member.rebalance_timeout_ms <= stopped:
                return Cause.POLL_TIMEOUT, [member], stopped
            if stopped >= expired_from_ms(history, before, member):
                return Cause.EXPIRED, [member], stopped
        returned = [member for member in really_gone if _key(member) in back]
        stopped_ms = max((stopped for stopped, _ in stops), default=-1)
        if returned:
            return Cause.RESTARTED, returned, stopped_ms
        is_known = bool(stops) or any(_committed_lately(history, before, member, at_ms) for member in really_gone)
        return Cause.LEFT if is_known else Cause.GONE, really_gone, stopped_ms
    if statics:
        return Cause.STATIC_BACK, statics, -1
    if joined:
        returned = [member for member in joined if _key(member) in back and at_ms - seen[_key(member)][0] <= _BACK_WITHIN_MS]
        if returned:
            return Cause.BACK, returned, -1
        twins = [member for member in joined if _takes_the_place(history, before, member, at_ms)]
        return (Cause.RESTARTED, twins, -1) if twins else (Cause.JOINED, joined, -1)
    return _without_change_of_members(before, after, at_ms, known)


def _without_change_of_members(
    before: ObservedGroup, after: ObservedGroup, at_ms: int, known: set[str]
) -> tuple[Cause, list[ObservedMember], int]:
    changed = [member for name, member in after.members.items() if _subscribed(member) != _subscribed(before.members[name])]
    if before.topology_epoch != after.topology_epoch or before.sources != after.sources:
        return Cause.TOPOLOGY, [], -1
    if changed:
        return Cause.SUBSCRIBED, changed, -1
    asked = [member for member in before.members.values() if member.rejoin_ms >= 0]
    if any(member.rejoin_ms == 0 for member in asked) or (set(after.owners) > set(before.owners) and _revoked(before)):
        return Cause.FOLLOW_UP, [], -1
    if any(member.rejoin_ms <= at_ms for member in asked):
        return (Cause.DELAY_OVER if after.kind.value == "connect" else Cause.PROBING), [], -1
    if not known >= set(after.owners) or (set(before.owners) > set(after.owners) and after.protocol not in _COOPERATIVE):
        return Cause.PARTITIONS, [], -1
    return Cause.ASKED, [], -1


def _key(member: ObservedMember) -> tuple[str, str]:
    """By which a process is known again, unless several have the same."""
    return (member.instance_id, "") if member.instance_id is not None else (member.client_id, member.host)


def _unique(members: Iterable[ObservedMember]) -> set[tuple[str, str]]:
    """Keys that one of these members has alone: consumers may share a client id."""
    counts = Counter(map(_key, members))
    return {key for key, count in counts.items() if count == 1}


def _takes_the_place(history: GroupHistory, before: ObservedGroup, member: ObservedMember, at_ms: int) -> bool:
    """Whether a member joined under the client id of one that is still there and is removed soon:
    it was killed, and the coordinator does not know yet.
    """
    former = [each for each in before.members.values() if _key(each) == _key(member)]
    if len(former) != 1:
        return False
    later = [state.group for state in history.states if at_ms < state.at_ms <= at_ms + _REMOVED_WITHIN_MS]
    return any(former[0].member_id not in group.members and member.member_id in group.members for group in later)


def _subscribed(member: ObservedMember) -> tuple[frozenset[str], str | None]:
    return frozenset(member.topics), member.pattern


def _revoked(group: ObservedGroup) -> bool:
    """Whether a cooperative round has left work without an owner, to be given out in the next."""
    return group.protocol in _COOPERATIVE or any(member.revoking for member in group.members.values())


def expired_from_ms(history: GroupHistory, group: ObservedGroup, member: ObservedMember) -> float:
    """A member that was gone this long after its last commit has expired. Its last sign of life was
    up to a heartbeat and a commit interval later than that commit.
    """
    if member.session_timeout_ms > 0:
        return _EXPIRED_FROM * member.session_timeout_ms
    usual = max((history.usual_ms(partition) for work in member.active for partition in group.partitions_of(work)), default=0.0)
    return max(_UNKNOWN_SESSION_MS, _UNKNOWN_INTERVALS * usual)


def _committed_lately(history: GroupHistory, group: ObservedGroup, member: ObservedMember, at_ms: int) -> bool:
    """Whether the member committed within a session timeout before `at_ms`, so that it cannot have
    expired.
    """
    session_ms = member.session_timeout_ms if member.session_timeout_ms > 0 else _UNKNOWN_SESSION_MS
    commits = [history.last_commit(partition, at_ms) for work in member.active for partition in group.partitions_of(work)]
    return any(commit is not None and at_ms - commit[0] < session_ms for commit in commits)


def last_heard_before_ms(history: GroupHistory, group: ObservedGroup, member: ObservedMember, at_ms: int) -> int | None:
    """How long before `at_ms` the member had last committed something of which records were unread
    then, at most since it joined; None: there is nothing like it, so its commits say nothing.
    """
    unread = [last_ms for last_ms, is_behind in _last_commits(history, group, member, at_ms) if is_behind]
    return at_ms - max(*unread, history.joined_ms.get(member.member_id, 0)) if unread else None


def _all_stood_still(history: GroupHistory, group: ObservedGroup, member: ObservedMember, heard_before_ms: int, at_ms: int) -> bool:
    """Whether the others had work and committed nothing since the member was heard of, either, so
    that its silence says nothing.
    """
    others = [each for other in group.members.values() if other is not member for each in _last_commits(history, group, other, at_ms)]
    goes_on = any(last_ms >= at_ms - (1 - _GOES_ON) * heard_before_ms for last_ms, _ in others)
    return not goes_on and any(is_behind for _, is_behind in others)


def _last_commits(history: GroupHistory, group: ObservedGroup, member: ObservedMember, at_ms: int) -> list[tuple[int, bool]]:
    """Of each partition of a member with commits: time of the last one, and whether records were
    unread.
    """
    found = []
    for work in member.active:
        for partition in group.partitions_of(work):
            last, end = history.last_commit(partition, at_ms), history.end_of(partition, at_ms)
            if last is not None and end is not None:
                found.append((last[0], end > last[1]))
    return found
