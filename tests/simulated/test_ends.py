"""What is closed ends, also when a task of its own goes on after it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from equipoise.kafka.client import MOST_ENDING_S, call_off
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler, VirtualLoop
from equipoise.worker.broker_answers import answered
from equipoise.worker.session_sender import SessionSender

LATEST_S = 10 * MOST_ENDING_S


async def _deaf() -> None:
    """Swallows each cancellation."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


def _run(test: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Returns how many seconds it took."""
    scheduler = Scheduler(1)
    task = VirtualLoop(scheduler, "test").create_task(test())
    try:
        scheduler.run(int(LATEST_S * S_US), task.done)
        assert task.done(), "it hangs"
        task.result()
        return scheduler.now_us / S_US
    finally:
        scheduler.dispose()


async def _called_off() -> None:
    task = asyncio.ensure_future(_deaf())
    await asyncio.sleep(0)
    await call_off(task)


async def _session_failed() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await SessionSender(None, 0, "facts").run_until_failed(fails(), _deaf())  # type: ignore[arg-type]  # it sends nothing


async def _unanswered() -> None:
    with pytest.raises(TimeoutError):
        await answered(_deaf())


@pytest.mark.parametrize("test", [_called_off, _session_failed, _unanswered])
def test_task_that_swallows_its_cancellation_is_left_and_logged(
    test: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert _run(test) < 2 * MOST_ENDING_S
    (line,) = caplog.messages
    assert line.startswith("left, 15 s after they were cancelled: _deaf:")
    assert "> sleep:" in line
