"""``Graph``: maximum flow and minimum cost by cycle cancelling, in the order in which Kafka finds
cycles (KIP-925).

Several flows may have the least cost, and the result depends on which cycle is found first. So
nodes, arcs and relaxations are in Kafka's order. One shortcut does not change the result: Kafka
relaxes every arc in as many sweeps as there are nodes; here nodes whose distance has not changed
since their last visit are skipped.
"""

from __future__ import annotations

from collections import deque

_NONE = -1


class Graph:
    """Nodes are 0, 1, ... in Kafka's order: 0 is the source and the last one the sink. Arcs come in
    pairs, an arc and its reverse.

    Arc a goes to ``to[a]``, costs ``cost[a]`` per unit and has room for ``room[a]`` more; its
    reverse is ``a ^ 1``, whose room is the flow over a.
    """

    def __init__(self, nodes: int) -> None:
        self.to: list[int] = []
        self.cost: list[int] = []
        self.room: list[int] = []
        self.out: list[list[int]] = [[] for _ in range(nodes)]

    def add(self, source: int, destination: int, *, capacity: int, cost: int = 0, flow: int = 0) -> int:
        """Adds an arc and returns its number. Arcs of a node must be sorted before solving."""
        arc = len(self.to)
        self.to += (destination, source)
        self.cost += (cost, -cost)
        self.room += (capacity - flow, flow)
        self.out[source].append(arc)
        self.out[destination].append(arc + 1)
        return arc

    def flow(self, arc: int) -> int:
        return self.room[arc ^ 1]

    def maximise_flow(self) -> int:
        """Augments along shortest paths from source to sink. Returns the flow."""
        self._sort()
        total = 0
        while path := self._path():
            pushed = min(self.room[arc] for arc in path)
            self._push(path, pushed)
            total += pushed
        return total

    def minimise_cost(self) -> None:
        """Cancels negative cycles until there is none. The amount of flow does not change."""
        self._sort()
        while cycle := self._negative_cycle():
            self._push(cycle, min(self.room[arc] for arc in cycle))

    def _sort(self) -> None:
        for arcs in self.out:
            arcs.sort(key=self.to.__getitem__)

    def _push(self, arcs: list[int], units: int) -> None:
        for arc in arcs:
            self.room[arc] -= units
            self.room[arc ^ 1] += units

    def _path(self) -> list[int]:
        """Arcs of a shortest path with room, from the sink back; empty: there is none."""
        sink = len(self.out) - 1
        came_by = {0: _NONE}
        reached = deque([0])
        while reached and sink not in came_by:
            node = reached.popleft()
            for arc in self.out[node]:
                if self.room[arc] and self.to[arc] not in came_by:
                    came_by[self.to[arc]] = arc
                    if self.to[arc] == sink:
                        break
                    reached.append(self.to[arc])
        path: list[int] = []
        node = sink
        while came_by.get(node, _NONE) != _NONE:
            path.append(came_by[node])
            node = self.to[came_by[node] ^ 1]
        return path

    def _negative_cycle(self) -> list[int]:
        """Arcs of the first cycle that Bellman-Ford finds when it starts at all nodes; empty: there
        is none.
        """
        to, cost, room, out = self.to, self.cost, self.room, self.out
        distance = [0] * len(out)
        came_by = [_NONE] * len(out)
        changed = bytearray(b"\1" * len(out))
        last_sweep = sum(1 for arcs in out if arcs)  # one sweep for each node, and one for Kafka's extra node that all begin from
        for sweep in range(last_sweep + 1):
            node = changed.find(1)
            if node == _NONE:
                return []
            while node != _NONE:
                changed[node] = 0
                here = distance[node]
                for arc in out[node]:
                    if room[arc] and distance[to[arc]] > here + cost[arc]:
                        distance[to[arc]] = here + cost[arc]
                        came_by[to[arc]] = arc
                        changed[to[arc]] = 1
                        if sweep == last_sweep:
                            return self._cycle(to[arc], came_by)
                node = changed.find(1, node + 1)
        return []

    def _cycle(self, node: int, came_by: list[int]) -> list[int]:
        """The cycle that is reached from `node` backwards."""
        seen: set[int] = set()
        while node not in seen:
            seen.add(node)
            node = self.to[came_by[node] ^ 1]
        cycle: list[int] = []
        start = node
        while not cycle or node != start:
            cycle.append(came_by[node])
            node = self.to[came_by[node] ^ 1]
        return cycle
