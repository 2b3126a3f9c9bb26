"""A warm-up slot is judged by the progress of its copy, against the movements that wait for a slot
(docs/protocol.md#m7).
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors import Movement, MovementState
from equipoise.events.facts import Load, PartitionsObserved
from equipoise.events.fields import INT64_MAX
from equipoise.events.tasks import TaskId
from equipoise.statemachine import actions
from equipoise.statemachine.deadlines import Timer
from equipoise.statemachine.slots import Progress, look_at
from equipoise.statemachine.state import Backoff, Growth, SlotBackoff, Warmup
from equipoise.statemachine.step_context import StepContext
from tests.groups import HEARTBEAT_MS, Group, configured
from tests.unit.statemachine.contexts import moves, owns, step

STALL_MS = 9_000
RECORDS = 40_000
SMALL = TaskId(0, 4)


def group_of(*, stateful: int, **settings: Any) -> Group:
    """m1 runs all tasks, each of RECORDS records; there are no copies, and one warm-up at a time."""
    group = Group().starts("m1", stateful=stateful, end_offset=RECORDS, **{"warmup_stall_ms": STALL_MS, "max_warmups": 1, **settings})
    group.settles()
    return group


def runs(group: Group, member_id: str) -> int:
    return sum(owner == member_id for owner in group.state.owner.values())


def cycles(group: Group, duration_ms: int) -> None:
    for _ in range(duration_ms // HEARTBEAT_MS):
        group.cycle()


def outpaced(group: Group) -> list[str]:
    """Destinations that gave up a slot, in order."""
    return [move.destination or "" for move in group.moves("cancelled") if move.reason == "outpaced"]


def warming(group: Group) -> dict[str, list[TaskId]]:
    return {name: sorted(member.warmup) for name, member in group.state.members.items() if member.warmup}


@pytest.mark.parametrize("tells_speed", [True, False])
def test_slot_of_a_slow_copy_goes_to_a_member_that_was_not_tried_yet(tells_speed: bool):
    """Also when only the slow member has measured a speed, and the other was assumed to be as slow
    when it joined.
    """
    group = group_of(stateful=3)
    slow = group.join("slow", restores=100)
    if tells_speed:
        slow.load = Load(restored_records_per_s=33.0)
    group.cycle()
    group.join("fast")
    assert set(group.state.queued.values()) == {"fast"}
    for _ in range(2 * STALL_MS // HEARTBEAT_MS):
        if not outpaced(group):
            group.cycle()
    assert outpaced(group) == ["slow"]
    assert warming(group).keys() == {"fast"}
    (task,) = group.members["slow"].copies
    left = group.members["slow"].copies[task]
    cycles(group, 2 * HEARTBEAT_MS)
    assert runs(group, "fast") == 1
    assert warming(group) == {"slow": [task]}, "nothing waits any more, so it continues"
    cycles(group, 2 * HEARTBEAT_MS)
    assert left - 500 <= group.members["slow"].copies[task] < left, "from where it was"


def test_slow_copy_keeps_its_slot_while_nothing_waits():
    group = group_of(stateful=2)
    group.join("slow", restores=500)
    group.settles(200)
    assert runs(group, "slow") == 1
    assert [move.reason for move in group.moves("cancelled")] == []


def test_copy_that_is_ready_before_the_next_look_keeps_its_slot():
    group = group_of(stateful=3)
    group.join("m2", restores=7_000)  # ready after 6 reports: two looks
    group.cycle()
    group.join("m3")
    group.settles()
    assert outpaced(group) == []


@pytest.mark.parametrize(("restored", "tried"), [(2_000, False), (500, True)])
def test_copies_that_are_equally_slow_are_restored_one_after_the_other(restored: int, tried: bool):
    """Very slow copies of unknown speed are each tried once; in all it takes as long as one after
    the other.
    """
    joiners = [f"m{number}" for number in range(2, 7)]
    group = group_of(stateful=len(joiners) + 1)
    for name in joiners:
        group.join(name, restores=restored)
    one_after_the_other = len(joiners) * (RECORDS - 10_000) // restored
    assert group.settles(2 * one_after_the_other) <= one_after_the_other + 4 * len(joiners)
    assert [runs(group, name) for name in joiners] == [1] * len(joiners)
    assert len(outpaced(group)) == len(set(outpaced(group))), "none is interrupted twice"
    assert bool(outpaced(group)) == tried


def test_equally_slow_copies_of_known_speed_never_give_way():
    group = group_of(stateful=3)
    for name in ("m2", "m3"):
        group.join(name, restores=2_000).load = Load(restored_records_per_s=2_000 / (HEARTBEAT_MS / 1_000))
    group.settles(200)
    assert outpaced(group) == []


def test_copy_whose_changelog_grows_as_fast_as_it_restores_gives_way():
    """Now and then it has its best lag by one record, so it never stalls. Without the check of its
    speed it would hold the only slot for ever.
    """
    group = group_of(stateful=3)
    never = group.join("never", restores=0)
    group.cycle()
    group.join("fast")
    for cycle in range(12):
        if never.keeps:
            never.copies[min(never.keeps)] = RECORDS - 5_000 - cycle // 2 + (cycle % 2) * 100
        group.cycle()
    assert outpaced(group)[:1] == ["never"]
    assert runs(group, "fast") == 1


def test_stalled_member_gives_the_slot_to_another_member():
    """A full disk: the member's tasks would be tried in turn, each until it stalls, while another
    member waits.
    """
    group = group_of(stateful=9)
    group.join("full", restores=0)
    group.cycle()
    group.join("fast")
    while runs(group, "fast") < 3:
        group.cycle()
    stalls = [move.task for move in group.moves("cancelled") if move.reason == "stalled"]
    assert len(stalls) == 1


@pytest.mark.parametrize("version", [1, None])
def test_small_copy_does_not_wait_for_a_huge_one_on_the_same_member(version: int | None):
    """m2 restores a huge state when m3 leaves, whose small state must come to m2 too: beside the
    huge one, or, in version 1, in its place.
    """
    group = Group().starts(stateful=5, version=version, warmup_stall_ms=STALL_MS, max_warmups=1, max_warmups_per_member=1)
    group.fact(PartitionsObserved(end_offsets={"log": {0: 400_000, 1: 400_000, 2: 400_000, 3: 400_000, 4: 20_000}}))
    group.join("m1", capacity=3)
    group.settles()
    group.join("m3")
    group.settles()
    assert group.state.owner[SMALL] == "m3"
    del group.members["m1"].copies[SMALL]
    group.join("m2", restores=2_000, capacity=2)
    group.cycle()
    (huge,) = group.members["m2"].keeps
    assert huge != SMALL
    group.members["m3"].leaves()
    while "m3" in group.state.members:
        assert group.state.now_ms < 100_000
        group.cycle()
    assert group.state.owner[SMALL] == "m2"
    assert outpaced(group) == (["m2"] if version == 1 else [])
    assert warming(group) == {"m2": [huge]}, "which continues from its position"
    assert group.members["m2"].copies[huge] < 400_000 - 4_000


def test_slot_back_off_ends_when_nothing_waits_any_more():
    group = group_of(stateful=9)
    group.join("slow", restores=100)
    group.cycle()
    group.join("fast", restores=20_000)
    while not outpaced(group):
        group.cycle()
    backoff = group.state.members["slow"].slot_backoff
    assert backoff is not None
    assert backoff.until_ms > group.state.now_ms + 40 * STALL_MS, "half of the time that it would have taken"
    while runs(group, "fast") < 3:
        assert warming(group).keys() <= {"fast"}
        group.cycle()
    group.tick()
    assert backoff.over
    assert warming(group).keys() == {"slow"}


def test_copies_for_a_leaving_member_give_no_slot_away_and_survive_lower_caps():
    """They hold no slot: m1's tasks are restored slowly elsewhere, a joiner would be ready far
    sooner, and the caps are lowered meanwhile.
    """
    group = Group().starts("m1", stateful=6, warmup_stall_ms=STALL_MS, max_warmups=2, max_warmups_per_member=2, drain_timeout_ms=1_000_000)
    group.settles()
    group.join("m2", restores=1_000)
    group.members["m1"].leaves()
    group.cycle()
    assert len(group.members["m2"].keeps) == 6
    group.join("fast", restores=20_000)
    group.fact(configured(max_warmups=1, max_warmups_per_member=1, warmup_stall_ms=STALL_MS, drain_timeout_ms=1_000_000))
    for _ in range(2 * STALL_MS // 3_000):
        group.cycle()
        assert len(group.members["m2"].keeps) >= 3  # the others will go to the joiner, or are there
    assert outpaced(group) == []


# One look at one copy


A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)


@pytest.mark.parametrize(
    ("progress", "missing", "expected_ms"),
    [(Progress(100, 1_000), 50, 500), (Progress(3, 10), 10, 33), (Progress(1, 7), 1, 7), (Progress(0, 10), 1, None), (Progress(-1, 10), 1, None)],
)
def test_progress_says_how_long_the_rest_takes(progress: Progress, missing: int, expected_ms: int | None):
    assert progress.expected_ms(missing) == expected_ms


@pytest.mark.parametrize(
    ("progress", "copies", "records_per_s"),
    [
        (Progress(100, 1_000), 2, 200),
        (Progress(19, 2_000), 1, 9),
        (Progress(1, 10_000), 1, 1),
        (Progress(-5, 10), 1, 1),
        (Progress(5, 0), 1, 5_000),
        (Progress(2**62, 1), 1, INT64_MAX),
    ],
)
def test_progress_of_each_copy_makes_the_speed_of_its_member(progress: Progress, copies: int, records_per_s: int):
    assert progress.records_per_s(copies) == records_per_s


def warming_up(**settings: Any) -> StepContext:
    """m2 warms up A, from 50,000 records on, in its only slot; m1 runs A, B and C."""
    context = step("m1", "m2", "m3")
    state = context.state
    given = {"warmup_stall_ms": 1_000, "acceptable_recovery_lag": 0, "max_warmups_per_member": 1}
    actions.configure(state, configured(**{**given, **settings}))
    actions.observe_partitions(state, PartitionsObserved(end_offsets={"log": dict.fromkeys(range(3), 100_000)}))
    owns(state, "m1", A, B, C)
    state.members["m2"].lags[A] = 50_000
    moves(state, A, "m1", "m2", MovementState.WARMING)
    return context


def looked_at(context: StepContext, *, lag: int | None = 50_000, after_ms: int = 1_000) -> StepContext:
    """The report of this lag, and the look at the copy."""
    state = context.state
    member = state.members["m2"]
    state.now_ms += after_ms
    member.lags = {} if lag is None else {**member.lags, A: lag}
    actions.record_progress(state, member, A, caught_up=member.warmup[A].caught_up)
    look_at(context, member, A)
    return context


def waits(context: StepContext, task: TaskId, member_id: str, *, speed: int = 0, lag: int | None = None) -> None:
    """The task waits for a slot on the member."""
    member = context.state.members[member_id]
    member.measured_records_per_s = speed
    if lag is not None:
        member.lags[task] = lag
    actions.queue(context.state, Movement(task=task, source="m1", destination=member_id, state=MovementState.WAITING))


def timers(context: StepContext) -> set[tuple[Timer, str]]:
    return {(timer, key[0]) for _, timer, key in context.deadlines.running()}


def ended(context: StepContext) -> list[str]:
    return [move.reason for move in context.moves.values()]


def test_copy_without_progress_stalls_after_its_time():
    context = looked_at(warming_up(), after_ms=999)
    member = context.state.members["m2"]
    assert (ended(context), context.causes, set(member.warmup)) == ([], set(), {A})
    member.measured_records_per_s = 7
    looked_at(context, after_ms=1)
    assert (ended(context), context.causes, member.warmup) == (["stalled"], {"stalled"}, {})
    assert context.state.backoffs == {(A, "m2"): Backoff(until_ms=2_000, times=1)}
    assert (member.measured_records_per_s, member.slot_backoff) == (1, None)
    assert (Timer.UNBLOCK, "m2") in timers(context)
    assert "m2" in context.changed


def test_copy_that_was_to_replace_a_standby_stalls_without_a_movement():
    context = warming_up()
    actions.end_movement(context.state, A)
    looked_at(context)
    assert (ended(context), context.changed, context.state.members["m2"].warmup) == ([], {"m2"}, {})
    context = warming_up()
    actions.end_movement(context.state, A)
    actions.begin_movement(context.state, Movement(task=A, source="m1", destination="m3", state=MovementState.REVOKING))
    looked_at(context)
    assert (ended(context), context.changed, set(context.state.in_flight)) == ([], {"m2"}, {A})


@pytest.mark.parametrize(("lag", "speed"), [(40_000, 10_000), (49_999, 1), (50_001, 1), (20_000, 30_000)])
def test_look_measures_the_speed_and_looks_again(lag: int, speed: int):
    context = warming_up()
    member = context.state.members["m2"]
    member.warmup[A].improved_ms = 500
    looked_at(context, lag=lag)
    assert (member.measured_records_per_s, ended(context), context.causes) == (speed, [], set())
    assert (member.warmup[A].looked_lag, member.warmup[A].looked_ms) == (lag, 1_000)
    assert (Timer.STALL, "m2") in timers(context)


def test_speed_of_a_member_is_that_of_all_its_copies():
    context = warming_up()
    actions.begin_warmup(context.state, context.state.members["m2"], B, caught_up=False)
    assert looked_at(context, lag=40_000).state.members["m2"].measured_records_per_s == 20_000


def test_unknown_lag_is_no_progress():
    assert looked_at(warming_up(), lag=None, after_ms=100).state.members["m2"].measured_records_per_s == 1


def test_speed_is_measured_from_the_last_look():
    context = looked_at(warming_up(), lag=40_000)
    assert looked_at(context, lag=38_000, after_ms=500).state.members["m2"].measured_records_per_s == 4_000


def test_copy_that_its_application_prepares_is_not_judged_by_its_speed():
    context = warming_up(acceptable_recovery_lag=100)
    member = context.state.members["m2"]
    member.readiness, member.measured_records_per_s = "word_and_lag", 7
    looked_at(context, lag=90)
    assert (member.measured_records_per_s, ended(context), set(member.warmup)) == (7, [], {A})
    looked_at(context, lag=90)
    assert (member.measured_records_per_s, ended(context)) == (7, ["not_prepared"])


def test_copy_that_caught_up_is_not_judged_by_its_speed():
    context = warming_up()
    member = context.state.members["m2"]
    member.warmup[A].caught_up, member.measured_records_per_s = True, 7
    waits(context, B, "m3", speed=10**9, lag=1)
    looked_at(context, lag=40_000)
    assert (member.measured_records_per_s, ended(context)) == (7, [])


@pytest.mark.parametrize("regrant", [False, True])
def test_copy_whose_task_is_handed_over_is_not_judged(regrant: bool):
    context = warming_up()
    member = context.state.members["m2"]
    if regrant:
        actions.end_movement(context.state, A)
        actions.add_eager_regrant(member, A, had_it=False)
    else:
        context.state.in_flight[A] = attrs.evolve(context.state.in_flight[A], state=MovementState.REVOKING)
    looked_at(context, after_ms=5_000)
    assert (ended(context), member.measured_records_per_s) == ([], 0)
    assert member.warmup[A] == Warmup(50_000, 5_000, False, 50_000, 5_000)


# A task that waits and would be ready far sooner


def gives_way(context: StepContext, *, lag: int = 49_000, after_ms: int = 1_000) -> bool:
    """Whether m2's copy, with 1,000 records restored in a second, gives way. It needs 49 s."""
    before = dict(context.state.queued)
    looked_at(context, lag=lag, after_ms=after_ms)
    assert (context.causes == {"outpaced"}) is (ended(context) == ["outpaced"]) is bool(context.promised)
    assert {**context.promised, **context.state.queued} == before
    return bool(context.promised)


@pytest.mark.parametrize(("speed", "lag", "sooner"), [(2_000, 49_001, True), (2_000, 49_002, False), (1, 24, True), (1, 25, False)])
def test_copy_gives_way_to_one_that_is_ready_in_half_the_time(speed: int, lag: int, sooner: bool):
    context = warming_up()
    waits(context, B, "m3", speed=speed, lag=lag)
    assert gives_way(context) is sooner
    backoff = context.state.members["m2"].slot_backoff
    assert backoff == (SlotBackoff(until_ms=1_000 + 24_500, times=1) if sooner else None)
    assert ((Timer.SLOT_BACKOFF, "m2") in timers(context)) is sooner


def test_copy_that_is_ready_before_the_next_look_does_not_give_way():
    for lag, sooner in ((1_000, False), (1_001, True)):
        context = warming_up()
        waits(context, B, "m3", speed=10**9, lag=1)
        context.state.members["m2"].warmup[A].looked_lag = lag + 1_000
        assert gives_way(context, lag=lag) is sooner


@pytest.mark.parametrize(("copies", "growth", "sooner"), [(0, 0, True), (1, 0, False), (0, 1, False), (0, 2_000, False), (0, 5_000, False)])
def test_speed_of_a_destination_is_shared_by_its_copies_and_eaten_by_growth(copies: int, growth: int, sooner: bool):
    context = warming_up(max_warmups_per_member=2)
    for task in (C,)[:copies]:
        actions.begin_warmup(context.state, context.state.members["m3"], task, caught_up=False)
    context.state.growth = {"log": {1: Growth(0, growth)}}
    waits(context, B, "m3", speed=2_000, lag=49_000)
    assert gives_way(context) is sooner


@pytest.mark.parametrize(("restored", "tried"), [(500, True), (5_000, False), (4_546, False), (4_545, True)])
def test_member_of_unknown_speed_is_tried_for_a_copy_with_ten_looks_to_go(restored: int, tried: bool):
    context = warming_up()
    waits(context, B, "m3")
    assert gives_way(context, lag=50_000 - restored) is tried


def looks_long(context: StepContext, lag: int) -> bool:
    """The copy restored 1,000 records in a second and has these to go."""
    context.state.members["m2"].warmup[A].looked_lag = lag + 1_000
    return gives_way(context, lag=lag)


def test_ten_looks_are_long():
    for lag, tried in ((10_000, True), (9_999, False)):
        context = warming_up()
        waits(context, B, "m3")
        assert looks_long(context, lag) is tried


def test_half_of_an_odd_time_is_rounded_down():
    context = warming_up()
    waits(context, B, "m3", speed=10**9, lag=1)
    assert looks_long(context, 49_001)
    assert context.state.members["m2"].slot_backoff == SlotBackoff(until_ms=1_000 + 24_500, times=1)


def test_copy_that_needs_nothing_more_is_ready_at_once():
    context = warming_up()
    waits(context, B, "m3", speed=1, lag=0)
    assert looks_long(context, 1_001)


@pytest.mark.parametrize(("speed", "lag", "sooner"), [(2_001, 24_500, True), (2_001, 24_505, False)])
def test_part_of_a_members_speed_is_rounded_down(speed: int, lag: int, sooner: bool):
    context = warming_up(max_warmups_per_member=2)
    actions.begin_warmup(context.state, context.state.members["m3"], C, caught_up=False)
    waits(context, B, "m3", speed=speed, lag=lag)
    assert gives_way(context) is sooner


@pytest.mark.parametrize("what", ["leaving", "gone", "full", "unknown", "slow"])
def test_task_that_cannot_have_the_slot_does_not_hide_the_next_one(what: str):
    context = warming_up()
    state = context.state
    state.members["m4"] = attrs.evolve(state.members["m3"], member_id="m4", lags={}, warmup={})
    waits(context, B, "m3", speed={"unknown": 0, "slow": 1}.get(what, 10**9), lag=5_000)
    waits(context, C, "m4", speed=10**9, lag=1)
    if what == "leaving":
        state.members["m3"].leaving = True
    elif what == "gone":
        del state.members["m3"]
    elif what == "full":
        actions.begin_warmup(state, state.members["m3"], TaskId(0, 3), caught_up=False)
    assert looks_long(context, 9_000)
    assert context.promised == {C: "m4"}


def test_task_without_a_lag_needs_its_whole_changelog():
    for speed, sooner in ((4_082, True), (4_081, False)):
        context = warming_up()
        waits(context, B, "m3", speed=speed)
        assert gives_way(context) is sooner


def test_copy_that_comes_no_nearer_gives_way_to_any():
    context = warming_up()
    context.state.members["m2"].warmup[A].improved_ms = 500
    waits(context, B, "m3", speed=1, lag=10**9)
    assert gives_way(context, lag=50_001)
    assert context.state.members["m2"].slot_backoff == SlotBackoff(until_ms=2_000, times=1)


@pytest.mark.parametrize("what", ["leaving", "gone", "back-off", "full", "promised"])
def test_copy_does_not_give_way_to_a_member_without_a_slot(what: str):
    context = warming_up()
    state, other = context.state, context.state.members["m3"]
    waits(context, B, "m3", speed=10**9, lag=1)
    if what == "leaving":
        other.leaving = True
    elif what == "gone":
        del state.members["m3"]
    elif what == "back-off":
        actions.begin_slot_backoff(state, other, set(), least_ms=10**6)
    elif what == "full":
        actions.begin_warmup(state, other, C, caught_up=False)
    else:
        context.promised[C] = "m3"
    looked_at(context, lag=49_000)
    assert (ended(context), set(state.queued)) == ([], {B})


@pytest.mark.parametrize("what", ["over", "elsewhere", "apart"])
def test_slots_of_others_do_not_count(what: str):
    """A back-off that is over, a slot promised on another member, a copy outside the caps."""
    context = warming_up()
    state, other = context.state, context.state.members["m3"]
    waits(context, B, "m3", speed=10**9, lag=1)
    if what == "over":
        actions.begin_slot_backoff(state, other, set(), least_ms=10**6)
        assert other.slot_backoff is not None
        actions.end_backoff(other.slot_backoff)
    elif what == "elsewhere":
        context.promised[C] = "m2"
    else:
        owns(state, "m2", C)
        state.members["m2"].leaving = True
        actions.begin_warmup(state, other, C, caught_up=False)
    looked_at(context, lag=49_000)
    assert (ended(context), set(state.queued)) == (["outpaced"], set())


def test_copy_of_a_leaving_members_task_does_not_give_way():
    for lag in (49_000, 50_000):
        context = warming_up()
        context.state.members["m1"].leaving = True
        waits(context, B, "m3", speed=10**9, lag=1)
        looked_at(context, lag=lag)
        assert context.promised == {}


def test_first_waiting_task_that_is_far_sooner_gets_the_slot():
    context = warming_up()
    waits(context, C, "m3", speed=10**4, lag=10_000)
    waits(context, B, "m3", speed=10**4, lag=500_000)
    assert gives_way(context)
    assert context.promised == {C: "m3"}


@pytest.mark.parametrize(("lag", "sooner"), [(24_500, True), (24_501, False)])
def test_task_of_the_same_member_is_restored_at_the_copys_speed(lag: int, sooner: bool):
    context = warming_up()
    waits(context, B, "m2", speed=1, lag=lag)
    assert gives_way(context) is sooner
    backoff = context.state.members["m2"].slot_backoff
    assert (None if backoff is None else backoff.exempt) == ({B} if sooner else None)


def test_task_of_the_same_member_never_takes_the_place_of_a_stalled_copy():
    context = warming_up()
    waits(context, B, "m2", lag=1)
    assert (looked_at(context).promised, ended(context)) == ({}, ["stalled"])


def test_stalled_copy_gives_its_slot_to_another_member():
    context = warming_up()
    waits(context, B, "m3", lag=10**9)
    looked_at(context)
    assert (context.promised, ended(context), context.causes) == ({B: "m3"}, ["stalled"], {"stalled"})
    assert context.state.members["m2"].slot_backoff == SlotBackoff(until_ms=2_000, times=1)


def test_second_slot_given_up_in_a_back_off_only_exempts_the_members_own_task():
    context = warming_up()
    member = context.state.members["m2"]
    actions.begin_slot_backoff(context.state, member, {C}, least_ms=9_000)
    waits(context, B, "m2", speed=1, lag=1)
    assert gives_way(context)
    assert member.slot_backoff == SlotBackoff(until_ms=9_000, times=1, exempt={B, C})
    assert member.slot_backoff is not None
    actions.end_backoff(member.slot_backoff)
    actions.begin_warmup(context.state, member, A, caught_up=False)
    waits(context, B, "m3", speed=10**9, lag=1)
    looked_at(context, lag=48_000)
    assert (member.slot_backoff.times, member.slot_backoff.over, member.slot_backoff.exempt) == (2, False, set())


def test_copies_need_what_is_above_their_members_acceptable_lag():
    for acceptable, sooner in ((1_000, True), (998, False)):
        context = warming_up()
        context.state.members["m3"].ready_lag_records = acceptable
        waits(context, B, "m3", speed=2_000, lag=50_000)
        assert gives_way(context) is sooner
