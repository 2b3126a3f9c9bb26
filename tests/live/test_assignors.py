"""What `learner`, `cooperative` and client tags promise, in groups of real members on a real
broker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.assignors import registry
from equipoise.events.decisions import AssignmentIssued, MemberExpired, MemberWarned, Move
from equipoise.events.facts import GroupConfigured, LagReported, TaskReady
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId
from tests.live.leader import Leader, leading
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_readiness import SLOW, STATE_RECORDS
from tests.live.test_restorer import fill, producing, until


def led_by(config: GroupConfigured, name: str, **settings: Any) -> GroupConfigured:
    assignor = registry.latest(name)
    changed: GroupSettings = attrs.evolve(config.knobs, **settings)
    return attrs.evolve(config, assignor=name, behaviour_version=assignor.version, solver=assignor.solver, knobs=changed)


def moves_of(leader: Leader, state: str) -> list[Move]:
    return [move for issued in leader.decided(AssignmentIssued) for move in issued.moves if move.state == state]


@pytest.mark.smoke
async def test_learner_task_moves_when_its_member_reports_ready(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """The owner runs it until then, and nothing but the word begins the hand-over."""
    application = Application(bootstrap, prefix)
    application.config = led_by(application.config, "learner", acceptable_recovery_lag=100)
    await application.make_topics()
    async with producing(bootstrap) as producer:
        for partition in range(PARTITIONS):
            await fill(producer, application.changelog, partition, STATE_RECORDS)
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", tmp_path, "at_least_once") as first,
    ):
        await until(lambda: len(first.running) == PARTITIONS)
        async with application.member("m2", tmp_path, "at_least_once", **SLOW) as second:
            await until(lambda: moves_of(leader, "warming"))
            (learned,) = {move.task for move in moves_of(leader, "warming")}
            assert leader.machine.state.learners(learned) == ("m2",)
            assert len(first.running) == PARTITIONS, "its owner runs on"
            await until(lambda: set(second.running) == {learned})

        issued = [(each.caused_by, each.decision) for each in leader.decisions if isinstance(each.decision, AssignmentIssued)]
        begun, moves = next((caused_by, decision.moves) for caused_by, decision in issued if any(move.state == "revoking" for move in decision.moves))
        (word,) = [each.event for each in leader.facts if each.offset == begun]
        assert isinstance(word, TaskReady | LagReported)
        assert learned in (word.tasks if isinstance(word, TaskReady) else word.ready)
        assert [(move.task, move.reason) for move in moves] == [(learned, "ready")]


async def test_lost_task_waits_for_its_member_and_returns_to_it(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """KIP-415, deferred resolution. A group whose delay is set to 0 places the tasks that still
    wait.
    """
    application = Application(bootstrap, prefix)
    application.config = led_by(application.config, "cooperative", options={"scheduled_delay_ms": 600_000})
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        await application.order(100)
        async with application.member("m1", tmp_path, "exactly_once") as first:
            await until(lambda: len(first.running) == PARTITIONS)
            for _ in range(2):
                async with application.member("m2", tmp_path, "exactly_once") as second:
                    await until(lambda: len(second.running) == 1)
                    kept = first.running
                    lost: set[TaskId] = set(second.running)
                    assert len(kept) == PARTITIONS - 1
                    await application.order(100)
                    await application.until_counted(exactly=True)
                await until(lambda lost=lost: leader.machine.state.lost.keys() == lost)
                await asyncio.sleep(1)
                assert first.running == kept, "the tasks of m2 stay unassigned, and nothing else moves"
            waiting = moves_of(leader, "waiting")
            assert {(move.task, move.source, move.destination, move.reason) for move in waiting} == {(task, "m2", None, "lost") for task in lost}
            assert [move.reason for move in moves_of(leader, "granted") if move.destination == "m2"] == ["carried", "return_home"]

            await leader.say(led_by(application.config, "cooperative", options={"scheduled_delay_ms": 0}))
            await until(lambda: len(first.running) == PARTITIONS)
            assert moves_of(leader, "granted")[-1].reason == "lost_passed_on"
            await application.order(100)
            await application.until_counted(exactly=True)
        assert leader.decided(MemberExpired) == []


@pytest.mark.parametrize("strategy", ["none", "min_cost"])
async def test_standbys_follow_tags_and_a_contradicting_rack_is_warned_of(bootstrap: str, prefix: str, tmp_path: Path, strategy: str) -> None:
    """KIP-925, 4.D: both a rack and tags are there, the tags win, and the group goes on."""
    application = Application(bootstrap, prefix)
    application.config = led_by(
        application.config, "high_availability", num_standbys=1, rack_aware_tags=("rack",), rack_aware_strategy=strategy, initial_delay_ms=6_000
    )
    await application.make_topics()
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", tmp_path, "at_least_once", rack="a", tags={"rack": "a"}) as first,
        application.member("m2", tmp_path, "at_least_once", rack="a", tags={"rack": "b"}) as second,
        application.member("m3", tmp_path, "at_least_once", rack="a", tags={"rack": "a"}) as third,
    ):
        await until(lambda: all(len(member.running) == 1 for member in (first, second, third)))

        def standbys() -> dict[TaskId, str]:
            return {task: name for name, member in leader.machine.state.members.items() for task in member.standby}

        (there,) = second.running
        apart = {task: "m2" for member in (first, third) for task in member.running}
        await until(lambda: {**standbys(), there: "m2"} == {**apart, there: "m2"} and standbys().get(there) in ("m1", "m3"))
        (warned,) = leader.decided(MemberWarned)
        assert (warned.member_id, warned.code, warned.said, warned.tag) == ("m2", "rack_tag_differs", "a", "b")
