"""Virtual time keeps asyncio's promises, and the order of callbacks follows from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from equipoise.testing.simulated.virtual_loops import S_US, Scheduler, VirtualLoop, VirtualThread


def _run(main: Any, seed: int = 1, until_s: int = 100) -> Scheduler:
    scheduler = Scheduler(seed)
    app = VirtualLoop(scheduler, "app")
    other = VirtualThread(VirtualLoop(scheduler, "other"))
    app.create_task(main(scheduler, app, other))
    scheduler.run(until_s * S_US)
    return scheduler


def test_virtual_loop_runs_timeouts_queues_and_other_threads() -> None:
    seen: list[Any] = []

    async def main(scheduler: Scheduler, app: VirtualLoop, other: VirtualThread) -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        app.call_later(0.5, queue.put_nowait, 7)
        seen.append(await queue.get())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.sleep(5)), 1)
        seen.append(await asyncio.gather(other.run(asyncio.sleep(1, "there")), asyncio.to_thread(int, "3")))
        seen.append(round(app.time(), 2))

    scheduler = _run(main)
    assert seen == [7, ["there", 3], 3.5]
    assert scheduler.errors == []
    scheduler.dispose()


def test_killed_loop_runs_no_finally_and_stopped_thread_does() -> None:
    seen: list[str] = []

    async def until_ended(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(name)

    async def main(scheduler: Scheduler, app: VirtualLoop, other: VirtualThread) -> None:
        other.start(until_ended("stopped"))
        await asyncio.sleep(1)
        await other.stop()
        app.create_task(until_ended("killed"))
        await asyncio.sleep(1)
        scheduler.call_later(0, app.kill)

    scheduler = _run(main)
    assert seen == ["stopped"]
    scheduler.dispose()


def test_dropped_generator_is_closed_by_a_loop_that_runs_and_by_no_killed_one() -> None:
    seen: list[str] = []

    async def generator(name: str) -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            seen.append(name)

    async def main(scheduler: Scheduler, app: VirtualLoop, other: VirtualThread) -> None:
        held = [generator(name) for name in ("running", "killed")]
        for each in held:
            await anext(each)
        del each, held[0]
        await asyncio.sleep(1)
        scheduler.call_later(0, app.kill)
        scheduler.call_later(1, held.clear)
        await asyncio.sleep(60)

    _run(main).dispose()
    assert seen == ["running"]


def test_paused_loop_runs_on_late() -> None:
    seen: list[float] = []

    async def main(scheduler: Scheduler, app: VirtualLoop, other: VirtualThread) -> None:
        scheduler.call_later(1 * S_US, app.pause)
        scheduler.call_later(10 * S_US, app.resume)
        await asyncio.sleep(2)
        seen.append(round(app.time(), 2))

    _run(main).dispose()
    assert seen == [10.0]


def _order(seed: int) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []

    async def main(scheduler: Scheduler, app: VirtualLoop, other: VirtualThread) -> None:
        async def count(name: str) -> None:
            for number in range(50):
                seen.append((name, number))
                await asyncio.sleep(0)

        await asyncio.gather(count("app"), other.run(count("other")))

    _run(main, seed).dispose()
    return seen


def test_order_of_threads_follows_from_the_seed() -> None:
    assert _order(1) == _order(1)
    assert _order(1) != _order(2)
