"""The simulated Kafka Streams group: its instances, their coordinator, and the leader, which calls
Kafka's own assignor, or asks equipoise (`rounds`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from equipoise.assignors import Partition, Task
from equipoise.assignors.kafka_streams.assignor import settings_of
from equipoise.assignors.kafka_streams.client_states import LATEST, ClientState, RemainingWarmups
from equipoise.assignors.kafka_streams.java import member_key
from equipoise.assignors.kafka_streams.task_assignor import assign
from equipoise.assignors.kafka_streams.threads import ThreadAssignment, ThreadSubscription, to_threads
from equipoise.events.facts import GroupConfigured, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.classic_coordinator import Coordinator
from equipoise.replay.simulation.kafka.instance import InstanceSettings, KafkaStreamsInstance
from equipoise.replay.simulation.kafka.protocol import KafkaProtocol
from equipoise.replay.simulation.kafka.streams_rounds import SimulatedRounds, asked_process
from equipoise.replay.simulation.measures import Notes
from equipoise.replay.simulation.restored_copies import Disk
from equipoise.replay.simulation.world import EndOffsetCurve, PartitionKey, SimulatedWorld


class KafkaGroup:
    """Deterministic: equal arguments, seed and calls give equal runs."""

    def __init__(
        self,
        *,
        settings: GroupSettings,
        topology: TopologyDeclared,
        growth: Mapping[PartitionKey, EndOffsetCurve],
        protocol: KafkaProtocol,
        seed: int,
        start_ms: int = 0,
        rounds: SimulatedRounds | None = None,
    ) -> None:
        """`rounds`: who is asked in each rebalance; None: Kafka Streams decides itself."""
        self.settings = settings
        self._rounds = rounds
        self._follow_up_ms = settings.probing_interval_ms
        self.engine = Engine(seed=seed, start_ms=start_ms)
        self.world = SimulatedWorld(topology, growth, stands_still=True)
        self.instances: list[KafkaStreamsInstance] = []
        """Every instance so far, in order of starting."""
        self.notes = Notes()
        self._protocol = protocol
        self._coordinator: Coordinator[ThreadSubscription, ThreadAssignment] = Coordinator(self.engine, protocol, lead=self._lead, noted=self._noted)
        self._racks: dict[str, dict[int, tuple[str, ...]]] = {}
        self._topology = topology
        self._disks: dict[str, Disk] = {}
        self._kept: dict[str, frozenset[TaskId]] = {}
        self._token = 0

    def start(self, settings: InstanceSettings, *, state_kept: bool) -> KafkaStreamsInstance:
        """Starts an instance on the disk of its member id."""
        if not state_kept:
            self._disks[settings.member_id] = Disk()
        disk = self._disks.setdefault(settings.member_id, Disk())
        lives = sum(each.member_id == settings.member_id for each in self.instances)
        instance = KafkaStreamsInstance(
            f"{settings.member_id}#{lives + 1}",
            self.engine,
            self._coordinator,
            self.world,
            settings,
            disk,
            self._protocol,
            acceptable_lag=self.settings.acceptable_recovery_lag,
            probing_interval_ms=lambda: self.settings.probing_interval_ms if self._rounds is None else self._follow_up_ms,
            tokens=self._next_token,
        )
        self.instances.append(instance)
        instance.start()
        return instance

    def last(self, member_id: str) -> KafkaStreamsInstance | None:
        """Returns the instance of that name that was started last."""
        return next((each for each in reversed(self.instances) if each.member_id == member_id), None)

    def declare(self, topology: TopologyDeclared) -> None:
        self._topology = topology
        self.world.declare(topology)

    @property
    def asks(self) -> bool:
        """Returns whether equipoise decides its rounds."""
        return self._rounds is not None

    def configure(self, configured: GroupConfigured) -> None:
        """From here on with these settings."""
        self.settings = configured.knobs
        if self._rounds is not None:
            self._rounds.configure(self.engine.now_ms, configured)

    def place(self, racks: Mapping[str, Mapping[int, tuple[str, ...]]]) -> None:
        """Sets topic -> partition -> racks of its replicas. Partitions that are not named keep
        theirs.
        """
        for topic, places in racks.items():
            self._racks.setdefault(topic, {}).update(places)

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _noted(self, cause: str) -> None:
        self.notes.rounds.append((self.engine.now_ms, cause))

    def _lead(self, subscriptions: Sequence[ThreadSubscription], leader: str) -> Mapping[str, ThreadAssignment]:
        """``StreamsPartitionAssignor.assign`` with ``HighAvailabilityTaskAssignor``, or with
        equipoise's ``TaskAssignor``.
        """
        tasks = self._tasks()
        by_process: dict[str, list[ThreadSubscription]] = {}
        for each in sorted(subscriptions, key=lambda each: each.consumer):
            by_process.setdefault(each.process, []).append(each)
        settings = {each.settings.identity: each.settings for each in self.instances}
        processes = sorted(by_process, key=member_key)
        clients = [
            ClientState(index=index, id=process, capacity=len(by_process[process]), rack=settings[process].rack, tags=settings[process].tags)
            for index, process in enumerate(processes)
        ]
        reported: dict[TaskId, dict[int, int]] = {}
        for client in clients:
            for each in by_process[client.id]:
                for task, records in each.offset_sums.items():
                    if task in tasks and reported.setdefault(task, {}).get(client.index) != LATEST:
                        reported[task][client.index] = LATEST if records == LATEST else max(0, tasks[task].end_offset - records)
        if self._rounds is None:
            probing = assign(clients, list(tasks.values()), reported, settings_of(self.settings), RemainingWarmups(self.settings.max_warmups)).probing
        else:
            probing = self._ask(self._rounds, clients, by_process, tasks, reported)
        owned = frozenset(task for each in subscriptions for task in each.owned)
        leads = next(each.process for each in subscriptions if each.consumer == leader)
        found: dict[str, ThreadAssignment] = {}
        for client in clients:
            theirs = to_threads(client, by_process[client.id], tasks, owned, probing=probing and client.id == leads)
            found.update(theirs)
            self._note_copies(client.id, list(theirs.values()))
        return found

    def _ask(
        self,
        rounds: SimulatedRounds,
        clients: Sequence[ClientState],
        by_process: Mapping[str, Sequence[ThreadSubscription]],
        tasks: Mapping[TaskId, Task],
        reported: Mapping[TaskId, Mapping[int, int]],
    ) -> bool:
        """Sets the clients' tasks to equipoise's answer. Returns whether it wants another round."""
        runs = {client.id: {task for each in by_process[client.id] for task in each.owned if task in tasks} for client in clients}
        answer = rounds.ask(
            self.engine.now_ms,
            tasks.values(),
            [
                asked_process(client, runs[client.id], {task: lags[client.index] for task, lags in reported.items() if client.index in lags})
                for client in clients
            ],
        )
        for client in clients:
            client.active, client.standby = set(answer.active[client.id]), set(answer.copies[client.id])
        self._follow_up_ms = answer.follow_up_ms or 0
        return answer.follow_up_ms is not None

    def _note_copies(self, process: str, assignments: Iterable[ThreadAssignment]) -> None:
        before = self._kept.get(process, frozenset())
        active = {task for each in assignments for task in each.active}
        now = frozenset(task for each in assignments for task in each.standby)
        self._kept[process] = now
        at_ms = self.engine.now_ms
        self.notes.copies += [(at_ms, "begun")] * len(now - before)
        self.notes.copies += [(at_ms, "promoted" if task in active else "dropped") for task in sorted(before - now)]

    def _tasks(self) -> dict[TaskId, Task]:
        """The present tasks, in rising order."""
        now_ms = self.engine.now_ms
        found: dict[TaskId, Task] = {}
        for part in self._topology.subtopologies:
            for number in range(part.partitions):
                task = TaskId(part.subtopology, number)
                found[task] = Task(
                    id=task,
                    stateful=part.stateful,
                    end_offset=self.world.end_offset(task, now_ms),
                    source=self._partitions(part.source_topics, number),
                    changelog=self._partitions(part.changelog_topics, number),
                )
        return dict(sorted(found.items()))

    def _partitions(self, topics: Sequence[str], number: int) -> tuple[Partition, ...]:
        return tuple(Partition(topic=topic, partition=number, racks=self._racks.get(topic, {}).get(number, ())) for topic in topics)
