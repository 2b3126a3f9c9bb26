"""A broker that no longer leads a changelog or a source, and does not know it, answers with an old
end.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from aiokafka import errors

from equipoise.kafka.client import TopicPartition
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.fetch_sessions import Answered, Wanted
from tests.simulated.deployment import MEMBERS, TOPIC, Deployment
from tests.simulated.faults import Fault
from tests.simulated.run import describe, simulate

STALE_S = 9.0
"""Longer than a session."""


def _stale_ends(deployment: Deployment, random: Random) -> float | None:
    """For a while, changelogs seem to end where they end now; a second later, an owner dies."""
    cluster = deployment.cluster
    if "_led" in vars(cluster):
        return None
    known = {each.place: each.log.last_stable_offset for each in cluster.topics[f"{TOPIC}-state"].partitions}

    def led(broker: Any, place: TopicPartition) -> Any:
        found = Cluster._led(cluster, broker, place)
        if place not in known or not isinstance(found, tuple):
            return found
        return found[0], min(found[1], known[place]), min(found[2], known[place])

    vars(cluster)["_led"] = led
    deployment.later(STALE_S, vars(cluster).pop, "_led")
    seat = deployment.members["m1"]
    deployment.later(0.5, deployment.kill_member, seat)
    deployment.later(STALE_S, deployment.start_member, seat)
    return STALE_S


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_owner_that_is_told_an_old_end_of_its_changelog_doubles_nothing(guarantee: str) -> None:
    result = simulate(1, guarantee, [Fault("stale_ends", "test", _stale_ends)], storm_s=8, every_s=0.5)
    assert not result.problems, describe(result)
    assert result.faults


def _stale_source(deployment: Deployment, random: Random) -> float | None:
    """For a while, whoever begins to read a source asks a broker that lacks its newest records; an
    owner dies.
    """
    cluster = deployment.cluster
    if "_fetch_one" in vars(cluster):
        return None
    known = {each.place: each.log.end for each in cluster.topics[TOPIC].partitions}
    stale: list[bool] = []

    def fetch_one(broker: Any, place: TopicPartition, wanted: Wanted, *options: Any, one: bool) -> Answered:
        if stale and wanted.offset > known.get(place, wanted.offset):
            return Answered(errors.OffsetOutOfRangeError.errno, known[place])
        return Cluster._fetch_one(cluster, broker, place, wanted, *options, one=one)

    vars(cluster)["_fetch_one"] = fetch_one
    seat = deployment.members["m1"]
    deployment.later(2.0, stale.append, True)
    deployment.later(2.1, deployment.kill_member, seat)
    deployment.later(STALE_S, stale.clear)
    deployment.later(STALE_S, deployment.start_member, seat)
    return STALE_S


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_owner_whose_source_seems_to_end_before_its_position_counts_nothing_again(guarantee: str) -> None:
    result = simulate(1, guarantee, [Fault("stale_source", "test", _stale_source)], storm_s=8, every_s=0.5)
    assert not result.problems, describe(result)
    assert result.faults


def _deleted_source(deployment: Deployment, random: Random) -> float | None:
    """Nobody processes; retention deletes orders meanwhile, all but the newest."""
    seats = [deployment.members[name] for name in MEMBERS]
    if any(seat.busy for seat in seats):
        return None
    for seat in seats:
        seat.busy = True
        deployment.kill_member(seat)
        deployment.later(STALE_S, deployment.start_member, seat)
    for each in deployment.cluster.topics[TOPIC].partitions:
        deployment.later(STALE_S - 1, lambda each=each: deployment.cluster.delete_records(each.place, each.log.end - 2))
    return STALE_S


def test_owner_whose_next_records_were_deleted_goes_on_with_the_first_that_is_there() -> None:
    result = simulate(1, "exactly_once", [Fault("deleted_source", "test", _deleted_source)], storm_s=8, every_s=0.5)
    assert not [problem for problem in result.problems if "not at rest" in problem], describe(result)
    assert [problem for problem in result.problems if "there is none" in problem or "not counted" in problem], describe(result)
