"""A join moves the fewest tasks there are to move, interrupts none before its destination is caught up, and then there is rest."""

from __future__ import annotations

import pytest

from events.decisions import Checkpointed
from events.knobs import Knobs
from replay.cluster.join import JoinCost, join_cost


@pytest.fixture(scope="module")
def seventh() -> JoinCost:
    """60 stateful tasks on 6 members, a seventh joins; knobs as they come, so 2 warm-ups."""
    return join_cost(tasks=60, members=6)


def test_a_seventh_member_changes_eight_owners_and_not_one_more(seventh: JoinCost):
    assert (seventh.moves, seventh.fewest, seventh.moved_more_than_once) == (8, 8, 0)


def test_it_takes_at_most_five_probing_rounds(seventh: JoinCost):
    assert seventh.probing_rounds <= 5


def test_nobodys_running_task_is_interrupted_before_its_destination_is_caught_up(seventh: JoinCost):
    assert seventh.interrupted == ()
    assert seventh.longest_silence_ms < 1_000


def test_afterwards_a_hundred_thousand_facts_change_nothing(seventh: JoinCost):
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
def test_growth_interrupts_nobody_at_any_size(tasks: int, members: int, joiners: int):
    cost = join_cost(tasks=tasks, members=members, joiners=joiners, knobs=Knobs(max_warmups=4, probing_interval_ms=60_000), seed=7)
    assert cost.moves == cost.fewest
    assert cost.interrupted == ()
    assert cost.longest_silence_ms < 1_000
