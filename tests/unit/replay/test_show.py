"""show: the tables equal the machine's state at that offset."""

from __future__ import annotations

import json

import pytest

from equipoise.events.decisions import MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import MemberJoined, PartitionsObserved
from equipoise.events.records import DecisionRecord, Record
from equipoise.replay.group_view import show
from equipoise.replay.simulation.cluster import MemorySink
from equipoise.statemachine.machine import GroupMachine
from tests.unit.replay.lived import JOINED_MS, TOPOLOGY, configured, decided, lived


def offset_at(append_ms: int) -> int:
    """The first fact at or after that time."""
    return next(entry.offset for entry in lived() if isinstance(entry, Record) and entry.append_ms >= append_ms)


@pytest.mark.parametrize("part", [0.1, 0.35, 0.5, 0.8, 1.0])
def test_show_equals_the_machine_state_at_offset(part: float) -> None:
    facts = [entry for entry in lived() if isinstance(entry, Record)]
    at_offset = int((len(facts) - 1) * part)
    machine = GroupMachine()
    for fact in facts[: at_offset + 1]:
        machine.step(fact)
    view = show(lived(), at_offset=at_offset)
    state = machine.state
    assert (view.offset, view.generation, view.decisions, view.now_ms) == (at_offset, state.generation, state.number, state.now_ms)
    assert view.next_deadline_ms == machine.next_deadline_ms
    assert view.next_probing_ms == state.probing_deadline_ms
    assert {member.member_id: (member.active, member.warmup, member.revoking) for member in view.members} == {
        name: (tuple(sorted(member.active)), tuple(sorted(member.warmup)), tuple(sorted(member.revoking))) for name, member in state.members.items()
    }
    assert {row.task: row.owner for row in view.tasks} == {task: state.owner.get(task) for task in state.tasks()}
    assert all(row.token == state.tokens.get(row.task, 0) for row in view.tasks)
    assert view.first_divergence is None


def test_show_warming_task_has_movement_and_progress() -> None:
    view = show(lived(), at_offset=offset_at(JOINED_MS + 10_000))
    warming = [row for row in view.tasks if row.movement == "warming"]
    assert warming
    for row in warming:
        assert row.destination == "m4"
        assert row.owner not in (None, "m4")
        assert [copy.member_id for copy in row.warmups] == ["m4"]
        assert isinstance(row.warmups[0].lag, int)
        assert row.end_offset > 400_000
    assert view.planned_movements >= len(warming)
    assert view.verdict == "warming"


def test_show_document_has_task_ids_as_text() -> None:
    document = json.loads(json.dumps(show(lived()).document()))
    assert {"0_0", "1_2"} <= {row["task"] for row in document["tasks"]}
    assert sorted(task for member in document["members"] for task in member["active"]) == sorted(row["task"] for row in document["tasks"])


def test_show_has_silence_and_hold() -> None:
    config = configured(initial_delay_ms=0)
    first = MemberJoined(member_id="m1", incarnation=1, join_nonce="a", session_timeout_ms=9_000)
    second = MemberJoined(member_id="m1", incarnation=2, join_nonce="b")
    ends = PartitionsObserved(end_offsets={"store": dict.fromkeys(range(12), 500)})
    view = show(decided((1_000, config), (1_001, TOPOLOGY), (1_002, first), (1_003, ends), (1_600, second)))
    assert {row.hold_ms for row in view.tasks} == {9_000}
    assert [member.incarnation for member in view.members] == [2]
    view = show(decided((1_000, config), (1_001, TOPOLOGY), (1_002, first), (1_700, ends)))
    assert view.members[0].silent_ms == 698


def test_show_divergent_log_has_first_divergence() -> None:
    entries = list(lived())
    index = next(i for i, entry in enumerate(entries) if isinstance(entry, DecisionRecord) and isinstance(entry.decision, MemberExpired))
    gone = entries.pop(index)
    assert isinstance(gone, DecisionRecord)
    assert show(entries).first_divergence == gone.caused_by


def test_show_wrong_group_or_offset_error_names_the_choices() -> None:
    last = max(entry.offset for entry in lived() if isinstance(entry, Record))
    with pytest.raises(InputError, match=f"--at: the log ends at offset {last}"):
        show(lived(), at_offset=last + 1)
    with pytest.raises(InputError, match="no fact of group 'nobody'"):
        show(lived(), group="nobody")
    sink = MemorySink()
    sink.append_fact("a", 1, configured())
    sink.append_fact("b", 2, configured())
    with pytest.raises(InputError, match="'a' and 'b' among them; name one"):
        show(sink.entries)
    assert show(sink.entries, group="b").group == "b"
    assert show(lived()[:2]).phase == "empty"
