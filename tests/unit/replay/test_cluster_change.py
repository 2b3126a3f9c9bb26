"""A join makes the fewest moves that balance needs, interrupts no task before its destination is
caught up, and ends.
"""

from __future__ import annotations

import pytest

from equipoise.events.decisions import Checkpointed
from equipoise.events.settings import GroupSettings
from tests.change_cost import ChangeCost, change_cost


@pytest.fixture(scope="module")
def seventh() -> ChangeCost:
    """60 stateful tasks on 6 members and a seventh that joins, with default settings, so 2
    warm-ups.
    """
    return change_cost(tasks=60, members=6)


def test_seventh_member_makes_the_fewest_moves(seventh: ChangeCost):
    assert (seventh.moves, seventh.fewest, seventh.moved_more_than_once) == (8, 8, 0)


def test_seventh_member_takes_few_rounds(seventh: ChangeCost):
    assert seventh.probing_rounds <= 5


def test_seventh_member_interrupts_no_running_task(seventh: ChangeCost):
    assert seventh.interrupted == ()
    assert seventh.longest_silence_ms < 1_000


@pytest.mark.slow
def test_settled_group_changes_nothing_in_a_hundred_thousand_facts(seventh: ChangeCost):
    cluster = seventh.cluster
    generation, number, facts = cluster.machine.state.generation, cluster.machine.state.number, cluster.folded
    owners = cluster.world.owners(cluster.now_ms)
    while cluster.folded < facts + 100_000:
        cluster.run_for(1_000_000)
    decisions = [each.decision for each in cluster.broker.published[number:]]
    assert cluster.machine.state.generation == generation
    assert cluster.world.owners(cluster.now_ms) == owners
    assert {type(decision) for decision in decisions} <= {Checkpointed}


@pytest.mark.parametrize(("tasks", "members", "joiners"), [(60, 6, 1), (24, 2, 2), (7, 3, 1)])
def test_joiners_interrupt_no_task_at_any_size(tasks: int, members: int, joiners: int):
    cost = change_cost(tasks=tasks, members=members, joiners=joiners, settings=GroupSettings(max_warmups=4, probing_interval_ms=60_000), seed=7)
    assert cost.moves == cost.fewest
    assert cost.interrupted == ()
    assert cost.longest_silence_ms < 1_000


def test_tasks_of_a_leaver_run_elsewhere_until_its_replacement_is_warm():
    """Six tasks lose their owner and run elsewhere at once; the same six move to the successor when
    it has restored them.
    """
    cost = change_cost(tasks=24, members=4, joiners=1, leavers=1, settings=GroupSettings(probing_interval_ms=20_000))
    assert (cost.changed, cost.fewest, cost.moves, cost.interrupted) == (6, 6, 12, ())


def test_kafkas_assignor_moves_most_tasks_one_probing_round_after_the_other():
    """Tasks k with k mod 3 = k mod 4 stay: 6 of 18. Two warm-ups a round: 12 movements take 6
    rounds.
    """
    cost = change_cost(tasks=18, members=3, assignor="kafka_streams", settings=GroupSettings(probing_interval_ms=20_000))
    assert (cost.changed, cost.fewest, cost.moves) == (12, 4, 12)
    assert cost.looking_rounds == cost.probing_rounds == 6
    assert cost.seconds > 6 * 20
