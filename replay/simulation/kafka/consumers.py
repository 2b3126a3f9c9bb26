"""Simulated consumer groups: consumers of the classic protocol on Kafka's coordinator, eager and
cooperative (KIP-429), static (KIP-345), or led by somebody that waits for members that will be
back; and of KIP-848, which the broker leads.

Told is who reads which partition. What a consumer does with its records is not simulated.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.coordinator import Coordinator
from equipoise.replay.simulation.kafka.protocol import KafkaProtocol

SETTLED_MS = 60_000
"""A simulated group begins so long before its first event, with the owners that it is given."""
LEAST_SILENCE_MS = 1_000
"""Shorter times without a reader do not count, as in recordings."""
COOPERATIVE = "cooperative-sticky"
Partitions = frozenset[str]


@attrs.frozen(kw_only=True)
class ConsumerSettings:
    """`assignor`: ``range``, ``roundrobin``, ``sticky`` or ``cooperative-sticky``; another one is
    taken for ``sticky``. `hold_ms`: how long partitions of a gone member wait for it, as under
    `equipoise lead --hold`. `is_broker_led`: KIP-848, where only `session_timeout_ms`,
    `heartbeat_interval_ms` and `is_static` matter.
    """

    session_timeout_ms: int
    heartbeat_interval_ms: int = 3_000
    assignor: str = "range"
    is_static: bool = False
    hold_ms: int = 0
    is_broker_led: bool = False


@attrs.frozen(order=True)
class ConsumerEvent:
    """`kind`: ``start``; ``kill``: ends without a word; ``leave``: ends, and says so."""

    at_ms: int
    kind: str
    name: str


def unavailable_ms(
    owners: Mapping[str, str], events: Iterable[ConsumerEvent], settings: ConsumerSettings, *, seed: int, until_ms: int
) -> dict[str, int]:
    """Simulates a group, and returns for each partition how long nobody read it, in spans of
    LEAST_SILENCE_MS and more. `owners`: partition -> its reader at first. An event of a member that
    is not there, or is there already, changes nothing.
    """
    events = sorted(events)
    start_ms = events[0].at_ms - SETTLED_MS if events else until_ms
    engine = Engine(seed=seed, start_ms=start_ms)
    kind = BrokerLedGroup if settings.is_broker_led else ClassicGroup
    group = kind(engine, owners, settings)
    for event in events:
        engine.at(event.at_ms, group.happens, event)
    engine.run_until(until_ms)
    return group.readers.silent_ms(events[0].at_ms - 1 if events else until_ms, until_ms)


class Readers:
    """Who reads each partition, and when nobody did."""

    def __init__(self, engine: Engine, partitions: Iterable[str]) -> None:
        self._engine = engine
        self._now: dict[str, str | None] = dict.fromkeys(partitions)
        self._since: dict[str, int] = dict.fromkeys(self._now, engine.now_ms)
        self._spans: list[tuple[str, int, int]] = []

    def reads(self, name: str, partitions: Iterable[str]) -> None:
        for partition in partitions:
            if self._now[partition] is None:
                self._spans.append((partition, self._since[partition], self._engine.now_ms))
            self._now[partition] = name

    def stops(self, name: str, partitions: Iterable[str]) -> None:
        for partition in partitions:
            if self._now[partition] == name:
                self._now[partition], self._since[partition] = None, self._engine.now_ms

    def silent_ms(self, from_ms: int, until_ms: int) -> dict[str, int]:
        open_spans = [(partition, self._since[partition], until_ms) for partition, reader in self._now.items() if reader is None]
        found = dict.fromkeys(self._now, 0)
        for partition, begin_ms, end_ms in [*self._spans, *open_spans]:
            if begin_ms >= from_ms and end_ms - begin_ms >= LEAST_SILENCE_MS:
                found[partition] += end_ms - begin_ms
        return found


class SimulatedGroup(abc.ABC):
    """A process has the same name each time that it is started, and another member id."""

    def __init__(self, engine: Engine, owners: Mapping[str, str], settings: ConsumerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.first_owners = dict(owners)
        self.partitions = sorted(owners)
        self.readers = Readers(engine, self.partitions)
        self.started = 0
        for name in sorted(set(owners.values())):
            self.start(name)

    def happens(self, event: ConsumerEvent) -> None:
        match event.kind:
            case "start":
                self.start(event.name)
            case "kill":
                self.stop(event.name, leaves=False)
            case _:
                self.stop(event.name, leaves=not self.settings.is_static)

    @abc.abstractmethod
    def start(self, name: str) -> None: ...

    @abc.abstractmethod
    def stop(self, name: str, *, leaves: bool) -> None:
        """A static member never says that it leaves, so that it may come back."""


@attrs.frozen
class Joined:
    """What a consumer joins with."""

    member: str
    name: str
    owned: Partitions


class ClassicGroup(SimulatedGroup):
    def __init__(self, engine: Engine, owners: Mapping[str, str], settings: ConsumerSettings) -> None:
        self.protocol = KafkaProtocol(heartbeat_interval_ms=settings.heartbeat_interval_ms)
        self.coordinator: Coordinator[Joined, Partitions] = Coordinator(engine, self.protocol, lead=self._lead, noted=lambda cause: None)
        self._consumers: dict[str, ClassicConsumer] = {}
        self._had: dict[str, Partitions] = {}
        """Process that stopped -> its partitions, which wait for it under `hold_ms`."""
        self._missed_ms: dict[str, int] = {}
        """Process -> when the leader first saw that it was gone."""
        super().__init__(engine, owners, settings)

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
        self._had[name] = consumer.owned
        consumer.end()
        if leaves:
            self.coordinator.leave(consumer)
        else:
            self.coordinator.fell_silent(consumer, consumer.heard_ms)

    def _hold_over(self, name: str) -> None:
        leader = next((each for each in self._consumers.values() if each.alive), None)
        if name in self._missed_ms and leader is not None:
            leader.join()

    def _lead(self, joined: Sequence[Joined], leader: str) -> Mapping[str, Partitions]:
        if self.coordinator.generation == 1:
            return {each.member: frozenset(key for key, owner in self.first_owners.items() if owner == each.name) for each in joined}
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


class ClassicConsumer:
    """One consumer from its start to its end."""

    def __init__(self, group: ClassicGroup, process: str, member: str) -> None:
        self.name = member
        self.alive = True
        self.owned: Partitions = frozenset()
        self.heard_ms = group.engine.now_ms
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
        engine.after(engine.between(1, interval_ms) if is_first else interval_ms, self._heartbeat, self._tag)

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
            engine.after(engine.between(1, self._group.protocol.rejoin_ms), self._rejoin, tag)
        engine.after(self._group.protocol.heartbeat_interval_ms, self._heartbeat, tag)

    def _rejoin(self, tag: int) -> None:
        if tag == self._tag:
            self.join()

    def _read(self, owned: Partitions) -> None:
        self._group.readers.stops(self.name, self.owned - owned)
        if owned - self.owned:
            self._group.engine.after(self._group.protocol.position_ms, self._begin, owned - self.owned)
        self.owned = owned

    def _begin(self, partitions: Partitions) -> None:
        if self.alive:
            self._group.readers.reads(self.name, partitions & self.owned)


def assign(assignor: str, joined: Sequence[Joined], partitions: Sequence[str]) -> dict[str, Partitions]:
    """Returns member -> its partitions. ``range`` and ``roundrobin`` as Kafka's; every other one
    keeps what members have, as far as they have equal numbers then.
    """
    members = sorted(each.member for each in joined)
    given: dict[str, list[str]] = {member: [] for member in members}
    match assignor:
        case "range":
            topics: dict[str, list[str]] = {}
            for partition in sorted(partitions, key=_number):
                topics.setdefault(partition.rpartition("-")[0], []).append(partition)
            for mine in topics.values():
                least, more = divmod(len(mine), len(members))
                begin = 0
                for place, member in enumerate(members):
                    end = begin + least + (place < more)
                    given[member] += mine[begin:end]
                    begin = end
        case "roundrobin":
            for place, partition in enumerate(sorted(partitions, key=_number)):
                given[members[place % len(members)]].append(partition)
        case _:
            _keep(given, {each.member: each.owned for each in joined}, partitions)
    return {member: frozenset(mine) for member, mine in given.items()}


def _keep(given: dict[str, list[str]], owned: Mapping[str, Partitions], partitions: Sequence[str]) -> None:
    least, more = divmod(len(partitions), len(given))
    free = set(partitions)
    for member in sorted(given, key=lambda each: (-len(owned.get(each, ())), each)):
        kept = sorted(free & owned.get(member, frozenset()), key=_number)[: least + (more > 0)]
        more -= len(kept) > least
        given[member] += kept
        free.difference_update(kept)
    for partition in sorted(free, key=_number):
        given[min(given, key=lambda each: (len(given[each]), each))].append(partition)


def _number(partition: str) -> tuple[str, int]:
    topic, _, number = partition.rpartition("-")
    return topic, int(number) if number.isdecimal() else 0


class BrokerLedGroup(SimulatedGroup):
    """KIP-848: the broker computes a target, and each member learns of its part with its next
    heartbeat, gives up what it has to, and is given what is free.
    """

    def __init__(self, engine: Engine, owners: Mapping[str, str], settings: ConsumerSettings) -> None:
        self._owned: dict[str, Partitions] = {}
        self._process: dict[str, str] = {}
        self._alive: dict[str, str] = {}
        """Process -> its member, while it is alive."""
        self._known: dict[str, str] = {}
        """The same for the broker."""
        self._heard_ms: dict[str, int] = {}
        self._target: dict[str, Partitions] = {}
        super().__init__(engine, owners, settings)
        self._target = {member: frozenset(key for key, owner in owners.items() if owner == self._process[member]) for member in self._owned}

    def start(self, name: str) -> None:
        if name in self._alive:
            return
        known = self._known.get(name)
        if known is not None and self.settings.is_static:
            member = known
            self._owned[member] = frozenset()
        else:
            self.started += 1
            member = f"{name}#{self.started}"
            self._owned[member] = frozenset()
            self._process[member] = name
            self._known[name] = member
        self._alive[name] = member
        self._heard_ms[member] = self.engine.now_ms
        self._compute()
        is_first = not self._target
        self.engine.after(self.engine.between(1, self.settings.heartbeat_interval_ms) if is_first else 0, self._heartbeat, member)

    def stop(self, name: str, *, leaves: bool) -> None:
        member = self._alive.pop(name, None)
        if member is None:
            return
        self.readers.stops(member, self._owned[member])
        if leaves:
            self._remove(member)
        else:
            self.engine.at(self._heard_ms[member] + self.settings.session_timeout_ms, self._expire, member)

    def _expire(self, member: str) -> None:
        if member in self._owned and self._heard_ms[member] + self.settings.session_timeout_ms <= self.engine.now_ms:
            self._remove(member)

    def _remove(self, member: str) -> None:
        self._owned.pop(member, None)
        if self._known.get(self._process[member]) == member:
            del self._known[self._process[member]]
        self._compute()

    def _compute(self) -> None:
        if self._target and self._owned:
            joined = [Joined(member, self._process[member], self._target.get(member, frozenset())) for member in self._owned]
            self._target = assign("sticky", joined, self.partitions)

    def _heartbeat(self, member: str) -> None:
        if self._alive.get(self._process[member]) != member:
            return
        self._heard_ms[member] = self.engine.now_ms
        target = self._target.get(member, frozenset())
        kept = self._owned[member] & target
        self.readers.stops(member, self._owned[member] - kept)
        others = frozenset().union(*(owned for name, owned in self._owned.items() if name != member))
        self._owned[member] = kept | (target - others)
        self.engine.after(KafkaProtocol().position_ms, self._begin, member, self._owned[member] - kept)
        self.engine.after(self.settings.heartbeat_interval_ms, self._heartbeat, member)

    def _begin(self, member: str, partitions: Partitions) -> None:
        if self._alive.get(self._process[member]) == member:
            self.readers.reads(member, partitions & self._owned.get(member, frozenset()))
