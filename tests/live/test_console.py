"""The live console in a real browser, at a deployed worker on a real broker: what happens is shown
without a reload, names are text, a large group is drawn quickly, and axe finds nothing.

With `--rewrite` the screenshots of docs/console.md are made (docs/pictures/console-*.png).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, FloatRect, Page, expect

from equipoise.events.facts import MemberJoined, Subtopology, TaskParked, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.statemachine.state import GroupState
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured
from tests.live.console import SlowMember, add, browser, ends, page_at
from tests.live.swarm import Swarm, topology

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

expect.set_options(timeout=30_000)  # ms; a loaded machine draws late, and Playwright waits 30 s for all else
SESSION = {"session_timeout_ms": 8_000, "lease_margin_ms": 1_000}


@attrs.frozen
class Deployed:
    worker: Worker
    swarm: Swarm
    browser: Browser
    prefix: str

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.worker.http_port}/console/"

    def place(self, *parts: str) -> str:
        return self.address + "#/" + "/".join(quote(part, safe="") for part in parts)

    def state(self, group: str) -> GroupState:
        return next(lead.machine.state for _, lead in self.worker.groups() if lead.name == group)

    async def group(self, name: str, tasks: int, *members: SlowMember, **settings: Any) -> None:
        given = {"initial_delay_ms": 500, "acceptable_recovery_lag": 100, "max_warmups": 4, **settings}
        await self.swarm.configure(name, configured(**given), topology(tasks, self.prefix), ends(tasks, f"{self.prefix}log"))
        for member in members:
            add(self.swarm, member)


@asynccontextmanager
async def deployed(bootstrap: str, prefix: str) -> AsyncIterator[Deployed]:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0, observe_interval_ms=1_000)
    async with Worker(settings) as worker, Swarm(settings, settings.topics) as swarm, browser() as started:
        yield Deployed(worker, swarm, started, prefix)


async def check_axe(page: Page, where: str) -> None:
    """No violation of any rule that axe has on by default."""
    results = await Axe().run(page)
    found = [f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in results.response["violations"]]
    assert found == [], where


async def picture(page: Page, name: str, top: int, high: int) -> None:
    """Makes a screenshot of a part of the page, for the docs."""
    clip: FloatRect = {"x": 0, "y": top, "width": 1_440, "height": high}
    await page.screenshot(path=PICTURES / f"console-{name}.png", animations="disabled", clip=clip)


async def in_dark(deployed: Deployed, *parts: str, wait_for: str) -> None:
    async with page_at(deployed.browser, deployed.place(*parts), dark=True) as page:
        await page.wait_for_selector(wait_for)
        await check_axe(page, f"dark {parts}")


@pytest.mark.smoke
async def test_page_shows_a_join_the_hand_over_and_a_fault_without_a_reload(bootstrap: str, prefix: str, rewrite: bool) -> None:
    async with deployed(bootstrap, prefix) as live:
        await live.group("orders", 12, *(SlowMember("orders", name, **(SESSION if name == "m2" else {})) for name in ("m1", "m2", "m3")))
        await live.group("clicks", 3)
        live.swarm.start()
        async with page_at(live.browser, live.place("g", "orders"), height=1_500) as page:
            await page.wait_for_selector('.cell[aria-label="0_0: runs on m1"]')
            await page.evaluate("window.sameDocument = true")

            joining = add(live.swarm, SlowMember("orders", "m4", 2_000))
            warming = page.locator("tr", has_text="→ m4").filter(has_text="warms up").first
            await expect(warming).to_contain_text("m4 has less")
            await expect(warming).to_contain_text("about")
            await expect(warming.locator(".bar")).to_have_attribute("aria-label", re.compile(r"[1-9]\d? %"))
            if rewrite:
                await expect(warming.locator(".bar")).to_have_attribute("aria-label", re.compile(r"[4-9]\d %"))
                await picture(page, "group", 0, 1_180)
            moved = next(iter(live.state("orders").in_flight))
            joining.records_per_s = 20_000  # a slow page has seen it under way
            await page.wait_for_selector(f'.cell[aria-label="{moved}: runs on m4"]')
            said = page.locator(".said")
            await expect(said).to_contain_text("m4 joined, incarnation 1")
            await expect(said).to_contain_text("has more than its share; m4 has less")
            await expect(said).to_contain_text("revoking: m4 is caught up")

            await page.click(f'.cell[aria-label^="{moved}: runs on m4"]')
            detail = page.locator("#detail")
            await expect(detail).to_contain_text(f"m4 has {moved} since")
            await expect(detail).to_contain_text("Why m4: ")
            await expect(detail).to_contain_text("Who could have it now")
            await check_axe(page, "an explanation")
            if rewrite:
                await picture(page, "explain", 700, 800)
            await page.keyboard.press("Escape")
            await expect(detail).to_be_hidden()

            await page.click("form.ask >> nth=0 >> button")
            await expect(page.locator("#answer")).to_contain_text("until the target is reached")
            await expect(page.locator("#answer")).to_contain_text("one more member")
            await page.select_option("form.ask >> nth=1 >> select", ["m1"])
            await page.click("form.ask >> nth=1 >> button")
            await expect(page.locator("#answer")).to_contain_text("without m1")
            await page.fill("form.ask >> nth=2 >> input", "x")
            await page.click("form.ask >> nth=2 >> button")
            await expect(page.locator("#answer .problem")).to_contain_text("max_warmups")

            owned = live.state("orders")
            parked = next(task for task, owner in owned.owner.items() if owner == "m3")
            await live.swarm.send(
                "orders",
                TaskParked(
                    member_id="m3",
                    incarnation=owned.members["m3"].incarnation,
                    task=parked,
                    token=owned.tokens[parked],
                    error="no such customer",
                ),
            )
            await expect(page.locator(".troubles")).to_contain_text("no such customer")
            await check_axe(page, "a group in trouble")
            next(member for member in live.swarm.members if member.member_id == "m2").killed = True
            async with page_at(live.browser, live.place()) as other:
                await expect(other.locator(".list")).to_contain_text("m2 was not heard of for")
            await expect(said).to_contain_text("m2 expired, incarnation 1: it was not heard of for")
            assert await page.evaluate("window.sameDocument"), "the page was not loaded again"

            await use_keyboard(page)
            await page.goto(live.place("g", "orders", "m", "m4"))
            await expect(page.locator(".facts")).to_contain_text("restores")
            await check_axe(page, "a member")
            await page.goto(live.place())
            await expect(page.locator(".list")).to_contain_text("it has no members")
            names = await page.locator(".list a.name").all_text_contents()
            assert names == ["orders", "clicks"]
            await check_axe(page, "all groups")
        await in_dark(live, "g", "orders", wait_for=".cell")
        await in_dark(live, wait_for=".list")
        async with page_at(live.browser, live.place("g", "orders"), width=420, height=900) as page:
            await page.wait_for_selector(".cell")
            assert await page.evaluate("document.documentElement.scrollWidth") <= 420
        assert live.swarm.overlaps == []


async def use_keyboard(page: Page) -> None:
    """The picture without a mouse: arrows move over tasks and time, Enter explains."""
    await page.focus("#body")
    for _ in range(6):
        await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowLeft")
    first = await page.text_content("#readout")
    assert first is not None
    assert first.startswith("0_0: runs on "), first
    await page.keyboard.press("Home")
    assert await page.text_content("#readout") != first
    await page.keyboard.press("+")
    assert await page.is_enabled("#whole")
    await page.keyboard.press("0")
    assert await page.is_disabled("#whole")
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    await expect(page.locator("#detail-title")).to_have_text("task 0_0 of orders")
    await page.keyboard.press("Escape")


DRAW = """
async ([path, open]) => {
  const { Chart } = await import(path);
  const data = await (await fetch("api/timeline?group=large")).json();
  const holder = document.createElement("section");
  document.body.append(holder);
  const began = performance.now();
  const chart = new Chart(holder);
  chart.set(data);
  if (open) { chart.open.add("sub-topology 0"); chart.draw(); }
  holder.getBoundingClientRect();
  const took = performance.now() - began, rows = holder.querySelectorAll(".row").length;
  holder.remove();
  return [took, rows, data.tasks.length];
}
"""


@pytest.mark.slow
async def test_thousand_tasks_are_drawn_within_a_second(bootstrap: str, prefix: str) -> None:
    async with deployed(bootstrap, prefix) as live:
        await live.group("large", 1_000, *(SlowMember("large", f"orders-7d9f8b6c5-x{number:02}", 10**7) for number in range(10)), max_warmups=100)
        live.swarm.start()
        async with page_at(live.browser, live.place()) as page:
            await expect(page.locator(".list")).to_contain_text("1,000")
            add(live.swarm, SlowMember("large", "m-new", 10**7))
            await page.goto(live.place("g", "large"))
            await expect(page.locator(".cell").nth(999)).to_be_attached()
            for is_open in (False, True):
                took_ms, rows, tasks = await page.evaluate(DRAW, ["./chart.js", is_open])
                assert (tasks, rows) == (1_000, 1_000 if is_open else 0)
                assert took_ms < 1_000
            await check_axe(page, "a thousand tasks")


HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "right\u202eto\u2066left\u200b",
    "line\nbreak\x1b[31m\x00\x07 end",
    "'\"`${alert(1)}&amp;%2F/..//#",
    "x" * 1_000,  # the longest name that a log takes
]


@pytest.mark.slow
async def test_hostile_names_are_text_on_every_page(bootstrap: str, prefix: str) -> None:
    group = HOSTILE[0] + "/" + HOSTILE[2]
    async with deployed(bootstrap, prefix) as live:
        part = Subtopology(subtopology=0, partitions=12, stateful=True, source_topics=(HOSTILE[1],), changelog_topics=(HOSTILE[3],))
        await live.swarm.configure(group, configured(initial_delay_ms=300), TopologyDeclared(epoch=1, subtopologies=(part,)))
        for name in HOSTILE:
            await live.swarm.send(
                group,
                MemberJoined(
                    member_id=name,
                    incarnation=1,
                    rack=name,
                    advertised=name,
                    session_timeout_ms=600_000,
                    topology_epoch=1,
                    join_nonce=name[:100],
                ),
            )
        async with asyncio.timeout(30):
            while sum(lead.name == group and len(lead.machine.state.owner) == 12 for _, lead in live.worker.groups()) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        state = live.state(group)
        for number, error in enumerate(HOSTILE):
            task = TaskId(0, number)
            await live.swarm.send(
                group,
                TaskParked(
                    member_id=state.owner[task],
                    incarnation=1,
                    task=task,
                    token=state.tokens[task],
                    topic=HOSTILE[1],
                    error=error,
                ),
            )
        places = [(), ("g", group), *(("g", group, "m", name) for name in HOSTILE), *(("g", group, "t", f"0_{number}") for number in range(3))]
        async with page_at(live.browser, live.place()) as page:
            await expect(page.locator(".list")).to_contain_text("6 tasks failed (")
            for place in places:
                await page.goto(live.place(*place))
                await page.reload()
                await page.wait_for_selector("#live.on")
                if place[2:3] == ("t",):
                    await expect(page.locator("#detail")).to_contain_text("Why it is there")
                text = await page.inner_text("body")
                assert "<script>document.title='owned'</script>" in text, place
                assert not any(char in text for char in "\u202e\u2066\u200b\x1b\x00\x07"), place
                assert "owned" not in (await page.title()).replace("document.title='owned'", "")
                assert await page.evaluate("document.scripts.length + document.images.length") == 1, place
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
                await page.hover("#body" if place else ".list")
            text = await page.inner_text("body")
            assert "⟨U+202E⟩" in text
