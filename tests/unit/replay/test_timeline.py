"""`timeline`: intervals tile each task's time, moves and rounds are those of the log, a recorded
run counts as measured, the page is self-contained.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.assignors.common.indexed_problem import IndexedProblem
from equipoise.assignors.common.shares import Shares
from equipoise.events.decisions import AssignmentIssued, MemberExpired
from equipoise.events.facts import AssignmentObserved, MemberJoined, MemberLeft
from equipoise.events.records import DecisionRecord, Entry, FactRecord
from equipoise.log import open_log
from equipoise.replay.importers.kafka_streams.importer import import_history
from equipoise.replay.owners import Condition
from equipoise.replay.replayer import Replayer
from equipoise.replay.timelines import Timeline, build_timeline, changes_owner, render_page, timeline_document
from equipoise.replay.timelines.build import MOST_POINTS, _add_point, _imbalance
from equipoise.replay.timelines.page import page_data
from equipoise.statemachine import leader
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import GroupState
from tests.unit.replay.lived import BACK_MS, END_MS, KILLED_MS, TOPOLOGY, configured, decided, lived

DATA = Path(__file__).parents[3] / "replay" / "data"
RUNS = ("scale-out", "rolling")


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return build_timeline(lived())


@pytest.fixture(scope="module", params=RUNS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Timeline]:
    """A recorded group that Kafka Streams led."""
    with open_log(tmp_path_factory.mktemp("imported") / "run.jsonl", "w") as log:
        with log.transaction():
            import_history(DATA / request.param, log)
        return request.param, build_timeline(log.read())


def test_timeline_intervals_tile_each_task(timeline: Timeline, recorded: tuple[str, Timeline]) -> None:
    for each in (timeline, recorded[1]):
        for task in each.tasks:
            of_task = [interval for interval in each.intervals if interval.task == task]
            assert of_task[-1].to_ms == each.to_ms
            assert all(interval.from_ms < interval.to_ms for interval in of_task)
            assert all(before.to_ms == after.from_ms for before, after in itertools.pairwise(of_task))
            assert all((interval.member_id is None) == (interval.condition is Condition.NOBODY) for interval in of_task)


def test_timeline_owners_equal_the_machines_at_rounds(timeline: Timeline) -> None:
    machine = GroupMachine()
    rounds = {each.offset for each in timeline.rounds}
    for entry in lived():
        if not isinstance(entry, FactRecord):
            continue
        machine.step(entry)
        if entry.offset in rounds and entry.append_ms < timeline.to_ms:
            shown = {
                interval.task: interval.member_id
                for interval in timeline.intervals
                if interval.from_ms <= entry.append_ms < interval.to_ms and interval.member_id is not None
            }
            later = {each.append_ms for each in timeline.rounds if each.offset > entry.offset}
            if entry.append_ms not in later:
                assert shown == dict(machine.state.owner)


def test_timeline_imbalance_equals_the_assignors() -> None:
    replayer, seen = Replayer(), set()
    for step in replayer.follow(lived()):
        state = replayer.machine.state
        if step.decisions and state.members:
            indexed = IndexedProblem(build_problem(state))
            assert _imbalance(state) == Shares(indexed).imbalance(indexed.owner)
            seen.add(_imbalance(state))
    assert len(seen) > 3


@pytest.mark.parametrize("looping", [{"m1"}, {"m1", "m3"}, {"m1", "m2", "m3", "m4"}])
def test_timeline_imbalance_excludes_crash_looping_members(monkeypatch: pytest.MonkeyPatch, looping: set[str]) -> None:
    replayer = Replayer()
    for _ in replayer.follow(lived()):
        pass
    state = replayer.machine.state
    monkeypatch.setattr(GroupState, "is_crash_looping", lambda self, member_id: member_id in looping)
    indexed = IndexedProblem(build_problem(state))
    assert _imbalance(state) == Shares(indexed).imbalance(indexed.owner)


def test_build_timeline_builds_no_problem_for_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a leader builds assignment problems; reading a history builds none."""
    built: list[str] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        built.append("problem")
        return build_problem(*args, **kwargs)

    monkeypatch.setattr(leader, "build_problem", counted)
    asked = sum(step.assignor_call is not None for step in Replayer().follow(lived()))
    assert len(built) == asked > 10
    built.clear()
    build_timeline(lived())
    assert len(built) == asked


def with_standbys() -> Sequence[Entry]:
    """Two members, each task with a copy whose lag was never reported."""
    joins = [MemberJoined(member_id=name, incarnation=1, join_nonce=name) for name in ("m1", "m2")]
    return decided((1_000, configured(initial_delay_ms=0, num_standbys=1)), (1_001, TOPOLOGY), (1_002, joins[0]), (1_003, joins[1]))


@pytest.mark.parametrize("log", [lived, with_standbys])
def test_build_timeline_lists_tasks_once_per_topology_not_per_round_or_copy(
    monkeypatch: pytest.MonkeyPatch, log: Callable[[], Sequence[Entry]]
) -> None:
    listed: list[int] = []
    real = GroupState.tasks

    def counted(self: GroupState) -> Any:
        listed.append(self.generation)
        return real(self)

    entries = log()
    monkeypatch.setattr(GroupState, "tasks", counted)
    for _ in Replayer().follow(entries):
        pass
    folding = len(listed)
    listed.clear()
    built = build_timeline(entries)
    assert len(built.rounds) + len(built.copies) > 10
    assert len(listed) <= folding + 3, "one topology: for the intervals, for the rows, and at the end"


def test_moves_and_rounds_are_those_of_the_log(timeline: Timeline) -> None:
    issued = [entry for entry in lived() if isinstance(entry, DecisionRecord) and isinstance(entry.decision, AssignmentIssued)]
    assert [each.generation for each in timeline.rounds] == [
        entry.decision.generation for entry in issued if isinstance(entry.decision, AssignmentIssued)
    ]
    granted = sorted(
        (move.task, move.destination)
        for entry in issued
        if isinstance(entry.decision, AssignmentIssued)
        for move in entry.decision.moves
        if move.state == "granted"
    )
    assert sorted((move.task, move.destination) for move in timeline.moves if move.outcome == "granted") == granted
    totals = timeline.totals()
    assert totals.moves == sum(map(changes_owner, timeline.moves)) == sum(move.source is not None for move in timeline.moves)


def test_timeline_dead_member_is_silent_from_last_fact(timeline: Timeline) -> None:
    expiry = next(entry for entry in lived() if isinstance(entry, DecisionRecord) and isinstance(entry.decision, MemberExpired))
    expired_ms = next(entry.append_ms for entry in lived() if isinstance(entry, FactRecord) and entry.offset == expiry.caused_by)
    silent = [interval for interval in timeline.intervals if interval.condition is Condition.SILENT]
    assert {interval.member_id for interval in silent} == {"m2"}
    assert {interval.to_ms for interval in silent} == {expired_ms}
    assert {interval.from_ms for interval in silent} <= set(range(KILLED_MS - 3_000, KILLED_MS + 100))
    window = timeline.totals("kill", KILLED_MS, BACK_MS)
    stopped = [each for each in timeline.intervals if each.condition is not Condition.RUNNING and KILLED_MS - 3_000 < each.from_ms < BACK_MS]
    assert window.tasks_stopped == len(silent)
    assert window.stopped_ms == sum(interval.to_ms - interval.from_ms for interval in stopped)
    assert window.longest_ms >= expired_ms - KILLED_MS
    lines = {(life.member_id, life.how) for life in timeline.lifelines}
    assert lines == {("m1", ""), ("m2", "session_timeout"), ("m2", ""), ("m3", ""), ("m4", "")}


def test_task_that_restores_first_is_starting_until_its_owner_reports_it_running(timeline: Timeline) -> None:
    starting = [interval for interval in timeline.intervals if interval.condition is Condition.STARTING]
    assert starting
    for interval in starting:
        assert timeline.tasks[interval.task], "a stateless task starts at once"
        after = next(each for each in timeline.intervals if each.task == interval.task and each.from_ms == interval.to_ms)
        assert (after.member_id, after.condition) == (interval.member_id, Condition.RUNNING)


def test_warm_ups_have_their_time_and_when_they_were_ready(timeline: Timeline) -> None:
    warmups = [copy for copy in timeline.copies if copy.kind == "warmup"]
    moved = {(move.task, move.destination) for move in timeline.moves if any(step.state == "warming" for step in move.steps)}
    assert {(copy.task, copy.member_id) for copy in warmups} == moved
    assert all(copy.ready_ms is not None and copy.from_ms <= copy.ready_ms <= copy.to_ms for copy in warmups)


def test_lag_curves_fall_to_nothing_while_a_copy_warms_up(timeline: Timeline) -> None:
    warmup = next(copy for copy in timeline.copies if copy.kind == "warmup" and copy.member_id == "m4")
    points = [lag for at_ms, lag in timeline.lags[warmup.task, "m4"] if warmup.from_ms <= at_ms <= warmup.to_ms]
    assert points[0] > 100_000 > 1_000 >= points[-1]


def test_add_point_thins_but_keeps_the_last() -> None:
    points: list[tuple[int, int]] = []
    for number in range(10_000):
        _add_point(points, number, number)
        assert points[-1] == (number, number)
    assert MOST_POINTS <= len(points) < 2 * MOST_POINTS
    assert points == sorted(points)


def test_imbalance_rises_with_a_joiner_and_ends_at_nothing(timeline: Timeline) -> None:
    values = [value for _, value in timeline.imbalance]
    assert max(values) > 0
    assert values[-1] == 0


def test_timeline_recorded_counts_equal_the_measured(recorded: tuple[str, Timeline]) -> None:
    name, built = recorded
    measured = json.loads((DATA / name / "unavailability.json").read_text())["actions"]
    windows = {each.label: each for each in built.window_totals()}
    assert list(windows) == [each["action"] for each in measured]
    for each in measured:
        assert (windows[each["action"]].moves, windows[each["action"]].rounds) == (each["totals"]["active_moves"], each["totals"]["generations"])


def test_timeline_recorded_bounce_is_silence(recorded: tuple[str, Timeline]) -> None:
    _, built = recorded
    replaced = [life for life in built.lifelines if life.how == "replaced"]
    for life in replaced:
        assert life.silent_ms is not None
        assert life.ended_ms is not None
        silent = [
            each
            for each in built.intervals
            if each.member_id == life.member_id and each.condition is Condition.SILENT and each.from_ms == life.silent_ms
        ]
        assert silent
        assert {interval.to_ms for interval in silent} == {life.ended_ms}


def test_member_that_leaves_is_never_silent() -> None:
    joins = [MemberJoined(member_id=name, incarnation=1, join_nonce=name) for name in ("m1", "m2")]
    entries = decided(
        (1_000, configured(initial_delay_ms=0)),
        (1_001, TOPOLOGY),
        (1_002, joins[0]),
        (1_003, joins[1]),
        (1_500, MemberLeft(member_id="m1", incarnation=1)),
        (1_900, MemberLeft(member_id="m2", incarnation=1)),
    )
    built = build_timeline(entries)
    assert [(life.member_id, life.how, life.silent_ms) for life in built.lifelines] == [("m1", "left", None), ("m2", "left", None)]
    assert not [each for each in built.intervals if each.condition is Condition.SILENT]


def test_timeline_document_is_json(timeline: Timeline) -> None:
    document = json.loads(json.dumps(timeline_document(timeline), allow_nan=False))
    assert document["to_ms"] <= END_MS
    assert document["totals"]["rounds"] == len(document["rounds"]) == len(timeline.rounds)
    assert len(document["intervals"]) == len(timeline.intervals)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.scripts: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.references += [f"{tag} {name}={value}" for name, value in attributes if name in ("src", "href", "action", "data", "srcset")]
        self._in_script = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False


def parsed(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    page.close()
    return page


def test_page_is_self_contained(timeline: Timeline) -> None:
    text = render_page(timeline)
    page = parsed(text)
    assert page.references == []
    assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z0-9.-]+\.[a-z]{2,}", text)
    assert not re.findall(r"@import|url\((?!#)|\bfetch\(|XMLHttpRequest|WebSocket|import\(", text.replace("url(#h$", "")), (
        "nothing is loaded from anywhere"
    )
    assert "default-src 'none'" in text
    assert json.loads(page.scripts[0]) == json.loads(json.dumps(page_data(timeline)))


def test_page_explains_what_not_running_means(timeline: Timeline, recorded: tuple[str, Timeline]) -> None:
    assert "last report" in page_data(timeline)["caption"]
    assert "no restores" in page_data(recorded[1])["caption"]
    for each in (timeline, recorded[1]):
        assert each.caption in parsed(render_page(each)).scripts[0]


def test_equal_histories_give_equal_pages(timeline: Timeline) -> None:
    assert render_page(timeline) == render_page(build_timeline(lived()))


def test_page_escapes_names() -> None:
    name = "</script><script>alert(1)</script><!--"
    entries = decided(
        (1_000, configured(initial_delay_ms=0)), (1_001, TOPOLOGY), (1_002, MemberJoined(member_id=name, incarnation=1, join_nonce="a"))
    )
    built = attrs.evolve(build_timeline(entries), group="<b>$data & co")
    page = parsed(render_page(built))
    assert len(page.scripts) == 2
    assert json.loads(page.scripts[0])["members"] == [name]
    assert "alert(1)" not in page.scripts[1]
    assert "<b>" not in render_page(built)


def test_page_of_many_tasks_draws_the_changed(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.replay.timelines.page.MOST_ROWS", 5)
    data = page_data(timeline)
    assert len(data["tasks"]) == 5
    assert "10 tasks that changed least are not drawn" in data["note"]
    assert {interval[0] for interval in data["intervals"]} == set(range(5))
    moved = {str(move.task) for move in timeline.moves if changes_owner(move)}
    assert set(data["tasks"]) & moved


def test_timeline_of_external_leader_has_rounds(recorded: tuple[str, Timeline]) -> None:
    _, built = recorded
    assert built.led_by == "external"
    assert {each.cause for each in built.rounds} <= {"join", "leave", "expiry", "follow-up", "probing", "unknown"}
    assert AssignmentObserved.__name__ not in render_page(built)
