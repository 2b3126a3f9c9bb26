"""What incidents would have cost under other settings: simulated as they were, and otherwise."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from equipoise.cli.incident_text import document, story
from equipoise.replay.importers.groups.observed import ClusterMember, GroupKind, ObservedGroup
from equipoise.replay.incident import Cause, Counterfactual, GroupHistory, counterfactual, incidents
from equipoise.replay.incident.coordinator_history import with_sinks
from equipoise.replay.incident.counterfactuals import events_of
from tests.json_schemas import check
from tests.observed_groups import BOTH, SECOND, group, history, member

EAGER = {"session_timeout_ms": 45_000}


def test_killed_consumer_is_simulated_as_it_was_and_under_other_settings() -> None:
    both = group(1, member("a", 0, 1, **EAGER), member("b", 2, 3, **EAGER))
    stops = {2: [(53, 101)], 3: [(53, 101)], 0: [(98, 101)], 1: [(98, 101)]}
    past = history((0, both), (100, group(2, member("a", 0, 1, 2, 3, **EAGER))), stopped=stops)
    found = incidents(past)
    simulated = counterfactual(past, found[-1], found)
    assert simulated is not None
    assert simulated.measured_ms == 98_000
    assert abs(simulated.error) < 0.1
    costs = {each.change: each.unavailable_ms for each in simulated.otherwise}
    assert next(iter(costs)) == "session.timeout.ms=10000"
    assert 20_000 <= costs["session.timeout.ms=10000"] <= 32_000
    assert not any("group.instance.id" in change for change in costs), "it did not come back"


def test_restarted_consumer_could_have_been_static() -> None:
    members = [member(name, number, **EAGER) for number, name in enumerate("abcd")]
    again = [*members[:3], attrs.evolve(members[3], member_id="d-2")]
    past = history((0, group(1, *members)), (142, group(2, *again)), stopped={3: [(97, 143)], **{number: [(101, 143)] for number in range(3)}})
    found = incidents(past)
    assert [(event.kind, event.name) for event in events_of(past, found[-1])] == [("kill", "d"), ("start", "d")]
    simulated = counterfactual(past, found[-1], found)
    assert simulated is not None
    costs = {each.change: each.unavailable_ms for each in simulated.otherwise}
    assert costs["partition.assignment.strategy=cooperative-sticky"] < simulated.as_it_was_ms / 2, "the others would have run on"
    assert [cost for change, cost in costs.items() if change.startswith("group.instance.id")] == [min(costs.values())]


def test_incident_without_consumers_that_come_or_go_is_not_simulated() -> None:
    past = history((0, BOTH), stopped={3: [(100, 200)]})
    found = incidents(past)
    assert [counterfactual(past, each, found) for each in found] == [None, None]


STREAMS: dict[str, Any] = {"kind": GroupKind.STREAMS, "sources": {"0": ("orders",)}, "stateful": frozenset({"0"}), "protocol": ""}


def tasks(name: str, *numbers: int, standby: tuple[int, ...] = ()) -> ClusterMember:
    active, copies = (frozenset(f"0_{number}" for number in each) for each in (numbers, standby))
    return attrs.evolve(member(name), session_timeout_ms=-1, epoch=1, state="stable", active=active, standby=copies)


def of_streams(number: int, *members: ClusterMember) -> ObservedGroup:
    return attrs.evolve(group(number, *(attrs.evolve(each, epoch=number) for each in members)), **STREAMS)


def killed(history_of_it: GroupHistory) -> Counterfactual:
    found = incidents(history_of_it)
    (incident,) = [each for each in found if each.cause is Cause.EXPIRED]
    answer = counterfactual(history_of_it, incident, found)
    assert answer is not None
    return answer


def test_application_that_the_broker_leads_would_have_needed_a_standby() -> None:
    """Of KIP-1071: b is killed, missed after 45 s, and its tasks are restored for 30 s."""
    states = (0, of_streams(1, tasks("a", 0, 1), tasks("b", 2, 3))), (100, of_streams(2, tasks("a", 0, 1, 2, 3)))
    past = history(*states, stopped={2: [(54, 131)], 3: [(54, 131)]}, until_s=300)
    assert past.times_to_begin_ms == (30_000, {"0": 0}), "nothing tells the restore from the rest"
    again = (160, of_streams(3, tasks("a", 0, 1), tasks("b", 2, 3))), (200, of_streams(4, tasks("a", 0, 1, 3, standby=(2,)), tasks("b", 2)))
    more = ((220, of_streams(5, tasks("a", 0, 1, 2, 3), tasks("b"))),)
    stops = {2: [(54, 131), (160, 191), (219, 222)], 3: [(54, 131), (160, 191)]}
    past = history(*states, *again, *more, stopped=stops, until_s=300)
    assert past.times_to_begin_ms == (1_000, {"0": 29_000}), "where there was a copy it took a second"
    simulated = killed(past)
    assert simulated.measured_ms == 2 * 76_000 + 2 * 30_000, "with its return"
    assert abs(simulated.error) < 0.1
    costs = {each.change: each.unavailable_ms for each in simulated.otherwise}
    assert sorted(costs) == ["group.streams.session.timeout.ms=10000", "streams.num.standby.replicas=1"], "Kafka Streams takes no instance id with it"
    assert 2 * 45_000 <= costs["streams.num.standby.replicas=1"] - 2 * 30_000 <= 2 * 52_000, "one that is back is restored with it, too"


def test_task_that_takes_long_is_told_with_its_restore() -> None:
    states = (0, of_streams(1, tasks("a", 0, 1), tasks("b", 2, 3))), (100, of_streams(2, tasks("a", 0, 1, 2, 3)))
    (restored,) = [each for each in incidents(history(*states, stopped={2: [(54, 131)]}, until_s=300)) if each.restores]
    (restore,) = restored.restores
    assert (restore.task, restore.member, restore.took_ms, restore.is_over, restore.is_stuck) == ("0_2", "a", 31_000, True, False)
    assert any("streams.num.standby.replicas" in text for text in restored.advice)
    (stuck,) = [each for each in incidents(history(*states, stopped={2: [(54, 1_000)]}, until_s=700)) if each.restores]
    assert [(each.took_ms, each.is_over, each.is_stuck) for each in stuck.restores] == [(599_000, False, True)]
    assert any(text.endswith("0_2 at a") for text in stuck.advice)
    shown = {
        "group": "g",
        "kind": "streams",
        "incidents": [document(each, None) for each in (restored, stuck)],
        "unread": [],
        "has_records": True,
        "notes": [],
        "missing": [],
    }
    check("incident", json.loads(json.dumps({"recording": "r.db", "files": [], "at_once": [], "groups": [shown]})))
    assert story(restored, None)[1] == "task 0_2: 31.0 s from its assignment to a to its first commit: its state was restored"
    assert story(stuck, None)[1] == "task 0_2: assigned to a 9 min 59 s ago, and nothing committed since: the restore is stuck, or the task hangs"
    plain = history((0, BOTH), (100, group(2, member("a", 0, 1, 2, 3))), stopped={2: [(54, 131)]}, until_s=300)
    assert not any(each.restores for each in incidents(plain)), "nobody knows whether consumers have state"


def of_connect(session_s: float) -> GroupHistory:
    """Two workers with a task each; w2 is killed at 100 s, and what it had waits for 60 s. The
    consumers of the sink have sessions of their own.
    """

    def workers(number: int, *members: ClusterMember) -> ObservedGroup:
        return attrs.evolve(group(number, *members), kind=GroupKind.CONNECT, name="connect")

    def task(number: int, *partitions: int) -> ClusterMember:
        return member(f"connector-consumer-sink-{number}", *partitions, session_timeout_ms=round(session_s * SECOND))

    w1, w2 = (attrs.evolve(member(name), active=frozenset(work)) for name, work in (("w1", ("sink", "sink-0")), ("w2", ("sink-1",))))
    waiting = attrs.evolve(w1, rejoin_ms=170 * SECOND)
    missed_s = round(100 + session_s)
    connect = attrs.evolve(
        history((0, workers(1, w1, w2)), (110, workers(2, waiting)), (170, workers(3, attrs.evolve(w1, active=w1.active | w2.active)))),
        commits={},
        ends=history(until_s=300).ends,
        end_times_ms=history(until_s=300).end_times_ms,
    )
    states = (2, group(1, task(0, 0, 1), task(1, 2, 3))), (missed_s, group(2, task(0, 0, 1, 2, 3)))
    stops = {2: [(100, missed_s + 1)], 3: [(100, missed_s + 1)]}
    sink = attrs.evolve(history(*states, stopped=stops, until_s=300), group="connect-sink")
    return with_sinks(connect, {"sink": sink})


def test_worker_of_connect_is_missed_by_the_group_of_its_sink() -> None:
    past = of_connect(45)
    simulated = killed(past)
    assert abs(simulated.error) < 0.1
    costs = {each.change: each.unavailable_ms for each in simulated.otherwise}
    assert min(costs, key=lambda change: costs[change]) == "consumer.session.timeout.ms=10000"
    assert costs["consumer.session.timeout.ms=10000"] < simulated.as_it_was_ms / 2
    assert not any("scheduled" in change for change in costs), "another task of the sink reads before the delay is over"


@pytest.mark.parametrize("is_known", [True, False])
def test_group_of_connect_needs_sinks_to_be_simulated(is_known: bool) -> None:
    past = of_connect(45)
    found = incidents(past)
    chosen = past if is_known else attrs.evolve(past, sinks={})
    assert (counterfactual(chosen, found[-1], found) is not None) is is_known
