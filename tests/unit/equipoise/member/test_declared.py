"""What a handler uses of what is declared outside of it, found by its code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from equipoise import JsonSerde, MemoryStore, State, StringSerde, TaskContext, TaskId
from equipoise.member.tasks.declared import misfit, used_by
from equipoise.streams import FixedWindows, StreamTable, TableJoin, count, tumbling

MINUTES = tumbling("minutes", count(), size_ms=60_000)
HOURS = tumbling("hours", count(), size_ms=3_600_000)
BY_NAME = {"minutes": MINUTES}
MODULE: Any = ModuleType("views_of_an_application")
MODULE.minutes, MODULE.hours = MINUTES, HOURS


def _add(record: Any, context: Any) -> None:
    MINUTES.add(context, record.key, 1, record.timestamp_ms)


def _by_module(record: Any, context: Any) -> None:
    MODULE.minutes.add(context, record.key, 1, record.timestamp_ms)


def _by_another_function(record: Any, context: Any) -> None:
    for each in (record,):
        _add(each, context)


def _by_container(record: Any, context: Any) -> None:
    BY_NAME[record.topic].add(context, record.key, 1, 0)


def _by_default(record: Any, context: Any, windows: Any = MINUTES) -> None:
    windows.add(context, record.key, 1, 0)


def _in_lambda(record: Any, context: Any) -> None:
    sorted([record], key=lambda each: MINUTES.add(context, each, 1, 0)[0].value)


async def _async(record: Any, context: Any) -> None:
    MINUTES.add(context, record.key, 1, 0)


class _Application:
    on_class = MINUTES

    def __init__(self) -> None:
        self.windows, self.unused, self.calls = MINUTES, HOURS, 0

    def handle(self, record: Any, context: Any) -> None:
        self.windows.add(context, record.key, 1, 0)

    def by_class(self, record: Any, context: Any) -> None:
        self.on_class.add(context, record.key, 1, 0)

    def by_method(self, record: Any, context: Any) -> None:
        self.calls += 1
        self._also(record, context)

    def _also(self, record: Any, context: Any) -> None:
        if self.calls:
            self.handle(record, context)
            self.by_method(record, context)

    def by_property(self, record: Any, context: Any) -> None:
        self.made.add(context, record.key, self.cached, 0)

    @property
    def made(self) -> FixedWindows[Any, int, int]:
        raise AssertionError("it is called by nobody but the handler")

    @cached_property
    def cached(self) -> int:
        return len(self.windows.name)


class _Slotted:
    __slots__ = ("not_set", "windows")
    not_set: int

    def __init__(self) -> None:
        self.windows = MINUTES

    def __call__(self, record: Any, context: Any) -> None:
        self.windows.add(context, self.not_set, 1, 0)


def _decorated() -> Any:
    @wraps(_add)
    def wrapped(record: Any, context: Any) -> None:
        passed(record, context)

    passed: Callable[[Any, Any], None] = _add
    return wrapped


def _in_namespace() -> Any:
    views = SimpleNamespace(minutes=MINUTES, hours=HOURS)

    def handle(record: Any, context: Any) -> None:
        views.minutes.add(context, record.key, 1, 0)

    return handle


WAYS = {
    "global": _add,
    "module": _by_module,
    "function": _by_another_function,
    "container": _by_container,
    "default": _by_default,
    "lambda": _in_lambda,
    "async": _async,
    "attribute": _Application().handle,
    "class": _Application().by_class,
    "method": _Application().by_method,
    "property": _Application().by_property,
    "slots": _Slotted(),
    "decorated": _decorated(),
    "partial": partial(lambda windows, record, context: windows.add(context, record, 1, 0), MINUTES),
    "namespace": _in_namespace(),
}


@pytest.mark.parametrize("way", WAYS)
def test_used_by_a_handler_in_any_way_finds_that_and_nothing_else(way: str) -> None:
    assert used_by(WAYS[way]) == [MINUTES]


def test_used_by_of_a_join_of_tables_finds_both_tables() -> None:
    users: TableJoin[int, int] = TableJoin("users")
    found = used_by(lambda record, context: users.left(context, record.key, 1))
    assert {each for each in found if isinstance(each, StreamTable)} == {users.left_table, users.right_table}


def test_used_by_of_a_handler_without_end_ends() -> None:
    endless: list[Any] = []
    endless.append(endless)
    many = {number: SimpleNamespace(number=number) for number in range(10_000)}
    assert used_by(lambda record, context: (endless, many, sys, pytest, record.number)) == []


def _context(size_ms: int) -> TaskContext:
    store = MemoryStore()
    context = TaskContext(TaskId(0, 0), 1, {"state": State(store, StringSerde(), JsonSerde())})
    tumbling("minutes", count(), size_ms=size_ms).add(context, "k", 1, 1_000)
    store.apply(context.state.begin_commit(), offset=1)
    return TaskContext(TaskId(0, 0), 1, {"state": State(store, StringSerde(), JsonSerde())})


def test_misfit_of_windows_with_another_size_is_found_and_changes_nothing() -> None:
    context = _context(10_000)
    assert "had size_ms=10000 and has size_ms=60000" in str(misfit(_add, context))
    assert misfit(_add, _context(60_000)) is None
    assert not context.state.has_changes


def test_misfit_of_a_handler_of_tasks_with_different_states_is_none_if_one_fits() -> None:
    others = [tumbling("minutes", count(), size_ms=size_ms) for size_ms in (1_000, 10_000)]
    both: Callable[..., Any] = lambda record, context: others[context.task.subtopology].add(context, record, 1, 0) or MINUTES  # noqa: E731
    assert misfit(both, _context(10_000)) is None
    assert misfit(both, _context(60_000)) is None
    assert misfit(both, _context(5_000)) is not None


def test_misfit_of_windows_in_a_state_that_the_task_has_not_is_none() -> None:
    elsewhere = tumbling("minutes", count(), size_ms=1_000, state="another")
    assert misfit(lambda record, context: elsewhere.add(context, record, 1, 0), _context(10_000)) is None
