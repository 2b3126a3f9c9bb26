"""`equipoise cluster PLACE`: every group of a Kafka cluster, whatever leads it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.params import brokers_argument, brokers_of, check_recording
from equipoise.cli.screen import Line, Screen, Table, bold
from equipoise.events.errors import InputError
from equipoise.replay.wording import counted, span_text

if TYPE_CHECKING:
    from equipoise.replay.importers.groups.observed import ClusterMember, ObservedGroup, ObservedGroups

_AT_REST = ("stable", "empty")


@command("cluster", short_help="List every group of a Kafka cluster, whatever leads it.")
@brokers_argument("place", "PLACE")
@click.option("--group", metavar="GROUP", help="Show one group: its members, and each partition with its lag and how long it is silent.")
def cluster(screen: Screen, place: str, group: str | None) -> None:
    """List the groups of PLACE, a broker (kafka://host:port) or a recording (`equipoise record`):
    consumers (classic and KIP-848), Kafka Streams (classic and KIP-1071), Kafka Connect and share
    groups. Groups on the move come first.

    `work` counts partitions, tasks or connectors that a member has; `revoking` those that a member
    still has to give up, `lag` the records behind the group's commits. `epoch` is the generation of
    a classic group, else the group epoch. A classic group stores a generation when it is complete,
    so it is `stable` or `empty`. Share groups are only named.

    The command reads `__consumer_offsets`; it joins no group and commits nothing.

    \b
    Examples:
      equipoise cluster kafka://127.0.0.1:9092
      equipoise cluster kafka://127.0.0.1:9092 --group orders
      equipoise cluster cluster.db --json | jq '.groups[] | select(.state == "reconciling")'
    """
    seen = asyncio.run(_read_cluster(place)) if place.startswith("kafka://") else _read_recording(place)
    observed = seen.observed
    if group is not None:
        if group not in observed.groups:
            raise InputError(f"--group: {place} has no group {group!r}; without --group all are listed")
        _show(screen, observed.groups[group], seen)
        return
    found = sorted(observed.groups.values(), key=lambda group: (group.state in _AT_REST, group.state == "empty", group.name))
    rows = [_row(each, seen) for each in found]
    columns = ("group", "kind", "state", "members", "work", "revoking", "lag", "epoch", "protocol")
    table = Table(columns=columns, rows=[[row[column] for column in columns] for row in rows])
    unread = [f"not read: {each}" for each in observed.unread]
    screen.answer({"groups": rows, "unread": observed.unread, "members": None, "partitions": None}, table if rows else "no group yet", *unread)


@attrs.frozen
class _Seen:
    """`now_ms`: the brokers' newest time that is known."""

    observed: ObservedGroups
    ends: Mapping[str, list[int]]
    now_ms: int


def _show(screen: Screen, group: ObservedGroup, seen: _Seen) -> None:
    from equipoise.replay.importers.groups.lag import lags_of

    lags = lags_of(group, seen.observed.commits, seen.ends, seen.now_ms)
    names = {name: member.client_id or name for name, member in group.members.items()}
    row = _row(group, seen)
    members = [_member(member) for _, member in sorted(group.members.items())]
    partitions = [{**attrs.asdict(each), "lag": each.lag} for each in lags]
    head = Line(bold(group.name), f"  {group.kind.value}, {group.state}, epoch {group.epoch}; {counted(row['lag'], 'record')} behind")
    who = Table(
        columns=("member", "host", "state", "active", "standby", "warm-up", "revoking"),
        rows=[
            (names[name], member.host, member.state, *map(len, (member.active, member.standby, member.warmup, member.revoking)))
            for name, member in sorted(group.members.items())
        ],
        title=counted(len(members), "member"),
    )
    what = Table(
        columns=("partition", "member", "committed", "end", "lag", "silent"),
        rows=[
            (
                each.partition, names.get(each.member or "", ""), each.committed, each.end, each.lag,
                span_text(each.silent_ms) if each.silent_ms else "",
            )
            for each in lags
        ],
        title=counted(len(lags), "partition"),
    )  # fmt: skip
    unread = [f"not read: {each}" for each in seen.observed.unread]
    screen.answer({"groups": [row], "unread": seen.observed.unread, "members": members, "partitions": partitions}, head, "", who, "", what, *unread)


def _member(member: ClusterMember) -> dict[str, Any]:
    work = {what: sorted(getattr(member, what)) for what in ("active", "standby", "warmup", "revoking")}
    return {"member": member.member_id, "client": member.client_id, "host": member.host, "state": member.state, **work}


def _row(group: ObservedGroup, seen: _Seen) -> dict[str, Any]:
    from equipoise.replay.importers.groups.lag import lags_of

    return {
        "group": group.name,
        "kind": group.kind.value,
        "state": group.state,
        "members": len(group.members),
        "work": len(group.owners),
        "revoking": sum(len(member.revoking) for member in group.members.values()),
        "lag": sum(each.lag for each in lags_of(group, seen.observed.commits, seen.ends, seen.now_ms)),
        "epoch": group.epoch,
        "protocol": group.protocol,
        "unread_members": [f"{name}: {member.problem}" for name, member in sorted(group.members.items()) if member.problem],
    }


async def _read_cluster(place: str) -> _Seen:
    from equipoise.replay.importers.groups.cluster import ClusterReader
    from equipoise.replay.importers.groups.observed import ObservedGroups

    async with ClusterReader(brokers_of(place)) as reader:
        records = await reader.poll()
        while not await reader.read_all():
            records += await reader.poll()
        observed = ObservedGroups(await reader.names())
        for record in records:
            observed.read(record)
        ends = await reader.ends({topic for _, topic, _ in observed.commits})
    return _Seen(observed, ends, time.time_ns() // 1_000_000)


def _read_recording(place: str) -> _Seen:
    from equipoise.replay.importers.groups.observed import ObservedGroups
    from equipoise.replay.importers.groups.recording import open_recording

    check_recording(place)
    with open_recording(place) as recording:
        observed = ObservedGroups(recording.topics())
        for record in recording.records():
            observed.read(record)
        for commit in recording.commits():
            if commit.committed is None:
                observed.commits.pop((commit.group, commit.topic, commit.partition), None)
                continue
            observed.commits[commit.group, commit.topic, commit.partition] = commit.at_ms, commit.committed
        now_ms, ends = max(recording.ends(), default=(0, {}), key=lambda sample: sample[0])
    return _Seen(observed, ends, max([now_ms, *(at_ms for at_ms, _ in observed.commits.values())]))
