"""When a copy is ready to take its task over, on a real broker: within the group's present limit,
and prepared by its application.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.decisions import AssignmentIssued
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured, LagReported, MemberJoined
from equipoise.events.tasks import LagSentinel, TaskId
from equipoise.member import Member, PrepareContext, TaskContext
from tests.live.leader import Leader, leading
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_restorer import fill, producing, until

STATE_RECORDS = 8_000
"""Records in each changelog: enough to keep a throttled copy behind for some seconds."""
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
    """Task -> lag of the copy when its move was decided."""
    moves = [move for each in leader.decided(AssignmentIssued) for move in each.moves if move.state == "revoking"]
    return {move.task: move.lag_records for move in moves}


def reported_lags(leader: Leader, member_id: str) -> list[int]:
    """Lags of its warm-ups, in the order of the reports."""
    reports = [each.event for each in leader.facts if isinstance(each.event, LagReported) and each.event.member_id == member_id]
    return [lag for report in reports for lag in report.lags.values() if isinstance(lag, int)]


async def test_task_moves_when_its_copy_is_within_the_groups_limit(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """A member without a limit of its own uses the group's, 100 here."""
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


async def test_changed_limit_takes_effect_while_a_copy_restores(bootstrap: str, prefix: str, tmp_path: Path) -> None:
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


async def test_members_own_limit_is_reported_and_applied(bootstrap: str, prefix: str, tmp_path: Path) -> None:
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


async def test_lag_of_a_task_given_up_but_not_closed_is_unknown(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """The next owner writes on, so the former owner's copy has an unknown lag, however long its
    store takes to close.
    """
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", tmp_path, "at_least_once", heartbeat_interval_ms=200, session_timeout_ms=30_000, keepalive_interval_ms=0) as first,
    ):
        await until(lambda: len(first.running) == PARTITIONS)
        permit: Any = first._running_host().work.permit
        put_back, closes = permit.put_stores_back, asyncio.Event()

        async def slowly(task: TaskId) -> None:
            await closes.wait()
            await put_back(task)

        permit.put_stores_back = slowly
        try:
            async with application.member("m2", tmp_path, "at_least_once") as second:
                await until(lambda: second.running)
                task = next(iter(second.running))
                await until(lambda: leader.machine.state.members["m1"].lags[task] is LagSentinel.UNKNOWN)
                spoken = len(reports(leader, "m1"))
                await until(lambda: len(reports(leader, "m1")) > spoken + 1)
                assert leader.machine.state.members["m1"].lags[task] is LagSentinel.UNKNOWN, "until it is put away"
                closes.set()
                await until(lambda: isinstance(leader.machine.state.members["m1"].lags[task], int))
        finally:
            closes.set()


class Cache:
    """An application that warms a cache for each task before it may process it."""

    def __init__(self, seconds: float, *, fails: int = 0) -> None:
        self.seconds = seconds
        self.fails = fails
        self.warm: dict[TaskId, float] = {}
        """Task -> when its cache was warm (time.monotonic)."""
        self.begun: list[tuple[TaskId, int, bool]] = []
        self.cold: list[TaskId] = []
        """Tasks with a record that was processed before their cache was warm."""

    async def prepare(self, context: PrepareContext) -> None:
        self.begun.append((context.task, context.attempt, context.runs_next))
        for step in range(10):
            context.progress(step / 10, f"{step} of 10")
            await asyncio.sleep(self.seconds / 10)
            if step == 4 and context.attempt <= self.fails:
                raise RuntimeError("no room for this cache")
        self.warm[context.task] = time.monotonic()

    def prepare_in_a_thread(self, context: PrepareContext) -> None:
        self.begun.append((context.task, context.attempt, context.runs_next))
        time.sleep(self.seconds)  # in the application's loop this would stop every task
        self.warm[context.task] = time.monotonic()

    def look(self, _: Any, context: TaskContext) -> None:
        if context.task not in self.warm:
            self.cold.append(context.task)


async def status(bootstrap: str, prefix: str) -> dict[str, Any]:
    """The answer of `equipoise status`."""
    command = [sys.executable, "-m", "equipoise", "status", "--group", prefix, "--bootstrap", bootstrap, "--prefix", prefix, "--json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def reports(leader: Leader, member_id: str) -> list[LagReported]:
    return [each.event for each in leader.facts if isinstance(each.event, LagReported) and each.event.member_id == member_id]


def revoked_at(leader: Leader, task: TaskId) -> int:
    """Append time of the first round that moves `task`."""
    caused = [each.caused_by for each in leader.decisions if isinstance(each.decision, AssignmentIssued) and task in _revoking(each.decision)]
    return next(record.append_ms for record in leader.facts if record.offset == caused[0])


def _revoking(issued: AssignmentIssued) -> set[TaskId]:
    return {move.task for move in issued.moves if move.state == "revoking"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stateful", "stateless"])
async def test_task_moves_only_when_it_is_prepared(bootstrap: str, prefix: str, tmp_path: Path, kind: str) -> None:
    """With or without a changelog: m2 has lag 0 long before its cache is warm."""
    application = Application(bootstrap, prefix)
    if kind == "stateless":
        part = attrs.evolve(application.topology.subtopologies[0], changelog_topics=())
        application.topology = attrs.evolve(application.topology, subtopologies=(part,))
    await application.make_topics()
    first_cache, cache = Cache(0.2), Cache(10.0, fails=1)
    state = tmp_path if kind == "stateful" else None
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        lasting: dict[str, Any] = {"session_timeout_ms": 30_000}  # a rejoined member prepares again
        first = application.member("m1", state, "at_least_once", handler=first_cache.look, prepare=first_cache.prepare, **lasting)
        second = application.member("m2", state, "at_least_once", handler=cache.look, prepare=cache.prepare, heartbeat_interval_ms=200, **lasting)
        await application.order(60)
        async with first:
            await until(lambda: len(first.running) == PARTITIONS)
            assert sorted(first_cache.begun) == [(TaskId(0, number), 1, True) for number in range(PARTITIONS)]
            async with second:
                await until(lambda: second.preparing)
                (task,) = second.preparing
                prepared: list[tuple[str, str]] = []
                while not prepared:
                    assert not second.running, "it runs, and was never shown to be prepared"
                    tasks = (await status(bootstrap, prefix))["state"]["tasks"]
                    prepared = [(each["task"], copy["member_id"]) for each in tasks for copy in each["warmups"] if copy["preparing"]]
                assert prepared == [(str(task), "m2")]
                await until(lambda: len(second.running) == 1)
                assert second.running.keys() == {task} == cache.warm.keys()
                assert [(attempt, runs_next) for _, attempt, runs_next in cache.begun] == [(1, False), (2, False)]
                said = [report.preparing[task] for report in reports(leader, "m2") if task in report.preparing]
                assert len(set(said)) > 3, "how far it is was seen on the way"
                assert any(task in report.failed and task not in report.preparing for report in reports(leader, "m2"))
                assert any(report.lags.get(task) == 0 for report in reports(leader, "m2"))
                prepared_ms = next(
                    record.append_ms
                    for record in leader.facts
                    if isinstance(record.event, LagReported) and record.event.member_id == "m2" and task in record.event.ready
                )
                assert revoked_at(leader, task) >= prepared_ms
                began_ms = next(record.append_ms for record in leader.facts if isinstance(record.event, LagReported) and record.event.preparing)
                assert prepared_ms - began_ms > 3_000
                await application.order(60)
                await until(lambda: len(second.running) == 1)
        assert first_cache.cold == cache.cold == []


@pytest.mark.smoke
async def test_prepare_function_runs_on_a_thread_of_its_own(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """Records do not wait for it: m1 runs in the same loop."""
    application = Application(bootstrap, prefix)
    await application.make_topics()
    cache = Cache(2.0)
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology),
        application.member("m1", tmp_path, "at_least_once") as first,
    ):
        await until(lambda: len(first.running) == PARTITIONS)
        longest_s, last_s = 0.0, time.monotonic()
        async with application.member("m2", tmp_path, "at_least_once", handler=cache.look, prepare=cache.prepare_in_a_thread) as second:
            last_s = time.monotonic()
            while len(second.running) < 1:
                await asyncio.sleep(0.01)
                longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
            assert cache.begun
            assert longest_s < 1.5


async def test_application_declares_tasks_ready_itself(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    kept: list[TaskId] = []
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", tmp_path, "at_least_once") as first,
    ):
        await until(lambda: len(first.running) == PARTITIONS)
        with pytest.raises(InputError, match="declares_ready=True"):
            first.ready(TaskId(0, 0))
        async with application.member("m2", tmp_path, "at_least_once", declares_ready=True, on_standby=kept.append) as second:
            await until(lambda: any(0 in report.lags.values() for report in reports(leader, "m2")))
            await asyncio.sleep(1.5)
            assert second.running == {}
            with pytest.raises(InputError, match="no copy of it"):
                second.ready(TaskId(7, 0))
            second.ready(kept[0])
            await until(lambda: second.running.keys() == {kept[0]})
