"""`equipoise cluster PLACE`: every group of a Kafka cluster, whatever leads it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from equipoise.cli.command import command
from equipoise.cli.params import brokers_argument, brokers_of, check_recording
from equipoise.cli.screen import Line, Screen, Table, bold
from equipoise.events.errors import InputError
from equipoise.replay.importers.groups.observed import ALONE
from equipoise.replay.numbers import LAG, NEVER_COMMITTED
from equipoise.replay.wording import counted, span_text

if TYPE_CHECKING:
    from equipoise.kafka.connection import Connection
    from equipoise.replay.importers.groups.cluster_reading import ClusterReader
    from equipoise.replay.importers.groups.lag import PartitionLag
    from equipoise.replay.importers.groups.observed import ClusterMember, ObservedGroup, ObservedGroups

_AT_REST = ("stable", "empty")
_MOST_NAMED = 6
_ONCE_S = 3600.0
_AGAIN_S = 1.0
"""Between two looks at ends, from which it is known whether records come."""
_DESCRIBED = (
    "__consumer_offsets, which this user may not: groups are described instead, so generations of the classic protocol, since when partitions"
    " are silent, and share groups are not known"
)
_WAYS = {"seat": "from a seat (docs/seat.md)", "brokers": "from inside the brokers (docs/seat.md)", "rounds": "by rounds (docs/streams.md)"}
_ORPHAN = "by equipoise's assignor; no process of equipoise lead is there: nobody balances it"
_NO_SAMPLE: tuple[int, dict[str, list[int]]] = (0, {})
_WITHOUT_WORK = ("share", "other", "offsets only")
"""Kinds of groups whose work is not read."""


@command("cluster", short_help="List every group of a Kafka cluster, whatever leads it.")
@brokers_argument("place", "PLACE")
@click.option("--group", metavar="GROUP", help="Show one group: its members, and each partition with its lag and how long it is silent.")
def cluster(screen: Screen, place: str, group: str | None) -> None:
    """List the groups of PLACE, a broker (kafka://host:port) or a recording (`equipoise record`).
    Groups that nobody reads, because only equipoise's seat is in them, come first, then groups on
    the move. It knows consumers (classic and KIP-848), Kafka Streams (classic and KIP-1071), Kafka
    Connect and share groups.

    `members` counts those that read; a seat of equipoise reads nothing. `work` counts partitions,
    tasks or connectors that a member has, `revoking` those that it still has to give up. `lag`
    counts the records behind the group's commits. A group that never commits has an unknown lag;
    the command counts the records that come in a second. `epoch` is the generation of a classic
    group, else the group epoch. Of a classic group that is `rebalancing`, --group shows the members
    that it may be waiting for, and how equipoise could lead it. Share groups are only named.

    The command reads `__consumer_offsets`, and asks the coordinators which groups rebalance now; it
    joins no group and commits nothing. Where `__consumer_offsets` may not be read, it describes the
    groups, and says what it cannot know then.

    \b
    Examples:
      equipoise cluster kafka://127.0.0.1:9092
      equipoise cluster kafka://127.0.0.1:9092 --group orders
      equipoise cluster cluster.db --json | jq '.groups[] | select(.state == "reconciling")'
    """
    seen = asyncio.run(_read_cluster(place, screen.remark)) if place.startswith("kafka://") else _read_recording(place)
    observed = seen.observed
    if group is not None:
        if group not in observed.groups:
            own = "brokers know nothing of groups of equipoise's own members, `equipoise status` does"
            raise InputError(f"--group: {place} has no group {group!r}; without --group all are listed; {own}")
        _show(screen, observed.groups[group], seen)
        return
    found = sorted(seen.groups(), key=lambda group: (group.state != ALONE, group.state in _AT_REST, group.state == "empty", group.name))
    rows = [_row(each, seen) for each in found]
    unknown = [f"{row['group']}: {_behind(row)}" for row in rows if row["never_committed"]]
    columns = ("group", "kind", "state", "members", "work", "revoking", "lag", "epoch", "protocol", "led_by")
    table = Table(columns=(*columns[:-1], "led by"), rows=[[row[column] for column in columns] for row in rows])
    unread = [f"not read: {each}" for each in observed.unread]
    document = {"groups": rows, "unread": observed.unread, "members": None, "partitions": None}
    screen.answer(document, *unread, table if rows else "no group yet", *unknown)


@attrs.frozen
class _Seen:
    """`now_ms`: the brokers' newest time that is known; 0: times of commits are not."""

    observed: ObservedGroups
    ends: Mapping[str, list[int]]
    now_ms: int
    before: Mapping[str, list[int]] = attrs.field(factory=dict)
    """Ends that were read `took_ms` before `ends`."""
    took_ms: int = 0
    orphans: frozenset[str] = frozenset()
    """Groups of Kafka Streams whose settings name equipoise's assignor, while no process of
    `equipoise lead` is there.
    """

    def groups(self) -> list[ObservedGroup]:
        """Every group but those that only have the processes that lead another one."""
        from equipoise.replay.importers.groups.leading import is_beside

        return [group for group in self.observed.groups.values() if not is_beside(group, self.observed.groups)]

    def came(self, lags: Iterable[PartitionLag]) -> int | None:
        """Returns the records that came in `took_ms` to partitions that were never committed; None:
        not known.
        """
        found = None
        for each in lags:
            topic, _, number = each.partition.rpartition("-")
            before = self.before.get(topic, [])
            if each.committed is None and each.end is not None and int(number) < len(before):
                found = (found or 0) + max(0, each.end - before[int(number)])
        return found


def _show(screen: Screen, group: ObservedGroup, seen: _Seen) -> None:
    from equipoise.replay.importers.groups.lag import lags_of

    lags = lags_of(group, seen.observed.commits, seen.ends, seen.now_ms)
    names = {name: member.client_id or name for name, member in group.members.items()}
    row = _row(group, seen)
    members = [_member(member) for _, member in sorted(group.members.items())]
    partitions = [{**attrs.asdict(each), "lag": each.lag} for each in lags]
    head = Line(bold(group.name), f"  {group.kind.value}, {group.state}, epoch {group.epoch}; {_behind(row)}")
    who = Table(
        columns=("member", "host", "state", "active", "standby", "warm-up", "revoking"),
        rows=[
            (names[name], member.host, _state(member), *map(len, (member.active, member.standby, member.warmup, member.revoking)))
            for name, member in sorted(group.members.items())
        ],
        title=counted(row["members"], "member"),
    )
    what = Table(
        columns=("partition", "member", "committed", "end", "lag", "silent"),
        rows=[
            (
                each.partition,
                names.get(each.member or "", ""),
                each.committed,
                each.end,
                each.lag,
                span_text(each.silent_ms) if each.silent_ms else "",
            )
            for each in lags
        ],
        title=counted(len(lags), "partition"),
    )
    unread = [f"not read: {each}" for each in seen.observed.unread]
    said = [*unread, *_unread(row), _led(row), *_unknown(group), *_waiting(group, names), *_uneven(group, names)]
    document = {"groups": [row], "unread": seen.observed.unread, "members": members, "partitions": partitions}
    screen.answer(document, head, *said, "", who, "", what)


def _unread(row: Mapping[str, Any]) -> list[str]:
    if row["state"] != ALONE:
        return []
    return [f"nobody reads: the group has {counted(row['seats'], 'seat')} of equipoise, and no other member; start its clients"]


def _behind(row: Mapping[str, Any]) -> str:
    """Returns how far it is behind, in words."""
    behind = "" if row["lag"] is None else f"{counted(row['lag'], 'record')} behind"
    return f"{behind}; {_never(row)}" if behind and row["never_committed"] else behind or _never(row)


def _never(row: Mapping[str, Any]) -> str:
    came = row["came"]
    text = f"; {counted(came['records'], 'record')} came in {span_text(came['ms'])}" if came is not None else ""
    return f"{LAG} unknown: {NEVER_COMMITTED}, in {counted(row['never_committed'], 'partition')}{text}"


def _led(row: Mapping[str, Any]) -> str:
    could = " or ".join(_WAYS[each] for each in row["could_be_led"])
    return f"led by {row['led_by'] or 'nobody'}; equipoise could lead it {could}" if could else f"led by {row['led_by'] or 'nobody'}"


def _unknown(group: ObservedGroup) -> list[str]:
    """Says what brokers do not know of a group that only commits."""
    if group.kind.value != "offsets only":
        return []
    return ["it commits and has no members that brokers know of, as groups of equipoise's own members: whether they run, `equipoise status` knows"]


def _waiting(group: ObservedGroup, names: Mapping[str, str]) -> list[str]:
    """Whom a rebalance that is not over waits for."""
    if group.under_way == "syncing":
        return ["a rebalance is under way: all members have joined, and wait for the assignment of their leader"]
    if not group.under_way:
        return []
    who = ", ".join(names[each] for each in group.awaited[:_MOST_NAMED]) + (" and others" if len(group.awaited) > _MOST_NAMED else "")
    if len(group.awaited) == 1:
        return [f"a rebalance is under way: it most likely waits for {who}, the only member of the last generation that is still there"]
    return [f"a rebalance is under way: it waits for {f'some of {who}, or members that are new' if who else 'its first members'}"]


def _uneven(group: ObservedGroup, names: Mapping[str, str]) -> list[str]:
    """Members with nothing, in a group that has work for them or not."""
    if group.under_way or group.state != "stable" or group.kind.value in _WITHOUT_WORK:
        return []
    readers = group.readers
    idle = sorted(names[name] for name, member in readers.items() if not (member.active or member.standby or member.problem))
    if not idle:
        return []
    what = f"{counted(len(idle), 'member')} of {len(readers)} {'has' if len(idle) == 1 else 'have'} no work"
    who = ", ".join(idle[:_MOST_NAMED]) + (" and others" if len(idle) > _MOST_NAMED else "")
    why = f": the group has {counted(len(group.owners), 'piece')} of it" if len(group.owners) < len(readers) else ""
    return [f"{what} ({who}){why}"]


def _state(member: ClusterMember) -> str:
    return "seat" if member.is_seat else member.state


def _member(member: ClusterMember) -> dict[str, Any]:
    work = {what: sorted(getattr(member, what)) for what in ("active", "standby", "warmup", "revoking")}
    return {"member": member.member_id, "client": member.client_id, "host": member.host, "state": _state(member), **work}


def _row(group: ObservedGroup, seen: _Seen) -> dict[str, Any]:
    from equipoise.replay.importers.groups.lag import GroupLag, lags_of
    from equipoise.replay.importers.groups.leading import could_be_led, led_by, seats_of, stands_by

    groups, is_orphan = seen.observed.groups, group.name in seen.orphans
    leader = led_by(group, groups)
    lags = lags_of(group, seen.observed.commits, seen.ends, seen.now_ms)
    behind, came = GroupLag.of(lags), seen.came(lags)
    return {
        "group": group.name,
        "kind": group.kind.value,
        "state": group.state,
        "members": len(group.readers),
        "seats": seats_of(group, groups),
        "work": len(group.owners),
        "revoking": sum(len(member.revoking) for member in group.members.values()),
        "lag": behind.records,
        "never_committed": behind.never_committed,
        "came": None if came is None or not behind.never_committed else {"records": came, "ms": seen.took_ms},
        "epoch": group.epoch,
        "protocol": group.protocol,
        "led_by": f"{leader}; equipoise stands by" if stands_by(group) else f"{leader}, {_ORPHAN}" if is_orphan else leader,
        "could_be_led": list(could_be_led(group, groups)),
        "unread_members": [f"{name}: {member.problem}" for name, member in sorted(group.members.items()) if member.problem],
    }


async def _read_cluster(place: str, remark: Callable[[str], None]) -> _Seen:
    from equipoise.kafka.started_clients import NotAllowedError
    from equipoise.replay.importers.groups.cluster_reading import ClusterReader
    from equipoise.replay.importers.groups.observed import ObservedGroups

    connection = brokers_of(place)
    async with ClusterReader(connection) as reader:
        try:
            records = await reader.poll()
        except NotAllowedError:
            return await _described_cluster(connection, reader, remark)
        while not await reader.read_all():
            records += await reader.poll()
        observed = ObservedGroups(await reader.names())
        for record in records:
            observed.read(record)
        await _note_under_way(observed, connection)
        seen = await _with_ends(observed, reader.ends)
        return attrs.evolve(seen, orphans=await _orphans(observed, connection))


async def _orphans(observed: ObservedGroups, connection: Connection) -> frozenset[str]:
    """Groups of Kafka Streams that equipoise's settings are in, and nobody of equipoise. Where the
    user may not read the settings of a group, that is said.
    """
    from aiokafka.errors import KafkaError

    from equipoise.kafka.group_requests import own_group_settings
    from equipoise.kafka.started_clients import admin_client, reaching
    from equipoise.lead.broker_seat.extra_member import ASSIGNOR
    from equipoise.lead.broker_seat.streams_seat import NAME
    from equipoise.replay.importers.groups.leading import seats_of
    from equipoise.replay.importers.groups.observed import GroupKind

    asked = [each for each in observed.groups.values() if each.kind is GroupKind.STREAMS and not seats_of(each, observed.groups)]
    found: set[str] = set()
    if asked:
        async with admin_client(connection) as admin:
            for group in asked:
                try:
                    with reaching(connection):
                        settings = await own_group_settings(admin, group.name)
                except (KafkaError, InputError) as error:
                    observed.unread.append(f"whether settings of equipoise are in group {group.name}: {error}")
                else:
                    found |= {group.name} if settings.get(NAME) == ASSIGNOR else set()
    return frozenset(found)


async def _with_ends(observed: ObservedGroups, ends: Callable[[Iterable[str]], Awaitable[dict[str, list[int]]]], now_ms: int | None = None) -> _Seen:
    """Reads the ends of all topics that groups read; of those that members read and have not
    committed a second time after _AGAIN_S, because only that shows whether records come. `now_ms`:
    0 where times of commits are not known; None: the time of now.
    """
    from equipoise.replay.importers.groups.lag import read_topics

    committed = {(group, topic) for group, topic, _ in observed.commits}
    never = {topic for name, group in observed.groups.items() for topic in read_topics(group) if (name, topic) not in committed}
    found = await ends({topic for _, topic in committed} | never)
    began_s = time.monotonic()
    before = {topic: found[topic] for topic in never if topic in found}
    if before:
        await asyncio.sleep(_AGAIN_S)
        found = {**found, **await ends(before)}
    at_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return _Seen(observed, found, at_ms, before, round((time.monotonic() - began_s) * 1_000))


async def _note_under_way(observed: ObservedGroups, connection: Connection) -> None:
    """Adds the rebalances that are not over. Where a coordinator is away, as in an outage, what is
    stored is shown all the same.
    """
    from equipoise.replay.importers.groups.under_way import rebalances_under_way, with_under_way

    try:
        observed.groups = with_under_way(observed.groups, await rebalances_under_way(connection))
    except InputError as error:
        observed.unread.append(f"which groups rebalance now: {error}")


async def _described_cluster(connection: Connection, reader: ClusterReader, remark: Callable[[str], None]) -> _Seen:
    """One look at the groups of a cluster whose `__consumer_offsets` may not be read."""
    from equipoise.replay.importers.groups.cluster_recording import open_recording
    from equipoise.replay.importers.groups.observed import ObservedGroups
    from equipoise.replay.importers.groups.polled import PolledCluster
    from equipoise.replay.importers.groups.under_way import with_under_way

    with tempfile.TemporaryDirectory() as folder, open_recording(str(Path(folder) / "look.db"), write=True) as recording:
        polled = PolledCluster(connection, reader, poll_s=_ONCE_S, recording=recording, say=remark)
        records = await polled.poll()
        observed = ObservedGroups(await polled.names())
        for record in records:
            observed.read(record)
        observed.groups = with_under_way(observed.groups, polled.under_way.values())
        observed.unread.append(_DESCRIBED)
        seen = await _with_ends(observed, polled.ends, 0)
    return attrs.evolve(seen, orphans=await _orphans(observed, connection))


def _read_recording(place: str) -> _Seen:
    from equipoise.replay.importers.groups.cluster_recording import open_recording
    from equipoise.replay.importers.groups.observed import ObservedGroups

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
        (before_ms, before), (now_ms, ends) = deque([_NO_SAMPLE, _NO_SAMPLE, *recording.ends()], maxlen=2)
    at_ms = max([now_ms, *(at_ms for at_ms, _ in observed.commits.values())])
    return _Seen(observed, ends, at_ms, before, now_ms - before_ms)
