"""Compares by which partitioner the sources of one task were written: records with one key meet in
one task only where all of them use the same.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence

import attrs

from equipoise.kafka.client import ConsumedRecord, TopicPartition, partition_of_key

_LOG = logging.getLogger(__name__)
KEYS = 40
"""Keys of a source by which its partitioner is known. One partition of two has half of all keys."""
MOST_ODD = 2
"""So many of them may be elsewhere: a producer may choose the partition of some records itself."""
MURMUR2, CRC32, OTHER = "Kafka's own partitioner (murmur2)", "librdkafka's default partitioner (CRC-32)", "neither murmur2 nor CRC-32"


@attrs.define
class _Sampled:
    keys: set[bytes] = attrs.field(factory=set)
    not_murmur2: int = 0
    not_crc32: int = 0

    @property
    def partitioner(self) -> str | None:
        if len(self.keys) < KEYS:
            return None
        return MURMUR2 if self.not_murmur2 <= MOST_ODD else CRC32 if self.not_crc32 <= MOST_ODD else OTHER


class PartitionerCheck:
    """Samples the sources of one processor and logs a difference once. `topics`: two or more."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._sampled = {topic: _Sampled() for topic in topics}
        self.is_settled = False
        """Nothing more is to be found out."""
        self.trouble = ""
        """The difference, as a sentence; "": none is known."""

    def look(self, place: TopicPartition, records: Sequence[ConsumedRecord], partitions: int) -> None:
        """Samples the keys of `records`, which came from `place`. `partitions`: of its topic."""
        sampled = self._sampled[place.topic]
        if partitions < 2 or sampled.partitioner is not None:
            return
        for record in records:
            key = record.key
            if key is None or key in sampled.keys:
                continue
            sampled.keys.add(key)
            sampled.not_murmur2 += partition_of_key(key, partitions) != place.partition
            sampled.not_crc32 += zlib.crc32(key) % partitions != place.partition
            if sampled.partitioner is not None:
                self._compare()
                return

    def _compare(self) -> None:
        known = {topic: each.partitioner for topic, each in self._sampled.items() if each.partitioner is not None}
        self.is_settled = len(known) == len(self._sampled)
        if len(set(known.values())) < 2:
            return
        self.is_settled = True
        written = "; ".join(f"{topic} was written by {partitioner}" for topic, partitioner in sorted(known.items()))
        self.trouble = (
            f"sources {', '.join(sorted(known))}: records with one key are in different partitions, so they do not meet: {written}; have all "
            "producers use one partitioner (librdkafka: partitioner=murmur2_random), and write the source again"
        )
        _LOG.warning("%s", self.trouble)
