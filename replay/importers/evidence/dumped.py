"""Lines of ``kafka-dump-log --offsets-decoder`` of `__consumer_offsets`, as the records that they
were made from: commits, and generations of the classic protocol.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from equipoise.replay.importers.groups.recording import RecordedCommit
from equipoise.replay.importers.offsets_topic.records import RawRecord
from equipoise.replay.importers.offsets_topic.writing import WrittenMember, classic_group_record

_LINE = re.compile(
    r"\boffset: (?P<offset>[0-9]{1,15}) .*?CreateTime: (?P<ms>[0-9]{1,13}) .*?"
    r"\bkey: (?P<key>\{.*?\}\}) payload: (?P<payload>\{.*\}|<NULL>|null)"
)
_COMMITS, _GENERATION = ("0", "1"), "2"


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
    group = key["group"]
    if not isinstance(group, str):
        return None
    if kind in _COMMITS:
        committed = None if value is None else int(value["offset"])
        return RecordedCommit(group=group, topic=str(key["topic"]), partition=int(key["partition"]), at_ms=at_ms, committed=committed)
    if kind != _GENERATION or value is None:
        return None
    members = [
        WrittenMember(
            member_id=str(each["memberId"]), instance_id=each.get("groupInstanceId"), client_id=str(each["clientId"]), host=str(each["clientHost"]),
            subscription=base64.b64decode(each["subscription"]), assignment=base64.b64decode(each["assignment"]),
            rebalance_timeout_ms=int(each.get("rebalanceTimeout", -1)), session_timeout_ms=int(each.get("sessionTimeout", -1)),
        )
        for each in value["members"]
    ]  # fmt: skip
    record = classic_group_record(group, str(value["protocolType"]), int(value["generation"]), str(value["protocol"] or ""), at_ms, members)
    return group, RawRecord(0, offset, at_ms, *record)
