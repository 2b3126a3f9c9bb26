"""The leader knows how many records a second each task processes, which `load_balanced` needs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import attrs

from equipoise.assignors import registry
from equipoise.member import TaskContext
from tests.live.leader import leading
from tests.live.test_member import Application

MOST_ROUNDS = 60


async def test_leader_knows_the_rate_of_each_task(bootstrap: str, prefix: str) -> None:
    application = Application(bootstrap, prefix)
    assignor = registry.latest("load_balanced")
    application.config = attrs.evolve(application.config, assignor=assignor.name, behaviour_version=assignor.version, solver=assignor.solver)
    await application.make_topics()
    handled: list[int] = []

    async def count(record: Any, context: TaskContext) -> None:
        handled.append(record.partition)
        if record.partition == 0:
            until_s = time.perf_counter() + 0.003
            while time.perf_counter() < until_s:
                pass

    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", None, "at_least_once", handler=count),
    ):
        for _ in range(MOST_ROUNDS):
            await application.order(90)
            await asyncio.sleep(0.3)
            rates = {task.partition: load.records_per_s for task, load in leader.machine.state.loads.items()}
            if len(rates) == 3 and all(rates.values()):
                break
        assert len(rates) == 3, f"measured: {rates}; handled: {len(handled)}"
        assert all(0 < rate < 1_000 for rate in rates.values())
        loads = {task.partition: load for task, load in leader.machine.state.loads.items()}
        assert 0 < sum(load.cpu for load in loads.values()) <= 1_100_000, "millionths of a host"
        assert loads[0].cpu > 3 * max(loads[1].cpu, loads[2].cpu), "its records take longest, and that is what a processor is busy with"
        assert all(load.memory > 0 for load in loads.values())
