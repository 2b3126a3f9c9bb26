"""Predictions of changes: their intervals hold what a group does afterwards whose speeds they know
from its log alone; equal arguments give equal answers; what cannot be told is refused.
"""

from __future__ import annotations

import functools
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cli.predicted import parse_change, prediction_parts
from equipoise.events.codec import make_record
from equipoise.events.errors import InputError
from equipoise.events.facts import (
    Fact,
    GroupConfigured,
    GroupRejoined,
    LeaveIntended,
    MemberJoined,
    MemberLeft,
    RejoinedMember,
    RestartIntended,
    Subtopology,
    TopologyDeclared,
)
from equipoise.events.records import Entry, FactRecord
from equipoise.replay.prediction.draw import DEFAULT_ERRORS, RestartSeries
from equipoise.replay.prediction.habits import Habits, HabitsReader, _errors, habits_of, quantile
from equipoise.replay.prediction.planned_change import Configure, Join, Kill, Leave, PlannedChange, RestartAll
from equipoise.replay.prediction.predict import METRICS, PredictedInterval, Prediction, predict
from equipoise.replay.prediction.present import PresentGroup, present_of
from equipoise.replay.prediction.reading import read_present
from equipoise.replay.recorded_inputs import Curve, GroupStart, Happening, ProcessEnded, ProcessStarted, RecordedInputs, Window
from equipoise.replay.simulation import MemorySink, RestoreModel
from equipoise.replay.simulation.run import Simulation, simulate
from equipoise.statemachine.machine import GroupMachine
from tests.unit.replay.lived import configured

START_MS = 1_700_000_000_000
CHANGED_MS = START_MS + 240_000
END_MS = START_MS + 600_000
TASKS = 12


def _started(name: str, at_ms: int) -> ProcessStarted:
    return ProcessStarted(
        at_ms=at_ms,
        member_id=name,
        incarnation=1,
        identity=name,
        capacity=1,
        rack=None,
        tags={},
        eager=False,
        ready_lag_records=None,
        prepare_ms=None,
        session_timeout_ms=10_000,
        lease_margin_ms=2_000,
        state_kept=False,
        lags={},
        joined_ms=at_ms,
        supplied=True,
        pause_ms=None,
    )


def _ended(name: str, how: str) -> ProcessEnded:
    return ProcessEnded(at_ms=CHANGED_MS, member_id=name, incarnation=1, how=how, inferred=False, done_ms=None)


CHANGES: dict[str, tuple[PlannedChange, Happening]] = {
    "join": (Join(members=1), _started("m4", CHANGED_MS)),
    "leave": (Leave(members=("m2",)), _ended("m2", "announced")),
    "kill": (Kill(members=("m2",)), _ended("m2", "killed")),
}


@functools.cache
def lived(kind: str = "", *, seed: int = 0, speed: int = 40_000) -> tuple[tuple[Entry, ...], dict[str, float]]:
    """A group of three members whose third joined after a minute: its log until the change, and
    what the change cost.
    """
    curves = {("changelog", number): Curve(((START_MS, 200_000), (END_MS, 200_000 + 600 * (50 + 10 * number)))) for number in range(TASKS)}
    topology = TopologyDeclared(
        epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=TASKS, stateful=True, source_topics=("in",), changelog_topics=("changelog",)),)
    )
    inputs = RecordedInputs(
        start=GroupStart(at_ms=START_MS, group="orders", config=GroupConfigured(), topology=topology, curves=curves),
        happenings=(
            *(_started(name, START_MS + 1_000) for name in ("m1", "m2")),
            _started("m3", START_MS + 60_000),
            *([CHANGES[kind][1]] if kind else []),
        ),
        windows=(Window(label="change", start_ms=CHANGED_MS, end_ms=END_MS, measured=None),),
        end_ms=END_MS,
        imported=False,
        settings={},
        first_leader="",
        carrier=None,
        announce_closes=None,
    )
    sink = MemorySink()
    result = simulate(inputs, Simulation(seed=seed, restore=RestoreModel(records_per_s=speed)), sink=sink)
    before = []
    for entry in sink.entries:
        if isinstance(entry, FactRecord) and entry.append_ms >= CHANGED_MS:
            break
        before.append(entry)
    totals = result.windows[0].totals
    named = {"unavailable_task_seconds": "unavailable_task_seconds", "moves": "active_moves", "records_restored": "records_restored"}
    return tuple(before), {name: totals[total] for name, total in named.items()}


@functools.cache
def present() -> tuple[PresentGroup, Habits]:
    return read_present(lived()[0])


def predicted(change: PlannedChange) -> Prediction:
    return predict(*present(), change, runs=12)


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("seed", [1, 2])
def test_interval_of_95_percent_holds_what_the_group_does_afterwards(kind: str, seed: int) -> None:
    change, _ = CHANGES[kind]
    log, cost = lived(kind, seed=seed, speed=30_000 * seed)
    found = predict(*read_present(log), change, runs=40)
    assert found.as_now == 1.0
    for name, value in cost.items():
        each = found.intervals[name]
        slack = 0.03 * value  # delays of messages differ, too
        assert each.low_95 - slack <= value <= each.high_95 + slack, (name, value, each)


def test_equal_arguments_give_equal_answers_in_any_number_of_processes() -> None:
    change = Kill(members=("m1",))
    assert predict(*present(), change, runs=6) == predict(*present(), change, runs=6, processes=3)


def test_moves_and_restores_follow_the_change() -> None:
    joined, left, killed = predicted(Join(members=1)), predicted(Leave(members=("m1",))), predicted(Kill(members=("m1",)))
    assert joined.intervals["moves"].median == 3
    assert left.intervals["moves"].median == killed.intervals["moves"].median == 4
    assert joined.intervals["unavailable_task_seconds"].median == left.intervals["unavailable_task_seconds"].median == 0
    assert killed.intervals["unavailable_task_seconds"].low_95 > 4 * 5
    assert predicted(RestartAll(away_ms=2_000)).intervals["unavailable_task_seconds"].low_95 > TASKS


def test_setting_is_predicted_until_its_standbys_are_there() -> None:
    group, _ = present()
    config = attrs.evolve(group.config, knobs=attrs.evolve(group.config.knobs, num_standbys=1))
    found = predicted(Configure(config=config)).intervals
    assert found["moves"].high_95 == 0
    assert found["records_restored"].low_95 > 200_000
    assert found["rest_s"].low_95 > 10


def test_answer_names_the_input_that_it_depends_on_most() -> None:
    group, habits = present()
    unsure = attrs.evolve(habits, restore_error=0.6)
    found = predict(group, unsure, Join(members=1), runs=30)
    assert found.sensitive_to["rest_s"] == "restore_records_per_s"
    assert "moves" not in found.sensitive_to


def test_restore_without_a_known_speed_is_refused_and_a_change_without_restores_is_not() -> None:
    group, _ = present()
    with pytest.raises(InputError, match="--restore-speed"):
        predict(group, habits_of(None), Join(members=1), runs=2)
    config = attrs.evolve(group.config, knobs=attrs.evolve(group.config.knobs, probing_interval_ms=120_000))
    assert predict(group, habits_of(None), Configure(config=config), runs=2).intervals["records_restored"].high_95 == 0


def test_group_that_is_about_to_change_is_refused() -> None:
    log = list(lived()[0])
    last = next(each for each in reversed(log) if isinstance(each, FactRecord))
    log.append(attrs.evolve(last, offset=last.offset + 1, event=LeaveIntended(member_id="m1", incarnation=1)))
    with pytest.raises(InputError, match="m1 is about to leave"):
        read_present(log)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("join=2", Join(members=2)),
        ("leave=m2,m1", Leave(members=("m1", "m2"))),
        ("kill=m1", Kill(members=("m1",))),
        ("restart", RestartAll()),
        ("restart=9", RestartAll(away_ms=9_000)),
    ],
)
def test_change_is_read_from_its_text(text: str, change: PlannedChange) -> None:
    assert parse_change(text, GroupConfigured()) == change


def test_setting_is_read_from_its_text() -> None:
    change = parse_change("max_warmups=7", GroupConfigured())
    assert isinstance(change, Configure)
    assert change.config.knobs.max_warmups == 7


@pytest.mark.parametrize("text", ["join", "join=0", "join=x", "leave=", "restart=-1", "kill", "no_such=1", "max_warmups"])
def test_other_texts_are_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(InputError, match="join=N, leave=M1,M2"):
        parse_change(text, GroupConfigured())


@pytest.mark.parametrize("change", [Leave(members=("m9",)), Kill(members=("m1", "m2", "m3"))])
def test_change_that_the_group_cannot_have_is_refused(change: PlannedChange) -> None:
    with pytest.raises(InputError, match=r"m1, m2, m3|nobody would be left"):
        predict(*present(), change, runs=1)


def test_bytes_are_told_where_the_size_of_records_is_known() -> None:
    found = predicted(Join(members=1))
    assert found.in_bytes(None) is found
    assert found.as_json()["bytes_read"] is None
    sized, records = found.in_bytes(150.0), found.intervals["records_restored"]
    assert sized.bytes_read is not None
    assert (sized.bytes_read.median, sized.bytes_read.high_95) == (round(150 * records.median), round(150 * records.high_95))
    assert "bytes read" in str(prediction_parts("orders", [("join=1", sized)])[1])
    assert "bytes read" not in str(prediction_parts("orders", [("join=1", found)])[1])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_lies_within_the_values_and_rises(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, share) <= ordered[-1]
    assert quantile(ordered, 0) == ordered[0]
    assert quantile(ordered, 1) == ordered[-1]
    assert quantile(ordered, share / 2) <= quantile(ordered, share) + 1e-9 * max(1.0, abs(ordered[-1]), abs(ordered[0]))


@pytest.mark.parametrize(("number", "outside"), [(39, 0.05), (79, 0.05), (200, 0.05)])
def test_quantiles_of_95_percent_leave_one_more_value_outside_as_often_as_they_say(number: int, outside: float) -> None:
    low, high = (quantile([float(each) for each in range(number)], share) for share in (0.025, 0.975))
    below, above = (low + 1) / (number + 1), (number - high) / (number + 1)
    assert below + above == pytest.approx(outside)


def _restart(name: str) -> tuple[Fact, ...]:
    return (
        RestartIntended(member_id=name, incarnation=1),
        MemberLeft(member_id=name, incarnation=1),
        MemberJoined(member_id=name, incarnation=9, join_nonce=f"{name}-9"),
    )


def _habits(*told: tuple[int, Fact]) -> Habits:
    """The habits of a log with these facts, so long after each other's first, in ms."""
    last = next(each for each in reversed(lived()[0]) if isinstance(each, FactRecord))
    reader = HabitsReader()
    for number, (after_ms, event) in enumerate(told, start=1):
        reader.take(attrs.evolve(last, offset=last.offset + number, append_ms=last.append_ms + after_ms, event=event))
    return reader.habits()


def test_group_of_consumers_is_refused_by_its_state_alone() -> None:
    """Their sessions are the broker's, and they rebalance by their own protocol."""
    machine = GroupMachine()
    joined = RejoinedMember(member_id="m1", client="m1-1", incarnation=1, topology_epoch=1)
    topology = TopologyDeclared(epoch=1, subtopologies=(Subtopology(subtopology=0, partitions=2, stateful=False, source_topics=("in",)),))
    facts: tuple[Fact, ...] = (configured(), topology, GroupRejoined(generation=1, protocol="range", members=(joined,)))
    for number, event in enumerate(facts):
        machine.step(make_record("orders", number, START_MS, event))
    assert machine.state.members
    with pytest.raises(InputError, match=r"its members are not equipoise's.*`equipoise what-if` without --change"):
        present_of(machine.state)


IN_TURN = list(zip((0, 500, 2_500, 42_500, 43_000, 45_000), (*_restart("m1"), *_restart("m2")), strict=True))
LATER = [(after_ms + 50_000, event) for after_ms, event in IN_TURN]


@pytest.mark.parametrize(
    ("told", "series"),
    [
        (IN_TURN, [((2_000, 2_000), (40_000,))]),
        ([*IN_TURN, *LATER], [((2_000, 2_000), (40_000,))] * 2),
        ([*IN_TURN[:3], (3_000, MemberLeft(member_id="m3", incarnation=1)), *IN_TURN[3:]], [((2_000,), ()), ((2_000,), ())]),
        ([*IN_TURN[:3], *((after_ms + 200_000, event) for after_ms, event in IN_TURN[3:])], [((2_000,), ()), ((2_000,), ())]),
        ([IN_TURN[0], (100, _restart("m2")[0]), *IN_TURN[1:3], *IN_TURN[4:]], [((2_000, 2_000), ())]),
        ([IN_TURN[0], IN_TURN[1]], []),
    ],
    ids=["in turn", "twice", "something else changed", "much later", "together", "not back"],
)
def test_series_of_restarts_are_told_apart(told: list[tuple[int, Fact]], series: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    assert [(each.away_ms, each.turn_ms) for each in _habits(*told).restarts] == series


def test_members_restart_as_fast_after_each_other_as_those_of_the_log() -> None:
    group, usual = present()
    rests = [
        predict(group, attrs.evolve(usual, restarts=(RestartSeries((2_000,), turns),) * 5), RestartAll(), runs=2).intervals["rest_s"].median
        for turns in ((), (40_000,))
    ]
    assert rests[1] - rests[0] > 30 * (len(group.members) - 1)


def test_restart_takes_as_long_as_the_restarts_of_the_log() -> None:
    habits = _habits(*zip((0, 500, 7_500), _restart("m1"), strict=True))
    assert habits.restarts == (RestartSeries((7_000,)),)
    group, usual = present()
    once = [habits.draw(seed).away_of("m1") for seed in range(20)]
    assert 2_000 < min(once) < 7_000 < max(once) < 30_000, "of one restart nobody knows how much they differ"
    often = attrs.evolve(habits, restarts=(RestartSeries((7_000,)),) * 5)
    assert {often.draw(seed).away_of("m1") for seed in range(5)} == {7_000}
    unknown = sorted(usual.draw(seed).away_of("m1") for seed in range(200))
    assert 500 <= unknown[0] < 700 < 15_000 < unknown[-1] <= 20_000
    short, long = (
        predict(group, attrs.evolve(usual, restarts=(RestartSeries((each,)),) * 5), RestartAll(), runs=3).intervals for each in (1_500, 7_500)
    )
    assert long["unavailable_task_seconds"].low_95 - short["unavailable_task_seconds"].high_95 > TASKS * 3, "some are lent meanwhile"


def test_change_is_made_soon_after_it_is_planned() -> None:
    """A script makes it at once, a hand later: half of the runs are a script's."""
    drawn = sorted(present()[1].draw(seed).hand_ms for seed in range(400))
    assert 100 <= drawn[0] < 120
    assert 400 < drawn[200] < 500
    assert 1_700 < drawn[-1] <= 2_000


def test_members_of_one_restart_are_away_as_those_of_one_series() -> None:
    """A slow machine makes all of them slow: their times do not average out."""
    of = attrs.evolve(present()[1], restarts=tuple(RestartSeries((away_ms,) * 3) for away_ms in (1_000, 2_000, 4_000, 8_000, 16_000)))
    drawn = [{of.draw(seed).away_of(name) for name in ("m1", "m2", "m3")} for seed in range(100)]
    assert all(len(each) == 1 for each in drawn)
    assert len(set().union(*drawn)) == 5


def test_one_speed_far_off_does_not_widen_those_of_all() -> None:
    """One copy of a hundred was restored eight times as fast: the middle half stays as narrow."""
    usual = [math.log(1_000 * (1 + place / 1_000)) for place in range(99)]
    errors = _errors([*usual, math.log(8_000)])
    assert max(errors) > 1.9
    assert quantile(errors, 0.75) - quantile(errors, 0.25) < 0.06
    assert _errors(usual[:4]) == DEFAULT_ERRORS


def test_kill_is_judged_by_what_it_costs_from_when_the_member_was_heard_last() -> None:
    found = {each.metric: each for each in predicted(Kill(members=("m1",))).expected}
    assert found["moves"].median == 4
    assert found["unavailable_task_ms"].low_95 > 4 * 5_000


def test_interval_holds_by_its_own_ends() -> None:
    interval = PredictedInterval(5, 4, 6, 1, 9)
    assert interval.holds(1)
    assert interval.holds(9)
    assert not interval.holds(9.1)
    assert interval.holds(6, 50)
    assert not interval.holds(7, 50)


def test_prediction_as_json_names_every_metric() -> None:
    document = predicted(Join(members=1)).as_json()
    assert set(document["intervals"]) == set(METRICS)
    assert document["change"] == {"kind": "join", "members": 1}
