"""The brokers that partitions are read from, and what each is to be asked for.

A partition is fetched while it is assigned, led by a known broker, positioned, not paused, nothing
of it is waiting to be taken, and it does not rest after an error. `ReadBrokers.count` is called
when that may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import attrs

from equipoise.kafka.client import NO_EPOCH, TopicPartition
from equipoise.kafka.consumer.batches import FetchedBatches
from equipoise.kafka.consumer.fetch_session import FetchSession
from equipoise.kafka.consumer.reading_orders import FetchOptions

REPLICA_MS = 300_000.0
"""How long a broker's advice to read from another replica holds (KIP-392)."""
NO_LEADER = -1
Leaders = Callable[[TopicPartition], tuple[int, int] | None]
"""Broker and epoch (NO_EPOCH: unknown) that lead a partition; None: none is known."""


@attrs.define(eq=False, slots=True)
class ReadBroker:
    """A broker. `wanted`: what is to be fetched from it; `changed`: of which its session may know
    something else. `found_ms`, `finds`: when it last found something, and how often it did.
    """

    id: int
    session: FetchSession = attrs.field(factory=FetchSession)
    is_asked: bool = False
    from_ms: float = 0.0
    wanted: dict[TopicPartition, ReadPartition] = attrs.field(factory=dict)
    changed: dict[TopicPartition, None] = attrs.field(factory=dict)
    behind: int = 0
    """Partitions that are wanted and known to have more."""
    untaken: int = 0
    found_ms: float = -inf
    finds: int = 0
    ahead_of: int = -1
    """`finds` when it was last asked while something was not taken."""


@attrs.define(eq=False, slots=True)
class ReadPartition:
    """`last`: number of the find that brought something last. `resting_ms`: until then nothing is
    asked for. `is_reset`: what the group has committed is not looked for any more.
    """

    place: TopicPartition
    position: int | None = None
    is_paused: bool = False
    is_reset: bool = False
    is_finding: bool = False
    leader: int = NO_LEADER
    epoch: int = NO_EPOCH
    replica: int = NO_LEADER
    replica_ms: float = 0.0
    node: ReadBroker | None = None
    end: int | None = None
    stable: int | None = None
    fetched_epoch: int = NO_EPOCH
    found: FetchedBatches | None = None
    error: Exception | None = None
    last: int = 0
    resting_ms: float = 0.0
    is_wanted: bool = False
    is_behind: bool = False
    is_untaken: bool = False


class ReadBrokers:
    """`nodes`: by id. `unled`: partitions without a leader. `resting`: those that rest."""

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        self._leaders: Leaders = lambda place: None
        self.nodes: dict[int, ReadBroker] = {}
        self.unled: dict[TopicPartition, ReadPartition] = {}
        self.resting: dict[TopicPartition, ReadPartition] = {}

    def heard(self, partitions: Iterable[ReadPartition], leaders: Leaders, now_ms: float) -> None:
        """The brokers' metadata was heard. `leaders` is asked again for partitions to come."""
        self._leaders = leaders
        for each in partitions:
            if each.replica != NO_LEADER and each.replica_ms <= now_ms:
                each.replica = NO_LEADER
            self.lead(each)

    def leave(self, each: ReadPartition) -> None:
        """The partition is read no more."""
        self._move(each, None)
        self.unled.pop(each.place, None)
        self.resting.pop(each.place, None)

    def prefer(self, each: ReadPartition, replica: int, now_ms: float) -> None:
        """Reads the partition from this broker for a while."""
        each.replica, each.replica_ms = replica, now_ms + REPLICA_MS
        self.lead(each)

    def rested(self, now_ms: float) -> float:
        """Returns when the next partition has rested; `inf`: none rests."""
        again_ms = inf
        for each in list(self.resting.values()):
            if each.resting_ms <= now_ms:
                del self.resting[each.place]
                self.count(each)
            else:
                again_ms = min(again_ms, each.resting_ms)
        return again_ms

    def lead(self, each: ReadPartition) -> None:
        """Looks which broker the partition is read from."""
        leader, epoch = self._leaders(each.place) or (NO_LEADER, NO_EPOCH)
        each.leader = leader
        if epoch != each.epoch:
            each.epoch = epoch
            self.count(each)
        if leader == NO_LEADER:
            self.unled[each.place] = each
        else:
            self.unled.pop(each.place, None)
        number = leader if each.replica == NO_LEADER else each.replica
        node = None
        if number != NO_LEADER:
            node = self.nodes.get(number)
            if node is None:
                node = self.nodes[number] = ReadBroker(number)
        self._move(each, node)

    def _move(self, each: ReadPartition, node: ReadBroker | None) -> None:
        if each.node is node:
            return
        former = each.node
        if former is not None:
            former.wanted.pop(each.place, None)
            former.changed[each.place] = None
            former.behind -= each.is_behind
            former.untaken -= each.is_untaken
        each.is_wanted = each.is_behind = each.is_untaken = False
        each.node = node
        self.count(each)

    def leave_replica(self, each: ReadPartition) -> None:
        """Reads the partition from its leader."""
        if each.replica != NO_LEADER:
            each.replica = NO_LEADER
            self.lead(each)

    def rest(self, each: ReadPartition, now_ms: float) -> None:
        """Asks for nothing of the partition for a moment."""
        each.resting_ms = now_ms + self._options.retry_ms
        self.resting[each.place] = each
        self.count(each)

    def count(self, each: ReadPartition) -> None:
        """Something of the partition has changed: its broker is to fetch it, or not any more."""
        node = each.node
        if node is None:
            return
        is_found = each.found is not None or each.error is not None
        is_wanted = not is_found and each.position is not None and not each.is_paused and each.place not in self.resting
        is_behind = is_wanted and (each.position or 0) < (self._readable_end(each) or 0)
        is_untaken = is_found and not each.is_paused
        node.changed[each.place] = None
        if is_wanted != each.is_wanted:
            each.is_wanted = is_wanted
            if is_wanted:
                node.wanted[each.place] = each
            else:
                del node.wanted[each.place]
        if is_behind != each.is_behind:
            each.is_behind = is_behind
            node.behind += 1 if is_behind else -1
        if is_untaken != each.is_untaken:
            each.is_untaken = is_untaken
            node.untaken += 1 if is_untaken else -1

    def _readable_end(self, each: ReadPartition) -> int | None:
        return each.stable if self._options.read_committed else each.end
