"""The topics of an application: what a member needs of them, and making those that are missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from equipoise.events.errors import InputError
from equipoise.events.facts import Subtopology, TopologyDeclared
from equipoise.kafka.client import Admin, NewTopic
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import NOT_ALLOWED, NOT_SEEN, NotNowError, admin_client, reaching
from equipoise.member.tasks.positions import PARTITIONS, SETTINGS, positions_topic
from equipoise.member.tasks.processing import Processor
from equipoise.replay.wording import counted

_LOG = logging.getLogger(__name__)
DEFAULT_PARTITIONS = 6
HIDDEN = -1
_CHANGELOG = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
"""The brokers' times say how old a copy is (`CopyChecks.old`)."""
_BETWEEN = {"retention.ms": "-1"}
"""Settings of a topic that one processor writes and another one reads, as of repartition topics of
Kafka Streams. Brokers delete by the timestamps of records, so they would delete unread records of
events that are old.
"""
_LOOK_S = 0.2
_LOOKS = 50
_LOOKS_AGAIN = 5
"""At another broker, which may know of them later."""


def topology_of(processors: Sequence[Processor], partitions: Sequence[int], epoch: int, *, prepares: bool) -> TopologyDeclared:
    """The tasks of these processors, one sub-topology each. `prepares`: tasks without state are
    prepared, too, before they move.
    """
    return TopologyDeclared(
        epoch=epoch,
        subtopologies=tuple(
            Subtopology(
                subtopology=index, partitions=count, stateful=bool(each.state) or prepares, source_topics=each.sources, changelog_topics=each.state
            )
            for index, (each, count) in enumerate(zip(processors, partitions, strict=True))
        ),
    )


async def source_partitions(connection: Connection, processors: Sequence[Processor], others: Sequence[str], make: int) -> list[int]:
    """The number of partitions of each processor's sources. `others`: further topics to send to.
    `make` above 0: makes topics that are missing, sources with so many partitions.

    Raises InputError when a topic is missing, or the sources of a processor have unequal numbers;
    NotNowError when a topic that was made is not known yet.
    """
    wanted = list(dict.fromkeys([topic for each in processors for topic in (*each.sources, *each.state, *each.outputs)] + list(others)))
    async with admin_client(connection) as admin:
        with reaching(connection):
            counts = await partition_counts(admin, wanted)
            if make:
                await _make(admin, processors, others, counts, make)
                counts = await _made(admin, wanted)
    for topic in wanted:
        if counts[topic] == HIDDEN:
            raise InputError(f"topic {topic}: {NOT_SEEN}")
        if not counts[topic]:
            if make:
                raise NotNowError(f"topic {topic} was made and is not known to {connection.bootstrap} yet")
            raise InputError(f"topic {topic} does not exist; create it, or give Member create_topics=True")
    for each in processors:
        if len({counts[topic] for topic in each.sources}) > 1:
            has = " and ".join(f"{topic} {counts[topic]}" for topic in each.sources)
            raise InputError(f"sources: {has} partitions; a task reads the same partition of each, so give them equally many")
    return [counts[each.sources[0]] for each in processors]


async def ensure_positions_topic(connection: Connection, group: str) -> None:
    """Makes the topic of the tasks' offsets, unless it is there. Raises InputError when it
    cannot be made or would lose offsets, NotNowError when it was made and is not known yet.
    """
    name = positions_topic(group)
    async with admin_client(connection) as admin:
        with reaching(connection):
            found = (await partition_counts(admin, [name]))[name]
            if found == HIDDEN:
                raise InputError(f"topic {name}: {NOT_SEEN}")
            if not found:
                copies, insync = await _copies(admin)
                for why in (await admin.create_topics([NewTopic(name, PARTITIONS, copies, {**insync, **SETTINGS})])).values():
                    raise InputError(
                        f"topic {name}, of the task offsets of group {group}, cannot be made: {why}; give the client the right to, or make it: "
                        f"kafka-topics.sh --bootstrap-server {connection.bootstrap} --create --topic {name} --partitions {PARTITIONS} "
                        "--config cleanup.policy=compact"
                    )
                found = (await _made(admin, [name]))[name]
                if not found:
                    raise NotNowError(f"topic {name} was made and is not known to {connection.bootstrap} yet")
            policy = (await admin.topic_configs([name]))[name].get("cleanup.policy", "")
    if found < PARTITIONS:
        raise InputError(f"topic {name} has {counted(found, 'partition')}; delete it while it is empty, or give it {PARTITIONS}")
    if policy != "compact":
        raise InputError(
            f"topic {name} has cleanup.policy={policy}, and offsets in it would be lost: kafka-configs.sh --bootstrap-server "
            f"{connection.bootstrap} --alter --entity-type topics --entity-name {name} --add-config cleanup.policy=compact"
        )


def check_processors(group: str, processors: Sequence[Processor], *, dead_letters: str, adopts: str | None) -> None:
    """Raises InputError when two processors, or two uses of a topic, would spoil each other."""
    names: set[str] = set()
    readers: dict[str, list[int]] = {}
    keepers: set[str] = set()
    for index, each in enumerate(processors):
        if each.name and each.name in names:
            raise InputError(f"Processor.name: {each.name!r} is the name of two processors; give each its own")
        names.add(each.name)
        for field in ("sources", "state", "outputs"):
            given = getattr(each, field)
            twice = next((topic for topic in given if given.count(topic) > 1), None)
            if twice is not None:
                raise InputError(f"Processor.{field}: {twice} is named twice; name it once")
        for topic in each.state:
            if topic in keepers:
                raise InputError(f"Processor.state: {topic} is the changelog of two processors; give each its own")
            keepers.add(topic)
        for topic in each.sources:
            readers.setdefault(topic, []).append(index)
    for topic, indexes in readers.items():
        shared = [processors[index].name for index in indexes]
        if len(set(shared)) < len(shared):
            raise InputError(
                f"Processor.sources: two processors read {topic} and have the same name, so they would share one offset; give one of them a name, "
                "as in Processor(..., name='second'), and keep the name of the one that has run before"
            )
        if len(shared) > 1 and adopts is not None:
            raise InputError(f"adopts: two processors read {topic}, and a consumer group has one offset in it; adopt with one of them")
    sent = {topic: "outputs" for each in processors for topic in each.outputs} | ({dead_letters: "on_error"} if dead_letters else {})
    positions = positions_topic(group)
    for topic in sorted(keepers):
        for uses, what in ((readers, "sources"), (sent, sent.get(topic, ""))):
            if topic in uses:
                raise InputError(f"Processor.state: {topic} is in {what}, too; only the tasks with that state may write there, so name another topic")
    for topic in [*readers, *keepers, *sent]:
        if topic == positions:
            raise InputError(f"topic {topic} has the task offsets of group {group}; name another")


async def check_topics(connection: Connection, topology: TopologyDeclared) -> None:
    """Raises InputError when a topic has too few partitions, or a changelog would lose state."""
    changelogs = [topic for part in topology.subtopologies if part.stateful for topic in part.changelog_topics]
    async with admin_client(connection) as admin:
        with reaching(connection):
            sources = [topic for part in topology.subtopologies for topic in part.source_topics]
            counts = await _made(admin, sources + changelogs, looks=_LOOKS_AGAIN)
            for part in topology.subtopologies:
                for topic in (*part.source_topics, *(part.changelog_topics if part.stateful else ())):
                    if counts[topic] == HIDDEN:
                        raise InputError(f"topic {topic}: {NOT_SEEN}")
                    if counts[topic] < part.partitions:
                        says = f"topic {topic} has {counted(counts[topic], 'partition')}" if counts[topic] else f"topic {topic} does not exist"
                        raise InputError(
                            f"{says}, and sub-topology {part.subtopology} has {counted(part.partitions, 'task')}; give it as many partitions"
                        )
            configs = await admin.topic_configs(changelogs) if changelogs else {}
    for topic in changelogs:
        policy = configs[topic].get("cleanup.policy", "")
        if policy != "compact":
            raise InputError(
                f"topic {topic} has cleanup.policy={policy}, and state in it would be lost after its retention: kafka-configs.sh "
                f"--bootstrap-server {connection.bootstrap} --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy=compact"
            )


async def partition_counts(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
    """Topic -> partitions; 0: it does not exist; HIDDEN: the user may not see whether it does.
    Raises KafkaError.
    """
    described = await admin.describe_topics(list(dict.fromkeys(topics)))
    codes = {NOT_ALLOWED: HIDDEN}
    return {each["topic"]: codes.get(each["error_code"], 0) if each["error_code"] else len(each["partitions"]) for each in described}


async def _make(admin: Admin, processors: Sequence[Processor], others: Iterable[str], counts: dict[str, int], partitions: int) -> None:
    copies, insync = await _copies(admin)
    sources, state, outputs = ({topic for each in processors for topic in getattr(each, name)} for name in ("sources", "state", "outputs"))
    new: dict[str, NewTopic] = {}
    for topic, count in {**dict.fromkeys(others, partitions), **wanted_partitions(processors, counts, partitions)}.items():
        configs = _CHANGELOG if topic in state else _BETWEEN if topic in sources & outputs else {}
        new[topic] = NewTopic(topic, count, copies, {**insync, **configs})
    missing = [topic for name, topic in new.items() if counts[name] <= 0]
    for name, why in (await admin.create_topics(missing)).items() if missing else ():
        raise InputError(f"topic {name} cannot be made: {why}; make it yourself, or give the client the right to")
    aging = sorted({topic.name for topic in missing} & outputs - sources)
    if aging:
        _LOG.warning(
            "made %s with the brokers' retention, which counts from the times of records. Outputs of older records are deleted within "
            "minutes: set retention.ms before old records are processed",
            ", ".join(aging),
        )


def wanted_partitions(processors: Sequence[Processor], counts: Mapping[str, int], partitions: int) -> dict[str, int]:
    """Topic -> partitions that it has, or is to be made with, for all topics of these processors.
    `counts`: partitions of the topics that exist; 0 or less: of the others. `partitions`: of
    sources that no processor writes.

    Sources of one processor have equally many. A source that other processors write has as many as
    the largest of them has tasks, along the whole chain.
    """
    together: dict[str, set[str]] = {}
    """Source -> the sources that must have as many partitions."""
    for each in processors:
        joint = set(each.sources).union(*(together.get(topic, ()) for topic in each.sources))
        together.update(dict.fromkeys(joint, joint))
    found: dict[str, int] = {}

    def set_all(source: str, count: int) -> None:
        found.update({topic: max(0, counts[topic]) or count for topic in together[source]})

    for source, joint in together.items():
        known = max(counts[topic] for topic in joint)
        if known > 0:
            set_all(source, known)
    while missing := [source for source in together if source not in found]:
        writers = {source: [each.sources[0] for each in processors if together[source].intersection(each.outputs)] for source in missing}
        ready = [source for source in missing if all(writer in found for writer in writers[source])]
        begun = [source for source in missing if any(writer in found for writer in writers[source])]
        source = (ready or begun or missing)[0]  # where they write to each other in a circle, one of them comes first
        set_all(source, max((found[writer] for writer in writers[source] if writer in found), default=partitions))
    for each in processors:
        tasks = max(found[topic] for topic in each.sources)
        for topic in (*each.state, *each.outputs):
            if topic not in together:
                found[topic] = max(found.get(topic, 0), tasks)
    return found


async def _copies(admin: Admin) -> tuple[int, dict[str, str]]:
    copies = min(3, len((await admin.describe_cluster())["brokers"]))
    return copies, {"min.insync.replicas": str(min(2, max(1, copies - 1)))}  # with three copies, one broker may be away


async def _made(admin: Admin, topics: Sequence[str], looks: int = _LOOKS) -> dict[str, int]:
    """Waits for a moment: new topics are not known everywhere at once."""
    for _ in range(looks):
        counts = await partition_counts(admin, topics)
        if all(count > 0 for count in counts.values()):
            break
        await asyncio.sleep(_LOOK_S)
    return counts
