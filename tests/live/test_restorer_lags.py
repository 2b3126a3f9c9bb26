"""The lags that a restorer reports, on a real broker. A lag that is too low would move a task to a
member that has most of it to restore.

Each test makes a moment in which the known end is old or unknown, and checks every reported lag.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from equipoise.events.tasks import Lag, LagSentinel, TaskId
from equipoise.member.copies import changelog_ends as ends
from equipoise.member.copies import restorer as restorer_module
from equipoise.member.copies.directory import StateDirectory
from equipoise.member.copies.fencing import ChangelogRecord
from equipoise.member.copies.restorer import ChangelogRestorer
from equipoise.member.copies.stores import MemoryStore, OpenStore, RocksStore
from equipoise.member.copies.throttle import LEAST_RECORDS, Throttle
from tests.live.test_restorer import TASKS, fill, items, make_topic, producing, records_behind, restored, restoring, until

TASK, OTHER = TASKS
MANY = 3_000
NEVER_S = 3_600.0


def heard(restorer: ChangelogRestorer, task: TaskId = TASK) -> list[Lag]:
    """Every lag of `task` that is reported from here on."""
    said: list[Lag] = []
    restorer._progressed = lambda: said.extend(restorer.lags[each] for each in [task] if each in restorer.lags)
    return said


def lowest(said: list[Lag]) -> int:
    return min(lag for lag in said if isinstance(lag, int))


@pytest.fixture
def long_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that was sent while a task opened is still held when the task runs."""
    monkeypatch.setattr(restorer_module, "OPENING_FETCH_WAIT_MS", 5_000)


async def until_fetched(restorer: ChangelogRestorer) -> None:
    """Returns when the consumer holds fetched records that were not taken yet."""
    consumer: Any = restorer._consumer
    await until(consumer.ready)


@pytest.mark.smoke
@pytest.mark.usefixtures("long_fetches")
async def test_lag_of_a_copy_ignores_fetches_for_a_former_copy(bootstrap: str, prefix: str) -> None:
    """A task ran here, then elsewhere, and is followed again. The consumer still holds the first
    record of the next owner, fetched with an old end of the changelog.
    """
    topic = f"{prefix}-log"
    await make_topic(bootstrap, topic)
    async with producing(bootstrap) as producer:
        await fill(producer, topic, 0, 10)
        async with restoring(bootstrap, topic, MemoryStore, throttle=Throttle(records_per_s=LEAST_RECORDS)) as restorer:
            await restored(restorer, TASK)
            await fill(producer, topic, 0, 1)
            await until_fetched(restorer)
            restorer.put_back(TASK)
            await fill(producer, topic, 0, MANY)
            await until(lambda: records_behind(restorer) == MANY + 1)
            said = heard(restorer)
            restorer.follow(TASK)
            await until(lambda: records_behind(restorer) <= MANY + 1 - 2 * LEAST_RECORDS)
            assert lowest(said) > MANY // 2


@pytest.mark.usefixtures("long_fetches")
async def test_copy_that_ran_here_meanwhile_keeps_its_offset(bootstrap: str, prefix: str) -> None:
    """It is not set back to the consumer's position."""
    topic = f"{prefix}-log"
    await make_topic(bootstrap, topic)
    async with producing(bootstrap) as producer:
        await fill(producer, topic, 0, 10)
        async with restoring(bootstrap, topic, MemoryStore) as restorer:
            stores = await restored(restorer, TASK)
            await fill(producer, topic, 0, 10)
            await until_fetched(restorer)
            stores[topic].apply([ChangelogRecord(b"%015d" % 9, b"written last")], offset=20)
            restorer.put_back(TASK)
            await until(lambda: restorer.lags[TASK] == 0)
            restorer.follow(TASK)
            await fill(producer, topic, 0, 5)
            await until(lambda: stores[topic].offset == 25)
            assert dict(items(stores[topic]))[b"%015d" % 9] == b"written last"


@pytest.mark.parametrize(("open_store", "pause_s"), [(MemoryStore, 0.1), (RocksStore, 0.0)])
async def test_copy_that_is_left_and_followed_again_loses_no_record(
    bootstrap: str, prefix: str, tmp_path: Path, open_store: OpenStore, pause_s: float
) -> None:
    """It is left just after its records were taken from the consumer. The next copy reads them
    again.
    """
    topic = f"{prefix}-log"
    await make_topic(bootstrap, topic)
    with StateDirectory(tmp_path, "g", "m") as directory:
        async with producing(bootstrap) as producer:
            await fill(producer, topic, 0, MANY)
        async with restoring(bootstrap, topic, open_store, directory, throttle=Throttle(records_per_s=MANY)) as restorer:
            consumer: Any = restorer._consumer
            taken = consumer.getmany

            async def interrupted(*partitions: Any, **options: Any) -> Any:
                batches = await taken(*partitions, **options)
                if batches:
                    consumer.getmany = taken
                    restorer.leave(TASK)
                    if pause_s:
                        asyncio.get_running_loop().call_later(pause_s, restorer.follow, TASK)
                    else:
                        restorer.follow(TASK)
                return batches

            consumer.getmany = interrupted
            restorer.follow(TASK)
            await until(lambda: consumer.getmany == taken and records_behind(restorer) == 0)
            stores = await restored(restorer, TASK)
            assert len(items(stores[topic])) == MANY
            restorer.put_back(TASK)


async def test_end_of_an_old_fetch_lowers_no_known_end(bootstrap: str, prefix: str) -> None:
    """A throttled copy applies one fetch in small parts; meanwhile the changelog has grown."""
    topic = f"{prefix}-log"
    await make_topic(bootstrap, topic)
    async with producing(bootstrap) as producer:
        await fill(producer, topic, 0, 2 * LEAST_RECORDS)
        async with restoring(bootstrap, topic, MemoryStore, throttle=Throttle(records_per_s=LEAST_RECORDS / 4)) as restorer:
            restorer.follow(TASK)
            await until(lambda: records_behind(restorer) == LEAST_RECORDS)
            await fill(producer, topic, 0, MANY)
            await until(lambda: records_behind(restorer) == LEAST_RECORDS + MANY)
            said = heard(restorer)
            await until(lambda: records_behind(restorer) < LEAST_RECORDS + MANY)
            assert lowest(said) >= MANY


async def test_lag_of_a_stopped_task_is_unknown_until_its_ends_are_requested(bootstrap: str, prefix: str) -> None:
    """A process that was paused closes a task that another member has run since. The ends it knows
    are out of date.
    """
    topic = f"{prefix}-log"
    await make_topic(bootstrap, topic)
    async with producing(bootstrap) as producer:
        await fill(producer, topic, 0, 10)
        async with restoring(bootstrap, topic, MemoryStore, ends_every_s=NEVER_S) as restorer:
            await restored(restorer, TASK)
            await fill(producer, topic, 0, MANY)
            restorer.put_back(TASK)
            assert restorer.lags == {TASK: LagSentinel.UNKNOWN}
            await until(lambda: restorer.lags == {TASK: MANY})  # the restorer requests the ends by itself


async def test_end_from_before_a_copy_was_dropped_is_unknown(bootstrap: str, prefix: str) -> None:
    """The changelog was empty when its copy was dropped."""
    topic = f"{prefix}-log"
    await make_topic(bootstrap, topic)
    async with restoring(bootstrap, topic, MemoryStore) as restorer:
        restorer.follow(TASK)
        await until(lambda: records_behind(restorer) == 0)
        restorer.leave(TASK)
        restorer.forget_kept([])
        async with producing(bootstrap) as producer:
            await fill(producer, topic, 0, MANY)
        restorer.follow(TASK)
        restorer._report(now=True)
        assert restorer.lags == {TASK: LagSentinel.UNKNOWN}
        await until(lambda: records_behind(restorer) == 0)


async def test_copy_ahead_of_its_changelog_is_not_up_to_date(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """The changelog was created again, so the copy cannot be used. It is followed beside another
    one, and is never reported as up to date.
    """
    topic = f"{prefix}-log"
    await make_topic(bootstrap, topic)
    with StateDirectory(tmp_path, "g", "m") as directory:
        async with producing(bootstrap) as producer:
            for partition in (0, 1):
                await fill(producer, topic, partition, 10)
        ahead = RocksStore(directory.store(TASK, topic))
        ahead.apply({b"of another": b"life"}, offset=500)
        ahead.close()
        async with restoring(bootstrap, topic, RocksStore, directory) as restorer:
            assert restorer.lags == {TASK: LagSentinel.UNKNOWN}
            said: list[tuple[Lag, int]] = []

            def note() -> None:
                if TASK in restorer._copies:
                    said.append((restorer.lags[TASK], restorer._copies[TASK].stores[topic].offset))

            restorer._progressed = note
            asker: Any = restorer._asker
            begin = asker.beginning_offsets

            async def joined(partitions: Any) -> Any:
                asker.beginning_offsets = begin
                restorer.follow(TASK)  # while the other copy is placed
                return await begin(partitions)

            asker.beginning_offsets = joined
            restorer.follow(OTHER)
            await until(lambda: records_behind(restorer) == 0)
            assert {offset for lag, offset in said if lag == 0} == {10}
            assert len(items((await restored(restorer, TASK))[topic])) == 10


async def test_end_of_a_changelog_without_leader_is_unknown_and_hides_no_other(
    bootstrap: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last known end must not count as its end, and the ends of other changelogs stay known."""
    monkeypatch.setattr(ends, "ASK_S", 1.0)
    topic = f"{prefix}-log"
    await make_topic(bootstrap, topic, partitions=1)  # the other task's partition has no leader
    with StateDirectory(tmp_path, "g", "m") as directory:
        for task in TASKS:
            store = RocksStore(directory.store(task, topic))
            store.apply({b"key": b"value"}, offset=10)
            store.close()
        async with producing(bootstrap) as producer:
            await fill(producer, topic, 0, 10)
            async with restoring(bootstrap, topic, RocksStore, directory) as restorer:
                assert restorer.lags == {TASK: 0, OTHER: LagSentinel.UNKNOWN}
                restorer._ends.known[next(iter(restorer._partitions(OTHER)))] = 10  # it has just lost its leader
                restorer._report(now=True)
                assert restorer.lags == {TASK: 0, OTHER: 0}
                await fill(producer, topic, 0, MANY)
                await until(lambda: restorer.lags == {TASK: MANY, OTHER: LagSentinel.UNKNOWN})
