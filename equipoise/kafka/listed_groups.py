"""Groups of a cluster, as their coordinators list them."""

from __future__ import annotations

from typing import Any

import attrs
from aiokafka import errors

from equipoise.events.errors import InputError
from equipoise.kafka.connection import Connection
from equipoise.kafka.consumer_groups import connected
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
    """Every group that the user may see, by name. Raises KafkaError, OSError, and InputError where
    brokers are too old to tell groups' types.
    """
    client = await connected(connection.options())
    try:
        found = [each for broker in client.cluster.brokers() for each in await groups_of(client, broker.nodeId)]
    finally:
        await client.close()
    return sorted(found, key=lambda each: each.name)


async def groups_of(client: Any, node_id: int) -> list[ListedGroup]:
    """The groups that a broker coordinates. Raises as `listed_groups`."""
    try:
        answer = (await client.send(node_id, ListGroups())).to_object()
    except (errors.IncompatibleBrokerVersion, NotImplementedError):
        raise InputError("the brokers do not tell the types of groups; Kafka 3.8 or later is needed") from None
    if answer["error_code"]:
        raise errors.for_code(answer["error_code"])(f"broker {node_id} lists no groups")
    return [
        ListedGroup(
            name=each["group"], group_type=each["group_type"].lower(), protocol_type=each["protocol_type"], state=each["group_state"]
        )
        for each in answer["groups"]
    ]  # fmt: skip
