"""One generation of a group, without Kafka: from what the members said when they joined to what
each is assigned. The decisions are the machine's; here are the facts for it, and their wire form.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

import attrs

from equipoise.events.errors import EquipoiseError, InputError
from equipoise.events.facts import AbsentMember, GroupRejoined, PartitionsObserved, RejoinedMember, TasksRevoked
from equipoise.events.tasks import TaskId
from equipoise.kafka.embedded_protocol import SeatSubscription, TopicPartition, read_subscription
from equipoise.lead.seat.log import SeatLog, by_topic
from equipoise.lead.seat.metadata import SeatTopicMetadata
from equipoise.lead.seat.names import SeatClient, clients_of, is_static
from equipoise.lead.seat.subscribed_topics import Arrangement, arrange

MOST_HAND_OVERS = 100
"""Steps in which members of an eager protocol hand over in one generation. Each ends movements that
the one before began, so a handful is usual.
"""


@attrs.frozen(kw_only=True)
class JoinedClient:
    """A member that joined the generation. `held`: what it reads, or read until it joined."""

    client: SeatClient
    subscription: SeatSubscription
    held: frozenset[TopicPartition]


@attrs.frozen(kw_only=True)
class ReadMembers:
    """What the members of a generation said. `clients`: by member id, of all. `joined`: those that
    subscribe to something. `unread`: client -> why its subscription cannot be read; it gets
    nothing, and the others are assigned without it.
    """

    clients: Mapping[str, SeatClient]
    joined: list[JoinedClient]
    unread: Mapping[SeatClient, str]


def read_members(members: Sequence[tuple[str, str | None, bytes]], assigned: Mapping[str, frozenset[TopicPartition]], *, eager: bool) -> ReadMembers:
    """Reads what members said when they joined: member id, group.instance.id and subscription.
    `assigned`: client's key -> what it was assigned last, which members of an eager protocol have.
    """
    clients = clients_of((member_id, instance_id) for member_id, instance_id, _ in members)
    reading: dict[str, SeatSubscription] = {}
    unread: dict[SeatClient, str] = {}
    for member_id, _, data in members:
        try:
            subscription = read_subscription(data)
        except InputError as error:
            unread[clients[member_id]] = str(error)
            continue
        if subscription.topics:
            reading[member_id] = subscription
    held = {name: assigned.get(clients[name].key, frozenset()) for name in reading} if eager else without_doubles(reading)
    joined = [JoinedClient(client=clients[name], subscription=each, held=held[name]) for name, each in reading.items()]
    return ReadMembers(clients=clients, joined=joined, unread=unread)


@attrs.frozen(kw_only=True)
class SeatSettings:
    """What an operator says to the seat. `hold_ms`: how long partitions of a member that is gone
    wait for it. `capacities`: pattern of a client's id -> its share, beside 1 of the others.
    """

    hold_ms: int = 0
    capacities: Mapping[str, int] = attrs.field(factory=dict)

    def capacity(self, base: str) -> int:
        return next((capacity for pattern, capacity in self.capacities.items() if fnmatch.fnmatchcase(base, pattern)), 1)


@attrs.frozen(kw_only=True)
class Answer:
    """What each client is assigned, by its key: topic -> partitions. `waiting`: members that are
    waited for.
    """

    assigned: Mapping[str, Mapping[str, list[int]]]
    waiting: tuple[str, ...]


def without_doubles(members: Mapping[str, SeatSubscription]) -> dict[str, frozenset[TopicPartition]]:
    """Returns what each member owns by its own account. Of several that say so of one partition,
    the one with the newest generation has it; nobody, when these are equal.
    """
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for name, subscription in members.items():
        for place in subscription.owned:
            claims.setdefault(place, []).append((subscription.generation, name))
    owned: dict[str, set[TopicPartition]] = {name: set() for name in members}
    for place, claimed in claims.items():
        newest = max(claimed)[0]
        winners = [name for generation, name in claimed if generation == newest]
        if len(winners) == 1:
            owned[winners[0]].add(place)
    return {name: frozenset(places) for name, places in owned.items()}


def answer(
    log: SeatLog,
    settings: SeatSettings,
    *,
    number: int,
    protocol: str,
    eager: bool,
    joined: list[JoinedClient],
    metadata: SeatTopicMetadata,
    lags: Mapping[TopicPartition, int],
    before: Sequence[JoinedClient] = (),
) -> Answer:
    """Appends the generation to the log and returns what was decided. `eager`: all members have
    stopped everything. `lags`: records behind, where the assignor deals by them. `before`: the last
    generation of another leader, which is appended first, so that it is known who is gone. Raises
    EquipoiseError when the log cannot be written or the machine halts.
    """
    if before:
        names = log.names.give([each.client for each in before], log.now_ms(), list(log.state.members))
        topics = arrange([each.subscription.topics for each in before], metadata.counts, protocol, log.state.topologies)
        had = sorted((_rejoined(each, names[each.client.key], topics, metadata.counts, settings) for each in before), key=lambda each: each.member_id)
        log.rejoined(GroupRejoined(generation=max(0, number - 1), protocol=protocol, members=tuple(had), topologies=topics.declared))
    keys = {name: key for key, (name, _) in log.names.present().items()}
    names = log.names.give([each.client for each in joined], log.now_ms(), [*log.away(), *log.state.members])
    topics = arrange([each.subscription.topics for each in joined], metadata.counts, protocol, log.state.topologies)
    _observe(log, metadata, lags, any(each.subscription.rack for each in joined))
    members = sorted((_rejoined(each, names[each.client.key], topics, metadata.counts, settings) for each in joined), key=lambda each: each.member_id)
    here = {each.member_id for each in members}
    gone = [name for name in sorted(log.state.members) if name not in here and not log.state.is_away(name)]
    held = settings.hold_ms and members
    absent = tuple(AbsentMember(member_id=name, back_within_ms=settings.hold_ms) for name in gone if held and not is_static(keys.get(name, "")))
    log.rejoined(GroupRejoined(generation=number, protocol=protocol, members=tuple(members), absent=absent, topologies=topics.declared))
    _hand_over(log, {} if eager else {names[each.client.key][0]: frozenset(topics.tasks(each.subscription.owned)) for each in joined})
    claimed = {place: each.client.key for each in joined for place in each.subscription.owned} if not eager else {}
    assigned: dict[str, dict[str, list[int]]] = {}
    for each in joined:
        name, _ = names[each.client.key]
        partitions = topics.partitions(sorted(log.state.members[name].active))
        assigned[each.client.key] = {
            topic: free
            for topic, numbers in sorted(partitions.items())
            if (free := [number for number in numbers if claimed.get((topic, number), each.client.key) == each.client.key])
        }
    return Answer(assigned=assigned, waiting=log.away())


def _observe(log: SeatLog, metadata: SeatTopicMetadata, lags: Mapping[TopicPartition, int], racks_count: bool) -> None:
    """Appends what is new of racks and lags."""
    known = log.state.racks
    racks = {topic: {n: racks for n, racks in of.items() if known.get(topic, {}).get(n) != racks} for topic, of in metadata.racks.items()}
    racks = {topic: of for topic, of in racks.items() if of} if racks_count else {}
    if racks or lags:
        log.append(PartitionsObserved(racks=racks, source_lags=by_topic(lags)))


def _rejoined(each: JoinedClient, named: tuple[str, int], topics: Arrangement, counts: Mapping[str, int], settings: SeatSettings) -> RejoinedMember:
    name, incarnation = named
    subscription = each.subscription
    return RejoinedMember(
        member_id=name,
        incarnation=incarnation,
        client=each.client.key,
        topology_epoch=topics.epochs.get(tuple(topic for topic in subscription.topics if topic in counts), 0),
        capacity=settings.capacity(each.client.base),
        rack=subscription.rack,
        held=topics.tasks(each.held),
    )


def _hand_over(log: SeatLog, has: Mapping[str, frozenset[TaskId]]) -> None:
    """What members are to give up and do not have, by `has`, is granted in the same generation:
    members of an eager protocol have nothing, and a member whose last generation ended before it
    was told has nothing of that. Nobody would begin another generation for it.
    """
    for _ in range(MOST_HAND_OVERS):
        giving = {
            name: sorted(member.revoking.keys() - has.get(name, frozenset()))
            for name, member in sorted(log.state.members.items())
            if not log.state.is_away(name)  # its place is kept until it is back, or the wait is over
        }
        if not any(giving.values()):
            return
        for name, tasks in giving.items():
            member = log.state.members[name]
            if tasks and member.revoking:
                log.append(TasksRevoked(member_id=name, incarnation=member.incarnation, assignment_epoch=member.issued_epoch, tasks=tuple(tasks)))
    raise EquipoiseError(f"group {log.group}: the hand-overs of one generation do not end")
