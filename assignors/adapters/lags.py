"""Lags of a consumer group, from the brokers (KIP-169 "Lag", "Obtaining Consumer Group Offsets").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from equipoise.assignors.common.source_lag import partition_lag


async def source_lags(
    admin: Any, consumer: Any, group_id: str, partitions: Iterable[tuple[str, int]], auto_offset_reset: str
) -> dict[tuple[str, int], int]:
    """(topic, partition) -> records that the group has not read: from the committed offset, or,
    where nothing is committed, from where `auto_offset_reset` says, up to the end. One request each
    for all partitions, which must exist.

    `admin`, `consumer`: running clients of aiokafka. Raises KafkaError.
    """
    from aiokafka import TopicPartition
    from aiokafka.errors import GroupCoordinatorNotAvailableError

    wanted = [TopicPartition(topic, partition) for topic, partition in sorted(set(partitions))]
    if not wanted:
        return {}
    said = await admin.list_consumer_group_offsets(group_id, partitions=wanted)
    if not said.keys() >= set(wanted):  # the client passes over an error of the whole answer, which then names no partition
        raise GroupCoordinatorNotAvailableError(f"the offsets of group {group_id} are not available now")
    committed = {place: said[place].offset if said[place].offset >= 0 else None for place in wanted}
    ends = await consumer.end_offsets(wanted)  # after the commits, which are never ahead of them then
    new = [place for place in wanted if committed[place] is None and auto_offset_reset.lower() != "latest"]
    beginnings = await consumer.beginning_offsets(new) if new else {}
    return {
        (place.topic, place.partition): partition_lag(
            beginning=beginnings.get(place), end=ends.get(place), committed=committed[place], auto_offset_reset=auto_offset_reset
        )
        for place in wanted
    }
