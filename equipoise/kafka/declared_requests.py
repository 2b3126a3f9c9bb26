"""Declares requests, and versions of them, that aiokafka lacks."""

from __future__ import annotations

import operator
import types
from collections.abc import Iterable
from functools import reduce
from io import BytesIO
from typing import Any

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactString, Schema, String, TaggedFields

TEXT, COMPACT_TEXT, TAGS = String("utf-8"), CompactString("utf-8"), ("tags", TaggedFields)


class Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka ships no types
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


class Rest(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka ships no types
    """All that is left."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read()


def declared(key: int, version: int, asks: Schema, answers: Schema, *, flexible: bool = False) -> Any:
    """Returns a version of a request, with its answer as RESPONSE_TYPE. `flexible`: its header ends
    with tags.
    """
    fields = {"API_KEY": key, "API_VERSION": version}
    answer = type(f"Answer{key}V{version}", (Response,), {**fields, "SCHEMA": answers})
    return type(f"Request{key}V{version}", (RequestStruct,), {**fields, "SCHEMA": asks, "RESPONSE_TYPE": answer, "FLEXIBLE_VERSION": flexible})


def in_versions(*versions: Any) -> Any:
    """Returns the base class of a request: `build` fills in the last version that the broker knows,
    of these, which ascend.
    """
    base = Request[reduce(operator.or_, versions)]
    return types.new_class("InVersions", (base,), {}, lambda body: body.update(API_KEY=versions[0].API_KEY))


def by_topic(rows: Iterable[tuple[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Returns each topic with its rows, as requests name partitions. `rows`: a topic, and what is
    asked of one of its partitions.
    """
    topics: dict[str, list[Any]] = {}
    for topic, asked in rows:
        topics.setdefault(topic, []).append(asked)
    return list(topics.items())
