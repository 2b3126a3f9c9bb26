"""Facts that are too large: the first part fits, and the following parts hold the rest."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.events import codec
from equipoise.events.errors import FieldError
from equipoise.events.fact_parts import observed_in_parts, report_in_parts, shortened_join, shortened_report, task_sets
from equipoise.events.facts import MOST_TASKS, LagReported, Load, MemberJoined, PartitionsObserved, Subtopology, TopologyDeclared
from equipoise.events.fields import MOST_TASK_NUMBER
from equipoise.events.tasks import Lag, LagSentinel, TaskId
from tests.groups import joined
from tests.strategies import instances
from tests.strategies import task_sets as task_set_strategy

LAGS: dict[TaskId, Lag] = {TaskId(MOST_TASK_NUMBER, MOST_TASK_NUMBER - 100_000 + index): 2**63 - 1 - index for index in range(100_000)}
HELD = tuple(TaskId(0, partition) for partition in range(100_000))


def report(**changes: Any) -> LagReported:
    return LagReported(**{"member_id": "m1", "incarnation": 1, "number": 7, "assignment_epoch": 1, **changes})


def applied(parts: list[LagReported]) -> dict[TaskId, Lag]:
    """The lags that the leader knows after folding all parts."""
    lags: dict[TaskId, Lag] = {}
    number = None
    for part in parts:
        assert number is None or (part.number, part.base) == (number + 1, number)
        number = part.number
        lags = dict(part.lags) if part.base is None else {**{task: lag for task, lag in lags.items() if task not in part.forgotten}, **part.lags}
    return lags


@given(instances(LagReported), st.integers(0, 500))
def test_report_that_fits_is_unchanged(whole: LagReported, room: int) -> None:
    most_bytes = codec.size_bytes(whole) + room
    assert shortened_report(whole, most_bytes=most_bytes) is whole
    assert list(report_in_parts(whole, most_bytes)) == [whole]


@given(instances(LagReported), st.integers(150, 400))
def test_report_parts_together_equal_it(whole: LagReported, most_bytes: int) -> None:
    whole = attrs.evolve(whole, member_id="m1", number=7, base=None, forgotten=(), held=whole.held[:1], ready=whole.ready[:1])
    parts = list(report_in_parts(whole, most_bytes))
    assert applied(parts) == whole.lags
    assert {(part.held, part.ready, part.leaving) for part in parts} == {(whole.held, whole.ready, whole.leaving)}
    assert max(map(codec.size_bytes, parts)) <= most_bytes


@pytest.mark.slow
def test_report_of_100000_long_names_fits_nearest_copies_first() -> None:
    load = Load(cpu=0.5, tasks=dict.fromkeys(HELD, 5), busy={task: number for number, task in enumerate(HELD)})
    parts = list(report_in_parts(report(lags=LAGS, held=HELD, ready=HELD, load=load)))
    assert len(parts) > 2
    assert max(map(codec.size_bytes, parts)) <= codec.MOST_EVENT_BYTES
    assert applied(parts) == LAGS
    assert parts[0].load == Load(cpu=0.5)
    assert max(lag for lag in parts[0].lags.values() if isinstance(lag, int)) < min(lag for lag in parts[-1].lags.values() if isinstance(lag, int))


def test_report_forgotten_copies_that_do_not_fit_come_later() -> None:
    gone = tuple(sorted(LAGS))
    said = shortened_report(report(base=6, forgotten=gone, lags=dict.fromkeys(HELD, LagSentinel.UNKNOWN)), most_bytes=10_000)
    assert said.forgotten == gone[: len(said.forgotten)]
    assert 0 < len(said.forgotten) < len(gone)
    assert 0 < len(said.lags) < len(HELD)
    assert codec.size_bytes(said) <= 10_000


def test_join_too_large_keeps_nearest_copies() -> None:
    said = shortened_join(joined("m1", lags=LAGS))
    assert codec.MOST_EVENT_BYTES * 0.9 < codec.size_bytes(said) <= codec.MOST_EVENT_BYTES
    nearest = sorted(LAGS.items(), key=lambda item: item[1])[: len(said.lags)]  # type: ignore[arg-type, return-value]  # numbers all
    assert said.lags == dict(nearest)
    few = joined("m1", lags=dict(nearest[:20_000]))
    assert shortened_join(few) is few


@given(instances(MemberJoined))
def test_join_without_its_copies_fits(whole: MemberJoined) -> None:
    least = codec.size_bytes(attrs.evolve(whole, lags={}))
    assert codec.size_bytes(shortened_join(whole, least + 70)) <= least + 70


@given(task_set_strategy(), st.integers(500, 600))
def test_sets_of_tasks_are_whole_together(tasks: tuple[TaskId, ...], most_bytes: int) -> None:
    assert tuple(task for some in task_sets([*tasks, *tasks], most_bytes) for task in some) == tasks


@given(instances(PartitionsObserved), st.integers(160, 400))
def test_observation_parts_together_equal_it(observed: PartitionsObserved, most_bytes: int) -> None:
    parts = list(observed_in_parts(observed, most_bytes))
    for name in ("end_offsets", "racks", "weights"):
        together: dict[str, dict[int, Any]] = {}
        for part in parts:
            for topic, of in getattr(part, name).items():
                together.setdefault(topic, {}).update(of)
        assert together == {topic: of for topic, of in getattr(observed, name).items() if of or len(parts) == 1}
    assert all(codec.size_bytes(part) <= most_bytes for part in parts)


def test_observation_is_split_by_size() -> None:
    small = PartitionsObserved(end_offsets={"t": dict.fromkeys(range(60_000), 2**40)})
    assert list(observed_in_parts(small)) == [small]
    names = [f"{number:05}{'n' * 240}" for number in range(5_000)]
    large = PartitionsObserved(end_offsets={name: {0: 5} for name in names}, racks={name: {0: ("r" * 900,)} for name in names})
    parts = list(observed_in_parts(large))
    assert len(parts) > 5
    assert max(map(codec.size_bytes, parts)) <= codec.MOST_EVENT_BYTES


def test_topology_limit_lets_a_member_report_all_tasks() -> None:
    parts = [Subtopology(subtopology=number, partitions=MOST_TASKS // 2, stateful=False) for number in range(3)]
    TopologyDeclared(epoch=1, subtopologies=tuple(parts[:2]))
    with pytest.raises(FieldError, match=r"TopologyDeclared\.subtopologies: 750000 tasks; a topology has at most 500000, so use fewer partitions"):
        TopologyDeclared(epoch=1, subtopologies=tuple(parts))
    every = tuple(TaskId(0, partition) for partition in range(MOST_TASKS))
    assert codec.fits(report(held=every[::2], ready=every[1::2]))
