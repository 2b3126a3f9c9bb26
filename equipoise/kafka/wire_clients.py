"""Makes clients over wires."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from equipoise.kafka.admin.shell import WireAdmin
from equipoise.kafka.broker_wire import Wire
from equipoise.kafka.client import MOST_IDLE_MS
from equipoise.kafka.consumer.reading_orders import FetchOptions, Reset
from equipoise.kafka.consumer.shell import WireConsumer
from equipoise.kafka.producer.sending_orders import ProducerOptions
from equipoise.kafka.producer.shell import WireProducer
from equipoise.kafka.throttling import Throttling


class WireClients:
    """All of `client.Clients` but its log. `wire`: makes one. It gets options of AIOKafkaClient.
    `throttling`: what its wires measure.
    """

    def __init__(self, wire: Callable[..., Wire], throttling: Throttling) -> None:
        self._wire = wire
        self.throttling = throttling

    def consumer(
        self,
        *,
        group: str | None = None,
        read_committed: bool = False,
        auto_offset_reset: Reset = "none",
        request_timeout_ms: int = 40_000,
        rack: str | None = None,
        max_poll_records: int | None = None,
        fetch_max_wait_ms: int = 500,
        max_partition_fetch_bytes: int = 2**20,
        fetch_max_bytes: int = 50 * 2**20,
        connections_max_idle_ms: int = MOST_IDLE_MS,
        as_rows: bool = False,
    ) -> WireConsumer:
        """See `client.Clients`."""
        wire = self._wire(request_timeout_ms=request_timeout_ms, connections_max_idle_ms=connections_max_idle_ms)
        options = FetchOptions(
            max_wait_ms=fetch_max_wait_ms,
            partition_bytes=max_partition_fetch_bytes,
            answer_bytes=fetch_max_bytes,
            read_committed=read_committed,
            reset=auto_offset_reset,
            has_group=group is not None,
            rack=rack or "",
            as_rows=as_rows,
        )
        return WireConsumer(wire, options, group=group, most_records=max_poll_records, request_timeout_s=request_timeout_ms / 1_000)

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
    ) -> WireProducer:
        """See `client.Clients`."""
        options = ProducerOptions(
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            timeout_ms=request_timeout_ms,
            retry_ms=retry_backoff_ms,
            batch_bytes=max_batch_size,
            compression=compression_type,
            topic_ids={topic: bytes.fromhex(each) for topic, each in (topic_ids or {}).items()},
        )
        return WireProducer(self._wire(request_timeout_ms=request_timeout_ms, connections_max_idle_ms=connections_max_idle_ms), options)

    def admin(self, *, request_timeout_ms: int = 40_000, client_id: str | None = None) -> WireAdmin:
        """See `client.Clients`."""
        named: dict[str, Any] = {} if client_id is None else {"client_id": client_id}
        return WireAdmin(self._wire(request_timeout_ms=request_timeout_ms, **named), request_timeout_s=request_timeout_ms / 1_000)
