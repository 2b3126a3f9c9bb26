"""Which groups are told what a look at topics has found."""

from __future__ import annotations

import gc

import pytest

from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from equipoise.worker.observer import TopicNews
from tests.groups import Group, configured, topology


def lead(*facts: object) -> GroupLead:
    group = Group()
    for fact in (configured(), *facts):
        group.fact(fact)  # type: ignore[arg-type]  # facts, as the callers give them
    return GroupLead("orders", group.machine)


def look(news: TopicNews, **ends: int) -> None:
    news.found(ends, {topic: {0: end} for topic, end in ends.items()}, {}, frozenset())


def is_told(news: TopicNews, group: GroupLead, *topics: str) -> bool:
    return news.is_known(group, news.of(group, topics))


def test_group_is_told_once_and_again_when_one_of_its_topics_changes() -> None:
    news, group = TopicNews(), lead()
    look(news, orders=5, other=1)
    assert not is_told(news, group, "orders")
    news.told(group, news.of(group, ["orders"]))
    assert is_told(news, group, "orders")
    look(news, orders=5, other=2)
    assert is_told(news, group, "orders")
    look(news, orders=6, other=2)
    assert not is_told(news, group, "orders")


def test_change_that_another_group_was_told_is_still_new_to_the_others() -> None:
    """Between two looks at all groups there are looks for those that wait for lags."""
    news, one, other = TopicNews(), lead(), lead()
    look(news, orders=5)
    for group in (one, other):
        news.told(group, news.of(group, ["orders"]))
    look(news, orders=9)
    news.told(one, news.of(one, ["orders"]))
    look(news, orders=9)
    assert is_told(news, one, "orders")
    assert not is_told(news, other, "orders")


@pytest.mark.parametrize("what", ["gone", "racks", "unseen"])
def test_topic_that_is_gone_or_moves_or_may_not_be_read_is_new(what: str) -> None:
    news, group = TopicNews(), lead()
    look(news, orders=5)
    news.told(group, news.of(group, ["orders"]))
    ends, racks = {"orders": {0: 5}}, {"orders": {0: ("r1",)}}
    news.found(["orders"], {} if what == "gone" else ends, racks if what == "racks" else {}, {"orders"} if what == "unseen" else frozenset())
    assert not is_told(news, group, "orders")


def test_topology_that_comes_while_the_group_is_told_is_new() -> None:
    news, group = TopicNews(), lead(topology(1, stateless=2))
    look(news, **{"in": 5})
    before = news.of(group, ["in"])
    later = lead(topology(1, stateless=2), topology(2, stateless=3))
    group.machine = later.machine
    news.told(group, before)
    assert not is_told(news, group, "in")


def test_group_that_is_taken_over_again_is_told_and_the_former_one_is_let_go() -> None:
    news, group = TopicNews(), GroupLead("orders", GroupMachine())
    look(news, orders=5)
    news.told(group, news.of(group, ["orders"]))
    assert not is_told(news, GroupLead("orders", GroupMachine()), "orders")
    del group
    gc.collect()
    assert len(news._told) == 0
