"""A second account of which member may run what, derived from facts and decisions alone.

The model reads facts, decisions and docs/protocol.md, and never looks at the machine's state. It
raises InvariantBroken for what is impossible: two owners (1), a lost task without a cause (2), a
leaving member that gets something new (6), and, as number 0, facts and decisions that contradict
each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from equipoise.events.decisions import (
    AssignmentIssued,
    EventRejected,
    MemberAsked,
    MemberAssigned,
    MemberExpired,
    Move,
    RestartEnded,
    RestartPlanned,
    RoundPlanned,
)
from equipoise.events.errors import InvariantBroken
from equipoise.events.facts import (
    AssignmentObserved,
    ChangePlanned,
    GroupConfigured,
    GroupRejoined,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    LeaveRequested,
    LogOpened,
    MemberEnded,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    PartitionsObserved,
    RestartIntended,
    RoundAsked,
    SilenceObserved,
    Subtopology,
    TaskParked,
    TaskReady,
    TasksRevoked,
    TopologyDeclared,
    TroublesReported,
)
from equipoise.events.fields import INT64_MAX
from equipoise.events.parts import whole
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import Lag, LagSentinel, TaskId, tasks_text
from equipoise.statemachine.state import ASKED_MEMORY_MS, CRASH_MEMORY_MS, REMEMBERED_TOPOLOGIES

OF_A_MEMBER = (
    LagReported,
    MemberUnchanged,
    TaskReady,
    TasksRevoked,
    TaskParked,
    TroublesReported,
    LeaveIntended,
    LeaveCancelled,
    RestartIntended,
    MemberLeft,
)


@attrs.define
class TokenGrant:
    """An active task of a member: its fencing token, and the epoch that granted it."""

    token: int
    epoch: int


@attrs.define
class Revocation:
    """A task that a member must give up: the first epoch that said so, and its group time."""

    epoch: int
    since_ms: int


SEAT_SESSION_MS, SEAT_MARGIN_MS = 315_360_000_000, 86_400_000
"""Of members whose sessions a broker ends (docs/protocol.md#d13)."""


@attrs.define
class RestartRecord:
    """A member that will be back (docs/protocol.md#m12). `within_ms`: what its tasks wait, from the
    decision that says so. `left_ms`: when it left; None: it is still there.
    """

    wait_turn: bool
    begun: bool = False
    drains: bool = False
    within_ms: int = 0
    left_ms: int | None = None

    def is_over(self, now_ms: int) -> bool:
        return self.left_ms is not None and self.left_ms + self.within_ms <= now_ms


@attrs.define
class MemberRecord:
    """One live incarnation."""

    member_id: str
    incarnation: int
    session_timeout_ms: int
    lease_margin_ms: int
    topology_epoch: int
    last_heard_ms: int
    lags: dict[TaskId, Lag]
    ready: set[TaskId] = attrs.field(factory=set)
    epoch: int = 0
    active: dict[TaskId, TokenGrant] = attrs.field(factory=dict)
    revoking: dict[TaskId, Revocation] = attrs.field(factory=dict)
    standby: frozenset[TaskId] = frozenset()
    warmup: frozenset[TaskId] = frozenset()
    intends: bool = False
    leaving: bool = False
    released: bool = False
    eager: bool = False
    readiness: str = "word_or_lag"
    ready_lag_records: int | None = None
    tells_topology: bool = False
    restart: RestartRecord | None = None
    limits: tuple[int | None, int | None] = (None, None)
    """acceptable_recovery_lag and acceptable_recovery_ms of its last assignment."""
    restore_records_per_s: int = 0
    """Its last measured restore speed; before the first measurement the slowest of the other
    members when it joined; 0: unknown.
    """

    @property
    def is_away(self) -> bool:
        return self.restart is not None and self.restart.left_ms is not None

    @property
    def is_restarting(self) -> bool:
        """Returns whether it gets nothing new, because it stops and will be back."""
        return self.restart is not None and self.restart.begun and not self.restart.drains


@attrs.define
class CrashRecord:
    """A member that ended without leaving `times` times, each within CRASH_MEMORY_MS of its last
    crash or join. `until_ms`: end of its back-off; None: none.
    """

    times: int
    changed_ms: int
    until_ms: int | None = None


class ReferenceModel:
    """Infers the state of one group from its facts and decisions. `step` takes each fact with its
    decisions.
    """

    def __init__(self) -> None:
        self.config: GroupConfigured | None = None
        self.config_number = 0
        self.topologies: dict[int, dict[int, Subtopology]] = {}
        self.topology_epoch: int | None = None
        self.end_offsets: dict[str, dict[int, int]] = {}
        self.observed_ms: dict[tuple[str, int], int] = {}
        self.written_per_s: dict[tuple[str, int], int] = {}
        """(topic, partition) -> records/s between its last two observations, rounded up."""
        self.log_id = ""
        self.now_ms = 0
        self.last_append_ms: int | None = None
        self.last_offset = self.previous_offset = -1
        """Of the group's facts, this one's and that of the one before; -1: there was none."""
        self.gathering_until_ms: int | None = None
        self.awaiting_lags = False
        """The initial delay is over, and the first round waits for lags (docs/protocol.md#d2)."""
        self.told_lags: set[TaskId] = set()
        self.observed_lags: set[tuple[str, int]] = set()
        """Tasks (`told_lags`) and source partitions whose lags were reported or observed since the
        group began, whichever came last.
        """
        self.deals_by_lag: Callable[[GroupConfigured], bool] = lambda config: False
        """Whether the assignor of a configuration deals by lag."""
        self.number = 0
        self.generation = 0
        self.members: dict[str, MemberRecord] = {}
        self.owner: dict[TaskId, str] = {}
        self.tokens: dict[TaskId, int] = {}
        self.forced: dict[TaskId, int] = {}
        """Tasks whose last owner was removed by force and may still run -> how long the next owner
        must wait, in ms (docs/protocol.md#m5).
        """
        self.fenced: dict[tuple[str, int], MemberRecord] = {}
        """Incarnations that were removed by force and have not been silent for their session
        timeout since.
        """
        self.handing_over: dict[TaskId, str] = {}
        """Tasks being handed over -> destination."""
        self.promised: dict[TaskId, str] = {}
        """The same for the tasks of the last moves, before those."""
        self.eager_regrants: dict[TaskId, str] = {}
        """Tasks that an eager member will be granted together with others -> that member."""
        self.regranted: dict[TaskId, str] = {}
        """The same for the tasks of the last moves, before those."""
        self.idle: set[TaskId] = set()
        """Tasks of the topology that are no member's active task."""
        self.lost: set[TaskId] = set()
        """Tasks whose last owner left or died, and that no member was granted since."""
        self.waiting_until_ms = 0
        """Group time until which the leader announced to leave something undone on purpose."""
        self.leaving: set[str] = set()
        self.asked: dict[str, int | None] = {}
        """Members asked to leave -> None. A member that disappeared without leaving -> group time
        until which its next incarnation is asked too (docs/protocol.md#m8).
        """
        self.crashes: dict[str, CrashRecord] = {}
        self.standbys: dict[TaskId, int] = {}
        self.warmups = 0
        self.leavers: set[str] = set()
        """Who has left or ended with the present fact."""
        self.touched: set[str] = set()
        """Members that the last step may have changed."""
        self.granted: dict[TaskId, str] = {}
        """Tasks that this step grants -> member."""
        self.judged: Callable[[Move], None] = lambda move: None
        """Called with every move before it is applied."""

    # What follows from the model

    @property
    def leading(self) -> bool:
        """Returns whether every task should have an owner now: the group is configured, led by
        equipoise, has members, and its initial delay is over (docs/protocol.md#d2).
        """
        return self.config is not None and self.config.led_by == "equipoise" and bool(self.members) and self.gathering_until_ms is None

    @property
    def shadowing(self) -> bool:
        return self.config is not None and self.config.led_by == "external"

    def part(self, task: TaskId) -> Subtopology | None:
        """The newest topology's sub-topology of `task`; None: it has no such task."""
        if self.topology_epoch is None:
            return None
        part = self.topologies[self.topology_epoch].get(task.subtopology)
        return part if part is not None and task.partition < part.partitions else None

    def is_stateful(self, task: TaskId) -> bool:
        part = self.part(task)
        return part is not None and part.stateful

    def is_eligible(self, member: MemberRecord, task: TaskId) -> bool:
        """docs/protocol.md#d1: live, not leaving, and its topology epoch contains the task."""
        return not member.leaving and not member.is_restarting and self.knows(member, task)

    def is_crash_looping(self, member: MemberRecord) -> bool:
        """docs/protocol.md#d10: it crashed at least twice and has not run for its back-off since."""
        record = self.crashes.get(member.member_id)
        return record is not None and record.until_ms is not None and self.now_ms < record.until_ms

    def knows(self, member: MemberRecord, task: TaskId) -> bool:
        newest, part = self.part(task), self.topologies.get(member.topology_epoch, {}).get(task.subtopology)
        if newest is None or part is None or task.partition >= part.partitions:
            return False
        if not member.tells_topology:
            return True
        adds_no_topic = {*part.source_topics} <= {*newest.source_topics} and {*part.changelog_topics} <= {*newest.changelog_topics}
        return adds_no_topic and part.stateful == newest.stateful

    def is_caught_up(self, member: MemberRecord, task: TaskId, *, surely: bool) -> bool:
        """Rank 0 of KIP-441: it runs the task, or its copy is within the limit, combined with its
        declaration as `readiness` says (docs/protocol.md#m2).
        """
        lag, word = member.lags.get(task), task in member.ready
        if lag is LagSentinel.ACTIVE and self.owner.get(task) == member.member_id:
            return True
        within = isinstance(lag, int) and self._is_within(member, lag, surely=surely)
        return {"word_or_lag": word or within, "lag": within, "word_and_lag": word and within}[member.readiness]

    def _is_within(self, member: MemberRecord, lag: int, *, surely: bool) -> bool:
        """Returns whether a copy that is `lag` records behind is within the member's own limit, or
        else within acceptable_recovery_lag or acceptable_recovery_ms.

        Tasks that a member owns and still restores count too, and tasks change owners within one
        step. So `surely` counts every copy that the member may have had to restore when the leader
        judged, and not `surely` only what it must have had.
        """
        assert self.config is not None
        settings = self.config.knobs
        if member.ready_lag_records is not None:
            return lag <= member.ready_lag_records
        if lag <= settings.acceptable_recovery_lag:
            return True
        owned = {*member.active, *member.revoking}
        restored = 0
        for other, records in member.lags.items():
            if not isinstance(records, int) or not self.is_stateful(other):
                continue
            if surely and (records <= lag or other in owned or self.granted.get(other) == member.member_id):
                restored += 1_000 * records + self._written_per_s(other) * settings.acceptable_recovery_ms
            elif not surely and records <= lag and other not in owned:
                restored += 1_000 * records
        return 0 < restored <= member.restore_records_per_s * settings.acceptable_recovery_ms

    def _written_per_s(self, task: TaskId) -> int:
        part = self.part(task)
        assert part is not None
        return sum(self.written_per_s.get((topic, task.partition), 0) for topic in part.changelog_topics)

    def _observed(self, event: PartitionsObserved) -> None:
        for topic, ends in event.end_offsets.items():
            known = self.end_offsets.setdefault(topic, {})
            for partition, end in ends.items():
                key = (topic, partition)
                took_ms = self.now_ms - self.observed_ms.get(key, self.now_ms)
                if key not in self.observed_ms or end < known[partition]:
                    self.written_per_s[key] = 0
                    self.observed_ms[key] = self.now_ms
                elif took_ms:
                    self.written_per_s[key] = min(((end - known[partition]) * 1_000 + took_ms - 1) // took_ms, INT64_MAX)
                    self.observed_ms[key] = self.now_ms
                known[partition] = end
        for topic, lags in event.source_lags.items():
            self.observed_lags.update((topic, partition) for partition in lags)
            self.told_lags = {task for task in self.told_lags if topic not in self._sources(task) or task.partition not in lags}

    def _sources(self, task: TaskId) -> tuple[str, ...]:
        part = self.part(task)
        return () if part is None else part.source_topics

    def gathers(self, member_id: str) -> bool:
        """Returns whether the member is eager and it, or the owner of a task that comes to it,
        still has to give something up. Until then it gets nothing.
        """
        member = self.members[member_id]
        coming = (task for going in (self.handing_over, self.eager_regrants) for task, destination in going.items() if destination == member_id)
        return member.eager and (bool(member.revoking) or any(task in self.owner for task in coming))

    # Steps

    def step(self, record: FactRecord, decisions: list[DecisionRecord]) -> None:
        """Takes one fact with its decisions. Raises InvariantBroken 0, 1, 2 or 6."""
        event = record.event
        self.touched, self.leavers = set(), {event.member_id} if isinstance(event, MemberLeft | MemberEnded) else set()
        self.previous_offset, self.last_offset = self.last_offset, record.offset
        if isinstance(event, LogOpened):
            self.log_id = event.log_id
            return
        self._advance(record.append_ms)
        self._check_numbers(record, decisions)
        self._unfence_silent()
        if self.gathering_until_ms is not None and self.now_ms >= self.gathering_until_ms:
            self._initial_delay_over()
        answers = [record.decision for record in decisions]
        for answer in answers:
            if isinstance(answer, MemberExpired) and answer.cause in ("session_timeout", "revocation_timeout"):
                self._deadline_passed(answer)
        self._restarts_over(answers)
        if self.leavers:
            self._planned(answers)
        if any(isinstance(answer, EventRejected) for answer in answers):
            self._renew(event)
        else:
            self._accepted(event, answers)
        self._planned(answers)
        if self.awaiting_lags and not self._lacks_lags():
            self.gathering_until_ms, self.awaiting_lags = None, False
        if not self.members:
            self.gathering_until_ms, self.awaiting_lags = None, False
            self.lost.clear()
        if not self.shadowing:
            self._answered(answers)
        if isinstance(event, GroupConfigured) and self.leading:
            for member in self.members.values():
                if not member.is_away:
                    self._check_limits(member)

    def _check_limits(self, member: MemberRecord) -> None:
        """A member that judges its copies by the group's limits knows the current ones, from its
        first assignment on (docs/protocol.md#m2).
        """
        settings = self.config.knobs  # type: ignore[union-attr]  # a member joined, so the group is configured
        follows = member.readiness != "word_or_lag"
        limits = (settings.acceptable_recovery_lag, settings.acceptable_recovery_ms) if follows else (None, None)
        if member.epoch and member.limits != limits:
            raise InvariantBroken(0, f"{member.member_id} (readiness {member.readiness}) was assigned the limits {member.limits}, not {limits}")

    def _initial_delay_over(self) -> None:
        """docs/protocol.md#d2: waits once more, three times as long, for lags that are needed and
        unknown.
        """
        assert self.config is not None, "somebody has joined"
        assert self.gathering_until_ms is not None, "it was due"
        if self.awaiting_lags or not self._lacks_lags():
            self.gathering_until_ms, self.awaiting_lags = None, False
        else:
            self.gathering_until_ms += 3 * self.config.knobs.initial_delay_ms
            self.awaiting_lags = True

    def _lacks_lags(self) -> bool:
        if self.config is None or not self.deals_by_lag(self.config):
            return False
        parts = () if self.topology_epoch is None else self.topologies[self.topology_epoch].values()
        return not parts or any(
            part.source_topics
            and TaskId(part.subtopology, partition) not in self.told_lags
            and any((topic, partition) not in self.observed_lags for topic in part.source_topics)
            for part in parts
            for partition in range(part.partitions)
        )

    def _advance(self, append_ms: int) -> None:
        if self.last_append_ms is not None:
            most_ms = 1_000 if self.config is None else self.config.knobs.max_step_ms
            self.now_ms += min(most_ms, max(0, append_ms - self.last_append_ms))
        self.last_append_ms = append_ms

    def _check_numbers(self, record: FactRecord, decisions: list[DecisionRecord]) -> None:
        """docs/protocol.md#l4."""
        for index, decision in enumerate(decisions):
            wanted = (self.log_id, record.group, self.number + 1, record.offset, index, record.checksum)
            found = (decision.log_id, decision.group, decision.number, decision.caused_by, decision.index, decision.fact_checksum)
            if found != wanted:
                names = "(log, group, number, caused by, index, checksum)"
                raise InvariantBroken(0, f"a decision of offset {record.offset} is {names} {found}, not {wanted}")
            self.number += 1

    def _deadline_passed(self, expired: MemberExpired) -> None:
        member = self._member(expired)
        self._crashed(member.member_id)
        settings = self.config.knobs  # type: ignore[union-attr]  # a member joined, so the group is configured
        silent_ms = self.now_ms - member.last_heard_ms
        if expired.silent_ms != silent_ms:
            raise InvariantBroken(0, f"{expired.member_id} was silent for {silent_ms} ms, not {expired.silent_ms}")
        if expired.cause == "session_timeout":
            if silent_ms < member.session_timeout_ms:
                raise InvariantBroken(1, f"{expired.member_id} was expired after {silent_ms} ms of silence, of {member.session_timeout_ms} ms")
            self._out(member, hold_ms=0, told_hold_ms=expired.hold_ms)
            return
        longest_ms = max((self.now_ms - revocation.since_ms for revocation in member.revoking.values()), default=-1)
        if longest_ms < settings.revocation_timeout_ms:
            most_ms = settings.revocation_timeout_ms
            raise InvariantBroken(0, f"{expired.member_id} was expelled after {longest_ms} ms of the {most_ms} it had to give up its tasks")
        self._out(member, hold_ms=member.session_timeout_ms, told_hold_ms=expired.hold_ms)

    def _restarts_over(self, answers: list[Any]) -> None:
        """docs/protocol.md#m12: the time of a member that was to be back is over."""
        told = [answer.member_id for answer in answers if isinstance(answer, RestartEnded) and answer.outcome == "not_back"]
        due = [member for _, member in sorted(self.members.items()) if member.restart is not None and member.restart.is_over(self.now_ms)]
        if sorted(told) != [member.member_id for member in due]:
            raise InvariantBroken(0, f"{[member.member_id for member in due]} are not back in time; the leader gave up {told}")
        for member in due:
            self._out(member, hold_ms=0)

    def _planned(self, answers: list[Any]) -> None:
        """The restarts whose turn has come, before and after the fact: a member may leave first."""
        for answer in answers:
            restart = self.members[answer.member_id].restart if isinstance(answer, RestartPlanned) and answer.member_id in self.members else None
            if restart is None or restart.begun or answer.choice == "turn":
                continue
            others = [name for name, member in self.members.items() if member.is_restarting and name != answer.member_id]
            restart.begun, restart.drains, restart.within_ms = True, answer.choice == "drain", answer.back_within_ms
            if others and restart.wait_turn and answer.member_id not in self.leavers:
                raise InvariantBroken(6, f"the restart of {answer.member_id} begins while {', '.join(sorted(others))} restart")
            if restart.drains:
                self._leave(self.members[answer.member_id], True)

    def _unfence_silent(self) -> None:
        """An incarnation that was removed by force and was silent for its session timeout runs
        nothing any more (docs/protocol.md#m5).
        """
        expired = [who for who, fenced in self.fenced.items() if self.now_ms - fenced.last_heard_ms >= fenced.session_timeout_ms]
        self._unfence(expired)

    def _unfence(self, over: list[tuple[str, int]]) -> None:
        for who in over:
            del self.fenced[who]
        if over:
            still_held = {task for fenced in self.fenced.values() for task in (*fenced.active, *fenced.revoking)}
            self.forced = {task: hold_ms for task, hold_ms in self.forced.items() if task in still_held}

    def _crashed(self, member_id: str) -> None:
        record = self.crashes.get(member_id)
        times = 1 if record is None or self.now_ms - record.changed_ms >= CRASH_MEMORY_MS else record.times + 1
        self.crashes[member_id] = CrashRecord(times, self.now_ms)

    def _back_off_from_crashes(self, member_id: str) -> None:
        record = self.crashes.get(member_id)
        if record is not None and self.now_ms - record.changed_ms < CRASH_MEMORY_MS:
            until_ms = self.now_ms + min(10_000 * 2 ** (record.times - 2), 300_000) if record.times >= 2 else None
            self.crashes[member_id] = CrashRecord(record.times, self.now_ms, until_ms)
        else:
            self.crashes.pop(member_id, None)

    def _member(self, named: Any) -> MemberRecord:
        member = self.members.get(named.member_id)
        if member is None or member.incarnation != named.incarnation:
            raise InvariantBroken(0, f"{type(named).__name__} for {named.member_id} incarnation {named.incarnation}, which is not live")
        return member

    def _out(self, member: MemberRecord, *, hold_ms: int, told_hold_ms: int = 0) -> None:
        """Removes an incarnation. `hold_ms` > 0: by force, so that it may still run for that long."""
        if told_hold_ms < hold_ms:
            raise InvariantBroken(1, f"{member.member_id} was removed by force with a hold of {told_hold_ms} ms; it may run on for {hold_ms} ms")
        if hold_ms and (member.active or member.revoking):
            self.fenced[member.member_id, member.incarnation] = member
        for task in (*member.active, *member.revoking):
            del self.owner[task]
            if hold_ms:
                self.forced[task] = max(hold_ms, self.forced.get(task, 0))
            if self.part(task) is not None:
                self.idle.add(task)
                self.lost.add(task)
        self.lost.update(task for task, destination in self.eager_regrants.items() if destination == member.member_id and task not in self.owner)
        for going in (self.handing_over, self.eager_regrants):
            for task in [task for task, destination in going.items() if destination == member.member_id]:
                del going[task]
        self._copies(member, frozenset(), frozenset())
        del self.members[member.member_id]
        if self._is_asked(member.member_id):
            self.asked[member.member_id] = self.now_ms + ASKED_MEMORY_MS
        self.leaving.discard(member.member_id)
        self.touched.add(member.member_id)

    def _copies(self, member: MemberRecord, standby: frozenset[TaskId], warmup: frozenset[TaskId]) -> None:
        for task in member.standby - standby:
            self.standbys[task] -= 1
            if not self.standbys[task]:
                del self.standbys[task]
        for task in standby - member.standby:
            self.standbys[task] = self.standbys.get(task, 0) + 1
        self.warmups += len(warmup) - len(member.warmup)
        member.standby, member.warmup = standby, warmup

    def _renew(self, event: Any) -> MemberRecord | None:
        """docs/protocol.md#m4: any valid envelope of the current incarnation renews its lease,
        before the content is judged.
        """
        if not isinstance(event, OF_A_MEMBER):
            return None
        member = self.members.get(event.member_id)
        if member is not None and member.is_away and member.incarnation == event.incarnation:
            member.last_heard_ms = self.now_ms
            return None
        if member is None or member.incarnation != event.incarnation:
            fenced = self.fenced.get((event.member_id, event.incarnation))
            if fenced is not None:
                fenced.last_heard_ms = self.now_ms
            return None
        member.last_heard_ms = self.now_ms
        self.touched.add(event.member_id)
        return member

    # Facts

    def _accepted(self, event: Any, answers: list[Any]) -> None:
        if isinstance(event, GroupConfigured):
            self._configured(event)
        elif isinstance(event, ChangePlanned):
            self._made_from(event)
        elif isinstance(event, TopologyDeclared):
            self._topology(event)
        elif isinstance(event, PartitionsObserved):
            self._observed(event)
        elif isinstance(event, MemberJoined):
            self._joined(event, answers)
        elif isinstance(event, LeaveRequested):
            self._requested(event, answers)
        elif isinstance(event, MemberEnded):
            self._ended(event, answers)
        elif isinstance(event, AssignmentObserved):
            self._observed_generation(event)
        elif isinstance(event, SilenceObserved):
            self._silent(event)
        elif isinstance(event, RoundAsked):
            self._asked_for_round(event, answers)
        elif isinstance(event, GroupRejoined):
            self._rejoined(event, answers)
        elif isinstance(event, OF_A_MEMBER):
            member = self._renew(event)
            if member is None:
                who = f"{event.member_id} incarnation {event.incarnation}"
                raise InvariantBroken(0, f"a {type(event).__name__} of {who} was accepted, which is not live")
            self._heard(member, event)
            again_until_ms = self.asked.get(member.member_id)
            if isinstance(event, LagReported) and not self.shadowing and again_until_ms is not None and again_until_ms > self.now_ms:
                self._check_asked([member.member_id], answers, leave=True)

    def _silent(self, event: SilenceObserved) -> None:
        """docs/protocol.md#l11."""
        if event.after_offset != self.previous_offset:
            raise InvariantBroken(1, f"a silence measured after offset {event.after_offset} counts after {self.previous_offset}")
        for member_id, silent_ms in event.silent_ms.items():
            member = self.members.get(member_id)
            if member is not None and not member.is_away:
                member.last_heard_ms = min(member.last_heard_ms, self.now_ms - min(silent_ms, member.session_timeout_ms))

    def _observed_generation(self, event: AssignmentObserved) -> None:
        """docs/protocol.md#d7: who is not in it has left. What the others run is their leader's
        affair.
        """
        present = {observed.member_id for observed in event.members}
        for member_id in sorted(self.members.keys() - present):
            self._out(self.members[member_id], hold_ms=0)
        self.generation = event.generation

    def _asked_for_round(self, event: RoundAsked, answers: list[Any]) -> None:
        """docs/protocol.md#d12: who is not in it has left; the answer gives each task at most one
        owner, and nobody a copy of what it runs, or of what has no state.
        """
        present = {each.member_id for each in event.members}
        for member_id in sorted(self.members.keys() - present):
            self._out(self.members[member_id], hold_ms=0)
        planned = [answer for answer in whole(answers) if isinstance(answer, RoundPlanned)]
        if len(planned) != 1 or {each.member_id for each in planned[0].members} != present:
            raise InvariantBroken(0, f"round {event.round_id} has {len(planned)} answers, or one for other members")
        if planned[0].generation != self.generation + 1:
            raise InvariantBroken(0, f"round {event.round_id} has generation {planned[0].generation} after {self.generation}")
        self.generation = planned[0].generation
        owner: dict[TaskId, str] = {}
        for each in planned[0].members:
            if self.topology_epoch is not None:
                self.members[each.member_id].topology_epoch = self.topology_epoch
            for task in each.active:
                if task in owner or self.part(task) is None:
                    raise InvariantBroken(1, f"round {event.round_id} gives {task} to {each.member_id}, and to {owner.get(task, 'no topology')}")
                owner[task] = each.member_id
            for task in (*each.standby, *each.warmup):
                if task in each.active or not self.is_stateful(task):
                    raise InvariantBroken(3, f"round {event.round_id} gives {each.member_id} a copy of {task}, which it runs or which has no state")
        missing = [
            TaskId(part.subtopology, partition)
            for part in self.topologies.get(self.topology_epoch or 0, {}).values()
            for partition in range(part.partitions)
            if TaskId(part.subtopology, partition) not in owner
        ]
        if missing:
            raise InvariantBroken(2, f"round {event.round_id} gives {missing[0]} to nobody")

    def _rejoined(self, event: GroupRejoined, answers: list[Any]) -> None:
        """docs/protocol.md#d13: the members are those of the generation and those that are waited
        for, and each has what it holds.
        """
        for declared in event.topologies:
            self._topology(declared)
        here, absent = {each.member_id for each in event.members}, {each.member_id for each in event.absent}
        for member_id in sorted(self.members.keys() - here):
            member = self.members[member_id]
            if member_id in absent and not member.is_away and not member.leaving:
                member.restart = RestartRecord(wait_turn=False)
                self._goes_away(member)
            elif not member.is_away:
                self._out(member, hold_ms=0)
                self.asked.pop(member_id, None)
                self.crashes.pop(member_id, None)
        for each in event.members:
            old = self.members.get(each.member_id)
            if old is not None and not old.is_away and old.incarnation == each.incarnation:
                old.topology_epoch, old.last_heard_ms = each.topology_epoch, self.now_ms
                self.touched.add(each.member_id)
                continue
            if old is not None and old.is_away:
                told = [answer.outcome for answer in answers if isinstance(answer, RestartEnded) and answer.member_id == old.member_id]
                if told != ["returned"]:
                    raise InvariantBroken(0, f"{old.member_id} incarnation {old.incarnation} is back; the leader said {told}")
            if old is not None:
                self._out(old, hold_ms=0)
            self.members[each.member_id] = MemberRecord(
                member_id=each.member_id,
                incarnation=each.incarnation,
                session_timeout_ms=SEAT_SESSION_MS,
                lease_margin_ms=SEAT_MARGIN_MS,
                topology_epoch=each.topology_epoch,
                last_heard_ms=self.now_ms,
                lags={},
            )
            self.touched.add(each.member_id)
        holder = {task: each.member_id for each in event.members for task in each.held if self.part(task) is not None}
        for task, name in sorted(holder.items()):
            owner = self.owner.get(task)
            if owner == name:
                continue
            if owner is not None:
                self.members[owner].active.pop(task, None)
                self.members[owner].revoking.pop(task, None)
            self.handing_over.pop(task, None)
            self.owner[task], self.tokens[task] = name, self.tokens.get(task, 0) + 1
            self.members[name].active[task] = TokenGrant(self.tokens[task], self.members[name].epoch)
            self.idle.discard(task)
            self.lost.discard(task)
        for each in event.members:
            for task in [task for task in self.members[each.member_id].revoking if holder.get(task) != each.member_id]:
                self._released(self.members[each.member_id], task)

    def _configured(self, event: GroupConfigured) -> None:
        """docs/protocol.md#m4: no lease may end by one step of group time that is longer than the
        member's margin.
        """
        self._made_from(event)
        self.config_number += self.config_number > 0 or event.made_from is not None
        for member in (*self.members.values(), *self.fenced.values()):
            if event.knobs.max_step_ms > member.lease_margin_ms:
                who = f"{member.member_id} incarnation {member.incarnation}"
                raise InvariantBroken(1, f"max_step_ms {event.knobs.max_step_ms} is over the margin of {who}, {member.lease_margin_ms} ms")
        if self.config is not None and self.gathering_until_ms is not None:
            self.gathering_until_ms += (4 if self.awaiting_lags else 1) * (event.knobs.initial_delay_ms - self.config.knobs.initial_delay_ms)
        self.config = event

    def _made_from(self, event: GroupConfigured | ChangePlanned) -> None:
        if event.made_from not in (None, self.config_number):
            raise InvariantBroken(1, f"{type(event).__name__} was made from configuration {event.made_from}; {self.config_number} is in force")

    def _topology(self, event: TopologyDeclared) -> None:
        self.topologies[event.epoch] = {part.subtopology: part for part in event.subtopologies}
        self.topology_epoch = event.epoch
        kept = {member.topology_epoch for member in self.members.values()}.union(sorted(self.topologies)[-REMEMBERED_TOPOLOGIES:])
        self.topologies = {epoch: parts for epoch, parts in self.topologies.items() if epoch in kept}
        tasks = {TaskId(part.subtopology, partition) for part in event.subtopologies for partition in range(part.partitions)}
        for member in self.members.values():
            for task in sorted(member.active.keys() - tasks) if member.is_away else ():
                del member.active[task]
                del self.owner[task]
        self.idle = tasks.difference(*(member.active for member in self.members.values()))
        self.lost &= tasks
        self.told_lags &= tasks

    def _joined(self, event: MemberJoined, answers: list[Any]) -> None:
        old = self.members.get(event.member_id)
        there = [(member.member_id, member.incarnation) for member in (*self.members.values(), *self.fenced.values())]
        higher = [incarnation for name, incarnation in there if name == event.member_id and incarnation >= event.incarnation]
        if higher:
            raise InvariantBroken(0, f"{event.member_id} joined with incarnation {event.incarnation} after {max(higher)}")
        declared = self.topologies.get(event.topology_epoch)
        if declared is not None and event.subtopologies is not None and not self.shadowing:
            of_group, of_member = ({_topics_of(part) for part in parts} for parts in (declared.values(), event.subtopologies))
            if of_group != of_member:
                raise InvariantBroken(0, f"{event.member_id} joined with another topology of epoch {event.topology_epoch}: {of_group ^ of_member}")
        known = [member.restore_records_per_s for member in self.members.values() if member.restore_records_per_s]
        speed = min(known, default=0)
        if old is not None:
            speed = old.restore_records_per_s or speed
        if old is not None and old.is_away:
            ends = [answer for answer in answers if isinstance(answer, RestartEnded) and answer.member_id == old.member_id]
            told = [(answer.incarnation, answer.outcome) for answer in ends]
            if told != [(old.incarnation, "returned")]:
                raise InvariantBroken(0, f"{old.member_id} incarnation {old.incarnation} is back; the leader said {told}")
            self._out(old, hold_ms=0)
        elif old is not None:
            expired = [answer for answer in answers if isinstance(answer, MemberExpired) and answer.member_id == old.member_id]
            proven = event.ended_incarnation == old.incarnation
            wanted = [(old.incarnation, "proven_dead" if proven else "superseded")]
            if not self.shadowing and [(answer.incarnation, answer.cause) for answer in expired] != wanted:
                raise InvariantBroken(0, f"{old.member_id} incarnation {old.incarnation} was replaced; its expiry was {expired}")
            if not self.shadowing:
                self._crashed(old.member_id)
            self._out(old, hold_ms=0 if proven else old.session_timeout_ms, told_hold_ms=expired[0].hold_ms if expired else old.session_timeout_ms)
        elif not self.members and self.config is not None and self.config.knobs.initial_delay_ms:
            self.gathering_until_ms = self.now_ms + self.config.knobs.initial_delay_ms
            self.told_lags, self.observed_lags = set(), set()
        self.members[event.member_id] = MemberRecord(
            member_id=event.member_id,
            incarnation=event.incarnation,
            session_timeout_ms=event.session_timeout_ms,
            lease_margin_ms=event.lease_margin_ms,
            topology_epoch=event.topology_epoch,
            last_heard_ms=self.now_ms,
            lags=dict(event.lags),
            eager=event.eager,
            readiness=event.readiness,
            ready_lag_records=event.ready_lag_records,
            tells_topology=event.subtopologies is not None,
            restore_records_per_s=speed,
        )
        self._back_off_from_crashes(event.member_id)
        self.touched.add(event.member_id)
        self.asked = {name: until_ms for name, until_ms in self.asked.items() if until_ms is None or until_ms > self.now_ms}

    def _ended(self, event: MemberEnded, answers: list[Any]) -> None:
        """docs/protocol.md#m11. Renews no lease."""
        who = event.member_id, event.incarnation
        member = self.members.get(event.member_id)
        if member is None or member.incarnation != event.incarnation:
            if who not in self.fenced:
                raise InvariantBroken(0, f"the end of {event.member_id} incarnation {event.incarnation} was accepted, which is not waited for")
            self._unfence([who])
            return
        told = [(answer.member_id, answer.incarnation, answer.cause) for answer in answers if isinstance(answer, MemberExpired)]
        if member.restart is not None and not member.leaving:
            self._goes_away(member)
            return
        if not self.shadowing:
            if (*who, "proven_dead") not in told:
                raise InvariantBroken(0, f"{event.member_id} incarnation {event.incarnation} has ended; the expiries were {told}")
            self._crashed(event.member_id)
        self._out(member, hold_ms=0)

    def _is_asked(self, name: str) -> bool:
        return name in self.asked and self.asked[name] is None

    def _requested(self, event: LeaveRequested, answers: list[Any]) -> None:
        """docs/protocol.md#m8. Renews no lease."""
        if event.withdrawn:
            told = [name for name in event.members if self._is_asked(name) and not self.members[name].released]
            for name in event.members:
                if name in told or not self._is_asked(name):
                    self.asked.pop(name, None)
            self._check_asked(told, answers, leave=False)
        else:
            known = [self.members[name].incarnation for name in event.members if name in self.members]
            if event.incarnations and [*event.incarnations] != known:
                raise InvariantBroken(0, f"{event.members} were asked, chosen as incarnations {event.incarnations}; they are {known}")
            stay = [name for name, each in self.members.items() if name not in event.members and not each.leaving]
            if event.staying is not None and len(stay) < event.staying:
                raise InvariantBroken(0, f"{event.members} were asked, so that {event.staying} stay; only {stay} do")
            away = [name for name in event.members if name in self.members and self.members[name].is_away]
            for name in away:
                self._out(self.members[name], hold_ms=0)
            self._check_asked([name for name in event.members if not self._is_asked(name) and name not in away], answers, leave=True)

    def _check_asked(self, names: list[str], answers: list[Any], *, leave: bool) -> None:
        wanted = [(name, self.members[name].incarnation, leave) for name in names if name in self.members]
        told = [(answer.member_id, answer.incarnation, answer.leave) for answer in answers if isinstance(answer, MemberAsked)]
        if wanted != told or len(wanted) != len(names):
            raise InvariantBroken(0, f"{names} should be asked to {'leave' if leave else 'stay'}; asked were {told}")
        for name in names:
            if leave:
                self.asked[name] = None
            self.touched.add(name)
            if leave:
                self._stays(self.members[name])
            self._leave(self.members[name], leave or self.members[name].intends)

    def _heard(self, member: MemberRecord, event: Any) -> None:
        if isinstance(event, MemberLeft) and member.restart is not None and not member.leaving:
            self._goes_away(member)
        elif isinstance(event, RestartIntended):
            if not member.leaving and not member.released and not member.is_restarting:
                member.restart = RestartRecord(event.wait_turn)
        elif isinstance(event, MemberLeft):
            self._out(member, hold_ms=0)
            self.asked.pop(member.member_id, None)
            self.crashes.pop(member.member_id, None)
        elif isinstance(event, LeaveIntended | LeaveCancelled):
            member.intends = isinstance(event, LeaveIntended)
            self._stays(member)
            self._leave(member, member.intends or self._is_asked(member.member_id))
        elif isinstance(event, TaskReady):
            member.ready.update(event.tasks)
        elif isinstance(event, TasksRevoked):
            for task in event.tasks:
                revocation = member.revoking.get(task)
                if revocation is None or event.assignment_epoch < revocation.epoch:
                    at = f"{member.member_id} at epoch {event.assignment_epoch}"
                    raise InvariantBroken(1, f"{at} was accepted as giving up {task}, which it does not know to be revoked")
                self._released(member, task)
        elif isinstance(event, LagReported):
            self._reported(member, event)

    def _goes_away(self, member: MemberRecord) -> None:
        assert member.restart is not None, "it said that it will be back"
        for task in sorted(member.revoking):
            self._released(member, task)
        member.restart.left_ms, member.released = self.now_ms, True
        self._copies(member, frozenset(), frozenset())
        self.crashes.pop(member.member_id, None)
        self.touched.add(member.member_id)

    def _stays(self, member: MemberRecord) -> None:
        """It does not restart any more; perhaps it leaves for good."""
        if member.restart is not None:
            member.restart, member.released = None, False

    def _leave(self, member: MemberRecord, leaving: bool) -> None:
        member.leaving = leaving
        (self.leaving.add if leaving else self.leaving.discard)(member.member_id)

    def _reported(self, member: MemberRecord, event: LagReported) -> None:
        if event.assignment_epoch > member.epoch:
            raise InvariantBroken(0, f"{member.member_id} was accepted with epoch {event.assignment_epoch}; the last one issued is {member.epoch}")
        if event.base is None:
            member.lags = dict(event.lags)
        else:
            member.lags.update(event.lags)
            for task in event.forgotten:
                member.lags.pop(task, None)
        member.ready = set(event.ready)
        if event.load is not None:
            self.told_lags.update(task for task in event.load.behind if self.part(task) is not None)
            member.restore_records_per_s = min(int(event.load.restored_records_per_s), INT64_MAX) or member.restore_records_per_s
        if self.shadowing:
            return
        held = set(event.held)
        for task in sorted(held):
            if self.owner.get(task) != member.member_id:
                raise InvariantBroken(1, f"{member.member_id} was accepted as holding {task}, which is {self.owner.get(task)}'s")
            grant = member.active.get(task)
            if grant is not None and grant.epoch <= event.assignment_epoch:
                self._waited(task)
        for task, revocation in sorted(member.revoking.items(), key=lambda item: item[0]):
            if event.assignment_epoch >= revocation.epoch and task not in held:
                self._released(member, task)
        member.intends = event.leaving
        if event.leaving:
            self._stays(member)
        drains = member.restart is not None and member.restart.drains
        if event.leaving or not member.released:
            self._leave(member, event.leaving or drains or self._is_asked(member.member_id))

    def _waited(self, task: TaskId) -> None:
        """The owner runs the task, so no fenced incarnation does."""
        if self.forced.pop(task, None) is None:
            return
        for member in self.fenced.values():
            member.active.pop(task, None)
            member.revoking.pop(task, None)
        self.fenced = {who: member for who, member in self.fenced.items() if member.active or member.revoking}

    def _released(self, member: MemberRecord, task: TaskId) -> None:
        del member.revoking[task]
        del self.owner[task]

    # Decisions

    def _answered(self, answers: list[Any]) -> None:
        issued: list[AssignmentIssued] = []
        assigned: list[MemberAssigned] = []
        for answer in whole(answers):
            if isinstance(answer, AssignmentIssued):
                issued.append(answer)
            elif isinstance(answer, MemberAssigned):
                assigned.append(answer)
        if not issued:
            if assigned:
                raise InvariantBroken(0, f"{assigned[0].member_id} was assigned to without an AssignmentIssued")
            return
        if not self.leading:
            raise InvariantBroken(0, "an assignment was issued in a group that has no members, is gathering or is led by another leader")
        self.generation += 1
        parts = [(part.generation, part.part, part.parts) for part in issued]
        if parts != [(self.generation, number, len(issued)) for number in range(1, len(issued) + 1)]:
            raise InvariantBroken(0, f"the parts of generation {self.generation} are {parts}")
        names = [member.member_id for member in assigned]
        told = [name for part in issued for name in part.members]
        if names != told or names != sorted(set(names)):
            raise InvariantBroken(0, f"generation {self.generation} names {told}, but {names} were assigned to")
        self.waiting_until_ms = self.now_ms + issued[0].scheduled_delay_ms
        moves = [move for part in issued for move in part.moves]
        self.granted = {move.task: move.destination for move in moves if move.state == "granted" and move.destination is not None}
        self.promised = {move.task: self.handing_over[move.task] for move in moves if move.task in self.handing_over}
        self.regranted = {move.task: self.eager_regrants[move.task] for move in moves if move.task in self.eager_regrants}
        for move in moves:
            self._move(move)
        granted = {move.task: move for move in moves if move.state == "granted"}
        for member in assigned:
            self._assigned(member, granted)

    def _move(self, move: Move) -> None:
        self.judged(move)
        self._of_away(move)
        if move.destination is None and move.state == "waiting" and move.task not in self.lost:
            raise InvariantBroken(2, f"{move.task} is left without owner ({move.reason}), but its owner has neither left nor died")
        if move.state == "revoking":
            assert move.destination is not None
            if move.reason == "eager":
                self.eager_regrants[move.task] = move.destination
                self.handing_over.pop(move.task, None)
            else:
                self.handing_over[move.task] = move.destination
        elif move.state == "cancelled" and move.source in (None, move.destination) and self.eager_regrants.get(move.task) == move.destination:
            del self.eager_regrants[move.task]
        else:
            self.handing_over.pop(move.task, None)
            if move.state == "granted":
                self.eager_regrants.pop(move.task, None)

    def _of_away(self, move: Move) -> None:
        """A member that is away runs nothing: what waits for it can be granted to another at once,
        and what it lent to a member that is gone waits for it again (docs/protocol.md#m12).
        """
        home = self.members.get(self.owner.get(move.task, ""))
        if move.state == "granted" and home is not None and home.is_away and home.member_id != move.destination:
            del home.active[move.task]
            del self.owner[move.task]
            self.touched.add(home.member_id)
        destination = self.members.get(move.destination or "")
        if move.state == "waiting" and destination is not None and destination.is_away:
            if move.task in self.owner:
                raise InvariantBroken(1, f"{move.task} waits for {move.destination}, and {self.owner[move.task]} owns it")
            self.owner[move.task] = destination.member_id
            destination.active[move.task] = TokenGrant(self.tokens[move.task], destination.epoch)
            self.idle.discard(move.task)
            self.lost.discard(move.task)
            self.touched.add(destination.member_id)

    def _assigned(self, assigned: MemberAssigned, moves: dict[TaskId, Move]) -> None:
        """The complete assignment of one member replaces its last one."""
        member = self._member(assigned)
        who = member.member_id
        self.touched.add(who)
        member.epoch += 1
        if assigned.assignment_epoch != member.epoch:
            raise InvariantBroken(0, f"{who} got epoch {assigned.assignment_epoch} after {member.epoch - 1}")
        member.limits = (assigned.acceptable_recovery_lag, assigned.acceptable_recovery_ms)
        self._check_limits(member)
        owned = {*member.active, *member.revoking}
        active, revoke = set(assigned.active), set(assigned.revoke)
        standby, warmup = frozenset(assigned.standby), frozenset(assigned.warmup)
        lost = owned - active - revoke
        if lost:
            raise InvariantBroken(0, f"{tasks_text(sorted(lost))} of {who} were neither kept nor revoked")
        if member.leaving:
            new = sorted((active | revoke) - owned) + sorted((standby | warmup) - member.standby - member.warmup)
            if new:
                raise InvariantBroken(6, f"{who} is leaving and got {tasks_text(new)}")
        if member.is_restarting:
            new = sorted((standby | warmup) - member.standby - member.warmup)
            if new:
                raise InvariantBroken(6, f"{who} restarts and got {tasks_text(new)}")
        if member.is_away:
            raise InvariantBroken(0, f"{who} is away and was assigned to")
        may_go = (member.leaving and not active and not revoke) or (member.is_restarting and (member.released or not revoke))
        if assigned.released and not may_go:
            raise InvariantBroken(6, f"{who} was released; leaving={member.leaving}, it owns {tasks_text(sorted(active | revoke))}")
        member.released = assigned.released
        for task in sorted(revoke):
            if task not in owned:
                raise InvariantBroken(0, f"{who} is to give up {task}, which it does not own")
            if task not in member.revoking:
                del member.active[task]
                member.revoking[task] = Revocation(member.epoch, self.now_ms)
                self._is_idle(task)
        for task, token in zip(assigned.active, assigned.tokens, strict=True):
            grant = member.active.get(task)
            if grant is None or grant.token != token:
                self._granted(member, task, token, assigned.hold_ms.get(task, 0), moves)
        self._copies(member, standby, warmup)

    def _is_idle(self, task: TaskId) -> None:
        if self.part(task) is not None:
            self.idle.add(task)

    def _granted(self, member: MemberRecord, task: TaskId, token: int, hold_ms: int, moves: dict[TaskId, Move]) -> None:
        who = member.member_id
        owner = self.owner.get(task)
        if owner not in (None, who):
            raise InvariantBroken(1, f"{task} was granted to {who} while {owner} still owns it")
        if token <= self.tokens.get(task, 0):
            raise InvariantBroken(1, f"{task} was granted to {who} with token {token} after {self.tokens[task]}")
        if hold_ms < self.forced.get(task, 0):
            raise InvariantBroken(1, f"{task} was granted to {who} with a hold of {hold_ms} ms; its last owner may run on for {self.forced[task]} ms")
        if owner is None and not self.knows(member, task):
            raise InvariantBroken(0, f"{task} was granted to {who}, whose topology epoch {member.topology_epoch} does not have it")
        move = moves.get(task)
        if owner is None and (move is None or move.state != "granted" or move.destination != who):
            raise InvariantBroken(0, f"{task} was granted to {who} and no move says why: {move}")
        self.owner[task] = who
        self.tokens[task] = token
        member.revoking.pop(task, None)
        member.active[task] = TokenGrant(token, member.epoch)
        self.idle.discard(task)
        self.lost.discard(task)


def _topics_of(part: Subtopology) -> tuple[int, frozenset[str], frozenset[str], bool]:
    return part.subtopology, frozenset(part.source_topics), frozenset(part.changelog_topics), part.stateful
