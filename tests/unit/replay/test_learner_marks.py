"""isLearner, isLearned, isReady (the three marks of the proposal behind `learner`), as `status
--all`, the timeline and `explain` tell them from a log.
"""

from __future__ import annotations

from equipoise.cli.group_tables import members_table, tasks_table
from equipoise.events.facts import LagReported, TaskParked, TaskReady
from equipoise.events.tasks import TaskId
from equipoise.replay.explanation import explain, move_document
from equipoise.replay.group_view import CopyRow, ParkedRow, PreparingRow, TaskRow, show
from equipoise.replay.timelines import build_timeline, timeline_document
from tests.groups import Group, joined

T0, T1 = TaskId(0, 0), TaskId(0, 1)


def learning(**options: bool) -> Group:
    """m1 runs 0_0 and 0_1, m2 learns 0_1 and has restored half of it."""
    group = Group().starts("m1", stateful=2, assignor="learner", options=options)
    group.members["m1"].reports()
    m2 = group.join("m2", restores=25_000)
    m2.reports(1_000)
    return group


def row(group: Group, task: TaskId) -> TaskRow:
    return next(each for each in show(group.records).tasks if each.task == task)


def test_show_has_the_marks():
    group = learning()
    copy = CopyRow(member_id="m2", lag=25_000, best_lag_records=25_000, caught_up=False, is_learner=True, is_ready=False, preparing=None)
    assert (row(group, T1).is_learned, row(group, T1).owner, row(group, T1).warmups) == (True, "m1", (copy,))
    assert (row(group, T0).is_learned, row(group, T0).warmups) == (False, ())
    group.fact(TaskReady(member_id="m2", incarnation=1, assignment_epoch=1, tasks=(T1,)), 500)
    assert row(group, T1).is_learned
    assert row(group, T1).warmups[0].is_ready
    document = show(group.records).document()["tasks"][1]
    assert document["is_learned"]
    assert (document["warmups"][0]["is_learner"], document["warmups"][0]["is_ready"]) == (True, True)
    group.members["m1"].reports(500)
    assert (row(group, T1).is_learned, row(group, T1).owner) == (False, "m2")


def test_show_and_explain_preparing_task_is_named():
    group = Group().starts("m1", stateful=2)
    group.members["m1"].reports()
    group.fact(joined("m2", readiness="word_and_lag", ready_lag_records=500))
    group.fact(LagReported("m2", 1, 0, 1, lags={T1: 300}, preparing={T1: 400}), 1_000)
    group.tick(1_000)
    copy = row(group, T1).warmups[0]
    assert copy.preparing == PreparingRow(thousandths=400, since_ms=1_000, has_failed=False)
    assert not copy.caught_up
    table = tasks_table(show(group.records).tasks)
    assert "m2 (300, 300, learner, preparing 40 % (since 1.0 s))" in table.rows[1]
    text = "\n".join(explain(group.records, T1).what_next)
    assert "300 records behind, which is near enough; the application of m2 is preparing 40 % (since 1.0 s)." in text
    assert "If that comes no further for another" in text
    (_, m2) = show(group.records).members
    assert (m2.ready_lag_records, m2.acceptable_lag_records) == (500, 500)
    assert "500, its own" in members_table(show(group.records)).rows[1]
    group.fact(LagReported("m2", 1, 1, 1, lags={T1: 300}, failed=(T1,)), 1_000)
    assert "m2 (300, 300, learner, preparing failed, to be tried again)" in tasks_table(show(group.records).tasks).rows[1]


def test_explain_granted_unprepared_task_says_so():
    group = Group().starts(stateful=1)
    group.join("m1", readiness="word_and_lag")
    group.fact(LagReported("m1", 1, 0, 1, held=(T0,), lags={T0: 1}, preparing={T0: 70}, failed=(T0,)), 1_000)
    assert row(group, T0).preparing == PreparingRow(thousandths=70, since_ms=0, has_failed=True)
    said = "It was granted before anybody had prepared it; the application of m1 does that first: preparing 7 % (since 0, failed before)."
    assert said in "\n".join(explain(group.records, T0).what_next)


def test_timeline_has_when_learner_was_ready():
    group = learning()
    began_ms = group.append_ms - 1_000
    group.fact(TaskReady(member_id="m2", incarnation=1, assignment_epoch=1, tasks=(T1,)), 500)
    said_ms = group.append_ms
    group.members["m1"].reports(700)
    built = build_timeline(group.records)
    move = next(each for each in built.moves if each.task == T1 and each.source == "m1")
    assert (move.began_ms, move.declared_ready_ms, move.ended_ms) == (began_ms, said_ms, said_ms + 700)
    told = next(each for each in timeline_document(built)["moves"] if each["task"] == "0_1" and each["source"] == "m1")
    assert (told["declared_ready_ms"], told["warmed_ms"], told["revoking_ms"]) == (said_ms, 1_500, 700)
    unasked = next(each for each in built.moves if each.task == T0)
    assert move_document(unasked, built.to_ms)["declared_ready_ms"] is None


def test_timeline_strict_task_retaken_has_not_moved():
    group = learning(strict=True)
    group.join("m3")
    assert group.state.in_flight[T1].source == group.state.in_flight[T1].destination == "m1"
    assert (row(group, T1).state, row(group, T1).is_learned) == ("revoking", True)
    assert [copy.member_id for copy in row(group, T1).warmups if copy.is_learner] == ["m2"]
    text = " ".join(explain(group.records, T1).what_next)
    assert "m1 gives it up and takes it again, because m2 learns it" in text
    group.members["m1"].reports(300)
    assert (group.state.owner[T1], group.state.in_flight[T1].destination) == ("m1", "m2")
    built = build_timeline(group.records)
    assert built.totals().moves == 0
    stories = [(each.source, each.destination, each.outcome) for each in built.moves if each.task == T1]
    assert stories == [(None, "m1", "granted"), ("m1", "m2", "under way"), ("m1", "m1", "granted")]


def test_show_names_a_failed_task_its_record_and_the_error():
    group = Group().starts("m1", stateful=2)
    group.members["m1"].reports()
    parked = TaskParked(member_id="m1", incarnation=1, task=T1, token=1, topic="in", partition=1, offset=17, error="ValueError: no number")
    group.fact(parked, 1_000)
    group.tick(1_000)
    assert row(group, T1).parked == ParkedRow(topic="in", partition=1, offset=17, error="ValueError: no number", since_ms=1_000)
    assert row(group, T0).parked is None
    table = tasks_table(show(group.records).tasks)
    assert "m1, FAILED at in/1 offset 17 since 1.0 s: ValueError: no number" in table.rows[1]
