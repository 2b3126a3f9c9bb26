"""A real broker loses the last records of a changelog, and others take their offsets (KIP-320)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.kafka.client import NO_EPOCH, LeaderEnd, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.stores import RocksStore
from tests.live.kafka import reader
from tests.live.test_restorer import TASKS, items, make_topic, producing, restored, restoring, until
from tools.brokers import Brokers

TOPIC = "log"
TP = TopicPartition(TOPIC, 0)


@pytest.fixture
def broker() -> Iterator[Brokers]:
    with Brokers() as running:
        yield running


async def append(broker: Brokers, *keys: str) -> None:
    """Each in a batch of its own."""
    async with producing(broker.bootstrap) as producer:
        for key in keys:
            await producer.send_and_wait(TOPIC, b"1", key=key.encode(), partition=0)


async def epochs(broker: Brokers, *asked: int) -> tuple[LeaderEnd, list[int]]:
    """The partition's end, and the ends of these leader epochs."""
    async with reader(Connection(bootstrap=broker.bootstrap)) as consumer:
        consumer.assign([TP])
        consumer.seek(TP, 0)
        assert consumer.fetched_epoch(TP) == NO_EPOCH
        while await consumer.position(TP) < (end := (await consumer.leader_ends([TP]))[TP]).offset:
            await consumer.getmany(timeout_ms=1_000)
        assert consumer.fetched_epoch(TP) == end.epoch, "the last record was written just now"
        return (await consumer.leader_ends([TP]))[TP], [(await consumer.epoch_ends({TP: each}))[TP] for each in asked]


async def state(broker: Brokers, directory: StateDirectory) -> tuple[list[str], int]:
    """What a member that comes back restores, and how many records that took."""
    async with restoring(broker.bootstrap, TOPIC, RocksStore, directory) as restorer:
        found = await restored(restorer, TASKS[0])
        keys = [key.decode() for key, _ in items(found[TOPIC])]
        restorer.put_back(TASKS[0])
        return keys, restorer.restored_records


async def test_copy_of_lost_records_is_not_used_and_others_are(broker: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await make_topic(broker.bootstrap, TOPIC)
    await append(broker, "a", "b", "c")
    (end, first), (first_end, later_end) = await epochs(broker, 0, 1_000)
    assert (end, first_end, later_end) == (3, 3, -1)
    with StateDirectory(tmp_path, "g", "m") as directory:
        assert await state(broker, directory) == (["a", "b", "c"], 3)
        broker.kill(0)
        broker.start(0)
        await append(broker, "d")
        (end, second), ends = await epochs(broker, first)
        assert second > first
        assert (end, ends) == (4, [3])
        assert await state(broker, directory) == (["a", "b", "c", "d"], 1)
        assert "not using" not in caplog.text
        broker.kill(0)
        broker.lose_tail(TOPIC, 0, 2)
        broker.start(0)
        await append(broker, "x", "y", "z")
        assert (await epochs(broker, first, second))[1] == [2, 2]
        assert await state(broker, directory) == (["a", "b", "x", "y", "z"], 5)
    assert f"records may have been lost by an unclean election (leader epoch {second} ends at 2 there)" in caplog.text


async def test_standby_and_running_task_notice_in_which_epoch_they_are(broker: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await make_topic(broker.bootstrap, TOPIC)
    await append(broker, "a", "b")
    with StateDirectory(tmp_path, "g", "m") as directory:
        async with restoring(broker.bootstrap, TOPIC, RocksStore, directory) as restorer:
            store = (await restored(restorer, TASKS[0]))[TOPIC]
            first = store.leader_epoch
            broker.kill(0)
            broker.start(0)
            await until(lambda: store.leader_epoch > first)
            await append(broker, "c")
            store.apply_written({b"c": b"1"}, (), offset=3)
            restorer.put_back(TASKS[0])
            restorer.follow(TASKS[0])
            await until(lambda: restorer.lags.get(TASKS[0]) == 0)
            broker.kill(0)
            broker.lose_tail(TOPIC, 0, 1)
            broker.start(0)
            await append(broker, "x", "y")
            await until(lambda: "unclean election" in caplog.text)
            store = (await restored(restorer, TASKS[0]))[TOPIC]
            assert [key.decode() for key, _ in items(store)] == ["a", "b", "x", "y"]
            restorer.put_back(TASKS[0])
