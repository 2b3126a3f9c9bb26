"""Ways to lead a consumer group: from the leader's seat, or from inside the brokers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import attrs

from equipoise.broker_seat.broker_seat import CONSUMER, TOGETHER, decide
from equipoise.broker_seat.described_group import DescribedConsumer, DescribedConsumers, subscriptions
from equipoise.broker_seat.extra_member import ExtraMember, NoBrokerSeatError
from equipoise.broker_seat.streams_seat import StreamsSeat
from equipoise.events.errors import InputError
from equipoise.events.facts import GroupConfigured
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import GroupMember
from equipoise.operations.doctor.asking import Asking
from equipoise.seat.generation import SeatSettings
from equipoise.seat.group_client import GroupClient
from equipoise.seat.names import client_of
from equipoise.seat.seat_log import SeatLog
from equipoise.seat.seat_protocol import read_assignment, read_subscription

SETTING = "group.consumer.assignors"
CLASS = "io.equipoise.broker.EquipoiseConsumerAssignor"
STREAMS_SETTING = "group.streams.assignors"
STREAMS_CLASS = "io.equipoise.broker.EquipoiseStreamsAssignor"
MOST_MOVES_SAID = 20


@attrs.frozen(kw_only=True)
class Way:
    """A way to lead a group: from ``brokers`` (``streams``: of KIP-1071) or ``seat``.

    `converts`: it is a classic group now. `together`: its topics are dealt together. `without_jar`:
    brokers that do not have the assignor; None: the user may not read their settings.
    """

    name: Literal["brokers", "streams", "seat"]
    converts: bool = False
    together: bool = False
    without_jar: tuple[int, ...] | None = ()

    def said(self, group: str) -> str:
        """Says it to an operator."""
        if self.name == "seat":
            return f"group {group}: led from the seat of its leader, a member of the classic protocol"
        unknown = "; whether brokers have the assignor is not known: the user may not read their settings" if self.without_jar is None else ""
        if self.name == "streams":
            return f"group {group}: led from inside the brokers (KIP-1071), by settings of the group{unknown}"
        taken = "; it is a classic group, and the broker takes it over to the new protocol until equipoise leaves" if self.converts else ""
        return f"group {group}: led from inside the brokers (KIP-848), by an extra member{taken}{unknown}"


async def way_of(connection: Connection, group: str, *, convert: bool) -> Way:
    """Looks at the group and at the brokers. Changes nothing. Raises KafkaError, OSError."""
    async with GroupClient(connection, group) as client:
        kind = await client.kind()
        group_type = "" if kind is None else kind[0].lower()
        if group_type == "streams":
            return Way(name="streams", without_jar=await _without_jar(connection, STREAMS_SETTING, STREAMS_CLASS))
        converts = convert and group_type != "consumer"
        if group_type != "consumer" and not (convert and group_type in ("", "classic")):
            return Way(name="seat")
        together = converts and (await client.describe()).protocol == TOGETHER
    return Way(name="brokers", converts=converts, together=together, without_jar=await _without_jar(connection, SETTING, CLASS))


async def _without_jar(connection: Connection, setting: str, named: str) -> tuple[int, ...] | None:
    missing: list[int] = []
    async with Asking(connection) as asking:
        for broker in asking.brokers():
            settings = (await asking.settings(broker=broker.node_id)).get(str(broker.node_id))
            if not settings:
                return None
            if named not in [each.strip() for each in (settings.get(setting) or "").split(",")]:
                missing.append(broker.node_id)
    return tuple(missing)


def check_way(way: Way, group: str) -> None:
    """Raises NoBrokerSeatError where brokers do not have the assignor."""
    if way.without_jar:
        names = ", ".join(map(str, way.without_jar))
        setting, named = (STREAMS_SETTING, STREAMS_CLASS) if way.name == "streams" else (SETTING, CLASS)
        raise NoBrokerSeatError(f"--group {group}: the brokers assign it, and {setting} of broker {names} does not name {named}; see docs/seat.md")


async def first_moves(connection: Connection, group: str, way: Way, settings: SeatSettings, config: GroupConfigured) -> list[str]:
    """The moves of the first plan, a line each. `config`: of a group of this way. Raises
    InputError, KafkaError, OSError.
    """
    if way.name == "streams":
        with tempfile.TemporaryDirectory() as folder, SeatLog(Path(folder) / "dry-run.db", group) as log:
            log.configure(config)
            return await StreamsSeat(connection, group, log).first_moves()
    async with ExtraMember(connection, group, "") as member:
        found = await member.describe() if way.name == "brokers" and not way.converts else await _classic(connection, group)
        if found is None:
            return []
        topics = subscriptions(found.consumers, await member.every_topic() if any(each.pattern for each in found.consumers) else ())
        asked = await member.topics({topic for of in topics.values() for topic in of})
    with tempfile.TemporaryDirectory() as folder, SeatLog(Path(folder) / "dry-run.db", group) as log:
        log.configure(config)
        protocol = TOGETHER if way.together or found.assignor == TOGETHER else CONSUMER
        decided = decide(log, settings, found, asked, topics, protocol=protocol, lags={}, before=[])
    has, name = found.targets(), {each.member_id: each.client().base for each in found.consumers}
    moved = [(place, has.get(place), to) for place, to in sorted(decided.wanted.items()) if has.get(place) != to]
    lines = [f"{topic}-{number}: {name[had] if had else 'nobody'} -> {name[to]}" for (topic, number), had, to in moved[:MOST_MOVES_SAID]]
    return [*lines, *([f"and {len(moved) - MOST_MOVES_SAID} more"] if len(moved) > MOST_MOVES_SAID else [])]


async def _classic(connection: Connection, group: str) -> DescribedConsumers | None:
    """A classic group in the same form; None: it is not at rest, or has nobody."""
    async with GroupClient(connection, group) as client:
        description = await client.describe()
    if description.state != "Stable" or description.protocol_type != "consumer":
        return None
    found = [_classic_member(each) for each in description.members]
    return DescribedConsumers(
        epoch=0, assigned_epoch=0, assignor=description.protocol, carriers=(), consumers=tuple(each for each in found if each is not None)
    )


def _classic_member(each: GroupMember) -> DescribedConsumer | None:
    try:
        subscription, held = read_subscription(each.subscription), read_assignment(each.assignment)
    except InputError:
        return None
    base = client_of(each.member_id, each.instance_id).base
    return DescribedConsumer(
        member_id=each.member_id, instance_id=each.instance_id, client_id=base, rack=subscription.rack or "", topics=subscription.topics, pattern="",
        target=held, has=held,
    )  # fmt: skip


