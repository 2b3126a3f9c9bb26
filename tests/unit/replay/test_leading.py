"""Who leads a group, and how equipoise could."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.replay.importers.groups.leading import could_be_led, led_by
from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup


def group(kind: GroupKind, *members: ClusterMember, **changed: Any) -> ObservedGroup:
    return ObservedGroup(name="g", kind=kind, members={each.member_id: each for each in members}, **changed)


ONE, SEAT = ClusterMember(member_id="a-1", client_id="a"), ClusterMember(member_id="s-1", client_id="equipoise-lead", rack="equipoise/1;1;-;0")


@pytest.mark.parametrize(
    ("found", "leads", "ways"),
    [
        (group(GroupKind.CLASSIC_CONSUMER, ONE, leader="a-1", protocol="range"), "a", ("seat", "brokers")),
        (group(GroupKind.CLASSIC_CONSUMER, ONE, SEAT, leader="s-1", protocol="sticky"), "equipoise", ("seat", "brokers")),
        (group(GroupKind.CLASSIC_CONSUMER, ONE, leader="a-1", protocol="mine"), "a", ()),
        (group(GroupKind.CLASSIC_CONSUMER), "", ("seat", "brokers")),
        (group(GroupKind.CONSUMER, ONE), "the broker", ("brokers",)),
        (group(GroupKind.CONSUMER, ONE, SEAT), "equipoise, in the broker", ("brokers",)),
        (group(GroupKind.CLASSIC_STREAMS, ONE, leader="a-1"), "a", ("rounds",)),
        (group(GroupKind.STREAMS, ONE), "the broker", ("brokers",)),
        (group(GroupKind.CONNECT, ONE, leader="a-1"), "a", ()),
        (group(GroupKind.SHARE, ONE), "the broker", ()),
        (group(GroupKind.OTHER, ONE, leader="gone"), "", ()),
    ],
)
def test_leader_and_ways_are_told_by_what_the_coordinator_stored(found: ObservedGroup, leads: str, ways: tuple[str, ...]) -> None:
    assert (led_by(found), could_be_led(found)) == (leads, ways)
