"""Small groups in a simulated cluster, for tests."""

from __future__ import annotations

from typing import Any

from equipoise.assignors import registry
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation import ClusterConfig, NetworkSettings, ProcessSettings, SimulatedCluster, SimulatedWorkerSettings, steady
from equipoise.replay.simulation.simulated_cluster import Sink
from equipoise.statemachine.machine import GroupMachine

START_MS = 1_000_000_000
SESSION_MS = 10_000
LEASE_MS = 9_000


def configured(**settings: Any) -> GroupConfigured:
    assignor = registry.load("high_availability", 1)
    return GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=GroupSettings(**settings))


def small_config(
    *, stateful: int = 6, stateless: int = 2, records: int = 50_000, network: NetworkSettings | None = None, **settings: Any
) -> ClusterConfig:
    """`stateful` tasks 0_p with `records` in each changelog and 50 more a second, `stateless` tasks
    1_p.
    """
    parts = [Subtopology(subtopology=0, partitions=stateful, stateful=True, source_topics=("in",), changelog_topics=("log",))]
    if stateless:
        parts.append(Subtopology(subtopology=1, partitions=stateless, stateful=False, source_topics=("other",)))
    return ClusterConfig(
        configured=configured(**settings),
        topology=TopologyDeclared(epoch=0, subtopologies=tuple(parts)),
        growth={("log", partition): steady(start_ms=START_MS, records=records, records_per_s=50) for partition in range(stateful)},
        start_ms=START_MS,
        network=network or NetworkSettings(),
        worker=SimulatedWorkerSettings(),
    )


def member(member_id: str, **changes: Any) -> ProcessSettings:
    return ProcessSettings(member_id=member_id, session_timeout_ms=SESSION_MS, lease_margin_ms=SESSION_MS - LEASE_MS, **changes)


def running_cluster(
    config: ClusterConfig, *members: str, seed: int = 1, sink: Sink | None = None, settled_ms: int = 60_000, **options: Any
) -> SimulatedCluster:
    """Returns a cluster that has led `members` for `settled_ms`."""
    cluster = SimulatedCluster(config, seed=seed, sink=sink, **options)
    cluster.start_worker()
    for member_id in members:
        cluster.start_process(member(member_id))
    cluster.run_for(settled_ms)
    return cluster


def assert_settled(cluster: SimulatedCluster) -> None:
    """Asserts that every task runs where the leader wants it."""
    owners = cluster.world.owners(cluster.now_ms)
    assert [task for task in sorted(cluster.world.tasks) if task not in owners] == []
    assert cluster.machine.state.verdict is not None
    assert cluster.machine.state.verdict[0] == "balanced"
    assert cluster.machine.state.owner == owners


def silences_ms(cluster: SimulatedCluster, since_ms: int) -> dict[TaskId, int]:
    """Returns the longest time from `since_ms` to now without a member that processed the task, for
    each task.
    """
    longest: dict[TaskId, int] = dict.fromkeys(cluster.world.tasks, 0)
    ends: dict[TaskId, int] = dict.fromkeys(cluster.world.tasks, since_ms)
    for each in cluster.world.history(cluster.now_ms):
        if each.end_ms > since_ms:
            longest[each.task] = max(longest[each.task], each.start_ms - ends[each.task])
            ends[each.task] = each.end_ms
    return {task: max(gap, cluster.now_ms - ends[task]) for task, gap in longest.items()}


class Memory:
    """A sink that keeps everything as text, which is equal exactly when the log is."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def append_fact(self, group: str, append_ms: int, event: Any) -> FactRecord:
        from equipoise.events.codec import make_record

        offset = sum(line.startswith("fact") for line in self.lines)
        record = make_record(group, offset, append_ms, event)
        self.lines.append(f"fact {record!r}")
        return record

    def append_decisions(self, decisions: Any) -> None:
        self.lines += [f"decision {decision!r}" for decision in decisions]


class RecordingWatcher:
    """A watcher that keeps facts and decisions."""

    def __init__(self) -> None:
        self.facts: list[FactRecord] = []
        self.decisions: list[DecisionRecord] = []

    def __call__(self, record: FactRecord, decisions: list[DecisionRecord], machine: GroupMachine) -> None:
        self.facts.append(record)
        self.decisions += decisions

    def of(self, kind: type) -> list[Any]:
        return [each.decision for each in self.decisions if isinstance(each.decision, kind)]
