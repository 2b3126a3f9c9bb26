"""The leader of a group of a cluster, and the ways in which equipoise could lead it."""

from __future__ import annotations

from equipoise.replay.importers.groups.observed import GroupKind, ObservedGroup

_PLAN = "equipoise/"
"""Begins the rack id of members that carry plans (`equipoise.lead.broker_seat.broker_plan`)."""
_SEAT = "equipoise-lead"
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


def led_by(group: ObservedGroup) -> str:
    """The one who assigns the group's work, for people; "": nobody, or it is not known."""
    if not group.members:
        return ""
    if group.kind in (GroupKind.CONSUMER, GroupKind.STREAMS, GroupKind.SHARE):
        carried = any((member.rack or "").startswith(_PLAN) for member in group.members.values())
        return "equipoise, in the broker" if carried else "the broker"
    leader = group.members.get(group.leader or "")
    if leader is None:
        return ""
    return "equipoise" if leader.client_id == _SEAT else leader.client_id or leader.member_id


def could_be_led(group: ObservedGroup) -> tuple[str, ...]:
    """The ways of `WAYS` for this group."""
    ways = WAYS.get(group.kind, ())
    if group.kind is GroupKind.CLASSIC_CONSUMER and group.protocol and group.protocol not in _SEAT_PROTOCOLS:
        return ()
    return ways
