"""Tasks whose topic of positions has lost what they, or their former owners, have committed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from equipoise import Processor
from equipoise.kafka.client import TopicPartition
from equipoise.member.positions import PARTITIONS
from equipoise.testing.group import NAME
from tests.simulated.test_positions import GUARANTEES, SOURCE, Deploys, every, one

POSITIONS = TopicPartition(f"{NAME}-positions", 0)
LOST = "has lost records: source/0 is read on at offset 10, which"


@pytest.fixture(params=GUARANTEES)
def guarantee(request: Any) -> Any:
    return request.param


def write_slowly(group: Deploys, count: int) -> None:
    """Each record is in a transaction of its own."""
    for _ in range(count):
        group.write(1)
        group.advance(1.2)


@pytest.mark.parametrize("processors", [one(), [*one(), *one("b", name="second")]])
def test_member_continues_behind_its_own_commits_that_positions_have_lost(
    guarantee: str, processors: list[Processor], caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """Nobody else knows of them: the group's offsets are gone, too."""
    with Deploys(processors, guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 10)
        group._cluster.lose_tail(POSITIONS, 8)
        group.forget_offsets()
        write_slowly(group, 3)
        group.advance(20)
        expected = every("a", 13) + (every("b", 13) if len(processors) > 1 else Counter())
        assert group.sent().keys() == expected.keys()
        if guarantee == "exactly_once":
            assert group.sent() == expected
            assert sum(f"{LOST} this member knows" in each for each in caplog.messages) == len(processors)
        assert group.error is None


@pytest.mark.parametrize("member", ["m1", "m2"])
def test_next_owner_continues_behind_commits_that_positions_have_lost(guarantee: str, member: str, caplog: pytest.LogCaptureFixture) -> None:
    """It has read none of them: the group's offsets were committed in the same transactions."""
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 10)
        group.crash("m1")
        group._cluster.lose_tail(POSITIONS, 8)
        group.join(member)
        write_slowly(group, 3)
        group.advance(60)
        assert group.sent().keys() == every("a", 13).keys()
        if guarantee == "exactly_once":
            assert group.sent() == every("a", 13)
            assert sum(f"{LOST} the group's committed offset knows" in each for each in caplog.messages) == 1
        group.crash(member)
        group.join("m1")
        write_slowly(group, 2)
        group.advance(60)
        assert group.sent().keys() == every("a", 15).keys()
        if guarantee == "exactly_once":
            assert group.sent() == every("a", 15)


def test_plain_consumer_with_the_groups_id_moves_no_lost_position(guarantee: str) -> None:
    """As long as anything is left there."""
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 10)
        group.crash("m1")
        group.write(5)
        group._cluster.lose_tail(POSITIONS, 8)
        group._cluster.coordinators.offsets[NAME] = {SOURCE: 14}
        group.join("m1")
        group.advance(30)
        assert group.sent().keys() == every("a", 15).keys()


@pytest.mark.parametrize("fault", ["made again", "end lost"])
def test_task_is_back_within_seconds_of_lost_positions(guarantee: str, fault: str) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 10)
        if fault == "end lost":
            group._cluster.lose_tail(POSITIONS, 8)
        else:
            group._cluster.delete_topic(POSITIONS.topic)
            group.advance(0.5)
            group._cluster.create_topic(POSITIONS.topic, PARTITIONS, 1, {"cleanup.policy": "compact"})
        group.write(3)
        group.advance(10)
        assert group.sent().keys() == every("a", 13).keys()


def test_position_that_is_lost_before_its_owner_reads_it_is_written_again(guarantee: str) -> None:
    with Deploys(one(), guarantee=guarantee) as group:
        group.join("m1")
        group.advance(20)
        write_slowly(group, 5)
        group.crash("m1")
        log = group._log(*POSITIONS)
        before = log.end
        group.join("m1")
        while log.end == before:
            group.advance(0.001)
        group._cluster.lose_tail(POSITIONS, 2)
        group.write(3)
        group.advance(30)
        assert group.sent() == every("a", 8)
