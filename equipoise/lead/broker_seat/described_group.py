"""A consumer group as its coordinator describes it (ConsumerGroupDescribe), and what that means for
the one who leads it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

import attrs

from equipoise.kafka.embedded_protocol import MOST_RACK_CHARS, SeatSubscription, TopicPartition
from equipoise.lead.broker_seat.broker_plan import MARK, BrokerPlan, PlanEntry, entries_of, in_order, made_for
from equipoise.lead.seat.generation import JoinedClient
from equipoise.lead.seat.metadata import SeatTopicMetadata
from equipoise.lead.seat.names import SeatClient, readable

CLASSIC_MEMBER = 0
"""Type of a member that uses the classic protocol."""
_MEMBERS = UUID("c8e3f3e4-0f1c-4c63-9d0c-6f2b6f0f2f11")


@attrs.frozen(kw_only=True)
class DescribedConsumer:
    """A member. `epoch`: the group's that it has answered. `is_classic`: it uses the classic
    protocol. `pattern`: of topics, resolved by the broker; empty: none. `target`: what it is
    assigned; `has`: what it says that it has.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    rack: str
    topics: tuple[str, ...]
    pattern: str
    target: frozenset[TopicPartition]
    has: frozenset[TopicPartition]
    epoch: int = 0
    is_classic: bool = False

    @property
    def carries(self) -> bool:
        """Returns whether it is a member that carries plans."""
        return self.rack.startswith(MARK)

    def client(self) -> SeatClient:
        """It, as the log names members: by its group.instance.id or its client.id. The key ends as
        those of classic members do that are not static.
        """
        if self.instance_id:
            return SeatClient(self.instance_id, readable(self.instance_id) or "client")
        return SeatClient(f"{self.client_id[:200]}-{uuid5(_MEMBERS, self.member_id)}", readable(self.client_id) or "client")


@attrs.frozen(kw_only=True)
class DescribedConsumers:
    """`epoch`: of the group; `assigned_epoch`: the one that the targets are for. `assignor`: who
    made them.
    """

    epoch: int
    assigned_epoch: int
    assignor: str
    consumers: tuple[DescribedConsumer, ...]
    carriers: tuple[DescribedConsumer, ...]

    @property
    def is_at_rest(self) -> bool:
        """Returns whether each member has answered the newest epoch, and has what it is to have."""
        return self.assigned_epoch >= self.epoch and all(each.epoch >= self.epoch and each.has == each.target for each in self.consumers)

    def targets(self) -> dict[TopicPartition, str]:
        """Partition -> the member that is to have it."""
        return {place: each.member_id for each in self.consumers for place in each.target}


def described(group: Mapping[str, Any]) -> DescribedConsumers:
    """Reads one group of the answer."""
    members = [
        DescribedConsumer(
            member_id=each["member_id"],
            instance_id=each["instance_id"],
            client_id=each["client_id"],
            rack=each["rack_id"] or "",
            topics=tuple(sorted(each["subscribed_topic_names"] or ())),
            pattern=each["subscribed_topic_regex"] or "",
            target=_places(each["target_assignment"]),
            has=_places(each["assignment"]),
            epoch=each["member_epoch"],
            is_classic=each.get("member_type") == CLASSIC_MEMBER,
        )
        for each in group["members"]
    ]
    return DescribedConsumers(
        epoch=group["group_epoch"],
        assigned_epoch=group["assignment_epoch"],
        assignor=group["assignor"] or "",
        consumers=tuple(each for each in members if not each.carries),
        carriers=tuple(each for each in members if each.carries),
    )


def _places(assignment: Mapping[str, Any]) -> frozenset[TopicPartition]:
    return frozenset((each["topic_name"], partition) for each in assignment["topic_partitions"] for partition in each["partitions"])


def subscriptions(consumers: Iterable[DescribedConsumer], known: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Member id -> the topics that it reads. `known`: topics of the cluster, for patterns; brokers
    read these with RE2, and this with Python, which agree but for rare signs.
    """
    found: dict[str, tuple[str, ...]] = {}
    for each in consumers:
        names = {*each.topics, *(topic for topic, _ in each.target)}
        if each.pattern:
            try:
                pattern = re.compile(each.pattern)
            except re.error:
                pattern = None  # what it has been assigned is all that is known
            names |= {topic for topic in known if pattern is not None and pattern.fullmatch(topic)}
        found[each.member_id] = tuple(sorted(names))
    return found


def joined_clients(consumers: Sequence[DescribedConsumer], topics: Mapping[str, tuple[str, ...]]) -> list[JoinedClient]:
    """The members as a generation has them. The broker hands partitions over by itself, so what
    they have is what they are to have.
    """
    return [
        JoinedClient(
            client=each.client(),
            subscription=SeatSubscription(topics=topics[each.member_id], rack=each.rack if 0 < len(each.rack) <= MOST_RACK_CHARS else None),
            held=each.target,
        )
        for each in consumers
        if topics[each.member_id]
    ]


def plan_for(
    group: DescribedConsumers,
    wanted: Mapping[TopicPartition, str],
    ids: Mapping[str, bytes],
    metadata: SeatTopicMetadata,
    topics: Mapping[str, tuple[str, ...]],
    *,
    number: int,
    holds: bool,
    together: bool,
) -> BrokerPlan:
    """The plan that makes `wanted` (partition -> member id) of what the group has. `ids`: of its
    topics. `topics`: by member, as `subscriptions` returns them.
    """
    members = in_order(each.member_id for each in group.consumers)
    read = sorted({ids[topic] for of in topics.values() for topic in of if topic in ids and topic in metadata.counts})
    at, position = {name: index for index, name in enumerate(members)}, {topic: index for index, topic in enumerate(read)}
    moves: dict[tuple[int, int], list[int]] = {}
    holds_back: dict[int, list[int]] = {}
    has = group.targets()
    for (topic, partition), to in wanted.items():
        if has.get((topic, partition)) != to:
            moves.setdefault((at[to], position[ids[topic]]), []).append(partition)
    for topic, partition in has.keys() - wanted.keys():
        if topic in ids and ids[topic] in position and partition < metadata.counts[topic]:  # one that is new is not held back
            holds_back.setdefault(position[ids[topic]], []).append(partition)
    entries: list[PlanEntry] = [entry for (to, topic), numbers in sorted(moves.items()) for entry in entries_of("move", to, topic, numbers)]
    entries += [entry for topic, numbers in sorted(holds_back.items()) for entry in entries_of("hold", 0, topic, numbers)]
    return BrokerPlan(number=number, made_for=made_for(members, read), holds=holds, together=together, entries=tuple(entries))
