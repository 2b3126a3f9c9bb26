"""An operator's leave request in the simulated cluster: the member leaves without a gap, also when
it crashes on the way. See docs/protocol.md#m8.
"""

from __future__ import annotations

from equipoise.events.facts import LeaveRequested
from equipoise.events.settings import GroupSettings
from equipoise.replay.inputs_reader import read_recorded_inputs
from equipoise.replay.recorded_inputs import ProcessEnded
from equipoise.replay.simulation.member_process import Exit
from equipoise.replay.simulation.simulated_cluster import SimulatedCluster
from tests.change_cost import change_cost

MOST_MS = 300_000


def settled() -> SimulatedCluster:
    return change_cost(tasks=6, members=2, joiners=1, settings=GroupSettings(), records=50_000, seed=3).cluster


def run_until_gone(cluster: SimulatedCluster, member_id: str) -> None:
    until_ms = cluster.now_ms + MOST_MS
    while cluster.last_process(member_id).alive:
        assert cluster.now_ms < until_ms, cluster.machine.state.members[member_id]
        cluster.run_for(500)


def test_requested_leave_drains_the_member_and_no_task_waits_long() -> None:
    cluster = settled()
    asked_ms = cluster.now_ms
    cluster.append(LeaveRequested(members=("m0",)))
    run_until_gone(cluster, "m0")
    cluster.run_for(10_000)
    assert cluster.last_process("m0").exit is Exit.LEFT
    assert sorted(cluster.machine.state.members) == ["m1", "m2"]
    assert cluster.machine.state.asked == {}
    assert set(cluster.world.owners(cluster.now_ms).values()) == {"m1", "m2"}
    assert len(cluster.world.owners(cluster.now_ms)) == 6
    ended: dict[object, int] = {}
    for each in cluster.world.history(cluster.now_ms):
        if each.task in ended and each.start_ms >= asked_ms:
            assert each.start_ms - ended[each.task] < 3_000, "a hand-over, not a restore"
        ended[each.task] = each.end_ms


def test_member_that_crashes_while_draining_is_asked_again_after_its_restart() -> None:
    cluster = settled()
    cluster.append(LeaveRequested(members=("m0",)))
    cluster.run_for(50)
    cluster.last_process("m0").kill()
    cluster.run_for(2_000)
    cluster.restart("m0")
    run_until_gone(cluster, "m0")
    cluster.run_for(1_000)
    assert [how for _, name, how in cluster.exits if name.startswith("m0")] == [Exit.KILLED, Exit.LEFT]
    assert cluster.machine.state.asked == {}


def test_withdrawn_leave_request_moves_nothing() -> None:
    cluster = settled()
    before = cluster.world.owners(cluster.now_ms)
    cluster.append(LeaveRequested(members=("m0",)))
    cluster.run_for(50)
    cluster.append(LeaveRequested(members=("m0",), withdrawn=True))
    cluster.run_for(60_000)
    assert cluster.last_process("m0").alive
    assert cluster.world.owners(cluster.now_ms) == before


def test_requested_leave_is_recorded_as_an_announced_close() -> None:
    cluster = settled()
    asked_ms = cluster.append(LeaveRequested(members=("m0",))).append_ms
    run_until_gone(cluster, "m0")
    cluster.run_for(1_000)
    outside = read_recorded_inputs([*cluster.broker.facts.records, *cluster.broker.decisions.records])
    (end,) = [each for each in outside.happenings if isinstance(each, ProcessEnded) and each.member_id == "m0"]
    assert (end.how, end.at_ms) == ("announced", asked_ms)
