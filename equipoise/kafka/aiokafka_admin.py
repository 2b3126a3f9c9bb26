"""aiokafka's admin client, as equipoise needs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    NodeNotReadyError,
    for_code,
)

from equipoise.kafka.aiokafka_lifecycle import AGAIN_S, start_client, stop_client
from equipoise.kafka.aiokafka_metadata import aiokafkas_place, forbid_topic_creation
from equipoise.kafka.client import (
    CLOSE_S,
    NewTopic,
    TopicPartition,
)

_ALREADY_EXISTS = 36  # Kafka's error TOPIC_ALREADY_EXISTS
_CREATE_TIMEOUT_MS = 30_000
_CONTROLLER_S = 5.0
"""How long to wait for brokers that name no controller."""


class DeployedAdmin(AIOKafkaAdminClient):  # type: ignore[misc]
    """`client.Admin`. For some seconds after a broker died the others still name it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        forbid_topic_creation(self._client)

    async def start(self) -> None:
        await start_client(self, super().start, self.stop)

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        await stop_client(self, super().close, within_s)

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, str]:
        answer = await super().create_topics(topics, timeout_ms=_CREATE_TIMEOUT_MS)
        failed = {name: (code, *message) for name, code, *message in answer.topic_errors if code not in (0, _ALREADY_EXISTS)}
        for name, (code, *message) in failed.items():
            if for_code(code).retriable:  # such as a controller that has no time
                raise for_code(code)(f"topic {name} cannot be made now: {message[0] if message else code}")
        return {name: message[0] if message else str(code) for name, (code, *message) in failed.items()}

    async def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        answers = await self.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics])
        found = {}
        for code, _, _, topic, entries in (resource for answer in answers for resource in answer.resources):
            if code:
                raise for_code(code)(f"the settings of topic {topic} cannot be read")
            found[topic] = {entry[0]: entry[1] for entry in entries}
        return found

    async def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        for answer in await self.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))]):
            for code, message, *_ in answer.resources:
                if code:
                    raise for_code(code)(message)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        places = {aiokafkas_place(place): RecordsToDelete(before_offset=offset) for place, offset in before.items()}
        await super().delete_records(places, timeout_ms=_CREATE_TIMEOUT_MS)

    async def committed_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Raises KafkaError, GroupCoordinatorNotAvailableError while the offsets are not available.
        """
        found = await self.list_consumer_group_offsets(group, partitions=list(partitions))
        if not found.keys() >= set(partitions):  # aiokafka passes over an error of the whole answer, which then names no partition
            raise GroupCoordinatorNotAvailableError(f"the offsets of group {group} are not available now")
        return {partition: found[partition].offset if found[partition].offset >= 0 else None for partition in partitions}

    async def _send_to_controller(self, request: Any) -> Any:
        end_s = time.monotonic() + _CONTROLLER_S
        while self._client.cluster.controller is None:  # a broker that has just started names none
            if time.monotonic() > end_s:
                raise NodeNotReadyError("the brokers name no controller yet")
            await self._client.force_metadata_update()
            await asyncio.sleep(AGAIN_S)
        return await super()._send_to_controller(request)

    async def _send_request(self, request: Any, node_id: int | None = None) -> Any:
        if node_id is not None:
            return await super()._send_request(request, node_id)
        gone: Exception = KafkaConnectionError("no broker is known")
        for broker in sorted(self._client.cluster.brokers(), key=lambda each: each.nodeId):
            try:
                return await super()._send_request(request, broker.nodeId)
            except (KafkaConnectionError, NodeNotReadyError) as error:
                gone = error
        raise gone
