"""Cases of Apache Kafka's tests of what its assignor is made of: GraphTest and
ConstrainedPrioritySetTest, on the parts that `kafka_streams` has.

Nodes of a graph are 0, 1, ..., the source first and the sink last. GraphTest's cases of malformed
graphs (testInvalid..., testMissing..., testDisconnected..., testNullNode) have nothing to be asked
of: a graph is made by one function, which gives it every arc.
"""

from __future__ import annotations

import itertools
import random

import pytest

from equipoise.assignors.kafka_streams.client_states import ClientState, PrioritySet
from equipoise.assignors.kafka_streams.graph import Graph
from equipoise.events.tasks import TaskId

TASK = TaskId(0, 0)
Ends = tuple[int, int]


def flowing(nodes: int, costs: dict[Ends, int], flows: set[Ends], order: list[Ends] | None = None) -> tuple[Graph, dict[Ends, int]]:
    """A graph whose arcs have room for one unit each, and the number of each arc."""
    graph = Graph(nodes)
    arcs = {ends: graph.add(*ends, capacity=1, cost=costs[ends], flow=int(ends in flows)) for ends in order or costs}
    return graph, arcs


def flows_of(graph: Graph, arcs: dict[Ends, int]) -> set[Ends]:
    return {ends for ends, arc in arcs.items() if graph.flow(arc)}


def cost_of(graph: Graph, arcs: dict[Ends, int], costs: dict[Ends, int]) -> int:
    return sum(costs[ends] * graph.flow(arc) for ends, arc in arcs.items())


# GraphTest


def test_minimise_cost_swap():
    """testMinCostFlow: tasks 1 and 2, clients 3 and 4; 5 before and 2 after. And the t1, t2 x c1,
    c2 of KIP-925: each client keeps its count.
    """
    costs = {(0, 1): 0, (0, 2): 0, (1, 3): 3, (1, 4): 1, (2, 3): 1, (2, 4): 2, (3, 5): 0, (4, 5): 0}
    graph, arcs = flowing(6, costs, {(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)})
    assert cost_of(graph, arcs, costs) == 5
    graph.minimise_cost()
    assert cost_of(graph, arcs, costs) == 2
    assert flows_of(graph, arcs) == {(0, 1), (0, 2), (1, 4), (2, 3), (3, 5), (4, 5)}


def test_minimise_cost_node_outside_the_cycle():
    """testMinCostDetectNodeNotInNegativeCycle: client 3 is ever cheaper to reach, and on no cycle,
    for it may have nothing. 20 -> 2.
    """
    costs = {(0, 1): 0, (0, 2): 0, (1, 3): 1, (1, 4): 1, (1, 5): 10, (2, 3): 1, (2, 4): 10, (2, 5): 1, (4, 6): 0, (5, 6): 0}
    graph, arcs = flowing(7, costs, {(0, 1), (0, 2), (1, 5), (2, 4), (4, 6), (5, 6)})
    assert cost_of(graph, arcs, costs) == 20
    graph.minimise_cost()
    assert cost_of(graph, arcs, costs) == 2
    assert flows_of(graph, arcs) == {(0, 1), (0, 2), (1, 4), (2, 5), (4, 6), (5, 6)}


def test_minimise_cost_does_not_depend_on_the_order_of_arcs():
    """testDeterministic: three clients are as good as each other for one task."""
    costs = {(0, 1): 0, (1, 2): 1, (1, 3): 1, (1, 4): 1, (2, 5): 0, (3, 5): 0, (4, 5): 0}
    found = set()
    for seed in range(10):
        graph, arcs = flowing(6, costs, set(), random.Random(seed).sample(list(costs), len(costs)))
        assert graph.maximise_flow() == 1
        graph.minimise_cost()
        found.add(frozenset(flows_of(graph, arcs)))
    assert found == {frozenset({(0, 1), (1, 2), (2, 5)})}


@pytest.mark.parametrize(
    ("capacities", "most"),
    [
        ({(0, 1): 100}, 100),
        ({(0, 1): 10, (0, 2): 10, (1, 3): 3, (2, 3): 4}, 7),
        ({(0, 1): 3, (0, 2): 4, (1, 3): 10, (2, 3): 10}, 7),
        ({(0, 1): 3, (0, 2): 3, (1, 2): 5, (1, 3): 2, (2, 3): 3}, 5),
    ],
    ids=["source and sink", "bound by the sink", "bound by the source", "in between"],
)
def test_maximise_flow(capacities: dict[Ends, int], most: int):
    """testMaxFlowOnlySourceAndSink, testMaxFlowBoundBySinkEdges, testMaxFlowBoundBySourceEdges.
    Flow is conserved at each node.
    """
    nodes = max(itertools.chain.from_iterable(capacities)) + 1
    graph = Graph(nodes)
    arcs = {ends: graph.add(*ends, capacity=capacity) for ends, capacity in capacities.items()}
    assert graph.maximise_flow() == most
    for node in range(1, nodes - 1):
        assert sum(graph.flow(arc) for (_, to), arc in arcs.items() if to == node) == sum(
            graph.flow(arc) for (of, _), arc in arcs.items() if of == node
        )


# ConstrainedPrioritySetTest


def clients(*loads: int) -> list[ClientState]:
    return [ClientState(index, f"c{index}", 1, active={TaskId(9, number) for number in range(load)}) for index, load in enumerate(loads, 1)]


def filled(having: list[ClientState], constraint: object = None) -> PrioritySet:
    found = PrioritySet(lambda client, task: constraint is None or client is constraint)
    for client in having:
        found.offer(client)
    return found


def test_poll_returns_the_only_client_then_none():
    """shouldReturnOnlyClient, shouldReturnNull."""
    (only,) = clients(0)
    found = filled([only])
    assert found.poll(TASK) is only
    assert found.poll(TASK) is None


def test_poll_returns_least_loaded_first():
    """shouldReturnLeastLoadedClient."""
    busy, idle, some = clients(3, 0, 1)
    found = filled([busy, idle, some])
    assert [found.poll(TASK) for _ in range(4)] == [idle, some, busy, None]


def test_offer_again_keeps_one_entry_by_new_load():
    """shouldNotRetainDuplicates."""
    first, second = clients(0, 1)
    found = filled([first, first, second])
    first.active.update({TaskId(9, 7), TaskId(9, 8)})
    found.offer(first)
    assert [found.poll(TASK) for _ in range(3)] == [second, first, None]


def test_poll_returns_only_eligible_clients():
    """shouldOnlyReturnValidClients."""
    idle, busy = clients(0, 2)
    found = filled([idle, busy], constraint=busy)
    assert found.poll(TASK) is busy
    assert found.poll(TASK) is None


def test_client_refused_by_a_filter_stays_in_the_priority_set():
    """shouldApplyPollFilter."""
    idle, busy = clients(0, 2)
    found = filled([idle, busy])
    assert found.poll(TASK, lambda client: client is busy) is busy
    assert found.poll(TASK, lambda client: client is busy) is None
    assert found.poll(TASK) is idle
