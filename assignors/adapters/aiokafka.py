"""`lag_aware` for an ordinary consumer group of aiokafka.

::

    strategy = LagAwareAssignor(group_id="billing", connection="kafka:9092")
    consumer = AIOKafkaConsumer(
        "orders", group_id="billing", bootstrap_servers="kafka:9092",
        partition_assignment_strategy=[strategy],
    )

All members of a group need the strategy with the same settings. The member that Kafka makes the
leader fetches the lags and deals; each round deals again, as in KIP-169, so that the fewest
partitions move.

aiokafka calls `assign` in its event loop and expects the answer at once. So the lags are fetched in
a thread, by separate clients, while the loop waits for at most `timeout_s`: keep that well below
the session timeout. Without lags the partitions are dealt by count alone, and a warning is logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError

from equipoise.assignors.adapters.lags import source_lags
from equipoise.assignors.common.problem import AssignmentProblem, MemberSpec, Partition, Task
from equipoise.assignors.common.task_names import TopicTask, name_topics
from equipoise.assignors.lag_aware import LagAware
from equipoise.assignors.lag_aware.options import CROSS_TOPIC, RACK_LAG_TOLERANCE
from equipoise.events.log.kafka.connection import Connection, connection_to
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

log = logging.getLogger(__name__)

RETRY_S = 0.1
PartitionLags = Mapping[tuple[str, int], int]
"""(topic, partition) -> records that the group has not read."""


class LagFetcher:
    """Fetches the lags of a group from a cluster: committed offsets, ends, and beginnings where
    nothing is committed and `auto_offset_reset` is not "latest"; one request each for all topics.
    """

    def __init__(self, *, group_id: str, connection: Connection | str, auto_offset_reset: str = "latest", timeout_s: float = 3.0) -> None:
        self.group_id = group_id
        self.auto_offset_reset = auto_offset_reset
        self.timeout_s = timeout_s
        self._connection = connection_to(connection) if isinstance(connection, str) else connection

    async def fetch(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags:
        """The lags of `partitions`. Raises KafkaError, OSError or TimeoutError when the cluster
        does not answer within `timeout_s`.
        """
        async with asyncio.timeout(self.timeout_s):
            return await self._fetch(partitions)

    async def _fetch(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags:
        clients = self._connection.clients
        admin, consumer = clients.admin(), clients.consumer()
        wanted = set(partitions)
        try:
            await admin.start()
            await consumer.start()
            return await _patiently(lambda: source_lags(admin, consumer, self.group_id, wanted, self.auto_offset_reset))
        finally:
            await asyncio.gather(admin.stop(), consumer.stop())

    def fetch_now(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags | None:
        """The lags, for a caller that blocks its event loop. None: not available within
        `timeout_s`; a warning is logged.
        """
        found: list[PartitionLags] = []
        wanted = list(partitions)

        def run() -> None:
            try:
                found.append(asyncio.run(self.fetch(wanted)))
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("group %s: cannot fetch lags (%s: %s); dealing by count alone", self.group_id, type(error).__name__, error)

        thread = threading.Thread(target=run, name=f"lags-of-{self.group_id}", daemon=True)
        thread.start()
        thread.join(2 * self.timeout_s)  # what was begun is closed, too
        if thread.is_alive():
            log.warning("group %s: fetching lags does not end; dealing by count alone", self.group_id)
        return found[0] if found else None


async def _patiently(ask: Callable[[], Awaitable[PartitionLags]]) -> PartitionLags:
    """Repeats `ask` on retriable errors (no coordinator yet, a leader election). The caller's
    timeout ends it.
    """
    while True:
        try:
            return await ask()
        except KafkaError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(RETRY_S)


class LagAwareAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka ships no complete types
    """A strategy for `partition_assignment_strategy` of AIOKafkaConsumer; each consumer needs its
    own instance.

    `cross_topic`: deal all topics together (see `equipoise.assignors.lag_aware`). `rack`: the
    consumer's `client_rack`; partitions of equal or nearly equal lag (`rack_lag_tolerance`) then go
    to members near a replica. `connection`: ``host:port`` of a broker, with TLS and SASL from the
    environment, or an `equipoise.events.log.kafka.connection.Connection`. `fetcher`: replaces the
    default `LagFetcher`.
    """

    name = "equipoise-lag-aware"
    version = 1
    """Version of the metadata that members send to the leader."""

    def __init__(
        self,
        *,
        group_id: str,
        connection: Connection | str,
        auto_offset_reset: str = "latest",
        cross_topic: bool = False,
        rack: str | None = None,
        rack_lag_tolerance: int = 0,
        timeout_s: float = 3.0,
        fetcher: LagFetcher | None = None,
    ) -> None:
        self.fetcher = fetcher or LagFetcher(group_id=group_id, connection=connection, auto_offset_reset=auto_offset_reset, timeout_s=timeout_s)
        self._rack = rack
        self._settings = GroupSettings(rack_aware_strategy="min_cost", options={CROSS_TOPIC: cross_topic, RACK_LAG_TOLERANCE: rack_lag_tolerance})
        self._owned: dict[str, list[int]] = {}

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """The member's metadata when it joins: topics, partitions it owned, rack."""
        user_data = json.dumps({"owned": self._owned, "rack": self._rack}, separators=(",", ":"), sort_keys=True).encode()
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), user_data)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remembers the member's partitions."""
        self._owned = {topic: sorted(partitions) for topic, partitions in sorted(assignment.assignment)}

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Member -> its partitions. Topics without metadata are left out, with a warning."""
        subscriptions = {name: tuple(metadata.subscription) for name, metadata in members.items()}
        partitions = _partitions(cluster, {topic for topics in subscriptions.values() for topic in topics})
        lags = self.fetcher.fetch_now(partitions) or {}
        racks = {name: _rack(metadata.user_data) for name, metadata in members.items()}
        target = deal(subscriptions, partitions, lags, _owners(members), self._settings, racks=racks, replicas=_replica_racks(cluster, partitions))
        return {
            name: ConsumerProtocolMemberAssignment(self.version, [(topic, target[name][topic]) for topic in sorted(target[name])], b"")
            for name in members
        }


def _partitions(cluster: ClusterMetadata, topics: Iterable[str]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for topic in sorted(topics):
        numbers = cluster.partitions_for_topic(topic)
        if numbers is None:
            log.warning("no metadata for topic %s: its partitions are not assigned", topic)
            continue
        found.extend((topic, number) for number in sorted(numbers))
    return found


def _owners(members: Mapping[str, ConsumerProtocolMemberMetadata]) -> dict[tuple[str, int], str]:
    """Partition -> the member that owned it. Partitions claimed by two members, and unreadable
    claims, are left out.
    """
    claims: dict[tuple[str, int], list[str]] = {}
    for name, metadata in members.items():
        for claim in _owned(metadata.user_data):
            claims.setdefault(claim, []).append(name)
    return {claim: names[0] for claim, names in claims.items() if len(names) == 1}


def _owned(user_data: bytes | None) -> set[tuple[str, int]]:
    try:
        known: Any = json.loads(user_data or b"{}")
        return {(str(topic), int(number)) for topic, numbers in known.get("owned", {}).items() for number in numbers}
    except (ValueError, AttributeError, TypeError):
        return set()  # another version of us, or of something else


def _rack(user_data: bytes | None) -> str | None:
    """The member's rack; None: not sent."""
    try:
        rack: Any = json.loads(user_data or b"{}").get("rack")
    except (ValueError, AttributeError):
        return None
    return rack if isinstance(rack, str) and rack else None


def _replica_racks(cluster: ClusterMetadata, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[str, ...]]:
    """Partition -> racks of its replicas."""
    rack_of = {broker.nodeId: broker.rack for broker in cluster.brokers()}
    racks: dict[tuple[str, int], tuple[str, ...]] = {}
    for topic, number in partitions:
        described = cluster._partitions.get(topic, {}).get(number)  # aiokafka gives replicas no other way
        named = {rack_of.get(node) for node in (described.replicas if described is not None else ())}
        racks[topic, number] = tuple(sorted(rack for rack in named if rack))
    return racks


def deal(
    subscriptions: Mapping[str, Iterable[str]],
    partitions: Iterable[tuple[str, int]],
    lags: PartitionLags,
    owners: Mapping[tuple[str, int], str],
    settings: GroupSettings,
    *,
    racks: Mapping[str, str | None],
    replicas: Mapping[tuple[str, int], tuple[str, ...]],
) -> dict[str, dict[str, list[int]]]:
    """Member -> topic -> its partitions, by `lag_aware` for a group in which all members have
    stopped. `racks`: of members. `replicas`: racks of each partition's replicas.
    """
    tasks = [TopicTask(id=f"{topic}-{number}", topic=topic, partition=number, lag=lags.get((topic, number), 0)) for topic, number in partitions]
    names = name_topics(tasks, subscriptions)
    known = {(task.topic, task.partition): TaskId(names.topics[task.topic], task.partition) for task in tasks}
    problem = AssignmentProblem(
        tasks=tuple(
            Task(
                id=known[task.topic, task.partition],
                stateful=False,
                lag=task.lag,
                source=(Partition(topic=task.topic, partition=task.partition, racks=replicas.get((task.topic, task.partition), ())),),
            )
            for task in tasks
        ),
        members=tuple(
            MemberSpec(
                id=name,
                rack=racks.get(name),
                subtopologies=names.subscription(topics),
                active=tuple(known[at] for at, owner in owners.items() if owner == name and at in known),
            )
            for name, topics in subscriptions.items()
        ),
        settings=settings,
        anew=True,
    )
    plan = LagAware().assign(problem)
    topic_of = {number: topic for topic, number in names.topics.items()}
    dealt: dict[str, dict[str, list[int]]] = {}
    for name, target in plan.target.items():
        dealt[name] = {}
        for task in target:
            dealt[name].setdefault(topic_of[task.subtopology], []).append(task.partition)
    return dealt
