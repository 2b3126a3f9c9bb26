"""Carries out the orders of a member's session: opens and closes tasks, keeps copies, and reports
their lags.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from functools import partial
from pathlib import Path
from typing import TypeVar

from equipoise.events.facts import Fact
from equipoise.events.tasks import Lag, TaskId
from equipoise.hosting.runtime import HostThread
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.member.copies.restorer import ChangelogRestorer
from equipoise.member.copies.stores import StateStore
from equipoise.member.http.measurements import Done, MemberFigures
from equipoise.member.session.parked_reports import ParkedReports, TroubleReports
from equipoise.member.session.preparing import PrepareCallback
from equipoise.member.session.progress_reports import ProgressReports
from equipoise.member.tasks.clients import TaskClients
from equipoise.member.tasks.context import State
from equipoise.member.tasks.error_policy import FailedTask
from equipoise.member.tasks.loop_callbacks import LoopCallbacks
from equipoise.member.tasks.runner import TaskRunner
from equipoise.member.tasks.runner_factory import RunnerFactory, SharedSession
from equipoise.member.tasks.runner_permit import RunnerPermit
from equipoise.statemachine.member import End

T = TypeVar("T")
StandbyCallback = Callable[[TaskId], Awaitable[None] | object]
AskedCallback = Callable[[bool], Awaitable[None] | object]


class Work:
    """Carries out the orders of the session. Construct it in the application's loop; the sections
    below say which loop calls which methods. `call` runs a function in the member's own loop,
    `wake` makes that loop look again, and `fail` ends the member with an error. `send` queues a
    fact.
    """

    def __init__(
        self,
        shared: SharedSession,
        restorer: ChangelogRestorer,
        restore_thread: HostThread,
        runners: RunnerFactory,
        on_standby: StandbyCallback | None,
        on_asked: AskedCallback | None,
        prepare: PrepareCallback | None,
        state_folder: Path | None,
        *,
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
        call: Callable[..., None],
        send: Callable[[Fact], None],
        brokers: BrokerWatch,
    ) -> None:
        self._shared = shared
        self._restorer = restorer
        self._restore_thread = restore_thread
        self._factory = runners
        self._boot_ms, self._monotonic_s = runners.runtime.boot_ms, runners.runtime.monotonic_s
        self._on_standby = on_standby
        self._on_asked = on_asked
        self._wake = wake
        self._app = asyncio.get_running_loop()
        self._callbacks = LoopCallbacks(fail)
        self._reports = ProgressReports(runners.runtime, state_folder)
        self.parking = ParkedReports(shared, send)
        self.troubles = TroubleReports(shared, send)
        self.permit = RunnerPermit(
            shared,
            restorer,
            restore_thread,
            runners.shared.adoption,
            prepare,
            self._reports,
            runners.runtime,
            brokers,
            wake=wake,
            fail=fail,
            parked=partial(call, self.parking.park),
            stopped=partial(call, self._closed),
            ended=partial(call, self._ended),
        )
        self._to_prepare: tuple[frozenset[TaskId], frozenset[TaskId]] = (frozenset(), frozenset())
        """The last arguments of `Preparer.update`."""
        self._runners: dict[TaskId, TaskRunner] = {}
        self._connected: dict[TaskId, TaskClients] = {}
        """Clients of copies, connected ahead so that a hand-over does not wait for connections."""
        self._closing_clients: set[asyncio.Task[None]] = set()
        self._asked_to_stop: set[TaskId] = set()
        self._following: set[TaskId] = set()
        self._standbys: frozenset[TaskId] = frozenset()
        """Copies that the member was told to keep; `on_standby` was called for each."""
        self._done = Done()
        """Of the runners that have ended."""

    @property
    def is_over(self) -> bool:
        """Returns whether no task runs or is being closed."""
        return not self._runners

    @property
    def running(self) -> dict[TaskId, int]:
        """Task that may be processed now -> fencing token. Any thread may read it."""
        with self._shared.lock:
            session, now_ms = self._shared.session, self._boot_ms()
            return {task: grant.token for task, grant in sorted(session.grants.items()) if session.refusal(task, now_ms) is None}

    # Queries of state, in the application's loop

    def refusal(self, task: TaskId) -> str | None:
        """Returns why the member may not process the task now; None: it may."""
        with self._shared.lock:
            return self._shared.session.refusal(task, self._boot_ms())

    def states_of(self, task: TaskId) -> Mapping[str, State] | None:
        """Returns changelog topic -> state of a task that is open here, and under a lease that
        holds; None: it is not.
        """
        runner = self._runners.get(task)
        return None if runner is None or self.refusal(task) not in (None, "closing") else runner.states

    async def copied(self, task: TaskId, topic: str, read: Callable[[StateStore], T]) -> tuple[T, Lag] | None:
        """Reads a copy that is kept here. Returns also its lag; None: there is none. Raises
        StoreError.
        """
        return await self._restore_thread.run(self._restorer.read(task, topic, read))

    @property
    def failed_tasks(self) -> dict[TaskId, FailedTask]:
        """Task that has failed -> why. Any thread may read it."""
        failed = {task: runner.parked for task, runner in sorted(self._runners.copy().items())}
        return {task: each for task, each in failed.items() if each is not None}

    def figures(self) -> MemberFigures:
        """Returns what the member's metrics say. Any thread may call it."""
        with self._shared.lock:
            session, now_ms = self._shared.session, self._boot_ms()
            done, runners = self._done, self._runners.copy()
            left_ms = session.lease_ends_ms - now_ms if session.joined and session.ended is None else 0
            running = sum(session.refusal(task, now_ms) is None for task in session.grants)
            restoring = {*session.standby, *session.warmup, *session.grants}
            """Copies on the disk of other tasks are restored by nobody."""
            tasks = {
                "running": running,
                "opening": len(session.grants) - running,
                "closing": len(session.closing),
                "standby": len(session.standby),
                "warmup": len(session.warmup),
            }
        return MemberFigures(
            done=sum((Done(each.processed, each.commits, each.busy_s, each.out_of_order) for each in runners.values()), done),
            restored=self._restorer.restored_records,
            damaged=self._restorer.damaged_copies,
            failures=self._factory.failures.counts,
            drops=self._factory.failures.drops.counts,
            handler_times=self._factory.failures.handler_times,
            fenced=self.permit.fenced_writes,
            parked=len(self.failed_tasks),
            tasks=tasks,
            source_lags={task: behind for task, each in sorted(runners.items()) if (behind := each.behind) is not None},
            restore_lags={task: lag for task, lag in sorted(self.lags.items()) if task in restoring and isinstance(lag, int)},
            throttled_s=self._factory.shared.throttling.throttled_s,
            lease_left_s=max(0, left_ms) / 1_000,
        )

    @property
    def unread_partitions(self) -> dict[str, int]:
        """Source topic -> how many of its partitions no task reads; topics without any are left
        out. Any thread may read it.
        """
        read: dict[str, int] = {}
        for part in self._factory.topology.subtopologies:
            for topic in part.source_topics:
                read[topic] = max(read.get(topic, 0), part.partitions)
        there = self._factory.shared.source_partitions
        return {topic: there[topic] - count for topic, count in sorted(read.items()) if there.get(topic, 0) > count}

    # In the member's own loop

    def say_troubles(self) -> None:
        """Says what holds up the member from outside."""
        now_s = asyncio.get_running_loop().time()
        of_tasks = (each.trouble(self._monotonic_s()) for each in self._runners.values())
        self.troubles.say([*self._factory.shared.troubles(now_s), *self._restorer.troubles, *filter(None, of_tasks)])

    def begin_incarnation(self) -> None:
        """Begins a new incarnation, whose session knows of no copies."""
        self._reports.begin_incarnation()

    def report_progress(self, now_ms: int) -> None:
        """Reports the lag of every copy that is not running, and the load. The caller holds the
        lock.
        """
        session, preparer = self._shared.session, self.permit.preparer
        self._reports.report_copies(session, self.lags, self._runners, now_ms)
        if preparer is not None:
            session.note_preparing(preparer.thousandths(), preparer.failed)
        self._reports.report_load(session, self._restorer.restored_records_per_s, self._runners, now_ms)

    def reconcile(self) -> int:
        """Opens, closes and follows tasks as the session says. Returns when to look again (ms,
        CLOCK_BOOTTIME).
        """
        with self._shared.lock:
            session, now_ms = self._shared.session, self._boot_ms()
            self._restorer.ready_lag_records = session.acceptable_lag or 0
            closing, warmups = sorted(session.closing), session.warmup
            assigned = session.standby | session.warmup
            copies = assigned if session.assignment_epoch else assigned.union(self.lags)  # most of those here will be assigned to it
            grants = {task: (grant.token, grant.start_ms) for task, grant in sorted(session.grants.items()) if task not in session.closing}
            to_prepare = session.to_prepare(), frozenset(copies).union(grants)
            over = session.ended is not None and session.ended not in (End.LEFT, End.RELEASED)
            looks = [session.lease_ends_ms, *(start_ms for _, start_ms in grants.values() if start_ms > now_ms)]
            if session.next_poll_ms is not None:
                looks.append(session.next_poll_ms)
            if session.ended is not None:
                looks = [now_ms + session.settings.heartbeat_interval_ms]
        for task in closing:
            self._close(task, abort=over)
        for task, (token, start_ms) in grants.items():
            if start_ms <= now_ms and task not in self._runners:
                runner = self._runners[task] = self._factory.make(self.permit, task, token, self._connected.pop(task, None))
                self._app.call_soon_threadsafe(runner.start)
        if self.permit.preparer is not None and to_prepare != self._to_prepare:
            self._to_prepare = to_prepare
            self._app.call_soon_threadsafe(self.permit.preparer.update, *to_prepare)
        # All tasks share connections: those of one copy are enough for standbys.
        ahead = warmups.difference(self._runners) or (set() if self._runners else set(sorted(copies)[:1]))
        self._connect(ahead)
        self._follow(frozenset(task for task in copies if task not in self._runners))
        self._call_on_standby(assigned.difference(self._runners))
        self._restore_thread.loop.call_soon_threadsafe(self._restorer.order, self._restorer.forget_kept, [*copies, *grants, *self._runners])
        return min(looks)

    def _connect(self, copies: Set[TaskId]) -> None:
        """Keeps clients connected for these tasks only."""
        for task in sorted(self._connected.keys() - copies):
            self._app.call_soon_threadsafe(self._begin_closing, self._connected.pop(task))
        for task in sorted(copies - self._connected.keys()):
            clients = self._connected[task] = self._factory.clients(task)
            self._app.call_soon_threadsafe(clients.connect)

    def _close(self, task: TaskId, *, abort: bool) -> None:
        runner = self._runners.get(task)
        if runner is None:
            self._closed(task)
        elif abort or task not in self._asked_to_stop:
            self._asked_to_stop.add(task)
            self._app.call_soon_threadsafe(partial(runner.stop, abort=abort))

    def _follow(self, copies: frozenset[TaskId]) -> None:
        for task in sorted(self._following - copies):
            self._following.discard(task)
            if task not in self._runners and self._factory.has_changelogs(task):
                self._restore_thread.loop.call_soon_threadsafe(self._restorer.order, self._restorer.leave, task)
        for task in sorted(copies - self._following):
            self._following.add(task)
            if self._factory.has_changelogs(task):
                self._restore_thread.loop.call_soon_threadsafe(self._restorer.order, self._restorer.follow, task)

    def _call_on_standby(self, copies: frozenset[TaskId]) -> None:
        if self._on_standby is not None:
            for task in sorted(copies - self._standbys):
                self._callbacks.call(self._on_standby, task)
        self._standbys = copies

    def call_on_asked(self, leave: bool) -> None:
        """Calls `on_asked`: an operator asks this member to leave, or withdraws that."""
        if self._on_asked is not None:
            self._callbacks.call(self._on_asked, leave)

    def note_blocked(self, why: str) -> None:
        """Reports that no task is handled. `why`: the application's loop does not run; "": it runs."""
        self.parking.note_blocked(why, lambda: self.failed_tasks)

    def abandon(self) -> None:
        """Stops all tasks at once, without another write."""
        for runner in list(self._runners.values()):
            self._app.call_soon_threadsafe(partial(runner.stop, abort=True))

    def _closed(self, task: TaskId) -> None:
        with self._shared.lock:
            if task in self._shared.session.closing:
                self._shared.session.task_closed(task, self._boot_ms())
        self._wake()

    def _ended(self, task: TaskId) -> None:
        with self._shared.lock:
            ended = self._runners.pop(task)
            self._done += Done(ended.processed, ended.commits, ended.busy_s, ended.out_of_order)
        self._asked_to_stop.discard(task)
        self._following.discard(task)
        self._closed(task)

    # In the application's loop

    async def close_clients(self) -> None:
        """Closes the last connections, after all tasks have ended."""
        if self.permit.preparer is not None:
            await self.permit.preparer.cancel_all()
        for clients in self._connected.values():
            self._begin_closing(clients)
        self._connected.clear()
        await asyncio.gather(*self._closing_clients, return_exceptions=True)
        await self._factory.shared.close()

    def _begin_closing(self, clients: TaskClients) -> None:
        task = asyncio.ensure_future(clients.close())
        self._closing_clients.add(task)
        task.add_done_callback(self._closing_clients.discard)

    @property
    def lags(self) -> Mapping[TaskId, Lag]:
        """Task of each copy that does not run -> lag in records; 0 for a task without changelogs,
        which is only prepared. Any thread may read it.
        """
        return {**self._restorer.lags, **{task: 0 for task in sorted(self._following) if not self._factory.has_changelogs(task)}}
