"""Requests about groups that aiokafka lacks, in the versions that name static members: of groups of
the classic protocol, of KIP-848 and of KIP-1071; and about their settings (KIP-1043).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import errors
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.admin import DescribeConfigsRequest, ListGroupsRequest_v1
from aiokafka.protocol.types import Array, Boolean, Bytes, CompactArray, Int8, Int16, Int32, Schema

from equipoise.kafka.client import Admin
from equipoise.kafka.declared_requests import COMPACT_TEXT, TAGS, TEXT, Rest, Uuid, declared, in_versions

JOINS, LEAVES = 0, -1
"""Member epochs of heartbeats that join a group, and leave it for good (KIP-848)."""
GROUP = 32
"""Type of a resource that has settings."""
_SET, _DELETE = 0, 1
_THROTTLE, _ERROR, _MESSAGE = ("throttle_time_ms", Int32), ("error_code", Int16), ("error_message", COMPACT_TEXT)


class DescribeGroups(
    in_versions(  # type: ignore[misc]  # aiokafka ships no types
        declared(
            15, 4,
            Schema(("groups", Array(TEXT)), ("include_authorized_operations", Boolean)),
            Schema(_THROTTLE, ("groups", Array(
                _ERROR, ("group", TEXT), ("state", TEXT), ("protocol_type", TEXT), ("protocol", TEXT),
                ("members", Array(
                    ("member_id", TEXT), ("group_instance_id", TEXT), ("client_id", TEXT), ("client_host", TEXT),
                    ("member_metadata", Bytes), ("member_assignment", Bytes))),
                ("authorized_operations", Int32)))),
        )
    )
):  # fmt: skip # a table: one row a line
    """Members of groups of the classic protocol that have one coordinator. Of another group the
    state is ``Dead``. `operations`: with what the user may do (KIP-430).
    """

    def __init__(self, *groups: str, operations: bool = False) -> None:
        self._groups, self._operations = groups, operations

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(list(self._groups), self._operations)


_LEAVE_V3 = declared(
    13, 3,
    Schema(("group", TEXT), ("members", Array(("member_id", TEXT), ("group_instance_id", TEXT)))),
    Schema(_THROTTLE, _ERROR, ("members", Array(("member_id", TEXT), ("group_instance_id", TEXT), _ERROR))),
)  # fmt: skip # a table: one row a line
_LEAVE_V5 = declared(
    13, 5,
    Schema(("group", COMPACT_TEXT), ("members", CompactArray(
        ("member_id", COMPACT_TEXT), ("group_instance_id", COMPACT_TEXT), ("reason", COMPACT_TEXT), TAGS)), TAGS),
    Schema(_THROTTLE, _ERROR, ("members", CompactArray(
        ("member_id", COMPACT_TEXT), ("group_instance_id", COMPACT_TEXT), _ERROR, TAGS)), TAGS),
    flexible=True,
)  # fmt: skip # a table: one row a line


class LeaveGroup(in_versions(_LEAVE_V3, _LEAVE_V5)):  # type: ignore[misc]  # aiokafka ships no types
    """Takes members of the classic protocol out of their group, each by its id and
    group.instance.id (None: it has none). A static member is out only if its id is still the one
    that the group knows for its group.instance.id. `reason`: for the broker's log (KIP-800).
    """

    def __init__(self, group: str, members: Sequence[tuple[str, str | None]], reason: str) -> None:
        self._group, self._members, self._reason = group, members, reason

    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is _LEAVE_V3:
            return request_struct_class(self._group, list(self._members))
        return request_struct_class(self._group, [(*each, self._reason, {}) for each in self._members], {})


_LIST_V5 = declared(
    16, 5,
    Schema(("states_filter", CompactArray(COMPACT_TEXT)), ("types_filter", CompactArray(COMPACT_TEXT)), TAGS),
    Schema(_THROTTLE, _ERROR, ("groups", CompactArray(
        ("group", COMPACT_TEXT), ("protocol_type", COMPACT_TEXT), ("group_state", COMPACT_TEXT), ("group_type", COMPACT_TEXT), TAGS)), TAGS),
    flexible=True,
)  # fmt: skip # a table: one row a line


class ListGroups(in_versions(ListGroupsRequest_v1, _LIST_V5)):  # type: ignore[misc]  # aiokafka ships no types
    """The groups of a coordinator. `typed`: with their types and states (KIP-848, KIP-1099), which
    brokers tell from Kafka 3.8 on.
    """

    def __init__(self, *, typed: bool = True) -> None:
        self._typed = typed

    def build(self, request_struct_class: Any) -> Any:
        """Raises IncompatibleBrokerVersion when the broker tells no types."""
        if request_struct_class is _LIST_V5:
            return request_struct_class([], [], {})
        if self._typed:
            raise IncompatibleBrokerVersion("the broker does not tell the types of groups")
        return request_struct_class()


_ASSIGNMENT = Schema(
    ("topic_partitions", CompactArray(("topic_id", Uuid), ("topic_name", COMPACT_TEXT), ("partitions", CompactArray(Int32)), TAGS)), TAGS
)
_MEMBER = (
    ("member_id", COMPACT_TEXT), ("instance_id", COMPACT_TEXT), ("rack_id", COMPACT_TEXT), ("member_epoch", Int32), ("client_id", COMPACT_TEXT),
    ("client_host", COMPACT_TEXT), ("subscribed_topic_names", CompactArray(COMPACT_TEXT)), ("subscribed_topic_regex", COMPACT_TEXT),
    ("assignment", _ASSIGNMENT), ("target_assignment", _ASSIGNMENT),
)  # fmt: skip # a table: one row a line
_NAMED_GROUPS = Schema(("groups", CompactArray(COMPACT_TEXT)), ("include_authorized_operations", Boolean), TAGS)


def _described(*members: tuple[str, Any]) -> Schema:
    return Schema(_THROTTLE, ("groups", CompactArray(
        _ERROR, _MESSAGE, ("group", COMPACT_TEXT), ("state", COMPACT_TEXT), ("group_epoch", Int32), ("assignment_epoch", Int32),
        ("assignor", COMPACT_TEXT), ("members", CompactArray(*members)), ("authorized_operations", Int32), TAGS)), TAGS)  # fmt: skip # a table


class _OfGroups:
    def __init__(self, *groups: str) -> None:
        self._groups = groups

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(list(self._groups), False, {})


class ConsumerGroupDescribe(
    _OfGroups,
    in_versions(  # type: ignore[misc]  # aiokafka ships no types
        declared(69, 0, _NAMED_GROUPS, _described(*_MEMBER, TAGS), flexible=True),
        declared(69, 1, _NAMED_GROUPS, _described(*_MEMBER, ("member_type", Int8), TAGS), flexible=True),
    ),
):
    """Members of groups of KIP-848 that have one coordinator. Version 1 says which of them use the
    classic protocol.
    """


class StreamsGroupDescribe(
    _OfGroups,
    in_versions(declared(89, 0, _NAMED_GROUPS, Schema(("body", Rest)), flexible=True)),  # type: ignore[misc]  # aiokafka ships no types
):
    """Members of groups of KIP-1071 that have one coordinator. The answer's `body`: as
    `DescribedStreamsGroups` reads it, since aiokafka knows no nullable structures.
    """


class ConsumerGroupHeartbeat(
    in_versions(  # type: ignore[misc]  # aiokafka ships no types
        declared(
            68, 0,
            Schema(
                ("group", COMPACT_TEXT), ("member_id", COMPACT_TEXT), ("member_epoch", Int32), ("instance_id", COMPACT_TEXT),
                ("rack_id", COMPACT_TEXT), ("rebalance_timeout_ms", Int32), ("subscribed_topic_names", CompactArray(COMPACT_TEXT)),
                ("server_assignor", COMPACT_TEXT),
                ("topic_partitions", CompactArray(("topic_id", Uuid), ("partitions", CompactArray(Int32)), TAGS)), TAGS,
            ),
            Schema(
                _THROTTLE, _ERROR, _MESSAGE, ("member_id", COMPACT_TEXT), ("member_epoch", Int32), ("heartbeat_interval_ms", Int32),
                ("assignment", Rest),
            ),
            flexible=True,
        )
    )
):  # fmt: skip # a table: one row a line
    """Joins (`epoch` JOINS) or stays in a group of KIP-848, or takes one member out of it as the
    member itself would (LEAVES). What is None is as it was. `rack`: the member's rack id.
    `assignor`: the one that it wishes for its group. `owned`: none, where it joins. The answer's
    `assignment` is not read: who reads nothing need not know it.
    """

    def __init__(
        self, group: str, member_id: str, epoch: int, *, instance_id: str | None = None, rack: str | None = None, rebalance_timeout_ms: int = -1,
        topics: Sequence[str] | None = None, assignor: str | None = None,
    ) -> None:  # fmt: skip # a table: one row a line
        owned: list[Any] | None = [] if epoch == JOINS else None
        wanted = None if topics is None else list(topics)
        self._fields: tuple[Any, ...] = (group, member_id, epoch, instance_id, rack, rebalance_timeout_ms, wanted, assignor, owned, {})

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(*self._fields)


class SetGroupSettings(
    in_versions(  # type: ignore[misc]  # aiokafka ships no types
        declared(
            44, 1,
            Schema(
                ("resources", CompactArray(
                    ("resource_type", Int8), ("resource_name", COMPACT_TEXT),
                    ("configs", CompactArray(("name", COMPACT_TEXT), ("operation", Int8), ("value", COMPACT_TEXT), TAGS)), TAGS)),
                ("validate_only", Boolean), TAGS,
            ),
            Schema(_THROTTLE, ("responses", CompactArray(
                _ERROR, _MESSAGE, ("resource_type", Int8), ("resource_name", COMPACT_TEXT), TAGS)), TAGS),
            flexible=True,
        )
    )
):  # fmt: skip # a table: one row a line
    """Changes settings of a group (IncrementalAlterConfigs). None: the setting is taken away."""

    def __init__(self, group: str, settings: Mapping[str, str | None]) -> None:
        changes: list[Any] = [(name, _DELETE if value is None else _SET, value, {}) for name, value in settings.items()]
        self._resources: list[Any] = [(GROUP, group, changes, {})]

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._resources, False, {})


# Settings of a group (KIP-1043, from Kafka 4.0 on): aiokafka knows those of topics and brokers.

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
