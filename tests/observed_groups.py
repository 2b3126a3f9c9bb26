"""Histories of groups, constructed: members, their partitions, and a commit each second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup
from equipoise.replay.incident import GroupHistory
from equipoise.replay.incident.coordinator_history import ObservedState

SECOND = 1_000


def member(name: str, *partitions: int, **settings: Any) -> ClusterMember:
    plain = ClusterMember(member_id=f"{name}-1", client_id=name, session_timeout_ms=10_000, rebalance_timeout_ms=60_000, topics=("orders",))
    return attrs.evolve(plain, active=frozenset(f"orders-{partition}" for partition in partitions), **settings)


def group(number: int, *members: ClusterMember, protocol: str = "range") -> ObservedGroup:
    return ObservedGroup(
        name="g",
        kind=GroupKind.CLASSIC_CONSUMER,
        epoch=number,
        assignment_epoch=number,
        protocol=protocol,
        members={each.member_id: each for each in members},
    )


BOTH = group(1, member("a", 0, 1), member("b", 2, 3))


def history(*states: tuple[int, ObservedGroup], stopped: Mapping[int, Sequence[tuple[int, int]]] | None = None, until_s: int = 200) -> GroupHistory:
    """`states`: second and group. `stopped`: partition -> spans (seconds) without a commit. Ten
    records a second come to each partition, and a commit has all of them.
    """
    commits = {
        f"orders-{partition}": [
            (second * SECOND, second * 10)
            for second in range(1, until_s)
            if not any(begin < second < end for begin, end in (stopped or {}).get(partition, ()))
        ]
        for partition in range(4)
    }
    return GroupHistory(
        group="g",
        states=[ObservedState(at_ms=second * SECOND, group=each) for second, each in states],
        commits=commits,
        end_times_ms=[second * SECOND for second in range(until_s)],
        ends=[{"orders": [second * 10 + 5] * 4} for second in range(until_s)],
        unread=[],
    )
