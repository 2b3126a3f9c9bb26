"""The live console in a real browser: a deployed worker, a group whose members restore slowly, and
Chromium at its pages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from equipoise.events.facts import Fact, PartitionsObserved
from equipoise.events.tasks import TaskId
from tests.live.swarm import Swarm, SwarmMember, now_ms

STATE = 50_000
"""Records in each changelog."""
BROWSER = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")


class SlowMember(SwarmMember):
    """Restores warm-ups and standbys at `records_per_s`; what it is granted without a copy it runs
    at once.
    """

    def __init__(self, group: str, member_id: str, records_per_s: int = 20_000, **settings: Any) -> None:
        super().__init__(group, member_id, **{"heartbeat_interval_ms": 250, **settings})
        self.records_per_s = records_per_s
        self._lags: dict[TaskId, int] = {}
        self._worked_ms = now_ms()

    def work(self) -> list[Fact]:
        session, now = self.session, now_ms()
        assert session is not None
        for task in sorted(session.closing):
            session.task_closed(task, now)
        restoring = [task for task in (*session.warmup, *session.standby) if self._lags.setdefault(task, STATE)]
        restored = (now - self._worked_ms) * self.records_per_s // 1_000 // max(1, len(restoring))
        self._worked_ms = now
        for task in restoring:
            self._lags[task] = max(0, self._lags[task] - restored)
        for task in sorted({*session.grants, *session.standby, *session.warmup}):
            session.copy_progress(task, self._lags.setdefault(task, 0), now)
        facts = session.poll(now)
        self.calm_until_ms = min(session.next_poll_ms or 0, now + 100)
        return facts


def add(swarm: Swarm, member: SlowMember) -> SlowMember:
    """The member joins."""
    swarm.members.append(member)
    swarm._by_group.setdefault(member.group, []).append(member)
    return member


def ends(tasks: int, topic: str = "log") -> PartitionsObserved:
    """The sizes of the changelogs."""
    return PartitionsObserved(end_offsets={topic: dict.fromkeys(range(tasks), STATE)})


@asynccontextmanager
async def browser(*options: str) -> AsyncIterator[Browser]:
    """Chromium of the machine. Fails where there is none: `make browser` installs it."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path is not None, "no Chromium on this machine: make browser"
    arguments = [*BROWSER, *options, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield started
        finally:
            await started.close()


@asynccontextmanager
async def page_at(started: Browser, address: str, *, dark: bool = False, width: int = 1_440, height: int = 1_000) -> AsyncIterator[Page]:
    """A page, which may log no error and no warning of the content security policy."""
    said: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            said.append(message.text)

    context = await started.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    page = await context.new_page()
    page.set_default_timeout(20_000)
    page.on("console", note)
    page.on("pageerror", lambda error: said.append(str(error)))
    await page.goto(address)
    try:
        yield page
        assert said == [], said
    finally:
        await context.close()
