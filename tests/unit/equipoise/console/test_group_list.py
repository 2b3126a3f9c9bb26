"""The console's list of groups: lag, rate and the lag of the last hour; and in a browser, with forty
groups: filtered, sorted, narrow, dark, and without what is no longer known.

With `--rewrite` it makes the screenshot of docs/console.md (docs/pictures/console-groups.png).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from equipoise.console import paces as paces_module
from equipoise.console.paces import MINUTES, Paces, lag, rate
from equipoise.events.errors import GroupHalted
from equipoise.events.facts import ProbingTick
from equipoise.events.records import FactRecord
from equipoise.events.tasks import TaskId
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from equipoise.statemachine.state import GroupState, MeasuredLoad, Parked
from tests.groups import GROUP, Group
from tests.live.console import browser, page_at
from tests.live.test_console import check_axe
from tests.unit.equipoise.console.test_pages import _Leading, served

GROUPS = 40
PICTURES = Path(__file__).parents[4] / "docs" / "pictures"
MINUTE_MS = 60_000


def rested() -> Group:
    group = Group(watched=False).starts("m1", "m2", stateful=6)
    group.settles()
    return group


def at(minute: int, group: str = "g") -> FactRecord:
    return FactRecord(group, 0, minute * MINUTE_MS, ProbingTick())


def load(records_per_s: int) -> MeasuredLoad:
    return MeasuredLoad(measured_ms=0, cpu=0, memory=0, disk=0, records_per_s=records_per_s)


def test_lag_and_rate_are_those_that_members_report_and_unknown_where_none_does() -> None:
    state = rested().state
    assert (lag(state), rate(state)) == (None, None)
    state.behind.update({TaskId(0, 0): 5, TaskId(0, 1): 10})
    state.loads.update({TaskId(0, 0): load(7), TaskId(0, 1): load(2)})
    assert (lag(state), rate(state)) == (15, 9)
    state.behind.pop(TaskId(0, 1))
    state.source_lags["in"] = {1: 300}
    assert lag(state) == 305, "one task reported, the other's lag was observed"
    state.members.clear()
    state.owner.clear()
    assert (lag(state), rate(state)) == (None, None), "nobody who lives has said so"


def test_hour_has_a_value_for_each_minute_and_gaps_where_nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    state, paces = rested().state, Paces()
    for minute in (1_000, 1_000, 1_001, 1_010):
        state.behind[TaskId(0, 0)] = minute
        paces.note(0, at(minute), state)
    hour = paces.last_hour(0, "g", 1_010 * MINUTE_MS + 59_999)
    assert [each for each in hour if each is not None] == [1_000, 1_001, 1_010]
    assert (len(hour), hour[-1], hour[-2], hour[-10]) == (MINUTES, 1_010, None, 1_001)
    for minute in range(1_011, 1_011 + 2 * MINUTES):
        paces.note(0, at(minute), state)
    assert paces.last_hour(0, "g", (1_010 + 2 * MINUTES) * MINUTE_MS) == [1_010] * MINUTES
    paces.forget(0)
    assert paces.last_hour(0, "g", 1_010 * MINUTE_MS) == [None] * MINUTES
    monkeypatch.setattr(paces_module, "MOST_GROUPS", 1)
    for group in ("a", "b"):
        paces.note(1, at(5, group), state)
    assert [paces.last_hour(1, group, 5 * MINUTE_MS)[-1] for group in ("a", "b")] == [1_010, None], "memory is bounded"


def forty(worker: _Leading) -> list[tuple[int, GroupLead]]:
    """Groups of one worker: one halted, one with a parked task, one watched, one empty, others at
    rest, with a lag that rises, falls or is unknown.
    """
    snapshot = worker.group.machine.snapshot()
    worker.recent.lead(0, 1_700_000_000_000)
    found = []
    for number in range(GROUPS):
        lead = GroupLead(f"orders-{number:02}", GroupMachine.restore(snapshot))
        state = lead.machine.state
        state.last_append_ms = 1_000 * MINUTE_MS
        if number % 5:
            state.loads[TaskId(0, 0)] = load(10 * number)
        for minute in range(941 + number % 3 * 20, 1_001):
            if number % 5:
                state.behind[TaskId(0, 0)] = number * (minute - 940) if number % 2 else 90_000 + minute % 7 * 900 - 90 * minute
            worker.recent.paces.note(0, at(minute, lead.name), state)
        found.append((0, lead))
    found[7][1].halted = GroupHalted("orders-07", 5, "defect", "a defect")
    ill: GroupState = found[9][1].machine.state
    ill.parked[TaskId(0, 0)] = Parked(ill.owner[TaskId(0, 0)], since_ms=0, topic="in", partition=0, offset=5, error="no such customer")
    return found


async def names(page: Page) -> list[str]:
    return await page.locator(".groups a.name").all_text_contents()


@pytest.mark.slow
async def test_list_of_forty_groups_is_filtered_sorted_and_forgets_what_it_no_longer_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rewrite: bool
) -> None:
    async with served() as (worker, http), browser() as started:
        many = forty(worker)

        def groups() -> Iterator[tuple[int, GroupLead]]:
            return iter(many)

        monkeypatch.setattr(worker, "groups", groups)
        address, shots = f"http://127.0.0.1:{http._base_url.port}/console/", Path(os.environ.get("EQUIPOISE_SHOTS", tmp_path))  # type: ignore[union-attr]
        async with page_at(started, address, width=1_400) as page:
            rows = page.locator(".groups tbody tr")
            await expect(rows).to_have_count(GROUPS)
            assert (await names(page))[:3] == ["orders-07", "orders-09", "orders-00"], "the worst first"
            await expect(rows.nth(1)).to_contain_text("no such customer")
            await expect(rows.nth(2)).to_contain_text("fine")
            assert await page.get_by_text("nothing is wrong").count() == 0
            await expect(rows.nth(2)).to_contain_text("equipoise, here since 2023-11-14 22:13")
            assert await page.evaluate("document.documentElement.scrollWidth") <= 1_400
            await page.screenshot(path=shots / "groups-1400.png")
            if rewrite:
                await page.screenshot(
                    path=PICTURES / "console-groups.png", clip={"x": 0, "y": 0, "width": 1_400, "height": 420}, animations="disabled"
                )
            await page.get_by_role("button", name="lag", exact=True).click()
            lags = [int(each.replace(",", "")) for each in await page.locator('.groups td[data-name="lag"]').all_text_contents() if each != "–"]
            assert lags == sorted(lags, reverse=True)
            assert len(set(lags)) > 5
            assert (await page.locator('.groups td[data-name="lag"]').all_text_contents())[-8:] == ["–"] * 8, "unknown is last"
            await expect(page.locator("th[aria-sort=descending]")).to_have_text("lag")
            await expect(page.locator("tr", has_text="orders-39").locator("svg.hour")).to_have_attribute(
                "aria-label", "lag of the last hour: 39 to 2,340, now 2,340"
            )
            await page.get_by_role("button", name="group", exact=True).click()
            assert (await names(page))[0] == "orders-00"
            await page.get_by_role("button", name="group", exact=True).click()
            assert (await names(page))[0] == "orders-39"
            await page.get_by_label("filter the groups").fill("alarm customer")
            await expect(rows).to_have_count(1)
            await expect(page.locator(".filter [role=status]")).to_have_text("1 of 40 groups")
            many[9][1].machine.state.parked.clear()
            await expect(rows.first).to_contain_text("No group has these words.")
            await page.get_by_label("filter the groups").fill("")
            await page.get_by_role("button", name="what is wrong", exact=True).click()
            assert (await names(page))[:2] == ["orders-07", "orders-00"]
            await check_axe(page, "forty groups")
        page = await started.new_page()
        await page.goto(address)
        await expect(page.get_by_text("fine").first).to_be_visible()
        await page.route("**/api/groups**", lambda route: route.abort())
        await expect(page.locator("#live")).to_have_class("off")
        await expect(page.get_by_text("fine").first).to_be_hidden()
        await page.unroute("**/api/groups**")
        await expect(page.get_by_text("fine").first).to_be_visible()
        for width, dark in ((1_400, True), (400, False), (400, True)):
            async with page_at(started, address, dark=dark, width=width, height=900) as page:
                await expect(page.locator(".groups tbody tr")).to_have_count(GROUPS)
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
                await page.screenshot(path=shots / f"groups-{width}{'-dark' * dark}.png")
                await check_axe(page, f"forty groups, {width} px")
                if width == 400:
                    heading = "getComputedStyle(document.querySelector('.groups td[data-name=lag]'), '::before').content"
                    assert "lag" in await page.evaluate(f"{heading} + getComputedStyle(document.querySelector('.groups td[data-name=lag]')).content")
                    await expect(page.get_by_role("button", name="lag", exact=True)).to_be_visible()


@pytest.mark.slow
async def test_sentence_that_comes_before_those_that_were_asked_for_hides_none_of_them() -> None:
    async with served() as (worker, http), browser() as started:
        asked = asyncio.Event()

        async def late(route: Route) -> None:
            await asked.wait()
            await route.continue_()

        page = await started.new_page()
        await page.route("**/api/said**", late)
        await page.goto(f"{http._base_url}/console/#/g/{GROUP}")
        said = page.locator(".said li")
        for number in range(3, 60):  # until the stream is open
            worker.group.join(f"m{number}")
            worker.tell()
            await page.wait_for_timeout(100)
            if await said.count() > 0:
                break
        await expect(said.first).to_contain_text(f"m{number}")
        assert await page.get_by_text("m1 joined").count() == 0
        asked.set()
        await expect(page.locator(".said")).to_contain_text("m1 joined")
        times = await page.locator(".said li").evaluate_all("rows => rows.map(row => row.innerText)")
        assert len(times) == len(set(times)), "none is shown twice"
        assert next(at for at, text in enumerate(times) if f"m{number} joined" in text) < next(
            at for at, text in enumerate(times) if "m1 joined" in text
        )
