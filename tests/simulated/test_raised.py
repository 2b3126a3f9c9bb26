"""Whatever application code raises, from any callback: the task is parked, or the member ends and
others take its tasks. It never lives on and does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from equipoise import ErrorPolicy, Record, TaskContext
from equipoise.member.raised import ApplicationError
from tests.simulated.test_start import TASKS, NewGroup, group

__all__ = ["group"]

ENDS_S = 20.0
"""Within this time, less than a session, the member has ended and others run its tasks."""


class Boom(BaseException):
    """Derived from no Exception."""


RAISED: list[BaseException] = [
    SystemExit(7), KeyboardInterrupt(), GeneratorExit("g"), asyncio.CancelledError("c"), Boom("b"), StopIteration(1), RecursionError("r"),
    Exception("e"), MemoryError(), StopAsyncIteration("s"),
]  # fmt: skip
FEW = {SystemExit, asyncio.CancelledError, Boom}
"""The others take turns."""
ERRORS = [pytest.param(each, id=type(each).__name__, marks=[] if type(each) in FEW else [pytest.mark.slow]) for each in RAISED]
OF_A_RECORD = (Exception, asyncio.CancelledError)
"""With which the record is at fault."""


def thrower(error: BaseException) -> Callable[..., None]:
    def throw(*_: Any) -> None:
        raise error

    return throw


def async_thrower(error: BaseException) -> Callable[..., Any]:
    async def throw(*_: Any) -> None:
        await asyncio.sleep(0.1)
        raise error

    return throw


class Throwing:
    """A serde."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def serialize(self, value: Any) -> bytes:
        return bytes(value)

    def deserialize(self, data: bytes) -> Any:
        raise self._error


class ThrowingWriter(Throwing):
    """A serde of what is written."""

    def serialize(self, value: Any) -> bytes:
        raise self._error

    def deserialize(self, data: bytes) -> Any:
        return data


def send_it(record: Record, context: TaskContext) -> None:
    context.send("out", record.value, partition=0)


def put_it(record: Record, context: TaskContext) -> None:
    context.state.put(b"k", record.value)


def passed(error: BaseException) -> type[BaseException]:
    """What the member raises."""
    return ApplicationError if isinstance(error, asyncio.CancelledError | GeneratorExit | StopIteration | StopAsyncIteration) else type(error)


def assert_ended(group: NewGroup, name: str, error: BaseException) -> None:
    assert name in group.ended, "it lives on"
    found = group.ended[name]
    assert type(found) is passed(error) or isinstance(found, RuntimeError), repr(found)  # a coroutine makes one of StopIteration


def assert_others_run_all(group: NewGroup, name: str) -> None:
    last = dict(group.assigned)
    assert len(last) == TASKS
    assert name not in last.values(), last


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.slow)])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("make", [thrower, async_thrower])
def test_handler_that_raises_parks_its_task_or_ends_the_member(
    group: NewGroup, make: Callable[[BaseException], Any], error: BaseException, guarantee: str
) -> None:
    member = group.start("m1", handler=make(error), guarantee=guarantee)
    group.start("m2", guarantee=guarantee)
    group.settle(5)
    partition = next(task.partition for task, name in group.assigned if name == "m1")
    group.send(partition)
    group.settle(ENDS_S)
    if isinstance(error, OF_A_RECORD) or (make is async_thrower and isinstance(error, StopIteration)):
        assert "m1" not in group.ended
        assert {task.partition for task in member.parked} == {partition}
    else:
        assert_ended(group, "m1", error)
        assert_others_run_all(group, "m1")


@pytest.mark.parametrize("error", ERRORS)
def test_policy_is_asked_about_a_record_whose_handler_was_cancelled_within(group: NewGroup, error: BaseException) -> None:
    seen: list[int] = []

    def handle(record: Record, context: TaskContext) -> None:
        seen.append(record.offset)
        if record.offset == 0:
            raise error

    group.start("m1", handler=handle, on_error=ErrorPolicy.retry(1, backoff_s=0.1, then=ErrorPolicy.skip()))
    group.settle(5)
    group.send(0)
    group.send(0)
    group.settle(ENDS_S)
    if isinstance(error, OF_A_RECORD):
        assert seen == [0, 0, 1]
    else:
        assert seen == [0]
        assert_ended(group, "m1", error)
