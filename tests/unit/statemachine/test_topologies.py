"""How a member's topology differs from the group's, in words and numbers."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.decisions import EventRejected
from equipoise.events.facts import MemberJoined, Subtopology
from equipoise.statemachine.rejections import rejection_text
from equipoise.statemachine.topologies import TOPOLOGY_DIFFERS, difference, is_part_of

GROUP = Subtopology(subtopology=0, partitions=4, stateful=True, source_topics=("a", "b"), changelog_topics=("s",))


def changed(**given: Any) -> Subtopology:
    fields = {"subtopology": 0, "partitions": 4, "stateful": True, "source_topics": ("a", "b"), "changelog_topics": ("s",)}
    return Subtopology(**{**fields, **given})


CASES = [
    ((changed(source_topics=("a", "c")),), "sources_differ", (0, 4, 4), "source topics a, b in the group, and source topics a, c here"),
    ((changed(source_topics=()),), "sources_differ", (0, 4, 4), "source topics a, b in the group, and source topics none here"),
    ((changed(changelog_topics=("s", "t")),), "changelogs_differ", (0, 4, 4), "state topics s in the group, and state topics s, t here"),
    ((changed(stateful=False),), "statefulness_differs", (0, 4, 4), "with state in the group, and without state here"),
    ((changed(partitions=3),), "tasks_missing", (0, 4, 3), "4 tasks in the group, and 3 tasks here"),
    ((), "subtopologies_differ", (0, 4, 0), "exists in the group, and not here"),
    ((GROUP, changed(subtopology=1, partitions=2)), "subtopologies_differ", (1, 0, 2), "exists here, and not in the group"),
]


@pytest.mark.parametrize(("member", "code", "numbers", "text"), CASES)
def test_difference_names_the_subtopology_and_what_each_side_has(
    member: tuple[Subtopology, ...], code: str, numbers: tuple[int, int, int], text: str
) -> None:
    found = difference((GROUP,), member)
    assert found is not None
    assert (found.code, found.numbers) == (code, numbers)
    assert code in TOPOLOGY_DIFFERS
    assert found.text().startswith(f"sub-topology {numbers[0]}")
    assert found.text().endswith(text)
    fact = MemberJoined(member_id="m", incarnation=1, join_nonce="n", subtopologies=member)
    said = rejection_text(EventRejected(kind=5, code=code, member_id="m", incarnation=1, numbers=(7, *numbers)), fact)
    assert f"sub-topology {numbers[0]}" in said
    assert "epoch 7" in said


@pytest.mark.parametrize("member", [GROUP, changed(source_topics=("b", "a")), changed(partitions=9)])
def test_order_of_topics_and_more_partitions_are_no_difference(member: Subtopology) -> None:
    assert difference((GROUP,), (member,)) is None


@pytest.mark.parametrize(
    ("former", "may"),
    [
        (GROUP, True),
        (changed(source_topics=("a",)), True),
        (changed(changelog_topics=()), True),
        (changed(source_topics=("a", "c")), False),
        (changed(changelog_topics=("t",)), False),
        (changed(stateful=False), False),
    ],
)
def test_member_of_a_former_topology_runs_what_reads_and_writes_no_other_topic(former: Subtopology, may: bool) -> None:
    assert is_part_of(former, GROUP) is may
