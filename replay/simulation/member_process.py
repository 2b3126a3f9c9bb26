"""A simulated process that hosts one member: a real member session, a disk, a restore speed and the
faults that befall it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from equipoise.events import fields
from equipoise.events.facts import Fact, LagReported, Load
from equipoise.events.records import DecisionRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.partition_reader import PartitionReader
from equipoise.replay.simulation.process_network import NetworkEnd, SimulatedNetwork
from equipoise.replay.simulation.restored_copies import Disk, RestoreModel, Restorer
from equipoise.replay.simulation.simulated_broker import Broker, ReplayedProducer
from equipoise.replay.simulation.world import SimulatedWorld
from equipoise.statemachine.member import End, MemberSession, MemberSettings, Reception


@attrs.frozen(kw_only=True)
class ProcessSettings:
    """Settings of one member's process. Times in milliseconds."""

    member_id: str = attrs.field(validator=fields.text())
    capacity: int = attrs.field(default=1, validator=fields.integer(1))
    rack: str | None = None
    tags: Mapping[str, str] = attrs.field(factory=dict)
    eager: bool = False
    session_timeout_ms: int = attrs.field(default=10_000, validator=fields.integer(1))
    lease_margin_ms: int = attrs.field(default=2_000, validator=fields.integer())
    heartbeat_interval_ms: int = attrs.field(default=3_000, validator=fields.integer(1))
    topology_epoch: int = 0
    ready_lag_records: int | None = None
    """The member's own limit (`MemberSettings.ready_lag_records`)."""
    prepare_ms: int | None = None
    """Time that the application takes to prepare a task after its copy is near enough, or after its
    grant. None: it does not prepare.
    """
    restore: RestoreModel = attrs.field(factory=RestoreModel)
    start_ms: int = attrs.field(default=1_000, validator=fields.integer())
    """From the process's start to its join."""
    early_ms: int = attrs.field(default=0, validator=fields.integer())
    """From so long before its join until it is assigned something, it restores every copy on its
    disk, as members of equipoise do; 0: only what it is assigned.
    """
    close_ms: int = attrs.field(default=50, validator=fields.integer())
    """Time to close one task: flush, commit, release."""
    rejoin_ms: int = attrs.field(default=200, validator=fields.integer())
    """From an incarnation's end to the next join."""
    fetch_wait_ms: int = attrs.field(default=1_000, validator=fields.integer(1))
    reports_load: bool = False
    """Whether it reports the load of its tasks, in records processed: as many as are written to the
    changelogs. No other load is simulated.
    """
    load_of: Callable[[str, Sequence[TaskId], int], Load] | None = None
    """Returns the load that a member reports of its tasks at a time (ms); None: as `reports_load`
    says.
    """
    knows_speed: bool = False
    """Whether it reports its restore speed before it has restored anything: it measured it before.
    """
    crash_loses_ms: int = attrs.field(default=1_000, validator=fields.integer())
    """Changelog writes of the last so many milliseconds before a kill are not in the stores."""


class Exit(enum.Enum):
    """How a process ended."""

    KILLED = "killed"
    LEFT = "left"
    """After MemberLeft."""
    SILENT = "silent"
    """Stopped everything and sent nothing."""
    SUPERSEDED = "superseded"
    """Another process has taken its member id."""


SessionFactory = Callable[[MemberSettings], MemberSession]


class ReplayedProcess(NetworkEnd):
    """One process of a member, from start to end. It hosts one incarnation after another."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        network: SimulatedNetwork,
        broker: Broker,
        world: SimulatedWorld,
        settings: ProcessSettings,
        disk: Disk,
        *,
        next_incarnation: Callable[[], int],
        proven_dead: int | None = None,
        session_factory: SessionFactory = MemberSession,
        ended: Callable[[ReplayedProcess], None] = lambda process: None,
    ) -> None:
        super().__init__(name, engine, network)
        self.settings = settings
        self.disk = disk
        self.started_ms = engine.now_ms
        self.exit: Exit | None = None
        self.lives = 0
        """Incarnations so far."""
        self._broker = broker
        self._world = world
        self._next_incarnation = next_incarnation
        self._proven_dead = proven_dead
        self._session_factory = session_factory
        self._ended = ended
        self._restorer = Restorer(settings.restore, world, settings.member_id, disk)
        self._restorer.advance(engine.now_ms)
        self._stateful = frozenset(task.subtopology for task, stateful in world.tasks.items() if stateful)
        self._producer = ReplayedProducer(self, broker, broker.facts, self._acknowledged)
        self._reader = PartitionReader(self, broker, broker.decisions, wait_ms=settings.fetch_wait_ms, arrived=self._decisions_arrived)
        self._locating = 0
        self._located_sent_ms = 0
        self._ending: Exit | None = None
        self._paused_ms = 0
        self._look_tag = 0
        self._poll_tag = 0
        self._begin_incarnation_state()
        self.session = self._new_session()

    # Read by the world

    @property
    def member_id(self) -> str:
        return self.settings.member_id

    @property
    def incarnation(self) -> int:
        return self.session.incarnation

    @property
    def stops_by_ms(self) -> int:
        return self.session.lease_ends_ms

    @property
    def running(self) -> list[TaskId]:
        return sorted(self._running)

    # Faults and ends

    def start(self) -> None:
        self.after(self.settings.start_ms, self._locate)
        if self.settings.early_ms:
            self.after(max(0, self.settings.start_ms - self.settings.early_ms), self._follow_what_is_here)

    def _follow_what_is_here(self) -> None:
        """Most copies on its disk will be assigned to it."""
        for task in sorted(self.disk.positions):
            if task.subtopology in self._stateful:
                self._restorer.follow(task, self.engine.now_ms)
        self._plan_look()

    def kill(self) -> None:
        """kill -9: sends and writes nothing more."""
        if self.alive:
            self._stop_processing(self.engine.now_ms, self.settings.crash_loses_ms)
            self._exit(Exit.KILLED)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.alive and not self.paused:
            for task in self.running:
                self._world.stopped(task, self, self.engine.now_ms)
            self._restorer.advance(self.engine.now_ms)
            self._paused_ms = self.engine.now_ms
            super().pause()

    def resume(self) -> None:
        """SIGCONT: continues where it stopped and asks the session before each record."""
        if self.alive and self.paused:
            now_ms = self.engine.now_ms
            self._restorer.sleep_until(now_ms)
            for task in self.running:
                if self.session.may_process(task, now_ms):
                    self._world.started(task, self, self._running[task], now_ms)
                else:
                    del self._running[task]
                    self._wrote(task, now_ms)
            super().resume()
            self.run(self._reconcile)

    def leave(self) -> None:
        """Announces its leave, stays until it is released, then ends."""
        self.run(self._leave)

    def _leave(self) -> None:
        self._ending = Exit.LEFT
        self.session.intend_leave()
        self._speak()

    def leave_to_restart(self, back_within_ms: int | None = None, *, wait_turn: bool = True) -> None:
        """Announces that it will be back, stays until it is released, then ends."""
        self.run(self._leave_to_restart, back_within_ms, wait_turn)

    def _leave_to_restart(self, back_within_ms: int | None, wait_turn: bool) -> None:
        self._ending = Exit.LEFT
        self.session.intend_restart(self.engine.now_ms, back_within_ms=back_within_ms, wait_turn=wait_turn)
        self._speak()

    def cancel_leave(self) -> None:
        self.run(self._cancel_leave)

    def _cancel_leave(self) -> None:
        self._ending = None
        self.session.cancel_leave()
        self._speak()

    def close(self) -> None:
        """Stops everything, sends MemberLeft, and ends."""
        self.run(self._close)

    def _close(self) -> None:
        self._ending = Exit.LEFT
        if not self.session.joined:
            self._exit(Exit.LEFT)
            return
        self.session.close(self.engine.now_ms)
        self._reconcile()

    def close_silently(self) -> None:
        """Stops everything and ends without MemberLeft, as Kafka Streams does by default."""
        self.run(self._close_silently)

    def _close_silently(self) -> None:
        if self._ending is not Exit.SILENT:
            self._ending = Exit.SILENT
            self._stop_processing(self.engine.now_ms, 0)
            self.after(self.settings.close_ms, self._exit, Exit.SILENT)

    def skip_records(self, records: int) -> None:
        """Fault: its consumer loses some decisions of the next answer."""
        self._reader.skip_next = records

    def stick(self, duration_ms: int) -> None:
        """Fault: its consumer makes no progress while heartbeats go on."""
        self._reader.stuck_until_ms = self.engine.now_ms + duration_ms

    # Joining

    def _begin_incarnation_state(self) -> None:
        self._running: dict[TaskId, int] = {}
        """Processed task -> token."""
        self._closing: set[TaskId] = set()
        self._woken: dict[TaskId, int] = {}
        self._preparing: dict[TaskId, int] = {}
        """Task that the application prepares -> since when."""
        self._seen: tuple[int, End | None, bool] = (0, None, False)
        self._next_number_position = 0
        self._lapsed_ms: int | None = None

    def _new_session(self) -> MemberSession:
        given = self.settings
        self.lives += 1
        incarnation = self._next_incarnation()
        return self._session_factory(
            MemberSettings(
                member_id=given.member_id,
                incarnation=incarnation,
                capacity=given.capacity,
                rack=given.rack,
                tags=given.tags,
                eager=given.eager,
                session_timeout_ms=given.session_timeout_ms,
                lease_margin_ms=given.lease_margin_ms,
                topology_epoch=given.topology_epoch,
                join_nonce=f"{self.name}/{incarnation}"[-fields.MOST_TEXT_CHARS :],
                ended_incarnation=self._proven_dead,
                heartbeat_interval_ms=given.heartbeat_interval_ms,
                ready_lag_records=given.ready_lag_records,
                prepares=given.prepare_ms is not None,
                stateful_subtopologies=self._stateful,
            )
        )

    def _locate(self) -> None:
        """Asks for the end of the decisions until an answer comes. See docs/protocol.md#m1."""
        if self._ending is not None:
            self._exit(self._ending)
            return
        if self.session.joined:
            return
        self._locating += 1
        self._located_sent_ms = self.engine.now_ms
        self.network.send(self.name, self._broker.locate_end, self.name, self._comes, self._locating)
        self.after(self.network.settings.resend_after_ms, self._located_long_ago, self._locating)

    def _located_long_ago(self, tag: int) -> None:
        if tag == self._locating and not self.session.joined:
            self._locate()

    def _comes(self, tag: int, log_id: str, position: int, last_number: int) -> None:
        self.run(self._located, tag, log_id, position, last_number)

    def _located(self, tag: int, log_id: str, position: int, last_number: int) -> None:
        session, now_ms = self.session, self.engine.now_ms
        if tag != self._locating or session.joined:
            return
        if now_ms >= self._located_sent_ms + session.lease_lasts_ms():
            self._locate()
            return
        session.reader_placed(log_id=log_id, last_number=last_number, sent_ms=self._located_sent_ms, answered_ms=now_ms)
        self._tell_progress()
        self._say(session.join(now_ms))
        self._next_number_position = position
        self._reader.begin(position)
        self._speak()

    # Incoming

    def _decisions_arrived(self, records: list[DecisionRecord], first: int, reached_end: bool, sent_ms: int) -> None:
        now_ms = self.engine.now_ms
        session = self.session
        gap = False
        for index, record in enumerate(records):
            reception = session.receive(record, now_ms)
            if reception is Reception.GAP:
                gap = True
                break
            self._next_number_position = first + index + 1
        if gap:
            self._reader.seek(min(first, self._next_number_position))
        session.fetch_completed(sent_ms=sent_ms, reached_end=reached_end, now_ms=now_ms)
        self._look()
        if self._lapsed_ms is not None and reached_end and sent_ms >= self._lapsed_ms and session is self.session:
            self._lapsed_ms = None
            self._come_back(session)

    def _acknowledged(self, fact: Fact, sent_ms: int) -> None:
        if getattr(fact, "incarnation", None) == self.session.incarnation:
            number = fact.number if isinstance(fact, LagReported) else None
            self.session.heartbeat_acknowledged(sent_ms=sent_ms, now_ms=self.engine.now_ms, report_number=number)
            if self.session.has_more_to_report:
                self._speak()
        self._look()
        self._go_if_done()

    def _look(self) -> None:
        """Called when something may have changed for the tasks."""
        session = self.session
        if self._seen != (session.assignment_epoch, session.ended, session.stopping):
            self._reconcile()

    # Reconciliation

    def _reconcile(self) -> None:
        """Brings the process in line with its session: stops, closes, restores, runs, follows."""
        session, now_ms = self.session, self.engine.now_ms
        if not session.joined:
            return
        self._restorer.advance(now_ms)
        for task in self.running:
            if not session.may_process(task, now_ms):
                self._world.stopped(task, self, now_ms)
                del self._running[task]
                self._wrote(task, now_ms)
        self._seen = (session.assignment_epoch, session.ended, session.stopping)
        closing = sorted(session.closing - self._closing)
        if closing:
            self._closing.update(closing)
            self.after(self.settings.close_ms, self._closed, session, closing)
        waits = self.settings.early_ms and not session.assignment_epoch
        copies = frozenset(self._restorer.following()) if waits else session.standby | session.warmup
        for task in [task for task in self._restorer.opening() if task not in session.grants or task in session.closing]:
            self._restorer.leave(task, now_ms)
        for task in [task for task in self._restorer.following() if task not in copies]:
            self._restorer.leave(task, now_ms)
        for task, grant in sorted(session.grants.items()):
            if task not in session.closing and task not in self._running:
                self._open(task, grant.start_ms, grant.token)
        for task in sorted(copies):
            self._restorer.follow(task, now_ms)
        self._restorer.ready_lag_records = session.acceptable_lag or 0
        self._prepare(session.to_prepare())
        self._plan_look()
        self._speak()
        if session.ended is not None and not session.closing:
            self._after_the_end()

    def _open(self, task: TaskId, start_ms: int, token: int) -> None:
        session, now_ms = self.session, self.engine.now_ms
        if now_ms < start_ms:
            if self._woken.get(task) != start_ms:
                self._woken[task] = start_ms
                self.after(start_ms - now_ms, self._reconcile)
            return
        if task.subtopology in self._stateful:
            self._restorer.open(task, now_ms)
            session.copy_progress(task, self._restorer.lag(task, now_ms), now_ms)
            if self.settings.prepare_ms is not None and session.may_process(task, now_ms) and not session.is_prepared(task):
                self._prepare((task,))
                return
        if session.may_process(task, now_ms):
            self._restorer.leave(task, now_ms)
            self._world.started(task, self, token, now_ms)
            self._running[task] = token

    def _prepare(self, tasks: Iterable[TaskId]) -> None:
        for task in sorted(tasks):
            if task not in self._preparing:
                self._preparing[task] = self.engine.now_ms
                self.after(self.settings.prepare_ms or 0, self._prepared, self.session, task)

    def _prepared(self, session: MemberSession, task: TaskId) -> None:
        if session is self.session:
            del self._preparing[task]
            session.declare_ready(task)
            self._reconcile()

    def _closed(self, session: MemberSession, tasks: list[TaskId]) -> None:
        if session is not self.session:
            return
        for task in tasks:
            self._closing.discard(task)
            session.task_closed(task, self.engine.now_ms)
        self._reconcile()
        self._go_if_done()

    def _plan_look(self) -> None:
        look_ms = self._restorer.next_look_ms(self.engine.now_ms)
        if look_ms is not None:
            self._look_tag += 1
            self.after(max(1, look_ms - self.engine.now_ms), self._restored_some, self._look_tag)

    def _restored_some(self, tag: int) -> None:
        if tag != self._look_tag or self.session.ended is not None:
            return
        self._tell_progress()
        self._reconcile()

    def _tell_progress(self) -> None:
        """Reports the lag of every copy on disk that does not run."""
        now_ms = self.engine.now_ms
        self._restorer.advance(now_ms)
        for task in sorted(self.disk.positions):
            if task not in self._running:
                self.session.copy_progress(task, self._restorer.lag(task, now_ms), now_ms)
        done = {task: min(999, (now_ms - since_ms) * 1_000 // max(1, self.settings.prepare_ms or 0)) for task, since_ms in self._preparing.items()}
        self.session.note_preparing(done, ())
        speed = float(self.settings.restore.records_per_s) if self._restorer.restored_anything or self.settings.knows_speed else 0.0
        tasks: dict[TaskId, int] = {}
        if self.settings.reports_load:
            tasks = {task: self._world.written_per_s(task, now_ms) for task in self.running if task.subtopology in self._stateful}
        if self.settings.load_of is not None:
            load = self.settings.load_of(self.member_id, self.running, now_ms)
            self.session.load_measured(attrs.evolve(load, restored_records_per_s=speed))
        elif speed or tasks:
            self.session.load_measured(Load(restored_records_per_s=speed, tasks=tasks))

    def _wrote(self, task: TaskId, now_ms: int) -> None:
        if task.subtopology in self._stateful:
            self._restorer.wrote(task, min(now_ms, self.session.lease_ends_ms))

    # Reports

    def _speak(self) -> None:
        session, now_ms = self.session, self.engine.now_ms
        if session.joined and session.ended is None and session.next_report_ms <= now_ms:
            self._tell_progress()
        for fact in session.poll(now_ms):
            self._say(fact)
        next_ms = session.next_poll_ms
        if next_ms is not None:
            self._poll_tag += 1
            self.after(max(1, next_ms - now_ms), self._poll, self._poll_tag)

    def _poll(self, tag: int) -> None:
        if tag == self._poll_tag and self.alive:
            self._speak()
            self._look()

    def _say(self, fact: Fact) -> None:
        if isinstance(fact, LagReported) and self.engine.chance(self.network.settings.report_loss_per_million):
            return
        self._producer.send(fact)

    # Ends

    def _after_the_end(self) -> None:
        """Called when the incarnation is over and no task runs: ends, or joins with a new
        incarnation.
        """
        session = self.session
        if session.ended in (End.LEFT, End.RELEASED):
            self._ending = self._ending or Exit.LEFT
            self._go_if_done()
        elif self._ending is not None:
            self._exit(self._ending)
        elif session.ended is End.LEASE_LAPSED and not session.end_cause:
            if self._lapsed_ms is None:
                self._lapsed_ms = self.engine.now_ms  # decisions made meanwhile are read first
        else:
            self._come_back(session)

    def _come_back(self, session: MemberSession) -> None:
        """Joins again, unless another process has its member id."""
        if session.is_ousted:
            self._exit(Exit.SUPERSEDED)
            return
        self._reader.end()
        self._proven_dead = session.incarnation  # none of its tasks runs any more
        self._begin_incarnation_state()
        self.session = self._new_session()
        self.after(self.settings.rejoin_ms, self._locate)

    def _go_if_done(self) -> None:
        """Ends once MemberLeft has been acknowledged."""
        if self.alive and self.session.ended in (End.LEFT, End.RELEASED) and not self.session.closing and self._producer.idle:
            self._exit(Exit.LEFT)

    def _stop_processing(self, now_ms: int, lost_ms: int) -> None:
        if self.paused:
            self._restorer.sleep_until(now_ms)
        for task in self._restorer.opening() + self._restorer.following():
            self._restorer.leave(task, now_ms)
        for task in self.running:
            if not self.paused:
                self._world.stopped(task, self, now_ms)
            self._wrote(task, (self._paused_ms if self.paused else now_ms) - lost_ms)
        self._running.clear()

    def _exit(self, how: Exit) -> None:
        if not self.alive:
            return
        self._stop_processing(self.engine.now_ms, 0)
        self.exit = how
        self._reader.end()
        super().kill()
        self._ended(self)
