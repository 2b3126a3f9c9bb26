"""The fast validation of heartbeat events accepts the same values as the plain validators and
refuses others with the same messages.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events import codec, fields, wire
from equipoise.events.errors import FieldError, UnsoundError
from equipoise.events.facts import LagReported, Load
from equipoise.events.tasks import LagSentinel, TaskId
from tests.strategies import instances, lags, task_sets


class NoFields(NamedTuple):
    """Equal to an empty tuple, but not a tuple."""


VALIDATORS = {each.name: fields.validator_of(each) for each in attrs.fields(LagReported)}
Judged: Any = attrs.make_class("LagReported", {name: attrs.field(validator=each) for name, each in VALIDATORS.items()}, frozen=True)
"""LagReported as any other class: attrs asks the validators, one by one."""

ODD_NUMBERS = [-(2**63) - 1, -1, 0, 1, 2**31, fields.MOST_TASK_NUMBER, fields.MOST_TASK_NUMBER + 1, 2**63 - 1, 2**63, 2**64, True, 1.0, "1", None]
ODD: list[Any] = [*ODD_NUMBERS, "", "m" * 1_000, "m" * 1_001, "é", "\ud800", b"m", (), [], {}, NoFields(), Load(), LagSentinel.ACTIVE, float("nan")]

odd_tasks = st.builds(TaskId, st.sampled_from(ODD_NUMBERS), st.sampled_from(ODD_NUMBERS))
near_tasks = st.builds(TaskId, st.integers(-1, 2), st.integers(-1, 2))
any_tasks = st.lists(st.one_of(odd_tasks, near_tasks, st.sampled_from([(0, 1), "0_1", None]))).map(tuple)
any_lags = st.dictionaries(
    st.one_of(odd_tasks, near_tasks, st.sampled_from([(0, 1), "0_1", 7])),
    st.sampled_from([*ODD_NUMBERS, *LagSentinel, "active"]),
    max_size=4,
)


def refusal(kind: Any, values: dict[str, Any]) -> str | None:
    try:
        kind(**values)
    except FieldError as error:
        return str(error)
    return None


@given(instances(LagReported), st.dictionaries(st.sampled_from(sorted(VALIDATORS)), st.sampled_from(ODD), max_size=2))
def test_report_is_refused_as_its_validators_refuse_it(report: LagReported, odd: dict[str, Any]) -> None:
    values = {name: getattr(report, name) for name in VALIDATORS} | odd
    assert refusal(LagReported, values) == refusal(Judged, values)


@pytest.mark.parametrize("name", VALIDATORS)
def test_report_field_odd_values_are_refused(name: str) -> None:
    sound = LagReported("m1", 1, 1, 1)
    values = {each: getattr(sound, each) for each in VALIDATORS}
    refusals = [(refusal(LagReported, values | {name: odd}), refusal(Judged, values | {name: odd})) for odd in ODD]
    assert all(said == judged for said, judged in refusals)
    assert any(said and f"LagReported.{name}" in said for said, _ in refusals)


def _is_task(item: Any) -> bool:
    return type(item) is TaskId and all(type(number) is int and 0 <= number <= fields.MOST_TASK_NUMBER for number in item)


@given(st.one_of(any_tasks, task_sets(), task_sets().map(list), st.sampled_from(ODD)))
def test_are_tasks_accepts_only_rising_tuples(value: Any) -> None:
    sound = type(value) is tuple and all(map(_is_task, value)) and all(before < after for before, after in itertools.pairwise(value))
    assert fields.are_tasks(value) is sound
    assert (refusal(LagReported, {**REST, "held": value}) is None) is sound


@given(st.one_of(any_lags, lags(), st.sampled_from(ODD)))
def test_lags_are_numbers_from_0_and_sentinels_by_task(value: Any) -> None:
    sound = type(value) is dict and all(
        type(task) is TaskId and (type(lag) is LagSentinel or (type(lag) is int and 0 <= lag < 2**63)) for task, lag in value.items()
    )
    assert fields.are_lags(value) is sound
    assert (refusal(LagReported, {**REST, "lags": value}) is None) is sound


def test_wire_task_cache_is_bounded_and_holds_no_refused_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_KEPT_TEXTS", 100)
    for turn in range(2):
        for number in range(60):
            report = LagReported("m1", 1, 1, 1, lags={TaskId(7, number): number, TaskId(7, number + turn + 1): 5})
            assert codec.decode(*codec.encode(report)) == report
            assert sum(8 + len(texts) for texts in wire.RISING) <= wire.RISING.kept <= 100
    kind, version, payload = codec.encode(LagReported("m1", 1, 1, 1, lags={TaskId(7, 2): 1, TaskId(7, 3): 1}))
    for _ in range(2):
        with pytest.raises(UnsoundError, match="tasks must be in rising order"):
            codec.decode(kind, version, payload.replace(b"7_2", b"7_4"))


REST = {"member_id": "m1", "incarnation": 1, "number": 1, "assignment_epoch": 1}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("held", [TaskId(0, 1)], "LagReported.held: [TaskId(subtopology=0, partition=1)] is not a tuple of tasks"),
        ("held", (TaskId(0, 1), (0, 2)), "LagReported.held[1]: (0, 2) is not a task; use TaskId(sub-topology, partition), both from 0 to 999999999"),
        ("held", (TaskId(0, 2), TaskId(0, 1)), "LagReported.held[1]: 0_1 after 0_2: tasks must be in rising order, each once"),
        ("held", (TaskId(0, 2), TaskId(0, 2)), "LagReported.held[1]: 0_2 after 0_2: tasks must be in rising order, each once"),
        ("lags", {"0_1": 5}, "LagReported.lags[0_1]: '0_1' is not a task; use TaskId(sub-topology, partition), both from 0 to 999999999"),
        ("lags", {TaskId(0, 1): -1}, "LagReported.lags[0_1]: -1 is not a lag; use a number of records >= 0, 'active' or 'unknown'"),
    ],
)
def test_field_error_names_the_field_and_the_fix(name: str, value: Any, says: str) -> None:
    assert refusal(LagReported, {**REST, name: value}) == says
