"""Reads what a worker reports as facts: end offsets and racks of the groups' topics, and how far
groups are behind their sources. See docs/protocol.md#d6.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Iterable, Mapping
from weakref import WeakKeyDictionary

from equipoise.events.facts import TopologyDeclared
from equipoise.hosting.source_lags import source_lags
from equipoise.kafka.client import Admin, Consumer, TopicPartition
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import NOT_ALLOWED, admin_client, reader
from equipoise.log.kafka.log_topics import Topics
from equipoise.statemachine.group_lead import GroupLead
from equipoise.statemachine.state import GroupState


def topics_of(topologies: Iterable[TopologyDeclared]) -> set[str]:
    """Source and changelog topics of all tasks."""
    return {topic for topology in topologies for part in topology.subtopologies for topic in (*part.source_topics, *part.changelog_topics)}


def sources_of(state: GroupState) -> set[tuple[str, int]]:
    """Topic and partition of every source of the newest topology's tasks."""
    return {(topic, task.partition) for task, part in state.tasks().items() for topic in part.source_topics}


NO_SUCH_TOPIC = 3
"""Kafka's UNKNOWN_TOPIC_OR_PARTITION."""


class TopicNews:
    """Remembers what was found of topics, and which groups know it. Groups that share a topic may
    learn of it at different looks, so each has its own place among the changes.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, object]] = {}
        """Topic -> number of changes so far, and what the last look found."""
        self._told: WeakKeyDictionary[GroupLead, object] = WeakKeyDictionary()

    def found(self, topics: Iterable[str], ends: Mapping[str, object], racks: Mapping[str, object], unseen: Container[str]) -> None:
        """Takes what a look found of `topics`. `unseen`: topics that exist and could not be read."""
        for topic in topics:
            now = ends.get(topic), racks.get(topic), topic in unseen
            changes, before = self._found.get(topic, (0, None))
            if now != before:
                self._found[topic] = changes + 1, now

    def of(self, lead: GroupLead, topics: Iterable[str]) -> object:
        """Returns what there is to tell the group now: its topologies, and the changes of each of
        its topics.
        """
        return tuple(lead.machine.state.topologies), sorted((topic, self._found[topic][0]) for topic in topics)

    def is_known(self, lead: GroupLead, news: object) -> bool:
        """Returns whether the group was told this."""
        return self._told.get(lead) == news

    def told(self, lead: GroupLead, news: object) -> None:
        """The group has this, as `of` returned it before the facts for it were appended."""
        self._told[lead] = news


class Observer:
    """Asks the brokers, over connections of its own that are made when first needed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stack = contextlib.AsyncExitStack()
        self._clients: tuple[Admin, Consumer] | None = None
        self._connecting = asyncio.Lock()
        self.hidden: frozenset[str] = frozenset()
        """Topics of the last look that this user may not see."""
        self.unled: frozenset[str] = frozenset()
        """Topics of the last look of which it is not known whether they exist, or that have no
        leader now.
        """

    async def close(self) -> None:
        """Closes the connections that are made; the next question makes new ones."""
        stack, self._stack = self._stack, contextlib.AsyncExitStack()
        self._clients = None
        await stack.aclose()

    async def log_topic_ids(self, topics: Topics) -> tuple[str, ...] | None:
        """The ids of a log's topics; None: the brokers give topics no ids. Raises KafkaError."""
        _, consumer = await self._connect()
        return await topics.ids(consumer)

    async def _connect(self) -> tuple[Admin, Consumer]:
        async with self._connecting:
            if self._clients is None:
                async with contextlib.AsyncExitStack() as stack:
                    admin = await stack.enter_async_context(admin_client(self._connection))
                    self._clients = admin, await stack.enter_async_context(reader(self._connection))
                    self._stack = stack.pop_all()  # only now: `close` may come while these connect
            return self._clients

    async def look(self, topics: set[str]) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, tuple[str, ...]]]]:
        """End offsets, and racks of the replicas, each by topic and partition. Topics that do not
        exist are absent. Raises KafkaError.
        """
        if not topics:
            return {}, {}
        admin, consumer = await self._connect()
        rack_of = {broker["node_id"]: broker["rack"] for broker in (await admin.describe_cluster())["brokers"]}
        answers = await admin.describe_topics(sorted(topics))
        self.hidden = frozenset(each["topic"] for each in answers if each["error_code"] == NOT_ALLOWED)
        described = [each for each in answers if not each["error_code"]]
        known = {each["topic"] for each in answers if each["error_code"] == NO_SUCH_TOPIC}
        known |= {each["topic"] for each in described if any(part["leader"] >= 0 for part in each["partitions"])}
        self.unled = frozenset(topics - known)
        places = [TopicPartition(each["topic"], part["partition"]) for each in described for part in each["partitions"] if part["leader"] >= 0]
        ends: dict[str, dict[int, int]] = {}
        for place, end in (await consumer.end_offsets(places) if places else {}).items():
            ends.setdefault(place.topic, {})[place.partition] = end
        racks: dict[str, dict[int, tuple[str, ...]]] = {}
        for each in described:
            for part in each["partitions"]:
                named = tuple(sorted({rack_of[node] for node in part["replicas"] if rack_of.get(node)}))
                if named:
                    racks.setdefault(each["topic"], {})[part["partition"]] = named
        return ends, racks

    async def source_lags(self, group: str, sources: set[tuple[str, int]], auto_offset_reset: str) -> dict[str, dict[int, int]]:
        """Records that the group has still to read, by topic and partition. Partitions that do not
        exist are absent. `sources`: (topic, partition). `auto_offset_reset`: where a partition
        without a committed offset begins, ``earliest`` or ``latest``. Raises KafkaError.
        """
        admin, consumer = await self._connect()
        described = [each for each in await admin.describe_topics(sorted({topic for topic, _ in sources})) if not each["error_code"]]
        there = {(each["topic"], part["partition"]) for each in described for part in each["partitions"] if part["leader"] >= 0}
        lags: dict[str, dict[int, int]] = {}
        for (topic, partition), lag in (await source_lags(admin, consumer, group, sources & there, auto_offset_reset)).items():
            lags.setdefault(topic, {})[partition] = lag
        return lags
