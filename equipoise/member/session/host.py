"""Hosts a `MemberSession` on a thread of its own: passes it the decisions, sends its facts, and
carries out its orders.

The session has all rules of the protocol; this module has none. Three threads work together: the
application's loop runs tasks (`TaskRunner`), the thread "equipoise-restore" keeps copies up to
date, and this one, "equipoise", talks to the leader. The first and the last use the session, under
one lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from equipoise._extras import needed_by
from equipoise.assignors.unconfigured import default_configuration
from equipoise.events.errors import DamagedError, EquipoiseError, FieldError, InputError
from equipoise.events.facts import Fact, GroupConfigured, LagReported, MemberJoined, TaskParked, TopologyDeclared, TroublesReported
from equipoise.events.records import DecisionRecord, UnreadDecision
from equipoise.events.tasks import LagSentinel, TaskId, tasks_text
from equipoise.hosting.proof import MemberProof
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.broker_watch import BrokerWatch
from equipoise.kafka.client import ENDS_S, LeaderEnd, TopicPartition, call_off
from equipoise.kafka.connection import Connection
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.restorer import ChangelogRestorer
from equipoise.member.copies.throttle import Throttle
from equipoise.member.options import MemberOptions, RestartIntent
from equipoise.member.session.link import RETRY_S, Link
from equipoise.member.session.location import KeyLocation, Partitioner, task_of_key
from equipoise.member.session.loop_watch import LoopBeat
from equipoise.member.session.orders import AskedCallback, StandbyCallback, Work
from equipoise.member.session.preparing import PrepareCallback
from equipoise.member.session.task_log import Story
from equipoise.member.tasks.clients import MemberClients
from equipoise.member.tasks.context import Callback
from equipoise.member.tasks.error_policy import error_text
from equipoise.member.tasks.fatal_errors import passed_on
from equipoise.member.tasks.processing import Processor
from equipoise.member.tasks.refusals import is_missing_right
from equipoise.member.tasks.runner_factory import RunnerFactory, SharedSession
from equipoise.statemachine.member import End, MemberSession, MemberSettings, Reception
from equipoise.statemachine.rejections import refusal_text, refused_topology_text
from equipoise.statemachine.topologies import TOPOLOGY_DIFFERS

if TYPE_CHECKING:
    from equipoise.member.session.following import GroupLocations

_LOG = logging.getLogger(__name__)
LONGEST_REJOIN_WAIT_S = 5.0
LONGEST_LAG_WAIT_S = 5.0
"""How long a join waits for lags that are unknown. They are known in a moment, or not for long."""
LAG_LOOK_S = 0.02
APPLICATIONS_LOOP, MEMBERS_THREAD = "application's loop", "member's thread"
MOST_CLOCK_CONFLICTS = 3
"""How often in a row a process whose clock is behind joins above the incarnation that is in the
group, before it considers itself the older process.
"""
LONGEST_WAIT_AFTER_FAILURE_S = 60.0
"""Longest wait to rejoin after a failure, or after decisions that this build cannot read: an
operator, or another build of the worker, must fix that.
"""
FINAL_FACTS_S = 10.0
"""How long MemberLeft may take to be appended before the process ends without it."""


class SupersededError(EquipoiseError):
    """Another process has joined with this member's id, so this one has ended for good."""

    exit_code = 3


class MemberHost:
    """Hosts one process of a member, from `begin` (in the application's loop) to its end. `over`: a
    future that is done when the member has ended, with the error that ended it.
    """

    def __init__(
        self,
        *,
        connection: Connection,
        group: str,
        member_id: str,
        topology: TopologyDeclared,
        processors: Mapping[int, Processor],
        options: MemberOptions,
        on_assigned: Callback | None,
        on_standby: StandbyCallback | None,
        on_revoked: Callback | None,
        on_asked: AskedCallback | None,
        prepare: PrepareCallback | None,
        runtime: Runtime,
        brokers: BrokerWatch,
    ) -> None:
        self._runtime = runtime
        self._brokers = brokers
        self._story = Story(f"group {group}: member {member_id}", runtime.monotonic_s)
        self._prepares = options.declares_ready or prepare is not None
        self._directory = None if options.state_directory is None else StateDirectory(options.state_directory, group, member_id, runtime)
        self._last_incarnation = None if self._directory is None else self._directory.last_incarnation
        self._proven_dead = None if self._directory is None else self._directory.ended_incarnation
        self._log_id = None if self._directory is None else self._directory.last_log_id
        """Id of the log that was joined last."""
        self._declared_in: str | None = ""
        """Id of the log that has the topology."""
        self._configured_in: str | None = ""
        """Id of the log that has the group's configuration from this member."""
        self._unconfigured_in: str | None = ""
        """Id of the log in which the group has no configuration: the next join comes after one."""
        self._has_lost = False
        """Whether the log has lost decisions, and has assigned nothing to this member since."""
        if self._directory is not None and self._directory.unproven:
            _LOG.info(
                "member %s: no proof that incarnation %d is dead (%s); if the leader still lists it, its tasks wait for one session timeout",
                member_id,
                self._last_incarnation,
                self._directory.unproven,
            )
        self._witness = runtime.witness() if options.witness else None
        self._begun: list[int] = []
        """Incarnations of this process that may be members, or waited for."""
        self._clock_conflicts = 0
        self._repeats_ms = 0
        """When what may have been lost is said again."""
        self._connection = connection
        self._group = group
        self._member_id = member_id
        self._topology = topology
        self._options = options
        self._app = asyncio.get_running_loop()
        self._app_beat = LoopBeat(self._app, runtime.monotonic_s)
        self.over: asyncio.Future[None] = self._app.create_future()
        self._thread = runtime.thread("equipoise")
        self._restore_thread = runtime.thread("equipoise-restore")
        self._wake = asyncio.Event()
        self._leaving = self._closing = self._is_cut_off = False
        self._close_by_ms = 0
        """When tasks that have not stopped are stopped at once (CLOCK_BOOTTIME)."""
        self._restart: RestartIntent | None = None
        self._error: BaseException | None = None
        self._failure = ""
        self._unused_config_logged = False
        self._locations: GroupLocations | None = None
        self._link = Link(
            connection,
            group,
            options,
            runtime,
            received=self._received,
            read_up_to_end=self._read_up_to_end,
            went_back=self._went_back,
            replaced=self._replaced,
            acknowledged=self._acknowledged,
            brokers=brokers,
            waits=lambda: self._story.waits(options.prefix),
        )
        self._restorer = ChangelogRestorer(
            connection,
            {
                TaskId(part.subtopology, partition): part.changelog_topics
                for part in topology.subtopologies
                if part.stateful and part.changelog_topics
                for partition in range(part.partitions)
            },
            options.stores,
            self._directory,
            runtime=runtime,
            throttle=Throttle(options.restore_records_per_s, options.restore_bytes_per_s, runtime.monotonic_s),
            ends_every_s=options.heartbeat_interval_ms / 1_000,
            rack=options.rack,
            progressed=self.wake,
            failed=self.fail,
            brokers=brokers,
            ask_owned=self._leader_ends,
            now_ms=self._link.brokers_ms,
        )
        self.shared = SharedSession(self._new_session())
        clients = MemberClients(connection, group, options, lambda: f"{member_id}/{self.shared.session.incarnation}")
        clients.clock = self._link.broker_clock
        if options.adopts is not None:
            from equipoise.member.session.adoption import Adoption  # loads aiokafka

            parts = topology.subtopologies
            sources = {TopicPartition(topic, each) for part in parts for topic in part.source_topics for each in range(part.partitions)}
            clients.adoption = Adoption(
                connection,
                options.adopts,
                sorted(sources),
                session_ms=options.session_timeout_ms,
                boot_ms=runtime.boot_ms,
                released=self.close,
                who=f"group {group}: member {member_id}",
            )
        self._adoption = clients.adoption
        runners = RunnerFactory(clients, runtime, group, topology, options, processors, on_assigned, on_revoked, lambda: self._link.log_id)
        self.work = Work(
            self.shared,
            self._restorer,
            self._restore_thread,
            runners,
            on_standby,
            on_asked,
            prepare,
            None if self._directory is None else self._directory.folder,
            wake=self.wake,
            fail=self.fail,
            call=self._call,
            send=self._link.queue,
            brokers=brokers,
        )

    # Begin and end, in the application's loop

    async def begin(self) -> None:
        """Connects, and starts the member's thread. Raises InputError when no broker or log is
        found.
        """
        connecting = asyncio.ensure_future(self._thread.run(self._link.open()))  # meanwhile, because its tasks may be waiting
        try:
            await self._restore_thread.run(self._restorer.start())
            await connecting
        except BaseException:
            await call_off(connecting, again_s=ENDS_S)
            await self._close_all()
            raise
        self._running = self._thread.start(self._run())

    async def end(self) -> None:
        """Waits until the member has ended, then closes everything."""
        await asyncio.wait((asyncio.ensure_future(asyncio.wrap_future(self._running)),))
        await self.work.close_clients()
        await self._close_all()

    async def _close_all(self) -> None:
        if self._locations is not None:
            await self._locations.stop()
        with contextlib.suppress(Exception):
            await self._thread.run(self._link.close())
        if self._adoption is not None:
            await self._thread.run(self._adoption.leave())
        await self._restore_thread.run(self._restorer.stop())
        await self._thread.stop()
        await self._restore_thread.stop()
        if self._witness is not None:
            await self._runtime.run_blocking(self._witness.dismiss)
        if self._directory is not None:
            self._directory.close()

    @property
    def loops(self) -> Mapping[str, asyncio.AbstractEventLoop]:
        """Name -> event loop that must run for the member to do its work."""
        return {APPLICATIONS_LOOP: self._app, MEMBERS_THREAD: self._thread.loop}

    @property
    def refusal(self) -> str:
        """Which right of this member is missing on the log's topics; "": none. Any thread may read
        it.
        """
        return self._link.refusal

    @property
    def session(self) -> MemberSession:
        """The session of the present incarnation."""
        return self.shared.session

    async def _leader_ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        """Asked by the restorer's loop, over a connection that is there anyway."""
        return await self._thread.run(self._link.leader_ends(partitions))

    def wake(self) -> None:
        """Makes the member's thread look at the session again. Any thread may call this."""
        self._call(self._wake.set)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._thread.loop.call_soon_threadsafe(function, *arguments)

    @property
    def is_leaving(self) -> bool:
        """Returns whether `leave` was called."""
        return self._leaving

    def leave(self, restart: RestartIntent | None = None) -> None:
        """Leaves once its tasks run elsewhere; with `restart`, when the leader releases it, to be
        back.
        """
        with self.shared.lock:
            self._leaving, self._restart = True, restart
            self._intend(self.session)
        self.wake()

    def _intend(self, session: MemberSession) -> None:
        if self._restart is None:
            session.intend_leave()
        else:
            session.intend_restart(self._runtime.boot_ms(), back_within_ms=self._restart.back_within_ms, wait_turn=self._restart.wait_turn)

    def cancel_leave(self) -> None:
        """Withdraws `leave`."""
        with self.shared.lock:
            self._leaving, self._restart = False, None
            self.session.cancel_leave()
        self.wake()

    def close(self) -> None:
        """Stops all tasks and leaves."""
        with self.shared.lock:
            if not self._closing:
                self._close_by_ms = self._runtime.boot_ms() + self._options.session_timeout_ms
            self._closing = True
            if self.session.joined:
                self.session.close(self._runtime.boot_ms())
        self.wake()

    def declare_ready(self, task: TaskId) -> None:
        """The application has prepared `task`. Raises InputError when this member keeps no copy of
        it, or does not declare readiness.
        """
        if not self._prepares:
            raise InputError(f"ready({task}): this member's copies are ready by their lag; give Member declares_ready=True, or prepare")
        with self.shared.lock:
            known = self.session.declare_ready(task)
        if not known:
            raise InputError(f"ready({task}): no copy of it is to be kept here; `on_standby` tells when one begins")
        self.wake()

    async def owner(self, key: bytes, subtopology: int | None, partitioner: Partitioner) -> KeyLocation:
        """Where the task of a serialized key runs. Raises what `GroupLocations.find` raises."""
        return await self.locate(self.task_of(key, subtopology, partitioner))

    def task_of(self, key: bytes, subtopology: int | None, partitioner: Partitioner) -> TaskId:
        """The task that reads the records of a serialized key. Raises InputError."""
        return task_of_key(key, self._topology, subtopology, partitioner)

    def tasks_of(self, subtopology: int) -> list[TaskId]:
        """All tasks of a sub-topology."""
        (part,) = (each for each in self._topology.subtopologies if each.subtopology == subtopology)
        return [TaskId(subtopology, number) for number in range(part.partitions)]

    async def locate(self, task: TaskId) -> KeyLocation:
        """Where a task runs. Raises what `GroupLocations.find` raises."""
        if self.over.done():
            raise InputError("owner: the member has ended")
        if self._locations is None:
            with needed_by("owner"):
                from equipoise.member.session.following import GroupLocations  # loads the leader

            self._locations = GroupLocations(self._connection, self._options.prefix, self._group, self._runtime)
        return await self._locations.find(task)

    def fail(self, error: BaseException) -> None:
        """Stops all tasks, leaves, and ends the member with `error`. Any thread may call this."""
        if self._error is None:
            self._error = passed_on(error)
            if not isinstance(error, EquipoiseError):
                _LOG.error("group %s: member %s ends: %s", self._group, self._member_id, error_text(error), exc_info=error)
        self.close()

    # Incarnations, in the member's own loop

    async def _run(self) -> None:
        jobs = [self._link.send_queued, self._link.read, self._link.probe, *([self._adoption.run] if self._adoption is not None else [])]
        helpers = [asyncio.ensure_future(self._keep_going(each)) for each in jobs]
        for each in helpers:
            each.add_done_callback(self._helper_ended)
        try:
            await self._run_incarnations()
        except Exception as error:  # noqa: BLE001  # the application must get every error
            self._error = self._error or error
            self.work.abandon()
            while not self.work.is_over:
                self._wake.clear()
                await self._wake.wait()
        finally:
            for each in helpers:
                each.cancel()
            self._app.call_soon_threadsafe(self._set_over)

    async def _keep_going(self, job: Callable[[], Awaitable[None]]) -> None:
        """Runs one of the link's endless jobs. An error ends the incarnation, not the member: the
        next incarnation starts from the present end of the log.

        Raises InputError, because only the application or its operator can fix its cause.
        """
        while True:
            try:
                await job()
            except InputError:
                raise
            except DamagedError as error:
                self._give_up(End.UNREADABLE, str(error))
            except Exception as error:  # noqa: BLE001  # the next incarnation may be free of it
                _LOG.exception("group %s: member %s failed and rejoins", self._group, self._member_id)
                self._give_up(End.FAILED, repr(error))
            await asyncio.sleep(RETRY_S)

    def _give_up(self, how: End, why: str) -> None:
        with self.shared.lock:
            if self.session.joined:
                self._failure = why
                self.session.give_up(how, self._runtime.boot_ms())
        self._wake.set()

    def _helper_ended(self, helper: asyncio.Future[None]) -> None:
        if not helper.cancelled() and (error := helper.exception()) is not None:
            self.fail(error)

    def _set_over(self) -> None:
        if not self.over.done():
            if self._error is None:
                self.over.set_result(None)
            else:
                self.over.set_exception(self._error)
                self.over.exception()  # retrieved here, so that asyncio does not warn

    async def _run_incarnations(self) -> None:
        wait_s = RETRY_S
        while not self._closing:
            begun_s = self._runtime.monotonic_s()
            if not await self._join():
                return
            await self._host_incarnation()
            self._story.ended(left=self.session.ended in (End.LEFT, End.RELEASED))
            if await self._is_last():
                return
            self._proven_dead = self.session.incarnation  # all its tasks have stopped
            self._last_incarnation = max(self._proven_dead, self._last_incarnation or 0)
            gave_up = self.session.ended in (End.UNREADABLE, End.FAILED)
            longest_s = LONGEST_WAIT_AFTER_FAILURE_S if gave_up else LONGEST_REJOIN_WAIT_S
            if self._unconfigured_in and self._has_lost:
                lost = "group %s: its log has lost the configuration: member %s sends its own. What `equipoise configure --group %s` changed is gone"
                _LOG.warning(lost, self._group, self._member_id, self._group)
            elif self._unconfigured_in:
                _LOG.info("group %s is new: member %s sends its configuration, and joins then", self._group, self._member_id)
            else:
                wait_s = min(longest_s, 2 * wait_s) if self._runtime.monotonic_s() - begun_s < longest_s else RETRY_S
                self._log_end(wait_s)
                await self._wait(wait_s, also_until_leaving=gave_up)
            if gave_up and self._leaving:
                return
            with self.shared.lock:
                self.shared.session = self._new_session()
                self.work.begin_incarnation()

    async def _wait(self, seconds: float, *, also_until_leaving: bool = False) -> None:
        """Waits until the member is closed or, with `also_until_leaving`, leaves; at most
        `seconds`.
        """
        end_s = self._runtime.monotonic_s() + seconds
        while not (self._closing or (also_until_leaving and self._leaving)) and (left_s := end_s - self._runtime.monotonic_s()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left_s)

    def _log_end(self, wait_s: float) -> None:
        session = self.session
        if session.ended is End.UNREADABLE:
            _LOG.error(
                "group %s: member %s has stopped its tasks and left, because it cannot read its assignment: %s. It joins again in %.1f s",
                self._group,
                self._member_id,
                self._failure,
                wait_s,
            )
        elif session.ended is End.FAILED:
            _LOG.error("group %s: member %s failed: %s. It joins again in %.1f s", self._group, self._member_id, self._failure, wait_s)
        elif session.ended in (End.LOG_REPLACED, End.LOG_WENT_BACK):
            what = "was replaced by another log" if session.ended is End.LOG_REPLACED else "has lost decisions"
            _LOG.error("group %s: member %s has stopped its tasks: log %s %s", self._group, self._member_id, self._log_id, what)
        else:
            why = " ".join(filter(None, (session.ended and session.ended.value, session.end_cause)))
            _LOG.warning(
                "group %s: member %s: incarnation %d has ended (%s), the next one joins in %.1f s",
                self._group,
                self._member_id,
                session.incarnation,
                why,
                wait_s,
            )

    def _new_session(self) -> MemberSession:
        given = self._options
        incarnation = self._runtime.wall_us()  # so that a later process has a higher one on any machine
        if self._last_incarnation is not None:
            incarnation = max(incarnation, self._last_incarnation + 1)
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
                join_nonce=self._runtime.unique(),
                ended_incarnation=self._proven_dead,
                former_log_id=self._log_id,
                heartbeat_interval_ms=given.heartbeat_interval_ms,
                keepalive_interval_ms=given.keepalive_ms,
                ready_lag_records=given.ready_lag_records,
                advertised=given.advertised,
                prepares=self._prepares,
                eager=given.eager,
                stateful_subtopologies=frozenset(part.subtopology for part in self._topology.subtopologies if part.stateful),
                partitions={part.subtopology: part.partitions for part in self._topology.subtopologies},
                subtopologies=self._topology.subtopologies,
            )
        )
        if self._leaving:
            self._intend(session)
        return session

    async def _join(self) -> bool:
        """Places the reader and sends MemberJoined. False: the member was closed before."""
        from aiokafka.errors import KafkaError

        self._link.forget()
        self.work.reconcile()  # so that its copies are read, and clients connected, before it is assigned something
        await self._until_lags_are_known()
        wait_s, logged = RETRY_S, ""
        while not self._closing:
            try:
                placed = await self._link.place()
                with self.shared.lock:
                    now_ms = self._runtime.boot_ms()
                    self.session.reader_placed(log_id=placed.log_id, last_number=placed.last_number, sent_ms=placed.asked_ms, answered_ms=now_ms)
                    waits_s = (self.session.join_from_ms - now_ms) / 1_000
                if waits_s > 0:
                    if logged != placed.log_id:
                        logged = placed.log_id
                        _LOG.warning(
                            "group %s: log %s has replaced log %s; member %s joins it in %.1f s, when the members of the former log have stopped",
                            self._group,
                            placed.log_id,
                            self._log_id,
                            self._member_id,
                            waits_s,
                        )
                    await self._wait(waits_s)
                    continue
                if self._directory is not None:
                    self._directory.begin(self.session.incarnation, placed.log_id)
                self._prove_its_end()
            except (KafkaError, EquipoiseError, OSError) as error:
                if is_missing_right(error):
                    self._link.failed("cannot join", error)
                elif not self._brokers.noted("cannot join", error):
                    _LOG.warning("group %s: member %s failed to join, retrying: %r", self._group, self._member_id, error)
                await self._wait(wait_s)
                wait_s = min(LONGEST_REJOIN_WAIT_S, 2 * wait_s)
                continue
            with self.shared.lock:
                now_ms = self._runtime.boot_ms()
                if now_ms - placed.asked_ms >= self._options.lease_ms // 2 or self._closing:
                    continue
                self.work.report_progress(now_ms)
                joined = self.session.join(now_ms)
            self._log_id = placed.log_id
            if self._unconfigured_in == placed.log_id:
                self._link.queue(self._options.group_config or default_configuration())
            self._unconfigured_in = ""
            if self._declared_in != placed.log_id:
                self._link.queue(self._topology)
            self._link.queue(joined)
            self._link.begin_reading()
            return True
        return False

    def _prove_its_end(self) -> None:
        """The witness is told of the next incarnation before that joins. Until then the former one
        may be waited for.
        """
        if self._witness is None:
            return
        self._begun = [*self._begun[-1:], self.session.incarnation]
        self._witness.watch(
            MemberProof(
                connection=self._connection,
                topic=self._link.facts.topic,
                partition=self._link.facts.partition,
                group=self._group,
                member_id=self._member_id,
                incarnations=self._begun,
                lock=None if self._directory is None else self._directory.lock,
                within_s=self._options.session_timeout_ms / 1_000,
                leader=self._link.leader_of_facts,
                topic_id=self._link.id_of_facts,
            )
        )

    async def _until_lags_are_known(self) -> None:
        """Waits until the ends of changelogs of tasks that ran here are known. A member that joins
        without them appears to have no copies.
        """
        end_s = self._runtime.monotonic_s() + LONGEST_LAG_WAIT_S
        while LagSentinel.UNKNOWN in self._restorer.lags.values() and self._runtime.monotonic_s() < end_s and not self._closing:
            await self._wait(LAG_LOOK_S)

    async def _host_incarnation(self) -> None:
        """Hosts one incarnation, until it has ended and all its tasks have stopped."""
        while True:
            self._wake.clear()
            with self.shared.lock:
                now_ms = self._runtime.boot_ms()
                self.work.report_progress(now_ms)
                facts = self.session.poll(now_ms)
                restored = [task for task, grant in self.session.grants.items() if grant.restored]
            for fact in facts:
                self._link.queue(fact)
            if now_ms >= self._repeats_ms:
                self._repeats_ms = now_ms + self._options.heartbeat_interval_ms
                self._look_at_application()
                self.work.parking.say()
                self.work.say_troubles()
                self._story.unread(self.work.unread_partitions)
                if self._witness is not None:
                    self._witness.look()
            self._story.look(self.work.lags, restored)
            next_ms = self.work.reconcile()
            if self._closing and not self._is_cut_off:
                if now_ms >= self._close_by_ms:
                    self._cut_off()
                next_ms = min(next_ms, self._close_by_ms)
            if self.session.ended is not None and self.work.is_over:
                for fact in self._final_facts():
                    self._link.queue(fact)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, (next_ms - self._runtime.boot_ms()) / 1_000))

    def _look_at_application(self) -> None:
        silent_s = self._app_beat.silent_s()
        is_blocked = silent_s > self._options.session_timeout_ms / 1_000
        why = f"the {APPLICATIONS_LOOP} has not run for {silent_s:.0f} s: a handler or callback blocks it" if is_blocked else ""
        self.work.note_blocked(why)
        self._story.blocked(why)

    def _cut_off(self) -> None:
        """After `close`: stops tasks whose handlers do not return."""
        self._is_cut_off = True
        if not self.work.is_over:
            _LOG.error(
                "group %s: member %s: cancelling handlers that have not returned for %.0f s after it was closed; their records are handled elsewhere",
                self._group,
                self._member_id,
                self._options.session_timeout_ms / 1_000,
            )
            self.work.abandon()

    def _final_facts(self) -> list[Fact]:
        with self.shared.lock:
            return self.session.poll(self._runtime.boot_ms())

    async def _is_last(self) -> bool:
        """After an incarnation: whether it was the last one. Raises SupersededError or FieldError
        when another one would be rejected.
        """
        session = self.session
        if session.ended in (End.LEFT, End.RELEASED):
            await self._link.flushed(FINAL_FACTS_S)
            return True
        if session.ended is End.LOG_WENT_BACK or (session.end_cause == "not_configured" and session.assignment_epoch):
            self._has_lost, self._declared_in, self._configured_in = True, "", ""  # of what it has sent everything may be gone
        if self._closing:
            return True
        if session.ended is End.LEASE_LAPSED and not session.end_cause:
            with contextlib.suppress(TimeoutError):  # reads first what was decided about it meanwhile, if it can
                await asyncio.wait_for(self._link.probe_once(), self._options.lease_ms / 1_000)
        if session.may_join_above(self._runtime.wall_us()) and self._clock_conflicts < MOST_CLOCK_CONFLICTS:
            self._clock_conflicts += 1
            self._last_incarnation = session.newest_incarnation
            return False
        self._clock_conflicts = 0
        if session.is_ousted:
            why = "another process has joined with this member id"
            if session.end_cause == "proven_dead":
                why += ", or a witness has taken this one for dead"
            raise SupersededError(f"member {self._member_id!r} of group {self._group!r}: {why}")
        if session.end_cause in ("margin_too_small", "margin_too_large"):
            raise FieldError("lease_margin_ms", f"the group refuses {self._options.lease_margin_ms}; it must be at least the group's max_step_ms")
        if session.end_cause in TOPOLOGY_DIFFERS:
            raise FieldError("topology_epoch", refused_topology_text(session.end_cause, session.end_numbers, self._topology.subtopologies))
        if session.end_cause == "not_configured":
            if self._configured_in == self._log_id:  # this incarnation joined after the configuration, and the group still had none
                config = self._options.group_config or default_configuration()
                raise FieldError("group_config", f"group {self._group!r} rejects it: {refusal_text(config)}")
            self._unconfigured_in = self._log_id
        return False

    def _log_unused_config(self) -> None:
        if self._options.group_config is None or self._unused_config_logged:
            return
        self._unused_config_logged = True
        if self._configured_in != self._log_id:
            _LOG.info(
                "group %s already has a configuration: group_config of member %s is not used; "
                "`equipoise configure --group %s` shows and changes the configuration",
                self._group,
                self._member_id,
                self._group,
            )

    # Callbacks of the link

    def _received(self, record: DecisionRecord | UnreadDecision) -> Reception:
        with self.shared.lock:
            before, ended_before, unknown_before = self.session.asked, self.session.ended, self.session.unknown
            epoch_before = self.session.assignment_epoch
            reception = self.session.receive(record, self._runtime.boot_ms())
            asked, unknown = self.session.asked, self.session.unknown
            assigned = None
            if self.session.ended is None and self.session.assignment_epoch != epoch_before:
                assigned = list(self.session.grants), self.session.standby | self.session.warmup
            if isinstance(record, UnreadDecision) and self.session.ended is not ended_before:
                self._failure = f"decision {record.number}: {record.problem} (this member's build is older than the worker: upgrade it)"
        if assigned is not None:
            self._story.assigned(*assigned)
        if self.session.assignment_epoch:
            self._has_lost = False
            self._link.has_joined()
            self._log_unused_config()
        if unknown - unknown_before:
            _LOG.error(
                "member %s was assigned %s, which its topology (epoch %d) lacks, and does not run them. Upgrade the worker, "
                "or give each topology an epoch of its own",
                self._member_id,
                tasks_text(sorted(unknown)),
                self._topology.epoch,
            )
        if asked != before:
            _LOG.info("member %s is asked to %s", self._member_id, "leave" if asked else "stay")
            self.work.call_on_asked(asked)
        self._wake.set()
        return reception

    def _read_up_to_end(self, asked_ms: int) -> None:
        with self.shared.lock:
            if self.session.joined:
                self.session.fetch_completed(sent_ms=asked_ms, reached_end=True, now_ms=self._runtime.boot_ms())
            self.shared.read_up_to_ms = max(self.shared.read_up_to_ms, asked_ms)
        self._wake.set()

    def _went_back(self, asked_ms: int) -> None:
        with self.shared.lock:
            if self.session.joined:
                self.session.log_went_back(sent_ms=asked_ms, now_ms=self._runtime.boot_ms())
        self._wake.set()

    def _replaced(self) -> None:
        with self.shared.lock:
            if self.session.joined:
                self.session.log_replaced(self._runtime.boot_ms())
        self._wake.set()

    def _acknowledged(self, fact: Fact, said_ms: int) -> None:
        with self.shared.lock:
            if getattr(fact, "incarnation", None) == self.session.incarnation:
                number = fact.number if isinstance(fact, LagReported) else None
                self.session.heartbeat_acknowledged(sent_ms=said_ms, now_ms=self._runtime.boot_ms(), report_number=number)
        if isinstance(fact, MemberJoined):
            self._story.joined(fact.incarnation)
        elif isinstance(fact, TopologyDeclared):
            self._declared_in = self._log_id
        elif isinstance(fact, GroupConfigured):
            self._configured_in = self._log_id
        elif isinstance(fact, TaskParked):
            self.work.parking.acknowledged(fact)
        elif isinstance(fact, TroublesReported):
            self.work.troubles.acknowledged(fact)
        self._wake.set()
