"""Tasks that have much to do take turns, and the loop looks for answers in between."""

from __future__ import annotations

import asyncio

import pytest

from equipoise.member.tasks.loop_turns import MOST_RECORDS, Turns


async def longest_between_looks(tasks: int, records: int) -> int:
    """The most records that tasks process between two iterations of the loop."""
    loop, turns, processed, longest = asyncio.get_running_loop(), Turns(), 0, 0

    def look() -> None:
        nonlocal processed, longest
        longest, processed = max(longest, processed), 0
        loop.call_soon(look)

    async def task() -> None:
        nonlocal processed
        for _ in range(20):
            await turns.next(records)
            processed += records

    loop.call_soon(look)
    await asyncio.gather(*(task() for _ in range(tasks)))
    return longest


@pytest.mark.parametrize(("tasks", "records", "longest"), [(26, MOST_RECORDS, MOST_RECORDS), (26, 1, 26), (26, 100, MOST_RECORDS)])
async def test_loop_looks_for_answers_after_some_records(tasks: int, records: int, longest: int) -> None:
    assert await longest_between_looks(tasks, records) == longest


async def test_tasks_take_turns() -> None:
    turns, order = Turns(), list[int]()

    async def task(number: int) -> None:
        for _ in range(3):
            await turns.next(MOST_RECORDS)
            order.append(number)

    await asyncio.gather(*map(task, range(3)))
    assert order == [0, 1, 2] * 3


async def test_task_that_was_cancelled_takes_no_turn() -> None:
    turns = Turns()
    waiting = [asyncio.ensure_future(turns.next(MOST_RECORDS)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    async with asyncio.timeout(5):
        await waiting[2]
    assert all(each.cancelled() for each in waiting[:2])


async def test_busy_tasks_let_one_that_hurries_go_first() -> None:
    turns, handled = Turns(), 0

    async def busy() -> None:
        nonlocal handled
        while True:
            await turns.give_way("busy")
            handled += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        job = asyncio.ensure_future(busy())
        for each in ("opens", "closes"):
            turns.hurry(each)
        for _ in range(20):
            await turns.give_way("opens")
            await asyncio.sleep(0)
        assert handled == 0
        turns.hurried("opens")
        await asyncio.sleep(0)
        assert handled == 0, "the other one still closes"
        turns.hurried("closes")
        turns.hurried("closes")
        while handled < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        job.cancel()


async def test_task_that_is_stopped_while_it_gives_way_goes_on() -> None:
    turns = Turns()
    turns.hurry("opens")
    first, second, cancelled = (asyncio.ensure_future(turns.give_way(each)) for each in ("first", "second", "cancelled"))
    await asyncio.sleep(0)
    cancelled.cancel()
    turns.hurry("first")
    async with asyncio.timeout(5):
        await first
    assert not second.done()
    turns.hurried("first")
    turns.hurried("opens")
    async with asyncio.timeout(5):
        await second


async def test_task_that_opens_goes_first_for_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that opens waits for brokers that do not answer: the others go on."""
    monkeypatch.setattr("equipoise.member.tasks.loop_turns.MOST_HURRY_S", 0.01)
    turns = Turns()
    turns.hurry("opens")
    async with asyncio.timeout(5):
        await turns.give_way("busy")


async def test_task_goes_on_while_one_after_the_other_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    turns.hurry("first")  # for a second
    monkeypatch.setattr("equipoise.member.tasks.loop_turns.MOST_HURRY_S", 0.01)
    async with asyncio.timeout(0.9):
        await turns.give_way("busy")
    turns.hurried("first")
