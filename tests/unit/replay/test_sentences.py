"""What a fact and its decisions mean, one sentence each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from equipoise.events.decisions import (
    AssignmentIssued,
    AssignmentProposed,
    BalanceEvaluated,
    Decision,
    EventRejected,
    MemberAsked,
    MemberAssigned,
    MemberExpired,
    MemberWarned,
    Move,
    RestartEnded,
    RestartPlanned,
)
from equipoise.events.facts import (
    Fact,
    GroupConfigured,
    LeaveCancelled,
    LeaveIntended,
    MemberJoined,
    MemberLeft,
    ProbingTick,
    Subtopology,
    TaskParked,
    TopologyDeclared,
)
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.sentences import MOST_LINES, TOLD_FACTS, VALUES, Sentence, of_decision, of_fact, tell
from equipoise.replay.wording import EXPIRIES
from tests.unit.replay.lived import lived

TICK = ProbingTick()
T = TaskId(0, 3)
OTHERS = "others would restore"
BEFORE = "30.0 s, by what restarts took before"
M: dict[str, Any] = {"member_id": "m1", "incarnation": 7}


def told() -> Iterator[tuple[FactRecord, list[Sentence]]]:
    """Every fact of a group's life, with what is said of it."""
    entries = list(lived())
    for index, fact in enumerate(entries):
        if isinstance(fact, FactRecord):
            following = entries[index + 1 :]
            ends = next((at for at, each in enumerate(following) if isinstance(each, FactRecord)), len(following))
            yield fact, list(tell(fact, [each for each in following[:ends] if isinstance(each, DecisionRecord)]))


def test_life_of_a_group_is_told_in_its_order() -> None:
    texts = [said.text for _, each in told() for said in each]
    assert texts[:5] == [
        "configured: led by equipoise, assignor high_availability@3",
        "topology epoch 0: 15 tasks",
        "m2 joined, incarnation 2",
        "m3 joined, incarnation 3",
        "m1 joined, incarnation 1",
    ]
    at = texts.index("m2 expired, incarnation 2: it was not heard of for 10.0 s, and its session is over")
    assert texts[at + 1] == "round 8, because a member was not heard of for its session timeout"
    assert texts[at + 2].startswith("round 8: 0_1 m2 -> m1 granted: nobody ran it and nobody is caught up; m1 is soonest ready (")


def test_every_sentence_has_all_values_and_is_one_line() -> None:
    for record, each in told():
        for said in each:
            assert tuple(said.values) == VALUES
            assert (said.values["group"], said.values["offset"]) == (record.group, record.offset)
            assert "\n" not in said.text
            assert "{" not in said.text


def test_heartbeats_and_ticks_are_not_told() -> None:
    quiet = {type(record.event).__name__ for record, each in told() if not each}
    assert {"LagReported", "ProbingTick"} <= quiet


def test_rejected_join_is_no_join() -> None:
    joined = FactRecord("g", 5, 0, MemberJoined(**M, join_nonce="n"))
    no = DecisionRecord("log", "g", 9, 5, 0, 0, EventRejected(kind=1, code="incarnation_too_low", member_id="m1", incarnation=7, numbers=(7, 8)))
    (said,) = tell(joined, [no])
    assert said.text.startswith("MemberJoined of m1 is rejected (incarnation_too_low): incarnation 7 is not above 8")
    assert (said.level, said.values["reason"], said.values["number"]) == (logging.DEBUG, "incarnation_too_low", 9)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (MemberJoined(**M, join_nonce="n"), "m1 joined, incarnation 7"),
        (MemberJoined(**M, join_nonce="n", ended_incarnation=6), "m1 joined, incarnation 7"),
        (MemberLeft(**M), "m1 left"),
        (LeaveIntended(**M), "m1 wants to leave, and is drained first"),
        (LeaveCancelled(**M), "m1 stays after all"),
        (
            TaskParked(**M, task=T, token=1, topic="orders", partition=3, offset=9, error="ValueError"),
            "0_3 has failed on m1 at orders/3 offset 9: ValueError",
        ),
        (TaskParked(**M, task=T, token=1, error="ValueError"), "0_3 has failed on m1: ValueError"),
        (TaskParked(**M, task=T, token=1), "m1 handles 0_3 again"),
        (TopologyDeclared(epoch=2, subtopologies=(Subtopology(subtopology=0, partitions=4, stateful=True),)), "topology epoch 2: 4 tasks"),
        (GroupConfigured(led_by="external"), "configured: led by external, assignor high_availability@1"),
    ],
)
def test_fact_that_changes_the_group_has_a_sentence(fact: Fact, text: str) -> None:
    said = of_fact(fact)
    assert said is not None
    assert type(fact) in TOLD_FACTS
    assert said.text == text
    assert said.level == (logging.WARNING if isinstance(fact, TaskParked) and fact.error else logging.INFO)


def restart(**changed: Any) -> RestartPlanned:
    return RestartPlanned(**{**M, "choice": "wait", "back_within_ms": 30_000, "stated": True, **changed})


@pytest.mark.parametrize(
    ("decision", "texts"),
    [
        (
            MemberExpired(**M, cause="revocation_timeout", silent_ms=1, hold_ms=2_000),
            ["m1 expired, incarnation 7: it did not give up a task in time; who gets its tasks waits another 2.0 s"],
        ),
        (MemberAssigned(**M, assignment_epoch=2, released=True), ["m1 may go: it runs nothing any more"]),
        (MemberAssigned(**M, assignment_epoch=2, released=True, active=(T,), tokens=(1,)), ["m1 may go: what it still runs waits for it"]),
        (MemberAssigned(**M, assignment_epoch=2), []),
        (MemberAsked(**M, leave=True), ["m1 was asked to leave"]),
        (MemberAsked(**M, leave=False), ["m1 need not leave any more"]),
        (restart(choice="turn"), ["m1 restarts: the restarts before it come first; it will be back within 30.0 s, as it stated"]),
        (
            restart(lent=(T,), waiting=(TaskId(0, 4),), restore_records=5),
            [f"m1 restarts: it will be back within 30.0 s, as it stated; 1 task lent, 1 task waiting for it: {OTHERS} 5 records in an unknown time"],
        ),
        (
            restart(choice="drain", stated=False, restore_ms=2_000),
            [f"m1 restarts: its tasks move before it goes, because it will be away for {BEFORE}, and {OTHERS} 0 records in 2.0 s"],
        ),
        (RestartEnded(**M, outcome="returned", away_ms=3_000), ["m1 is back from its restart, after 3.0 s"]),
        (RestartEnded(**M, outcome="not_back", away_ms=3_000), ["m1 was not back from its restart after 3.0 s: its tasks go elsewhere"]),
        (RestartEnded(**M, outcome="cancelled"), ["m1 does not restart after all"]),
        (MemberWarned(**M, code="rack_tag_missing", said="eu"), ["m1: it has no tag rack, which rack_aware_tags asks for: its rack eu is taken"]),
        (
            BalanceEvaluated(verdict="blocked", available_movements=0, planned_movements=1, imbalance_before=2, imbalance_after=0),
            ["blocked: 1 movement planned, imbalance 2"],
        ),
        (BalanceEvaluated(verdict="warming", available_movements=0, planned_movements=1, imbalance_before=2, imbalance_after=0), []),
        (
            AssignmentProposed(generation=3, members=(), moves=(Move(task=T, source="m1", state="granted", reason="balance"),), probing=False),
            [
                "generation 3 of its own leader; equipoise would decide:",
                "generation 3: 0_3 m1 -> nobody granted: m1 has more than its share; nobody has less",
            ],
        ),
    ],
)
def test_decision_has_its_sentences(decision: Decision, texts: list[str]) -> None:
    assert [said.text for said in of_decision(decision, TICK)] == texts


@pytest.mark.parametrize("cause", EXPIRIES)
def test_expiry_is_a_warning_with_its_cause(cause: str) -> None:
    (said,) = of_decision(MemberExpired(**M, cause=cause, silent_ms=1), TICK)
    assert (said.level, said.values) == (logging.WARNING, {"member": "m1", "incarnation": 7, "reason": cause})
    assert " " in said.text.removeprefix("m1 expired, incarnation 7: ")


def moved(partition: int, **changed: Any) -> Move:
    return Move(
        **{"task": TaskId(0, partition), "source": "m1", "destination": "m2", "state": "warming", "reason": "warming", "lag_records": 10, **changed}
    )


def issued(*moves: Move, **changed: Any) -> AssignmentIssued:
    return AssignmentIssued(**{"generation": 4, "cause": "join", "members": ("m1",), "moves": moves, "probing": True, **changed})


def test_tasks_that_go_the_same_way_are_one_sentence_with_the_sum_of_their_lags() -> None:
    head, same, other = of_decision(issued(moved(0), moved(1), moved(2, state="waiting", reason="slot_full"), part=2, parts=3), TICK)
    assert head.text == "round 4 (part 2 of 3), because a member joined"
    assert same.text == "round 4: 0_0..1 m1 -> m2 warming: m2 restores 20 records"
    assert (same.values["tasks"], same.values["lag_records"]) == (["0_0", "0_1"], 20)
    assert other.text == "round 4: 0_2 m1 -> m2 waiting: waits for a warm-up slot"


def test_lag_of_several_is_unknown_when_one_is() -> None:
    _, said = of_decision(issued(moved(0), moved(1, lag_records=None)), TICK)
    assert said.text.endswith("m2 restores an unknown number of records")


def test_round_with_very_many_ways_is_cut() -> None:
    said = list(of_decision(issued(*(moved(each, destination=f"x{each}") for each in range(MOST_LINES + 3))), TICK))
    assert len(said) == 1 + MOST_LINES + 1
    assert said[-1].text == "round 4: 3 tasks more; `equipoise tail --json` has all"


def test_refused_configuration_is_a_warning() -> None:
    (said,) = of_decision(EventRejected(kind=1, code="leader_change", numbers=(2,)), GroupConfigured())
    assert said.level == logging.WARNING
    assert said.text == "GroupConfigured is rejected (leader_change): led_by can only change while the group is empty; it has 2 members"
