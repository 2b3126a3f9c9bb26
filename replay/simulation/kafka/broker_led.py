"""Simulated groups that the broker leads: consumers of KIP-848, and Kafka Streams of KIP-1071, with
tasks in place of partitions, and with their state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.kafka.consumers import ConsumerSettings, Joined, Partitions, SimulatedGroup, assign


class BrokerLedGroup(SimulatedGroup):
    """KIP-848 and KIP-1071: the broker computes a target, and each member learns of its part with
    its next heartbeat, gives up what it has to, and is given what is free. A task goes to a process
    that keeps a copy, if its own is gone; one that is moved to a process that began is restored
    there (Kafka 4.3: ``StickyTaskAssignor`` of the coordinator, which knows no warm-ups).
    """

    def __init__(self, engine: Engine, owners: Mapping[str, str], settings: ConsumerSettings, idle: Iterable[str] = ()) -> None:
        self._owned: dict[str, Partitions] = {}
        self._process: dict[str, str] = {}
        self._alive: dict[str, str] = {}
        """Process -> its member, while it is alive."""
        self._known: dict[str, str] = {}
        """The same for the broker."""
        self._heard_ms: dict[str, int] = {}
        self._target: dict[str, Partitions] = {}
        self._copies: dict[str, dict[str, int]] = {}
        """Task -> process that keeps a copy of its state -> when the copy is complete, ms."""
        self._promoted: dict[tuple[str, str], int] = dict.fromkeys(owners.items(), engine.now_ms)
        """Task and process that got it and had a copy -> when that one is complete, ms."""
        self._dealt_ms: int | None = None
        super().__init__(engine, owners, settings, idle)
        self._target = {member: frozenset(key for key, owner in owners.items() if owner == self._process[member]) for member in self._owned}
        self._place_copies(ready_ms=engine.now_ms)

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
        self.engine.after(self.first_heartbeat_ms() if is_first else 0, self._heartbeat, member)

    def stop(self, name: str, *, leaves: bool) -> None:
        member = self._alive.pop(name, None)
        if member is None:
            return
        self.readers.stops(member, self._owned[member])
        if leaves:
            self._remove(member)
        else:
            self.engine.at(self._heard_ms[member] + self.settings.session_timeout_ms, self._expire, member)

    def described(self) -> tuple[dict[str, str], bool]:
        has = {key: self._process[member] for member, mine in self._owned.items() for key in mine}
        is_answered = self._dealt_ms is None or all(self._heard_ms[member] > self._dealt_ms for member in self._owned)
        return has, is_answered and all(self._target.get(member, frozenset()) == mine for member, mine in self._owned.items())

    def wants(self, wanted: Mapping[str, str]) -> None:
        self._target = {member: frozenset(key for key, to in wanted.items() if to == self._process[member]) for member in self._owned}
        self._dealt_ms = self.engine.now_ms

    def _expire(self, member: str) -> None:
        if member in self._owned and self._heard_ms[member] + self.settings.session_timeout_ms <= self.engine.now_ms:
            self._remove(member)

    def _remove(self, member: str) -> None:
        self._owned.pop(member, None)
        if self._known.get(self._process[member]) == member:
            del self._known[self._process[member]]
        self._compute()

    def _compute(self) -> None:
        if not self._target or not self._owned:
            return
        kept = {member: self._target.get(member, frozenset()) for member in self._owned}
        free = frozenset(self.partitions).difference(*kept.values())
        joined = [
            Joined(member, self._process[member], mine | {key for key in free if self._process[member] in self._copies.get(key, ())})
            for member, mine in kept.items()
        ]
        self._target = assign("sticky", joined, self.partitions)
        self._place_copies()

    def _place_copies(self, ready_ms: int | None = None) -> None:
        """Deals copies of what has state to processes that have fewest, none to a task's owner.
        `ready_ms`: when new ones are complete; None: when they are restored.
        """
        owners = {key: self._process[member] for member, mine in self._target.items() for key in mine}
        there = sorted({self._process[member] for member in self._owned})
        counts = Counter(name for holders in self._copies.values() for name in holders)
        for key, takes_ms in sorted(self.settings.restore_ms.items()):
            former = self._copies.get(key, {})
            if (owner := owners.get(key)) in former:
                self._promoted[key, owner] = former[owner]
            ready = self.engine.now_ms + takes_ms if ready_ms is None else ready_ms
            others = sorted((name for name in there if name != owner), key=lambda name: (name not in former, counts[name]))
            self._copies[key] = {name: former.get(name, ready) for name in others[: self.settings.num_standbys]}
            counts.update(self._copies[key].keys() - former.keys())

    def _heartbeat(self, member: str) -> None:
        if self._alive.get(self._process[member]) != member:
            return
        self._heard_ms[member] = self.engine.now_ms
        target = self._target.get(member, frozenset())
        kept = self._owned[member] & target
        self.readers.stops(member, self._owned[member] - kept)
        others = frozenset().union(*(owned for name, owned in self._owned.items() if name != member))
        self._owned[member] = kept | (target - others)
        for key in sorted(self._owned[member] - kept):
            self.engine.after(self.settings.begin_ms + self._left_to_restore_ms(member, key), self._begin, member, frozenset({key}))
        self.engine.after(self.settings.heartbeat_interval_ms, self._heartbeat, member)

    def _left_to_restore_ms(self, member: str, key: str) -> int:
        takes_ms = self.settings.restore_ms.get(key, 0)
        ready_ms = self._promoted.pop((key, self._process[member]), self.engine.now_ms + takes_ms)
        return max(0, ready_ms - self.engine.now_ms)

    def _begin(self, member: str, partitions: Partitions) -> None:
        if self._alive.get(self._process[member]) == member:
            self.readers.reads(member, partitions & self._owned.get(member, frozenset()))
