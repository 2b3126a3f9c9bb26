"""`Member.owner` says where the task of a key runs, in virtual time."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from equipoise import CopyLocation, KeyLocation, Member
from equipoise.events.errors import InputError
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.kafka.client import partition_of_key
from equipoise.member.session.location import task_of_key
from equipoise.testing.simulated.virtual_loops import S_US
from tests.simulated.test_start import TASKS, NewGroup, group
from tests.support.cluster_faults import delete_topic

__all__ = ["group"]

T = TypeVar("T")
HEARTBEAT_MS = 3_000
LOOK_S = 30.0
"""An observer takes this time at most to read the log."""


def asked(group: NewGroup, member: Member, question: Coroutine[Any, Any, T]) -> T:
    """The answer, from the member's process."""
    assert member._host is not None, "it has joined"
    task = member._host._app.create_task(question)
    group.scheduler.run(group.scheduler.now_us + int(LOOK_S * S_US), task.done)
    return task.result()


def settle(group: NewGroup, seconds: float) -> None:
    group.scheduler.run(group.scheduler.now_us + int(seconds * S_US))


def locations(group: NewGroup, member: Member) -> list[KeyLocation]:
    """Of the first key that is found of each task."""
    keys = {partition_of_key(b"%d" % number, TASKS): b"%d" % number for number in range(100)}
    return [asked(group, member, member.owner(keys[partition])) for partition in range(TASKS)]


def test_owner_names_who_runs_the_task_and_its_copies_with_lags_and_addresses(group: NewGroup) -> None:
    members = {name: group.start(name, advertised=f"{name}:80", num_standbys=1) for name in ("m1", "m2")}
    group.runs_all_after_s()
    settle(group, 10)
    running = {task: (name, token) for name, member in members.items() for task, token in member.running.items()}
    found = locations(group, members["m2"])
    assert {each.task: (each.member_id, each.token) for each in found} == running
    assert {each.advertised for each in found} == {"m1:80", "m2:80"}
    for each in found:
        (other,) = members.keys() - {each.member_id}
        assert each.copies == (CopyLocation(member_id=other, advertised=f"{other}:80", lag=0),)


def test_owner_changes_with_the_group_and_its_answers_are_dated(group: NewGroup) -> None:
    members = {name: group.start(name) for name in ("m1", "m2")}
    group.runs_all_after_s()
    before = locations(group, members["m1"])
    settle(group, HEARTBEAT_MS / 1_000)
    members["m2"].close()
    settle(group, 10)
    after = locations(group, members["m1"])
    assert {each.member_id for each in before} == {"m1", "m2"}
    assert {each.member_id for each in after} == {"m1"}
    now_ms = group.cluster.now_ms()
    assert all(now_ms - HEARTBEAT_MS - 500 <= each.as_of_ms <= now_ms for each in after)
    assert all(old.generation < new.generation and old.as_of_ms < new.as_of_ms for old, new in zip(before, after, strict=True))
    assert {old.token < new.token for old, new in zip(before, after, strict=True) if old.member_id == "m2"} == {True}


def test_owner_is_found_again_in_a_new_log(group: NewGroup) -> None:
    members = {name: group.start(name, advertised=f"{name}:80", session_timeout_ms=6_000, heartbeat_interval_ms=700) for name in ("m1", "m2")}
    group.runs_all_after_s()
    before = locations(group, members["m1"])
    process: Any = members["m1"]._runtime
    process.pause()
    for name in [name for name in group.cluster.topics if name.startswith("equipoise.")]:
        topic = group.cluster.topics[name]
        delete_topic(group.cluster, name)
        group.cluster.create_topic(name, len(topic.partitions), 1, topic.configs)
    settle(group, 60)  # the new log grows beyond what was read of the former one
    process.resume()
    settle(group, 30)
    running = {task: (name, token) for name, member in members.items() for task, token in member.running.items()}
    after = locations(group, members["m1"])
    assert {each.task: (each.member_id, each.token) for each in after} == running
    assert len(running) == TASKS
    assert min(each.as_of_ms for each in after) > max(each.as_of_ms for each in before) + 50_000


def test_question_without_an_answer_ends_with_the_member(group: NewGroup) -> None:
    member = group.start("m1")
    group.runs_all_after_s()
    for topic in list(group.cluster.topics):
        if topic.endswith(".facts"):
            delete_topic(group.cluster, topic)
    assert member._host is not None, "it has joined"
    question = member._host._app.create_task(member.owner(b"1"))
    settle(group, 5)
    assert not question.done()
    member.close()
    settle(group, 60)
    with pytest.raises(InputError, match="the member has ended"):
        question.result()
    with pytest.raises(InputError, match="the member has ended"):
        member.owner(b"1").send(None)


PARTS = TopologyDeclared(
    epoch=0,
    subtopologies=(Subtopology(subtopology=0, partitions=4, stateful=False), Subtopology(subtopology=1, partitions=12, stateful=False)),
)


def test_task_of_a_key_is_in_the_partition_that_producers_choose() -> None:
    # As org.apache.kafka.common.utils.Utils.murmur2 gives them.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert [task_of_key(key, PARTS, 1, partition_of_key) for key in hashes] == [TaskId(1, (each & 0x7FFFFFFF) % 12) for each in hashes.values()]
    assert task_of_key(b"abc", PARTS, 0, lambda key, partitions: len(key) % partitions) == TaskId(0, 3)


@pytest.mark.parametrize(
    ("subtopology", "partition", "says"),
    [
        (None, 0, "owner: give the sub-topology that reads the key; there are 0, 1"),
        (2, 0, "owner: there is no sub-topology 2; there are 0, 1"),
        (0, 4, "owner: the partitioner returns 4, and sub-topology 0 has 4 partitions"),
    ],
)
def test_task_of_a_key_that_no_task_reads_is_an_error(subtopology: int | None, partition: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        task_of_key(b"k", PARTS, subtopology, lambda key, partitions: partition)
