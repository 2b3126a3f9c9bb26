"""The broker seat: an extra member of a consumer group (KIP-848) that has the assignor inside the
brokers carry out what the group's machine decides.

It holds nobody up: members answer the broker, and the broker asks nobody. Without the seat the
assignor leaves everything where it is, and gives what nobody has to whoever has the least.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import attrs
from aiokafka import errors

from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.connection import Connection
from equipoise.kafka.embedded_protocol import TopicPartition
from equipoise.lead.any_seat import AnySeat, unless_stopped
from equipoise.lead.broker_seat.broker_plan import MARK, MOST_FOLLOWED, newest, write_plan
from equipoise.lead.broker_seat.described_group import DescribedConsumers, joined_clients, plan_for, subscriptions
from equipoise.lead.broker_seat.extra_member import CLIENT_ID, ExtraMember, NoBrokerSeatError, OutOfGroupError, TopicsAsked, id_behind
from equipoise.lead.seat.generation import JoinedClient, SeatSettings, answer
from equipoise.lead.seat.log import SeatLog, assigned_changes
from equipoise.lead.seat_status import SeatState, SeatStatus

_LOG = logging.getLogger(__name__)

LOOK_S = 0.25
METADATA_S = 10.0
RETRY_S = 0.5
MOST_TRIES = 5
"""Plans in a row for the same members that had no effect, until a line says so."""
CONSUMER, TOGETHER = "consumer", "range"
"""Protocols of the generations in the log. `range`: topics go together."""


@attrs.frozen(kw_only=True)
class Decided:
    """`wanted`: partition -> member id. `moves`: partitions that have to change their member."""

    wanted: Mapping[TopicPartition, str]
    moves: int
    waiting: tuple[str, ...]


def decide(
    log: SeatLog,
    settings: SeatSettings,
    group: DescribedConsumers,
    asked: TopicsAsked,
    topics: Mapping[str, tuple[str, ...]],
    *,
    protocol: str,
    lags: Mapping[TopicPartition, int],
    before: list[JoinedClient],
) -> Decided:
    """Appends a generation of the group to the log, and returns what was decided. Raises
    EquipoiseError when the log cannot be written or the machine halts.
    """
    joined = joined_clients(group.consumers, topics)
    decided = answer(
        log, settings, number=max(0, group.epoch), protocol=protocol, eager=True, joined=joined, metadata=asked.metadata, lags=lags, before=before
    )
    member = {each.client().key: each.member_id for each in group.consumers}
    wanted = {(topic, number): member[key] for key, of in decided.assigned.items() for topic, numbers in of.items() for number in numbers}
    targets = group.targets()
    moves = sum(1 for place, to in wanted.items() if targets.get(place) != to)
    return Decided(wanted=wanted, moves=moves, waiting=decided.waiting)


class BrokerSeat(AnySeat):
    """The seat in one group. `together`: the group's topics are dealt together, as `range` does."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        seat_log: SeatLog,
        settings: SeatSettings,
        *,
        together: bool = False,
        runtime: Runtime = DEPLOYED,
        status: SeatStatus | None = None,
    ) -> None:
        super().__init__(connection, group, seat_log, runtime, status)
        self._settings, self._together = settings, together
        self._member = ExtraMember(connection, group, "")
        self._wanted: Mapping[TopicPartition, str] | None = None
        """Partition -> member id, as decided last; None: nothing is decided for these members."""
        self._led: object = None
        """Members and topics for which that was decided."""
        self._number = 0
        self._planned_epoch, self._tries = 0, 0
        self._before: list[JoinedClient] = []
        self._asked: TopicsAsked | None = None
        self._asked_of: frozenset[str] = frozenset()
        self._asked_s = self._beaten_s = self._planned_s = 0.0
        self._known: frozenset[str] = frozenset()
        self._known_s = -METADATA_S

    @property
    def is_settled(self) -> bool:
        """Returns whether it stands by, or has decided for the members that there are."""
        return self._led is not None and (not self.status.leads or self._wanted is not None)

    async def run(self) -> None:
        """Takes part until `stop`. Raises NoBrokerSeatError, and EquipoiseError when the log fails;
        the seat has left the group then.
        """
        async with self._member:
            try:
                await unless_stopped(self._take_part(), self._stopped)
            finally:
                await self._leave()

    async def _leave(self) -> None:
        self.status.become(SeatState.JOINS)
        try:
            await self._member.leave()
            _LOG.info("group %s: left; nothing of equipoise is in it any more; another assignor goes on", self.group)
        except (errors.KafkaError, OSError) as error:
            _LOG.warning("group %s: could not leave (%s); the broker ends the seat's session, after 45 s by default", self.group, error)

    async def _take_part(self) -> None:
        while True:
            try:
                await self._enter()
                while True:
                    await self._look()
                    await asyncio.sleep(LOOK_S)
            except OutOfGroupError as error:
                self.status.become(SeatState.JOINS)
                _LOG.info("group %s: joins again: %s", self.group, error)
                if error.is_removed:
                    self._member.member_id = ""  # another one behind the seat that leads since
            except errors.GroupAuthorizationFailedError:
                raise NoBrokerSeatError(f"--group {self.group}: the user may not read this group; it needs READ and DESCRIBE on the group") from None
            except errors.TopicAuthorizationFailedError:
                raise NoBrokerSeatError(f"--group {self.group}: the user needs DESCRIBE on topics with the prefix {CLIENT_ID!r}") from None
            except (errors.KafkaError, OSError) as error:
                if not self._brokers.noted("the group's coordinator", error):
                    _LOG.warning("group %s: %s: %s; trying again", self.group, type(error).__name__, error)
                await asyncio.sleep(RETRY_S)

    async def _enter(self) -> None:
        if self._member.epoch == 0:
            found = await self._member.describe()
            if found is not None and not found.carriers and found.assignor == TOGETHER:
                self._together = True
            self._member.member_id = self._member.member_id or id_behind(found, self._runtime)
            await self._beat(f"{MARK}1")
            _LOG.info("group %s: joined as %s", self.group, self._member.member_id)

    async def _beat(self, rack: str | None = None, *, begins: bool = False) -> None:
        self._beaten_s = self._runtime.monotonic_s()
        await self._member.beat(rack, begins=begins)

    async def _look(self) -> None:
        """Looks at the group, and does what it needs."""
        asked_s = self._runtime.monotonic_s()
        group = await self._member.describe()
        self._answered(asked_s)
        if self._runtime.monotonic_s() - self._beaten_s >= self._member.heartbeat_interval_ms / 2_000:
            await self._beat()
        if group is None:
            return
        self.status.sees(len(group.consumers), len(group.carriers))
        carried = newest(each.rack for each in group.carriers)
        if carried is not None and carried.number < MOST_FOLLOWED:
            self._number, self._together = max(self._number, carried.number), self._together or carried.together
        topics = subscriptions(group.consumers, await self._cluster_topics(group))
        names = frozenset(topic for of in topics.values() for topic in of)
        self.status.topics = names
        asked = await self._topics(names)
        if any(number >= asked.metadata.counts.get(topic, number + 1) for topic, number in group.targets()):
            self._asked = None  # the brokers have assigned partitions that are new
            asked = await self._topics(names)
        first = min((each.member_id for each in group.carriers), default="")
        if first != self._member.member_id:
            self._stand_by(group, topics, first)
        elif group.assigned_epoch >= group.epoch:
            await self._lead(group, topics, asked)

    def _stand_by(self, group: DescribedConsumers, topics: Mapping[str, tuple[str, ...]], first: str) -> None:
        if self.status.become(SeatState.STANDS_BY, leader=first):
            _LOG.info("group %s: another process leads it: standing by", self.group)
        self._led, self._wanted = "standing by", None
        self._before = joined_clients(group.consumers, topics)

    async def _cluster_topics(self, group: DescribedConsumers) -> frozenset[str]:
        if any(each.pattern for each in group.consumers) and self._runtime.monotonic_s() - self._known_s >= METADATA_S:
            self._known, self._known_s = frozenset(await self._member.every_topic()), self._runtime.monotonic_s()
        return self._known

    async def _topics(self, names: frozenset[str]) -> TopicsAsked:
        if self._asked is None or names != self._asked_of or self._runtime.monotonic_s() - self._asked_s >= METADATA_S:
            self._asked, self._asked_of, self._asked_s = await self._member.topics(set(names)), names, self._runtime.monotonic_s()
        return self._asked

    async def _lead(self, group: DescribedConsumers, topics: Mapping[str, tuple[str, ...]], asked: TopicsAsked) -> None:
        if self.status.become(SeatState.LEADS):
            _LOG.info("group %s: equipoise leads it", self.group)
        if self._wanted is not None:
            has = {place: each.member_id for each in group.consumers for place in each.has}
            self.status.pending = sum(has.get(place) != to for place, to in self._wanted.items())
        led = (sorted(topics.items()), asked.metadata.counts)
        if self._wanted is not None and self._led == led:
            if self._log.is_due() and assigned_changes(self._log.tick(await self._source_lags(asked.metadata.counts))):
                _LOG.info("group %s: a wait is over, or a movement is due", self.group)
            elif group.targets() == self._wanted:
                self._tries = 0
                return
            elif group.epoch < self._planned_epoch:
                return  # the plan is on its way
            elif self._asked_s <= self._planned_s:
                self._asked = None  # a topic may be gone, which no plan brings back
                return
        self._tries = self._tries + 1 if self._led == led else 0
        if self._tries == MOST_TRIES:
            _LOG.warning("group %s: plans have no effect: is the assignor of this version on every broker?", self.group)
        decided = decide(
            self._log,
            self._settings,
            group,
            asked,
            topics,
            protocol=TOGETHER if self._together else CONSUMER,
            lags=await self._source_lags(asked.metadata.counts),
            before=self._before,
        )
        self._before, self._wanted, self._led = [], decided.wanted, led
        self.status.decided(decided.moves)
        await self._carry(group, topics, asked, decided)

    async def _carry(self, group: DescribedConsumers, topics: Mapping[str, tuple[str, ...]], asked: TopicsAsked, decided: Decided) -> None:
        """Hands the plan to the broker. Where nothing changes it begins nothing."""
        self._number += 1
        plan = plan_for(
            group, decided.wanted, asked.ids, asked.metadata, topics, number=self._number, holds=self._settings.hold_ms > 0, together=self._together
        )
        began_s = self._runtime.monotonic_s()
        await self._beat(write_plan(plan), begins=bool(plan.entries))
        self._planned_epoch, self._planned_s = group.epoch + 1 if plan.entries else group.epoch, began_s
        waits = f"; waiting for {', '.join(decided.waiting)}" if decided.waiting else ""
        _LOG.info(
            "group %s: epoch %d, %d consumers, assigned in %.0f ms: %d of %d partitions move%s",
            self.group,
            group.epoch,
            len(group.consumers),
            (self._runtime.monotonic_s() - began_s) * 1_000,
            decided.moves,
            len(decided.wanted),
            waits,
        )
