"""A broker that no longer leads a changelog, and does not know it, answers with an old end."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from equipoise.events.log.kafka.client import TopicPartition
from tests.simulated.deployment import TOPIC, Deployment
from tests.simulated.faults import Fault
from tests.simulated.kafka.cluster import Cluster
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
