"""What the broker's own classes read in records of `__consumer_offsets`, to compare with ours."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs

from equipoise.kafka.offsets_topic.record_keys import RawRecord
from tools import brokers

_SOURCE = Path(__file__).with_name("java") / "GroupRecords.java"


def _run(mode: str, lines: Iterable[str]) -> list[str]:
    libraries = f"{brokers.jars()}/*"
    classes = brokers.classes(_SOURCE, libraries)
    command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{libraries}", "GroupRecords", mode]
    return subprocess.run(command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, check=True).stdout.splitlines()


def read_by_kafka(records: Iterable[RawRecord]) -> list[dict[str, Any]]:
    """For each record `kind`, `key` and `value` as the broker's classes read them; `value` None: a
    tombstone.
    """

    def text(data: bytes | None) -> str:
        return "-" if data is None else base64.b64encode(data).decode()

    return [json.loads(line) for line in _run("read", (f"{text(each.key)} {text(each.value)}" for each in records))]


def written_by_kafka(records: Iterable[dict[str, Any]]) -> list[RawRecord]:
    """Records of `kind`, `key` and `value` as the broker's classes write them."""
    lines = _run("write", (json.dumps(each) for each in records))
    found = [list(map(base64.b64decode, line.split(" "))) for line in lines]
    return [RawRecord(0, offset, 0, key, value) for offset, (key, value) in enumerate(found)]


def as_kafka_says(value: Any) -> Any:
    """A value of ours in the form of Kafka's JSON: names in camel case, bytes in Base64, topic ids
    as Kafka prints them, and no optional field that has its default.
    """
    if attrs.has(type(value)):
        found = {}
        for field in attrs.fields(type(value)):
            content = getattr(value, field.name)
            if "tag" in field.metadata and content == field.default:
                continue
            words = field.name.split("_")
            name = words[0] + "".join(word.capitalize() for word in words[1:])
            found[name] = _topic_id(content) if field.name == "topic_id" else as_kafka_says(content)
        return found
    if isinstance(value, tuple):
        return [as_kafka_says(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _topic_id(text: str) -> str:
    return base64.urlsafe_b64encode(UUID(text).bytes).decode().rstrip("=")
