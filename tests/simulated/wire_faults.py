"""Faults of single answers and connections, for every request that brokers answer."""

from __future__ import annotations

from random import Random

from equipoise.testing.simulated.kafka.broker_network import Ending
from tests.simulated.broker_faults import _reachable, _until
from tests.simulated.deployment import Deployment
from tests.simulated.faults import fault
from tests.support.cluster_faults import elect_leader


@fault("wire")
def passing_errors(deployment: Deployment, random: Random) -> float | None:
    """Brokers answer a part of what they are asked with errors that pass, before they have done it
    or behind it.
    """
    passing = deployment.cluster.passing
    if passing.share:
        return None
    passing.share = random.choice((0.02, 0.1, 0.4))
    length_s = random.uniform(0.5, 6)
    deployment.later(length_s, setattr, passing, "share", 0.0)
    return length_s


@fault("wire")
def broken_answers(deployment: Deployment, random: Random) -> float | None:
    """Connections of a process break in the middle of an answer, again and again."""
    return _ending(deployment, random, Ending.BREAKS)


@fault("wire")
def hanging_connections(deployment: Deployment, random: Random) -> float | None:
    """Connections of a process stay open, but no answer arrives over them any more."""
    return _ending(deployment, random, Ending.HANGS)


def _ending(deployment: Deployment, random: Random, how: Ending) -> float | None:
    found = _reachable(deployment, random)
    if found is None:
        return None
    seat, process = found
    deployment.network.ending[process.name] = how
    length_s = random.uniform(0.5, 6)
    deployment.later(length_s, deployment.network.ending.pop, process.name, None)
    return _until(deployment, seat, length_s)


@fault("wire")
def throttling_broker(deployment: Deployment, random: Random) -> float | None:
    """A broker reads nothing from a client for a while after each of its requests. What is sent
    meanwhile is late.
    """
    broker = random.choice(deployment.cluster.brokers)
    if broker.throttle_ms:
        return None
    broker.throttle_ms = random.choice((20, 200, 1_000))
    length_s = random.uniform(0.5, 6)
    deployment.later(length_s, setattr, broker, "throttle_ms", 0)
    late_until_s = deployment.now_s + length_s + broker.throttle_ms / 1_000
    deployment.network.late_until_s = max(deployment.network.late_until_s, late_until_s)
    return length_s


@fault("wire")
def sessions_end(deployment: Deployment, random: Random) -> float | None:
    """Brokers close connections whose authentication has expired."""
    if any(each.session_us is not None for each in deployment.cluster.brokers):
        return None
    session_us, length_s = random.choice((50_000, 300_000, 1_500_000)), random.uniform(0.5, 6)
    for each in deployment.cluster.brokers:
        each.session_us = session_us
        deployment.later(length_s, setattr, each, "session_us", None)
    return length_s


@fault("wire")
def expired_transactions(deployment: Deployment, random: Random) -> float | None:
    """Coordinators abort every open transaction as too old, which fences its producer."""
    deployment.cluster.coordinators.expire_all()
    return 0.0


@fault("wire")
def moved_coordinators(deployment: Deployment, random: Random) -> float | None:
    """Other brokers coordinate groups and transactions."""
    for each in deployment.cluster.coordinators.partitions:
        if random.random() < 0.5:
            elect_leader(deployment.cluster, each)
    return 0.0
