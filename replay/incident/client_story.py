"""The rebalances of a group as the logs of its clients tell them, and what each client says of
itself.
"""

from __future__ import annotations

import re

import attrs

from equipoise.replay.importers.evidence.evidence_files import client_of
from equipoise.replay.importers.evidence.patterns import partitions
from equipoise.replay.importers.evidence.reasons import Why, of_client
from equipoise.replay.importers.evidence.statements import BEGINS, Said, Statement
from equipoise.replay.importers.groups.observed import ClusterMember
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.rebalances import name_of
from equipoise.replay.incident.said_causes import CAUSES, MOST_PLACES, SOON_MS, STRENGTH, observed
from equipoise.replay.wording import span_text

_STOOD_STILL_MS = 2_000
"""A coordinator that knows a member no more so soon after that noticed its poll timeout had put it
out before.
"""
_PUT_OUT = re.compile(r"Unknown ?Member|UNKNOWN_MEMBER|not the active member", re.IGNORECASE)


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
                if process.left_ms >= 0 and each.at_ms - process.left_ms < SOON_MS and process.causes and process.causes[-1][0] is Cause.LEFT:
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
            process.places.append(each.place) if len(process.places) < MOST_PLACES else None
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
        if len(process.places) < MOST_PLACES:
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
            self._begin(process, each, CAUSES[why], text)
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
        if len(process.places) < MOST_PLACES + 1 and each.place not in process.places:
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
