"""The inputs and the orders of a consumer's core: the latter say what is to be sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import attrs

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.consumer.fetch_session import Asked

Reset = Literal["none", "earliest", "latest"]


@attrs.frozen(kw_only=True)
class FetchOptions:
    """`partition_bytes`, `answer_bytes`: of an answer, at most, but for its first batch. `reset`:
    where to go on if there is no position. `has_group`: a position may be a committed offset.
    `rack`: replicas in it are read if the broker says so. `as_rows`: see `client.Clients.consumer`.
    """

    max_wait_ms: int = 500
    partition_bytes: int = 2**20
    answer_bytes: int = 50 * 2**20
    read_committed: bool = False
    reset: Reset = attrs.field(default="none", validator=attrs.validators.in_(("none", "earliest", "latest")))
    has_group: bool = False
    rack: str = ""
    retry_ms: float = 100.0
    as_rows: bool = False


@attrs.frozen
class FetchOrder:
    """Ask `node` for what it has of its session's partitions. `named`: those of which something has
    changed, in the order in which they are to be answered; `dropped`: those to fetch no more.
    """

    node: int
    session_id: int
    session_epoch: int
    wait_ms: int
    named: Mapping[TopicPartition, Asked]
    dropped: Collection[TopicPartition]


@attrs.frozen
class FindPositions:
    """Find where to begin. `node` None: the offsets that the group has committed; else ask this
    broker for the first offsets or the ends.
    """

    node: int | None
    places: Sequence[TopicPartition]


Order = FetchOrder | FindPositions


@attrs.frozen
class Due:
    """`asks_metadata`: a leader is unknown. `again_ms`: when to look again if nothing happens
    before; `inf`: then there is nothing to do.
    """

    orders: Sequence[Order]
    asks_metadata: bool
    again_ms: float
