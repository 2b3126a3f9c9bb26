"""Groups at rest: few ticks, and members that die are still found (docs/protocol.md#l11)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events.codec import make_record
from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import BaseRequested, Fact, LagReported, LogOpened, MemberUnchanged, PartitionsObserved, ProbingTick, SilenceObserved
from equipoise.events.records import FactRecord
from equipoise.statemachine.group_lead import REST_AFTER_MS
from equipoise.statemachine.partition import PartitionLead
from equipoise.statemachine.ticks import RESTING_TICKS
from tests.groups import MARGIN_MS, SESSION_MS, configured, joined, topology

LOOK_MS = 250
KEEPALIVE_MS = SESSION_MS * 2 // 5
"""Of the members here: as of a deployed member with this session (docs/protocol.md#m4)."""


class Partition:
    """A partition in virtual time: groups of two members that only say that they live, and the
    worker that leads it.
    """

    def __init__(self, groups: int, *, resting_ticks: int = RESTING_TICKS, **settings: Any) -> None:
        self.now_ms = 0
        self.ahead_ms = 1_000_000
        """How far the broker's clock is ahead."""
        self.resting_ticks = resting_ticks
        self.lead = PartitionLead(resting_ticks=resting_ticks)
        self.ticks: list[tuple[int, str]] = []
        """When ticks were sent, and to which groups."""
        self.told: list[tuple[str, SilenceObserved]] = []
        self.expired: dict[tuple[str, str], int] = {}
        self.heard_ms: dict[tuple[str, str], int] = {}
        self.dead: set[tuple[str, str]] = set()
        self.records: list[FactRecord] = []
        self._append("", LogOpened(log_id="log"))
        for name in (f"g{number}" for number in range(groups)):
            for fact in (configured(initial_delay_ms=500, **settings), topology(stateless=2), joined("m1"), joined("m2")):
                self._append(name, fact)
            for number, member_id in enumerate(("m1", "m2"), 1):
                self.heard_ms[name, member_id] = -(len(self.heard_ms) * KEEPALIVE_MS // (groups * 2)) - number
        self.lead.plan_ticks(0)

    def _append(self, name: str, fact: Fact) -> None:
        self.records.append(make_record(name, self.lead.position, self.now_ms + self.ahead_ms, fact))
        decisions = self.lead.fold(self.records[-1], self.now_ms)
        for each in decisions:
            if isinstance(each.decision, MemberExpired):
                self.expired[name, each.decision.member_id] = self.now_ms

    def hear(self, name: str, member_id: str, fact: Fact | None = None) -> None:
        self.heard_ms[name, member_id] = self.now_ms
        self._append(name, fact or MemberUnchanged(member_id=member_id, incarnation=1, report=0))

    def run(self, for_ms: int) -> None:
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            self.now_ms += LOOK_MS
            for who, heard_ms in self.heard_ms.items():
                if who not in self.dead and self.now_ms - heard_ms >= KEEPALIVE_MS:
                    self.hear(*who)
            for name in self.lead.ticks_due(self.now_ms):
                tick = self.lead.tick(name)
                self.ticks.append((self.now_ms, name))
                if isinstance(tick, SilenceObserved):
                    self.told.append((name, tick))
                self._append(name, tick)

    def die(self, name: str, member_id: str) -> None:
        self.dead.add((name, member_id))

    def take_over(self, *, reads_again: int = 0) -> None:
        """Another worker leads on, from a checkpoint of each group, behind which some of the last
        facts are: another group had none so new.
        """
        former = self.lead
        self.lead = PartitionLead(former.position - reads_again, resting_ticks=self.resting_ticks)
        for name, group in former.groups.items():
            former.take_checkpoint(name)
            (checkpoint,) = former.acknowledged(name, group.machine.state.number)
            self.lead.restore(checkpoint)
        for record in self.records[self.lead.position :]:
            self.lead.fold(record, self.now_ms)
        self.lead.plan_ticks(self.now_ms)

    def ticks_between(self, from_ms: int, to_ms: int) -> int:
        return sum(from_ms < at_ms <= to_ms for at_ms, _ in self.ticks)


def test_members_were_not_silent_while_facts_before_their_checkpoints_are_read_again() -> None:
    partition = Partition(3)
    partition.run(60_000)
    partition.take_over(reads_again=len(partition.records))
    partition.run(KEEPALIVE_MS)
    assert (partition.told, partition.expired) == ([], {})
    partition.die("g1", "m2")
    died_ms = partition.now_ms
    partition.run(2 * SESSION_MS)
    assert list(partition.expired) == [("g1", "m2")]
    assert partition.expired["g1", "m2"] - died_ms >= SESSION_MS - KEEPALIVE_MS


def test_many_groups_at_rest_share_a_few_ticks_a_second() -> None:
    partition = Partition(60)
    partition.run(REST_AFTER_MS + 5_000)
    rested_ms = partition.now_ms
    assert partition.ticks_between(10_000, 40_000) > 60 * 25, "until they rest each has a tick a second"
    partition.run(30_000)
    assert 0.9 * 30 * RESTING_TICKS <= partition.ticks_between(rested_ms, partition.now_ms) <= 30 * RESTING_TICKS
    assert (partition.told, partition.expired) == ([], {})


def test_few_groups_at_rest_have_a_tick_a_second_each() -> None:
    partition = Partition(RESTING_TICKS * 3 // 4)
    partition.run(REST_AFTER_MS + 5_000)
    for group in partition.lead.groups.values():
        state = group.machine.state
        assert partition.now_ms - state.now_ms <= 1_500, "group time is as late as the last tick"
    assert partition.told == []


def test_group_rests_a_minute_after_its_last_news_and_at_once_after_a_takeover() -> None:
    partition = Partition(1)
    times = []
    while not _rests(partition, "g0"):
        times.append(partition.lead._clock.now_ms)
        partition.run(LOOK_MS)
    assert times[-1] < REST_AFTER_MS <= partition.lead._clock.now_ms
    partition.take_over()
    assert _rests(partition, "g0")
    partition.hear("g0", "m1", LagReported("m1", 1, 1, 1))
    assert not _rests(partition, "g0")


@pytest.mark.parametrize("resting_ticks", [0, 1, RESTING_TICKS])
def test_member_that_dies_in_a_group_at_rest_is_removed_after_its_session(resting_ticks: int) -> None:
    partition = Partition(60, resting_ticks=resting_ticks)
    partition.run(REST_AFTER_MS + 30_000)
    partition.die("g7", "m2")
    partition.run(SESSION_MS + 5_000)
    assert list(partition.expired) == [("g7", "m2")]
    silent_ms = partition.expired["g7", "m2"] - partition.heard_ms["g7", "m2"]
    assert SESSION_MS <= silent_ms <= SESSION_MS + 3_000
    assert {name for name, _ in partition.told} == {"g7"}
    assert "m2" in partition.told[0][1].silent_ms


def test_members_that_die_together_are_removed_together() -> None:
    partition = Partition(40, resting_ticks=0)
    partition.run(REST_AFTER_MS + 30_000)
    for member_id in ("m1", "m2"):
        partition.die("g3", member_id)
    partition.run(SESSION_MS + 5_000)
    for who in (("g3", "m1"), ("g3", "m2")):
        assert SESSION_MS <= partition.expired[who] - partition.heard_ms[who] <= SESSION_MS + 3_000


def test_fact_that_comes_between_makes_the_measured_silence_void() -> None:
    partition = Partition(40, resting_ticks=0)
    partition.run(REST_AFTER_MS + 30_000)
    partition.die("g3", "m2")
    due: list[str] = []
    while not due:
        partition.now_ms += LOOK_MS
        for who in [who for who, heard_ms in partition.heard_ms.items() if who not in partition.dead and partition.now_ms - heard_ms >= KEEPALIVE_MS]:
            partition.hear(*who)
        due = partition.lead.ticks_due(partition.now_ms)
    assert due == ["g3"]
    tick = partition.lead.tick("g3")
    partition.hear("g3", "m2")
    before = partition.lead.groups["g3"].machine.state.members["m2"].last_heard_ms
    partition._append("g3", tick)
    assert partition.lead.groups["g3"].machine.state.members["m2"].last_heard_ms == before
    partition.run(SESSION_MS - 2_000)
    assert partition.expired == {}
    partition.run(7_000)
    assert list(partition.expired) == [("g3", "m2")]


def _rests(partition: Partition, name: str) -> bool:
    planned = partition.lead.groups[name].planned
    assert planned is not None
    return planned.rests


@pytest.mark.parametrize(
    ("fact", "rests"),
    [
        (ProbingTick(), True),
        (BaseRequested(), True),
        (MemberUnchanged(member_id="m1", incarnation=1, report=0), True),
        (PartitionsObserved(end_offsets={"in": {0: 5}}), False),
        (LagReported("m1", 1, 1, 1), False),
        (SilenceObserved(silent_ms={"m1": 1}, after_offset=0), False),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bool) else None,
)
def test_what_comes_to_a_group_at_rest_wakes_it_or_not(fact: Fact, rests: bool) -> None:
    partition = Partition(40, resting_ticks=0)
    partition.run(REST_AFTER_MS + 10_000)
    assert _rests(partition, "g3")
    partition._append("g3", fact)
    partition.lead.plan_ticks(partition.now_ms)
    assert _rests(partition, "g3") is rests
    begun_ms = partition.now_ms
    partition.run(10_000)
    assert sum(name == "g3" and at_ms > begun_ms for at_ms, name in partition.ticks) == (0 if rests else pytest.approx(9, abs=1))


def test_smallest_step_of_any_group_limits_the_clock_of_the_partition() -> None:
    partition = Partition(3, resting_ticks=0)
    partition._append("strict", configured(max_step_ms=200))
    partition.run(REST_AFTER_MS)
    before_ms, partition.ahead_ms = partition.lead._clock.now_ms, partition.ahead_ms + 60_000
    partition.run(LOOK_MS)
    partition._append("strict", ProbingTick())
    assert partition.lead._clock.now_ms - before_ms <= 200


def test_what_is_read_at_a_takeover_counts_as_silence() -> None:
    """The facts of others that came since the checkpoint; the group itself had none."""
    partition = Partition(40, resting_ticks=0)
    partition.run(REST_AFTER_MS + 10_000)
    partition.lead.take_checkpoint("g3")
    (checkpoint,) = partition.lead.acknowledged("g3", partition.lead.groups["g3"].machine.state.number)
    lead = PartitionLead(partition.lead.position)
    lead.restore(checkpoint)
    for at_ms in range(0, SESSION_MS * 2 // 3 + 1_000, 1_000):
        lead.fold(make_record("others", lead.position, at_ms, ProbingTick()), 0)
    lead.plan_ticks(0)
    lead.ticks_due(0)
    lead.fold(make_record("others", lead.position, SESSION_MS, ProbingTick()), 0)
    assert lead.ticks_due(0) == ["g3"]
    assert isinstance(lead.tick("g3"), SilenceObserved)


def test_step_of_a_group_that_is_taken_over_limits_the_clock_too() -> None:
    partition = Partition(2, max_step_ms=200)
    partition.take_over()
    assert partition.lead._clock.step_ms == 200


@given(
    groups=st.integers(2, 5),
    resting_ticks=st.integers(1, 3),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("run"), st.integers(1, 40_000)),
            st.tuples(st.just("jump"), st.sampled_from((-86_400_000, -5_000, 40_000, 86_400_000))),
            st.tuples(st.just("die"), st.integers(0, 9)),
            st.tuples(st.just("take over"), st.just(0)),
        ),
        max_size=8,
    ),
)
def test_member_is_removed_after_it_died_and_never_while_its_lease_lasts(groups: int, resting_ticks: int, steps: list[tuple[str, int]]) -> None:
    """Each jump may cost a member its margin's part, which its lease is shorter by; at most two are
    within one session here.
    """
    partition = Partition(groups, resting_ticks=resting_ticks)
    partition.run(REST_AFTER_MS)
    jumps_ms: list[int] = []
    for what, number in steps:
        if what == "run":
            partition.run(number)
        elif what == "jump" and sum(partition.now_ms - at_ms < 2 * SESSION_MS for at_ms in jumps_ms) < MARGIN_MS // 1_000:
            partition.ahead_ms += number
            jumps_ms.append(partition.now_ms)
        elif what == "die":
            partition.die(f"g{number % groups}", "m1" if number < groups else "m2")
        elif what == "take over":
            partition.take_over()
    for who, at_ms in partition.expired.items():
        assert at_ms - partition.heard_ms[who] >= SESSION_MS - MARGIN_MS, f"{who} was removed while its lease lasted"
    partition.run(3 * SESSION_MS)
    for who, at_ms in partition.expired.items():
        assert at_ms - partition.heard_ms[who] >= SESSION_MS - MARGIN_MS, f"{who} was removed while its lease lasted"
    assert set(partition.expired) == partition.dead
