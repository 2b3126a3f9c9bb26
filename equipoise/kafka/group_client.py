"""A member of a classic consumer group by single requests: aiokafka's own coordinator cannot join
without topics, nor answer for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import attrs
from aiokafka import errors
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from equipoise.events.errors import InputError
from equipoise.events.java_order import FEWEST_BUCKETS, text_hash
from equipoise.kafka.client import ENDS_S, call_off
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer.group_offsets import commit_request
from equipoise.kafka.consumer_groups import ClassicDescription, ConsumerGroup, GroupMember
from equipoise.kafka.embedded_protocol import TopicPartition, write_subscription
from equipoise.kafka.group_requests import LeaveGroup, ListGroups

CLIENT_ID = "equipoise-lead"
SESSION_MS = 6_000
"""The least that brokers allow by default: a seat that is gone holds up nobody for longer."""
REBALANCE_MS = 60_000
JOIN_TIMEOUT_MS = 900_000
"""A generation begins when the slowest member has joined: after its max.poll.interval.ms (5 minutes
by default) at the latest.
"""
ALIVE_S, MOST_LOOKS = 5.0, 3
"""How often it is looked, while a generation is waited for, whether the coordinator still answers and
has the member; and how often in a row it may not.
"""
MEMBER_ID_REQUIRED = 79
GIVE_BACK_AFTER_S = 0.1
"""By then the broker has the request to join, and the group rebalances. Ids that are given back to
a stable group would begin a rebalance.
"""
BUCKETS = 64
MOST_IDS = 1_000
"""Ids to ask for at most. One in BUCKETS serves, so 1,000 fail once in seven million times."""

COOPERATIVE = "cooperative-sticky"
PROTOCOLS = ("range", "roundrobin", COOPERATIVE, "sticky")
"""Protocols that the seat can lead. Their assignments have no data of their own."""
COUNTING_PROTOCOLS = (COOPERATIVE, "sticky")
"""Protocols whose assignor in Java's client assigns partitions to a member without topics, if that
member is the first one in the client's table (AbstractStickyAssignor.allSubscriptionsEqual).
"""


@attrs.frozen(kw_only=True)
class Generation:
    """The answer to JoinGroup. `members`: member id, group.instance.id and subscription of each;
    empty unless the seat leads.
    """

    number: int
    protocol: str
    leader: str
    members: tuple[tuple[str, str | None, bytes], ...]


def fewest_buckets(members: int) -> int:
    """The fewest buckets that a Java `HashMap` of so many members may have."""
    buckets = FEWEST_BUCKETS
    while 4 * members > 3 * buckets:
        buckets *= 2
    return buckets


def _subscribed_to_nothing(protocol: str) -> bytes:
    return write_subscription(cooperative=protocol == COOPERATIVE)


class GroupClient:
    """The membership of one client. Requests raise KafkaError or OSError. `protocol_type`: the broker
    refuses members of another type than those that are there. `subscription`: what is said to the
    leader of a generation, for each protocol.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        *,
        client_id: str = CLIENT_ID,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        subscription: Callable[[str], bytes] = _subscribed_to_nothing,
        quiet: bool = True,
    ) -> None:
        self.group = group
        self.member_id = ""
        self.generation = -1
        self._protocol_type, self._session_ms, self._subscription = protocol_type, session_ms, subscription
        self._joins = ConsumerGroup(connection, group, request_timeout_ms=JOIN_TIMEOUT_MS, client_id=client_id, quiet=quiet)
        self._others = ConsumerGroup(connection, group, client_id=client_id, quiet=quiet)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.gather(self._joins.close(), self._others.close())

    async def kind(self) -> tuple[str, str] | None:
        """The type and the protocol type of the group, as ``classic`` and ``consumer``; None: there
        is no such group, or the brokers do not say (before Kafka 3.8).
        """
        try:
            answer = (await self._others.send(ListGroups())).to_object()
        except (errors.IncompatibleBrokerVersion, NotImplementedError):
            return None
        self._others.check(answer["error_code"])
        return next(((each["group_type"], each["protocol_type"]) for each in answer["groups"] if each["group"] == self.group), None)

    async def describe(self) -> ClassicDescription:
        return await self._others.describe()

    async def describe_consumers(self) -> list[Any]:
        """The members of a group of KIP-848 as ConsumerGroupDescribe shows them; of another: []."""
        return await self._others.describe_consumers() or []

    async def partitions(self, topics: Sequence[str]) -> dict[str, set[int]]:
        """Topic -> its partitions; none, where there is no such topic. Raises KafkaError."""
        described = await (await self._others.admin()).describe_topics(topics)
        return {each["topic"]: {row["partition"] for row in each["partitions"]} for each in described}

    async def join_in(self, wanted: int, protocols: tuple[str, ...]) -> Generation:
        """Joins a group that has members, as a new one whose id is in this bucket of the broker's
        table. Raises InputError when the brokers are too old for it.
        """
        others = await self._find_id(wanted)
        joining = asyncio.create_task(self.join(protocols))
        try:
            await asyncio.sleep(GIVE_BACK_AFTER_S)
            if others:
                await self._others.send(LeaveGroup(self.group, [(each, None) for each in others], "not needed"))
            return await joining
        finally:
            joining.cancel()

    async def _find_id(self, wanted: int) -> list[str]:
        """Asks for member ids until one is in the bucket. Returns the others."""
        others: list[str] = []
        for _ in range(MOST_IDS):
            answer = await self._others.send(self._join("", PROTOCOLS))
            if answer.error_code != MEMBER_ID_REQUIRED:
                self._others.check(answer.error_code)
                raise InputError("the brokers do not give member ids; Kafka 2.2 or later is needed")
            if bucket(answer.member_id) == wanted:
                self.member_id = answer.member_id
                return others
            others.append(answer.member_id)
        raise errors.KafkaError(f"none of {MOST_IDS} ids is in bucket {wanted}")

    async def join(self, protocols: tuple[str, ...]) -> Generation:
        """Takes part in the next generation. Returns when it begins. Raises InputError where brokers
        give no member ids.
        """
        if not self.member_id:
            answer = await self._others.send(self._join("", protocols))
            if answer.error_code != MEMBER_ID_REQUIRED:
                self._others.check(answer.error_code)
                raise InputError("the brokers do not give member ids; Kafka 2.2 or later is needed")
            self.member_id = answer.member_id
        answer = await self._kept(self._join(self.member_id, protocols))
        self._joins.check(answer.error_code)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        members = tuple((member_id, instance_id, data) for member_id, instance_id, data in answer.members)
        return Generation(number=answer.generation_id, protocol=answer.group_protocol, leader=answer.leader_id, members=members)

    def _join(self, member_id: str, protocols: tuple[str, ...]) -> Any:
        offered = [(name, self._subscription(name)) for name in protocols]
        return JoinGroupRequest(self.group, self._session_ms, REBALANCE_MS, member_id, None, self._protocol_type, offered)

    async def _kept(self, request: Any) -> Any:
        """Returns the answer to a request that the coordinator keeps until others have done theirs.
        Raises KafkaError when the coordinator is silent, or is another one by now, and
        UnknownMemberIdError when it does not have the member; the connection is closed then.
        """
        asked = asyncio.ensure_future(self._joins.send(request))
        missing = 0
        try:
            while not (await asyncio.wait((asked,), timeout=ALIVE_S))[0]:
                error = await self._why_not_kept()
                missing = 0 if error is None else missing + 1
                if error is not None and missing >= MOST_LOOKS:
                    await self._joins.close()
                    raise error
            return asked.result()
        finally:
            await call_off(asked, again_s=ENDS_S)

    async def _why_not_kept(self) -> Exception | None:
        try:
            members = (await self.describe()).members
            if await self._others.node() != await self._joins.node():
                moved: Exception = errors.NotCoordinatorForGroupError(f"another broker coordinates group {self.group} by now")
                return moved
        except (errors.KafkaError, OSError) as error:
            silent: Exception = error
            return silent
        if any(each.member_id == self.member_id for each in members):
            return None
        unknown: Exception = errors.UnknownMemberIdError(f"the coordinator of group {self.group} does not have {self.member_id}")
        return unknown

    async def sync(self, assignments: list[tuple[str, bytes]]) -> bytes:
        """Answers for all, as the leader, or takes part with nothing. Returns what the leader
        assigned to the seat.
        """
        answer = await self._kept(SyncGroupRequest(self.group, self.generation, self.member_id, None, assignments))
        self._joins.check(answer.error_code)
        return bytes(answer.member_assignment)

    async def heartbeat(self) -> None:
        """Raises RebalanceInProgressError when another generation is to begin."""
        try:
            self._others.check((await self._others.send(HeartbeatRequest(self.group, self.generation, self.member_id))).error_code)
        except (errors.KafkaError, OSError):
            self._joins.forget_coordinator()
            raise

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets of the group, as its member: nobody else may while it has members."""
        request = commit_request(self.group, offsets, self.generation, self.member_id)
        for _, answered in (await self._others.send(request)).topics:
            for _, code in answered:
                self._others.check(code)

    async def leave(self, reason: str = "the seat is given up") -> None:
        """Leaves the group: the broker makes another member the leader."""
        if self.member_id:
            member_id, self.member_id = self.member_id, ""
            await self._others.send(LeaveGroup(self.group, [(member_id, None)], reason))

    def forget_id(self) -> None:
        """Joins as a new member next time: the coordinator does not have this one any more."""
        self.member_id, self.generation = "", -1

    async def evict(self, members: Sequence[GroupMember]) -> None:
        """Takes other members out of the group, all at once."""
        leaving = [(each.member_id, each.instance_id) for each in members]
        answer = await self._others.send(LeaveGroup(self.group, leaving, "equipoise lead --evict takes the lead"))
        self._others.check(answer.error_code or next((each[2] for each in answer.members if each[2]), 0))


def bucket(member_id: str, buckets: int = BUCKETS) -> int:
    """Where a Java `HashMap` of so many buckets has the id. Brokers and clients go through their
    members by bucket; within one, in the order in which they joined.
    """
    value = text_hash(member_id)
    return (value ^ value >> 16) & (buckets - 1)


def seat_bucket(others: Sequence[str], *, counts: bool) -> int:
    """The bucket for the seat's own id, so that the broker takes it for the next leader: the first
    one. `counts`: the leader may count a member without topics as a reader if it is the first; then
    the one just behind the first of `others` (member ids).
    """
    if not (counts and others):
        return 0
    buckets = fewest_buckets(len(others) + 1)
    return min(min(bucket(each, buckets) for each in others) + 1, buckets - 1, BUCKETS - 1)


def ahead(member_id: str, others: Sequence[str]) -> set[str]:
    """Those of `others` that the broker may take for its next leader before `member_id`."""
    buckets = fewest_buckets(len(others) + 1)
    return {each for each in others if bucket(each, buckets) <= bucket(member_id, buckets)}
