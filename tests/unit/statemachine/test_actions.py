"""State is written in one place: no module of the leader but `actions` assigns to what `GroupState`
holds. What each action changes is what its docstring says.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.assignors import MovementState, Revocations
from equipoise.events.codec import make_record
from equipoise.events.facts import AssignmentObserved, GroupConfigured, LagReported, Load, ObservedMember, PartitionsObserved, ProbingTick
from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.statemachine import actions, snapshots, state
from equipoise.statemachine.state import (
    Backoff,
    Crashes,
    FencedIncarnation,
    GroupState,
    Growth,
    Lost,
    MeasuredLoad,
    MemberState,
    Preparation,
    SlotBackoff,
    Warmup,
)
from tests.groups import MARGIN_MS, SESSION_MS, configured, joined, topology
from tests.unit.statemachine.contexts import gives_up, moves, owns, step

FOLDER = Path(__file__).parents[3] / "statemachine"
WRITERS = {"actions.py"}
STATES_OF_THEIR_OWN = {"member.py", "session_state.py"}
"""A member's session has its own state, whose fields have some of the same names."""
MODULES = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in WRITERS | STATES_OF_THEIR_OWN)
HELD = [each for each in vars(state).values() if isinstance(each, type) and each.__module__ == state.__name__ and attrs.has(each)]
FIELDS = frozenset(field.name for each in HELD for field in attrs.fields(each))
MUTATORS = frozenset({"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "sort", "update"})
"""Methods that change a dict, list or set."""


def reads_state(node: ast.AST, aliases: set[str], others: set[str]) -> bool:
    """Whether the expression is a part of the state: it names one of its fields, or a local name
    for one. `others`: names of objects that have fields of the same names.
    """
    while True:
        if isinstance(node, ast.Attribute):
            if node.attr in FIELDS and not (isinstance(node.value, ast.Name) and node.value.id in others):
                return True
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"get", "setdefault"}:
            node = node.func.value
        else:
            return isinstance(node, ast.Name) and node.id in aliases


def writes(source: str) -> list[str]:
    """Statements that change the state, as "line: source"."""
    tree = ast.parse(source)
    found: list[tuple[int, str]] = []
    held = {each.__name__ for each in HELD}
    of_state = {node for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name in held for node in ast.walk(each)}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        aliases: set[str] = set()
        others = {"group"} if function in of_state else {"self", "group"}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and reads_state(node.value, set(), others):
                aliases.update(target.id for target in node.targets if isinstance(target, ast.Name))
        for node in ast.walk(function):
            changed: list[ast.expr] = []
            if isinstance(node, ast.Assign | ast.Delete):
                changed = [each for target in node.targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                changed = [node.target]
            changed = [each for each in changed if not isinstance(each, ast.Name)]  # binding a local name changes nothing
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                changed = [node.func.value]
            found += [(each.lineno, ast.unparse(node)) for each in changed if reads_state(each, aliases, others)]
    return [f"{line}: {text}" for line, text in sorted(set(found))]


@pytest.mark.parametrize("module", MODULES)
def test_module_does_not_write_to_the_state(module: str) -> None:
    assert writes((FOLDER / module).read_text()) == [], "state is changed by a function of statemachine/actions.py"


@pytest.mark.parametrize(
    "statement",
    [
        "member.leaving = True",
        "state.number += 1",
        "del state.owner[task]",
        "state.crashes[name].until_ms = None",
        "member.warmup.pop(task)",
        "state.racks.setdefault(topic, {}).update(racks)",
        "backoff, backoff.over = backoff, True",
        "holds = state.holds\n    del holds[task]",
        "known = state.end_offsets[topic]\n    known.update(ends)",
    ],
)
def test_write_is_found(statement: str) -> None:
    assert len(writes(f"def function(state, member, backoff, task, name, topic, racks, ends):\n    {statement}\n")) >= 1


@pytest.mark.parametrize("statement", ["self.undoes = True", "self.standing.pop(task)", "self.times, self.over = 1, True"])
def test_write_of_a_state_to_itself_is_found(statement: str) -> None:
    method = f"    def method(self, task):\n        {statement}\n"
    assert len(writes(f"class WatchedChange:\n{method}")) >= 1
    assert writes(f"class Session:\n{method}") == []


def test_actions_is_where_the_state_is_written() -> None:
    assert len(writes((FOLDER / "actions.py").read_text())) > 80


# What each action changes

A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)
GONE = TaskId(0, 50)
"""A task that the topology does not have."""


def group_state(*member_ids: str) -> GroupState:
    return step(*(member_ids or ("m1", "m2"))).state


def changed(state: GroupState, change: Callable[[], object]) -> set[str]:
    """Fields of the group that the change changes."""
    before = copy.deepcopy(state)
    change()
    return {field.name for field in attrs.fields(GroupState) if field.eq and getattr(state, field.name) != getattr(before, field.name)}


def test_opened_log_begins_after_its_first_record():
    state = GroupState()
    assert changed(state, lambda: actions.open_log(state, "log-2", 7)) == {"log_id", "last_offset"}
    assert (state.log_id, state.last_offset) == ("log-2", 7)


def test_record_moves_the_group_on_and_the_first_one_names_it():
    state = GroupState()
    for group in ("orders", "other"):
        actions.advance(state, make_record(group, 9, 80, ProbingTick()), 30)
    assert (state.group, state.now_ms, state.last_append_ms, state.last_offset, state.seq) == ("orders", 60, 80, 9, 1)


def test_numbers_count_on():
    state = group_state()
    state.number, state.generation = 4, 6
    member = state.members["m1"]
    assert [actions.number_decisions(state, count) for count in (3, 1, 2)] == [5, 8, 9]
    actions.begin_generation(state)
    actions.begin_epoch(member)
    assert (state.number, state.generation, member.issued_epoch) == (10, 7, 6)


@pytest.mark.parametrize(
    ("fact", "is_kept"),
    [(configured(num_standbys=1), True), (configured(version=1), False), (configured("learner"), False), (configured("learner", version=1), False)],
)
def test_configuration_keeps_the_memory_of_the_same_assignor_and_version(fact: GroupConfigured, is_kept: bool):
    state = group_state()
    actions.remember_plan(state, Revocations(times=2), {"turn": 1})
    actions.configure(state, fact)
    assert (state.config, state.memory, state.revocations) == (fact, {"turn": 1} if is_kept else {}, Revocations(times=2))


@pytest.mark.parametrize(
    ("awaiting", "until_ms", "delay_ms", "moved_ms"),
    [
        (False, 50, 1_500, 550),
        (False, 50, 900, 0),
        (False, 150, 900, 50),
        (True, 50, 1_500, 2_050),
        (True, 50, 980, 0),
        (False, 2**64 - 2, 1_002, 2**64 - 1),
        (False, None, 1_500, None),
    ],
)
def test_changed_initial_delay_moves_the_end_of_gathering(awaiting: bool, until_ms: int | None, delay_ms: int, moved_ms: int | None):
    state = group_state()
    actions.configure(state, configured(initial_delay_ms=1_000))
    state.gathering_until_ms, state.awaiting_lags = until_ms, awaiting
    actions.configure(state, configured(initial_delay_ms=delay_ms))
    assert state.gathering_until_ms == moved_ms


def test_wait_for_lags_ends_within_what_a_snapshot_holds():
    state = group_state()
    actions.configure(state, configured(initial_delay_ms=2**62))
    state.gathering_until_ms = 2**63 - 1
    actions.await_lags(state)
    assert state.gathering_until_ms == 2**64 - 1
    assert snapshots.load(snapshots.dump(state)).gathering_until_ms == 2**64 - 1


def test_changed_drain_timeout_moves_the_drains_under_way():
    state = group_state()
    actions.configure(state, configured(drain_timeout_ms=1_000))
    actions.begin_drain(state, state.members["m1"])
    assert state.members["m1"].drain_deadline_ms == state.now_ms + 1_000
    actions.configure(state, configured(drain_timeout_ms=400))
    assert [member.drain_deadline_ms for member in state.members.values()] == [state.now_ms + 400, None]


def test_first_configuration_has_no_delays_to_move():
    state = GroupState(gathering_until_ms=5, memory={"turn": 1})
    actions.configure(state, configured())
    assert (state.gathering_until_ms, state.memory) == (5, {})


def test_topologies_that_members_run_are_kept_beside_the_newest():
    state = group_state()
    state.members["m2"].topology_epoch = 3
    for epoch in range(2, 25):
        actions.declare_topology(state, topology(epoch, stateful=epoch))
    assert sorted(state.topologies) == [1, 3, *range(9, 25)]
    assert all(epoch == each.epoch for epoch, each in state.topologies.items())


def test_tasks_that_the_topology_dropped_are_forgotten():
    state = group_state()
    load = MeasuredLoad(0, 1, 2, 3, 4)
    for task in (A, GONE):
        state.previous_owners[task], state.lost[task], state.loads[task], state.behind[task] = "m1", Lost(0), load, 5
        state.backoffs[task, "m1"] = Backoff(until_ms=1, times=1)
    actions.forget_removed_tasks(state)
    assert (state.previous_owners, state.lost, state.loads, state.behind) == ({A: "m1"}, {A: Lost(0)}, {A: load}, {A: 5})
    assert set(state.backoffs) == {(A, "m1")}


def test_observed_source_lag_replaces_what_was_reported():
    state = group_state()
    state.behind = {A: 5, B: 6}
    assert not actions.observe_partitions(state, PartitionsObserved(source_lags={"in": {0: 7}, "other": {1: 8}}))
    assert (state.behind, state.source_lags) == ({B: 6}, {"in": {0: 7}, "other": {1: 8}})


def test_observation_says_whether_a_rack_or_a_weight_changed():
    state = group_state()
    racks, weights = PartitionsObserved(racks={"in": {0: ("r1",)}, "log": {0: ("r1",)}}), PartitionsObserved(weights={"in": {0: 2}})
    seen = [actions.observe_partitions(state, each) for each in (racks, racks, weights, weights, PartitionsObserved(end_offsets={"log": {0: 1}}))]
    assert seen == [True, False, True, False, False]
    both = PartitionsObserved(racks={"in": {0: ("r1",), 1: ("r2",)}, "log": {0: ("r1",)}}, weights={"in": {0: 2}})
    assert actions.observe_partitions(state, both)
    assert (state.racks, state.weights) == ({"in": {0: ("r1",), 1: ("r2",)}, "log": {0: ("r1",)}}, {"in": {0: 2}})


@pytest.mark.parametrize(
    ("after_ms", "end", "growth"),
    [
        (1_000, 1_100, Growth(1_000, 100)),
        (3_000, 1_100, Growth(3_000, 34)),
        (0, 1_100, Growth(0)),
        (1_000, 1_000, Growth(1_000, 0)),
        (1_000, 999, Growth(1_000)),
        (1, INT64_MAX, Growth(1, INT64_MAX)),
    ],
)
def test_growth_is_measured_from_the_last_observation(after_ms: int, end: int, growth: Growth):
    state = GroupState()
    actions.observe_partitions(state, PartitionsObserved(end_offsets={"log": {0: 1_000}}))
    assert state.growth == {"log": {0: Growth(0)}}
    state.now_ms = after_ms
    actions.observe_partitions(state, PartitionsObserved(end_offsets={"log": {0: end}}))
    assert (state.growth, state.end_offsets) == ({"log": {0: growth}}, {"log": {0: end}})


def test_second_observation_of_one_moment_keeps_the_growth():
    state = GroupState()
    for now_ms, end in ((0, 1_000), (1_000, 1_100), (1_000, 1_100), (1_000, 1_200)):
        state.now_ms = now_ms
        actions.observe_partitions(state, PartitionsObserved(end_offsets={"log": {0: end}}))
    assert state.growth == {"log": {0: Growth(1_000, 100)}}


def test_source_lags_observed_before_a_topology_is_declared_are_kept():
    state = GroupState()
    actions.observe_partitions(state, PartitionsObserved(source_lags={"in": {0: 7}}))
    assert state.source_lags == {"in": {0: 7}}


def test_join_has_what_the_member_says_of_itself():
    state = group_state()
    state.now_ms = 70
    fact = joined(
        "m9",
        4,
        capacity=2,
        rack="r1",
        tags={"zone": "z"},
        session_timeout_ms=9_000,
        lease_margin_ms=2_000,
        topology_epoch=3,
        lags={A: 5},
        eager=True,
        readiness="lag",
        ready_lag_records=6,
    )
    member = actions.join(state, fact, restore_records_per_s=7, measured_records_per_s=8)
    assert state.members["m9"] is member
    assert member == MemberState(
        member_id="m9",
        incarnation=4,
        capacity=2,
        rack="r1",
        tags={"zone": "z"},
        session_timeout_ms=9_000,
        lease_margin_ms=2_000,
        topology_epoch=3,
        last_heard_ms=70,
        lags={A: 5},
        eager=True,
        readiness="lag",
        ready_lag_records=6,
        restore_records_per_s=7,
        measured_records_per_s=8,
    )
    assert member.lags is not fact.lags
    assert member.tags is not fact.tags


def test_join_nonces_are_forgotten_an_hour_later():
    def joins(state: GroupState, nonce: str, now_ms: int) -> set[str]:
        state.now_ms = now_ms
        actions.join(state, joined(nonce, join_nonce=nonce), restore_records_per_s=0, measured_records_per_s=0)
        return set(state.nonces)

    hour_ms = 3_600_000
    for restored in (False, True):
        state = GroupState()
        assert joins(state, "a", 0) == {"a"}
        assert joins(state, "b", 1_000) == {"a", "b"}
        if restored:
            state = attrs.evolve(state)
        assert joins(state, "c", hour_ms - 1) == {"a", "b", "c"}
        assert joins(state, "d", hour_ms) == {"b", "c", "d"}
        assert joins(state, "e", hour_ms + 1_000) == {"c", "d", "e"}
        assert state.nonces["e"] == 2 * hour_ms + 1_000


def test_join_forgets_requests_to_leave_whose_time_has_passed():
    state = group_state()
    state.now_ms = 50
    state.asked = {"m1": None, "m7": 50, "m8": 51}
    actions.join(state, joined("m9"), restore_records_per_s=0, measured_records_per_s=0)
    assert state.asked == {"m1": None, "m8": 51}


def test_member_that_goes_leaves_its_crashes_and_the_request_that_it_leaves():
    state = group_state()
    state.now_ms = 50
    state.backoffs = {(A, "m1"): Backoff(1, 1), (A, "m2"): Backoff(2, 2)}
    state.crashes = {name: Crashes(times=2, first_ms=0, changed_ms=0, until_ms=9) for name in ("m1", "m2")}
    state.asked = {"m1": None, "m2": None, "m3": 60}
    actions.remove(state, state.members["m1"])
    assert (set(state.members), set(state.backoffs)) == ({"m2"}, {(A, "m2")})
    assert [state.crashes[name].until_ms for name in ("m1", "m2")] == [None, 9]
    assert state.asked == {"m1": 50 + 600_000, "m2": None, "m3": 60}
    actions.remove(state, state.members["m2"])
    actions.withdraw_request(state, "m3")
    actions.withdraw_request(state, "m4")
    assert state.asked == {"m1": 600_050, "m2": 600_050}


def test_message_renews_the_lease_of_the_incarnation_that_sent_it():
    state = group_state()
    owns(state, "m2", A)
    actions.fence(state, state.members["m2"], 5)
    state.now_ms += 90
    assert actions.hear(state, "m1", 7) is None
    assert actions.hear(state, "m9", 1) is None
    assert [member.last_heard_ms for member in state.members.values()] == [0, 0]
    assert actions.hear(state, "m1", 1) is state.members["m1"]
    assert [member.last_heard_ms for member in state.members.values()] == [90, 0]
    assert state.fenced["m2#1"].last_heard_ms == 0
    actions.remove(state, state.members["m2"])
    assert actions.hear(state, "m2", 1) is None
    assert state.fenced["m2#1"].last_heard_ms == 90


def reported(member: MemberState, **fields: Any) -> None:
    actions.report(GroupState(now_ms=30), member, LagReported(member_id="m1", incarnation=1, number=4, assignment_epoch=3, **fields))


def test_full_report_replaces_what_was_reported_and_a_delta_changes_it():
    member = group_state().members["m1"]
    lags: dict[TaskId, Lag] = {A: 1, B: 2}
    reported(member, held=(A,), ready=(B,), failed=(C,), lags=lags)
    assert (member.report_number, member.applied_epoch, member.held, member.ready, member.failed) == (4, 3, (A,), frozenset({B}), frozenset({C}))
    reported(member, base=4, lags={B: 5, C: 6}, forgotten=(A, GONE))
    assert (member.lags, member.held, member.ready, member.failed) == ({B: 5, C: 6}, (), frozenset(), frozenset())
    assert lags == {A: 1, B: 2}, "a fact is never changed"
    reported(member, lags={A: 7})
    assert member.lags == {A: 7}


@pytest.mark.parametrize(("said", "speed"), [(None, 5), (0.0, 5), (0.9, 5), (1.0, 1), (70.9, 70), (1e30, INT64_MAX)])
def test_report_of_a_restore_speed_replaces_the_members(said: float | None, speed: int):
    member = group_state().members["m1"]
    member.restore_records_per_s = member.measured_records_per_s = 5
    reported(member, load=None if said is None else Load(restored_records_per_s=said))
    assert (member.restore_records_per_s, member.measured_records_per_s) == (speed, speed)


def test_preparation_counts_from_when_it_began():
    member = group_state().members["m1"]
    member.preparing = {A: Preparation(100, 10), B: Preparation(100, 10)}
    reported(member, preparing={A: 200, C: 50})
    assert member.preparing == {A: Preparation(200, 10), C: Preparation(50, 30)}


def test_loads_are_kept_and_source_lags_of_known_tasks():
    state = group_state()
    load = MeasuredLoad(0, 1, 2, 3, 4)
    state.loads, state.behind = {B: load}, {B: 9}
    actions.record_loads(state, {A: load}, {A: 5, GONE: 6})
    assert (state.loads, state.behind) == ({A: load, B: load}, {A: 5, B: 9})


def test_tasks_given_up_are_no_longer_held_and_tasks_declared_are_ready():
    member = group_state().members["m1"]
    member.held, member.ready = (A, B, C), frozenset({A})
    actions.stop_holding(member, (B,))
    actions.declare_ready(member, (C,))
    assert (*member.held, *sorted(member.ready)) == (A, C, A, C)


def test_drain_begins_expires_and_ends():
    state = group_state()
    member = state.members["m1"]

    def drain() -> tuple[bool, bool, bool]:
        return member.leaving, member.drain_expired, member.drain_deadline_ms is not None

    actions.begin_drain(state, member)
    assert drain() == (True, False, True)
    actions.expire_drain(member)
    assert drain() == (True, True, False)
    actions.end_drain(member)
    assert drain() == (False, False, False)
    actions.begin_drain(state, member)
    actions.end_drain(member)
    assert drain() == (False, False, False)


def test_released_member_keeps_no_copies():
    state = group_state()
    member = state.members["m1"]
    member.standby = {A}
    actions.begin_warmup(state, member, B, caught_up=False)
    actions.release_member(member)
    assert (member.released, member.standby, member.warmup) == (True, set(), {})
    actions.readmit(member)
    assert member.released is False


# Crashes (D10)


def test_crashes_count_until_they_are_forgotten():
    state = group_state()
    state.crashes = {"m7": Crashes(times=1, first_ms=0, changed_ms=0), "m8": Crashes(times=1, first_ms=0, changed_ms=1)}
    state.now_ms = 600_000
    actions.record_crash(state, "m1")
    state.now_ms += 5
    actions.record_crash(state, "m1")
    assert state.crashes == {"m1": Crashes(times=2, first_ms=600_000, changed_ms=600_005)}
    actions.forget_crashes(state, "m1")
    actions.forget_crashes(state, "m1")
    assert state.crashes == {}


@pytest.mark.parametrize(("times", "until_ms"), [(0, None), (1, None), (2, 10_040), (3, 20_040)])
def test_member_that_joins_after_repeated_crashes_is_in_back_off(times: int, until_ms: int | None):
    state = group_state()
    for _ in range(times):
        actions.record_crash(state, "m1")
    state.now_ms += 40
    assert actions.begin_crash_backoff(state, "m1") is (until_ms is not None)
    if times:
        assert state.crashes["m1"] == Crashes(times=times, first_ms=0, changed_ms=40, until_ms=until_ms)
        actions.end_crash_backoff(state, "m1")
        assert state.crashes["m1"].until_ms is None


def test_join_long_after_the_last_crash_is_no_back_off():
    state = group_state()
    actions.record_crash(state, "m1")
    actions.record_crash(state, "m1")
    state.now_ms = 600_000
    assert not actions.begin_crash_backoff(state, "m1")
    assert state.crashes == {}


# Ownership


def test_grant_ends_what_the_task_was_before():
    state = group_state()
    m1, m2 = state.members["m1"], state.members["m2"]
    state.tokens.clear()
    owns(state, "m2", A)
    actions.revoke(state, m2, A)
    assert (m2.active, m2.revoking) == ({}, {A: (6, 0)})
    actions.grant(state, m2, A)
    assert (m2.active, m2.revoking, state.tokens) == ({A: 6}, {}, {A: 2})
    state.lost, state.previous_owners = {B: Lost(0), C: Lost(0)}, {B: "m1", C: "m2"}
    m1.standby = {B, GONE}
    actions.begin_warmup(state, m1, C, caught_up=False)
    for task in (B, C):
        actions.grant(state, m1, task)
    assert (m1.active, m1.standby, m1.warmup) == ({B: 6, C: 6}, {GONE}, {})
    assert (state.owner, state.tokens, state.lost) == ({A: "m2", B: "m1", C: "m1"}, {A: 2, B: 1, C: 1}, {})
    assert state.previous_owners == {C: "m2"}, "the task may still go back to another one"


def test_fence_holds_what_the_member_knows_to_own():
    state = group_state()
    member = state.members["m1"]
    owns(state, "m1", A, B)
    gives_up(state, "m1", C)
    actions.grant(state, member, GONE)
    state.holds = {A: 70, B: 20}
    assert actions.fence(state, member, 50) == "m1#1"
    assert state.holds == {A: 70, B: 50, C: 50}
    assert state.fenced == {"m1#1": FencedIncarnation("m1", 1, SESSION_MS, MARGIN_MS, last_heard_ms=0, tasks={A, B, C})}


def test_fenced_incarnation_lifts_the_holds_that_no_other_one_has():
    state = group_state()
    state.holds = {A: 1, B: 2, C: 3}
    state.fenced = {name: FencedIncarnation(name, 1, 9, 1, 0, of) for name, of in (("m1", {B, A}), ("m2", {A}), ("m3", {C}))}
    assert actions.unfence(state, "m1") == [B]
    assert (state.holds, set(state.fenced)) == ({A: 1, C: 3}, {"m2", "m3"})
    assert actions.unfence(state, "m2") == [A]


def test_cleared_hold_ends_fences_without_other_tasks():
    state = group_state()
    state.holds = {A: 1, B: 2}
    state.fenced = {name: FencedIncarnation(name, 1, 9, 1, 0, of) for name, of in (("m1", {B, A}), ("m2", {A}), ("m3", {B}))}
    actions.clear_hold(state, A)
    assert (state.holds, {name: fenced.tasks for name, fenced in state.fenced.items()}) == ({B: 2}, {"m1": {B}, "m3": {B}})


def test_previous_owner_is_noted_or_forgotten():
    state = group_state()
    actions.set_previous_owner(state, A, state.members["m1"])
    actions.set_previous_owner(state, B, None)
    assert state.previous_owners == {A: "m1"}
    actions.set_previous_owner(state, A, None)
    assert state.previous_owners == {}
    state.now_ms = 8
    actions.lose(state, state.members["m2"], A)
    assert (state.previous_owners, state.lost) == ({A: "m2"}, {A: Lost(8)})


def test_observed_assignment_replaces_what_members_have():
    state = group_state()
    owns(state, "m1", A)
    state.lost = {B: Lost(0), C: Lost(0)}
    state.now_ms = 8
    members = (ObservedMember(member_id="m1", incarnation=1, active=(B,), standby=(A, B)), ObservedMember(member_id="m2", incarnation=1))
    actions.observe_assignment(state, AssignmentObserved(generation=4, members=members))
    actions.observe_generation(state, 4)
    assert [(member.active, member.standby, member.last_heard_ms) for member in state.members.values()] == [({B: 0}, {A}, 8), ({}, set(), 8)]
    assert (state.owner, set(state.lost), state.generation) == ({B: "m1"}, {C}, 4)


# Movements


def test_movements_are_indexed_by_their_destination():
    state = group_state()
    moves(state, A, "m1", "m2", MovementState.REVOKING)
    moves(state, B, "m1", "m2", MovementState.REVOKING)
    actions.forget_source(state, B)
    assert (state.members["m2"].incoming, state.in_flight[A].source, state.in_flight[B].source) == ({A, B}, "m1", None)
    assert actions.end_movement(state, A).destination == "m2"
    assert (state.members["m2"].incoming, set(state.in_flight)) == ({B}, {B})
    actions.queue(state, attrs.evolve(state.in_flight[B], task=C))
    actions.count_waiting(state)
    actions.count_waiting(state)
    assert (state.queued, state.waiting) == ({C: "m2"}, 2)
    assert set(actions.clear_movements(state)) == {B}
    assert (state.in_flight, state.queued, state.waiting, state.members["m2"].incoming) == ({}, {}, 0, set())


# Copies


def test_warm_up_begins_from_the_lag_of_its_member():
    state = group_state()
    state.now_ms = 8
    member = state.members["m1"]
    member.lags = {A: 5, B: LagSentinel.UNKNOWN}
    for task in (A, B):
        actions.begin_warmup(state, member, task, caught_up=task == A)
    assert member.warmup == {A: Warmup(5, 8, True, 5, 8), B: Warmup(None, 8, False, None, 8)}
    assert [actions.end_warmup(member, A), actions.end_warmup(member, A)] == [True, False]
    assert set(member.warmup) == {B}


@pytest.mark.parametrize(
    ("before", "lag", "prepared", "caught_up", "after"),
    [
        (Warmup(50, 1, False, 50, 1), 40, None, False, Warmup(40, 8, False, 50, 1)),
        (Warmup(50, 1, False, 50, 1), 50, None, False, Warmup(50, 1, False, 50, 1)),
        (Warmup(50, 1, False, 50, 1), None, None, False, Warmup(50, 1, False, 50, 1)),
        (Warmup(None, 1, False, None, 1), 50, None, False, Warmup(50, 8, False, 50, 8)),
        (Warmup(50, 1, True, 50, 1), 60, None, False, Warmup(50, 8, False, 60, 8)),
        (Warmup(50, 1, True, 50, 1), 60, None, True, Warmup(50, 1, True, 50, 1)),
        (Warmup(50, 1, False, 50, 1), 50, 0, False, Warmup(50, 8, False, 50, 1, 0)),
        (Warmup(50, 1, False, 50, 1, 300), 50, 300, False, Warmup(50, 1, False, 50, 1, 300)),
        (Warmup(50, 1, False, 50, 1, 300), 50, 301, False, Warmup(50, 8, False, 50, 1, 301)),
    ],
)
def test_progress_is_a_nearer_lag_or_a_further_preparation(before: Warmup, lag: int | None, prepared: int | None, caught_up: bool, after: Warmup):
    state = group_state()
    state.now_ms = 8
    member = state.members["m1"]
    member.warmup, member.lags = {A: before}, {} if lag is None else {A: lag}
    member.preparing = {} if prepared is None else {A: Preparation(prepared, 0)}
    actions.record_progress(state, member, A, caught_up=caught_up)
    assert member.warmup == {A: after}


@pytest.mark.parametrize(("was", "caught_up", "forgets"), [(False, True, True), (False, False, False), (True, True, False), (True, False, False)])
def test_back_offs_of_a_copy_are_forgotten_when_it_catches_up(was: bool, caught_up: bool, forgets: bool):
    state = group_state()
    member = state.members["m1"]
    member.warmup = {A: Warmup(5, 0, was, 5, 0)}
    state.backoffs = {(A, "m1"): Backoff(1, 1), (B, "m1"): Backoff(1, 1), (A, "m2"): Backoff(1, 1)}
    actions.begin_slot_backoff(state, member, set(), least_ms=1)
    actions.record_progress(state, member, A, caught_up=caught_up)
    assert ((A, "m1") in state.backoffs, member.slot_backoff is None, len(state.backoffs)) == (not forgets, forgets, 2 + (not forgets))


def test_copy_is_measured_from_where_it_was_last_looked_at():
    state = group_state()
    state.now_ms = 8
    member = state.members["m1"]
    member.warmup, member.lags = {A: Warmup(5, 0, False, 50, 0)}, {A: 30}
    actions.look_again(state, member, A)
    assert member.warmup[A] == Warmup(5, 0, False, 30, 8)
    actions.restart_stall(state, member, A)
    assert member.warmup[A] == Warmup(5, 8, False, 30, 8)
    actions.measure_speed(member, 70)
    assert (member.measured_records_per_s, member.restore_records_per_s) == (70, 0)


def test_back_off_doubles_with_each_stall_of_the_pair():
    state = group_state()
    state.now_ms = 8
    stall_ms = state.settings.warmup_stall_ms
    for times in (1, 2, 3):
        actions.begin_backoff(state, state.members["m1"], A)
        assert state.backoffs == {(A, "m1"): Backoff(until_ms=8 + stall_ms * 2 ** (times - 1), times=times)}
    actions.end_backoff(state.backoffs[A, "m1"])
    assert state.backoffs[A, "m1"].over


def test_slot_back_off_lasts_at_least_what_it_is_given():
    state = group_state()
    state.now_ms = 8
    member, stall_ms = state.members["m1"], state.settings.warmup_stall_ms
    actions.begin_slot_backoff(state, member, {A}, least_ms=3 * stall_ms)
    assert member.slot_backoff == SlotBackoff(until_ms=8 + 3 * stall_ms, times=1, exempt={A})
    actions.begin_slot_backoff(state, member, {B}, least_ms=0)
    assert member.slot_backoff == SlotBackoff(until_ms=8 + 2 * stall_ms, times=2, exempt={B})
    actions.exempt_from(member.slot_backoff, {C})
    actions.cut_slot_backoff(state, member.slot_backoff)
    assert member.slot_backoff == SlotBackoff(until_ms=8, times=2, exempt={B, C})


# Rounds and their timers


def test_gathering_begins_waits_for_lags_and_ends():
    state = group_state()
    actions.configure(state, configured(initial_delay_ms=1_000))
    state.now_ms, state.behind, state.source_lags = 8, {A: 1}, {"in": {0: 2}}
    actions.begin_gathering(state)
    assert (state.gathering_until_ms, state.behind, state.source_lags, state.awaiting_lags) == (1_008, {}, {}, False)
    actions.await_lags(state)
    assert (state.gathering_until_ms, state.awaiting_lags) == (4_008, True)
    actions.end_gathering(state)
    assert (state.gathering_until_ms, state.awaiting_lags) == (None, False)


def test_timers_and_what_the_plan_wants_back_are_set():
    state = group_state()
    lost = Lost(since_ms=1)
    actions.set_probing(state, 5)
    actions.schedule(state, 6)
    actions.postpone_lost(lost, 7)
    actions.set_verdict(state, ("moving", 1, 2, 3, 4))
    actions.remember_plan(state, Revocations(times=3), {"turn": 1})
    assert (state.probing_deadline_ms, state.scheduled_ms, lost, state.verdict) == (5, 6, Lost(1, 7), ("moving", 1, 2, 3, 4))
    assert (state.revocations, state.memory) == (Revocations(times=3), {"turn": 1})


def test_empty_group_forgets_its_round():
    state = GroupState(
        gathering_until_ms=1,
        awaiting_lags=True,
        probing_deadline_ms=2,
        scheduled_ms=3,
        revocations=Revocations(times=4),
        memory={"turn": 5},
        lost={A: Lost(6)},
        waiting=7,
        queued={A: "m1"},
        previous_owners={A: "m1"},
        number=8,
    )
    actions.rest(state)
    assert state == GroupState(previous_owners={A: "m1"}, number=8)


def test_eager_regrants_are_added_and_dropped():
    member = group_state().members["m1"]
    for task in (A, B):
        actions.add_eager_regrant(member, task, had_it=task == A)
    assert (actions.drop_eager_regrant(member, A), member.eager_regrants) == (True, {B: False})
    actions.clear_eager_regrants(member)
    assert member.eager_regrants == {}
