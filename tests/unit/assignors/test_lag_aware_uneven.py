"""`lag_aware` that deals by itself: when it does, what moves then, for which reason, and what it
remembers until then.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from equipoise.assignors import AssignmentProblem, Partition, Plan, Task, check_settings
from equipoise.assignors.common.problem import Memory
from equipoise.assignors.common.validation import plan_faults
from equipoise.assignors.lag_aware import LagAware, LagAware1
from equipoise.events.errors import FieldError
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId, parse_task
from tests.unit.assignors.build import in_flight, member, movements, problem

AFTER_MS = 300_000
SINCE_MS = 7_000
Lags = dict[str, int | None]


def listed(text: str) -> tuple[TaskId, ...]:
    return tuple(parse_task(each) for each in text.split())


def plan(question: AssignmentProblem) -> Plan:
    answer = LagAware().assign(question)
    assert plan_faults(question, answer, LagAware.guarantees) == []
    return answer


def uneven(lags: Lags, *members: str, at_ms: int = SINCE_MS, memory: Memory | None = None, **options: Any) -> AssignmentProblem:
    """Members m1, m2 ... with these tasks, of a group that deals after AFTER_MS if a move gains 10
    records.
    """
    made = [Task(id=parse_task(task), stateful=False, lag=lag) for task, lag in lags.items()]
    chosen = {"deal_after_ms": AFTER_MS, "deal_gain_records": 10, **options}
    question = problem(made, *(member(f"m{number}", held) for number, held in enumerate(members, 1)), options=chosen)
    return attrs.evolve(question, now_ms=at_ms, memory=memory or {})


def due(lags: Lags, *members: str, first: Lags | None = None, **options: Any) -> Plan:
    """The plan after AFTER_MS. `first`: the lags of the look before, if they were others."""
    memory = plan(uneven(first or lags, *members, **options)).memory
    return plan(uneven(lags, *members, at_ms=SINCE_MS + AFTER_MS, memory=memory, **options))


# When


def test_deals_after_the_time_and_not_before():
    lags: Lags = {"0_0": 100, "0_1": 60, "0_2": 3, "0_3": 2}
    found = plan(uneven(lags, "0_0 0_1", "0_2 0_3"))
    assert (found.movements, found.probing, found.watching, found.scheduled_ms) == ((), False, True, None)
    assert found.memory == {"uneven_members": ("m2", "m1"), "uneven_since_ms": SINCE_MS, "uneven_tasks": listed("0_1 0_3")}
    assert list(found.memory) == sorted(found.memory)
    before = plan(uneven(lags, "0_0 0_1", "0_2 0_3", at_ms=SINCE_MS + AFTER_MS - 1, memory=found.memory))
    assert (before.movements, before.memory) == ((), found.memory)
    dealt = plan(uneven(lags, "0_0 0_1", "0_2 0_3", at_ms=SINCE_MS + AFTER_MS, memory=found.memory))
    assert movements(dealt) == ["0_1 m1 -> m2 revoking", "0_3 m2 -> m1 revoking"]
    assert {str(task): (reason.code, reason.lag_records) for task, reason in dealt.reasons.items()} == {"0_1": ("uneven", 60), "0_3": ("uneven", 2)}
    assert not dealt.unique
    assert (dealt.memory, dealt.probing, dealt.watching, dealt.cost.optimal) == ({}, True, True, False)


def test_what_pays_no_more_is_forgotten_and_the_time_begins_again():
    lags: Lags = {"0_0": 100, "0_1": 60, "0_2": 3, "0_3": 2}
    elsewhere: Lags = {"0_0": 3, "0_1": 2, "0_2": 100, "0_3": 60}
    turned = due(elsewhere, "0_0 0_1", "0_2 0_3", first=lags)
    assert turned.movements == ()
    assert turned.memory == {"uneven_members": ("m1", "m2"), "uneven_since_ms": SINCE_MS + AFTER_MS, "uneven_tasks": listed("0_3 0_1")}
    even = due({"0_0": 100, "0_1": 60, "0_2": 90, "0_3": 60}, "0_0 0_1", "0_2 0_3", first=lags)
    assert (even.movements, even.memory) == ((), {})


def test_only_exchanges_that_paid_all_the_time_are_made():
    """0_0 is behind all the time. So is 0_4, but only at the last look."""
    members = "0_0 0_1", "0_2 0_3", "0_4 0_5"
    first: Lags = {"0_0": 100, "0_1": 60, "0_2": 0, "0_3": 0, "0_4": 50, "0_5": 50}
    last: Lags = {"0_0": 100, "0_1": 60, "0_2": 0, "0_3": 0, "0_4": 500, "0_5": 400}
    assert movements(due(last, *members, first=first)) == ["0_1 m1 -> m2 revoking", "0_2 m2 -> m1 revoking"]


@pytest.mark.parametrize(
    "change",
    [
        {"in_flight": (in_flight("1_0", "m1", "m2", "revoking"),)},
        {"anew": True},
    ],
    ids=["hand-over", "operator's deal"],
)
def test_nothing_is_dealt_or_remembered_in_such_a_round(change: dict[str, Any]):
    lags: Lags = {"0_0": 100, "0_1": 60, "0_2": 3, "0_3": 2, "1_0": 0}
    question = uneven(lags, "0_0 0_1 1_0", "0_2 0_3")
    later = attrs.evolve(question, now_ms=SINCE_MS + AFTER_MS, memory=plan(question).memory)
    answer = plan(attrs.evolve(later, **change))
    assert answer.memory == {}
    assert "uneven" not in {reason.code for reason in answer.reasons.values()}
    assert {reason.code for reason in plan(later).reasons.values()} == {"uneven"}


def test_group_that_is_dealt_by_count_begins_its_time_again():
    lags: Lags = {"0_0": 100, "0_1": 60, "0_2": 3, "0_3": 2}
    memory = plan(uneven(lags, "0_0 0_1", "0_2 0_3")).memory
    with_a_joiner = plan(uneven(lags, "0_0 0_1", "0_2 0_3", "", at_ms=SINCE_MS + AFTER_MS, memory=memory))
    assert {reason.code for reason in with_a_joiner.reasons.values()} == {"dealt"}
    assert with_a_joiner.memory == {}
    unowned = plan(uneven({**lags, "0_4": 0}, "0_0 0_1", "0_2 0_3", at_ms=SINCE_MS + AFTER_MS, memory=memory))
    assert unowned.memory == {}
    assert "uneven" not in {reason.code for reason in unowned.reasons.values()}


def test_single_member_is_not_watched():
    assert not plan(uneven({"0_0": 100}, "0_0")).watching
    leaving = uneven({"0_0": 100}, "0_0", "")
    leaving = attrs.evolve(leaving, members=(leaving.members[0], attrs.evolve(leaving.members[1], leaving=True)))
    assert not plan(leaving).watching


# What


def test_single_partition_moves_where_that_keeps_counts_even():
    assert movements(due({"0_0": 100, "0_1": 50, "0_2": 0}, "0_0 0_1", "0_2")) == ["0_1 m1 -> m2 revoking"]
    assert movements(due({"0_0": 100, "0_1": 50, "0_2": 140}, "0_0 0_1", "0_2")) == []


@pytest.mark.parametrize(("gain", "moves"), [(19, 1), (20, 2)])
def test_each_partition_that_moves_is_paid_for(gain: int, moves: int):
    """A partition that is alone gains 10 records, two that change places 20."""
    apart: Lags = {"0_0": 500, "0_1": gain, "0_2": 500 - 4 * gain, "0_3": 0}
    assert len(due(apart, "0_0 0_1", "0_2 0_3").movements) == (moves if moves == 2 else 0)
    alone: Lags = {"0_0": 500, "0_1": gain // 2, "0_2": 500 - 4 * gain}
    assert len(due(alone, "0_0 0_1", "0_2").movements) == (1 if gain // 2 == 10 else 0)


def test_one_hot_partition_moves_nothing_that_does_not_help():
    """m1 gives away all else that it has, which is too little for what it costs."""
    assert due({"0_0": 1_000_000, "0_1": 15, "0_2": 0, "0_3": 0}, "0_0 0_1", "0_2 0_3").movements == ()
    rest = due({"0_0": 1_000_000, "0_1": 25, "0_2": 0, "0_3": 0}, "0_0 0_1", "0_2 0_3")
    assert movements(rest) == ["0_1 m1 -> m2 revoking", "0_2 m2 -> m1 revoking"]


def test_topics_are_dealt_together_or_each_alone():
    """Of five topics with a partition each, m1 has the three with the most lag."""
    lags: Lags = {"0_0": 90, "1_0": 80, "2_0": 70, "3_0": 0, "4_0": 0}
    held = "0_0 1_0 2_0", "3_0 4_0"
    assert movements(due(lags, *held, cross_topic=True)) == ["0_0 m1 -> m2 revoking"]
    four: Lags = {"0_0": 90, "1_0": 80, "2_0": 0, "3_0": 0}
    assert movements(due(four, "0_0 1_0", "2_0 3_0", cross_topic=True)) == ["1_0 m1 -> m2 revoking", "2_0 m2 -> m1 revoking"]
    assert due(four, "0_0 1_0", "2_0 3_0").movements == (), "each topic is as even as it can be"


def test_topic_goes_only_to_its_subscribers():
    """m2 does not read topic 1, of which m1 has more than it should."""
    question = uneven({"0_0": 5, "0_1": 0, "1_0": 300, "1_1": 300, "1_2": 0}, "0_0 1_0 1_1", "0_1", "1_2", cross_topic=True)
    reads = {"m1": {0: 9, 1: 9}, "m2": {0: 9}, "m3": {1: 9}}
    question = attrs.evolve(question, members=tuple(attrs.evolve(each, subtopologies=reads[each.id]) for each in question.members))
    later = attrs.evolve(question, now_ms=SINCE_MS + AFTER_MS, memory=plan(question).memory)
    assert {move.destination for move in plan(later).movements if move.task.subtopology == 1} <= {"m1", "m3"}


def test_member_with_an_unknown_lag_neither_gives_nor_takes():
    known: Lags = {"0_0": 100, "0_1": 60, "0_2": 3, "0_3": 2, "0_4": 70, "0_5": 70}
    held = "0_0 0_1", "0_2 0_3", "0_4 0_5"
    assert movements(due(known, *held)) == ["0_1 m1 -> m2 revoking", "0_3 m2 -> m1 revoking"]
    assert movements(due({**known, "0_3": None}, *held)) == []
    others = due({**known, "0_3": None, "0_4": 5, "0_5": 0}, *held)
    assert {move.destination for move in others.movements} == {"m1", "m3"}


def test_lags_come_before_traffic_when_the_time_is_up():
    def in_racks(lags: list[int]) -> AssignmentProblem:
        placed = [("0_0", "b"), ("0_1", "a"), ("0_2", "a"), ("0_3", "b")]
        made = [
            Task(id=parse_task(task), stateful=False, lag=lag, source=(Partition(topic="t", partition=0, racks=(rack,)),))
            for (task, rack), lag in zip(placed, lags, strict=True)
        ]
        members = attrs.evolve(member("m1", "0_0 0_2"), rack="a"), attrs.evolve(member("m2", "0_1 0_3"), rack="b")
        options = {"deal_after_ms": AFTER_MS, "deal_gain_records": 10}
        return attrs.evolve(problem(made, *members, rack_aware_strategy="min_cost", options=options), now_ms=SINCE_MS)

    first = plan(in_racks([101, 1, 60, 2]))
    assert (first.movements, len(first.memory)) == ((), 3)
    nearer = in_racks([5, 5, 200, 0])
    assert {reason.code for reason in plan(nearer).reasons.values()} == {"traffic"}
    assert plan(nearer).memory == {}, "what moves for traffic begins the time again"
    due_now = attrs.evolve(in_racks([60, 60, 200, 0]), now_ms=SINCE_MS + AFTER_MS, memory=first.memory)
    kept: Memory = {"uneven_members": ("m2", "m1"), "uneven_since_ms": SINCE_MS, "uneven_tasks": listed("0_0 0_3")}
    assert {reason.code for reason in plan(attrs.evolve(due_now, memory=kept)).reasons.values()} == {"uneven"}


# What it remembers


@pytest.mark.parametrize(
    "memory",
    [
        {"uneven_since_ms": 0},
        {"uneven_members": ("m2", "m1"), "uneven_tasks": listed("0_1 0_3")},
        {"uneven_members": ("m9", "m1"), "uneven_since_ms": 0, "uneven_tasks": listed("0_1 0_3")},
        {"uneven_members": ("m2", "m1"), "uneven_since_ms": 0, "uneven_tasks": listed("9_9 0_9")},
        {"uneven_members": ("m1", "m2"), "uneven_since_ms": 0, "uneven_tasks": listed("0_1 0_3")},
        {"uneven_members": ("m2",), "uneven_since_ms": 0, "uneven_tasks": listed("0_1")},
        {"uneven_members": 7, "uneven_since_ms": 0, "uneven_tasks": listed("0_1 0_3")},
        {"uneven_members": ("m2", "m1"), "uneven_since_ms": 0, "uneven_tasks": 7},
        {"uneven_since_ms": 0, "uneven_tasks": listed("0_1 0_3")},
        {"uneven_members": listed("0_3 0_1"), "uneven_since_ms": 0, "uneven_tasks": listed("0_1 0_3")},
        {"uneven_members": listed("0_1"), "uneven_since_ms": 0, "uneven_tasks": ("m2",)},
        {"uneven_members": ("m2", "m1"), "uneven_since_ms": ("m1",), "uneven_tasks": listed("0_1 0_3")},
        {"rebalancing": 1},
    ],
)
def test_memory_that_holds_nothing_possible_is_no_memory(memory: dict[str, Any]):
    """A member or task that is gone, one that is there already, a single move that would make
    counts uneven.
    """
    lags: Lags = {"0_0": 100, "0_1": 60, "0_2": 3, "0_3": 2}
    answer = plan(uneven(lags, "0_0 0_1", "0_2 0_3", at_ms=10**9, memory=memory))
    assert answer.movements == ()
    assert answer.memory["uneven_since_ms"] == 10**9


def test_chain_of_exchanges_is_made_in_order():
    memory: Memory = {"uneven_members": ("m2", "m1", "m3", "m2"), "uneven_since_ms": 0, "uneven_tasks": listed("0_0 0_2 0_0 0_4")}
    lags: Lags = {"0_0": 400, "0_1": 400, "0_2": 40, "0_3": 260, "0_4": 10, "0_5": 20}
    held = "0_0 0_1", "0_2 0_3", "0_4 0_5"
    assert movements(plan(uneven(lags, *held, at_ms=10**9, memory=memory))) == [
        "0_0 m1 -> m3 revoking",
        "0_2 m2 -> m1 revoking",
        "0_4 m3 -> m2 revoking",
    ]

    memory = {"uneven_members": ("m2", "m1", "m3"), "uneven_since_ms": 0, "uneven_tasks": listed("0_0 0_2 0_2")}
    lags = {"0_0": 900, "0_1": 300, "0_2": 400, "0_3": 0, "0_4": 0}
    onward = plan(uneven(lags, "0_0 0_1", "0_2 0_3", "0_4", at_ms=10**9, memory=memory))
    assert movements(onward) == ["0_0 m1 -> m2 revoking", "0_2 m2 -> m3 revoking"]


def test_what_is_left_of_the_memory_is_taken_up():
    """A partition that is gone comes before an exchange that pays."""
    memory: Memory = {"uneven_members": ("m2", "m2", "m1"), "uneven_since_ms": 0, "uneven_tasks": listed("9_9 0_1 0_3")}
    lags: Lags = {"0_0": 100, "0_1": 60, "0_2": 3, "0_3": 2}
    assert len(plan(uneven(lags, "0_0 0_1", "0_2 0_3", at_ms=10**9, memory=memory)).movements) == 2


# Options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deal_after_ms": -1}, "config.options.deal_after_ms: -1 is not a whole number >= 0"),
        ({"deal_after_ms": True}, "config.options.deal_after_ms: True is not a whole number >= 0"),
        ({"deal_gain_records": 0}, "config.options.deal_gain_records: 0 is not at least 1"),
        (
            {"deal_after_ms": 1, "deal_gain_records": 5, "rack_lag_tolerance": 5},
            "config.options.deal_gain_records: 5 is not at least 6: racks exchange partitions whose lags differ by rack_lag_tolerance = 5",
        ),
    ],
)
def test_unsound_option_is_refused(options: dict[str, Any], said: str):
    with pytest.raises(FieldError) as refused:
        check_settings(LagAware(), GroupSettings(options=options))
    assert str(refused.value) == said


def test_sound_options_are_taken():
    for options in ({"deal_after_ms": 1, "deal_gain_records": 6, "rack_lag_tolerance": 5}, {"deal_gain_records": 1, "rack_lag_tolerance": 5}):
        check_settings(LagAware(), GroupSettings(options=options))


def test_default_price_is_ten_thousand_records():
    lags: Lags = {"0_0": 100_000, "0_1": 20_000, "0_2": 0, "0_3": 0}
    chosen = {"deal_after_ms": AFTER_MS}
    for more, moves in ((0, 2), (-1, 0)):
        question = uneven({**lags, "0_1": 20_000 + more}, "0_0 0_1", "0_2 0_3")
        question = attrs.evolve(question, settings=attrs.evolve(question.settings, options=chosen))
        later = attrs.evolve(question, now_ms=SINCE_MS + AFTER_MS, memory=plan(question).memory)
        assert len(plan(later).movements) == moves


@pytest.mark.parametrize("option", ["deal_after_ms", "deal_gain_records"])
def test_former_behaviour_version_has_no_such_option(option: str):
    with pytest.raises(FieldError, match=f"{option}: lag_aware has no such option; it has auto_offset_reset, cross_topic, rack_lag_tolerance$"):
        check_settings(LagAware1(), GroupSettings(options={option: 1}))


def test_off_it_remembers_nothing():
    lags: Lags = {"0_0": 100, "0_1": 60, "0_2": 3, "0_3": 2}
    memory: Memory = {"uneven_members": ("m2", "m1"), "uneven_since_ms": 0, "uneven_tasks": (TaskId(0, 1), TaskId(0, 3))}
    answer = plan(uneven(lags, "0_0 0_1", "0_2 0_3", at_ms=10**9, memory=memory, deal_after_ms=0))
    assert (answer.movements, answer.memory, answer.watching) == ((), {}, False)
