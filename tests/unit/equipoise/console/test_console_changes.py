"""The last changes on the console's first page and on their group's: what was expected beside what
was measured, the verdict, and whether it was undone; also after a takeover, and in a browser.
"""

from __future__ import annotations

import copy

import pytest
from playwright.async_api import expect

from equipoise.console import recent as recent_module
from equipoise.console.documents import changes_of, last_changes
from equipoise.console.recent import Recent
from equipoise.events.facts import ChangePlanned
from equipoise.events.records import DecisionRecord, FactRecord
from equipoise.replay.known_changes import KnownChange, known_changes
from equipoise.replay.replayer import Replayer
from equipoise.replay.sentences import tell
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.machine import GroupMachine
from tests.changed_groups import changed_group, entries_of
from tests.groups import GROUP
from tests.live.console import browser, page_at
from tests.live.test_console import check_axe
from tests.unit.equipoise.console.test_pages import served

Step = tuple[FactRecord, list[DecisionRecord], GroupMachine]


def steps() -> list[Step]:
    """Every fact of the group's log, with a machine as it was then."""
    replayer = Replayer(GROUP)
    return [(each.record, list(each.decisions), copy.deepcopy(replayer.machine)) for each in replayer.follow(entries_of(changed_group()))]


def remembered(told: list[Step], recent: Recent | None = None) -> Recent:
    recent = recent or Recent()
    for record, decisions, machine in told:
        recent.note(0, record, decisions, machine, list(tell(record, decisions)))
    return recent


def of(recent: Recent) -> list[KnownChange]:
    return recent.groups[GROUP].changes.changes()


def test_console_knows_the_changes_that_the_log_has() -> None:
    told = steps()
    whole = known_changes(entries_of(changed_group()))
    assert of(remembered(told)) == whole
    record, _, machine = told[-1]
    lead = GroupLead(GROUP, machine)
    lead.observer.see(machine.state, record, ())
    rows = last_changes(changes_of(lead, remembered(told).groups[GROUP]))
    assert [each["verdict"] for each in reversed(rows)] == [
        "as expected",
        "over: moves below",
        "too much: time until rest above; undone",
        "not planned",
        "under way",
    ]
    by_name = {each["change"]: each for each in rows}
    assert [each["undone"] for each in rows].count(True) == 1 == by_name["b"]["undone"]
    assert by_name["less"]["costs"][0] == {"name": "moves", "expected": "5 moves to 9 moves", "was": "0 moves", "side": "below"}
    assert [each["side"] for each in by_name["a"]["costs"]] == ["inside", "", ""]
    assert by_name["b"]["costs"][0]["side"] == "above"
    assert by_name["c"]["costs"][0] == {"name": "limit", "expected": "at most 0.5 task-s", "was": "0.0 task-s", "side": ""}
    assert [by_name[name]["level"] for name in ("a", "less", "b", "c", "")] == [0, 2, 2, 1, 1]


def test_worker_that_takes_over_knows_them_too() -> None:
    """At any place in the log: with what it reads again of the time before, all of them."""
    told = steps()
    whole = known_changes(entries_of(changed_group()))
    for place in range(1, len(told)):
        before, after = told[:place], told[place:]
        recent = Recent()
        first = recent.lead(0, before[-1][0].append_ms)
        recent.of(GROUP, 0, before[-1][2])
        remembered(after, recent)
        mine = [each for each in of(recent) if each.planned is not None]
        assert {each.offset for each in mine} >= {each.offset for each in whole if each.planned and each.offset >= after[0][0].offset}
        recent.recall(0, first, [(record, decisions, machine, list(tell(record, decisions))) for record, decisions, machine in before])
        assert of(recent) == whole, place


def test_only_the_last_changes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "MOST_CHANGES", 2)
    recent = remembered(steps())
    assert of(recent) == known_changes(entries_of(changed_group()))[-2:]
    assert recent.groups[GROUP].weight >= 2


@pytest.mark.slow
async def test_first_page_shows_the_last_changes() -> None:
    async with served(group=copy.deepcopy(changed_group())) as (worker, http), browser() as started:
        remembered(steps(), worker.recent)
        async with page_at(started, f"{http._base_url}/console/") as page:
            rows = page.locator(".changes tbody tr")
            await expect(rows).to_have_count(5)
            await expect(rows.nth(0)).to_contain_text("2 more members")
            await expect(rows.nth(0).locator(".badge")).to_have_text("under way")
            await expect(rows.nth(2).locator(".badge")).to_have_text("too much: time until rest above; undone")
            await expect(rows.nth(2).locator(".above")).to_contain_text("▲ above")
            await expect(rows.nth(2)).to_contain_text("or undone")
            await expect(rows.nth(3).locator(".below")).to_have_text("0 moves ▼ below")
            await expect(rows.nth(4).locator(".inside")).to_have_text("0 ✓ inside")
            await expect(rows.nth(4)).to_contain_text("because a test")
            await check_axe(page, "changes")
            worker.group.fact(ChangePlanned(change_id="d", kind="other", what="<b>a host</b> is replaced"))
            worker.tell()
            await expect(rows).to_have_count(6)
            await expect(rows.nth(0)).to_contain_text("<b>a host</b> is replaced")
            await expect(rows.nth(1).locator(".badge")).to_have_text("followed by another")
            await rows.nth(0).locator("a").click()
            await expect(page.locator(".changes tbody tr").nth(1)).to_contain_text("followed by another")
        async with page_at(started, f"{http._base_url}/console/", dark=True, width=420, height=900) as page:
            await expect(page.locator(".changes tbody tr")).to_have_count(6)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 420
            await check_axe(page, "changes, dark and narrow")
