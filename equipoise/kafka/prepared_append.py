"""An append as bytes, which any process can send over a plain connection, without Kafka's client:
loading that takes longer than the append.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
from aiokafka.protocol.produce import ProduceRequest_v3
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from equipoise.kafka.client import TopicPartition
from equipoise.kafka.metadata_requests import request_bytes, topic_ids_request

_ALL_REPLICAS = -1
_NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
_BATCH_BYTES = 2**20


def request_timeout_ms(within_s: float) -> int:
    """Returns how long a broker may take, when the proof is of use `within_s`."""
    return max(1_000, int(within_s * 250))


@attrs.frozen(kw_only=True)
class PreparedAppend:
    """Requests to the broker at `host` and `port`, each without its length. The records may be
    appended when the answer to `ask` contains `topic_id`: the topic is still the same. They are
    when the answer to `append` has two zero bytes at `error_at`.
    """

    host: str
    port: int
    ask: bytes
    topic_id: bytes
    append: bytes
    error_at: int


def prepared_append(
    leader: tuple[str, int], place: TopicPartition, topic_id: str, key: bytes, values: Sequence[bytes], *, timeout_ms: int
) -> PreparedAppend:
    """`leader`: host and port of the leader of `place`. `topic_id`: in hexadecimal. `timeout_ms`:
    longest wait for the replicas.
    """
    builder = DefaultRecordBatchBuilder(2, 0, 0, **_NO_PRODUCER, batch_size=_BATCH_BYTES)
    now_ms = int(time.time() * 1_000)
    for offset, value in enumerate(values):
        builder.append(offset, now_ms, key, value, [])
    topics = [(place.topic, [(place.partition, bytes(builder.build()))])]
    before_the_error = 4 + 4 + 2 + len(place.topic.encode()) + 4 + 4  # correlation id, one topic, its name, one partition, its number
    return PreparedAppend(
        host=leader[0],
        port=leader[1],
        ask=topic_ids_request([place.topic]),
        topic_id=bytes.fromhex(topic_id),
        append=request_bytes(ProduceRequest_v3(None, _ALL_REPLICAS, timeout_ms, topics)),
        error_at=before_the_error,
    )
