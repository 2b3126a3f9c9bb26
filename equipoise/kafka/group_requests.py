"""Requests about consumer groups that aiokafka lacks, in the versions that name static members:
DescribeGroups and LeaveGroup for groups of the classic protocol, ConsumerGroupDescribe and
ConsumerGroupHeartbeat for groups of KIP-848, StreamsGroupDescribe for those of KIP-1071.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Bytes, CompactArray, CompactString, Int8, Int16, Int32, Schema, String, TaggedFields

LEAVES = -1
"""Member epoch of a heartbeat that leaves the group for good (KIP-848)."""


class Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka has no types
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


class DescribeGroupsResponseV4(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 15
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            Array(
                ("error_code", Int16),
                ("group", String("utf-8")),
                ("state", String("utf-8")),
                ("protocol_type", String("utf-8")),
                ("protocol", String("utf-8")),
                (
                    "members",
                    Array(
                        ("member_id", String("utf-8")),
                        ("group_instance_id", String("utf-8")),
                        ("client_id", String("utf-8")),
                        ("client_host", String("utf-8")),
                        ("member_metadata", Bytes),
                        ("member_assignment", Bytes),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    )


class DescribeGroupsRequestV4(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 15
    API_VERSION = 4
    RESPONSE_TYPE = DescribeGroupsResponseV4
    SCHEMA = Schema(("groups", Array(String("utf-8"))), ("include_authorized_operations", Boolean))


class DescribeGroups(Request[DescribeGroupsRequestV4]):  # type: ignore[misc]  # aiokafka has no types
    """Members of groups of the classic protocol that have one coordinator. Of another group the
    state is ``Dead``. `operations`: with what the user may do (KIP-430).
    """

    API_KEY = 15

    def __init__(self, *groups: str, operations: bool = False) -> None:
        self._groups, self._operations = groups, operations

    def build(self, request_struct_class: type[DescribeGroupsRequestV4]) -> DescribeGroupsRequestV4:
        return request_struct_class(list(self._groups), self._operations)


_LEAVING_ANSWERS = Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")), ("error_code", Int16))
_LEAVING_ANSWERS_TAGGED = CompactArray(
    ("member_id", CompactString("utf-8")), ("group_instance_id", CompactString("utf-8")), ("error_code", Int16), ("tags", TaggedFields)
)


class LeaveGroupResponseV3(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 13
    API_VERSION = 3
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16), ("members", _LEAVING_ANSWERS))


class LeaveGroupResponseV5(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 13
    API_VERSION = 5
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16), ("members", _LEAVING_ANSWERS_TAGGED), ("tags", TaggedFields))


class LeaveGroupRequestV3(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 13
    API_VERSION = 3
    RESPONSE_TYPE = LeaveGroupResponseV3
    SCHEMA = Schema(("group", String("utf-8")), ("members", Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")))))


class LeaveGroupRequestV5(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 13
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = LeaveGroupResponseV5
    SCHEMA = Schema(
        ("group", CompactString("utf-8")),
        (
            "members",
            CompactArray(
                ("member_id", CompactString("utf-8")),
                ("group_instance_id", CompactString("utf-8")),
                ("reason", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class LeaveGroup(Request[LeaveGroupRequestV3 | LeaveGroupRequestV5]):  # type: ignore[misc]  # aiokafka has no types
    """Takes members of the classic protocol out of their group, each by its id and
    group.instance.id (None: it has none). A static member is out only if its id is still the one
    that the group knows for its group.instance.id. `reason`: for the broker's log (KIP-800).
    """

    API_KEY = 13

    def __init__(self, group: str, members: Sequence[tuple[str, str | None]], reason: str) -> None:
        self._group, self._members, self._reason = group, members, reason

    def build(self, request_struct_class: type[Any]) -> Any:
        if request_struct_class is LeaveGroupRequestV3:
            return LeaveGroupRequestV3(self._group, list(self._members))
        return LeaveGroupRequestV5(self._group, [(member_id, instance_id, self._reason, {}) for member_id, instance_id in self._members], {})


class ListGroupsResponseV5(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 16
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "groups",
            CompactArray(
                ("group", CompactString("utf-8")),
                ("protocol_type", CompactString("utf-8")),
                ("group_state", CompactString("utf-8")),
                ("group_type", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ListGroupsRequestV5(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 16
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ListGroupsResponseV5
    SCHEMA = Schema(
        ("states_filter", CompactArray(CompactString("utf-8"))), ("types_filter", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields)
    )


class ListGroups(Request[ListGroupsRequestV5]):  # type: ignore[misc]  # aiokafka has no types
    """The groups of a coordinator with their types (KIP-848, KIP-1099)."""

    API_KEY = 16

    def build(self, request_struct_class: type[ListGroupsRequestV5]) -> ListGroupsRequestV5:
        return request_struct_class([], [], {})


_ASSIGNMENT = Schema(
    (
        "topic_partitions",
        CompactArray(("topic_id", Uuid), ("topic_name", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)),
    ),
    ("tags", TaggedFields),
)
_MEMBER = (
    ("member_id", CompactString("utf-8")),
    ("instance_id", CompactString("utf-8")),
    ("rack_id", CompactString("utf-8")),
    ("member_epoch", Int32),
    ("client_id", CompactString("utf-8")),
    ("client_host", CompactString("utf-8")),
    ("subscribed_topic_names", CompactArray(CompactString("utf-8"))),
    ("subscribed_topic_regex", CompactString("utf-8")),
    ("assignment", _ASSIGNMENT),
    ("target_assignment", _ASSIGNMENT),
)


def _described(*members: tuple[str, Any]) -> Schema:
    return Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("group", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", CompactString("utf-8")),
                ("members", CompactArray(*members)),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ConsumerGroupDescribeResponseV0(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 69
    API_VERSION = 0
    SCHEMA = _described(*_MEMBER, ("tags", TaggedFields))


class ConsumerGroupDescribeResponseV1(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 69
    API_VERSION = 1
    SCHEMA = _described(*_MEMBER, ("member_type", Int8), ("tags", TaggedFields))


class ConsumerGroupDescribeRequestV0(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 69
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE: type[Response] = ConsumerGroupDescribeResponseV0
    SCHEMA = Schema(("groups", CompactArray(CompactString("utf-8"))), ("include_authorized_operations", Boolean), ("tags", TaggedFields))


class ConsumerGroupDescribeRequestV1(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 69
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE: type[Response] = ConsumerGroupDescribeResponseV1
    SCHEMA = ConsumerGroupDescribeRequestV0.SCHEMA


class ConsumerGroupDescribe(Request[ConsumerGroupDescribeRequestV0 | ConsumerGroupDescribeRequestV1]):  # type: ignore[misc]  # no types
    """Members of groups of KIP-848 that have one coordinator. Version 1 says which of them use the
    classic protocol.
    """

    API_KEY = 69

    def __init__(self, *groups: str) -> None:
        self._groups = groups

    def build(self, request_struct_class: type[Any]) -> Any:
        return request_struct_class(list(self._groups), False, {})


class Rest(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka has no types
    """All that is left."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read()


class StreamsGroupDescribeResponseV0(Response):  # type: ignore[misc]  # aiokafka has no types
    """`body`: as `DescribedStreamsGroups` reads it, since aiokafka knows no nullable structures."""

    API_KEY = 89
    API_VERSION = 0
    SCHEMA = Schema(("body", Rest))


class StreamsGroupDescribeRequestV0(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 89
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = StreamsGroupDescribeResponseV0
    SCHEMA = ConsumerGroupDescribeRequestV0.SCHEMA


class StreamsGroupDescribe(Request[StreamsGroupDescribeRequestV0]):  # type: ignore[misc]  # aiokafka has no types
    """Members of groups of KIP-1071 that have one coordinator."""

    API_KEY = 89

    def __init__(self, *groups: str) -> None:
        self._groups = groups

    def build(self, request_struct_class: type[StreamsGroupDescribeRequestV0]) -> StreamsGroupDescribeRequestV0:
        return request_struct_class(list(self._groups), False, {})


class ConsumerGroupHeartbeatResponseV0(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 68
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", CompactString("utf-8")),
        ("member_id", CompactString("utf-8")),
        ("member_epoch", Int32),
        ("heartbeat_interval_ms", Int32),
        ("has_assignment", Int8),  # there is none in the answer to a member that leaves
        ("tags", TaggedFields),
    )


class ConsumerGroupHeartbeatRequestV0(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 68
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ConsumerGroupHeartbeatResponseV0
    SCHEMA = Schema(
        ("group", CompactString("utf-8")),
        ("member_id", CompactString("utf-8")),
        ("member_epoch", Int32),
        ("instance_id", CompactString("utf-8")),
        ("rack_id", CompactString("utf-8")),
        ("rebalance_timeout_ms", Int32),
        ("subscribed_topic_names", CompactArray(CompactString("utf-8"))),
        ("server_assignor", CompactString("utf-8")),
        ("topic_partitions", CompactArray(("topic_id", Uuid), ("partitions", CompactArray(Int32)), ("tags", TaggedFields))),
        ("tags", TaggedFields),
    )


class LastHeartbeat(Request[ConsumerGroupHeartbeatRequestV0]):  # type: ignore[misc]  # aiokafka has no types
    """Takes one member of KIP-848 out of its group, as the member itself would."""

    API_KEY = 68

    def __init__(self, group: str, member_id: str, instance_id: str | None) -> None:
        self._group, self._member_id, self._instance_id = group, member_id, instance_id

    def build(self, request_struct_class: type[ConsumerGroupHeartbeatRequestV0]) -> ConsumerGroupHeartbeatRequestV0:
        return request_struct_class(self._group, self._member_id, LEAVES, self._instance_id, None, -1, None, None, None, {})
