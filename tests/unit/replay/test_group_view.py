"""The view of a group: its tables equal the machine's state at that offset."""

from __future__ import annotations

import json

import pytest

from equipoise.cli.group_tables import group_lines, tasks_table
from equipoise.events.decisions import MemberExpired
from equipoise.events.errors import InputError
from equipoise.events.facts import MemberJoined, MemberLeft, PartitionsObserved
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.group_view import show, view_of
from equipoise.replay.simulation.simulated_cluster import MemorySink
from equipoise.replay.wording import span_text
from equipoise.statemachine.machine import GroupMachine
from equipoise.worker.metrics import WorkerMetrics
from tests.groups import Group
from tests.unit.replay.lived import JOINED_MS, TOPOLOGY, configured, decided, lived


def offset_at(append_ms: int) -> int:
    """The first fact at or after that time."""
    return next(entry.offset for entry in lived() if isinstance(entry, FactRecord) and entry.append_ms >= append_ms)


@pytest.mark.parametrize("part", [0.1, 0.35, 0.5, 0.8, 1.0])
def test_show_equals_the_machine_state_at_offset(part: float) -> None:
    facts = [entry for entry in lived() if isinstance(entry, FactRecord)]
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
    last = max(entry.offset for entry in lived() if isinstance(entry, FactRecord))
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


def test_task_without_an_owner_is_kept_for_its_former_one_until_then() -> None:
    group = Group().starts("m1", "m2", stateful=4, assignor="cooperative", max_step_ms=1_000)
    group.settles()
    had = {task for task, owner in group.owners().items() if owner == "m2"}
    assert had
    del group.members["m2"]
    group.fact(MemberLeft(member_id="m2", incarnation=1))
    group.tick()
    view = view_of(group.machine)
    kept = {row.task: row for row in view.tasks if row.owner is None}
    assert set(kept) == had
    for task, row in kept.items():
        assert row.kept_for == "m2"
        assert row.kept_ms == (group.state.lost[task].until_ms or 0) - group.state.now_ms > 0
        assert f"nobody, kept for m2 for another {span_text(row.kept_ms)}" in str(tasks_table(view.tasks).rows)
    assert all(row.kept_ms is None and row.kept_for is None for row in view.tasks if row.owner is not None)


def test_probing_round_that_changes_nothing_is_seen() -> None:
    group = Group().starts("m1", stateful=2, probing_interval_ms=20_000)
    group.settles()
    group.join("m2", restores=0)
    counts = WorkerMetrics()
    machine = GroupMachine()

    def probings() -> float:
        return counts.registry.get_sample_value("equipoise_probings_total") or 0.0

    def fold() -> None:
        for record in group.records[machine.state.last_offset + 1 :]:
            counts.folded(record, machine.step(record), machine.state, live=True, is_new=True)

    def evaluated_ms() -> int:
        view = view_of(group.machine)
        assert view.probed_ms is not None
        assert view.next_probing_ms == view.probed_ms + 20_000
        ago, left = span_text(view.now_ms - view.probed_ms), span_text(view.next_probing_ms - view.now_ms)
        lines = [str(line) for line in group_lines(view)]
        assert f"  the balance was evaluated {ago} ago, and is evaluated again in {left}, and at each change" in lines
        return view.probed_ms

    fold()
    assert probings() == 0
    began_ms, generation = evaluated_ms(), group.state.generation
    while group.state.now_ms < began_ms + 21_000:
        group.cycle()
    fold()
    assert probings() == 1
    assert evaluated_ms() >= began_ms + 20_000
    assert group.state.generation == generation, "nothing changed"
