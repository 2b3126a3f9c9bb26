"""What is asked and read of leader epochs (KIP-320), without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IncompatibleBrokerVersion, KafkaTimeoutError, NotLeaderForPartitionError, TopicAuthorizationFailedError
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from equipoise.kafka.client import NO_EPOCH, LeaderEnd, TopicPartition
from equipoise.kafka.leader_epochs import epoch_ends, last_epoch, leader_ends

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(epoch: int, records: int = 2) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10_000)
    for offset in range(records):
        builder.append(offset, timestamp=0, key=b"k", value=b"v" * 50, headers=[])
    built = bytearray(builder.build())
    built[12:16] = epoch.to_bytes(4, "big")
    return bytes(built)


def test_last_epoch_is_that_of_the_last_whole_batch() -> None:
    assert last_epoch(b"") == NO_EPOCH
    assert last_epoch(batch(3)) == 3
    assert last_epoch(batch(3) + batch(7, 1)) == 7
    assert last_epoch(batch(3) + batch(7)[:-1]) == 3, "brokers cut the last batch where an answer is full"
    assert last_epoch(batch(3) + batch(7)[:10]) == 3
    old = bytearray(batch(3))
    old[16] = 1
    assert last_epoch(bytes(old)) == NO_EPOCH, "in a former form of batches something else is in that place"


class Client:
    """Leader of both partitions is broker 5. `answers`: what it answers, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked, self.updates = list(answers), list[Any](), 0
        self.cluster = SimpleNamespace(leader_for_partition=lambda place: 5, unauthorized_topics=set())

    def add_topic(self, topic: str) -> None: ...

    async def _maybe_wait_metadata(self) -> None: ...

    def force_metadata_update(self) -> None:
        self.updates += 1

    async def send(self, node_id: int, request: Any) -> Any:
        assert node_id == 5
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(topics=[("t", answer)])


async def test_answers_are_by_partition() -> None:
    client: Any = Client([(1, 0, -1, 40, 3), (0, 0, -1, 30, 4)], [(0, 0, 2, 20), (0, 1, -1, -1)])
    assert await leader_ends(client, [A, B], 1, 1.0) == {A: LeaderEnd(30, 4), B: LeaderEnd(40, 3)}
    assert await epoch_ends(client, {A: 2, B: 9}, 1.0) == {A: 20, B: -1}


async def test_leader_that_changes_is_asked_again() -> None:
    code = NotLeaderForPartitionError.errno
    client: Any = Client([(code, 0, -1, -1)], [(0, 0, 2, 20)])
    assert await epoch_ends(client, {A: 2}, 1.0) == {A: 20}
    assert client.updates == 1
    client.cluster.leader_for_partition = lambda place: -1
    with pytest.raises(KafkaTimeoutError, match="no answer within"):
        await epoch_ends(client, {A: 2}, 0.05)


async def test_topic_that_may_not_be_seen_is_an_error_at_once() -> None:
    client: Any = Client()
    client.cluster = SimpleNamespace(leader_for_partition=lambda place: None, unauthorized_topics={"t"})
    with pytest.raises(TopicAuthorizationFailedError):
        await leader_ends(client, [A], 0, 1.0)


@pytest.mark.parametrize("error", [IncompatibleBrokerVersion("no"), NotImplementedError("no")])
async def test_brokers_that_do_not_know_the_requests_have_no_epochs(error: Exception) -> None:
    client: Any = Client(error, error)
    assert await leader_ends(client, [A], 0, 1.0) is None
    assert await epoch_ends(client, {A: 2}, 1.0) is None
