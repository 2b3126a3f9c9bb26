"""The leader of a group of a cluster, and the ways in which equipoise could lead it."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.replay.importers.groups.observed import SEAT, GroupKind, ObservedGroup

_SEAT_PROTOCOLS = ("range", "roundrobin", "sticky", "cooperative-sticky")
WAYS = {
    GroupKind.CLASSIC_CONSUMER: ("seat", "brokers"),
    GroupKind.CONSUMER: ("brokers",),
    GroupKind.STREAMS: ("brokers",),
    GroupKind.CLASSIC_STREAMS: ("rounds",),
}
"""``seat``: of its leader; ``brokers``: by the assignor inside them, to which a classic group is
converted, for KIP-1071 from 4.4 on; ``rounds``: of Kafka Streams' own leader. Other kinds: none.
"""
IN_THE_BROKER = "equipoise, in the broker"
_BY_BROKERS = (GroupKind.CONSUMER, GroupKind.STREAMS, GroupKind.SHARE)


def seats_of(group: ObservedGroup, groups: Mapping[str, ObservedGroup]) -> int:
    """Returns how many processes of `equipoise lead` take part in the group. Those of a group of Kafka
    Streams (KIP-1071) are members of a group beside it, which is one of `groups`, by name.
    """
    beside = groups.get(f"{SEAT}.{group.name}") if group.kind is GroupKind.STREAMS else None
    return len(group.seats) + (0 if beside is None else len(beside.seats))


def is_beside(group: ObservedGroup, groups: Mapping[str, ObservedGroup]) -> bool:
    """Returns whether it has only the processes that lead another group."""
    led = groups.get(group.name.removeprefix(f"{SEAT}."))
    return led is not None and led is not group and led.kind is GroupKind.STREAMS


def led_by(group: ObservedGroup, groups: Mapping[str, ObservedGroup]) -> str:
    """The one who assigns the group's work, for people; "": nobody, or it is not known. Of brokers'
    groups in which equipoise is, equipoise leads: there only seats wish its assignor.
    """
    if not group.members:
        return ""
    if group.kind in _BY_BROKERS:
        return IN_THE_BROKER if seats_of(group, groups) else "the broker"
    leader = group.members.get(group.leader or "")
    if leader is None:
        return ""
    return "equipoise" if leader.client_id == SEAT else leader.client_id or leader.member_id


def stands_by(group: ObservedGroup) -> bool:
    """Returns whether a seat of equipoise is in a group of which it is known that another member
    leads it.
    """
    return bool(group.seats) and group.kind not in _BY_BROKERS and group.leader is not None and group.leader not in group.seats


def could_be_led(group: ObservedGroup, groups: Mapping[str, ObservedGroup]) -> tuple[str, ...]:
    """The ways of `WAYS` in which equipoise does not take part yet."""
    if seats_of(group, groups):
        return ()
    if group.kind is GroupKind.CLASSIC_CONSUMER and group.protocol and group.protocol not in _SEAT_PROTOCOLS:
        return ()
    return WAYS.get(group.kind, ())
