"""The rebalances of a group as the logs of brokers tell them, with the brokers' reasons."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from equipoise.replay.importers.evidence.files import BrokerStart
from equipoise.replay.importers.evidence.reasons import Why, classify, of_client
from equipoise.replay.importers.evidence.statements import Said, Statement
from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.coordinator_history import ObservedState
from equipoise.replay.incident.named_causes import CAUSES, MOST_PLACES, SOON_MS, NamedCause, observed, strongest
from equipoise.replay.incident.rebalances import name_of, names_of
from equipoise.replay.wording import span_text

LATE_MS = 10_000
"""A rebalance of the classic protocol that takes so long waited for members."""
_DEFAULT_POLL_MS = 300_000
_POLL_SLACK_MS = 2_500
_BACK_WITHIN_MS = 600_000
_LOADED_WITHIN_MS = 600_000
"""A broker that began has the group so soon."""
_STATIC_AGAIN_MS = 300_000
_RESTART_TIMES = 3
"""A static member that is replaced so often within _STATIC_AGAIN_MS is two processes."""
_MOST_MEMBERS, _MOST_STATES = 2_000, 400


@attrs.define(kw_only=True)
class _Open:
    """A rebalance that is not over."""

    begin_ms: int
    number: int = -1
    causes: list[NamedCause] = attrs.field(factory=list)
    joined: dict[str, ClusterMember] = attrs.field(factory=dict)
    gone: dict[str, ClusterMember] = attrs.field(factory=dict)
    places: list[str] = attrs.field(factory=list)
    stabilized_ms: int = -1
    late: list[ClusterMember] = attrs.field(factory=list)
    has_begin: bool = True
    count: int = -1

    def note(self, place: str) -> None:
        if len(self.places) < MOST_PLACES and place not in self.places:
            self.places.append(place)


@attrs.frozen
class _Recent:
    """A reason that a line gave, for the rebalance that is open or begins soon."""

    at_ms: int
    place: str
    reason: NamedCause


@attrs.define(kw_only=True)
class BrokerStory:
    """Folds what brokers say of one group, in order of time. `found`: its rebalances. `states`: the
    group as far as is known after each.
    """

    group: str
    poll_ms: int = _DEFAULT_POLL_MS
    kind: GroupKind = GroupKind.CLASSIC_CONSUMER
    clients: dict[str, str] = attrs.field(factory=dict)
    """Member id -> client id, of members of KIP-848, whose ids do not begin with it."""
    found: list[Rebalance] = attrs.field(factory=list)
    states: list[ObservedState] = attrs.field(factory=list)
    members: dict[str, ClusterMember] = attrs.field(factory=dict)
    _open: _Open | None = None
    _recent: list[_Recent] = attrs.field(factory=list)
    _gone_ms: dict[str, int] = attrs.field(factory=dict)
    """Process -> when it was gone last."""
    _replaced: dict[str, list[int]] = attrs.field(factory=dict)
    _number: int = -1
    _is_new: bool = True
    _unloaded: Statement | None = None
    _last_ms: int = -1
    """Of what was folded before."""
    starts: Sequence[Sequence[BrokerStart]] = ()
    """Of each file: the beginnings of its broker."""

    def take(self, each: Statement) -> None:
        """Folds one statement."""
        said, detail = each.said, each.detail
        match said:
            case Said.PREPARING:
                self._prepare(each)
            case Said.STABILIZED:
                current = self._current(each, number=each.number)
                current.number, current.stabilized_ms, current.count = each.number, each.at_ms, detail.count
            case Said.ASSIGNED:
                current = self._current(each, number=each.number)
                current.number = each.number
                current.count = detail.count if detail.count >= 0 else current.count
                self._close(each.at_ms)
            case Said.EMPTY:
                current = self._current(each, number=each.number)
                current.number, current.count = each.number, 0
                for name, member in self.members.items():
                    current.gone.setdefault(name, member)
                self._close(each.at_ms)
            case Said.ADDED:
                member = self._member(detail.member, detail.instance, detail.client)
                self._recently(each, NamedCause(self._joined_as(member, each.at_ms), member=member))
            case Said.LEFT:
                why = of_client(detail.text)
                cause = Cause.POLL_TIMEOUT if why is Why.POLL_TIMEOUT else Cause.LEFT
                self._remove(each, cause, detail.member, detail.instance, "" if detail.text in ("", "not provided") else f"it said: {detail.text}")
            case Said.EXPIRED:
                self._remove(each, Cause.EXPIRED, detail.member, detail.instance, "")
            case Said.TOO_SLOW:
                told = f"it had not given up its work after {span_text(each.number)}" if each.number > 0 else ""
                self._remove(each, Cause.TOO_SLOW, detail.member, detail.instance, told)
            case Said.NOT_JOINED | Said.NOT_SYNCED:
                self._late(each)
            case Said.STATIC_BACK:
                self._replace(each)
            case Said.FENCED:
                self._fence(each)
            case Said.EPOCH:
                self._epoch(each)
            case Said.TARGET:
                if self._open is not None and self._open.number <= each.number:
                    self._open.stabilized_ms = each.at_ms
                    self._open.note(each.place)
            case Said.SUBSCRIBED:
                self._recently(each, NamedCause(Cause.SUBSCRIBED, member=self._member(detail.member, "", detail.client)))
            case Said.METADATA:
                self._recently(each, NamedCause(Cause.PARTITIONS))
            case Said.TOPOLOGY:
                self._recently(each, NamedCause(Cause.TOPOLOGY))
            case Said.UNLOADED:
                self._unloaded = each
            case Said.LOADED:
                self._loaded(each)
            case _:
                pass
        if said is not Said.UNLOADED:  # a broker that begins may say it of groups that it has not loaded yet
            self._last_ms = each.at_ms

    def finish(self, at_ms: int) -> None:
        """Ends with the last statement: a rebalance that goes on is told as far as it is known."""
        if self._open is not None:
            self._close(max(at_ms, self._open.begin_ms), is_over=False)

    def _prepare(self, each: Statement) -> None:
        why, member, instance, client = classify(each.detail.text)
        if self._open is not None and self._open.stabilized_ms >= 0:
            self._close(each.at_ms)
        if self._open is None:
            self._open = _Open(begin_ms=each.at_ms)
        self._number = each.number
        known = self._member(member, instance, "") if member else None
        cause = CAUSES[why]
        detail = f"it said: {client}" if client and client != "not provided" and cause is not Cause.JOINED else ""
        if why is Why.LEADER:
            detail = "the leader joined again" + (f": {client}" if client and client != "not provided" else "")
        if why is Why.UNKNOWN and not each.detail.text:
            recent = [one for one in self._recent if each.at_ms - one.at_ms <= SOON_MS]
            detail = detail if recent else "brokers before Kafka 2.2 do not log a reason"
        if cause in (Cause.LEFT, Cause.POLL_TIMEOUT, Cause.EXPIRED) and known is not None:
            self._forget(known, each.at_ms)
            self._open.gone[known.member_id] = known
        if cause is Cause.JOINED and known is not None:
            self._open.joined[known.member_id] = known
            cause = self._joined_as(known, each.at_ms)
        if cause is Cause.STATIC_BACK and known is not None:
            self.members.setdefault(known.member_id, known)
        self._open.causes.append(NamedCause(cause, detail, known))
        self._open.note(each.place)
        self._take_recent(each.at_ms)

    def _joined_as(self, member: ClusterMember, at_ms: int) -> Cause:
        gone_ms = self._gone_ms.get(_process(member))
        return Cause.BACK if gone_ms is not None and 0 <= at_ms - gone_ms <= _BACK_WITHIN_MS else Cause.JOINED

    def _current(self, each: Statement, number: int) -> _Open:
        if self._open is not None and 0 <= self._open.number < number:
            self._close(each.at_ms)
        if self._open is None:
            self._open = _Open(begin_ms=each.at_ms, has_begin=False)
            self._take_recent(each.at_ms)
        self._open.note(each.place)
        return self._open

    def _recently(self, each: Statement, reason: NamedCause) -> None:
        """Something that explains a rebalance, which is open or begins now."""
        if reason.cause in (Cause.JOINED, Cause.BACK) and reason.member is not None:
            self.members.setdefault(reason.member.member_id, reason.member)
        self._recent = [one for one in self._recent if each.at_ms - one.at_ms <= SOON_MS]
        self._recent.append(_Recent(each.at_ms, each.place, reason))
        if self._open is not None and self._open.stabilized_ms < 0:
            self._take_recent(each.at_ms)

    def _take_recent(self, at_ms: int) -> None:
        assert self._open is not None
        for each in self._recent:
            if at_ms - each.at_ms > SOON_MS:
                continue
            self._open.note(each.place)
            cause, member = each.reason.cause, each.reason.member
            if member is not None and cause in (Cause.JOINED, Cause.BACK):
                self._open.joined[member.member_id] = member
            if member is not None and cause in (Cause.LEFT, Cause.EXPIRED, Cause.POLL_TIMEOUT, Cause.TOO_SLOW):
                self._open.gone[member.member_id] = member
            self._open.causes.append(each.reason)
        self._recent = []

    def _remove(self, each: Statement, cause: Cause, name: str, instance: str, detail: str) -> None:
        member = self._member(name, instance, each.detail.client)
        if each.detail.state.startswith("/"):
            member = attrs.evolve(member, host=each.detail.state)
        self._forget(member, each.at_ms)
        self._recently(each, NamedCause(cause, detail, member))

    def _forget(self, member: ClusterMember, at_ms: int) -> None:
        self.members.pop(member.member_id, None)
        self._gone_ms[_process(member)] = at_ms

    def _late(self, each: Statement) -> None:
        current = self._current(each, number=self._number)
        for name in each.detail.members:
            member = self._member(name, "", "")
            current.gone[name] = member
            current.late.append(member)
            self._forget(member, each.at_ms)

    def _replace(self, each: Statement) -> None:
        detail = each.detail
        member = self._member(detail.member, detail.instance, "") if detail.member else None
        self.members.pop(detail.other, None)
        if member is not None:
            self.members[member.member_id] = member
        times = self._replaced.setdefault(detail.instance, [])
        times.append(each.at_ms)
        del times[:-_RESTART_TIMES]
        often = len(times) == _RESTART_TIMES and times[-1] - times[0] <= _STATIC_AGAIN_MS
        known = member or ClusterMember(member_id=detail.other, instance_id=detail.instance)
        cause = Cause.TWICE if often else Cause.STATIC_BACK
        if self._open is not None:
            self._recently(each, NamedCause(cause, member=known))
        else:
            self._at_once(each, cause, known)

    def _fence(self, each: Statement) -> None:
        """A second process with an instance id: it was refused, or the one before it was."""
        known = ClusterMember(member_id=each.detail.member, instance_id=each.detail.instance or None)
        self._at_once(each, Cause.TWICE, known, "the broker refused one of them")

    def _at_once(self, each: Statement, cause: Cause, member: ClusterMember, detail: str = "") -> None:
        """Something about a member that begins no rebalance."""
        self.found.append(
            Rebalance(
                number=max(self._number, 0),
                begin_ms=each.at_ms,
                end_ms=each.at_ms,
                cause=cause,
                members=(name_of(member),),
                places=(each.place,),
                detail=detail,
            )
        )

    def _epoch(self, each: Statement) -> None:
        if self._open is not None:
            self._close(max(self._open.stabilized_ms, self._open.begin_ms))
        self._open = _Open(begin_ms=each.at_ms, number=each.number)
        self._open.note(each.place)
        self._take_recent(each.at_ms)
        if self.kind is GroupKind.CLASSIC_CONSUMER:
            self.kind = GroupKind.STREAMS if each.detail.kind == "streams" else GroupKind.CONSUMER

    def _loaded(self, each: Statement) -> None:
        first = self._unloaded or each
        begin_ms, place = first.at_ms, first.place
        start = self._start_before(each)
        detail = ""
        if start is not None:
            detail = _began_again(start, each.at_ms)
            if self._unloaded is None or self._unloaded.at_ms >= start.at_ms:
                begin_ms, place = start.stopped_ms if start.stopped_ms >= 0 else start.at_ms, start.place
        self._unloaded = None
        is_cut = self._open is not None and start is not None and self._open.begin_ms < start.at_ms
        if self._open is not None and (is_cut or self._open.stabilized_ms >= 0 or self.kind is not GroupKind.CLASSIC_CONSUMER):
            self._close(max(self._open.stabilized_ms, self._open.begin_ms))  # of KIP-848 nothing says that it is over
        if self._open is not None and self._open.begin_ms <= each.at_ms:
            self._open.causes.append(NamedCause(Cause.COORDINATOR))
            self._open.note(each.place)
            return
        self.found.append(
            Rebalance(
                number=max(0, each.number),
                begin_ms=begin_ms,
                end_ms=each.at_ms,
                cause=Cause.COORDINATOR,
                members=(),
                places=tuple(dict.fromkeys((place, each.place))),
                detail=detail,
            )
        )

    def _start_before(self, each: Statement) -> BrokerStart | None:
        """Returns the beginning of the broker that loads a group, if it began just before."""
        found = self.starts[each.file] if each.file < len(self.starts) else ()
        last = next((start for start in reversed(found) if start.at_ms <= each.at_ms), None)
        return last if last is not None and each.at_ms - last.at_ms <= _LOADED_WITHIN_MS and self._last_ms < last.at_ms else None

    def _member(self, name: str, instance: str, client: str) -> ClusterMember:
        known = self.members.get(name)
        if known is not None:
            return attrs.evolve(known, instance_id=known.instance_id or instance or None)
        return observed(name, instance, client or self.clients.get(name, ""))

    def _close(self, at_ms: int, *, is_over: bool = True) -> None:
        current, self._open = self._open, None
        assert current is not None
        for name, member in current.joined.items():
            self.members[name] = member
        for name in current.gone:
            self.members.pop(name, None)
        most = current.count if current.count >= 0 else _MOST_MEMBERS
        for name in list(self.members)[: max(0, len(self.members) - most)]:  # who left without a line, the oldest first
            del self.members[name]
        cause, members, detail = self._cause_of(current, at_ms, is_over=is_over)
        number = current.number if current.number >= 0 else max(0, self._number)
        self._is_new = False
        self.found.append(
            Rebalance(
                number=number,
                begin_ms=current.begin_ms,
                end_ms=max(at_ms, current.begin_ms),
                cause=cause,
                members=names_of(members),
                joined=names_of(current.joined.values()),
                gone=names_of(current.gone.values()),
                detail=detail,
                places=tuple(current.places),
                is_static=bool(current.gone) and all(member.instance_id is not None for member in current.gone.values()),
            )
        )
        if len(self.states) >= _MOST_STATES:
            self.states.pop()
        group = ObservedGroup(name=self.group, kind=self.kind, epoch=number, assignment_epoch=number, members=dict(self.members))
        self.states.append(ObservedState(at_ms=max(at_ms, current.begin_ms), group=group))

    def _cause_of(self, current: _Open, at_ms: int, *, is_over: bool) -> tuple[Cause, list[ClusterMember], str]:
        waited_ms = (current.stabilized_ms if current.stabilized_ms >= 0 else at_ms) - current.begin_ms
        is_classic = self.kind not in (GroupKind.CONSUMER, GroupKind.STREAMS)
        first = "" if not current.causes else f"; it began when {_began(current.causes)}"
        if current.late:
            return Cause.POLL_TIMEOUT, current.late, f"the rebalance waited {span_text(waited_ms)} for it, and went on without it{first}"
        if is_classic and current.has_begin and waited_ms >= LATE_MS:
            if not is_over:
                return Cause.LATE, [], f"it has waited {span_text(waited_ms)}, and is not over at the end of the log{first}"
            limits = (self.poll_ms, _DEFAULT_POLL_MS)
            if any(abs(waited_ms - limit_ms) <= _POLL_SLACK_MS for limit_ms in limits):
                told = f"the rebalance waited {span_text(waited_ms)}, a whole max.poll.interval.ms, for a member that this log does not name{first}"
                return Cause.POLL_TIMEOUT, [], told
            return Cause.LATE, [], f"the rebalance waited {span_text(waited_ms)} for members that were busy{first}"
        causes = current.causes
        if not causes:
            if self._is_new and current.number == 1:
                return Cause.FIRST, list(current.joined.values()), ""
            return (Cause.UNSEEN, [], "the line before it is not in the file" if not current.has_begin else "")
        reason = strongest(causes)
        cause, detail = reason.cause, reason.detail
        members = [each.member for each in causes if each.cause is cause and each.member is not None]
        joined = set(map(_process, current.joined.values()))
        if cause in (Cause.LEFT, Cause.EXPIRED) and (again := [one for one in current.gone.values() if _process(one) in joined]):
            return (Cause.RESTARTED if cause is Cause.LEFT else cause), again, detail
        if cause is Cause.JOINED and (current.number == 1 or (self._is_new and self._number <= 0)):
            return Cause.FIRST, members, ""
        return cause, members, detail


def _began_again(start: BrokerStart, loaded_ms: int) -> str:
    if start.stopped_ms >= 0:
        return f"the broker was stopped and started again, and had the group {span_text(loaded_ms - start.stopped_ms)} later"
    if start.goes_on:
        return (
            f"the broker was started again, and had the group {span_text(loaded_ms - start.at_ms)} later;"
            " its log does not say that it was stopped before: it was killed, or its machine failed"
        )
    return f"the broker was started, and had the group {span_text(loaded_ms - start.at_ms)} later"


def _began(causes: Sequence[NamedCause]) -> str:
    cause, member = causes[0].cause, causes[0].member
    return cause.value if member is None else f"{cause.value} ({name_of(member)})"


def _process(member: ClusterMember) -> str:
    return member.instance_id or member.client_id or member.member_id
