"""On a real broker a topic of the log is made again, loses its beginning, or is deleted: the table in
docs/logs.md#a-log-that-has-lost-records. Its ends: `test_lost_ends.py`, and the topics of
applications: `test_lost_members_topics.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from equipoise.log.kafka.log_topics import MADE_AGAIN, NEW_LOG
from tests.live.builds import THIS_BUILD, run_in
from tests.live.chains import side_by_side
from tests.live.led_logs import LedLog

pytestmark = pytest.mark.slow
RUNS = pytest.mark.parametrize("member", ["runs", "is away"])
FAULTS = pytest.mark.parametrize("fault", ["is made again", "loses its beginning", "is deleted"])
GOES_ON = ("decisions", "checkpoints", "bases")


@RUNS
@FAULTS
async def test_group_goes_on_exactly_when_a_topic_of_its_log_is_lost(bootstrap: str, prefix: str, tmp_path: Path, fault: str, member: str) -> None:
    """`member`: what that does meanwhile which leads the log. A worker that starts makes what is
    gone; `status` says so before.
    """

    async def cell(log: LedLog) -> None:
        await log.application.make_topics()
        async with log.member("m1") as first:
            await log.process(first)
            if member == "runs":
                await log.lose(fault)
                await log.stray()
                if fault == "is deleted" and log.lost in ("decisions", "checkpoints"):
                    await log.until_said(MADE_AGAIN)
                else:
                    await log.process(first)
        if member == "is away":
            await log.lose(fault)
        for member_id in ("m1", "m2"):
            async with log.member(member_id) as next_one:
                await log.stray()
                await log.process(next_one)
                await log.until_said("")
        is_whole = (log.lost, fault) != ("decisions", "loses its beginning")
        assert (await log.verify() == []) == is_whole

    await side_by_side([LedLog(bootstrap, prefix, lost, tmp_path) for lost in GOES_ON], cell)


MEMBER_WAS_FASTER = "delete them again: a member was faster than the worker, and has stopped by now"
"""The way on where a member that ran has written to facts that were made again."""


@RUNS
@FAULTS
async def test_status_names_first_the_way_on_without_facts(bootstrap: str, prefix: str, tmp_path: Path, fault: str, member: str) -> None:
    """With another prefix the members go on exactly."""
    log = LedLog(bootstrap, prefix, "facts", tmp_path)
    await log.application.make_topics()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(log.member("m1"))
        await log.process(first)
        if member == "is away":
            await stack.aclose()
        await log.lose(fault)
        await log.until_said(NEW_LOG)
    said = await asyncio.to_thread(run_in, THIS_BUILD, "-m", "equipoise", "status", "--bootstrap", bootstrap, "--prefix", log.topics.prefix)
    assert said.returncode != 0
    text = " ".join((said.stdout + said.stderr).split())
    assert NEW_LOG in text or MEMBER_WAS_FASTER in text
    async with log.member("m1", f"{prefix}-other") as again:
        await log.process(again)


async def test_new_log_begins_by_itself_when_facts_and_decisions_are_made_again(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    log = LedLog(bootstrap, prefix, "facts+decisions+checkpoints", tmp_path)
    await log.application.make_topics()
    async with log.member("m1") as member:
        await log.process(member)
        await log.lose("is made again")
        await log.process(member)
    async with log.member("m2") as member:
        await log.process(member)
    assert await log.verify() == []
