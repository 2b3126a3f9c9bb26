"""Simulated consumers of the classic protocol on Kafka's coordinator: eager and cooperative
(KIP-429), static (KIP-345), or led by somebody that waits for members that will be back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.classic_coordinator import Coordinator
from equipoise.replay.simulation.kafka.consumers import COOPERATIVE, ConsumerSettings, Joined, Partitions, SimulatedGroup, assign
from equipoise.replay.simulation.kafka.protocol import KafkaProtocol

LOST_MS = 100
"""So long cooperative consumers take at most, after partitions are lost, to join again."""


class ClassicConsumers(SimulatedGroup):
    def __init__(self, engine: Engine, owners: Mapping[str, str], settings: ConsumerSettings, idle: Iterable[str] = ()) -> None:
        self.protocol = KafkaProtocol(heartbeat_interval_ms=settings.heartbeat_interval_ms)
        self.coordinator: Coordinator[Joined, Partitions] = Coordinator(engine, self.protocol, lead=self._lead, noted=lambda cause: None)
        self._consumers: dict[str, ClassicConsumer] = {}
        self._had: dict[str, Partitions] = {}
        """Who stopped -> its partitions, which wait for it under `hold_ms`."""
        self._missed_ms: dict[str, int] = {}
        """The same -> when the leader first saw that it was gone."""
        self._wanted: Mapping[str, str] | None = None
        """Partition -> process, as the leader deals; None: by the group's strategy."""
        self._described: dict[str, str] = {}
        """What was so when the group was stable last: a coordinator tells no more."""
        super().__init__(engine, owners, settings, idle)

    @property
    def is_cooperative(self) -> bool:
        return self.settings.assignor == COOPERATIVE

    def start(self, name: str) -> None:
        former = self._consumers.get(name)
        if former is not None and former.alive:
            return
        self._had.pop(name, None)
        self._missed_ms.pop(name, None)
        if former is not None and self.settings.is_static and not self.coordinator.is_gone(former):
            former.is_back()
            return
        self.started += 1
        consumer = self._consumers[name] = ClassicConsumer(self, name, f"{name}#{self.started}")
        consumer.join()

    def stop(self, name: str, *, leaves: bool) -> None:
        consumer = self._consumers.get(name)
        if consumer is None or not consumer.alive:
            return
        self._had[self.waits_for(name, consumer.name)] = consumer.owned
        consumer.end()
        if leaves:
            self.coordinator.leave(consumer)
        else:
            self.coordinator.fell_silent(consumer, consumer.heard_ms)

    def described(self) -> tuple[dict[str, str], bool]:
        if self.coordinator.is_stable:
            self._described = {key: name for name, each in self._consumers.items() if self._is_in(each) for key in each.owned}
            return self._described, True
        return (self._described if self.is_cooperative else {}), False

    def _is_in(self, consumer: ClassicConsumer) -> bool:
        return consumer.alive and not self.coordinator.is_gone(consumer)

    def evict(self, name: str) -> None:
        """Somebody takes the member out. It learns that with its next heartbeat, and joins again; a
        cooperative one gives up first what it has lost.
        """
        self._consumers[name].lost_ms = LOST_MS if self.is_cooperative else 0
        self.coordinator.leave(self._consumers[name])

    def deal(self, wanted: Mapping[str, str]) -> None:
        self.wants(wanted)
        self.coordinator.rebalance("asked")

    def wants(self, wanted: Mapping[str, str]) -> None:
        self._wanted = wanted

    def _hold_over(self, name: str) -> None:
        leader = next((each for each in self._consumers.values() if each.alive), None)
        if name in self._missed_ms and leader is not None:
            leader.join()

    def _lead(self, joined: Sequence[Joined], leader: str) -> Mapping[str, Partitions]:
        if self.coordinator.generation == 1:
            return {each.member: frozenset(key for key, owner in self.first_owners.items() if owner == each.name) for each in joined}
        if self._wanted is not None:
            given = {each.member: frozenset(key for key, to in self._wanted.items() if to == each.name) for each in joined}
        else:
            held = self._held({each.name for each in joined})
            given = assign(self.settings.assignor, joined, [key for key in self.partitions if key not in held])
        if self.is_cooperative:  # what another one still has is given in the next round
            owner = {key: each.member for each in joined for key in each.owned}
            given = {member: frozenset(key for key in keys if owner.get(key, member) == member) for member, keys in given.items()}
        return given

    def _held(self, there: set[str]) -> set[str]:
        if not self.settings.hold_ms:
            return set()
        for name in sorted(self._had.keys() - there - self._missed_ms.keys()):
            self._missed_ms[name] = self.engine.now_ms
            self.engine.after(self.settings.hold_ms, self._hold_over, name)
        due_ms = self.engine.now_ms - self.settings.hold_ms
        return {key for name, at_ms in self._missed_ms.items() if at_ms > due_ms for key in self._had[name]}

    def waits_for(self, process: str, member: str) -> str:
        """For whom partitions of one that is gone wait: the process, whatever member it comes as."""
        return process


class ClassicConsumer:
    """One consumer from its start to its end."""

    def __init__(self, group: ClassicConsumers, process: str, member: str) -> None:
        self.name = member
        self.alive = True
        self.owned: Partitions = frozenset()
        self.heard_ms = group.engine.now_ms
        self.lost_ms = 0
        """How much longer than usual it takes at most until it joins again."""
        self._group = group
        self._process = process
        self._tag = 0

    @property
    def session_timeout_ms(self) -> int:
        return self._group.settings.session_timeout_ms

    def join(self) -> None:
        """JoinGroup. An eager consumer gives up everything before."""
        if not self.alive:
            return
        owned = self.owned
        if not self._group.is_cooperative:
            self._read(frozenset())
        self._tag += 1
        self.heard_ms = self._group.engine.now_ms
        self._group.coordinator.join(self, Joined(self.name, self._process, owned), "asked")

    def assigned(self, assignment: Partitions) -> None:
        """SyncGroup."""
        revoked = self.owned - assignment
        self._read(assignment)
        self._tag += 1
        engine, protocol = self._group.engine, self._group.protocol
        if revoked and self._group.is_cooperative:
            engine.after(engine.between(1, protocol.rejoin_ms), self._rejoin, self._tag)
        interval_ms = protocol.heartbeat_interval_ms
        is_first = self._group.coordinator.generation == 1  # it is long ago, so that heartbeats come at any time
        engine.after(self._group.first_heartbeat_ms() if is_first else interval_ms, self._heartbeat, self._tag)

    def join_again(self) -> None:
        self._tag += 1
        self._group.engine.after(1, self._rejoin, self._tag)

    def end(self) -> None:
        self._group.readers.stops(self.name, self.owned)
        self.alive = False
        self._tag += 1

    def is_back(self) -> None:
        """A static member that is known still: it has what it had, and nobody joins again."""
        self.alive = True
        self.heard_ms = self._group.engine.now_ms
        if self._group.coordinator.heartbeat(self):
            self.join()
            return
        owned, self.owned = self.owned, frozenset()
        self.assigned(owned)

    def _heartbeat(self, tag: int) -> None:
        if tag != self._tag or not self.alive:
            return
        engine = self._group.engine
        self.heard_ms = engine.now_ms
        if self._group.coordinator.heartbeat(self):
            engine.after(engine.between(1, self._group.protocol.rejoin_ms + self.lost_ms), self._rejoin, tag)
            self.lost_ms = 0
        engine.after(self._group.protocol.heartbeat_interval_ms, self._heartbeat, tag)

    def _rejoin(self, tag: int) -> None:
        if tag == self._tag:
            self.join()

    def _read(self, owned: Partitions) -> None:
        self._group.readers.stops(self.name, self.owned - owned)
        if owned - self.owned:
            self._group.engine.after(self._group.settings.begin_ms, self._begin, owned - self.owned)
        self.owned = owned

    def _begin(self, partitions: Partitions) -> None:
        if self.alive:
            self._group.readers.reads(self.name, partitions & self.owned)
