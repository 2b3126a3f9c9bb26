"""The timeline page in a real browser: light and dark, mouse and keyboard, hostile names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from playwright.async_api import expect

from equipoise.replay.incident import incidents
from equipoise.replay.incident.page import render_incidents
from equipoise.replay.timelines import Timeline, build_timeline, render_page
from tests.live.console import browser, page_at
from tests.live.test_console import HOSTILE, check_axe
from tests.observed_groups import group, history, member
from tests.unit.replay.lived import lived


def renamed(timeline: Timeline, name: str) -> Timeline:
    """The same history with a group and a member of this name."""

    def with_name(each: Any) -> Any:
        return attrs.evolve(each, member_id=name) if each.member_id == "m2" else each

    return attrs.evolve(
        timeline,
        group=name,
        lifelines=tuple(map(with_name, timeline.lifelines)),
        intervals=tuple(map(with_name, timeline.intervals)),
        copies=tuple(map(with_name, timeline.copies)),
        moves=(),
        numbers={},
    )


@pytest.mark.parametrize("dark", [False, True])
async def test_page_answers_to_mouse_and_keyboard_and_axe_finds_nothing(tmp_path: Path, dark: bool) -> None:
    file = tmp_path / "page.html"
    file.write_text(render_page(build_timeline(lived())), encoding="utf-8")
    async with browser() as started, page_at(started, file.as_uri(), dark=dark) as page:
        await check_axe(page, "the page")
        row = page.locator(".row").nth(4)
        box = await row.bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 6)
        await expect(page.locator("#tip")).to_contain_text("0_4: ")
        await expect(page.locator("#tip")).to_contain_text("fact at offset")
        await page.mouse.click(box["x"] + box["width"] * 0.95, box["y"] + 6)
        await expect(page.locator("#detail")).to_contain_text("Its state at that time goes back to the fact at offset")
        await expect(page.locator("#detail")).to_contain_text("m2 is back")
        await expect(page.locator(".markedline")).to_have_count(2)
        await check_axe(page, "a task")
        await page.keyboard.press("Escape")
        await expect(page.locator("#detail")).to_be_hidden()
        await page.focus("#time")
        await page.keyboard.press("Home")
        await expect(page.locator("#readout")).to_contain_text("0 not running")
        await page.select_option("#by", "member")
        await expect(page.locator(".part").first).to_contain_text("m1, 4 tasks")
        await page.locator(".part").first.press("Enter")
        await expect(page.locator(".row")).to_have_count(11)


async def test_hostile_names_are_text(tmp_path: Path) -> None:
    built = build_timeline(lived())
    async with browser() as started:
        for number, name in enumerate(HOSTILE):
            file = tmp_path / f"page{number}.html"
            file.write_text(render_page(renamed(built, name)), encoding="utf-8")
            async with page_at(started, file.as_uri()) as page:
                text = await page.inner_text("body")
                assert not any(char in text for char in "\u202e\u2066\u200b\x1b\x00\x07")
                assert await page.evaluate("document.scripts.length + document.images.length") == 2
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                await page.locator("#legend button").nth(1).click()


async def test_hostile_names_of_any_length_are_text_on_the_page_of_incidents(tmp_path: Path) -> None:
    """Clients that are not ours choose their ids; Kafka takes 32 kB."""
    async with browser() as started:
        for number, name in enumerate([*HOSTILE, "x" * 10_000, "<b>\u202e" * 2_000]):
            past = history((0, group(1, member(name, 0, 1), member("b", 2, 3))), (100, group(2, member(name, 0, 1, 2, 3))))
            found = incidents(attrs.evolve(past, group=name))
            file = tmp_path / f"incident{number}.html"
            file.write_text(render_incidents(attrs.evolve(past, group=name), found, {each: [name] for each in found}), encoding="utf-8")
            async with page_at(started, file.as_uri()) as page:
                text = await page.inner_text("body")
                assert name[0] in text
                assert not any(char in text for char in "\u202e\u2066\u200b\x1b\x00\x07")
                assert await page.evaluate("document.scripts.length + document.images.length") == 2
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name[:20]
                await page.locator("#legend button").first.click()
                await page.locator("#legend button").first.hover()
                assert await page.title() != "owned"
                await page.locator("#windows tr.go").last.focus()
                await page.keyboard.press("Enter")
                await check_axe(page, name[:20])


async def test_page_of_incidents_names_no_fact_and_marks_no_round(tmp_path: Path) -> None:
    past = history((0, group(1, member("a", 0, 1), member("b", 2, 3))), (100, group(2, member("a", 0, 1, 2, 3))), (150, group(3, member("a", 0))))
    found = incidents(past)
    file = tmp_path / "incident.html"
    file.write_text(render_incidents(past, found, {each: [] for each in found}), encoding="utf-8")
    async with browser() as started, page_at(started, file.as_uri()) as page:
        assert await page.locator(".round").count() > 1
        await page.locator(".round").first.dispatch_event("click")
        assert await page.locator(".round.marked").count() == 0
        await page.locator(".row").first.dispatch_event("click")
        await expect(page.locator("#detail")).to_contain_text("No movement of it is known.")
        assert "offset" not in await page.inner_text("#detail")
