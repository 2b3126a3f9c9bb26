"""A member from outside, on a real broker: its metrics count what was produced, its log tells the
story and nothing else, and it is ready while brokers answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path

import aiohttp
import pytest

from equipoise.kafka.broker_watch import AGAIN_S
from equipoise.member import Member
from tests.live.leader import leading
from tests.live.test_member import PARTITIONS, SHORT, Application
from tests.live.test_restorer import until
from tools.brokers import Brokers

pytestmark = pytest.mark.usefixtures("no_error_unseen")
STORY = (
    r"serves http://.*",
    r"waits for a worker, which makes the log \S+",
    r"joined, incarnation \d+",
    r"runs 0_\d.*",
    r"gives up 0_\d.*",
    r"restores 0_\d.*",
    r"copies 0_\d.*",
    r"left",
    r"waits for tasks: no worker leads the group, .*",
)
MOST_S = 60
AWAY = r"(?:a broker does not answer|a broker has not answered for \d+ s): .+|the brokers answer again, after \d+\.\d s"


class Pages:
    """The pages of a member."""

    def __init__(self, member: Member) -> None:
        self._http = aiohttp.ClientSession(f"http://127.0.0.1:{member.http_port}")

    async def __aenter__(self) -> Pages:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    async def problem(self, page: str) -> str:
        """Why it answers 503; "": it answers 200."""
        async with self._http.get(page) as answer:
            problem: str = (await answer.json())["problem"] or ""
            assert answer.status == (503 if problem else 200)
            return problem

    async def until_ready(self, ready: bool) -> None:
        async with asyncio.timeout(MOST_S):
            while bool(await self.problem("/ready")) is ready:  # noqa: ASYNC110  # the member lives on another thread
                await asyncio.sleep(0.1)

    async def values(self) -> dict[str, float]:
        """Metric with its labels, without group and member -> value."""
        async with self._http.get("/metrics") as answer:
            text = re.sub(r'group="[^"]+",member="[^"]+",?', "", await answer.text())
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}


def lines_of(caplog: pytest.LogCaptureFixture, who: str) -> list[str]:
    return [text.removeprefix(who) for text in (record.getMessage() for record in caplog.records) if text.startswith(who)]


@pytest.mark.smoke
async def test_metrics_count_what_was_produced_and_the_log_tells_the_story(
    bootstrap: str, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "equipoise")
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology):
        await application.order(300)
        async with application.member("m1", tmp_path, "exactly_once", http_port=0) as first, Pages(first) as pages:
            await until(lambda: len(first.running) == PARTITIONS)
            await application.until_counted(exactly=True)
            values = await pages.values()
            assert values["equipoise_member_records_total{}"] == 300
            assert values["equipoise_member_commits_total{}"] >= PARTITIONS
            assert values["equipoise_member_busy_seconds_total{}"] > 0
            assert values["equipoise_member_fenced_commits_total{}"] == values["equipoise_member_parked_tasks{}"] == 0
            assert 0 < values["equipoise_member_lease_left_seconds{}"] <= (SHORT["session_timeout_ms"] - SHORT["lease_margin_ms"]) / 1_000
            assert {name: value for name, value in values.items() if "source_lag" in name} == {
                f'equipoise_member_source_lag_records{{task="0_{partition}"}}': 0 for partition in range(PARTITIONS)
            }
            assert await pages.problem("/health") == ""
            await pages.until_ready(True)  # on a busy machine a heartbeat may be late
            async with application.member("m2", tmp_path, "exactly_once", http_port=0) as second, Pages(second) as others:
                await until(lambda: len(second.running) == 1)
                (moved,) = second.running
                await application.order(200)
                await application.until_counted(exactly=True)
                both = [await pages.values(), await others.values()]
                assert sum(each["equipoise_member_records_total{}"] for each in both) == 500
                assert [each['equipoise_member_tasks{role="running"}'] for each in both] == [PARTITIONS - 1, 1]
                assert both[1]["equipoise_member_restored_records_total{}"] > 0
    story = [line for line in lines_of(caplog, f"group {prefix}: member m1 ") if not line.startswith(("serves", "joined", "copies", "restores"))]
    # The leaving second member gives its task back.
    assert story == ["runs 0_0..2", f"gives up {moved}", f"runs {moved}", "left"] or story[:2] == ["runs 0_0..2", f"gives up {moved}"], story
    said = lines_of(caplog, f"group {prefix}: member m2 ")
    copies, runs = (next(number for number, line in enumerate(said) if line.startswith(what)) for what in ("copies", "runs"))
    assert copies < runs, said
    assert re.fullmatch(rf"copies {moved} \(\d+ records left to restore\)", said[copies]), said
    assert said[-1] == "left"
    of_members = [record.getMessage() for record in caplog.records if record.name.startswith("equipoise.member")]
    assert [line for line in of_members if not re.fullmatch(rf"group {prefix}: member m\d (?:{'|'.join(STORY)})", line)] == []


# Faust's consumer thread ends with the error of its start, if it starts while the broker is away.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.slow
async def test_broker_that_is_away_makes_the_member_unready_and_a_few_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Brokers() as brokers:
        application = Application(brokers.bootstrap, "away")
        await application.make_topics()
        await asyncio.sleep(1)  # until the broker knows them
        options = {"lead": True, "group_config": application.config, "http_port": 0}
        async with application.member("m1", tmp_path, "exactly_once", **options) as member, Pages(member) as pages:
            await until(lambda: len(member.running) == PARTITIONS)
            await application.order(60)
            await application.until_counted(exactly=True)
            await pages.until_ready(True)
            caplog.clear()
            brokers.kill(0)
            killed_s = time.monotonic()
            await pages.until_ready(False)
            assert time.monotonic() - killed_s < (SHORT["session_timeout_ms"] - SHORT["lease_margin_ms"]) / 1_000
            assert (await pages.problem("/ready")).startswith("the brokers have not answered for ")
            await asyncio.sleep(2 * AGAIN_S)
            assert await pages.problem("/ready")
            assert await pages.problem("/health") == ""
            await asyncio.to_thread(brokers.start, 0)
            await pages.until_ready(True)
            await until(lambda: len(member.running) == PARTITIONS)
            away_s = time.monotonic() - killed_s
            await asyncio.sleep(5)
            heard = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
            await application.order(60)
            await application.until_counted(exactly=True)
    for who in ("group away: member m1: ", "worker of away: "):
        lines = [line for line in lines_of(caplog, who) if re.fullmatch(AWAY, line)]
        assert lines[0].startswith("a broker does not answer: "), lines
        assert 3 <= len(lines) <= 3 + away_s / AGAIN_S, lines
        assert [line for line in lines if line.startswith("the brokers answer again")] == lines[-1:], lines
    other = [
        line
        for line in heard
        if not re.fullmatch(rf"(?:group away: member m1|worker of away): (?:{AWAY})|group away: member m1 (?:{'|'.join(STORY)})", line[2])
    ]
    assert [line for line in other if line[0].startswith("aiokafka") and line[1] != "INFO"] == []
    assert [line for line in other if line[0].startswith("equipoise.member") and "has ended (lease_lapsed" not in line[2]] == []
