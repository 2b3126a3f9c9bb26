"""The state of a task survives a new log, renumbered sub-topologies, a changed guarantee, and late
commits, as docs/restarts.md promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import TopologyDeclared
from equipoise.kafka.connection import Connection
from equipoise.log.kafka.envelope import partition_of
from equipoise.member import Member, MemoryStore, TaskContext
from equipoise.member.copies.fencing import FENCE_KEY, TOPIC_KEY, ChangelogRecord, FencedStore
from equipoise.member.copies.origin import Origin, read_origin
from equipoise.member.tasks.clients import TRANSACTION_TIMEOUT_MS
from examples.orders.recount import everything
from tests.live.kafka import admin_client, reader
from tests.live.leader import Leader, leading
from tests.live.test_fencing import freeze, thaw
from tests.live.test_member import BOTH, COMPACTED, PARTITIONS, Application
from tests.live.test_restorer import make_topic, producing, until

ORDERS = 60
DISKS = pytest.mark.parametrize("disk", ["kept", "empty"])


class Lives:
    """Runs members of one application one after the other, each until all orders are counted:
    exactly once, and in order.
    """

    def __init__(self, bootstrap: str, prefix: str, folder: Path, *, keeps_disk: bool) -> None:
        self.application = Application(bootstrap, prefix)
        self._folder = folder
        self._keeps_disk = keeps_disk
        self._number = 0

    def leading(self, log: str, topology: TopologyDeclared | None = None, partitions: int = 1) -> contextlib.AbstractAsyncContextManager[Leader]:
        of = self.application
        return leading(of.bootstrap, f"{of.prefix}-{log}", of.prefix, of.config, topology or of.topology, partitions)

    async def live(self, log: str, guarantee: str, **options: Any) -> dict[str, set[int]]:
        """Returns the tokens under which each task of the log ran."""
        self._number += 1
        folder = self._folder / ("disk" if self._keeps_disk else f"disk{self._number}")
        async with self.application.member("m1", folder, guarantee, prefix=f"{self.application.prefix}-{log}", **options) as member:
            await until(lambda: len(member.running) == PARTITIONS)
            await self.application.order(ORDERS)
            await self.application.until_counted(exactly=True)
            tokens: dict[str, set[int]] = {}
            for task, token in member.running.items():
                tokens.setdefault(str(task), set()).add(token)
            return tokens


async def forget_sources(application: Application) -> None:
    """Deletes all orders so far, as retention does."""
    from aiokafka import TopicPartition

    partitions = [TopicPartition(application.source, partition) for partition in range(PARTITIONS)]
    async with reader(Connection(bootstrap=application.bootstrap)) as consumer:
        ends = await consumer.end_offsets(partitions)
    async with admin_client(Connection(bootstrap=application.bootstrap)) as admin:
        await admin.delete_records(ends)


async def changelog(application: Application) -> dict[int, list[ChangelogRecord]]:
    """All committed records of each partition."""
    found: dict[int, list[ChangelogRecord]] = {partition: [] for partition in range(PARTITIONS)}
    async for record in everything(Connection(bootstrap=application.bootstrap).options(), application.changelog, "read_committed"):
        found[record.partition].append(ChangelogRecord(record.key, record.value, record.headers))
    return found


def restored(records: Sequence[ChangelogRecord]) -> dict[bytes, bytes]:
    """The keys and values that a task restores from a changelog."""
    fenced = FencedStore(MemoryStore(), "changelog")
    fenced.apply(records, offset=1)
    return {key: value for key, value in fenced.store.items() if key not in (FENCE_KEY, TOPIC_KEY)}


def compacted(records: list[ChangelogRecord]) -> list[ChangelogRecord]:
    """The records that Kafka keeps after compaction."""
    last = {key: place for place, (key, _, _) in enumerate(records)}
    return [record for place, record in enumerate(records) if last[record[0]] == place]


# ------------------------------------------------------------------------- a new log, other numbers


@pytest.mark.slow
@BOTH
@DISKS
async def test_state_survives_a_new_log_and_the_way_back(bootstrap: str, prefix: str, tmp_path: Path, guarantee: str, disk: str) -> None:
    """Tokens begin at 1 again in the second log, which has more partitions, and continue in the
    first one.
    """
    lives = Lives(bootstrap, prefix, tmp_path, keeps_disk=disk == "kept")
    await lives.application.make_topics()
    async with lives.leading("first"):
        for token in (1, 2, 3):
            assert set().union(*(await lives.live("first", guarantee)).values()) == {token}
    await forget_sources(lives.application)
    async with lives.leading("second", partitions=8) as leader:
        assert leader.partition == partition_of(lives.application.prefix, 8)
        for token in (1, 2):
            assert set().union(*(await lives.live("second", guarantee)).values()) == {token}
            await forget_sources(lives.application)
    async with lives.leading("first"):
        assert set().union(*(await lives.live("first", guarantee)).values()) == {4}
    for records in (await changelog(lives.application)).values():
        assert restored(compacted(records)) == restored(records)
        assert {origin.epoch for _, _, headers in records if (origin := read_origin(headers))} == {1, 2, 3}


@BOTH
@DISKS
async def test_state_survives_renumbered_sub_topologies(bootstrap: str, prefix: str, tmp_path: Path, guarantee: str, disk: str) -> None:
    lives = Lives(bootstrap, prefix, tmp_path, keeps_disk=disk == "kept")
    await lives.application.make_topics()
    (part,) = lives.application.topology.subtopologies
    async with lives.leading("log"):
        for epoch, number in enumerate((0, 0, 7, 0)):
            topology = TopologyDeclared(epoch=epoch, subtopologies=(attrs.evolve(part, subtopology=number),))
            tokens = await lives.live("log", guarantee, topology=topology)
            assert tokens == {f"{number}_{partition}": {1 if number else epoch + 1 - (epoch == 3)} for partition in range(PARTITIONS)}


@pytest.mark.smoke
async def test_changelogs_of_a_task_are_fenced(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    lives = Lives(bootstrap, prefix, tmp_path, keeps_disk=False)
    application = lives.application
    await application.make_topics()
    topics = application.changelog, f"{prefix}-second-log"
    await make_topic(bootstrap, topics[1], PARTITIONS, **COMPACTED)
    (part,) = application.topology.subtopologies
    topology = TopologyDeclared(epoch=0, subtopologies=(attrs.evolve(part, changelog_topics=topics),))

    async def count(record: Any, context: TaskContext) -> None:
        totals = {int(state.get(record.key) or b"0") for state in context.states.values()}
        assert len(totals) == 1
        total = totals.pop() + 1
        for state in context.states.values():
            state.put(record.key, b"%d" % total)
        context.send(application.counts, b"%d" % total, key=record.key)

    for log, guarantee in (("first", "at_least_once"), ("second", "exactly_once"), ("first", "exactly_once"), ("second", "at_least_once")):
        async with lives.leading(log, topology):
            await lives.live(log, guarantee, topology=topology, handler=count)
            await forget_sources(application)


# -------------------------------------------------------------------------------- another guarantee


@DISKS
async def test_guarantee_may_change_and_change_back(bootstrap: str, prefix: str, tmp_path: Path, disk: str) -> None:
    lives = Lives(bootstrap, prefix, tmp_path, keeps_disk=disk == "kept")
    await lives.application.make_topics()
    async with lives.leading("log"):
        for guarantee in ("at_least_once", "exactly_once", "exactly_once", "at_least_once", "exactly_once"):
            await lives.live("log", guarantee)


async def test_members_of_both_guarantees_run_side_by_side(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """A rolling restart with the other guarantee: tasks move between members of both."""
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        async with contextlib.AsyncExitStack() as stack:
            members: dict[str, Member] = {}
            for member_id, guarantee in (("m1", "at_least_once"), ("m2", "exactly_once"), ("m3", "at_least_once"), ("m4", "exactly_once")):
                member = await stack.enter_async_context(application.member(member_id, tmp_path, guarantee))
                await until(lambda: sum(len(each.running) for each in members.values()) + len(member.running) == PARTITIONS)  # noqa: B023
                await application.order(ORDERS)
                if len(members) == 1:
                    await members.popitem()[1].leave()
                members[member_id] = member
                await until(lambda: sum(len(each.running) for each in members.values()) == PARTITIONS)
                await application.order(ORDERS)
                await application.until_counted(exactly=True)
        assert leader.decided(MemberExpired) == []


async def test_paused_exactly_once_owner_is_fenced_by_an_at_least_once_owner(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """It pauses in its transaction. The next owner must neither wait until Kafka aborts that, nor
    read its records.
    """
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology) as leader:
        zombie = application.member("m1", tmp_path / "a", "exactly_once")
        async with paused_in_its_commits(application, zombie) as go_on:
            began_s = time.monotonic()
            async with application.member("m2", tmp_path / "b", "at_least_once") as heir:
                await until(lambda: len(heir.running) == PARTITIONS)
                await application.order(ORDERS)
                await application.until_counted(exactly=True)
                assert time.monotonic() - began_s < TRANSACTION_TIMEOUT_MS / 1_000
                assert [each.cause for each in leader.decided(MemberExpired)] == ["session_timeout"]
                go_on.set()
                await until(lambda: zombie.fenced_writes == PARTITIONS)
                await application.order(ORDERS)
                await application.until_counted(exactly=True)


@contextlib.asynccontextmanager
async def paused_in_its_commits(application: Application, member: Member) -> AsyncIterator[asyncio.Event]:
    """A process that pauses when each of its tasks has sent its outputs, and with exactly_once its
    changes. It continues when the event is set.
    """
    go_on = asyncio.Event()
    paused: set[Any] = set()

    def pause(of: Any, name: str, task: Any) -> None:
        step = getattr(of, name)

        async def wait(*arguments: Any) -> Any:
            paused.add(task)
            await go_on.wait()
            return await step(*arguments)

        setattr(of, name, wait)

    await member.__aenter__()
    host: Any = member._host
    try:
        await until(lambda: len(member.running) == PARTITIONS)
        await application.order(ORDERS)
        await application.until_counted(exactly=True)
        runners = list(host.work._runners.values())
        if member._options.transactional:
            pause(runners[0]._writer.producer, "commit_transaction", "all")
        else:
            for runner in runners:
                pause(runner._writer, "append_changes", runner.task)
        await application.order(ORDERS)
        await until(lambda: len(paused) == PARTITIONS or "all" in paused)
        await host._thread.run(freeze(host))
        yield go_on
    finally:
        go_on.set()
        await host._thread.run(thaw(host))
        with contextlib.suppress(Exception):
            await member.__aexit__(None, None, None)


# ------------------------------------------------------------------------------------- late commits


async def test_late_commit_of_a_former_owner_does_not_count(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """It is appended after the next owner has restored, and before that owner's first commit."""
    application = Application(bootstrap, prefix)
    await application.make_topics()
    heir_may = asyncio.Event()

    async def held_back(record: Any, context: TaskContext) -> None:
        await heir_may.wait()
        await application.count(record, context)

    async with leading(bootstrap, prefix, prefix, application.config, application.topology):
        zombie = application.member("m1", tmp_path / "a", "at_least_once")
        async with (
            paused_in_its_commits(application, zombie) as go_on,
            application.member("m2", tmp_path / "b", "at_least_once", handler=held_back) as heir,
            _set_at_the_end(heir_may),
        ):
            await until(lambda: len(heir.running) == PARTITIONS)
            go_on.set()
            await until(lambda: zombie.fenced_writes == PARTITIONS)  # its commit was too late, and it has noticed that
            heir_may.set()
            await until_last_counts_are_right(application)
            await until(lambda: heir.fenced_writes == PARTITIONS)  # it was fenced, and notices that
        async with application.member("m3", tmp_path / "c", "at_least_once") as third:
            await until(lambda: len(third.running) == PARTITIONS)
            await application.order(ORDERS)
            await until_last_counts_are_right(application)
    for records in (await changelog(application)).values():
        assert restored(compacted(records)) == restored(records)


@contextlib.asynccontextmanager
async def _set_at_the_end(event: asyncio.Event) -> AsyncIterator[None]:
    try:
        yield
    finally:
        event.set()


async def until_last_counts_are_right(application: Application) -> None:
    counted = await application.until_counted(exactly=False)
    assert {key: max(count for count, _ in each) for key, each in counted.items()} == dict(application.sent)


async def test_keys_that_a_late_record_hides_from_compaction_are_written_again(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """Keys that get no further orders, and one that has no state."""
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with leading(bootstrap, prefix, prefix, application.config, application.topology):
        for member_id in ("m1", "m2"):
            async with application.member(member_id, tmp_path, "at_least_once") as member:
                await until(lambda: len(member.running) == PARTITIONS)
                await application.order(ORDERS)
                await application.until_counted(exactly=True)
        async with application.member("m3", tmp_path, "at_least_once") as member:
            await until(lambda: len(member.running) == PARTITIONS)
            before = await changelog(application)
            async with producing(bootstrap) as producer:
                for partition, records in before.items():
                    late = attrs.evolve(restored_owner(records), token=1)
                    for key in (*restored(records), b"nobody"):
                        await producer.send_and_wait(application.changelog, b"1000", key=key, partition=partition, headers=[*late.headers])
                    await producer.send_and_wait(application.source, b"0", key=b"another", partition=partition)

            def kept(after: dict[int, list[ChangelogRecord]]) -> bool:
                return all(counts(before[partition]).items() <= counts(compacted(records)).items() for partition, records in after.items())

            async with asyncio.timeout(60):
                while not kept(await changelog(application)):  # noqa: ASYNC110  # what is waited for happens at a broker
                    await asyncio.sleep(0.3)
    for records in (await changelog(application)).values():
        assert b"nobody" not in restored(compacted(records))
        assert [value for key, value, _ in records if key == b"nobody"] == [b"1000", None]


def counts(records: list[ChangelogRecord]) -> dict[bytes, bytes]:
    return {key: value for key, value in restored(records).items() if key.startswith(b"customer")}


def restored_owner(records: list[ChangelogRecord]) -> Origin:
    origins = [read_origin(headers) for _, _, headers in records]
    return max(origin for origin in origins if origin is not None)
