"""The member's side of the protocol: one incarnation, sans-IO and without a clock.

A host (the real client, or a process of the simulated cluster) hands in what happened together with `now_ms`, its CLOCK_BOOTTIME in
milliseconds, and asks three things back: what to send (`poll`), what to close (`closing`), and, before each record it processes, `refusal`.

::

    session = MemberSession(settings)
    session.reader_placed(last_number=17, sent_ms=...)   # M1: the decisions reader stands at the end
    send(session.join(now_ms))
    loop: session.receive(record, now_ms)  session.fetch_completed(...)  session.heartbeat_acknowledged(...)
          send(session.poll(now_ms))       close(session.closing)        process while session.refusal(task, now_ms) is None
    ended: close what `closing` names, then join again with a new session (and its `ended_incarnation`, when nothing runs any more)

Rules of PROTOCOL that a search wants to break one at a time are the small methods at the end of the class.
"""

from __future__ import annotations

import enum

from events.decisions import Decision, EventRejected, MemberAsked, MemberAssigned, MemberExpired
from events.errors import InputError
from events.facts import Fact, LagReported, LeaveCancelled, LeaveIntended, Load, MemberJoined, MemberLeft, TaskReady, TasksRevoked
from events.records import DecisionRecord
from events.tasks import Lag, LagSentinel, TaskId
from statemachine.session_state import End, Grant, MemberSettings, SessionState, Word

__all__ = ["FATAL_REJECTIONS", "End", "Grant", "MemberSession", "MemberSettings", "Reception"]


class Reception(enum.Enum):
    """What became of a decision that was handed in (PROTOCOL L4)."""

    APPLIED = "applied"
    DROPPED = "dropped"
    """Its number was read before."""
    GAP = "gap"
    """Its number is too high: read on from `next_number` first, then hand this one in again."""


FATAL_REJECTIONS = frozenset(
    {"unknown_member", "stale_incarnation", "not_configured", "margin_too_small", "margin_too_large", "incarnation_repeated"}
)
"""EventRejected codes after which the leader will not hear this incarnation."""


class MemberSession(SessionState):
    """One incarnation of a member, from before its join to its end. Obeys PROTOCOL M1-M7."""

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
    def next_number(self) -> int:
        """Number of the decision it needs next (PROTOCOL L4)."""
        if self._last_number is None:
            raise InputError("MemberSession: place the decisions reader at the end first (reader_placed)")
        return self._last_number + 1

    def reader_placed(self, *, last_number: int, sent_ms: int) -> None:
        """The decisions reader stands at the end of the partition, as a fetch sent at `sent_ms` found it (PROTOCOL M1).

        `last_number`: the highest number of a decision of this group before that place; 0: none yet.
        """
        if self._joined:
            raise InputError("MemberSession.reader_placed: it has joined already; a new incarnation needs a new session")
        self._last_number = last_number
        self._fetch_ms = sent_ms

    def join(self, now_ms: int) -> MemberJoined:
        """The fact that begins the incarnation, to be sent at once. The lease runs from here: the leader cannot count it from earlier.

        Raises InputError when the decisions reader was not placed, or so long ago that the lease would be over (PROTOCOL M1).
        """
        if self._joined or self.ended is not None:
            raise InputError("MemberSession.join: one session joins once; a new incarnation needs a new session")
        if self._last_number is None or now_ms >= self._fetch_ms + self.lease_lasts_ms():
            raise InputError("MemberSession.join: place the decisions reader at the end first (reader_placed)")
        self._joined = True
        self._heartbeat_ms = now_ms
        self._next_report_ms = now_ms + self.settings.heartbeat_interval_ms
        given = self.settings
        return MemberJoined(
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
        )

    # What comes in

    def receive(self, record: DecisionRecord, now_ms: int) -> Reception:
        """A decision of its group, in the order read. `now_ms` is when it was read: holds count from it (PROTOCOL M5)."""
        self._look_at_lease(now_ms)
        if record.number < self.next_number:
            return Reception.DROPPED
        if not self._takes_number(record.number):
            self._gap = True
            return Reception.GAP
        self._gap = False
        self._last_number = record.number
        self._decided(record.decision, now_ms)
        return Reception.APPLIED

    def fetch_completed(self, *, sent_ms: int, reached_end: bool, now_ms: int) -> None:
        """A fetch sent at `sent_ms` is done, and every decision it brought has been handed in (PROTOCOL M4).

        `reached_end`: nothing was left to read in the partition when the broker answered.
        """
        self._look_at_lease(now_ms)
        if self._fetch_counts(reached_end):
            self._fetch_ms = max(self._fetch_ms, self._lease_dates_from(sent_ms, now_ms))

    def heartbeat_acknowledged(self, *, sent_ms: int, now_ms: int, report_number: int | None = None) -> None:
        """The broker has appended a fact of this incarnation that was first sent at `sent_ms`. `report_number`: when it was that LagReported."""
        self._look_at_lease(now_ms)
        self._heartbeat_ms = max(self._heartbeat_ms, self._lease_dates_from(sent_ms, now_ms))
        if report_number is not None and report_number == self._report_number:
            self._report_known = True

    # What the host says of its copies and tasks

    def copy_progress(self, task: TaskId, lag: Lag, now_ms: int) -> None:
        """The copy of `task` is `lag` records behind. For a granted task: behind the changelog's end as read after its hold; 0 means restored."""
        grant = self.grants.get(task)
        if grant is not None and self._counts_as_restored(grant, lag, now_ms):
            grant.restored = True
        self._lags[task] = lag
        if isinstance(lag, LagSentinel) or lag > self.settings.ready_lag_records:
            self._ready.discard(task)
        elif task not in self._ready and (task in self.standby or task in self.warmup):
            self._ready.add(task)
            if task in self.warmup and self._joined and self.ended is None:
                self._newly_ready.append(task)  # somebody may wait for it; a standby's readiness can wait for the heartbeat

    def copy_dropped(self, task: TaskId) -> None:
        """There is no copy of `task` on this member any more."""
        self._lags.pop(task, None)
        self._ready.discard(task)

    def task_closed(self, task: TaskId, now_ms: int) -> None:
        """A task of `closing` has stopped and written its last. It is given up, or opened again when it was granted again meanwhile."""
        self._look_at_lease(now_ms)
        self.closing.discard(task)
        if self.ended is not None:
            return
        if task not in self.grants and not self.stopping:
            self._given_up.append(task)
        self._leave_if_stopped(now_ms)

    def load_measured(self, load: Load | None) -> None:
        """What the next reports say of the host's load."""
        self._load = load

    # Leaving

    def intend_leave(self) -> None:
        """It wants to go once its tasks run elsewhere; `released` in a MemberAssigned then ends it."""
        if not self.leaving and self.ended is None:
            self.leaving = True
            if self._joined:
                self._urgent.append(LeaveIntended)

    def cancel_leave(self) -> None:
        """It stays after all."""
        if self.leaving and self.ended is None:
            self.leaving = False
            if self._joined:
                self._urgent.append(LeaveCancelled)

    def close(self, now_ms: int) -> None:
        """Stops everything at once and says MemberLeft when the host has closed it all."""
        self._look_at_lease(now_ms)
        if self.ended is None:
            self.stopping = True
            self.closing.update(self.held(now_ms))
            self.grants.clear()
            self._leave_if_stopped(now_ms)

    # What the host asks

    def poll(self, now_ms: int) -> list[Fact]:
        """Facts to send now, in this order, over one ordered producer: what is urgent, then a report when one is due.

        Readiness is said right behind a report, so that whoever asks why a task moved finds the lag of that moment.
        """
        self._look_at_lease(now_ms)
        facts: list[Fact] = [self._word(word) for word in self._urgent]
        self._urgent.clear()
        if self._joined and self.ended is None:
            given_up, self._given_up = [task for task in self._given_up if task not in self.grants], []
            if given_up:
                facts.append(self._sooner(TasksRevoked, given_up))
            ready, self._newly_ready = [task for task in self._newly_ready if task in self._ready], []
            if ready or now_ms >= self._next_report_ms:
                facts.append(self._report(now_ms))
            if ready:
                facts.append(self._sooner(TaskReady, ready))
        return facts

    @property
    def next_poll_ms(self) -> int | None:
        """When `poll` has something to say next; None: never again. 0 = now."""
        if self._urgent or self._newly_ready or self._given_up:
            return 0
        return self._next_report_ms if self._joined and self.ended is None else None

    @property
    def next_report_ms(self) -> int:
        """When the next heartbeat is due; what it is to say must be told before the `poll` that gives it. Meaningless before `join`."""
        return self._next_report_ms

    def held(self, now_ms: int) -> list[TaskId]:
        """Tasks it runs, restores to run, or is still closing, in rising order; not those that wait for a hold."""
        return sorted(self.closing.union(task for task, grant in self.grants.items() if grant.start_ms <= now_ms))

    def may_process(self, task: TaskId, now_ms: int) -> bool:
        """Whether a record of `task` may be processed at this moment. To be asked before each."""
        return self.refusal(task, now_ms) is None

    def refusal(self, task: TaskId, now_ms: int) -> str | None:
        """Why `task` may not be processed now: ended, not_granted, closing, hold, restoring; None: it may."""
        self._look_at_lease(now_ms)
        if self.ended is not None or not self.lease_is_fresh(now_ms):
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
        """From this moment on nothing may be processed, unless it is renewed before. Meaningless before `join`."""
        return self._lease_rests_on(self._heartbeat_ms, self._fetch_ms) + self.lease_lasts_ms()

    def lease_lasts_ms(self) -> int:
        return self.settings.session_timeout_ms - self.settings.lease_margin_ms

    def lease_is_fresh(self, now_ms: int) -> bool:
        return self._joined and now_ms < self.lease_ends_ms

    # Inside

    def _look_at_lease(self, now_ms: int) -> None:
        if self.ended is None and self._joined and now_ms >= self.lease_ends_ms and not self._may_revive():
            self._end(End.LEASE_LAPSED, now_ms)

    def _end(self, how: End, now_ms: int) -> None:
        """Everything is dropped: what it ran must be closed, what it had to say is void."""
        self.closing.update(self.held(now_ms))
        self.grants.clear()
        self.standby = self.warmup = frozenset()
        self._urgent, self._newly_ready, self._given_up = [], [], []
        self.ended = how

    def _decided(self, decision: Decision, now_ms: int) -> None:
        if isinstance(decision, MemberExpired):
            if self._is_mine(decision.member_id, decision.incarnation) and self._heeds_expiry():
                self.end_cause = decision.cause
                if self.ended is None:
                    self._end(End.EXPIRED, now_ms)
        elif self.ended is not None:
            return
        elif isinstance(decision, MemberAsked):
            if self._is_mine(decision.member_id, decision.incarnation):
                self.asked = decision.leave
        elif isinstance(decision, MemberAssigned):
            if self._is_mine(decision.member_id, decision.incarnation) and self._takes_epoch(decision.assignment_epoch):
                self._apply(decision, now_ms)
        elif isinstance(decision, EventRejected) and self._is_mine(decision.member_id, decision.incarnation):
            if decision.code == "report_base_unknown":
                self._reported = None
                self._next_report_ms = now_ms
            elif decision.code == "already_released":
                self._leave(End.RELEASED, now_ms)
            elif decision.code in FATAL_REJECTIONS and self._heeds_expiry():
                self.end_cause = decision.code
                self._end(End.REFUSED, now_ms)

    def _is_mine(self, member_id: str | None, incarnation: int | None) -> bool:
        return member_id == self.settings.member_id and incarnation == self.settings.incarnation

    def _apply(self, assigned: MemberAssigned, now_ms: int) -> None:
        """The complete set: what is not in it is given up (PROTOCOL M3)."""
        self.assignment_epoch = assigned.assignment_epoch
        tokens = dict(zip(assigned.active, assigned.tokens, strict=True))
        for task in [task for task, grant in self.grants.items() if tokens.get(task) != grant.token]:
            if self.grants.pop(task).start_ms <= now_ms:
                self.closing.add(task)
            else:
                self._given_up.append(task)  # it waited for its hold and never ran here
        self.standby = frozenset(assigned.standby)
        self.warmup = frozenset(assigned.warmup)
        self._ready &= self.standby | self.warmup
        if assigned.released:
            self._leave(End.RELEASED, now_ms)
            return
        if not self.stopping:
            for task, token in tokens.items():
                if task in self.grants:
                    if task not in assigned.hold_ms:  # the leader knows now that nobody else runs it
                        self.grants[task].start_ms = min(self.grants[task].start_ms, now_ms)
                else:
                    start_ms = self._hold_ends_ms(now_ms, assigned.hold_ms.get(task, 0))
                    stateless = task.subtopology not in self.settings.stateful_subtopologies
                    self.grants[task] = Grant(token=token, start_ms=start_ms, restored=stateless)

    def _word(self, what: type[Word]) -> Word:
        return what(member_id=self.member_id, incarnation=self.incarnation)

    def _sooner(self, what: type[TaskReady] | type[TasksRevoked], tasks: list[TaskId]) -> Fact:
        """What the next report says anyway (PROTOCOL M2)."""
        return what(member_id=self.member_id, incarnation=self.incarnation, assignment_epoch=self.assignment_epoch, tasks=tuple(sorted(set(tasks))))

    def _leave_if_stopped(self, now_ms: int) -> None:
        if self.stopping and not self.closing:
            self._leave(End.LEFT, now_ms)

    def _leave(self, how: End, now_ms: int) -> None:
        """Its own word that nothing runs here any more (PROTOCOL M1): the last thing it says. With tasks still closing, it waits for them."""
        self.closing.update(self.held(now_ms))
        self.grants.clear()
        if self.closing:
            self.stopping = True
            return
        said = self._urgent
        self._end(how, now_ms)
        if self._joined:
            self._urgent = [*said, MemberLeft]

    def _report(self, now_ms: int) -> LagReported:
        """The whole truth, as a delta when the last report is known to have arrived (PROTOCOL M2)."""
        lags: dict[TaskId, Lag] = dict(self._lags)
        for task, grant in self.grants.items():
            if grant.restored and grant.start_ms <= now_ms and task.subtopology in self.settings.stateful_subtopologies:
                lags[task] = LagSentinel.ACTIVE
        base: int | None = None
        said = lags
        forgotten: tuple[TaskId, ...] = ()
        if self._reported is not None and self._report_known:
            base = self._report_number
            said = {task: lag for task, lag in lags.items() if self._reported.get(task) != lag}
            forgotten = tuple(sorted(task for task in self._reported if task not in lags))
        self._reported, self._report_known = lags, False
        self._report_number += 1
        self._next_report_ms = now_ms + self.settings.heartbeat_interval_ms
        return LagReported(
            member_id=self.member_id,
            incarnation=self.incarnation,
            number=self._report_number,
            assignment_epoch=self.assignment_epoch,
            held=tuple(self.held(now_ms)),
            ready=tuple(sorted(self._ready)),
            lags=dict(sorted(said.items())),
            base=base,
            forgotten=forgotten,
            leaving=self.leaving,
            load=self._load,
        )

    # The rules, one method each

    def _lease_dates_from(self, sent_ms: int, arrived_ms: int) -> int:
        """M4: the lease is dated from the sending. A late acknowledgement would otherwise be a fresh lease after the leader has expired us."""
        return sent_ms

    def _lease_rests_on(self, heartbeat_ms: int, fetch_ms: int) -> int:
        """M4: both must be fresh. By heartbeats alone a member whose reader is stuck would renew for ever after it was expelled."""
        return min(heartbeat_ms, fetch_ms)

    def _fetch_counts(self, reached_end: bool) -> bool:
        """M4: only a fetch that left nothing unread proves that no decision against us was waiting; nor does one count while a gap is open (L4)."""
        return reached_end and not self._gap

    def _may_revive(self) -> bool:
        """M4: a lapsed lease never revives. A paused member would otherwise wake, see an old heartbeat acknowledged, and go on."""
        return False

    def _hold_ends_ms(self, read_ms: int, hold_ms: int) -> int:
        """M5: a task taken by force waits, from the reading of its grant, until the old owner's lease must be over."""
        return read_ms + hold_ms

    def _heeds_expiry(self) -> bool:
        """M4, M7: a member that reads that it is out, or that it is not known, ends itself."""
        return True

    def _takes_number(self, number: int) -> bool:
        """L4: number n+1 only. Anything higher would lose what is between for ever."""
        return number == self.next_number

    def _takes_epoch(self, epoch: int) -> bool:
        """M3: an older set than the one applied is stale."""
        return epoch > self.assignment_epoch

    def _counts_as_restored(self, grant: Grant, lag: Lag, now_ms: int) -> bool:
        """M5, M6: up to date counts only after the hold, when nobody else writes to the changelog any more."""
        return lag == 0 and now_ms >= grant.start_ms
