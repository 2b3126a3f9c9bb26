"""What the console remembers of a group, beside the timeline of its whole log."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pytest

from equipoise.console import recent as recent_module
from equipoise.console.documents import brief, group_now, in_order_of_trouble
from equipoise.console.recent import Recent, SaidSentence, shortened
from equipoise.events.errors import GroupHalted
from equipoise.events.facts import MemberLeft
from equipoise.events.records import FactRecord
from equipoise.events.tasks import parse_task
from equipoise.replay.all_clear import led_here
from equipoise.replay.owners import Condition
from equipoise.replay.replayer import Replayer
from equipoise.replay.sentences import Sentence, tell
from equipoise.replay.timelines import Timeline, build_timeline
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from tests.unit.replay.lived import KILLED_MS, lived

GROUP = "orders"


def remembered(recent: Recent, until_ms: int | None = None) -> Replayer:
    """Hands every fact of the recorded log to `recent`, as a worker does."""
    replayer = Replayer(GROUP)
    for step in replayer.follow(lived()):
        if until_ms is not None and step.record.append_ms > until_ms:
            break
        recent.note(0, step.record, step.decisions, replayer.machine, list(tell(step.record, step.decisions)))
    return replayer


def timelines() -> tuple[Timeline, Timeline]:
    recent = Recent()
    replayer = remembered(recent)
    whole = build_timeline(lived())
    return whole, recent.of(GROUP, 0, replayer.machine).timeline(replayer.last_append_ms)


def test_timeline_from_some_of_the_facts_equals_that_of_the_log() -> None:
    whole, seen = timelines()
    assert (seen.tasks, seen.numbers) == (whole.tasks, whole.numbers)
    for name in ("rounds", "copies", "imbalance", "verdicts", "rejections"):
        assert getattr(seen, name) == getattr(whole, name), name
    assert [(each.task, each.source, each.destination, each.outcome, each.reason, len(each.steps)) for each in seen.moves if each.source] == [
        (each.task, each.source, each.destination, each.outcome, each.reason, len([step for step in each.steps if step.number is not None]))
        for each in whole.moves
        if each.source
    ], "steps that only wait are in no decision"
    for condition in (Condition.RUNNING, Condition.STARTING, Condition.SILENT):
        own, theirs = (
            [(each.task, each.member_id, each.from_ms, each.to_ms) for each in built.intervals if each.condition is condition]
            for built in (seen, whole)
        )
        if condition is Condition.SILENT:
            assert [each[:2] for each in own] == [each[:2] for each in theirs] != []
        else:
            assert Counter(each[:2] for each in own) == Counter(each[:2] for each in theirs), condition
    assert {key for key, points in seen.lags.items() if len(points) > 2} == {key for key, points in whole.lags.items() if len(points) > 2}


def test_memory_is_bounded_and_keeps_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "MOST_KEPT", 60)
    recent = Recent()
    replayer = remembered(recent)
    known = recent.groups[GROUP]
    assert known.builder.size <= 61
    kept, whole = known.timeline(replayer.last_append_ms), build_timeline(lived())
    assert kept.from_ms > whole.from_ms
    since = [each for each in whole.rounds if each.append_ms > kept.from_ms]
    assert list(kept.rounds) == since
    assert {each.task: each.member_id for each in kept.intervals} == {each.task: each.member_id for each in whole.intervals}


def say(recent: Recent, group: str, number: int) -> GroupMachine:
    """A member of the group leaves, as a worker notes it."""
    machine = MACHINES.setdefault(group, GroupMachine())
    machine.state.last_offset, machine.state.last_append_ms = number, 1_000 * number
    record = FactRecord(group, number, 1_000 * number, MemberLeft(member_id="m1", incarnation=1))
    recent.note(0, record, [], machine, [Sentence(f"m1 left {group} at {number}", {})])
    return machine


MACHINES: dict[str, GroupMachine] = {}


def test_memory_of_all_groups_is_bounded_and_those_that_changed_last_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "MOST_IN_ALL", 300)
    MACHINES.clear()
    recent = Recent()
    for number in range(1, 1_001):
        say(recent, f"g{number % 100}", number)
        assert sum(len(known.sentences) + 10 for known in recent.groups.values()) <= 300
    for number in range(1_001, 1_400):
        say(recent, "g7", number)
    assert list(recent.groups) == ["g7"], "and no others beside one so large"
    monkeypatch.setattr(recent_module, "MOST_IN_ALL", 1_000)
    for number in range(1_400, 1_600):
        say(recent, f"g{number % 100}", number)
    names = [f"g{number % 100}" for number in range(1_600 - len(recent.groups), 1_600)]
    assert list(recent.groups) == names, "in the order of their last change"
    assert len(names) >= 1_000 // 13
    assert recent.latest(3) == [recent.groups[f"g{number}"].sentences[-1] for number in (97, 98, 99)]
    assert [each.number for each in recent.latest(2, "g99")] == [each.number for each in recent.groups["g99"].sentences][-2:]
    assert recent.latest(5, "g0") == []


def test_group_of_which_nothing_is_kept_begins_again_at_its_last_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "MOST_IN_ALL", 100)
    MACHINES.clear()
    recent = Recent()
    recent.lead(0, 500)
    assert recent.of("quiet", 0, GroupMachine()).said_since_ms == 500, "nothing was decided since it is led here"
    machines = {f"g{number}": say(recent, f"g{number}", number) for number in range(1, 30)}
    assert "g1" not in recent.groups
    kept = set(recent.groups)
    assert [name for name, machine in machines.items() if recent.glance(name, 0, machine) is not None] == sorted(kept, key=lambda name: int(name[1:]))
    assert set(recent.groups) == kept, "a list of all groups changes nothing"
    say(recent, "g1", 1)
    assert "g1" not in recent.groups, "a fact that is folded again"
    known = recent.of("g1", 0, machines["g1"])
    assert (known.said_since_ms, list(known.sentences), known.timeline(2_000).from_ms) == (1_000, [], 1_000)
    say(recent, "g1", 1)
    assert not known.sentences
    say(recent, "g1", 40)
    assert (known.said_since_ms, len(known.sentences)) == (1_000, 1)
    recent.forget(0)
    assert not recent.groups
    assert len(say(recent, "g2", 50).state.members) == 0
    assert list(recent.groups) == ["g2"]


def test_group_that_only_the_list_looked_at_is_forgotten_first_and_one_that_changed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    MACHINES.clear()
    recent = Recent()
    for number, group in enumerate(("a", "b", "c", "a"), 1):
        say(recent, group, number)
    assert list(recent.groups) == ["b", "c", "a"]
    assert recent.glance("looked-at", 0, GroupMachine()) is not None
    monkeypatch.setattr(recent_module, "MOST_IN_ALL", 50)
    say(recent, "d", 5)
    assert list(recent.groups) == ["b", "c", "a", "d"]
    monkeypatch.setattr(recent_module, "MOST_IN_ALL", 40)
    say(recent, "d", 6)
    assert list(recent.groups) == ["c", "a", "d"]


def test_list_of_sentences_that_is_full_says_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "MOST_SENTENCES", 5)
    MACHINES.clear()
    recent = Recent()
    for number in range(10, 20):
        say(recent, "g", number)
        assert recent.groups["g"].said_since_ms == 1_000 * max(10, number - 4)


def test_row_of_a_group_without_memory_shows_tasks_that_are_granted_and_do_not_run() -> None:
    recent = Recent()
    later = remembered(recent, KILLED_MS + 14_000)
    lead = GroupLead(GROUP, later.machine)
    known, unknown = (brief(0, lead, each, led_here(later.machine.state)) for each in (recent.of(GROUP, 0, later.machine), None))
    assert any("granted and not running yet" in each["text"] for each in unknown["troubles"])
    assert unknown["level"] == known["level"]


def test_facts_that_are_folded_again_are_noted_once_and_a_partition_is_forgotten() -> None:
    recent = Recent()
    told: list[SaidSentence] = []
    recent.changed = lambda group, said: told.extend(said)
    remembered(recent)
    first = len(told)
    remembered(recent)
    assert len(told) == first > 10
    assert [each.number for each in told] == list(range(1, first + 1))
    recent.forget(1)
    assert GROUP in recent.groups
    recent.forget(0)
    assert recent.groups == {}


def test_group_while_a_member_is_silent_and_after_it_expired() -> None:
    recent = Recent()
    replayer = remembered(recent, KILLED_MS + 8_000)
    lead = GroupLead(GROUP, replayer.machine)
    now = group_now(0, lead, recent.of(GROUP, 0, replayer.machine), led_here(replayer.machine.state))
    assert any("m2 was not heard of" in each["text"] and each["member"] == "m2" for each in now["troubles"])
    assert now["level"] == 2
    rest = Recent()
    later = remembered(rest, KILLED_MS + 14_000)
    after = group_now(0, GroupLead(GROUP, later.machine), rest.of(GROUP, 0, later.machine), led_here(later.machine.state))
    assert "m2" not in [each["member"] for each in after["member_rows"]]
    starting = [row[0] for row in after["task_rows"] if row[2] == "starting"]
    assert starting
    assert any("granted and not running yet" in each["text"] for each in after["troubles"])
    assert {each["task"] for each in after["waits"] if each["kind"] == "starting"} == set(starting)
    assert all(each["expected_ms"] is not None for each in after["waits"] if each["kind"] == "starting")


def test_waits_name_the_warm_up_with_its_lag_and_when_it_is_expected() -> None:
    recent = Recent()
    replayer = remembered(recent, KILLED_MS - 70_000)
    state = replayer.machine.state
    now = group_now(0, GroupLead(GROUP, replayer.machine), recent.of(GROUP, 0, replayer.machine), led_here(replayer.machine.state))
    warming = [each for each in now["waits"] if each["kind"] == "warming"]
    assert len(warming) == 2
    for each in warming:
        assert each["destination"] == "m4"
        assert 0 < each["lag_records"] <= each["first_lag_records"] <= 410_000
        assert each["expected_ms"] > 0
        assert each["lag_records"] == state.members["m4"].lags[parse_task(each["task"])]
    assert {each["task"] for each in now["waits"] if each["kind"] == "waiting"} == {str(task) for task in state.queued}


def test_halted_group_is_an_alarm_and_its_state_is_shown_as_far_as_it_is_known() -> None:
    lead = GroupLead(GROUP, GroupMachine())
    lead.halted = GroupHalted(GROUP, 7, "missing", "no such assignor")
    recent = Recent()
    now = group_now(0, lead, recent.of(GROUP, 0, lead.machine), led_here(lead.machine.state))
    assert (now["group"], now["phase"], now["level"], now["member_rows"]) == (GROUP, "halted", 3, [])
    assert "no such assignor" in now["troubles"][0]["text"]
    fine = {**now, "group": "a", "level": 0, "troubles": [], "moving": 0, "members": 2}
    moving, empty = {**fine, "group": "z", "moving": 1}, {**fine, "group": "b", "members": 0, "level": 1, "troubles": [{"level": 1}]}
    assert [each["group"] for each in in_order_of_trouble([fine, empty, moving, now])] == [GROUP, "z", "a", "b"]


def test_sentence_of_many_tasks_counts_them_and_is_cut() -> None:
    def said(text: str, **values: Any) -> dict[str, Any]:
        return SaidSentence(1, GROUP, 0, shortened(Sentence(text, values))).document()

    tasks = [f"0_{number}" for number in range(0, 200, 2)]
    found = said(f"round 3: {', '.join(tasks)} m1 -> m2 granted: because", tasks=tasks)
    assert found["text"] == "round 3: 100 tasks m1 -> m2 granted: because"
    assert found["tasks"] == []
    assert said("round 3: 0_1 m1 -> m2 granted: because", tasks=["0_1"])["text"] == "round 3: 0_1 m1 -> m2 granted: because"
    assert len(said("x" * 10_000)["text"]) == recent_module.MOST_CHARS
    recent, machine = Recent(), GroupMachine()
    left = FactRecord(GROUP, 1, 0, MemberLeft(member_id="m1", incarnation=1))
    recent.note(0, left, [], machine, [Sentence("x" * 10_000, {"tasks": tasks})])
    (kept,) = recent.groups[GROUP].sentences
    assert (len(kept.sentence.text), kept.sentence.values["tasks"]) == (recent_module.MOST_CHARS, [])


def test_first_look_at_a_group_begins_with_its_state() -> None:
    replayer = Replayer(GROUP)
    for _ in replayer.follow(lived()):
        pass
    recent = Recent()
    known = recent.of(GROUP, 0, replayer.machine)
    built = known.timeline(replayer.last_append_ms + 1_000)
    assert {each.task: each.member_id for each in built.intervals} == dict(replayer.machine.state.owner)
    assert not built.rounds
    assert attrs.evolve(built, intervals=()).moves == ()
    assert isinstance(lived()[0], FactRecord)
