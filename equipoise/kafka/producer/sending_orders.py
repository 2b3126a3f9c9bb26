"""The inputs and the orders of a producer's core: the latter say what is to be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import attrs

from equipoise.kafka.client import MOST_REQUEST_BYTES, TopicPartition
from equipoise.kafka.producer.record_batches import RecordBatch


@attrs.frozen(kw_only=True)
class ProducerOptions:
    """`batch_bytes`: of a batch of several records, before it is compressed. `timeout_ms`: how long
    brokers may take, and how long a batch waits for a leader. `retry_ms`: before what has failed is
    sent again. `topic_ids`: topics that must be these, and not others of the same names.
    """

    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    timeout_ms: int = 40_000
    retry_ms: float = 100.0
    batch_bytes: int = 16_384
    most_bytes: int = MOST_REQUEST_BYTES
    compression: str | None = None
    topic_ids: Mapping[str, bytes] = attrs.field(factory=dict)


class Coordinates(IntEnum):
    """Kinds of coordinators, as FindCoordinator numbers them."""

    GROUP = 0
    TRANSACTION = 1


class ProducerId(NamedTuple):
    """The id that brokers have given a producer, with its epoch."""

    id: int
    epoch: int


NO_PRODUCER_ID = ProducerId(-1, -1)


@attrs.frozen
class FindCoordinator:
    """Ask any broker who coordinates `key`, and connect to it."""

    kind: Coordinates
    key: str


@attrs.frozen
class InitProducerId:
    """Ask for a producer id. `node` None: any broker."""

    node: int | None


@attrs.frozen
class AddPartitions:
    """Add partitions to the transaction."""

    node: int
    producer: ProducerId
    places: Sequence[TopicPartition]


@attrs.frozen
class AddGroup:
    """Add the offsets of a group to the transaction (AddOffsetsToTxn)."""

    node: int
    producer: ProducerId
    group: str


@attrs.frozen
class CommitInTransaction:
    """Commit offsets with the transaction (TxnOffsetCommit). `notes`: their metadata."""

    node: int
    producer: ProducerId
    group: str
    offsets: Mapping[TopicPartition, int]
    notes: Mapping[TopicPartition, str]


@attrs.frozen
class EndTransaction:
    """Commit the transaction, or abort it."""

    node: int
    producer: ProducerId
    commits: bool


@attrs.frozen
class ProduceBatches:
    """Append these batches, each of another partition that `node` leads. `by_id`: of topics whose
    ids are given.
    """

    node: int
    batches: Sequence[RecordBatch]
    by_id: bool = False


TransactionOrder = FindCoordinator | InitProducerId | AddPartitions | AddGroup | CommitInTransaction | EndTransaction
SendOrder = TransactionOrder | ProduceBatches


@attrs.frozen
class DueToSend:
    """`asks_metadata`: a leader or a coordinator is unknown. `again_ms`: when to look again if
    nothing happens before; `inf`: then there is nothing to do.
    """

    orders: Sequence[SendOrder]
    asks_metadata: bool
    again_ms: float
