"""Groups of a cluster, as their coordinators list them."""

from __future__ import annotations

import attrs
from aiokafka import errors

from equipoise.events.errors import InputError
from equipoise.kafka.client import Admin
from equipoise.kafka.connection import Connection
from equipoise.kafka.group_requests import ListGroups


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
    await admin.start()
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
