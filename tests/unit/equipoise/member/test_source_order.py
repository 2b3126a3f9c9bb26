"""In which order a task takes the records of several sources."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import JsonSerde, Source, StringSerde
from equipoise.events.errors import FieldError
from equipoise.kafka.client import ConsumedRecord, Record, TopicPartition
from equipoise.member.tasks.processing import Processor
from equipoise.member.tasks.source_order import LOOK_AGAIN_S, SourceOrder, in_order

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
TIMES = st.lists(st.integers(0, 20), max_size=30)


def records(tp: TopicPartition, times_ms: Sequence[int]) -> list[ConsumedRecord]:
    return [Record(None, None, *tp, offset, at_ms) for offset, at_ms in enumerate(times_ms)]


class Taking:
    """A task with the sources a and b. `ends`: of the partitions, when it is placed."""

    def __init__(self, *, table: bool = False, max_idle_s: float = 0.0, ends: tuple[int, int] | None = (0, 0)) -> None:
        self.now_s = 0.0
        self.order = SourceOrder([Source("a"), Source("b", table=table)], max_idle_s, lambda: self.now_s)
        self.order.begin([A, B])
        if ends is not None:
            self.order.ends_are(dict(zip((A, B), ends, strict=True)))
        self.aside: dict[TopicPartition, Sequence[ConsumedRecord]] = {}
        self.read_to = {A: 0, B: 0}

    def fetched(self, tp: TopicPartition, *times_ms: int) -> None:
        self.aside[tp] = [*self.aside.get(tp, ()), *records(tp, times_ms)]
        self.read_to[tp] += len(times_ms)

    def take(self, most: int = 100) -> list[tuple[str, int]]:
        runs = self.order.take(self.aside, [A, B], most, self.read_to.get, lambda tp: None)
        return [(tp.topic, each.timestamp_ms) for tp, run in runs for each in run]


def test_record_with_the_lowest_timestamp_comes_first() -> None:
    taking = Taking()
    taking.fetched(A, 1, 4, 5)
    taking.fetched(B, 2, 3, 4)
    assert taking.take() == [("a", 1), ("b", 2), ("b", 3), ("a", 4), ("b", 4), ("a", 5)]
    assert taking.order.out_of_order == 0
    assert not taking.aside


def test_no_more_than_asked_for_is_taken_and_the_rest_stays() -> None:
    taking = Taking()
    taking.fetched(A, 1, 2, 5)
    taking.fetched(B, 3)
    assert [taking.take(most=1) for _ in range(5)] == [[("a", 1)], [("a", 2)], [("b", 3)], [("a", 5)], []]


def test_nothing_is_taken_before_the_ends_are_known_or_while_another_source_has_more() -> None:
    taking = Taking(ends=None)
    taking.fetched(A, 1)
    assert taking.take() == []
    assert taking.order.look_again_s is None  # the answer wakes the task
    taking.order.ends_are({A: 1, B: 2})
    assert taking.take() == []
    assert taking.order.look_again_s == LOOK_AGAIN_S  # its end may be reached by a marker
    taking.fetched(B, 0)
    assert taking.take() == [("b", 0)]
    taking.read_to[B] = 2
    assert taking.take() == [("a", 1)]
    assert taking.order.look_again_s is None


def test_task_waits_for_an_empty_source_and_what_comes_later_still_is_counted() -> None:
    taking = Taking(max_idle_s=3.0)
    taking.fetched(A, 10)
    assert taking.take() == []
    assert taking.order.look_again_s == 3.0
    taking.now_s = 2.0
    assert taking.take() == []
    assert taking.order.look_again_s == 1.0
    taking.now_s = 3.0
    assert taking.take() == [("a", 10)]
    taking.fetched(B, 8, 11, 9)
    taking.now_s = 9.0
    assert taking.take() == []
    taking.now_s = 12.0
    assert taking.take() == [("b", 8), ("b", 11), ("b", 9)]
    assert taking.order.out_of_order == 2


def test_table_is_read_to_its_end_first_whenever_the_task_is_placed() -> None:
    taking = Taking(table=True, ends=(2, 2))
    taking.fetched(A, 1, 2)
    assert taking.take() == []
    taking.fetched(B, 50)
    assert taking.take() == [("b", 50)]
    taking.fetched(B, 60)
    assert taking.take() == [("b", 60)]
    assert taking.take() == [("a", 1), ("a", 2)]
    assert taking.order.out_of_order == 0  # the table was meant to be ahead
    taking.fetched(A, 3, 70)
    taking.fetched(B, 65)
    assert taking.take() == [("a", 3), ("b", 65), ("a", 70)]
    taking.order.begin([A, B])
    taking.order.ends_are({A: 5, B: 4})
    taking.fetched(A, 71)
    assert taking.take() == []


@given(TIMES, TIMES, st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_sources_that_are_all_there_are_merged_however_they_are_taken(first: list[int], second: list[int], sizes: list[int]) -> None:
    whole = [(each.topic, each.offset) for each in in_order([Source("a"), Source("b")], 0, {"a": records(A, first), "b": records(B, second)})]
    assert [offset for topic, offset in whole if topic == "a"] == list(range(len(first)))
    assert [offset for topic, offset in whole if topic == "b"] == list(range(len(second)))
    times_ms = {("a", offset): at_ms for offset, at_ms in enumerate(first)} | {("b", offset): at_ms for offset, at_ms in enumerate(second)}
    if first == sorted(first) and second == sorted(second):
        assert [times_ms[each] for each in whole] == sorted(times_ms.values())
    taking, found = Taking(), []
    taking.fetched(A, *first)
    taking.fetched(B, *second)
    for number in range(len(whole) + 1):
        runs = taking.order.take(taking.aside, [A, B], sizes[number % len(sizes)], taking.read_to.get, lambda tp: None)
        found += [(tp.topic, each.offset) for tp, run in runs for each in run]
    taking.aside = {tp: each for tp, each in taking.aside.items() if each}
    assert found == whole[: len(found)]
    assert len(found) == len(whole)


def test_source_says_what_is_wrong_with_it() -> None:
    with pytest.raises(FieldError, match=r"Source\.value_serde: JsonSerde is a class"):
        Source("users", value_serde=JsonSerde)  # type: ignore[arg-type]  # that is the mistake
    processor = Processor(lambda record, context: None, sources=["clicks", Source("users", key_serde=StringSerde())])
    assert processor.sources == ("clicks", "users")
    assert [each.table for each in processor.inputs] == [False, False]
