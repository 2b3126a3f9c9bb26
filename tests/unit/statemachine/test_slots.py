"""A warm-up slot is judged by the progress of its copy, against the movements that wait for a slot
(docs/protocol.md#m7).
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.events.facts import Load, PartitionsObserved
from equipoise.events.tasks import TaskId
from tests.groups import HEARTBEAT_MS, Group, configured

STALL_MS = 9_000
RECORDS = 40_000
SMALL = TaskId(0, 4)


def group_of(*, stateful: int, **settings: Any) -> Group:
    """m1 runs all tasks, each of RECORDS records; there are no copies, and one warm-up at a time.
    """
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
