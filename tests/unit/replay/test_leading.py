"""Who leads a group, and how equipoise could."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.replay.importers.groups.leading import could_be_led, is_beside, led_by, seats_of, stands_by
from equipoise.replay.importers.groups.observed import ALONE, ClusterMember, GroupKind, ObservedGroup
from equipoise.replay.incident import incidents
from equipoise.replay.incident.page import page_data
from tests.observed_groups import BOTH, history, member


def group(kind: GroupKind, *members: ClusterMember, **changed: Any) -> ObservedGroup:
    return ObservedGroup(name="g", kind=kind, members={each.member_id: each for each in members}, **changed)


ONE, SEAT = ClusterMember(member_id="a-1", client_id="a"), ClusterMember(member_id="s-1", client_id="equipoise-lead", rack="equipoise/1;1;-;0")


@pytest.mark.parametrize(
    ("found", "leads", "ways"),
    [
        (group(GroupKind.CLASSIC_CONSUMER, ONE, leader="a-1", protocol="range"), "a", ("seat", "brokers")),
        (group(GroupKind.CLASSIC_CONSUMER, ONE, SEAT, leader="s-1", protocol="sticky"), "equipoise", ()),
        (group(GroupKind.CLASSIC_CONSUMER, ONE, SEAT, leader="a-1", protocol="sticky"), "a", ()),
        (group(GroupKind.CLASSIC_CONSUMER, ONE, leader="a-1", protocol="mine"), "a", ()),
        (group(GroupKind.CLASSIC_CONSUMER), "", ("seat", "brokers")),
        (group(GroupKind.CONSUMER, ONE), "the broker", ("brokers",)),
        (group(GroupKind.CONSUMER, ONE, SEAT), "equipoise, in the broker", ()),
        (group(GroupKind.CLASSIC_STREAMS, ONE, leader="a-1"), "a", ("rounds",)),
        (group(GroupKind.STREAMS, ONE), "the broker", ("brokers",)),
        (group(GroupKind.CONNECT, ONE, leader="a-1"), "a", ()),
        (group(GroupKind.SHARE, ONE), "the broker", ()),
        (group(GroupKind.OTHER, ONE, leader="gone"), "", ()),
    ],
)
def test_leader_and_ways_are_told_by_what_the_coordinator_stored(found: ObservedGroup, leads: str, ways: tuple[str, ...]) -> None:
    assert (led_by(found, {}), could_be_led(found, {})) == (leads, ways)


def test_group_of_kafka_streams_is_led_by_the_processes_in_the_group_beside_it() -> None:
    led, beside = group(GroupKind.STREAMS, ONE), attrs.evolve(group(GroupKind.CONSUMER, SEAT), name="equipoise-lead.g")
    groups = {each.name: each for each in (led, beside)}
    assert (led_by(led, groups), could_be_led(led, groups), seats_of(led, groups)) == ("equipoise, in the broker", (), 1)
    assert [is_beside(each, groups) for each in (led, beside)] == [False, True]
    assert led_by(led, {**groups, beside.name: attrs.evolve(beside, members={})}) == "the broker", "no process is there any more"


def test_seat_is_no_reader() -> None:
    waiting = group(GroupKind.CLASSIC_CONSUMER, ONE, SEAT, leader="a-1")
    assert (stands_by(waiting), [*waiting.readers], [*waiting.seats], waiting.state) == (True, ["a-1"], ["s-1"], "stable")
    assert not stands_by(attrs.evolve(waiting, leader="s-1"))
    assert not stands_by(group(GroupKind.CONSUMER, ONE, SEAT))
    assert group(GroupKind.CLASSIC_CONSUMER, SEAT, leader="s-1").state == ALONE
    assert group(GroupKind.CONSUMER, SEAT).state == ALONE
    assert group(GroupKind.CONSUMER).state == "empty"


def test_page_of_an_incident_counts_readers() -> None:
    """In the round in which a seat joins."""
    joined = attrs.evolve(BOTH, epoch=2, members={**BOTH.members, "equipoise-lead-1": member("equipoise-lead")})
    found = history((0, BOTH), (100, joined))
    assert [each["members"] for each in page_data(found, incidents(found), {})["rounds"]][-1] == 2
