"""The transportation problem: minimum-cost flow with lexicographic costs, a proof, and a fair
tie-break.

OR-Tools' SimpleMinCostFlow solves it. This module adds:

* **Costs in order of importance.** Each level outweighs all later ones. Levels are scaled into one
  int64 cost as long as they fit. The rest is solved afterwards on the *optimal face*: with the
  potentials of the first solve, an arc with a positive reduced cost stays empty and one with a
  negative reduced cost stays full in every optimum, so only arcs of reduced cost zero remain free.
* **A proof.** Potentials are computed here, not taken from the solver: shortest distances in the
  residual network exist only if it has no negative cycle, and then the flow is optimal (Ahuja,
  Magnanti, Orlin, "Network Flows", theorem 9.1). Integers throughout, so the proof is exact.
* **Ties.** A cycle of cost zero in the residual network is another optimum. Then arcs get a small
  cost from a stable hash of their ends. If a zero cycle remains, the next salt is tried, REDRAWS
  times at most; then `unique` is False.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable

import attrs
import numpy as np
import ortools

from equipoise.assignors.common.node_aggregation import AggregatedNetwork, ContractedNetwork, Flags, Hashes, Ints, mixed
from equipoise.events.errors import EquipoiseError

SOLVER = f"ortools-{ortools.__version__}"
FIRST_SALT = 1  # any would do; with this one the first scenario of docs/scenarios.md has the outcome that it was written down with
REDRAWS = 3
TIE_BITS = 30  # with 100,000 arcs two that compete draw the same number once in some ten thousand solves


class SolverFailure(EquipoiseError):
    """The solver found no optimum for a problem that has one: never a rejection, always a halt
    (docs/protocol.md#l6).
    """


@attrs.frozen(kw_only=True)
class FlowNetwork:
    """Nodes 0..nodes-1; `supply` per node in units, summing to 0; arcs as parallel arrays.

    `costs`: one array >= 0 per level, the most important first. `names`: returns a stable hash per
    arc; called when there are ties. `most_costed`: the most arcs with a cost on the way of a unit.
    """

    nodes: int
    supply: Ints
    tail: Ints
    head: Ints
    capacity: Ints
    costs: tuple[Ints, ...]
    names: Callable[[], Hashes]
    most_costed: int


@attrs.frozen(kw_only=True)
class Flow:
    """`amount`: units on each arc. `optimal`: proven. `unique`: no other optimum."""

    amount: Ints
    optimal: bool
    unique: bool


@functools.lru_cache(maxsize=2**16)
def stable_hash(text: str) -> int:
    """64 bits of `text`, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def solve(network: FlowNetwork) -> Flow:
    """The cheapest flow, level by level. Raises SolverFailure when the solver fails."""
    face = _Face(network)
    optimal = True
    start = 0
    while start < len(network.costs):
        cost, start, exact = face.scaled(start)
        optimal &= face.minimise(cost) and exact
    unique = not face.has_other()
    for salt in range(0 if unique else 1 + REDRAWS):
        drawn = face.tie_broken(FIRST_SALT + salt)
        unique = not drawn.has_other()
        if unique or salt == REDRAWS:
            face = drawn
            break
    return Flow(amount=face.amount, optimal=optimal, unique=unique)


def _forced(network: FlowNetwork) -> Flags:
    """Arcs that carry the whole supply of their tail: the tail has no incoming and no other
    outgoing arc. A task with one possible member.
    """
    usable = network.capacity > 0
    enters = np.bincount(network.head[usable], minlength=network.nodes)
    leaves = np.bincount(network.tail[usable], minlength=network.nodes)
    supply = network.supply[network.tail]
    forced: Flags = usable & (enters[network.tail] == 0) & (leaves[network.tail] == 1) & (supply >= 0) & (supply <= network.capacity)
    return forced


class _Face:
    """The flows that are optimal for the levels minimised so far: the arcs that are still `free`,
    and one such flow, `amount`.
    """

    def __init__(self, network: FlowNetwork) -> None:
        self.network = network
        forced = _forced(network)
        self.free: Flags = (network.capacity > 0) & ~forced
        self.amount: Ints = np.where(forced, network.supply[network.tail], 0)
        # The solver multiplies costs by the number of nodes, and keeps twice that below 2**63
        # (BAD_COST_RANGE otherwise).
        self.most_cost = 2 ** (61 - (network.nodes + 1).bit_length())
        self.units = int(network.supply[network.supply > 0].sum())

    def scaled(self, start: int) -> tuple[Ints, int, bool]:
        """As many levels from `start` on as fit into one cost, each outweighing the sum of those
        below it; the next level; whether the cost is exact.

        A single level that is too large for the solver loses its lowest bits.
        """
        network = self.network
        combined = network.costs[start]
        highest = int(combined[self.free].max(initial=0))
        level = start + 1
        for cost in network.costs[level:]:
            most = int(cost[self.free].max(initial=0))
            weight = most * self.units * network.most_costed + 1
            if highest * weight + most > self.most_cost:
                break
            combined = combined * weight + cost
            highest = highest * weight + most
            level += 1
        excess = highest.bit_length() - (self.most_cost.bit_length() - 1)
        return (combined >> excess if excess > 0 else combined), level, excess <= 0

    def minimise(self, cost: Ints) -> bool:
        """Narrows the face to the cheapest flows by `cost` (>= 0). Returns whether that is proven."""
        self._solve(cost)
        potential = self._potentials(cost)
        if potential is None:
            return False
        reduced = cost + potential[self.network.tail] - potential[self.network.head]
        self.free = self.free & (reduced == 0)
        return True

    def _solve(self, cost: Ints) -> None:
        network, free = self.network, self.free
        fixed = np.where(free, 0, self.amount)
        supply = network.supply.copy()
        np.subtract.at(supply, network.tail, fixed)
        np.add.at(supply, network.head, fixed)
        contracted = ContractedNetwork(supply, network.tail[free], network.head[free], network.capacity[free], cost[free])
        aggregated = AggregatedNetwork(contracted.supply, contracted.tail, contracted.head, contracted.capacity, contracted.cost)
        from ortools.graph.python import min_cost_flow  # 17 MB, for whoever only names the solver

        solver = min_cost_flow.SimpleMinCostFlow()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(aggregated.tail, aggregated.head, aggregated.capacity, aggregated.cost)
        solver.set_nodes_supplies(np.arange(network.nodes), aggregated.supply)
        status = solver.solve()
        if status != solver.OPTIMAL:
            raise SolverFailure(f"{SOLVER} answered {status} to a network of {network.nodes} nodes and {int(free.sum())} arcs")
        amount = fixed
        amount[free] = contracted.expanded(aggregated.disaggregated(solver.flows(arcs)))
        self.amount = amount

    def _potentials(self, cost: Ints) -> Ints | None:
        """Shortest distance to each node of the residual network from any node (Bellman-Ford, all
        arcs at once); None: it has a negative cycle.
        """
        network = self.network
        onward = self.free & (self.amount < network.capacity)
        back = self.free & (self.amount > 0)
        tail = np.concatenate((network.tail[onward], network.head[back]))
        head = np.concatenate((network.head[onward], network.tail[back]))
        length = np.concatenate((cost[onward], -cost[back]))
        distance: Ints = np.zeros(network.nodes, dtype=np.int64)
        for _ in range(network.nodes + 1):
            reached = distance[tail] + length
            better = reached < distance[head]
            if not better.any():
                return distance
            np.minimum.at(distance, head[better], reached[better])
        return None

    def tie_broken(self, salt: int) -> _Face:
        """The cheapest flow of this face by a cost from the arcs' names."""
        drawn = copy.copy(self)
        bits = min(TIE_BITS, self.most_cost.bit_length() - 1)
        drawn.minimise((mixed(self.network.names(), salt) >> np.uint64(64 - bits)).astype(np.int64))
        return drawn

    def has_other(self) -> bool:
        """Returns whether the face holds another flow: its residual network has a cycle other than
        back and forth on one arc.

        Arcs that are neither empty nor full go both ways: they join their ends, unless they close a
        cycle. The others go one way: an arc that cannot be entered or left is on no cycle, and is
        peeled off until nothing or a cycle remains.
        """
        network = self.network
        tail, head, amount = network.tail[self.free], network.head[self.free], self.amount[self.free]
        capacity = network.capacity[self.free]
        between = (amount > 0) & (amount < capacity)
        root = list(range(network.nodes))

        def find(node: int) -> int:
            while root[node] != node:
                root[node] = root[root[node]]
                node = root[node]
            return node

        for one, other in zip(tail[between].tolist(), head[between].tolist(), strict=True):
            a, b = find(one), find(other)
            if a == b:
                return True
            root[a] = b
        tied: Ints = np.arange(network.nodes, dtype=np.int64)
        ends = np.concatenate((tail[between], head[between]))
        tied[ends] = [find(node) for node in ends.tolist()]
        empty, full = amount == 0, (amount == capacity) & (amount > 0)
        start = tied[np.concatenate((tail[empty], head[full]))]
        end = tied[np.concatenate((head[empty], tail[full]))]
        while start.size:
            enters: Flags = np.zeros(network.nodes, dtype=np.bool_)
            leaves: Flags = np.zeros(network.nodes, dtype=np.bool_)
            enters[end] = True
            leaves[start] = True
            keep = enters[start] & leaves[end]
            if keep.all():
                return True
            start, end = start[keep], end[keep]
        return False
