"""When a copy is ready to take its task over, on a real broker: by the group's limit as it is now."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs

from equipoise.member import Member
from events.decisions import AssignmentIssued
from events.facts import GroupConfigured, LagReported, MemberJoined
from events.tasks import TaskId
from tests.live.leader import Leader, leading
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_restorer import fill, producing, until

STATE_RECORDS = 8_000
"""In each changelog, so that a throttled copy is behind for some seconds."""
SLOW = {"restore_records_per_s": 1_500.0, "heartbeat_interval_ms": 200}


@contextlib.asynccontextmanager
async def running(bootstrap: str, prefix: str, tmp_path: Path, limit: int) -> AsyncIterator[tuple[Application, Leader, Member]]:
    """m1 runs every task, each with a changelog of STATE_RECORDS."""
    application = Application(bootstrap, prefix)
    application.config = with_limit(application.config, limit)
    await application.make_topics()
    async with producing(bootstrap) as producer:
        for partition in range(PARTITIONS):
            await fill(producer, application.changelog, partition, STATE_RECORDS)
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", tmp_path, "at_least_once") as first,
    ):
        await until(lambda: len(first.running) == PARTITIONS)
        yield application, leader, first


def with_limit(config: GroupConfigured, limit: int) -> GroupConfigured:
    return attrs.evolve(config, knobs=attrs.evolve(config.knobs, acceptable_recovery_lag=limit))


def handed_over(leader: Leader) -> dict[TaskId, int | None]:
    """Task -> how far behind the copy was when it was decided that it moves."""
    moves = [move for each in leader.decided(AssignmentIssued) for move in each.moves if move.state == "revoking"]
    return {move.task: move.lag_records for move in moves}


def reported_lags(leader: Leader, member_id: str) -> list[int]:
    """Of its warm-ups, in the order reported."""
    reports = [each.event for each in leader.facts if isinstance(each.event, LagReported) and each.event.member_id == member_id]
    return [lag for report in reports for lag in report.lags.values() if isinstance(lag, int)]


async def test_a_task_is_handed_over_within_the_groups_limit(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """A member that says nothing of a limit judges by the group's, 100 here, and not by one of its own."""
    async with (
        running(bootstrap, prefix, tmp_path, 100) as (application, leader, first),
        application.member("m2", tmp_path, "at_least_once", **SLOW) as second,
    ):
        await until(lambda: len(second.running) == 1)
        behind = handed_over(leader)
        assert behind.keys() == second.running.keys()
        assert all(lag is not None and lag <= 100 for lag in behind.values())
        assert any(100 < lag < 5_000 for lag in reported_lags(leader, "m2")), "it was asked more than once on the way"
        assert len(first.running) == PARTITIONS - 1


async def test_a_changed_limit_takes_effect_while_a_copy_restores(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with (
        running(bootstrap, prefix, tmp_path, 100) as (application, leader, _),
        application.member("m2", tmp_path, "at_least_once", **SLOW) as second,
    ):
        await until(lambda: any(lag < STATE_RECORDS for lag in reported_lags(leader, "m2")))
        assert handed_over(leader) == {}
        await leader.say(with_limit(application.config, 6_000))
        await until(lambda: handed_over(leader))
        ((_, lag),) = handed_over(leader).items()
        assert lag is not None
        assert 100 < lag <= 6_000
        assert second.acceptable_lag == 6_000
        await until(lambda: len(second.running) == 1)


async def test_a_limit_of_its_own_is_said_and_kept_to(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SLOW, "ready_lag_records": 4_000}
    async with (
        running(bootstrap, prefix, tmp_path, 100) as (application, leader, _),
        application.member("m2", tmp_path, "at_least_once", **options) as second,
    ):
        await until(lambda: handed_over(leader))
        joins = [each.event for each in leader.facts if isinstance(each.event, MemberJoined) and each.event.member_id == "m2"]
        assert {(join.readiness, join.ready_lag_records) for join in joins} == {("lag", 4_000)}
        ((_, lag),) = handed_over(leader).items()
        assert lag is not None
        assert 100 < lag <= 4_000
        await until(lambda: len(second.running) == 1)
