"""Tests of applications and of assignors.

For applications, `TaskDriver` drives one task without Kafka::

    async def test_orders_are_counted():
        driver = TaskDriver(count, key_serde=StringSerde(), value_serde=JsonSerde())
        sent = await driver.send({"cents": 5}, key="c1")
        assert sent == [SentRecord("totals", "c1", 5, timestamp_ms=0)]

`ApplicationDriver` drives one task of each of several processors, and `differences` compares what
two versions of an application make of the same records.

`Group` runs several members on a simulated Kafka, in virtual time::

    def test_nothing_is_lost_in_a_crash():
        with Group(count, sources="orders", state="counts") as group:
            group.join("m1", "m2")
            group.send(b"book", key=b"c1")
            group.settle()
            group.crash("m2")
            group.settle()
            group.recount()

For authors of assignors: the contract that every assignor keeps, and a simulated group to try one
in. This needs hypothesis: install ``equipoise[testing]``. ::

    @pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
    def test_contract(check):
        check(MyAssignor())

`equipoise.testing.contract` has the checks, `problems` the hypothesis strategies, `assignor_group`
the group of an assignor, `driver` the driver, `group` the group of members, `simulated` what that
runs on. `scenarios` runs scenario files, and `reference_model` says which member may run what.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from equipoise._lazy import lazy_names
from equipoise.testing.assignor_group import AssignorGroup, stateful, stateless
from equipoise.testing.driver import SentRecord, TaskDriver

if TYPE_CHECKING:
    from equipoise.testing.application_driver import ApplicationDriver, VersionDifference, differences
    from equipoise.testing.group import Group

with contextlib.suppress(ModuleNotFoundError):  # hypothesis
    from equipoise.testing.contract import CONTRACT, Check, Subject
    from equipoise.testing.problems import group_settings, problems, tasks

__all__ = [
    "CONTRACT",
    "ApplicationDriver",
    "AssignorGroup",
    "Check",
    "Group",
    "SentRecord",
    "Subject",
    "TaskDriver",
    "VersionDifference",
    "differences",
    "group_settings",
    "problems",
    "stateful",
    "stateless",
    "tasks",
]

__getattr__ = lazy_names(
    __name__,
    {"Group": "equipoise.testing.group"}  # loads Kafka's client
    | dict.fromkeys(("ApplicationDriver", "VersionDifference", "differences"), "equipoise.testing.application_driver"),
)
