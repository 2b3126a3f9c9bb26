"""Strategies for ordinary consumer groups of aiokafka (docs/adopt-aiokafka.md).

::

    consumer = AIOKafkaConsumer(
        "orders", group_id="billing", bootstrap_servers="kafka:9092",
        partition_assignment_strategy=[BalancedAssignor()],
    )

| class | deals by |
|---|---|
| `BalancedAssignor` | number of partitions |
| `LagAwareAssignor` | number, then lag (KIP-169), topic by topic |
| `LoadBalancedAssignor` | records written of late, and lag |

Of equal deals each takes the one that moves the fewest partitions. All members of a group need the
same strategy with the same settings, and each its own instance. A group that uses a stock strategy
changes one process at a time with `BalancedAssignor.in_place_of("roundrobin")`.

The member that Kafka makes the leader deals. aiokafka calls `assign` in its event loop and expects
the answer at once, so lags and loads are fetched in a thread, by separate clients, while the loop
waits for at most `timeout_s`: keep that well below the session timeout. Without them the
partitions are dealt by count alone, and a warning is logged.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, ClassVar, Self

import attrs
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from equipoise.aiokafka.group_dealing import Place, Subscriber, deal
from equipoise.assignors.high_availability import HighAvailability
from equipoise.assignors.lag_aware import LagAware
from equipoise.assignors.lag_aware.options import CROSS_TOPIC, RACK_LAG_TOLERANCE
from equipoise.assignors.load_balanced import LoadBalanced
from equipoise.events.errors import InputError
from equipoise.events.settings import GroupSettings
from equipoise.hosting.lag_fetching import LagFetcher, LoadFetcher, PartitionLags
from equipoise.kafka.aiokafka_metadata import replica_racks
from equipoise.kafka.connection import Connection

__all__ = ["BalancedAssignor", "LagAwareAssignor", "LagFetcher", "LoadBalancedAssignor", "LoadFetcher", "PartitionLags"]

_LOG = logging.getLogger(__name__)

STOCK = ("range", "roundrobin", "sticky")
"""Names of the stock strategies in whose place ours may be."""
_IN_PLACE: dict[type[Any], dict[str, type[Any]]] = {}
"""Strategy -> name of a stock one -> the class that `in_place_of` returns."""


class BalancedAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka ships no complete types
    """Every member has its share of the partitions of all topics, and the fewest of them move.

    `rack`: the consumer's `client_rack`; of equally balanced deals partitions then go to members
    near a replica. `capacity`: the share of this member, beside 1 of the others. Raises InputError
    for a capacity out of 1..1000.
    """

    name: ClassVar[str] = "equipoise-balanced"
    version: ClassVar[int] = 0
    """Version of subscriptions and assignments on the wire."""
    stock: ClassVar[str] = ""
    """The stock strategy in whose place it is."""

    def __init__(self, *, rack: str | None = None, capacity: int = 1) -> None:
        if not 1 <= capacity <= MOST_CAPACITY:
            raise InputError(f"capacity: {capacity} is not from 1 to {MOST_CAPACITY}")
        self._own = MemberData(rack=rack, capacity=capacity)
        self._dealt: dict[str, MemberData] = {}
        """What this member dealt as the leader: for members that do not say what they have."""

    @classmethod
    def in_place_of(cls, stock: str | type[AbstractPartitionAssignor]) -> type[Self]:
        """The same strategy under the protocol name of a stock one, so that members with either are
        in one group, and whichever of them is the leader deals for all. Raises InputError.
        """
        name = stock if isinstance(stock, str) else str(stock.name)
        if name not in STOCK:
            raise InputError(f"in_place_of: {name!r} is not one of {', '.join(STOCK)}, the strategies of aiokafka")
        if name not in (made := _IN_PLACE.setdefault(cls, {})):
            named = {"name": name, "stock": name, "__module__": cls.__module__, "__doc__": cls.__doc__}
            made[name] = type(f"{cls.__name__}InPlaceOf{name.title()}", (cls,), named)
        return made[name]

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """The member's metadata when it joins: topics, partitions it had, rack, capacity."""
        user_data = write_member_data(self._own, sticky=self.stock == "sticky")
        if self._own.rack:
            return RackedMetadata(sorted(topics), user_data, self._own.rack)
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), user_data)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remembers the member's partitions. A stock leader does not number its deals."""
        owned = frozenset((topic, number) for topic, numbers in assignment.assignment for number in numbers)
        self._own = MemberData(
            owned=owned, deal=max(read_deal(assignment.user_data), self._own.deal + 1), rack=self._own.rack, capacity=self._own.capacity
        )

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Member -> its partitions. Topics without metadata are left out, with a warning."""
        said = {name: read_member_data(metadata.user_data) for name, metadata in members.items()}
        had = {name: self._dealt.get(name, each) if not each.owned else each for name, each in said.items()}
        subscribers = {
            name: Subscriber(topics=tuple(metadata.subscription), rack=said[name].rack, capacity=said[name].capacity)
            for name, metadata in members.items()
        }
        partitions = _partitions(cluster, {topic for each in subscribers.values() for topic in each.topics})
        dealt = deal(
            subscribers,
            partitions,
            owners_of(had),
            replicas=_replica_racks(cluster, partitions),
            together=self.stock == "range",
            **self._by(partitions),
        )
        number = 1 + max(each.deal for each in (self._own, *had.values()))
        self._dealt = {
            name: MemberData(owned=frozenset((topic, number) for topic, of in dealt[name].items() for number in of), deal=number) for name in members
        }
        return {
            name: ConsumerProtocolMemberAssignment(self.version, [(topic, dealt[name][topic]) for topic in sorted(dealt[name])], write_deal(number))
            for name in members
        }

    def _by(self, partitions: Iterable[Place]) -> dict[str, Any]:
        """The rest of what `deal` takes: by what it deals."""
        return {"assignor": HighAvailability(), "settings": GroupSettings(rack_aware_strategy="min_cost")}


class LagAwareAssignor(BalancedAssignor):
    """By number and then by lag, each topic alone (`lag_aware`, KIP-169).

    `cross_topic`: deal all topics together (see `equipoise.assignors.lag_aware`). `rack`: the
    consumer's `client_rack`; partitions of equal or nearly equal lag (`rack_lag_tolerance`) then go
    to members near a replica. `connection`: ``host:port`` of a broker, with TLS and SASL from the
    environment, or an `equipoise.kafka.connection.Connection`. `fetcher`: replaces the
    default `LagFetcher`.
    """

    name = "equipoise-lag-aware"

    def __init__(
        self,
        *,
        group_id: str,
        connection: Connection | str,
        auto_offset_reset: str = "latest",
        cross_topic: bool = False,
        rack: str | None = None,
        rack_lag_tolerance: int = 0,
        timeout_s: float = 3.0,
        fetcher: LagFetcher | None = None,
    ) -> None:
        super().__init__(rack=rack)
        self.fetcher = fetcher or LagFetcher(group_id=group_id, connection=connection, auto_offset_reset=auto_offset_reset, timeout_s=timeout_s)
        self._settings = GroupSettings(rack_aware_strategy="min_cost", options={CROSS_TOPIC: cross_topic, RACK_LAG_TOLERANCE: rack_lag_tolerance})

    def _by(self, partitions: Iterable[Place]) -> dict[str, Any]:
        return {"assignor": LagAware(), "settings": self._settings, "lags": self.fetcher.fetch_now(partitions) or {}}


class LoadBalancedAssignor(BalancedAssignor):
    """By load: every member has its share of the records that are to be read. The load of a
    partition is what was written to it in the last `window_s`, and what the group has not read yet.
    Partitions move when a move gains more than a fifth of a share (`load_balanced`).

    `rack`, `capacity`: see `BalancedAssignor`. `connection`: see `LagAwareAssignor`. `fetcher`:
    replaces the default `LoadFetcher`.
    """

    name = "equipoise-load-balanced"

    def __init__(
        self,
        *,
        group_id: str,
        connection: Connection | str,
        auto_offset_reset: str = "latest",
        window_s: float = 300.0,
        rack: str | None = None,
        capacity: int = 1,
        timeout_s: float = 3.0,
        fetcher: LagFetcher | None = None,
    ) -> None:
        super().__init__(rack=rack, capacity=capacity)
        self.fetcher = fetcher or LoadFetcher(
            group_id=group_id, connection=connection, auto_offset_reset=auto_offset_reset, timeout_s=timeout_s, window_s=window_s
        )

    def _by(self, partitions: Iterable[Place]) -> dict[str, Any]:
        settings = GroupSettings(rack_aware_strategy="min_cost")
        return {"assignor": LoadBalanced(), "settings": settings, "loads": self.fetcher.fetch_now(partitions) or {}}


def _partitions(cluster: ClusterMetadata, topics: Iterable[str]) -> list[Place]:
    found: list[Place] = []
    for topic in sorted(topics):
        numbers = cluster.partitions_for_topic(topic)
        if numbers is None:
            _LOG.warning("no metadata for topic %s: its partitions are not assigned", topic)
            continue
        found.extend((topic, number) for number in sorted(numbers))
    return found


def _replica_racks(cluster: ClusterMetadata, partitions: Sequence[Place]) -> dict[Place, tuple[str, ...]]:
    """Partition -> racks of its replicas."""
    racks = {topic: replica_racks(cluster, topic) for topic in {topic for topic, _ in partitions}}
    return {(topic, number): racks[topic].get(number, ()) for topic, number in partitions}


# What members of a consumer group tell its leader, in the user data of their subscriptions: the
# partitions that they had, and since which deal; rack and capacity.

MOST_CAPACITY = 1_000
NO_DEAL = -1
NO_GENERATION = -1


@attrs.frozen(kw_only=True)
class MemberData:
    """`owned`: what it had. `deal`: number of the deal that gave it that; NO_DEAL: it does not say."""

    owned: frozenset[Place] = frozenset()
    deal: int = NO_DEAL
    rack: str | None = None
    capacity: int = 1


def write_member_data(said: MemberData, *, sticky: bool) -> bytes:
    """`sticky`: behind the data of the stock strategy."""
    owned: dict[str, list[int]] = {}
    for topic, number in sorted(said.owned):
        owned.setdefault(topic, []).append(number)
    known = {"capacity": said.capacity, "deal": said.deal, "owned": owned, "rack": said.rack}
    own = json.dumps(known, separators=(",", ":"), sort_keys=True).encode()
    return StickyAssignorUserDataV1(list(owned.items()), NO_GENERATION).encode() + own if sticky else own


def read_member_data(data: bytes | None) -> MemberData:
    """Returns what a member says. Of data that cannot be read, nothing: it may be another
    version's, or a stock strategy's.
    """
    if not data:
        return MemberData()
    sticky, rest = (frozenset[Place](), data) if data.startswith(b"{") else _read_sticky(data)
    try:
        known: Any = json.loads(rest or b"{}")
        owned = {(str(topic), int(number)) for topic, numbers in known.get("owned", {}).items() for number in numbers}
    except (ValueError, AttributeError, TypeError):
        return MemberData(owned=sticky)
    deal, rack, capacity = known.get("deal"), known.get("rack"), known.get("capacity")
    return MemberData(
        owned=frozenset(owned) or sticky,
        deal=deal if type(deal) is int and deal >= 0 else NO_DEAL,
        rack=rack if isinstance(rack, str) and rack else None,
        capacity=capacity if type(capacity) is int and 1 <= capacity <= MOST_CAPACITY else 1,
    )


def _read_sticky(data: bytes) -> tuple[frozenset[Place], bytes]:
    """Returns what a member had, as the stock strategy `sticky` writes it, and what follows."""
    left = BytesIO(data)
    try:
        stock = StickyAssignorUserDataV1.decode(left)
        return frozenset((topic, number) for topic, numbers in stock.previous_assignment for number in numbers), left.read()
    except (ValueError, TypeError, struct.error):
        return frozenset(), b""


def write_deal(number: int) -> bytes:
    """The user data of an assignment: which deal it is."""
    return json.dumps({"deal": number}).encode()


def read_deal(data: bytes | None) -> int:
    """Number of the deal; NO_DEAL: a stock strategy made it."""
    return read_member_data(data).deal


def owners_of(said: Mapping[str, MemberData]) -> dict[Place, str]:
    """Partition -> the member that had it. Of several that say so, the one with the newest deal;
    nobody when these are equal.
    """
    claims: dict[Place, list[tuple[int, str]]] = {}
    for name, each in said.items():
        for place in each.owned:
            claims.setdefault(place, []).append((each.deal, name))
    owners: dict[Place, str] = {}
    for place, claimed in claims.items():
        newest = max(claimed)[0]
        winners = [name for number, name in claimed if number == newest]
        if len(winners) == 1:
            owners[place] = winners[0]
    return owners


class RackedMetadata(ConsumerProtocolMemberMetadata):  # type: ignore[misc]  # aiokafka ships no complete types
    """A subscription of version 3 (KIP-881), with nothing owned: Java's leaders and `equipoise
    lead` find the rack in it.
    """

    def __init__(self, topics: list[str], user_data: bytes, rack: str) -> None:
        super().__init__(3, topics, user_data)
        self.rack = rack

    def encode(self) -> bytes:
        name = self.rack.encode()
        return bytes(super().encode()) + struct.pack(">ii", 0, NO_GENERATION) + struct.pack(">h", len(name)) + name
