"""The extra member of a consumer group (KIP-848), by single requests: it reads nothing, and chooses
the group's assignor.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import attrs
from aiokafka import errors

from equipoise.events.errors import InputError
from equipoise.hosting.runtime import Runtime
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup
from equipoise.kafka.group_requests import JOINS, LEAVES, ConsumerGroupDescribe, ConsumerGroupHeartbeat
from equipoise.lead.broker_seat.described_group import DescribedConsumers, described
from equipoise.lead.seat.metadata import SeatTopicMetadata, described_topics

CLIENT_ID = "equipoise-lead"
ASSIGNOR = "equipoise"
"""Name of the assignor inside the brokers."""
REBALANCE_TIMEOUT_MS = 60_000
OWN_TOPICS = ("equipoise-lead", "equipoise-lead-2")
"""Topics that the member subscribes to; they need not exist. With one or with both, so that a plan
comes with a changed subscription: a changed rack id alone begins nothing.
"""
REQUEST_TIMEOUT_MS = 3_000
GROUP_ID_NOT_FOUND, UNSUPPORTED_ASSIGNOR, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED = 69, 112, 25, 110, 111


class NoBrokerSeatError(InputError):
    """The group cannot be led from inside the brokers; the text says why."""


class OutOfGroupError(errors.KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """The member has to join again. `is_removed`: the broker has removed it, and others may have
    its place.
    """

    def __init__(self, said: str, *, is_removed: bool) -> None:
        super().__init__(said)
        self.is_removed = is_removed


def id_behind(group: DescribedConsumers | None, runtime: Runtime) -> str:
    """Returns the id of a member of equipoise that joins now. It is above those of the members of
    equipoise in the group, whatever the clocks of their machines say.
    """
    known = [each.member_id.removeprefix(f"{CLIENT_ID}-").partition("-")[0] for each in ([] if group is None else group.carriers)]
    behind_us = max((int(number) + 1 for number in known if number.isdecimal() and len(number) == 16), default=0)
    return f"{CLIENT_ID}-{max(runtime.wall_us(), behind_us):016d}-{runtime.unique()[:12]}"


@attrs.frozen(kw_only=True)
class TopicsAsked:
    """`ids`: topic -> its id."""

    metadata: SeatTopicMetadata
    ids: dict[str, bytes]


class ExtraMember:
    """The membership of one process. `member_id`: of members that carry plans, the one with the
    lowest id leads; "": it has none yet (`id_behind`). `assignor`: the one that it wishes; None:
    the broker's own. Requests raise KafkaError or OSError.
    """

    def __init__(self, connection: Connection, group: str, member_id: str, *, assignor: str | None = ASSIGNOR, client_id: str = CLIENT_ID) -> None:
        self.group, self.member_id = group, member_id
        self._assignor = assignor
        self.epoch = JOINS
        self.heartbeat_interval_ms = 1_000
        self._both = False
        self._group = ConsumerGroup(connection, group, request_timeout_ms=REQUEST_TIMEOUT_MS, client_id=client_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._group.close()

    async def describe(self) -> DescribedConsumers | None:
        """None: it is no group of KIP-848."""
        (group,) = (await self._group.send(ConsumerGroupDescribe(self.group))).to_object()["groups"]
        if group["error_code"] == GROUP_ID_NOT_FOUND:
            return None
        self._group.check(group["error_code"])
        return described(group)

    async def beat(self, rack: str | None = None, *, begins: bool = False) -> None:
        """Joins, or stays. `rack`: the plan to carry from now on. `begins`: the group is assigned
        again. Raises NoBrokerSeatError when the broker refuses, and OutOfGroupError.
        """
        joins = self.epoch == JOINS
        self._both ^= begins
        topics = OWN_TOPICS[: 1 + self._both] if joins or begins else None
        answer = await self._group.send(
            ConsumerGroupHeartbeat(
                self.group,
                self.member_id,
                self.epoch,
                rack=rack,
                topics=topics,
                assignor=self._assignor if joins else None,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if joins else -1,
            )
        )
        self._check(answer)
        self.epoch, self.heartbeat_interval_ms = answer.member_epoch, answer.heartbeat_interval_ms

    def _check(self, answer: Any) -> None:
        code = answer.error_code
        if code == UNSUPPORTED_ASSIGNOR:
            raise NoBrokerSeatError(f"--group {self.group}: a broker does not have the assignor {self._assignor!r}: {answer.error_message}")
        if code == GROUP_ID_NOT_FOUND and self.epoch == JOINS:
            raise NoBrokerSeatError(f"--group {self.group}: the broker does not take it over to the new protocol: {answer.error_message}")
        if code in (UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND):
            self.epoch = JOINS
            raise OutOfGroupError(answer.error_message or str(code), is_removed=code != FENCED_MEMBER_EPOCH)
        self._group.check(code)

    async def leave(self) -> None:
        """Leaves the group, if it is in it."""
        if self.epoch != JOINS:
            self.epoch = JOINS
            await self._group.send(ConsumerGroupHeartbeat(self.group, self.member_id, LEAVES))

    async def topics(self, names: set[str]) -> TopicsAsked:
        """Asks the brokers about these topics; those that do not exist are absent."""
        if not names:
            return TopicsAsked(metadata=SeatTopicMetadata(counts={}, racks={}), ids={})
        metadata, ids = await described_topics(await self._group.admin(), names)
        return TopicsAsked(metadata=metadata, ids=ids)

    async def every_topic(self) -> set[str]:
        """The topics of the cluster, for members that subscribe to a pattern."""
        return {each["topic"] for each in await (await self._group.admin()).describe_topics(None)}
