"""What a consumer asks leaders and a group's coordinator, answer by answer, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.offset import OffsetRequest_v3

from equipoise.kafka.client import LeaderEnd, TopicPartition
from equipoise.kafka.consumer import group_offsets, leader_questions
from equipoise.kafka.consumer.leader_questions import epoch_ends, offsets
from equipoise.kafka.consumer.requests import END, FIRST, LIST_OFFSETS_V4, ListOffsetsRequest, listed
from equipoise.kafka.group_coordinators import GroupCoordinators

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NOT_LEADER, NOT_COORDINATOR = NotLeaderForPartitionError.errno, 16


class AnsweringWire:
    """Broker 5 leads all partitions. `answers`: what comes back, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.requests, self.updates, self.searches = list(answers), list[Any](), 0, 0
        self.leads: tuple[int, int] | None = (5, -1)
        self.hidden: set[str] = set()

    async def know(self, topics: Collection[str]) -> None: ...

    def refresh(self) -> asyncio.Future[Any]:
        self.updates += 1
        return asyncio.get_running_loop().create_future()

    def leader_of(self, place: TopicPartition) -> tuple[int, int] | None:
        return self.leads

    def is_hidden(self, topic: str) -> bool:
        return topic in self.hidden

    def nodes(self) -> list[int]:
        return [5]

    async def ready(self, node: int, *, apart: bool = False) -> bool:
        return True

    async def send(self, node: int, request: Any, *, apart: bool = False) -> Any:
        assert node == 5
        if isinstance(request, FindCoordinatorRequest):
            self.searches += 1
            return SimpleNamespace(error_code=0, coordinator_id=5)
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, SimpleNamespace) else SimpleNamespace(topics=[("t", answer)])


async def test_answers_are_by_partition() -> None:
    wire: Any = AnsweringWire([(1, 0, -1, 40, 3), (0, 0, -1, 30, 4)], [(0, 0, 2, 20), (0, 1, -1, -1)])
    assert await offsets(wire, {A: END, B: END}, 1.0, read_committed=True) == {A: LeaderEnd(30, 4), B: LeaderEnd(40, 3)}
    assert await epoch_ends(wire, {A: 2, B: 9}, 1.0) == {A: 20, B: -1}


async def test_leader_that_changes_is_asked_again() -> None:
    wire: Any = AnsweringWire([(NOT_LEADER, 0, -1, -1)], [(0, 0, 2, 20)])
    assert await epoch_ends(wire, {A: 2}, 1.0) == {A: 20}
    assert wire.updates == 1
    wire.leads = None
    with pytest.raises(KafkaTimeoutError, match="no broker has named the leaders of t, for"):
        await epoch_ends(wire, {A: 2}, 0.05)


async def test_leader_that_falls_silent_is_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker leads by then, perhaps."""
    monkeypatch.setattr(leader_questions, "SILENT_S", 0.05)

    class Silent(AnsweringWire):
        async def send(self, node: int, request: Any, *, apart: bool = False) -> Any:
            if not self.requests:
                self.requests.append(request)
                await asyncio.get_running_loop().create_future()
            return await super().send(node, request, apart=apart)

    wire: Any = Silent([(0, 0, 2, 20)])
    async with asyncio.timeout(5):
        assert await epoch_ends(wire, {A: 2}, 40.0) == {A: 20}
    assert (len(wire.requests), wire.updates) == (2, 1)


async def test_topic_that_may_not_be_seen_is_an_error_at_once() -> None:
    wire: Any = AnsweringWire()
    wire.leads, wire.hidden = None, {"t"}
    with pytest.raises(TopicAuthorizationFailedError):
        await offsets(wire, {A: FIRST}, 1.0, read_committed=False)


@pytest.mark.parametrize("error", [IncompatibleBrokerVersion("no"), NotImplementedError("no")])
async def test_brokers_that_do_not_know_the_request_have_no_epochs(error: Exception) -> None:
    wire: Any = AnsweringWire(error)
    assert await epoch_ends(wire, {A: 2}, 1.0) is None


def test_brokers_without_epochs_are_asked_in_a_former_version() -> None:
    request = ListOffsetsRequest({A: FIRST, B: 7}, read_committed=True)
    assert request.build(OffsetRequest_v3).topics == [("t", [(0, -2), (1, 7)])]
    assert request.build(LIST_OFFSETS_V4).topics == [("t", [(0, -1, -2), (1, -1, 7)])]
    answer = SimpleNamespace(topics=[("t", [(0, 0, -1, 30)])])
    assert list(listed(answer)) == [(A, 0, LeaderEnd(30, -1))]


def offsets_of(*partitions: Any, error_code: int = 0) -> SimpleNamespace:
    return SimpleNamespace(topics=[("t", list(partitions))], error_code=error_code)


async def committed(wire: Any, *places: TopicPartition) -> dict[TopicPartition, int]:
    groups = GroupCoordinators(wire)
    return await group_offsets.until_answered(lambda: group_offsets.committed(groups, "g", places))


async def commit(wire: Any) -> None:
    groups = GroupCoordinators(wire)
    await group_offsets.until_answered(lambda: group_offsets.commit(groups, "g", {A: 7}))


async def test_offsets_of_a_group_are_those_that_are_committed() -> None:
    wire: Any = AnsweringWire(offsets_of((0, 7, "", 0), (1, -1, "", 0), (2, 9, "", 3)))
    assert await committed(wire, A, B, TopicPartition("t", 2)) == {A: 7}


@pytest.mark.parametrize(("code", "kind"), [(29, TopicAuthorizationFailedError), (30, GroupAuthorizationFailedError)])
async def test_right_that_is_missing_keeps_its_kind(code: int, kind: type[Exception]) -> None:
    """As an error of no kind it was tried again for ever."""
    wire: Any = AnsweringWire(offsets_of((0, -1, "", code)))
    with pytest.raises(kind, match="t" if code == 29 else "g"):
        await committed(wire, A)


async def test_error_of_the_group_is_not_taken_for_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers say it once for the whole group, and aiokafka does not look at it."""
    monkeypatch.setattr(group_offsets, "_AGAIN_S", 0.0)
    wire: Any = AnsweringWire(SimpleNamespace(topics=[], error_code=NOT_COORDINATOR), offsets_of((0, 7, "", 0)))
    assert await committed(wire, A) == {A: 7}
    assert wire.searches == 2, "the coordinator has moved"
    wire.answers.append(SimpleNamespace(topics=[], error_code=30))
    with pytest.raises(GroupAuthorizationFailedError):
        await committed(wire, A)


async def test_commit_is_repeated_until_it_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "_AGAIN_S", 0.0)
    wire: Any = AnsweringWire([(0, NOT_COORDINATOR)], [(0, 0)])
    await commit(wire)
    assert wire.searches == 2, "the coordinator has moved"
    assert len(wire.requests) == 2
    wire.answers.append([(0, 25)])
    with pytest.raises(CommitFailedError):
        await commit(wire)
