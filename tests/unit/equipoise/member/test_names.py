"""`Member` refuses invalid names, and facts that are too large, with the name of the field."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise import Member
from equipoise.events.errors import FieldError, InputError, TooLargeError
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings

LONGEST = "\u00e9" * 124 + "n"
"""249 bytes."""


def topology(*topics: str) -> TopologyDeclared:
    return TopologyDeclared(epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=1, stateful=False, source_topics=topics or ("in",)),))


def member(group: str = "g", member_id: str = "m1", of: TopologyDeclared | None = None, **options: Any) -> Member:
    async def handle(record: Any, context: Any) -> None: ...

    return Member(group, handle, _topology=of or topology(), member_id=member_id, **options)


def test_names_of_249_bytes_are_valid() -> None:
    made = member(LONGEST, LONGEST, topology("t" * 249), rack=LONGEST, group_config=GroupConfigured(assignor=LONGEST))
    assert (made.group, made.member_id) == (LONGEST, LONGEST)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"group": LONGEST + "n"}, "Member.group: .* has 250 bytes; a name has at most 249"),
        ({"member_id": "m" * 250}, "Member.member_id: .* has 250 bytes; a name has at most 249"),
        ({"member_id": ""}, "Member.member_id: '' is not a name; write a text of 1 to 249 bytes"),
        ({"member_id": 5}, "Member.member_id: 5 is not a name"),
        ({"member_id": "\ud800"}, "Member.member_id: .* lone surrogate"),
        ({"adopts": "g"}, "adopts: 'g' is the members' own group"),
        ({"adopts": "a" * 250}, "MemberOptions.adopts: .* has 250 bytes"),
        ({"rack": "r" * 250}, "MemberOptions.rack: .* has 250 bytes"),
        ({"of": topology("in", "t" * 250)}, "Processor.sources: .* is no name of a topic; write 1 to 249 of the characters"),
        ({"group_config": GroupConfigured(assignor="a" * 250)}, "group_config.assignor: .* has 250 bytes"),
    ],
)
def test_too_long_names_are_refused_with_their_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FieldError, match=says):
        member(**changes)


def test_topology_and_configuration_too_large_for_an_event_name_their_field() -> None:
    many = [f"{number}{'t' * 230}" for number in range(5_000)]
    with pytest.raises(TooLargeError, match=r"TopologyDeclared\.subtopologies: 11[0-9]{5} of the 11[0-9]{5} bytes of its event; an event has"):
        member(of=topology(*many))
    with pytest.raises(InputError, match=r"GroupConfigured\.knobs: [0-9]+ of the"):
        member(group_config=GroupConfigured(knobs=GroupSettings(options=dict.fromkeys(many, "v"))))
