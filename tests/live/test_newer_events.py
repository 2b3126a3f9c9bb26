"""One group of a log in Kafka has a fact of a kind that this build does not know: readers of the
log go on with all other groups.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.events.records import UnreadRecord
from equipoise.kafka.started_clients import writer
from equipoise.log import open_log
from equipoise.log.kafka.envelope import group_key, pack_fact, pack_payload, partition_of
from equipoise.worker.app import Worker
from equipoise.worker.settings import WorkerSettings
from tests.groups import configured, joined, topology
from tests.live.test_kafka_log import document, equipoise
from tests.live.test_worker import until

LATE = "2100-01-01"
UNKNOWN = "event kind 99, version 1, is not known to this build; upgrade to the one that wrote it"


@pytest.mark.smoke
async def test_unknown_event_affects_only_its_group(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    settings = WorkerSettings(bootstrap=bootstrap, prefix=prefix, partitions=2, http_port=0)
    topics = settings.topics
    small = f"{prefix}small"
    partition = partition_of(small, 2)
    newer = next(name for name in (f"{prefix}n{number}" for number in range(99)) if partition_of(name, 2) == partition)
    async with Worker(settings) as worker:
        await until(lambda: not worker.unready(), "it leads")
        async with writer(settings) as producer:
            for event in (configured(initial_delay_ms=0), topology(stateless=4), joined("m1", 1)):
                await producer.send_and_wait(topics.facts, pack_fact(event), key=group_key(small), partition=partition)
            unknown = await producer.send_and_wait(topics.facts, pack_payload(99, 1, b"\x90"), key=group_key(newer), partition=partition)
            await producer.send_and_wait(topics.facts, pack_fact(joined("m2", 1)), key=group_key(small), partition=partition)
        await until(lambda: any(lead.name == newer and lead.halted is not None for _, lead in worker.groups()), "one group is halted")
        await until(lambda: any(lead.name == small and len(lead.machine.state.members) == 2 for _, lead in worker.groups()), "the other goes on")
    location = f"kafka://{bootstrap}/{prefix}"
    problem = f"offset {unknown.offset}: partition {partition}, group {newer!r}: {UNKNOWN}"

    verified = equipoise("verify", location, "--json")
    groups = {group["group"]: group for group in json.loads(verified.stdout)["groups"]}
    assert (verified.exit_code, verified.stderr) == (2, f"equipoise: {problem}\n")
    assert {name: group["verdict"] for name, group in groups.items()} == {small: "identical", newer: "cannot verify"}
    assert groups[newer]["problem"] == problem
    assert groups[small]["facts"] >= 4
    assert document("verify", location, "--group", small)["verdict"] == "identical"

    listed = equipoise("status", "--bootstrap", bootstrap, "--prefix", prefix)
    assert (listed.exit_code, small in listed.stdout, newer in listed.stdout) == (1, True, True)
    for command in (("status", "--at", LATE), ("timeline",), ("explain", "--task", "1_0")):
        assert document(*command, location, "--group", small)
        refused = equipoise(*command, location, "--group", newer)
        assert (refused.exit_code, refused.stderr) == (2, f"equipoise: {problem}\n")

    for target in (f"{tmp_path}/archive/", f"{tmp_path}/copy.db"):
        source = location if target.endswith("/") else f"{location}?partition={partition}"
        copied = equipoise("archive", source, "--to", target, "--json")
        told = json.loads(copied.stdout)["unread"]
        assert (copied.exit_code, [(each["group"], each["partition"], each["offset"], each["kind"]) for each in told]) == (
            1,
            [(newer, partition, unknown.offset, 99)],
        )
        with open_log(target) as log:
            assert [each.offset for each in log.read() if isinstance(each, UnreadRecord)] == [unknown.offset]
        assert equipoise("verify", target).exit_code == 2
        assert document("verify", target, "--group", small)["verdict"] == "identical"
