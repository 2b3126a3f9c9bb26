"""A local copy counts only for the changelog that it was made of, and a changelog that cannot be
read holds up no other. In virtual time over the simulated Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from aiokafka.errors import UnsupportedCodecError

from equipoise.events.tasks import TaskId
from equipoise.kafka.client import TopicPartition
from equipoise.kafka.consumer.batches import FetchedBatches
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.fencing import TOPIC_KEY
from equipoise.member.copies.restorer import ChangelogRestorer
from equipoise.member.copies.stores import RocksStore
from equipoise.member.copies.throttle import LEAST_RECORDS, Throttle
from equipoise.testing.simulated.connection import SimulatedClients, SimulatedConnection
from equipoise.testing.simulated.kafka.cluster import Cluster
from equipoise.testing.simulated.kafka.partition_log import Batch, PartitionLog
from equipoise.testing.simulated.virtual_loops import S_US, Scheduler, VirtualLoop
from tests.support.cluster_faults import compact, delete_topic, lose_tail

DAY_S = 86_400
DAY_MS = DAY_S * 1_000
TASK, OTHER, TP = TaskId(0, 0), TaskId(0, 1), TopicPartition("log", 0)


class _World:
    def __init__(self, folder: Path, partitions: int = 2) -> None:
        self.scheduler = Scheduler(1)
        self.cluster = Cluster(self.scheduler, Random(1))
        self.cluster.create_topic("log", partitions)
        self.tasks = [TaskId(0, partition) for partition in range(partitions)]
        self.folder = folder
        self.failed: list[BaseException] = []

    def append(self, key: str, value: str | None, partition: int = 0) -> None:
        batch = Batch(-1, -1, -1, False, [(key.encode(), None if value is None else value.encode(), (), self.now_ms())], 100)
        self.cluster.append(self.cluster.topics["log"].partitions[partition], batch)

    def make_again(self, *keys: str) -> None:
        delete_topic(self.cluster, "log")
        self.cluster.create_topic("log", 2)
        for key in keys:
            self.append(key, "new")

    def lose_tail(self, count: int, *keys: str) -> None:
        """An unclean election loses the last records, and others take their offsets."""
        lose_tail(self.cluster, TP, count)
        for key in keys:
            self.append(key, "new")

    def compact(self) -> None:
        """The brokers compact the changelog, and keep deletions for a day."""
        compact(self.cluster, TP, self.cluster.topics["log"].partitions[0].log.end, self.now_ms() - DAY_MS)

    def now_ms(self) -> int:
        return self.scheduler.now_us // 1_000

    def _clock(self) -> float:
        return self.scheduler.now_us / S_US

    async def member(self, directory: StateDirectory, records_per_s: float | None = None) -> ChangelogRestorer:
        runtime: Any = type("Runtime", (), {"monotonic_s": staticmethod(self._clock), "run_blocking": staticmethod(_at_once)})
        restorer = ChangelogRestorer(
            SimulatedConnection(made=SimulatedClients(self.cluster, "member")),
            dict.fromkeys(self.tasks, ("log",)),
            RocksStore,
            directory,
            runtime=runtime,
            throttle=Throttle(records_per_s, None, self._clock),
            ends_every_s=1.0,
            progressed=lambda: None,
            failed=self.failed.append,
            now_ms=self.now_ms,
        )
        await restorer.start()
        return restorer

    async def state(self) -> dict[str, str]:
        """What a member that comes back has restored of TASK, without its own keys."""
        with StateDirectory(self.folder, "g", "m") as directory:
            restorer = await self.member(directory)
            await restorer.restore(TASK)
            found = (await restorer.open(TASK, {}))["log"].store.items(b"a")
            state = {key.decode(): value.decode() for key, value in found}
            restorer.put_back(TASK)
            await restorer.stop()
        return state

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await test()

        task = VirtualLoop(self.scheduler, "test").create_task(whole())
        try:
            self.scheduler.run(10 * DAY_S * S_US, task.done)
            assert task.done(), "it hangs"
            task.result()
            assert not self.failed
        finally:
            self.scheduler.dispose()


async def _at_once(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


@pytest.mark.parametrize("keys", [["a"], ["a", "b"], ["a", "b", "c", "d"]])
def test_copy_of_a_topic_that_was_made_again_meanwhile_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: list[str]) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        world.append("a", "old")
        world.append("z", "old")
        assert await world.state() == {"a": "old", "z": "old"}
        world.make_again(*keys)
        assert await world.state() == dict.fromkeys(keys, "new")

    world.run(test)
    assert "not using the local copy up to offset 2, because" in caplog.text


def test_copy_of_a_changelog_that_was_emptied_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        world.append("a", "old")
        assert await world.state() == {"a": "old"}
        world.cluster.delete_records(TopicPartition("log", 0), 1)
        assert await world.state() == {}
        caplog.clear()
        world.append("b", "new")
        assert await world.state() == {"b": "new"}
        assert "not using" not in caplog.text

    world.run(test)


def test_standby_notices_that_its_changelog_was_made_again(tmp_path: Path) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        for key in ("a", "z"):
            world.append(key, "old")
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            restorer.follow(TASK)
            await asyncio.sleep(3)
            world.make_again("a", "b", "c")
            await asyncio.sleep(10)
            assert restorer.lags[TASK] == 0
            await restorer.restore(TASK)
            store = (await restorer.open(TASK, {}))["log"].store
            assert dict(store.items(b"a")) == {b"a": b"new", b"b": b"new", b"c": b"new"}
            restorer.put_back(TASK)
            await restorer.stop()

    world.run(test)


def test_standby_notices_although_a_copy_of_another_partition_was_checked_first(tmp_path: Path) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        for partition in (0, 1):
            world.append("a", "old", partition)
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            restorer.follow(TASK)
            restorer.follow(OTHER)
            await asyncio.sleep(3)
            world.make_again("b", "c", "d")
            restorer.leave(OTHER)
            restorer.follow(OTHER)
            await asyncio.sleep(10)
            await restorer.restore(TASK)
            store = (await restorer.open(TASK, {}))["log"].store
            assert dict(store.items(b"a")) == dict.fromkeys((b"b", b"c", b"d"), b"new")
            restorer.put_back(TASK)
            await restorer.stop()

    world.run(test)


@pytest.mark.parametrize("keys", [["c"], ["c", "d"], ["c", "d", "e"]])
def test_copy_of_records_that_an_unclean_election_has_lost_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: list[str]) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        for key in ("a", "ab", "ac"):
            world.append(key, "old")
        assert await world.state() == {"a": "old", "ab": "old", "ac": "old"}
        world.lose_tail(2, *(f"a{key}" for key in keys))
        assert await world.state() == {"a": "old"} | {f"a{key}": "new" for key in keys}
        caplog.clear()
        assert await world.state() == {"a": "old"} | {f"a{key}": "new" for key in keys}
        assert "not using" not in caplog.text

    world.run(test)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_standby_notices_that_its_changelog_has_lost_records(tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: int) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        for key in ("a", "ab", "ac"):
            world.append(key, "old")
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            restorer.follow(TASK)
            await asyncio.sleep(3)
            world.lose_tail(lost, *(f"n{index}" for index in range(lost)))
            await asyncio.sleep(3)
            world.append("a", "newer")
            await asyncio.sleep(10)
            assert restorer.lags[TASK] == 0
            assert f"leader epoch 0 ends at {3 - lost} there" in caplog.text
            await restorer.restore(TASK)
            store = (await restorer.open(TASK, {}))["log"].store
            kept = [b"a", b"ab", b"ac"][: 3 - lost]
            regrown = {f"n{index}".encode(): b"new" for index in range(lost)}
            assert dict(store.items(b"a")) == dict.fromkeys(kept, b"old") | {b"a": b"newer"} | regrown
            restorer.put_back(TASK)
            await restorer.stop()

    world.run(test)


def test_standby_that_opens_before_it_reads_on_notices_lost_records(tmp_path: Path) -> None:
    """The changelog ends where the copy does, so that nothing is read."""
    world = _World(tmp_path)

    async def test() -> None:
        for key in ("a", "ab"):
            world.append(key, "old")
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            restorer.follow(TASK)
            await asyncio.sleep(3)
            world.lose_tail(1, "ac")
            await restorer.restore(TASK)
            store = (await restorer.open(TASK, {}))["log"].store
            assert dict(store.items(b"a")) == {b"a": b"old", b"ac": b"new"}
            restorer.put_back(TASK)
            await restorer.stop()

    world.run(test)


@pytest.mark.parametrize("is_lost", [False, True])
def test_copy_of_a_task_that_ran_while_leaders_changed_counts_unless_records_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_lost: bool
) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        world.append("a", "old")
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            await restorer.restore(TASK)
            stores = await restorer.open(TASK, {})
            for number in range(3):
                world.lose_tail(0)
                await asyncio.sleep(3)  # it hears in which epoch the changelog has what the task has written
                world.append(f"a{number}", "written")
                stores["log"].apply_written({f"a{number}".encode(): b"written"}, (), offset=number + 2)
            restorer.put_back(TASK)
            await restorer.stop()
        caplog.clear()
        written = {"a": "old", "a0": "written", "a1": "written", "a2": "written"}
        if is_lost:
            world.lose_tail(1, "ax", "ay")
            del written["a2"]
            written |= {"ax": "new", "ay": "new"}
        assert await world.state() == written
        assert ("unclean election (leader epoch 3 ends at 3 there)" in caplog.text) == is_lost

    world.run(test)


def test_copy_counts_after_elections_that_lost_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        world.append("a", "old")
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            restorer.follow(TASK)
            for number in range(5):
                await asyncio.sleep(3)
                world.lose_tail(0, f"a{number}")
            await asyncio.sleep(3)
            assert restorer.restored_records == 6
            await restorer.stop()
        world.lose_tail(0)
        assert await world.state() == {"a": "old"} | {f"a{number}": "new" for number in range(5)}
        assert "not using" not in caplog.text

    world.run(test)


def test_copy_of_a_later_epoch_than_the_leader_knows_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cluster was set up again from old disks, with the same topic."""
    world = _World(tmp_path)

    async def test() -> None:
        world.lose_tail(0)
        world.append("a", "old")
        assert await world.state() == {"a": "old"}
        again = world.cluster.topics["log"].partitions[0]
        again.epoch, again.log = 0, PartitionLog("log", 0)
        world.append("ab", "new")
        again.log.raise_high_watermark(1)
        assert await world.state() == {"ab": "new"}
        assert "leader epoch 1 is later than any there" in caplog.text

    world.run(test)


def test_copy_of_a_build_without_ids_is_used_once_and_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        world.append("a", "old")
        await world.state()
        with StateDirectory(tmp_path, "g", "m") as directory:
            store = RocksStore(directory.store(TASK, "log"))
            store.apply({TOPIC_KEY: None, b"only here": b"kept"}, offset=store.offset)
            store.close()
        assert await world.state() == {"a": "old", "only here": "kept"}
        assert "not using" not in caplog.text
        world.make_again("b", "c")
        assert await world.state() == {"b": "new", "c": "new"}

    world.run(test)


def test_changelog_that_cannot_be_read_holds_up_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = _World(tmp_path)
    take = FetchedBatches.take
    broken = True

    def fails(self: FetchedBatches, most: int) -> Any:
        return ([], UnsupportedCodecError("lz4")) if broken and self.place == ("log", 0) else take(self, most)

    async def test() -> None:
        nonlocal broken
        for partition in (0, 1):
            world.append("a", "1", partition)
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            waiting = asyncio.ensure_future(restorer.restore(TASK))
            async with asyncio.timeout(30):
                await restorer.restore(OTHER)
            assert (await restorer.open(OTHER, {}))["log"].store.get(b"a") == b"1"
            await asyncio.sleep(60)
            assert not waiting.done()
            assert caplog.text.count("log/0 cannot be read") == 1
            broken = False
            async with asyncio.timeout(60):
                await waiting
            assert (await restorer.open(TASK, {}))["log"].store.get(b"a") == b"1"
            restorer.put_back(TASK)
            restorer.put_back(OTHER)
            await restorer.stop()

    with mock.patch.object(FetchedBatches, "take", fails):
        world.run(test)


@pytest.mark.parametrize("away_s", [DAY_S // 2, 3 * DAY_S])
def test_copy_that_was_away_for_longer_than_deletions_are_kept_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, away_s: int) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        await asyncio.sleep(5 * DAY_S)
        world.append("a", "old")
        world.append("ab", "old")
        assert await world.state() == {"a": "old", "ab": "old"}
        world.append("a", None)
        await asyncio.sleep(away_s)
        world.compact()
        world.append("ac", "new")
        assert await world.state() == {"ab": "old", "ac": "new"}
        assert caplog.text.count("its deletions are kept for 86400 s") == (away_s > DAY_S)
        caplog.clear()
        world.append("ad", "new")
        assert await world.state() == {"ab": "old", "ac": "new", "ad": "new"}
        assert "not using" not in caplog.text

    world.run(test)


def test_copy_that_was_away_for_long_while_nothing_was_written_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = _World(tmp_path)

    async def test() -> None:
        await asyncio.sleep(5 * DAY_S)
        world.append("a", "old")
        await world.state()
        await asyncio.sleep(3 * DAY_S)
        assert await world.state() == {"a": "old"}
        world.append("ab", "new")
        assert await world.state() == {"a": "old", "ab": "new"}
        assert "not using" not in caplog.text

    world.run(test)


def test_copy_that_a_stop_interrupted_while_it_was_made_of_old_records_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The records that it has are old, and were read a moment ago."""
    world = _World(tmp_path)

    async def test() -> None:
        await asyncio.sleep(5 * DAY_S)
        written = {f"a{number}": "old" for number in range(3 * LEAST_RECORDS)}
        for key in written:
            world.append(key, "old")
        await asyncio.sleep(3 * DAY_S)
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory, records_per_s=0.1)
            restorer.follow(TASK)
            await asyncio.sleep(1)
            await restorer.stop()
            assert 0 < restorer.restored_records < len(written)
        world.append("ab", "new")
        assert await world.state() == {**written, "ab": "new"}
        assert "not using" not in caplog.text


def test_changelogs_that_cannot_be_read_are_logged_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = _World(tmp_path, 12)
    take = FetchedBatches.take
    broken = True

    def fails(self: FetchedBatches, most: int) -> Any:
        return ([], UnsupportedCodecError("lz4")) if broken and self.place[1] != 3 else take(self, most)

    async def test() -> None:
        nonlocal broken
        for task in world.tasks:
            world.append("a", "1", task.partition)
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            waiting = [asyncio.ensure_future(restorer.restore(task)) for task in world.tasks]
            await asyncio.sleep(60)
            assert [task.partition for task, each in zip(world.tasks, waiting, strict=True) if each.done()] == [3]
            assert len([each for each in caplog.messages if "cannot be read" in each]) <= 2, "records of all places come in one or two answers"
            assert "changelog log/0..2, 4..11 cannot be read: UnsupportedCodecError" in caplog.text
            broken = False
            async with asyncio.timeout(60):
                await asyncio.gather(*waiting)
            await restorer.stop()

    with mock.patch.object(FetchedBatches, "take", fails):
        world.run(test)


@pytest.mark.parametrize("without_leader", [[7], [0, 1, 2, 199], list(range(40, 90))])
def test_partitions_without_a_leader_are_found_among_many_on_slow_brokers(tmp_path: Path, without_leader: list[int]) -> None:
    world = _World(tmp_path, 200)

    async def test() -> None:
        with StateDirectory(tmp_path, "g", "m") as directory:
            restorer = await world.member(directory)
            for task in world.tasks:
                restorer.follow(task)
            asking = restorer._asker.end_offsets
            lock, others = asyncio.Lock(), asyncio.Event()

            async def slow(places: Any, *more: Any) -> Any:
                if any(place.partition in without_leader for place in places):
                    await others.wait()  # for the metadata, until the time is over
                async with lock:
                    await asyncio.sleep(0.1)
                return await asking(places, *more)

            with mock.patch.object(restorer._asker, "end_offsets", slow):
                assert await restorer._set_unreadable_apart()
            assert [task.partition for task in world.tasks if restorer._is_apart(task)] == without_leader
            await restorer.stop()

    world.run(test)
