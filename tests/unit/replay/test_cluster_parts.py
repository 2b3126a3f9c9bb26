"""Parts of the simulated cluster alone: queue, growth, restores, producer, fetches, and the
computation of costs.
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.errors import FieldError, GroupHalted, InputError, InvariantBroken
from equipoise.events.facts import LeaveIntended, LogOpened, Subtopology, TopologyDeclared
from equipoise.events.records import DecisionRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.simulation import ChangelogGrowth, NetworkSettings, RestoreModel, steady
from equipoise.replay.simulation.engine import Engine
from equipoise.replay.simulation.measures import Costs, Notes, ProcessLifetime, active_moves, fewest_moves, owners_at, silences
from equipoise.replay.simulation.process_network import NetworkEnd, SimulatedNetwork
from equipoise.replay.simulation.restored_copies import Disk, Restorer
from equipoise.replay.simulation.simulated_broker import Broker, ReplayedProducer
from equipoise.replay.simulation.world import CopyRestore, Ownership, SimulatedWorld
from tests.unit.replay.clusters_under_test import member, running_cluster, small_config

TASK, OTHER, STATELESS = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
TOPOLOGY = TopologyDeclared(
    epoch=0,
    subtopologies=(
        Subtopology(subtopology=0, partitions=2, stateful=True, changelog_topics=("log",)),
        Subtopology(subtopology=1, partitions=1, stateful=False),
    ),
)


# The queue


def test_events_come_by_time_and_then_by_order_of_asking():
    engine = Engine(seed=0, start_ms=100)
    seen: list[str] = []
    engine.after(5, seen.append, "later")
    engine.at(103, seen.append, "first")
    engine.at(103, seen.append, "second")
    engine.at(1, seen.append, "overdue: now")
    engine.run_until(104)
    assert seen == ["overdue: now", "first", "second"]
    assert engine.now_ms == 104
    assert engine.step()
    assert seen[-1] == "later"
    assert not engine.step()


def test_chance_draws_nothing_when_there_is_none():
    engine = Engine(seed=3)
    before = engine.random.getstate()
    assert not engine.chance(0)
    assert engine.random.getstate() == before
    assert engine.chance(1_000_000)
    assert {engine.between(2, 4) for _ in range(200)} == {2, 3, 4}


# Growth


def test_growth_is_straight_between_its_points_and_flat_outside():
    growth = ChangelogGrowth(((10, 100), (20, 200), (30, 200)))
    assert [growth.at(ms) for ms in (0, 10, 15, 19, 20, 25, 99)] == [100, 100, 150, 190, 200, 200, 200]
    assert steady(start_ms=1_000, records=5, records_per_s=3).at(3_500) == 12


@pytest.mark.parametrize("points", [(), ((1, 5), (1, 6)), ((1, 5), (2, 4))])
def test_growth_falling_or_repeated_is_refused(points: Any):
    with pytest.raises(FieldError, match=r"Growth\.points"):
        ChangelogGrowth(points)


# Restores


def restorer(records: int, rate: int = 0, ready_lag: int = 100, **model: Any) -> tuple[Restorer, SimulatedWorld]:
    world = SimulatedWorld(TOPOLOGY, {("log", partition): steady(records=records, records_per_s=rate) for partition in range(2)})
    return Restorer(RestoreModel(**{"records_per_s": 1_000, "latency_ms": 0, **model}), world, "m1", Disk(), ready_lag), world


def test_restorer_shares_speed_and_looks_when_a_copy_is_ready_or_done():
    it, world = restorer(1_000)
    it.follow(TASK, 0)
    it.follow(OTHER, 0)
    assert it.next_look_ms(0) == 1_800  # 900 records of each until ready
    it.advance(1_800)
    assert (it.lag(TASK, 1_800), it.lag(OTHER, 1_800)) == (100, 100)
    assert it.next_look_ms(1_800) == 2_000
    it.advance(2_000)
    assert (it.lag(TASK, 2_000), it.next_look_ms(2_000)) == (0, None)
    assert [(each.task, each.records, each.to_run) for each in world.restores] == [(TASK, 1_000, False), (OTHER, 1_000, False)]


def test_looking_often_does_not_slow_a_restore_down():
    often, _ = restorer(1_000, records_per_s=333)
    seldom, _ = restorer(1_000, records_per_s=333)
    for it in (often, seldom):
        it.follow(TASK, 0)
        it.follow(OTHER, 0)
    for now_ms in range(1, 1_501):
        often.advance(now_ms)
    seldom.advance(1_500)
    assert often.disk.positions[TASK] + often.disk.positions[OTHER] == seldom.disk.positions[TASK] + seldom.disk.positions[OTHER] == 499


def test_sequential_copies_come_one_after_the_other():
    it, _ = restorer(1_000, sequential=True)
    it.follow(OTHER, 0)
    it.follow(TASK, 1)
    it.advance(1_001)
    assert (it.lag(OTHER, 1_001), it.lag(TASK, 1_001)) == (0, 999)


def test_restorer_opened_task_comes_first_and_ends_where_it_opened():
    it, world = restorer(1_000, rate=100)
    it.follow(OTHER, 0)
    it.open(TASK, 500)
    it.advance(1_550)
    assert it.lag(TASK, 1_550) == 0  # 1,050 records at 500 ms; no writes until it runs
    it.leave(TASK, 1_550)
    assert world.restores == [CopyRestore(at_ms=1_550, task=TASK, member_id="m1", records=1_050, to_run=True)]
    assert it.disk.positions[OTHER] == 500


def test_restorer_latency_delays_new_copy_not_promoted_one():
    it, _ = restorer(1_000, latency_ms=300)
    it.follow(TASK, 0)
    assert it.next_look_ms(0) == 300
    it.advance(300)
    it.advance(400)
    assert it.lag(TASK, 400) == 900
    it.open(TASK, 400)
    it.advance(500)
    assert it.lag(TASK, 500) == 800


def test_followed_copy_stays_near_and_abandoned_copy_falls_behind():
    it, _ = restorer(0, rate=1_000, tailing_ms=50, records_per_s=100_000)
    it.follow(TASK, 0)
    it.advance(10)
    it.advance(1_000)
    assert it.lag(TASK, 1_000) == 50
    it.leave(TASK, 1_000)
    assert it.lag(TASK, 3_000) == 2_050


def test_restorer_asleep_reads_nothing():
    it, _ = restorer(1_000, rate=100)
    it.follow(TASK, 0)
    it.advance(500)
    it.sleep_until(10_500)
    it.advance(10_600)
    assert it.disk.positions[TASK] == 600
    tail, _ = restorer(0, rate=1_000, records_per_s=100_000)
    tail.follow(TASK, 0)
    tail.advance(1_000)
    tail.sleep_until(5_000)
    assert tail.lag(TASK, 5_000) >= 4_000


# The world


class Runner:
    """An owner as the world sees it."""

    def __init__(self, name: str, stops_by_ms: int) -> None:
        self.name = name
        self.member_id = name
        self.incarnation = 1
        self.stops_by_ms = stops_by_ms


def test_simulation_stops_at_the_millisecond_two_owners_overlap():
    world = SimulatedWorld(TOPOLOGY, {})
    first, second = Runner("a", 100), Runner("b", 999)
    world.started(TASK, first, 1, 0)
    with pytest.raises(InvariantBroken, match=r"b .* starts while a .* until 100 ms"):
        world.started(TASK, second, 2, 99)
    world.started(TASK, second, 2, 100)  # the first one's lease is over
    world.stopped(TASK, first, 500)  # and says so late
    assert [(each.member_id, each.start_ms, each.end_ms) for each in world.history(150)] == [("a", 0, 100), ("b", 100, 150)]
    assert (world.owner_of(TASK, 150), world.owner_of(TASK, 999)) == ("b", None)


def test_world_older_token_after_newer_raises():
    world = SimulatedWorld(TOPOLOGY, {})
    runner = Runner("a", 999)
    world.started(TASK, runner, 5, 0)
    world.stopped(TASK, runner, 10)
    with pytest.raises(InvariantBroken, match="token 4 after token 5"):
        world.started(TASK, Runner("b", 999), 4, 20)


# The network and the broker


def office(**settings: Any) -> tuple[Engine, Broker, NetworkEnd]:
    engine = Engine(seed=1)
    network = SimulatedNetwork(engine, NetworkSettings(least_delay_ms=1, most_delay_ms=1, resend_after_ms=100, **settings))
    broker = Broker(engine, network, group="g")
    broker.append_fact(LogOpened(log_id="x"))
    return engine, broker, NetworkEnd("p", engine, network)


def leave_of(number: int) -> LeaveIntended:
    return LeaveIntended(member_id="m", incarnation=number)


@pytest.mark.parametrize("loss", [0, 300_000])
def test_producer_under_losses_appends_once_in_order(loss: int):
    engine, broker, owner = office(loss_per_million=loss)
    acknowledged: list[tuple[int, int]] = []
    producer = ReplayedProducer(owner, broker, broker.facts, lambda fact, sent_ms: acknowledged.append((fact.incarnation, sent_ms)))
    for number in range(50):
        engine.at(number * 7, producer.send, leave_of(number))
    engine.run_until(20_000)
    assert [record.event for record in broker.facts.records[1:]] == [leave_of(number) for number in range(50)]
    assert acknowledged == [(number, number * 7) for number in range(50)]  # dated from when it was first sent
    assert producer.idle


def test_failover_answers_only_afterwards_with_the_next_clock():
    engine, broker, owner = office()
    producer = ReplayedProducer(owner, broker, broker.facts, lambda fact, sent_ms: None)
    broker.fail_over(down_ms=1_000, clock_jump_ms=40_000)
    producer.send(leave_of(0))
    engine.run_until(999)
    assert len(broker.facts.records) == 1
    engine.run_until(2_000)
    assert 41_000 <= broker.facts.records[1].append_ms <= 41_200


def test_dead_endpoint_messages_arrive_answers_do_not():
    engine, broker, owner = office()
    acknowledged: list[Any] = []
    producer = ReplayedProducer(owner, broker, broker.facts, lambda fact, sent_ms: acknowledged.append(fact))
    producer.send(leave_of(0))
    owner.kill()
    engine.run_until(1_000)
    assert len(broker.facts.records) == 2
    assert acknowledged == []


def test_paused_endpoint_runs_all_on_resume():
    engine, _, owner = office()
    seen: list[int] = []
    owner.pause()
    owner.after(10, seen.append, 1)
    owner.run(seen.append, 2)
    engine.run_until(100)
    assert seen == []
    owner.resume()
    assert sorted(seen) == [1, 2]


def test_fetch_waits_for_record_or_timeout():
    engine, broker, _ = office()
    answers: list[tuple[int, int, int, bool]] = []

    def respond(tag: int, records: list[Any], position: int, reached_end: bool) -> None:
        answers.append((engine.now_ms, len(records), position, reached_end))

    broker.fetch("p", broker.facts, 0, 500, respond, 1)
    broker.fetch("p", broker.facts, 1, 500, respond, 2)
    engine.at(200, broker.append_fact, leave_of(1))
    engine.at(200, broker.wake_facts)
    engine.at(300, broker.fetch, "p", broker.facts, 2, 500, respond, 3)
    engine.run_until(2_000)
    assert answers == [(1, 1, 1, True), (201, 1, 2, True), (801, 0, 2, True)]


def test_decision_number_conflict_or_gap_halts_the_group():
    _, broker, owner = office()
    producer = ReplayedProducer(owner, broker, broker.decisions, lambda decision, sent_ms: None)

    def decision(number: int, index: int = 0) -> DecisionRecord:
        return DecisionRecord("x", "g", number, 1, index, 0, leave_of(0))  # type: ignore[arg-type]

    broker.produce(producer, 1, broker.decisions, [decision(1), decision(1), decision(2)])
    assert (len(broker.published), broker.duplicates) == (2, 1)
    with pytest.raises(GroupHalted, match="two decisions have number 2"):
        broker.produce(producer, 2, broker.decisions, [decision(2, index=1)])
    with pytest.raises(GroupHalted, match="4 was published after 2"):
        broker.produce(producer, 3, broker.decisions, [decision(4)])


def test_cluster_unknown_name_error_says_so():
    cluster = running_cluster(small_config(), "m1", settled_ms=5_000)
    with pytest.raises(InputError, match="never had a process"):
        cluster.last_process("m9")
    with pytest.raises(InputError, match="still alive"):
        cluster.restart("m1")


# What it cost


def own(task: TaskId, member_id: str, start_ms: int, end_ms: int, incarnation: int = 1) -> Ownership:
    return Ownership(task=task, member_id=member_id, process=member_id, incarnation=incarnation, token=1, start_ms=start_ms, end_ms=end_ms)


HISTORY = [
    own(TASK, "a", 0, 10_000),
    own(TASK, "b", 11_000, 20_000),
    own(TASK, "b", 22_500, 60_000, incarnation=2),
    own(OTHER, "a", 0, 30_000),
    own(STATELESS, "a", 5_000, 29_000),
    own(STATELESS, "b", 33_000, 50_000),
]


def test_processing_gap_counts_in_full_when_longer_than_a_second():
    assert [(each.task, each.start_ms, each.lasts_ms, each.from_member, each.to_member) for each in silences(HISTORY, 60_000)] == [
        (TASK, 20_000, 2_500, "b", "b"),
        (OTHER, 30_000, 30_000, "a", None),
        (STATELESS, 29_000, 4_000, "a", "b"),
        (STATELESS, 50_000, 10_000, "b", None),
    ]


def test_active_moves_counts_members_not_restarts():
    assert [(move.at_ms, move.task, move.from_member, move.to_member) for move in active_moves(HISTORY)] == [
        (11_000, TASK, "a", "b"),
        (33_000, STATELESS, "a", "b"),
    ]
    assert owners_at(HISTORY, 12_000) == {TASK: "b", OTHER: "a", STATELESS: "a"}


@pytest.mark.parametrize(
    ("held", "capacities", "fewest"),
    [
        ({"a": 13, "b": 13}, {"a": 1, "b": 1, "c": 1}, 8),
        ({"a": 8, "b": 9, "c": 9}, {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, 10),
        ({"a": 6, "gone": 5, "b": 5, "c": 5, "d": 5}, {"a": 1, "b": 1, "c": 1, "d": 1}, 5),
        ({"a": 9, "b": 9, "c": 8}, {"a": 1, "b": 1, "c": 1}, 0),
        ({"a": 10, "b": 8, "c": 8}, {"a": 1, "b": 1, "c": 1}, 1),
        ({"a": 6, "b": 3}, {"a": 2, "b": 1}, 0),
        ({"a": 3, "b": 6}, {"a": 2, "b": 1}, 3),
        ({"gone": 4}, {}, 0),
    ],
)
def test_fewest_moves_for_balance(held: dict[str, int], capacities: dict[str, int], fewest: int):
    tasks = (TaskId(0, partition) for partition in range(99))
    owners = {next(tasks): name for name, count in held.items() for _ in range(count)}
    assert fewest_moves(owners, capacities) == fewest


def test_window_cost_counts_events_within_it_and_silence_before():
    notes = Notes()
    notes.rounds = [(9_000, "join"), (21_000, "expiry"), (24_000, "expiry")]
    notes.copies = [(21_000, "begun"), (21_500, "promoted")]
    costs = Costs(
        tasks={TASK: True, OTHER: True, STATELESS: False},
        history=HISTORY,
        restores=[
            CopyRestore(at_ms=22_000, task=TASK, member_id="b", records=70, to_run=True),
            CopyRestore(at_ms=23_000, task=OTHER, member_id="b", records=9, to_run=False),
        ],
        notes=notes,
        lives=[
            ProcessLifetime(member_id="a", capacity=1, start_ms=0, end_ms=30_000),
            ProcessLifetime(member_id="b", capacity=1, start_ms=0, end_ms=None),
        ],
        end_ms=60_000,
    )
    cost = costs.window("w", 21_000, 40_000)
    assert cost.unavailable_ms_per_task == {"0_0": 1_500, "0_1": 30_000, "1_0": 4_000}  # 0_0 fell silent 1 s before the window began
    assert cost.totals["unavailable_task_seconds"] == 35.5
    assert cost.totals["unavailable_stateful_task_seconds"] == 31.5
    assert cost.totals["unavailable_task_seconds_of_tasks_on_untouched_instances"] == 1.5
    assert cost.totals["longest_silence_ms"] == 30_000
    assert (cost.totals["active_moves"], cost.totals["stateful_active_moves"], cost.totals["net_active_moves"]) == (1, 0, 1)
    assert (cost.totals["generations"], cost.causes, cost.totals["seconds_to_last_generation"]) == (2, {"expiry": 2}, 3.0)
    assert (cost.totals["records_restored_before_running"], cost.totals["records_restored"]) == (70, 79)
    assert (cost.totals["standby_copies_begun"], cost.totals["standby_copies_promoted"], cost.totals["standby_copies_dropped"]) == (1, 1, 0)
    assert cost.totals["min_moves_for_balance"] == 2  # b alone is left, and a had two
    assert cost.tasks_per_member == {"b": 2}
    assert costs.window("before", 0, 21_000).unavailable_ms_per_task == {}


def test_imbalance_is_tasks_beyond_the_shares_times_how_long():
    history = [own(TASK, "a", 0, 10_000), own(OTHER, "a", 0, 4_000), own(OTHER, "b", 4_000, 10_000)]
    costs = Costs(
        tasks={TASK: True, OTHER: True},
        history=sorted(history, key=lambda each: (each.task, each.start_ms)),
        restores=[],
        notes=Notes(),
        lives=[
            ProcessLifetime(member_id="a", capacity=1, start_ms=0, end_ms=None),
            ProcessLifetime(member_id="b", capacity=1, start_ms=1_000, end_ms=None),
        ],
        end_ms=10_000,
    )
    assert costs.window("w", 0, 10_000).totals["imbalance_task_seconds"] == 6.0  # one too many and one too few, from 1 s to 4 s


def test_duplicate_is_a_process_of_its_own():
    cluster = running_cluster(small_config(), "m1", settled_ms=20_000)
    cluster.start_process(member("m2"))
    cluster.duplicate("m1")
    assert [process.name for process in cluster.processes] == ["m1#1", "m2#1", "m1#2"]
