"""The rebalances of a group as the logs of its clients tell them, and what each client says of
itself.
"""

from __future__ import annotations

import re

import attrs

from equipoise.replay.importers.evidence.reasons import Why, of_client
from equipoise.replay.importers.evidence.statements import BEGINS, Said, Statement
from equipoise.replay.incident.causes import Cause, Rebalance
from equipoise.replay.incident.client_process import PUT_OUT, ClientProcess, DealtWork, Delay, Departure, EmptyState, GivenUp, Noted, Reconciled
from equipoise.replay.incident.client_texts import WHERE, connect_work, delay_of, exception_of, read_dealt
from equipoise.replay.incident.coordinator_history import Stop
from equipoise.replay.incident.coordinator_outages import LONG_MS, Outage
from equipoise.replay.incident.named_causes import CAUSES, MOST_PLACES, SOON_MS, THREAD_DIED, NamedCause
from equipoise.replay.wording import span_text

_STOOD_STILL_MS = 2_000
"""A coordinator that knows a member no more so soon after that noticed its poll timeout had put it
out before.
"""
_REACHED_WITHIN_MS = 15_000
"""A client that has its coordinator again, and was put out because of that, joins so soon."""
_SAYS_AGAIN_MS = 60_000
"""A client that does not say when it has its coordinator again says so often that it has not."""
_OF_A_MEMBER = (Said.SYNCED, Said.GIVEN, Said.REVOKED, Said.REBALANCING, Said.TRANSITION, Said.DEALT, Said.WORKER)
"""What only a member of the group says."""
_OF_KAFKA = (
    "already rebalancing",
    "rebalance failed",
    "re-join with the given",
    "leaving the group",
    "encountered ",
    "not part of the group",
    BEGINS,
)
"""Reasons for joining that Java's client gives itself; others are the application's."""
_PUT_OUT = re.compile(r"Unknown ?Member|UNKNOWN_MEMBER|not the active member", re.IGNORECASE)


@attrs.define(kw_only=True)
class ClientStory:
    """Folds what the clients of one group say. `found`: rebalances as they saw them, each with the
    generation that it led to. `departures`: who left, or was put out, and why.
    """

    group: str
    found: list[tuple[ClientProcess, Rebalance]] = attrs.field(factory=list)
    departures: list[Departure] = attrs.field(factory=list)
    outages: list[Outage] = attrs.field(factory=list)
    asked_ms: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """Client and generation of the classic protocol -> when it asked to join."""
    stops: list[Stop] = attrs.field(factory=list)
    """In which none of these clients had the partition."""
    given_up: dict[str, GivenUp] = attrs.field(factory=dict)
    """Partition -> when it was given up last, until somebody has it."""
    owners: dict[str, str] = attrs.field(factory=dict)
    """What a client was given -> its name."""
    coordinators: list[str] = attrs.field(factory=list)
    """Addresses of coordinators, in the order in which they are named."""
    by_file: dict[str, str] = attrs.field(factory=dict)
    """File -> the client that it named last."""
    settings: dict[str, Noted] = attrs.field(factory=dict)
    restored: list[Noted] = attrs.field(factory=list)
    """Of Kafka Streams: whose tasks took how long to restore."""
    failed: list[Noted] = attrs.field(factory=list)
    """Of Kafka Streams and Connect: what failed, and its state."""
    dealt: list[DealtWork] = attrs.field(factory=list)
    processes: dict[str, ClientProcess] = attrs.field(factory=dict)
    slow: list[Reconciled] = attrs.field(factory=list)
    without_state: list[EmptyState] = attrs.field(factory=list)
    delays: dict[int, Delay] = attrs.field(factory=dict)
    """Of Kafka Connect: generation -> its delay."""
    is_connect: bool = False

    def take(self, each: Statement, file_name: str) -> None:
        """Folds one statement of a client."""
        said, detail = each.said, each.detail
        if said is Said.NO_STATE:  # its client is named by lines behind; the first process of a log may be new
            if file_name in self.by_file:
                self.without_state.append(EmptyState(each.at_ms, file_name, each.place))
            return
        if said is Said.DIED:
            self._died(each, file_name)
            return
        name = detail.client or self.by_file.get(file_name, file_name)
        if said is Said.LOST and f"{name}-consumer" in self.processes:
            name = f"{name}-consumer"  # Kafka Streams names its thread
        elif detail.client:
            self.by_file[file_name] = name
        process = self.processes.get(name)
        if process is None:
            process = self.processes[name] = ClientProcess(name=name, is_file=name == file_name)
        process.instance = detail.instance or process.instance
        self._before(process, each)
        if detail.member:
            if process.member not in ("", detail.member) and process.has_joined and not process.is_back and process.is_unseen:
                self._restarted(process, each)
            process.member = detail.member
        self._fold(process, each)
        if each.said in _OF_A_MEMBER and (each.said is not Said.REVOKED or detail.work):
            process.heard_ms = each.at_ms
        if process.lost:
            process.lost = set()

    def _before(self, process: ClientProcess, each: Statement) -> None:
        """Ends what this statement says is over: a process that had left, and is another now; an
        outage of the coordinator after which the client went on.
        """
        begins = each.said in (Said.JOINING, Said.JOINED, Said.FOUND) and "leaving the group" not in each.detail.text
        if begins and process.left_ms >= 0 and process.has_left:
            self._end(process)
            process.end()
        if each.said is Said.FOUND and process.coordinator and process.away_ms < 0 and not process.has_epochs and not process.is_out:
            process.end_round()  # only a process that begins looks for a coordinator that it had
        reached_ms = max(process.began_ms, process.away.end_ms if process.away is not None else -1)
        if process.away_ms < 0 <= process.began_ms and each.at_ms - reached_ms > _REACHED_WITHIN_MS and process.is_only_away:
            process.end_round()

    def _died(self, each: Statement, file_name: str) -> None:
        """A thread of Kafka Streams is gone; its process may begin another in its place."""
        thread = each.detail.state or each.detail.client
        last = self.by_file.get(file_name, "")
        process = self.processes.get(f"{thread}-consumer") or (self.processes.get(last) if last.startswith(f"{thread}-StreamThread-") else None)
        if process is None or process.left_ms >= 0:
            return
        why = exception_of(each.detail.other) or exception_of(each.detail.text)
        where = WHERE.search(each.detail.text)
        at = f", at {where[1]}-{where[2]} offset {where[3]}" if where is not None else ""
        self._depart(process, each, Cause.EXPIRED, f"{THREAD_DIED}{': ' if why else ''}{why}{at}")
        self._end(process)
        process.end()

    def _fold(self, process: ClientProcess, each: Statement) -> None:
        said, detail = each.said, each.detail
        match said:
            case Said.POLL_TIMEOUT:
                self._depart(process, each, Cause.POLL_TIMEOUT, f"its max.poll.interval.ms is {span_text(each.number)}" if each.number > 999 else "")
            case Said.SESSION_OVER:
                self._silent(process, each)
            case Said.UNKNOWN_MEMBER:
                self._depart(process, each, Cause.EXPIRED, "its coordinator had put it out of the group")
            case Said.INSTANCE_TAKEN:
                self._depart(process, each, Cause.TWICE, "another process has its group.instance.id")
            case Said.LEAVING:
                self._depart(process, each, Cause.LEFT, f"it said: {detail.text}" if detail.text else "")
            case Said.AWAY:
                self._away(process, each)
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
                self._reached(process, each)
                address = detail.other or detail.text
                if process.coordinator and address and address != process.coordinator:
                    self._begin(process, each, Cause.COORDINATOR, f"it is {address} now")
                process.coordinator = address or process.coordinator
                process.is_fresh = process.is_fresh or (not process.has_joined and process.began_ms < 0)
                self.coordinators += [address] if address not in self.coordinators else []
            case Said.DEALT:
                self.dealt.append(DealtWork(each.at_ms, each.number, read_dealt(detail.text), each.place))
            case Said.TRANSITION:
                self._reconciled(process, each)
            case Said.RESTORED:
                self.restored.append(Noted(process.name, f"its tasks took {span_text(each.number)} to restore", each.place))
            case Said.STATE if detail.state in ("ERROR", "PENDING_ERROR"):
                self.failed.append(Noted(process.name, detail.state, each.place))
            case Said.SETTING:
                self.settings.setdefault(detail.state, Noted(detail.state, detail.text, each.place))
            case Said.WORKER:
                self._worker(process, each)
            case Said.TOPICS:
                self._begin(process, each, Cause.PARTITIONS, "")
            case Said.CHANGED:
                self._begin(process, each, Cause.CONNECTORS, f"{detail.text} {detail.state}".strip())
            case Said.FAILED:
                self.failed.append(Noted(detail.text, "FAILED", each.place))
            case Said.COMMIT_FAILED:
                if process.left_ms >= 0 and each.at_ms - process.left_ms < SOON_MS and process.causes and process.causes[-1].cause is Cause.LEFT:
                    self._was_poll_timeout(process, each)
                elif _PUT_OUT.search(detail.text):
                    self._depart(process, each, Cause.EXPIRED, "its coordinator had put it out of the group")
            case _:
                pass

    def _away(self, process: ClientProcess, each: Statement) -> None:
        """Its coordinator cannot be reached. A client that was out before looks for it, too."""
        if process.away_ms >= 0 and not process.coordinator and each.at_ms - process.until_ms > _SAYS_AGAIN_MS:
            self._reached(process, None)
            process.end_round()
        self._begin(process, each, Cause.COORDINATOR, each.detail.text)
        if not process.is_only_away:
            return
        if process.away_ms < 0:
            process.away_ms, process.away_places = each.at_ms, [each.place]
        process.until_ms = each.at_ms

    def _reached(self, process: ClientProcess, each: Statement | None) -> None:
        """It has its coordinator again, or its log ends."""
        if process.away_ms < 0:
            return
        places = process.away_places if each is None else [*process.away_places, each.place]
        process.away = Outage(
            begin_ms=process.away_ms,
            end_ms=process.until_ms if each is None else each.at_ms,
            client=process.shown,
            number=process.number,
            places=tuple(places),
            is_over=each is not None,
        )
        self.outages.append(process.away)
        process.away_ms = -1

    def _was_away(self, process: ClientProcess, at_ms: int) -> bool:
        """Returns whether it was without its coordinator for so long that it may be out by that."""
        if process.away_ms >= 0:
            return at_ms - process.away_ms >= LONG_MS
        last = process.away
        return last is not None and last.end_ms - last.begin_ms >= LONG_MS and at_ms - last.end_ms <= _REACHED_WITHIN_MS

    def _silent(self, process: ClientProcess, each: Statement) -> None:
        """It heard nothing for a session timeout. librdkafka says for how long, so when that began;
        and that it joins again, but not when it has.
        """
        if each.number <= 0 or process.has_joined:
            self._depart(process, each, Cause.EXPIRED, "it heard nothing from its coordinator for a session timeout")
            return
        is_since = each.at_ms - each.number <= process.away_ms + SOON_MS
        was_away = is_since and self._was_away(process, each.at_ms)
        if process.away_ms >= 0:
            process.until_ms = each.at_ms if was_away else process.until_ms
            self._reached(process, None)
            process.end_round()
        if was_away:
            return
        last_heard = attrs.evolve(each, at_ms=each.at_ms - each.number)
        self._depart(process, last_heard, Cause.EXPIRED, f"it heard nothing from its coordinator for {span_text(each.number)}")
        self._end(process)
        self.found.append(
            (
                process,
                Rebalance(
                    number=max(0, process.number),
                    begin_ms=each.at_ms,
                    end_ms=each.at_ms,
                    cause=Cause.BACK,
                    members=(process.shown,),
                    detail="it says that it joins again",
                    places=(each.place,),
                ),
            )
        )

    def _was_poll_timeout(self, process: ClientProcess, each: Statement) -> None:
        """A client that leaves and then fails to commit did not close: it was out by its poll
        interval, which aiokafka does without a word.
        """
        process.causes[-1] = NamedCause(Cause.POLL_TIMEOUT, "it left the group while it still had work")
        last = self.departures[-1] if self.departures else None
        if last is not None and last.client == process.shown:
            self.departures[-1] = attrs.evolve(last, cause=Cause.POLL_TIMEOUT, detail=process.causes[-1].detail)

    def _stood_still(self, process: ClientProcess, each: Statement) -> None:
        """Its coordinator had put it out before it noticed that it had not polled: heartbeats were
        missing, too, which a slow batch does not delay.
        """
        last = self.departures[-1] if self.departures else None
        if last is None or last.client != process.shown or last.cause is not Cause.POLL_TIMEOUT:
            return
        detail = "it sent no heartbeat either: the whole process stood still, or was cut off"
        process.has_stood = True
        process.causes = [NamedCause(Cause.EXPIRED, detail) if one.cause is Cause.POLL_TIMEOUT else one for one in process.causes]
        self.departures[-1] = attrs.evolve(last, cause=Cause.EXPIRED, detail=detail)

    def _depart(self, process: ClientProcess, each: Statement, cause: Cause, detail: str) -> None:
        if each.said is Said.UNKNOWN_MEMBER and 0 <= each.at_ms - process.left_ms <= _STOOD_STILL_MS:
            self._stood_still(process, each)
        if cause is Cause.EXPIRED and self._was_away(process, each.at_ms):
            self._departed(process, each, cause, "it could not reach its coordinator")
            self._begin(process, each, Cause.COORDINATOR, "")
            return
        if cause in (Cause.LEFT, Cause.POLL_TIMEOUT) and process.began_ms >= 0 and process.is_only_away:
            process.end_round()
        if min(process.left_ms, process.began_ms) >= 0 and 0 < each.number <= each.at_ms - process.left_ms:
            self._end(process)  # it had joined again, or its time would not be over again
        if (cause is Cause.LEFT and process.has(Cause.LEFT)) or (process.has_stood and each.said is Said.POLL_TIMEOUT):
            return
        stronger = [one.cause for one in process.causes if one.cause in PUT_OUT]
        if process.began_ms >= 0 and stronger and each.at_ms - process.began_ms < 600_000:
            process.note(each.place)
            if cause is Cause.POLL_TIMEOUT and stronger[0] is not Cause.POLL_TIMEOUT:
                process.causes.append(NamedCause(cause, detail))
                self._departed(process, each, cause, detail)
            return
        self._begin(process, each, cause, detail)
        process.left_ms = each.at_ms
        self._departed(process, each, cause, detail)

    def _departed(self, process: ClientProcess, each: Statement, cause: Cause, detail: str) -> None:
        self.departures.append(process.departure(each.at_ms, each.place, NamedCause(cause, detail)))

    def _begin(self, process: ClientProcess, each: Statement, cause: Cause, detail: str) -> None:
        process.begin(each.at_ms, each.place, NamedCause(cause, detail))

    def _join(self, process: ClientProcess, each: Statement) -> None:
        text = each.detail.text.strip("'")
        process.number = max(process.number, each.number)
        if not text:
            process.asked_ms = each.at_ms
        if process.is_back and process.began_ms < 0:
            self._begin(process, each, Cause.BACK, "")
            return
        if "given member-id" in text or "given member id" in text:
            if process.has_joined and not process.is_back and process.is_unseen:
                self._restarted(process, each)
            return
        why = of_client(text) if text else None
        if not process.has_joined and process.began_ms < 0 and (process.is_fresh or text == BEGINS or each.detail.other == "UNSUBSCRIBED"):
            self._begin(process, each, Cause.JOINED, "")
            return
        if why is not None and why is not Why.POLL_TIMEOUT:
            self._begin(process, each, CAUSES[why], text)
        elif process.began_ms < 0:
            is_own = bool(text) and not any(word in text for word in _OF_KAFKA)
            self._begin(process, each, Cause.ASKED if is_own else Cause.UNSEEN, "" if "already rebalancing" in text else text)

    def _restarted(self, process: ClientProcess, each: Statement) -> None:
        """A process that begins again, and had not left: it was killed, or its log breaks off."""
        self._departed(process, each, Cause.EXPIRED, "its log breaks off, and it had not left")
        self._begin(process, each, Cause.BACK, "")

    def _joined(self, process: ClientProcess, each: Statement) -> None:
        process.number = max(each.number, -1) if each.number >= 0 else process.number
        if each.said is Said.JOINED and process.began_ms < 0:
            is_new = process.is_fresh and not process.has_joined
            self._begin(process, each, Cause.BACK if process.is_back else Cause.JOINED if is_new else Cause.UNSEEN, "")
        if each.said is Said.SYNCED:
            self._over(process, each)

    def _over(self, process: ClientProcess, each: Statement) -> None:
        self._reached(process, each)
        process.is_back = process.has_stood = False
        if process.asked_ms >= 0 and not process.has_epochs:
            self.asked_ms[process.name, process.number] = process.asked_ms
            process.asked_ms = -1
        if process.began_ms < 0:
            process.has_joined = True
            return
        if len(process.places) < MOST_PLACES + 1 and each.place not in process.places:
            process.places.append(each.place)
        self.found.append((process, process.rebalance(each.at_ms, is_over=True)))
        process.before = process.number
        process.end_round()
        process.has_joined, process.left_ms = True, -1

    def finish(self) -> None:
        """Ends rounds that were not over at the end: clients that left, or never got in again."""
        for process in self.processes.values():
            self._reached(process, None)
            if process.lost and process.lost >= process.works and process.began_ms < 0:
                gone = NamedCause(Cause.GONE, "what it had went to others, and its log ends without a word of leaving")
                self.departures.append(process.departure(process.lost_ms, process.lost_place, gone))
            self._end(process)

    def _end(self, process: ClientProcess) -> None:
        """Ends a round without an assignment: its client left, or never got in again."""
        if process.began_ms >= 0 and not process.is_only_away and not process.has_only(Cause.UNSEEN, Cause.JOINED):
            self.found.append((process, process.rebalance(process.began_ms, is_over=False)))
        process.end_round()

    def _given(self, process: ClientProcess, each: Statement) -> None:
        work = set(each.detail.work)
        process.works = work if each.detail.state == "all" else process.works | work
        self._taken_over(process, work, each)
        for partition in sorted(work):
            gave = self.given_up.pop(partition, None)
            if gave is not None and gave.number + 1 >= process.number and each.at_ms > gave.at_ms:
                self.stops.append(Stop(partition, gave.at_ms, each.at_ms))
        self._over(process, each)

    def _taken_over(self, process: ClientProcess, work: set[str], each: Statement) -> None:
        """Notes who had what this process is given: who does not say that it gave it up is gone."""
        for one in work:
            other = self.processes.get(self.owners.get(one, process.name), process)
            self.owners[one] = process.name
            if other is not process and one in other.works:
                other.lost.add(one)
                other.lost_ms, other.lost_place = each.at_ms, each.place

    def _revoked(self, process: ClientProcess, each: Statement) -> None:
        work = set(each.detail.work) or (process.works if each.said is Said.LOST else set())
        if process.is_back:
            return
        if each.said is Said.REVOKED and not work:
            process.is_fresh = process.is_fresh or (not process.has_joined and process.began_ms < 0)
            return
        for partition in work:
            self.given_up[partition] = GivenUp(each.at_ms, process.number)
        process.works -= work
        if each.said is Said.LOST and process.began_ms < 0:
            self._depart(process, each, Cause.EXPIRED, "it had lost its membership")
        elif process.began_ms < 0 and process.has_joined and not process.has_epochs and each.at_ms:
            self._begin(process, each, Cause.UNSEEN, "")

    def _reconciled(self, process: ClientProcess, each: Statement) -> None:
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
                self.slow.append(Reconciled(process.reconciling_ms, each.at_ms - process.reconciling_ms, process.name, each.place))
                process.reconciling_ms = -1
            self._over(process, each)

    def _worker(self, process: ClientProcess, each: Statement) -> None:
        delay_ms = max(each.detail.count, delay_of(each.detail.text))
        self.is_connect = True
        if delay_ms > 0:
            self.delays[each.number] = Delay(delay_ms, each.place)
        process.number = each.number
        process.works = set(connect_work(each.detail.text))
        self._taken_over(process, process.works, each)
        self._over(process, each)
