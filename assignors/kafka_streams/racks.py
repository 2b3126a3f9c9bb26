"""``RackAwareTaskAssignor``: fewer reads across racks, against fewer changes of the assignment just
made (KIP-925).

Each optimisation is a flow of tasks to clients. ``min_traffic`` keeps the number of tasks of each
client; ``balance_subtopology`` also spreads each sub-topology, and starts from nothing. Overlap is
counted with the assignment of this round, not with the present owners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from equipoise.assignors.common.problem import Partition, Task
from equipoise.assignors.kafka_streams.actives import TaskRole
from equipoise.assignors.kafka_streams.client_states import ClientState, KafkaSettings
from equipoise.assignors.kafka_streams.graph import Graph
from equipoise.events.tasks import TaskId

MOST_STANDBY_ROUNDS = 4
"""Kafka's own bound of `optimize_standby`."""

Allowed = Callable[[ClientState, ClientState, TaskId], bool]


class RackOptimizer:
    """`enabled`: the racks of all clients are known, and those of the replicas of all source
    partitions and, with standbys, of all changelog partitions.
    """

    def __init__(self, clients: Sequence[ClientState], tasks: Sequence[Task], settings: KafkaSettings) -> None:
        self._clients = clients
        self._tasks = {task.id: task for task in tasks}
        self._balance_subtopology = settings.strategy == "balance_subtopology"
        self.enabled = (
            settings.strategy != "none"
            and all(client.rack is not None for client in clients)
            and all(_known(task.source) for task in tasks)
            and (not settings.num_standbys or all(_known(task.changelog) for task in tasks if task.stateful))
        )

    def _cost(self, task: TaskId, client: ClientState, kind: TaskRole, traffic: int, non_overlap: int) -> int:
        """A standby reads the changelog, an active task its sources; writes are not counted."""
        partitions = self._tasks[task].changelog if kind == "standby" else self._tasks[task].source
        remote = sum(client.rack not in partition.racks for partition in partitions)
        return traffic * remote + (0 if task in getattr(client, kind) else non_overlap)

    def optimize_active(self, tasks: Sequence[TaskId], traffic: int, non_overlap: int) -> None:
        """Optimises some of the active tasks, each assigned to one client; `tasks` in rising order."""
        if not tasks:
            return
        if self._balance_subtopology:
            self._balanced(tasks, traffic, non_overlap)
        else:
            self._min_traffic(tasks, self._clients, "active", traffic, non_overlap)

    def optimize_standby(self, traffic: int, non_overlap: int, may_swap: Allowed) -> None:
        """Swaps standbys between each two clients in different racks, repeated while that moves
        anything; always as ``min_traffic``.
        """
        for _ in range(MOST_STANDBY_ROUNDS):
            moved = False
            for place, one in enumerate(self._clients):
                for other in self._clients[place + 1 :]:
                    if one.rack != other.rack:
                        moved |= self._swap(one, other, traffic, non_overlap, may_swap)
            if not moved:
                return

    def _swap(self, one: ClientState, other: ClientState, traffic: int, non_overlap: int, may_swap: Allowed) -> bool:
        here = [task for task in one.standby if not other.has(task) and may_swap(one, other, task)]
        there = [task for task in other.standby if not one.has(task) and may_swap(other, one, task)]
        return bool(here and there) and self._min_traffic(sorted(here + there), (one, other), "standby", traffic, non_overlap)

    def _min_traffic(self, tasks: Sequence[TaskId], clients: Sequence[ClientState], kind: TaskRole, traffic: int, non_overlap: int) -> bool:
        """Flow from source over tasks and clients to the sink; each client keeps its number of
        tasks. Returns whether anything moved.
        """
        sink = 1 + len(tasks) + len(clients)
        graph = Graph(sink + 1)
        held = _held(tasks, clients, kind)
        arcs: list[list[int]] = []
        for place, task in enumerate(tasks):
            arcs.append(
                [
                    graph.add(
                        1 + place,
                        1 + len(tasks) + at,
                        capacity=1,
                        cost=self._cost(task, client, kind, traffic, non_overlap),
                        flow=int(held[task] == at),
                    )
                    for at, client in enumerate(clients)
                ]
            )
        for place in range(len(tasks)):
            graph.add(0, 1 + place, capacity=1, flow=1)
        counts = _counts(held, clients)
        for at in range(len(clients)):
            graph.add(1 + len(tasks) + at, sink, capacity=counts[at], flow=counts[at])
        graph.minimise_cost()
        return _read_back(graph, tasks, clients, kind, held, arcs)

    def _balanced(self, tasks: Sequence[TaskId], traffic: int, non_overlap: int) -> None:
        """Flow from source over tasks, clients by sub-topology and clients to the sink.

        Of each sub-topology a client gets at most its share of all `tasks`, rounded up; of all
        tasks it keeps its number.
        """
        clients = self._clients
        groups: dict[int, list[int]] = {}
        for place, task in enumerate(tasks):
            groups.setdefault(task.subtopology, []).append(place)
        first_stage = 1 + len(tasks)
        second_stage = first_stage + len(groups) * len(clients)
        sink = second_stage + len(clients)
        graph = Graph(sink + 1)
        held = _held(tasks, clients, "active")
        counts = _counts(held, clients)
        arcs: list[list[int]] = []
        for group, places in enumerate(groups.values()):
            of_group = first_stage + group * len(clients)
            for place in places:
                costs = [self._cost(tasks[place], client, "active", traffic, non_overlap) for client in clients]
                arcs.append([graph.add(1 + place, of_group + at, capacity=1, cost=cost) for at, cost in enumerate(costs)])
            for at, count in enumerate(counts):
                graph.add(of_group + at, second_stage + at, capacity=math.ceil(count / len(tasks) * len(places)) if count else 0)
        for place in range(len(tasks)):
            graph.add(0, 1 + place, capacity=1)
        for at, count in enumerate(counts):
            graph.add(second_stage + at, sink, capacity=count)
        flow = graph.maximise_flow()
        assert flow == len(tasks), "rounded-up shares have room for all"
        graph.minimise_cost()
        _read_back(graph, tasks, clients, "active", held, arcs)


def _known(partitions: Sequence[Partition]) -> bool:
    return bool(partitions) and all(partition.racks for partition in partitions)


def _held(tasks: Sequence[TaskId], clients: Sequence[ClientState], kind: TaskRole) -> dict[TaskId, int]:
    """Task -> index of its client."""
    wanted = set(tasks)
    return {task: at for at, client in enumerate(clients) for task in getattr(client, kind) if task in wanted}


def _counts(held: dict[TaskId, int], clients: Sequence[ClientState]) -> list[int]:
    counts = [0] * len(clients)
    for at in held.values():
        counts[at] += 1
    return counts


def _read_back(
    graph: Graph, tasks: Sequence[TaskId], clients: Sequence[ClientState], kind: TaskRole, held: dict[TaskId, int], arcs: Sequence[Sequence[int]]
) -> bool:
    """Gives each task to the client it flows to. `arcs`: of each task to each client. Returns
    whether anything moved.
    """
    moved = False
    for task, to_clients in zip(tasks, arcs, strict=True):
        goes_to = next(at for at, arc in enumerate(to_clients) if graph.flow(arc))
        if goes_to != held[task]:
            getattr(clients[held[task]], kind).remove(task)
            getattr(clients[goes_to], kind).add(task)
            moved = True
    return moved
