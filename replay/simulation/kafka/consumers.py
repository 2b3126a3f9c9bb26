"""What simulated groups of consumers have in common: their settings, who stops and begins, who
reads which partition, and how partitions are dealt. What a consumer does with its records is not
simulated.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence

import attrs

from equipoise.replay.numbers import counted_ms, is_move
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.protocol import KafkaProtocol

STEP_MS = 200
"""Members that beat in step do so within this time."""
COOPERATIVE = "cooperative-sticky"
Partitions = frozenset[str]


@attrs.frozen(kw_only=True)
class ConsumerSettings:
    """`assignor`: ``range``, ``roundrobin``, ``sticky`` or ``cooperative-sticky``; another one is
    taken for ``sticky``. `hold_ms`: how long partitions of a gone member wait for it, as under
    `equipoise lead --hold`. `is_broker_led`: KIP-848 and KIP-1071, where neither `assignor` nor
    `hold_ms` matters. `begin_ms`: from being given a partition to its first record. `restore_ms`:
    of KIP-1071, task with state -> how long a process that has no copy of it restores it before.
    `num_standbys`: how many processes keep a copy. `in_step`: at first all send their heartbeats
    within STEP_MS, as after a rebalance not long ago.
    """

    session_timeout_ms: int
    heartbeat_interval_ms: int = 3_000
    assignor: str = "range"
    is_static: bool = False
    hold_ms: int = 0
    is_broker_led: bool = False
    begin_ms: int = KafkaProtocol().position_ms
    restore_ms: Mapping[str, int] = attrs.field(factory=dict)
    num_standbys: int = 0
    in_step: bool = False


@attrs.frozen(order=True)
class ConsumerEvent:
    """`kind`: ``start``; ``kill``: ends without a word; ``leave``: ends, and says so."""

    at_ms: int
    kind: str
    name: str


class Readers:
    """Who reads each partition, and when nobody did."""

    def __init__(self, engine: Engine, partitions: Iterable[str]) -> None:
        self._engine = engine
        self._now: dict[str, str | None] = dict.fromkeys(partitions)
        self._since: dict[str, int] = dict.fromkeys(self._now, engine.now_ms)
        self._spans: list[tuple[str, int, int]] = []
        self._former: dict[str, str] = {}
        """Partition -> the process that read it last."""
        self._moved_ms: list[int] = []

    def owner(self, partition: str) -> str | None:
        return self._now[partition]

    def reads(self, name: str, partitions: Iterable[str]) -> None:
        for partition in partitions:
            if self._now[partition] is None:
                self._spans.append((partition, self._since[partition], self._engine.now_ms))
            self._now[partition] = name
            process = name.rpartition("#")[0]
            if is_move(self._former.get(partition), process):
                self._moved_ms.append(self._engine.now_ms)
            self._former[partition] = process

    def stops(self, name: str, partitions: Iterable[str]) -> None:
        for partition in partitions:
            if self._now[partition] == name:
                self._now[partition], self._since[partition] = None, self._engine.now_ms

    def silent_ms(self, from_ms: int, until_ms: int) -> dict[str, int]:
        open_spans = [(partition, self._since[partition], until_ms) for partition, reader in self._now.items() if reader is None]
        found = dict.fromkeys(self._now, 0)
        for partition, begin_ms, end_ms in [*self._spans, *open_spans]:
            if begin_ms >= from_ms:
                found[partition] += counted_ms(end_ms - begin_ms)
        return found

    def moves(self, from_ms: int) -> int:
        """How often a partition got another process for its reader, from then on."""
        return sum(at_ms >= from_ms for at_ms in self._moved_ms)


class SimulatedGroup(abc.ABC):
    """A process has the same name each time that it is started, and another member id. `owners`:
    partition -> process that has it at first. `idle`: processes that have nothing at first.
    """

    def __init__(self, engine: Engine, owners: Mapping[str, str], settings: ConsumerSettings, idle: Iterable[str] = ()) -> None:
        self.engine = engine
        self.settings = settings
        self.first_owners = dict(owners)
        self.partitions = sorted(owners)
        self.readers = Readers(engine, self.partitions)
        self.started = 0
        self._first_ms = engine.between(1, settings.heartbeat_interval_ms) if settings.in_step else None
        for name in sorted({*owners.values(), *idle}):
            self.start(name)

    def first_heartbeat_ms(self) -> int:
        """Returns after how long a member that is long there beats first."""
        if self._first_ms is None:
            return self.engine.between(1, self.settings.heartbeat_interval_ms)
        return self._first_ms + self.engine.between(0, STEP_MS)

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
    def described(self) -> tuple[dict[str, str], bool]:
        """Returns who has each partition, as a coordinator describes it, and whether the group is
        at rest.
        """

    def deal(self, wanted: Mapping[str, str]) -> None:
        """Deals the partitions so from now on: partition -> process."""
        self.wants(wanted)

    @abc.abstractmethod
    def wants(self, wanted: Mapping[str, str]) -> None:
        """Whoever leads deals so the next time."""

    @abc.abstractmethod
    def stop(self, name: str, *, leaves: bool) -> None:
        """A static member never says that it leaves, so that it may come back."""


@attrs.frozen
class Joined:
    """What a consumer joins with."""

    member: str
    name: str
    owned: Partitions


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
