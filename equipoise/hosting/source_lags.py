"""Lags of a consumer group, from the brokers (KIP-169 "Lag", "Obtaining Consumer Group Offsets")."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.assignors.common.source_lag import partition_lag
from equipoise.kafka.client import Admin, Consumer, TopicPartition


async def source_lags(
    admin: Admin, consumer: Consumer, group_id: str, partitions: Iterable[tuple[str, int]], auto_offset_reset: str
) -> dict[tuple[str, int], int]:
    """(topic, partition) -> records that the group has not read: from the committed offset, or,
    where nothing is committed, from where `auto_offset_reset` says, up to the end. One request each
    for all partitions, which must exist. Raises KafkaError.
    """
    wanted = [TopicPartition(topic, partition) for topic, partition in sorted(set(partitions))]
    if not wanted:
        return {}
    committed = await admin.committed_offsets(group_id, wanted)
    ends = await consumer.end_offsets(wanted)  # after the commits, which are never ahead of them then
    new = [place for place in wanted if committed[place] is None and auto_offset_reset.lower() != "latest"]
    beginnings = await consumer.beginning_offsets(new) if new else {}
    return {
        (place.topic, place.partition): partition_lag(
            beginning=beginnings.get(place), end=ends.get(place), committed=committed[place], auto_offset_reset=auto_offset_reset
        )
        for place in wanted
    }
