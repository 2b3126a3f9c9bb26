"""Carries out the orders of a member's session: opens and closes tasks, keeps copies, and reports
their lags.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs

from equipoise.broker_watch import BrokerWatch
from equipoise.events.facts import Fact, Load, TaskParked
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.member.callbacks import awaitable
from equipoise.member.error_policy import ParkedTask, error_text
from equipoise.member.fencing import FencedStore, Owners, TakeIf
from equipoise.member.figures import Done, MemberFigures
from equipoise.member.link import RETRY_S
from equipoise.member.load import Rates
from equipoise.member.permit import NOT_ADOPTED
from equipoise.member.preparing import PreparationProgress, PrepareCallback, Preparer
from equipoise.member.raised import is_cancelled
from equipoise.member.restorer import ChangelogRestorer
from equipoise.member.runner_factory import RunnerFactory, SharedSession
from equipoise.member.stores import DamagedStoreError
from equipoise.member.task_clients import TaskClients
from equipoise.member.task_runner import TaskRunner
from equipoise.runtime import HostThread
from equipoise.statemachine.member import End

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
PERMIT_MS = 10
"""For how long a runner processes without asking again. A whole lease would be safe; a task that
is to stop should hear of it sooner.
"""
StandbyCallback = Callable[[TaskId], Awaitable[None] | object]
AskedCallback = Callable[[bool], Awaitable[None] | object]


class Work:
    """Carries out the orders of the session, and is the `Permit` of its runners. Construct it in
    the application's loop; the sections below say which loop calls which methods. `call` runs a
    function in the member's own loop, `wake` makes that loop look again, and `fail` ends the member
    with an error. `send` queues a fact.
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
        self._brokers = brokers
        self._restorer = restorer
        self._restore_thread = restore_thread
        self._factory = runners
        self._boot_ms = runners.runtime.boot_ms
        self._on_standby = on_standby
        self._on_asked = on_asked
        self._wake, self._fail, self._call, self._send = wake, fail, call, send
        self._app = asyncio.get_running_loop()
        self._called: set[asyncio.Task[None]] = set()
        """Callbacks that are coroutines and under way: a task without a reference may be collected.
        """
        self._preparer = None if prepare is None else Preparer(prepare, self._declare_ready, wake, fail, runners.runtime)
        self._to_prepare: tuple[frozenset[TaskId], frozenset[TaskId]] = (frozenset(), frozenset())
        """The last arguments of `Preparer.update`."""
        self._runners: dict[TaskId, TaskRunner] = {}
        self._connected: dict[TaskId, TaskClients] = {}
        """Clients of copies, connected ahead so that a hand-over does not wait for connections."""
        self._closing_clients: set[asyncio.Task[None]] = set()
        self._asked_to_stop: set[TaskId] = set()
        self._unsaid: dict[TaskId, tuple[int, ParkedTask]] = {}
        """Task -> token and why it is parked, until the brokers have acknowledged TaskParked."""
        self._blocked: dict[TaskId, int] = {}
        """Task of which was said that the application's loop does not run -> token."""
        self._following: set[TaskId] = set()
        self._standbys: frozenset[TaskId] = frozenset()
        """Copies that the member was told to keep; `on_standby` was called for each."""
        self._reported: set[TaskId] = set()
        """Copies that the session of this incarnation knows of."""
        self._rates, self._busy = Rates(), Rates()
        self._load_meter = runners.runtime.load_meter(state_folder)
        self.fenced_writes = 0
        """Number of commits that were refused or overtaken because a later owner had begun."""
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

    @property
    def parked_tasks(self) -> dict[TaskId, ParkedTask]:
        """Task that is parked -> why. Any thread may read it."""
        parked = {task: runner.parked for task, runner in sorted(self._runners.copy().items())}
        return {task: each for task, each in parked.items() if each is not None}

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
                "running": running, "opening": len(session.grants) - running, "closing": len(session.closing),
                "standby": len(session.standby), "warmup": len(session.warmup),
            }  # fmt: skip
        return MemberFigures(
            done=sum((Done(each.processed, each.commits, each.busy_s) for each in runners.values()), done),
            restored=self._restorer.restored_records,
            damaged=self._restorer.damaged_copies,
            failures=self._factory.failures.counts,
            fenced=self.fenced_writes,
            parked=len(self.parked_tasks),
            tasks=tasks,
            source_lags={task: behind for task, each in sorted(runners.items()) if (behind := each.behind) is not None},
            restore_lags={task: lag for task, lag in sorted(self.lags.items()) if task in restoring and isinstance(lag, int)},
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

    def begin_incarnation(self) -> None:
        """A new incarnation begins, whose session knows of no copies."""
        self._reported = set()

    def report_progress(self, now_ms: int) -> None:
        """Reports the lag of every copy that is not running, and the load. The caller holds the
        lock.
        """
        session, lags = self._shared.session, self.lags
        for task, lag in sorted(lags.items()):
            # A granted task is restored when its runner says so, even if its copy has lag 0.
            session.copy_progress(task, 1 if lag == 0 and task in session.grants else lag, now_ms)
        for task in sorted(self._reported.difference(lags)):
            if task not in self._runners:
                session.copy_dropped(task)
            elif task not in session.grants and task not in session.closing:
                # Stopped but not closed yet: its next owner may write, so its lag is unknown.
                session.copy_progress(task, LagSentinel.UNKNOWN, now_ms)
        self._reported = {*lags, *self._reported.intersection(self._runners)}
        if self._preparer is not None:
            session.note_preparing(self._preparer.thousandths(), self._preparer.failed)
        speed = self._restorer.restored_records_per_s
        behind = {task: records for task, runner in sorted(self._runners.items()) if (records := runner.behind) is not None}
        self._rates.look({task: runner.processed for task, runner in sorted(self._runners.items())}, now_ms)
        self._busy.look({task: int(runner.busy_s * 1_000_000) for task, runner in sorted(self._runners.items())}, now_ms)
        host = self._load_meter.look(now_ms)
        if speed or behind or self._rates.per_s:
            # Without rates the host's load cannot be divided among its tasks.
            shares = attrs.asdict(host) if self._rates.per_s else {}
            load = Load(**shares, restored_records_per_s=round(speed, 1), tasks=self._rates.per_s, behind=behind, busy=self._busy.per_s)
            session.load_measured(load)

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
                runner = self._runners[task] = self._factory.make(self, task, token, self._connected.pop(task, None))
                self._app.call_soon_threadsafe(runner.start)
        if self._preparer is not None and to_prepare != self._to_prepare:
            self._to_prepare = to_prepare
            self._app.call_soon_threadsafe(self._preparer.update, *to_prepare)
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
                self._app.call_soon_threadsafe(self._call_back, self._on_standby, task)
        self._standbys = copies

    def call_on_asked(self, leave: bool) -> None:
        """Calls `on_asked`: an operator asks this member to leave, or withdraws that."""
        if self._on_asked is not None:
            self._app.call_soon_threadsafe(self._call_back, self._on_asked, leave)

    def _park(self, token: int, parked: ParkedTask) -> None:
        self._unsaid[parked.task] = token, parked
        self.say_parked()

    def say_parked(self) -> None:
        """Says which tasks are parked, as far as that is not acknowledged (docs/protocol.md#m10).
        """
        with self._shared.lock:
            session = self._shared.session
            tokens = {task: grant.token for task, grant in session.grants.items()}
        self._unsaid = {task: said for task, said in sorted(self._unsaid.items()) if tokens.get(task) == said[0]}
        for task, (token, parked) in self._unsaid.items():
            self._send(
                TaskParked(
                    member_id=session.member_id, incarnation=session.incarnation, task=task, token=token,
                    topic=parked.topic, partition=max(0, parked.partition), offset=max(0, parked.offset), error=parked.error,
                )
            )  # fmt: skip

    def parked_acknowledged(self, fact: TaskParked) -> None:
        """The brokers have appended it."""
        said = self._unsaid.get(fact.task)
        if said is not None and (said[0], said[1].error) == (fact.token, fact.error):
            del self._unsaid[fact.task]

    def note_blocked(self, why: str) -> None:
        """`why`: the application's loop does not run, so that no task is handled; "": it runs."""
        with self._shared.lock:
            tokens = {task: grant.token for task, grant in self._shared.session.grants.items()} if why or self._blocked else {}
        for task, token in tokens.items():
            if task not in self.parked_tasks and bool(why) != (self._blocked.get(task) == token):
                self._unsaid[task] = token, ParkedTask(task=task, topic="", partition=-1, offset=-1, error=why)
        self._blocked = tokens if why else {}

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
            self._done += Done(ended.processed, ended.commits, ended.busy_s)
        self._asked_to_stop.discard(task)
        self._following.discard(task)
        self._closed(task)

    # In the application's loop

    async def close_clients(self) -> None:
        """Closes the last connections, after all tasks have ended."""
        if self._preparer is not None:
            await self._preparer.cancel_all()
        for clients in self._connected.values():
            self._begin_closing(clients)
        self._connected.clear()
        await asyncio.gather(*self._closing_clients, return_exceptions=True)
        await self._factory.shared.close()

    def _begin_closing(self, clients: TaskClients) -> None:
        task = asyncio.ensure_future(clients.close())
        self._closing_clients.add(task)
        task.add_done_callback(self._closing_clients.discard)

    def _call_back(self, callback: Callable[[T], Awaitable[None] | object], what: T) -> None:
        try:
            result = awaitable(callback(what))
        except BaseException as error:  # noqa: BLE001  # the application's code may raise anything
            self._fail(error)
            return
        if result is not None:
            called = asyncio.ensure_future(self._called_back(result))
            self._called.add(called)
            called.add_done_callback(self._called.discard)

    async def _called_back(self, result: Awaitable[None]) -> None:
        try:
            await result
        except BaseException as error:  # the application's code may raise anything
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            self._fail(error)

    def prepare(self, task: TaskId) -> Coroutine[Any, Any, None] | None:
        with self._shared.lock:
            is_prepared = self._shared.session.is_prepared(task)
        if not is_prepared and self._preparer is not None:
            return self._preparer.prepared(task)
        if not is_prepared:
            self._declare_ready(task)  # with declares_ready, `on_assigned` prepares a task that was granted unprepared
        return None

    def _declare_ready(self, task: TaskId) -> None:
        with self._shared.lock:
            self._shared.session.declare_ready(task)
        self._wake()

    @property
    def preparing(self) -> Mapping[TaskId, PreparationProgress]:
        """Task in preparation -> progress."""
        return {} if self._preparer is None else self._preparer.progress()

    def permit(self, task: TaskId) -> tuple[str | None, int]:
        with self._shared.lock:
            now_ms, session = self._boot_ms(), self._shared.session
            refusal, until_ms = session.refusal(task, now_ms), min(now_ms + PERMIT_MS, session.lease_ends_ms)
        adoption = self._factory.shared.adoption
        if adoption is not None and refusal in (None, "closing"):
            refusal = refusal if now_ms < adoption.lease_ends_ms else NOT_ADOPTED
            until_ms = min(until_ms, adoption.lease_ends_ms)
        return refusal, until_ms

    async def restore(self, task: TaskId, take_if: TakeIf) -> tuple[Owners, Mapping[str, FencedStore] | None]:
        return await self._restore_thread.run(self._restorer.restore(task, take_if))

    async def take_stores(self, task: TaskId, goals: Mapping[str, int]) -> Mapping[str, FencedStore]:
        return await self._restore_thread.run(self._restorer.open(task, goals))

    async def put_stores_back(self, task: TaskId) -> None:
        async def put_back() -> None:
            self._restorer.put_back(task)

        await self._restore_thread.run(put_back())

    async def give_up_stores(self, task: TaskId, error: DamagedStoreError) -> None:
        async def give_up() -> None:
            self._restorer.give_up(task, error)

        await self._restore_thread.run(give_up())

    def restored(self, task: TaskId) -> None:
        with self._shared.lock:
            self._shared.session.copy_progress(task, 0, self._boot_ms())
            self._reported.add(task)  # restored before the first look
        self._wake()

    async def still_granted(self, task: TaskId, token: int) -> bool:
        asked_ms = self._boot_ms()
        while True:
            with self._shared.lock:
                session = self._shared.session
                grant = session.grants.get(task)
                if grant is None or grant.token != token or session.refusal(task, self._boot_ms()) == "ended":
                    return False
                if self._shared.read_up_to_ms >= asked_ms:
                    return True
            await asyncio.sleep(RETRY_S)

    def failed(self, task: TaskId, error: Exception) -> None:
        if not self._brokers.noted(f"task {task}", error):
            _LOG.warning("task %s failed, reopening it: %s", task, error_text(error))

    def fenced(self, task: TaskId) -> None:
        self.fenced_writes += 1

    def parked(self, token: int, parked: ParkedTask) -> None:
        self._call(self._park, token, parked)

    def stopped(self, task: TaskId) -> None:
        self._call(self._closed, task)

    def ended(self, task: TaskId, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        self._call(self._ended, task)

    @property
    def lags(self) -> Mapping[TaskId, Lag]:
        """Task of each copy that does not run -> lag in records; 0 for a task without changelogs,
        which is only prepared. Any thread may read it.
        """
        return {**self._restorer.lags, **{task: 0 for task in sorted(self._following) if not self._factory.has_changelogs(task)}}
