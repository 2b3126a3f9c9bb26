"""`size`: within one member of what a search by experiment finds, where members are known; says
when more members cannot help; refuses where the log holds too little.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cli.size import size_parts
from equipoise.events.errors import InputError
from equipoise.events.facts import LagReported, Load, MemberUnchanged
from equipoise.events.records import Entry, FactRecord
from equipoise.events.tasks import TaskId
from equipoise.replay.prediction.habits import habits_of
from equipoise.replay.sizing.demand import BUCKET_MS, DemandReader
from equipoise.replay.sizing.member_queues import dealt, lagging, longest_lag_s
from equipoise.replay.sizing.size import Sizable, Sizing, read_sizable, size
from equipoise.statemachine.state import Parked
from tests.unit.replay.test_prediction import TASKS, lived

EVERY_MS = 5_000
LASTS_MS = 90 * 60_000
NAMES = ("m1", "m2", "m3")
T = [TaskId(0, number) for number in range(TASKS)]


@attrs.frozen(kw_only=True)
class Known:
    """A group whose members do `per_s` records a second, each task at most `alone` of them, and
    what arrives: `mean` records a second of an average task, in waves, the last task `skew` times
    as many.
    """

    per_s: float
    mean: float
    skew: float = 1.0
    wave: float = 0.4
    alone: float = math.inf

    def arriving(self, task: TaskId, at_ms: int) -> float:
        """Returns records a second."""
        wave = 1 + self.wave * math.sin(2 * math.pi * at_ms / LASTS_MS)
        return self.mean * wave * (self.skew if task.partition == TASKS - 1 else 1.0)

    def runs(self, shares: Iterable[Iterable[TaskId]]) -> Iterator[tuple[int, int, dict[TaskId, tuple[float, float]]]]:
        """Yields (time in ms, member, task -> (records a second, records that wait)), in steps of
        EVERY_MS. A member that is behind shares its time by what waits.
        """
        waiting = dict.fromkeys(T, 0.0)
        members = [tuple(each) for each in shares]
        for at_ms in range(0, LASTS_MS, EVERY_MS):
            for number, tasks in enumerate(members):
                there = {task: waiting[task] + self.arriving(task, at_ms) * EVERY_MS / 1_000 for task in tasks}
                most = self.per_s * EVERY_MS / 1_000
                scale = min(1.0, most / sum(there.values())) if there and sum(there.values()) else 1.0
                done = {task: min(records * scale, self.alone * EVERY_MS / 1_000) for task, records in there.items()}
                waiting |= {task: there[task] - done[task] for task in tasks}
                yield at_ms, number, {task: (done[task] * 1_000 / EVERY_MS, waiting[task]) for task in tasks}

    def longest_lag_s(self, members: int) -> float:
        """Returns the longest lag of an experiment with so many members."""
        rates = min(self.per_s, self.alone)
        found = 0.0
        for _, _, tasks in self.runs(dealt(T, members)):
            waiting = sum(each for _, each in tasks.values())
            found = max(found, waiting / self.per_s, *(each / rates for _, each in tasks.values()))
        return found

    def needs(self, target_lag_s: float) -> int | None:
        """Returns the fewest members by experiment; None: no number of them."""
        return next((members for members in range(1, TASKS + 1) if self.longest_lag_s(members) <= target_lag_s), None)

    def log(self, *, busy_per_record: bool = True) -> list[Entry]:
        """Returns the log of a group of three members, and then what they report of this load."""
        before = list(lived()[0])
        last = next(each for each in reversed(before) if isinstance(each, FactRecord))
        members = {each.event.member_id: each for each in before if isinstance(each, FactRecord) and isinstance(each.event, LagReported)}
        owners = read_sizable(before).present.owners
        offset, start_ms = last.offset, (last.append_ms // BUCKET_MS + 1) * BUCKET_MS
        found: list[Entry] = list(before)
        numbers = {name: members[name].event.number for name in NAMES}  # type: ignore[union-attr]
        for at_ms, number, tasks in self.runs([[task for task in T if owners[task] == name] for name in NAMES]):
            name = NAMES[number]
            report = members[name].event
            assert isinstance(report, LagReported)
            numbers[name] += 1
            offset += 1
            per_us = 1e6 / min(self.per_s, self.alone)
            load = Load(
                tasks={task: round(rate) for task, (rate, _) in tasks.items()},
                behind={task: round(waits) for task, (_, waits) in tasks.items()},
                busy={task: round(rate * per_us) for task, (rate, _) in tasks.items()} if busy_per_record else {},
            )
            event = attrs.evolve(report, number=numbers[name], load=load, base=None, lags={}, held=report.held, forgotten=())
            found.append(attrs.evolve(last, offset=offset, append_ms=start_ms + at_ms, event=event))
        return found


def sized(known: Known, target_lag_s: float = 20.0, **options: bool) -> Sizing:
    found = read_sizable(lived()[0])
    reader = DemandReader(group="orders")
    for entry in known.log(**options):
        reader.take(entry)
    return size(attrs.evolve(found, demand=reader.demand()), target_lag_s=target_lag_s, costs=False)


@pytest.mark.parametrize(
    "known",
    [
        Known(per_s=1_000, mean=200),  # three are too few at the top of the wave
        Known(per_s=1_000, mean=330),
        Known(per_s=2_500, mean=450, wave=0.2),
        Known(per_s=800, mean=130, skew=3.0),
        Known(per_s=1_000, mean=260, wave=0.8),
    ],
)
def test_recommendation_is_within_one_member_of_a_search_by_experiment(known: Known) -> None:
    found, needs = sized(known), known.needs(20.0)
    assert needs is not None
    assert found.recommended is not None
    assert abs(found.recommended - needs) <= 1, (found, needs)
    assert found.low <= needs <= found.high
    assert "busy" in found.basis
    assert found.per_s == pytest.approx(known.per_s, rel=0.05)


def test_hot_task_is_named_and_no_number_of_members_is_recommended() -> None:
    known = Known(per_s=1_000, mean=60, skew=20.0)
    assert known.needs(20.0) is None
    found = sized(known)
    assert found.recommended is None
    assert found.hot == (T[-1],)
    assert f"{T[-1]} gets more than one member does; more members cannot help" in found.line()


def test_failed_task_is_named_and_no_number_of_members_is_recommended() -> None:
    found = read_sizable(lived()[0])
    known = Known(per_s=5_000, mean=100)
    reader = DemandReader(group="orders")
    for entry in known.log():
        reader.take(entry)
    found = attrs.evolve(found, demand=reader.demand())
    assert size(found, target_lag_s=20.0, costs=False).recommended == 1
    owner = found.present.owners[T[2]]
    found.state.parked[T[2]] = Parked(owner, found.state.now_ms, "orders", 2, 17, "ValueError")
    found.state.behind[T[2]] = 4_210
    said = size(found, target_lag_s=20.0, costs=False)
    assert said.recommended is None
    place = f"{T[2]} at orders/2 offset 17, 4,210 records behind: ValueError"
    assert (said.parked, said.as_json()["parked"]) == ((place,), [place])
    assert said.line() == f"no number of members is right while a task has failed: {place}; mend that first"


def test_task_that_is_handled_one_record_after_the_other_is_the_limit() -> None:
    """Members wait in their handlers: one does many tasks at once, and none of them faster."""
    known = Known(per_s=10_000, mean=300, alone=250)
    assert known.needs(20.0) is None
    assert set(sized(known).hot) == set(T)


def test_member_that_was_never_busy_is_judged_by_its_handlers_and_the_answer_says_so() -> None:
    known = Known(per_s=5_000, mean=100)
    found = sized(known)
    assert found.recommended == 1 == known.needs(20.0)
    assert "no member was ever busy" in found.basis


def test_log_that_shows_too_little_is_refused() -> None:
    with pytest.raises(InputError, match="--member-records-per-s"):
        sized(Known(per_s=5_000, mean=100), busy_per_record=False)
    with pytest.raises(InputError, match=r"reported loads for . minutes; 10 are needed"):
        size(read_sizable(lived()[0]), target_lag_s=10.0)


def test_members_are_counted_where_no_restore_speed_is_known_and_costs_are_not() -> None:
    found = read_sizable(lived()[0])
    reader = DemandReader(group="orders")
    for entry in Known(per_s=1_000, mean=200).log():
        reader.take(entry)
    answer = size(attrs.evolve(found, demand=reader.demand(), habits=habits_of(None)), target_lag_s=20.0, runs=2)
    assert answer.recommended is not None
    assert {each.there for each in answer.options} == {None}
    assert "--restore-speed" in answer.unpredicted
    (said,) = [part for part in size_parts(answer) if isinstance(part, str) and "not known" in part]
    assert said.startswith("what a change costs is not known: ")


def test_changes_are_predicted_there_and_back_and_say_how_often_they_are_worth_it() -> None:
    found = read_sizable(lived()[0])
    reader = DemandReader(group="orders")
    for entry in Known(per_s=1_000, mean=200).log():
        reader.take(entry)
    answer = size(attrs.evolve(found, demand=reader.demand()), target_lag_s=20.0, runs=3)
    by_count = {each.members: each for each in answer.options}
    assert by_count[3].there is None
    more, fewer = by_count[max(by_count)], by_count[1]
    assert more.there is not None
    assert more.back is not None
    assert fewer.back is not None
    assert more.there.intervals["moves"].median >= 1
    assert more.back.intervals["moves"].median >= 1
    assert fewer.back.intervals["records_restored"].median > 0
    assert answer.hold_s is not None
    assert answer.hold_s >= more.there.intervals["rest_s"].high_95 * 0.1
    lags = [by_count[members].lag_s.median for members in sorted(by_count)]
    assert lags == sorted(lags, reverse=True)
    document = answer.as_json()
    assert document["recommended"] == answer.recommended
    assert document["line"] == answer.line()


def _reports(tasks: list[dict[str, int]]) -> Iterator[Entry]:
    (first,) = (each for each in itertools.islice((e for e in lived()[0] if isinstance(e, FactRecord) and isinstance(e.event, LagReported)), 1))
    assert isinstance(first, FactRecord)
    assert isinstance(first.event, LagReported)
    for number, each in enumerate(tasks):
        event = attrs.evolve(first.event, number=10_000 + number, load=Load(tasks={T[0]: each["rate"]}, behind={T[0]: each["behind"]}))
        yield attrs.evolve(first, append_ms=first.append_ms + (number + 1) * EVERY_MS, event=event)


@given(st.lists(st.fixed_dictionaries({"rate": st.integers(1, 1_000), "behind": st.integers(0, 5_000)}), min_size=2, max_size=30))
def test_arrivals_are_what_was_processed_and_what_more_is_waiting(reports: list[dict[str, int]]) -> None:
    reader = DemandReader()
    for entry in _reports(reports):
        reader.take(entry)
    expected = sum(max(0.0, after["rate"] * EVERY_MS / 1_000 + after["behind"] - before["behind"]) for before, after in itertools.pairwise(reports))
    assert sum(sum(series) for series in reader.demand().arrivals.values()) == pytest.approx(expected)


def test_unchanged_member_goes_on_as_it_last_said() -> None:
    said = list(_reports([{"rate": 100, "behind": 0}, {"rate": 100, "behind": 0}]))
    last = said[-1]
    assert isinstance(last, FactRecord)
    assert isinstance(last.event, LagReported)
    unchanged = MemberUnchanged(member_id=last.event.member_id, incarnation=last.event.incarnation, report=last.event.number)
    reader = DemandReader()
    for entry in [*said, attrs.evolve(last, append_ms=last.append_ms + EVERY_MS, event=unchanged)]:
        reader.take(entry)
    assert sum(sum(series) for series in reader.demand().arrivals.values()) == pytest.approx(1_000)


@given(st.lists(st.floats(0, 1e6), max_size=40), st.floats(1, 1e5))
def test_lag_is_never_longer_with_faster_members(series: list[float], per_s: float) -> None:
    assert longest_lag_s(series, per_s * 2) <= longest_lag_s(series, per_s)


@pytest.mark.parametrize(("beside", "is_late"), [(0, False), (1, False), (2, False), (3, True), (5, True)])
def test_task_that_is_put_up_with_takes_its_turns_from_those_beside_it(beside: int, is_late: bool) -> None:
    """A member gives each of its tasks turns of the same length, however much waits for one."""
    hot, others = TaskId(0, 0), [TaskId(0, number + 1) for number in range(beside)]
    work = {hot: [1_000.0] * 10, **{task: [3.0] * 10 for task in others}}
    found = lagging(work, [[hot, *others]], {}, 10.0, 1.0, {hot})
    assert (found.lag_s > 0) is is_late
    assert lagging(work, [[hot, *others]], {}, 10.0, 1.0).lag_s > 900


def test_sizable_is_read_in_one_pass() -> None:
    found = read_sizable(iter(lived()[0]), group="orders")
    assert isinstance(found, Sizable)
    assert len(found.present.members) == 3
