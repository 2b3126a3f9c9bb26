"""A rolling upgrade to more partitions, as docs/restarts.md describes it, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import attrs

from equipoise.events.decisions import MemberExpired
from equipoise.events.facts import TopologyDeclared
from equipoise.events.tasks import TaskId
from equipoise.kafka.connection import Connection
from tests.live.kafka import admin_client, create_partitions
from tests.live.leader import leading
from tests.live.test_member import BOTH, PARTITIONS, Application
from tests.live.test_restorer import PATIENCE_S, producing, until

MORE = 2 * PARTITIONS
OLD_TASKS = {TaskId(0, partition) for partition in range(PARTITIONS)}
ALL_TASKS = {TaskId(0, partition) for partition in range(MORE)}


class GrowingApplication(Application):
    """An application whose producer chooses the partition, so that keys keep their partition."""

    async def order(self, records: int) -> None:
        async with producing(self.bootstrap) as producer:
            for number in range(records):
                partition = number % self.partitions
                key = b"customer-%d-%d" % (partition, number % 5)
                await producer.send(self.source, b"%d" % number, key=key, partition=partition)
                self.sent[key] += 1

    async def grow(self) -> None:
        """Adds partitions to every topic. Members made from now on declare them."""
        async with admin_client(Connection(bootstrap=self.bootstrap)) as admin:
            topics = [self.source, self.changelog, self.counts]
            await create_partitions(admin, dict.fromkeys(topics, MORE))
            async with asyncio.timeout(PATIENCE_S):  # the broker answers before its own view of them is new
                while any(len(each["partitions"]) < MORE for each in await admin.describe_topics(topics)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        self.partitions = MORE
        part = attrs.evolve(self.topology.subtopologies[0], partitions=MORE)
        self.topology = TopologyDeclared(epoch=self.topology.epoch + 1, subtopologies=(part,))


@BOTH
async def test_rolling_upgrade_to_more_partitions_loses_no_record(bootstrap: str, prefix: str, tmp_path: Path, guarantee: str) -> None:
    """Old members keep their tasks, new partitions run on new members only, and every order is
    counted once.
    """
    application = GrowingApplication(bootstrap, prefix)
    await application.make_topics()
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        contextlib.AsyncExitStack() as stack,
    ):
        old = [await stack.enter_async_context(application.member(f"m{number}", tmp_path / f"old{number}", guarantee)) for number in range(2)]
        await until(lambda: {*old[0].running, *old[1].running} == OLD_TASKS)
        await application.order(60)

        await application.grow()
        await application.order(60)
        new = [await stack.enter_async_context(application.member("n0", tmp_path / "n0", guarantee))]
        await until(lambda: ALL_TASKS.difference(OLD_TASKS) <= set(new[0].running))
        await application.until_counted(exactly=False)
        assert {*old[0].running, *old[1].running} <= OLD_TASKS

        for member, name in zip(old, ("n1", "n2"), strict=True):
            await member.leave()
            new.append(await stack.enter_async_context(application.member(name, tmp_path / name, guarantee)))
            await application.order(60)
        await until(lambda: all(len(member.running) == MORE // len(new) for member in new))
        await application.order(60)
        counted = await application.until_counted(exactly=False)  # a key's counts are in two output partitions, so their order cannot be checked
        counts = {key: sorted(count for count, _ in each) for key, each in counted.items()}
        assert {key: each[-1] for key, each in counts.items()} == dict(application.sent)
        if guarantee == "exactly_once":
            assert counts == {key: [*range(1, sent + 1)] for key, sent in application.sent.items()}
        assert leader.decided(MemberExpired) == []
