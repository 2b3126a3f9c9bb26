"""Deals the partitions of topics to their subscribers, by count first and then by lag (KIP-169,
"Algorithm", step 2).

::

    sort the topic's partitions by decreasing lag      equal lags: by partition     Topic
    while there are unassigned partitions
        to the member with the fewest partitions       of this topic                hand_out
        then to the one with the least lag             of this topic
        then to the first by id                        of its UTF-16 units

All members of a topic begin with nothing, so the deal consists of anonymous *bundles*, in rising
order of the members. Members with equal subscriptions may exchange bundles; `bundles` gives them so
that the fewest partitions change their owner. When no partition has an owner, bundles go by id.

The lags of two members of a topic differ by at most the widest *row*. A row is the next n
partitions for n members; its width is the lag of its first less that of its last (0 for a missing
partition). Members take a row in rising order of their lag, so a difference d becomes one between d
- width and d + width with its sign turned.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from equipoise.assignors.common.indexed_problem import IndexedProblem, Pool
from equipoise.assignors.lag_aware.bundles import Dealt, LagClass, given
from equipoise.assignors.lag_aware.dealt_topics import Topic
from equipoise.assignors.lag_aware.evening import Evening
from equipoise.assignors.lag_aware.rack_aware_bundles import given_by_racks
from equipoise.events.java_order import text_key
from equipoise.events.tasks import TaskId


@attrs.define
class DealtLoad:
    """Count and lag of what a member has been dealt so far."""

    count: int = 0
    lag: int = 0

    def add(self, lag: int) -> None:
        self.count += 1
        self.lag += lag


def topics_of(indexed: IndexedProblem, lags: Mapping[TaskId, int]) -> list[Topic]:
    """The topics in the order of their sub-topologies, without those that have no subscriber.

    Partitions that only members of a newer topology know form a topic of their own behind it.
    """
    topics: dict[tuple[int, Pool], dict[TaskId, int]] = {(task.subtopology, indexed.eligible(task)): {} for task in indexed.tasks}
    for task in sorted(indexed.tasks, key=lambda task: -lags[task]):  # tasks are in rising order, and equals stay so
        topics[task.subtopology, indexed.eligible(task)][task] = lags[task]
    return [Topic(of_topic, pool) for (_, pool), of_topic in topics.items() if pool]


def subscriptions(topics: Sequence[Topic]) -> dict[tuple[int, ...], list[str]]:
    """Indexes of topics -> the members that subscribe to exactly these, in rising order."""
    of_member: dict[str, list[int]] = {}
    for place, topic in enumerate(topics):
        for member in topic.pool.members:
            of_member.setdefault(member, []).append(place)
    by_topics: dict[tuple[int, ...], list[str]] = {}
    for member in sorted(of_member, key=text_key):
        by_topics.setdefault(tuple(of_member[member]), []).append(member)
    return dict(sorted(by_topics.items()))


# Topic by topic


def deal_topic(indexed: IndexedProblem, topic: Topic, tolerance: int = 0) -> Dealt:
    """KIP-169 for one topic, from nothing. `tolerance`: see `_lag_classes`."""
    return _given(indexed, hand_out(topic, {}, loads_of([topic], {})), [topic], _lag_classes([topic], tolerance))


def hand_out(topic: Topic, fixed: Mapping[TaskId, str], loads: Mapping[str, DealtLoad], rank: Mapping[str, int] | None = None) -> dict[TaskId, str]:
    """Partition -> member, given those that are `fixed`. `loads`: of the subscribers, `fixed`
    included; updated. `rank`: of the subscribers; among equals the lowest comes first, before the
    first by id.
    """
    rank = rank or dict.fromkeys(topic.pool.members, 0)
    owner = {task: fixed[task] for task in topic.lags if task in fixed}
    held = topic.counts(owner)
    least = [(held[name], loads[name].count, loads[name].lag, rank[name], text_key(name), name) for name in topic.pool.members]
    heapq.heapify(least)
    for task, lag in topic.lags.items():
        if task not in owner:
            count, _, _, _, key, name = least[0]
            loads[name].add(lag)
            heapq.heapreplace(least, (count + 1, loads[name].count, loads[name].lag, rank[name], key, name))
            owner[task] = name
    return owner


# All topics together


@attrs.frozen
class Row:
    """The next partitions of a topic, at most one for each of its members. `place`: index of the
    topic.
    """

    place: int
    members: Sequence[str]
    lags: Mapping[TaskId, int]

    @property
    def is_full(self) -> bool:
        return len(self.lags) == len(self.members)

    @property
    def most(self) -> int:
        return max(self.lags.values())

    @property
    def width(self) -> int:
        return self.most - (min(self.lags.values()) if self.is_full else 0)


def deal_all(indexed: IndexedProblem, topics: Sequence[Topic], tolerance: int = 0) -> Dealt:
    """Deals all topics together in rows, from nothing: full rows first, then the rest of each
    topic.

    A full row gives one partition to each subscriber, so only lag matters: the member that is
    furthest behind gets the least. The widest rows come first, and narrow ones even them out. The
    rest of a topic goes to its subscribers with the fewest partitions *of all topics*, then the
    least lag; topics with few subscribers come first, because they have the least choice.

    So members with equal subscriptions have equally many partitions of each topic and in total, to
    within one. Two members of one subscription shared by all topics differ in lag by at most the
    widest full row, plus the largest lag in the rests, plus the differences of lags within each
    rest: the (j+1)th such partition of one member comes after the j-th of the other. `tolerance`:
    see `_lag_classes`.
    """
    rank = {name: place for place, names in enumerate(subscriptions(topics).values()) for name in names}
    loads = loads_of(topics, {})
    by_name = indexed.behaviour.ties_by_name
    owner: dict[TaskId, str] = {}
    rows = [row for place, topic in enumerate(topics) for row in _rows(place, topic)]
    for row in sorted((row for row in rows if row.is_full), key=lambda row: -row.width):
        rank = _take(row, row.members, rank, loads, owner, by_name=by_name)
    for row in sorted((row for row in rows if not row.is_full), key=lambda row: (len(row.members), -row.most)):
        order = {name: (loads[name].count, loads[name].lag, rank[name], text_key(name)) for name in row.members}
        rank = _take(row, heapq.nsmallest(len(row.lags), row.members, key=order.__getitem__), rank, loads, owner, by_name=by_name)
    if not indexed.behaviour.subscriptions_apart:
        evening = Evening(topics, owner, rank)
        evening.even_out()
        owner = evening.owner
    singles = {task: _single(topics, row.place) for row in rows if len(row.lags) == 1 for task in row.lags}
    return _given(indexed, owner, topics, _lag_classes(topics, tolerance, singles))


def fill_all(indexed: IndexedProblem, topics: Sequence[Topic], fixed: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """Deals only what is not `fixed`: by the count of its topic, then by count and lag of all
    topics; then by what members have of each topic, so that names decide between equals alone.
    """
    loads = loads_of(topics, fixed)
    rank = dict.fromkeys(loads, 0) if indexed.behaviour.ties_by_name else ranks(topics, fixed)
    owner: dict[TaskId, str] = {}
    for topic in topics:
        dealt = hand_out(topic, fixed, loads, rank)
        owner.update(dealt)
        if not indexed.behaviour.ties_by_name:
            rank = _refined(rank, topic, dealt)
    return owner


def ranks(topics: Sequence[Topic], fixed: Mapping[TaskId, str]) -> dict[str, int]:
    """Member -> a rank that is the same for members with the same subscriptions and, of each topic,
    equal counts and lags.
    """
    rank = {name: place for place, names in enumerate(subscriptions(topics).values()) for name in names}
    for topic in topics:
        rank = _refined(rank, topic, fixed)
    return rank


def _refined(rank: Mapping[str, int], topic: Topic, owner: Mapping[TaskId, str]) -> dict[str, int]:
    """The rank that also tells apart members with another count or lag of this topic."""
    loads = loads_of([topic], {task: owner[task] for task in topic.lags if task in owner})
    nothing = DealtLoad()
    full = {name: (place, loads.get(name, nothing).count, loads.get(name, nothing).lag) for name, place in rank.items()}
    numbers = {each: number for number, each in enumerate(sorted(set(full.values())))}
    return {name: numbers[each] for name, each in full.items()}


def _rows(place: int, topic: Topic) -> Iterator[Row]:
    tasks = list(topic.lags)
    for start in range(0, len(tasks), len(topic.pool.members)):
        yield Row(place, topic.pool.members, {task: topic.lags[task] for task in tasks[start : start + len(topic.pool.members)]})


def _take(
    row: Row, members: Iterable[str], rank: dict[str, int], loads: Mapping[str, DealtLoad], owner: dict[TaskId, str], *, by_name: bool
) -> dict[str, int]:
    """Deals a row to as many members. Returns the rank that tells apart what they got of it, unless
    names alone decide between equals (`by_name`).
    """
    takers = sorted(members, key=lambda name: (loads[name].lag, loads[name].count, rank[name], text_key(name)))
    for (task, lag), name in zip(row.lags.items(), takers, strict=True):
        loads[name].add(lag)
        owner[task] = name
    if by_name:
        return rank
    got = dict(zip(takers, row.lags.values(), strict=True))
    full = {name: (place, got.get(name, -1)) for name, place in rank.items()}
    numbers = {each: number for number, each in enumerate(sorted(set(full.values())))}
    return {name: numbers[each] for name, each in full.items()}


def loads_of(topics: Iterable[Topic], owner: Mapping[TaskId, str]) -> dict[str, DealtLoad]:
    """Subscriber of any of the topics -> its count and lag of them. Every owner is a subscriber."""
    loads: dict[str, DealtLoad] = {}
    for topic in topics:
        for name in topic.pool.members:
            loads.setdefault(name, DealtLoad())
        for task, lag in topic.lags.items():
            if task in owner:
                loads[owner[task]].add(lag)
    return loads


def deal_nearer(indexed: IndexedProblem, topics: Sequence[Topic], tolerance: int = 0) -> Dealt:
    """Gives the bundles of even topics to other members where that lowers the rack cost; otherwise
    they stay. `tolerance`: see `_lag_classes`.
    """
    now = {task: indexed.owner[task] for topic in topics for task in topic.lags}
    near = _given(indexed, now, topics, _lag_classes(topics, tolerance))
    racks = indexed.racks
    worth = sum(racks.cost(task, name) - racks.cost(task, near.owner[task]) for task, name in now.items())
    price = sum(racks.move_cost(task) for task, name in now.items() if near.owner[task] != name)
    if worth <= price:
        return attrs.evolve(near, owner=now)
    return attrs.evolve(near, for_traffic=frozenset(task for task, name in now.items() if near.owner[task] != name))


def _lag_classes(topics: Iterable[Topic], tolerance: int = 0, singles: Mapping[TaskId, int] | None = None) -> dict[TaskId, LagClass]:
    """Partition -> its lag class. Partitions of a topic with equal lags are interchangeable; where
    racks make a difference, also those within `tolerance` of the largest lag of their class.
    `singles`: partitions that are interchangeable across topics, with the number of their class.
    """
    lag_classes: dict[TaskId, LagClass] = {}
    found = [(task, lag) for topic in topics for task, lag in topic.lags.items()]
    largest: dict[int, int] = {}
    for task, lag in sorted(found, key=lambda item: (-item[1], item[0])):
        group = (singles or {}).get(task, task.subtopology)
        if largest.get(group, lag) - lag > tolerance or group not in largest:
            largest[group] = lag
        lag_classes[task] = (group, largest[group])
    return lag_classes


def _single(topics: Sequence[Topic], place: int) -> int:
    """The single partition left of a topic is interchangeable with that of another topic with the
    same subscribers: both topics are even either way.
    """
    return -1 - next(index for index, topic in enumerate(topics) if topic.pool.members == topics[place].pool.members)


def _given(indexed: IndexedProblem, owner: Mapping[TaskId, str], topics: Sequence[Topic], lag_classes: Mapping[TaskId, LagClass]) -> Dealt:
    """The same bundles, given among members with equal subscriptions at the least rack cost, where
    racks make a difference, and then so that the fewest partitions move.
    """
    bundles: dict[str, list[TaskId]] = {}
    for task, name in owner.items():
        bundles.setdefault(name, []).append(task)
    groups = [{name: bundles.get(name, []) for name in members} for members in subscriptions(topics).values()]
    dealt = [given_by_racks(indexed, group, lag_classes) if indexed.racks.counts else given(group, lag_classes, indexed.owner) for group in groups]
    return Dealt(
        {task: name for part in dealt for task, name in part.owner.items()},
        all(part.unique for part in dealt),
        sum(part.rack_cost_lower_bound for part in dealt),
    )
