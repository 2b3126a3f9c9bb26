"""Whatever application code raises, from any callback: the task fails, or the member ends and
others take its tasks. It never lives on and does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from equipoise import ErrorPolicy, Record, TaskContext
from equipoise.member.tasks.fatal_errors import ApplicationError, begin_job, is_cancelled, settled
from tests.simulated.test_start import TASKS, NewGroup, group

__all__ = ["group"]

ENDS_S = 20.0
"""Within this time, less than a session, the member has ended and others run its tasks."""


class Boom(BaseException):
    """Derived from no Exception."""


RAISED: list[BaseException] = [
    SystemExit(7),
    KeyboardInterrupt(),
    GeneratorExit("g"),
    asyncio.CancelledError("c"),
    Boom("b"),
    StopIteration(1),
    RecursionError("r"),
    Exception("e"),
    MemoryError(),
    StopAsyncIteration("s"),
]
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
def test_handler_that_raises_fails_its_task_or_ends_the_member(
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
        assert {task.partition for task in member.failed_tasks} == {partition}
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


def _cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancel_itself_and_wait() -> None:
    _cancel_itself()
    await asyncio.sleep(0)


async def cancel_itself_at_last() -> None:
    _cancel_itself()


async def cancel_itself_and_raise() -> None:
    _cancel_itself()
    raise ValueError("v")


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("fail", [cancel_itself_and_wait, cancel_itself_at_last, cancel_itself_and_raise, _cancel_itself])
@pytest.mark.parametrize("policy", ["skip", "stop"])
@pytest.mark.parametrize("kind", ["handler", "batch_handler"])
def test_policy_is_asked_about_a_record_whose_handler_cancels_its_own_asyncio_task(
    group: NewGroup, fail: Callable[[], Any], policy: str, kind: str, guarantee: str
) -> None:
    seen: list[int] = []

    def handle(record: Record, context: TaskContext) -> Any:
        seen.append(record.offset)
        return fail() if record.offset == 1 else None

    def handle_batch(records: Sequence[Record], context: TaskContext) -> Any:
        return [handle(record, context) for record in records][-1]

    handlers = {"handler": handle} if kind == "handler" else {"handler": None, "batch_handler": handle_batch}
    member = group.start("m1", **handlers, guarantee=guarantee, on_error=ErrorPolicy.skip() if policy == "skip" else ErrorPolicy())
    group.settle(5)
    for _ in range(3):
        group.send(0)
        group.settle(1)
    group.settle(ENDS_S)
    assert "m1" not in group.ended
    assert seen == ([0, 1, 2] if policy == "skip" else [0, 1])
    assert [each.offset for each in member.failed_tasks.values()] == ([] if policy == "skip" else [1])


def test_cancellation_that_a_handler_has_caught_is_no_error(group: NewGroup) -> None:
    seen: list[int] = []

    async def handle(record: Record, context: TaskContext) -> None:
        seen.append(record.offset)
        with contextlib.suppress(asyncio.CancelledError):
            await cancel_itself_and_wait()

    member = group.start("m1", handler=handle)
    group.settle(5)
    for _ in range(3):
        group.send(0)
        group.settle(1)
    assert seen == [0, 1, 2]
    assert not member.failed_tasks


@pytest.mark.parametrize("fail", [cancel_itself_and_wait, cancel_itself_at_last])
def test_timer_that_cancels_its_own_asyncio_task_fails_the_task(group: NewGroup, fail: Callable[[], Any]) -> None:
    member = group.start("m1", on_assigned=lambda context: context.every(1, lambda _: fail()))
    group.settle(ENDS_S)
    assert "m1" not in group.ended
    assert len(member.failed_tasks) == TASKS


def test_end_of_the_loop_ends_a_job_of_the_member() -> None:
    async def go_on() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                await settled()

    async def begin(others: int) -> None:
        for _ in range(others):
            begin_job(go_on())
        await asyncio.sleep(0)

    for others in (1, 4):
        asyncio.run(begin(others))
