"""A worker's send gets no answer."""

from __future__ import annotations

from random import Random

from equipoise.kafka.client import TopicPartition
from equipoise.log.kafka.envelope import partition_of
from tests.simulated.deployment import GROUP, LOG_PARTITIONS, Deployment, FaultyNetwork
from tests.simulated.faults import SESSION_S, Fault
from tests.simulated.run import describe, simulate

ANSWER_S = 10.0
"""After this time a worker sends again."""
RUN_S = 3.0
"""Within this time after the decisions, tasks run."""


def _no_answer(deployment: Deployment, random: Random) -> float | None:
    """An owner dies, and a request of the worker to the leader of the decisions is lost before it
    has said so.
    """
    network = deployment.network
    if "trip_us" in vars(network):
        return None
    place = TopicPartition(deployment.topics.decisions, partition_of(GROUP, LOG_PARTITIONS))
    (worker,) = (seat.process for seat in deployment.workers.values() if seat.worker is not None and place.partition in seat.worker._partitions.hosts)
    decisions = deployment.cluster.partition(place)
    assert worker is not None, "it has a host"
    assert decisions is not None, "it was created"
    from_s = deployment.now_s + SESSION_S - 1.5
    lost: list[str] = []

    def trip_us(process: str, broker: int, request: str, *, back: bool) -> int | None:
        if not back and (process, broker, request) == (worker.name, decisions.leader, "Produce") and deployment.now_s > from_s and not lost:
            lost.append(request)
            return None
        return FaultyNetwork.trip_us(network, process, broker, request, back=back)

    vars(network)["trip_us"] = trip_us
    deployment.members["m1"].wanted = False
    deployment.kill_member(deployment.members["m1"])
    length_s = SESSION_S + ANSWER_S + RUN_S

    def look() -> None:
        why = deployment.unsettled() if lost else "no request was lost"
        if why:
            deployment.problem(f"{length_s:.0f} s after m1 has died: {why}")

    deployment.later(length_s, look)
    return length_s


def test_group_whose_worker_gets_no_answer_is_decided_once_the_worker_has_sent_again() -> None:
    result = simulate(1, "at_least_once", [Fault("no_answer", "test", _no_answer)], storm_s=4, every_s=0.5)
    assert not result.problems, describe(result)
    assert result.faults == 1


def _unpublished(deployment: Deployment, random: Random) -> float | None:
    """For a moment, one decision more is made than published."""
    (lead,) = (lead for seat in deployment.workers.values() if seat.worker is not None for _, lead in seat.worker.groups())
    before = deployment.unsettled()
    lead.machine.state.number += 1
    deployment.say(f"before: {before!r}, then: {deployment.unsettled()!r}")
    lead.machine.state.number -= 1
    return 0.0


def test_deployment_whose_decisions_are_not_published_is_not_at_rest() -> None:
    result = simulate(1, "at_least_once", [Fault("unpublished", "test", _unpublished)], storm_s=1, every_s=0.5)
    assert not result.problems, describe(result)
    assert any("before: '', then: 'decisions of w" in line for line in result.trace), describe(result)
