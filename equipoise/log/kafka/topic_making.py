"""Makes the topics of a log, and checks their settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from equipoise.events.errors import InputError
from equipoise.kafka.client import Admin, NewTopic, TopicPartition, late, within
from equipoise.kafka.connection import Connection
from equipoise.kafka.started_clients import NOT_ALLOWED, NOT_SEEN, NotAllowedError, admin_client, not_seen, reaching, reader
from equipoise.log.kafka.log_topics import (
    BASES_MUST_BE,
    KAFKAS_BYTES,
    MADE_WITH,
    MOST_BYTES,
    MUST_BE,
    NEEDED_BYTES,
    SEGMENTS_WITH_RETENTION,
    Topics,
)

WAIT_S = 0.2
KNOWN_S = 30.0
"""Within this time brokers know topics that were just made, and their partitions have leaders."""

MOST_NAMED = 5


class WrongSettingsError(InputError):
    """A topic of the log has a setting that breaks the log's guarantees."""

    def __init__(self, topic: str, key: str, found: str | None, needs: str, value: str) -> None:
        self.topic, self.has, self.needs = topic, f"{key}={found}", needs
        alter = f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {key}={value}"
        super().__init__(f"topic {topic} has {self.has} and {needs}: {alter}")


async def ensure_topics(connection: Connection, topics: Topics, *, partitions: int = 1, replication: int = 0, bases: bool = False) -> None:
    """Makes missing topics and checks the settings of all. `replication` 0: three copies, or as
    many as there are brokers. `bases`: also the topic of bases, with as many partitions as the
    facts have.

    Raises InputError that names a topic, its setting and the fix. Never changes existing topics.
    """
    async with admin_client(connection) as admin:
        with reaching(connection):
            await make_topics(admin, await new_topics(admin, topics, partitions, replication, MUST_BE, SEGMENTS_WITH_RETENTION if bases else {}))
            try:
                await check_topics(admin, topics)
                if bases:
                    await make_bases_topic(admin, topics, replication)
                    await _check_settings(admin, topics, {"bases": BASES_MUST_BE})
            except WrongSettingsError as error:
                raise error if await _has_records(connection, error.topic) else _made_by_another(error) from None


async def make_bases_topic(admin: Admin, topics: Topics, replication: int = 0) -> None:
    """Makes the topic of bases unless it is there, with as many partitions as the facts have.
    Raises InputError, KafkaError.
    """
    count = len((await described_topics(admin, [topics.facts]))[topics.facts]["partitions"])
    await make_topics(admin, await new_topics(admin, topics, count, replication, {"bases": BASES_MUST_BE}))
    await described_topics(admin, [topics.bases])


async def new_topics(
    admin: Admin,
    topics: Topics,
    partitions: int,
    replication: int,
    must_be: Mapping[str, Mapping[str, str]] = MUST_BE,
    segments: Mapping[str, str] = MappingProxyType({}),
) -> list[NewTopic]:
    """Returns the topics of a log as `ensure_topics` makes them. `segments`: settings of facts and
    decisions, beside those that each must have. Raises KafkaError.
    """
    copies = replication or min(3, len((await admin.describe_cluster())["brokers"]))
    insync = {"min.insync.replicas": str(min(2, max(1, copies - 1)))}  # with three copies, one broker may be away
    wanted = []
    for what, must in must_be.items():
        more = segments if what in ("facts", "decisions") else {}
        sizes = {MOST_BYTES: str(KAFKAS_BYTES)}
        wanted.append(NewTopic(topics.name_of(what), partitions, copies, {**insync, **sizes, **MADE_WITH[what], **more, **must}))
    return wanted


async def make_topics(admin: Admin, wanted: Sequence[NewTopic]) -> None:
    """Makes those that do not exist. Raises InputError, KafkaError."""
    there = {each["topic"] for each in await admin.describe_topics([topic.name for topic in wanted]) if not each["error_code"]}
    missing = [topic for topic in wanted if topic.name not in there]
    for name, why in (await admin.create_topics(missing)).items() if missing else ():
        raise InputError(f"topic {name} cannot be made: {why}; make it yourself, or give the client the right to")


async def check_topics(admin: Admin, topics: Topics) -> None:
    """Raises InputError when the topics of facts and decisions have different numbers of
    partitions.
    """
    described = await described_topics(admin, [topics.name_of(what) for what in MUST_BE])
    counts = {name: len(each["partitions"]) for name, each in described.items()}
    for what in ("decisions", "checkpoints"):
        if counts[topics.name_of(what)] < counts[topics.facts]:
            has = f"topic {topics.name_of(what)} has {counts[topics.name_of(what)]} partitions"
            raise InputError(f"{has} and {topics.facts} has {counts[topics.facts]}; give it as many")
    await _check_settings(admin, topics, MUST_BE)


async def _check_settings(admin: Admin, topics: Topics, must_be: Mapping[str, Mapping[str, str]]) -> None:
    found = await _settings_of(admin, [topics.name_of(what) for what in must_be])
    for what, must in must_be.items():
        name = topics.name_of(what)
        for key, value in must.items():
            if found[name].get(key) != value:
                raise WrongSettingsError(name, key, found[name].get(key), f"needs {value}", value)
        most_bytes = found[name].get(MOST_BYTES)
        if most_bytes is not None and int(most_bytes) < NEEDED_BYTES:
            raise WrongSettingsError(name, MOST_BYTES, most_bytes, f"needs at least {NEEDED_BYTES}", str(NEEDED_BYTES))


async def _settings_of(admin: Admin, names: list[str]) -> dict[str, dict[str, str]]:
    """Returns the settings of topics that are there. Of several brokers, the one that is asked may
    not know a new topic yet that another has described.
    """
    from aiokafka.errors import UnknownTopicOrPartitionError

    async with within(f"settings of {', '.join(names)}", KNOWN_S):
        while True:
            try:
                return await admin.topic_configs(names)
            except UnknownTopicOrPartitionError:
                await asyncio.sleep(WAIT_S)
                await described_topics(admin, names)


async def _has_records(connection: Connection, topic: str) -> bool:
    count = await partition_count(connection, topic)
    places = [TopicPartition(topic, partition) for partition in range(count)]
    async with reader(connection) as consumer:
        consumer.assign(places)
        with reaching(connection):
            return any((await consumer.end_offsets(places)).values())


def _made_by_another(error: WrongSettingsError) -> InputError:
    """The topic is empty. Its settings would not be all: it has the brokers' number of partitions
    and of copies.
    """
    return InputError(
        f"topic {error.topic} has {error.has} and {error.needs}, and holds no record: some client made it by asking for it "
        f"(auto.create.topics.enable). Delete it, and the worker makes it: kafka-topics.sh --delete --topic {error.topic}"
    )


async def described_topics(admin: Admin, names: list[str]) -> dict[str, dict[str, Any]]:
    """Returns topic -> its description, when all are known with their leaders: new topics are not
    at once. Raises InputError for a topic that this user may not see, KafkaError, after KNOWN_S
    KafkaTimeoutError.
    """
    clock = asyncio.get_running_loop().time
    end_s = clock() + KNOWN_S
    while True:
        described = {each["topic"]: each for each in await admin.describe_topics(names)}
        hidden = [name for name, each in described.items() if each["error_code"] == NOT_ALLOWED]
        if hidden:
            raise InputError(f"topic {hidden[0]}: {NOT_SEEN}")
        lacking = [name for name, each in described.items() if each["error_code"]]
        lacking += [f"{name}/{part['partition']}" for name, each in described.items() for part in each["partitions"] if part["leader"] < 0]
        if not lacking:
            return described
        if clock() >= end_s:
            raise late(f"a leader of {', '.join(lacking[:MOST_NAMED])}", KNOWN_S)
        await asyncio.sleep(WAIT_S)


async def partition_count(connection: Connection, topic: str, *, must_be_seen: bool = False) -> int:
    """Returns the number of partitions of a topic; 0: it does not exist, or this user may not see
    it. `must_be_seen`: raises InputError when the user may not. Raises NotAllowedError.
    """
    async with admin_client(connection) as admin:
        with reaching(connection):
            (described,) = await admin.describe_topics([topic])
    if must_be_seen and described["error_code"] == NOT_ALLOWED:
        raise NotAllowedError(f"topic {topic}: {not_seen(topic)}")
    return 0 if described["error_code"] else len(described["partitions"])
