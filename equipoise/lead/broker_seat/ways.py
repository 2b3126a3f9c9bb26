"""Ways to lead a consumer group: from the leader's seat, or from inside the brokers."""

from __future__ import annotations

import contextlib
import glob
from typing import Literal

import attrs
from aiokafka import errors

from equipoise.kafka.asking import Asking
from equipoise.kafka.connection import Connection
from equipoise.kafka.group_client import GroupClient
from equipoise.kafka.group_requests import own_group_settings
from equipoise.lead.broker_seat.broker_seat import TOGETHER
from equipoise.lead.broker_seat.extra_member import NoBrokerSeatError
from equipoise.lead.migrating.asking_groups import GroupsAsking
from equipoise.lead.migrating.verdict import POLICY

SETTING = "group.consumer.assignors"
CLASS = "io.equipoise.broker.EquipoiseConsumerAssignor"
STREAMS_SETTING = "group.streams.assignors"
STREAMS_CLASS = "io.equipoise.broker.EquipoiseStreamsAssignor"
_INSIDE = {
    "brokers": (SETTING, CLASS, "group.consumer.heartbeat.interval.ms"),
    "streams": (STREAMS_SETTING, STREAMS_CLASS, "group.streams.heartbeat.interval.ms"),
}
"""Way -> the brokers' setting that names the assignor, its class, and that of their heartbeats."""


@attrs.frozen(kw_only=True)
class Way:
    """A way to lead a group: from ``brokers`` (``streams``: of KIP-1071) or ``seat``.

    `converts`: it is a classic group now; `refused`: why brokers do not take it over, or would not
    give it back; "": nothing is known. `together`: its topics are dealt together. `without_jar`:
    brokers that do not have the assignor; None: the user may not read their settings.
    `heartbeat_ms`: the brokers' interval for members; None: unknown.
    """

    name: Literal["brokers", "streams", "seat"]
    converts: bool = False
    refused: str = ""
    together: bool = False
    without_jar: tuple[int, ...] | None = ()
    heartbeat_ms: int | None = None

    def what(self, *, leads: bool) -> str:
        """Returns the change that it is for the group. `leads`: at once; else the seat joins, and
        its time comes.
        """
        if not leads:
            return "equipoise joins the group, and stands by until its leader ends"
        where = {"seat": "from the seat of its leader", "streams": "from inside the brokers, by its settings", "brokers": "from inside the brokers"}
        return f"equipoise leads the group {where[self.name]}"

    def said(self, group: str) -> str:
        """Says to an operator how equipoise is going to lead the group."""
        if self.name == "seat":
            return f"group {group}: to be led from the seat of its leader, a member of the classic protocol"
        unknown = "; whether brokers have the assignor is not known: the user may not read their settings" if self.without_jar is None else ""
        if self.name == "streams":
            return f"group {group}: to be led from inside the brokers (KIP-1071), by settings of the group{unknown}"
        taken = "; it is a classic group, and the broker takes it over to the new protocol until equipoise leaves" if self.converts else ""
        return f"group {group}: to be led from inside the brokers (KIP-848), by an extra member{taken}{unknown}"


async def way_of(connection: Connection, group: str, *, convert: bool) -> Way:
    """Looks at the group and at the brokers. Changes nothing. Raises KafkaError, OSError."""
    async with GroupClient(connection, group) as client:
        kind = await client.kind()
        group_type = "" if kind is None else kind[0].lower()
        if group_type == "streams":
            return await _inside(connection, group, Way(name="streams"))
        converts = convert and group_type != "consumer"
        if group_type != "consumer" and not (convert and group_type in ("", "classic")):
            return Way(name="seat")
        together = converts and (await client.describe()).protocol == TOGETHER
    refused = await _refused(connection, group) if converts and group_type else ""
    return await _inside(connection, group, Way(name="brokers", converts=converts, refused=refused, together=together))


async def _refused(connection: Connection, group: str) -> str:
    """Returns why a classic group cannot be converted, or not back; "": nothing is known."""
    async with GroupsAsking(connection) as asking:
        for judged in await asking.judged([glob.escape(group)]):
            if judged.verdict.takes in ("no", "not for it"):
                return "; ".join(filter(None, (f"the broker does not take it over: {judged.verdict.why}", judged.verdict.to_do)))
            if (judged.coordinator.policy or "").lower() == "upgrade":
                return f"the broker would not give it back: {POLICY} of broker {judged.coordinator.node_id} is upgrade; set it to bidirectional"
    return ""


async def _inside(connection: Connection, group: str, way: Way) -> Way:
    """The way, with what the brokers and the group have set."""
    async with Asking(connection) as asking:
        looked = await look_inside(asking, way)
        if looked.without_jar is None:
            return looked
        with contextlib.suppress(errors.KafkaError):  # the user may not read the group's own settings, which few groups have
            own = (await own_group_settings(asking.admin, group)).get(_INSIDE[way.name][2].removeprefix("group."))
            return attrs.evolve(looked, heartbeat_ms=int(own)) if own else looked
    return looked


async def look_inside(asking: Asking, way: Way) -> Way:
    """Returns the way, with what the brokers have set now. Raises KafkaError."""
    setting, named, interval = _INSIDE[way.name]
    missing: list[int] = []
    heartbeats: list[int] = []
    for broker in asking.brokers():
        settings = (await asking.settings(broker=broker.node_id, names=[setting, interval])).get(str(broker.node_id))
        if settings is None:
            return attrs.evolve(way, without_jar=None)
        heartbeats += [int(settings[interval])] if settings.get(interval) else []
        if named not in [each.strip() for each in (settings.get(setting) or "").split(",")]:
            missing.append(broker.node_id)
    return attrs.evolve(way, without_jar=tuple(missing), heartbeat_ms=max(heartbeats, default=None))


def check_way(way: Way, group: str) -> None:
    """Raises NoBrokerSeatError where brokers do not have the assignor, or do not convert the group."""
    if way.refused:
        raise NoBrokerSeatError(f"--group {group}: {way.refused}")
    if way.without_jar:
        names = ", ".join(map(str, way.without_jar))
        setting, named, _ = _INSIDE[way.name]
        raise NoBrokerSeatError(f"--group {group}: the brokers assign it, and {setting} of broker {names} does not name {named}; see docs/seat.md")
