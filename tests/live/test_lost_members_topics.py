"""On a real broker a topic of a group is made again, loses its beginning, or is deleted: the table in
docs/logs.md#lost-topics. Its ends: `test_lost_ends.py`.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest

from equipoise.events.errors import InputError
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.chains import TOPICS, Chain, side_by_side, until

pytestmark = pytest.mark.slow
CASES = list(itertools.product(("at_least_once", "exactly_once"), ("runs", "is away")))
"""The guarantee, and what the member does meanwhile."""
SMOKE = "is made again", "exactly_once", "runs"
CELLS = [
    pytest.param(*each, marks=[pytest.mark.smoke] if each == SMOKE else [])
    for each in ((fault, *case) for fault in ("is made again", "loses its beginning") for case in CASES)
]


@pytest.mark.parametrize(("fault", "guarantee", "member"), CELLS)
async def test_group_whose_topic_is_lost_keeps_its_promise(
    bootstrap: str, prefix: str, tmp_path: Path, fault: str, guarantee: str, member: str
) -> None:
    async def cell(chain: Chain) -> None:
        await chain.make(*(what for what in TOPICS if what != "positions"))
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(chain.member())
            await chain.write(5)
            await chain.judge()
            old = [*chain.sent]
            if member == "is away":
                await stack.aclose()
            await chain.lose(fault)
            if member == "is away":
                await stack.enter_async_context(chain.member())
            await chain.write(5)
            await chain.judge(again=old if chain.lost == "s1" else (), lost=old)

    async with Worker(WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0)):
        await side_by_side([Chain(bootstrap, prefix, lost, guarantee, tmp_path) for lost in TOPICS], cell)


@pytest.mark.parametrize(("guarantee", "member"), CASES)
async def test_deleted_topic_is_named_first_and_made_again_the_group_goes_on(
    bootstrap: str, prefix: str, tmp_path: Path, guarantee: str, member: str
) -> None:
    """Without a topic no member starts, but it makes that of positions."""

    async def cell(chain: Chain) -> None:
        await chain.make(*(what for what in TOPICS if what != "positions"))
        says = f"topic {chain.topic} does not exist"
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(chain.member())
            await chain.write(5)
            await chain.judge()
            old = [*chain.sent]
            if member == "is away":
                await stack.aclose()
            await chain.lose("is deleted")
            if member == "runs":
                await chain.write(0 if chain.lost == "source" else 5)
                await until_named(chain, says)
                await stack.aclose()
            elif chain.lost != "positions":
                with pytest.raises(InputError, match=says):
                    async with chain.member():
                        pass
            if chain.lost != "positions":
                await chain.make(chain.lost)
            await stack.enter_async_context(chain.member())
            await chain.write(5)
            await chain.judge(again=chain.sent[:-5] if chain.lost == "s1" else (), lost=old)

    async with Worker(WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0)):
        await side_by_side([Chain(bootstrap, prefix, lost, guarantee, tmp_path) for lost in TOPICS], cell)


async def until_named(chain: Chain, says: str) -> None:
    """`status` says first what is gone."""
    troubles: list[str] = []

    async def named() -> bool:
        troubles[:] = await chain.troubles()
        return bool(troubles) and says in troubles[0]

    await until(named, lambda: f"{says}: {troubles}")
