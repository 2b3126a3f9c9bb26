"""Settings of a group (KIP-1043, from Kafka 4.0 on): aiokafka knows those of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka import errors
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int8, Int16, Int32, Schema, TaggedFields

GROUP = 32
"""Type of the resource."""
SET, DELETE = 0, 1
DYNAMIC_GROUP = 8
"""Source of a setting that somebody has given the group itself."""


class IncrementalAlterConfigsResponseV1(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 44
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "responses",
            CompactArray(
                ("error_code", Int16), ("error_message", CompactString("utf-8")), ("resource_type", Int8), ("resource_name", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )  # fmt: skip


_CHANGES = CompactArray(("name", CompactString("utf-8")), ("operation", Int8), ("value", CompactString("utf-8")), ("tags", TaggedFields))


class IncrementalAlterConfigsRequestV1(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 44
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = IncrementalAlterConfigsResponseV1
    SCHEMA = Schema(
        (
            "resources",
            CompactArray(
                ("resource_type", Int8), ("resource_name", CompactString("utf-8")),
                ("configs", _CHANGES),
                ("tags", TaggedFields),
            ),
        ),
        ("validate_only", Boolean),
        ("tags", TaggedFields),
    )  # fmt: skip


class IncrementalAlterConfigs(Request[IncrementalAlterConfigsRequestV1]):  # type: ignore[misc]  # aiokafka has no types
    """Changes settings of a group. None: the setting is taken away."""

    API_KEY = 44

    def __init__(self, group: str, settings: Mapping[str, str | None]) -> None:
        changes: list[Any] = [(name, DELETE if value is None else SET, value, {}) for name, value in settings.items()]
        self._resources: list[Any] = [(GROUP, group, changes, {})]

    def build(self, request_struct_class: type[IncrementalAlterConfigsRequestV1]) -> Any:
        return request_struct_class(self._resources, False, {})


async def set_group_settings(client: Any, group: str, settings: Mapping[str, str | None]) -> None:
    """Changes settings of a group; None takes one away. Raises KafkaError, OSError."""
    answer = await client.send(client.get_random_node(), IncrementalAlterConfigs(group, settings))
    for code, message, *_ in answer.responses:
        if code:
            raise errors.for_code(code)(f"settings of group {group}: {message}")


async def own_group_settings(client: Any, group: str) -> dict[str, str]:
    """The settings that somebody has given the group itself. Raises KafkaError, OSError."""
    answer = await client.send(client.get_random_node(), DescribeConfigsRequest([(GROUP, group, None)], include_synonyms=False))
    ((code, message, _, _, entries),) = answer.resources
    if code:
        raise errors.for_code(code)(f"settings of group {group}: {message}")
    return {entry[0]: entry[1] for entry in entries if entry[3] == DYNAMIC_GROUP}
