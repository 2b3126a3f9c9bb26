"""The seat: joins a group, leads it when the broker makes it the leader, and stands by otherwise.

What it must not do is hold the group up. Its session is short, it answers a rebalance within a
fraction of a second, and when anything of its own fails it leaves, so that a member leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import attrs
from aiokafka import errors

from equipoise.events.errors import InputError
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import GroupMember
from equipoise.kafka.embedded_protocol import TopicPartition, read_assignment, read_subscription, write_assignment
from equipoise.kafka.group_client import COOPERATIVE, COUNTING_PROTOCOLS, PROTOCOLS, Generation, GroupClient, ahead, seat_bucket
from equipoise.lead.any_seat import AnySeat, unless_stopped
from equipoise.lead.seat.generation import JoinedClient, SeatSettings, answer, read_members
from equipoise.lead.seat.log import SeatLog, assigned_changes
from equipoise.lead.seat.metadata import MetadataClient
from equipoise.lead.seat.names import SeatClient, client_of, clients_of, is_static, readable
from equipoise.lead.seat.rebalance_watch import RebalanceWatch
from equipoise.lead.seat_status import SeatState, SeatStatus

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

HEARTBEAT_S = 0.3
"""Members of an eager protocol stand still until the seat has joined, too."""
METADATA_S = 10.0
LOOK_S = 0.25
RETRY_S = 0.5
EVICTED_HOLD_MS = 10_000
"""An evicted member learns it with its next heartbeat, and joins again."""


MEMBERSHIP_ERRORS = (errors.UnknownMemberIdError, errors.IllegalGenerationError, errors.RebalanceInProgressError)
"""Answers after which the seat has to join."""


class NotClassicError(InputError):
    """The brokers assign the group, so it has no leader's seat."""


class NoSeatError(InputError):
    """The group is none that the seat can lead; the text says why."""


class Seat(AnySeat):
    """The seat in one group. `evict`: takes the present leader out, once, if the group has one."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        seat_log: SeatLog,
        settings: SeatSettings,
        *,
        evict: bool = False,
        runtime: Runtime = DEPLOYED,
        status: SeatStatus | None = None,
    ) -> None:
        super().__init__(connection, group, seat_log, runtime, status)
        self._monotonic_s = runtime.monotonic_s
        self._settings, self._evict = settings, evict
        self._client = GroupClient(connection, group)
        self._metadata = MetadataClient(connection, runtime.monotonic_s)
        self._assigned: dict[str, frozenset[TopicPartition]] = {}
        """Client's key -> what it was assigned last, by whoever led."""
        self._before: list[JoinedClient] = []
        """The last generation that another member led; empty: the seat led it."""
        self._clients: Counter[str] = Counter()
        """Client ids in the last generation that the seat led."""
        self._unread: frozenset[SeatClient] = frozenset()
        """Those whose subscription could not be read in the last generation."""
        self._topics: frozenset[str] = frozenset()
        self._counts: Mapping[str, int] = {}
        self._protocols: tuple[str, ...] = PROTOCOLS
        self._evicted = False
        self._was_counted = False
        """A leader has assigned partitions to the seat."""
        self._rebalances = RebalanceWatch(self.status)

    @property
    def is_settled(self) -> bool:
        """Returns whether it leads, or stands by and takes nobody out of the group."""
        return self.status.leads or (self.status.stands_by and not self._evict and not self._evicted)

    async def run(self) -> None:
        """Takes part until `stop`. Raises NoSeatError, and EquipoiseError when the log fails; the
        seat has left the group then.
        """
        try:
            await unless_stopped(self._take_part(), self._stopped)
        finally:
            await self._leave()
            await asyncio.gather(self._client.close(), self._metadata.close())

    async def _leave(self) -> None:
        led = self.status.leads
        self.status.become(SeatState.JOINS)
        try:
            await self._client.leave()
            _LOG.info("group %s: left%s", self.group, "; a member leads it now, if there is one" if led else "")
        except (errors.KafkaError, OSError) as error:
            _LOG.warning("group %s: could not leave (%s); the broker ends the seat's session in a few seconds", self.group, error)

    async def _take_part(self) -> None:
        while True:
            try:
                await self._generations()
            except errors.InconsistentGroupProtocolError:
                raise NoSeatError(await self._why_inconsistent()) from None
            except errors.GroupAuthorizationFailedError:
                raise NoSeatError(f"--group {self.group}: the user may not read this group; it needs READ and DESCRIBE on the group") from None
            except MEMBERSHIP_ERRORS as error:
                if isinstance(error, errors.UnknownMemberIdError):
                    self._client.member_id = ""
                    self._rebalances.out_of_group(is_away=self._brokers.is_away)
                _LOG.info("group %s: joins again: %s", self.group, type(error).__name__)
                if isinstance(error, errors.RebalanceInProgressError):
                    continue  # it is in the group, and others lead as before
            except (errors.KafkaError, OSError) as error:
                if not self._brokers.noted("joining", error):
                    _LOG.warning("group %s: %s: %s; trying again", self.group, type(error).__name__, error)
                await asyncio.sleep(RETRY_S)
            self.status.become(SeatState.JOINS)

    async def _asked(self, what: str, request: Callable[[], Awaitable[T]]) -> T:
        """The answer to a request that changes nothing, of whichever broker is the coordinator: it
        is repeated while there is none. A coordinator that takes over knows the members and their
        generation; if the seat joined again then, everybody would have to.
        """
        while True:
            asked_s = self._monotonic_s()
            try:
                answer = await request()
            except MEMBERSHIP_ERRORS:
                raise
            except (errors.KafkaError, OSError) as error:
                if not self._brokers.noted(what, error):
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                self._answered(asked_s)
                return answer

    async def _heartbeat(self) -> None:
        await self._asked("a heartbeat", self._client.heartbeat)

    async def _generations(self) -> None:
        while True:
            with self._rebalances.joining():
                generation = await self._enter() if not self._client.member_id else await self._client.join(self._protocols)
            if not generation.leader:
                raise NotClassicError(f"--group {self.group}: the broker assigns its partitions itself (KIP-848), so it has no leader's seat")
            self._protocols = (generation.protocol, *(each for each in PROTOCOLS if each != generation.protocol))
            if generation.leader == self._client.member_id:
                await self._lead(generation)
            else:
                await self._follow(generation)

    # Joining

    async def _enter(self) -> Generation:
        """Joins as a new member: the first one of an empty group, or the one that is next to lead."""
        await self.check()
        description = await self._client.describe()
        if description.state == "Stable":
            self._remember(description.members)
            self._protocols = (description.protocol, *(each for each in PROTOCOLS if each != description.protocol))
        if not description.members:
            _LOG.info("group %s: has no consumer yet; leads those that join", self.group)
            return await self._client.join(self._protocols)
        counts = self._was_counted or description.protocol in COUNTING_PROTOCOLS
        return await self._client.join_in(seat_bucket([each.member_id for each in description.members], counts=counts), self._protocols)

    async def examine(self) -> None:
        """Checks the group as `check` does, and disconnects; for a seat that does not run."""
        try:
            await self.check()
        finally:
            await asyncio.gather(self._client.close(), self._metadata.close())

    async def check(self) -> None:
        """Raises NoSeatError when the group cannot be led from the seat."""
        kind = await self._client.kind()
        if kind is not None:
            group_type, protocol_type = kind
            if group_type.lower() != "classic":
                raised = NotClassicError if group_type.lower() in _LED_OTHERWISE else NoSeatError
                raise raised(f"--group {self.group}: {_TYPES.get(group_type.lower(), f'is a {group_type} group')}, so it has no leader's seat")
            if protocol_type not in ("", "consumer"):
                what = "Kafka Connect workers" if protocol_type == "connect" else f"members of the type {protocol_type!r}"
                raise NoSeatError(f"--group {self.group}: has {what}; only groups of consumers can be led")
        description = await self._client.describe()
        if description.state == "Stable" and description.protocol and description.protocol not in PROTOCOLS:
            raise NoSeatError(_unknown_protocol(self.group, description.protocol))

    async def _why_inconsistent(self) -> str:
        description = await self._client.describe()
        if description.protocol_type not in ("", "consumer"):
            return f"--group {self.group}: has members of the type {description.protocol_type!r}; only groups of consumers can be led"
        return _unknown_protocol(self.group, description.protocol)

    # Standing by

    async def _follow(self, generation: Generation) -> None:
        """Another member leads: takes nothing, and remembers what the others have. Returns when the
        leader assigns partitions to the seat, which has left the group then.
        """
        self.status.become(SeatState.STANDS_BY, leader=readable(generation.leader))
        _LOG.info("group %s: generation %d, led by %s: standing by", self.group, generation.number, readable(generation.leader))
        assigned = await self._client.sync([])
        try:
            counted = read_assignment(assigned)
        except InputError:  # the leader is no consumer of Kafka's protocol
            counted = frozenset()
        if counted:
            _LOG.warning(
                "group %s: the leader assigns %d partitions to the seat, which reads none: leaves, and joins again behind another member",
                self.group,
                len(counted),
            )
            self._was_counted = True
            await self._client.leave()
            return
        remembered = False
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._heartbeat()
            if remembered:
                continue
            description = await self._asked("describing the group", self._client.describe)
            if description.state != "Stable":
                continue
            await self._heartbeat()  # still the same generation
            self._remember(description.members)
            self._rebalances.over(each.member_id for each in description.members)
            self.status.topics = frozenset(topic for each in self._before for topic in each.subscription.topics)
            remembered = True
            if self._evict:
                self._evict = False
                await self._take_the_lead(generation.leader, description.members)

    async def _take_the_lead(self, leader: str, members: tuple[GroupMember, ...]) -> None:
        """Takes the leader out, and with it who would be the next one before the seat."""
        others = [each for each in members if each.member_id != self._client.member_id]
        leaving = {leader, *ahead(self._client.member_id, [each.member_id for each in others])}
        evicted = [each for each in others if each.member_id in leaving]
        names = ", ".join(each.member_id for each in evicted)
        _LOG.warning("group %s: takes %s out of the group, to lead it; each joins again at its next heartbeat", self.group, names)
        self._evicted = True
        await self._client.evict(evicted)

    def _remember(self, members: tuple[GroupMember, ...]) -> None:
        """What the members have, by another leader."""
        clients = clients_of((each.member_id, each.instance_id) for each in members)
        found: list[JoinedClient] = []
        had: set[TopicPartition] = set()
        for each in members:
            try:
                subscription, held = read_subscription(each.subscription), read_assignment(each.assignment)
            except InputError:
                continue  # what it had is only a preference
            if subscription.topics:
                found.append(JoinedClient(client=clients[each.member_id], subscription=subscription, held=held - had))
                had |= held
        self._before = found
        self._assigned = {each.client.key: each.held for each in found}

    # Leading

    async def _lead(self, generation: Generation) -> None:
        if generation.protocol not in PROTOCOLS:
            raise NoSeatError(_unknown_protocol(self.group, generation.protocol))
        began_s = self._monotonic_s()
        if self.status.become(SeatState.LEADS):  # the coordinator has said so
            _LOG.info("group %s: equipoise leads it, from generation %d on", self.group, generation.number)
        self._rebalances.over(member_id for member_id, _, _ in generation.members)
        assignments, waiting = await self._assign(generation)
        await self._client.sync([(member_id, write_assignment(assigned)) for member_id, assigned in assignments.items()])
        self.status.decided(sum(len(each.revoking) for each in self._log.state.members.values()))
        self.status.topics = self._topics
        clients = clients_of((member_id, instance_id) for member_id, instance_id, _ in generation.members)
        self._assigned = {
            clients[member_id].key: frozenset((topic, number) for topic, of in assigned.items() for number in of)
            for member_id, assigned in assignments.items()
        }
        counts = ", ".join(f"{count} to {name}" for name, count in self._shares(clients.values()))
        waits = f"; waiting for {', '.join(waiting)}" if waiting else ""
        _LOG.info(
            "group %s: generation %d (%s), assigned in %.0f ms: %s%s",
            self.group,
            generation.number,
            generation.protocol,
            (self._monotonic_s() - began_s) * 1_000,
            counts or "nobody reads",
            waits,
        )
        await self._stay(generation)

    def _shares(self, clients: Iterable[SeatClient]) -> list[tuple[str, int]]:
        named = self._log.names.present()
        return sorted((named[client.key][0], len(self._assigned[client.key])) for client in clients if client.key in named)

    async def _assign(self, generation: Generation) -> tuple[dict[str, Mapping[str, list[int]]], tuple[str, ...]]:
        """Member id -> what it is assigned, and who is waited for."""
        eager = generation.protocol != COOPERATIVE
        read = read_members(generation.members, self._assigned, eager=eager)
        for client, why in read.unread.items():
            if client not in self._unread:
                _LOG.warning("group %s: %s gets nothing: its subscription is no subscription of a consumer: %s", self.group, client.base, why)
        self._unread = frozenset(read.unread)
        joined = read.joined
        before, self._before = self._before, []
        self._topics = frozenset(topic for each in (*joined, *before) for topic in each.subscription.topics)
        metadata = await self._metadata.known(self._topics, METADATA_S)
        self._counts = metadata.counts
        self._clients = Counter(each.client.base for each in joined if not is_static(each.client.key))
        settings = self._settings
        if self._evicted:
            settings, self._evicted = attrs.evolve(settings, hold_ms=max(EVICTED_HOLD_MS, settings.hold_ms)), False
        decided = answer(
            self._log,
            settings,
            number=generation.number,
            protocol=generation.protocol,
            eager=eager,
            joined=joined,
            metadata=metadata,
            lags=await self._source_lags(metadata.counts),
            before=before,
        )
        return {member_id: decided.assigned.get(client.key, {}) for member_id, client in read.clients.items()}, decided.waiting

    async def _stay(self, generation: Generation) -> None:
        """Leads until the next generation is to begin: because the group rebalances, or because
        something is to change.
        """
        looked_s = self._monotonic_s()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self._heartbeat()
            except errors.RebalanceInProgressError:
                if generation.protocol == COOPERATIVE and self._settings.hold_ms:
                    await self._await_absent()
                return
            if self._log.is_due() and assigned_changes(self._log.tick(await self._source_lags(self._counts))):
                _LOG.info("group %s: begins a generation: a wait is over, or a movement is due", self.group)
                return
            if self._monotonic_s() - looked_s >= METADATA_S:
                looked_s = self._monotonic_s()
                counts = (await self._asked("metadata", lambda: self._metadata.ask(self._topics))).counts
                if counts != self._counts:
                    _LOG.info("group %s: begins a generation: partitions of its topics changed", self.group)
                    return

    async def _await_absent(self) -> None:
        """Members of the cooperative protocol read on while a generation is about to begin, so the
        seat joins last: after the members that are missing, if they are back in time.
        """
        until_s = self._monotonic_s() + self._settings.hold_ms / 1_000
        while self._monotonic_s() < until_s:
            members = (await self._asked("describing the group", self._client.describe)).members
            here = Counter(client_of(each.member_id, each.instance_id).base for each in members)
            if not self._clients - here:
                return
            try:
                await self._heartbeat()
            except errors.RebalanceInProgressError:
                await asyncio.sleep(LOOK_S)
            else:
                return  # it is over


_LED_OTHERWISE = ("consumer", "streams")
_TYPES = {
    "consumer": "the broker assigns its partitions itself (KIP-848)",
    "streams": "is a Kafka Streams group that the broker assigns (KIP-1071)",
    "share": "is a share group (KIP-932)",
}


def _unknown_protocol(group: str, protocol: str) -> str:
    if protocol == "stream":
        return f"--group {group}: is a Kafka Streams application, whose tasks have state that the seat does not know"
    return f"--group {group}: uses the assignment protocol {protocol or 'of its own'!r}; the seat can lead {', '.join(PROTOCOLS)}"
