"""The harness for member sessions: real MemberSessions, one clock, and a network whose every
message is moved by a directive.
"""

from __future__ import annotations

import attrs

from equipoise.events import codec
from equipoise.events.facts import Fact, LagReported
from equipoise.events.records import DecisionRecord, UnreadDecision
from equipoise.events.tasks import TaskId
from equipoise.log.kafka.envelope import StoredDecision, member_decision
from equipoise.log.rows import DecisionRow
from equipoise.statemachine.member import MemberSession, Reception
from tests.support.scenarios.render import member_text
from tests.support.scenarios.transcript import Transcript
from tests.support.session_snapshots import restore, snapshot


class _DatedFromArrival(MemberSession):
    def _lease_dates_from(self, sent_ms: int, arrived_ms: int) -> int:
        return arrived_ms


class _Revives(MemberSession):
    def _may_revive(self) -> bool:
        return True


class _HeartbeatsAlone(MemberSession):
    def _lease_rests_on(self, heartbeat_ms: int, fetch_ms: int) -> int:
        return heartbeat_ms


class _AnyFetch(MemberSession):
    def _fetch_counts(self, reached_end: bool) -> bool:
        return True


class _NoHold(MemberSession):
    def _hold_ends_ms(self, read_ms: int, hold_ms: int) -> int:
        return read_ms


class _AnyNumber(MemberSession):
    def _takes_number(self, number: int) -> bool:
        return True


class _SkipsUnread(MemberSession):
    def _heeds_unread(self) -> bool:
        return False


class _AnyLog(MemberSession):
    def log_replaced(self, now_ms: int) -> None:
        """Ignores the change of the log."""

    def log_went_back(self, *, sent_ms: int, now_ms: int) -> None:
        self.fetch_completed(sent_ms=sent_ms, reached_end=True, now_ms=now_ms)

    def _heeds_log_id(self) -> bool:
        return False

    def _waits_for_former_log_ms(self) -> int:
        return 0


class _ClaimsDeathByALock(MemberSession):
    """The incarnation that `ended=` names is still alive. The host supplies the proof, so the
    session itself is unchanged.
    """


SIMPLER: dict[str, type[MemberSession]] = {
    "dated": _DatedFromArrival,
    "revive": _Revives,
    "fetch": _HeartbeatsAlone,
    "end": _AnyFetch,
    "hold": _NoHold,
    "number": _AnyNumber,
    "proof": _ClaimsDeathByALock,
    "unread": _SkipsUnread,
    "log": _AnyLog,
}
"""Rule -> a simpler design without that rule, so that a scenario can show what goes wrong."""


@attrs.define
class Message:
    fact: Fact
    sent_ms: int
    appended: bool = False


@attrs.define
class Fetch:
    sent_ms: int
    answer: list[DecisionRecord] | None = None
    reached_end: bool = False
    went_back: bool = False
    """The partition ended below what the session has read."""
    log_id: str = ""
    """Id of the log whose topics answered."""


@attrs.define
class Host:
    """A session and what is under way for it."""

    session: MemberSession
    messages: list[Message] = attrs.field(factory=list)
    fetch: Fetch | None = None
    position: int = 0
    """Number of decisions that its reader has received."""
    log_id: str = ""
    """Id of the log in whose topics its reader was positioned."""
    topic_ids: bool = True
    """Its brokers have topic ids, by which it detects re-created topics."""
    newer_from: int | None = None
    """Decisions from this number on are written by a newer build, in versions that this session's
    build does not know.
    """
    places: bool = True
    """It positions its reader before it joins."""
    rule_dropped: str = ""

    @property
    def name(self) -> str:
        return member_text(self.session.member_id, self.session.incarnation)


class SessionHarness:
    """All sessions of a scenario and their common clock. Only `failover` moves the broker's clock
    separately.
    """

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self.now_ms = 0
        self.hosts: dict[str, Host] = {}
        """Name, with the incarnation from the second on -> host."""
        self.lives: dict[str, int] = {}
        """Member -> its latest incarnation."""
        self.log_ids: dict[str, str] = {}
        """Member -> the log that its latest incarnation joined."""
        self.found: set[TaskId] = set()

    def wait(self, ms: int) -> None:
        """Advances the clocks, and calls `look` whenever a session's right to process may change."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            moments = [moment for host in self.hosts.values() for moment in _moments(host.session) if self.now_ms < moment < end_ms]
            next_ms = min([*moments, end_ms])
            self._transcript.group_harness.append_ms += next_ms - self.now_ms
            self.now_ms = next_ms
            for _, host in sorted(self.hosts.items()):
                if not host.session.joined and 0 < host.session.join_from_ms <= self.now_ms:
                    self.join(host)
            self.look()

    def join(self, host: Host) -> None:
        """Positions the session's reader and joins, unless it must wait for members of a former
        log. Raises InputError.
        """
        session, group = host.session, self._transcript.group_harness
        if host.places:
            host.position, host.log_id = len(group.decisions), group.log_id
            session.reader_placed(log_id=host.log_id, last_number=host.position, sent_ms=self.now_ms, answered_ms=self.now_ms)
        if session.join_from_ms > self.now_ms:
            self._transcript.say(f"{host.name} waits for {session.join_from_ms - self.now_ms} ms: members of the former log may still run")
            return
        host.messages.append(Message(session.join(self.now_ms), self.now_ms))
        self.log_ids[session.member_id] = group.log_id
        self.append(host)
        self.acknowledge(host)

    def look(self) -> None:
        """Asks a copy of every session which tasks it may process, and reports tasks with two
        owners.
        """
        owners: dict[TaskId, list[Host]] = {}
        for name in sorted(self.hosts):
            host = self.hosts[name]
            copy = restore(type(host.session), host.session.settings, snapshot(host.session))
            for task in sorted(copy.grants):
                if copy.may_process(task, self.now_ms):
                    owners.setdefault(task, []).append(host)
        two = {task: hosts for task, hosts in sorted(owners.items()) if len(hosts) > 1}
        for task in sorted(two.keys() - self.found):
            text = f"TWO OWNERS of {task} at {self.now_ms} ms: {', '.join(host.name for host in two[task])}"
            dropped = sorted({host.rule_dropped for host in self.hosts.values() if host.rule_dropped})
            self._transcript.say(f"!! {text}{' (rule dropped: ' + ', '.join(dropped) + ')' if dropped else ''}")
            if not dropped:
                self._transcript.group_harness.disagreements.append(text)
        self.found = set(two)

    # The six steps of messages

    def send(self, host: Host) -> list[Fact]:
        """Sends the session's pending messages."""
        facts = host.session.poll(self.now_ms)
        host.messages += [Message(fact, self.now_ms) for fact in facts]
        return facts

    def append(self, host: Host) -> bool:
        message = next((message for message in host.messages if not message.appended), None)
        if message is None:
            return False
        message.appended = True
        self._transcript.append(message.fact, quiet=isinstance(message.fact, LagReported))
        return True

    def acknowledge(self, host: Host) -> bool:
        if not host.messages or not host.messages[0].appended:
            return False
        message = host.messages.pop(0)
        number = message.fact.number if isinstance(message.fact, LagReported) else None
        host.session.heartbeat_acknowledged(sent_ms=message.sent_ms, now_ms=self.now_ms, report_number=number)
        return True

    def serve(self, host: Host, most: int | None = None, short: int = 0) -> None:
        """The broker answers the fetch with the present decisions. A new partition leader may not
        know the last `short` of them.
        """
        fetch = host.fetch
        assert fetch is not None, "a fetch is served after it was sent"
        group = self._transcript.group_harness
        decisions = group.decisions[: len(group.decisions) - short]
        end = len(decisions) if most is None else min(len(decisions), host.position + most)
        fetch.answer = decisions[host.position : end]
        fetch.went_back = host.position > len(decisions)
        fetch.reached_end = end == len(decisions)
        fetch.log_id = group.log_id
        if not fetch.went_back:
            host.position = end

    def arrive(self, host: Host, lose: tuple[int, ...] = ()) -> str:
        """The answer arrives, without the decisions in `lose`. After a gap the reader returns to
        the number it needs. Returns the line that reports the gap, or "".
        """
        fetch, host.fetch = host.fetch, None
        assert fetch is not None, "a fetch arrives after it was sent"
        assert fetch.answer is not None, "a fetch arrives after it was served"
        session = host.session
        gap = ""
        for record in fetch.answer:
            if record.number in lose:
                continue
            newer = host.newer_from is not None and record.number >= host.newer_from
            if session.receive(_by_a_newer_build(record) if newer else record, self.now_ms) is Reception.GAP:
                needed = session.next_number
                host.position = needed - 1
                gap = f"{host.name} reads {record.number}, needs {needed}: it reads again from there"
                break
        if fetch.log_id != host.log_id and host.topic_ids:
            session.log_replaced(self.now_ms)
        if fetch.went_back:
            session.log_went_back(sent_ms=fetch.sent_ms, now_ms=self.now_ms)
        else:
            session.fetch_completed(sent_ms=fetch.sent_ms, reached_end=fetch.reached_end, now_ms=self.now_ms)
        return gap


def _moments(session: MemberSession) -> list[int]:
    starts = [grant.start_ms for grant in session.grants.values()]
    if not session.joined:
        return [session.join_from_ms]
    return [session.lease_ends_ms, *starts] if session.joined and session.ended is None else starts


def _by_a_newer_build(record: DecisionRecord) -> DecisionRecord | UnreadDecision:
    """The decision as read when a newer build wrote it in a version that this build does not know."""
    kind, version, payload = codec.encode(record.decision)
    row = DecisionRow(record.group, record.number, record.caused_by, record.index, kind, version + 1, payload, 0)
    return member_decision(StoredDecision(row, record.log_id, record.fact_checksum))
