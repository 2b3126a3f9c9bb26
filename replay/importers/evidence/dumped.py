"""Lines of ``kafka-dump-log --offsets-decoder`` of `__consumer_offsets`, as the records that they
were made from: commits, generations of the classic protocol, and what groups of KIP-848 and
KIP-1071 write.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
import types
import typing
from typing import Any
from uuid import UUID

import attrs

from equipoise.kafka.offsets_topic import record_values
from equipoise.kafka.offsets_topic.form import write_value
from equipoise.kafka.offsets_topic.record_keys import VALUES, GroupRecord, RawRecord, read_group_record
from equipoise.kafka.offsets_topic.record_writing import WrittenMember, classic_group_record, group_key, key_of
from equipoise.replay.importers.groups.cluster_recording import RecordedCommit

_LINE = re.compile(
    r"\boffset: (?P<offset>[0-9]{1,15}) .*?CreateTime: (?P<ms>[0-9]{1,13}) .*?"
    r"\bkey: (?P<key>\{.*?\}\}) payload: (?P<payload>\{.*\}|<NULL>|null)"
)
_COMMITS, _GENERATION = ("0", "1"), "2"
_OF_THE_GROUP = (3, 4, 6, 17, 20, 23)
"""Kinds whose key has no second text."""


def read_dumped(text: str) -> RecordedCommit | tuple[str, RawRecord] | None:
    """Returns a commit, or a group and the record of its generation; None: it is no such line."""
    match = _LINE.search(text)
    if match is None:
        return None
    try:
        key = json.loads(match["key"])
        value = json.loads(match["payload"]) if match["payload"].startswith("{") else None
        return _record(str(key["type"]), key["data"], None if value is None else value["data"], int(match["offset"]), int(match["ms"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, binascii.Error, RecursionError):
        return None


def _record(kind: str, key: dict[str, Any], value: dict[str, Any] | None, offset: int, at_ms: int) -> RecordedCommit | tuple[str, RawRecord] | None:
    group = key["group"] if "group" in key else key["groupId"]
    if not isinstance(group, str):
        return None
    if kind.isdecimal() and int(kind[:5]) in VALUES:
        name = None if int(kind) in _OF_THE_GROUP else key["memberId"] if "memberId" in key else key["regularExpression"]
        if not isinstance(name, str | None):
            return None
        raw = None if value is None else write_value(_value(VALUES[int(kind)], value))
        return group, RawRecord(0, offset, at_ms, key_of(int(kind), group, name), raw)
    if kind in _COMMITS:
        committed = None if value is None else int(value["offset"])
        return RecordedCommit(group=group, topic=str(key["topic"]), partition=int(key["partition"]), at_ms=at_ms, committed=committed)
    if kind != _GENERATION:
        return None
    if value is None:
        return group, RawRecord(0, offset, at_ms, group_key(group), None)
    members = [
        WrittenMember(
            member_id=str(each["memberId"]),
            instance_id=each.get("groupInstanceId"),
            client_id=str(each["clientId"]),
            host=str(each["clientHost"]),
            subscription=base64.b64decode(each["subscription"]),
            assignment=base64.b64decode(each["assignment"]),
            rebalance_timeout_ms=int(each.get("rebalanceTimeout", -1)),
            session_timeout_ms=int(each.get("sessionTimeout", -1)),
        )
        for each in value["members"]
    ]
    record = classic_group_record(group, str(value["protocolType"]), int(value["generation"]), str(value["protocol"] or ""), at_ms, members)
    return group, RawRecord(0, offset, at_ms, *record)


def _value(cls: type, read: dict[str, Any]) -> Any:
    """A value of `VALUES` from JSON with Kafka's names. Raises KeyError and TypeError."""
    found = {}
    hints = _hints(cls)
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(cls)
    for field in fields:
        first, *others = field.name.split("_")
        name = first + "".join(each.capitalize() for each in others)
        if name not in read and field.default is not attrs.NOTHING:
            continue
        found[field.name] = _uuid(read[name]) if field.name == "topic_id" else _as(hints[field.name], read[name])
    return cls(**found)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _as(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return None if value is None else _as(typing.get_args(hint)[0], value)
    if typing.get_origin(hint) is tuple:
        return tuple(_as(typing.get_args(hint)[0], each) for each in value)
    if attrs.has(hint):
        return _value(hint, value)
    if hint is bytes:
        return base64.b64decode(value)
    if not isinstance(value, hint):
        raise TypeError(f"{value!r} is no {hint}")
    return value


def _uuid(text: str) -> str:
    """An id as Kafka prints it, as Python does."""
    if re.fullmatch(r"[A-Za-z0-9_-]{22}", text) is None:
        raise ValueError(f"{text!r} is no id")
    return str(UUID(bytes=base64.urlsafe_b64decode(f"{text}==")))


def topic_names(records: list[RawRecord]) -> dict[str, str]:
    """Topic id -> topic, of a group that reads one topic: records name topics by id only."""
    ids: set[str] = set()
    topics: set[str] = set()
    for raw in records:
        record = read_group_record(raw.offset, raw.key, raw.value)
        value = record.value if isinstance(record, GroupRecord) else None
        if isinstance(value, record_values.ConsumerGroupMemberMetadata):
            topics.update(value.subscribed_topic_names)
        elif isinstance(value, record_values.ConsumerGroupTargetAssignmentMember):
            ids.update(each.topic_id for each in value.topic_partitions)
    return {ids.pop(): topics.pop()} if len(ids) == len(topics) == 1 else {}
