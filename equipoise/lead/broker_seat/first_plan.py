"""The first plan of a group that is going to be led: who has what, and who is to have it."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import attrs

from equipoise.bridge.mapping import names_of
from equipoise.events.errors import InputError
from equipoise.events.facts import ExpectedCost, GroupConfigured
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import ClassicDescription, GroupMember
from equipoise.kafka.embedded_protocol import read_assignment, read_subscription
from equipoise.kafka.group_client import GroupClient
from equipoise.lead.broker_seat.broker_seat import CONSUMER, TOGETHER, decide
from equipoise.lead.broker_seat.described_group import DescribedConsumer, DescribedConsumers, subscriptions
from equipoise.lead.broker_seat.extra_member import CLIENT_ID, ExtraMember
from equipoise.lead.broker_seat.streams_seat import FirstRound, StreamsSeat
from equipoise.lead.broker_seat.ways import Way
from equipoise.lead.seat.generation import SeatSettings
from equipoise.lead.seat.log import SeatLog
from equipoise.lead.seat.names import client_of
from equipoise.replay.prediction.predict_deal import predict_deal
from equipoise.replay.simulation.kafka.consumers import ConsumerSettings

MOST_MOVES_SAID = 20
MOST_SIMULATED = 5_000
"""Partitions of a group whose costs are predicted."""
SESSION_MS = 45_000
"""Default of clients; nobody's session ends in these simulations."""
CLASSIC_HEARTBEAT_MS, BROKER_HEARTBEAT_MS = 3_000, 5_000
"""Defaults of clients, and of brokers."""


_SLOW_POLL = (
    "warning: a rebalance waits for the slowest member to poll, up to its max.poll.interval.ms (5 min by default). Members that work on a batch"
    " for longer than a heartbeat make it cost more than expected"
)


@attrs.frozen(kw_only=True)
class FirstPlan:
    """`has`, `wanted`: partition or task -> its member or process. `idle`: those that have nothing.
    `names`: how lines call them. `copies`: lines about copies. `is_led`: equipoise is in the group
    already. `strategy`: of a classic group. `waits`: for copies, so that nobody knows how long.
    """

    has: Mapping[str, str]
    wanted: Mapping[str, str]
    idle: tuple[str, ...]
    names: Mapping[str, str]
    copies: tuple[str, ...] = ()
    is_led: bool = False
    is_classic: bool = False
    strategy: str = ""
    waits: bool = False

    def described(self, named: Collection[str]) -> dict[str, str]:
        """Returns who has what, as `has_of` says it."""
        return {place: self.names[who] if self.names[who] in named else who for place, who in self.has.items()}

    def lines(self) -> list[str]:
        """Says what would move, and which copies would begin."""
        moved = [(place, self.has.get(place), to) for place, to in self.wanted.items() if self.has.get(place) != to]
        lines = [f"{place}: {self.names[had] if had else 'nobody'} -> {self.names[to]}" for place, had, to in moved[:MOST_MOVES_SAID]]
        return [*lines, *([f"and {len(moved) - MOST_MOVES_SAID} more"] if len(moved) > MOST_MOVES_SAID else []), *self.copies]

    def warnings(self, way: Way, *, evicts: bool) -> list[str]:
        """Says what the expected costs leave out, and when it leads."""
        if way.name != "seat" or not self.has:
            return []
        when = [] if evicts else ["the seat joins with one rebalance, and leads when the present leader ends; --evict does not wait for that"]
        return [*when, _SLOW_POLL]

    def expected(self, way: Way, *, evicts: bool) -> tuple[ExpectedCost, ...]:
        """Returns what it costs that the group is led so; (): that is not known."""
        if not self.has or len(self.has) > MOST_SIMULATED:
            return ()
        if way.name != "seat":
            interval_ms = CLASSIC_HEARTBEAT_MS if self.is_classic else way.heartbeat_ms or BROKER_HEARTBEAT_MS
            settings = ConsumerSettings(session_timeout_ms=SESSION_MS, is_broker_led=True, heartbeat_interval_ms=interval_ms, in_step=self.is_classic)
            expected = predict_deal(self.has, self.wanted, settings, idle=self.idle)
            return tuple(each for each in expected if each.metric != "rest_ms" or not self.waits)
        settings = ConsumerSettings(session_timeout_ms=SESSION_MS, assignor=self.strategy, in_step=True)  # each rebalance has them so
        evicted = min(self.has.values()) if evicts else None
        return predict_deal(self.has, self.wanted if evicts else self.has, settings, idle=self.idle, evicted=evicted)


def has_of(group: DescribedConsumers, named: Collection[str]) -> dict[str, str]:
    """Returns partition -> its member, by the name of its client where that is one of `named`."""
    who = {each.member_id: each.client().base if each.client().base in named else each.member_id for each in group.consumers}
    return {f"{topic}-{number}": who[each.member_id] for each in group.consumers for topic, number in each.has}


async def first_plan(connection: Connection, group: str, way: Way, settings: SeatSettings, config: GroupConfigured) -> FirstPlan | None:
    """None: the group has nobody, or is not at rest. `config`: of a group of this way. Raises
    InputError, KafkaError, OSError.
    """
    if way.name == "streams":
        with tempfile.TemporaryDirectory() as folder, SeatLog(Path(folder) / "dry-run.db", group) as log:
            log.configure(config)
            return _of_streams(await StreamsSeat(connection, group, log).first_round())
    is_classic = way.name == "seat" or way.converts
    async with ExtraMember(connection, group, "") as member:
        found = await (_classic(connection, group) if is_classic else member.describe())
        if found is None:
            return None
        topics = subscriptions(found.consumers, await member.every_topic() if any(each.pattern for each in found.consumers) else ())
        asked = await member.topics({topic for of in topics.values() for topic in of})
    with tempfile.TemporaryDirectory() as folder, SeatLog(Path(folder) / "dry-run.db", group) as log:
        log.configure(config)
        protocol = TOGETHER if way.together or found.assignor == TOGETHER else CONSUMER
        decided = decide(log, settings, found, asked, topics, protocol=protocol, lags={}, before=[])
    has = found.targets()
    return FirstPlan(
        has={f"{topic}-{number}": who for (topic, number), who in has.items()},
        wanted={f"{topic}-{number}": who for (topic, number), who in sorted(decided.wanted.items())},
        idle=tuple(sorted({each.member_id for each in found.consumers} - set(has.values()))),
        names={each.member_id: each.client().base for each in found.consumers},
        is_led=bool(found.carriers),
        is_classic=is_classic,
        strategy=found.assignor if is_classic else "",
    )


async def _classic(connection: Connection, group: str) -> DescribedConsumers | None:
    """A classic group in the same form, with seats as carriers; None: it is not at rest."""
    async with GroupClient(connection, group) as client:
        description = await client.describe()
    return None if description.state != "Stable" or description.protocol_type != "consumer" else classic_consumers(description)


def classic_consumers(description: ClassicDescription) -> DescribedConsumers:
    """A classic group at rest as if the broker led it; seats of equipoise are its carriers."""
    seats, others = ([each for each in description.members if is_seat(each) == wanted] for wanted in (True, False))
    consumers, carriers = (tuple(one for one in map(_classic_member, of) if one is not None) for of in (others, seats))
    return DescribedConsumers(epoch=0, assigned_epoch=0, assignor=description.protocol, carriers=carriers, consumers=consumers)


def is_seat(member: GroupMember) -> bool:
    """Returns whether it is a seat of equipoise."""
    return member.client_id == CLIENT_ID


def _classic_member(each: GroupMember) -> DescribedConsumer | None:
    try:
        subscription, held = read_subscription(each.subscription), read_assignment(each.assignment)
    except InputError:
        return None
    base = client_of(each.member_id, each.instance_id).base
    return DescribedConsumer(
        member_id=each.member_id,
        instance_id=each.instance_id,
        client_id=base,
        rack=subscription.rack or "",
        topics=subscription.topics,
        pattern="",
        target=held,
        has=held,
    )


def _of_streams(first: FirstRound) -> FirstPlan:
    """A task goes where a copy is warmed up for it."""
    process_of = names_of(first.question)
    processes = first.question.processes
    has = {str(task): each.id for each in processes for task in each.active}
    members = first.planned.members
    wanted = {str(task): process_of[each.member_id] for each in members for task in each.active}
    wanted |= {str(task): process_of[each.member_id] for each in members for task in each.warmup}
    kept = {(task, each.id) for each in processes for task in each.standby}
    copies = [
        f"{task}: a copy on {each.member_id}"
        for each in members
        for task in sorted({*each.standby, *each.warmup})
        if (task, process_of[each.member_id]) not in kept
    ]
    return FirstPlan(
        has=has,
        wanted=dict(sorted(wanted.items())),
        idle=tuple(sorted({each.id for each in processes} - set(has.values()))),
        names={process: name for name, process in process_of.items()},
        copies=tuple(copies),
        is_led=first.is_led,
        waits=any(each.warmup for each in members),
    )
