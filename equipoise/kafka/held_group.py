"""A consumer group that members hold in the place of its consumers (docs/adopt.md).

Kafka lets nobody into a group with another protocol type than those who are there. So as long as
one consumer is in the group, those who would hold it are refused, and as long as it is held,
consumers are refused: by the broker, in every order of events. What holds it reads nothing by it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import attrs
from aiokafka import errors

from equipoise.events.errors import InputError
from equipoise.kafka.client import ENDS_S, call_off
from equipoise.kafka.connection import Connection
from equipoise.kafka.embedded_protocol import read_assignment, read_subscription
from equipoise.kafka.group_client import SESSION_MS, GroupClient

PROTOCOL = "equipoise"
"""The protocol type, and the one protocol."""
MEMBER, RELEASE = "equipoise-member", "equipoise-release"
"""Client ids, with which the broker begins member ids."""
LOOK_S = 0.2
RETRY_S = 0.5
MOST_SESSION_MS = 300_000
_NO_CLASSIC_GROUP = "Dead"
"""State that brokers describe where there is no group, or one of another protocol."""


@attrs.frozen
class Consumers:
    """`topics`: what they subscribe to, as far as their group is stable. `reads`: whether one has
    partitions.
    """

    topics: frozenset[str]
    reads: bool


@attrs.frozen
class Holders:
    """Who is in the group, by member id. `others`: consumers, which do not hold it."""

    members: frozenset[str]
    releasing: frozenset[str]
    others: frozenset[str]


class HeldGroup:
    """One who holds the group, or waits for it. `boot_ms`: a clock. `lease_ends_ms`: until when, by
    that clock, no consumer can be in the group.
    """

    def __init__(
        self, connection: Connection, group: str, client_id: str, boot_ms: Callable[[], int], *, session_ms: int = SESSION_MS, quiet: bool = True
    ) -> None:
        self.group = group
        self.session_ms = max(SESSION_MS, min(session_ms, MOST_SESSION_MS))
        self.lease_ends_ms = 0
        self.is_released = False
        """Whether somebody releases the group."""
        self._boot_ms = boot_ms
        self._client = GroupClient(connection, group, client_id=client_id, protocol_type=PROTOCOL, session_ms=self.session_ms, quiet=quiet)

    async def consumers(self) -> Consumers:
        """Returns what the consumers do that are in the group, of either protocol. Raises
        KafkaError, OSError.
        """
        found = await self._client.describe()
        if found.state == _NO_CLASSIC_GROUP:
            members = await self._client.describe_consumers()
            topics = frozenset(topic for each in members for topic in each["subscribed_topic_names"])
            return Consumers(topics, any(each["assignment"]["topic_partitions"] for each in members))
        read: set[str] = set()
        reads = False
        for each in found.members:
            with contextlib.suppress(InputError):  # it is no consumer of Kafka's protocol
                read.update(read_subscription(each.subscription).topics if each.subscription else ())
            with contextlib.suppress(InputError):
                reads |= bool(read_assignment(each.assignment))
        return Consumers(frozenset(read), reads and found.state == "Stable" and found.protocol_type != PROTOCOL)

    async def look(self) -> Holders:
        """Returns who is in the group now. Renews the lease if this one is. Raises KafkaError,
        OSError.
        """
        asked_ms = self._boot_ms()
        description = await self._client.describe()
        ids = {each.member_id for each in description.members}
        if description.state == _NO_CLASSIC_GROUP:
            ids = {each["member_id"] for each in await self._client.describe_consumers()}
        holds = description.protocol_type == PROTOCOL
        found = Holders(
            frozenset(name for name in ids if holds and name.startswith(f"{MEMBER}-")),
            frozenset(name for name in ids if holds and name.startswith(f"{RELEASE}-")),
            frozenset(() if holds else ids),
        )
        self.is_released = bool(found.releasing)
        if self._client.member_id in ids:
            # A quarter of the session is for what began before its end, and for the broker's clock.
            self.lease_ends_ms = asked_ms + self.session_ms * 3 // 4
        return found

    async def enter_and_stay(self, looked: Callable[[Holders], None]) -> None:
        """Enters the group and stays. Calls `looked` after each look at it. Raises
        InconsistentGroupProtocolError while consumers are in it, another KafkaError or OSError when
        a request fails: call it again.
        """
        try:
            await self._generations(looked)
        except (errors.UnknownMemberIdError, errors.IllegalGenerationError):
            self._client.member_id, self.lease_ends_ms = "", 0
            raise

    async def _generations(self, looked: Callable[[Holders], None]) -> None:
        while True:
            joining = asyncio.ensure_future(self._client.join((PROTOCOL,)))
            try:
                while not joining.done():
                    await asyncio.wait((joining,), timeout=LOOK_S)
                    if not joining.done() and self._client.member_id:
                        looked(await self.look())  # the broker has it before the others have joined again
                generation = await joining
            finally:
                await call_off(joining, again_s=ENDS_S)
            leads = generation.leader == self._client.member_id
            with contextlib.suppress(errors.RebalanceInProgressError):
                await self._client.sync([(member_id, b"") for member_id, _, _ in generation.members] if leads else [])
                while True:
                    await self._client.heartbeat()
                    looked(await self.look())
                    await asyncio.sleep(LOOK_S)

    async def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commits offsets of the group. Raises KafkaError, OSError."""
        await self._client.commit(offsets)

    async def step_out(self) -> None:
        """Leaves the group."""
        self.lease_ends_ms = 0
        with contextlib.suppress(errors.KafkaError, OSError):  # the broker ends the session
            await self._client.leave()

    async def leave(self) -> None:
        """Leaves the group and disconnects."""
        await self.step_out()
        await self._client.close()
