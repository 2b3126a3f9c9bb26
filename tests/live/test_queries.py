"""`Member.query` between two members on a real broker, over HTTP, through a hand-over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from equipoise.member import Member
from tests.live.leader import leading
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_restorer import until

QUERIES: dict[str, Any] = {"http_port": 0, "queries": True}


async def totals(application: Application, member: Member, **options: Any) -> dict[bytes, int]:
    return {key: int(await member.query(key, timeout_s=30, **options)) for key in sorted(application.sent)}


@pytest.mark.smoke
async def test_two_members_answer_for_each_other_through_a_hand_over(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology):
        await application.order(200)
        async with application.member("m1", tmp_path / "m1", "exactly_once", **QUERIES) as first:
            await until(lambda: len(first.running) == PARTITIONS)
            await application.until_counted(exactly=True)
            assert await totals(application, first) == application.sent
            async with application.member("m2", tmp_path / "m2", "exactly_once", **QUERIES) as second:
                asking = asyncio.ensure_future(asked_until_shared(application, first, second))
                await until(lambda: bool(second.running) and len(first.running) + len(second.running) == PARTITIONS)
                assert await asking > 0
                for member in (first, second):
                    assert await totals(application, member) == application.sent
                    assert await totals(application, member, newest=True) == application.sent
                    rows = await member.query_range(timeout_s=30)
                    assert [key for key, _ in rows] == sorted(application.sent)
                    assert {key: int(value) for key, value in rows} == application.sent
                owner = await first.owner(min(application.sent))
                assert owner.advertised in {f"127.0.0.1:{each.http_port}" for each in (first, second)}
                second.close()
                assert await totals(application, first) == application.sent


async def asked_until_shared(application: Application, first: Member, second: Member) -> int:
    """Asks the first member again and again while tasks move. Returns how often."""
    rounds = 0
    while not second.running:
        assert await totals(application, first) == application.sent
        rounds += 1
        await asyncio.sleep(0.01)
    return rounds
