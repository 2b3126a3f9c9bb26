"""What members of a consumer group tell its leader, in the user data of their subscriptions: the
partitions that they had, and since which deal; rack and capacity.

It is JSON. In the place of the strategy `sticky` it follows that strategy's own data, which a
leader with the stock strategy reads; nobody else's data is in the way of a leader that does not
know it. aiokafka passes on topics and user data alone, so the rack is there, too, and not only in
version 3 of the subscription, which other leaders read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import attrs
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from equipoise.aiokafka.group_dealing import Place

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
