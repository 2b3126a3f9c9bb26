"""Heartbeats of a member of KIP-848 that takes part, and how its group is described."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactString, Int16, Int32, Schema

from equipoise.kafka.group_requests import ConsumerGroupHeartbeatRequestV0, Rest

JOINS = 0
"""Member epoch of a heartbeat that joins."""


class TakesPartResponseV0(Response):  # type: ignore[misc]  # aiokafka has no types
    """`rest`: the assignment; who reads nothing need not know it."""

    API_KEY = 68
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", CompactString("utf-8")),
        ("member_id", CompactString("utf-8")),
        ("member_epoch", Int32),
        ("heartbeat_interval_ms", Int32),
        ("rest", Rest),
    )


class TakesPartRequestV0(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 68
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = TakesPartResponseV0
    SCHEMA = ConsumerGroupHeartbeatRequestV0.SCHEMA


class ConsumerGroupHeartbeat(Request[TakesPartRequestV0]):  # type: ignore[misc]  # aiokafka has no types
    """Joins (`epoch` JOINS) or stays in a group of KIP-848. What is None is as it was. `rack`: the
    member's rack id. `assignor`: the one that it wishes for its group. `owned`: none, where it
    joins.
    """

    API_KEY = 68

    def __init__(
        self, group: str, member_id: str, epoch: int, *, rack: str | None = None, rebalance_timeout_ms: int = -1,
        topics: Sequence[str] | None = None, assignor: str | None = None,
    ) -> None:  # fmt: skip
        owned: list[Any] | None = [] if epoch == JOINS else None
        wanted = None if topics is None else list(topics)
        self._fields: tuple[Any, ...] = (group, member_id, epoch, None, rack, rebalance_timeout_ms, wanted, assignor, owned, {})

    def build(self, request_struct_class: type[TakesPartRequestV0]) -> Any:
        return request_struct_class(*self._fields)
