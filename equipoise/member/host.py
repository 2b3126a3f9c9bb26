"""Hosts a MemberSession on a thread of its own: hands it what arrives, sends what it says, and makes the process do what it has decided.

The protocol is the session's; here is no rule of it. Three threads meet: the application's loop runs tasks (`TaskRunner`), the restorer's keeps
copies, and this one, "equipoise", speaks with the leader. The session is asked from the first and the last, under one lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable

from equipoise.member.directory import StateDirectory
from equipoise.member.link import RETRY_S, Link
from equipoise.member.options import MemberOptions, boot_ms
from equipoise.member.restorer import Restorer
from equipoise.member.runner import Callback, Handler
from equipoise.member.threads import LoopThread
from equipoise.member.throttle import Throttle
from equipoise.member.work import AskedCallback, RunnerFactory, Shared, StandbyCallback, Work
from events.errors import EquipoiseError, FieldError
from events.facts import Fact, GroupConfigured, LagReported, TopologyDeclared
from events.log.kafka.connection import Connection
from events.records import DecisionRecord
from events.tasks import TaskId
from statemachine.member import End, MemberSession, MemberSettings, Reception

_LOG = logging.getLogger(__name__)
LONGEST_REJOIN_WAIT_S = 5.0
LAST_WORD_S = 10.0
"""How long MemberLeft may take to be appended before the process goes without it."""


class SupersededError(EquipoiseError):
    """Another process has joined with this member's id; this one is out, for good."""


class Host:
    """One process of a member, from its start to its end. `begin` in the application's loop; `over` when it has ended, with what ended it."""

    def __init__(
        self,
        *,
        connection: Connection,
        group: str,
        member_id: str,
        topology: TopologyDeclared,
        handler: Handler,
        options: MemberOptions,
        on_assigned: Callback | None,
        on_standby: StandbyCallback | None,
        on_revoked: Callback | None,
        on_asked: AskedCallback | None,
    ) -> None:
        self._directory = None if options.state_directory is None else StateDirectory(options.state_directory, group, member_id)
        self._proven_dead = None if self._directory is None else self._directory.last_incarnation
        self._connection = connection
        self._group = group
        self._member_id = member_id
        self._topology = topology
        self._options = options
        self._app = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._app.create_future()
        self._thread = LoopThread("equipoise")
        self._restore_thread = LoopThread("equipoise-restore")
        self._wake = asyncio.Event()
        self._leaving = self._closing = False
        self._error: BaseException | None = None
        self._link = Link(
            connection, group, options, received=self._received, read_up_to_end=self._read_up_to_end, acknowledged=self._acknowledged
        )  # fmt: skip
        self._restorer = Restorer(
            connection,
            {TaskId(part.subtopology, partition): part.changelog_topics
             for part in topology.subtopologies if part.stateful for partition in range(part.partitions)},
            options.stores,
            self._directory,
            committed_only=options.transactional,
            throttle=Throttle(options.restore_records_per_s, options.restore_bytes_per_s),
            ready_lag_records=options.ready_lag_records,
            ends_every_s=options.heartbeat_interval_ms / 1_000,
            progressed=self.wake,
            failed=self.fail,
        )  # fmt: skip
        self.shared = Shared(self._new_session())
        runners = RunnerFactory(connection, group, topology, options, handler, on_assigned, on_revoked)
        self.work = Work(
            self.shared, self._restorer, self._restore_thread, runners, on_standby, on_asked,
            None if self._directory is None else self._directory.folder, wake=self.wake, fail=self.fail, call=self._call,
        )  # fmt: skip

    # Beginning and end, in the application's loop

    async def begin(self) -> None:
        """Connects, and begins to live. Raises InputError."""
        try:
            await self._restore_thread.run(self._restorer.start())
            await self._thread.run(self._link.open())
        except BaseException:
            await self._let_go()
            raise
        self._life = self._thread.start(self._live())

    async def end(self) -> None:
        """Waits for the end of its life, then lets go of everything."""
        await asyncio.wait((asyncio.ensure_future(asyncio.wrap_future(self._life)),))
        await self.work.let_go()
        await self._let_go()

    async def _let_go(self) -> None:
        with contextlib.suppress(Exception):
            await self._thread.run(self._link.close())
        await self._restore_thread.run(self._restorer.stop())
        await self._thread.stop()
        await self._restore_thread.stop()
        if self._directory is not None:
            self._directory.close()

    @property
    def session(self) -> MemberSession:
        return self.shared.session

    def wake(self) -> None:
        """Something may have changed; from any thread."""
        self._call(self._wake.set)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody to tell
            self._thread.loop.call_soon_threadsafe(function, *arguments)

    def leave(self) -> None:
        """Goes once its tasks run elsewhere."""
        with self.shared.lock:
            self._leaving = True
            self.session.intend_leave()
        self.wake()

    def cancel_leave(self) -> None:
        """Stays after all."""
        with self.shared.lock:
            self._leaving = False
            self.session.cancel_leave()
        self.wake()

    def close(self) -> None:
        """Stops everything and says so."""
        with self.shared.lock:
            self._closing = True
            if self.session.joined:
                self.session.close(boot_ms())
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Something is wrong that going on would not mend: it stops everything, says that it leaves, and ends with `error`."""
        if self._error is None:
            self._error = error
        self.close()

    # Lives, in the member's own loop

    async def _live(self) -> None:
        helpers = [asyncio.ensure_future(each) for each in (self._link.speak(), self._link.read(), self._link.probe())]
        for each in helpers:
            each.add_done_callback(self._helper_ended)
        try:
            await self._lives()
        except Exception as error:  # noqa: BLE001  # whatever it is, the application must hear of it
            self._error = self._error or error
            self.work.abandon()
            while not self.work.is_over:
                self._wake.clear()
                await self._wake.wait()
        finally:
            for each in helpers:
                each.cancel()
            self._app.call_soon_threadsafe(self._tell_over)

    def _helper_ended(self, helper: asyncio.Future[None]) -> None:
        if not helper.cancelled() and (error := helper.exception()) is not None:
            self.fail(error)

    def _tell_over(self) -> None:
        if not self.over.done():
            if self._error is None:
                self.over.set_result(None)
            else:
                self.over.set_exception(self._error)
                self.over.exception()  # the application may never ask

    async def _lives(self) -> None:
        wait_s = RETRY_S
        declared = False
        while not self._closing:
            begun_s = time.monotonic()
            if not await self._join(declare=not declared):
                return
            declared = True
            await self._one_life()
            if await self._ends_for_good():
                return
            self._proven_dead = self.session.incarnation  # nothing of it runs any more
            quickly = time.monotonic() - begun_s < LONGEST_REJOIN_WAIT_S
            wait_s = min(LONGEST_REJOIN_WAIT_S, 2 * wait_s) if quickly else RETRY_S
            await asyncio.sleep(wait_s)
            with self.shared.lock:
                self.shared.session = self._new_session()
                self.work.begin_life()

    def _new_session(self) -> MemberSession:
        given = self._options
        incarnation = time.time_ns() // 1_000
        if self._proven_dead is not None:
            incarnation = max(incarnation, self._proven_dead + 1)
        session = MemberSession(
            MemberSettings(
                member_id=self._member_id,
                incarnation=incarnation,
                capacity=given.capacity,
                rack=given.rack,
                tags=given.tags,
                session_timeout_ms=given.session_timeout_ms,
                lease_margin_ms=given.lease_margin_ms,
                topology_epoch=self._topology.epoch,
                join_nonce=uuid.uuid4().hex,
                ended_incarnation=self._proven_dead,
                heartbeat_interval_ms=given.heartbeat_interval_ms,
                ready_lag_records=given.ready_lag_records,
                stateful_subtopologies=frozenset(part.subtopology for part in self._topology.subtopologies if part.stateful),
            )
        )
        if self._leaving:
            session.intend_leave()
        return session

    async def _join(self, *, declare: bool) -> bool:
        """Places the reader and says MemberJoined. False: it was closed before."""
        from aiokafka.errors import KafkaError

        self._link.forget()
        if self._directory is not None:
            self._directory.begin(self.session.incarnation)
        while not self._closing:
            try:
                last_number, asked_ms = await self._link.place()
            except KafkaError as error:
                _LOG.info("group %s: cannot join now: %r", self._group, error)
                await asyncio.sleep(RETRY_S)
                continue
            with self.shared.lock:
                now_ms = boot_ms()
                if now_ms - asked_ms >= self._options.lease_ms // 2 or self._closing:
                    continue
                self.session.reader_placed(last_number=last_number, sent_ms=asked_ms)
                self.work.tell_progress(now_ms)
                joined = self.session.join(now_ms)
            if declare:
                self._link.say(self._topology)
            self._link.say(joined)
            self._link.begin_reading()
            return True
        return False

    async def _one_life(self) -> None:
        """Until the incarnation has ended and nothing of it runs any more."""
        while True:
            self._wake.clear()
            with self.shared.lock:
                now_ms = boot_ms()
                self.work.tell_progress(now_ms)
                facts = self.session.poll(now_ms)
            for fact in facts:
                self._link.say(fact)
            next_ms = self.work.reconcile()
            if self.session.ended is not None and self.work.is_over:
                for fact in self._last_words():
                    self._link.say(fact)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, (next_ms - boot_ms()) / 1_000))

    def _last_words(self) -> list[Fact]:
        with self.shared.lock:
            return self.session.poll(boot_ms())

    async def _ends_for_good(self) -> bool:
        """After a life: whether it was the last one. Raises what speaks against another one."""
        session = self.session
        if session.ended in (End.LEFT, End.RELEASED):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._link.said(), LAST_WORD_S)
            return True
        if self._closing:
            return True
        if session.ended is End.LEASE_LAPSED and not session.end_cause:
            with contextlib.suppress(TimeoutError):  # what was decided about it meanwhile is read first; if that can be read
                await asyncio.wait_for(self._link.probe_once(), self._options.lease_ms / 1_000)
        _LOG.warning("member %s, incarnation %d has ended: %s %s", self._member_id, session.incarnation, session.ended, session.end_cause)
        if session.end_cause in ("superseded", "stale_incarnation"):
            raise SupersededError(f"member {self._member_id!r} of group {self._group!r}: another process has joined with this id")
        if session.end_cause in ("margin_too_small", "margin_too_large"):
            raise FieldError("lease_margin_ms", f"the group refuses {self._options.lease_margin_ms}; it must be at least the group's max_step_ms")
        if session.end_cause == "not_configured":
            self._link.say(self._options.group_config or _default_config())
        return False

    # What arrives

    def _received(self, record: DecisionRecord) -> Reception:
        with self.shared.lock:
            before = self.session.asked
            reception = self.session.receive(record, boot_ms())
            asked = self.session.asked
        if asked != before:
            _LOG.info("member %s is asked to %s", self._member_id, "leave" if asked else "stay after all")
            self.work.tell_asked(asked)
        self._wake.set()
        return reception

    def _read_up_to_end(self, asked_ms: int) -> None:
        with self.shared.lock:
            if self.session.joined:
                self.session.fetch_completed(sent_ms=asked_ms, reached_end=True, now_ms=boot_ms())
            self.shared.read_up_to_ms = max(self.shared.read_up_to_ms, asked_ms)
        self._wake.set()

    def _acknowledged(self, fact: Fact, said_ms: int) -> None:
        with self.shared.lock:
            if getattr(fact, "incarnation", None) == self.session.incarnation:
                number = fact.number if isinstance(fact, LagReported) else None
                self.session.heartbeat_acknowledged(sent_ms=said_ms, now_ms=boot_ms(), report_number=number)
        self._wake.set()


def _default_config() -> GroupConfigured:
    from assignors import registry

    assignor = registry.latest("high_availability")
    return GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver)
