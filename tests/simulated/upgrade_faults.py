"""Faults of operators, upgrades and other programs that write to the log."""

from __future__ import annotations

from random import Random

from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.envelope import partition_of
from equipoise.testing.simulated.kafka.partition_log import Batch
from tests.simulated.deployment import BROKERS, GROUP, LOG_PARTITIONS, TASKS, TOPIC, Deployment, Seat
from tests.simulated.faults import _member, fault
from tests.support.cluster_faults import grow_topic

GROWN = TASKS + 2
NUMBERS = (0, 1, 7)
"""Of the only sub-topology."""
LARGEST_BYTES = 1_048_400
"""Value of a record that just fits Kafka's default `max.message.bytes`."""


def restart_all(deployment: Deployment, random: Random, most_gap_s: float = 3.0) -> float | None:
    """Restarts all members, one after the other, as a rolling deploy does. None: a fault is under
    way.
    """
    seats = [seat for seat in deployment.members.values() if seat.wanted]
    if any(seat.busy for seat in deployment.members.values()):
        return None
    at_s = 0.0
    for seat in random.sample(seats, len(seats)):
        seat.busy = True
        at_s += random.uniform(0.2, most_gap_s)
        deployment.later(at_s, _restart, deployment, seat)
    return at_s + 1.5


def _restart(deployment: Deployment, seat: Seat) -> None:
    deployment.kill_member(seat)
    deployment.later(0.3, deployment.start_member, seat)

    def over() -> None:
        seat.busy = False

    deployment.later(1.0, over)


@fault("upgrades")
def more_partitions(deployment: Deployment, random: Random) -> float | None:
    """A new build of the application has two more tasks; members get it one after the other."""
    if deployment.tasks == GROWN or deployment.failover_from_s > deployment.now_s:
        return None
    lasts_s = restart_all(deployment, random)
    if lasts_s is not None:
        for topic in (TOPIC, f"{TOPIC}-state"):
            grow_topic(deployment.cluster, topic, GROWN)
        deployment.tasks = GROWN
        deployment.topology_epoch += 1
    return lasts_s


@fault("upgrades")
def renumbered(deployment: Deployment, random: Random) -> float | None:
    """A new build of the application gives the sub-topology another number; members get it one
    after the other.
    """
    lasts_s = restart_all(deployment, random)
    if lasts_s is not None:
        deployment.subtopology = random.choice([number for number in NUMBERS if number != deployment.subtopology])
        deployment.topology_epoch += 1
    return lasts_s


@fault("upgrades")
def other_build(deployment: Deployment, random: Random) -> float | None:
    """A member goes back to the build before the last change of the facts' schemas, or returns from
    it.
    """
    seat = _member(deployment, random)
    if seat is None:
        return None
    seat.busy = True
    deployment.older ^= {seat.name}
    _restart(deployment, seat)
    return 1.0


@fault("mistakes")
def forgotten_epoch(deployment: Deployment, random: Random) -> float | None:
    """A member gets a build with another topology, and nobody raised the epoch; some time later the
    build is taken back. Meanwhile the member is refused, and the others have its tasks.
    """
    seat = _member(deployment, random)
    if seat is None:
        return None
    for topic, settings in ((f"{TOPIC}-other", {}), (f"{TOPIC}-other-state", {"cleanup.policy": "compact"})):
        if topic not in deployment.cluster.topics:
            deployment.cluster.create_topic(topic, GROWN, BROKERS, {"min.insync.replicas": "2", **settings})
    seat.busy, seat.mistake = True, random.choice(("sources", "state", "number"))
    lasts_s = random.uniform(1.0, 8.0)
    deployment.kill_member(seat)
    deployment.later(0.3, deployment.start_member, seat)

    def back() -> None:
        seat.mistake = ""
        deployment.kill_member(seat)
        deployment.later(0.3, deployment.start_member, seat)
        deployment.later(1.0, over)

    def over() -> None:
        seat.busy = False

    deployment.later(lasts_s, back)
    return lasts_s + 1.0


@fault("upgrades")
def newer_worker(deployment: Deployment, random: Random) -> float | None:
    """One worker is upgraded before the members: its decisions have a field more."""
    free = [seat for seat in deployment.workers.values() if not seat.busy and seat.process is not None]
    if not free:
        return None
    seat = random.choice(free)
    deployment.kill_worker(seat)
    deployment.start_worker(seat)
    if seat.process is not None:
        deployment.newer.add(seat.process.name)
    return 0.5


@fault("operators")
def other_guarantee(deployment: Deployment, random: Random) -> float | None:
    """Members restart one after the other with the other guarantee."""
    lasts_s = restart_all(deployment, random)
    if lasts_s is not None:
        deployment.guarantee_changes += 1
        deployment.present_guarantee = "at_least_once" if deployment.present_guarantee == "exactly_once" else "exactly_once"
    return lasts_s


@fault("operators")
def hostile_record(deployment: Deployment, random: Random) -> float | None:
    """Another program writes to the facts: without a key, or to the group, garbage or very large."""
    partition = deployment.cluster.partition(TopicPartition(deployment.topics.facts, partition_of(GROUP, LOG_PARTITIONS)))
    if partition is None or partition.leader < 0 or not partition.log.end:
        return None
    key = random.choice((None, b"", b"\xff\xfe", GROUP.encode()))
    value = random.choice((None, b"", b"garbage", bytes(LARGEST_BYTES)))
    deployment.cluster.append(partition, Batch(-1, -1, -1, False, [(key, value, (), deployment.cluster.now_ms())], 100))
    return 0.0
