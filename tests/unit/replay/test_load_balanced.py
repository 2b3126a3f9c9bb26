"""`load_balanced` in the simulated cluster, with members that report their load: loads even out,
state moves first, and `explain` has the numbers.
"""

from __future__ import annotations

import functools
import re

from equipoise.assignors import registry
from equipoise.assignors.load_balanced.weights import weights
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.records import Entry
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from equipoise.replay.explanation import explain
from equipoise.replay.simulation import ClusterConfig, ProcessSettings, SimulatedCluster
from equipoise.replay.simulation.measures import active_moves, silences
from equipoise.replay.simulation.simulated_cluster import MemorySink
from equipoise.replay.simulation.world import steady
from equipoise.replay.verification import Verdict, verify
from equipoise.statemachine.round_problem import build_problem

RATES = (900, 100, 700, 100, 100, 100)
"""Records/s of tasks 0_0 to 0_5: two are hot, and both fall to the same member while nothing is
known.
"""


@functools.cache
def lived() -> tuple[SimulatedCluster, tuple[Entry, ...]]:
    assignor = registry.latest("load_balanced")
    settings = GroupSettings(acceptable_recovery_lag=2_000, probing_interval_ms=20_000, load_window_ms=10_000)
    part = Subtopology(subtopology=0, partitions=len(RATES), stateful=True, changelog_topics=("log",))
    log = MemorySink()
    cluster = SimulatedCluster(
        ClusterConfig(
            configured=GroupConfigured(assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver, knobs=settings),
            topology=TopologyDeclared(epoch=0, subtopologies=(part,)),
            growth={("log", partition): steady(records=100_000, records_per_s=rate) for partition, rate in enumerate(RATES)},
        ),
        seed=3,
        sink=log,
    )
    cluster.start_worker()
    for name in ("m1", "m2"):
        cluster.start_process(ProcessSettings(member_id=name, reports_load=True))
    cluster.run_until(300_000)
    return cluster, tuple(log.entries)


def carried(cluster: SimulatedCluster) -> dict[str, int]:
    """Member -> records/s it processes."""
    found: dict[str, int] = {}
    for task, owner in cluster.world.owners(cluster.now_ms).items():
        found[owner] = found.get(owner, 0) + RATES[task.partition]
    return found


def test_measured_load_equals_the_processed_records():
    cluster, _ = lived()
    problem = build_problem(cluster.machine.state)
    assert [task.load.records_per_s for task in problem.tasks if task.load is not None] == list(RATES)
    assert sum(weights(problem.tasks, problem.members, problem.settings).values()) in range(2_000_000 - 6, 2_000_001)


def test_load_evens_out_and_stops_no_task():
    cluster, entries = lived()
    history = cluster.world.history(cluster.now_ms)
    assert carried(cluster) == {"m1": 1_000, "m2": 1_000}
    moved = active_moves(history)
    assert [str(move.task) for move in moved] == ["0_2"]
    assert max(move.at_ms for move in moved) < 120_000
    assert silences(history, cluster.now_ms) == []
    assert verify(entries).verdict is Verdict.IDENTICAL


def test_explain_names_load_at_the_move_and_now():
    cluster, entries = lived()
    moved = active_moves(cluster.world.history(cluster.now_ms))[-1]
    told = explain(entries, moved.task)
    text = " ".join(told.why_here)
    assert f"{moved.from_member} carries more of the load than {moved.to_member}" in text
    numbers = re.search(r"of a fair share: (\d+) % on (\w+), (\d+) % on (\w+); (\d+) % of that is 0_\d", text)
    assert numbers is not None, text
    before, source, after, destination, share = numbers.groups()
    assert (source, destination) == (moved.from_member, moved.to_member)
    assert int(before) > int(after) + int(share)
    assert int(share) == round(100 * RATES[moved.task.partition] / 1_000)
    assert {each.member_id: each.load_share for each in told.candidates}.keys() == {"m1", "m2"}
    assert "members differ by at most" in " ".join(told.what_next)
    still = explain(entries, TaskId(0, 0)).what_next
    assert f"{RATES[0] // 10} % of a fair share is 0_0" in " ".join(still)
