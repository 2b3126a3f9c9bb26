"""The search for exchanges of partitions, compared with trying every exchange: each is the best of
the member furthest behind that has one, and at the end nothing pays.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
import pytest

from equipoise.assignors.common.indexed_problem import pool_of
from equipoise.assignors.lag_aware import exchanges
from equipoise.assignors.lag_aware.dealt_topics import Topic
from equipoise.assignors.lag_aware.exchanges import Budget, Exchange, Exchanges
from equipoise.events.tasks import TaskId

LAGS = (0, 0, 1, 5, 5, 9, 20, 60, 100, 101)
SEEDS = range(150)


@attrs.frozen
class Drawn:
    """Even topics with owners, the price, and partitions of unknown lag."""

    topics: Sequence[Topic]
    owner: Mapping[TaskId, str]
    price: int
    unknown: frozenset[TaskId]

    @property
    def lags(self) -> dict[TaskId, int]:
        return {task: lag for topic in self.topics for task, lag in topic.lags.items()}

    def search(self) -> Exchanges:
        return Exchanges(self.topics, self.owner, self.unknown, self.price, Budget())

    def reads(self, name: str, task: TaskId) -> bool:
        return name in self.topics[task.subtopology].pool.members

    def is_even(self, owner: Mapping[TaskId, str]) -> bool:
        return all(topic.is_even(owner) for topic in self.topics)


def drawn(seed: int) -> Drawn:
    dice = random.Random(seed)
    names = [f"c{number}" for number in range(dice.randint(2, 4))]
    topics, owner = [], {}
    for place in range(dice.randint(1, 3)):
        readers = sorted(dice.sample(names, dice.randint(2, len(names)) if dice.random() < 0.4 else len(names)))
        lags = {TaskId(place, number): dice.choice(LAGS) for number in range(dice.randint(1, 5))}
        turns = itertools.cycle(dice.sample(readers, len(readers)))
        owner.update({task: next(turns) for task in dice.sample(sorted(lags), len(lags))})
        topics.append(Topic(dict(sorted(lags.items(), key=lambda item: (-item[1], item[0]))), pool_of(readers)))
    unknown = frozenset(dice.sample(sorted(owner), 1)) if dice.random() < 0.2 else frozenset()
    return Drawn(topics, owner, dice.choice((1, 2, 7, 10)), unknown)


def behind(group: Drawn, owner: Mapping[TaskId, str], name: str) -> int:
    return sum(lag for task, lag in group.lags.items() if owner[task] == name)


def after(owner: Mapping[TaskId, str], exchange: Exchange) -> dict[TaskId, str]:
    return {**owner, **dict(exchange.moves)}


def worth(group: Drawn, owner: Mapping[TaskId, str], exchange: Exchange) -> int:
    most = [max(behind(group, at, name) for name in (exchange.giver, exchange.taker)) for at in (owner, after(owner, exchange))]
    return most[0] - most[1] - group.price * len(exchange.moves)


def every(group: Drawn, owner: Mapping[TaskId, str]) -> Iterator[Exchange]:
    """Every exchange that is possible and pays, given by the member further behind."""
    silent = {owner[task] for task in group.unknown}
    totals = Counter(owner.values())
    names = sorted({name for topic in group.topics for name in topic.pool.members} - silent)
    for giver, taker in itertools.permutations(names, 2):
        mine, other = ([task for task, name in owner.items() if name == at] for at in (giver, taker))
        for given, taken in itertools.product(mine, [None, *other]):
            exchange = Exchange(giver, taker, given, taken)
            if not all(group.reads(name, task) for task, name in exchange.moves) or not group.is_even(after(owner, exchange)):
                continue
            if taken is None and totals[giver] <= totals[taker]:
                continue
            if behind(group, owner, giver) > behind(group, owner, taker) and worth(group, owner, exchange) >= 0:
                yield exchange


@pytest.mark.parametrize("seed", SEEDS)
def test_each_exchange_is_the_best_of_the_member_furthest_behind(seed: int):
    group = drawn(seed)
    assert group.is_even(group.owner)
    search = group.search()
    owner = dict(group.owner)
    for exchange in search.find():
        possible = list(every(group, owner))
        giver = max(behind(group, owner, each.giver) for each in possible)
        assert behind(group, owner, exchange.giver) == giver
        best = max(worth(group, owner, each) for each in possible if behind(group, owner, each.giver) == giver)
        assert worth(group, owner, exchange) == best
        as_good = [each for each in possible if (each.giver, each.taker) == (exchange.giver, exchange.taker) and worth(group, owner, each) == best]
        assert len(exchange.moves) == min(len(each.moves) for each in as_good)
        owner = after(owner, exchange)
    assert search.owner == owner
    assert search.lag == {name: behind(group, owner, name) for name in search.lag}
    assert list(every(group, owner)) == []
    assert group.is_even(owner)
    assert search.find() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_found_exchanges_are_those_that_can_be_repeated(seed: int):
    """And of all others of two members, those that pay."""
    group = drawn(seed)
    found, again = group.search().find(), group.search()
    assert all(again.repeat(exchange) for exchange in found)
    assert not any(again.repeat(exchange) for exchange in found)
    possible = set(every(group, group.owner))
    names = sorted({name for topic in group.topics for name in topic.pool.members})
    for giver, taker in itertools.product(names, [*names, "gone"]):
        for given, taken in itertools.product(group.owner, [None, *group.owner]):
            exchange, search = Exchange(giver, taker, given, taken), group.search()
            if given != taken:
                assert search.repeat(exchange) == (exchange in possible), exchange
        if len(group.owner) > 6:
            break  # one pair is enough of a large group


def found(lags: Sequence[int], held: str, price: int = 1) -> list[Exchange]:
    """Of one topic. `held`: number of each partition's owner."""
    tasks = {TaskId(0, number): lag for number, lag in enumerate(lags)}
    owner = dict(zip(tasks, (f"c{number}" for number in held), strict=True))
    topic = Topic(dict(sorted(tasks.items(), key=lambda item: (-item[1], item[0]))), pool_of(["c0", "c1"]))
    return Exchanges([topic], owner, frozenset(), price, Budget()).find()


@pytest.mark.parametrize(("lag", "moves"), [(43, (0, 3)), (45, (1,))])
def test_two_partitions_move_where_one_gains_less_by_more_than_its_price(lag: int, moves: tuple[int, ...]):
    """0_1 alone gains 45 records; 0_0 and 0_3 gain 57, or 55, and are one move more."""
    first = found([100, 45, 12, lag, 0], "00011", price=10)[0]
    assert tuple(task.partition for task, _ in first.moves) == moves


def test_equal_exchanges_are_chosen_by_topic_and_lag_and_not_by_order():
    assert found([70, 60, 20, 10], "0011")[0] == Exchange("c0", "c1", TaskId(0, 1), TaskId(0, 3))
    assert found([60, 70, 10, 20], "0011")[0] == Exchange("c0", "c1", TaskId(0, 0), TaskId(0, 2))
    assert found([50, 50, 0, 0], "0011") == [Exchange("c0", "c1", TaskId(0, 0), TaskId(0, 2))]


def test_search_ends_with_its_budget(monkeypatch: pytest.MonkeyPatch):
    group = next(each for each in map(drawn, SEEDS) if len(each.search().find()) > 2)
    counts = []
    for steps in range(0, 400, 5):
        monkeypatch.setattr(exchanges, "MOST_STEPS", steps)
        counts.append(len(group.search().find()))
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] > 2
    assert len(set(counts)) > 2
