"""Settings of a group (KIP-1043, from Kafka 4.0 on): aiokafka knows those of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import errors
from aiokafka.protocol.admin import DescribeConfigsRequest

from equipoise.kafka.client import Admin
from equipoise.kafka.group_requests import GROUP, SetGroupSettings

DYNAMIC_GROUP = 8
"""Source of a setting that somebody has given the group itself."""


async def set_group_settings(admin: Admin, group: str, settings: Mapping[str, str | None]) -> None:
    """Changes settings of a group; None takes one away. Raises KafkaError."""
    answer = await admin.ask(SetGroupSettings(group, settings))
    for code, message, *_ in answer.responses:
        if code:
            raise errors.for_code(code)(f"settings of group {group}: {message}")


async def own_group_settings(admin: Admin, group: str) -> dict[str, str]:
    """The settings that somebody has given the group itself. Raises KafkaError."""
    answer = await admin.ask(DescribeConfigsRequest([(GROUP, group, None)]))
    ((code, message, _, _, entries),) = answer.resources
    if code:
        raise errors.for_code(code)(f"settings of group {group}: {message}")
    return {entry[0]: entry[1] for entry in entries if entry[3] == DYNAMIC_GROUP}
