"""The number of records in a commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from equipoise.member.tasks.open_task import OpenTask
from tests.live.leader import leading
from tests.live.test_member import Application

pytestmark = pytest.mark.usefixtures("no_error_unseen")
COMMIT_S = 0.08
RECORDS = 300


@pytest.mark.smoke
async def test_commits_slower_than_their_interval_still_hold_many_records(bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slow brokers and a short interval, a task that is behind must not commit single records."""
    commits = 0
    commit: Any = OpenTask._commit_plainly

    async def slow(opened: OpenTask, *what: Any) -> None:
        nonlocal commits
        commits += 1
        await asyncio.sleep(COMMIT_S)
        await commit(opened, *what)

    monkeypatch.setattr(OpenTask, "_commit_plainly", slow)
    application = Application(bootstrap, prefix)
    await application.make_topics()
    await application.order(RECORDS)
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology),
        application.member("m1", None, "at_least_once", commit_interval_ms=round(COMMIT_S * 500)),
    ):
        await application.until_counted(exactly=True)
    assert 0 < commits < RECORDS / 3
