"""Judges whether a broker takes a classic consumer group over to the new protocol (KIP-848), by the
conditions that it checks itself (``GroupMetadataManager.validateOnlineUpgrade`` and
``ConsumerGroup.fromClassicGroup`` of Apache Kafka 4.0 to 4.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs

from equipoise.lead.migrating.clients import UNKNOWN, ClassicClient
from equipoise.replay.wording import counted

POLICY, SIZE, ASSIGNORS, PROTOCOLS = (
    "group.consumer.migration.policy",
    "group.consumer.max.size",
    "group.consumer.assignors",
    "group.coordinator.rebalance.protocols",
)
Takes = Literal["yes", "no", "unknown", "taken over", "new protocol", "not for it"]
"""Of a group: the broker takes it over; it does not; not known now; it has, and clients of the old
protocol are in it; every client uses the new one; it is no group of consumers.
"""
_AT_REST, _EMPTY = "Stable", "Empty"
WITH_USER_DATA = "cooperative-sticky"
"""Where librdkafka leads with it, the next assignment has the user data of the subscriptions."""


@attrs.frozen(kw_only=True)
class CoordinatorSettings:
    """Settings of a group's coordinator; None: the user may not read it. `knows`: whether it
    serves groups of KIP-848 at all.
    """

    node_id: int
    knows: bool
    policy: str | None = None
    max_size: int | None = None
    assignors: str | None = None
    heartbeat_interval_ms: int = 5_000


@attrs.frozen(kw_only=True)
class MigratedGroup:
    """A group, as ListGroups and DescribeGroups show it. `protocol`: its assignment strategy."""

    name: str
    state: str
    protocol_type: str
    protocol: str = ""
    clients: tuple[ClassicClient, ...] = ()


@attrs.frozen(kw_only=True)
class TakeoverVerdict:
    """`why`: one line; `to_do`: what makes it possible, or what comes next; "": nothing."""

    takes: Takes
    why: str
    to_do: str = ""


def verdict_of(group: MigratedGroup, coordinator: CoordinatorSettings) -> TakeoverVerdict:
    """Judges a classic group."""
    if group.protocol_type not in ("", "consumer"):
        return TakeoverVerdict(takes="not for it", why=f"its members are no consumers: their protocol type is {group.protocol_type!r}")
    if not coordinator.knows:
        return TakeoverVerdict(
            takes="no",
            why=f"broker {coordinator.node_id} serves no groups of KIP-848",
            to_do=f"brokers of 4.0 or later, with the feature group.version=1, and `consumer` in {PROTOCOLS} where that is set",
        )
    if group.state == _EMPTY:
        return TakeoverVerdict(takes="yes", why="it has no clients: the first one decides", to_do="start clients with group.protocol=consumer")
    if coordinator.policy is not None and coordinator.policy.lower() not in ("upgrade", "bidirectional"):
        return TakeoverVerdict(
            takes="no",
            why=f"{POLICY} of broker {coordinator.node_id} is {coordinator.policy}",
            to_do=f"set {POLICY}=bidirectional on every broker, and restart the brokers one by one",
        )
    if coordinator.max_size is not None and len(group.clients) > coordinator.max_size:
        return TakeoverVerdict(
            takes="no",
            why=f"it has {counted(len(group.clients), 'client')}, and {SIZE} of broker {coordinator.node_id} is {coordinator.max_size}",
            to_do=f"raise {SIZE} on every broker",
        )
    if group.state != _AT_REST:
        why = f"it rebalances ({group.state}), and the broker shows no bytes of its clients"
        return TakeoverVerdict(takes="unknown", why=why, to_do="ask again when it is at rest")
    broken = [each for each in group.clients if each.problem]
    if broken:
        return TakeoverVerdict(
            takes="no",
            why=f"what {broken[0].client_id or broken[0].member_id} says is not that of a consumer: {broken[0].problem}",
            to_do="see what this client is, and take it out of the group" if broken[0].library == UNKNOWN else _MALFORMED,
        )
    given = [each for each in group.clients if each.given]
    if given:
        return TakeoverVerdict(takes="no", why=_user_data(group, given), to_do=_WITHOUT_USER_DATA)
    return _taken(group, coordinator)


_MALFORMED = "a broker takes over no group with this client: have another one, or another release, in its place"
_WITHOUT_USER_DATA = (
    "have one assignment without user data made: `equipoise lead --evict` leads it as it is (docs/seat.md), and beside it"
    " `equipoise migrate --apply` takes it over; or start all clients again with another strategy, or with group.protocol=consumer"
)


def _user_data(group: MigratedGroup, given: Sequence[ClassicClient]) -> str:
    known = group.protocol in (WITH_USER_DATA, "sticky")
    who = ", as librdkafka does with cooperative-sticky, and sarama with sticky" if known else ": to the broker that is an assignor of your own"
    return f"its leader has put user data into {counted(len(given), 'assignment')} of {len(group.clients)}{who}, which would be lost"


def _taken(group: MigratedGroup, coordinator: CoordinatorSettings) -> TakeoverVerdict:
    remarks = []
    if coordinator.policy is None:
        remarks.append(f"if {POLICY} is upgrade or bidirectional, as it is by default: the user may not read it")
    elif coordinator.policy.lower() == "upgrade":
        remarks.append(f"there is no way back: {POLICY} is upgrade")
    if group.protocol == WITH_USER_DATA and any(each.library == "librdkafka" for each in group.clients):
        remarks.append("only until its next rebalance: then librdkafka puts user data into the assignments")
    static = sum(each.instance_id is not None for each in group.clients)
    if static:
        remarks.append(f"{counted(static, 'static member')} with the same ids")
    why = "; ".join(["each client joins again by itself, and keeps what it has", *remarks])
    return TakeoverVerdict(takes="yes", why=why, to_do=f"equipoise migrate --group {group.name} --apply")
