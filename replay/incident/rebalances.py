"""The rebalances of a group, and what caused each: from members before and after, their last
commits, and what they had been asked to do.

A coordinator stores a classic group's generation when it is complete, so `begin_ms` of one is when
work stopped or the former generation's end, whichever is known. Groups of KIP-848 and KIP-1071
store every step.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup, kind_is_classic
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.coordinator_history import GroupHistory
from equipoise.replay.incident.other_causes import NEW_ID
from equipoise.replay.wording import span_text

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
_POLL_SLACK_MS = 2_500
_NO_PROGRESS_MS = 5_000
_ALIVE_MS = 3_000
"""A member that committed so shortly before it was gone, if only what it had committed before, was
alive: it left.
"""
_COOPERATIVE = ("cooperative-sticky", "stream")
"""Assignors that revoke work in one round and give it out in the next."""
_DEFAULT_ID = re.compile(r"rdkafka|sarama|kgo|confluent-kafka-(?:python|go|dotnet)|kafkajs|kafka-node-client", re.ASCII)
_THREAD = re.compile(r"-StreamThread-[0-9]+(-consumer)?$", re.ASCII)


def rebalances(history: GroupHistory) -> list[Rebalance]:
    """Returns the rebalances in order: what the coordinator stored, and what logs tell of them."""
    return with_told(_stored(history) if history.has_records else [], history.told)


def with_told(stored: Sequence[Rebalance], told: Sequence[Rebalance]) -> list[Rebalance]:
    """A log's reason beats what was worked out from commits. A generation is the same where its
    number is, and its time nearly.
    """
    if not stored or not told:
        return list(stored or told)
    found = list(stored)
    numbers: dict[int, list[int]] = {}
    for index, each in enumerate(found):
        numbers.setdefault(each.number, []).append(index)
    alone: list[Rebalance] = []
    for each in told:
        near = [index for index in numbers.get(each.number, ()) if abs(found[index].end_ms - each.end_ms) <= _SAME_WITHIN_MS]
        if near:
            index = min(near, key=lambda one: abs(found[one].end_ms - each.end_ms))
            found[index] = _with_reason(found[index], each)
        elif each.cause in (Cause.TWICE, Cause.COORDINATOR) or not found[0].begin_ms <= each.begin_ms <= found[-1].end_ms:
            alone.append(each)
    return sorted([*found, *alone], key=lambda each: (each.begin_ms, each.number))


_SAME_WITHIN_MS = 60_000
_VAGUE = (Cause.UNSEEN, Cause.ASKED, Cause.COORDINATOR, Cause.FIRST)


def _with_reason(stored: Rebalance, told: Rebalance) -> Rebalance:
    places = told.places
    begin_ms = min(stored.begin_ms, told.begin_ms)
    stopped_ms = stored.stopped_ms if stored.stopped_ms < 0 else max(0, stored.stopped_ms - (stored.begin_ms - begin_ms))
    if told.cause in _VAGUE or stored.cause in told.may_be:
        return attrs.evolve(stored, begin_ms=begin_ms, stopped_ms=stopped_ms, detail=told.detail, places=places)
    is_open = told.cause is not Cause.JOINED  # records name the clients of KIP-848
    return attrs.evolve(
        stored,
        begin_ms=begin_ms,
        stopped_ms=stopped_ms,
        cause=told.cause,
        members=_named(stored, told),
        detail=told.detail,
        places=places,
        may_be=told.may_be if is_open else (),
        untold=told.untold if is_open else "",
    )


def _named(stored: Rebalance, told: Rebalance) -> tuple[str, ...]:
    """Returns who began it: records name the clients of KIP-848, whose brokers log ids only."""
    if stored.members and (stored.cause is told.cause or not told.members):
        return stored.members
    if all(map(NEW_ID.fullmatch, told.members)):
        return (stored.gone if told.gone else stored.joined) or told.members
    return told.members


def _stored(history: GroupHistory) -> list[Rebalance]:
    found: list[Rebalance] = []
    states = history.states
    settled = ObservedGroup(name=history.group, kind=states[0].group.kind) if states else None
    seen: dict[tuple[str, str], tuple[int, ClusterMember]] = {}
    """Key -> when the member was gone, and as what."""
    known: dict[str, set[str]] = {}
    """Work that some member had -> the instances that had it last."""
    begin_ms: int | None = None
    releases = _Releases()
    for number, state in enumerate(states):
        now = state.group
        releases.note(state.at_ms, now)
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
        made = _rebalance(history, settled, now, begin_ms, state.at_ms, seen, known)
        found.append(attrs.evolve(made, detail=made.detail or releases.told()))
        known.update({work: _instances(now, who) for work, who in now.owners.items()})
        settled, begin_ms = now, None
    return found


class _Releases:
    """Measures how long members of KIP-848 and KIP-1071 took to give up what they had to."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._longest: tuple[int, str] = (0, "")

    def note(self, at_ms: int, group: ObservedGroup) -> None:
        """Notes a state of the group."""
        releasing = {name for name, member in group.members.items() if member.revoking}
        for name in self._since.keys() - releasing:
            took_ms = at_ms - self._since.pop(name)
            if name in group.members:
                self._longest = max(self._longest, (took_ms, name_of(group.members[name])))
        for name in releasing:
            self._since.setdefault(name, at_ms)

    def told(self) -> str:
        """Names the slowest since the last call; "": none was slow."""
        (took_ms, name), self._longest = self._longest, (0, "")
        return f"{name} took {span_text(took_ms)} to give up its work" if took_ms >= _SLOW_RELEASE_MS else ""


_SLOW_RELEASE_MS = 5_000


def _rebalance(
    history: GroupHistory,
    before: ObservedGroup,
    after: ObservedGroup,
    begin_ms: int,
    end_ms: int,
    seen: dict[tuple[str, str], tuple[int, ClusterMember]],
    known: Mapping[str, set[str]],
) -> Rebalance:
    gone = [member for name, member in before.members.items() if name not in after.members]
    joined = [member for name, member in after.members.items() if name not in before.members]
    owners, owners_before = after.owners, before.owners
    moved = sorted(
        work for work, who in owners.items() if work in owners_before and _processes(after, who) != _processes(before, owners_before[work])
    )
    unowned = sorted(set(owners_before).difference(owners))
    cause, members, stopped_ms = _cause(history, before, after, gone, joined, begin_ms, seen, known)
    untold = ""
    if cause in (Cause.LEFT, Cause.RESTARTED) and any(_may_not_have_polled(history, member, begin_ms) for member in gone):
        lived = f"it lived, and committed nothing new for {span_text(stopped_ms)}: " if stopped_ms >= _NO_PROGRESS_MS else ""
        untold = f"{lived}its own log tells whether it was closed, or worked on one batch for longer than its max.poll.interval.ms"
    may_be = (Cause.POLL_TIMEOUT,) if untold else ()
    if cause is Cause.POLL_TIMEOUT and not kind_is_classic(before.kind) and stopped_ms < _EXPIRED_FROM * _LONGEST_SESSION_MS:
        cause, may_be = Cause.EXPIRED, (Cause.POLL_TIMEOUT,)
        untold = (
            f"it was silent for {span_text(stopped_ms)}: its max.poll.interval.ms is near that, and the brokers' session timeout may be,"
            " which is in no record: its own log, or the coordinating broker's, tells which"
        )
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
        members=names_of(members),
        stopped_ms=stopped_ms,
        joined=names_of(joined),
        gone=names_of(gone),
        moved=tuple(moved),
        unowned=tuple(unowned),
        given=tuple(sorted(set(owners).difference(owners_before))) if before.members else (),
        changed=tuple(sorted(work for work, who in owners.items() if work in known and _instances(after, who) != known[work])),
        lost_state=names_of(lost),
        may_be=may_be,
        untold=untold,
        is_static=bool(gone) and all(member.instance_id is not None for member in gone),
    )


def _may_not_have_polled(history: GroupHistory, member: ClusterMember, gone_ms: int) -> bool:
    """Returns whether a member had been in the group for its poll interval: commits go on while a
    batch is worked on. Workers of Kafka Connect have none.
    """
    if history.states[-1].group.kind is GroupKind.CONNECT:
        return False
    joined_ms = history.joined_ms.get(member.member_id)
    return joined_ms is None or gone_ms - joined_ms >= max(0, member.rebalance_timeout_ms)


def _instances(group: ObservedGroup, names: Iterable[str]) -> set[str]:
    """The threads of a Kafka Streams process are one owner."""
    return {group.members[name].process_id or group.members[name].instance_id or name for name in names}


def _processes(group: ObservedGroup, names: Iterable[str]) -> set[str]:
    """A static member keeps its instance id, and what it had, when its process is replaced."""
    return {group.members[name].instance_id or name for name in names}


def names_of(members: Iterable[ClusterMember]) -> tuple[str, ...]:
    """Returns the names of members, each once."""
    return tuple(sorted({name_of(member) for member in members}))


def name_of(member: ClusterMember) -> str:
    """The process as an operator knows it: instance id or client id, without the number of a thread
    of Kafka Streams; the member id where it has neither.
    """
    if member.instance_id is not None:
        return member.instance_id
    if _DEFAULT_ID.fullmatch(member.client_id):  # all processes are called so
        own = member.member_id.removeprefix(f"{member.client_id}-")[:8]
        host = member.host.lstrip("/")
        return f"{member.client_id}-{own} at {host}" if host else f"{member.client_id}-{own}"
    return _THREAD.sub("", member.client_id) or member.member_id


def _cause(
    history: GroupHistory,
    before: ObservedGroup,
    after: ObservedGroup,
    gone: list[ClusterMember],
    joined: list[ClusterMember],
    at_ms: int,
    seen: dict[tuple[str, str], tuple[int, ClusterMember]],
    known: Mapping[str, set[str]],
) -> tuple[Cause, list[ClusterMember], int]:
    if not before.members and not seen:
        return Cause.FIRST, joined, -1
    if after.is_adopted and not before.is_adopted:
        return Cause.ADOPTED, joined, -1
    back = _unique(joined) & _unique([*gone, *(member for _, member in seen.values())])
    statics = [member for member in gone if member.instance_id is not None and _key(member) in back]
    really_gone = [member for member in gone if member not in statics]
    if really_gone:
        ends_ms = {member.member_id: max(at_ms, history.gone_ms.get(member.member_id, at_ms)) for member in really_gone}
        heard = [(last_heard_before_ms(history, before, member, ends_ms[member.member_id]), member) for member in really_gone]
        stops = [
            (ms, member) for ms, member in heard if ms is not None and not _all_stood_still(history, before, member, ms, ends_ms[member.member_id])
        ]
        if stops:
            stopped, member = max(stops, key=lambda pair: pair[0])
            is_alive = _committed_since_ms(history, before, member, ends_ms[member.member_id]) < min(_ALIVE_MS, stopped)
            if not is_alive or member.instance_id is not None:
                if _is_out_by_poll(history, before, member, stopped):
                    return Cause.POLL_TIMEOUT, [member], stopped
                if stopped >= expired_from_ms(history, before, member):
                    return Cause.EXPIRED, [member], stopped
            elif _is_out_by_poll(history, before, member, stopped):
                return Cause.POLL_TIMEOUT, [member], stopped
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
    before: ObservedGroup, after: ObservedGroup, at_ms: int, known: Mapping[str, set[str]]
) -> tuple[Cause, list[ClusterMember], int]:
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
    if not known.keys() >= set(after.owners) or (set(before.owners) > set(after.owners) and after.protocol not in _COOPERATIVE):
        return (Cause.CONNECTORS if after.kind is GroupKind.CONNECT else Cause.PARTITIONS), [], -1
    return Cause.ASKED, [], -1


def _is_out_by_poll(history: GroupHistory, group: ObservedGroup, member: ClusterMember, stopped_ms: int) -> bool:
    """Returns whether a member was out because it did not poll: the silence is that interval, but
    for the time to its last commit; and it is not that of its session. aiokafka joins with its
    session timeout in its place, so equal ones say nothing.
    """
    poll_ms, session_ms = member.rebalance_timeout_ms, member.session_timeout_ms
    interval_ms = max((history.usual_ms(partition) for work in member.active for partition in group.partitions_of(work)), default=0.0)
    slack_ms = interval_ms + _POLL_SLACK_MS
    if poll_ms <= 0 or poll_ms == session_ms:
        return False
    waits = [poll_ms] if member.instance_id is None else [poll_ms, poll_ms + max(0, session_ms)]  # a static member does not leave
    longest_session_ms = session_ms if session_ms > 0 else _LONGEST_SESSION_MS
    is_near = any(abs(stopped_ms - wait_ms) <= slack_ms for wait_ms in waits) or longest_session_ms < poll_ms <= stopped_ms
    return is_near and not _EXPIRED_FROM * longest_session_ms <= stopped_ms <= longest_session_ms + slack_ms


def _committed_since_ms(history: GroupHistory, group: ObservedGroup, member: ClusterMember, at_ms: int) -> float:
    """Returns how long before `at_ms` the member had last committed anything, progress or not."""
    times = [history.last_sign_ms(partition, at_ms) for work in member.active for partition in group.partitions_of(work)]
    return at_ms - max((each for each in times if each is not None), default=-math.inf)


def _key(member: ClusterMember) -> tuple[str, str]:
    """By which a process is known again, unless several have the same."""
    return (member.instance_id, "") if member.instance_id is not None else (member.client_id, member.host)


def _unique(members: Iterable[ClusterMember]) -> set[tuple[str, str]]:
    """Keys that one of these members has alone: consumers may share a client id."""
    counts = Counter(map(_key, members))
    return {key for key, count in counts.items() if count == 1}


def _takes_the_place(history: GroupHistory, before: ObservedGroup, member: ClusterMember, at_ms: int) -> bool:
    """Returns whether a member joined under the client id of one that is still there and is removed
    soon: it was killed, and the coordinator does not know yet.
    """
    former = [each for each in before.members.values() if _key(each) == _key(member)]
    if len(former) != 1:
        return False
    states = history.states
    for state in itertools.islice(states, bisect_right(states, at_ms, key=lambda each: each.at_ms), None):
        if state.at_ms > at_ms + _REMOVED_WITHIN_MS:
            break
        if former[0].member_id not in state.group.members and member.member_id in state.group.members:
            return True
    return False


def _subscribed(member: ClusterMember) -> tuple[frozenset[str], str | None]:
    return frozenset(member.topics), member.pattern


def _revoked(group: ObservedGroup) -> bool:
    """Returns whether a cooperative round has left work without an owner, to be given out in the
    next.
    """
    return group.protocol in _COOPERATIVE or any(member.revoking for member in group.members.values())


def expired_from_ms(history: GroupHistory, group: ObservedGroup, member: ClusterMember) -> float:
    """A member that was gone this long after its last commit has expired. Its last sign of life was
    up to a heartbeat and a commit interval later than that commit.
    """
    if member.session_timeout_ms > 0:
        return _EXPIRED_FROM * member.session_timeout_ms
    usual = max((history.usual_ms(partition) for work in member.active for partition in group.partitions_of(work)), default=0.0)
    return max(_UNKNOWN_SESSION_MS, _UNKNOWN_INTERVALS * usual)


def _committed_lately(history: GroupHistory, group: ObservedGroup, member: ClusterMember, at_ms: int) -> bool:
    """Returns whether the member committed within a session timeout before `at_ms`, so that it
    cannot have expired.
    """
    session_ms = member.session_timeout_ms if member.session_timeout_ms > 0 else _UNKNOWN_SESSION_MS
    return _committed_since_ms(history, group, member, at_ms) < session_ms


def last_heard_before_ms(history: GroupHistory, group: ObservedGroup, member: ClusterMember, at_ms: int) -> int | None:
    """Returns how long before `at_ms` the member had last committed something of which records were
    unread then, at most since it joined; None: there is nothing like it, so its commits say
    nothing.
    """
    unread = [last_ms for last_ms, is_behind in _last_commits(history, group, member, at_ms) if is_behind]
    return at_ms - max(*unread, history.joined_ms.get(member.member_id, 0)) if unread else None


def _all_stood_still(history: GroupHistory, group: ObservedGroup, member: ClusterMember, heard_before_ms: int, at_ms: int) -> bool:
    """Returns whether the others had work and committed nothing since the member was heard of,
    either, so that its silence says nothing.
    """
    others = [each for other in group.members.values() if other is not member for each in _last_commits(history, group, other, at_ms)]
    goes_on = any(last_ms >= at_ms - (1 - _GOES_ON) * heard_before_ms for last_ms, _ in others)
    return not goes_on and any(is_behind for _, is_behind in others)


def _last_commits(history: GroupHistory, group: ObservedGroup, member: ClusterMember, at_ms: int) -> list[tuple[int, bool]]:
    """Returns, of each partition of a member with commits: time of the last one, and whether
    records were unread.
    """
    found = []
    for work in member.active:
        for partition in group.partitions_of(work):
            last, end = history.last_commit(partition, at_ms), history.end_of(partition, at_ms)
            if last is not None and end is not None:
                found.append((last[0], end > last[1]))
    return found
