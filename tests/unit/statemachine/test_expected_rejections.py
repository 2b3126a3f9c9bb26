"""Rejections that members in order cause are told from others."""

from __future__ import annotations

import pytest

from equipoise.events.codec import kind_of
from equipoise.events.decisions import EventRejected
from equipoise.events.facts import Fact, LagReported, MemberJoined, MemberUnchanged, TopologyDeclared
from equipoise.statemachine.rejections import REJECTIONS, is_expected
from tests.groups import topology

KNOWN = {1: topology(1, stateful=2), 2: topology(2, stateful=3)}
JOIN = MemberJoined(member_id="m1", incarnation=1, join_nonce="n")


def rejected(fact: Fact, code: str) -> EventRejected:
    assert code in REJECTIONS
    return EventRejected(kind=kind_of(type(fact)), code=code, member_id=None, incarnation=None, numbers=())


@pytest.mark.parametrize(
    ("fact", "code", "expected"),
    [
        (KNOWN[2], "topology_not_newer", True),
        (KNOWN[1], "topology_not_newer", True),  # of an older build, while members are upgraded
        (topology(2, stateful=4), "topology_not_newer", False),  # another topology under a known epoch
        (topology(0, stateful=2), "topology_not_newer", False),
        (JOIN, "not_configured", True),
        (JOIN, "join_repeated", True),
        (JOIN, "incarnation_too_low", False),
        (JOIN, "margin_too_small", False),
        (LagReported("m1", 1, 5, 1, base=4), "report_base_unknown", True),
        (MemberUnchanged(member_id="m1", incarnation=1, report=4), "stale_incarnation", False),
    ],
)
def test_rejection_is_expected(fact: Fact, code: str, expected: bool) -> None:
    assert is_expected(rejected(fact, code), fact, KNOWN) is expected


def test_rejection_of_a_topology_that_nobody_knows_is_not_expected() -> None:
    assert isinstance(KNOWN[1], TopologyDeclared)
    assert not is_expected(rejected(KNOWN[1], "topology_not_newer"), KNOWN[1], {})
