"""Customers of the sample application whose partitions may become more while it runs."""

from __future__ import annotations

import functools

from equipoise.log.kafka.envelope import partition_of

OF_EACH_ADDED = 2


@functools.cache
def placed_customers(count: int, partitions_at_first: int, partitions: int) -> dict[str, int]:
    """Name -> partition of the source. `count` customers are of the partitions that were there at
    first. Each partition that was added later has customers of its own, whose names are all of one
    partition of the outputs, which do not become more.
    """
    placed = {name: partition_of(name, partitions_at_first) for name in (f"c{number}" for number in range(count))}
    for added in range(partitions_at_first, partitions):
        names = (f"n{added}-{number}" for number in range(OF_EACH_ADDED * 10 * partitions_at_first))
        known = [name for name in names if partition_of(name, partitions_at_first) == added % partitions_at_first]
        placed.update(dict.fromkeys(known[:OF_EACH_ADDED], added))
    return placed
