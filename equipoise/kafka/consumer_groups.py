"""Consumer groups as their coordinator knows them: lists the members of a group, and takes one out
on its behalf. For groups of the classic protocol and of KIP-848, whatever client their members use.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import attrs
from aiokafka import errors

from equipoise.events.errors import InputError
from equipoise.kafka.client import FIRST_ANSWER_S, Admin
from equipoise.kafka.connection import Connection
from equipoise.kafka.group_requests import LEAVES, ConsumerGroupDescribe, ConsumerGroupHeartbeat, DescribeGroups, LeaveGroup, ListGroups

RETRY_S = 0.2
REQUEST_TIMEOUT_MS = 3_000
REASON = "its process has ended; removed on its behalf by equipoise"

UNSUPPORTED_VERSION, UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND, FENCED_INSTANCE_ID = 35, 25, 69, 82
_NO_MEMBER_NOW = {UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND, FENCED_INSTANCE_ID}
"""Answers which say that this member id is out of the group already."""
_OTHER_PROTOCOL = {UNSUPPORTED_VERSION, GROUP_ID_NOT_FOUND}
_CLASSIC_MEMBER = 0
"""Type of a member that uses the classic protocol in a group of KIP-848."""

MemberProtocol = Literal["classic", "consumer"]
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class GroupMember:
    """A member as the coordinator knows it. `member_id`: given by the coordinator or, with KIP-848,
    by the client; a process that joins again has another one. `instance_id`: group.instance.id;
    None: it has none. `host`: address of the client as the broker sees it. `protocol`: how it takes
    part: ``consumer`` is KIP-848. `subscription`, `assignment`: as its client wrote them with the
    classic protocol; empty while the group rebalances.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    protocol: MemberProtocol
    subscription: bytes = attrs.field(default=b"", eq=False, repr=False)
    assignment: bytes = attrs.field(default=b"", eq=False, repr=False)

    def __str__(self) -> str:
        instance = "" if self.instance_id is None else f"instance id {self.instance_id}, "
        return f"{self.member_id} ({instance}client id {self.client_id}, host {self.host})"


@attrs.frozen(kw_only=True)
class ClassicDescription:
    """A group of the classic protocol, as DescribeGroups shows it. `state`: ``Stable``,
    ``PreparingRebalance``, ...; ``Dead``: it is no such group. `operations`: what the user may do,
    in bits.
    """

    name: str
    error_code: int
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    operations: int


@attrs.frozen(kw_only=True)
class MemberKey:
    """What a member is found by: all that is not None must be equal. `hosts`: one of them. In
    `instance_id` and `client_id` a ``*`` stands for any text, so that one process may have several
    members, each with an id of its own.
    """

    member_id: str | None = None
    instance_id: str | None = None
    client_id: str | None = None
    hosts: frozenset[str] | None = None

    @property
    def is_empty(self) -> bool:
        """Returns whether every member matches."""
        return self == MemberKey()

    @property
    def is_pattern(self) -> bool:
        return "*" in f"{self.instance_id}{self.client_id}"

    def matches(self, member: GroupMember) -> bool:
        wanted = ((self.instance_id, member.instance_id), (self.client_id, member.client_id))
        is_it = self.member_id in (None, member.member_id) and all(_fits(key, value) for key, value in wanted)
        return is_it and (self.hosts is None or member.host in self.hosts)

    def __str__(self) -> str:
        parts = (("member id", self.member_id), ("instance id", self.instance_id), ("client id", self.client_id))
        hosts = [] if self.hosts is None else [f"host {' or '.join(sorted(self.hosts)) or 'unknown'}"]
        return ", ".join([*(f"{name} {value}" for name, value in parts if value is not None), *hosts])


def _fits(key: str | None, value: str | None) -> bool:
    if key is None or value is None:
        return key is None
    return re.fullmatch(".*".join(map(re.escape, key.split("*"))), value, re.DOTALL) is not None


def normalised(host: str) -> str:
    """An address in one form: brokers write ``/127.0.0.1``, ``name/127.0.0.1`` or
    ``/0:0:0:0:0:0:0:1``. What is no address stays as it is.
    """
    text = host.rpartition("/")[2].partition("%")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


class ConsumerGroup:
    """One group, through its coordinator, while this is open. Nothing is connected before the first
    request. A request is made once, and raises KafkaError when it fails; see `repeated`. `quiet`:
    the client library's own log is switched off, because who asks says in one line what failed; not
    in an application's process.
    """

    def __init__(
        self, connection: Connection, group: str, *, request_timeout_ms: int = REQUEST_TIMEOUT_MS, client_id: str = "equipoise", quiet: bool = True
    ) -> None:
        self.group = group
        self._quiet, self._connection = quiet, connection
        self._options: dict[str, Any] = {"request_timeout_ms": request_timeout_ms, "client_id": client_id}
        self._admin: Admin | None = None
        self._protocol: MemberProtocol = "classic"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def admin(self) -> Admin:
        """The client, which is connected. Raises KafkaError."""
        if self._admin is None:
            admin = self._connection.clients.admin(**self._options)
            await admin.start(within_s=FIRST_ANSWER_S)
            if self._quiet:
                logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
            self._admin = admin
        return self._admin

    async def members(self) -> list[GroupMember]:
        """The present members; empty when there is no such group."""
        other: MemberProtocol = "consumer" if self._protocol == "classic" else "classic"
        for protocol in (self._protocol, other):
            found = await (self._classic_members() if protocol == "classic" else self._consumer_members())
            if found is not None:
                self._protocol = protocol
                return found
        return []

    async def remove(self, member: GroupMember) -> bool:
        """Takes the member out of the group. False: this member id was out already."""
        if member.protocol == "consumer":
            code = (await self.send(ConsumerGroupHeartbeat(self.group, member.member_id, LEAVES, instance_id=member.instance_id))).error_code
        else:
            answer = await self.send(LeaveGroup(self.group, [(member.member_id, member.instance_id)], REASON))
            code = answer.error_code or answer.members[0][2]
        if code in _NO_MEMBER_NOW:
            return False
        self.check(code)
        return True

    async def coordinator(self) -> frozenset[tuple[str, int]]:
        """Addresses and port at which clients of this machine reach the coordinator. Raises
        StaleMetadata while the coordinator is unknown.
        """
        admin = await self.admin()
        address = admin.address(await admin.coordinator(self.group))
        if address is None:
            raise errors.StaleMetadata("the coordinator is unknown")
        host, port = address
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return frozenset((normalised(str(each[4][0])), port) for each in found)

    async def _classic_members(self) -> list[GroupMember] | None:
        """None: it is no group of the classic protocol."""
        group = await self.describe()
        return None if group.error_code == GROUP_ID_NOT_FOUND or group.state == "Dead" else list(group.members)

    async def describe(self) -> ClassicDescription:
        """The group, if it is one of the classic protocol. Raises InputError when the brokers are
        too old.
        """
        try:
            (group,) = classic_groups(await self.send(DescribeGroups(self.group)))
        except NotImplementedError:
            raise InputError("the brokers do not name static members; Kafka 2.4 or later is needed") from None
        if group.state != "Dead" and group.error_code != GROUP_ID_NOT_FOUND:
            self.check(group.error_code)
        return group

    async def _consumer_members(self) -> list[GroupMember] | None:
        """None: it is no group of KIP-848."""
        described = await self.describe_consumers()
        return None if described is None else [_consumer_member(each) for each in described]

    async def describe_consumers(self) -> list[Any] | None:
        """The members as ConsumerGroupDescribe shows them; None: it is no group of KIP-848."""
        try:
            answer = await self.send(ConsumerGroupDescribe(self.group))
        except errors.IncompatibleBrokerVersion:  # brokers before 3.7
            return None
        (group,) = answer.to_object()["groups"]
        if group["error_code"] in _OTHER_PROTOCOL:
            return None
        self.check(group["error_code"])
        return list(group["members"])

    def check(self, code: int) -> None:
        """Raises the KafkaError of an error code; 0 is none."""
        if code:
            self.forget_coordinator()
            raise _error_of(code)(f"group {self.group}, error code {code}")

    async def send(self, request: Any) -> Any:
        """Sends a request to the coordinator. Raises KafkaError."""
        return await (await self.admin()).ask_group(self.group, request, lambda answer: answer)

    async def node(self) -> int:
        """Returns the broker that coordinates the group. Raises KafkaError."""
        return await (await self.admin()).coordinator(self.group)

    def forget_coordinator(self) -> None:
        """The next request looks for it again."""
        if self._admin is not None:
            self._admin.forget_coordinator(self.group)

    async def close(self) -> None:
        if self._admin is not None:
            await self._admin.stop()
            self._admin = None


async def repeated(attempt: Callable[[], Awaitable[T]], within_s: float) -> T:
    """Repeats `attempt` while it fails for a reason that may pass. Raises the last KafkaError or
    OSError after `within_s`, and another one at once.
    """
    now_s = asyncio.get_running_loop().time
    by_s = now_s() + within_s
    while True:
        try:
            return await attempt()
        except (errors.KafkaError, OSError) as error:
            if now_s() >= by_s or not (isinstance(error, OSError) or error.retriable):
                raise
        await asyncio.sleep(RETRY_S)


def _error_of(code: int) -> type[Exception]:
    found: type[Exception] = errors.for_code(code)
    return found


def classic_groups(answer: Any) -> list[ClassicDescription]:
    """Reads an answer to DescribeGroups."""
    return [
        ClassicDescription(
            name=each["group"],
            error_code=each["error_code"],
            state=each["state"],
            protocol_type=each["protocol_type"],
            protocol=each["protocol"],
            members=tuple(_classic_member(member, settled=each["state"] == "Stable") for member in each["members"]),
            operations=each["authorized_operations"],
        )
        for each in answer.to_object()["groups"]
    ]


def _classic_member(found: dict[str, Any], *, settled: bool) -> GroupMember:
    return GroupMember(
        member_id=found["member_id"],
        instance_id=found["group_instance_id"],
        client_id=found["client_id"],
        host=normalised(found["client_host"]),
        protocol="classic",
        subscription=(found["member_metadata"] or b"") if settled else b"",
        assignment=(found["member_assignment"] or b"") if settled else b"",
    )


def _consumer_member(found: dict[str, Any]) -> GroupMember:
    return GroupMember(
        member_id=found["member_id"],
        instance_id=found["instance_id"],
        client_id=found["client_id"],
        host=normalised(found["client_host"]),
        protocol="classic" if found.get("member_type") == _CLASSIC_MEMBER else "consumer",
    )


# Groups of a cluster, as their coordinators list them.


@attrs.frozen(kw_only=True)
class ListedGroup:
    """A group, as its coordinator lists it. `group_type`: ``classic``, ``consumer``, ``streams``,
    ``share``. `protocol_type`: ``consumer`` for a classic group of consumers. `state`: Kafka's own
    word, as ``Stable``.
    """

    name: str
    group_type: str
    protocol_type: str
    state: str


async def listed_groups(connection: Connection) -> list[ListedGroup]:
    """Every group that the user may see, by name. Raises KafkaError, and InputError where brokers
    are too old to tell groups' types.
    """
    admin = connection.clients.admin()
    await admin.start(within_s=FIRST_ANSWER_S)
    try:
        found = [each for node_id in admin.nodes() for each in await groups_of(admin, node_id)]
    finally:
        await admin.stop()
    return sorted(found, key=lambda each: each.name)


async def groups_of(admin: Admin, node_id: int, *, typed: bool = True) -> list[ListedGroup]:
    """The groups that a broker coordinates. `typed`: with types and states, or else they may be "".
    Raises as `listed_groups`.
    """
    try:
        answer = (await admin.ask(ListGroups(typed=typed), node_id)).to_object()
    except (errors.IncompatibleBrokerVersion, NotImplementedError):
        raise InputError("the brokers do not tell the types of groups; Kafka 3.8 or later is needed") from None
    if answer["error_code"]:
        raise errors.for_code(answer["error_code"])(f"broker {node_id} lists no groups")
    return [
        ListedGroup(
            name=each["group"], protocol_type=each["protocol_type"], group_type=each.get("group_type", "").lower(), state=each.get("group_state", "")
        )
        for each in answer["groups"]
    ]
