"""What is kept of the assignor's last problem, so that a round makes only those tasks and members
again that changed since (`problem`).

Derived from the state: never in a snapshot, and a machine without it makes an equal problem.
`actions` marks what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from equipoise.assignors import MemberSpec, Task
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.tasks import TaskId

State = TypeVar("State")


class ProblemCache(Generic[State]):
    """`State`: what the leader knows of one member."""

    def __init__(self) -> None:
        self.topology: TopologyDeclared | None = None
        """What `parts` and `tasks` were made from."""
        self.parts: Mapping[TaskId, Subtopology] = {}
        """Every task of the topology, in rising order."""
        self.tasks: dict[TaskId, Task] = {}
        """Those of the last problem, in rising order; empty: none was made, or all are stale."""
        self.in_order: tuple[Task, ...] = ()
        self.lost_ms: dict[TaskId, int] = {}
        self.displaced: frozenset[TaskId] = frozenset()
        self.members: dict[str, tuple[State, int, MemberSpec]] = {}
        """Those of the last problem, each with its `MemberState` and the `version` of that."""
        self.stale_topics: set[str] = set()
        """Topics whose partitions were observed since the last problem."""
        self.stale_tasks: set[TaskId] = set()
        """Tasks whose load or source lag was reported since the last problem."""

    def parts_of(self, topology: TopologyDeclared | None) -> Mapping[TaskId, Subtopology]:
        """Every task of the topology, in rising order."""
        if topology is not self.topology:
            self.topology = topology
            self.parts = (
                {}
                if topology is None
                else {TaskId(part.subtopology, partition): part for part in topology.subtopologies for partition in range(part.partitions)}
            )
            self.forget_all()
        return self.parts

    def forget_all(self) -> None:
        """Every task and member is stale."""
        self.tasks, self.in_order, self.members = {}, (), {}
        self.stale_topics, self.stale_tasks = set(), set()

    def keep_member(self, state: State, version: int, made: MemberSpec) -> MemberSpec:
        """Keeps a member that was made from `state` at that version. Returns it."""
        self.members[made.id] = state, version, made
        return made

    def drop_members(self, live: Mapping[str, State]) -> None:
        """Drops members that are gone."""
        if len(self.members) > len(live):
            self.members = {name: kept for name, kept in self.members.items() if name in live}

    def stale(self, lost_ms: dict[TaskId, int], displaced: frozenset[TaskId]) -> list[TaskId]:
        """The tasks that must be made again, in rising order; from now on they are not stale. The
        arguments: `Task.lost_since_ms` and `Task.displaced` now.
        """
        stale, self.stale_tasks = self.stale_tasks, set()
        for part in () if self.topology is None or not self.stale_topics else self.topology.subtopologies:
            if not self.stale_topics.isdisjoint((*part.source_topics, *part.changelog_topics)):
                stale.update(TaskId(part.subtopology, partition) for partition in range(part.partitions))
        self.stale_topics = set()
        stale |= displaced ^ self.displaced
        stale.update(task for task in (*lost_ms, *self.lost_ms) if lost_ms.get(task) != self.lost_ms.get(task))
        self.lost_ms, self.displaced = lost_ms, displaced
        if not self.tasks:
            return list(self.parts)
        return [task for task in self.parts if task in stale] if stale else []

    def keep(self, made: Mapping[TaskId, Task]) -> tuple[Task, ...]:
        """Keeps tasks that were made again. Returns all tasks, in rising order."""
        if made:
            self.tasks.update(made)
            self.in_order = tuple(self.tasks.values())
        return self.in_order
