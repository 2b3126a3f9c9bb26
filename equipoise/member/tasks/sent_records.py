"""Records as handlers send them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Self

from equipoise.kafka.client import Unsent, partition_of_key


class Outputs:
    """Records to send, those of each partition in order. `partitions`: topic -> number of its
    partitions, as far as it is known.
    """

    def __init__(self, partitions: dict[str, int]) -> None:
        self.partitions = partitions
        self.placed: dict[tuple[str, int], list[Unsent]] = {}
        """(topic, partition) -> records."""
        self.unplaced: list[tuple[str, int | None, Unsent]] = []
        """Topic, partition, record: of topics whose partitions are not known yet, and those with
        neither a partition nor a key.
        """

    def __len__(self) -> int:
        return len(self.unplaced) + sum(map(len, self.placed.values()))

    def __bool__(self) -> bool:
        return bool(self.placed or self.unplaced)

    def add(self, topic: str, partition: int | None, record: Unsent) -> list[Any]:
        """Adds a record. `partition` None: chosen by the key. Returns the list in which it is last."""
        if partition is None and record[0] is not None and topic in self.partitions:
            partition = partition_of_key(record[0], self.partitions[topic])
        records: list[Any] | None = None if partition is None else self.placed.get((topic, partition))
        if records is None:
            if partition is None or topic not in self.partitions:
                self.unplaced.append((topic, partition, record))
                return self.unplaced
            records = self.placed[topic, partition] = []
        records.append(record)
        return records

    def add_many(self, topic: str, partition: int | None, records: Sequence[Unsent]) -> Iterable[list[Any]]:
        """Adds records. Returns what `add` returns for each."""
        if partition is None or topic not in self.partitions:
            return [self.add(topic, partition, record) for record in records]
        placed = self.placed.setdefault((topic, partition), [])
        placed += records
        return repeat(placed, len(records))

    def take(self) -> Self:
        """All of them. None are left here."""
        taken = type(self)(self.partitions)
        taken.placed, taken.unplaced, self.placed, self.unplaced = self.placed, self.unplaced, {}, []
        return taken
