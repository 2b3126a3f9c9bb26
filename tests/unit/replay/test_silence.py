"""Time after the end of every lease counts as silence, in the timeline, the metric and `explain`
alike.
"""

from __future__ import annotations

import pytest

from equipoise.events.records import FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.explanation import explain
from equipoise.replay.owners import Condition
from equipoise.replay.simulation.member_process import ProcessSettings
from equipoise.replay.simulation.simulated_cluster import ClusterConfig, MemorySink, SimulatedCluster
from equipoise.replay.simulation.world import steady
from equipoise.replay.timelines import build_timeline
from equipoise.statemachine.machine import GroupMachine
from equipoise.worker.metrics import WorkerMetrics
from tests.groups import HEARTBEAT_MS, MARGIN_MS, SESSION_MS, Group, joined
from tests.unit.replay.lived import START_MS, TOPOLOGY, configured

TASKS = 6
AWAY_MS = 42_000
LEASE_MS = SESSION_MS - MARGIN_MS


def running_group() -> Group:
    group = Group().starts("m1", stateless=TASKS)
    group.cycle()
    group.cycle()
    return group


def measured_s(group: Group) -> float:
    """Returns the metric of a worker that folded it all live, in seconds."""
    counts, machine = WorkerMetrics(), GroupMachine()
    for record in group.records:
        decisions = machine.step(record)
        if record.group:
            counts.folded(record, decisions, machine.state, live=True, is_new=True)
    return counts.unavailable_s.get("orders", 0.0)


def silences(group: Group) -> list[tuple[TaskId, int, int]]:
    found = [each for each in build_timeline(group.records).intervals if each.condition is Condition.SILENT]
    return [(each.task, each.from_ms, each.to_ms) for each in found]


def test_broker_outage_beyond_the_lease_is_silence() -> None:
    """After the outage the report held back in the producer arrives first; then the member joins
    again, because its lease ended.
    """
    group = running_group()
    heard_ms = group.append_ms
    group.members["m1"].reports(after_ms=AWAY_MS)
    back_ms = group.append_ms
    group.fact(joined("m1", 2, ended_incarnation=1), after_ms=300)
    rejoined_ms = group.append_ms
    expected = [(TaskId(1, partition), heard_ms, rejoined_ms) for partition in range(TASKS)]
    joined_up = {task: (min(a for each, a, _ in silences(group) if each == task), back_ms + 300) for task, _, _ in silences(group)}
    assert [(task, *stretch) for task, stretch in sorted(joined_up.items())] == expected
    spent_ms = sum(to_ms - from_ms for _, from_ms, to_ms in silences(group))
    assert spent_ms == TASKS * (AWAY_MS + 300)
    assert measured_s(group) == pytest.approx(spent_ms / 1_000)
    (interval,) = [each for each in explain(group.records, TaskId(1, 0)).stopped if each.to_ms == back_ms]
    assert (interval.condition, interval.from_ms) == (Condition.SILENT, heard_ms)


def test_dead_member_is_silent_from_last_fact_to_expiry() -> None:
    group = running_group()
    heard_ms = group.append_ms
    del group.members["m1"]
    while "m1" in group.state.members:
        group.tick()
    assert {(from_ms, to_ms) for _, from_ms, to_ms in silences(group)} == {(heard_ms, group.append_ms)}
    out_s = measured_s(group)
    assert out_s == pytest.approx(TASKS * (group.append_ms - heard_ms) / 1_000)
    group.tick()
    assert measured_s(group) == pytest.approx(out_s + TASKS * 1.0), "then its tasks have no owner"


@pytest.mark.parametrize("away_ms", [HEARTBEAT_MS, LEASE_MS])
def test_member_within_its_lease_is_not_silent(away_ms: int) -> None:
    group = running_group()
    group.members["m1"].reports(after_ms=away_ms)
    assert silences(group) == []
    assert measured_s(group) == 0.0


def test_takeover_counts_silence_once_unless_already_answered() -> None:
    """As after an outage that ended the worker's session too: the first takeover fails, and the
    next folds the same facts again.
    """
    group = running_group()
    heard = group.records[-1]
    group.members["m1"].reports(after_ms=AWAY_MS)
    for answered_to, expected_s in ((heard.offset, TASKS * AWAY_MS / 1_000), (heard.offset + 1, 0.0)):
        counts = WorkerMetrics()
        for _ in range(2):
            machine = GroupMachine()
            for record in group.records:
                decisions = machine.step(record)
                if record.group:
                    counts.folded(record, decisions, machine.state, live=False, is_new=record.offset > answered_to)
            counts.forget(["orders"])
        found_s = counts.unavailable_s.get("orders", 0.0)
        assert found_s == pytest.approx(expected_s)


def test_counter_over_an_outage_without_a_worker_is_the_time_of_the_timeline() -> None:
    """The worker is killed, then a member. Three minutes later another worker decides about its
    tasks, which were on nobody until then.
    """
    sink, growth = MemorySink(), {("store", partition): steady(records=400_000, records_per_s=50, start_ms=START_MS) for partition in range(12)}
    config = ClusterConfig(group="orders", log_id="outage", configured=configured(), topology=TOPOLOGY, growth=growth, start_ms=START_MS)
    cluster = SimulatedCluster(config, seed=3, sink=sink)
    first = cluster.start_worker()
    for number in (1, 2, 3):
        cluster.start_process(ProcessSettings(member_id=f"m{number}", capacity=2))
    cluster.run_for(60_000)
    first.kill()
    stored, answered_to = cluster.broker.checkpoints[-1], cluster.broker.published[-1].caused_by
    last_ms = cluster.broker.facts.records[-1].append_ms
    cluster.run_for(20_000)
    cluster.last_process("m2").kill()
    cluster.run_for(180_000)
    cluster.start_worker()
    cluster.run_for(60_000)

    built = build_timeline(sink.entries)
    total = built.totals()
    facts = [each for each in sink.entries if isinstance(each, FactRecord)]
    before, after = WorkerMetrics(), WorkerMetrics()
    machine = GroupMachine()
    for record in facts:
        decisions = machine.step(record)
        if record.group and record.append_ms <= last_ms:
            before.folded(record, decisions, machine.state, live=True, is_new=True)
    machine = GroupMachine.restore(stored.state)
    after.begin("orders", machine.state)
    for record in facts[stored.offset + 1 :]:
        decisions = machine.step(record)
        after.folded(record, decisions, machine.state, live=False, is_new=record.offset > answered_to)
    stopped = {str(task) for task, _ in built.stopped(last_ms, built.to_ms).items()}
    assert {task for task in stopped if task.startswith("1_")}, "tasks without state waited for the decision, too"
    assert total.longest_ms > 180_000
    assert after.unavailable_in_all_s > len(stopped) * 180
    assert before.unavailable_in_all_s + after.unavailable_in_all_s == pytest.approx(total.stopped_ms / 1_000)
