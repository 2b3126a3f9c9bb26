"""Members that can only be eager beside cooperative ones, on a real broker (connect.protocol =
compatible: whoever can, keeps what it has).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.assignors import registry
from equipoise.events.decisions import MemberExpired
from equipoise.member import TaskContext
from tests.live.leader import leading
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_restorer import until


def told(calls: list[str]) -> dict[str, Any]:
    """Callbacks that record each callback of a member, and leave `calls` in its order."""

    def assigned(context: TaskContext) -> None:
        calls.append(f"assigned {context.task}")

    def revoked(context: TaskContext) -> None:
        calls.append(f"revoked {context.task}")

    return {"on_assigned": assigned, "on_revoked": revoked}


@pytest.mark.parametrize("name", ["high_availability", "cooperative"])
@pytest.mark.smoke
async def test_eager_member_gives_up_everything_and_a_cooperative_one_keeps_its_tasks(bootstrap: str, prefix: str, tmp_path: Path, name: str) -> None:
    """Nothing is lost or counted twice, whoever gives up what for whom."""
    application = Application(bootstrap, prefix)
    assignor = registry.latest(name)
    application.config = attrs.evolve(application.config, assignor=name, behaviour_version=assignor.version, solver=assignor.solver)
    await application.make_topics()
    steady: list[str] = []
    eager: list[str] = []
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        await application.order(200)
        async with application.member("m1", tmp_path, "exactly_once", **told(steady)) as first:
            await until(lambda: len(first.running) == PARTITIONS)
            async with application.member("m2", tmp_path, "exactly_once", eager=True, **told(eager)) as second:
                await until(lambda: len(second.running) == 1 and len(first.running) == PARTITIONS - 1)
                assert {name: member.eager for name, member in leader.machine.state.members.items()} == {"m1": False, "m2": True}
                (moved,) = second.running
                assert eager == [f"assigned {moved}"]
                kept = sorted(f"assigned {task}" for task in first.running)
                assert sorted(each for each in steady if each.startswith("revoked")) == [f"revoked {moved}"], "the cooperative one kept the others"
                await application.order(200)
                await application.until_counted(exactly=True)

                await first.leave()
                await until(lambda: len(second.running) == PARTITIONS)
                given_up, *rest = eager[1:]
                assert given_up == f"revoked {moved}", "everything is given up before anything is added"
                assert sorted(rest) == sorted([f"assigned {moved}", *kept]), "and then all tasks come together"
                await application.order(100)
                await application.until_counted(exactly=True)
        await until(lambda: leader.machine.state.members == {})
        assert leader.decided(MemberExpired) == []
