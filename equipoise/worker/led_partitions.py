"""The partitions that a worker leads, as its consumer group gives and revokes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from equipoise.worker.partition_host import PartitionHost

_LAST_CHECKPOINTS_S = 2.0
"""Time for last checkpoints when a partition is revoked."""
Generation = tuple[str, int]
"""As which member the worker is in its consumer group, and in which generation."""


class LedPartitions:
    """Starts and stops the hosts of partitions. `make`: makes the host of a partition; None: it
    holds no group. `hosts`: partition -> its host. `is_assigned`: the group has given this worker
    its partitions, if only none.
    """

    def __init__(self, make: Callable[[int], PartitionHost | None], monotonic_s: Callable[[], float]) -> None:
        self._make, self._monotonic_s = make, monotonic_s
        self.hosts: dict[int, PartitionHost] = {}
        self.is_assigned = False
        self._revoked_s: float | None = None
        """Since when the partitions are revoked; None: they are not."""
        self._revoked_in: Generation | None = None

    def start(self, partitions: Iterable[int]) -> None:
        """Begins to lead these partitions."""
        self.is_assigned = True
        for partition in sorted(partitions):
            host = self._make(partition)
            if host is not None:
                self.hosts[partition] = host
                host.start()

    async def stop(self, partitions: Iterable[int]) -> None:
        """Stores last checkpoints of these partitions, and stops leading them."""
        hosts = [self.hosts.pop(partition) for partition in partitions if partition in self.hosts]
        await asyncio.gather(*(_stop_with_checkpoint(host) for host in hosts))

    async def stop_all(self) -> None:
        """Stores last checkpoints of all partitions, and stops leading them."""
        await self.stop(list(self.hosts))

    async def abandon_all(self) -> None:
        """Stops leading all partitions, without last checkpoints: their log is replaced."""
        hosts, self.hosts = list(self.hosts.values()), {}
        await asyncio.gather(*(host.stop() for host in hosts))

    def revoke(self, generation: Generation) -> None:
        """Kafka revokes all partitions before each rebalance of the consumer group, and nobody gets
        one before that has ended. So they are led on until then.
        """
        self._revoked_s, self._revoked_in = self._monotonic_s(), generation
        for host in self.hosts.values():
            host.begin_checkpoints()  # so that another worker, if it gets the partition, reads little

    async def assign(self, partitions: Sequence[int], generation: Generation) -> None:
        """Leads these partitions, and goes on with those that nobody else can have led meanwhile:
        the worker was in the generation right before.
        """
        (member_id, number), revoked_in = generation, self._revoked_in
        self._revoked_s = self._revoked_in = None
        stay = set(partitions) if revoked_in == (member_id, number - 1) else set()
        await self.stop(sorted(self.hosts.keys() - stay))
        self.start(sorted(set(partitions) - self.hosts.keys()))

    async def stop_overdue(self, most_s: float) -> None:
        """Stops leading partitions that were revoked more than `most_s` seconds ago: the worker is
        put out of the rebalance.
        """
        if self._revoked_s is not None and self._monotonic_s() - self._revoked_s > most_s:
            self._revoked_s = self._revoked_in = None
            await self.stop_all()


async def _stop_with_checkpoint(host: PartitionHost) -> None:
    try:
        await asyncio.wait_for(host.stop(checkpoint=True), _LAST_CHECKPOINTS_S)
    except TimeoutError:
        await host.stop()
