"""Members and workers beside builds that are newer than they are (docs/protocol.md#m9), on a real
broker.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import msgpack
import pytest

from equipoise.events import codec
from equipoise.events.decisions import MemberAssigned
from equipoise.events.facts import MemberJoined, MemberLeft
from equipoise.events.records import DecisionRecord
from equipoise.kafka.started_clients import writer
from equipoise.log.kafka.envelope import group_key
from equipoise.log.kafka.log_opening import open_partitions
from equipoise.log.kafka.topic_making import ensure_topics
from equipoise.member.session import host as member_host
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.live.leader import Leader, leading
from tests.live.swarm import Swarm, checksum_of, topology
from tests.live.test_member import PARTITIONS, Application
from tests.live.test_restorer import until
from tests.live.test_worker import CONFIG


def value_of(record: DecisionRecord, kind: int, version: int, payload: bytes, number: int) -> bytes:
    """A record of the decisions topic as any build may write it."""
    place = (record.log_id, record.group, number, record.caused_by, record.index, record.fact_checksum)
    checksum = codec.decision_checksum(*place, kind, version, payload)
    head = (record.log_id, number, record.caused_by, record.index, record.fact_checksum, checksum, kind, version)
    return b"".join((b"\x99", *map(msgpack.packb, head), payload))


class NewerWorker:
    """Publishes what `leader` decides as a newer build would: with decisions between them that this
    build does not know, and, if `breaking`, the members' sets in a version that it does not know.
    """

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.breaking = False
        self.orders: list[tuple[int, list[Any]]] = []
        """Kind and fields of decisions to publish before the next one of `leader`."""
        self.more = 0
        leader.publish = self.publish  # type: ignore[method-assign, assignment]

    async def publish(self, record: DecisionRecord) -> None:
        kind, version, payload = codec.encode(record.decision)
        orders, self.orders = self.orders, []
        for other, fields in [*orders, (codec.FIRST_INFORMATIONAL_KIND + 1, ["whatever it says"])]:
            await self._send(value_of(record, other, 1, msgpack.packb(fields), record.number + self.more))
            self.more += 1
        if isinstance(record.decision, MemberAssigned):
            version += self.breaking
            payload = msgpack.packb([*msgpack.unpackb(payload), "an appended field"])
        await self._send(value_of(record, kind, version, payload, record.number + self.more))

    async def _send(self, value: bytes) -> None:
        leader = self.leader
        await leader._producer.send_and_wait(leader.topics.decisions, value, key=group_key(leader.group), partition=leader.partition)


async def test_member_works_beside_a_newer_worker_leaves_when_it_cannot_and_comes_back_when_that_is_rolled_back(
    bootstrap: str, prefix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_host, "LONGEST_WAIT_AFTER_FAILURE_S", 3.0)
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", None, "at_least_once") as member,
    ):
        newer = NewerWorker(leader)
        await until(lambda: len(member.running) == PARTITIONS)
        incarnation = member.incarnation
        async with application.member("m2", None, "at_least_once") as other:
            await until(lambda: len(other.running) == 1 and len(member.running) == PARTITIONS - 1)
            await application.order(60)
            await application.until_counted(exactly=True)
        await until(lambda: len(member.running) == PARTITIONS)
        assert (member.incarnation, newer.more > 10) == (incarnation, True)

        newer.breaking = True
        with caplog.at_level(logging.ERROR):
            async with application.member("m2", None, "at_least_once") as other:
                await until(lambda: len(_said(caplog, "m2")) >= 3)
                assert (member.incarnation, len(member.running)) == (incarnation, PARTITIONS)  # what m2 is ordered to do is nothing to it
                assert all("MemberAssigned version 2 is not known to this build, which reads 1 to 1" in each for each in _said(caplog, "m2"))
                assert "this member's build is older than the worker: upgrade it" in _said(caplog, "m2")[0]
                joins, left = (
                    [each.event.incarnation for each in leader.facts if type(each.event) is kind and each.event.member_id == "m2"]
                    for kind in (MemberJoined, MemberLeft)
                )
                # Each announced that it left, so its session was not waited for; the last one may
                # be about to.
                assert len(left) >= len(joins) - 1
                assert left == joins[: len(left)]

                newer.breaking = False
                newer.orders.append((199, ["m1", incarnation, "a kind of order that nobody here knows"]))
                await until(lambda: member.incarnation > incarnation and other.running and member.running)
                assert re.search("event kind 199, version [0-9]+, is not known to this build", _said(caplog, "m1")[0])
                await application.order(60)
                await application.until_counted(exactly=True)


def _said(caplog: pytest.LogCaptureFixture, member_id: str) -> list[str]:
    messages = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    return [each for each in messages if f"member {member_id} has stopped its tasks" in each]


@pytest.mark.smoke
async def test_damaged_decision_ends_an_incarnation_and_the_next_one_begins_behind_it(bootstrap: str, prefix: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology) as leader,
        application.member("m1", None, "at_least_once") as member,
    ):
        await until(lambda: len(member.running) == PARTITIONS)
        incarnation = member.incarnation
        await NewerWorker(leader)._send(b"no decision at all")
        await until(lambda: member.incarnation > incarnation and len(member.running) == PARTITIONS)


async def test_unexpected_error_in_the_link_ends_an_incarnation_and_not_the_member(bootstrap: str, prefix: str) -> None:
    application = Application(bootstrap, prefix)
    await application.make_topics()
    async with (
        leading(bootstrap, prefix, prefix, application.config, application.topology),
        application.member("m1", None, "at_least_once") as member,
    ):
        await until(lambda: len(member.running) == PARTITIONS)
        assert member._host is not None
        incarnation, link = member.incarnation, member._host._link
        whole, failed = link._read_some, asyncio.Event()

        async def fails() -> bool:
            link._read_some = whole  # type: ignore[method-assign]
            failed.set()
            raise ZeroDivisionError

        link._read_some = fails  # type: ignore[method-assign]
        await failed.wait()
        await until(lambda: member.incarnation > incarnation and len(member.running) == PARTITIONS)


async def test_worker_that_was_rolled_back_halts_the_groups_with_decisions_that_it_cannot_read_alone(bootstrap: str, prefix: str) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, http_port=0)
    await ensure_topics(settings, settings.topics)
    opened = await open_partitions(settings, settings.topics)
    async with Swarm(settings, settings.topics) as swarm:
        for group in ("newer", "unknown", "old"):
            await swarm.configure(group, CONFIG, topology(4))
        rejected = [11, "unknown_member", "nobody", 1, []]
        for group, (kind, version, fields) in {"newer": (105, 2, rejected), "unknown": (199, 1, ["nobody", 1])}.items():
            left = MemberLeft(member_id="nobody", incarnation=1)
            sent = await (await swarm.send(group, left))
            place = DecisionRecord(opened.log_id, group, 1, sent.offset, 0, checksum_of(group, left, sent), None)  # type: ignore[arg-type]
            async with writer(settings) as producer:
                value = value_of(place, kind, version, msgpack.packb(fields), 1)
                await producer.send_and_wait(settings.topics.decisions, value, key=group_key(group), partition=0)
        async with Worker(settings) as worker:
            await until(lambda: not worker.unready())
            halted: dict[str, Any] = {lead.name: lead.halted for _, lead in worker.groups() if lead.halted is not None}
            assert {name: each.code for name, each in halted.items()} == {"newer": "event_unknown", "unknown": "event_unknown"}
            assert "EventRejected version 2 is not known to this build" in str(halted["newer"])
            swarm.add("old", ["m1"])
            swarm.start()
            await swarm.until_all_run("old", 4, ["m1"])
