"""Which task commits when a member has many uncommitted records."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.member.uncommitted import Uncommitted

AT_ONCE = 5


@given(tasks=st.integers(1, 12), most=st.integers(12, 600), under_way=st.integers(0, 3), turns=st.integers(1, 400))
def test_tasks_that_progress_side_by_side_stay_below_the_limit_and_all_progress(tasks: int, most: int, under_way: int, turns: int) -> None:
    async def progress() -> None:
        uncommitted, counts = Uncommitted(most), dict.fromkeys(range(tasks), 0)
        commits: deque[tuple[int, asyncio.Future[None]]] = deque()
        sizes: dict[int, list[int]] = {task: [] for task in counts}
        for _ in range(turns):
            for task in counts:
                counts[task] += AT_ONCE
                uncommitted.note(task, counts[task])
                if uncommitted.is_next(task):
                    commits.append((counts[task], asyncio.get_running_loop().create_future()))
                    uncommitted.begin(task, commits[-1][1])
                    sizes[task].append(counts[task])
                    counts[task] = 0
                while len(commits) > under_way:
                    commits.popleft()[1].set_result(None)
                    await asyncio.sleep(0)
                waiting = asyncio.ensure_future(uncommitted.until_not_full())
                await asyncio.sleep(0)
                while not waiting.done():
                    commits.popleft()[1].set_result(None)  # it waits for nothing else
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                assert sum(counts.values()) + sum(records for records, _ in commits) < most + AT_ONCE
        done = [sum(sizes[task]) + counts[task] for task in counts]
        assert done == [turns * AT_ONCE] * tasks

    asyncio.run(progress())


async def test_commits_follow_one_another_with_the_size_of_commits_that_come_together() -> None:
    tasks, most = 20, 3_000
    uncommitted, counts = Uncommitted(most), dict.fromkeys(range(tasks), 0)
    sizes, peaks = [], []
    for _ in range(200):
        for task in counts:
            counts[task] += AT_ONCE
            uncommitted.note(task, counts[task])
            if uncommitted.is_next(task):
                sizes.append(counts[task])
                uncommitted.begin(task, over())
                counts[task] = 0
                await asyncio.sleep(0)
            peaks.append(sum(counts.values()))
    settled = sizes[len(sizes) // 2 :]
    assert min(settled) >= 0.9 * uncommitted.most_of_task(tasks)
    assert max(peaks) <= most * 2 // 3 + tasks * AT_ONCE


async def test_full_member_without_a_commit_under_way_has_any_task_commit() -> None:
    uncommitted = Uncommitted(30)
    uncommitted.note("in a slow handler", 20)
    uncommitted.note("other", 9)
    assert not uncommitted.is_next("other")
    uncommitted.note("other", 10)
    assert uncommitted.is_next("other")
    await asyncio.wait_for(uncommitted.until_not_full(), 1)


async def test_commits_that_hang_hold_up_no_other_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.member.uncommitted.LONGEST_WAIT_S", 0.05)
    uncommitted, hangs = Uncommitted(30), asyncio.get_running_loop().create_future()
    uncommitted.note("hangs", 10)
    uncommitted.begin("hangs", hangs)
    uncommitted.note("hangs", 15)
    uncommitted.note("other", 5)
    assert uncommitted.is_full
    assert not uncommitted.is_next("hangs")
    assert uncommitted.is_next("other"), "it has the most of those that can commit"
    await asyncio.wait_for(uncommitted.until_not_full(), 1)
    assert uncommitted.is_full


@pytest.mark.parametrize("ends", ["succeeds", "fails", "is cancelled"])
async def test_tasks_go_on_however_a_commit_ends(ends: str) -> None:
    uncommitted, committing = Uncommitted(30), asyncio.get_running_loop().create_future()
    uncommitted.note("one", 30)
    uncommitted.begin("one", committing)
    waiting = asyncio.ensure_future(uncommitted.until_not_full())
    await asyncio.sleep(0)
    assert not waiting.done()
    if ends == "succeeds":
        committing.set_result(None)
    elif ends == "fails":
        committing.set_exception(ValueError())
    else:
        committing.cancel()
    await asyncio.wait_for(waiting, 1)
    assert not uncommitted.is_next("one")


def over() -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
