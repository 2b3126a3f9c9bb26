"""Creates a log in Kafka: makes and checks the topics, and opens each partition with its first
record. Readers learn here what that record says.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from equipoise.events.errors import EquipoiseError, GapError, InputError
from equipoise.events.facts import LogOpened
from equipoise.events.log.kafka.bases_topic import Base, Bases, archive_record, opening_record, opening_row
from equipoise.events.log.kafka.client import Admin, ConsumedRecord, Consumer, NewTopic, Producer, TopicPartition
from equipoise.events.log.kafka.connection import MISSING, Connection
from equipoise.events.log.kafka.envelope import NoRecord, pack_fact, read_fact
from equipoise.events.log.kafka.log_topics import (
    BASES_MUST_BE,
    KAFKAS_BYTES,
    MADE_WITH,
    MOST_BYTES,
    MUST_BE,
    NEEDED_BYTES,
    SEGMENTS_WITH_RETENTION,
    Topics,
)
from equipoise.events.log.rows import FactRow

_WAIT_S = 0.2
NOT_ALLOWED = 29  # Kafka's error TOPIC_AUTHORIZATION_FAILED
NOT_SEEN = "this user may not see it; `equipoise doctor` names the ACLs that are missing"
OFFSETS_TOPIC = "__consumer_offsets"


def not_seen(topic: str) -> str:
    """That this user may not see a topic, and what it needs: `NOT_SEEN`, but for the topic of
    groups, which no deployment of equipoise needs.
    """
    return f"this user may not see it; it needs READ and DESCRIBE on topic {topic}" if topic == OFFSETS_TOPIC else NOT_SEEN


_FIRST_LOOK_BACK = 300
"""Last records of the bases' topic that are searched first for a base."""
APPEND_TIME = 1  # timestamp_type of a record: LogAppendTime


class NotNowError(InputError):
    """A broker could not answer but may soon: a broker is away, or a takeover is in progress."""


class UnreachableError(InputError):
    """No broker answers."""


class NotAllowedError(InputError):
    """This user may not do that: an ACL is missing."""


class NotThereError(InputError):
    """The log's topics do not exist or are empty: no worker has made them yet."""


class WrongSettingsError(InputError):
    """A topic of the log has a setting that breaks the log's guarantees."""

    def __init__(self, topic: str, key: str, found: str | None, needs: str, value: str) -> None:
        self.topic, self.has, self.needs = topic, f"{key}={found}", needs
        alter = f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {key}={value}"
        super().__init__(f"topic {topic} has {self.has} and {needs}: {alter}")


@contextlib.contextmanager
def reaching(connection: Connection) -> Any:
    """Turns connection errors of the client into InputError with one line."""
    try:
        from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError
    except ImportError:
        raise InputError(MISSING) from None
    try:
        yield
    except KafkaConnectionError as error:
        raise _unreachable(connection, f" ({error})") from None
    except TopicAuthorizationFailedError as error:
        topics = ", ".join(sorted(error.args[0])) if error.args and isinstance(error.args[0], set | list | tuple) else str(error)
        raise NotAllowedError(f"topic {topics}: {NOT_SEEN}") from None
    except KafkaError as error:
        kind = NotNowError if error.retriable or isinstance(error, KafkaTimeoutError) else InputError
        raise kind(f"{connection.bootstrap} refuses: {error.__class__.__name__} {error}") from None


def _unreachable(connection: Connection, why: str) -> UnreachableError:
    return UnreachableError(f"bootstrap: no broker answers at {connection.bootstrap}{why}; start it, or correct the address")


@contextlib.contextmanager
def starting(connection: Connection) -> Any:
    """`reaching`, around the start of a client: when no broker can be connected to, the error says
    why, and the client library does not log it beside. Raises InputError.
    """
    try:
        from aiokafka.errors import KafkaConnectionError

        from equipoise.events.log.kafka.aiokafka_log import FailedConnections, hold_back_log
    except ImportError:
        raise InputError(MISSING) from None
    failed = FailedConnections()
    with reaching(connection), hold_back_log(failed):
        try:
            yield
        except KafkaConnectionError:
            raise _unreachable(connection, failed.text()) from None


@contextlib.asynccontextmanager
async def admin_client(connection: Connection) -> AsyncIterator[Admin]:
    """A started admin client."""
    admin = connection.clients.admin()
    with starting(connection):
        await admin.start()
    try:
        yield admin
    finally:
        await admin.stop()


@contextlib.asynccontextmanager
async def reader(connection: Connection, **options: Any) -> AsyncIterator[Consumer]:
    """A started consumer without a group. The caller assigns partitions and positions it.
    `options`: of `Clients.consumer`.
    """
    consumer = connection.clients.consumer(**options)
    with starting(connection):
        await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@contextlib.asynccontextmanager
async def writer(connection: Connection, **options: Any) -> AsyncIterator[Producer]:
    """A started producer. At the end of the block it waits for everything sent, as the futures of
    `send` report; not when an exception leaves the block. `options`: of `Clients.producer`.
    """
    producer = connection.clients.producer(**options)
    with starting(connection):
        await producer.start()
    try:
        yield producer
        await producer.flush()
    finally:
        await producer.stop()


# ------------------------------------------------------------------------------------------- topics


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
                    await _make_bases_topic(admin, topics, replication)
                    await _check_settings(admin, topics, {"bases": BASES_MUST_BE})
            except WrongSettingsError as error:
                raise error if await _has_records(connection, error.topic) else _made_by_another(error) from None


async def _make_bases_topic(admin: Admin, topics: Topics, replication: int = 0) -> None:
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
        count = 1 if what == "rejected" else partitions
        more = segments if what in ("facts", "decisions") else {}
        sizes = {MOST_BYTES: str(KAFKAS_BYTES)}
        wanted.append(NewTopic(topics.name_of(what), count, copies, {**insync, **sizes, **MADE_WITH[what], **more, **must}))
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
    found = await admin.topic_configs([topics.name_of(what) for what in must_be])
    for what, must in must_be.items():
        name = topics.name_of(what)
        for key, value in must.items():
            if found[name].get(key) != value:
                raise WrongSettingsError(name, key, found[name].get(key), f"needs {value}", value)
        most_bytes = found[name].get(MOST_BYTES)
        if most_bytes is not None and int(most_bytes) < NEEDED_BYTES:
            raise WrongSettingsError(name, MOST_BYTES, most_bytes, f"needs at least {NEEDED_BYTES}", str(NEEDED_BYTES))


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
    at once. Raises InputError for a topic that this user may not see, KafkaError.
    """
    while True:
        described = {each["topic"]: each for each in await admin.describe_topics(names)}
        hidden = [name for name, each in described.items() if each["error_code"] == NOT_ALLOWED]
        if hidden:
            raise InputError(f"topic {hidden[0]}: {NOT_SEEN}")
        if all(not each["error_code"] and all(part["leader"] >= 0 for part in each["partitions"]) for each in described.values()):
            return described
        await asyncio.sleep(_WAIT_S)


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


# ------------------------------------------------------------------------------------------ opening


async def open_partitions(connection: Connection, topics: Topics, *, new_id: str | None = None) -> LogOpened:
    """Writes LogOpened at the beginning of each empty partition of the facts, and returns it.
    `new_id`: id of the log if this opens it; None: a random one.

    Writes the last partition first: once partition 0 is open, all are. Several workers may do this
    at once: the first record of the last partition names the log, and a second LogOpened in a
    partition has no group and is not folded.
    """
    opened = await first_record(connection, topics, 0)
    if opened is not None:
        return opened
    count = await partition_count(connection, topics.facts)
    firsts = {partition: await first_record(connection, topics, partition) for partition in range(count)}
    opened = next((first for first in firsts.values() if first is not None), None)  # of a worker that is opening the log or was interrupted
    if opened is not None:
        count = opened.partitions
    async with writer(connection) as producer:
        for partition in reversed(range(count)):
            if firsts[partition] is None:
                event = opened or LogOpened(log_id=new_id or uuid.uuid4().hex, partitions=count)
                with reaching(connection):
                    await producer.send_and_wait(topics.facts, pack_fact(event), key=b"", partition=partition)
                opened = opened or await first_record(connection, topics, partition)
    assert opened is not None, "every partition has been opened"
    return opened


async def read_opening(
    connection: Connection, topics: Topics, *, timeout_s: float = 0.0, waits: Callable[[], None] = lambda: None
) -> LogOpened:
    """Returns the log's first record: its id and the number of partitions for groups
    (docs/protocol.md#l1).

    Waits up to `timeout_s` for a worker to open the log, and calls `waits` once when it has to.
    Raises NotThereError when none does.
    """
    clock = asyncio.get_running_loop().time
    end_s, waited = clock() + timeout_s, False
    while True:
        if await partition_count(connection, topics.facts):
            opened = await first_record(connection, topics, 0)
            if opened is not None:
                return opened
        if clock() >= end_s:
            raise NotThereError(f"kafka://{connection.bootstrap}/{topics.prefix}: there is no log; start a worker, which makes one")
        if not waited:
            waits()
            waited = True
        await asyncio.sleep(_WAIT_S)


async def first_record(connection: Connection, topics: Topics, partition: int) -> LogOpened | None:
    """Returns LogOpened of one partition; None while it is empty. When its first records were
    deleted, LogOpened is in the topic of bases. Raises InputError when the first record is
    something else, or its time is not the broker's.
    """
    from aiokafka.errors import OffsetOutOfRangeError

    tp = TopicPartition(topics.facts, partition)
    async with reader(connection) as consumer:
        consumer.assign([tp])
        with reaching(connection):
            begin = (await consumer.beginning_offsets([tp]))[tp]
            end = (await consumer.end_offsets([tp]))[tp]
            if begin >= end and begin == 0:
                return None
            if begin > 0:
                await partition_count(connection, topics.bases, must_be_seen=True)
                row = await opening_in_bases(connection, topics, partition)
                if row is None:
                    gone = f"topic {topics.facts}/{partition} begins at offset {begin}, and no base has its first record"
                    raise InputError(f"{gone}: set retention.ms=-1 for it, and let workers delete records (docs/operations.md, \"Retention\")")
                return cast(LogOpened, row.record().event)
            consumer.seek(tp, 0)
            try:
                while not (found := (await consumer.getmany(tp, timeout_ms=1_000, max_records=1)).get(tp)):
                    pass
            except OffsetOutOfRangeError:  # a worker has deleted it meanwhile
                return await first_record(connection, topics, partition)
    first = found[0]
    check_append_time(first)
    try:
        event = read_fact(first.key, first.value, first.offset, first.timestamp_ms).event
    except EquipoiseError:
        event = None
    if not isinstance(event, LogOpened):
        raise InputError(
            f"topic {topics.facts}/{partition} does not begin with LogOpened, so it is not a log of equipoise; use another prefix. If the topics of "
            f"{topics.prefix} were deleted while members ran, delete them again: a member was faster than the worker, and has stopped by now"
        )
    return event


async def opening_in_bases(connection: Connection, topics: Topics, partition: int) -> FactRow | None:
    """Returns LogOpened as the first fact of a partition, which is at the beginning of the topic of
    bases; None: it is not there.
    """
    async for record in _records_of_bases(connection, topics, partition, 0):
        row = opening_row(record.key, record.value)
        if row is not None:
            return row
    return None


async def open_bases(connection: Connection, topics: Topics, partition: int) -> None:
    """Writes LogOpened into a partition of the topic of bases, unless it is there. Raises
    InputError, KafkaError. Raises NotThereError when the partition of facts is empty.
    """
    opened = await first_record(connection, topics, partition)
    if opened is None:
        raise NotThereError(f"topic {topics.facts}/{partition} is empty")
    if await opening_in_bases(connection, topics, partition) is not None:
        return
    tp = TopicPartition(topics.facts, partition)
    async with reader(connection) as consumer:
        consumer.assign([tp])
        async for record in _to_end(consumer, tp, 0, 1):
            key, value = opening_record(record.timestamp_ms, opened)
            async with writer(connection) as producer:
                await producer.send_and_wait(topics.bases, value, key=key, partition=partition)


async def make_bases(connection: Connection, topics: Topics, partitions: Iterable[int]) -> None:
    """Makes the topic of bases, and opens these partitions of it, unless it is there. Looks at no
    other topic than that of facts, because who declares an archive may not see all of them. Raises
    InputError.
    """
    async with admin_client(connection) as admin:
        with reaching(connection):
            await _make_bases_topic(admin, topics)
    with reaching(connection):
        for partition in partitions:
            await open_bases(connection, topics, partition)


async def declare_archive(connection: Connection, topics: Topics, log_id: str, positions: Mapping[int, int | None], name: str, at_ms: int) -> None:
    """Says that the archive `name` has the facts before these positions, by partition; None: that
    there is no such archive any longer. The topic of bases is there. Raises InputError.
    """
    with reaching(connection):
        async with writer(connection) as producer:
            for partition, position in positions.items():
                key, value = archive_record(log_id, name, position or 0, at_ms)
                await producer.send_and_wait(topics.bases, None if position is None else value, key=key, partition=partition)


async def read_bases(connection: Connection, topics: Topics, partition: int, bases: Bases, start: int = 0) -> int:
    """Gives `bases` the records of its topic from offset `start` to the present end, and returns
    the offset behind the last one. A log without the topic has none. Raises KafkaError.
    """
    async for record in _records_of_bases(connection, topics, partition, start):
        bases.take(record.key, record.value)
        start = record.offset + 1
    return start


async def newest_base(connection: Connection, topics: Topics, log_id: str, partition: int) -> Base | None:
    """Returns the newest base that is stored; None: there is none. Searches from the end, so it
    does not read all states. Raises KafkaError, InputError.
    """
    if not await partition_count(connection, topics.bases, must_be_seen=True):
        return None
    tp = TopicPartition(topics.bases, partition)
    async with reader(connection) as consumer:
        consumer.assign([tp])
        begin, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
        back = _FIRST_LOOK_BACK
        while True:
            start = max(begin, end - back)
            bases = Bases(log_id, keep_states=False)
            async for record in _to_end(consumer, tp, start, end):
                bases.take(record.key, record.value)
            if bases.stored or start == begin:
                return bases.stored[-1] if bases.stored else None
            back *= 8


async def _records_of_bases(connection: Connection, topics: Topics, partition: int, start: int) -> AsyncIterator[ConsumedRecord]:
    if not await partition_count(connection, topics.bases):
        return
    tp = TopicPartition(topics.bases, partition)
    async with reader(connection, max_poll_records=1_000) as consumer:
        consumer.assign([tp])
        with reaching(connection):
            begin, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            async for record in _to_end(consumer, tp, max(begin, start), end):
                yield record


async def _to_end(consumer: Consumer, tp: TopicPartition, start: int, end: int) -> AsyncIterator[ConsumedRecord]:
    consumer.seek(tp, start)
    position = start
    while position < end:
        for record in (await consumer.getmany(tp, timeout_ms=1_000)).get(tp, ()):
            if record.offset < end:
                yield record
        position = await consumer.position(tp)


async def fill_holes(connection: Connection, due: int, records: Sequence[ConsumedRecord]) -> list[ConsumedRecord | NoRecord]:
    """Returns `records`, which a consumer of the facts returned from offset `due` on, with a
    NoRecord for each offset that it skipped.

    Checks with a new consumer that these offsets have no record. Raises GapError when one has.
    """
    filled: list[ConsumedRecord | NoRecord] = []
    for record in records:
        if record.offset > due:
            await _must_hold_nothing(connection, record.topic, record.partition, due, record.offset)
            filled += [NoRecord(offset, record.timestamp_ms) for offset in range(due, record.offset)]
        filled.append(record)
        due = record.offset + 1
    return filled


async def _must_hold_nothing(connection: Connection, topic: str, partition: int, start: int, end: int) -> None:
    tp = TopicPartition(topic, partition)
    async with reader(connection) as consumer:
        consumer.assign([tp])
        with reaching(connection):
            if (await consumer.beginning_offsets([tp]))[tp] > start:
                raise GapError(start, f"is missing: topic {topic}/{partition} begins after it; earlier records were deleted by topic retention")
            consumer.seek(tp, start)
            while await consumer.position(tp) < end:
                for record in (await consumer.getmany(tp, timeout_ms=1_000)).get(tp, ()):
                    if record.offset < end:
                        raise GapError(start, f"was skipped by a reader of topic {topic}/{partition}, which holds offset {record.offset}")


RESTORED = "equipoise.restored"
"""Header of a fact that `equipoise restore` wrote with its former append time, while its topic took
the sender's. A topic that takes the broker's only takes no such record.
"""


def check_append_time(record: ConsumedRecord) -> None:
    """Raises InputError when the time of a fact's record is not that of a broker
    (docs/protocol.md#l2).
    """
    if record.timestamp_type != APPEND_TIME and all(name != RESTORED for name, _ in record.headers):
        raise InputError(
            f"topic {record.topic}/{record.partition}, offset {record.offset}: its time is its sender's; set message.timestamp.type=LogAppendTime"
        )
