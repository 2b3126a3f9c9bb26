"""Every built-in assignor gives a member only partitions that its topology has, and copies of no
others (docs/protocol.md#d1).
"""

from __future__ import annotations

import pytest

from equipoise.assignors import Guarantee, registry
from equipoise.assignors.common.validation import plan_faults
from tests.unit.assignors.build import ids, member, problem, tasks

NAMES = sorted({name for name, _ in registry.available()})
OLD = {0: 2, 1: 1}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_standbys", [0, 1])
def test_member_of_an_older_topology_gets_only_partitions_that_it_has(name: str, num_standbys: int) -> None:
    assignor = registry.latest(name)
    question = problem(
        tasks("0_0 0_1 0_2 0_3", "1_0 1_1 1_2"),
        member("o1", "0_0", subtopologies=OLD),
        member("o2", subtopologies=OLD),
        member("new"),
        num_standbys=num_standbys,
    )
    plan = assignor.assign(question)
    assert plan_faults(question, plan, assignor.guarantees) == []
    for old in ("o1", "o2"):
        part = plan.members[old]
        assert {*part.active, *part.standby, *part.warmup, *plan.target[old]} <= set(ids("0_0 0_1 1_0"))
    if Guarantee.ALWAYS_OWNED in assignor.guarantees:
        assert set(plan.target["new"]) >= set(ids("0_2 0_3 1_1 1_2"))


@pytest.mark.parametrize("name", NAMES)
def test_partition_unknown_to_all_is_unassigned(name: str) -> None:
    assignor = registry.latest(name)
    question = problem(tasks("0_0 0_1 0_2", "1_0 1_1"), member("o1", subtopologies=OLD), member("o2", subtopologies=OLD))
    plan = assignor.assign(question)
    assert plan_faults(question, plan, assignor.guarantees) == []
    assert {task for given in plan.target.values() for task in given} == set(ids("0_0 0_1 1_0"))
