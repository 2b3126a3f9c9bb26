"""The leader knows the source lags of tasks, so `lag_aware` assigns by them in a group that
equipoise leads.
"""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest

from equipoise.assignors import registry
from equipoise.member import TaskContext
from tests.live.leader import leading
from tests.live.test_member import Application
from tests.live.test_restorer import until


@pytest.mark.smoke
async def test_leader_knows_the_source_records_still_to_be_processed(bootstrap: str, prefix: str) -> None:
    application = Application(bootstrap, prefix)
    assignor = registry.latest("lag_aware")
    application.config = attrs.evolve(application.config, assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver)
    await application.make_topics()
    await application.order(90)
    goes_on = asyncio.Event()

    async def wait(record: Any, context: TaskContext) -> None:
        await goes_on.wait()

    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", None, "at_least_once", handler=wait),
    ):
        await until(lambda: sum(leader.machine.state.behind.values()) == 90)
        assert len(leader.machine.state.behind) == 3
        goes_on.set()
        await until(lambda: set(leader.machine.state.behind.values()) == {0})
