"""The clients of `client`, over aiokafka.

Only `topic_ids`, this file and the other `aiokafka_` files use aiokafka's internals.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from equipoise.kafka.aiokafka_admin import DeployedAdmin
from equipoise.kafka.aiokafka_log import hold_back_log
from equipoise.kafka.aiokafka_wire import AiokafkaWire
from equipoise.kafka.client import Admin, BrokerFailures, Consumer
from equipoise.kafka.consumer.reading_orders import FetchOptions, Reset
from equipoise.kafka.consumer.shell import WireConsumer
from equipoise.kafka.producer.producer_shell import WireProducer
from equipoise.kafka.producer.sending_orders import ProducerOptions


class DeployedClients:
    """Makes clients, in the event loop that runs them. `connection`: aiokafka's options for the
    connection.
    """

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._connection = connection

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
        connections_max_idle_ms: int = 540_000,
        as_rows: bool = False,
    ) -> Consumer:
        """See `client.Clients`."""
        wire = AiokafkaWire({**self._connection, "request_timeout_ms": request_timeout_ms, "connections_max_idle_ms": connections_max_idle_ms})
        options = FetchOptions(
            max_wait_ms=fetch_max_wait_ms, partition_bytes=max_partition_fetch_bytes, answer_bytes=fetch_max_bytes, read_committed=read_committed,
            reset=auto_offset_reset, has_group=group is not None, rack=rack or "", as_rows=as_rows,
        )  # fmt: skip
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
    ) -> WireProducer:
        """See `client.Clients`."""
        wire = AiokafkaWire({**self._connection, "request_timeout_ms": request_timeout_ms})
        options = ProducerOptions(
            transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms, timeout_ms=request_timeout_ms,
            retry_ms=retry_backoff_ms, batch_bytes=max_batch_size, compression=compression_type,
        )  # fmt: skip
        return WireProducer(wire, options)

    def hold_back_log(self, failures: BrokerFailures) -> AbstractContextManager[None]:
        """See `client.Clients`."""
        return hold_back_log(failures)

    def admin(self) -> Admin:
        """See `client.Clients`."""
        made: Admin = DeployedAdmin(**self._connection)
        return made
