"""`lag_aware` for an ordinary consumer group of aiokafka.

::

    strategy = LagAwareAssignor(group_id="billing", connection="kafka:9092", auto_offset_reset="earliest")
    consumer = AIOKafkaConsumer("orders", group_id="billing", bootstrap_servers="kafka:9092", auto_offset_reset="earliest",
                                partition_assignment_strategy=[strategy])

All members of a group need the strategy, and the same settings. The member that Kafka makes the
leader asks for the lags, deals, and tells the others; each round deals anew, as KIP-169 says, and
so that the fewest partitions move.

aiokafka calls `assign` in its event loop and expects the answer at once. So the lags are fetched in
a thread, by clients of its own, while the loop waits, `timeout_s` at most: keep that well below the
session timeout. When they cannot be had, the partitions are dealt by count alone, and the log says
why.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError

from equipoise.assignors.adapters.lags import source_lags
from equipoise.assignors.common.problem import AssignmentProblem, Member, Partition, Task
from equipoise.assignors.common.task_names import TopicTask, name_topics
from equipoise.assignors.lag_aware import LagAware
from equipoise.assignors.lag_aware.options import CROSS_TOPIC, RACK_LAG_TOLERANCE
from equipoise.events.log.kafka.clients import start_client, stop_client
from equipoise.events.log.kafka.connection import Connection, connection_to
from equipoise.events.settings import GroupSettings
from equipoise.events.tasks import TaskId

log = logging.getLogger(__name__)

RETRY_S = 0.1
PartitionLags = Mapping[tuple[str, int], int]
"""Topic and partition -> records that the group has still to read."""


class LagFetcher:
    """Asks a cluster how far behind a group is: its committed offsets, and the ends of partitions
    (and their beginnings where nothing is committed and `auto_offset_reset` is not "latest"). Each
    is asked once for all topics together."""

    def __init__(self, *, group_id: str, connection: Connection | str, auto_offset_reset: str = "latest", timeout_s: float = 3.0) -> None:
        self.group_id = group_id
        self.auto_offset_reset = auto_offset_reset
        self.timeout_s = timeout_s
        self._options = (connection_to(connection) if isinstance(connection, str) else connection).options()

    async def fetch(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags:
        """Raises KafkaError, OSError or TimeoutError when the cluster does not answer within
        `timeout_s`.
        """
        async with asyncio.timeout(self.timeout_s):
            return await self._fetch(partitions)

    async def _fetch(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags:
        admin = AIOKafkaAdminClient(**self._options)
        consumer = AIOKafkaConsumer(**self._options)
        wanted = set(partitions)
        try:
            await start_client(admin)
            await start_client(consumer)
            return await _patiently(lambda: source_lags(admin, consumer, self.group_id, wanted, self.auto_offset_reset))
        finally:
            await asyncio.gather(stop_client(admin), stop_client(consumer))

    def fetch_now(self, partitions: Iterable[tuple[str, int]]) -> PartitionLags | None:
        """The same for a caller that cannot wait for it in its event loop. None: not to be had
        within `timeout_s`; the log says why.
        """
        found: list[PartitionLags] = []
        wanted = list(partitions)

        def run() -> None:
            try:
                found.append(asyncio.run(self.fetch(wanted)))
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("group %s: lags are not to be had (%s: %s); dealt by count alone", self.group_id, type(error).__name__, error)

        thread = threading.Thread(target=run, name=f"lags-of-{self.group_id}", daemon=True)
        thread.start()
        thread.join(2 * self.timeout_s)  # what was begun is closed, too
        if thread.is_alive():
            log.warning("group %s: the question for lags does not end; dealt by count alone", self.group_id)
        return found[0] if found else None


async def _patiently(ask: Callable[[], Awaitable[PartitionLags]]) -> PartitionLags:
    """Again while the cluster is not ready yet: a coordinator that is not there, a leader that
    moves. The caller's timeout ends it.
    """
    while True:
        try:
            return await ask()
        except KafkaError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(RETRY_S)


class LagAwareAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka ships no complete types
    """A strategy for `partition_assignment_strategy` of AIOKafkaConsumer; each consumer needs one
    of its own.

    `cross_topic`: all topics are dealt together (see `equipoise.assignors.lag_aware`). `rack`:
    where this consumer is, the same as its `client_rack`; with it partitions of equal or nearly
    equal lag (`rack_lag_tolerance`) go where their replicas are. `connection`: ``host:port`` of a
    broker, with TLS and SASL as the environment says, or an
    `equipoise.events.log.kafka.connection.Connection`. `fetcher`: who is asked for the lags
    instead.
    """

    name = "equipoise-lag-aware"
    version = 1
    """Of what a member says of itself to the leader."""

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
        """What a member tells the leader when it joins: its topics, what it had until now, and its
        rack.
        """
        said = json.dumps({"owned": self._owned, "rack": self._rack}, separators=(",", ":"), sort_keys=True).encode()
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), said)

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remembers what this member has."""
        self._owned = {topic: sorted(partitions) for topic, partitions in sorted(assignment.assignment)}

    def assign(self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Member -> its partitions. Topics that the cluster does not know are left out, with a
        warning.
        """
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
            log.warning("no metadata for topic %s: nobody is given its partitions", topic)
            continue
        found.extend((topic, number) for number in sorted(numbers))
    return found


def _owners(members: Mapping[str, ConsumerProtocolMemberMetadata]) -> dict[tuple[str, int], str]:
    """What each member says it had; what two say they had is nobody's, and so is what cannot be
    read.
    """
    claims: dict[tuple[str, int], list[str]] = {}
    for name, metadata in members.items():
        for claim in _owned(metadata.user_data):
            claims.setdefault(claim, []).append(name)
    return {claim: names[0] for claim, names in claims.items() if len(names) == 1}


def _owned(user_data: bytes | None) -> set[tuple[str, int]]:
    try:
        said: Any = json.loads(user_data or b"{}")
        return {(str(topic), int(number)) for topic, numbers in said.get("owned", {}).items() for number in numbers}
    except (ValueError, AttributeError, TypeError):
        return set()  # another version of us, or of something else


def _rack(user_data: bytes | None) -> str | None:
    """Where a member says it is; None: it does not say, or is of a version that does not."""
    try:
        rack: Any = json.loads(user_data or b"{}").get("rack")
    except (ValueError, AttributeError):
        return None
    return rack if isinstance(rack, str) and rack else None


def _replica_racks(cluster: ClusterMetadata, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[str, ...]]:
    """The racks of each partition's replicas, where brokers name one."""
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
    """Member -> topic -> its partitions, as `lag_aware` decides for a group of which everybody has
    stopped. `racks`: of members. `replicas`: racks of each partition's."""
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
            Member(
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
