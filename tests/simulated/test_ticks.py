"""When the tasks of a member commit, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from equipoise.member.commit_ticks import LONGEST_S, CommitTicks, CommitTurn
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler, VirtualLoop

REST_S = 0.1


class Bench:
    """Tasks that commit with the same ticks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.ticks = CommitTicks(self.now_s, REST_S)
        self.begun_ms: list[tuple[str, int]] = []
        """Commits: the task, and when it began."""

    def now_s(self) -> float:
        return self.scheduler.now_us / S_US

    def turn(self) -> CommitTurn:
        return CommitTurn(self.ticks, lambda: None)

    async def two_that_committed(self) -> tuple[CommitTurn, CommitTurn]:
        """Turns of two tasks that committed 200 and 100 ms ago."""
        turns = self.turn(), self.turn()
        for turn in turns:
            await turn.wait()
            turn.begin()
            turn.end()
            await asyncio.sleep(0.1)
        return turns

    async def commit(self, name: str, takes_s: float, *, is_due: bool = False) -> None:
        """Commits once, of a task that has nothing else to do unless the commit `is_due`."""
        turn = self.turn()
        if not is_due:
            turn.want()
            while not turn.has_come:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await turn.wait()
        turn.begin()
        self.begun_ms.append((name, round(self.now_s() * 1_000)))
        await asyncio.sleep(takes_s)
        turn.end()


def simulate(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    scheduler = Scheduler(1)
    task = VirtualLoop(scheduler, "test").create_task(test(Bench(scheduler)))
    try:
        scheduler.run(600 * S_US, task.done)
        assert task.done(), "it hangs"
        task.result()
        assert not scheduler.errors
    finally:
        scheduler.dispose()


@pytest.mark.parametrize("is_due", [False, True])
def test_commits_wanted_during_a_tick_begin_together_after_it(is_due: bool) -> None:
    async def test(bench: Bench) -> None:
        first = asyncio.ensure_future(bench.commit("first", 0.02))
        await asyncio.sleep(0.005)
        others = [asyncio.ensure_future(bench.commit(name, 0.02, is_due=is_due)) for name in ("second", "third")]
        await asyncio.gather(first, *others)
        (_, begun), (_, second), (_, third) = bench.begun_ms
        assert second == third
        assert second - begun in ((20, 21, 22) if is_due else (40, 41, 42))  # one that is not due leaves half of the time free

    simulate(test)


def test_commit_is_due_after_the_longest_rest_at_the_latest() -> None:
    async def test(bench: Bench) -> None:
        await bench.commit("first", 1.0, is_due=True)
        await bench.commit("second", 0.0)
        (_, begun), (_, second) = bench.begun_ms
        assert 1_000 + REST_S * 1_000 <= second - begun <= 1_000 + REST_S * 1_000 + 2

    simulate(test)


def test_ticks_in_parts_begin_the_commits_of_some_tasks_each() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = CommitTicks(bench.now_s, 1.0, parts=5)
        turns = {name: bench.turn() for name in "abcdefghij"}
        came_ms: list[tuple[str, int]] = []

        async def commit_always(name: str, turn: CommitTurn) -> None:
            while True:
                turn.want()
                while not turn.has_come:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                turn.begin()
                came_ms.append((name, round(bench.now_s() * 1_000)))
                await asyncio.sleep(0.01)
                turn.end()

        committing = [asyncio.ensure_future(commit_always(name, turn)) for name, turn in turns.items()]
        await asyncio.sleep(5)
        for each in committing:
            each.cancel()
        times = sorted({ms for _, ms in came_ms})
        assert all(205 <= later - earlier <= 220 for earlier, later in itertools.pairwise(times))
        assert all(sum(ms == each for _, ms in came_ms) == 2 for each in times)
        assert [name for name, _ in came_ms[10:40]] == [name for name, _ in came_ms[:10]] * 3  # each in its turn

    simulate(test)


def test_ticks_in_parts_leave_half_of_the_interval_between_commits_of_a_task() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = CommitTicks(bench.now_s, 1.0, parts=5)
        turn, came_ms = bench.turn(), []
        for _ in range(4):
            turn.want()
            while not turn.has_come:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            turn.begin()
            came_ms.append(bench.now_s() * 1_000)
            turn.end()
        assert all(500 <= later - earlier <= 505 for earlier, later in itertools.pairwise(came_ms))
        turn.want()
        await asyncio.sleep(0.1)
        fresh = bench.turn()  # has not committed yet, and so waits for no other
        fresh.want()
        await asyncio.sleep(0.11)
        assert (fresh.has_come, turn.has_come) == (True, False)
        fresh.leave()
        turn.leave()

    simulate(test)


def test_tick_in_parts_is_for_the_task_that_has_not_committed_for_the_longest_time() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = CommitTicks(bench.now_s, 1.0, parts=2)
        older, younger = await bench.two_that_committed()
        younger.want()
        older.want()
        await asyncio.sleep(0.45)
        assert (older.has_come, younger.has_come) == (True, False)
        older.leave()
        younger.leave()

    simulate(test)


def test_commits_that_never_end_hold_up_no_other_part() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = CommitTicks(bench.now_s, 1.0, parts=5)
        turns = [bench.turn() for _ in range(10)]
        for turn in turns:
            turn.want()
        for number in (2, 4, 6, 7, 8, 9, 10):  # a fifth of those that wait
            await asyncio.sleep(LONGEST_S)
            for turn in turns:
                if turn.has_come:
                    turn.begin()
            assert sum(turn.is_committing for turn in turns) >= number

    simulate(test)


def test_turn_that_is_wanted_during_its_own_long_commit_comes_after_it() -> None:
    async def test(bench: Bench) -> None:
        looks = itertools.count()

        def now_s() -> float:
            next(looks)
            return bench.now_s()

        bench.ticks = CommitTicks(now_s, 0.1, parts=2)
        turn = bench.turn()
        await turn.wait()
        turn.begin()
        turn.want()
        await asyncio.sleep(2)
        assert not turn.has_come
        assert next(looks) < 20  # it does not look again and again
        turn.end()
        await asyncio.sleep(0.06)
        assert turn.has_come
        turn.leave()

    simulate(test)


def test_ticks_of_all_tasks_rest_as_long_as_their_commits_took() -> None:
    async def test(bench: Bench) -> None:
        turn = bench.turn()
        for _ in range(2):
            await turn.wait()
            turn.begin()
            await asyncio.sleep(0.01)
            turn.end()
        turn.want()
        await asyncio.sleep(0.012)
        assert turn.has_come
        turn.leave()

    simulate(test)


def test_due_commit_waits_for_no_part_and_begins_no_other() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = CommitTicks(bench.now_s, 1.0, parts=5)
        await bench.commit("first", 0.005)
        waiting = bench.turn()
        waiting.want()
        begun_s = bench.now_s()
        await bench.commit("due", 0.0, is_due=True)
        assert (bench.now_s() - begun_s < 0.002, waiting.has_come) == (True, False)
        await asyncio.sleep(0.21)
        assert waiting.has_come
        waiting.leave()

    simulate(test)


def test_tick_whose_tasks_have_withdrawn_is_planned_again() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = CommitTicks(bench.now_s, 1.0, parts=5)
        older, younger = await bench.two_that_committed()
        older.want()
        younger.want()
        older.withdraw()
        await asyncio.sleep(0.25)
        assert not younger.has_come
        await asyncio.sleep(0.16)
        assert younger.has_come
        younger.leave()

    simulate(test)


def test_task_that_wants_the_next_commit_during_its_own_is_in_the_next_tick() -> None:
    async def test(bench: Bench) -> None:
        bench.ticks = CommitTicks(bench.now_s, 0.0)
        turn = bench.turn()
        for _ in range(3):
            await turn.wait()
            turn.begin()
            other = asyncio.ensure_future(bench.commit("other", 0.01))
            await asyncio.sleep(0.005)
            turn.want()
            assert not turn.has_come
            turn.end()
            await asyncio.sleep(0.001)
            assert turn.has_come
            await asyncio.sleep(0.002)
            assert len(bench.begun_ms) == 1
            bench.begun_ms.clear()
            await other
        turn.leave()

    simulate(test)


def test_commit_that_takes_long_holds_up_others_for_a_moment() -> None:
    async def test(bench: Bench) -> None:
        stuck = asyncio.ensure_future(bench.commit("stuck", 10.0))
        await asyncio.sleep(0.01)
        for name in ("second", "third"):
            await bench.commit(name, 0.001)
        await stuck
        (_, begun), (_, second), (_, third) = bench.begun_ms
        assert second - begun <= LONGEST_S * 1_000 + 2
        assert third - second <= 5

    simulate(test)


def test_task_that_wants_no_commit_any_more_holds_up_no_other() -> None:
    async def test(bench: Bench) -> None:
        first = asyncio.ensure_future(bench.commit("first", 0.02))
        await asyncio.sleep(0.005)
        withdrawn = bench.turn()
        withdrawn.want()
        withdrawn.withdraw()
        await first
        await asyncio.sleep(1)
        assert not withdrawn.has_come
        gone = bench.turn()
        gone.want()
        await asyncio.sleep(0.001)
        assert gone.has_come
        gone.leave()
        await bench.commit("second", 0.0)
        assert bench.begun_ms[-1][1] - bench.begun_ms[0][1] < 1_100

    simulate(test)


def test_task_that_closes_waits_for_no_other() -> None:
    async def test(bench: Bench) -> None:
        stuck = asyncio.ensure_future(bench.commit("stuck", 10.0))
        await asyncio.sleep(0.01)
        closing = bench.turn()
        closing.come()
        await closing.wait()
        assert bench.begun_ms[0][1] + 15 > bench.now_s() * 1_000
        closing.leave()
        stuck.cancel()

    simulate(test)
