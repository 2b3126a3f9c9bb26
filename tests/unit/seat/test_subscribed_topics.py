"""Partitions as tasks, and subscriptions as topologies."""

from __future__ import annotations

from equipoise.events.tasks import TaskId
from equipoise.lead.seat.subscribed_topics import Arrangement, arrange

IN, OTHER = ("in",), ("other",)
BOTH = ("in", "other")


def remembered(topics: Arrangement) -> dict[int, object]:
    return {each.epoch: each for each in topics.declared}


def test_arrange_range_puts_equal_partition_numbers_together() -> None:
    topics = arrange([BOTH, BOTH], {"in": 4, "other": 4}, "range", {})
    assert [part.source_topics for part in topics.declared[-1].subtopologies] == [BOTH]
    assert topics.partitions([TaskId(0, 2)]) == {"in": [2], "other": [2]}


def test_arrange_range_with_different_counts_or_subscribers_keeps_topics_apart() -> None:
    assert len(arrange([BOTH], {"in": 4, "other": 5}, "range", {}).declared[-1].subtopologies) == 2
    assert len(arrange([BOTH, IN], {"in": 4, "other": 4}, "range", {}).declared[-1].subtopologies) == 2


def test_arrange_other_protocols_deal_each_topic_alone() -> None:
    assert len(arrange([BOTH], {"in": 4, "other": 4}, "cooperative-sticky", {}).declared[-1].subtopologies) == 2


def test_arrange_unequal_subscriptions_have_topologies_of_their_own() -> None:
    topics = arrange([BOTH, IN], {"in": 2, "other": 3}, "roundrobin", {})
    assert [[part.source_topics for part in each.subtopologies] for each in topics.declared] == [[IN], [IN, OTHER]]
    assert topics.epochs == {IN: 1, BOTH: 2}


def test_arrange_what_is_known_is_not_declared_again() -> None:
    known = remembered(arrange([BOTH, IN], {"in": 2, "other": 3}, "roundrobin", {}))
    again = arrange([IN, BOTH], {"in": 2, "other": 3}, "roundrobin", known)  # type: ignore[arg-type]
    assert again.declared == ()
    assert again.epochs == {IN: 1, BOTH: 2}


def test_arrange_grown_topic_keeps_its_number() -> None:
    known = remembered(arrange([BOTH], {"in": 2, "other": 3}, "roundrobin", {}))
    grown = arrange([BOTH], {"in": 6, "other": 3}, "roundrobin", known)  # type: ignore[arg-type]
    assert [(part.subtopology, part.partitions) for part in grown.declared[-1].subtopologies] == [(0, 6), (1, 3)]
    assert grown.epochs == {BOTH: 2}


def test_arrange_former_topology_as_the_newest_is_declared_again() -> None:
    """The newest topology says which tasks there are, so one that was replaced counts no more."""
    first = remembered(arrange([IN], {"in": 2}, "range", {}))
    second = {**first, **remembered(arrange([OTHER], {"other": 2}, "range", first))}  # type: ignore[arg-type]
    third = arrange([IN], {"in": 2}, "range", second)  # type: ignore[arg-type]
    assert [(each.epoch, each.subtopologies[0].source_topics) for each in third.declared] == [(3, IN)]
    assert third.declared[0].subtopologies[0].subtopology == 0


def test_arrange_topic_that_does_not_exist_is_left_out() -> None:
    topics = arrange([BOTH], {"in": 2}, "range", {})
    assert topics.epochs == {IN: 1}
    assert arrange([OTHER], {}, "range", {}).declared == ()


def test_tasks_need_all_partitions_that_go_together() -> None:
    topics = arrange([BOTH], {"in": 4, "other": 4}, "range", {})
    assert topics.tasks([("in", 1), ("other", 1), ("in", 2), ("gone", 0), ("other", 9)]) == (TaskId(0, 1),)
