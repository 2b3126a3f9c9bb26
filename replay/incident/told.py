"""The rebalances of a group as logs tell them: a broker's reasons first, and what clients say of
themselves beside them.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence

import attrs

from equipoise.replay.importers.evidence.evidence_files import client_of
from equipoise.replay.importers.evidence.patterns import partitions
from equipoise.replay.importers.evidence.reasons import Why, classify, of_client
from equipoise.replay.importers.evidence.statements import BEGINS, Said, Statement
from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.rebalances import name_of
from equipoise.replay.wording import span_text

LONG_MS = 10_000
"""A rebalance of the classic protocol that takes so long waited for members."""
_DEFAULT_POLL_MS = 300_000
_POLL_SLACK_MS = 2_500
_SOON_MS = 3_000
_BACK_WITHIN_MS = 600_000
_CONFIRMED_WITHIN_MS = 20_000
"""A client says that it leaves so long before or after its coordinator says so: clocks differ."""
_STOOD_STILL_MS = 2_000
"""A coordinator that knows a member no more so soon after that noticed its poll timeout had put it
out before.
"""
_STATIC_AGAIN_MS = 300_000
_RESTART_TIMES = 3
"""A static member that is replaced so often within _STATIC_AGAIN_MS is two processes."""
_MOST_PLACES = 6
_MOST_MEMBERS, _MOST_STATES = 2_000, 400
_PUT_OUT = re.compile(r"Unknown ?Member|UNKNOWN_MEMBER|not the active member", re.IGNORECASE)
_WHYS = {
    Why.ADDED: Cause.JOINED, Why.LEFT: Cause.LEFT, Why.EXPIRED: Cause.EXPIRED, Why.POLL_TIMEOUT: Cause.POLL_TIMEOUT, Why.STATIC: Cause.STATIC_BACK,
    Why.UPDATED: Cause.ASKED, Why.LEADER: Cause.ASKED, Why.NOT_SYNCED: Cause.LATE, Why.METADATA: Cause.PARTITIONS, Why.FOLLOW_UP: Cause.FOLLOW_UP,
    Why.PROBING: Cause.PROBING, Why.SUBSCRIBED: Cause.SUBSCRIBED, Why.UNKNOWN: Cause.UNSEEN,
}  # fmt: skip
STRENGTH = (
    Cause.TWICE, Cause.POLL_TIMEOUT, Cause.EXPIRED, Cause.TOO_SLOW, Cause.RESTARTED, Cause.LEFT, Cause.COORDINATOR, Cause.STATIC_BACK, Cause.LATE,
    Cause.BACK, Cause.JOINED, Cause.TOPOLOGY, Cause.SUBSCRIBED, Cause.PARTITIONS, Cause.CONNECTORS, Cause.FIRST, Cause.ASKED, Cause.PROBING,
    Cause.FOLLOW_UP, Cause.UNSEEN,
)  # fmt: skip
"""Of several causes of one rebalance the first of these."""


@attrs.frozen(kw_only=True)
class Departure:
    """Says what a client said when it left, or was put out: `cause`, of which process, where."""

    at_ms: int
    cause: Cause
    client: str
    member: str
    place: str
    detail: str = ""
    number: int = -1
    """The generation that it had been in."""


@attrs.define(kw_only=True)
class _Open:
    """A rebalance that is not over."""

    begin_ms: int
    number: int = -1
    causes: list[tuple[Cause, ClusterMember | None, str]] = attrs.field(factory=list)
    joined: dict[str, ClusterMember] = attrs.field(factory=dict)
    gone: dict[str, ClusterMember] = attrs.field(factory=dict)
    places: list[str] = attrs.field(factory=list)
    stabilized_ms: int = -1
    late: list[ClusterMember] = attrs.field(factory=list)
    has_begin: bool = True
    count: int = -1

    def note(self, place: str) -> None:
        if len(self.places) < _MOST_PLACES and place not in self.places:
            self.places.append(place)


@attrs.define(kw_only=True)
class BrokerStory:
    """Folds what brokers say of one group, in order of time. `found`: its rebalances. `groups`: the
    group as far as is known after each, with the time.
    """

    group: str
    poll_ms: int = _DEFAULT_POLL_MS
    kind: GroupKind = GroupKind.CLASSIC_CONSUMER
    clients: dict[str, str] = attrs.field(factory=dict)
    """Member id -> client id, of members of KIP-848, whose ids do not begin with it."""
    found: list[Rebalance] = attrs.field(factory=list)
    groups: list[tuple[int, ObservedGroup]] = attrs.field(factory=list)
    members: dict[str, ClusterMember] = attrs.field(factory=dict)
    counts: list[int] = attrs.field(factory=list)
    _open: _Open | None = None
    _recent: list[tuple[int, Cause, ClusterMember | None, str, str]] = attrs.field(factory=list)
    _last_gone: dict[tuple[str, str], tuple[int, str]] = attrs.field(factory=dict)
    _replaced: dict[str, list[int]] = attrs.field(factory=dict)
    _number: int = -1
    _is_new: bool = True
    _unloaded: tuple[int, str] | None = None

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
                self._recently(each, self._joined_as(member, each.at_ms), member)
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
            case Said.STATIC_AWAY:
                pass
            case Said.FENCED:
                self._fence(each)
            case Said.EPOCH:
                self._epoch(each)
            case Said.TARGET:
                if self._open is not None and self._open.number <= each.number:
                    self._open.stabilized_ms = each.at_ms
                    self._open.note(each.place)
            case Said.SUBSCRIBED:
                self._recently(each, Cause.SUBSCRIBED, self._member(detail.member, "", detail.client))
            case Said.METADATA:
                self._recently(each, Cause.PARTITIONS, None)
            case Said.TOPOLOGY:
                self._recently(each, Cause.TOPOLOGY, None)
            case Said.UNLOADED:
                self._unloaded = each.at_ms, each.place
            case Said.LOADED:
                self._loaded(each)
            case _:
                pass

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
        cause = _WHYS[why]
        detail = f"it said: {client}" if client and client != "not provided" and cause is not Cause.JOINED else ""
        if why is Why.LEADER:
            detail = "the leader joined again" + (f": {client}" if client and client != "not provided" else "")
        if why is Why.UNKNOWN and not each.detail.text:
            recent = [one for one in self._recent if each.at_ms - one[0] <= _SOON_MS]
            if not recent:
                detail = "brokers before Kafka 2.2 do not log a reason"
        if cause in (Cause.LEFT, Cause.POLL_TIMEOUT, Cause.EXPIRED) and known is not None:
            self._forget(known, each.at_ms, cause)
            self._open.gone[known.member_id] = known
        if cause is Cause.JOINED and known is not None:
            self._open.joined[known.member_id] = known
            cause = self._joined_as(known, each.at_ms)
        if cause is Cause.STATIC_BACK and known is not None:
            self.members.setdefault(known.member_id, known)
        self._open.causes.append((cause, known, detail))
        self._open.note(each.place)
        self._take_recent(each.at_ms)

    def _joined_as(self, member: ClusterMember, at_ms: int) -> Cause:
        gone = self._last_gone.get(_key(member))
        return Cause.BACK if gone is not None and 0 <= at_ms - gone[0] <= _BACK_WITHIN_MS else Cause.JOINED

    def _current(self, each: Statement, number: int) -> _Open:
        if self._open is not None and 0 <= self._open.number < number:
            self._close(each.at_ms)
        if self._open is None:
            self._open = _Open(begin_ms=each.at_ms, has_begin=False)
            self._take_recent(each.at_ms)
        self._open.note(each.place)
        return self._open

    def _recently(self, each: Statement, cause: Cause, member: ClusterMember | None, detail: str = "") -> None:
        """Something that a rebalance explains, which is open or begins now."""
        if cause in (Cause.JOINED, Cause.BACK) and member is not None:
            self.members.setdefault(member.member_id, member)
        self._recent = [one for one in self._recent if each.at_ms - one[0] <= _SOON_MS]
        self._recent.append((each.at_ms, cause, member, each.place, detail))
        if self._open is not None and self._open.stabilized_ms < 0:
            self._take_recent(each.at_ms)

    def _take_recent(self, at_ms: int) -> None:
        assert self._open is not None
        for when, cause, member, place, detail in self._recent:
            if at_ms - when > _SOON_MS:
                continue
            self._open.note(place)
            if member is not None and cause in (Cause.JOINED, Cause.BACK):
                self._open.joined[member.member_id] = member
            if member is not None and cause in (Cause.LEFT, Cause.EXPIRED, Cause.POLL_TIMEOUT, Cause.TOO_SLOW):
                self._open.gone[member.member_id] = member
            self._open.causes.append((cause, member, detail))
        self._recent = []

    def _remove(self, each: Statement, cause: Cause, name: str, instance: str, detail: str) -> None:
        member = self._member(name, instance, each.detail.client)
        if each.detail.state.startswith("/"):
            member = attrs.evolve(member, host=each.detail.state)
        self._forget(member, each.at_ms, cause)
        self._recently(each, cause, member, detail)

    def _forget(self, member: ClusterMember, at_ms: int, cause: Cause) -> None:
        self.members.pop(member.member_id, None)
        self._last_gone[_key(member)] = at_ms, member.member_id

    def _late(self, each: Statement) -> None:
        current = self._current(each, number=self._number)
        for name in each.detail.members:
            member = self._member(name, "", "")
            current.gone[name] = member
            current.late.append(member)
            self._forget(member, each.at_ms, Cause.POLL_TIMEOUT)

    def _replace(self, each: Statement) -> None:
        detail = each.detail
        member = self._member(detail.member, detail.instance, "") if detail.member else None
        if detail.other in self.members:
            self.members.pop(detail.other)
        if member is not None:
            self.members[member.member_id] = member
        times = self._replaced.setdefault(detail.instance, [])
        times.append(each.at_ms)
        del times[: -_RESTART_TIMES]
        often = len(times) == _RESTART_TIMES and times[-1] - times[0] <= _STATIC_AGAIN_MS
        known = member or ClusterMember(member_id=detail.other, instance_id=detail.instance)
        cause = Cause.TWICE if often else Cause.STATIC_BACK
        if self._open is not None:
            self._recently(each, cause, known)
            return
        self.found.append(Rebalance(
            number=max(self._number, 0), begin_ms=each.at_ms, end_ms=each.at_ms, cause=cause, members=(name_of(known),), places=(each.place,),
        ))  # fmt: skip

    def _fence(self, each: Statement) -> None:
        """A second process with an instance id: it was refused, or the one before it was."""
        known = ClusterMember(member_id=each.detail.member, instance_id=each.detail.instance or None)
        number = max(self._number, 0)
        self.found.append(Rebalance(
            number=number, begin_ms=each.at_ms, end_ms=each.at_ms, cause=Cause.TWICE, members=(name_of(known),), places=(each.place,),
            detail="the broker refused one of them",
        ))  # fmt: skip

    def _epoch(self, each: Statement) -> None:
        if self._open is not None:
            self._close(max(self._open.stabilized_ms, self._open.begin_ms))
        self._open = _Open(begin_ms=each.at_ms, number=each.number)
        self._open.note(each.place)
        self._take_recent(each.at_ms)
        if self.kind is GroupKind.CLASSIC_CONSUMER:
            self.kind = GroupKind.STREAMS if each.detail.kind == "streams" else GroupKind.CONSUMER

    def _loaded(self, each: Statement) -> None:
        begin_ms, place = self._unloaded or (each.at_ms, each.place)
        self._unloaded = None
        if self._open is not None and (self._open.stabilized_ms >= 0 or self.kind is not GroupKind.CLASSIC_CONSUMER):
            self._close(max(self._open.stabilized_ms, self._open.begin_ms))  # of KIP-848 nothing says that it is over
        if self._open is not None and self._open.begin_ms <= each.at_ms:
            self._open.causes.append((Cause.COORDINATOR, None, ""))
            self._open.note(each.place)
            return
        self.found.append(Rebalance(
            number=max(0, each.number), begin_ms=begin_ms, end_ms=each.at_ms, cause=Cause.COORDINATOR, members=(),
            places=tuple(dict.fromkeys((place, each.place))),
        ))  # fmt: skip

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
        self.counts.append(current.count)
        self.found.append(Rebalance(
            number=number, begin_ms=current.begin_ms, end_ms=max(at_ms, current.begin_ms), cause=cause, members=names(members),
            joined=names(current.joined.values()), gone=names(current.gone.values()), detail=detail, places=tuple(current.places),
            is_static=bool(current.gone) and all(member.instance_id is not None for member in current.gone.values()),
        ))  # fmt: skip
        if len(self.groups) >= _MOST_STATES:
            self.groups.pop()
        self.groups.append((max(at_ms, current.begin_ms), ObservedGroup(
            name=self.group, kind=self.kind, epoch=number, assignment_epoch=number, members=dict(self.members)
        )))  # fmt: skip

    def _cause_of(self, current: _Open, at_ms: int, *, is_over: bool) -> tuple[Cause, list[ClusterMember], str]:
        waited_ms = (current.stabilized_ms if current.stabilized_ms >= 0 else at_ms) - current.begin_ms
        is_classic = self.kind not in (GroupKind.CONSUMER, GroupKind.STREAMS)
        first = "" if not current.causes else f"; it began when {_began(current.causes)}"
        if current.late:
            return Cause.POLL_TIMEOUT, current.late, f"the rebalance waited {span_text(waited_ms)} for it, and went on without it{first}"
        if is_classic and current.has_begin and waited_ms >= LONG_MS:
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
        cause = min((one for one, _, _ in causes), key=STRENGTH.index)
        members = [member for one, member, _ in causes if one is cause and member is not None]
        detail = next((text for one, _, text in causes if one is cause and text), "")
        gone = list(current.gone.values())
        if cause in (Cause.LEFT, Cause.EXPIRED) and (again := [one for one in gone if _key(one) in {_key(each) for each in current.joined.values()}]):
            return (Cause.RESTARTED if cause is Cause.LEFT else cause), again, detail
        if cause is Cause.JOINED and (current.number == 1 or (self._is_new and self._number <= 0)):
            return Cause.FIRST, members, ""
        return cause, members, detail


def _began(causes: Sequence[tuple[Cause, ClusterMember | None, str]]) -> str:
    cause, member, _ = causes[0]
    return cause.value if member is None else f"{cause.value} ({name_of(member)})"


def observed(name: str, instance: str, client: str) -> ClusterMember:
    """A member by what a line says of it."""
    found = client or client_of(name)
    if instance and found == instance:
        found = ""
    return ClusterMember(member_id=name, instance_id=instance or None, client_id=found)


def names(members: Iterable[ClusterMember]) -> tuple[str, ...]:
    """Names of members, each once."""
    return tuple(sorted({name_of(member) for member in members}))


def _key(member: ClusterMember) -> tuple[str, str]:
    return (member.instance_id or member.client_id or member.member_id, "")


@attrs.define(kw_only=True)
class _Process:
    """Says what one client's lines have said so far."""

    name: str
    member: str = ""
    instance: str = ""
    number: int = -1
    began_ms: int = -1
    """Of the round that it is in; -1: it is in none."""
    causes: list[tuple[Cause, str]] = attrs.field(factory=list)
    places: list[str] = attrs.field(factory=list)
    has_joined: bool = False
    is_fresh: bool = False
    """It was seen to look for its coordinator before it joined: else a log may begin anywhere."""
    before: int = -1
    """The generation of its last round."""
    left_ms: int = -1
    works: set[str] = attrs.field(factory=set)
    revoked: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    """Partition -> when it was given up, and in which generation."""
    coordinator: str = ""
    reconciling_ms: int = -1
    has_epochs: bool = False
    """It is a member of KIP-848, and may have an epoch again that it had."""
    is_file: bool = False
    """Its lines do not name it, so it has the name of its file."""

    @property
    def observed(self) -> ClusterMember:
        return observed(self.member, self.instance, "" if self.is_file and client_of(self.member) else self.name)

    @property
    def shown(self) -> str:
        return name_of(self.observed)


@attrs.define(kw_only=True)
class ClientStory:
    """Folds what the clients of one group say. `found`: rebalances as they saw them, each with the
    generation that it led to. `departures`: who left, or was put out, and why.
    """

    group: str
    found: list[tuple[_Process, Rebalance]] = attrs.field(factory=list)
    departures: list[Departure] = attrs.field(factory=list)
    stops: list[tuple[str, int, int, str]] = attrs.field(factory=list)
    """Partition, from and until when none of these clients had it, and the line of its return."""
    coordinators: dict[str, str] = attrs.field(factory=dict)
    """Address of a coordinator -> where it is said."""
    by_file: dict[str, str] = attrs.field(factory=dict)
    """File -> the client that it named last."""
    clients: dict[str, str] = attrs.field(factory=dict)
    settings: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    states: list[tuple[int, str, str, str]] = attrs.field(factory=list)
    """Of Kafka Streams: time, who, what, place."""
    dealt: list[tuple[int, int, dict[str, tuple[str, ...]], str]] = attrs.field(factory=list)
    processes: dict[str, _Process] = attrs.field(factory=dict)
    slow: list[tuple[int, int, str, str]] = attrs.field(factory=list)
    """Of KIP-848: when a client began to reconcile, how long it took, who, place."""
    without_state: list[tuple[int, str, str]] = attrs.field(factory=list)
    """Of Kafka Streams: when a process found its state directory empty, the file, and the line."""
    connect: list[tuple[int, str, tuple[str, ...], int, int, str]] = attrs.field(factory=list)
    """Of Kafka Connect: time, worker, its work, the delay, the generation, the line."""

    def take(self, each: Statement, file_name: str) -> None:
        """Folds one statement of a client."""
        said, detail = each.said, each.detail
        if said is Said.NO_STATE:  # its client is named by lines behind; the first process of a log may be new
            if file_name in self.by_file:
                self.without_state.append((each.at_ms, file_name, each.place))
            return
        name = detail.client or self.by_file.get(file_name, file_name)
        if detail.client:
            self.by_file[file_name] = name
        process = self.processes.get(name)
        if process is None:
            process = self.processes[name] = _Process(name=name, is_file=name == file_name)
        process.instance = detail.instance or process.instance
        if detail.member:
            if process.member not in ("", detail.member) and process.has_joined and all(cause is Cause.UNSEEN for cause, _ in process.causes):
                self._restarted(process, each)
            process.member = detail.member
            self.clients[detail.member] = name
        match said:
            case Said.POLL_TIMEOUT:
                self._depart(process, each, Cause.POLL_TIMEOUT, f"its max.poll.interval.ms is {span_text(each.number)}" if each.number > 999 else "")
            case Said.SESSION_OVER:
                self._depart(process, each, Cause.EXPIRED, "it heard nothing from its coordinator for a session timeout")
            case Said.UNKNOWN_MEMBER:
                self._depart(process, each, Cause.EXPIRED, "its coordinator had put it out of the group")
            case Said.INSTANCE_TAKEN:
                self._depart(process, each, Cause.TWICE, "another process has its group.instance.id")
            case Said.LEAVING:
                self._depart(process, each, Cause.LEFT, f"it said: {detail.text}" if detail.text else "")
            case Said.AWAY:
                self._begin(process, each, Cause.COORDINATOR, detail.text)
            case Said.REBALANCING:
                self._begin(process, each, Cause.UNSEEN, "")
            case Said.JOINING:
                self._join(process, each)
            case Said.JOINED | Said.SYNCED:
                self._joined(process, each)
            case Said.GIVEN:
                self._given(process, each)
            case Said.REVOKED | Said.LOST:
                self._revoked(process, each)
            case Said.FOUND:
                address = detail.other or detail.text
                if process.coordinator and address and address != process.coordinator:
                    self._begin(process, each, Cause.COORDINATOR, f"it is {address} now")
                process.coordinator = address or process.coordinator
                process.is_fresh = process.is_fresh or (not process.has_joined and process.began_ms < 0)
                self.coordinators.setdefault(address, each.place)
            case Said.DEALT:
                self.dealt.append((each.at_ms, each.number, read_dealt(detail.text), each.place))
            case Said.TRANSITION:
                self._reconciled(process, each)
            case Said.STATE | Said.RESTORED | Said.FOLLOW_UP:
                took = f"its tasks took {span_text(each.number)} to restore" if said is Said.RESTORED else detail.state or detail.text
                self.states.append((each.at_ms, name, took, each.place))
            case Said.SETTING:
                self.settings.setdefault(detail.state, (detail.text, each.place))
            case Said.WORKER:
                self._worker(process, each)
            case Said.TOPICS:
                self._begin(process, each, Cause.PARTITIONS, "")
            case Said.CHANGED:
                self._begin(process, each, Cause.CONNECTORS, f"{detail.text} {detail.state}".strip())
            case Said.FAILED:
                self.states.append((each.at_ms, detail.text, "FAILED", each.place))
            case Said.COMMIT_FAILED:
                if process.left_ms >= 0 and each.at_ms - process.left_ms < _SOON_MS and process.causes and process.causes[-1][0] is Cause.LEFT:
                    self._was_poll_timeout(process, each)
                elif _PUT_OUT.search(detail.text):
                    self._depart(process, each, Cause.EXPIRED, "its coordinator had put it out of the group")
            case _:
                pass

    def _was_poll_timeout(self, process: _Process, each: Statement) -> None:
        """A client that leaves and then fails to commit did not close: it was out by its poll
        interval, which aiokafka does without a word.
        """
        process.causes[-1] = (Cause.POLL_TIMEOUT, "it left the group while it still had work")
        last = self.departures[-1] if self.departures else None
        if last is not None and last.client == process.shown:
            self.departures[-1] = attrs.evolve(last, cause=Cause.POLL_TIMEOUT, detail=process.causes[-1][1])

    def _stood_still(self, process: _Process, each: Statement) -> None:
        """Its coordinator had put it out before it noticed that it had not polled: heartbeats were
        missing, too, which a slow batch does not delay.
        """
        last = self.departures[-1] if self.departures else None
        if last is None or last.client != process.shown or last.cause is not Cause.POLL_TIMEOUT:
            return
        detail = "it sent no heartbeat either: the whole process stood still, or was cut off"
        process.causes = [(Cause.EXPIRED, detail) if cause is Cause.POLL_TIMEOUT else (cause, text) for cause, text in process.causes]
        self.departures[-1] = attrs.evolve(last, cause=Cause.EXPIRED, detail=detail)

    def _depart(self, process: _Process, each: Statement, cause: Cause, detail: str) -> None:
        if each.said is Said.UNKNOWN_MEMBER and 0 <= each.at_ms - process.left_ms <= _STOOD_STILL_MS:
            self._stood_still(process, each)
        stronger = [one for one, _ in process.causes if one in (Cause.POLL_TIMEOUT, Cause.TWICE, Cause.EXPIRED)]
        if process.began_ms >= 0 and stronger and each.at_ms - process.began_ms < 600_000:
            process.places.append(each.place) if len(process.places) < _MOST_PLACES else None
            if cause is Cause.POLL_TIMEOUT and stronger[0] is not Cause.POLL_TIMEOUT:
                process.causes.append((cause, detail))
                self.departures.append(
                    Departure(
                        at_ms=each.at_ms, cause=cause, client=process.shown, member=process.member, place=each.place, detail=detail,
                        number=process.number,
                    )
                )
            return
        self._begin(process, each, cause, detail)
        process.left_ms = each.at_ms
        self.departures.append(
            Departure(
                at_ms=each.at_ms, cause=cause, client=process.shown, member=process.member, place=each.place, detail=detail, number=process.number,
            )
        )

    def _begin(self, process: _Process, each: Statement, cause: Cause, detail: str) -> None:
        if process.began_ms < 0:
            process.began_ms, process.causes, process.places = each.at_ms, [], []
        process.causes.append((cause, detail))
        if len(process.places) < _MOST_PLACES:
            process.places.append(each.place)

    def _join(self, process: _Process, each: Statement) -> None:
        text = each.detail.text.strip("'")
        if "given member-id" in text or "given member id" in text:
            if process.has_joined and all(cause is Cause.UNSEEN for cause, _ in process.causes):
                self._restarted(process, each)
            return
        why = of_client(text) if text else None
        if not process.has_joined and process.began_ms < 0 and (process.is_fresh or text == BEGINS or each.detail.other == "UNSUBSCRIBED"):
            self._begin(process, each, Cause.JOINED, "")
            return
        if why is not None and why is not Why.POLL_TIMEOUT:
            self._begin(process, each, _WHYS[why], text)
        elif process.began_ms < 0:
            self._begin(process, each, Cause.UNSEEN, "" if "already rebalancing" in text else text)

    def _restarted(self, process: _Process, each: Statement) -> None:
        """A process that begins again, and had not left: it was killed, or its log breaks off."""
        detail = "its log breaks off, and it had not left"
        self.departures.append(Departure(
            at_ms=each.at_ms, cause=Cause.EXPIRED, client=process.shown, member=process.member, place=each.place, detail=detail, number=process.number
        ))  # fmt: skip
        self._begin(process, each, Cause.BACK, "")

    def _joined(self, process: _Process, each: Statement) -> None:
        process.number = max(each.number, -1) if each.number >= 0 else process.number
        if each.said is Said.JOINED and process.began_ms < 0:
            self._begin(process, each, Cause.JOINED if process.is_fresh and not process.has_joined else Cause.UNSEEN, "")
        if each.said is Said.SYNCED:
            self._over(process, each)

    def _over(self, process: _Process, each: Statement) -> None:
        if process.began_ms < 0:
            process.has_joined = True
            return
        if len(process.places) < _MOST_PLACES + 1 and each.place not in process.places:
            process.places.append(each.place)
        cause = min((one for one, _ in process.causes), key=STRENGTH.index)
        detail = next((text for one, text in process.causes if one is cause and text), "")
        is_first = not process.has_joined and cause is Cause.JOINED
        if cause is Cause.EXPIRED and process.has_joined and process.number == process.before >= 0 and not process.has_epochs:
            cause, detail = Cause.TWICE, "it was put out and is back in the same generation: another process has its group.instance.id"
        process.before = process.number
        member = process.observed
        self.found.append((process, Rebalance(
            number=max(0, process.number), begin_ms=process.began_ms, end_ms=max(each.at_ms, process.began_ms), cause=cause,
            members=() if cause in (Cause.UNSEEN, Cause.COORDINATOR, Cause.PARTITIONS, Cause.CONNECTORS) else (name_of(member),), detail=detail,
            places=tuple(dict.fromkeys(process.places)), joined=(name_of(member),) if is_first else (),
        )))  # fmt: skip
        process.began_ms, process.causes, process.places, process.has_joined, process.left_ms = -1, [], [], True, -1

    def finish(self) -> None:
        """Ends rounds that were not over at the end: clients that left, or never got in again."""
        for process in self.processes.values():
            causes = [one for one, _ in process.causes]
            if process.began_ms < 0 or not any(one not in (Cause.UNSEEN, Cause.JOINED) for one in causes):
                continue
            cause = min(causes, key=STRENGTH.index)
            member = process.observed
            detail = next((text for one, text in process.causes if one is cause and text), "")
            self.found.append((process, Rebalance(
                number=max(0, process.number), begin_ms=process.began_ms, end_ms=process.began_ms, cause=cause, members=(name_of(member),),
                gone=(name_of(member),) if cause in (Cause.LEFT, Cause.POLL_TIMEOUT, Cause.EXPIRED, Cause.TWICE) else (), detail=detail,
                places=tuple(dict.fromkeys(process.places)),
            )))  # fmt: skip

    def _given(self, process: _Process, each: Statement) -> None:
        work = set(each.detail.work)
        process.works = work if each.detail.state == "all" else process.works | work
        for partition in sorted(work):
            for other in self.processes.values():
                gave = other.revoked.pop(partition, None)
                if gave is not None and gave[1] + 1 >= process.number and each.at_ms > gave[0]:
                    self.stops.append((partition, gave[0], each.at_ms, each.place))
        self._over(process, each)

    def _revoked(self, process: _Process, each: Statement) -> None:
        work = set(each.detail.work) or (process.works if each.said is Said.LOST else set())
        if each.said is Said.REVOKED and not work:
            process.is_fresh = process.is_fresh or (not process.has_joined and process.began_ms < 0)
            return
        for partition in work:
            process.revoked[partition] = each.at_ms, process.number
        process.works -= work
        if each.said is Said.LOST and process.began_ms < 0:
            self._depart(process, each, Cause.EXPIRED, "it had lost its membership")
        elif process.began_ms < 0 and process.has_joined and each.at_ms:
            self._begin(process, each, Cause.UNSEEN, "")

    def _reconciled(self, process: _Process, each: Statement) -> None:
        """A member of KIP-848 goes from one assignment to the next."""
        state = each.detail.state
        process.has_epochs = True
        if state == "RECONCILING":
            if process.reconciling_ms < 0:
                process.reconciling_ms = each.at_ms
            if process.began_ms < 0:
                self._begin(process, each, Cause.UNSEEN, "")
        elif state == "STABLE":
            process.number = max(process.number, each.number)
            if process.reconciling_ms >= 0:
                self.slow.append((process.reconciling_ms, each.at_ms - process.reconciling_ms, process.name, each.place))
                process.reconciling_ms = -1
            self._over(process, each)

    def _worker(self, process: _Process, each: Statement) -> None:
        work = connect_work(each.detail.text)
        delay_ms = max(each.detail.count, _delay_of(each.detail.text))
        self.connect.append((each.at_ms, process.name, work, delay_ms, each.number, each.place))
        process.number = each.number
        self._over(process, each)


def read_dealt(text: str) -> dict[str, tuple[str, ...]]:
    """Member id -> its partitions, as a leader that is a Java consumer writes them."""
    return {name: partitions(work) for name, work in re.findall(r"([^\s{},=]+)=Assignment\(partitions=\[([^\]]*)\]", text)}


def connect_work(text: str) -> tuple[str, ...]:
    """Connectors and tasks of a worker of Kafka Connect."""
    found: list[str] = []
    for name in ("connectorIds", "taskIds"):
        match = re.search(rf"\b{name}=\[([^\]]*)\]", text)
        found += [each.strip() for each in match[1].split(",") if each.strip()] if match is not None else []
    return tuple(found)


def _delay_of(text: str) -> int:
    match = re.search(r"\bdelay=([0-9]+)", text)
    return int(match[1]) if match is not None and len(match[1]) < 12 else 0


def clock_shifts(numbers: Sequence[tuple[int, int, int, bool]]) -> dict[int, int]:
    """Returns how much each file's clock is ahead, ms, of the first broker's. `numbers`: file,
    generation, time of its end, and whether a broker said it. Of each file the median over the
    generations that it shares with the brokers.
    """
    brokers: dict[int, list[int]] = {}
    for _, number, at_ms, is_broker in numbers:
        if is_broker:
            brokers.setdefault(number, []).append(at_ms)
    shifts: dict[int, list[int]] = {}
    for file, number, at_ms, is_broker in numbers:
        if not is_broker and len(brokers.get(number, ())) == 1:
            shifts.setdefault(file, []).append(at_ms - brokers[number][0])
    return {file: round(statistics.median(found)) for file, found in shifts.items() if len(found) >= 2 or abs(found[0]) < 60_000}

