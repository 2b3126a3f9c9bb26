"""Groups of KIP-848 and KIP-1071 in what ``kafka-dump-log --offsets-decoder`` prints."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

import attrs
import pytest

from equipoise.kafka.offsets_topic import record_values
from equipoise.kafka.offsets_topic.form import write_value
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.kafka.offsets_topic.record_writing import key_of
from equipoise.replay.importers.evidence.dumped import read_dumped
from equipoise.replay.importers.evidence.files import read_evidence
from equipoise.replay.importers.groups.observed import GroupKind
from equipoise.replay.incident import Cause
from equipoise.replay.incident.from_logs import histories_of
from equipoise.replay.incident.rebalances import rebalances
from tests.group_logs import DATA

DUMPED = DATA / "dumped_kip_848.txt"
"""Lines that the tool of Kafka 4.3.1 printed of a group of two Java consumers, the second of which
joins.
"""
TOPIC = str(UUID(int=77))
KINDS = {
    5: record_values.ConsumerGroupMemberMetadata(
        instance_id=None,
        rack_id="r",
        client_id="c",
        client_host="/10.0.0.1",
        subscribed_topic_names=("t",),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=300_000,
        server_assignor="uniform",
        classic_member_metadata=record_values.ClassicMemberMetadata(
            session_timeout_ms=45_000,
            supported_protocols=(record_values.ClassicProtocol(name="range", metadata=b"\x00\x01"),),
        ),
    ),
    7: record_values.ConsumerGroupTargetAssignmentMember(topic_partitions=(record_values.TopicPartitions(topic_id=TOPIC, partitions=(0, 2)),)),
    17: record_values.StreamsGroupMetadata(epoch=5, metadata_hash=-9),
    19: record_values.StreamsGroupMemberMetadata(
        instance_id=None,
        rack_id=None,
        client_id="i1",
        client_host="/10.0.0.1",
        rebalance_timeout_ms=300_000,
        topology_epoch=1,
        process_id="p",
        user_endpoint=record_values.Endpoint(host="h", port=9),
        client_tags=(record_values.KeyValue(key="k", value="v"),),
    ),
    20: record_values.TargetAssignmentMetadata(assignment_epoch=5),
    21: record_values.StreamsGroupTargetAssignmentMember(
        active_tasks=(record_values.TaskIds(subtopology_id="0", partitions=(1, 3)),),
        standby_tasks=(),
        warmup_tasks=(),
    ),
    22: record_values.StreamsGroupCurrentMemberAssignment(
        member_epoch=5,
        previous_member_epoch=4,
        state=1,
        active_tasks=(record_values.OwnedTaskIds(subtopology_id="0", partitions=(1,)),),
        standby_tasks=(),
        warmup_tasks=(),
        active_tasks_pending_revocation=(),
        standby_tasks_pending_revocation=(),
        warmup_tasks_pending_revocation=(),
    ),
}


def as_kafka_prints(value: Any) -> Any:
    """A value as Kafka's JSON has it: its names, ids in base64."""
    if attrs.has(type(value)):
        found = {}
        for field in attrs.fields(type(value)):
            first, *others = field.name.split("_")
            inner = getattr(value, field.name)
            written = base64.urlsafe_b64encode(UUID(inner).bytes).decode().rstrip("=") if field.name == "topic_id" else as_kafka_prints(inner)
            found[first + "".join(map(str.capitalize, others))] = written
        return found
    if isinstance(value, tuple):
        return [as_kafka_prints(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def line(kind: int, value: Any) -> str:
    key = {"groupId": "g", **({"memberId": "m"} if kind in (5, 7, 8, 19, 21, 22) else {})}
    payload = "<NULL>" if value is None else json.dumps({"version": "0", "data": as_kafka_prints(value)}, separators=(",", ":"))
    return (
        f"| offset: 7 CreateTime: 1795900943210 keySize: 38 valueSize: 31 sequence: 0 headerKeys: []"
        f" key: {json.dumps({'type': str(kind), 'data': key}, separators=(',', ':'))} payload: {payload}"
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_value_is_read_as_the_record_that_it_was(kind: int) -> None:
    name = "m" if kind in (5, 7, 8, 19, 21, 22) else None
    assert read_dumped(line(kind, KINDS[kind])) == ("g", RawRecord(0, 7, 1_795_900_943_210, key_of(kind, "g", name), write_value(KINDS[kind])))
    assert read_dumped(line(kind, None)) == ("g", RawRecord(0, 7, 1_795_900_943_210, key_of(kind, "g", name), None))


def test_value_with_a_field_that_is_missing_or_of_another_kind_is_no_record() -> None:
    whole = line(17, KINDS[17])
    assert read_dumped(whole) is not None
    assert read_dumped(whole.replace('"epoch":5', '"epoch":"5"')) is None
    assert read_dumped(whole.replace('"epoch":5,', "")) is None
    assert read_dumped(line(7, KINDS[7]).replace('"topicId":"', '"topicId":"!')) is None
    assert read_dumped(line(7, KINDS[7]).replace(',"memberId":"m"', "")) is None
    assert read_dumped(line(7, KINDS[7]).replace('"memberId":"m"', '"memberId":5')) is None


def test_dumped_group_of_kip_848_is_told_with_members_and_topic() -> None:
    evidence = read_evidence([str(DUMPED)])
    (history,) = histories_of(evidence).values()
    last = history.states[-1].group
    assert (history.group, last.kind, last.epoch) == ("g-java-848", GroupKind.CONSUMER, 3)
    assert {member.client_id: member.active for member in last.members.values()} == {
        "m1": frozenset({"t-0", "t-1", "t-2"}),
        "m2": frozenset({"t-3", "t-4", "t-5"}),
    }
    assert [(each.cause, each.joined) for each in rebalances(history)] == [(Cause.FIRST, ("m1",)), (Cause.JOINED, ("m2",))]
