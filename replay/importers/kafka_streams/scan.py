"""First pass over a history: lifetimes of processes, how each ended, the cause of each round, and
the topology.

Members are processes: Kafka Streams assigns by process, and its consumers are the threads. A
process lives from the first generation that has it to the first that has not. When the member ids
of all its consumers change at once, a new process has begun under its name, because member ids
change with every start. Memory is one entry per process and per generation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import attrs

from equipoise.events.errors import InputError
from equipoise.events.facts import EndedMember
from equipoise.kafka.offsets_topic.record_keys import RawRecord
from equipoise.replay.importers.kafka_streams.offsets_records import (
    NEVER_MS,
    READABLE,
    RUNS_IT,
    UNKNOWN_SUM,
    GroupMetadata,
    OffsetCommit,
    WireMember,
    decode_record,
    other_kind,
)
from equipoise.replay.importers.kafka_streams.source import StreamsSource
from equipoise.replay.importers.kafka_streams.topology import TopologySeen

Progress = Callable[[int, int | None], None]
"""Called now and then with the records done and, where known, their total."""

PROGRESS_EVERY_RECORDS = 1_000

_THREAD = re.compile(r"(.+)-StreamThread-[0-9]+-consumer", re.ASCII)

LEFT_WITHIN = (2, 3)
"""A member removed within this fraction of its session timeout after its last commit has left by
itself: heartbeats are sent at least every third of the session timeout (Kafka's advice for
heartbeat.interval.ms), so an expiry cannot come sooner.
"""
FORGOTTEN_AFTER = 3
"""Number of session timeouts after which a last commit no longer dates the end: the member's
partitions were idle.
"""
PROBING_EARLY_MS = 100
"""A probing rebalance may begin this much before its time, because the record's timestamp and the
leader's clock may differ.
"""


@attrs.define
class ProcessLife:
    """One process, from its first generation to its end. `name` and `incarnation` are final after
    the pass.
    """

    process_id: str
    client_name: str
    member_ids: frozenset[str]
    threads: int
    session_timeout_ms: int
    rack: str | None
    tags: dict[str, str]
    first_offset: int
    first_ms: int
    last_ms: int
    partitions: tuple[tuple[str, int], ...] = ()
    """Input partitions of its latest assignment."""
    name: str = ""
    incarnation: int = 0
    replaces: int | None = None
    """The incarnation of the same name that ends when this one begins."""


@attrs.define
class ObservedRound:
    """One stored generation. `process_ids`: process id -> life."""

    offset: int
    at_ms: int
    generation: int
    joined: list[ProcessLife]
    ended: list[tuple[ProcessLife, int | None]]
    """Lives that end here, each with its last commit."""
    threads_changed: str
    """``join`` or ``leave`` when a process that lives on got more or fewer consumers, else empty.
    """
    next_rebalance_ms: list[int]
    """Scheduled times in this round's assignment."""
    processes: int
    standby_copies: int
    """Standbys and warm-ups of all processes; the wire does not distinguish them."""
    cause: str = "unknown"
    ends: tuple[EndedMember, ...] = ()


@attrs.define
class Scan:
    """Result of the first pass."""

    group: str
    rounds: list[ObservedRound] = attrs.field(factory=list)
    lives: list[ProcessLife] = attrs.field(factory=list)
    topology: TopologySeen = attrs.field(factory=TopologySeen)
    counts: Counter[str] = attrs.field(factory=Counter)
    versions: Counter[str] = attrs.field(factory=Counter)
    shared_names: list[str] = attrs.field(factory=list)
    first_leader: str = ""
    """Process id of the first generation's leader, which was the first to join."""
    first_ms: int = -1
    last_ms: int = -1


def group_records(source: StreamsSource, group: str | None) -> Iterator[tuple[RawRecord, OffsetCommit | GroupMetadata | None]]:
    """Yields every raw record with its decoded value; None for other groups than `group` and for
    kinds that classic groups do not write.

    Raises WireError or InputError, as `wire.decode_record` and `StreamsSource.records` do.
    """
    for raw in source.records():
        yield raw, decode_record(raw.offset, raw.key, raw.value, group)


def client_name(member: WireMember) -> str:
    """Returns the name of a process, from the client id of one of its consumers:
    ``i1-StreamThread-2-consumer`` -> ``i1``; else its process id.
    """
    match = _THREAD.fullmatch(member.client_id)
    return match[1] if match else member.subscription.process_id


def processes(metadata: GroupMetadata) -> dict[str, list[WireMember]]:
    """Returns process id -> its consumers, both in rising order of their ids."""
    found: dict[str, list[WireMember]] = {}
    for member in sorted(metadata.members, key=lambda each: each.member_id):
        found.setdefault(member.subscription.process_id, []).append(member)
    return dict(sorted(found.items()))


def scan(source: StreamsSource, group: str | None = None, progress: Progress | None = None) -> Scan:
    """Makes the first pass. `group` None: the only group of the dump.

    Raises WireError for the first record that is malformed, with its offset. Raises InputError when
    the group is absent, or `group` is None and the dump holds several.
    """
    found = Scan(group=group or "")
    live: dict[str, ProcessLife] = {}
    last_commit_ms: dict[tuple[str, int], int] = {}
    shared: set[str] = set()
    kind: str | None = None
    for raw, event in group_records(source, group):
        found.counts["records"] += 1
        if progress is not None and found.counts["records"] % PROGRESS_EVERY_RECORDS == 0:
            progress(found.counts["records"], None)
        if group is None and event is not None and event.group != found.group and isinstance(event, GroupMetadata):
            if found.lives and event.members:
                raise InputError(f"{source.place}: the dump holds groups {found.group!r} and {event.group!r}; name the one to import")
            if not found.lives:
                found.group = event.group
        if event is None or event.group != found.group:
            found.counts["other records"] += 1
            kind = kind or (None if group is None else other_kind(raw.key, group))
            continue
        if found.first_ms < 0:
            found.first_ms = raw.timestamp_ms
        if raw.timestamp_ms < found.last_ms:
            found.counts["timestamps that went back"] += 1
        found.last_ms = max(found.last_ms, raw.timestamp_ms)
        if isinstance(event, OffsetCommit):
            found.counts["offset commits"] += 1
            if event.committed is not None:
                last_commit_ms[event.topic, event.partition] = found.last_ms
            continue
        found.counts["group records"] += 1
        _count(found, event)
        _next_round(found, live, shared, last_commit_ms, event, raw.offset, found.last_ms)
    if not found.lives:
        whose = f"group {group!r}" if group else "a group"
        if kind is not None:
            raise InputError(f"{source.place}: {whose} is {kind}; {READABLE}")
        raise InputError(f"{source.place}: no generation of {whose} {source.where_to_look}")
    _settle(found, shared)
    return found


def _count(found: Scan, event: GroupMetadata) -> None:
    found.versions[f"group record {event.record_version}"] += 1
    for member in event.members:
        found.counts["subscriptions"] += 1
        found.versions[f"consumer protocol {member.subscription.protocol_version}"] += 1
        found.versions[f"SubscriptionInfo {member.subscription.version}"] += 1
        found.versions[f"AssignmentInfo {member.assignment.version}"] += 1
        for amount in member.subscription.task_offset_sums.values():
            found.counts["sums: active"] += amount == RUNS_IT
            found.counts["sums: unknown"] += amount == UNKNOWN_SUM
            found.counts["sums: records"] += amount >= 0


def _next_round(
    found: Scan,
    live: dict[str, ProcessLife],
    shared: set[str],
    last_commit_ms: dict[tuple[str, int], int],
    event: GroupMetadata,
    offset: int,
    at_ms: int,
) -> None:
    """Folds one generation: new processes, ended ones, threads."""
    present = processes(event)
    if not found.first_leader:
        leads = [each.subscription.process_id for each in event.members if each.member_id == event.leader]
        found.first_leader = leads[0] if leads else ""
    step = ObservedRound(
        offset=offset,
        at_ms=at_ms,
        generation=event.generation,
        joined=[],
        ended=[],
        threads_changed="",
        next_rebalance_ms=[],
        processes=len(present),
        standby_copies=sum(len(each.assignment.standby) for each in event.members),
    )
    names: Counter[str] = Counter()

    def end(process_id: str) -> None:
        life = live.pop(process_id)
        commits = [last_commit_ms[each] for each in life.partitions if each in last_commit_ms]
        step.ended.append((life, max(commits) if commits else None))

    for process_id in sorted(set(live) - set(present)):
        end(process_id)
    for process_id, consumers in present.items():
        member_ids = frozenset(each.member_id for each in consumers)
        first = consumers[0]
        life = live.get(process_id)
        if life is not None and not life.member_ids & member_ids:
            end(process_id)
            life = None
        if life is None:
            life = ProcessLife(
                process_id=process_id,
                client_name=min(client_name(each) for each in consumers),
                member_ids=member_ids,
                threads=len(consumers),
                session_timeout_ms=max(each.session_timeout_ms for each in consumers),
                rack=first.subscription.rack or None,
                tags=dict(sorted(first.subscription.tags.items())),
                first_offset=offset,
                first_ms=at_ms,
                last_ms=at_ms,
            )
            live[process_id] = life
            found.lives.append(life)
            step.joined.append(life)
        elif member_ids != life.member_ids:
            step.threads_changed = "join" if member_ids - life.member_ids else "leave"
        life.member_ids = member_ids
        life.threads = max(life.threads, len(consumers))
        life.last_ms = at_ms
        life.partitions = tuple(pair for each in consumers for pair in each.assignment.input_partitions())
        names[life.client_name] += 1
        for each in consumers:
            found.topology.see(each.subscription, each.assignment, offset)
            if each.assignment.next_rebalance_ms != NEVER_MS:
                step.next_rebalance_ms.append(each.assignment.next_rebalance_ms)
    shared.update(name for name, how_many in names.items() if how_many > 1)
    found.rounds.append(step)


def _settle(found: Scan, shared: set[str]) -> None:
    """Sets names and incarnations of all lives, how each ended, and the cause of each round."""
    found.shared_names = sorted(shared)
    incarnations: Counter[str] = Counter()
    for life in found.lives:
        life.name = life.process_id if life.client_name in shared else life.client_name
        incarnations[life.name] += 1
        life.incarnation = incarnations[life.name]
    previous: ObservedRound | None = None
    for step in found.rounds:
        ends = []
        by_name = {life.name: life for life in step.joined}
        for life, last_commit in step.ended:
            how, ended_ms = how_it_ended(step.at_ms, life, last_commit)
            successor = by_name.get(life.name)
            if successor is not None:
                how, successor.replaces = "replaced", life.incarnation
            ends.append(EndedMember(member_id=life.name, incarnation=life.incarnation, how=how, ended_ms=ended_ms, inferred=True))
        step.ends = tuple(sorted(ends, key=lambda each: (each.member_id, each.incarnation)))
        step.cause = _cause(step, previous)
        previous = step


def how_it_ended(removed_ms: int, life: ProcessLife, last_commit_ms: int | None) -> tuple[str, int]:
    """Returns ``left`` or ``expired``, and the wall time of the end.

    The end is the last commit of its partitions. Without a recent one it is the removal less the
    session timeout, which the coordinator waits before it expires a member.
    """
    presumed = max(life.first_ms, removed_ms - life.session_timeout_ms)
    if last_commit_ms is None or last_commit_ms < max(life.first_ms, removed_ms - FORGOTTEN_AFTER * life.session_timeout_ms):
        return "expired", presumed
    part, whole = LEFT_WITHIN
    left = (removed_ms - last_commit_ms) * whole < life.session_timeout_ms * part
    return ("left" if left else "expired"), last_commit_ms


def _cause(step: ObservedRound, previous: ObservedRound | None) -> str:
    """Returns the cause of the round, as far as the wire shows it: the coarsest change first."""
    if step.joined:
        return "join"
    if any(each.how == "left" for each in step.ends):
        return "leave"
    if step.ends:
        return "expiry"
    if previous is not None:
        if 0 in previous.next_rebalance_ms:
            return "follow-up"
        if any(0 < scheduled <= step.at_ms + PROBING_EARLY_MS for scheduled in previous.next_rebalance_ms):
            return "probing"
    return step.threads_changed or "unknown"
