"""Has the broker take a classic consumer group over to the new protocol, by one extra member with
the broker's own assignor, and give it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import attrs
from aiokafka import errors

from equipoise.events.decisions import ChangeJudged
from equipoise.events.errors import InputError
from equipoise.events.facts import ChangePlanned
from equipoise.hosting.runtime import DEPLOYED, Runtime
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ConsumerGroup, repeated
from equipoise.kafka.embedded_protocol import TopicPartition
from equipoise.lead.broker_seat.described_group import DescribedConsumer, DescribedConsumers
from equipoise.lead.broker_seat.extra_member import CLIENT_ID as SEAT_CLIENT_ID
from equipoise.lead.broker_seat.extra_member import ExtraMember, NoBrokerSeatError, OutOfGroupError
from equipoise.lead.migrating.cost import MOST_PARTITIONS, SESSION_MS
from equipoise.lead.migrating.verdict import MigratedGroup
from equipoise.lead.seat.log import SeatLog
from equipoise.replay.prediction.change_wish import ChangeWish
from equipoise.replay.prediction.described_cost import DescribedCost
from equipoise.replay.prediction.predict_deal import predict_deal
from equipoise.replay.simulation.kafka.consumers import ConsumerSettings
from equipoise.replay.wording import counted, judged_text
from equipoise.statemachine.watched_change import measured

CLIENT_ID = "equipoise-migrate"
OWN = (CLIENT_ID, SEAT_CLIENT_ID)
"""Client ids of equipoise's own members, which read nothing."""
LOOK_S = 0.25
REST_S = 120.0
"""How long to wait until a group is at rest, by default. A client is asked to join again at its
next heartbeat, and answers when it polls.
"""
ASKED_S = 10.0
LOOKS_AT_REST = 3
TOGETHER = "range"


@attrs.frozen(kw_only=True)
class TakenOver:
    """The outcome. `is_done`: the broker leads the group, at rest, and every client is in it.
    `moves`: partitions that got another client. `problem`: why it is not done; "": it is.
    """

    group: str
    is_done: bool
    clients: int
    partitions: int
    moves: int
    took_s: float
    problem: str = ""
    judged: str | None = None
    """What the log says of it; None: it is not in a log."""

    def said(self) -> str:
        """Says it to an operator, on one line."""
        if self.problem:
            return f"{self.group}: {self.problem}"
        took = f"{self.group}: taken over in {self.took_s:.1f} s: at rest with {counted(self.clients, 'client')}"
        return f"{took}, {self.moves} of {counted(self.partitions, 'partition')} moved{f'; it {self.judged}' if self.judged else ''}"


class TakingOver:
    """One group, of which `before` is what was found. It stays taken over as long as this has its
    member in it, or a client uses the new protocol. Use it as an asynchronous context manager; at
    its end the member leaves.
    """

    def __init__(self, connection: Connection, before: MigratedGroup, runtime: Runtime = DEPLOYED, log: SeatLog | None = None) -> None:
        """`log`: where it is written down what this is expected to cost, and what it has cost."""
        self.before = before
        self._runtime, self._log = runtime, log
        self._began_s = 0.0
        self._cost = DescribedCost[TopicPartition](0)
        several = len({topic for each in before.clients for topic in each.topics}) > 1
        assignor = TOGETHER if before.protocol == TOGETHER and several else None  # equal numbers stay together
        self._member = ExtraMember(connection, before.name, f"{CLIENT_ID}-{runtime.unique()}", assignor=assignor, client_id=CLIENT_ID)
        self._beating: asyncio.Task[None] | None = None
        self.left = False
        """Whether its member has left the group, or was never in it."""

    async def __aenter__(self) -> TakingOver:
        await self._member.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        try:
            await self._member.leave()
            self.left = True
        except (errors.KafkaError, OSError):
            self.left = False  # the broker ends its session
        await self._member.__aexit__(None, None, None)

    async def take_over(self, within_s: float) -> TakenOver:
        """Joins, and waits until the group is at rest. What the broker refuses is in the answer.
        Raises EquipoiseError when the log fails.
        """
        self._began_s = self._runtime.monotonic_s()
        self._look({place: each.member_id for each in self.before.clients for place in each.held}, is_at_rest=False)
        planned = None if self._log is None else self._plan(self._log)
        done = await self._taken_over(self._began_s, within_s)
        if self._log is not None and planned is not None:
            for each in self._log.append(measured(planned, self._cost.costs(self._now_ms()), is_over=done.is_done)):
                if isinstance(each.decision, ChangeJudged):
                    return attrs.evolve(done, judged=judged_text(each.decision))
        return done

    def _plan(self, log: SeatLog) -> ChangePlanned:
        """Returns the change in the log."""
        has = {f"{topic}-{number}": each.member_id for each in self.before.clients for topic, number in each.held}
        settings = ConsumerSettings(session_timeout_ms=SESSION_MS, is_broker_led=True, in_step=True)
        idle = [each.member_id for each in self.before.clients if not each.held]
        expected = predict_deal(has, has, settings, idle=idle) if 0 < len(has) <= MOST_PARTITIONS else ()
        planned = ChangeWish().planned("migrate", "the broker takes the group over", log.state.last_offset, None, log.state.config_number)
        planned = attrs.evolve(planned, expected=expected)
        log.append(planned)
        return planned

    def _look(self, has: Mapping[TopicPartition, str], *, is_at_rest: bool) -> None:
        self._cost.look(has, self._now_ms(), is_at_rest=is_at_rest)

    def _now_ms(self) -> int:
        return int((self._runtime.monotonic_s() - self._began_s) * 1_000)

    async def _taken_over(self, began_s: float, within_s: float) -> TakenOver:
        try:
            await repeated(self._member.beat, ASKED_S)
        except NoBrokerSeatError as error:
            return self._not_done(str(error).partition(": ")[2], began_s)
        except errors.TopicAuthorizationFailedError:
            return self._not_done("the user needs DESCRIBE on topics with the prefix 'equipoise-lead'", began_s)
        except (errors.KafkaError, OSError) as error:
            return self._not_done(f"the member cannot join: {type(error).__name__} {error}".strip(), began_s)
        self._beating = asyncio.create_task(self._beat())
        looks, found = 0, None
        while looks < LOOKS_AT_REST:
            if self._beating.done():
                return self._not_done(str(self._beating.exception() or "its member has ended"), began_s)
            if self._runtime.monotonic_s() - began_s > within_s:
                return self._not_done(f"not at rest within {within_s:g} s: {_waits_for(found)}", began_s)
            await asyncio.sleep(LOOK_S)
            try:
                found = await self._member.describe()
            except (errors.KafkaError, OSError):
                continue
            if found is not None:
                self._look({place: each.member_id for each in found.consumers for place in each.has}, is_at_rest=found.is_at_rest)
            looks = looks + 1 if found is not None and found.is_at_rest else 0
        assert found is not None
        return self._verdict(found, began_s)

    def _verdict(self, found: DescribedConsumers, began_s: float) -> TakenOver:
        had = {place: each.member_id for each in self.before.clients for place in each.held}
        has = {place: each.member_id for each in found.consumers for place in each.has}
        clients = clients_in(found)
        there = {each.member_id for each in clients}
        gone = {each.member_id: each.client_id for each in self.before.clients if each.member_id not in there and each.client_id not in OWN}
        unread = had.keys() - has.keys()
        problem = ""
        if gone:
            problem = f"taken over, and {counted(len(gone), 'client')} left it meanwhile: {', '.join(sorted(gone.values()))}"
        elif unread:
            problem = f"taken over, and {counted(len(unread), 'partition')} have nobody: {_places(unread)}"
        return TakenOver(
            group=self.before.name,
            is_done=not problem,
            clients=len(clients),
            partitions=len(has),
            moves=sum(had.get(place, name) != name for place, name in has.items()),
            took_s=self._runtime.monotonic_s() - began_s,
            problem=problem,
        )

    def _not_done(self, problem: str, began_s: float) -> TakenOver:
        return TakenOver(
            group=self.before.name,
            is_done=False,
            clients=len(self.before.clients),
            partitions=0,
            moves=0,
            took_s=self._runtime.monotonic_s() - began_s,
            problem=problem,
        )

    async def classic_clients(self) -> int | None:
        """Counts the clients of the classic protocol; None: the broker cannot be asked, or the
        group is no more one of KIP-848. Raises InputError when the member was taken out.
        """
        if self._beating is not None and self._beating.done():
            raise InputError(f"{self.before.name}: {self._beating.exception() or 'its member has ended'}")
        try:
            found = await self._member.describe()
        except (errors.KafkaError, OSError):
            return None
        return None if found is None else sum(each.is_classic for each in clients_in(found))

    async def _beat(self) -> None:
        """Keeps the member in its group. Raises InputError when somebody has taken it out."""
        beaten_s = self._runtime.monotonic_s()
        while True:
            await asyncio.sleep(self._member.heartbeat_interval_ms / 2_000)
            try:
                await self._member.beat()
                beaten_s = self._runtime.monotonic_s()
            except OutOfGroupError:
                if self._runtime.monotonic_s() - beaten_s < self._member.heartbeat_interval_ms / 1_000 * 2:
                    raise InputError("its member was taken out of the group (`equipoise migrate --back`)") from None
            except (errors.KafkaError, OSError):
                continue  # a coordinator that takes over knows the member


def _waits_for(group: DescribedConsumers | None) -> str:
    if group is None:
        return "the group cannot be described, or is a classic one again"
    late = [each.client_id for each in group.consumers if each.epoch < group.epoch or each.has != each.target]
    return f"waiting for {', '.join(sorted(late)) or 'the coordinator'}"


def clients_in(group: DescribedConsumers) -> list[DescribedConsumer]:
    """The members that are not equipoise's own."""
    return [each for each in group.consumers if each.client_id not in OWN]


def _places(places: set[TopicPartition]) -> str:
    named = [f"{topic}-{number}" for topic, number in sorted(places)]
    return ", ".join(named[:5]) + (" and more" if len(named) > 5 else "")


@attrs.frozen(kw_only=True)
class GivenBack:
    """`removed`: members of equipoise that were in it. `is_classic`: it is a classic group now.
    `new_protocol`: clients that use the new protocol, by client id.
    """

    group: str
    removed: int
    is_classic: bool
    new_protocol: tuple[str, ...]

    def said(self) -> str:
        """Says it to an operator, on one line."""
        taken = f"{counted(self.removed, 'member')} of equipoise taken out; "
        if self.is_classic:
            return f"{self.group}: {taken if self.removed else ''}it is a classic group"
        who = ", ".join(self.new_protocol)
        why = f"{who}: they use the new protocol themselves; start them again with group.protocol=classic" if who else "the brokers' policy keeps it"
        return f"{self.group}: {taken if self.removed else ''}it stays with the broker: {why}"


async def give_back(connection: Connection, group: str, within_s: float, runtime: Runtime = DEPLOYED) -> GivenBack:
    """Takes equipoise's members out of a group, and waits until it is a classic one. Raises
    KafkaError, OSError.
    """
    async with ConsumerGroup(connection, group, client_id=CLIENT_ID) as asked:
        members = await repeated(asked.members, ASKED_S)
        ours = [each for each in members if each.client_id == CLIENT_ID]
        for each in ours:
            await asked.remove(each)
        by_s = runtime.monotonic_s() + within_s
        while True:
            described = await repeated(asked.describe_consumers, ASKED_S)
            left = await repeated(asked.members, ASKED_S)
            new = tuple(sorted({each.client_id for each in left if each.protocol == "consumer"}))
            if described is None or new or runtime.monotonic_s() > by_s:
                return GivenBack(group=group, removed=len(ours), is_classic=described is None, new_protocol=new)
            await asyncio.sleep(LOOK_S)
