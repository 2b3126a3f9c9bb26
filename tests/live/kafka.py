"""Clients for tests, without types, and what only tests do to topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreatePartitionsRequest, DeleteTopicsRequest

from equipoise.kafka import started_clients

admin_client: Any = started_clients.admin_client
reader: Any = started_clients.reader
writer: Any = started_clients.writer
TIMEOUT_MS = 30_000


async def topic_names(admin: Any) -> set[str]:
    return {each["topic"] for each in await admin.describe_topics(None)}


async def delete_topics(admin: Any, topics: Collection[str]) -> None:
    """Has them deleted, which goes on after that."""
    await admin.ask_controller(DeleteTopicsRequest(list(topics), TIMEOUT_MS), lambda answer: None)


async def create_partitions(admin: Any, counts: Mapping[str, int]) -> None:
    """Gives topics so many partitions."""

    def check(answer: Any) -> None:
        for topic, code, message in answer.topic_errors:
            if code:
                raise for_code(code)(f"{topic}: {message}")

    rows = [(topic, (count, None)) for topic, count in counts.items()]
    await admin.ask_controller(CreatePartitionsRequest(rows, TIMEOUT_MS, validate_only=False), check)
