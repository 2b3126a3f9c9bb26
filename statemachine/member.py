"""The member's side of the protocol: one incarnation, without I/O and without a clock.

A host (the real client, or a process of the simulated cluster) hands in what happened together with
`now_ms`, its CLOCK_BOOTTIME in milliseconds. It asks the session three things: what to send
(`poll`), what to close (`closing`), and, before each record, whether it may process it (`refusal`).

::

    session = MemberSession(settings)
    session.reader_placed(log_id=..., last_number=17, sent_ms=..., answered_ms=...)  # M1
    send(session.join(now_ms))
    loop: session.receive(record, now_ms)
          session.fetch_completed(...)  session.heartbeat_acknowledged(...)
          send(session.poll(now_ms))    close(session.closing)
          process while session.refusal(task, now_ms) is None
    ended: close what `closing` names, then join again with a new session

The new session names this incarnation as its `ended_incarnation` when none of its tasks run any
more. Each rule of the protocol that a search breaks on purpose is a small method at the end of the
class.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from equipoise.assignors.common.ranking import lag_within
from equipoise.events.decisions import Decision, EventRejected, MemberAsked, MemberAssigned, MemberAssignedPart, MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.fact_parts import nearest_first, shortened_join, shortened_report, task_sets
from equipoise.events.facts import (
    Fact,
    LagReported,
    LeaveCancelled,
    LeaveIntended,
    Load,
    MemberJoined,
    MemberLeft,
    MemberUnchanged,
    RestartIntended,
    TaskReady,
    TasksRevoked,
)
from equipoise.events.fields import INT64_MAX
from equipoise.events.parts import join_assigned
from equipoise.events.records import DecisionRecord, UnreadDecision
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine.session_state import End, Grant, MemberSettings, SessionState, Word
from equipoise.statemachine.topologies import TOPOLOGY_DIFFERS

__all__ = ["FATAL_REJECTIONS", "End", "Grant", "MemberSession", "MemberSettings", "Reception"]


class Reception(enum.Enum):
    """What happened to a decision that was handed in (docs/protocol.md#l4)."""

    APPLIED = "applied"
    DROPPED = "dropped"
    """A decision of this number was read before."""
    GAP = "gap"
    """Its number is too high: read from `next_number` on first, then hand this one in again."""


class News(enum.Enum):
    """How soon what changed must be reported."""

    AT_ONCE = "at once"
    """At the next heartbeat."""
    LATER = "later"
    """With the next fact that keeps the lease alive."""
    NONE = "none"


FATAL_REJECTIONS = frozenset(
    {
        "unknown_member",
        "stale_incarnation",
        "not_configured",
        "margin_too_small",
        "margin_too_large",
        "incarnation_repeated",
        "incarnation_too_low",
        *TOPOLOGY_DIFFERS,
    }
)
"""EventRejected codes after which the leader accepts nothing more from this incarnation."""
_NAMES_THE_NEWEST = frozenset({"stale_incarnation", "incarnation_too_low"})
"""Those of them whose numbers are the rejected incarnation and the newest one of this member."""
_OUSTED = frozenset({"superseded", "proven_dead"})
"""Values of `end_cause` that mean that another process joined with this member's id. `proven_dead`
is one of them, because only a live process reads its own end; or the proof was false.
"""


LOOK_AGAIN_MS = 1_000
"""Least time, in ms, between the two reads that must both find the log shorter than before."""


SMALL_SHARE = 0.02
"""Difference of a share of the host, such as its CPU, that is not worth a report."""
SMALL_RATE = 10
"""The same of a rate or count: this, or a tenth of it."""


def differs(load: Load, before: Load) -> bool:
    """Returns whether the loads of a host differ by so much that the leader should know."""
    shares = ((load.cpu, before.cpu), (load.memory, before.memory), (load.disk, before.disk))
    rates: list[tuple[float, float]] = [
        (load.records_per_s, before.records_per_s),
        (load.restored_records_per_s, before.restored_records_per_s),
        *((of.get(task, 0), old.get(task, 0)) for of, old in _by_task(load, before) for task in (*of, *(old.keys() - of))),
    ]
    return any(abs(now - then) > SMALL_SHARE for now, then in shares) or any(
        abs(now - then) > max(SMALL_RATE, max(now, then) / 10) for now, then in rates
    )


def _by_task(load: Load, before: Load) -> Iterator[tuple[Mapping[TaskId, int], Mapping[TaskId, int]]]:
    yield load.tasks, before.tasks
    yield load.behind, before.behind
    yield load.busy, before.busy


MOST_PREPARING = 100
"""Most tasks that a report names as being prepared, and as failed: first those that a movement
waits for.
"""


class MemberSession(SessionState):
    """One incarnation of a member, from before its join to its end. Keeps docs/protocol.md#m1 to
    M9, L8 and L9.
    """

    # Joining and the log reader

    @property
    def member_id(self) -> str:
        return self.settings.member_id

    @property
    def incarnation(self) -> int:
        return self.settings.incarnation

    @property
    def joined(self) -> bool:
        return self._joined

    @property
    def is_ousted(self) -> bool:
        """Returns whether another process joined with this member's id, so that this one must not
        join again. The one exception: `may_join_above`.
        """
        return self.end_cause in _OUSTED or (self.newest_incarnation is not None and self.newest_incarnation > self.incarnation)

    def may_join_above(self, clock: int) -> bool:
        """Returns whether this process may join again with an incarnation above
        `newest_incarnation`, although another incarnation is above this one.

        `clock`: the number from which its next incarnation would begin. The join was refused while
        its sender waited for the answer, so it is no late copy. The other number is ahead of the
        clock, so it does not show that the other process began later: the clock is behind the one
        that made that number (docs/protocol.md#m1).
        """
        too_low = self.ended is End.REFUSED and self.end_cause == "incarnation_too_low"
        return too_low and self.newest_incarnation is not None and clock < self.newest_incarnation < INT64_MAX

    @property
    def next_number(self) -> int:
        """Number of the decision that it needs next (docs/protocol.md#l4). Raises InputError before
        the reader was placed.
        """
        if self._last_number is None:
            raise InputError("MemberSession: place the decisions reader at the end first (reader_placed)")
        return self._last_number + 1

    def reader_placed(self, *, log_id: str, last_number: int, sent_ms: int, answered_ms: int) -> None:
        """The decisions reader is at the end of the partition of the log `log_id`, as found by a
        fetch sent at `sent_ms` (docs/protocol.md#m1).

        `last_number`: the highest number of this group's decisions before that place; 0: none.
        `answered_ms`: when all of this was known. When the log is not the one of the former
        incarnation, `join_from_ms` says how long to wait; place the reader again after that. Raises
        InputError after the session has joined.
        """
        if self._joined:
            raise InputError("MemberSession.reader_placed: it has joined already; a new incarnation needs a new session")
        if log_id != self._log_id:
            self._log_id = log_id
            self.join_from_ms = answered_ms + self._waits_for_former_log_ms()
        self._last_number = last_number
        self._fetch_ms = sent_ms

    def join(self, now_ms: int) -> MemberJoined:
        """The fact that begins the incarnation; send it at once. The lease runs from here, because
        the leader cannot count it from earlier.

        Raises InputError when the decisions reader was not placed, or so long ago that the lease
        would be over (docs/protocol.md#m1), and before `join_from_ms` (docs/protocol.md#l9).
        """
        if self._joined or self.ended is not None:
            raise InputError("MemberSession.join: one session joins once; a new incarnation needs a new session")
        if self._last_number is None or now_ms >= self._fetch_ms + self.lease_lasts_ms():
            raise InputError("MemberSession.join: place the decisions reader at the end first (reader_placed)")
        if now_ms < self.join_from_ms:
            raise InputError(f"MemberSession.join: members of log {self.settings.former_log_id!r} may run until {self.join_from_ms}; wait")
        self._joined = True
        self._heartbeat_ms = now_ms
        self._next_report_ms = now_ms + self.settings.heartbeat_interval_ms
        given = self.settings
        joined = MemberJoined(
            member_id=given.member_id,
            incarnation=given.incarnation,
            capacity=given.capacity,
            rack=given.rack,
            tags=dict(given.tags),
            session_timeout_ms=given.session_timeout_ms,
            lease_margin_ms=given.lease_margin_ms,
            topology_epoch=given.topology_epoch,
            join_nonce=given.join_nonce,
            ended_incarnation=given.ended_incarnation,
            lags=dict(sorted(self._lags.items())),
            eager=given.eager,
            readiness="word_and_lag" if given.prepares else "lag",
            ready_lag_records=given.ready_lag_records,
            advertised=given.advertised,
            subtopologies=given.subtopologies,
        )
        return shortened_join(joined, self.most_event_bytes)

    # What comes in

    def receive(self, record: DecisionRecord | UnreadDecision, now_ms: int) -> Reception:
        """Takes a decision of its group, in the order read. `now_ms`: when it was read; holds count
        from it (docs/protocol.md#m5).
        """
        self._look_at_lease(now_ms)
        if record.log_id != self._log_id and self._heeds_log_id():
            self.log_replaced(now_ms)
            return Reception.DROPPED
        if record.number < self.next_number:
            return Reception.DROPPED
        if not self._takes_number(record.number):
            self._gap = True
            return Reception.GAP
        self._gap = False
        self._last_number = record.number
        if isinstance(record, DecisionRecord):
            self._decided(record.decision, now_ms)
        elif record.binding and self._is_mine(record.member_id, record.incarnation) and self._heeds_unread():
            self.give_up(End.UNREADABLE, now_ms)
        return Reception.APPLIED

    def fetch_completed(self, *, sent_ms: int, reached_end: bool, now_ms: int) -> None:
        """A fetch sent at `sent_ms` completed, and every decision in it was handed in
        (docs/protocol.md#m4).

        `reached_end`: the partition had nothing more to read when the broker answered.
        """
        self._look_at_lease(now_ms)
        in_doubt = self._doubtful_since_ms is not None and sent_ms < self._doubtful_since_ms
        if self._fetch_counts(reached_end) and not in_doubt:
            self._doubtful_since_ms = None
            self._fetch_ms = max(self._fetch_ms, self._lease_dates_from(sent_ms, now_ms))

    def log_went_back(self, *, sent_ms: int, now_ms: int) -> None:
        """A request sent at `sent_ms` found that the partition ends below what was read of it, or
        begins above it (docs/protocol.md#l9).

        One such finding proves nothing, because a broker that has just become the leader may not
        know the end yet. A second one after LOOK_AGAIN_MS, with no intact read in between, shows
        that the log has lost decisions.
        """
        self._look_at_lease(now_ms)
        if self._doubtful_since_ms is None:
            self._doubtful_since_ms = now_ms
        elif sent_ms >= self._doubtful_since_ms + LOOK_AGAIN_MS and self.ended is None:
            self._end(End.LOG_WENT_BACK, now_ms)

    def log_replaced(self, now_ms: int) -> None:
        """The topics are known to hold another log than the one that was joined: another log id, or
        other topics (docs/protocol.md#l9).
        """
        self._look_at_lease(now_ms)
        if self.ended is None:
            self._end(End.LOG_REPLACED, now_ms)

    def heartbeat_acknowledged(self, *, sent_ms: int, now_ms: int, report_number: int | None = None) -> None:
        """The broker appended a fact of this incarnation that was first sent at `sent_ms`.
        `report_number`: its number when it was a LagReported.
        """
        self._look_at_lease(now_ms)
        self._heartbeat_ms = max(self._heartbeat_ms, self._lease_dates_from(sent_ms, now_ms))
        if report_number is not None and report_number == self._report_number:
            self._report_known = True
            if self._more_to_report:
                self._next_report_ms = min(self._next_report_ms, now_ms)

    # Copies and tasks, as the host reports them

    def copy_progress(self, task: TaskId, lag: Lag, now_ms: int) -> None:
        """The copy of `task` is `lag` records behind. For a granted task: behind the changelog's
        end as read after its hold; 0 means restored.
        """
        grant = self.grants.get(task)
        if grant is not None and self._counts_as_restored(grant, lag, now_ms):
            grant.restored = True
        self._lags[task] = lag

    @property
    def acceptable_lag(self) -> int | None:
        """Records that a copy may be behind and still be ready: the member's own limit, else the
        group's as far as it is known (docs/protocol.md#m2); None: unknown.

        With acceptable_recovery_ms it costs time in the number of copies. A member does not know
        how fast changelogs grow, so it may take a copy for ready that the leader does not.
        """
        if self.settings.ready_lag_records is not None or self.acceptable_recovery_lag is None:
            return self.settings.ready_lag_records
        if not self.acceptable_recovery_ms or self._load is None or self._load.restored_records_per_s < 1:
            return self.acceptable_recovery_lag

        def written(task: TaskId) -> int | None:
            return 0 if task.subtopology in self.settings.stateful_subtopologies else None

        within = lag_within(self.acceptable_recovery_ms, self._lags, self.grants.keys(), written, int(self._load.restored_records_per_s))
        return max(self.acceptable_recovery_lag, within)

    def _judge(self) -> None:
        """Updates which of the assigned copies are ready."""
        acceptable = self.acceptable_lag
        ready = {task for task in self.standby | self.warmup if self._is_ready(task, acceptable)}
        # A movement may wait for a warm-up; the readiness of a standby can wait for the heartbeat.
        self._newly_ready += sorted(task for task in ready - self._ready if task in self.warmup)
        self._ready = ready

    def _is_ready(self, task: TaskId, acceptable: int | None) -> bool:
        return self._is_within(task, acceptable) and (not self.settings.prepares or task in self._prepared)

    def _is_within(self, task: TaskId, acceptable: int | None) -> bool:
        lag = self._lags.get(task)
        return acceptable is not None and isinstance(lag, int) and lag <= acceptable

    def to_prepare(self) -> frozenset[TaskId]:
        """Assigned copies within the limit that only lack the application's declaration."""
        if not self.settings.prepares:
            return frozenset()
        acceptable = self.acceptable_lag
        return frozenset(task for task in self.standby | self.warmup if task not in self._prepared and self._is_within(task, acceptable))

    def is_prepared(self, task: TaskId) -> bool:
        """Returns whether the application has declared the task ready, and data of the task is
        still here.
        """
        return task in self._prepared

    def declare_ready(self, task: TaskId) -> bool:
        """The application declares that it could process the task at once. That holds until no data
        of the task is left here, or the task has run here and stopped. Returns False, and records
        nothing, when the task is neither granted nor an assigned copy here.
        """
        if task not in self._keeps():
            return False
        self._prepared.add(task)
        return True

    def note_preparing(self, preparing: Mapping[TaskId, int], failed: Iterable[TaskId]) -> None:
        """Sets what the next reports say: tasks being prepared -> thousandths, and tasks whose last
        preparation failed.
        """
        self._preparing, self._failed = dict(preparing), frozenset(failed)

    def _keeps(self) -> frozenset[TaskId]:
        return self.standby | self.warmup | self.grants.keys()

    def copy_dropped(self, task: TaskId) -> None:
        """This member has no copy of `task` any more."""
        self._lags.pop(task, None)

    def task_closed(self, task: TaskId, now_ms: int) -> None:
        """A task of `closing` has stopped and written its last record. It is given up, or opened
        again when it was granted again in the meantime.
        """
        self._look_at_lease(now_ms)
        self.closing.discard(task)
        if task not in self.grants:
            self._prepared.discard(task)  # it ran here, and its application has released it
        if self.ended is not None:
            self._send_left()
            return
        if task not in self.grants and not self.stopping:
            self._given_up.append(task)
        self._leave_if_stopped(now_ms)

    def load_measured(self, load: Load | None) -> None:
        """Sets the host load that the next reports carry."""
        self._load = load

    # Leaving

    def intend_leave(self) -> None:
        """Leaves once its tasks run elsewhere; `released` in a MemberAssigned then ends the
        session.
        """
        if not self.leaving and self.ended is None:
            self.leaving, self.restart = True, None
            if self._joined:
                self._urgent.append(LeaveIntended)

    def intend_restart(self, now_ms: int, *, back_within_ms: int | None = None, wait_turn: bool = True) -> None:
        """Stops when the leader releases it, and will be back. `back_within_ms`: how long after
        that, at most; None: not stated. `wait_turn`: not while other members restart. The next
        report is due now.
        """
        if self.ended is None:
            self.leaving = False
            self.restart = RestartIntended(member_id=self.member_id, incarnation=self.incarnation, back_within_ms=back_within_ms, wait_turn=wait_turn)
            self._next_report_ms = min(self._next_report_ms, now_ms)

    def cancel_leave(self) -> None:
        """Stays after all."""
        if (self.leaving or self.restart is not None) and self.ended is None:
            self.leaving, self.restart = False, None
            if self._joined:
                self._urgent.append(LeaveCancelled)

    def close(self, now_ms: int) -> None:
        """Stops everything at once and sends MemberLeft when the host has closed all tasks."""
        self._look_at_lease(now_ms)
        if self.ended is None:
            self.stopping = True
            self.closing.update(self.held(now_ms))
            self.grants.clear()
            self._leave_if_stopped(now_ms)

    def give_up(self, how: End, now_ms: int) -> None:
        """Ends a session that cannot continue, for the reason `how` (UNREADABLE or FAILED). Sends
        MemberLeft when the host has closed all tasks.
        """
        self._look_at_lease(now_ms)
        if self.ended is None:
            self._end(how, now_ms)
            self._send_left()

    # Questions of the host

    def poll(self, now_ms: int) -> list[Fact]:
        """Facts to send now, in this order, through one ordered producer: urgent ones first, then a
        report when one is due, or that nothing has changed.

        Readiness follows its report directly, so that a reader who asks why a task moved finds the
        lag of that moment.
        """
        self._look_at_lease(now_ms)
        self._judge()
        facts: list[Fact] = [self._word(word) for word in self._urgent]
        self._urgent.clear()
        if self._joined and self.ended is None:
            given_up, self._given_up = [task for task in self._given_up if task not in self.grants], []
            facts += self._sooner(TasksRevoked, given_up)
            ready, self._newly_ready = [task for task in self._newly_ready if task in self._ready], []
            if ready or now_ms >= self._next_report_ms:
                facts += () if self.restart is None else (self.restart,)
                facts += self._say(now_ms)
            facts += self._sooner(TaskReady, ready)
        return facts

    @property
    def next_poll_ms(self) -> int | None:
        """Returns when `poll` next returns a fact, in ms; 0: now; None: never again."""
        if self._urgent or self._newly_ready or self._given_up:
            return 0
        return self._next_report_ms if self._joined and self.ended is None else None

    @property
    def next_report_ms(self) -> int:
        """Returns when the next heartbeat is due, in ms. Hand in what it should say before the
        `poll` that returns it. Meaningless before `join`.
        """
        return self._next_report_ms

    @property
    def has_more_to_report(self) -> bool:
        """Returns whether the last report had no space for everything and has arrived, so that the
        next one is due at once.
        """
        return self._more_to_report and self._report_known and self.ended is None

    def held(self, now_ms: int) -> list[TaskId]:
        """Tasks that it runs, restores to run, or is still closing, in rising order; without those
        that wait for a hold.
        """
        return sorted(self.closing.union(task for task, grant in self.grants.items() if grant.start_ms <= now_ms))

    def may_process(self, task: TaskId, now_ms: int) -> bool:
        """Returns whether a record of `task` may be processed now. Ask before each record."""
        return self.refusal(task, now_ms) is None

    def refusal(self, task: TaskId, now_ms: int) -> str | None:
        """Returns why `task` may not be processed now: ended, not_granted, closing, hold,
        restoring; None: it may.
        """
        is_fresh = self._look_at_lease(now_ms)
        if self.ended is not None or not is_fresh:
            return "ended"
        grant = self.grants.get(task)
        if task in self.closing:
            return "closing"
        if grant is None:
            return "not_granted"
        if now_ms < grant.start_ms:
            return "hold"
        return None if grant.restored else "restoring"

    @property
    def lease_ends_ms(self) -> int:
        """From this time on nothing may be processed unless the lease is renewed before.
        Meaningless before `join`.
        """
        return self._lease_rests_on(self._heartbeat_ms, self._fetch_ms) + self.lease_lasts_ms()

    def unanswered_ms(self, now_ms: int) -> int:
        """For how long the brokers have answered no fetch, or no heartbeat, in ms. A member at rest
        sends heartbeats seldom: what a longer interval explains does not count.
        """
        given = self.settings
        rests_ms = max(0, (given.keepalive_interval_ms or given.heartbeat_interval_ms) - given.heartbeat_interval_ms)
        return now_ms - min(self._fetch_ms, self._heartbeat_ms + rests_ms)

    def lease_lasts_ms(self) -> int:
        return self.settings.session_timeout_ms - self.settings.lease_margin_ms

    def lease_is_fresh(self, now_ms: int) -> bool:
        return self._joined and now_ms < self.lease_ends_ms

    # Inside

    def _look_at_lease(self, now_ms: int) -> bool:
        """Ends the session when its lease has lapsed. Returns `lease_is_fresh`."""
        is_fresh = self.lease_is_fresh(now_ms)
        if not is_fresh and self.ended is None and self._joined and not self._may_revive():
            self._end(End.LEASE_LAPSED, now_ms)
        return is_fresh

    def _end(self, how: End, now_ms: int) -> None:
        """Ends the session: the host must close its tasks, and no fact is sent any more."""
        self.closing.update(self.held(now_ms))
        self.grants.clear()
        self.standby = self.warmup = frozenset()
        self._urgent, self._newly_ready, self._given_up, self._parts = [], [], [], []
        self.ended = how

    def _send_left(self) -> None:
        """Sends MemberLeft for a session that gave up, as soon as all its tasks are closed."""
        if self.ended in (End.UNREADABLE, End.FAILED) and not self.closing and self._joined:
            self._urgent = [MemberLeft]

    def _decided(self, decision: Decision, now_ms: int) -> None:
        if isinstance(decision, MemberExpired):
            if self._is_mine(decision.member_id, decision.incarnation) and self._heeds_expiry():
                self.end_cause = decision.cause
                if self.ended is None:
                    self._end(End.EXPIRED, now_ms)
        elif isinstance(decision, EventRejected) and decision.code in FATAL_REJECTIONS:
            if self._is_mine(decision.member_id, decision.incarnation) and self._heeds_expiry():
                self._refused(decision, now_ms)
        elif self.ended is not None:
            return
        elif isinstance(decision, MemberAsked):
            if self._is_mine(decision.member_id, decision.incarnation):
                self.asked = decision.leave
        elif isinstance(decision, MemberAssigned):
            if self._is_mine(decision.member_id, decision.incarnation) and self._takes_epoch(decision.assignment_epoch):
                self._apply(decision, now_ms)
        elif isinstance(decision, MemberAssignedPart):
            if self._is_mine(decision.member_id, decision.incarnation):
                self._take_part(decision, now_ms)
        elif isinstance(decision, EventRejected) and self._is_mine(decision.member_id, decision.incarnation):
            self._told = None  # whatever it was: a report that the leader refuses must be made again
            if decision.code == "report_base_unknown":
                self._reported = None
                self._next_report_ms = now_ms
            elif decision.code == "already_released":
                self._leave(End.RELEASED, now_ms)

    def _refused(self, decision: EventRejected, now_ms: int) -> None:
        """The leader accepts nothing more from this incarnation. Read even after the lease lapsed,
        because it says why the member must not come back.
        """
        if self.end_cause or self.ended not in (None, End.LEASE_LAPSED):
            return
        self.end_cause, self.end_numbers = decision.code, decision.numbers
        if decision.code in _NAMES_THE_NEWEST and len(decision.numbers) > 1:
            self.newest_incarnation = decision.numbers[1]
        if self.ended is None:
            self._end(End.REFUSED, now_ms)

    def _take_part(self, part: MemberAssignedPart, now_ms: int) -> None:
        """Takes one part of an assignment. Parts are numbered without gaps (docs/protocol.md#l4),
        and apply once the last one is read (docs/protocol.md#l8).
        """
        self._parts = [part] if part.part == 1 else [*self._parts, part]
        if part.part == part.parts == len(self._parts):
            parts, self._parts = self._parts, []
            self._decided(join_assigned(parts), now_ms)

    def _is_mine(self, member_id: str | None, incarnation: int | None) -> bool:
        return member_id == self.settings.member_id and incarnation == self.settings.incarnation

    def _apply(self, assigned: MemberAssigned, now_ms: int) -> None:
        """Applies a complete assignment: tasks that are not in it are given up
        (docs/protocol.md#m3).
        """
        self.assignment_epoch = assigned.assignment_epoch
        self.unknown = frozenset(task for task in (*assigned.active, *assigned.standby, *assigned.warmup) if not self.settings.knows(task))
        tokens = {task: token for task, token in zip(assigned.active, assigned.tokens, strict=True) if task not in self.unknown}
        for task in [task for task, grant in self.grants.items() if tokens.get(task) != grant.token]:
            if self.grants.pop(task).start_ms <= now_ms:
                self.closing.add(task)
            else:
                self._given_up.append(task)  # it waited for its hold and never ran here
        self.standby = frozenset(assigned.standby) - self.unknown
        self.warmup = frozenset(assigned.warmup) - self.unknown
        self.acceptable_recovery_lag, self.acceptable_recovery_ms = assigned.acceptable_recovery_lag, assigned.acceptable_recovery_ms
        self._judge()
        if assigned.released:
            self._leave(End.RELEASED, now_ms)
            return
        if not self.stopping:
            for task, token in tokens.items():
                if task in self.grants:
                    if task not in assigned.hold_ms:  # the leader knows now that no other member runs it
                        self.grants[task].start_ms = min(self.grants[task].start_ms, now_ms)
                else:
                    start_ms = self._hold_ends_ms(now_ms, assigned.hold_ms.get(task, 0))
                    stateless = task.subtopology not in self.settings.stateful_subtopologies
                    self.grants[task] = Grant(token=token, start_ms=start_ms, restored=stateless)
        self._prepared &= self._keeps() | self.closing

    def _word(self, what: type[Word]) -> Word:
        return what(member_id=self.member_id, incarnation=self.incarnation)

    def _sooner(self, what: type[TaskReady] | type[TasksRevoked], tasks: list[TaskId]) -> Iterator[Fact]:
        """Facts that tell early what the next report contains anyway (docs/protocol.md#m2)."""
        for some in task_sets(tasks, self.most_event_bytes):
            yield what(member_id=self.member_id, incarnation=self.incarnation, assignment_epoch=self.assignment_epoch, tasks=some)

    def _leave_if_stopped(self, now_ms: int) -> None:
        if self.stopping and not self.closing:
            self._leave(End.LEFT, now_ms)

    def _leave(self, how: End, now_ms: int) -> None:
        """Sends that nothing runs here any more (docs/protocol.md#m1), as the last fact. Waits for
        tasks that are still closing.
        """
        self.closing.update(self.held(now_ms))
        self.grants.clear()
        if self.closing:
            self.stopping = True
            return
        pending = self._urgent
        self._end(how, now_ms)
        if self._joined:
            self._urgent = [*pending, MemberLeft]

    def _say(self, now_ms: int) -> Iterator[Fact]:
        """Yields what a heartbeat says: a report, that nothing has changed, or nothing at all while
        a member at rest has been heard of recently (docs/protocol.md#m2).
        """
        lags, content, keepalive_ms = self._lags_to_report(now_ms), self._content(now_ms), self.settings.keepalive_interval_ms
        if keepalive_ms is None:
            yield self._report(content, lags, now_ms)
            return
        self._next_report_ms = now_ms + self.settings.heartbeat_interval_ms
        news, is_known = self._news(content, lags), self._heartbeat_ms >= self._said_ms
        if news is not News.AT_ONCE and is_known and now_ms < self._keepalive_due_ms:
            self._next_report_ms = min(self._next_report_ms, self._keepalive_due_ms)
            return
        self._said_ms = now_ms
        self._keepalive_due_ms = now_ms + (self._first_keepalive_ms(keepalive_ms) if news is News.AT_ONCE else keepalive_ms)
        if news is News.NONE:
            yield MemberUnchanged(member_id=self.member_id, incarnation=self.incarnation, report=self._report_number)
        else:
            self._told = content
            yield self._report(content, lags, now_ms)

    def _first_keepalive_ms(self, most_ms: int) -> int:
        """Time from a report with news to the first fact of a member at rest. The members of a
        group often come to rest together. Spread over time they save the worker's ticks.
        """
        least_ms = self.settings.heartbeat_interval_ms
        return least_ms + zlib.crc32(f"{self.member_id} {self.incarnation}".encode()) % max(1, most_ms - least_ms + 1)

    def _lags_to_report(self, now_ms: int) -> dict[TaskId, Lag]:
        lags: dict[TaskId, Lag] = dict(self._lags)
        for task, grant in self.grants.items():
            runs = grant.restored and grant.start_ms <= now_ms and (task in self._prepared or not self.settings.prepares)
            if runs and task.subtopology in self.settings.stateful_subtopologies:
                lags[task] = LagSentinel.ACTIVE
        return lags

    def _content(self, now_ms: int) -> LagReported:
        """The complete report without its number and lags."""
        return LagReported(
            member_id=self.member_id,
            incarnation=self.incarnation,
            number=0,
            assignment_epoch=self.assignment_epoch,
            held=tuple(self.held(now_ms)),
            ready=tuple(sorted(self._ready)),
            leaving=self.leaving,
            load=self._load,
            preparing=dict(sorted(self._preparing.items(), key=lambda item: (item[0] not in self.warmup, item[0]))[:MOST_PREPARING]),
            failed=tuple(sorted(self._failed)[:MOST_PREPARING]),
        )

    def _news(self, content: LagReported, lags: Mapping[TaskId, Lag]) -> News:
        """Returns what changed since the last report. A member that moves, restores or prepares
        something, or goes, has news at each heartbeat; see docs/protocol.md#m2 for what is none.
        """
        told, reported = self._told, self._reported
        if told is None or reported is None or not self._report_known or self._more_to_report:
            return News.AT_ONCE
        if self.leaving or self.restart is not None or self.stopping or self.closing or self.warmup:
            return News.AT_ONCE
        if not all(grant.restored for grant in self.grants.values()) or attrs.evolve(content, load=told.load) != told:
            return News.AT_ONCE
        news, acceptable, kept = News.NONE, self.acceptable_lag, self._keeps()
        if lags != reported:
            if lags.keys() != reported.keys():
                return News.AT_ONCE
            for task, lag in lags.items():
                before = reported[task]
                if lag == before:
                    continue
                if not (isinstance(lag, int) and isinstance(before, int)):
                    return News.AT_ONCE
                if task in kept and (acceptable is None or max(lag, before) > acceptable):
                    return News.AT_ONCE  # it restores
                news = News.LATER
        if content.load == told.load:
            return news
        if content.load is None or told.load is None or content.load.behind.keys() != told.load.behind.keys():
            return News.AT_ONCE
        return News.LATER if differs(content.load, told.load) else news

    def _report(self, content: LagReported, lags: dict[TaskId, Lag], now_ms: int) -> LagReported:
        """The complete report, as a delta when the last report is known to have arrived
        (docs/protocol.md#m2). What does not fit goes into the next report, which is due as soon as
        this one is acknowledged. Assigned copies come first, so that none of them seems to be lost.
        """
        base: int | None = None
        before: dict[TaskId, Lag] = {}
        if self._reported is not None and self._report_known:
            base, before = self._report_number, self._reported
        self._report_number += 1
        whole = attrs.evolve(
            content,
            number=self._report_number,
            lags={task: lag for task, lag in sorted(lags.items()) if before.get(task) != lag},
            base=base,
            forgotten=tuple(sorted(task for task in before if task not in lags)),
        )
        report = shortened_report(whole, self._first_told, self.most_event_bytes)
        if report is not whole:
            gone = frozenset(report.forgotten)
            lags = {task: lag for task, lag in before.items() if task not in gone} | report.lags
        self._more_to_report = (report.lags, report.forgotten) != (whole.lags, whole.forgotten)
        self._reported, self._report_known = lags, False
        self._next_report_ms = now_ms + self.settings.heartbeat_interval_ms
        return report

    def _first_told(self, item: tuple[TaskId, Lag]) -> tuple[Any, ...]:
        """Sort key: assigned copies, then running tasks, then others."""
        task = item[0]
        kept = 0 if task in self.warmup else 1 if task in self.standby else 2 if task in self.grants else 3
        return kept, nearest_first(item)

    # The rules, one method each

    def _lease_dates_from(self, sent_ms: int, arrived_ms: int) -> int:
        """M4: the lease counts from the sending. Otherwise a late acknowledgement would be a fresh
        lease after the leader has expired the member.
        """
        return sent_ms

    def _lease_rests_on(self, heartbeat_ms: int, fetch_ms: int) -> int:
        """M4: both must be fresh. By heartbeats alone, a member whose reader is stuck would renew
        its lease for ever after it was expelled.
        """
        return min(heartbeat_ms, fetch_ms)

    def _fetch_counts(self, reached_end: bool) -> bool:
        """M4: only a fetch that left nothing unread proves that no decision against the member was
        waiting. No fetch counts while a gap is open (L4).
        """
        return reached_end and not self._gap

    def _may_revive(self) -> bool:
        """M4: a lapsed lease never revives. Otherwise a paused member would wake, see an old
        heartbeat acknowledged, and continue.
        """
        return False

    def _hold_ends_ms(self, read_ms: int, hold_ms: int) -> int:
        """M5: a task taken by force waits, from the reading of its grant, until the lease of the
        old owner must be over.
        """
        return read_ms + hold_ms

    def _heeds_expiry(self) -> bool:
        """M4, M7: a member that reads that it was removed, or is unknown, ends itself."""
        return True

    def _heeds_log_id(self) -> bool:
        """L9: a decision of another log shows that the log was replaced. What was read before says
        nothing about that log.
        """
        return True

    def _waits_for_former_log_ms(self) -> int:
        """L9: a new log does not know which members run tasks by the former one. Their longest
        lease is assumed to equal this member's.
        """
        return self.settings.session_timeout_ms if self.settings.former_log_id not in (None, self._log_id) else 0

    def _heeds_unread(self) -> bool:
        """M9: a decision that binds the member and that it cannot read ends the session. The
        decision could say anything, for example that the member was removed.
        """
        return True

    def _takes_number(self, number: int) -> bool:
        """L4: number n+1 only. A higher number would lose the decisions in between for ever."""
        return number == self.next_number

    def _takes_epoch(self, epoch: int) -> bool:
        """M3: an assignment older than the applied one is stale."""
        return epoch > self.assignment_epoch

    def _counts_as_restored(self, grant: Grant, lag: Lag, now_ms: int) -> bool:
        """M5, M6: a copy counts as restored only after the hold, when no other member writes to the
        changelog any more.
        """
        return lag == 0 and now_ms >= grant.start_ms
