"""When a member's rack and tags contradict each other, and which warning says so."""

from __future__ import annotations

import pytest

from equipoise.events.decisions import Decision, MemberWarned
from equipoise.statemachine.rack_warnings import warn_of_racks
from tests.groups import Group, configured, joined
from tests.unit.statemachine.contexts import context_of


def warnings(rack_aware_tags: tuple[str, ...], rack: str | None, tags: dict[str, str]) -> list[Decision]:
    """The warnings about a member that joins with this rack and these tags."""
    group = Group(watched=False)
    group.fact(configured(rack_aware_tags=rack_aware_tags))
    group.fact(joined("m1", 4, rack=rack, tags=tags))
    context = context_of(group)
    warn_of_racks(context, group.state.members["m1"])
    return context.emitted


@pytest.mark.parametrize(
    ("rack_aware_tags", "rack", "tags"),
    [
        ((), "a", {"rack": "b"}),
        (("rack",), None, {"rack": "b"}),
        (("rack",), None, {}),
        (("rack",), "a", {"rack": "a"}),
        (("zone", "rack"), "a", {"rack": "a", "zone": "b"}),
        (("zone",), None, {"zone": "b"}),
    ],
)
def test_rack_that_agrees_with_the_tags_or_is_not_asked_for_gives_no_warning(
    rack_aware_tags: tuple[str, ...], rack: str | None, tags: dict[str, str]
) -> None:
    assert warnings(rack_aware_tags, rack, tags) == []


@pytest.mark.parametrize(
    ("rack_aware_tags", "tags", "code", "tag"),
    [
        (("zone",), {"zone": "a", "rack": "a"}, "rack_not_in_tags", "a"),
        (("zone",), {}, "rack_not_in_tags", None),
        (("rack",), {"zone": "a"}, "rack_tag_missing", None),
        (("zone", "rack"), {"rack": "b"}, "rack_tag_differs", "b"),
    ],
)
def test_rack_that_contradicts_the_tags_gives_a_warning(rack_aware_tags: tuple[str, ...], tags: dict[str, str], code: str, tag: str | None) -> None:
    assert warnings(rack_aware_tags, "a", tags) == [MemberWarned(member_id="m1", incarnation=4, code=code, said="a", tag=tag)]
