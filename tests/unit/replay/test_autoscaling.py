"""`follow`: more members when more arrives than they do, fewer when fewer have been enough for
long, and nothing while a change is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from equipoise.assignors.scale_down import Keep, scale_down
from equipoise.events.errors import InputError
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.prediction.habits import Habits
from equipoise.replay.prediction.planned_change import PlannedChange
from equipoise.replay.prediction.predict import PredictedInterval, Prediction, predict_in_turn
from equipoise.replay.prediction.present import PresentGroup
from equipoise.replay.replayer import Replayer
from equipoise.replay.sizing import autoscaling
from equipoise.replay.sizing.autoscaling import (
    BUCKET_MS,
    KEPT_MS,
    Followable,
    Following,
    FollowingPolicy,
    FollowingReader,
    LastAnswer,
    follow,
    policy_of,
    under_way,
)
from equipoise.replay.sizing.demand import Demand
from equipoise.statemachine.round_problem import build_problem
from equipoise.statemachine.state import GroupState
from tests.unit.replay.lived import lived as with_copies
from tests.unit.replay.test_prediction import TASKS, lived

NOW = 10_000 * BUCKET_MS
T = [TaskId(0, number) for number in range(TASKS)]
MEMBER = 1_000.0
"""Records a second of a member."""


def state() -> GroupState:
    """Three members at rest."""
    replayer = Replayer("orders")
    for _ in replayer.follow(iter(lived()[0])):
        pass
    found = replayer.machine.state
    found.last_append_ms = NOW
    assert under_way(found) == ""
    return found


def habits() -> Habits:
    reader = FollowingReader("orders")
    for each in lived()[0]:
        if isinstance(each, FactRecord | DecisionRecord):
            reader.take(each)
    return reader.read()[0]


def demand(*parts: tuple[int, float], hot: float = 1.0, busy: bool = True) -> Demand:
    """Parts of (seconds, records a second in all), the last of which ends now. `hot`: how many
    times as much the last task gets.
    """
    rates = [rate for lasts_s, rate in parts for _ in range(lasts_s * 1_000 // BUCKET_MS)]
    buckets = tuple(NOW // BUCKET_MS - len(rates) + number for number in range(len(rates)))
    each = {task: hot if task == T[-1] else 1.0 for task in T}
    share = {task: weight / sum(each.values()) for task, weight in each.items()}
    return Demand(
        buckets=buckets,
        arrivals={task: tuple(rate * share[task] * BUCKET_MS / 1_000 for rate in rates) for task in T},
        weights=dict.fromkeys(T, 1.0),
        busy=(MEMBER,) * 5 if busy else (),
        handler_per_s=MEMBER,
        alone={},
        members=3,
        bucket_ms=BUCKET_MS,
    )


def followed(*parts: tuple[int, float], last: LastAnswer | None = None, hot: float = 1.0, busy: bool = True, **policy: float) -> Following:
    found = Followable(state=state(), habits=habits(), demand=demand(*parts, hot=hot, busy=busy))
    return follow(found, FollowingPolicy(**policy), last)  # type: ignore[arg-type]


def test_members_that_are_enough_stay() -> None:
    found = followed((3_600, 2_400))
    assert (found.members, found.now, found.holds) == (3, 3, False)
    assert "3 members are enough and not too many" in found.line


@pytest.mark.parametrize(("rate", "least"), [(3_600, 4), (4_700, 5)])
def test_more_arrives_than_members_do_and_more_are_asked_for_at_once(rate: float, least: int) -> None:
    """A step: nothing waits yet, and one minute of it is known."""
    found = followed((1_800, 2_400), (75, rate))
    assert least <= found.members <= least + 1
    assert not found.holds
    assert "3 members would be" in found.line
    there, back = found.change
    assert there.change["kind"] == "join"
    assert back.intervals["moves"].median >= 1


def test_steady_rise_is_taken_further_and_a_step_is_not() -> None:
    rising = [(15, 1_800 + 28.0 * number) for number in range(40)]
    assert rising[-1][1] < 2_900, "three members do that"
    assert followed(*rising).members > 3
    assert followed((540, 1_800), (75, rising[-1][1])).members == 3


def test_what_waits_is_worked_off() -> None:
    found = Followable(state=state(), habits=habits(), demand=demand((3_600, 2_600)))
    assert follow(found, FollowingPolicy()).members == 3
    found.state.behind = dict.fromkeys(T, 500_000 // TASKS)
    assert follow(found, FollowingPolicy()).members > 3


def test_fewer_members_have_to_be_enough_for_long() -> None:
    low = followed((1_800, 2_400), (2_100, 800))
    assert (low.members, low.holds) == (1, False)
    assert low.change[0].change["kind"] == "leave"
    short = followed((1_800, 2_400), (600, 800))
    assert (short.members, short.holds) == (3, True)
    assert "not in all of the last 30 min" in short.line
    assert followed((1_800, 2_400), (600, 800), low_for_s=480).members == 1


def test_member_stays_until_loads_are_known_for_as_long() -> None:
    found = followed((900, 800))
    assert (found.members, found.holds) == (3, True)
    assert "believed when loads were reported for 30 min" in found.line


def test_change_that_costs_much_has_to_be_worth_it_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task stands still for a second there and for a second back: worth it once in 2,000 s."""
    predicted = predict_in_turn

    def dear(present: PresentGroup, habits: Habits, changes: Sequence[PlannedChange], *, runs: int) -> list[Prediction]:
        stands = PredictedInterval(*[1.0 * TASKS] * 5)
        found = predicted(present, habits, changes, runs=runs)
        return [attrs.evolve(each, intervals={**each.intervals, "unavailable_task_seconds": stands}) for each in found]

    monkeypatch.setattr(autoscaling, "predict_in_turn", dear)
    assert followed((1_800, 2_400), (1_900, 800)).members == 3
    assert followed((1_800, 2_400), (2_100, 800)).members == 1


def test_member_that_was_never_busy_goes_alone() -> None:
    assert followed((2_400, 800), busy=False).members == 2


def test_hot_task_is_named_and_nobody_is_asked_to_help_it() -> None:
    found = followed((3_600, 3_500), hot=20.0)
    assert found.hot == (T[-1],)
    assert found.members <= 3
    assert f"{T[-1]} gets more than one member does" in found.line or found.holds


def test_nothing_is_changed_while_a_change_is_under_way() -> None:
    found = Followable(state=state(), habits=habits(), demand=demand((3_600, 9_000)))
    found.state.members["m2"].leaving = True
    answer = follow(found, FollowingPolicy())
    assert (answer.members, answer.now, answer.holds) == (2, 2, True)
    assert answer.line.startswith("m2 leaves: nothing else is changed")
    assert follow(found, FollowingPolicy(), LastAnswer(members=1, at_ms=NOW - 60_000)).members == 1, "the other one has not said so yet"
    assert follow(found, FollowingPolicy(), LastAnswer(members=1, at_ms=NOW - 900_000)).members == 2


def test_members_that_were_asked_for_are_waited_for() -> None:
    asked = LastAnswer(members=5, at_ms=NOW - 120_000)
    found = followed((3_600, 800), last=asked)
    assert (found.members, found.holds) == (5, True)
    assert "2 members more are expected to join" in found.line
    assert followed((3_600, 800), last=attrs.evolve(asked, at_ms=NOW - 900_000)).members < 3


def test_least_and_most_are_kept() -> None:
    assert followed((3_600, 9_000), most=4).members == 4
    assert followed((3_600, 800), least=2).members == 2
    assert followed((3_600, 800), least=5).members == 5
    assert followed((3_600, 2_400), most=2).members == 2


def test_group_without_loads_is_refused() -> None:
    found = Followable(state=state(), habits=habits(), demand=demand((3_600, 800)))
    found.state.last_append_ms = NOW + 600_000
    with pytest.raises(InputError, match="no loads were reported lately"):
        follow(found, FollowingPolicy())


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"lag": "3"}, "lag: there is no such value; there are lag_s, least"),
        ({"lag_s": "soon"}, "lag_s: 'soon' is no number"),
        ({"least": "2.5"}, "least: '2.5' is no whole number"),
        ({"lag_s": "0"}, "lag_s: 0.0 is not a finite number >= 0.001"),
        ({"least": "4", "most": "3"}, "most: 3 is below least, 4"),
        ({"low_for_s": "9999"}, "low_for_s"),
    ],
)
def test_wrong_value_is_named(values: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        policy_of(values)
    assert problem in str(caught.value)


def test_values_of_a_query_are_read() -> None:
    assert policy_of({"lag_s": "10", "least": "2", "member_records_per_s": "500.5"}) == FollowingPolicy(
        lag_s=10.0, least=2, member_records_per_s=500.5
    )


def test_reader_forgets_what_is_older_than_some_hours() -> None:
    first = next(each for each in lived()[0] if isinstance(each, FactRecord))
    reader = FollowingReader("orders")
    known = list[tuple[int, int]]()
    for number in range(0, 10 * KEPT_MS, KEPT_MS // 4):
        reader.take(attrs.evolve(first, append_ms=number))
        readers = reader._older or reader._newer
        assert readers is not None
        known.append((number, readers.since_ms))
    assert all(min(now_ms, KEPT_MS) <= now_ms - since_ms <= 2 * KEPT_MS for now_ms, since_ms in known[4:])


@pytest.mark.parametrize(("share", "kept_ms"), [(0.0, 30_000), (0.1, KEPT_MS), (0.1, 30_000)])
def test_reader_of_the_end_of_a_log_knows_how_fast_members_restore(share: float, kept_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins behind the group's settings, and again whenever it forgets."""
    monkeypatch.setattr(autoscaling, "KEPT_MS", kept_ms)
    entries = [each for each in with_copies(num_standbys=1) if isinstance(each, FactRecord | DecisionRecord)]
    replayer = Replayer("orders")
    for _ in replayer.follow(entries):
        pass
    reader, speeds = FollowingReader("orders", replayer.machine.state), set[int]()
    for each in entries[round(share * len(entries)) :]:
        reader.take(each)
        speeds.add(reader.read()[0].restore_median)
    assert max(speeds) > 0
    assert all(speed == 0 or 10_000 < speed < 60_000 for speed in speeds), speeds


def test_what_waits_of_one_task_needs_no_more_than_a_member() -> None:
    found = Followable(state=state(), habits=habits(), demand=demand((3_600, 1_500)))
    found.state.behind = {T[-1]: 3_000_000}
    assert follow(found, FollowingPolicy()).members == 3


def test_group_without_members_gets_the_least() -> None:
    found = Followable(state=state(), habits=habits(), demand=demand((3_600, 1_500)))
    found.state.members.clear()
    assert (follow(found, FollowingPolicy()).members, follow(found, FollowingPolicy(least=2)).members) == (1, 2)


def test_those_who_cost_least_leave() -> None:
    found = followed((1_800, 2_400), (2_100, 800))
    picked = scale_down(build_problem(state()), Keep.parse("1")).asked
    assert set(found.leave) == {each.member for each in picked}
    assert found.as_json()["leave"] == sorted(each.member for each in picked)
    assert followed((3_600, 2_400)).leave == ()
