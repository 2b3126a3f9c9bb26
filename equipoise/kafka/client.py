"""What equipoise needs of a Kafka client. Hosts are written against this interface, so that the
same code runs on real brokers (`aiokafka_wire`) and on simulated ones.

A client is made by `Connection.clients`, and belongs to the event loop that starts it. Errors are
those of `aiokafka.errors`, on simulated brokers too.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, asynccontextmanager
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import attrs

from equipoise.events.errors import FieldError
from equipoise.kafka.throttling import Throttling

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
Headers = Sequence[tuple[str, bytes]]
SentHeaders = list[tuple[str, bytes]]
Unsent = tuple[bytes | None, bytes | None, SentHeaders, int | None]
"""Key, value, headers and timestamp (ms; None: the time of sending) of a record to send."""
FIRST_ANSWER_S = 5.0
"""How long the brokers of `bootstrap` are waited for, by whoever asks them a question."""
NO_ANSWER = "no answer within"
"""In the reason for which a silent broker counts as away."""
CLOSE_S = 5.0
"""Seconds for a client to send what it has and to disconnect."""
_AGAIN_S = 0.1
LATEST_S = 120.0
"""Whoever waits for brokers waits so long at most, as Kafka's own producer does for a batch."""
ENDS_S = 10.0
"""Seconds for a task that closes clients to end, once it is cancelled."""
MOST_ENDING_S = 15.0
"""A task that goes on so long after it is cancelled is left, with a line in the log."""
MOST_IDLE_MS = 540_000
"""How long a connection that nobody uses stays open, as Kafka's own clients keep it."""
MOST_REQUEST_BYTES = 2**20
"""Largest batch that a producer sends."""
_BATCH_OVERHEAD = 61


TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Names that a topic can have (Kafka's `Topic.validate`), but for "." and ".."."""


def check_topic(field: str, value: Any) -> None:
    """Raises FieldError, with `field`, when no topic of Kafka can have this name."""
    if not isinstance(value, str) or TOPIC_NAME.fullmatch(value) is None or value in (".", ".."):
        raise FieldError(field, f"{value!r:.80} is no name of a topic; write 1 to 249 of the characters a-z A-Z 0-9 . _ -")


class TopicPartition(NamedTuple):
    """One partition of a topic. Equal to aiokafka's, and hashes alike."""

    topic: str
    partition: int


@attrs.frozen
class NewTopic:
    """A topic to create. `topic_configs`: its settings, beside the brokers' defaults.
    `replica_assignments`: partition -> brokers of its replicas, and both numbers are -1; empty:
    Kafka chooses.
    """

    name: str
    num_partitions: int
    replication_factor: int
    topic_configs: Mapping[str, str] = attrs.field(factory=dict)
    replica_assignments: Mapping[int, Sequence[int]] = attrs.field(factory=dict)


class Record(NamedTuple):
    """One record of a topic. As a handler gets it `key` and `value` are deserialized; None stays
    None. `timestamp_ms`: ms since 1970. `timestamp_type` 0: the time is the sender's
    (`CreateTime`); 1: the broker's (`LogAppendTime`).
    """

    key: Any
    value: Any
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    headers: Headers = ()
    timestamp_type: int = 0


class ConsumedRecord(Protocol):
    """A `Record` as a consumer returns it: key and value are bytes."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def timestamp_type(self) -> int: ...


def size_bytes(key: bytes | None, value: bytes | None) -> int:
    """Of a record."""
    return len(key or b"") + len(value or b"")


def batch_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Of a batch with this record only, as it is sent without compression."""
    size = 3 + _field_bytes(key) + _field_bytes(value) + _varint_bytes(len(headers))
    for name, content in headers:
        size += _field_bytes(name.encode()) + _field_bytes(content)
    return _BATCH_OVERHEAD + _varint_bytes(size) + size


def _field_bytes(content: bytes | None) -> int:
    return 1 if content is None else _varint_bytes(len(content)) + len(content)


def _varint_bytes(number: int) -> int:
    return max(1, -(-(number << 1).bit_length() // 7))


Row = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers and offset of a record, which cost a consumer less than a `Record`."""


NO_EPOCH = -1
"""In place of a leader epoch: none, or unknown."""


class LeaderEnd(NamedTuple):
    """The end of a partition as its leader knows it, and the epoch in which it leads (KIP-320)."""

    offset: int
    epoch: int


class AppendedRecord(Protocol):
    """Where a record was appended, and when by the broker's clock; -1: its topic keeps its senders'
    times.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def append_ms(self) -> int: ...


class SentBatch(NamedTuple):
    """Records that were queued for one partition, and are appended together or not at all.
    `records`: their number. `appended`: where the first of them is, when all are acknowledged; or
    raises KafkaError. `size_bytes`: before it is compressed.
    """

    records: int
    appended: asyncio.Future[Any]
    size_bytes: int = 0


class Client(Protocol):
    """What every client has. `start` raises KafkaConnectionError when no broker answers."""

    async def start(self, *, within_s: float | None = None) -> None:
        """Connects. Closes the client if that fails or is cancelled. `within_s`: how long the
        brokers of `bootstrap` are waited for, all together, but each for a second; None: as long as
        requests may take.
        """
        ...

    async def stop(self, *, within_s: float = CLOSE_S) -> None:
        """Sends what it has and disconnects: cleanly within `within_s`, else at once. May be called
        again.
        """
        ...


class DataClient(Client, Protocol):
    """What consumers and producers have."""

    async def topic_ids(self, topics: Sequence[str], leads: TopicPartition) -> tuple[str, ...] | None:
        """Ids of `topics` (KIP-516), from the leader of `leads`; None: the brokers have none. A
        topic that was deleted and created again has another id. Raises KafkaError.
        """
        ...

    def leader(self, partition: TopicPartition) -> tuple[str, int] | None:
        """Host and port of its leader, as last heard; None: unknown."""
        ...


class Consumer(DataClient, Protocol):
    """Reads partitions that are assigned to it by hand. Fetches ahead what is assigned and not
    paused.
    """

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Reads these partitions from now on, at least one. Those that were assigned before stay
        as they are; others are forgotten.
        """
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continues at `offset`; records fetched before are dropped."""
        ...

    def pause(self, *partitions: TopicPartition) -> None: ...
    def resume(self, *partitions: TopicPartition) -> None: ...

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """The next records of `partitions` (none: of all assigned ones); empty after `timeout_ms`.
        A consumer made with `as_rows` returns a `Row` for each, here and in `take`. Raises
        OffsetOutOfRangeError (`args[0]`: partition -> offset), KafkaError.
        """
        ...

    async def fetched(self) -> None:
        """Waits until something more is fetched. Raises KafkaError when nothing is fetched any
        more.
        """
        ...

    def ready(self) -> Set[TopicPartition]:
        """The partitions of which `take` has something now."""
        ...

    def take(self, partitions: Sequence[TopicPartition], most: int) -> Mapping[TopicPartition, Sequence[ConsumedRecord]]:
        """At most so many records of those that were fetched of `partitions`. Raises as `getmany`."""
        ...

    def hold_fetches(self, wait_ms: int) -> None:
        """From the next fetch on brokers hold one that finds nothing for so long. A partition that
        is resumed meanwhile waits for that.
        """
        ...

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the record to return next: behind transaction markers that were read."""
        ...

    def next_offset(self, partition: TopicPartition) -> int | None:
        """`position` as far as it is known; None: unknown, or not assigned. Any thread may call
        this.
        """
        ...

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark, by the last fetch; None: unknown, or not assigned. Any thread may
        call this.
        """
        ...

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """The last stable offset, by the last fetch; None: unknown. The partition is assigned."""
        ...

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """First offsets, from the partitions' leaders. Raises KafkaError."""
        ...

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends, from the partitions' leaders: last stable offsets with `read_committed`, else high
        watermarks. Raises KafkaError.
        """
        ...

    async def leader_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        """As `end_offsets`, with the epochs of the leaders; NO_EPOCH: they have none."""
        ...

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The offsets of the first records that are at least as late (ms since 1970), from the
        partitions' leaders; None: there is none. Raises KafkaError.
        """
        ...

    async def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """See `Admin`. Raises KafkaError."""
        ...

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int] | None:
        """Partition -> offset behind the last record of this leader epoch, or of a former one if
        it has none of it; -1: its leader knows no epoch as late as this. None: the brokers cannot
        be asked. Raises KafkaError.
        """
        ...

    def fetched_epoch(self, partition: TopicPartition) -> int:
        """Leader epoch of the last batch that was fetched since `seek`; NO_EPOCH: unknown."""
        ...

    async def committed(self, partition: TopicPartition) -> int | None:
        """Offset committed by the consumer's group; None: there is none. Waits for open
        transactions. Raises KafkaError.
        """
        ...

    async def committed_notes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        """Partition -> offset committed by the consumer's group, and the metadata that were
        committed with it; of those that have one. Raises KafkaError.
        """
        ...

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets for the consumer's group. Raises KafkaError."""
        ...

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Partitions as last heard; None: the topic is not known."""
        ...

    def watch_metadata(self, heard: Callable[[], None]) -> None:
        """Calls `heard` each time the brokers' metadata was heard. It is asked for again when a
        topic that is being read is gone.
        """
        ...


class Producer(DataClient, Protocol):
    """Writes records: idempotently and in order per partition, acknowledged by all replicas."""

    async def connect(self) -> None:
        """The first half of `start`: connects, and finds the transaction coordinator. Fences
        nobody.
        """
        ...

    async def begin(self) -> None:
        """The second half of `start`. With a transactional id it fences the id's former producer
        and ends its transaction. Raises KafkaError.
        """
        ...

    async def abandon(self) -> None:
        """Closes at once. Unsent records are never sent; records under way may be appended. Batches
        of `send_batches` raise ProducerClosed.
        """
        ...

    async def partitions_for(self, topic: str) -> Collection[int]: ...

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, headers: SentHeaders | None = None
    ) -> asyncio.Future[Any]:
        """Queues a record. The future has the `AppendedRecord`, or raises KafkaError."""
        ...

    async def send_and_wait(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None, headers: SentHeaders | None = None
    ) -> AppendedRecord: ...

    def send_batches(self, partition: TopicPartition, records: Iterable[Unsent], most_bytes: int | None = None) -> list[SentBatch]:
        """Queues records for one partition, behind all that were queued before, in as few batches
        as possible. `most_bytes`: of a batch of several records; None: as the producer was made.
        When one of them is not appended, those behind it are not sent. Call `partitions_for`
        before. Raises KafkaError, and queues nothing, when a record is too large or the producer
        cannot send.
        """
        ...

    async def flush(self) -> None:
        """Returns when everything queued was sent or has failed."""
        ...

    async def leader_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderEnd]:
        """Last stable offsets and epochs, from the partitions' leaders, over the producer's
        connections: no request waits there for records. Raises KafkaError.
        """
        ...

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Commits offsets of a consumer group, outside of transactions. Raises KafkaError."""
        ...

    async def begin_transaction(self, expected: Collection[TopicPartition] = ()) -> None:
        """`expected`: partitions that will probably be written. One request adds them to the
        transaction, so that no batch waits for that. Each gets a marker at the end.
        """
        ...

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int], group: str, notes: Mapping[TopicPartition, str] | None = None
    ) -> None:
        """`notes`: metadata of the offsets, where they have some. Raises KafkaError."""
        ...

    async def commit_transaction(self) -> None:
        """Raises ProducerFenced when another producer has begun with the same transactional id."""
        ...


class Admin(Client, Protocol):
    """Asks about topics, groups and their offsets, and changes them."""

    async def ask(self, request: Any, node: int | None = None) -> Any:
        """Returns the answer of broker `node`; None: of the first one that is there. Raises
        KafkaError; NotImplementedError or IncompatibleBrokerVersion when it does not know the
        request.
        """
        ...

    async def ask_group(self, group: str, request: Any, read: Callable[[Any], T]) -> T:
        """Returns what `read` makes of the answer of the group's coordinator. Asks once. Raises as
        `ask`; `read` may raise KafkaError, and the coordinator is looked for again.
        """
        ...

    async def coordinator(self, group: str) -> int:
        """The broker that coordinates the group. Raises KafkaError."""
        ...

    def forget_coordinator(self, group: str) -> None:
        """The next request looks for it again."""
        ...

    def nodes(self) -> list[int]:
        """The brokers that are known."""
        ...

    def address(self, node: int) -> tuple[str, int] | None:
        """Host and port of a broker; None: unknown."""
        ...

    async def describe_cluster(self) -> dict[str, Any]:
        """`cluster_id`, and `brokers`: list of `node_id`, `host`, `port`, `rack`."""
        ...

    async def describe_topics(self, topics: Sequence[str] | None, *, operations: bool = False) -> list[dict[str, Any]]:
        """For each topic `topic`, `error_code`, and `partitions`: list of `partition`, `leader`
        (-1: none), `replicas`, `isr`. From Kafka 2.8 on also `topic_id` and, if asked for, what the
        user may do (`operations`, in bits). `topics` None: all.
        """
        ...

    async def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, str]:
        """Creates topics. Returns topic -> reason for each that cannot be created; one that exists
        is not among them. Raises KafkaError, also when one cannot be created at this moment.
        """
        ...

    async def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Topic -> setting -> value, defaults included. Raises KafkaError."""
        ...

    async def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Gives a topic exactly these settings, beside the brokers' defaults. Raises KafkaError."""
        ...

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Deletes the records before these offsets (-1: all): each partition begins there, at
        least. Raises KafkaError.
        """
        ...

    async def committed_offsets(self, group: str, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, int | None]:
        """Offsets committed by a consumer group, for all of `partitions`; None: there is none.
        `partitions` None: for those that have one. Raises KafkaError.
        """
        ...


class BrokerFailures(Protocol):
    """Collects failures of brokers that do not answer. Any thread may call it."""

    @property
    def is_away(self) -> bool:
        """Returns whether a broker does not answer."""

    def failed(self, what: str) -> None:
        """A request failed, or no connection was made. `what`: on one line."""


LOG_COMPRESSION = "gzip"
"""Compression of what is written to the log. Every build can read it: the other codecs of Kafka
need a library in each reader (cramjam).
"""


class Clients(Protocol):
    """Makes clients, which are not started yet. `throttling`: how long quotas hold them back."""

    throttling: Throttling

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        """While entered, `failures` gets what the client library would log about brokers that do
        not answer. The library itself logs that at level DEBUG only.
        """
        ...

    def consumer(
        self,
        *,
        group: str | None = None,
        read_committed: bool = False,
        auto_offset_reset: Literal["none", "earliest", "latest"] = "none",
        request_timeout_ms: int = 40_000,
        rack: str | None = None,
        max_poll_records: int | None = None,
        fetch_max_wait_ms: int = 500,
        max_partition_fetch_bytes: int = 2**20,
        fetch_max_bytes: int = 50 * 2**20,
        connections_max_idle_ms: int = MOST_IDLE_MS,
        as_rows: bool = False,
    ) -> Consumer:
        """`group`: for `committed` and `commit` only; there is no group membership. `rack`: reads
        from a near replica (KIP-392). `connections_max_idle_ms`: closes connections that are not
        used for so long, and opens them again when they are. `as_rows`: it returns a `Row` for each
        record.
        """
        ...

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        request_timeout_ms: int = 40_000,
        retry_backoff_ms: int = 100,
        max_batch_size: int = 16_384,
        compression_type: str | None = None,
        connections_max_idle_ms: int = MOST_IDLE_MS,
        topic_ids: Mapping[str, str] | None = None,
    ) -> Producer:
        """`compression_type`: of what it makes smaller; None: nothing is compressed. Batches of
        `send_batches` are always compressed then. `connections_max_idle_ms`: as for `consumer`.
        `topic_ids`: topic -> id. Brokers from Kafka 4.1 on append nothing to another one of that
        name: UnknownTopicIdError.
        """
        ...

    def admin(self, *, request_timeout_ms: int = 40_000, client_id: str | None = None) -> Admin:
        """`client_id`: by which brokers name it; None: the client library's."""
        ...


@lru_cache(maxsize=2**16)
def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition that Kafka's own clients choose for `key`, of so many."""
    from aiokafka.partitioner import murmur2

    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def not_sent_behind(error: BaseException) -> Exception:
    """Returns why a batch is not sent when one before it has failed with `error`."""
    from aiokafka.errors import KafkaError

    why: Exception = KafkaError(f"not sent, because what was before it was not appended: {error!r}")
    return why


@asynccontextmanager
async def within(what: str, most_s: float = LATEST_S) -> AsyncIterator[None]:
    """Ends the waits of its block after `most_s` seconds. Raises KafkaTimeoutError then, which
    names `what` was waited for.
    """
    limit = asyncio.timeout(most_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise late(what, most_s) from None
        raise


def late(what: str, after_s: float) -> Exception:
    """Returns the KafkaTimeoutError that says what was waited for, and for how long."""
    from aiokafka.errors import KafkaTimeoutError

    error: Exception = KafkaTimeoutError(f"waited {after_s:.0f} s for {what}")
    return error


async def acknowledged(batches: Iterable[SentBatch]) -> None:
    """Returns when all `batches` are appended. Raises the first KafkaError, KafkaTimeoutError after
    LATEST_S.
    """
    futures = [each.appended for each in batches]
    if len(futures) == 1:
        await _settled(futures[0])  # in half the time of `wait`
    elif futures:
        await asyncio.wait(futures, timeout=LATEST_S, return_when=asyncio.FIRST_EXCEPTION)  # cancels no batch, unlike `gather`
    for future in futures:
        if future.done():
            future.result()
    if not all(future.done() for future in futures):
        raise late("the acknowledgement of what was sent", LATEST_S)


async def _settled(future: asyncio.Future[Any]) -> None:
    """Returns when `future` is done, or after LATEST_S. Does not cancel it when the caller is
    cancelled.
    """
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def end(_: asyncio.Future[Any] | None = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        future.add_done_callback(end)
        timer = loop.call_later(LATEST_S, end)
        try:
            await waiter
        finally:
            timer.cancel()
            future.remove_done_callback(end)


async def unless_abandoned(request: Coroutine[Any, Any, T]) -> T:
    """Returns what `request` returns, a request of a client that another task may close meanwhile.
    Closing cancels requests, which must not look like a cancellation of the caller: then this
    raises ProducerClosed. Raises what `request` raises.
    """
    from aiokafka.errors import ProducerClosed

    asked = asyncio.ensure_future(request)
    try:
        await asyncio.wait((asked,))
    finally:
        await call_off(asked)
    if asked.cancelled():
        closed: Exception = ProducerClosed("a request was cancelled, because its client was closed")
        raise closed
    return asked.result()


async def call_off(*tasks: asyncio.Future[Any], again_s: float = _AGAIN_S) -> None:
    """Cancels tasks each `again_s` seconds until they end: a request that is answered at the same
    moment swallows a cancellation, and its loop continues. Leaves those that go on for
    MOST_ENDING_S, and logs where each of them waits.
    """
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + MOST_ENDING_S
    while running := [task for task in tasks if not task.done()]:
        if now_s() >= until_s:
            _LOG.error("left, %.0f s after they were cancelled: %s", MOST_ENDING_S, ", ".join(map(_where, running)))
            break
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=min(again_s, until_s - now_s()))
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it


def _where(task: asyncio.Future[Any]) -> str:
    """Returns the functions that a task is in, each with its line."""
    awaited: Any = task.get_coro() if isinstance(task, asyncio.Task) else None
    calls = []
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        calls.append(f"{awaited.__qualname__}:{frame.f_lineno}")
        awaited = awaited.cr_await
    return " > ".join(calls) or repr(task)
