"""`equipoise cluster PLACE`: every group of a Kafka cluster, whatever leads it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from equipoise.cli.command import command
from equipoise.cli.screen import Screen, Table

if TYPE_CHECKING:
    from equipoise.replay.importers.groups.observed import ObservedGroup, ObservedGroups

_AT_REST = ("stable", "empty")


@command("cluster", short_help="List every group of a Kafka cluster, whatever leads it.")
@click.argument("place", metavar="PLACE")
def cluster(screen: Screen, place: str) -> None:
    """List the groups of PLACE, a broker (kafka://host:port) or a recording (`equipoise record`):
    consumers (classic and KIP-848), Kafka Streams (classic and KIP-1071), Kafka Connect and share
    groups. Groups on the move come first.

    `work` counts partitions, tasks or connectors that a member has; `revoking` those that a member
    still has to give up. `epoch` is the generation of a classic group, else the group epoch. A
    classic group stores a generation when it is complete, so it is `stable` or `empty`. Share
    groups are only named.

    The command reads `__consumer_offsets`; it joins no group and commits nothing.

    \b
    Examples:
      equipoise cluster kafka://127.0.0.1:9092
      equipoise cluster cluster.db --json | jq '.groups[] | select(.state == "reconciling")'
    """
    observed = asyncio.run(_read_cluster(place)) if place.startswith("kafka://") else _read_recording(place)
    found = sorted(observed.groups.values(), key=lambda group: (group.state in _AT_REST, group.state == "empty", group.name))
    rows = [_row(group) for group in found]
    columns = ("group", "kind", "state", "members", "work", "revoking", "epoch", "protocol")
    table = Table(columns=columns, rows=[[row[column] for column in columns] for row in rows])  # type: ignore[misc] # texts and numbers
    unread = [f"not read: {each}" for each in observed.unread]
    screen.answer({"groups": rows, "unread": observed.unread}, table if rows else "no group yet", *unread)


def _row(group: ObservedGroup) -> dict[str, object]:
    return {
        "group": group.name,
        "kind": group.kind.value,
        "state": group.state,
        "members": len(group.members),
        "work": len(group.owners),
        "revoking": sum(len(member.revoking) for member in group.members.values()),
        "epoch": group.epoch,
        "protocol": group.protocol,
        "unread_members": [f"{name}: {member.problem}" for name, member in sorted(group.members.items()) if member.problem],
    }


async def _read_cluster(place: str) -> ObservedGroups:
    from equipoise.replay.importers.groups.cluster import ClusterReader
    from equipoise.replay.importers.groups.observed import ObservedGroups
    from equipoise.replay.importers.kafka_streams.broker import connection_of

    async with ClusterReader(connection_of(place)) as reader:
        records = await reader.poll()
        while not await reader.read_all():
            records += await reader.poll()
        observed = ObservedGroups(await reader.names())
    for record in records:
        observed.read(record)
    return observed


def _read_recording(place: str) -> ObservedGroups:
    from equipoise.replay.importers.groups.observed import ObservedGroups
    from equipoise.replay.importers.groups.recording import open_recording

    with open_recording(place) as recording:
        observed = ObservedGroups(recording.topics())
        for record in recording.records():
            observed.read(record)
    return observed
