"""Groups of the classic protocol that rebalance at this moment. `__consumer_offsets` does not have
that: their coordinator stores a generation when it is complete, and says before only that it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import groups_of
from equipoise.kafka.group_requests import DescribeGroups
from equipoise.kafka.started_clients import admin_client, reaching
from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup, classic_kind

REBALANCING = {"PreparingRebalance": "joining", "CompletingRebalance": "syncing", "AwaitingSync": "syncing"}
"""State of a classic group -> the half of its rebalance: members join, then get their work."""
_MOST_AT_ONCE = 100


@attrs.frozen(kw_only=True)
class UnderWay:
    """A rebalance that is not over. `members`: those that the coordinator has now."""

    group: str
    phase: str
    protocol_type: str
    members: Mapping[str, ClusterMember]


def under_way_of(described: tuple[Any, ...]) -> UnderWay | None:
    """Returns what a coordinator says of a group that rebalances; None: it does not."""
    _, name, state, protocol_type, _, members, *_ = described
    if state not in REBALANCING:
        return None
    found = {
        member_id: ClusterMember(member_id=member_id, instance_id=instance_id, client_id=client_id, host=host)
        for member_id, instance_id, client_id, host, *_ in members
    }
    return UnderWay(group=name, phase=REBALANCING[state], protocol_type=protocol_type, members=found)


async def rebalances_under_way(connection: Connection) -> list[UnderWay]:
    """Asks the coordinators of all groups. Groups that this user may not describe are left out, and
    all where brokers are older than Kafka 2.4. Raises InputError.
    """
    from aiokafka.errors import IncompatibleBrokerVersion

    async with admin_client(connection) as admin:
        with reaching(connection):
            found: list[UnderWay] = []
            for node in admin.nodes():
                mine = [each.name for each in await groups_of(admin, node, typed=False) if each.protocol_type]
                for begin in range(0, len(mine), _MOST_AT_ONCE):
                    try:
                        answer = await admin.ask(DescribeGroups(*mine[begin : begin + _MOST_AT_ONCE]), node)
                    except (IncompatibleBrokerVersion, NotImplementedError):
                        return []
                    found += [each for described in answer.groups if not described[0] and (each := under_way_of(described)) is not None]
    return found


def with_under_way(groups: Mapping[str, ObservedGroup], found: Iterable[UnderWay]) -> dict[str, ObservedGroup]:
    """Returns the groups as they were stored, with the rebalances that are not over. Of a group
    that rebalances for the first time nothing is stored.
    """
    known = dict(groups)
    for each in found:
        before = known.get(each.group)
        if before is None:
            kind = classic_kind(each.protocol_type, None)
            before = ObservedGroup(name=each.group, kind=kind if kind is not GroupKind.OFFSETS else GroupKind.OTHER)
        members = {name: before.members.get(name, member) for name, member in each.members.items()}
        awaited = tuple(sorted(before.members.keys() & members.keys())) if each.phase == "joining" else ()
        known[each.group] = attrs.evolve(before, members=members, under_way=each.phase, awaited=awaited)
    return known
