"""One instance of a Kafka Streams application: a disk, threads that are one consumer each, and
copies to restore (Kafka: ``StreamThread``, ``TaskManager``).

Tasks run on while their thread re-joins (KIP-429), except when the thread was given a task whose
position it had no time to fetch. A thread that has revoked a task re-joins at once; if it was given
one at the same time, all its tasks stop until the rebalance is over
(``KafkaConsumer.updateAssignmentMetadataIfNeeded`` fetches positions only after the join). In the
recorded run without standbys this was so for 52 of 53 such threads, and for none of 124 that only
revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from equipoise.assignors.kafka_streams.client_states import LATEST
from equipoise.assignors.kafka_streams.threads import ThreadAssignment, ThreadSubscription
from equipoise.events import fields
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.classic_coordinator import Coordinator
from equipoise.replay.simulation.kafka.protocol import KafkaProtocol
from equipoise.replay.simulation.restored_copies import Disk, RestoreModel, Restorer
from equipoise.replay.simulation.world import SimulatedWorld

FOREVER_MS = 2**62
CRASH_LOSES_MS = 1_000
"""Changelog writes of the last so many milliseconds before a kill are not in the stores
(``commit.interval.ms``).
"""


@attrs.frozen(kw_only=True)
class InstanceSettings:
    """`identity`: the process id in the state directory, which decides the order in which Kafka
    deals tasks. Times in milliseconds.
    """

    member_id: str = attrs.field(validator=fields.text())
    identity: str = attrs.field(validator=fields.text())
    threads: int = attrs.field(default=1, validator=fields.integer(1))
    rack: str | None = None
    tags: Mapping[str, str] = attrs.field(factory=dict)
    session_timeout_ms: int = attrs.field(default=45_000, validator=fields.integer(1))
    restore: RestoreModel = attrs.field(factory=RestoreModel)
    start_ms: int = attrs.field(default=1_300, validator=fields.integer())


class KafkaStreamsInstance:
    """One process of the application. `tokens`: returns a higher number at each call."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        coordinator: Coordinator[ThreadSubscription, ThreadAssignment],
        world: SimulatedWorld,
        settings: InstanceSettings,
        disk: Disk,
        protocol: KafkaProtocol,
        *,
        acceptable_lag: int,
        probing_interval_ms: Callable[[], int],
        tokens: Callable[[], int],
    ) -> None:
        self.name = name
        self.settings = settings
        self.alive = True
        self.incarnation = 1
        self.started_ms = engine.now_ms
        self.ended_ms: int | None = None
        self.engine = engine
        self.coordinator = coordinator
        self.protocol = protocol
        self.threads = [KafkaStreamsThread(self, number + 1) for number in range(settings.threads)]
        self._world = world
        self._disk = disk
        self._restorer = Restorer(settings.restore, world, settings.member_id, disk, acceptable_lag)
        self._restorer.advance(engine.now_ms)
        self._running: set[TaskId] = set()
        self._paused: set[TaskId] = set()
        """Tasks of `_running` whose thread has stopped."""
        self._locked: dict[TaskId, KafkaStreamsThread] = {}
        """Task folder on disk without a thread -> the thread that locked it first, and reports it.
        """
        self._kept_ms: dict[TaskId, int] = {}
        """Task -> when its copy was last kept up."""
        self.probing_interval_ms = probing_interval_ms
        self._tokens = tokens
        self._look_tag = 0

    @property
    def member_id(self) -> str:
        return self.settings.member_id

    @property
    def stops_by_ms(self) -> int:
        return FOREVER_MS if self.ended_ms is None else self.ended_ms

    def start(self) -> None:
        for thread in self.threads:
            self.engine.after(self.settings.start_ms + self.engine.between(0, 5), thread.begin)

    # Ends

    def kill(self) -> None:
        """Stops without LeaveGroup and without flushing the last writes."""
        if self.alive:
            self._stop_all(CRASH_LOSES_MS)
            self._gone(self.protocol.commit_interval_ms)

    def close_silently(self) -> None:
        """The default close: closes its tasks and sends no LeaveGroup."""
        if self.alive:
            self._stop_all(0)
            self._gone(0)  # the last commit keeps the session alive

    def leave(self, close_ms: int | None) -> None:
        """A close that leaves the group: one thread after the other, the first at once, the last at
        four fifths of the time (measured).
        """
        lasts_ms = self.protocol.close_ms if close_ms is None else close_ms
        for number, thread in enumerate(self.threads):
            after_ms = lasts_ms * 4 * number // (5 * max(1, len(self.threads) - 1))
            self.engine.after(after_ms, self._thread_leaves, thread)

    def _thread_leaves(self, thread: KafkaStreamsThread) -> None:
        if not thread.alive:
            return
        for task in sorted(thread.owned & self._running):
            self._stop(task, 0)
        thread.end()
        self.coordinator.leave(thread)
        if not any(each.alive for each in self.threads):
            self._stop_all(0)
            self.alive = False
            self.ended_ms = self.engine.now_ms
        else:
            self.reconcile()

    def _stop_all(self, lost_ms: int) -> None:
        self._restorer.advance(self.engine.now_ms)
        for task in self._restorer.opening() + self._restorer.following():
            self._restorer.leave(task, self.engine.now_ms)
        for task in sorted(self._running):
            self._stop(task, lost_ms)

    def _gone(self, last_commit_ms: int) -> None:
        """`last_commit_ms`: greatest age of the last commit, where the thread had something to
        commit.
        """
        self.alive = False
        self.ended_ms = self.engine.now_ms
        for thread in self.threads:
            ago_ms = self.engine.between(0, last_commit_ms)
            heard_ms = self.engine.now_ms - ago_ms if thread.owned else 0
            thread.end()
            self.coordinator.fell_silent(thread, heard_ms)

    # Tasks and copies

    def subscription(self, thread: KafkaStreamsThread) -> ThreadSubscription:
        """Returns what `thread` sends when it joins: its own tasks, and the task folders that it
        can lock.
        """
        now_ms = self.engine.now_ms
        self._restorer.advance(now_ms)
        theirs = {task for each in self.threads for task in each.owned | each.standby}
        for task in sorted(self._disk.positions):
            if task in theirs:
                self._kept_ms[task] = now_ms
                self._locked.pop(task, None)
            elif now_ms - self._kept_ms.setdefault(task, now_ms) > self.protocol.cleanup_delay_ms:
                del self._disk.positions[task], self._kept_ms[task]
                self._locked.pop(task, None)
            else:
                self._locked.setdefault(task, thread)
        sums: dict[TaskId, int] = {}
        for task in sorted(thread.owned | thread.standby):
            if task in self._running and self._world.tasks[task]:
                sums[task] = LATEST
            elif task in self._disk.positions:
                sums[task] = self._restorer.position(task, now_ms)
        sums.update({task: self._disk.positions[task] for task, locker in self._locked.items() if locker is thread})
        return ThreadSubscription(consumer=thread.name, process=self.settings.identity, owned=frozenset(thread.owned), offset_sums=sums)

    def unlock(self, thread: KafkaStreamsThread) -> None:
        """The rebalance is over: task folders are free again."""
        self._locked = {task: locker for task, locker in self._locked.items() if locker is not thread}

    def has_state(self, task: TaskId) -> bool:
        return self._world.tasks[task]

    def revoke(self, tasks: set[TaskId]) -> None:
        for task in sorted(tasks & self._running):
            self._stop(task, 0)

    def pause(self, thread: KafkaStreamsThread) -> None:
        """Stops the thread's tasks until `reconcile` finds its positions known."""
        for task in sorted(thread.owned & self._running - self._paused):
            self._world.stopped(task, self, self.engine.now_ms)
            self._paused.add(task)

    def _stop(self, task: TaskId, lost_ms: int) -> None:
        self._running.discard(task)
        self._paused.discard(task)
        self._world.stopped(task, self, self.engine.now_ms)
        if self._world.tasks[task]:
            self._restorer.wrote(task, self.engine.now_ms - lost_ms)

    def reconcile(self) -> None:
        """Keeps, restores and drops copies as the threads' assignments require, and runs the tasks
        that can run.
        """
        if not self.alive:
            return
        now_ms, restorer = self.engine.now_ms, self._restorer
        restorer.advance(now_ms)
        owned = {task: thread for thread in self.threads for task in thread.owned}
        copies = {task for thread in self.threads for task in thread.standby} - owned.keys()
        for task in [task for task in restorer.opening() if task not in owned]:
            restorer.leave(task, now_ms)
        for task in [task for task in restorer.following() if task not in copies]:
            restorer.leave(task, now_ms)
        for task in sorted(copies):
            restorer.follow(task, now_ms)
        for task, thread in sorted(owned.items()):
            if task not in self._running and self._world.tasks[task]:
                restorer.open(task, now_ms)
                if restorer.lag(task, now_ms) > 0:
                    continue
            if not thread.unpositioned and (task not in self._running or task in self._paused):
                restorer.leave(task, now_ms)
                self._world.started(task, self, self._tokens(), now_ms)
                self._running.add(task)
                self._paused.discard(task)
        look_ms = restorer.next_look_ms(now_ms)
        if look_ms is not None:
            self._look_tag += 1
            self.engine.after(max(1, look_ms - now_ms), self._look, self._look_tag)

    def _look(self, tag: int) -> None:
        if tag == self._look_tag:
            self.reconcile()


class KafkaStreamsThread:
    """A stream thread: one consumer, one member of the group."""

    def __init__(self, instance: KafkaStreamsInstance, number: int) -> None:
        self.instance = instance
        self.name = f"{instance.name}-StreamThread-{number}"
        self.alive = True
        self.owned: set[TaskId] = set()
        self.standby: set[TaskId] = set()
        self.unpositioned: set[TaskId] = set()
        """Tasks of `owned` whose position is not known yet."""
        self._joining = False
        self._tag = 0
        """Number of the rebalance it is in; timers of earlier ones are void."""

    @property
    def session_timeout_ms(self) -> int:
        return self.instance.settings.session_timeout_ms

    def begin(self) -> None:
        if self.alive:
            self._join("join")

    def end(self) -> None:
        self.alive = False
        self._tag += 1
        self.owned.clear()
        self.standby.clear()

    def _join(self, cause: str) -> None:
        if not self._joining:
            self._joining = True
            self._tag += 1
            if self.unpositioned:
                self.instance.pause(self)
            self.instance.coordinator.join(self, self.instance.subscription(self), cause)

    def assigned(self, assignment: ThreadAssignment) -> None:
        """SyncGroup: revokes, takes its new tasks, and re-joins when it revoked something."""
        instance, protocol, engine = self.instance, self.instance.protocol, self.instance.engine
        self._joining = False
        self._tag += 1
        active = set(assignment.active)
        revoked = self.owned - active
        instance.unlock(self)
        instance.revoke(revoked)
        self.unpositioned = (self.unpositioned & active) | (active - self.owned)
        self.owned, self.standby = active, set(assignment.standby)
        if revoked:
            engine.after(engine.between(1, 5), self._rejoin, self._tag, "follow-up")
        else:
            engine.after(self._position_ms(), self._positioned, self._tag)
            if assignment.now:
                engine.after(engine.between(1, protocol.rejoin_ms), self._rejoin, self._tag, "follow-up")
            engine.after(protocol.heartbeat_interval_ms + engine.between(0, protocol.heartbeat_drift_ms), self._heartbeat, self._tag)
            if assignment.probing:
                engine.after(instance.probing_interval_ms() + protocol.probing_slack_ms, self._rejoin, self._tag, "probing")
        instance.reconcile()

    def _position_ms(self) -> int:
        """Time until positions are known; a task with state opens its store first."""
        stateful = any(self.instance.has_state(task) for task in self.unpositioned)
        return self.instance.settings.restore.latency_ms if stateful else self.instance.protocol.position_ms

    def join_again(self) -> None:
        self._joining = False
        self._tag += 1
        self.instance.engine.after(self.instance.engine.between(1, 5), self._rejoin, self._tag, "")

    def _rejoin(self, tag: int, cause: str) -> None:
        if tag == self._tag and self.alive:
            self._join(cause)

    def _positioned(self, tag: int) -> None:
        if tag == self._tag and self.alive:
            self.unpositioned.clear()
            self.instance.reconcile()

    def _heartbeat(self, tag: int) -> None:
        if tag != self._tag or not self.alive:
            return
        protocol, engine = self.instance.protocol, self.instance.engine
        if self.instance.coordinator.heartbeat(self):
            engine.after(engine.between(1, 20), self._rejoin, tag, "")
        engine.after(protocol.heartbeat_interval_ms + engine.between(0, protocol.heartbeat_drift_ms), self._heartbeat, tag)
