"""A small log from the simulated cluster: four members, one joins cold, one dies and comes back.

Tasks `0_0..0_11` have 400,000 records of state each and two warm-up slots between them, so some
movements wait; `1_0..1_2` are stateless.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from equipoise.assignors import registry
from equipoise.events.facts import Fact, GroupConfigured, LogOpened, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.log import Log
from equipoise.replay.simulation.member_process import ProcessSettings
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, MemorySink, SimulatedCluster
from equipoise.replay.simulation.world import steady
from equipoise.statemachine.machine import GroupMachine

START_MS = 1_795_149_187_000
JOINED_MS = START_MS + 60_000
"""m4 joins, cold."""
KILLED_MS = START_MS + 140_000
"""m2 is killed."""
BACK_MS = START_MS + 180_000
END_MS = START_MS + 240_000

TOPOLOGY = TopologyDeclared(
    epoch=0,
    subtopologies=(
        Subtopology(subtopology=0, partitions=12, stateful=True, source_topics=("orders",), changelog_topics=("store",)),
        Subtopology(subtopology=1, partitions=3, stateful=False, source_topics=("clicks",)),
    ),
)


def configured(*, solver: str | None = None, **settings: int) -> GroupConfigured:
    """The group's configuration, with this build's solver unless another is named."""
    assignor = registry.latest("high_availability")
    settings = {"acceptable_recovery_lag": 1_000, "probing_interval_ms": 60_000, "checkpoint_every_records": 100, **settings}
    return GroupConfigured(
        assignor=assignor.name,
        behaviour_version=assignor.version,
        solver=assignor.solver if solver is None else solver,
        knobs=GroupSettings(**settings),  # type: ignore[arg-type]
    )


@functools.cache
def lived(**settings: int) -> tuple[Entry, ...]:
    """Returns every record of the log, in stored order. `settings`: others than the group's."""
    sink = MemorySink()
    growth = {("store", partition): steady(records=400_000, records_per_s=50, start_ms=START_MS) for partition in range(12)}
    config = ClusterConfig(
        group="orders",
        log_id="lived",
        configured=configured(solver=None, **settings),
        topology=TOPOLOGY,
        growth=growth,
        start_ms=START_MS,
    )
    cluster = SimulatedCluster(config, seed=11, sink=sink)
    cluster.start_worker()
    for number in (1, 2, 3):
        cluster.start_process(ProcessSettings(member_id=f"m{number}", capacity=2))
    cluster.run_until(JOINED_MS)
    cluster.start_process(ProcessSettings(member_id="m4", capacity=2))
    cluster.run_until(KILLED_MS)
    cluster.last_process("m2").kill()
    cluster.run_until(BACK_MS)
    cluster.restart("m2")
    cluster.run_until(END_MS)
    return tuple(sink.entries)


def write(log: Log, entries: Iterable[Entry]) -> None:
    """Appends them all to `log`."""
    with log.transaction():
        for entry in entries:
            if isinstance(entry, FactRecord):
                log.append_fact(entry.group, entry.append_ms, entry.event)
            else:
                assert isinstance(entry, DecisionRecord)
                log.append_decisions([entry])


def decided(*facts: tuple[int, Fact], group: str = "g", any_solver: bool = False) -> list[Entry]:
    """Returns a complete log of these (append_ms, fact) with the real machine's decisions, opened
    as log ``made``.
    """
    sink = MemorySink()
    machine = GroupMachine(any_solver=any_solver)
    machine.step(sink.append_fact("", facts[0][0], LogOpened(log_id="made")))
    for append_ms, fact in facts:
        sink.append_decisions(machine.step(sink.append_fact(group, append_ms, fact)))
    return list(sink.entries)


def task(text: str) -> TaskId:
    subtopology, partition = text.split("_")
    return TaskId(int(subtopology), int(partition))
