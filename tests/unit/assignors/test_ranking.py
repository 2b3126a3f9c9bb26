"""KIP-441's ranking: what each kind of report is worth, and its table of ranks."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from equipoise.assignors.common.ranking import MOST_RECORDS, Copy, acceptable_lag, copies, copy_of, lag_within, rank, whole
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import Lag, TaskId, parse_task
from tests.unit.assignors.build import ACTIVE, UNKNOWN, ids, member, tasks

T = tasks("0_0", end_offset=5000)[0]


@pytest.mark.parametrize(
    ("lag", "owns", "ready", "caught_up", "records"),
    [
        (ACTIVE, True, False, True, 0),
        (ACTIVE, False, False, False, 5000),  # a zombie says it runs the task: a copy of unknown age
        (UNKNOWN, False, False, False, 5000),
        (None, False, False, False, 5000),
        (0, False, False, True, 0),
        (100, False, False, True, 100),
        (101, False, False, False, 101),
        (101, True, False, False, 101),  # it owns it and restores it
        (9000, False, False, False, 5000),  # a copy is never worse than none
        (9000, False, True, True, 5000),
        (None, False, True, True, 0),
    ],
)
def test_copy_of_each_report(lag: Lag | None, owns: bool, ready: bool, caught_up: bool, records: int):
    copy = copy_of(T, lag, owns=owns, ready=ready, acceptable=100)
    assert (copy.caught_up, copy.records) == (caught_up, records)


@pytest.mark.parametrize(
    ("readiness", "lag", "ready", "caught_up", "records"),
    [
        ("lag", 100, False, True, 100),
        ("lag", 101, True, False, 101),  # its word is worth nothing beside a lag that is known
        ("lag", None, True, False, 5000),
        ("lag", UNKNOWN, True, False, 5000),
        ("word_and_lag", 100, True, True, 100),
        ("word_and_lag", 101, True, False, 101),
        ("word_and_lag", 100, False, False, 100),
        ("word_and_lag", 0, False, False, 1),  # never as good as one that is prepared
        ("word_and_lag", None, True, False, 5000),
    ],
)
def test_copy_of_each_readiness(readiness: str, lag: Lag | None, ready: bool, caught_up: bool, records: int):
    copy = copy_of(T, lag, owns=False, ready=ready, acceptable=100, readiness=readiness)
    assert (copy.caught_up, copy.records) == (caught_up, records)


def test_own_limit_replaces_group_limits():
    others = attrs.evolve(member("m2", lags={"0_0": 300}), restore_records_per_s=1_000)
    own = attrs.evolve(others, id="m1", ready_lag_records=50)
    settings = GroupSettings(acceptable_recovery_lag=100, acceptable_recovery_ms=1_000)
    assert rank(tasks("0_0", end_offset=5000), [own, others], settings) == {TaskId(0, 0): {0: ("m2",), 300: ("m1",)}}


def test_empty_changelog_needs_a_report():
    empty = tasks("0_0", end_offset=0)[0]
    assert copy_of(empty, None, owns=False, ready=False, acceptable=100).caught_up is False
    assert copy_of(empty, 0, owns=False, ready=False, acceptable=0).caught_up is True
    ranked = rank([empty], [member("m1"), member("m2", lags={"0_0": 0})], GroupSettings(acceptable_recovery_lag=0))
    assert ranked == {parse_task("0_0"): {0: ("m2",), 1: ("m1",)}}


def test_rank_kip_table():
    """lag <= acceptable: rank 0, whoever; above: the lag; no lag: the whole changelog. Stateless
    tasks are not ranked.
    """
    ranked = rank(
        tasks("0_1 0_0", "1_0", end_offset=5000),
        [member("m3"), member("m1", lags={"0_0": 100, "0_1": 2500}), member("m2", lags={"0_0": 7, "0_1": UNKNOWN})],
        GroupSettings(acceptable_recovery_lag=100),
    )
    assert ranked == {
        parse_task("0_0"): {0: ("m1", "m2"), 5000: ("m3",)},
        parse_task("0_1"): {2500: ("m1",), 5000: ("m2", "m3")},
    }
    assert list(ranked) == sorted(ranked)
    assert [list(ranks) for ranks in ranked.values()] == [[0, 5000], [2500, 5000]]


def lags_of(*lags: int) -> dict[TaskId, Lag]:
    return {TaskId(0, partition): lag for partition, lag in enumerate(lags)}


@pytest.mark.parametrize(
    ("lags", "owned", "written", "speed", "within"),
    [
        ((3000,), (), 0, 20_000, 3000),  # 0.15 s away
        ((3000,), (), 0, 5_999, 0),
        ((3000,), (), 0, 6_000, 3000),  # to the record
        ((3000,), (), 0, 0, 0),  # not measured
        ((3000, 3000, 3000, 3000), (), 0, 20_000, 0),  # 12,000 of 10,000 records: equal lags, so none
        ((3000, 3001, 3002, 3003), (), 0, 20_000, 3002),  # the nearest three
        ((3000,), (), 6_000, 11_999, 0),  # 3,000 more until then
        ((3000,), (), 6_000, 12_000, 3000),
        ((9000, 1001), (0,), 6_000, 20_000, 0),  # owned tasks come first; they do not grow
        ((9000, 1000), (0,), 0, 20_000, 1000),
        ((5000, 4000, 1000), (0, 1), 0, 20_000, 1000),
        ((5000, 4001, 1000), (0, 1), 0, 20_000, 0),
    ],
)
def test_lag_within_half_a_second(lags: tuple[int, ...], owned: tuple[int, ...], written: int, speed: int, within: int):
    """The KIP's lag in time."""
    assert lag_within(500, lags_of(*lags), [TaskId(0, partition) for partition in owned], lambda task: written, speed) == within


def test_lag_within_ignores_sentinels_and_non_tasks():
    others: dict[TaskId, Lag] = {TaskId(0, 1): UNKNOWN, TaskId(0, 2): ACTIVE, TaskId(7, 0): 2000}
    lags = {**others, **lags_of(3000)}
    assert lag_within(500, lags, (), lambda task: None if task.subtopology else 0, 6_000) == 3000


@given(
    lags=st.lists(st.integers(0, 5_000), max_size=6),
    rates=st.lists(st.integers(0, 3_000), min_size=6, max_size=6),
    owned=st.sets(st.integers(0, 5)),
    speed=st.integers(0, 50_000),
    acceptable_ms=st.integers(0, 1_000),
)
def test_lag_within_is_the_most_that_restores_in_time(lags: list[int], rates: list[int], owned: set[int], speed: int, acceptable_ms: int):
    """All that counts together, what is owned first, and every changelog but those growing on: read
    within the time. And no more would be.
    """
    within = lag_within(acceptable_ms, lags_of(*lags), [TaskId(0, each) for each in owned], lambda task: rates[task.partition], speed)

    def needed(most: int) -> int:
        counted = [place for place, lag in enumerate(lags) if place not in owned and lag <= most]
        first = sum(lag for place, lag in enumerate(lags) if place in owned)
        return 1_000 * (first + sum(lags[place] for place in counted)) + acceptable_ms * sum(rates[place] for place in counted)

    lags_of_copies = sorted({lag for place, lag in enumerate(lags) if place not in owned})
    if within or (0 in lags_of_copies and needed(0) <= speed * acceptable_ms):
        assert needed(within) <= speed * acceptable_ms
    for lower, higher in itertools.pairwise([within, *[lag for lag in lags_of_copies if lag > within][:1]]):
        assert lower < higher
        assert needed(higher) > speed * acceptable_ms


def test_rank_depends_on_own_speed():
    settings = GroupSettings(acceptable_recovery_lag=100, acceptable_recovery_ms=500)
    fast, slow, unknown = (member(f"m{speed}", lags={"0_0": 3000}, speed=speed) for speed in (6_000, 5_999, 0))
    assert rank(tasks("0_0", end_offset=5000), [fast, slow, unknown], settings) == {TaskId(0, 0): {0: ("m6000",), 3000: ("m0", "m5999")}}
    assert rank(tasks("0_0", end_offset=5000), [fast], GroupSettings(acceptable_recovery_lag=100)) == {TaskId(0, 0): {3000: ("m6000",)}}


@pytest.mark.parametrize(("end_offset", "records"), [(-1, 1), (0, 1), (1, 1), (2, 2), (MOST_RECORDS, MOST_RECORDS), (MOST_RECORDS + 1, MOST_RECORDS)])
def test_whole_changelog_has_at_least_one_record_and_at_most_the_limit(end_offset: int, records: int):
    assert whole(attrs.evolve(T, end_offset=end_offset)) == records


LIMITS = GroupSettings(acceptable_recovery_lag=100, acceptable_recovery_ms=500)


def test_limit_of_a_member_is_its_own_else_the_larger_of_the_groups():
    """5,000 records/s restore 2,500 records within the time."""
    known = {task.id: task for task in tasks("0_0 0_1", "1_0")}

    def limit(lag: int, *, own: int | None = None, speed: int = 5_000, settings: GroupSettings = LIMITS, task: str = "0_0", active: str = "") -> int:
        spec = attrs.evolve(member("m1", active, lags={task: lag}, speed=speed), ready_lag_records=own)
        return acceptable_lag(known, spec, settings)

    assert limit(2_500) == 2_500
    assert limit(2_501) == limit(50) == 100
    assert limit(2_500, own=0) == 0
    assert limit(2_500, speed=0) == 100
    assert limit(2_500, settings=GroupSettings(acceptable_recovery_lag=100)) == 100
    assert limit(2_500, task="1_0") == 100, "a stateless task has no copy"
    assert limit(2_500, task="7_0") == 100, "nor has a task that is gone"
    assert limit(2_500, active="0_0") == 100, "what it runs is no copy"
    grows = {task.id: attrs.evolve(task, written_records_per_s=1_000) for task in tasks("0_0")}
    assert acceptable_lag(grows, member("m1", lags={"0_0": 2_000}, speed=5_000), LIMITS) == 2_000
    assert acceptable_lag(grows, member("m1", lags={"0_0": 2_001}, speed=5_000), LIMITS) == 100


NAMES = ids("0_0 0_1 0_2 0_3 1_0")
some_tasks = st.lists(st.sampled_from(NAMES), max_size=4, unique=True).map(lambda names: tuple(sorted(names)))
reports = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([ACTIVE, UNKNOWN, 0, 100, 101, 9_000]), max_size=5)


RUNS_TWO: tuple[Any, ...] = (ids("0_0 0_1"), (), (), (), {}, True, "lag")
KEEPS_ONE: tuple[Any, ...] = ((), ids("0_1"), (), (), {TaskId(0, 0): 9_000}, False, "lag")
REPORTS_ONE: tuple[Any, ...] = ((), (), (), (), {TaskId(0, 0): 9_000}, False, "lag")
CLAIMS_ANOTHER: tuple[Any, ...] = (ids("0_0"), (), (), (), {TaskId(0, 1): ACTIVE}, False, "lag")
RESTORES_ITS_OWN: tuple[Any, ...] = (ids("0_0"), (), (), (), {TaskId(0, 0): 9_000}, False, "lag")
WARMS_UP: tuple[Any, ...] = ((), (), ids("0_2"), (), {}, False, "lag")
IS_READY: tuple[Any, ...] = ((), (), (), ids("0_2"), {}, False, "word_or_lag")


@example([RUNS_TWO])
@example([RUNS_TWO, REPORTS_ONE, REPORTS_ONE])
@example([CLAIMS_ANOTHER, RESTORES_ITS_OWN])
@example([WARMS_UP, IS_READY])
@example([RUNS_TWO, KEEPS_ONE, KEEPS_ONE])
@example([KEEPS_ONE, RUNS_TWO, KEEPS_ONE])
@given(
    st.lists(
        st.tuples(some_tasks, some_tasks, some_tasks, some_tasks, reports, st.booleans(), st.sampled_from(["lag", "word_or_lag", "word_and_lag"])),
        max_size=4,
    )
)
def test_copies_are_those_of_each_report_alone(parts: list[tuple[Any, ...]]):
    """A member has a copy of each stateful task that it reports, runs, keeps or declares ready."""
    members = [
        attrs.evolve(
            member(f"m{number}"),
            active=active,
            standby=standby,
            warmup=warmup,
            ready=frozenset(ready),
            lags={**dict.fromkeys(active, ACTIVE), **({} if honest else lags)},
            readiness=readiness,
        )
        for number, (active, standby, warmup, ready, lags, honest, readiness) in enumerate(parts)
    ]
    known = {task.id: task for task in tasks("0_0 0_1 0_2", "1_0", end_offset=5_000)}
    wanted: dict[TaskId, dict[str, Copy]] = {name: {} for name, task in known.items() if task.stateful}
    for each in members:
        for name in wanted.keys() & {*each.lags, *each.active, *each.standby, *each.warmup, *each.ready}:
            owns, ready = name in each.active, name in each.ready
            wanted[name][each.id] = copy_of(known[name], each.lags.get(name), owns=owns, ready=ready, acceptable=100, readiness=each.readiness)
    found = copies(known, members, GroupSettings(acceptable_recovery_lag=100))
    assert {name: dict(of_task) for name, of_task in found.items()} == wanted
    assert [list(of_task) for of_task in found.values()] == [[each.id for each in members if each.id in wanted[name]] for name in found]
