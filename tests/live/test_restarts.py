"""Members that stop and will be back (docs/protocol.md#m12), with a real broker and real stores."""

from __future__ import annotations

import asyncio
from pathlib import Path

from equipoise.events.decisions import AssignmentIssued, RestartEnded, RestartPlanned
from tests.groups import configured
from tests.live.leader import Leader, leading
from tests.live.test_member import BOTH, PARTITIONS, Application
from tests.live.test_restorer import until


def grants(leader: Leader, after: int) -> list[tuple[str, str | None]]:
    """(task, destination) of each grant since the decision `after`."""
    issued = leader.decided(AssignmentIssued)[after:]
    return [(str(move.task), move.destination) for each in issued for move in each.moves if move.state == "granted"]


@BOTH
async def test_restart_without_standbys_changes_no_owner_and_loses_nothing(bootstrap: str, prefix: str, tmp_path: Path, guarantee: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        await application.order(300)
        async with application.member("m2", tmp_path / "2", guarantee) as other:
            async with application.member("m1", tmp_path / "1", guarantee) as member:
                await until(lambda: len(other.running) + len(member.running) == PARTITIONS and member.running)
                mine = set(member.running)
                rounds = len(leader.decided(AssignmentIssued))
                await member.leave(back_within_s=30)
            assert leader.machine.state.is_away("m1")
            await application.order(200)
            await asyncio.sleep(1)
            assert set(leader.machine.state.members["m1"].active) == mine
            async with application.member("m1", tmp_path / "1", guarantee) as member:
                await until(lambda: set(member.running) == mine)
                await application.until_counted(exactly=True)
            assert sorted(grants(leader, rounds)[: len(mine)]) == sorted((str(task), "m1") for task in mine)
        (plan,) = leader.decided(RestartPlanned)
        assert (plan.choice, plan.back_within_ms, set(plan.waiting)) == ("wait", 30_000, mine)
        assert [ended.outcome for ended in leader.decided(RestartEnded)] == ["returned"]


async def test_tasks_with_a_standby_run_elsewhere_during_a_restart(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    config = configured(num_standbys=1, initial_delay_ms=0, acceptable_recovery_lag=100)
    async with leading(bootstrap, prefix, prefix, config, application.topology) as leader:
        await application.order(300)
        async with application.member("m2", tmp_path / "2", "at_least_once") as other:
            async with application.member("m1", tmp_path / "1", "at_least_once") as member:
                state = leader.machine.state
                await until(lambda: member.running and len(other.running) + len(member.running) == PARTITIONS and not state.in_flight)
                mine = set(member.running)
                await until(lambda: all(state.members["m2"].is_caught_up(task, 100) for task in mine))
                await member.leave(back_within_s=30)
                await until(lambda: len(other.running) == PARTITIONS)
                await application.order(200)
                await application.until_counted(exactly=True)
            async with application.member("m1", tmp_path / "1", "at_least_once") as member:
                await until(lambda: set(member.running) == mine)
                await application.order(100)
                await application.until_counted(exactly=True)
        (plan,) = leader.decided(RestartPlanned)
        assert (set(plan.lent), plan.waiting) == (mine, ())
        assert not leader.machine.state.lent
