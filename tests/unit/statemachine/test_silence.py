"""The clock of a partition, and what it says of members (docs/protocol.md#l11)."""

from __future__ import annotations

import pytest

from equipoise.events.facts import MemberLeft, MemberUnchanged, RestartIntended, SilenceObserved
from equipoise.statemachine.member_silence import PartitionClock, Silences, told_after_ms
from tests.groups import SESSION_MS, Group, configured, joined, topology

TOLD_MS = SESSION_MS * 2 // 3


def test_clock_moves_as_the_log_and_at_most_a_step_a_record() -> None:
    clock = PartitionClock()
    assert (clock.now_ms, clock.step_ms) == (0, 1_000)
    found = []
    for append_ms in (5_000_000, 5_000_400, 5_001_400, 5_900_000, 5_000, 5_001, 5_001):
        clock.advance(append_ms)
        found.append(clock.now_ms)
    assert found == [0, 400, 1_400, 2_400, 2_400, 2_401, 2_401]


def test_smallest_step_of_any_group_holds_for_the_clock() -> None:
    clock = PartitionClock()
    for max_step_ms, limit in ((5_000, 1_000), (300, 300), (900, 300)):
        clock.limit(max_step_ms)
        assert clock.step_ms == limit
    clock.advance(0)
    clock.advance(10_000)
    assert clock.now_ms == 300


class Watched:
    """A group of two members and a partition whose other records move its clock."""

    def __init__(self) -> None:
        self.group = Group()
        self.clock = PartitionClock()
        self.silences = Silences(self.clock)
        self._others_ms = 0
        self.clock.advance(0)
        for fact in (configured(initial_delay_ms=500), topology(stateless=2), joined("m1"), joined("m2")):
            self.group.fact(fact)
        self.group.tick(500)
        self.silences.note_all(self.group.state)

    def others(self, for_ms: int) -> None:
        for _ in range(for_ms // 1_000):
            self._others_ms += 1_000
            self.clock.advance(self._others_ms)

    def hear(self, member_id: str, incarnation: int = 1, after_ms: int = 10) -> None:
        self.group.fact(MemberUnchanged(member_id=member_id, incarnation=incarnation, report=0), after_ms)
        self.silences.note(self.group.state, member_id)

    def untold(self) -> SilenceObserved | None:
        return self.silences.untold(self.group.state)

    def next_look_ms(self) -> int | None:
        return self.silences.next_look_ms(self.group.state)


@pytest.mark.parametrize(("heard", "dead"), [("m1", "m2"), ("m2", "m1")])
def test_group_is_told_of_all_when_one_was_silent_for_two_thirds_of_its_session(heard: str, dead: str) -> None:
    watched = Watched()
    watched.others(5_000)
    watched.hear(heard)
    watched.others(TOLD_MS - 6_000)
    assert watched.untold() is None
    assert watched.next_look_ms() == TOLD_MS - 500, "it was heard 500 ms before reading began"
    watched.others(1_000)
    assert watched.clock.now_ms == TOLD_MS
    silent_ms = {heard: TOLD_MS - 5_000, dead: TOLD_MS + 500}
    assert watched.untold() == SilenceObserved(silent_ms=silent_ms, after_offset=watched.group.state.last_offset)


def test_only_what_differs_by_a_step_is_told() -> None:
    watched = Watched()
    for _ in range(TOLD_MS // 1_000 + 1):
        watched.group.tick(1_000)
    watched.hear("m2", after_ms=0)  # in group time both are heard late, and the clock stood still
    watched.others(TOLD_MS)
    told = watched.untold()
    assert told is not None
    assert told.silent_ms == {"m2": TOLD_MS}, "m1 has been silent for longer, and the group knows"


def test_what_the_group_knows_by_its_own_time_is_not_told() -> None:
    watched = Watched()
    for _ in range(TOLD_MS // 1_000 + 2):
        watched.group.tick(1_000)
        watched.others(1_000)
    assert watched.untold() is None
    watched.others(1_000)
    told = watched.untold()
    assert told is not None
    assert set(told.silent_ms) == {"m1", "m2"}


def test_silence_is_what_group_time_has_where_that_is_longer() -> None:
    watched = Watched()
    watched.others(4_000)
    for _ in range(10):
        watched.group.tick(1_000)
    assert watched.next_look_ms() == 4_000 - 10_500 + TOLD_MS
    watched.silences.note_all(watched.group.state)
    assert watched.next_look_ms() == 4_000 - 10_500 + TOLD_MS


@pytest.mark.parametrize("how", ["another incarnation", "nobody", "not noted"])
def test_member_stays_silent_until_it_is_heard(how: str) -> None:
    watched = Watched()
    watched.others(8_000)
    if how == "another incarnation":
        watched.group.tick(1_000)
        watched.hear("m2", incarnation=7)
        assert watched.next_look_ms() == TOLD_MS - 500
    elif how == "nobody":
        watched.silences.note(watched.group.state, "a stranger")
        assert watched.next_look_ms() == TOLD_MS - 500
    else:  # as facts that name no member do
        for member_id in ("m1", "m2"):
            watched.group.fact(MemberUnchanged(member_id=member_id, incarnation=1, report=0), 10)
        assert watched.next_look_ms() == 8_000 - 10 + TOLD_MS


def test_member_that_comes_again_was_heard() -> None:
    watched = Watched()
    watched.others(8_000)
    for member_id in ("m1", "m2"):
        watched.group.fact(MemberLeft(member_id=member_id, incarnation=1), 10)
    assert watched.next_look_ms() is None
    watched.group.fact(joined("m2", 2), 10)
    watched.silences.note(watched.group.state, "m2")
    assert watched.next_look_ms() == 8_000 + TOLD_MS


def test_member_that_is_away_for_its_restart_is_nobodys_silence() -> None:
    watched = Watched()
    watched.group.fact(RestartIntended(member_id="m2", incarnation=1, back_within_ms=3_600_000), 10)
    watched.group.fact(MemberLeft(member_id="m2", incarnation=1), 10)
    assert watched.group.state.is_away("m2")
    watched.silences.note(watched.group.state, "m2")
    watched.others(2_000)
    watched.hear("m1", after_ms=0)
    watched.others(TOLD_MS)
    assert watched.next_look_ms() == TOLD_MS + 2_000
    told = watched.untold()
    assert told is not None
    assert set(told.silent_ms) == {"m1"}


def test_member_that_is_gone_is_forgotten() -> None:
    watched = Watched()
    watched.group.fact(MemberLeft(member_id="m2", incarnation=1))
    watched.next_look_ms()
    assert watched.silences._heard.keys() == {"m1"}


def test_group_that_begins_here_is_watched_from_its_first_member_on() -> None:
    group, clock = Group(), PartitionClock()
    silences = Silences(clock)
    for fact in (configured(), topology(stateless=2), joined("m1")):
        group.fact(fact)
    silences.note(group.state, "m1")
    assert silences.next_look_ms(group.state) == TOLD_MS


def test_group_without_members_has_no_silence() -> None:
    watched = Watched()
    watched.group.fact(MemberLeft(member_id="m1", incarnation=1))
    watched.group.fact(MemberLeft(member_id="m2", incarnation=1))
    watched.others(SESSION_MS)
    assert (watched.next_look_ms(), watched.untold()) == (None, None)


def test_group_is_told_after_two_thirds_of_a_session() -> None:
    assert [told_after_ms(session_ms) for session_ms in (45_000, 10_000, 1)] == [30_000, 6_666, 0]
