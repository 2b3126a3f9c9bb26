"""Groups of every kind on a real broker, with real clients: what we read in `__consumer_offsets` is
what the broker's own classes read there, and what the members have.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import random
import signal
import sqlite3
import string
import subprocess
import sys
import time
import types
import typing
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from equipoise.kafka.client import NewTopic
from equipoise.kafka.connection import Connection
from equipoise.kafka.offsets_topic import form
from equipoise.kafka.offsets_topic.classic import ClassicGroup
from equipoise.kafka.offsets_topic.record_keys import VALUES, GroupRecord, RawRecord, read_group_record
from equipoise.replay.importers.groups.cluster_reading import ClusterReader
from equipoise.replay.importers.groups.cluster_recording import open_recording
from equipoise.replay.importers.groups.observed import GroupKind, ObservedGroup, ObservedGroups
from tests.json_schemas import check
from tests.live.connect import ConnectWorker
from tests.live.group_clients import GroupClient, aiokafka_command, confluent_kafka_command, java_command
from tests.live.group_records import as_kafka_says, read_by_kafka, written_by_kafka
from tests.live.kafka import admin_client, writer
from tests.live.streams import StreamsApplication

PARTITIONS = 4
MOST_S = 90.0
NAMES = {5: "memberId", 7: "memberId", 8: "memberId", 16: "regularExpression", 19: "memberId", 21: "memberId", 22: "memberId"}
"""Kind of a key -> its second field."""


async def read_all(bootstrap: str) -> tuple[list[RawRecord], ObservedGroups]:
    async with ClusterReader(Connection(bootstrap=bootstrap)) as reader:
        records = await reader.poll()
        while not await reader.read_all():
            records += await reader.poll()
        observed = ObservedGroups(await reader.names())
    for record in records:
        observed.read(record)
    assert observed.unread == []
    return records, observed


async def until(bootstrap: str, holds: Callable[[dict[str, ObservedGroup]], bool], what: str) -> dict[str, ObservedGroup]:
    end = time.monotonic() + MOST_S
    while True:
        _, observed = await read_all(bootstrap)
        if holds(observed.groups):
            return observed.groups
        assert time.monotonic() < end, (what, {name: (group.state, group.owners) for name, group in observed.groups.items()})
        await asyncio.sleep(0.3)


async def make_topics(bootstrap: str, *topics: str) -> None:
    async with admin_client(Connection(bootstrap=bootstrap)) as admin, writer(Connection(bootstrap=bootstrap)) as producer:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics])
        for topic in topics:
            for partition in range(PARTITIONS):
                await producer.send(topic, b"", key=b"k", partition=partition)


def compared(records: list[RawRecord]) -> set[int]:
    """Checks every record against the broker's classes. Returns the kinds that were compared."""
    kinds = set()
    for raw, theirs in zip(records, read_by_kafka(records), strict=True):
        ours = read_group_record(raw.offset, raw.key, raw.value)
        if not isinstance(ours, GroupRecord):
            continue
        key = theirs["key"]
        assert (ours.kind, ours.group, ours.name) == (theirs["kind"], key.get("groupId", key.get("group")), key.get(NAMES.get(ours.kind, "")))
        assert ours.deleted == (theirs["value"] is None)
        if isinstance(ours.value, ClassicGroup):
            value = theirs["value"]
            assert (ours.value.protocol_type, ours.value.generation, ours.value.protocol, ours.value.leader) == (
                value["protocolType"],
                value["generation"],
                value["protocol"],
                value["leader"],
            )
            ids = [(each["memberId"], each["groupInstanceId"], each["clientId"], each["clientHost"]) for each in value["members"]]
            assert [(each.member_id, each.static_id, each.client_id, each.host) for each in ours.value.members] == ids
        elif ours.value is not None:
            if theirs["value"].get("classicMemberMetadata", "") is None:
                del theirs["value"]["classicMemberMetadata"]  # written, and null
            assert as_kafka_says(ours.value) == theirs["value"]
        kinds.add(ours.kind)
    return kinds


@pytest.mark.slow
async def test_every_kind_of_group_is_read_as_the_broker_and_its_members_have_it(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    source, into, out, ticks = (f"{prefix}-{name}" for name in ("source", "in", "out", "ticks"))
    await make_topics(bootstrap, source, into, out, ticks)
    recording = str(tmp_path / "cluster.db")
    record = [sys.executable, "-m", "equipoise", "record", f"kafka://{bootstrap}", "--to", recording, "--sample-s", "1"]
    with ExitStack() as running:

        def recorder() -> subprocess.Popen[bytes]:
            process = running.enter_context(subprocess.Popen(record, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
            running.callback(process.kill)
            return process

        def consumer(command: list[str], group: str, topic: str = source, **settings: str) -> GroupClient:
            client = GroupClient(command, topic, bootstrap_servers=bootstrap, group_id=f"{prefix}-{group}", auto_offset_reset="earliest", **settings)
            running.callback(client.close)
            return client

        def application(protocol: str, instance: str) -> StreamsApplication:
            settings = {"group.protocol": protocol, "commit.interval.ms": "200", "num.standby.replicas": "1"}
            if protocol == "classic":
                settings |= {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
            folder = tmp_path / protocol
            return running.enter_context(
                StreamsApplication(bootstrap, f"{prefix}-{protocol}", instance, folder, input=into, output=out, settings=settings)
            )

        killed = recorder()
        clients = [
            consumer(aiokafka_command(), "plain", client_id="one", session_timeout_ms="6000"),
            consumer(confluent_kafka_command(), "next", client_id="one", group_protocol="consumer"),
            consumer(java_command(), "next", client_id="two", group_protocol="consumer", client_rack="r2"),
        ]
        applications = [application("classic", "i1"), application("streams", "i1")]
        workers = [running.enter_context(ConnectWorker(bootstrap, f"{prefix}-connect", tmp_path, name)) for name in ("w1", "w2")]
        for each in applications:
            await asyncio.to_thread(each.until_said, "state RUNNING")
        await asyncio.to_thread(workers[0].add_connector, "source", ticks, 3)
        killed.kill()
        kept = recorder()
        second = application("streams", "i2")
        await asyncio.to_thread(second.until_said, "state RUNNING")

        partitions = {f"{source}-{partition}" for partition in range(PARTITIONS)}
        tasks = {f"0_{partition}" for partition in range(PARTITIONS)}
        connectors = {"source", "source-0", "source-1", "source-2"}
        wanted = {
            "plain": (GroupKind.CLASSIC_CONSUMER, 1, partitions),
            "connect": (GroupKind.CONNECT, 2, connectors),
            "next": (GroupKind.CONSUMER, 2, partitions),
            "classic": (GroupKind.CLASSIC_STREAMS, 1, tasks),
            "streams": (GroupKind.STREAMS, 2, tasks),
        }

        def all_there(groups: dict[str, ObservedGroup]) -> bool:
            return all(
                (group := groups.get(f"{prefix}-{name}")) is not None
                and (group.kind, len({m.client_id for m in group.members.values() if m.active}), set(group.owners)) == expected
                and group.state == "stable"
                for name, expected in wanted.items()
            )

        groups = await until(bootstrap, all_there, "every group has dealt everything")
        told = {f"{source}-{partition}" for client in clients[1:] for partition in client.assigned}
        assert told == partitions
        for member in groups[f"{prefix}-next"].members.values():
            client = clients[1 if member.client_id == "one" else 2]
            assert member.active == member.target == frozenset(f"{source}-{partition}" for partition in client.assigned)
            assert (member.topics, member.rack) == ((source,), {"one": None, "two": "r2"}[member.client_id])
        streams = groups[f"{prefix}-streams"]
        assert streams.sources == {"0": (into,)}
        assert {member.process_id != "" for member in streams.members.values()} == {True}

        second.end("leave")
        clients[2].signal(signal.SIGTERM)
        await until(bootstrap, lambda found: len(found[f"{prefix}-next"].members) == 1 == len(found[f"{prefix}-streams"].members), "both have left")
        mine = [record for record in (await read_all(bootstrap))[0] if prefix.encode() in record.key]
        assert compared(mine) >= {2, 3, 5, 6, 7, 8, 17, 19, 20, 21, 22, 23}

        listed = subprocess.run(  # noqa: ASYNC221
            [sys.executable, "-m", "equipoise", "cluster", "--json", f"kafka://{bootstrap}"], capture_output=True, check=True
        )
        check("cluster", json.loads(listed.stdout))
        rows = [row for row in json.loads(listed.stdout)["groups"] if row["group"].startswith(prefix)]
        kinds = {row["group"].removeprefix(f"{prefix}-"): row["kind"] for row in rows}
        assert kinds == {name: kind.value for name, (kind, _, _) in wanted.items()}
        await asyncio.sleep(3.0)
        kept.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(kept.wait, MOST_S) == 130
    once = await asyncio.to_thread(subprocess.run, [*record, "--once", "--json"], capture_output=True, check=True)
    check("record", json.loads(once.stdout))
    check_recording(recording, prefix, mine, into)


def check_recording(recording: str, prefix: str, mine: list[RawRecord], into: str) -> None:
    """What a recorder has kept that was killed once: each record about a group once, and all."""
    with contextlib.closing(sqlite3.connect(recording)) as db, db:
        assert db.execute("SELECT count(*) - count(DISTINCT partition || '/' || offset) FROM records").fetchone() == (0,)
    with open_recording(recording) as kept:
        places = {(each.partition, each.offset) for each in kept.records()}
        commits = list(kept.commits(f"{prefix}-streams"))
        ends = list(kept.ends())
        observed = ObservedGroups(kept.topics())
        for record in kept.records():
            observed.read(record)
    assert {(each.partition, each.offset) for each in mine if each.key[:2] > b"\x00\x01"} <= places
    assert {(commit.topic, commit.partition, commit.committed) for commit in commits} >= {(into, partition, 1) for partition in range(PARTITIONS)}
    assert ends[-1][1][into] == [1] * PARTITIONS
    assert observed.groups[f"{prefix}-streams"].kind is GroupKind.STREAMS


BITS = {form.int8: 7, form.int16: 15, form.uint16: 16, form.int32: 31, form.int64: 63}
"""Form of a number -> bits of the largest one."""


class Drawn:
    """Values of the records, drawn field by field."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def text(self) -> str:
        return "".join(self.dice.choices(string.ascii_letters + "äß中-_.", k=self.dice.choice((0, 1, 9, 200))))

    def value(self, cls: Any) -> Any:
        hints = typing.get_type_hints(cls)
        return cls(**{field.name: self.field(field, hints[field.name]) for field in attrs.fields(cls)})

    def field(self, field: Any, hint: Any) -> Any:
        if "tag" in field.metadata and self.dice.random() < 0.3:
            return field.default
        if field.name == "topic_id":
            return str(uuid.UUID(int=self.dice.getrandbits(128)))
        bits = BITS.get(field.metadata["form"], 0)
        return self.dice.getrandbits(bits) if bits else self.of(hint)

    def of(self, hint: Any) -> Any:
        if attrs.has(hint):
            return self.value(hint)
        match typing.get_origin(hint), typing.get_args(hint):
            case builtins.tuple, (each, _):
                return tuple(self.of(each) for _ in range(self.dice.choice((0, 1, 2, 200 if each in (int, str) else 3))))
            case types.UnionType, (each, _):
                return self.dice.choice((None, self.of(each)))
        return {int: lambda: self.dice.getrandbits(15), str: self.text, bytes: lambda: self.dice.randbytes(9)}[hint]()


@pytest.mark.smoke
@pytest.mark.new_kafka  # the classes that write them
def test_random_values_of_every_form_are_read_as_the_broker_writes_them() -> None:
    drawn = Drawn(seed := random.randrange(10**9))
    expected = [GroupRecord(kind=kind, group=drawn.text(), name=drawn.text(), value=drawn.value(VALUES[kind])) for kind in sorted(VALUES) * 40]
    keys = [{"groupId": each.group, **({NAMES[each.kind]: each.name} if each.kind in NAMES else {})} for each in expected]
    written = written_by_kafka({"kind": each.kind, "key": key, "value": as_kafka_says(each.value)} for each, key in zip(expected, keys, strict=True))
    for each, raw in zip(expected, written, strict=True):
        read = read_group_record(raw.offset, raw.key, raw.value)
        assert read == attrs.evolve(each, name=each.name if each.kind in NAMES else None), f"seed {seed}"
