"""The simulated cluster: runs without faults converge, each fault alone has the effect that the
protocol states, and equal seeds give equal bytes.
"""

from __future__ import annotations

import attrs
import pytest

from equipoise.events.decisions import AssignmentIssued, EventRejected, MemberExpired
from equipoise.events.errors import GroupHalted, InvariantBroken
from equipoise.events.facts import LagReported, MemberJoined, ProbingTick
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.log import open_log
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.recorded_inputs import ProcessStarted
from equipoise.replay.simulation import NetworkSettings, SimulatedCluster
from equipoise.replay.simulation.member_process import Exit
from equipoise.replay.simulation.restored_copies import RestoreModel
from equipoise.statemachine.machine import GroupMachine
from tests.search.rules import NoHold
from tests.unit.replay.clusters_under_test import (
    LEASE_MS,
    SESSION_MS,
    START_MS,
    Memory,
    RecordingWatcher,
    assert_settled,
    member,
    running_cluster,
    silences_ms,
    small_config,
)

LOSSY = NetworkSettings(most_delay_ms=30, loss_per_million=20_000, report_loss_per_million=50_000)


def owned_by(cluster: SimulatedCluster, member_id: str) -> set[TaskId]:
    return {task for task, owner in cluster.world.owners(cluster.now_ms).items() if owner == member_id}


# Calm


def test_cluster_without_faults_settles_and_stays():
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(), "m1", "m2", "m3", watcher=kept)
    assert_settled(cluster)
    assert sorted(len(owned_by(cluster, name)) for name in ("m1", "m2", "m3")) == [2, 3, 3]
    rounds, since_ms = len(kept.of(AssignmentIssued)), cluster.now_ms
    cluster.run_for(600_000)
    assert len(kept.of(AssignmentIssued)) == rounds
    assert set(silences_ms(cluster, since_ms).values()) == {0}
    assert kept.of(EventRejected) == []


def test_join_warms_up_first_and_stops_no_task():
    cluster = running_cluster(small_config(stateful=12, stateless=0, acceptable_recovery_lag=1_000), "m1", "m2", "m3")
    since_ms = cluster.now_ms
    before = cluster.world.owners(since_ms)
    cluster.start_process(member("m4"))
    cluster.run_for(120_000)
    assert_settled(cluster)
    after = cluster.world.owners(cluster.now_ms)
    assert {after[task] for task in after if after[task] != before[task]} == {"m4"}
    assert sum(after[task] != before[task] for task in after) == 3
    assert max(silences_ms(cluster, since_ms).values()) < 500


@pytest.mark.parametrize(("early_ms", "lag"), [(0, 1_500), (500, 0)])
def test_process_that_is_early_restores_what_is_on_its_disk_before_it_joins(early_ms: int, lag: int):
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(stateful=2, stateless=0), "m1", "m2", watcher=kept)
    (task,) = owned_by(cluster, "m1")
    cluster.last_process("m2").kill()
    cluster.disks["m2"].positions[task] = cluster.world.end_offset(task, cluster.now_ms) - 1_500
    cluster.start_process(member("m2", early_ms=early_ms, restore=RestoreModel(records_per_s=8_000)))
    cluster.run_for(2_000)
    (*_, told) = [each.event.lags[task] for each in kept.facts if isinstance(each.event, MemberJoined) and task in each.event.lags]
    assert isinstance(told, int)
    assert lag <= told <= lag + 500


def test_changed_limit_applies_to_reports_in_flight():
    """Readiness and lag of members that joined before and after the change."""
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(stateful=12, stateless=0, acceptable_recovery_lag=10_000), "m1", watcher=kept)
    for limit, name in ((10_000, "m2"), (200, "m3")):
        cluster.append(attrs.evolve(cluster.config.configured, knobs=attrs.evolve(cluster.config.configured.knobs, acceptable_recovery_lag=limit)))
        since = len(kept.decisions)
        cluster.start_process(member(name, restore=RestoreModel(records_per_s=5_000)))
        cluster.run_for(300_000)
        assert_settled(cluster)
        issued = [each.decision for each in kept.decisions[since:] if isinstance(each.decision, AssignmentIssued)]
        lags = [move.lag_records for each in issued for move in each.moves if move.state == "revoking"]
        assert lags
        assert all(lag is not None and limit // 4 < lag <= limit for lag in lags), "handed over as soon as the copy is ready, and no sooner"


def test_preparation_takes_its_time_in_simulation_and_what_if():
    """From the join to the hand-over; a what-if of that log takes as long for the preparation."""
    kept = RecordingWatcher()
    config = small_config(stateful=4, stateless=0, acceptable_recovery_lag=1_000)
    cluster = SimulatedCluster(config, seed=1, watcher=kept)
    cluster.start_worker()
    cluster.start_process(member("m1", prepare_ms=2_000))
    cluster.run_for(60_000)
    since_ms = cluster.now_ms
    assert all(6_000 <= silence <= 12_000 for silence in silences_ms(cluster, START_MS).values()), "granted cold, and prepared before it runs"
    cluster.start_process(member("m2", prepare_ms=40_000))
    cluster.run_for(35_000)
    assert set(cluster.world.owners(cluster.now_ms).values()) == {"m1"}
    assert cluster.last_process("m2").session.to_prepare(), "they are near enough since long"
    cluster.run_for(120_000)
    assert_settled(cluster)
    assert len(owned_by(cluster, "m2")) == 2
    assert max(silences_ms(cluster, since_ms).values()) < 500
    started = [each for each in read_recorded_inputs([*kept.facts, *kept.decisions]).happenings if isinstance(each, ProcessStarted)]
    assert [each.member_id for each in started] == ["m1", "m2"]
    assert all(abs((each.prepare_ms or 0) - wanted) <= 3_100 for each, wanted in zip(started, (2_000, 40_000), strict=True))


def test_empty_group_gets_no_ticks():
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(), "m1", watcher=kept)
    cluster.last_process("m1").close()
    cluster.run_for(5_000)
    assert cluster.exits[-1][1:] == ("m1#1", Exit.LEFT)
    facts = len(kept.facts)
    cluster.run_for(600_000)
    assert len(kept.facts) == facts


def test_tick_expires_the_only_member_after_its_silence():
    """With nothing else in the log its session must still expire. See docs/protocol.md#l3."""
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(), "m1", watcher=kept)
    cluster.last_process("m1").kill()
    cluster.run_for(SESSION_MS + 3_000)
    assert [expired.cause for expired in kept.of(MemberExpired)] == ["session_timeout"]
    assert any(isinstance(record.event, ProbingTick) for record in kept.facts)


# The same again


@pytest.mark.parametrize("network", [NetworkSettings(), LOSSY])
def test_cluster_log_depends_only_on_the_seed(network: NetworkSettings):
    def log_of(seed: int) -> list[str]:
        memory = Memory()
        cluster = running_cluster(small_config(network=network), "m1", "m2", seed=seed, sink=memory, settled_ms=30_000)
        cluster.last_process("m2").kill()
        cluster.run_for(30_000)
        return memory.lines

    first = log_of(5)
    assert first == log_of(5)
    assert first != log_of(6)


def test_cluster_log_replays_to_the_same_decisions(tmp_path):
    location = tmp_path / "group.db"
    with open_log(location, "w") as log, log.transaction():
        cluster = running_cluster(small_config(), "m1", "m2", sink=log)
        cluster.start_process(member("m3"))
        cluster.run_for(60_000)
    machine = GroupMachine()
    pending: list[DecisionRecord] = []
    facts = 0
    with open_log(location) as log:
        for record in log.read():
            if isinstance(record, DecisionRecord):
                assert record == pending.pop(0)
            else:
                assert isinstance(record, FactRecord)
                assert pending == []
                pending = machine.step(record)
                facts += 1
    assert pending == []
    assert facts == cluster.folded > 50


# The network


def test_lossy_network_healed_group_settles():
    cluster = running_cluster(small_config(network=LOSSY), "m1", "m2", "m3", settled_ms=120_000)
    cluster.network.heal()
    cluster.run_for(60_000)
    assert_settled(cluster)


def test_lost_report_next_one_is_full():
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(network=NetworkSettings(report_loss_per_million=500_000)), "m1", "m2", watcher=kept, settled_ms=200_000)
    cluster.network.heal()
    cluster.run_for(20_000)
    assert_settled(cluster)
    reports = [record.event for record in kept.facts if isinstance(record.event, LagReported)]
    assert {report.base is None for report in reports} == {True, False}


@pytest.mark.parametrize("duration_ms", [LEASE_MS // 3, SESSION_MS * 2])
def test_member_cut_off_within_its_lease_goes_on_and_beyond_it_rejoins(duration_ms: int):
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(num_standbys=1), "m1", "m2", watcher=kept)
    process = cluster.last_process("m1")
    incarnation, since_ms = process.incarnation, cluster.now_ms
    cluster.network.cut(process.name, duration_ms)
    cluster.run_for(120_000)
    assert_settled(cluster)
    if duration_ms < LEASE_MS:
        assert process.incarnation == incarnation
        assert set(silences_ms(cluster, since_ms).values()) == {0}
        assert kept.of(MemberExpired) == []
    else:
        assert process.incarnation > incarnation
        assert [(expired.incarnation, expired.cause) for expired in kept.of(MemberExpired)] == [(incarnation, "session_timeout")]


# Processes


def test_kill_only_its_tasks_wait_for_the_session_timeout():
    cluster = running_cluster(small_config(num_standbys=1), "m1", "m2", "m3")
    since_ms = cluster.now_ms
    lost = owned_by(cluster, "m1")
    cluster.last_process("m1").kill()
    cluster.run_for(60_000)
    assert_settled(cluster)
    waited = {task: gap for task, gap in silences_ms(cluster, since_ms).items() if gap}
    assert set(waited) == lost
    assert max(waited.values()) <= SESSION_MS + 3_000


def test_restart_proven_dead_takes_over_at_once():
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(), "m1", "m2", "m3", watcher=kept)
    since_ms = cluster.now_ms
    before = cluster.world.owners(since_ms)
    cluster.last_process("m1").kill()
    cluster.restart("m1")
    cluster.run_for(60_000)
    assert [(expired.cause, expired.hold_ms) for expired in kept.of(MemberExpired)] == [("proven_dead", 0)]
    assert max(silences_ms(cluster, since_ms).values()) < 2_500  # its start, and its last second of writes
    assert cluster.world.owners(cluster.now_ms) == before


def test_restart_unproven_waits_out_the_old_lease():
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(), "m1", "m2", "m3", watcher=kept)
    since_ms = cluster.now_ms
    lost = owned_by(cluster, "m1")
    cluster.last_process("m1").kill()
    cluster.restart("m1", proven=False)
    cluster.run_for(60_000)
    assert [(expired.cause, expired.hold_ms) for expired in kept.of(MemberExpired)] == [("superseded", SESSION_MS)]
    waited = {task: gap for task, gap in silences_ms(cluster, since_ms).items() if gap > LEASE_MS // 2}
    assert waited.keys() == lost
    assert max(waited.values()) < 1.5 * SESSION_MS  # not the restart's time, and then the hold: the dead one's silence counts
    assert_settled(cluster)


def test_zombie_and_successor_never_overlap():
    cluster = running_cluster(small_config(), "m1", "m2")
    cluster.duplicate("m1")
    cluster.run_for(60_000)  # the world raises InvariantBroken at the first overlap
    assert cluster.exits[0][1:] == ("m1#1", Exit.SUPERSEDED)
    assert_settled(cluster)


def test_zombie_resumed_exits_before_it_runs_a_task():
    cluster = running_cluster(small_config(), "m1", "m2")
    zombie = cluster.last_process("m1")
    zombie.pause()
    cluster.duplicate("m1")
    cluster.run_for(60_000)
    zombie.resume()
    cluster.run_for(10_000)
    assert zombie.exit is Exit.SUPERSEDED
    assert_settled(cluster)


@pytest.mark.parametrize("duration_ms", [LEASE_MS // 3, LEASE_MS + 500, 3 * SESSION_MS])
def test_paused_process_runs_nothing_after_lease(duration_ms: int):
    cluster = running_cluster(small_config(), "m1", "m2")
    process = cluster.last_process("m1")
    incarnation = process.incarnation
    process.pause()
    cluster.run_for(duration_ms)
    process.resume()
    assert (process.running == []) == (duration_ms > LEASE_MS)
    cluster.run_for(120_000)
    assert_settled(cluster)
    assert (process.incarnation == incarnation) == (duration_ms < LEASE_MS)


def test_lost_disk_restores_from_the_start():
    cluster = running_cluster(small_config(), "m1", "m2")
    lost = owned_by(cluster, "m1")
    cluster.last_process("m1").kill()
    cluster.wipe("m1")
    cluster.restart("m1")
    cluster.run_for(120_000)
    assert_settled(cluster)
    stateful = {task for task in lost if task.subtopology == 0}
    restored = {each.task for each in cluster.world.restores if each.records > 40_000}
    assert stateful <= restored


def test_kept_disk_is_reported_at_join_and_not_restored():
    cluster = running_cluster(small_config(acceptable_recovery_lag=1_000), "m1", "m2")
    before = len(cluster.world.restores)
    cluster.last_process("m1").kill()
    cluster.restart("m1")
    cluster.run_for(60_000)
    joined = [record.event for record in cluster.broker.facts.records if isinstance(record.event, MemberJoined)][-1]
    assert set(joined.lags) == {TaskId(0, partition) for partition in range(6) if TaskId(0, partition) in joined.lags} != set()
    assert sum(each.records for each in cluster.world.restores[before:]) < 2_000


def test_announced_leave_stops_no_task_and_ends_as_left():
    cluster = running_cluster(small_config(acceptable_recovery_lag=1_000), "m1", "m2", "m3")
    since_ms = cluster.now_ms
    cluster.last_process("m1").leave()
    cluster.run_for(120_000)
    assert cluster.exits == [(cluster.exits[0][0], "m1#1", Exit.LEFT)]
    assert_settled(cluster)
    assert max(silences_ms(cluster, since_ms).values()) < 1_000


def test_leave_cancelled_in_time_keeps_the_member():
    cluster = running_cluster(small_config(), "m1", "m2", "m3")
    cluster.last_process("m1").leave()
    cluster.run_for(50)
    cluster.last_process("m1").cancel_leave()
    cluster.run_for(120_000)
    assert cluster.exits == []
    assert_settled(cluster)
    assert len(owned_by(cluster, "m1")) >= 2


def test_plain_close_moves_its_tasks_at_once():
    cluster = running_cluster(small_config(num_standbys=1), "m1", "m2", "m3")
    since_ms = cluster.now_ms
    cluster.last_process("m1").close()
    cluster.run_for(60_000)
    assert cluster.exits[0][2] is Exit.LEFT
    assert_settled(cluster)
    assert max(silences_ms(cluster, since_ms).values()) < 1_000


def test_silent_close_waits_session_timeout():
    cluster = running_cluster(small_config(num_standbys=1), "m1", "m2", "m3")
    since_ms = cluster.now_ms
    lost = owned_by(cluster, "m1")
    cluster.last_process("m1").close_silently()
    cluster.run_for(60_000)
    assert cluster.exits[0][2] is Exit.SILENT
    assert_settled(cluster)
    assert {task for task, gap in silences_ms(cluster, since_ms).items() if gap >= SESSION_MS - 3_000} == lost


def test_stuck_reader_ends_its_lease():
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(), "m1", "m2", watcher=kept)
    process = cluster.last_process("m1")
    incarnation = process.incarnation
    process.stick(2 * SESSION_MS)
    cluster.run_for(LEASE_MS + 1_500)
    assert owned_by(cluster, "m1") == set()
    cluster.run_for(60_000)
    assert process.incarnation > incarnation
    assert_settled(cluster)


def test_reader_that_skips_rereads_the_gap():
    cluster = running_cluster(small_config(), "m1", "m2", "m3")
    for process in cluster.live_processes():
        process.skip_records(3)
    cluster.start_process(member("m4"))
    cluster.run_for(120_000)
    assert_settled(cluster)


# The broker


@pytest.mark.parametrize("jump_ms", [0, 40_000, 86_400_000, -40_000])
def test_failover_with_clock_jump_expires_no_member(jump_ms: int):
    kept = RecordingWatcher()
    cluster = running_cluster(small_config(), "m1", "m2", watcher=kept)
    since_ms = cluster.now_ms
    cluster.broker.fail_over(down_ms=1_500, clock_jump_ms=jump_ms)
    cluster.run_for(60_000)
    assert kept.of(MemberExpired) == []
    assert set(silences_ms(cluster, since_ms).values()) == {0}


def test_broker_outage_stops_members_until_it_ends():
    cluster = running_cluster(small_config(), "m1", "m2")
    cluster.broker.fail_over(down_ms=3 * SESSION_MS, clock_jump_ms=0)
    cluster.run_for(2 * SESSION_MS)
    assert cluster.world.owners(cluster.now_ms) == {}
    cluster.run_for(120_000)
    assert_settled(cluster)


# The leader


def test_live_process_that_is_claimed_dead_ends_as_superseded():
    """The claim is false, and the two sides must not take the tasks from each other in turns."""
    cluster = running_cluster(small_config(), "m1")
    (first,) = cluster.processes
    cluster.start_process(first.settings, proven_dead=first.incarnation)
    cluster.run_for(20_000)
    assert first.exit is Exit.SUPERSEDED
    assert [process.exit for process in cluster.processes if process is not first] == [None]


def test_two_workers_publish_identical_duplicates():
    cluster = running_cluster(small_config(), "m1", "m2")
    cluster.start_worker()
    cluster.run_for(5_000)
    assert cluster.workers[1].taken_over > 0
    before = cluster.broker.duplicates
    cluster.start_process(member("m3"))
    cluster.run_for(60_000)  # the broker raises GroupHalted at the first pair that differs
    assert cluster.broker.duplicates > before
    assert_settled(cluster)


def test_worker_killed_before_publishing_next_publishes_the_missing():
    cluster = running_cluster(small_config(checkpoint_every_records=20), "m1", "m2")
    cluster.network.cut("worker-1", 5_000)
    cluster.start_process(member("m3"))
    cluster.run_for(4_000)
    cluster.workers[0].kill()
    cluster.start_worker()
    cluster.run_for(60_000)
    assert cluster.broker.checkpoints[-1].offset > 40
    assert cluster.workers[1].taken_over < len(cluster.broker.published)  # from the checkpoint, not from the start
    assert_settled(cluster)
    assert owned_by(cluster, "m3")


def test_worker_with_another_decision_halts_the_group_instead_of_publishing():
    class Otherwise(GroupMachine):
        """Another build with a changed decision and the same behaviour version."""

        def step(self, record):
            return [
                attrs.evolve(each, decision=attrs.evolve(each.decision, cause="join")) if isinstance(each.decision, AssignmentIssued) else each
                for each in super().step(record)
            ]

    cluster = running_cluster(small_config(), "m1", "m2")
    cluster.workers[0].kill()
    cluster._machine_factory = lambda checkpoint: Otherwise()
    cluster.start_worker()
    with pytest.raises(GroupHalted) as halted:
        cluster.run_for(5_000)
    assert halted.value.code == "published_differs"


def test_members_without_worker_go_on():
    cluster = running_cluster(small_config(), "m1", "m2")
    cluster.workers[0].kill()
    since_ms = cluster.now_ms
    cluster.run_for(120_000)
    assert set(silences_ms(cluster, since_ms).values()) == {0}
    cluster.start_worker()
    cluster.run_for(60_000)
    assert_settled(cluster)


# The world finds what is wrong


def test_two_owners_stop_the_run_and_are_named():
    cluster = running_cluster(small_config(), "m1", "m2", session_factory=NoHold)
    cluster.last_process("m1").pause()
    cluster.run_for(100)
    cluster.last_process("m1").resume()
    zombie = cluster.last_process("m1")
    cluster.network.cut(zombie.name, SESSION_MS)
    cluster.duplicate("m1")
    with pytest.raises(InvariantBroken, match="may go on until") as broken:
        cluster.run_for(SESSION_MS)
    assert broken.value.number == 1
    assert "m1#1" in str(broken.value)


def test_log_clock_is_the_worlds_until_a_clock_jump():
    cluster = running_cluster(small_config(), "m1", settled_ms=10_000)
    assert cluster.broker.facts.records[0].append_ms == START_MS
    cluster.broker.fail_over(down_ms=0, clock_jump_ms=40_000)
    cluster.run_for(10_000)
    assert cluster.broker.facts.records[-1].append_ms > cluster.now_ms + 30_000
