"""What `equipoise timeline` adds to folding a log: the history of 1,000 tasks on 50 members, its
page, its picture and its document.

The baseline in the same run only reads and folds the same log. The group runs in the simulated
cluster; members join and die.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from equipoise.assignors import registry
from equipoise.events.facts import GroupConfigured, Subtopology, TopologyDeclared
from equipoise.events.settings import GroupSettings
from equipoise.log import open_log
from equipoise.replay.replayer import Replayer
from equipoise.replay.simulation import ClusterConfig, ProcessSettings, SimulatedCluster
from equipoise.replay.simulation.world import steady
from equipoise.replay.timelines import build_timeline, render_page, render_picture, timeline_document

MEMBERS = 50
TASKS = 1_000
CHANGES = 4
"""Changes of membership."""
EVERY_MS = 180_000
ROUNDS = 3
START_MS = 1_795_149_187_000


def write_log(path: Path) -> None:
    """Writes the log of a group of MEMBERS members in which, in turn, one joins and one dies."""
    assignor = registry.latest("high_availability")
    topology = Subtopology(subtopology=0, partitions=TASKS, stateful=True, source_topics=("orders",), changelog_topics=("store",))
    config = ClusterConfig(
        group="bench",
        log_id="bench",
        configured=GroupConfigured(behaviour_version=assignor.version, solver=assignor.solver, knobs=GroupSettings(num_standbys=1)),
        topology=TopologyDeclared(epoch=0, subtopologies=(topology,)),
        growth={("store", partition): steady(records=100_000, records_per_s=20, start_ms=START_MS) for partition in range(TASKS)},
        start_ms=START_MS,
    )
    with open_log(str(path), "w") as log, log.transaction():
        cluster = SimulatedCluster(config, seed=1, sink=log)
        cluster.start_worker()
        for number in range(MEMBERS):
            cluster.start_process(ProcessSettings(member_id=f"m{number}", capacity=4))
        for happened in range(1, CHANGES + 1):
            cluster.run_for(EVERY_MS)
            if happened % 2:
                cluster.start_process(ProcessSettings(member_id=f"m{MEMBERS + happened}", capacity=4))
            else:
                cluster.last_process(f"m{happened}").kill()
        cluster.run_for(EVERY_MS)


def _best_s(run: Callable[[], object]) -> float:
    """CPU seconds of the best of ROUNDS rounds, because noise only adds time."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return best


def run() -> list[tuple[str, float, str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "group.db"
        write_log(path)

        replayers = []

        def fold() -> None:
            replayers.append(Replayer())
            with open_log(str(path)) as log:
                for _ in replayers[-1].follow(log.read()):
                    pass

        def render() -> None:
            with open_log(str(path)) as log:
                built = build_timeline(log.read())
            for made in (render_page, render_picture, timeline_document):
                made(built)

        fold_s, render_s = _best_s(fold), _best_s(render)
    measure = f"timeline of {TASKS:,} tasks, {MEMBERS} members, page and picture / folding the log"
    replayer = replayers[0]
    note = f"{render_s:.1f} s over {fold_s:.1f} s of CPU, {replayer.facts:,} facts, {replayer.machine.state.generation:,} rounds; goal: at most 1.25"
    return [(measure, render_s / fold_s, note)]
