"""Tests of applications and of assignors.

For applications, `TaskDriver` drives one task without Kafka::

    async def test_orders_are_counted():
        driver = TaskDriver(count, key_serde=StringSerde(), value_serde=JsonSerde())
        assert await driver.send({"cents": 5}, key="c1") == [SentRecord("totals", "c1", 5)]

For authors of assignors: the contract that every assignor keeps, and a simulated group to try one
in. This needs hypothesis: install ``equipoise[testing]``. ::

    @pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
    def test_contract(check):
        check(MyAssignor())

`equipoise.testing.contract` has the checks, `problems` the hypothesis strategies, `loop` the group,
`driver` the driver.
"""

from __future__ import annotations

import contextlib

from equipoise.testing.driver import SentRecord, TaskDriver
from equipoise.testing.loop import Group, stateful, stateless

with contextlib.suppress(ModuleNotFoundError):  # hypothesis
    from equipoise.testing.contract import CONTRACT, Check, Subject
    from equipoise.testing.problems import group_settings, problems, tasks

__all__ = [
    "CONTRACT", "Check", "Group", "SentRecord", "Subject", "TaskDriver", "group_settings", "problems", "stateful", "stateless", "tasks",
]  # fmt: skip
