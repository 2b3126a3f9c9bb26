"""A worker whose partition is quiet, and whose reads are slow or get no answer."""

from __future__ import annotations

from random import Random

import pytest

from equipoise.events.facts import LeaveRequested
from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.envelope import pack_fact, partition_of
from tests.simulated.deployment import GROUP, LOG_PARTITIONS, Deployment, FaultyNetwork
from tests.simulated.faults import Fault
from tests.simulated.operator_faults import write
from tests.simulated.run import simulate

QUIET_S = 120.0
EVERY_S = 11.0


def _quiet(late_us: int | None) -> Fault:
    """All members end, and a fact is written each EVERY_S; what the worker fetches from the facts'
    leader arrives `late_us` later, None: never.
    """

    def begin(deployment: Deployment, random: Random) -> float | None:
        network = deployment.network
        if "trip_us" in vars(network):
            return None
        place = TopicPartition(deployment.topics.facts, partition_of(GROUP, LOG_PARTITIONS))
        (worker,) = (seat for seat in deployment.workers.values() if seat.worker is not None and place.partition in seat.worker._partitions.hosts)
        facts = deployment.cluster.partition(place)
        assert worker.process is not None, "it has a host"
        name = worker.process.name
        assert facts is not None, "it was created"

        def trip_us(process: str, broker: int, request: str, *, back: bool) -> int | None:
            trip = FaultyNetwork.trip_us(network, process, broker, request, back=back)
            if trip is None or not back or (process, broker, request) != (name, facts.leader, "Fetch"):
                return trip
            return None if late_us is None else trip + late_us

        vars(network)["trip_us"] = trip_us

        def count() -> None:
            assert worker.worker is not None, "nothing ends it"
            deployment.say(f"failed takeovers: {worker.worker.metrics.takeovers_failed._value.get():.0f}")

        deployment.later(QUIET_S, count)
        for number in range(int(QUIET_S / EVERY_S)):
            deployment.later(EVERY_S * number, lambda: write(deployment, pack_fact(LeaveRequested(members=("nobody",)))))
        for seat in deployment.members.values():
            seat.wanted = False
            deployment.kill_member(seat)
        return QUIET_S

    return Fault("quiet", "test", begin)


@pytest.mark.parametrize(("late_us", "fails"), [(2_300_000, False), (None, True)], ids=["slow", "no answer"])
def test_worker_takes_its_partition_over_again_only_when_it_reads_nothing_of_what_was_there(late_us: int | None, fails: bool) -> None:
    """That the group is without members is not judged here."""
    result = simulate(1, "at_least_once", [_quiet(late_us)], storm_s=4, every_s=0.5)
    (said,) = (line for line in result.trace if "failed takeovers" in line)
    assert said.endswith("takeovers: 0") is not fails, said
