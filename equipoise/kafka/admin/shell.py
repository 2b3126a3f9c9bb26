"""The admin client over a `Wire`, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import AlterConfigsRequest, CreateTopicsRequest

from equipoise.kafka.admin.broker_choice import ControllerAlone
from equipoise.kafka.broker_wire import Wire
from equipoise.kafka.client import CLOSE_S, NewTopic, TopicPartition, within
from equipoise.kafka.consumer import group_offsets, leader_questions
from equipoise.kafka.group_coordinators import GroupCoordinators, ask_any
from equipoise.kafka.metadata_requests import TOPIC, DescribeTopics, topic_configs

T = TypeVar("T")
CHANGE_TIMEOUT_MS = 30_000
"""How long brokers may take for what changes topics."""
BROKER = 4
"""Type of a resource that has settings."""
_ALREADY_EXISTS = 36  # Kafka's error TOPIC_ALREADY_EXISTS
_AGAIN_S = 0.1


class WireAdmin:
    """`client.Admin`."""

    def __init__(self, wire: Wire, *, request_timeout_s: float = 40.0) -> None:
        self.wire = wire
        self._within_s = request_timeout_s
        self._groups = GroupCoordinators(wire)

    async def start(self, *, within_s: float | None = None) -> None:
        await self.wire.start(within_s=within_s)

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        await self.wire.stop(within_s=within_s)

    # Whom to ask

    async def ask(self, request: Any, node: int | None = None) -> Any:
        return await (ask_any(self.wire, request) if node is None else self.wire.send(node, request))

    async def ask_controller(self, request: Any, read: Callable[[Any], T]) -> T:
        now_s = asyncio.get_running_loop().time
        choice = ControllerAlone(now_s())
        async with within("an answer of the controller"):
            while True:
                controller = choice.choose(self.wire.controller(), now_s())
                if controller is not None:
                    try:
                        return read(await self.wire.send(controller, request))
                    except KafkaError as error:
                        choice.failed(error, now_s())
                await asyncio.wait((self.wire.refresh(),))
                await asyncio.sleep(_AGAIN_S)

    async def ask_group(self, group: str, request: Any, read: Callable[[Any], T]) -> T:
        return await self._groups.send(group, request, read)

    async def coordinator(self, group: str) -> int:
        return await self._groups.find(group)

    def forget_coordinator(self, group: str) -> None:
        self._groups.forget(group)

    def address(self, node: int) -> tuple[str, int] | None:
        return self.wire.address(node)

    def nodes(self) -> list[int]:
        return sorted(self.wire.nodes())

    # Topics

    async def describe_cluster(self) -> dict[str, Any]:
        return dict((await self.ask(DescribeTopics([]))).to_object())

    async def describe_topics(self, topics: Sequence[str] | None, *, operations: bool = False) -> list[dict[str, Any]]:
        return list((await self.ask(DescribeTopics(topics, operations=operations))).to_object()["topics"])

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, str]:
        asked = [
            (each.name, each.num_partitions, each.replication_factor, list(each.replica_assignments.items()), list(each.topic_configs.items()))
            for each in topics
        ]
        return await self.ask_controller(CreateTopicsRequest(asked, CHANGE_TIMEOUT_MS, validate_only=False), _not_made)

    async def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        return await topic_configs(self.wire, topics)

    async def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        answer = await self.ask(AlterConfigsRequest([(TOPIC, topic, list(configs.items()))]))
        for code, message, *_ in answer.resources:
            if code:
                raise for_code(code)(message)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        await leader_questions.delete_records(self.wire, before, self._within_s)

    async def committed_offsets(self, group: str, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, int | None]:
        found = await group_offsets.committed(self._groups, group, partitions)
        return {place: found.get(place) for place in (found if partitions is None else partitions)}


def _not_made(answer: Any) -> dict[str, str]:
    """Topic -> reason. Raises KafkaError when it passes, as that of a controller that has no time."""
    failed = {}
    for name, code, message in answer.topic_errors:
        if code in (0, _ALREADY_EXISTS):
            continue
        failed[name] = message or str(code)
        if for_code(code).retriable:
            raise for_code(code)(f"topic {name} cannot be made now: {failed[name]}")
    return failed
