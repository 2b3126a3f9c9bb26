"""Smaller networks with the same cheapest flows, so that the solver sees fewer nodes than tasks.

*Contraction*, of sources with one arc or two. Before: 0_0 may go to m1 at 1 or to the pool at 3.
After: m1 has one unit more, and an arc to the pool for one unit at 2. If that unit goes on to the
pool, 0_0 does.

*Aggregation*, of equivalent sources: one node for each *kind* of task. Before: 0_0 and 0_1 may each
go to the pool at 3, to m1 at 1 or to m2 at 2. After: one node with a supply of 2, and arcs for up
to 2. In the result the first task takes the flow on the first arc, and so on; which task takes
which makes no difference to any cost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

LEAST_SAVED = 2
"""Sources per kind below which aggregation does not pay."""


def mixed(values: Hashes, salt: int) -> Hashes:
    """splitmix64 (Steele, Lea, Flood 2014): spreads `values`, differently for each salt."""
    z = values + np.uint64((0x9E3779B97F4A7C15 * (salt + 1)) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class ContractedNetwork:
    """A network without those sources of one unit that have no incoming arcs, and one outgoing arc
    or two to different nodes.
    """

    def __init__(self, supply: Ints, tail: Ints, head: Ints, capacity: Ints, cost: Ints) -> None:
        single = supply == 1
        single[head] = False
        ours = np.flatnonzero(single[tail])
        ours = ours[np.argsort(tail[ours], kind="stable")]
        degree = np.bincount(tail, minlength=len(supply))[tail[ours]]
        only = ours[degree == 1]
        first, second = ours[degree == 2].reshape(-1, 2).T
        different = head[first] != head[second]
        self._only, self._first, self._second = only, first[different], second[different]
        contracted = np.concatenate((only, self._first))
        left = np.ones(len(tail), dtype=np.bool_)
        left[contracted] = left[self._second] = False
        self._left = np.flatnonzero(left)
        self.supply = supply.copy()
        self.supply[tail[contracted]] = 0
        np.add.at(self.supply, head[contracted], 1)
        self.tail = np.concatenate((tail[self._left], head[self._first]))
        self.head = np.concatenate((head[self._left], head[self._second]))
        self.capacity = np.concatenate((capacity[self._left], np.ones_like(self._first)))
        self.cost = np.concatenate((cost[self._left], cost[self._second] - cost[self._first]))

    def expanded(self, amount: Ints) -> Ints:
        """The flow on the arcs of the original network."""
        left, onward = np.split(amount, [len(self._left)])
        whole = np.ones(len(self._only) + len(left) + 2 * len(onward), dtype=np.int64)
        whole[self._left], whole[self._first], whole[self._second] = left, 1 - onward, onward
        return whole


class AggregatedNetwork:
    """A network in which sources of one unit, without incoming arcs, and with the same arcs in the
    same order at the same costs, are one source.
    """

    def __init__(self, supply: Ints, tail: Ints, head: Ints, capacity: Ints, cost: Ints) -> None:
        self.supply, self.tail, self.head, self.capacity, self.cost = supply, tail, head, capacity, cost
        self._kept: Ints | None = None
        """Arcs that the solver sees; None: all of them."""
        single = supply == 1
        single[head] = False
        ours = np.flatnonzero(single[tail])
        ours = ours[np.argsort(tail[ours], kind="stable")]
        if not ours.size:
            return
        source, degree = np.unique(tail[ours], return_counts=True)
        first = np.cumsum(degree) - degree
        place = np.arange(len(ours)) - np.repeat(first, degree)  # among the arcs of its source
        looks = mixed(head[ours].astype(np.uint64) ^ mixed(cost[ours].astype(np.uint64) ^ mixed(place.astype(np.uint64), 2), 1), 0)
        _, example, kind, size = np.unique(np.add.reduceat(looks, first), return_index=True, return_inverse=True, return_counts=True)
        if len(size) * LEAST_SAVED > len(source):
            return
        if (degree != degree[example[kind]]).any():
            return  # two kinds with one hash: never seen
        like = np.repeat(first[example[kind]], degree) + place  # the same arc of the kind's example
        if (head[ours] != head[ours[like]]).any() or (cost[ours] != cost[ours[like]]).any():
            return
        self._ours, self._like, self._place = ours, like, place
        self._first_of_kind = np.repeat(first[example[kind]], degree)
        turn = np.empty_like(kind)  # of each source among those of its kind
        by_kind = np.argsort(kind, kind="stable")
        turn[by_kind] = np.arange(len(kind)) - np.repeat(np.cumsum(size) - size, size)
        self._turn = np.repeat(turn, degree)
        aggregated = np.ones(len(tail), dtype=np.bool_)
        aggregated[ours] = False
        aggregated[ours[like]] = True
        self._kept = np.flatnonzero(aggregated)
        self.supply = supply.copy()
        self.supply[source] = 0
        self.supply[source[example]] = size
        many = capacity.copy()
        many[ours] = np.repeat(size[kind], degree)
        self.tail, self.head, self.capacity, self.cost = tail[self._kept], head[self._kept], many[self._kept], cost[self._kept]
        self._arcs = len(tail)

    def disaggregated(self, amount: Ints) -> Ints:
        """The flow on the arcs of the original network."""
        if self._kept is None:
            return amount
        whole = np.zeros(self._arcs, dtype=np.int64)
        whole[self._kept] = amount
        shared = whole[self._ours]
        before = np.cumsum(shared) - shared
        begins = before[self._like] - before[self._first_of_kind]
        whole[self._ours] = (self._turn >= begins) & (self._turn < begins + shared[self._like])
        return whole
